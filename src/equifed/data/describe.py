"""Describe a user's own tables. Counts are exact: do not share the output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from equifed.data.choose import REASONS, look
from equifed.data.columns import Columns
from equifed.data.schema import Schema
from equifed.errors import DataError
from equifed.partition.base import as_text

MOST_VALUES = 20
"""Different values of a label or a sensitive column that are listed."""


@dataclass(frozen=True)
class ColumnFacts:
    """A column of all tables together."""

    name: str
    kind: str
    """numeric, categorical, date, or mixed."""
    tables: int
    """How many tables have it."""
    rows: int
    """In these."""
    missing: int
    """Rows of these without a value."""
    distinct: int
    """Different values."""
    use: str
    """input, label, sensitive, or left out."""
    why: str = ""
    """Of one that is left out."""


@dataclass(frozen=True)
class TableFacts:
    """One table."""

    name: str
    rows: int
    lacks: tuple[str, ...] = ()
    """Columns that other tables have."""
    labels: dict[str, int] = field(default_factory=dict)
    """Rows by label value; "(missing)" among them."""
    groups: dict[str, dict[str, int]] = field(default_factory=dict)
    """Rows by value of every sensitive column."""


def describe_tables(
    frames: Mapping[str, pd.DataFrame], columns: Columns, schema: Schema | None = None
) -> tuple[list[TableFacts], list[ColumnFacts]]:
    """Describe the tables and their columns. schema: what would be made of them, which says what is an input and what
    is not; without it that is guessed by the columns' values."""
    label, sensitive = columns.label, tuple(rule.column for rule in columns.rules)
    names = list(dict.fromkeys(str(name) for frame in frames.values() for name in frame.columns))
    tables = [
        TableFacts(
            name,
            len(frame),
            tuple(column for column in names if column not in frame.columns),
            _values(frame, label) if label in frame.columns else {},
            {column: _values(frame, column) for column in sensitive if column in frame.columns},
        )
        for name, frame in frames.items()
    ]
    return tables, [_column(name, frames, schema, label, sensitive) for name in names]


def _column(
    name: str, frames: Mapping[str, pd.DataFrame], schema: Schema | None, label: str | None, sensitive: tuple[str, ...]
) -> ColumnFacts:
    held = [frame[name] for frame in frames.values() if name in frame.columns]
    filled = [series for series in held if len(series)]
    series = pd.concat(filled, ignore_index=True) if filled else held[0]
    try:
        seen = look(series.rename(name))
        kind, role = seen.kind, seen.role
    except DataError as error:
        kind, role = "mixed", ""  # type: ignore[assignment]
        why = error.text
    else:
        why = REASONS["date"] if kind == "date" else REASONS.get(role, "")
    use = "label" if name == label else "sensitive" if name in sensitive else ""
    if not use and schema is not None:
        reasons = {each.column: each.reason for each in schema.left_out}
        use = "input" if name in {column.name for column in schema.columns} else "left out"
        why = reasons.get(name, "") if use == "left out" else ""
    elif not use:
        use = "left out" if why else "input"
    return ColumnFacts(
        name,
        kind,
        len(held),
        len(series),
        int(series.isna().sum()),
        int(series.map(as_text, na_action="ignore").nunique()),
        use,
        why if use == "left out" else "",
    )


def _values(frame: pd.DataFrame, name: str | None) -> dict[str, int]:
    """Rows by value, the most frequent ones; "(missing)" and "(others)" last."""
    series = frame[str(name)]
    counts = series.dropna().map(as_text).value_counts()
    found: dict[str, Any] = {str(value): int(count) for value, count in counts[:MOST_VALUES].items()}
    others, empty = int(counts[MOST_VALUES:].sum()), int(series.isna().sum())
    return {
        **dict(sorted(found.items())),
        **({"(others)": others} if others else {}),
        **({"(missing)": empty} if empty else {}),
    }
