"""`equifed reproduce`: a paper's table or figure, ours beside the published one. Each experiment shows itself."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from equifed.cli.console import err, near, say
from equifed.cli.progress import Watch
from equifed.errors import ConfigError, unknown_name
from equifed.experiments import EXPERIMENTS
from equifed.simulator import Result, Simulation, Step
from equifed.store import Store
from equifed.store.files import writable_folder

Write = Callable[[Sequence[Sequence[Any]]], None]
"""Takes finished cells."""


@dataclass(frozen=True)
class Wanted:
    """Which part of the experiment, and how much of it; None leaves it to the experiment."""

    datasets: list[str] | None = None
    sigma: list[str] | None = None
    skew: list[str] | None = None
    alpha: list[str] | None = None
    methods: list[str] | None = None
    seeds: int | None = None
    rounds: int | None = None
    reading: str | None = None
    select: str | None = None
    quick: bool = False
    pages: Path | None = None


def reproduce(name: str, wanted: Wanted, runs: Path | None, json: bool) -> None:
    if name not in EXPERIMENTS:
        raise ConfigError(unknown_name("experiment", name, EXPERIMENTS))
    paper = import_module(f"equifed.experiments.{name.split('/')[0].replace('-', '_')}.show")
    options: Sequence[str] = paper.OPTIONS[name]
    for field in fields(Wanted):
        if getattr(wanted, field.name) not in (None, False) and field.name not in (*options, "quick", "pages"):
            known = ", ".join(f"--{option}" for option in (*options, "quick", "pages"))
            raise ConfigError(f"{name} has no --{field.name}. It takes {known}.")
    if wanted.pages is not None:
        writable_folder(wanted.pages, "Name another with --pages.")
    paper.reproduce(name, wanted, runs, json)


@contextmanager
def watching() -> Iterator[Callable[[str, Simulation], Callable[[Step], None]]]:
    """A bar for the simulation at hand on a terminal; elsewhere nothing, since every row is told when it is done."""
    with ExitStack() as stack:

        def watch(title: str, simulation: Simulation) -> Callable[[Step], None]:
            stack.close()
            if not err().is_terminal:
                return lambda step: None
            return stack.enter_context(Watch(title, simulation)).step

        yield watch


@contextmanager
def kept(name: str, runs: Path | None, fields: Sequence[str], per_row: int = 1) -> Iterator[tuple[Write, Path]]:
    """(write, path): a CSV file in the runs' folder that takes the cells as they are made, so that what is done stays,
    whatever happens next. Ctrl-C says how many rows, of so many cells each, it holds."""
    store = Store(runs)
    store.prepare()
    path = store.root / f"{name.replace('/', '-')}-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}.csv"
    written = 0
    with path.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(fields)

        def write(cells: Sequence[Sequence[Any]]) -> None:
            nonlocal written
            writer.writerows(cells)
            out.flush()
            written += len(cells)

        try:
            yield write, path
        except KeyboardInterrupt:
            say(f"Interrupted; {written // per_row} rows are in {near(path)}.")
            raise typer.Exit(130) from None


def write_pages(
    results: Mapping[tuple[str, ...], list[Result]],
    folder: Path | None,
    paper: str,
    disparity: Callable[[tuple[str, ...]], str | None] = lambda where: None,
) -> list[str]:
    """A page for each group of results, named after it; `disparity` says what its verdict is about."""
    from equifed.report import write_report

    if folder is None:
        return []
    pages = []
    for where, group in results.items():
        path, title = folder / f"{'-'.join(where)}.html", f"{paper}: {', '.join(where)}"
        pages.append(str(write_report(group, path, title=title, disparity=disparity(where))))
    for page in pages:
        say(f"Page: {near(Path(page))}")
    return pages


def figure(mean: float, std: float, digits: int = 2) -> str:
    if math.isnan(mean):
        return "undefined"
    return f"{mean:.{digits}f}" + ("" if math.isnan(std) else f"±{std:.{digits}f}")
