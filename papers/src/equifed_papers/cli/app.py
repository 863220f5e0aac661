"""The commands, as equifed makes commands of functions. The work is in the modules that they import when called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equifed.cli.options import Output, Sharing
from equifed_papers.cli.options import BenchmarkOptions
from equifed_papers.experiments import EXPERIMENTS, Request


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            metavar="PAPER/TABLE",
            help="One experiment; or all, a paper or several with commas: their jobs may be shared out, and only the "
            "count of numbers within noise is shown. "
            + "; ".join(f"{name}: {about.shows}" for name, about in EXPERIMENTS.items())
            + ".",
        ),
    ],
    pages: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write an HTML page per table or curve into this folder, of one experiment."),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep every published number beside ours in this CSV file, and the page of all that it has beside it; "
            "what it has of this commit is not repeated.",
        ),
    ] = None,
    only_page: Annotated[
        bool, typer.Option("--only-page", help="Run nothing: write the page from the record that is there.")
    ] = False,
    *,
    request: Request,
    sharing: Sharing,
    output: Output,
) -> None:
    """Repeat a paper's experiment and show our figures beside the published ones; or all of them, into one record."""
    from equifed_papers.cli.reproduce import reproduce

    reproduce(name, request, pages, record, only_page, sharing, output)


def benchmark(*, options: BenchmarkOptions, sharing: Sharing) -> None:
    """Every method on many data sets and partitions with one budget of settings each: scores, ranks, a page, raw rows.

    Settings are chosen on validation rows and scored on test rows. Rows that are there are not run again: an
    interrupted benchmark goes on, and --add puts a method of your own beside the others.
    """
    from equifed_papers.cli.benchmark import benchmark

    benchmark(options, sharing)
