"""Parquet and Arrow files of any size, made into one file that can be mapped (`mapped.py`): once, piece by piece."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from equifed.data import Columns, Schema, Sensitive
from equifed.data.choose import require_columns
from equifed.data.encode import check_complete
from equifed.data.missing import with_missing
from equifed.errors import ConfigError, DataError, DiskError, EquifedError, EquifedWarning, blaming
from equifed.federation.mapped import ABOUT, CLIENTS, FORMAT, ROWS, Mapped, MappedFile, cell_counts, layout
from equifed.federation.reading import existing, with_text_names
from equifed.federation.tables import columns_given, schema_of
from equifed.files import blake2, checksum, checksum_of, plain, read_sealed, to_json, write_sealed
from equifed.partition.base import as_text
from equifed.words import clean

SUFFIXES = (".parquet", ".arrow", ".feather")
PIECE = 2**16
"""Rows that are in memory at once."""
SAMPLES = 4
"""Pieces that a schema is read off."""
MOST_VALUES = 10_000
"""Values up to which those of a column are looked for in all rows; one with more is no category."""
BUCKET = 2**27
"""Bytes of rows that are sorted at once."""
ASKED = (
    *("features", "drop", "dates", "missing", "min_count", "min_group", "na_values", "label", "sensitive", "positive"),
)
"""Columns' fields that a prepared folder has always been named by, whether they were given or not."""
ROW = "\0row"
"""A column of no table: the rows' numbers."""


@dataclass(frozen=True)
class Source:
    """The files, and how their columns are read."""

    files: tuple[Path, ...]
    client: str
    columns: Columns | str | Path | Schema

    @classmethod
    def of(cls, mapped: Mapped, columns: Columns | str | Path | Schema) -> Source:
        if not isinstance(columns, str | Path):  # a schema's file is a part of what a folder is recognised by
            columns = columns_given(columns)
        if isinstance(columns, Columns):
            columns.check_mapped()
        files = mapped.files
        paths = [files] if isinstance(files, str | Path) else list(files)
        found: list[Path] = []
        for path in map(Path, paths):
            if path.is_dir():
                inside = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES and each.name[0] != ".")
                if not inside:
                    raise DataError(f"The folder has no file that ends in {', '.join(SUFFIXES)}.", file=path)
                found += inside
            elif existing(path).suffix not in SUFFIXES:
                raise DataError(f"Rows are mapped from files that end in {', '.join(SUFFIXES)}.", file=path.name)
            else:
                found.append(path)
        if not found:
            raise DataError("No file was given.", key="tables")
        return cls(tuple(found), mapped.client, columns)

    @property
    def place(self) -> Path:
        """The file, or the folder that has the files."""
        return Path(os.path.abspath(self.files[0] if len(self.files) == 1 else self.files[0].parent))

    @property
    def default_cache(self) -> Path:
        """Beside that place: one folder for each question, so that two do not take it from each other. Files that have
        changed since get no other folder, which would leave the old rows on the disk."""
        question = {"files": [path.name for path in self.files], "asked": self.request()["asked"]}
        return self.place.with_name(f"{self.place.name}.{checksum(to_json(question))[:8]}.mapped")

    def request(self) -> dict[str, Any]:
        """What tells whether a prepared folder was made of the same: the files as they are, and what was asked for."""
        stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in self.files]
        columns = self.columns if isinstance(self.columns, Columns) else Columns()
        schema = None if columns is self.columns else self.columns
        if isinstance(schema, str | Path):
            schema = existing(schema).read_text(encoding="utf-8")
        # in the order and with the defaults by which earlier versions named their folders
        usual = ("meaning", "task", "encoding", "scaling") if schema is None else ()
        asked = {"client": self.client, "schema": schema, **dict.fromkeys(ASKED)}
        asked |= {name: getattr(columns, name) for name in usual} | columns.given
        request: dict[str, Any] = plain({"files": stats, "asked": {key: _written(asked[key]) for key in asked}})
        return request

    def pieces(self, columns: Sequence[str] | None = None) -> Iterator[tuple[Path, pd.DataFrame]]:
        """The rows, some at a time; they are numbered from 0 over all files."""
        begin = 0
        for path in self.files:
            with _readable(path):
                for batch in _batches(path, columns):
                    frame = with_text_names(batch.to_pandas())
                    yield path, frame.set_axis(pd.RangeIndex(begin, begin + len(frame)), axis=0)
                    begin += len(frame)

    def check_columns(self, columns: Sequence[str]) -> None:
        """Refuse files without the columns, before the first row is read."""
        for path in self.files:
            with blaming(file=path.name):
                require_columns(pd.DataFrame(columns=_columns(path)), list(dict.fromkeys([self.client, *columns])))

    def read_schema(self) -> Schema:
        """The schema that is given, or the one of a sample of the rows, in which every label, group and category of all
        rows occurs."""
        columns = columns_given(self.columns)
        if isinstance(columns, Schema):
            self.check_columns(columns.column_names)
            return columns
        named = [str(columns.label), *(rule.column for rule in columns.rules), *map(str, columns.features or ())]
        self.check_columns(named)
        pieces = list(self._sample())
        if not pieces:
            raise DataError("The files have no rows.", file=self.files[0].name)
        sample = pd.concat(pieces, ignore_index=True)
        values = self._values(sample, columns)
        every = sample.iloc[np.zeros(len(values), int)].assign(
            **{str(name): values[name].to_numpy() for name in values}
        )
        both = pd.concat([sample, every], ignore_index=True)
        with blaming(file=self.files[0].name):
            return schema_of(replace(columns, min_count=0), {"": both}, exclude=(self.client,))

    def _sample(self) -> Iterator[pd.DataFrame]:
        """Rows from places all over the files."""
        places = [(path, group) for path in self.files for group in range(_groups(path))]
        for place in np.unique(np.linspace(0, len(places) - 1, SAMPLES).astype(int)) if places else ():
            path, group = places[place]
            with _readable(path):
                for batch in itertools.islice(_batches(path, None, [group]), 1):
                    yield with_text_names(batch.to_pandas())

    def _values(self, sample: pd.DataFrame, columns: Columns) -> pd.DataFrame:
        """Rows in which every label, every group and every category occurs, of these columns alone."""
        label, sensitive = str(columns.label), [rule.column for rule in columns.rules]
        texts = [str(name) for name in sample if not pd.api.types.is_numeric_dtype(sample[name])]
        apart = [[label] if columns.task == "classification" else [], sensitive]
        apart += [[name] for name in texts if name not in (self.client, label)]
        apart = [names for names in apart if names]
        needed = list(dict.fromkeys(name for names in apart for name in names))
        found, seen = [], [set[Any]() for _ in apart]
        for _, frame in self.pieces(needed):
            for names, known in zip(apart, seen, strict=True):
                different = frame.drop_duplicates(names)
                keys = [tuple(row) for row in different[names].itertuples(index=False)]
                new = [key not in known for key in keys]
                if any(new) and len(known) < MOST_VALUES:
                    known |= set(keys)
                    found.append(different[new])
        return pd.concat(found) if found else sample.iloc[:0][needed]


