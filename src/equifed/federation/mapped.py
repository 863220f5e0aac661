"""Training rows that are larger than memory: a file that is mapped, of which only the rows that are asked for are read.

`prepare.py` writes it, once, from Parquet or Arrow files. A row's numbers lie side by side and a client's rows one
after another, so that the rows of a client are one or two pages of the file.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from equifed.errors import DataError
from equifed.federation.arrays import Rows
from equifed.federation.rowsets import RowSets
from equifed.files import checksum_of, read_sealed
from equifed.partition.base import UNKNOWN

if TYPE_CHECKING:
    from equifed.data import Schema

FORMAT = "equifed-mapped-2"
ROWS, CLIENTS, ABOUT = "rows.bin", "clients.arrow", "about.json"
"""The files of a prepared folder: the rows; the clients' names, in order, with where each one's rows start and how many
they are; and what the numbers of a row are."""
PIECE = 256
"""Rows that are read before their pages are given back. The system may map up to 2 MiB for each client of them."""
SCAN = 2**16
"""Rows that are read at once when all are gone through."""


@dataclass(frozen=True)
class Mapped:
    """Files of rows that may be larger than memory, from which a round reads the rows of its clients.

    They are encoded once, piece by piece, into a folder, sorted by client where a client's rows do not lie together.
    That takes as much space as the rows are in 32-bit numbers, twice that while they are sorted. Later calls take the
    folder as it is, unless the files or what is asked for have changed.
    """

    files: str | Path | Sequence[str | Path]
    """Parquet or Arrow files: one, a folder of them, or a list."""
    client: str
    """Column that says which client holds a row. There may be millions of clients."""
    cache: str | Path | None = None
    """Folder of the encoded rows. Default: beside the files, named after them and a hash of what is asked for, with
    ".mapped"."""


class Names(Sequence[str]):
    """The clients' names, in order, without a Python object for each of a million."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        some = self._array[place] if isinstance(place, slice) else self._array[int(place)]
        found: str | list[str] = some.to_pylist() if isinstance(place, slice) else some.as_py()
        return found

    def index(self, value: object, start: int = 0, stop: int | None = None) -> int:
        place = bisect_left(self, str(value), start, len(self) if stop is None else stop)
        if place == len(self) or self[place] != value:
            raise ValueError(f"{value!r} is not among the names")
        return place

    def __contains__(self, value: object) -> bool:
        try:
            self.index(value)
        except ValueError:
            return False
        return True

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Names):
            return self is other or bool(self._array.equals(other._array))
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} names, {self[0]!r} to {self[-1]!r}>"


def layout(inputs: int, attributes: int, regression: bool) -> np.dtype[Any]:
    """What a row of the file is: x, y, s and, where there is one, the sensitive attribute as numbers."""
    attribute = [("attribute", np.float32, (attributes,))] if attributes else []
    return np.dtype(
        [("x", np.float32, (inputs,)), ("y", np.float32 if regression else np.int32), ("s", np.int32), *attribute]
    )


