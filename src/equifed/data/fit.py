"""Whether a table fits a schema: everything that does not, at once, where encoding would stop at the first."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from equifed.data.choose import alike
from equifed.data.encode import column_of
from equifed.data.missing import with_missing
from equifed.data.schema import MERGED, MISSING, OTHER, Column, Schema
from equifed.disclosure import MIN_COUNT
from equifed.errors import DataError, EquifedWarning
from equifed.partition.base import UNKNOWN, as_text
from equifed.words import quoted, shortened


class Misfit(NamedTuple):
    """Something that a table lacks."""

    column: str
    """Empty: it is about the whole table."""
    text: str
    refused: bool = True
    """Whether the table cannot be used as it is; otherwise it is only good to know."""


def misfits(schema: Schema, frame: pd.DataFrame) -> list[Misfit]:
    """All that keeps a table from being used with this schema, and what is worth a second look."""
    frame = with_missing(frame, schema.na_values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EquifedWarning)  # what they say is said here, with numbers
        return [*_about_columns(schema, frame), *_about_rows(frame), *_about_values(schema, frame)]


def _about_columns(schema: Schema, frame: pd.DataFrame) -> Iterator[Misfit]:
    there = [str(name) for name in frame.columns]
    spare = [name for name in there if name not in schema.column_names]
    for name in schema.column_names:
        if name not in there:
            near = [each for each in spare if alike(each, name)]
            yield Misfit(name, "the column is missing." + (f" Is it {quoted(near[0])}?" if near else ""))
    if len(there) == 1 and any(mark in there[0] for mark in ";\t|"):
        yield Misfit("", "The whole table is one column: its values are not separated by commas.")


def _about_rows(frame: pd.DataFrame) -> Iterator[Misfit]:
    if not len(frame):
        yield Misfit("", "The table has no rows.", refused=False)
    elif len(frame) < MIN_COUNT:
        text = f"Only {len(frame)} rows: what is counted of fewer than {MIN_COUNT} is withheld from others."
        yield Misfit("", text, refused=False)


def _about_values(schema: Schema, whole: pd.DataFrame) -> Iterator[Misfit]:
    droppable = {column.name for column in schema.columns if column.missing == "drop"}
    frame = whole.dropna(subset=[name for name in whole.columns if name in droppable])
    for name in dict.fromkeys(column.name for column in schema.columns):
        if name in frame.columns:
            parts = tuple(column for column in schema.columns if column.name == name)
            found = [*_about_missing(parts[0], whole), *_about_input(schema, parts[0], frame)]
            yield from _or_error(found, name, lambda parts=parts: _encode(schema, parts, frame))
    if schema.label in frame.columns:
        found = list(_about_label(schema, column_of(frame, schema.label)))
        yield from _or_error(found, schema.label, lambda: schema._labels(frame))
    if all(rule.column in frame.columns for rule in schema.sensitive):
        names = " & ".join(rule.column for rule in schema.sensitive)
        try:
            yield from _about_groups(schema, frame, names)
        except DataError as error:
            yield Misfit(names, _plain(error))


def _encode(schema: Schema, columns: tuple[Column, ...], frame: pd.DataFrame) -> None:
    schema.model_copy(update={"columns": columns})._inputs(frame)


def _or_error(found: list[Misfit], name: str, encode: Any) -> Iterator[Misfit]:
    """What was found; and where nothing is refused, what encoding the column says."""
    yield from found
    if not any(each.refused for each in found):
        try:
            encode()
        except DataError as error:
            yield Misfit(name, _plain(error))


def _plain(error: DataError) -> str:
    """What an error says, where the column is named already."""
    return f"Row {error.row}: {error.text}" if error.row else error.text


def _about_missing(column: Column, frame: pd.DataFrame) -> Iterator[Misfit]:
    series = column_of(frame, column.name)
    empty = int(series.isna().sum())
    if empty:
        share = f"{empty:,} of {len(series):,} rows have no value"
        if column.missing == "drop":
            yield Misfit(column.name, f"{share} and are left out.", refused=False)
        elif column.missing == "refuse" and MISSING not in column.categories:
            yield Misfit(column.name, f"{share}, and the schema has no rule for that.")
        else:
            yield Misfit(column.name, f"{share} ({column.missing}).", refused=False)


def count_unlisted(schema: Schema, frame: pd.DataFrame) -> dict[str, int]:
    """Return how many rows have a category that the schema does not list, by column; those without any are left out."""
    frame = with_missing(frame, schema.na_values)
    counts = {
        column.name: _unlisted(column, column_of(frame, column.name))
        for column in schema.columns
        if column.kind == "categorical"
    }
    return {name: count for name, count in counts.items() if count}


def _unlisted(column: Column, series: pd.Series[Any]) -> int:
    return int((~series.dropna().map(as_text).isin(column.categories)).sum())


def _about_input(schema: Schema, column: Column, frame: pd.DataFrame) -> Iterator[Misfit]:
    present = column_of(frame, column.name).dropna()
    if column.kind == "categorical":
        unlisted = _unlisted(column, present)
        if unlisted:
            text = f"{unlisted:,} of {len(frame):,} rows have a category that is not in the schema"
            other = bool(schema.min_count) and OTHER in column.categories
            more = " and count as 'other'." if other else f". Known: {shortened(column.categories)}."
            yield Misfit(column.name, text + more, refused=not other)
    elif column.kind == "numeric":
        numbers = pd.to_numeric(present.astype(object), errors="coerce")
        wrong = present[~np.isfinite(numbers.to_numpy(dtype=np.float64, na_value=np.nan))]
        if len(wrong):
            example = f"{quoted(wrong.iloc[0])} in row {wrong.index[0]}"
            yield Misfit(column.name, f"{len(wrong):,} of {len(frame):,} rows hold no number: {example}, for example.")


def _about_label(schema: Schema, series: pd.Series[Any]) -> Iterator[Misfit]:
    empty = int(series.isna().sum())
    if empty:
        yield Misfit(schema.label, f"{empty:,} of {len(series):,} rows have no label.")
    if not schema.classes:
        return
    texts = series.dropna().map(as_text)
    unlisted = texts[~texts.isin(schema.classes).to_numpy()]
    if len(unlisted):
        known = shortened(schema.classes)
        text = f"{unlisted.nunique():,} labels, of {len(unlisted):,} rows, are not in the schema."
        yield Misfit(schema.label, f"{text} Known: {known}.")
    absent = [name for name in schema.classes if len(texts) and not (texts == name).any()]
    if absent and len(absent) < len(schema.classes):
        yield Misfit(schema.label, f"No row has the label {shortened(absent)}.", refused=False)


def _about_groups(schema: Schema, frame: pd.DataFrame, names: str) -> Iterator[Misfit]:
    codes, _ = schema._groups(frame)
    unknown = int((codes == UNKNOWN).sum())
    if unknown:
        text = f"{unknown:,} of {len(codes):,} rows are of no known group: in nothing that is said of groups."
        yield Misfit(names, text, refused=False)
    absent = [
        name for code, name in enumerate(schema.groups) if name != MERGED and len(codes) and not (codes == code).any()
    ]
    if absent:
        yield Misfit(names, f"No row is of the group {shortened(absent)}.", refused=False)
