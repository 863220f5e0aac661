"""Schemas without seeing rows: every silo summarises its table, and the summaries make the schema.

A summary is safe to hand over: it holds what at least `min_count` rows have in common, and nothing of fewer.
Categories, classes and groups are listed with their counts where they are frequent; numbers are told by quantiles with
so many rows on either side, rounded to a hundredth of the range or finer, and by a mean and a deviation of the values
within it; of identifiers, free text and dates nothing is told but that they are such. With min_count=0 everything is
told exactly, which is how the named data sets, whose files are public, get their schemas.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field, model_validator

from equifed.data.choose import REASONS, Distinct, Kind, Look, Role, look, require_columns
from equifed.data.columns import Columns, TaskKind
from equifed.data.dates import DatePart, parts_of
from equifed.data.encode import column_of, holds_numbers, in_order, numbers_of, row_error
from equifed.data.missing import BEFORE, check_na_values, warn_of_words, with_missing
from equifed.data.schema import (
    MERGED,
    MISSING,
    OTHER,
    Document,
    Sensitive,
    Strict,
    group_values,
    intersections,
    rows_by_name,
)
from equifed.disclosure import MIN_COUNT
from equifed.errors import EquifedWarning, blaming
from equifed.partition.base import as_text, check_column
from equifed.words import quoted

GRID = tuple(round(0.05 * i, 2) for i in range(1, 20))
"""The quantiles that are told."""

Count = Annotated[int, Field(ge=0)]
Counts = dict[str, Count]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Numbers(Strict):
    """What is told of a column of numbers."""

    rows: Count
    mean: Finite
    deviation: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Both of the values between `low` and `high`, to which those beyond are moved."""
    low: Finite | None = None
    high: Finite | None = None
    """At least `min_count` rows are at or below the one, and at or above the other."""
    quantiles: tuple[tuple[Annotated[float, Field(ge=0, le=1)], Finite], ...] = ()
    """(share of the rows, value), ascending."""

    @model_validator(mode="after")
    def _ordered(self) -> Numbers:
        shares, values = [share for share, _ in self.quantiles], [value for _, value in self.quantiles]
        if shares != sorted(shares) or values != sorted(values):
            raise ValueError("quantiles must ascend")
        if (self.low is None) != (self.high is None):
            raise ValueError("low and high go together")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError("low must not be above high")
        return self


class ColumnSummary(Strict):
    """What is told of a column."""

    name: str
    kind: Kind
    role: Role | Literal["dropped"] = "input"
    """What the column looks like here: only an "input" is told more of."""
    distinct: Distinct = "few"
    """How many values are different, roughly."""
    rows: Count = 0
    """With a value."""
    missing: Count = 0
    """Rows without one. Both are 0 where they are fewer than `min_count`."""
    categories: Counts = Field(default_factory=dict)
    """Rows of each category that has at least `min_count`."""
    numbers: Numbers | None = None
    parts: dict[DatePart, Numbers] = Field(default_factory=dict)
    """Of dates, the numbers of every part that was asked for."""
    formats: tuple[str, ...] = ()
    """Of dates, how they may be written."""


class Asked(Strict):
    """What every silo must have been asked alike."""

    label: str
    task: TaskKind = "classification"
    with_classes: bool = True
    sensitive: tuple[Sensitive, ...] = ()
    features: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    dates: dict[str, tuple[DatePart, ...]] = Field(default_factory=dict)
    categorical: tuple[str, ...] = ()
    sensitive_as_input: bool = False
    na_values: tuple[str, ...] = BEFORE
    """Words that mean a missing value. Summaries that were made before there was this list have none of it: then these
    were missing."""

    @classmethod
    def of(cls, columns: Columns) -> Asked:
        """Return what the columns ask of every silo."""
        return cls(
            label=check_column("label", columns.label),
            task=columns.task,
            with_classes=columns.task == "classification" or columns.positive is not None,
            sensitive=columns.rules,
            features=None if columns.features is None else tuple(map(str, columns.features)),
            drop=tuple(map(str, columns.drop)),
            dates=columns.parts,
            categorical=tuple(map(str, columns.categorical)),
            sensitive_as_input=columns.sensitive_as_input,
            na_values=check_na_values(columns.na_values),
        )


class Summary(Document):
    """What a silo tells of its table. JSON in and out."""

    name: str = ""
    """The silo or its file."""
    asked: Asked
    min_count: Count
    rows: Count
    columns: tuple[ColumnSummary, ...]
    classes: Counts = Field(default_factory=dict)
    """Rows of each label value that has at least `min_count`."""
    rare_classes: bool = False
    """Whether there are others."""
    values: tuple[Counts, ...] = ()
    """Of every sensitive column whose values are to be the groups: rows of each that has at least `min_count`."""
    moments: tuple[Numbers | None, ...] = ()
    """Of every sensitive column that is continuous."""
    groups: Counts = Field(default_factory=dict)
    """Rows of each group that has at least `min_count`; the others together are `MERGED`, where they have as many."""


