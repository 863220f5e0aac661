"""`equifed reproduce`: a paper's table or figure, ours beside the published one; or many, into a record."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, astuple, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer
from filelock import FileLock
from rich.console import RenderableType

from equifed.cli.console import err, near, print_json, say, show
from equifed.cli.options import Output, Sharing
from equifed.cli.progress import Board, Watch
from equifed.cli.tables import plain_table
from equifed.errors import ConfigError, RunError
from equifed.files import check_writable, write_atomic
from equifed.report import write_report
from equifed.settings import Cluster
from equifed.signals import exit_code
from equifed.simulation import Simulation
from equifed.simulator import Step
from equifed.store import Store
from equifed.tracking import Round
from equifed.words import csv_cell
from equifed_papers.experiments import EXPERIMENTS, Request, base
from equifed_papers.experiments.base import Part, Table, find, unwatched
from equifed_papers.experiments.kept import rounds_kept
from equifed_papers.experiments.page import SUMMARY, page, summary
from equifed_papers.experiments.record import Row, explained, read, replaced, write
from equifed_papers.experiments.study import Piece, carried_out, discard, missing, names, pieces


def reproduce(
    name: str,
    request: Request,
    pages: Path | None,
    record: Path | None,
    only_page: bool,
    sharing: Sharing,
    output: Output,
) -> None:
    """One experiment is shown; several, and what goes into a record, are carried out part by part."""
    if name in EXPERIMENTS and record is None and not only_page:
        if sharing != Sharing():
            raise ConfigError("Workers share the parts of an experiment only with --record.", key="--workers")
        _one(name, request, pages, output)
        return
    if pages is not None:
        raise ConfigError("Pages are written of one experiment, without --record.", key="--pages")
    for option, value in (("seeds-per-job", sharing.seeds_per_job), ("settings-per-job", sharing.settings_per_job)):
        if value is not None:
            text = f"Each part of an experiment is one job, which is not cut further: leave out --{option}."
            raise ConfigError(text, key=f"--{option}")
    _many(name, request, record, only_page, sharing.cluster(), output)


# -- one experiment ----------------------------------------------------------------------------------------------------


def _one(name: str, request: Request, pages: Path | None, output: Output) -> None:
    experiment = find(name)
    options = EXPERIMENTS[name].options
    for option in request.given:
        if option not in options:
            known = ", ".join(f"--{each}" for each in (*options, "quick", "pages"))
            raise ConfigError(f"Experiment {name} has no --{option}. It takes {known}.", key=f"--{option}")
    if pages is not None:
        check_writable(pages, "Name another with --pages.")
    store = Store(output.runs)
    store.prepare()
    file = store.root / f"{name.replace('/', '-')}-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}.csv"
    parts: list[Part] = []
    try:
        with _watching() as watch:
            for part in experiment.parts(request, watch):
                parts.append(part)
                if experiment.kept and part.rows:
                    _append(file, experiment.kept, part.rows)
                for line in part.lines:
                    say(line)
                if not output.json:
                    show(*(line for piece in part.shown for line in _rendered(piece)))
    except KeyboardInterrupt as stopped:
        where = f" are in {near(file)}" if file.exists() else " were made"
        say(f"Interrupted; {sum(len(part.rows) for part in parts)} rows{where}.")
        raise typer.Exit(exit_code(stopped)) from None
    written = [] if pages is None else _write_pages(parts, pages, name.partition("/")[0])
    if output.json:
        rows = [row if isinstance(row, dict) else asdict(row) for part in parts for row in part.rows]
        record = {key: value for part in parts for key, value in part.record.items()}
        print_json({experiment.rows: rows, **record, "pages": written})
    if file.exists():
        say(f"All rows: {near(file)}")


def _append(file: Path, kind: type, rows: Sequence[Any]) -> None:
    """Rows are kept as they are made, so that what is done stays whatever happens next."""
    new = not file.exists()
    with file.open("a", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        if new:
            writer.writerow([field.name for field in fields(kind)])
        writer.writerows([csv_cell(value) for value in astuple(row)] for row in rows)


def _rendered(piece: Table | str) -> list[RenderableType]:
    if isinstance(piece, str):
        return [piece]
    numbers = [number for number in range(len(piece.columns)) if number not in piece.left]
    table = plain_table(*piece.columns, numbers=numbers, title=piece.title)
    for row in piece.rows:
        table.add_row(*row)
    return [table, ""]


@contextmanager
def _watching() -> Iterator[base.Watch]:
    """A bar for the current simulation on a terminal; elsewhere nothing, since every row has its line."""
    with ExitStack() as stack:

        def watch(title: str, simulation: Simulation, whole: bool = False) -> Iterator[Step]:
            stack.close()
            shown = stack.enter_context(Watch(title, simulation))
            for step in simulation.rounds():
                shown.round_finished(Round(simulation.job, step))
                yield step

        yield watch if err().is_terminal else unwatched


def _write_pages(parts: Sequence[Part], folder: Path, paper: str) -> list[str]:
    """A report for each group of results, named after it."""
    groups: dict[tuple[str, ...], list[Part]] = {}
    for part in parts:
        if part.results:
            groups.setdefault(part.page, []).append(part)
    pages = []
    for name, members in groups.items():
        results = [result for part in members for result in part.results]
        path, title = folder / f"{'-'.join(name)}.html", f"{paper}: {', '.join(name)}"
        pages.append(str(write_report(results, path, title=title, disparity=members[0].disparity)))
        say(f"Page: {near(path)}")
    return pages


# -- many experiments --------------------------------------------------------------------------------------------------


def _many(given: str, request: Request, record: Path | None, only_page: bool, cluster: Cluster, output: Output) -> None:
    """The parts of all these experiments; what was carried out at this commit is not repeated."""
    if request.quick and record is not None:
        raise ConfigError("A quick run is a look and goes into no record: leave out --record or --quick.")
    if only_page and record is None:
        raise ConfigError("--only-page is for the page of a record: name it with --record.")
    if record is not None:
        check_writable(record.parent, "Name another file with --record.")
    wanted = [] if only_page else pieces(names(given), request)
    rows: list[Row] = [] if record is None else read(record)
    todo = missing(wanted, rows)
    if len(todo) < len(wanted):
        say(f"{len(wanted) - len(todo)} of {len(wanted)} parts were recorded before at this commit.")
    new: list[Row] = []
    failed: list[str] = []
    store = Store(output.runs)
    if todo:
        store.prepare()
    begun = sum(rounds_kept(piece.folder(store.root)) > 0 for piece in todo)
    if begun:
        say(f"Going on with {begun} of {len(todo)} parts, which were begun before.")
    done: list[Piece] = []
    with Board() as board:
        for ended in carried_out(todo, store.root.resolve(), cluster, board):
            title = ended.piece.title
            if ended.text:
                say(f"{title}: {'not carried out, or not in full' if ended.rows else 'failed'}: {ended.text}")
            if not ended.rows:
                failed.append(f"{title}: {ended.text}")
            elif not ended.text:  # what lacked its data is asked for again
                done.append(ended.piece)
            new += ended.rows
            if record is not None:
                _add(record, ended.rows)
    for piece in done:  # only now: without a record, what they hold is lost with this process
        discard(piece.folder(store.root))
    if record is not None:
        rows = _add(record, [])
        say(f"Record: {near(record)}; page: {near(record.with_suffix('.md'))}")
    elif request.quick:
        say("Two seeds and two rounds are a look: what they are within says nothing.")
    shown = new if record is None else rows
    if output.json:
        print_json({"rows": [asdict(row) for row in shown], "failed": failed})
    else:
        table = plain_table(*SUMMARY, numbers=range(1, len(SUMMARY)))
        for line in summary(shown):
            table.add_row(*line)
        show(table)
    if failed:
        raise RunError(f"{len(failed)} of {len(todo)} parts failed, the first: {failed[0]}")


def _add(record: Path, new: Sequence[Row]) -> list[Row]:
    """All rows of the record, these included, and the page of them beside it. Several processes may add."""
    with FileLock(record.with_name(f".{record.name}.lock")):
        rows = explained(replaced(read(record), new))
        write(record, rows)
        write_atomic(record.with_suffix(".md"), page(rows).encode("utf-8"))
    return rows