class MappedFile:
    """A prepared folder. Opening it reads the clients' names and sizes, and no row.

    identity: that of the rows which the folder must still have; None: whatever it has.
    """

    def __init__(self, folder: str | Path, identity: tuple[str, str] | None = None) -> None:
        import pyarrow as pa

        self.folder = Path(folder).resolve()  # a process that gets this by pickle may work elsewhere
        try:
            self.about = read_sealed(self.folder / ABOUT)
            if self.about["format"] != FORMAT:
                raise self._damaged(f"it has format {self.about['format']!r}, and this version reads {FORMAT!r}")
            if identity not in (None, self.identity):
                text = (
                    "The prepared rows are not those that this federation was made with: the folder was since made "
                    "again, of other files or with other options. Make the federation again, with a `cache` of its own."
                )
                raise DataError(text, file=self.folder)
            self.row = layout(len(self.about["features"]), self.about["attributes"], self.about["task"] == "regression")
            if checksum_of(self.folder / CLIENTS) != self.about["clients_checksum"]:
                raise self._damaged(f"{CLIENTS} does not fit its checksum")
            with pa.memory_map(str(self.folder / CLIENTS)) as source:
                table = pa.ipc.open_file(source).read_all().combine_chunks()
            with open(self.folder / ROWS, "rb") as file:
                size, expected = os.fstat(file.fileno()).st_size, self.row.itemsize * self.about["rows"]
                if size != expected:
                    raise self._damaged(f"{ROWS} has {size:,} bytes, and its rows take {expected:,}")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except DataError:
            raise
        except (OSError, ValueError, KeyError, pa.ArrowInvalid) as error:
            raise self._damaged(str(error)) from error
        self.names = Names(table.column("client").chunk(0))
        self.start, self.count = (table.column(name).chunk(0).to_numpy() for name in ("start", "rows"))
        self._rows = np.frombuffer(self._map, self.row)
        self._advise("MADV_RANDOM")

    def _damaged(self, what: str) -> DataError:
        return DataError(
            f"The prepared rows cannot be used: {what}. Remove the folder, and they are made again.", file=self.folder
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedFile, (self.folder, self.identity)

    @property
    def identity(self) -> tuple[str, str]:
        """Hashes of the rows, and of whose they are."""
        return self.about["digest"], self.about["clients_checksum"]

    def __len__(self) -> int:
        return len(self._rows)

    @cached_property
    def schema(self) -> Schema:
        """How a table became these rows."""
        from equifed.data import Schema

        return Schema.from_json(self.about["schema"])

    @property
    def is_regression(self) -> bool:
        return bool(self.about["task"] == "regression")

    def take(self, positions: np.ndarray) -> Rows:
        """These rows, in this order, copied; their pages no longer count as this process's memory."""
        found = np.empty(len(positions), self.row)
        for begin in range(0, len(positions), PIECE):
            part = slice(begin, begin + PIECE)
            found[part] = self._rows[positions[part]]
            self._advise("MADV_DONTNEED")
        return self._numbers(found)

    def scan(self) -> Iterator[Rows]:
        """All rows, piece by piece."""
        for begin in range(0, len(self), SCAN):
            yield self._numbers(self._rows[begin : begin + SCAN].copy())
            self._advise("MADV_DONTNEED")

    def _numbers(self, found: np.ndarray) -> Rows:
        attribute = found["attribute"] if self.about["attributes"] else None
        y = found["y"] if self.is_regression else found["y"].astype(np.int64)
        return Rows(found["x"], y, found["s"].astype(np.int64), attribute)

    def _advise(self, what: str) -> None:
        if hasattr(mmap, what):  # there is none of it on some systems, which then give pages back by themselves
            self._map.madvise(getattr(mmap, what))


@dataclass(frozen=True, eq=False)
class MappedSets(RowSets):
    """Training rows of clients in a mapped file: positions there, from `start` to `stop` without those that are held
    back for the test or the server. `index` is empty."""

    file: MappedFile
    held: dict[str, np.ndarray]
    """Positions, in order, that are held back as rows for "test" and for "validation"."""

    @classmethod
    def of_file(cls, file: MappedFile, held: dict[str, np.ndarray]) -> MappedSets:
        return cls(np.empty(0, np.int64), file.start, file.start + file.count, file, held)

    @cached_property
    def _held(self) -> np.ndarray:
        return np.sort(np.concatenate([*self.held.values(), np.empty(0, np.int64)]))

    @cached_property
    def sizes(self) -> np.ndarray:
        first, last = (np.searchsorted(self._held, ends) for ends in (self.start, self.stop))
        sizes: np.ndarray = self.stop - self.start - (last - first)
        return sizes

    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        everyone = np.arange(len(self))
        return np.repeat(everyone, self.sizes), self.positions(everyone)

    def __getitem__(self, client: int) -> np.ndarray:
        return self.positions(np.array([client]))

    def positions(self, clients: np.ndarray) -> np.ndarray:
        """Where the rows of these clients are in the file, one client after another."""
        counts = self.stop[clients] - self.start[clients]
        ends = np.cumsum(counts)
        rows = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self.start[clients] - (ends - counts), counts)
        if not len(self._held):
            return rows
        nearest = np.minimum(np.searchsorted(self._held, rows), len(self._held) - 1)
        return rows[self._held[nearest] != rows]

    def take(self, clients: np.ndarray) -> Rows:
        """The training rows of these clients, one client after another."""
        return self.file.take(self.positions(clients))

    @cached_property
    def total_cells(self) -> np.ndarray:
        """Training rows by group, those of unknown group last, and label [groups + 1, classes]."""
        whole = np.array(self.file.about["cells"], dtype=np.int64)
        taken = self.file.take(self._held)
        cells: np.ndarray = whole - cell_counts(taken.y, taken.s, whole.shape[0] - 1, whole.shape[1])
        return cells

    def cells(self) -> np.ndarray:
        """The same for each client [clients, groups + 1, classes]; all rows are read."""
        groups, classes = self.total_cells.shape[0] - 1, self.total_cells.shape[1]
        counts = np.zeros((len(self), (groups + 1) * classes), dtype=np.int64)
        everyone = np.arange(len(self))
        for clients in np.array_split(everyone, max(1, len(self.file) // SCAN)):
            rows = self.take(clients)
            owner = np.repeat(clients, self.sizes[clients])
            np.add.at(counts, (owner, _cell(rows.y, rows.s, groups, classes)), 1)
        return counts.reshape(len(self), groups + 1, classes)


def cell_counts(y: np.ndarray, s: np.ndarray, groups: int, classes: int) -> np.ndarray:
    """Rows by group, those of unknown group last, and label [groups + 1, classes]; one column for regression."""
    counts = np.bincount(_cell(y, s, groups, classes), minlength=(groups + 1) * classes)
    return counts.reshape(groups + 1, classes)


def _cell(y: np.ndarray, s: np.ndarray, groups: int, classes: int) -> np.ndarray:
    cell: np.ndarray = np.where(s == UNKNOWN, groups, s) * classes + (y if classes > 1 else 0)
    return cell
