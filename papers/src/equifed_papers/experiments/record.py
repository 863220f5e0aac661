"""The record of published numbers beside ours: a CSV file, each number with the commit and date that made it.

It is kept in parts: what is recorded of a part of an experiment takes the place of what was there of it.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from equifed.errors import DataError
from equifed.files import write_atomic
from equifed.words import csv_cell
from equifed_papers.experiments import EXPERIMENTS, Reason

NAN = float("nan")
NO_DATA, NO_GPU = "no-data", "no-gpu"
NOT_RUN = {NO_DATA: "the data cannot be had here", NO_GPU: "it takes days without a GPU"}
"""Why a part was not carried out."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A published number, or, without a metric, a part of an experiment that has none or was not carried out in
    full."""

    experiment: str
    """As in EXPERIMENTS."""
    part: str
    """Which of the experiment's jobs made it."""
    dataset: str = ""
    place: str = ""
    method: str = ""
    metric: str = ""
    published: float = NAN
    published_std: float = NAN
    ours: float = NAN
    std: float = NAN
    runs: int = 0
    low: float = NAN
    high: float = NAN
    within: bool | None = None
    """Within noise; None where our deviation is not known."""
    degenerate: int = 0
    """Runs of ours whose predictor is constant for some group."""
    reason: str = ""
    """Why it is not within noise, a key of the paper's reasons; of a part: of NOT_RUN."""
    amount: str = ""
    """Seeds and rounds, where they were not the experiment's own."""
    commit: str
    date: str
    seconds: float = NAN
    """That the part took."""

    @property
    def paper(self) -> str:
        return self.experiment.partition("/")[0]

    @property
    def number(self) -> tuple[str, str, str, str, str]:
        """What it is called in `Numbers`."""
        return self.experiment.partition("/")[2], self.dataset, self.place, self.method, self.metric


COLUMNS = [field.name for field in fields(Row)]
_FLOATS = {field.name for field in fields(Row) if field.type == "float"}
_WHOLE = {field.name for field in fields(Row) if field.type == "int"}
_VERDICTS = {"yes": True, "no": False, "": None}


def read(path: Path) -> list[Row]:
    """The rows of a record; none where there is no file."""
    if not path.exists():
        return []
    reader = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    if reader.fieldnames != COLUMNS:
        raise DataError(f"{path} is not a record of published numbers: its columns are not {', '.join(COLUMNS)}.")
    return [Row(**{name: _value(name, text) for name, text in line.items()}) for line in reader]


def _value(name: str, text: str) -> Any:
    if name in _FLOATS:
        return float(text) if text else NAN
    if name in _WHOLE:
        return int(text)
    return _VERDICTS[text] if name == "within" else text


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return next(text for text, verdict in _VERDICTS.items() if verdict is value)
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return str(value)


def write(path: Path, rows: Iterable[Row]) -> None:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([csv_cell(_text(getattr(row, name))) for name in COLUMNS] for row in rows)
    write_atomic(path, out.getvalue().encode("utf-8"))


def replaced(rows: Iterable[Row], new: Sequence[Row]) -> list[Row]:
    """The rows with those of some parts new, in the order of the experiments. A number is there once, whichever part
    made it last; that a part could not be carried out this time takes nothing away."""
    old = list(rows)
    there = {_part(row) for row in old}
    made = {_part(row) for row in new if row.reason not in NOT_RUN}
    new = [row for row in new if _part(row) in made or _part(row) not in there]
    parts, numbers = {_part(row) for row in new}, {(row.paper, row.number) for row in new if row.metric}
    order = {name: position for position, name in enumerate(EXPERIMENTS)}
    kept = [
        row
        for row in old
        if _part(row) not in parts and (row.paper, row.number) not in numbers and row.experiment in order
    ]
    return sorted([*kept, *new], key=lambda row: (order[row.experiment], row.part))


def _part(row: Row) -> tuple[str, str]:
    return row.experiment, row.part


def explained(rows: Iterable[Row]) -> list[Row]:
    """The rows with the reasons that their papers' modules give now to those that are not within noise."""
    return [
        replace(row, reason=reason_of(row) if row.within is False else "")
        if row.metric
        else row  # a part keeps its own
        for row in rows
    ]


def reasons(paper: str) -> tuple[Reason, ...]:
    found: tuple[Reason, ...] = import_module(f"equifed_papers.experiments.{paper.replace('-', '_')}.reasons").REASONS
    return found


def reason_of(row: Row) -> str:
    """The key of the first reason that fits; empty where none does."""
    for reason in reasons(row.paper):
        if any(numbers.have(*row.number) for numbers in reason.of) and reason.when(row):
            return reason.key
    return ""
