"""`equifed monitor`: monitor a model in use, from a silo's table of decisions to the server's page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equifed.cli.console import near, print_json, say, show
from equifed.cli.options import Output, command, split_names
from equifed.disclosure import MIN_COUNT

if TYPE_CHECKING:
    from equifed.monitor import History
    from equifed.monitor.watch import RunCounts

monitor_app = typer.Typer(
    help="Monitor a model in use: silos count decisions, the server shows gaps over time and sounds an alarm.",
    no_args_is_help=True,
)


@command(monitor_app)
def count(
    table: Annotated[
        Path, typer.Argument(metavar="FILE", help="The decisions, one per row: .csv, .csv.gz or .parquet.")
    ],
    silo: Annotated[str, typer.Option(metavar="NAME", help="The silo's name.")],
    date: Annotated[str, typer.Option(metavar="COLUMN", help="The column with the date of the decision.")],
    decision: Annotated[str, typer.Option(metavar="COLUMN", help="The column with the decision, a class.")],
    out: Annotated[Path, typer.Option(metavar="FILE.json", help="The counts to write, for the server.")],
    label: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column with the true outcome; may be empty in some rows."),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The silos' shared schema: classes, groups and the inputs' bins."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column with the group. (default: by the schema's rule)"),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Without a schema: the possible decisions, the positive one last."),
    ] = None,
    period: Annotated[str, typer.Option(metavar="KIND", help="day, week, month, quarter or year.")] = "month",
    date_format: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help="The format of dates, e.g. %d.%m.%Y. (default: ISO 8601, 2026-10-31)"),
    ] = None,
    range: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=LOW:HIGH",
            help="Range of a numeric column for which the schema states none, the same at every silo. May be repeated.",
        ),
    ] = None,
    na_values: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Without a schema: words that mean a missing value, as an empty cell does: NA,?. (default: none)",
        ),
    ] = None,
    min_count: Annotated[int, typer.Option(metavar="N", min=0, help="Withhold counts below this.")] = MIN_COUNT,
    revises: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="This silo's earlier hand-in, which this one revises."),
    ] = None,
) -> None:
    """At a silo: convert a table of decisions to counts by period, group, decision and label.

    Small counts are withheld as in training. Only this file leaves the silo: read it before you send it.
    """
    from equifed.cli.report import check_page
    from equifed.errors import blaming
    from equifed.federation.tables import read_schema, read_table
    from equifed.monitor import count as count_rows
    from equifed.monitor import read_hand_in, revise, write_hand_in

    check_page(out, "--out")
    ranges = dict(_range(text) for text in range or ())
    shared = None if schema is None else read_schema(schema)
    before = None if revises is None else read_hand_in(revises)
    words = split_names(na_values, "--na-values") if na_values else ()
    frame = read_table(table, words if shared is None else shared.na_values)
    with blaming(file=table.name):
        counted = count_rows(
            frame,
            silo=silo,
            date=date,
            decision=decision,
            label=label,
            group=group,
            schema=shared,
            classes=split_names(classes, "--classes") if classes else (),
            period=period,  # type: ignore[arg-type]  # checked there
            date_format=date_format,
            ranges=ranges,
            na_values=words,
            min_count=min_count,
        )
    made, kept = (counted.hand_in, list[str]()) if before is None else revise(counted.hand_in, before)
    write_hand_in(out, made)
    show(near(out))
    for column, why in counted.left_out:
        say(f"Not counted: {column}, because {why}.")
    if counted.without_range:
        say("Give ranges that all silos use: --range COLUMN=LOW:HIGH.")
    if counted.merged:
        say(f"{counted.merged} rows in groups of fewer than {min_count} rows are counted as of unknown group.")
    if kept:
        say(f"Not revised, because the difference would be a small count: {', '.join(kept)}.")


def _range(text: str) -> tuple[str, tuple[float, float]]:
    from equifed.errors import ConfigError

    column, _, ends = text.rpartition("=")
    low, _, high = ends.partition(":")
    try:
        found = float(low), float(high)
    except ValueError:
        found = 0.0, 0.0
    if not column or not -1e300 < found[0] < found[1] < 1e300:
        raise ConfigError(
            f"--range {text!r} is not of the form COLUMN=LOW:HIGH with two numbers, e.g. --range age=18:90."
        )
    return column, found


@command(monitor_app, "show")
def show_monitor(
    counts: Annotated[
        list[Path],
        typer.Argument(metavar="COUNTS...", help="The silos' hand-ins: files, or folders with .json files."),
    ],
    page: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The page. (default: equifed-monitor.html; none with --json)"
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="A:B|RUN",
            help="The reference: the periods from A to B, or a run's test rows. (default: the first period)",
        ),
    ] = None,
    false_alarm_every: Annotated[
        float, typer.Option(metavar="N", help="Average number of periods until a false alarm.")
    ] = 100,
    title: Annotated[str | None, typer.Option(help="The page's title.")] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="WHAT",
            help="Exit with 1 if there is an 'alarm' or 'drift', or for a gap of the last period, e.g. "
            "'demographic_parity_difference > 0.1'. Unknown values fail, too. May be repeated.",
        ),
    ] = None,
    *,
    output: Output,
) -> None:
    """At the server: show gaps over time with their intervals, alarms, the silo that changed, and drift of inputs."""
    from equifed.cli.report import check_page
    from equifed.cli.runs import fail
    from equifed.monitor import History, read_hand_in, watch
    from equifed.monitor.page import write_monitor
    from equifed.monitor.verdict import failures, sentences, to_dict

    checks = [_check(text) for text in fail_if or ()]
    page = page or (None if output.json else Path("equifed-monitor.html"))
    if page is not None:
        check_page(page, "--output")
    history = History.of(map(read_hand_in, _files(counts)))
    seen = watch(history, _reference(reference, history, output), every=false_alarm_every)
    if page is not None:
        write_monitor(seen, page, title)
    failed = failures(seen, checks)
    if output.json:
        print_json({"page": None if page is None else str(page), **to_dict(seen), "failed_checks": failed})
    elif page is not None:
        show(near(page))
        for sentence in sentences(seen):
            say(sentence)
    fail(failed)


def _files(given: Sequence[Path]) -> list[Path]:
    from equifed.errors import DataError

    files = [file for path in given for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    if not files:
        raise DataError(f"No .json file was found in {', '.join(map(str, given))}. Name the silos' hand-ins.")
    return files


def _check(text: str) -> Any:
    from equifed.errors import ConfigError, unknown_name
    from equifed.monitor.watch import METRICS
    from equifed.target import Condition

    if text.strip() in ("alarm", "drift"):
        return text.strip()
    condition = Condition.read(text)
    if condition is None or not abs(condition.bound) < float("inf"):
        raise ConfigError(f"--fail-if {text!r} is neither 'alarm' nor 'drift' nor of the form 'METRIC OP NUMBER'.")
    if condition.metric not in METRICS:
        raise ConfigError(f"--fail-if: {unknown_name('metric', condition.metric, METRICS)}")
    return condition


def _reference(text: str | None, history: History, output: Output) -> str | RunCounts | None:
    """Return the text if it begins with a period's name, otherwise the counts of the run that it names."""
    import numpy as np

    from equifed.errors import ConfigError
    from equifed.monitor.periods import KINDS
    from equifed.monitor.watch import RunCounts
    from equifed.store import Store

    if text is None or KINDS[history.kind].fullmatch(text.partition(":")[0]):
        return text
    folder = Store(output.runs).find(text)
    result = folder.result()
    tables = {labels: list(result.count_tables("test", labels=labels).values()) for labels in (True, False)}
    if result.swept or not tables[True]:
        raise ConfigError(
            "must name a single run with classes as labels, not a sweep or a regression.", key="reference"
        )
    # seeds share most test rows, so their mean counts as much as one of them
    labelled, decided = (np.mean(tables[labels], axis=0) for labels in (True, False))
    groups, classes = (tuple(map(str, result.info[what])) for what in ("groups", "classes"))
    return RunCounts(folder.id, groups, classes, decided[:, 0], labelled)
