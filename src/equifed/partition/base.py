"""What a partitioner sees and returns: rows in, disjoint row positions per client out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from equifed.errors import ConfigError, DataError, unknown_name

UNKNOWN = -1
"""The code of a row whose group is not known."""


class Table(NamedTuple):
    """What a partitioner sees: one entry per row, no features."""

    label: np.ndarray
    """Class codes [n]; for regression a bin of the target."""
    group: np.ndarray
    """Group codes [n]; rows of unknown group have -1, like one more group."""
    columns: Mapping[str, np.ndarray] = {}
    """The columns that the partitioner asks for, by name, e.g. "STATE"."""
    levels: Mapping[str, np.ndarray] = {}
    """All values of a column, sorted, where these rows are only some of a table's."""

    def by(self, name: str) -> np.ndarray:
        """The column `name`: "label", "group" or one of `columns`."""
        known = {"label": self.label, "group": self.group, **self.columns}
        if name not in known:
            raise unknown_name("column to partition by", name, known)
        column = np.asarray(known[name])
        missing = is_missing(column)
        if missing.any():
            raise DataError(f"Column {name!r} has {missing.sum()} missing values, the first in row {missing.argmax()}.")
        return column

    def values(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """All values of the column `name`, sorted, and the number of each row's value among them."""
        values, code = _unique(name, self.by(name))
        if name not in self.levels:
            return values, code
        return self.levels[name], np.searchsorted(self.levels[name], values)[code]

    def cells(self, names: Sequence[str]) -> tuple[np.ndarray, int]:
        """Cell of each row (a combination of values of `names` that occurs), and the number of cells."""
        cell = np.zeros(len(self.label), dtype=np.int64)
        for name in names:
            values, code = _unique(name, self.by(name))
            _, cell = np.unique(cell * len(values) + code, return_inverse=True)
        return cell, int(cell.max(initial=-1)) + 1


@dataclass(frozen=True, eq=False)
class Partition:
    """Which rows each client holds."""

    rows: tuple[np.ndarray, ...]
    """Row positions of each client, ascending; no row is in two clients, unless it is turned differently for each."""
    ids: tuple[str, ...]
    """Name of each client."""
    client_groups: np.ndarray | None = None
    """Known group of each client, else None."""
    angles: tuple[float, ...] | None = None
    """Degrees by which the images of each group of clients are turned, else None."""

    @classmethod
    def from_owner(
        cls,
        owner: np.ndarray,
        ids: Sequence[str],
        client_groups: np.ndarray | None = None,
        angles: tuple[float, ...] | None = None,
    ) -> Partition:
        """From the client number of each row, -1 for a row without a client."""
        order = np.argsort(owner, kind="stable")
        sizes = np.bincount(owner + 1, minlength=len(ids) + 1)
        return cls(tuple(np.split(order, np.cumsum(sizes)[:-1])[1:]), tuple(ids), client_groups, angles)


class Partitioner(Protocol):
    """Deals rows to clients; all randomness comes from `rng`.

    A plain function of (table, rng) is a partitioner too, one that looks at the label and the group only.
    """

    @property
    def columns(self) -> Sequence[str]:
        """The columns that it looks at; "label" and "group" are always there."""
        return ()

    @property
    def client_columns(self) -> Sequence[str]:
        """Those of them that say to whom a row belongs: they are not inputs of a model unless asked for."""
        return ()

    def __call__(self, table: Table, rng: np.random.Generator) -> Partition: ...


class PartitionFunction(Protocol):
    """A partitioner without options."""

    def __call__(self, table: Table, rng: np.random.Generator, /) -> Partition: ...


def columns_of(partition: Partitioner | PartitionFunction) -> list[str]:
    """The columns of the table that a partitioner looks at, besides the label and the group."""
    names = (*_names(partition, "columns"), *client_columns_of(partition))
    return [name for name in dict.fromkeys(names) if name not in ("label", "group")]


def client_columns_of(partition: Partitioner | PartitionFunction) -> tuple[str, ...]:
    """The columns that say to whom a row belongs."""
    return _names(partition, "client_columns")


def _names(partition: Partitioner | PartitionFunction, attribute: str) -> tuple[str, ...]:
    names = getattr(partition, attribute, ())  # a function has no attributes
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{attribute} of the partitioner {partition!r} must list names of columns, got {names!r}.")
    return tuple(names)


def row_count(table: Table, clients: int = 0) -> int:
    """Number of rows, after checking that every column has that many and that every client can have one."""
    n = len(table.label)
    for name in ("group", *table.columns):
        if len(table.by(name)) != n:
            raise DataError(f"Column {name!r} has {len(table.by(name))} rows, the label has {n}.")
    if clients > n:
        text = f"{clients} clients need at least {clients} rows; there are {n}."
        raise ConfigError(text, key="num_partitions", value=clients)
    return n


def numbered(num_partitions: int) -> tuple[str, ...]:
    """Client names "0", "1", ..."""
    return tuple(map(str, range(num_partitions)))


def is_missing(column: np.ndarray) -> np.ndarray:
    """Which entries are None, NaN or another mark of a missing value, or an empty or blank text."""
    if column.dtype == object:
        import pandas as pd

        blank = [isinstance(value, str) and not value.strip() for value in column.flat]
        return np.asarray(pd.isna(column), dtype=bool) | np.array(blank, dtype=bool).reshape(column.shape)
    if column.dtype.kind == "U":
        return np.asarray(np.char.strip(column) == "", dtype=bool)
    return np.asarray(column != column, dtype=bool)  # nan is not equal to itself


def sorted_values(name: str, column: np.ndarray) -> np.ndarray:
    """The distinct values of a whole column, quickly also where it is text."""
    import pandas as pd

    return _unique(name, np.asarray(pd.unique(column)))[0]


def _unique(name: str, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    try:
        values, code = np.unique(column, return_inverse=True)
    except TypeError:
        raise DataError(f"Column {name!r} mixes values that have no order, such as text and numbers.") from None
    return values, code


def check_columns(value: object) -> tuple[str, ...]:
    """The names given as one text or as several."""
    names = (value,) if isinstance(value, str | int) else tuple(value) if isinstance(value, Iterable) else ()
    if not names or isinstance(value, bool) or not all(isinstance(name, str | int) for name in names):
        text = f"must name the columns whose values are the cells, got {value!r}."
        raise ConfigError(text, key="partition_by", value=value)
    return tuple(map(str, names))


def check_column(option: str, value: object) -> str:
    """The name of one column; a number is taken for the name of a table's numbered column."""
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
        raise ConfigError(f"must be the name of a column, got {value!r}.", key=option, value=value)
    return str(value)


def shuffled_by(cell: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """All row positions, cell after cell, in random order within each cell."""
    order = rng.permutation(len(cell))
    return order[np.argsort(cell[order], kind="stable")]


def as_text(value: object) -> str:
    """One spelling per value, so that a silo whose reader took the code 1 for 1.0 still means the same."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def as_numbers(codes: np.ndarray, count: int) -> np.ndarray:
    """Group codes as numbers [n, d] without an order among more than two: 0 or 1 for two groups, one-hot for more. For
    an unknown group they are 0, and mean nothing."""
    known = np.where(codes == UNKNOWN, 0, codes)
    numbers = known[:, None].astype(np.float32) if count <= 2 else np.eye(count, dtype=np.float32)[known]
    return np.where((codes == UNKNOWN)[:, None], np.float32(0), numbers)
