"""Tables that become a federation's rows: one that is dealt to clients, or one per client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from equifed.data import Columns, Encoded, Schema, Summary, agree, summarise
from equifed.data.columns import BESIDE_SCHEMA
from equifed.data.encode import check_complete
from equifed.data.missing import check_na_values
from equifed.errors import ConfigError, DataError, blaming, unknown_name
from equifed.federation.frames import frame_of
from equifed.federation.reading import SUFFIXES, existing, read_table
from equifed.federation.split import AnyPartitioner, blaming_partition
from equifed.files import read_regular
from equifed.partition.base import as_text, client_columns_of, columns_of
from equifed.words import quoted

MOST_SCHEMA = 2**24
"""Bytes of a schema or summary."""


def encode_table(table: Any, partition: AnyPartitioner, columns: Columns | Schema) -> Encoded:
    """Return one table as numbers, with the columns that the partitioner looks at."""
    words = na_values_of(columns)
    with blaming(key="tables"):
        frame = read_table(Path(table), words) if isinstance(table, str | Path) else frame_of(table)
    kept = columns_of(partition)
    for column in kept:
        with blaming_partition(partition):
            if column not in frame.columns:
                raise unknown_name("column to partition by", column, ["label", "group", *frame.columns])
    check_complete(frame, kept, words)
    made = schema_of(columns, {"": frame}, exclude=client_columns_of(partition))
    return made.encode(frame, columns=kept)


def encode_silos(
    tables: Mapping[str, Any], columns: Columns | Schema, validation_file: str | Path | None
) -> tuple[dict[str, Encoded], Encoded]:
    """Return the table of each client as numbers, and the server's own rows."""
    words, named = na_values_of(columns), titles(tables)
    with blaming(key="tables"):
        frames = {
            silo: read_table(table, words) if isinstance(table, Path) else frame_of(table)
            for silo, table in tables.items()
        }
    schema = schema_of(columns, {named[silo]: frame for silo, frame in frames.items()})
    silos: dict[str, Encoded] = {}
    for silo, frame in frames.items():
        with blaming(key="tables", file=getattr(tables[silo], "name", silo)):
            silos[silo] = schema.encode(frame)
    return silos, encode_file(schema, validation_file, named="validation_file")


def check_inputs(schema: Schema) -> None:
    if not schema.columns:
        why = "".join(f" {quoted(each.column)}: {each.reason}." for each in schema.left_out)
        raise DataError(
            f"The table has no input column besides the label, the sensitive ones and the partition's.{why}"
        )


# -- files of silos ----------------------------------------------------------------------------------------------------


def named_tables(given: Any) -> dict[str, Any] | None:
    """Return one table or path per client by the clients' names; None where one table is given."""
    if isinstance(given, str | Path):
        given = files_in(Path(given)) if Path(given).is_dir() else None
    if not isinstance(given, Mapping | list | tuple):
        return None
    if not given:
        raise DataError("No client's table was given.", key="tables")
    if isinstance(given, Mapping):
        return {str(silo): Path(table) if isinstance(table, str) else table for silo, table in given.items()}
    named: dict[str, Any] = {}
    for file in given:
        if not isinstance(file, str | Path):
            text = f"must be a table per client by its name, {{'north': table, ...}}, got {type(given).__name__}."
            raise ConfigError(text, key="tables")
        if Path(file).stem in named:
            text = f"Two silo files are called {Path(file).stem!r}; give names: {{'silo-a': path, ...}}."
            raise ConfigError(text, key="tables")
        named[Path(file).stem] = Path(file)
    return named


def files_in(folder: Path) -> list[Path]:
    """The tables of a folder; hidden files are leftovers of other programs."""
    found = (path for path in folder.iterdir() if path.name.endswith(SUFFIXES) and not path.name.startswith("."))
    return sorted(path for path in found if path.is_file())


def titles(tables: Mapping[str, Any]) -> dict[str, str]:
    """Return what the silos' tables are called in messages: files by their names, with the silo's where two have the
    same; others by their silo's name."""
    names = {silo: table.name if isinstance(table, Path) else silo for silo, table in tables.items()}
    every = list(names.values())
    return {silo: f"{name} of {silo}" if every.count(name) > 1 else name for silo, name in names.items()}


def infer_schema(frames: Mapping[str, pd.DataFrame], columns: Columns, exclude: Sequence[str] = ()) -> Schema:
    """Return the schema that the silos of these tables would agree on: none sees another's rows."""
    summaries: list[Summary] = []
    for name, frame in frames.items():
        with blaming(file=name):
            summaries.append(summarise(frame, columns, name=name, exclude=exclude))
    return agree(summaries, columns.agreed)