def _written(value: Any) -> Any:
    if isinstance(value, Schema | Sensitive):
        return value.model_dump_json()
    if isinstance(value, list | tuple):
        return [_written(each) for each in value]
    return value


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except EquifedError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"The file cannot be read: {clean(error)}", file=path.name) from error


def _columns(path: Path) -> list[str]:
    with _readable(path):
        if path.suffix == ".parquet":
            return [str(name) for name in parquet.read_schema(path).names]
        with pa.memory_map(str(path)) as file:
            return [str(name) for name in _opened(file).schema.names]


def _groups(path: Path) -> int:
    """Groups of rows that the file consists of, and which can be read without those before them."""
    with _readable(path):
        if path.suffix == ".parquet":
            return int(parquet.read_metadata(path).num_row_groups)
        with pa.memory_map(str(path)) as file:
            return int(getattr(_opened(file), "num_record_batches", 1))


def _opened(file: Any) -> Any:
    """A file of Arrow's record batches, or a stream of them."""
    whole = bytes(file.read(6)) == b"ARROW1"
    file.seek(0)
    return pa.ipc.open_file(file) if whole else pa.ipc.open_stream(file)


def _batches(
    path: Path, columns: Sequence[str] | None, groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of these groups, or of all, at most `PIECE` at a time."""
    wanted = None if columns is None else list(columns)
    if path.suffix == ".parquet":
        with parquet.ParquetFile(path, pre_buffer=False) as table:
            yield from table.iter_batches(batch_size=PIECE, columns=wanted, row_groups=groups)
        return
    with pa.memory_map(str(path)) as file:
        reader = _opened(file)
        count = getattr(reader, "num_record_batches", None)
        for batch in reader if count is None else map(reader.get_batch, groups or range(count)):
            batch.validate(full=True)  # offsets that point anywhere would end the process
            chosen = batch if wanted is None else batch.select(wanted)
            for begin in range(0, len(chosen), PIECE):
                yield chosen.slice(begin, PIECE)


# -- the prepared folder -----------------------------------------------------------------------------------------------


def prepared(source: Source, cache: Path) -> MappedFile:
    """The folder `cache` with these rows: as it is, if it was made of the same files in the same way, or made anew."""
    request = source.request()
    if cache.exists() and not cache.is_dir():
        raise ConfigError(f"must be a folder, and {str(cache)!r} is a file.", key="cache", value=cache)
    if (cache / ABOUT).exists():
        try:
            about = read_sealed(cache / ABOUT)
            if about.get("made_from") == request and about.get("format") == FORMAT:
                return MappedFile(cache)
        except (OSError, ValueError) as error:
            what = error.text if isinstance(error, DataError) else f"What it says of itself is not true: {error}."
            warnings.warn(f"{cache}: {what} That is done now.", EquifedWarning, stacklevel=3)
    elif cache.is_dir() and any(cache.iterdir()):
        text = f"{str(cache)!r} has files that are no prepared rows. Name a new folder."
        raise ConfigError(text, key="cache", value=cache)
    schema = source.read_schema()
    temporary = cache.with_name(f".{cache.name}.{secrets.token_hex(6)}")
    try:
        temporary.mkdir(parents=True)
        _write(source, schema, request, temporary)
        if cache.exists():
            shutil.rmtree(cache)
        temporary.rename(cache)
    except OSError as error:
        if isinstance(error, EquifedError):
            raise
        raise DiskError(f"The rows could not be prepared in {cache}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return MappedFile(cache)


def _write(source: Source, schema: Schema, request: dict[str, Any], folder: Path) -> None:
    owners = _owners(source, schema)
    needed = list(dict.fromkeys([*schema.column_names]))
    sizes, moments = np.zeros(len(owners.names), np.int64), _Moments()
    cells: Any = 0
    dropped, merged = 0, dict[str, int]()
    with _Rows(folder, owners) as rows:
        for path, frame in source.pieces(needed):
            if not len(frame):
                continue
            with blaming(file=path.name):
                numbered = frame.assign(**{ROW: frame.index.to_numpy()})
                encoded = schema.encode(numbered, columns=[ROW])
            clients = owners.of(encoded.columns[ROW])
            attributes = 0 if encoded.attribute is None else encoded.attribute.shape[1]
            block = np.empty(len(encoded.y), layout(encoded.x.shape[1], attributes, encoded.task == "regression"))
            block["x"], block["y"], block["s"] = encoded.x, encoded.y, encoded.s
            if encoded.attribute is not None:
                block["attribute"] = encoded.attribute
            rows.add(clients, block)
            sizes += np.bincount(clients, minlength=len(sizes))
            cells = cells + cell_counts(encoded.y, encoded.s, len(schema.groups), max(len(encoded.class_names), 1))
            moments.add(encoded.x[:, encoded.scale_columns].astype(np.float64))
            dropped += encoded.dropped
            for name, count in encoded.merged.items():
                merged[name] = merged.get(name, 0) + count
    if not sizes.sum():
        raise DataError("The files have no row that can be used.", file=source.files[0].name)
    clients = pa.table({"client": owners.names, "start": owners.starts(sizes), "rows": sizes})
    with pa.ipc.new_file(str(folder / CLIENTS), clients.schema) as file:
        file.write_table(clients)
    about = {
        "format": FORMAT,
        "made_from": request,
        "rows": int(sizes.sum()),
        "features": encoded.feature_names,
        "classes": encoded.class_names,
        "groups": encoded.group_names,
        "task": encoded.task,
        "attributes": attributes,
        "scaled": encoded.scale_columns,
        "cells": cells,
        "moments": moments._asdict(),
        "merged": merged,
        "dropped": dropped,
        "schema": schema.to_json(),
        "digest": rows.digest.hexdigest(),
        "clients_checksum": checksum_of(folder / CLIENTS),
    }
    write_sealed(folder / ABOUT, about)


class _Owners(NamedTuple):
    """Whose rows these are, as runs of rows of one client."""

    names: pa.Array
    """All clients, in order."""
    clients: np.ndarray
    """The client of each run."""
    ends: np.ndarray
    """Where each run ends."""

    @property
    def contiguous(self) -> bool:
        """Whether a client's rows lie together already."""
        return len(self.clients) == len(self.names)

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The clients of these rows."""
        return self.clients[np.searchsorted(self.ends, rows, side="right")]

    def starts(self, sizes: np.ndarray) -> np.ndarray:
        """Where each client's rows start in the prepared file, which has so many rows of each."""
        order = self.clients if self.contiguous else np.arange(len(sizes))
        starts = np.empty(len(sizes), np.int64)
        starts[order] = np.cumsum(sizes[order]) - sizes[order]
        return starts

    def buckets(self, row_bytes: int) -> np.ndarray:
        """A number for each client: clients of one have no more rows than can be sorted at once, or are alone."""
        counts = np.bincount(self.clients, np.diff(self.ends, prepend=0), minlength=len(self.names))
        numbers: np.ndarray = (np.cumsum(counts) * row_bytes // BUCKET).astype(np.int64)
        return numbers


def _owners(source: Source, schema: Schema) -> _Owners:
    names, lengths = [], []
    for path, frame in source.pieces([source.client]):
        if not len(frame):
            continue
        frame = with_missing(frame, schema.na_values)
        with blaming(file=path.name):
            check_complete(frame, [source.client])
        codes, values = pd.factorize(frame[source.client])
        starts = np.concatenate([[0], np.flatnonzero(np.diff(codes)) + 1])
        texts = np.array([as_text(value) for value in values], dtype=object)
        names.append(pa.array(texts[codes[starts]], pa.string()))
        lengths.append(np.diff(np.append(starts, len(codes))))
    if not names:
        raise DataError("The files have no rows.", file=source.files[0].name)
    runs = pa.concat_arrays(names)
    last = np.append(pc.not_equal(runs[1:], runs[:-1]).to_numpy(zero_copy_only=False), True)  # of those of one client
    runs, ends = runs.filter(pa.array(last)), np.cumsum(np.concatenate(lengths))[last]
    known = pc.unique(runs)
    known = known.take(pc.sort_indices(known))
    return _Owners(known, pc.index_in(runs, value_set=known).to_numpy().astype(np.int64), ends)


class _Rows:
    """The file of rows as it is written: at once where a client's rows lie together, else by way of files that hold the
    rows of some clients each, and are small enough to be sorted."""

    def __init__(self, folder: Path, owners: _Owners) -> None:
        self._folder, self._owners = folder, owners
        self._buckets: np.ndarray | None = None
        self._numbers: set[int] = set()
        self._row: np.dtype[Any] | None = None
        self.digest = blake2()

    def __enter__(self) -> _Rows:
        self._file = open(self._folder / ROWS, "wb")
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._file as file:
            if kind is not None:
                return
            for number in sorted(self._numbers):
                some = np.fromfile(self._bucket(number), self._row)
                self._append(some["row"][np.argsort(some["client"], kind="stable")])
                self._bucket(number).unlink()
            file.flush()
            os.fsync(file.fileno())

    def add(self, clients: np.ndarray, block: np.ndarray) -> None:
        if self._owners.contiguous:
            self._append(block)
            return
        if self._buckets is None:
            self._buckets = self._owners.buckets(block.dtype.itemsize)
            self._row = np.dtype([("client", np.int64), ("row", block.dtype)])
        own = np.empty(len(block), self._row)
        own["client"], own["row"] = clients, block
        where = self._buckets[clients]
        for number in np.unique(where).tolist():
            self._numbers.add(number)
            with open(self._bucket(number), "ab") as file:
                own[where == number].tofile(file)

    def _bucket(self, number: int) -> Path:
        return self._folder / f"bucket-{number}"

    def _append(self, block: np.ndarray) -> None:
        content = np.ascontiguousarray(block).view(np.uint8).data
        self.digest.update(content)
        self._file.write(content)


class _Moments:
    """Rows, mean and sum of squared deviations of columns, added up piece by piece."""

    def __init__(self) -> None:
        self.rows, self.mean, self.squares = 0, np.zeros(0), np.zeros(0)

    def add(self, values: np.ndarray) -> None:
        """values: [rows, columns], which are changed."""
        if not len(values):  # all rows of the piece were dropped
            return
        rows, mean = len(values), values.mean(0)
        values -= mean
        squares = np.einsum("ij,ij->j", values, values)
        if not self.rows:
            self.rows, self.mean, self.squares = rows, mean, squares
            return
        both, apart = self.rows + rows, mean - self.mean
        self.mean = self.mean + apart * rows / both
        self.squares = self.squares + squares + np.square(apart) * self.rows * rows / both
        self.rows = both

    def _asdict(self) -> dict[str, Any]:
        return {"rows": self.rows, "mean": self.mean, "squares": self.squares}


def scaling_without(file: MappedFile, held: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Shift and factor of each input, fitted on the rows of the file without those of `held` [n, inputs]."""
    from equifed.federation.split import shift_and_factor

    columns = np.array(file.about["scaled"], dtype=bool)
    if not columns.any():
        return None
    rows, mean, squares = (np.asarray(file.about["moments"][name]) for name in ("rows", "mean", "squares"))
    gone = held[:, columns].astype(np.float64)
    if len(gone):
        left, away = rows - len(gone), gone.mean(0)
        kept = mean + (mean - away) * len(gone) / left
        squares = squares - np.square(gone - away).sum(0) - np.square(kept - away) * left * len(gone) / rows
        rows, mean = left, kept
    deviation = np.sqrt(np.maximum(squares, 0) / rows)
    # less than a 32-bit number can tell apart is rounding, of a column that is constant
    deviation[deviation <= np.finfo(np.float32).eps * np.abs(mean)] = 0
    return shift_and_factor(mean, deviation, columns)
