"""A silo's hand-in: counts of decisions by period, group and label, and of inputs by the schema's bins.

The file holds only counts and names that the federation agreed on. It is read as untrusted input: sizes, names and
numbers are limited, and counts must be consistent. Its checksum detects damage, not manipulation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from equifed.errors import ConfigError, DataError, blaming
from equifed.files import SEAL, checksum, read_regular, to_json, write_atomic
from equifed.monitor.periods import Kind, first_day
from equifed.words import clean, quoted

FORMAT = "equifed-monitor-1"
MOST_BYTES = 2**24
"""Largest size of a hand-in, in bytes."""
MOST_ROWS = 10**12
"""Largest count of a cell, so that sums of many are exact as floats."""

Rows = Annotated[int, Field(strict=True, ge=0, le=MOST_ROWS)]
Name = Annotated[str, Field(strict=True, min_length=1, max_length=200)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PeriodCounts(_Strict):
    """The counts of one period; withheld ones are None."""

    rows: Rows | None
    """Number of rows; None if too few to disclose anything about the period."""
    decisions: dict[str, list[Rows] | None]
    """By group, number of rows with each decision."""
    labels: dict[str, list[list[Rows]] | None] | None
    """By group, number of rows with a known label, [label, decision]. None if no label is known in any group."""
    unknown: list[Rows] | None
    """Number of rows of unknown group with each decision."""
    inputs: dict[str, list[Rows | None]] = {}
    """By column, number of rows in each bin."""

    @property
    def numbers(self) -> dict[tuple[Any, ...], int]:
        """All disclosed counts by position, and the number of rows outside the groups' counts."""
        found: dict[tuple[Any, ...], int] = {}
        for group, decided in self.decisions.items():
            found |= {(group, c): rows for c, rows in enumerate(decided or ())}
        for group, table in (self.labels or {}).items():
            found |= {(group, y, c): rows for y, line in enumerate(table or ()) for c, rows in enumerate(line)}
        found |= {("unknown", "", c, ""): rows for c, rows in enumerate(self.unknown or ())}
        for column, bins in self.inputs.items():
            found |= {(column, "bin", b, ""): rows for b, rows in enumerate(bins) if rows is not None}
        if self.rows is not None:
            found |= {("rows",): self.rows}
            hidden = tuple(group for group, decided in self.decisions.items() if decided is None)
            found |= {("rest", hidden): self.rows - sum(sum(decided or ()) for decided in self.decisions.values())}
        return found


class HandIn(_Strict):
    """The counts that one silo hands in."""

    format: Literal["equifed-monitor-1"] = "equifed-monitor-1"
    silo: Name
    revision: Annotated[int, Field(strict=True, ge=1, le=10**6)] = 1
    """Revision number; a higher revision replaces a lower one, period by period."""
    period: Kind
    min_count: Annotated[int, Field(strict=True, ge=0, le=10**6)]
    classes: Annotated[tuple[Name, ...], Field(min_length=2, max_length=50)]
    """Classes of decisions and labels, in this order; of two classes, the second is positive."""
    groups: Annotated[tuple[Name, ...], Field(min_length=1, max_length=100)]
    bins: Annotated[
        dict[Name, Annotated[tuple[Name, ...], Field(min_length=1, max_length=2000)]], Field(max_length=5000)
    ]
    """Names of the bins of each counted input."""
    periods: Annotated[dict[Name, PeriodCounts], Field(max_length=2000)]

    @model_validator(mode="after")
    def _fits(self) -> HandIn:
        for names in ((self.silo,), self.classes, self.groups, self.bins, *self.bins.values()):
            for name in names:
                if not name.isprintable() or not name.strip():
                    raise ValueError(f"the name {quoted(name)} is not printable text")
        for what, listed in (("class", self.classes), ("group", self.groups)):
            if len(set(listed)) < len(listed):
                raise ValueError(f"a {what} is listed twice")
        for name, counts in self.periods.items():
            try:
                first_day(name, self.period)
            except ValueError:
                raise ValueError(f"{quoted(name)} is not the name of a {self.period}") from None
            if why := self._find_problem(counts):
                raise ValueError(f"the counts of {name} {why}")
        return self

    def _find_problem(self, counts: PeriodCounts) -> str:
        """Return why the counts of a period are impossible; "" if they are possible."""
        classes = len(self.classes)
        if set(counts.decisions) != set(self.groups) or set(counts.labels or self.groups) != set(self.groups):
            return "do not match the listed groups"
        if not set(counts.inputs) <= set(self.bins):
            return "have inputs that are not listed"
        decided = [each for each in (*counts.decisions.values(), counts.unknown) if each is not None]
        tables = {group: table for group, table in (counts.labels or {}).items() if table is not None}
        lines = [*decided, *(line for table in tables.values() for line in table)]
        if any(len(line) != classes for line in lines) or any(len(table) != classes for table in tables.values()):
            return "do not have a number for every class"
        if any(len(bins) != len(self.bins[column]) for column, bins in counts.inputs.items()):
            return "do not have a number for every bin"
        if counts.rows is None:
            return "are disclosed although the period has too few rows" if lines or counts.inputs else ""
        most = [sum(map(sum, decided)), *(sum(rows or 0 for rows in bins) for bins in counts.inputs.values())]
        if max(most) > counts.rows or (
            None not in (*counts.decisions.values(), counts.unknown) and most[0] != counts.rows
        ):
            return "do not add up to its rows"
        for group, table in tables.items():
            whole = counts.decisions[group]
            if whole is None or any(sum(line[c] for line in table) > whole[c] for c in range(classes)):
                return f"have more labels than decisions in the group {quoted(group)}"
        return ""

    def count_decisions(self, period: str, groups: Iterable[str]) -> np.ndarray:
        """Return the number of rows by group and decision [G, C]; nan if withheld or if the silo does not list the
        group."""
        known = self.periods[period].decisions
        nothing = [np.nan] * len(self.classes)
        return np.array([known.get(group) or nothing for group in groups], dtype=np.float64)

    def count_labels(self, period: str, groups: Iterable[str]) -> np.ndarray:
        """Return the number of rows by group, label and decision [G, C, C]; nan likewise, and without labels."""
        known = self.periods[period].labels or {}
        nothing = [[np.nan] * len(self.classes)] * len(self.classes)
        return np.array([known.get(group) or nothing for group in groups], dtype=np.float64)