# -- at a silo ---------------------------------------------------------------------------------------------------------


def summarise(frame: pd.DataFrame, columns: Columns, *, exclude: Sequence[str] = (), name: str = "") -> Summary:
    """Summarise a table for agreement on a schema, disclosing nothing about fewer than `columns.min_count` rows.

    exclude: further columns to leave out of the summary. name: of the silo or the file, for messages. Without
    `columns.na_values` a warning says which values look like missing ones.
    """
    min_count = MIN_COUNT if columns.min_count is None else columns.min_count
    asked = Asked.of(columns)
    words = asked.na_values
    named = dict.fromkeys([*(asked.features or ()), *asked.dates])
    needed = {
        "label": [asked.label],
        "sensitive": [rule.column for rule in asked.sensitive],
        "features": asked.features or (),
        "dates": asked.dates,
        "categorical": asked.categorical,
    }
    absent = [key for key, wanted in needed.items() if not set(wanted) <= set(frame.columns)]
    with blaming(key=absent[0] if absent else ""):
        require_columns(frame, [name for wanted in needed.values() for name in wanted])
    if asked.features is None:
        hidden = {asked.label, *exclude} | (set() if asked.sensitive_as_input else set(needed["sensitive"]))
        chosen = [column for column in map(str, frame.columns) if column not in hidden]
    else:
        chosen = list(named)
    frame = with_missing(frame, words, [*chosen, *needed["label"], *needed["sensitive"]])
    summaries = tuple(_column(frame, column, asked, min_count) for column in chosen)
    with blaming(key="label"):
        classes, rare = _classes(frame, asked, min_count)
    with blaming(key="sensitive"):
        values, moments, groups = _groups(frame, asked.sensitive, min_count)
    if columns.na_values is None:
        texts = [column.name for column in summaries if column.kind == "categorical" and column.role == "input"]
        warn_of_words(frame, [*texts, *needed["label"], *needed["sensitive"]])
    return Summary(
        name=name,
        asked=asked,
        min_count=min_count,
        rows=len(frame),
        columns=summaries,
        classes=classes,
        rare_classes=rare,
        values=values,
        moments=moments,
        groups=groups,
    )


def _column(frame: pd.DataFrame, name: str, asked: Asked, min_count: int) -> ColumnSummary:
    if name in asked.drop:
        return ColumnSummary(name=name, kind="categorical", role="dropped")
    series = column_of(frame, name)
    seen = _seen(series, asked, min_count)
    present = series.dropna()
    facts: dict[str, Any] = {
        "name": name,
        "kind": seen.kind,
        "role": seen.role,
        "distinct": seen.distinct,
        "rows": _told(len(present), min_count),
        "missing": _told(len(series) - len(present), min_count),
        "formats": seen.formats,
    }
    if seen.role not in ("input", "constant"):
        return ColumnSummary(**facts)
    if seen.kind == "categorical":
        if min_count and OTHER in present.unique():
            warnings.warn(
                f"Column {name!r} has the value {OTHER!r}, which stands for all values that are not frequent: its rows "
                "will count among them.",
                EquifedWarning,
                stacklevel=4,
            )
        counts = _counts(present)
        facts["categories"] = {value: rows for value, rows in _frequent(counts, min_count).items() if value != MISSING}
    elif seen.kind == "numeric":
        facts["numbers"] = _numbers(numbers_of(present), min_count)
    else:
        told = {}
        for part in asked.dates.get(name, ()):
            # which of several formats is meant is not known here: all must say the same, or the others decide
            found = _numbers(parts_of(present, part, seen.formats[0]), min_count) if len(seen.formats) == 1 else None
            if found is not None:
                told[part] = found
        facts["parts"] = told
    return ColumnSummary(**facts)


def _seen(series: pd.Series[Any], asked: Asked, min_count: int) -> Look:
    """What the column looks like; what the user names is an input whatever it looks like."""
    name = str(series.name)
    is_code = name in asked.categorical
    if name in asked.dates:
        return _as_dates(series)
    if asked.features is None:
        return look(series, is_code=is_code)
    kind: Kind = "numeric" if not is_code and holds_numbers(series) else "categorical"
    if min_count:
        seen = look(series, is_code=is_code)
        if seen.kind == "date" or seen.role in ("identifier", "free text", "many values"):
            what = REASONS["date" if seen.kind == "date" else seen.role]
            warnings.warn(
                f"Column {name!r} is an input because features names it, but looks like this: {what}.",
                EquifedWarning,
                stacklevel=5,
            )
        return Look(kind, "input", seen.distinct)
    return Look(kind, "input")


