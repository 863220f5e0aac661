"""At a silo: from a table of decisions to counts that may leave it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, get_args

import numpy as np
import pandas as pd
from pydantic import ValidationError

from equifed.data import Schema
from equifed.data.encode import codes_of, column_of, row_error
from equifed.data.missing import check_na_values, with_missing
from equifed.data.schema import MISSING, OTHER, Column
from equifed.disclosure import MIN_COUNT
from equifed.errors import ConfigError, DataError, check_number, unknown_name
from equifed.metrics.withholding import small_bins, small_groups
from equifed.monitor.handin import Counts, HandIn, what_is_wrong
from equifed.monitor.periods import Kind, names_of
from equifed.partition.base import UNKNOWN, as_text
from equifed.words import quoted

BINS = 10
"""Of equal width, between the ends of a number's range."""
Range = tuple[float, float]
Parts = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Group, label and decision of each row."""


class Counted(NamedTuple):
    hand_in: HandIn
    left_out: list[tuple[str, str]]
    """Inputs that are not counted, and why."""
    merged: int
    """Rows whose group is too small to be named, counted as rows of unknown group."""
    without_range: list[str]
    """Those of the inputs left out of which no range is known."""


class Inputs(NamedTuple):
    """An input column in bins."""

    names: tuple[str, ...]
    codes: np.ndarray


def count(
    frame: pd.DataFrame,
    *,
    silo: str,
    date: str,
    decision: str,
    label: str | None = None,
    group: str | None = None,
    schema: Schema | None = None,
    classes: Sequence[str] = (),
    period: Kind = "month",
    date_format: str | None = None,
    ranges: Mapping[str, Range] | None = None,
    na_values: Sequence[str | float] = (),
    min_count: int = MIN_COUNT,
) -> Counted:
    """Counts by period, group, decision and, where it is known, label; small ones are withheld.

    Groups, classes and the inputs' bins are the schema's. Without one, `classes` names the decisions, the positive one
    last, and the groups are the values of the column `group` that at least `min_count` rows have.

    ranges: of number columns whose ends the schema does not say; the same at every silo. na_values: without a schema,
    words that mean a missing value. Rows whose label is unknown
    are left out where a group has so few of them that they would be small counts.
    """
    check_number("min_count", min_count, whole=True, low=0)
    if period not in get_args(Kind):
        raise unknown_name("period", period, get_args(Kind), key="period")
    if schema is not None and schema.task != "classification":
        raise ConfigError("Decisions are classes, but the schema is one of a regression.", key="schema")
    if schema is not None and na_values:
        raise ConfigError("The schema says which words mean a missing value. Leave them out.", key="na_values")
    frame = with_missing(frame, check_na_values(na_values) if schema is None else schema.na_values)
    listed = tuple(schema.classes if schema else classes)
    if len(listed) < 2:
        raise ConfigError(
            "Which decisions are there? Give a schema, or the classes, the positive one last: --classes A,B."
        )
    decided = _classes(frame, decision, listed)
    if (decided == UNKNOWN).any():
        row = int(np.argmax(decided == UNKNOWN))
        raise row_error(column_of(frame, decision), row, "the decision is missing. Drop such rows.")
    known = np.full(len(frame), UNKNOWN) if label is None else _classes(frame, label, listed)
    codes, groups, merged = _groups(frame, group, schema, min_count)
    when = names_of(_times(frame, date, date_format), period).to_numpy()
    columns, left_out, without_range = _inputs(frame, schema, ranges or {})
    periods = {}
    for name in sorted(set(when.tolist())):
        rows = np.flatnonzero(when == name)
        parts = codes[rows], known[rows], decided[rows]
        kept = _without_few_unlabelled(parts, len(groups), len(listed), min_count)
        inputs = {each: of.codes[rows][kept] for each, of in columns.items()}
        sizes = {each: len(of.names) for each, of in columns.items()}
        table = _table((parts[0][kept], parts[1][kept], parts[2][kept]), len(groups), len(listed))
        periods[name] = _disclosed(table, groups, inputs, sizes, min_count)
    if not periods:
        raise DataError("The table has no rows.")
    try:
        made = HandIn(
            silo=silo,
            period=period,
            min_count=min_count,
            classes=listed,
            groups=groups,
            bins={each: of.names for each, of in columns.items()},
            periods=periods,
        )
    except ValidationError as error:
        raise DataError(f"The counts cannot be handed in: {what_is_wrong(error)}.") from None
    return Counted(made, left_out, merged, without_range)


# -- columns -----------------------------------------------------------------------------------------------------------


def _classes(frame: pd.DataFrame, name: str, classes: Sequence[str]) -> np.ndarray:
    """Per row the class in a column; -1 where there is none."""
    series = column_of(frame, name)
    there = series.notna().to_numpy()
    codes = np.full(len(series), UNKNOWN, dtype=np.int64)
    codes[there] = codes_of(series[there], {value: i for i, value in enumerate(classes)}, noun="class")
    return codes


def _groups(
    frame: pd.DataFrame, column: str | None, schema: Schema | None, min_count: int
) -> tuple[np.ndarray, tuple[str, ...], int]:
    """(per row its group, -1 where it is unknown; the groups' names; rows of groups that are too small to be named)."""
    if column is None:
        if schema is None:
            raise ConfigError(
                "Which groups are there? Give a schema, or the column that names the group: --group COLUMN."
            )
        return schema.group_codes(frame), schema.groups, 0
    if schema is not None:
        return _classes(frame, column, schema.groups), schema.groups, 0
    texts = column_of(frame, column).map(as_text, na_action="ignore")
    rows = texts.value_counts()
    named = tuple(sorted(str(name) for name, number in rows.items() if number >= max(min_count, 1)))
    if not named:
        raise DataError(f"no group has {min_count} rows, so that none may be named.", column=column)
    position = {name: i for i, name in enumerate(named)}
    codes = texts.map(position).fillna(UNKNOWN).to_numpy(dtype=np.int64)
    return codes, named, int((texts.notna().to_numpy() & (codes == UNKNOWN)).sum())


def _times(frame: pd.DataFrame, name: str, form: str | None) -> pd.Series[Any]:
    series = column_of(frame, name)
    if pd.api.types.is_datetime64_any_dtype(series):
        times = pd.to_datetime(series, utc=True)
    else:
        texts = series.map(as_text, na_action="ignore")
        try:
            times = pd.to_datetime(texts, format=form or "ISO8601", errors="coerce", utc=True)
        except ValueError as error:
            raise ConfigError(f"is no format of dates: {quoted(str(error))}.", key="date_format", value=form) from None
    if times.isna().any():
        row = int(times.isna().to_numpy().argmax())
        if pd.isna(series.iloc[row]):
            raise row_error(series, row, "the date is missing, so the row belongs to no period. Drop or correct it.")
        wanted = f"of the form {form}" if form else "as ISO 8601 writes it (2026-10-31)"
        text = f"{quoted(as_text(series.iloc[row]))} is not a date {wanted}. Correct it, or say how dates are written."
        raise row_error(series, row, text)
    return times


def _inputs(
    frame: pd.DataFrame, schema: Schema | None, ranges: Mapping[str, Range]
) -> tuple[dict[str, Inputs], list[tuple[str, str]], list[str]]:
    """The schema's inputs in bins; which are not counted, with the reason; and which of these have no range."""
    counted, left_out, without_range = {}, [], []
    columns = {column.name: column for column in schema.columns} if schema else {}
    for name in ranges:
        if name not in columns:
            raise unknown_name("input column", name, columns, key="ranges")
    for name, column in columns.items():
        if name not in frame.columns:
            left_out.append((name, "the table does not have the column"))
        elif column.kind == "date":
            left_out.append((name, "dates are not counted: new ones are always later"))
        elif column.kind == "categorical":
            counted[name] = _categories(column_of(frame, name), column)
        elif (ends := ranges.get(name) or (column.low, column.high)) and None in ends:
            left_out.append((name, "the schema does not say its range"))
            without_range.append(name)
        elif not float(ends[0]) < float(ends[1]):  # type: ignore[arg-type]
            left_out.append((name, "its range is empty"))
        else:
            counted[name] = _numbers(column_of(frame, name), float(ends[0]), float(ends[1]))  # type: ignore[arg-type]
    return counted, left_out, without_range


def _categories(series: pd.Series[Any], column: Column) -> Inputs:
    names = tuple(dict.fromkeys([*column.categories, MISSING, OTHER]))
    position = {name: i for i, name in enumerate(names)}
    codes = codes_of(series, position, noun="category", missing=position[MISSING], fallback=position[OTHER])
    return Inputs(names, codes)


def _numbers(series: pd.Series[Any], low: float, high: float) -> Inputs:
    edges = np.linspace(low, high, BINS + 1)
    plain = series if pd.api.types.is_numeric_dtype(series) else series.astype(object)
    values = pd.to_numeric(plain, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    codes = np.where(values > high, BINS + 1, np.searchsorted(edges[:-1], values, side="right"))
    codes = np.where(np.isnan(values), BINS + 2, codes)
    inner = (f"{a:g} to {b:g}" for a, b in pairwise(edges))
    return Inputs((f"below {low:g}", *inner, f"above {high:g}", MISSING), codes)


# -- counts ------------------------------------------------------------------------------------------------------------


def _table(parts: Parts, groups: int, classes: int) -> np.ndarray:
    """Rows [G + 1, C + 1, C] by group, label and decision: those of unknown group and of unknown label last."""
    group, label, decision = parts
    where = np.where(group == UNKNOWN, groups, group) * (classes + 1) + np.where(label == UNKNOWN, classes, label)
    size = (groups + 1) * (classes + 1) * classes
    return np.bincount(where * classes + decision, minlength=size).reshape(groups + 1, classes + 1, classes)


def _without_few_unlabelled(parts: Parts, groups: int, classes: int, min_count: int) -> np.ndarray:
    """Which rows are counted [n]: not those without a label in a group that has labels, where there are only few of
    each decision; else they would follow from the decisions and the labels."""
    group, label, _ = parts
    table = _table(parts, groups, classes)
    few = (table[:, -1] < min_count).all(-1) & (table[:, :-1].sum((-2, -1)) > 0)
    few[-1] = False  # nothing is said of their labels
    kept: np.ndarray = ~((label == UNKNOWN) & few[group])
    return kept


def _disclosed(
    table: np.ndarray,
    groups: Sequence[str],
    inputs: Mapping[str, np.ndarray],
    sizes: Mapping[str, int],
    min_count: int,
) -> Counts:
    """What may leave the silo of a period's rows [G + 1, C + 1, C] and of their bins."""
    labelled, unlabelled, decided = table[:, :-1], table[:, -1], table.sum(1)
    rows = int(table.sum())
    if rows < min_count:
        return Counts(rows=None, decisions=dict.fromkeys(groups), labels=None, unknown=None)
    small, hidden = small_groups(labelled, min_count, decided)
    small |= hidden | ((unlabelled < min_count).any(-1) & (unlabelled.sum(-1) > 0))
    without = decided[-1].sum() == 0
    labels = {name: None if small[g] else labelled[g].tolist() for g, name in enumerate(groups)}
    return Counts(
        rows=rows,
        decisions={name: None if hidden[g] else decided[g].tolist() for g, name in enumerate(groups)},
        labels=labels if labelled[:-1].any() else None,
        unknown=None if hidden[-1] and not without else decided[-1].tolist(),
        inputs=dict(_binned(inputs, sizes, min_count)),
    )


def _binned(
    inputs: Mapping[str, np.ndarray], sizes: Mapping[str, int], min_count: int
) -> Iterator[tuple[str, list[int | None]]]:
    for name, codes in inputs.items():
        counts = np.bincount(codes, minlength=sizes[name])
        hidden = small_bins(counts, min_count)
        yield name, [None if gone else int(number) for gone, number in zip(hidden, counts, strict=True)]
