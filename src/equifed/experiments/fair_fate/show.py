"""FAIR-FATE's Table 1 and Figure 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from equifed.cli.console import near, out, print_json, say, show
from equifed.cli.reproduce import Wanted, figure, kept, watching, write_pages
from equifed.cli.runs import pareto_of
from equifed.cli.tables import NARROW, pareto_table, plain_table
from equifed.errors import ConfigError, unknown_name
from equifed.experiments.fair_fate import settings as fair_fate
from equifed.experiments.fair_fate.settings import Cell
from equifed.simulator import Result

OPTIONS = {
    "fair-fate/table1": ("datasets", "sigma", "methods", "seeds", "reading", "select"),
    "fair-fate/figure3": ("datasets", "sigma", "seeds"),
}
QUICK = (3, 20)
"""Seeds and rounds of --quick."""


@dataclass(frozen=True)
class Part:
    """Which part of the experiment, and how much of it."""

    datasets: list[str]
    sigmas: list[str]
    readings: list[str]
    methods: list[str] | None
    seeds: int
    rounds: int
    select: str | None
    pages: Path | None


def reproduce(name: str, wanted: Wanted, runs: Path | None, json: bool) -> None:
    seeds, reading = wanted.seeds or fair_fate.SEEDS, wanted.reading or "both"
    part = Part(
        datasets=wanted.datasets or ["compas"],
        sigmas=wanted.sigma or list(fair_fate.SIGMAS),
        readings=list(fair_fate.READINGS) if reading == "both" else [reading],
        methods=wanted.methods,
        seeds=min(seeds, QUICK[0]) if wanted.quick else seeds,
        rounds=QUICK[1] if wanted.quick else fair_fate.ROUNDS,
        select=wanted.select,
        pages=wanted.pages,
    )
    if seeds > fair_fate.SEEDS:
        raise ConfigError(f"The authors have {fair_fate.SEEDS} seeds, got --seeds {seeds}.")
    if wanted.select not in (None, "validation"):
        raise ConfigError(f"--select takes only validation, got {wanted.select!r}.")
    for value, known, what in (
        *((each, fair_fate.CLIENTS, "data set of FAIR-FATE") for each in part.datasets),
        *((each, fair_fate.SIGMAS, "sigma") for each in part.sigmas),
        *((each, fair_fate.READINGS, "reading") for each in part.readings),
    ):
        if value not in known:
            raise ConfigError(unknown_name(what, value, known))
    if name == "fair-fate/table1":
        _table1(part, runs, json)
    else:
        _figure3(part, json)


def _table1(wanted: Part, runs: Path | None, json: bool) -> None:
    cells: list[Cell] = []
    results: dict[tuple[str, ...], list[Result]] = {}
    with kept("fair-fate/table1", runs, Cell._fields, per_row=4) as (write, file), watching() as watch:
        for row, result in fair_fate.table1(
            wanted.datasets, wanted.sigmas, wanted.readings, wanted.methods, wanted.seeds, wanted.rounds,
            wanted.select, watch,
        ):  # fmt: skip
            cells += row
            write(row)
            results.setdefault((*row[0][:2], row[0].reading), []).append(result)
            say(_line(row))
            if wanted.select and result.info["method"] == "fair-fate":
                say(f"  chosen on validation: {_setting(result)}")
    pages = write_pages(results, wanted.pages, "FAIR-FATE")
    if json:
        print_json({"cells": [cell._asdict() for cell in cells], "summary": _summary(cells), "pages": pages})
    else:
        for where in dict.fromkeys((cell.dataset, cell.sigma, cell.reading) for cell in cells):
            show(_table([cell for cell in cells if (cell.dataset, cell.sigma, cell.reading) == where], where), "")
        _tell(cells, wanted)
    say(f"All cells: {near(file)}")


def _setting(result: Result) -> str:
    chosen = result.info["hyper_parameters"]
    return ", ".join(f"{name} {chosen[name]:g}" for name in fair_fate.GRID)


def _line(row: Sequence[Cell]) -> str:
    first = row[0]
    figures = ", ".join(f"{cell.metric} {figure(cell.mean, cell.std)}{_mark(cell)}" for cell in row)
    return f"{first.dataset} {first.sigma} {first.reading} {first.method}: {figures}"


def _mark(cell: Cell) -> str:
    return {True: " =", False: " ≠", None: ""}[cell.within]


def _table(cells: Sequence[Cell], where: tuple[str, str, str]) -> Table:
    table = plain_table(
        "method", *fair_fate.MEASURES, numbers=range(1, 5),
        title=f"{where[0]}, sigma {where[1]}, {where[2]}: ours (published)",
    )  # fmt: skip
    between = "\n" if out().width < NARROW else " "
    for method in dict.fromkeys(cell.method for cell in cells):
        row = [cell for cell in cells if cell.method == method]
        table.add_row(method + ("*" if row[0].degenerate else ""), *(_beside(cell, between) for cell in row))
    return table


def _beside(cell: Cell, between: str) -> str:
    ours = figure(cell.mean, cell.std)
    if cell.within is None:
        return ours
    return f"{ours}{between}({figure(cell.published_mean, cell.published_std)}){_mark(cell)}"


def _summary(cells: Sequence[Cell]) -> dict[str, Any]:
    compared = [cell for cell in cells if cell.within is not None and cell.reading == "as-published"]
    return {
        "compared": len(compared),
        "within_noise": sum(bool(cell.within) for cell in compared),
        "changed_by_reading": _changed(cells),
        "degenerate": [
            f"{cell.dataset} {cell.sigma} {cell.method}, {cell.reading}: in {cell.degenerate} of the runs"
            for cell in cells
            if cell.metric == "ACC" and cell.degenerate
        ],
        "known_errors": list(fair_fate.KNOWN_ERRORS),
    }


def _changed(cells: Sequence[Cell]) -> list[str]:
    """Cells that differ between the readings by more than noise."""
    ours = {(cell.dataset, cell.sigma, cell.method, cell.metric, cell.reading): cell for cell in cells}
    lines = []
    for key, old in ours.items():
        new = ours.get((*key[:4], "algorithm-1"))
        if old.reading != "as-published" or new is None:
            continue
        if not fair_fate.within_noise((old.mean, old.std), (new.mean, new.std)):
            before, after = figure(old.mean, old.std), figure(new.mean, new.std)
            lines.append(
                f"{old.dataset} {old.sigma} {old.method} {old.metric}: {before} as published, {after} corrected"
            )
    return lines


def _tell(cells: Sequence[Cell], wanted: Part) -> None:
    summary = _summary(cells)
    show("Ours (published), mean±std over runs; = within noise, ≠ not: |difference| > 2 sqrt((s1²+s2²)/runs).")
    if summary["compared"]:
        share = summary["within_noise"] / summary["compared"]
        show(f"As published: {summary['within_noise']} of {summary['compared']} cells within noise ({share:.0%}).")
    if (wanted.seeds, wanted.rounds) != (fair_fate.SEEDS, fair_fate.ROUNDS):
        show(f"With {wanted.seeds} seeds and {wanted.rounds} rounds instead of 10 and 100 this is a look, not a test.")
    for title, lines in (
        ("Cells that change between the readings by more than noise:", summary["changed_by_reading"]),
        ("* Degenerate predictors (one class for more than 99 % of a group), per row:", summary["degenerate"]),
        ("Known errors of the published table:", summary["known_errors"]),
    ):
        if lines:
            show("", title, *(f"- {line}" for line in lines))


def _figure3(wanted: Part, json: bool) -> None:
    points: list[dict[str, Any]] = []
    groups: dict[tuple[str, ...], list[Result]] = {}
    with watching() as watch:
        for dataset, sigma, short, result in fair_fate.figure3(
            wanted.datasets, wanted.sigmas, wanted.seeds, wanted.rounds, watch
        ):
            frame = pareto_of(result, "accuracy", fair_fate.NAMES[short])
            if not json:
                show(pareto_table(frame, f"{dataset}, sigma {sigma}, F = {short}, over MAX"), "")
            points += [
                {"dataset": dataset, "sigma": sigma, "F": short, **row}
                for row in frame.astype({"method": str}).to_dict("records")
            ]
            groups[(dataset, sigma, short)] = [result]
    pages = write_pages(groups, wanted.pages, "FAIR-FATE")
    if json:
        print_json({"points": points, "pages": pages})
