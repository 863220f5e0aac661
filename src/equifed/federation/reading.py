"""Reading a table from a file that was received, of which no more is unpacked than a table of that size may have.

A megabyte of packed zeros is a gigabyte, and a text that a dictionary repeats takes more than the file says. What a
file would become is added up first, piece by piece, and refused as soon as it is too much.
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from equifed.data.missing import padded_words, with_missing
from equifed.errors import DataError
from equifed.words import clean

if TYPE_CHECKING:
    import pyarrow as pa

MOST_BYTES = 2**33
"""Of a silo's table in memory."""
MOST_RATIO = 100
"""How much larger than its file a table may be,"""
SMALL = 2**28
"""unless it has no more bytes than this."""
MOST_COLUMNS = 2**17
CELL = 8
"""Bytes of a number; the reader of text files takes about as much again."""
BLOCK = 2**20
ROWS = 2**14
"""Rows that are looked at in one piece."""
SUFFIXES = (".csv", ".csv.gz", ".parquet", ".arrow", ".feather")
Kind = Literal["text", "number", "any"]
"""What the values of a column are: texts, numbers or truth values, or either."""
EXPECTED: dict[Kind, str] = {"text": "texts", "number": "numbers", "any": "texts or numbers"}
_ARROW, _OLD_FEATHER = b"ARROW1", b"FEA1"


def read_table(path: Path, na_values: Sequence[str] = ()) -> pd.DataFrame:
    """Return a silo's file as it is, with null where a cell is empty or holds one of the words `na_values`."""
    existing(path)
    text = path.name.endswith((".csv", ".csv.gz"))
    try:
        if path.suffix == ".parquet":
            check_parquet(path, path.name)
            frame = pd.read_parquet(path)
        elif path.suffix in (".arrow", ".feather"):
            frame = _read_arrow(path)
        elif text:
            _check_text(path)
            frame = _read_text(path, na_values)
        else:
            raise DataError(f"Silo files must be {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}.", file=path.name)
        # the index is dropped unread: it may hold people's names
        return with_missing(with_text_names(frame).reset_index(drop=True), na_values)
    except DataError:
        raise
    except UnicodeDecodeError as error:
        what = f"A column of texts has a value that is not UTF-8 ({clean(error)}). Write the file with texts in UTF-8."
        raise DataError(_about_encoding(path) if text else what, file=path.name) from None
    except Exception as error:
        raise DataError(f"The file cannot be read: {clean(error)}", file=path.name) from error


def with_text_names(frame: pd.DataFrame) -> pd.DataFrame:
    """The same table with the columns' names as text."""
    return frame.set_axis([str(column) for column in frame.columns], axis=1)


def existing(path: str | Path) -> Path:
    path = Path(path)
    if not os.path.isfile(path):  # which is also said of a name that no file can have
        what = "This is no ordinary file." if os.path.exists(path) else "There is no such file."
        raise DataError(what, file=path)
    return path


class _Budget:
    """How large a table may become, spent piece by piece."""

    def __init__(self, name: str, size: int) -> None:
        """size: of the file, in bytes."""
        self._name, self._spent = name, 0
        self._most = min(MOST_BYTES, max(SMALL, MOST_RATIO * size))

    def spend(self, count: int) -> None:
        self._spent += count
        if self._spent > self._most:
            raise DataError(
                f"The table is too large, or suspiciously well packed: at most {MOST_BYTES / 2**30:.0f} GiB are read, "
                f"and at most {MOST_RATIO} times the size of the file. Leave out columns, or unpack the file.",
                file=self._name,
            )


# -- text --------------------------------------------------------------------------------------------------------------


def _opened(path: Path) -> io.BufferedIOBase:
    """A text file, unpacked where it is packed."""
    return gzip.GzipFile(path) if path.suffix == ".gz" else open(path, "rb")


