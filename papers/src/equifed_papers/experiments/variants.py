"""Numbers under another reading of a paper than the record's: its variants.csv, which benchmarks/variants.py writes.

They are evidence for reasons: where a paper leaves something open, and another reading repeats a number that ours does
not, the two differ for that. `counts` says what the other reading costs elsewhere.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from equifed_papers.experiments import Numbers, Reason
from equifed_papers.experiments.base import within_noise

COLUMNS = ("experiment", "dataset", "place", "method", "metric", "variant", "mean", "std", "runs")
RUNS = {"fair-fate": 10, "fedfair": 5, "kffl": 3, "sffl": 5}
"""Runs of the papers."""


class Tried(NamedTuple):
    mean: float
    std: float
    runs: int


@cache
def tried(paper: str) -> dict[tuple[str, ...], Tried]:
    """By the first six columns; nothing of a paper for which nothing was tried."""
    path = files(f"equifed_papers.experiments.{paper.replace('-', '_')}").joinpath("variants.csv")
    if not path.is_file():
        return {}
    return {
        tuple(line[name] for name in COLUMNS[:6]): Tried(float(line["mean"]), float(line["std"]), int(line["runs"]))
        for line in csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    }


def repeats(variant: str) -> Callable[[Any], bool]:
    """Whether a `record.Row` is repeated where this variant was tried: within noise, which a variant that varies more
    than ours and the published one does not make larger, and at most half as far from the published number as ours."""

    def repeated(row: Any) -> bool:
        found = tried(row.paper).get((*row.number, variant))
        if found is None or abs(found.mean - row.published) > abs(row.ours - row.published) / 2:
            return False
        return _within(row, found, min(found.std, max(row.std, _their_std(row, row.std))))

    return repeated


def _within(row: Any, found: Tried, std: float) -> bool:
    return within_noise((found.mean, std), (row.published, _their_std(row, std)), found.runs, RUNS[row.paper])


def _their_std(row: Any, ours: float) -> float:
    """As published; a deviation that was not is taken to be ours."""
    return ours if math.isnan(row.published_std) else float(row.published_std)


class Counts(NamedTuple):
    """Of all numbers that a variant was tried on."""

    variant: str
    tried: int
    ours: int
    """Within noise in the record."""
    there: int
    """Within noise under the variant."""
    gained: int
    lost: int


def counts(paper: str, rows: Iterable[Any]) -> list[Counts]:
    """A line for each variant of a paper. rows: the record's."""
    judged = {row.number: row for row in rows if row.paper == paper and row.within is not None}
    found = tried(paper)
    lines = []
    for variant in dict.fromkeys(key[5] for key in found):
        verdicts = [
            (bool(row.within), _within(row, there, there.std))
            for key, there in found.items()
            if key[5] == variant and (row := judged.get(key[:5]))
        ]
        ours, theirs = (sum(verdict[i] for verdict in verdicts) for i in (0, 1))
        gained = sum(new and not old for old, new in verdicts)
        lines.append(Counts(variant, len(verdicts), ours, theirs, gained, ours + gained - theirs))
    return lines


def rounded(decimals: int) -> Callable[[Any], bool]:
    """Whether a number that was published with so many decimals is within noise of one that rounds to it."""

    def near(row: Any) -> bool:
        if -int(Decimal(str(row.published)).as_tuple().exponent) > decimals:
            return False
        half = 0.5 * 10.0**-decimals
        nearest = row.published + min(max(row.ours - row.published, -half), half)
        return within_noise((row.ours, row.std), (nearest, _their_std(row, row.std)), row.runs, RUNS[row.paper])

    return near


def printed_rounded(of: Numbers) -> Reason:
    """Of numbers that are printed with two decimals."""
    text = "Within noise of a number that is printed so, with two decimals."
    return Reason("rounded", text, (of,), when=rounded(2))