def read_schema(path: str | Path) -> Schema:
    """The schema file that silos share."""
    with blaming(key="schema", file=str(path)):
        try:
            return Schema.from_json(read_regular(existing(path), MOST_SCHEMA).decode("utf-8"))
        except UnicodeDecodeError:
            raise DataError("The schema is not a text file in UTF-8.") from None
        except OSError as error:
            raise DataError(f"The schema cannot be read: {error.strerror}.") from None


def read_summary(path: str | Path) -> Summary:
    """What a silo has told of its table."""
    with blaming(file=str(path)):
        try:
            return Summary.from_json(read_regular(existing(path), MOST_SCHEMA))
        except OSError as error:
            raise DataError(f"The summary cannot be read: {error.strerror}.") from None


def columns_given(columns: object) -> Columns | Schema:
    """Return the columns or the schema that they are given as; a schema's file is read."""
    if isinstance(columns, Columns):
        if columns.label is None or columns.sensitive is None:
            text = "Tables need a schema, or the names of the label and the sensitive columns."
            raise ConfigError(text, key="columns")
        if columns.features == ():
            text = "must be a list of column names with at least one, got none."
            raise ConfigError(text, key="features", value=columns.features)
        return columns
    if isinstance(columns, str | Path):
        return read_schema(columns)
    if not isinstance(columns, Schema):
        text = f"must be an equifed.Columns, a schema or the file of one, got {type(columns).__name__}."
        raise ConfigError(text, key="columns", value=columns)
    return columns


def na_values_of(columns: Columns | Schema) -> tuple[str, ...]:
    """Return the words that mean a missing value."""
    return columns.na_values if isinstance(columns, Schema) else check_na_values(columns.na_values)


def schema_of(columns: Columns | Schema, frames: Mapping[str, pd.DataFrame], exclude: Sequence[str] = ()) -> Schema:
    """Return the schema that is given, or the one that the tables, by what they are called, agree on."""
    if isinstance(columns, Schema):
        return columns
    made = infer_schema(frames, columns, exclude)
    check_inputs(made)
    return made


def beside_schema(schema: str | Path | Schema | None, columns: Columns) -> Columns | str | Path | Schema:
    """Return the schema if there is one, which the columns that are given too must not contradict, else the columns."""
    if schema is None:
        return columns
    settled = {name: value for name, value in columns.given.items() if name not in BESIDE_SCHEMA}
    for key, value in settled.items():
        text = "is not for tables with a schema: it says what becomes of every column and group."
        raise ConfigError(text, key=key, value=value)
    if columns.given:
        _check_same(schema if isinstance(schema, Schema) else read_schema(schema), columns)
    return schema


def _check_same(schema: Schema, columns: Columns) -> None:
    """Refuse what contradicts the schema."""
    sensitive = ", ".join(rule.column for rule in schema.sensitive)
    fits = (
        ("label", columns.label in (None, schema.label), schema.label),
        ("sensitive", {rule.column for rule in columns.rules} <= {rule.column for rule in schema.sensitive}, sensitive),
        (
            "positive",
            columns.positive is None or as_text(columns.positive) in schema.classes[-1:],
            ", ".join(schema.classes[-1:]),
        ),
    )
    for key, same, known in fits:
        if not same:
            text = f"is not what the schema says: {known or 'none'}. Leave it out, or correct it."
            raise ConfigError(text, key=key, value=getattr(columns, key))


def encode_file(schema: Schema, path: str | Path | None, named: str = "files") -> Encoded:
    """Return a file's rows as numbers, none without a file; refuse with the file's name what does not fit the schema.

    named: the argument that names the file.
    """
    if path is None:
        return no_rows(schema)
    path = Path(path)
    with blaming(key=named, file=path.name):
        return schema.encode(read_table(path, schema.na_values))


def no_rows(schema: Schema) -> Encoded:
    """What a table without rows becomes: everything that a schema says of the numbers."""
    return schema.encode(pd.DataFrame({name: [] for name in schema.column_names}))


def known_groups(groups: Mapping[str, str] | None, silos: Sequence[str]) -> np.ndarray | None:
    """Each silo's group as a code, in the order of the groups' names."""
    if groups is None:
        return None
    for silo in silos:
        if silo not in groups:
            text = f"has no group for the client {silo!r}: name one for every client."
            raise ConfigError(text, key="client_groups", value=silo)
    for silo in groups:
        if silo not in silos:
            raise unknown_name("client in client_groups", silo, silos, key="client_groups")
    known = sorted({str(group) for group in groups.values()})
    return np.array([known.index(str(groups[silo])) for silo in silos], dtype=np.int64)
