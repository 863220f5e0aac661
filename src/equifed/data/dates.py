"""Columns of dates: recognised by how they are written, read by one agreed format, and turned into numbers by parts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from equifed.data.encode import row_error
from equifed.data.missing import advice_on
from equifed.partition.base import as_text
from equifed.words import quoted

DatePart = Literal["year", "quarter", "month", "week", "day", "weekday", "yearday", "hour", "minute", "days"]

PARTS: dict[DatePart, Callable[[Any], Any]] = {
    "year": lambda dates: dates.year,
    "quarter": lambda dates: dates.quarter,
    "month": lambda dates: dates.month,
    "week": lambda dates: dates.isocalendar().week,
    "day": lambda dates: dates.day,
    "weekday": lambda dates: dates.day_of_week,  # Monday is 0
    "yearday": lambda dates: dates.day_of_year,
    "hour": lambda dates: dates.hour,
    "minute": lambda dates: dates.minute,
    "days": lambda dates: (dates - pd.Timestamp(0)) // pd.Timedelta(days=1),  # since 1970
}

ISO = "ISO8601"
COMPACT = "%Y%m%d"
_YEAR, _TWO, _TIME = (
    r"[12]\d{3}",
    r"\d{1,2}",
    r"(?:[T ]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?[AaPp][Mm])?(?:Z|[+-]\d{2}:?\d{2})?)?",
)
_WRITTEN = (
    (re.compile(rf"{_YEAR}-{_TWO}-{_TWO}{_TIME}"), (ISO,)),
    (re.compile(rf"{_YEAR}/{_TWO}/{_TWO}{_TIME}"), ("%Y/%m/%d",)),
    (re.compile(rf"{_TWO}\.{_TWO}\.{_YEAR}{_TIME}"), ("%d.%m.%Y",)),
    (re.compile(rf"{_TWO}/{_TWO}/{_YEAR}{_TIME}"), ("%d/%m/%Y", "%m/%d/%Y")),
    (re.compile(rf"{_TWO}-{_TWO}-{_YEAR}{_TIME}"), ("%d-%m-%Y", "%m-%d-%Y")),
    (re.compile(rf"{_TWO} [A-Za-z]{{3}} {_YEAR}{_TIME}"), ("%d %b %Y",)),
    (re.compile(rf"{_TWO} [A-Za-z]{{3,9}} {_YEAR}{_TIME}"), ("%d %B %Y",)),
    (re.compile(rf"{_TWO}-[A-Za-z]{{3}}-{_YEAR}{_TIME}"), ("%d-%b-%Y",)),
    (re.compile(rf"[A-Za-z]{{3}} {_TWO}, {_YEAR}{_TIME}"), ("%b %d, %Y",)),
    (re.compile(r"\d{1,2}:\d{2}(?::\d{2})?"), ()),  # a time of day: recognised, but without parts
)
"""How dates are written, and the formats that may be meant: which of day and month comes first is not always clear."""
ENOUGH = 0.95
"""This share of the values of a date column are dates."""
_CLOCK = re.compile(r"[T ]\d{1,2}:\d{2}.*$")


def is_dates(series: pd.Series[Any]) -> bool:
    """Whether the column holds moments, not text."""
    if isinstance(series.dtype, pd.PeriodDtype) or pd.api.types.is_datetime64_any_dtype(series):
        return True
    return series.dtype == object and pd.api.types.infer_dtype(series, skipna=True) in (
        "datetime",
        "date",
        "datetime64",
    )


def formats_of(series: pd.Series[Any]) -> tuple[str, ...] | None:
    """The formats in which (nearly) all values are dates; None where they are none, nothing where they are times of
    day."""
    if is_dates(series):
        return (ISO,)
    if pd.api.types.is_timedelta64_dtype(series):
        return ()
    texts = pd.Series(series.dropna().unique())
    if not len(texts):
        return None
    if pd.api.types.is_integer_dtype(texts):
        likely = bool(texts.between(19000101, 21001231).mean() >= ENOUGH)
        return (COMPACT,) if likely and _share(texts, COMPACT) >= ENOUGH else None
    if not texts.map(lambda value: isinstance(value, str)).mean() >= ENOUGH:
        return None
    texts = texts.astype(str).str.strip()
    for pattern, formats in _WRITTEN:
        if texts.str.fullmatch(pattern.pattern).mean() >= ENOUGH:
            fitting = tuple(each for each in formats if _share(texts, each) >= ENOUGH)
            return fitting if fitting or not formats else None
    return None


def parts_of(series: pd.Series[Any], part: DatePart, written: str) -> NDArray[np.float64]:
    """One part of every date, all of which must be there; a value that is no date is an error that names its row."""
    dates = _read(series, written)
    bad = np.asarray(dates.isna())
    if bad.any():
        row = int(np.argmax(bad))
        how = "YYYY-MM-DD" if written == ISO else written
        text = f"{quoted(as_text(series.iloc[row]))} is not a date written as {how}.{advice_on(series.iloc[row])}"
        raise row_error(series, row, text)
    return np.asarray(PARTS[part](dates), dtype=np.float64)


def _share(texts: pd.Series[Any], written: str) -> float:
    return float(np.mean(~np.asarray(_read(texts, written).isna())))


def _read(series: pd.Series[Any], written: str) -> pd.DatetimeIndex:
    """The moments of a column; nothing (NaT) where one cannot be read."""
    if isinstance(series.dtype, pd.PeriodDtype):
        return pd.DatetimeIndex(series.dt.to_timestamp())
    if pd.api.types.is_datetime64_any_dtype(series):
        return pd.DatetimeIndex(series).tz_localize(None)
    if is_dates(series):
        return pd.DatetimeIndex(pd.to_datetime(series, errors="coerce", utc=True)).tz_localize(None)
    texts = series.astype(str).str.strip()
    if written == ISO:
        # the moment as it was written there: hours are those of the place
        texts = texts.str.replace(r"(?:Z|[+-]\d{2}:?\d{2})$", "", regex=True).where(texts.str.contains(":"), texts)
        return pd.DatetimeIndex(pd.to_datetime(texts, format=ISO, errors="coerce"))
    clock = texts.str.extract(r"[T ](\d{1,2}:\d{2}.*)$", expand=False)
    days = pd.to_datetime(texts.str.replace(_CLOCK.pattern, "", regex=True), format=written, errors="coerce")
    if clock.isna().all():
        return pd.DatetimeIndex(days)
    times = pd.to_datetime("1970-01-01 " + clock.fillna("00:00"), errors="coerce", format="mixed")
    return pd.DatetimeIndex(days + (times - pd.Timestamp(0)))
