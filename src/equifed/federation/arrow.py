"""Tables of other libraries as data frames, and Arrow files, which are looked at before they are unpacked."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from equifed.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC = b"ARROW1"
"""What a file of the Arrow format begins with; a stream has no such word."""
DICTIONARY, ROWS = 2, 3
"""The kinds of messages that hold buffers, by their number in Arrow's format."""


class TooLarge(Exception):
    """The table would need more memory than a table may."""


def frame_of(table: Any) -> pd.DataFrame:
    """A data frame of a table of pandas, Arrow, Hugging Face or another library that can make one; columns are named by
    text. Of what is not pandas, the index is dropped, which may hold people's names."""
    if isinstance(table, pd.DataFrame):
        return _with_text_names(table)
    if isinstance(table, Mapping):
        names = ", ".join(repr(str(name)) for name in list(table)[:5])
        raise ConfigError(
            f"A table is needed, got {type(table).__name__} with the entries {names}. Choose one of them, such as "
            f"table[{next(iter(table), '...')!r}]; for one table per client there is Federation.from_frames."
        )
    if not hasattr(table, "to_pandas"):
        raise ConfigError(
            f"A table is needed: a data frame, a pyarrow.Table or a datasets.Dataset, got {type(table).__name__}."
        )
    frame = _with_text_names(table.to_pandas()).reset_index(drop=True)
    for name, feature in _classes(table):
        codes = frame[name]
        known = codes[codes.notna() & (codes >= 0)].astype(int)  # Hugging Face writes -1 where there is no label
        frame[name] = pd.Series(feature.int2str(known.tolist()), index=known.index, dtype=object)
    return frame


def _classes(table: Any) -> Iterator[tuple[str, Any]]:
    """The columns of a Hugging Face data set whose numbers stand for names."""
    features = getattr(table, "features", None)
    for name, feature in features.items() if isinstance(features, Mapping) else ():
        if hasattr(feature, "int2str"):
            yield str(name), feature


def _with_text_names(frame: pd.DataFrame) -> pd.DataFrame:
    """The same table with the columns' names as text."""
    return frame.set_axis([str(column) for column in frame.columns], axis=1)


# -- files -------------------------------------------------------------------------------------------------------------


def read_arrow(path: Path, most: int) -> pa.Table:
    """An Arrow file (Feather) or stream (as Hugging Face keeps them); refused before it is unpacked if that takes more
    than so many bytes.

    A file is a stream between its magic word and an index. It is read as that stream, so that what was looked at is
    what is read.
    """
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        content = source.read_buffer()
        stream = content.slice(8) if content[: len(MAGIC)].to_pybytes() == MAGIC else content
        reader = pa.ipc.MessageReader.open_stream(stream)
        cells = size = 0
        for message in reader:
            rows, unpacked = _size(message)
            cells, size = cells + rows, size + unpacked
            if max(size, 8 * cells) > most:
                raise TooLarge
        with pa.ipc.open_stream(stream) as whole:
            if 8 * cells * len(whole.schema) > most:
                raise TooLarge
            return whole.read_all()


def _size(message: pa.Message) -> tuple[int, int]:
    """(rows, bytes when unpacked) of a message, by the lengths that Arrow writes before every packed buffer."""
    root = _Table(message.metadata.to_pybytes())
    kind, header = root.number(1, "B"), root.table(2)
    if kind == DICTIONARY:
        header = header.table(1)
    elif kind != ROWS:
        return 0, 0
    packed = header.has(3)
    size = 0
    for offset, length in header.pairs(2):
        if packed and length >= 8:
            (unpacked,) = struct.unpack("<q", message.body.slice(offset, 8).to_pybytes())
            size += length if unpacked < 0 else unpacked
        else:
            size += length
    return header.number(0, "q"), size


class _Table:
    """As much of a FlatBuffers table as is needed to look into the head of an Arrow message."""

    def __init__(self, content: bytes, at: int | None = None) -> None:
        self._content = content
        self._at = self._read("I", 0) if at is None else at
        self._fields = self._at - self._read("i", self._at)

    def _read(self, kind: str, at: int) -> int:
        if at < 0:
            raise ValueError("the head of an Arrow message points outside of it")
        return int(struct.unpack_from(f"<{kind}", self._content, at)[0])

    def _place(self, field: int) -> int:
        """Where the field is; 0 where it is left out."""
        entry = 4 + 2 * field
        offset = self._read("H", self._fields + entry) if entry < self._read("H", self._fields) else 0
        return self._at + offset if offset else 0

    def has(self, field: int) -> bool:
        return self._place(field) > 0

    def number(self, field: int, kind: str) -> int:
        place = self._place(field)
        return self._read(kind, place) if place else 0

    def table(self, field: int) -> _Table:
        place = self._place(field)
        return _Table(self._content, place + self._read("I", place))

    def pairs(self, field: int) -> Iterator[tuple[int, int]]:
        """A list of pairs of 64-bit numbers."""
        place = self._place(field)
        if place:
            start = place + self._read("I", place)
            for number in range(self._read("I", start)):
                at = start + 4 + 16 * number
                yield self._read("q", at), self._read("q", at + 8)