def _check_text(path: Path) -> None:
    """Refuse a file that would fill the memory, and names that stand there twice, of which the reader would rename the
    second."""
    budget = _Budget(path.name, path.stat().st_size)
    with _opened(path) as file:
        while block := file.read(BLOCK):
            cells, lines = block.count(b","), block.count(b"\n")
            if cells > MOST_COLUMNS * (lines + 1):
                raise DataError(f"A line has more than {MOST_COLUMNS:,} columns.", file=path.name)
            if path.suffix == ".gz":
                budget.spend(len(block) + 2 * CELL * (cells + lines))
    with _opened(path) as file:
        header = pd.read_csv(file, header=None, nrows=1, dtype=str, keep_default_na=False)
    names = [name for name in header.to_numpy().reshape(-1).tolist() if name]
    twice = next((name for name, count in pd.Series(names, dtype=object).value_counts().items() if count > 1), None)
    if twice is not None:
        text = f"the column appears {names.count(twice)} times in the file. Keep one."
        raise DataError(text, file=path.name, column=str(twice))


def _read_text(path: Path, na_values: Sequence[str]) -> pd.DataFrame:
    """Return the table. What is missing is passed to the parser, which takes a column for numbers only where all other
    cells are."""

    def parsed(missing: Sequence[str]) -> pd.DataFrame:
        with _opened(path) as file:  # whole: in pieces, a code might be a number in one and text in another
            return pd.read_csv(file, keep_default_na=False, na_values=["", *missing], low_memory=False)

    frame = parsed(na_values)
    padded = padded_words(frame, na_values)
    return parsed([*na_values, *padded]) if padded else frame


def _about_encoding(path: Path) -> str:
    """Return what is wrong with a text file that is not UTF-8: in which line, and how to convert it."""
    with _opened(path) as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            what, saved = "The file is UTF-16, not UTF-8.", "UTF-16"
        else:
            file.seek(0)
            wrong = ((number, _first_bad(line)) for number, line in enumerate(file, 1))
            number, byte = next((number, byte) for number, byte in wrong if byte is not None)
            what = f"Line {number:,} is not UTF-8 (byte 0x{byte:02x}): was the file saved as Latin-1 (Windows-1252)?"
            saved = "WINDOWS-1252"
    return f"{what} Save it as UTF-8, or convert it: iconv -f {saved} -t UTF-8 old.csv > new.csv"


def _first_bad(line: bytes) -> int | None:
    """Return the first byte that is not UTF-8."""
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        return line[error.start]
    return None


# -- Parquet and Arrow -------------------------------------------------------------------------------------------------


def check_parquet(source: Path | bytes, name: str, columns: Mapping[str, Kind] | None = None) -> None:
    """Refuse a Parquet file that would fill the memory, before its rows are read; name: for errors. columns: those that
    the table must have, unless it has no rows, and what they hold."""
    from pyarrow import BufferReader, parquet, types

    def opened() -> Any:
        return source if isinstance(source, Path) else BufferReader(source)

    size = source.stat().st_size if isinstance(source, Path) else len(source)
    about = parquet.read_metadata(opened())
    _check_width(name, about.num_columns)
    schema = about.schema.to_arrow_schema()
    if columns is not None and about.num_rows:
        _check_columns(name, schema, columns)
    stated = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
    _Budget(name, size).spend(max(stated, CELL * about.num_rows * about.num_columns))
    texts = [field.name for field in schema if _is_text(field.type) or types.is_dictionary(field.type)]
    with parquet.ParquetFile(opened(), read_dictionary=texts, pre_buffer=False) as file:
        _check_batches(_Budget(name, size), file.iter_batches(batch_size=ROWS))


def _check_columns(name: str, schema: pa.Schema, columns: Mapping[str, Kind]) -> None:
    from pyarrow import types

    for column, kind in columns.items():
        if column not in schema.names:
            raise DataError("the table has no such column.", file=name, column=column)
        found = schema.field(column).type
        found = found.value_type if types.is_dictionary(found) else found
        number = types.is_integer(found) or types.is_floating(found) or types.is_boolean(found)
        fits = {"text": _is_text(found), "number": number, "any": _is_text(found) or number}[kind]
        if not fits and not types.is_null(found):
            raise DataError(f"it holds {found}, and {EXPECTED[kind]} are expected.", file=name, column=column)


