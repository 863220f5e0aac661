"""Tables that become a federation's rows: a data frame, or one file per silo."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from equifed.data import Encoded, Schema, Sensitive, Summary, agree, summarise
from equifed.data.encode import check_complete
from equifed.data.missing import check_na_values
from equifed.errors import ConfigError, DataError, blaming, unknown_name
from equifed.federation.frames import frame_of
from equifed.federation.reading import SUFFIXES, existing, read_table
from equifed.federation.split import AnyPartitioner, blaming_partition
from equifed.files import read_regular
from equifed.partition.base import as_text, client_columns_of, columns_of
from equifed.words import quoted

AGREED = frozenset(inspect.signature(agree).parameters) - {"summaries"}
"""The options that silos need not know to summarise their tables."""
MOST_SCHEMA = 2**24
"""Bytes of a schema or summary."""


def encode_frame(
    table: Any,
    partition: AnyPartitioner,
    schema: str | Path | Schema | None,
    settled: Mapping[str, Any],
    **options: Any,
) -> Encoded:
    """A table as numbers, with the columns that the partitioner looks at. For the rest see `schema_of`."""
    schema = given_schema(schema)
    frame, columns = frame_of(table), columns_of(partition)
    for column in columns:
        with blaming_partition(partition):
            if column not in frame.columns:
                raise unknown_name("column to partition by", column, ["label", "group", *frame.columns])
    check_complete(frame, columns, na_values_of(schema, settled))
    features = settled["features"]
    if features is not None and not len(features):
        text = f"must be a list of column names with at least one, got {features!r}."
        raise ConfigError(text, key="features", value=features)
    made = schema_of(schema, {"": frame}, settled, exclude=client_columns_of(partition), **options)
    return made.encode(frame, columns=columns)


def check_inputs(schema: Schema) -> None:
    if not schema.columns:
        why = "".join(f" {quoted(each.column)}: {each.reason}." for each in schema.left_out)
        raise DataError(
            f"The table has no input column besides the label, the sensitive ones and the partition's.{why}"
        )


# -- files of silos ----------------------------------------------------------------------------------------------------


def named_paths(files: Mapping[str, str | Path] | Sequence[str | Path]) -> dict[str, Path]:
    """The silos' files by the silos' names."""
    if isinstance(files, Mapping):
        named = {str(silo): Path(path) for silo, path in files.items()}
    else:
        named = {}
        for path in map(Path, files):
            if path.stem in named:
                text = f"Two silo files are called {path.stem!r}; give names: {{'silo-a': path, ...}}."
                raise ConfigError(text, key="files")
            named[path.stem] = path
    if not named:
        raise DataError("No silo files were given.", key="files")
    return named


def files_in(folder: Path) -> list[Path]:
    """The tables of a folder; hidden files are leftovers of other programs."""
    found = (path for path in folder.iterdir() if path.name.endswith(SUFFIXES) and not path.name.startswith("."))
    return sorted(path for path in found if path.is_file())


def titles(paths: Mapping[str, Path]) -> dict[str, str]:
    """What the silos' files are called in messages: by their names, with the silo's where two have the same."""
    names = [path.name for path in paths.values()]
    return {silo: f"{path.name} of {silo}" if names.count(path.name) > 1 else path.name for silo, path in paths.items()}


Frames = Mapping[str, pd.DataFrame] | Iterable[tuple[str, pd.DataFrame]]
"""Tables and what they are called; one after another, where they need not all be in memory."""


def infer_schema(frames: Frames, **options: Any) -> Schema:
    """The schema that the silos of these files would agree on: none sees another's rows. `options`: of `Schema.infer`,
    those of `summarise` and `agree`."""
    agreed = {name: options.pop(name) for name in AGREED & options.keys()}
    options["with_classes"] = options.get("task") != "regression" or agreed.get("positive") is not None
    summaries: list[Summary] = []
    for file, frame in frames.items() if isinstance(frames, Mapping) else frames:
        with blaming(file=file):
            summaries.append(summarise(frame, name=file, **options))
    return agree(summaries, **agreed)


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


def given_schema(schema: str | Path | Schema | None) -> Schema | None:
    """Return the schema, read from its file where it is one."""
    return schema if schema is None or isinstance(schema, Schema) else read_schema(schema)


def na_values_of(schema: Schema | None, settled: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words that mean a missing value: those of the schema, or of the options that make one."""
    return check_na_values(settled.get("na_values")) if schema is None else schema.na_values


def agreed_schema(
    schema: str | Path | Schema | None, frames: Mapping[str, pd.DataFrame], settled: Mapping[str, Any], **options: Any
) -> Schema:
    """As `schema_of`, of the tables of several silos."""
    if schema is None and (options["label"] is None or options["sensitive"] is None):
        text = "Files need a schema, or the names of the label and the sensitive columns."
        raise ConfigError(text, key="schema")
    return schema_of(schema, frames, settled, **options)


def schema_of(schema: str | Path | Schema | None, frames: Frames, settled: Mapping[str, Any], **options: Any) -> Schema:
    """The schema that is given, or the one that the tables, by what they are called, agree on.

    settled: options that a schema has settled, None where they are not given; `options`: the others.
    """
    given = {key: value for key, value in settled.items() if value is not None}
    if schema is None:
        made = infer_schema(frames, **options, **given)
        check_inputs(made)
        return made
    if given:
        text = "is not for tables with a schema: it says what becomes of every column and group."
        raise ConfigError(text, key=next(iter(given)), value=next(iter(given.values())))
    found = given_schema(schema)
    assert found is not None
    _check_same(found, **options)
    return found


def _check_same(schema: Schema, *, label: Any = None, sensitive: Any = None, positive: Any = None, **_: Any) -> None:
    """Refuse what contradicts the schema."""
    named = [sensitive] if isinstance(sensitive, str | Sensitive) else sensitive or []
    columns = {rule.column if isinstance(rule, Sensitive) else str(rule) for rule in named}
    said = (
        ("label", label, label in (None, schema.label), schema.label),
        (
            "sensitive",
            sensitive,
            columns <= {rule.column for rule in schema.sensitive},
            ", ".join(rule.column for rule in schema.sensitive),
        ),
        ("positive", positive, positive is None or as_text(positive) in schema.classes[-1:], *schema.classes[-1:]),
    )
    for key, value, fits, *known in said:
        if not fits:
            text = f"is not what the schema says: {', '.join(map(str, known)) or 'none'}. Leave it out, or correct it."
            raise ConfigError(text, key=key, value=value)


def encode_file(
    schema: Schema, path: str | Path | None, frame: pd.DataFrame | None = None, named: str = "files"
) -> Encoded:
    """A file's rows as numbers, none without a file; what does not fit the schema is refused with the file's name.

    named: the argument that names the file.
    """
    if path is None:
        return no_rows(schema)
    path = Path(path)
    with blaming(key=named, file=path.name):
        return schema.encode(read_table(path, schema.na_values) if frame is None else frame)


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
