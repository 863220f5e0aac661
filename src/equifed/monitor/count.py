"""At a silo: convert a table of decisions to counts that may be disclosed."""

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
from equifed.monitor.handin import HandIn, PeriodCounts, first_problem
from equifed.monitor.periods import Kind, name_periods
from equifed.partition.base import UNKNOWN, as_text
from equifed.words import quoted

BINS = 10
"""Number of bins of equal width in the range of a numeric column."""
Range = tuple[float, float]
Parts = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Group, label and decision of each row."""


class Counted(NamedTuple):
    """A hand-in, with what it does not include."""

    hand_in: HandIn
    left_out: list[tuple[str, str]]
    """BinnedInput that are not counted, each with the reason."""
    merged: int
    """Number of rows in groups too small to be named, which are counted as rows of unknown group."""
    without_range: list[str]
    """Inputs that are not counted because their range is unknown."""


class BinnedInput(NamedTuple):
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
    """Count rows by period, group, decision and known label; withhold small counts.

    Groups, classes and the inputs' bins are the schema's. Without a schema, `classes` lists the decisions, the positive
    one last, and the groups are the values of the column `group` with at least `min_count` rows.

    ranges: those of numeric columns for which the schema states none; the same at every silo. na_values: without a
    schema, words that mean a missing value. Rows without a label are not counted in groups where their counts would be
    small.
    """
    check_number("min_count", min_count, whole=True, low=0)
    if period not in get_args(Kind):
        raise unknown_name("period", period, get_args(Kind), key="period")
    if schema is not None and schema.task != "classification":
        raise ConfigError("is one of a regression, but decisions are classes.", key="schema")
    if schema is not None and na_values:
        raise ConfigError("must not be given with a schema, which lists such words.", key="na_values")
    frame = with_missing(frame, check_na_values(na_values) if schema is None else schema.na_values)
    listed = tuple(schema.classes if schema else classes)
    if len(listed) < 2:
        raise ConfigError(
            "The classes of decisions are needed. Give a schema, or list them, the positive one last: --classes A,B."
        )
    decided = _code_classes(frame, decision, listed)
    if (decided == UNKNOWN).any():
        row = int(np.argmax(decided == UNKNOWN))
        raise row_error(column_of(frame, decision), row, "the decision is missing. Remove such rows.")
    known = np.full(len(frame), UNKNOWN) if label is None else _code_classes(frame, label, listed)
    codes, groups, merged = _code_groups(frame, group, schema, min_count)
    when = name_periods(_parse_times(frame, date, date_format), period).to_numpy()
    columns, left_out, without_range = _bin_inputs(frame, schema, ranges or {})
    periods = {}
    for name in sorted(set(when.tolist())):
        rows = np.flatnonzero(when == name)
        parts = codes[rows], known[rows], decided[rows]
        kept = _select_rows(parts, len(groups), len(listed), min_count)
        inputs = {each: of.codes[rows][kept] for each, of in columns.items()}
        sizes = {each: len(of.names) for each, of in columns.items()}
        table = _count_table((parts[0][kept], parts[1][kept], parts[2][kept]), len(groups), len(listed))
        periods[name] = _disclose(table, groups, inputs, sizes, min_count)
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
        raise DataError(f"The counts cannot be handed in: {first_problem(error)}.") from None
    return Counted(made, left_out, merged, without_range)


# -- columns -----------------------------------------------------------------------------------------------------------


def _code_classes(frame: pd.DataFrame, name: str, classes: Sequence[str]) -> np.ndarray:
    """Return the class of each row in a column; -1 if missing."""
    series = column_of(frame, name)
    there = series.notna().to_numpy()
    codes = np.full(len(series), UNKNOWN, dtype=np.int64)
    codes[there] = codes_of(series[there], {value: i for i, value in enumerate(classes)}, noun="class")
    return codes


def _code_groups(
    frame: pd.DataFrame, column: str | None, schema: Schema | None, min_count: int
) -> tuple[np.ndarray, tuple[str, ...], int]:
    """Return each row's group (-1 if unknown), the groups' names, and the number of rows in groups too small to
    name."""
    if column is None:
        if schema is None:
            raise ConfigError("The groups are needed. Give a schema, or the column with the group: --group COLUMN.")
        return schema.group_codes(frame), schema.groups, 0
    if schema is not None:
        return _code_classes(frame, column, schema.groups), schema.groups, 0
    texts = column_of(frame, column).map(as_text, na_action="ignore")
    rows = texts.value_counts()
    named = tuple(sorted(str(name) for name, number in rows.items() if number >= max(min_count, 1)))
    if not named:
        raise DataError(f"no group has {min_count} rows, so no group may be disclosed.", column=column)
    position = {name: i for i, name in enumerate(named)}
    codes = texts.map(position).fillna(UNKNOWN).to_numpy(dtype=np.int64)
    return codes, named, int((texts.notna().to_numpy() & (codes == UNKNOWN)).sum())


def _parse_times(frame: pd.DataFrame, name: str, form: str | None) -> pd.Series[Any]:
    series = column_of(frame, name)
    if pd.api.types.is_datetime64_any_dtype(series):
        times = pd.to_datetime(series, utc=True)
    else:
        texts = series.map(as_text, na_action="ignore")
        try:
            times = pd.to_datetime(texts, format=form or "ISO8601", errors="coerce", utc=True)
        except ValueError as error:
            raise ConfigError(f"is not a date format: {quoted(str(error))}.", key="date_format", value=form) from None
    if times.isna().any():
        row = int(times.isna().to_numpy().argmax())
        if pd.isna(series.iloc[row]):
            raise row_error(series, row, "the date is missing, so the row's period is unknown. Remove or correct it.")
        wanted = f"of the form {form}" if form else "in ISO 8601 form (2026-10-31)"
        text = f"{quoted(as_text(series.iloc[row]))} is not a date {wanted}. Correct it, or give the date format."
        raise row_error(series, row, text)
    return times


def _bin_inputs(
    frame: pd.DataFrame, schema: Schema | None, ranges: Mapping[str, Range]
) -> tuple[dict[str, BinnedInput], list[tuple[str, str]], list[str]]:
    """Return the schema's inputs in bins, the inputs that are not counted, with the reason, and those without range."""
    counted, left_out, without_range = {}, [], []
    columns = {column.name: column for column in schema.columns} if schema else {}
    for name in ranges:
        if name not in columns:
            raise unknown_name("input column", name, columns, key="ranges")
    for name, column in columns.items():
        if name not in frame.columns:
            left_out.append((name, "the table does not have the column"))
        elif column.kind == "date":
            left_out.append((name, "dates are not counted: new dates are always later"))
        elif column.kind == "categorical":
            counted[name] = _bin_categories(column_of(frame, name), column)
        elif (ends := ranges.get(name) or (column.low, column.high)) and None in ends:
            left_out.append((name, "the schema does not state its range"))
            without_range.append(name)
        elif not float(ends[0]) < float(ends[1]):  # type: ignore[arg-type]
            left_out.append((name, "its range is empty"))
        else:
            counted[name] = _bin_numbers(column_of(frame, name), float(ends[0]), float(ends[1]))  # type: ignore[arg-type]
    return counted, left_out, without_range


