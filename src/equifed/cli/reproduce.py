"""`equifed reproduce`: a paper's table or figure, ours beside the published one."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from equifed.cli.carry import pareto_of
from equifed.cli.progress import Watch
from equifed.cli.tables import NARROW, pareto_table, plain_table
from equifed.cli.talk import err, near, out, print_json, say, show
from equifed.errors import ConfigError, unknown_name
from equifed.experiments import EXPERIMENTS, fair_fate
from equifed.experiments.fair_fate import Cell
from equifed.simulator import Result, Simulation, Step
from equifed.store import Store
from equifed.store.files import writable_folder

QUICK = (3, 20)
"""Seeds and rounds of --quick."""


@dataclass(frozen=True)
class Wanted:
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
    if name not in EXPERIMENTS:
        raise ConfigError(unknown_name("experiment", name, EXPERIMENTS))
    for value, known, what in (
        *((each, fair_fate.CLIENTS, "data set of FAIR-FATE") for each in wanted.datasets),
        *((each, fair_fate.SIGMAS, "sigma") for each in wanted.sigmas),
        *((each, fair_fate.READINGS, "reading") for each in wanted.readings),
    ):
        if value not in known:
            raise ConfigError(unknown_name(what, value, known))
    if wanted.pages is not None:
        writable_folder(wanted.pages, "Name another with --pages.")
    if name == "fair-fate/table1":
        _table1(wanted, runs, json)
    else:
        _figure3(wanted, json)


@contextmanager
def _watching() -> Iterator[Callable[[str, Simulation], Callable[[Step], None]]]:
    """A bar for the simulation at hand on a terminal; elsewhere nothing, since every row is told when it is done."""
    with ExitStack() as stack:

        def watch(title: str, simulation: Simulation) -> Callable[[Step], None]:
            stack.close()
            if not err().is_terminal:
                return lambda step: None
            return stack.enter_context(Watch(title, simulation)).step

        yield watch


def _table1(wanted: Wanted, runs: Path | None, json: bool) -> None:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    store = Store(runs)
    store.prepare()
    file = store.root / f"fair-fate-table1-{stamp}.csv"
    cells: list[Cell] = []
    results: dict[tuple[str, str, str], list[Result]] = {}
    try:
        with _watching() as watch, file.open("w", newline="", encoding="utf-8") as out:
            writer = csv.writer(out)
            writer.writerow(Cell._fields)
            for row, result in fair_fate.table1(
                wanted.datasets, wanted.sigmas, wanted.readings, wanted.methods, wanted.seeds, wanted.rounds,
                wanted.select, watch,
            ):  # fmt: skip
                cells += row
                writer.writerows(row)  # what is done stays, whatever happens next
                out.flush()
                results.setdefault((*row[0][:2], row[0].reading), []).append(result)
                say(_line(row))
                if wanted.select and result.info["method"] == "fair-fate":
                    say(f"  chosen on validation: {_setting(result)}")
    except KeyboardInterrupt:
        say(f"Interrupted; {len(cells) // 4} rows are in {near(file)}.")
        raise typer.Exit(130) from None
    pages = _pages(results, wanted.pages)
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
    figures = ", ".join(f"{cell.metric} {_figure(cell.mean, cell.std)}{_mark(cell)}" for cell in row)
    return f"{first.dataset} {first.sigma} {first.reading} {first.method}: {figures}"


def _figure(mean: float, std: float) -> str:
    if math.isnan(mean):
        return "undefined"
    return f"{mean:.2f}" + ("" if math.isnan(std) else f"±{std:.2f}")


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
    ours = _figure(cell.mean, cell.std)
    if cell.within is None:
        return ours
    return f"{ours}{between}({_figure(cell.published_mean, cell.published_std)}){_mark(cell)}"


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
            before, after = _figure(old.mean, old.std), _figure(new.mean, new.std)
            lines.append(
                f"{old.dataset} {old.sigma} {old.method} {old.metric}: {before} as published, {after} corrected"
            )
    return lines


def _tell(cells: Sequence[Cell], wanted: Wanted) -> None:
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


def _pages(results: dict[tuple[str, str, str], list[Result]], folder: Path | None) -> list[str]:
    from equifed.report import write_report

    if folder is None:
        return []
    pages = [
        str(write_report(group, folder / f"{'-'.join(where)}.html", title=f"FAIR-FATE: {', '.join(where)}"))
        for where, group in results.items()
    ]
    for page in pages:
        say(f"Page: {near(Path(page))}")
    return pages


def _figure3(wanted: Wanted, json: bool) -> None:
    points: list[dict[str, Any]] = []
    groups: dict[tuple[str, str, str], list[Result]] = {}
    with _watching() as watch:
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
    pages = _pages(groups, wanted.pages)
    if json:
        print_json({"points": points, "pages": pages})
