"""papers/results/reproduction.md: the record as a page."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.resources import files
from itertools import groupby

from equifed_papers.experiments import EXPERIMENTS
from equifed_papers.experiments.record import NOT_RUN, Row, reasons
from equifed_papers.experiments.variants import counts

TITLES = {"fair-fate": "FAIR-FATE", "fedfair": "FedFair", "kffl": "KFFL", "sffl": "SFFL", "e2fl": "E2FL"}

INTRODUCTION = """\
# Reproduction

Every number that the five papers print in a table or in the text about a figure, beside ours. `equifed reproduce all --record papers/results/reproduction.csv`
carries out all experiments and writes [reproduction.csv](reproduction.csv) and this page; `equifed reproduce fair-fate/table1 --record ...` only one of them, and leaves the
other numbers as they are. Each has the commit and the date that made it.

Ours is the mean over runs with its 95 % interval (Student's t, from three runs on), published in brackets. `=`: within noise, |difference| <= 2 sqrt(s1²/n1 + s2²/n2) for the deviations s and runs n
of both; a deviation that was not published is taken to be ours. `≠`: not, with the reason's name where one is known. What a figure only draws is not compared. Where a paper leaves something open, other readings were tried
(`python benchmarks/variants.py PAPER`; their numbers are in `variants.csv` of the paper's folder in `papers/src/equifed_papers/experiments`), and a reason may say that one of them is within noise.
How each experiment was set up, and what was learnt, is in the methods' pages: [FAIR-FATE](../../docs/methods/fair-fate.md), [FedFair](../../docs/methods/fedfair.md), [KFFL](../../docs/methods/kffl.md), [SFFL](../../docs/methods/sffl.md),
[E2FL](../../docs/methods/e2fl.md).
"""  # noqa: E501


def published_count(paper: str) -> int:
    """How many numbers the paper prints."""
    folder = files(f"equifed_papers.experiments.{paper.replace('-', '_')}")
    return len(list(csv.DictReader(folder.joinpath("published.csv").read_text(encoding="utf-8").splitlines())))


def of_few_runs(rows: Iterable[Row]) -> int:
    """How many numbers are within noise by two to four runs, whose noise is large."""
    return sum(row.within is True and 1 < row.runs < 5 for row in rows)


def page(rows: Sequence[Row]) -> str:
    few = (
        f"Of the numbers within noise, {of_few_runs(rows)} are means of fewer than five runs: these are soon within it."
    )
    lines = [INTRODUCTION, *_table(SUMMARY, summary(rows)), "", few, ""]
    for paper, title in TITLES.items():
        own = [row for row in rows if row.paper == paper]
        lines += [f"## {title}", "", *_reasons(paper, own), *_tried(paper, own)]
        for experiment in EXPERIMENTS:
            if experiment.partition("/")[0] == paper:
                lines += _experiment(experiment, [row for row in own if row.experiment == experiment])
    return "\n".join(lines).rstrip() + "\n"


SUMMARY = (
    "paper",
    "numbers",
    "compared",
    "within noise",
    "not, for a reason",
    "not, unexplained",
    "not judged",
    "not run",
)


def summary(rows: Sequence[Row]) -> list[list[str]]:
    """A line for each paper, and one for all."""
    counts = []
    for paper in TITLES:
        own = [row for row in rows if row.paper == paper and row.metric]
        outside = [row for row in own if row.within is False]
        known = sum(bool(row.reason) for row in outside)
        within, unknown = sum(row.within is True for row in own), sum(row.within is None for row in own)
        total = published_count(paper)
        counts.append([total, len(own), within, known, len(outside) - known, unknown, total - len(own)])
    totals = [sum(column) for column in zip(*counts, strict=True)]
    return [[title, *map(str, line)] for title, line in zip([*TITLES.values(), "all"], [*counts, totals], strict=True)]


def _reasons(paper: str, rows: Iterable[Row]) -> list[str]:
    count = Counter(row.reason for row in rows if row.within is False)
    lines = [f"- *{reason.key}* ({count[reason.key]}): {reason.text}" for reason in reasons(paper) if count[reason.key]]
    if count[""]:
        lines.append(f"- not explained: {count['']}.")
    return ["Why numbers are not within noise:", "", *lines, ""] if lines else []


TRIED = ("reading", "numbers", "within noise here", "within noise there", "gained", "lost")


def _tried(paper: str, rows: Iterable[Row]) -> list[str]:
    """What other readings of the paper repeat, and what they do not that ours does."""
    lines = [[name, *map(str, numbers)] for name, *numbers in counts(paper, rows)]
    return ["Other readings, as a whole:", "", *_table(TRIED, lines), ""] if lines else []


def _experiment(name: str, rows: Sequence[Row]) -> list[str]:
    if not rows:
        among = EXPERIMENTS[name].among
        state = f"Its numbers are among those of {among}." if among else "Not carried out."
        return [f"### {name}", "", f"{_shows(name)} {state}", ""]
    lines = [f"### {name}", "", _shows(name), ""]
    numbers = [row for row in rows if row.metric]
    lines += [f"- {_about(part)}" for _, part in groupby(rows, key=lambda row: row.part)]
    lines.append("")
    for dataset, of in groupby(numbers, key=lambda row: row.dataset):
        lines += [*_numbers(dataset, list(of)), ""]
    return lines


def _shows(name: str) -> str:
    shows = EXPERIMENTS[name].shows
    return f"{shows[0].upper()}{shows[1:]}."


def _about(part: Iterable[Row]) -> str:
    """What was carried out, how much of it, when and by which commit; and what was not."""
    rows = list(part)
    first, numbers = rows[0], [row for row in rows if row.metric]
    title = first.part or "all of it"
    lacking = next((f"not carried out, {NOT_RUN[row.reason]}" for row in rows if row.reason in NOT_RUN), "")
    if lacking and not numbers:
        return f"{title}: {lacking}."
    counts = sorted({row.runs for row in numbers})
    least, most = (counts[0], counts[-1]) if counts else (0, 0)
    runs = f"{least} to {most} runs, " if least < most else f"{most} run{'s' * (most > 1)}, " if most else ""
    agree = sum(row.within is True for row in numbers)
    within = f", {agree} of {len(numbers)} within noise" if numbers else ", no numbers"
    amount = f" ({first.amount})" if first.amount else ""
    seconds = "" if math.isnan(first.seconds) else f", {first.seconds:,.0f} s"
    rest = f"; the rest {lacking}" if lacking else ""
    return f"{title}{amount}: {runs}commit {first.commit[:7]}, {first.date}{seconds}{within}{rest}."


def _numbers(dataset: str, rows: Sequence[Row]) -> list[str]:
    """A line for each place and method, a column for each metric."""
    metrics = list(dict.fromkeys(row.metric for row in rows))
    places = any(row.place for row in rows)
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        lines.setdefault((row.place, row.method), {})[row.metric] = _beside(row)
    head = [dataset, *(["method"] if places else []), *metrics]
    cells = [
        [*((place, method) if places else (method,)), *(of.get(metric, "") for metric in metrics)]
        for (place, method), of in lines.items()
    ]
    return _table(head, cells)


def _beside(row: Row) -> str:
    """Ours, its interval, the published number, and whether they agree."""
    ours, theirs = ("undefined" if math.isnan(mean) else f"{mean:.4g}" for mean in (row.ours, row.published))
    if row.runs > 1:  # what no seed changes has neither
        ours += "" if math.isnan(row.low) else f" [{row.low:.4g}, {row.high:.4g}]"
        theirs += "" if math.isnan(row.published_std) else f"±{row.published_std:.2g}"
    mark = {True: " =", False: " ≠", None: ""}[row.within]
    return f"{ours} ({theirs}){mark}" + (f" *{row.reason}*" if row.reason else "")


def _table(head: Sequence[str], cells: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *cells]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]
