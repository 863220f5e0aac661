"""Names of periods: days, ISO weeks, months, quarters and years. Their alphabetical order is chronological."""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import Any, Literal

import pandas as pd

Kind = Literal["day", "week", "month", "quarter", "year"]
KINDS: dict[Kind, re.Pattern[str]] = {
    "day": re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII),
    "week": re.compile(r"(\d{4})-W(\d\d)", re.ASCII),
    "month": re.compile(r"(\d{4})-(\d\d)", re.ASCII),
    "quarter": re.compile(r"(\d{4})-Q([1-4])", re.ASCII),
    "year": re.compile(r"(\d{4})", re.ASCII),
}


def name_periods(times: pd.Series[Any], kind: Kind) -> pd.Series[Any]:
    """Return the period of each time."""
    if kind == "week":
        parts = times.dt.isocalendar()
        return parts["year"].astype(str) + "-W" + parts["week"].astype(str).str.zfill(2)
    if kind == "quarter":
        return times.dt.year.astype(str).str.zfill(4) + "-Q" + times.dt.quarter.astype(str)
    return times.dt.strftime({"day": "%Y-%m-%d", "month": "%Y-%m", "year": "%Y"}[kind])


def first_day(name: str, kind: Kind) -> date:
    """Return the first day of the period of this name; raise `ValueError` if there is no such period."""
    found = KINDS[kind].fullmatch(name)
    if found is None:
        raise ValueError(f"not the name of a {kind}")
    year, *rest = map(int, found.groups())
    if kind == "week":
        return date.fromisocalendar(year, rest[0], 1)
    if kind == "quarter":
        return date(year, 3 * rest[0] - 2, 1)
    return date(year, *[*rest, 1, 1][:2])


def next_period(name: str, kind: Kind) -> str:
    """Return the name of the next period."""
    day = first_day(name, kind)
    if kind in ("day", "week"):
        day += timedelta(days=7 if kind == "week" else 1)
        year, week, _ = day.isocalendar()
        return f"{year:04}-W{week:02}" if kind == "week" else f"{day:%Y-%m-%d}"
    months = 12 * day.year + day.month - 1 + {"month": 1, "quarter": 3, "year": 12}[kind]
    year, month = divmod(months, 12)
    ending = {"month": f"-{month + 1:02}", "quarter": f"-Q{month // 3 + 1}", "year": ""}[kind]
    return f"{year:04}{ending}"