def _as_dates(series: pd.Series[Any]) -> Look:
    seen = look(series)
    if seen.role == "empty":
        return Look("date", "empty", "one")
    if seen.kind != "date" or not seen.formats:
        row = int(np.argmax(series.notna()))
        raise row_error(series, row, f"{quoted(as_text(series.iloc[row]))} and most others are no dates (YYYY-MM-DD).")
    return seen


def _classes(frame: pd.DataFrame, asked: Asked, min_count: int) -> tuple[dict[str, int], bool]:
    if not asked.with_classes:
        return {}, False
    series = column_of(frame, asked.label)
    if holds_numbers(series):
        numbers = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        fraction = np.isfinite(numbers) & (numbers % 1 != 0)
        if fraction.any():
            row = int(np.argmax(fraction))
            raise row_error(
                series,
                row,
                f"{numbers[row]:g} is not the number of a class. Did you mean task='regression'? Otherwise name the "
                "classes.",
            )
    counts = _counts(series.dropna())
    told = _frequent(counts, min_count)
    return told, len(told) < len(counts)


def _groups(
    frame: pd.DataFrame, rules: Sequence[Sensitive], min_count: int
) -> tuple[tuple[dict[str, int], ...], tuple[Numbers | None, ...], dict[str, int]]:
    values: list[dict[str, int]] = []
    moments: list[Numbers | None] = []
    filled: list[Sensitive] = []
    for rule in rules:
        series = column_of(frame, rule.column)
        by_value = asks(rule)
        if by_value:
            group_values(series)
        told = _frequent(_counts(series.dropna()), min_count) if by_value else {}
        values.append(told)
        moments.append(_numbers(numbers_of(series.dropna()), min_count) if rule.continuous else None)
        filled.append(with_groups(rule, told, min_count) if by_value else rule)
    rows = rows_by_name(*intersections(frame, filled))
    return tuple(values), tuple(moments), _merged(rows, min_count)


def _merged(rows: Mapping[str, int], min_count: int) -> dict[str, int]:
    told = {name: count for name, count in _frequent(rows, min_count).items() if name != MERGED}
    rest = sum(rows.values()) - sum(told.values())
    return told | ({MERGED: rest} if _told(rest, min_count) else {})


def _counts(present: pd.Series[Any]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for value, rows in present.value_counts().items():
        counts[as_text(value)] += int(rows)
    return +counts  # without those that a category dtype lists and no row has


def _frequent(counts: Mapping[str, int], min_count: int) -> dict[str, int]:
    return {value: rows for value, rows in counts.items() if _told(rows, min_count)}


def _told(rows: int, min_count: int) -> int:
    return rows if rows >= min_count else 0


def _numbers(values: NDArray[np.float64], min_count: int) -> Numbers | None:
    """What may be told of these values."""
    n = len(values)
    if n < max(min_count, 1):
        return None
    if not min_count:
        told = np.quantile(values, (0, *GRID, 1))
        return Numbers(
            rows=n,
            mean=float(values.mean()),
            deviation=float(values.std()),
            low=float(values.min()),
            high=float(values.max()),
            quantiles=tuple(zip((0.0, *GRID, 1.0), np.maximum.accumulate(told).tolist(), strict=True)),
        )
    if n < 2 * min_count:
        return Numbers(rows=n, mean=float(values.mean()), deviation=float(values.std()))
    ordered = np.partition(values, (min_count - 1, n - min_count))
    low, high = float(ordered[min_count - 1]), float(ordered[n - min_count])
    within = np.clip(values, low, high)
    digits = 2 - int(np.floor(np.log10(high - low))) if high > low else 6
    shares = [share for share in GRID if n * min(share, 1 - share) >= min_count]
    told = np.quantile(values, shares)
    return Numbers(
        rows=n,
        mean=round(float(within.mean()), digits + 2),
        deviation=round(float(within.std()), digits + 2),
        low=round(low, digits),
        high=round(high, digits),
        quantiles=tuple((share, round(float(value), digits)) for share, value in zip(shares, told, strict=True)),
    )


def asks(rule: Sensitive) -> bool:
    """Whether the values of the column are to be the groups."""
    return rule.threshold is None and not rule.groups


def with_groups(rule: Sensitive, counts: Iterable[str], min_count: int) -> Sensitive:
    """The rule with these values as groups; all others are `MERGED`, unless everything is told."""
    groups = {value: value for value in in_order(counts)}
    return rule.model_copy(update={"groups": groups, "other": rule.other or (MERGED if min_count else None)})
