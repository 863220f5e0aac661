"""`equifed report`: the page, the same numbers for other programs, and tables and figures for a paper."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from equifed.cli.console import near, print_json, say, show
from equifed.cli.options import Goal, Output, ReportOptions, split_names
from equifed.errors import ConfigError
from equifed.files import check_writable
from equifed.report.card import with_facts
from equifed.results import Result
from equifed.results.merge import gathered
from equifed.store import RunFolder, Store
from equifed.words import csv_of


def report(references: Sequence[str], options: ReportOptions, goal: Goal, output: Output) -> None:
    from equifed.report.figures import check_formats, write_figures
    from equifed.report.numbers import records
    from equifed.report.page import write_page
    from equifed.report.tables import check_format, table_of
    from equifed.verdict.comparison import Comparison

    printed = [*options.for_programs, *(["--json"] if output.json else [])]
    if len(printed) > 1:
        raise ConfigError(f"{' and '.join(printed)} both want stdout. Give one of them.")
    if options.table is not None:
        check_format(options.table)
    elif options.columns:
        raise ConfigError("--columns are those of a table; say which: --table latex or --table markdown.")
    page = options.page or (None if printed else Path("equifed-report.html"))
    if page is not None:
        check_page(page, "--output")
    formats = split_names(options.formats, "--formats")
    if options.figures is not None:
        check_formats(formats)
        check_writable(options.figures, "Name another folder with --figures.")
    folders = [Store(output.runs).find(reference) for reference in references]
    comparison = Comparison.of(
        gathered([documented(folder, folder.result()) for folder in folders]),
        options.disparity,
        options.baseline,
        options.margin,
        goal.target,
        goal.level,
    )
    written = table_of(comparison, options.table, options.columns) if options.table is not None else ""
    if page is not None:
        write_page(comparison, page, options.title)
    drawn = write_figures(comparison, options.figures, formats) if options.figures is not None else []
    if output.json:
        print_json(
            {
                "report": None if page is None else str(page),
                "figures": [str(path) for path in drawn],
                "runs": [folder.id for folder in folders],
                "verdict": asdict(comparison.verdict),
                "answer": None if comparison.answer is None else comparison.answer.to_dict(),
                "disparity": comparison.disparity,
                "margin": comparison.margin,
                "baseline": comparison.baseline.label,
                "metrics": records(comparison).to_dict("records"),
                "messages": [
                    {"method": result.info["method"], "exchanges": result.messages.to_dict("records")}
                    for result in comparison.results
                ],
                "federations": [
                    {"method": variant.label, **variant.silos.facts()}
                    for variant in comparison.variants
                    if variant.silos is not None
                ],
            }
        )
        return
    files = [near(path) for path in (page, *drawn) if path is not None]
    if not printed:
        show(*files)
        if comparison.answer is not None:
            say(str(comparison.answer))
        return
    # as it is: not wrapped, nothing escaped
    sys.stdout.write(written or csv_of(records(comparison)))
    for file in files:
        say(f"Written: {file}")


def documented(folder: RunFolder, result: Result) -> Result:
    """The result, with what its folder knows of it besides."""
    result.info.update(with_facts(result.info, folder.facts()))  # in place: what was taken from it stays
    return result


def check_page(page: Path, option: str) -> None:
    """Refuse a page that is a folder, or in a folder where no file can be written."""
    if page.is_dir():
        raise ConfigError(f"{option} {page} is a folder. Name a file in it, e.g. {page / 'report.html'}.")
    check_writable(page.parent, f"Name another file with {option}.")