# -- files -------------------------------------------------------------------------------------------------------------


def write_hand_in(path: Path, counts: HandIn) -> None:
    value = counts.model_dump(mode="json")
    write_atomic(path, to_json(value | {SEAL: checksum(to_json(value))}))


def read_hand_in(path: Path, today: date | None = None) -> HandIn:
    """Read a hand-in; raise `DataError` if it is damaged, of another format, or impossible."""
    with blaming(file=clean(path.name)):
        try:
            content = read_regular(path, MOST_BYTES)
        except OSError as error:
            raise DataError(f"The hand-in cannot be read: {error.strerror}.") from None
        try:
            value = json.loads(content, object_pairs_hook=_refuse_repeated_keys, parse_constant=_refuse_constant)
            if not isinstance(value, dict) or value.get("format") != FORMAT:
                raise DataError("The file is not a hand-in of this version. Make one with `equifed monitor count`.")
            seal = value.pop(SEAL, None)
            if seal != checksum(to_json(value)):
                raise DataError("The hand-in does not match its checksum: it was damaged or changed. Get it again.")
            counts = HandIn.model_validate(value)
        except ValidationError as error:
            raise DataError(f"The hand-in is invalid: {first_problem(error)}.") from None
        except (ValueError, RecursionError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"The hand-in is not valid JSON: {clean(error)}.") from None
        day = (today or datetime.now(UTC).date()) + timedelta(days=1)  # it may be tomorrow in the silo's time zone
        for name in counts.periods:
            if first_day(name, counts.period) > day:
                raise DataError(f"The hand-in has counts of {name}, which is in the future.")
        return counts


def first_problem(error: ValidationError) -> str:
    """Return the first problem of an invalid hand-in."""
    first = error.errors()[0]
    place = ".".join(clean(part, 60) for part in first["loc"])
    return ": ".join(filter(None, (place, clean(first["msg"].removeprefix("Value error, ")))))


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key occurs twice")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


# -- handing in again --------------------------------------------------------------------------------------------------


def revise(new: HandIn, old: HandIn) -> tuple[HandIn, list[str]]:
    """Return the new counts as a revision of the earlier hand-in, and the periods that are not revised.

    The difference of both hand-ins discloses counts, too. So a period in which any number has changed by less than
    `min_count` keeps its earlier counts, and so does a period that is not counted again.
    """
    agreed = ("silo", "period", "classes", "groups", "bins")
    for field in agreed:
        if getattr(new, field) != getattr(old, field):
            raise ConfigError(
                f"The earlier hand-in has another {field}, so these counts cannot revise it. Name this silo's earlier "
                "hand-in, made with the same schema and options."
            )
    least = max(new.min_count, old.min_count)
    kept = [
        name
        for name, counts in new.periods.items()
        if name in old.periods and _is_near(counts, old.periods[name], least)
    ]
    periods = dict(sorted({**old.periods, **new.periods, **{name: old.periods[name] for name in kept}}.items()))
    made = {"periods": periods, "revision": old.revision + 1, "min_count": least}
    return new.model_copy(update=made), kept


def _is_near(new: PeriodCounts, old: PeriodCounts, least: int) -> bool:
    before, after = old.numbers, new.numbers
    changes = [abs(after[where] - before[where]) for where in before.keys() & after.keys()]
    return any(0 < change < least for change in changes)
