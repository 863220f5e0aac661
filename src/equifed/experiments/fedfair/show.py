"""FedFair's Table I and Figures 2 and 4."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equifed.cli.console import near, print_json, say, show
from equifed.cli.reproduce import Wanted, figure, kept, watching, write_pages
from equifed.cli.tables import plain_table
from equifed.experiments.fedfair import settings as fedfair
from equifed.experiments.fedfair.settings import Cell
from equifed.simulator import Result

OPTIONS = {
    "fedfair/table1": ("datasets", "methods", "seeds", "rounds", "select"),
    "fedfair/figure2": ("datasets", "seeds", "rounds"),
    "fedfair/figure4": ("datasets", "seeds", "rounds"),
}
QUICK = (2, 50)
"""Seeds and rounds of --quick."""


def reproduce(name: str, wanted: Wanted, runs: Path | None, json: bool) -> None:
    datasets = wanted.datasets or ["compas"]
    fedfair.check_names(datasets, wanted.methods, wanted.select or "test")  # before there is any file
    seeds = min(wanted.seeds or fedfair.SEEDS, QUICK[0]) if wanted.quick else wanted.seeds or fedfair.SEEDS
    rounds = min(wanted.rounds or QUICK[1], QUICK[1]) if wanted.quick else wanted.rounds
    if name == "fedfair/table1":
        _table1(datasets, seeds, rounds, wanted, runs, json)
    elif name == "fedfair/figure2":
        _figure2(datasets, seeds, rounds, wanted, json)
    else:
        _figure4(datasets, seeds, rounds, wanted, json)


# -- table 1 -----------------------------------------------------------------------------------------------------------


def _table1(
    datasets: Sequence[str], seeds: int, rounds: int | None, wanted: Wanted, runs: Path | None, json: bool
) -> None:
    select = wanted.select or "test"
    cells: list[Cell] = []
    results: dict[tuple[str, ...], list[Result]] = {}
    with kept("fedfair/table1", runs, Cell._fields, per_row=3) as (write, file), watching() as watch:
        for row, result in fedfair.table1(datasets, wanted.methods, seeds, rounds, select, watch):
            cells += row
            write(row)
            results.setdefault((row[0].dataset,), []).append(result)
            say(_line(row))
    pages = write_pages(results, wanted.pages, "FedFair")
    if json:
        print_json({"cells": [cell._asdict() for cell in cells], "known_errors": fedfair.KNOWN_ERRORS, "pages": pages})
    else:
        for dataset in dict.fromkeys(cell.dataset for cell in cells):
            _show_table([cell for cell in cells if cell.dataset == dataset], dataset, seeds)
        compared = [cell for cell in cells if cell.metric == "HM" and cell.within is not None]
        within = sum(bool(cell.within) for cell in compared)
        show(
            "Ours (published), mean±std; = within noise, ≠ not: |difference| > 2 sqrt(s1²/n+s2²/5). "
            f"HM: {within} of {len(compared)} within noise. opt: the epsilon or tau with the best HM on {select} rows.",
            "* constant for more than 99 % of a group in some model.",
            "",
            "About the published table:",
            *(f"- {line}" for line in fedfair.KNOWN_ERRORS),
        )
    say(f"All cells: {near(file)}")


def _line(row: Sequence[Cell]) -> str:
    figures = ", ".join(f"{cell.metric} {figure(cell.mean, cell.std)}{_mark(cell)}" for cell in row)
    return f"{row[0].dataset} {row[0].method}: {figures}"


def _mark(cell: Cell) -> str:
    return {True: " =", False: " ≠", None: ""}[cell.within]


def _show_table(cells: Sequence[Cell], dataset: str, seeds: int) -> None:
    table = plain_table(
        "method", *fedfair.MEASURES, "opt", "stopped", numbers=range(1, 6), title=f"{dataset}: ours (published)"
    )
    for method in dict.fromkeys(cell.method for cell in cells):
        row = [cell for cell in cells if cell.method == method]
        shown = [
            f"{figure(cell.mean, cell.std)} ({figure(cell.published_mean, cell.published_std)}){_mark(cell)}"
            for cell in row
        ]
        first = row[0]
        opt = "" if first.opt is None else f"{first.opt:g}"
        opt += "" if first.published_opt is None else f" ({first.published_opt:g})"
        stopped = f"{first.stopped} of {seeds}" if first.opt is not None else ""
        table.add_row(method + ("*" if first.degenerate else ""), *shown, opt, stopped)
    show(table, "")


# -- figures -----------------------------------------------------------------------------------------------------------


def _figure2(datasets: Sequence[str], seeds: int, rounds: int | None, wanted: Wanted, json: bool) -> None:
    found: list[dict[str, Any]] = []
    results: dict[tuple[str, ...], list[Result]] = {}
    with watching() as watch:
        for dataset, frame, result in fedfair.figure2(datasets, seeds, rounds, watch):
            results[(dataset, "epsilon")] = [result]
            table = plain_table(
                "epsilon", "|federated estimate|", "DGEO, test", "fairness", "accuracy", "rounds", "feasible",
                numbers=range(7), title=f"{dataset}: FedFair over epsilon, {seeds} seeds",
            )  # fmt: skip
            for epsilon, row in frame.iterrows():
                figures = [figure(row[name, "mean"], row[name, "std"], 4) for name in ("afe", "dgeo")]
                figures += [figure(row[name, "mean"], row[name, "std"], 3) for name in ("fairness", "accuracy")]
                table.add_row(f"{epsilon:g}", *figures, f"{row['round', 'mean']:.0f}", f"{row['feasible', 'mean']:.0%}")
                means = {str(name): float(row[name, "mean"]) for name in frame.columns.levels[0]}  # type: ignore[attr-defined]
                found.append({"dataset": dataset, "epsilon": float(epsilon), **means})  # type: ignore[arg-type]
            if not json:
                show(table, "")
    pages = write_pages(results, wanted.pages, "FedFair")
    if json:
        print_json({"points": found, "pages": pages})
    else:
        show("The federated estimate lies on training rows, where the constraint holds; DGEO is the gap on test rows.")


def _figure4(datasets: Sequence[str], seeds: int, rounds: int | None, wanted: Wanted, json: bool) -> None:
    found: list[dict[str, Any]] = []
    results: dict[tuple[str, ...], list[Result]] = {}
    with watching() as watch:
        for dataset, method, rate, epsilon, mean, std, result in fedfair.figure4(
            datasets, seeds, rounds, fedfair.DROP_RATES, watch
        ):
            found.append(
                {"dataset": dataset, "method": method, "drop_rate": rate, "epsilon": epsilon, "hm": mean, "hm_std": std}
            )
            results.setdefault((dataset, method), []).append(result)
            say(f"{dataset} {method}, drop rate {rate:g}: HM {figure(mean, std, 3)} (epsilon {epsilon:g})")
    pages = write_pages(results, wanted.pages, "FedFair")
    if json:
        print_json({"points": found, "pages": pages})
        return
    for dataset in datasets:
        table = plain_table(
            "method", *(f"{rate:g}" for rate in fedfair.DROP_RATES), numbers=range(1, 5),
            title=f"{dataset}: HM at each drop rate, {seeds} seeds",
        )  # fmt: skip
        for method in ("FedFair", "LCO"):
            own = [point for point in found if (point["dataset"], point["method"]) == (dataset, method)]
            table.add_row(method, *(figure(point["hm"], point["hm_std"], 3) for point in own))
        show(table, "")
