"""What a silo hands in: counts of decisions by period, group and label, and of inputs by the schema's bins.

The file holds counts and names that the federation agreed on, and nothing else. Whoever reads it takes it for hostile:
sizes, names and numbers have limits, and counts must fit each other. Its checksum tells damage, not lies.
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
"""Of a hand-in."""
MOST_ROWS = 10**12
"""Of a cell: sums of many are still exact as floats."""

Rows = Annotated[int, Field(strict=True, ge=0, le=MOST_ROWS)]
Name = Annotated[str, Field(strict=True, min_length=1, max_length=200)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Counts(_Strict):
    """Of one period; None for what is withheld."""

    rows: Rows | None
    """All of them; None: too few to say anything of the period."""
    decisions: dict[str, list[Rows] | None]
    """By group: rows with each decision."""
    labels: dict[str, list[list[Rows]] | None] | None
    """By group: rows with a known label, [label, decision]. None: no label is known, of any group."""
    unknown: list[Rows] | None
    """Decisions of the rows whose group is unknown."""
    inputs: dict[str, list[Rows | None]] = {}
    """By column: rows in each bin."""

    @property
    def numbers(self) -> dict[tuple[Any, ...], int]:
        """Every count that is disclosed, by where it stands; and the rows that are in none of the groups' counts."""
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
    """The counts of one silo."""

    format: Literal["equifed-monitor-1"] = "equifed-monitor-1"
    silo: Name
    revision: Annotated[int, Field(strict=True, ge=1, le=10**6)] = 1
    """A higher one takes the place of a lower one, period by period."""
    period: Kind
    min_count: Annotated[int, Field(strict=True, ge=0, le=10**6)]
    classes: Annotated[tuple[Name, ...], Field(min_length=2, max_length=50)]
    """Of decisions and labels, in this order; of two, the second is the positive one."""
    groups: Annotated[tuple[Name, ...], Field(min_length=1, max_length=100)]
    bins: Annotated[
        dict[Name, Annotated[tuple[Name, ...], Field(min_length=1, max_length=2000)]], Field(max_length=5000)
    ]
    """The inputs that are counted, and the bins of each in words."""
    periods: Annotated[dict[Name, Counts], Field(max_length=2000)]

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
            if why := self._wrong(counts):
                raise ValueError(f"the counts of {name} {why}")
        return self

    def _wrong(self, counts: Counts) -> str:
        """What cannot be right about the counts of a period; "" if they can be."""
        classes = len(self.classes)
        if set(counts.decisions) != set(self.groups) or set(counts.labels or self.groups) != set(self.groups):
            return "are not of the groups that it lists"
        if not set(counts.inputs) <= set(self.bins):
            return "are of inputs that it does not list"
        decided = [each for each in (*counts.decisions.values(), counts.unknown) if each is not None]
        tables = {group: table for group, table in (counts.labels or {}).items() if table is not None}
        lines = [*decided, *(line for table in tables.values() for line in table)]
        if any(len(line) != classes for line in lines) or any(len(table) != classes for table in tables.values()):
            return "do not have a number for every class"
        if any(len(bins) != len(self.bins[column]) for column, bins in counts.inputs.items()):
            return "do not have a number for every bin"
        if counts.rows is None:
            return "are shown though the period has too few rows" if lines or counts.inputs else ""
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

    def decided(self, period: str, groups: Iterable[str]) -> np.ndarray:
        """Rows by group and decision [G, C]; nan where they are withheld, and of groups that the silo does not list."""
        known = self.periods[period].decisions
        nothing = [np.nan] * len(self.classes)
        return np.array([known.get(group) or nothing for group in groups], dtype=np.float64)

    def labelled(self, period: str, groups: Iterable[str]) -> np.ndarray:
        """Rows by group, label and decision [G, C, C]; nan in the same way, and where there are no labels."""
        known = self.periods[period].labels or {}
        nothing = [[np.nan] * len(self.classes)] * len(self.classes)
        return np.array([known.get(group) or nothing for group in groups], dtype=np.float64)


# -- files -------------------------------------------------------------------------------------------------------------


def write_hand_in(path: Path, counts: HandIn) -> None:
    value = counts.model_dump(mode="json")
    write_atomic(path, to_json(value | {SEAL: checksum(to_json(value))}))


def read_hand_in(path: Path, today: date | None = None) -> HandIn:
    """What a silo has handed in; refused when it is damaged, not a hand-in, or cannot be right."""
    with blaming(file=clean(path.name)):
        try:
            content = read_regular(path, MOST_BYTES)
        except OSError as error:
            raise DataError(f"The hand-in cannot be read: {error.strerror}.") from None
        try:
            value = json.loads(content, object_pairs_hook=_once, parse_constant=_no_number)
            if not isinstance(value, dict) or value.get("format") != FORMAT:
                raise DataError("This is not a hand-in of this version. Make one with `equifed monitor count`.")
            seal = value.pop(SEAL, None)
            if seal != checksum(to_json(value)):
                raise DataError("The hand-in does not fit its checksum: it was damaged or changed. Get it again.")
            counts = HandIn.model_validate(value)
        except ValidationError as error:
            raise DataError(f"The hand-in cannot be right: {what_is_wrong(error)}.") from None
        except (ValueError, RecursionError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"The hand-in is not valid JSON: {clean(error)}.") from None
        day = (today or datetime.now(UTC).date()) + timedelta(days=1)  # somewhere it is tomorrow already
        for name in counts.periods:
            if first_day(name, counts.period) > day:
                raise DataError(f"The hand-in has counts of {name}, which has not begun.")
        return counts


def what_is_wrong(error: ValidationError) -> str:
    """With a hand-in, first of all."""
    first = error.errors()[0]
    place = ".".join(clean(part, 60) for part in first["loc"])
    return ": ".join(filter(None, (place, clean(first["msg"].removeprefix("Value error, ")))))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key stands there twice")
    return value


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


# -- handing in again --------------------------------------------------------------------------------------------------


def revised(new: HandIn, old: HandIn) -> tuple[HandIn, list[str]]:
    """The new counts as a revision of what was handed in before, and the periods that stay as they were.

    Whoever has both sees the difference, which must be no small count either: a period in which any number has changed
    by less than `min_count` stays as it was, and so does one that is not counted again.
    """
    agreed = ("silo", "period", "classes", "groups", "bins")
    for field in agreed:
        if getattr(new, field) != getattr(old, field):
            raise ConfigError(
                f"The earlier hand-in differs in its {field}, so that these counts are no revision of it. Name the "
                "silo's own, made with the same schema and options."
            )
    least = max(new.min_count, old.min_count)
    kept = [
        name for name, counts in new.periods.items() if name in old.periods and _near(counts, old.periods[name], least)
    ]
    periods = dict(sorted({**old.periods, **new.periods, **{name: old.periods[name] for name in kept}}.items()))
    made = {"periods": periods, "revision": old.revision + 1, "min_count": least}
    return new.model_copy(update=made), kept


def _near(new: Counts, old: Counts, least: int) -> bool:
    before, after = old.numbers, new.numbers
    changes = [abs(after[where] - before[where]) for where in before.keys() & after.keys()]
    return any(0 < change < least for change in changes)