def _read_arrow(path: Path) -> pd.DataFrame:
    """A file or a stream of Arrow's record batches; Feather is the former."""
    import pyarrow as pa

    with pa.OSFile(str(path)) as file:  # no memory map: the rows must not change, or go, with the file
        start = bytes(file.read(8))
        if start.startswith(_OLD_FEATHER):
            text = "This is a Feather file of version 1. Write it again as version 2, or as Parquet."
            raise DataError(text, file=path.name)
        whole = start.startswith(_ARROW)
        file.seek(8 if whole else 0)
        budget = _Budget(path.name, path.stat().st_size)
        for message in _messages(file):
            budget.spend(_unpacked(message))
        file.seek(0)
        reader = pa.ipc.open_file(file) if whole else pa.ipc.open_stream(file)
        _check_width(path.name, len(reader.schema))
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)] if whole else list(reader)
        for batch in batches:
            batch.validate(full=True)  # offsets that point anywhere would end the process
        _check_batches(_Budget(path.name, path.stat().st_size), batches)
        return pa.Table.from_batches(batches, reader.schema).to_pandas()


def _check_width(name: str, columns: int) -> None:
    if columns > MOST_COLUMNS:
        raise DataError(f"The file has {columns:,} columns, more than {MOST_COLUMNS:,}.", file=name)


def _check_batches(budget: _Budget, batches: Iterable[pa.RecordBatch]) -> None:
    """Add up what the batches are in memory, where no dictionary spares the repetitions of a text."""
    for batch in batches:
        for column in batch.columns:
            budget.spend(max(_size(column), CELL * len(column)))


def _size(column: pa.Array) -> int:
    import pyarrow.compute as pc
    from pyarrow import types

    if types.is_dictionary(column.type) and _is_text(column.type.value_type):
        lengths = pc.binary_length(column.dictionary)
        return int(pc.sum(pc.take(lengths, column.indices)).as_py() or 0)
    return int(column.nbytes)


def _is_text(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    )


def _messages(file: pa.NativeFile) -> Iterator[pa.Message]:
    """What an Arrow file consists of, not yet unpacked."""
    import pyarrow as pa

    while True:
        try:
            yield pa.ipc.read_message(file)
        except EOFError:
            return


def _unpacked(message: pa.Message) -> int:
    """Bytes of the message's buffers when they are unpacked: by Arrow's format, every packed one begins with them."""
    metadata, body = memoryview(message.metadata), message.body
    table = _Table.root(metadata).table(2)  # Message.header
    if message.type == "dictionary":
        table = table.table(1) if table else None  # DictionaryBatch.data
    if table is None or body is None or message.type not in ("record batch", "dictionary"):
        return 0
    if table.table(3) is None:  # RecordBatch.compression
        return int(body.size)
    total, packed = 0, memoryview(body)
    for offset, length in table.pairs(2):  # RecordBatch.buffers
        if length >= 8:
            stated = struct.unpack_from("<q", packed, offset)[0]
            total += length if stated < 0 else stated  # -1: this one is not packed
    return total


class _Table:
    """A table of a flat buffer: Arrow's description of a message."""

    def __init__(self, buffer: memoryview, at: int) -> None:
        self._buffer, self._at = buffer, at

    @classmethod
    def root(cls, buffer: memoryview) -> _Table:
        return cls(buffer, struct.unpack_from("<I", buffer, 0)[0])

    def _field(self, number: int) -> int | None:
        """Where a field is; None: it is not given."""
        offsets = self._at - struct.unpack_from("<i", self._buffer, self._at)[0]
        if 4 + 2 * number >= struct.unpack_from("<H", self._buffer, offsets)[0]:
            return None
        offset = struct.unpack_from("<H", self._buffer, offsets + 4 + 2 * number)[0]
        return self._at + offset if offset else None

    def table(self, number: int) -> _Table | None:
        at = self._field(number)
        return None if at is None else _Table(self._buffer, at + struct.unpack_from("<I", self._buffer, at)[0])

    def pairs(self, number: int) -> list[tuple[int, int]]:
        """A vector of two 64-bit numbers each."""
        at = self._field(number)
        if at is None:
            return []
        at += struct.unpack_from("<I", self._buffer, at)[0]
        count = struct.unpack_from("<I", self._buffer, at)[0]
        return [struct.unpack_from("<qq", self._buffer, at + 4 + 16 * i) for i in range(count)]
