"""Columns of a table as numbers: text to codes, groups to numbers. A value that does not fit is an error that names its
column and row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from equifed.data.missing import advice, advice_on, usual_cells, with_missing
from equifed.errors import MAX_FLOAT32, DataError, RowError
from equifed.partition.base import as_text
from equifed.words import listed, quoted, shortened

MAX_STANDARDISED = 1e15
"""Of a column that is standardised: the squares of so large numbers can still be added up, over any number of rows."""
NUMBERS_SHARE = 0.9
"""A text column with a larger share of numbers is a number column with bad cells."""


def column_of(frame: pd.DataFrame, name: str) -> pd.Series[Any]:
    if name not in frame.columns:
        raise DataError(f"the column is missing. The table has: {shortened(map(str, frame.columns))}.", column=name)
    column = frame[name]
    if not isinstance(column, pd.Series):
        raise DataError(f"the column appears {column.shape[1]} times in the table. Keep one.", column=name)
    if column.dtype == object and pd.api.types.infer_dtype(column).startswith("mixed"):
        single = column.map(pd.api.types.is_scalar).to_numpy(dtype=bool)
        if not single.all():
            row = int(np.argmin(single))
            raise row_error(column, row, "the cell holds several values where one belongs. Give each a column.")
    return column


def numbers_of(series: pd.Series[Any]) -> NDArray[np.float64]:
    """The column as finite numbers, or the first row that is not one."""
    plain = series if pd.api.types.is_numeric_dtype(series) else series.astype(object)
    values = pd.to_numeric(plain, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad = ~(np.abs(values) <= MAX_FLOAT32)
    if bad.any():
        row = int(np.argmax(bad))
        value = series.iloc[row]
        if pd.isna(value):
            raise row_error(series, row, "the value is missing (NaN). Drop such rows or impute them first.")
        if np.isnan(values[row]):
            raise row_error(series, row, f"{quoted(value)} is not a number.{advice_on(value)}")
        raise row_error(series, row, "the value is infinite or too large. Drop such rows or impute them first.")
    return values


def codes_of(
    series: pd.Series[Any],
    position: dict[str, int],
    *,
    noun: str,
    missing: int | None = None,
    fallback: int | None = None,
) -> NDArray[np.int64]:
    """Per row the code of its value; `missing` for an empty one, `fallback` for one that is not listed."""
    raw, uniques = pd.factorize(series)
    unlisted, empty = -1 if fallback is None else fallback, -1 if missing is None else missing
    lookup = np.array([*(position.get(as_text(value), unlisted) for value in uniques), empty], dtype=np.int64)
    codes: NDArray[np.int64] = lookup[raw]
    if (codes < 0).any():
        row = int(np.argmax(codes < 0))
        if raw[row] < 0:
            raise row_error(series, row, "the value is missing. Drop such rows or fill them in.")
        raise row_error(
            series,
            row,
            f"{quoted(as_text(uniques[raw[row]]))} is not a known {noun}. Known: {shortened(position)}. "
            f"Correct the value, or add it to the schema that all silos share.{advice_on(uniques[raw[row]])}",
        )
    return codes


def sorted_texts(series: pd.Series[Any]) -> list[str]:
    """The distinct values as text: in numeric order if all are numbers, else alphabetical."""
    return in_order({as_text(value) for value in series.dropna().unique()})


def in_order(texts: Iterable[str]) -> list[str]:
    """In numeric order if all are numbers, else alphabetical."""
    values = list(texts)
    try:
        return sorted(values, key=lambda text: (float(text), text))
    except ValueError:
        return sorted(values)


def holds_numbers(series: pd.Series[Any]) -> bool:
    """Whether a column is one of numbers; a bad cell among numbers is an error, not a reason to call them categories.

    Numbers written as text throughout (postal codes kept as text) and the category dtype stay categories.
    """
    if pd.api.types.is_numeric_dtype(series):
        return True
    if not (series.dtype == object or isinstance(series.dtype, pd.StringDtype)):
        return False
    check_words_among_numbers(series)
    counts = series.value_counts()
    if not len(counts):
        return False
    numbers = _are_numbers(counts.index)
    if numbers.all():
        return not all(isinstance(value, str) for value in counts.index)
    if counts.to_numpy()[numbers].sum() <= NUMBERS_SHARE * counts.sum():
        return False
    bad = series.isin(counts.index[~numbers])
    row = int(np.argmax(bad.to_numpy()))
    raise row_error(
        series,
        row,
        f"{quoted(series.iloc[row])} is not a number, but {counts.to_numpy()[numbers].sum()} of {counts.sum()} values "
        "are. Correct or drop it; if they are codes of categories, say so (category dtype in a frame, a schema for "
        "files).",
    )


def check_words_among_numbers(series: pd.Series[Any]) -> None:
    """Refuse words that often stand for missing values (NA) in a column that otherwise holds numbers: nothing says
    whether they are missing or categories."""
    usual = usual_cells(series)
    if not usual.any():
        return
    counts = series[~usual].value_counts()
    found = int(counts.to_numpy()[_are_numbers(counts.index)].sum())
    if found <= NUMBERS_SHARE * counts.sum():
        return
    words = [str(value).strip() for value in series[usual].unique()]
    row = int(np.argmax(usual))
    text = f"{usual.sum():,} cells {listed(sorted(set(words)))} stand among {found:,} numbers. {advice(words)}"
    raise row_error(series, row, text)


def _are_numbers(values: pd.Index[Any]) -> NDArray[np.bool_]:
    """Which values are numbers, or texts of numbers; truth values are not."""
    truths = np.array([isinstance(value, bool | np.bool_) for value in values], dtype=bool)
    found: NDArray[np.bool_] = pd.to_numeric(pd.Series(values, dtype=object), errors="coerce").notna().to_numpy()
    return found & ~truths


def far_from_zero(values: NDArray[np.float64], deviations: float) -> bool:
    """Whether the mean is more than so many deviations from 0; never for a constant, which has no digits to lose."""
    return bool(len(values)) and 0 < values.std() * deviations < abs(values.mean()) and bool(np.ptp(values))


def check_complete(frame: pd.DataFrame, columns: Sequence[str], na_values: Sequence[str] = ()) -> None:
    """Refuse a missing value in the columns that say where the rows belong, whichever rows a seed trains on."""
    frame = with_missing(frame, na_values, columns)
    for series in (column_of(frame, name) for name in columns):
        missing = series.isna().to_numpy()
        if missing.any():
            raise row_error(
                series,
                int(missing.argmax()),
                f"the value is missing, so the row has no place in the partition ({int(missing.sum())} such rows). "
                "Drop them or fill them in.",
            )


def check_size(values: NDArray[np.float64], series: pd.Series[Any], most: float = MAX_FLOAT32) -> None:
    """Scaled values must still be numbers in float32, and those to be standardised have squares too."""
    bad = ~(np.abs(values) <= most)
    if bad.any():
        text = f"the value is too large after scaling (above {most:.0e}). Correct it, or widen the range in the schema."
        raise row_error(series, int(np.argmax(bad)), text)


def row_error(series: pd.Series[Any], row: int, text: str) -> RowError:
    return RowError(text, column=str(series.name), row=series.index[row])