def _bin_categories(series: pd.Series[Any], column: Column) -> BinnedInput:
    names = tuple(dict.fromkeys([*column.categories, MISSING, OTHER]))
    position = {name: i for i, name in enumerate(names)}
    codes = codes_of(series, position, noun="category", missing=position[MISSING], fallback=position[OTHER])
    return BinnedInput(names, codes)


def _bin_numbers(series: pd.Series[Any], low: float, high: float) -> BinnedInput:
    edges = np.linspace(low, high, BINS + 1)
    plain = series if pd.api.types.is_numeric_dtype(series) else series.astype(object)
    values = pd.to_numeric(plain, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    codes = np.where(values > high, BINS + 1, np.searchsorted(edges[:-1], values, side="right"))
    codes = np.where(np.isnan(values), BINS + 2, codes)
    inner = (f"{a:g} to {b:g}" for a, b in pairwise(edges))
    return BinnedInput((f"below {low:g}", *inner, f"above {high:g}", MISSING), codes)


# -- counts ------------------------------------------------------------------------------------------------------------


def _count_table(parts: Parts, groups: int, classes: int) -> np.ndarray:
    """Count rows by group, label and decision [G + 1, C + 1, C], with unknown group and unknown label last."""
    group, label, decision = parts
    where = np.where(group == UNKNOWN, groups, group) * (classes + 1) + np.where(label == UNKNOWN, classes, label)
    size = (groups + 1) * (classes + 1) * classes
    return np.bincount(where * classes + decision, minlength=size).reshape(groups + 1, classes + 1, classes)


def _select_rows(parts: Parts, groups: int, classes: int, min_count: int) -> np.ndarray:
    """Return True for rows to count [n]. Excluded are rows without a label in groups with labels, if few of them have
    each decision, because their counts would follow from those of decisions and labels."""
    group, label, _ = parts
    table = _count_table(parts, groups, classes)
    few = (table[:, -1] < min_count).all(-1) & (table[:, :-1].sum((-2, -1)) > 0)
    few[-1] = False  # labels of unknown group are not disclosed
    kept: np.ndarray = ~((label == UNKNOWN) & few[group])
    return kept


def _disclose(
    table: np.ndarray,
    groups: Sequence[str],
    inputs: Mapping[str, np.ndarray],
    sizes: Mapping[str, int],
    min_count: int,
) -> PeriodCounts:
    """Return the counts of a period's rows [G + 1, C + 1, C] and bins that may be disclosed."""
    labelled, unlabelled, decided = table[:, :-1], table[:, -1], table.sum(1)
    rows = int(table.sum())
    if rows < min_count:
        return PeriodCounts(rows=None, decisions=dict.fromkeys(groups), labels=None, unknown=None)
    small, hidden = small_groups(labelled, min_count, decided)
    small |= hidden | ((unlabelled < min_count).any(-1) & (unlabelled.sum(-1) > 0))
    without = decided[-1].sum() == 0
    labels = {name: None if small[g] else labelled[g].tolist() for g, name in enumerate(groups)}
    return PeriodCounts(
        rows=rows,
        decisions={name: None if hidden[g] else decided[g].tolist() for g, name in enumerate(groups)},
        labels=labels if labelled[:-1].any() else None,
        unknown=None if hidden[-1] and not without else decided[-1].tolist(),
        inputs=dict(_count_bins(inputs, sizes, min_count)),
    )


def _count_bins(
    inputs: Mapping[str, np.ndarray], sizes: Mapping[str, int], min_count: int
) -> Iterator[tuple[str, list[int | None]]]:
    for name, codes in inputs.items():
        counts = np.bincount(codes, minlength=sizes[name])
        hidden = small_bins(counts, min_count)
        yield name, [None if gone else int(number) for gone, number in zip(hidden, counts, strict=True)]
