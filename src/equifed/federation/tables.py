"""Tables that become a federation's rows: a data frame, or one file per silo."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from equifed.data import Encoded, Schema, Summary, agree, summarise
from equifed.data.encode import check_complete
from equifed.errors import ConfigError, DataError, blaming, unknown_name
from equifed.federation.reading import existing, read_table, with_text_names
from equifed.federation.split import AnyPartitioner, blaming_partition
from equifed.files import read_regular
from equifed.partition.base import client_columns_of, columns_of
from equifed.words import quoted

AGREED = frozenset(inspect.signature(agree).parameters) - {"summaries"}
"""The options that silos need not know to summarise their tables."""
MOST_SCHEMA = 2**24
"""Bytes of a schema file."""


def encode_frame(
    frame: pd.DataFrame, partition: AnyPartitioner, features: Sequence[str] | None, **options: Any
) -> Encoded:
    """A frame as numbers, with the columns that the partitioner looks at; `options`: of `Schema.infer`."""
    if not isinstance(frame, pd.DataFrame):
        raise ConfigError(f"from_frame needs a pandas data frame, got {type(frame).__name__}.")
    frame = with_text_names(frame)
    columns = columns_of(partition)
    for column in columns:
        with blaming_partition(partition):
            if column not in frame.columns:
                raise unknown_name("column to partition by", column, ["label", "group", *frame.columns])
    check_complete(frame, columns)
    if features is not None and not len(features):
        text = f"must be a list of column names with at least one, got {features!r}."
        raise ConfigError(text, key="features", value=features)
    schema = Schema.infer(frame, features=features, exclude=client_columns_of(partition), **options)
    check_inputs(schema)
    return schema.encode(frame, columns=columns)


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


def infer_schema(frames: Mapping[str, pd.DataFrame], **options: Any) -> Schema:
    """The schema that the silos of these files would agree on: none sees another's rows. `options`: of `Schema.infer`,
    those of `summarise` and `agree`."""
    agreed = {name: options.pop(name) for name in AGREED & options.keys()}
    summaries: list[Summary] = []
    for file, frame in frames.items():
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
        return schema.encode(read_table(path) if frame is None else frame)


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
