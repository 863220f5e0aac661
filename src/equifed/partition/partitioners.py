"""The ways the papers deal rows to clients. Every row is used exactly once unless a class says otherwise."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Literal

import numpy as np

from equifed.errors import ConfigError, check_number
from equifed.partition.base import (
    UNKNOWN,
    Partition,
    Partitioner,
    Table,
    check_column,
    check_columns,
    numbered,
    row_count,
    shuffled_by,
)

MAX_DRAWS = 100  # how often Dirichlet draws again to reach min_rows before it gives up


@dataclass(frozen=True)
class IID(Partitioner):
    """Random chunks of equal size (they differ by at most one row)."""

    num_partitions: int
    """Number of clients."""

    def __post_init__(self) -> None:
        check_number("num_partitions", self.num_partitions, whole=True, above=0)

    def __call__(self, table: Table, rng: np.random.Generator) -> Partition:
        n = row_count(table, self.num_partitions)
        return Partition.from_owner(rng.permutation(np.arange(n) % self.num_partitions), numbered(self.num_partitions))


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """Each cell, by default (label, group), is spread over the clients in Dirichlet shares (FAIR-FATE, E2FL).

    Client k gets round(size * p_k) rows of the cell and the last client what remains, as FAIR-FATE does; when
    the rounded numbers run over the cell, the clients that come last get fewer. With more clients than rows
    in a cell most shares round to 0, so the last client holds most of that cell.
    """

    num_partitions: int
    """Number of clients."""
    alpha: float
    """Concentration (FAIR-FATE's sigma): small is heterogeneous, large gives everybody the same."""
    partition_by: tuple[str, ...] | str = ("label", "group")
    """Columns whose combinations are the cells."""
    min_rows: int = 0
    """Draw again until every client has this many rows."""

    def __post_init__(self) -> None:
        check_number("num_partitions", self.num_partitions, whole=True, above=0)
        check_number("alpha", self.alpha, above=0)
        check_number("min_rows", self.min_rows, whole=True, low=0)
        object.__setattr__(self, "partition_by", check_columns(self.partition_by))

    @property
    def columns(self) -> tuple[str, ...]:
        return check_columns(self.partition_by)

    def __call__(self, table: Table, rng: np.random.Generator) -> Partition:
        clients = self.num_partitions
        n = row_count(table, clients)
        if clients * self.min_rows > n:
            raise ConfigError(
                f"{clients} clients with at least {self.min_rows} rows need {clients * self.min_rows}"
                f" rows; there are {n}.",
                key="min_rows",
                value=self.min_rows,
            )
        cell, num_cells = table.cells(self.partition_by)
        taken = self._sizes(np.bincount(cell, minlength=num_cells), rng)
        owner = np.empty(n, dtype=np.int64)
        owner[shuffled_by(cell, rng)] = np.repeat(np.tile(np.arange(clients), num_cells), taken.ravel())
        return Partition.from_owner(owner, numbered(clients))

    def _sizes(self, size: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Rows of each cell for each client [cells, clients]."""
        best = 0
        for _ in range(MAX_DRAWS):
            # p_c ~ Dirichlet(alpha 1_K), one draw per cell c
            share = rng.dirichlet(np.full(self.num_partitions, self.alpha), size=len(size))
            # client k < K gets round(size_c p_ck), client K the remainder; never past the end of the cell
            end = np.minimum(np.cumsum(np.rint(size[:, None] * share), axis=1), size[:, None])
            end[:, -1] = size
            taken = np.diff(end, axis=1, prepend=0).astype(np.int64)
            best = max(best, int(taken.sum(0).min()))
            if best >= self.min_rows:
                return taken
        raise ConfigError(
            f"{MAX_DRAWS} draws with alpha={self.alpha} never gave all {self.num_partitions} clients "
            f"{self.min_rows} rows; the smallest had {best} at best. "
            "Lower min_rows or num_partitions, or raise alpha.",
            key="min_rows",
            value=self.min_rows,
        )


@dataclass(frozen=True, kw_only=True)
class DirichletPerClient(Partitioner):
    """Each client has its own mix of cells and about `size` rows (SFFL).

    r_k ~ Dirichlet(alpha * prior) over the cells, and client k takes round(size * r_kc) rows of cell c from
    its pool: its own state with `natural`, else all rows. Where a cell runs short, the clients that want it
    share it in proportion to their wishes. Rows that no client takes stay unused: a row is used at most once.

    With `natural` and no `num_partitions` every state is a client; with fewer clients than states the
    largest states are kept; with more, further clients go where they leave most rows per client.
    """

    alpha: float
    """Concentration: small gives clients of almost one cell, large gives every client the prior's mix."""
    num_partitions: int | None = None
    """Number of clients; optional with `natural`."""
    size: int = 4000
    """Rows that each client wants."""
    natural: str | None = None
    """Column, e.g. "STATE", whose values are the clients' own pools."""
    prior: Literal["uniform", "population"] = "uniform"
    """Mix at large alpha: every cell alike (balanced labels), or the cells' shares of all rows."""
    partition_by: tuple[str, ...] | str = ("label", "group")
    """Columns whose combinations are the cells."""

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, above=0)
        check_number("size", self.size, whole=True, above=0)
        object.__setattr__(self, "partition_by", check_columns(self.partition_by))
        if self.natural is not None:
            object.__setattr__(self, "natural", check_column("natural", self.natural))
        if self.num_partitions is not None:
            check_number("num_partitions", self.num_partitions, whole=True, above=0)
        elif self.natural is None:
            raise ConfigError(
                "DirichletPerClient needs the number of clients, or natural with a column such as 'STATE'.",
                key="num_partitions",
            )
        if self.prior not in ("uniform", "population"):
            text = f"must be 'uniform' or 'population', got {self.prior!r}."
            raise ConfigError(text, key="prior", value=self.prior, allowed=("uniform", "population"))

    @property
    def columns(self) -> tuple[str, ...]:
        return check_columns(self.partition_by)

    @property
    def client_columns(self) -> tuple[str, ...]:
        return () if self.natural is None else (self.natural,)

    def __call__(self, table: Table, rng: np.random.Generator) -> Partition:
        n = row_count(table, self.num_partitions or 1)
        cell, num_cells = table.cells(self.partition_by)
        pool, num_pools, pool_of_client, ids = self._pools(table, n)
        clients = len(ids)

        prior = np.ones(num_cells)
        if self.prior == "population":
            prior = num_cells * np.bincount(cell, minlength=num_cells) / n
        # r_k ~ Dirichlet(alpha * prior); client k wants round(size r_kc) rows of cell c
        want = np.rint(self.size * rng.dirichlet(self.alpha * prior, size=clients)).astype(np.int64)

        place = pool * num_cells + cell  # a cell of a pool
        places = num_pools * num_cells
        at = pool_of_client[:, None] * num_cells + np.arange(num_cells)  # where client k finds cell c
        have = np.bincount(place, minlength=places)
        demand = np.bincount(at.ravel(), want.ravel(), places).astype(np.int64)
        # a place that runs short is shared in proportion: floor(want * have / demand)
        shared = want * have[at] // np.maximum(demand, 1)[at]
        take = np.where((demand > have)[at], shared, want)
        unused = have - np.bincount(at.ravel(), take.ravel(), places).astype(np.int64)

        # place after place: n rows for each of its clients, the rest unused (-1)
        by_place = np.argsort(np.concatenate([at.ravel(), np.arange(places)]), kind="stable")
        who = np.concatenate([np.repeat(np.arange(clients), num_cells), np.full(places, -1)])[by_place]
        count = np.concatenate([take.ravel(), unused])[by_place]
        owner = np.empty(n, dtype=np.int64)
        owner[shuffled_by(place, rng)] = np.repeat(who, count)
        return Partition.from_owner(owner, ids)

    def _pools(self, table: Table, n: int) -> tuple[np.ndarray, int, np.ndarray, tuple[str, ...]]:
        """Pool of each row, number of pools, pool of each client (ascending), client names."""
        if self.natural is None:
            clients = self.num_partitions or 0
            if clients * self.size > n:
                text = f"{clients} clients of {self.size} rows need {clients * self.size} rows; there are {n}."
                raise ConfigError(text, key="size", value=self.size)
            return np.zeros(n, dtype=np.int64), 1, np.zeros(clients, dtype=np.int64), numbered(clients)
        names, pool = table.values(self.natural)
        seats = _seats(np.bincount(pool, minlength=len(names)), self.num_partitions or len(names))
        ids = tuple(
            f"{name}-{i}" if count > 1 else str(name)
            for name, count in zip(names.tolist(), seats.tolist(), strict=True)
            for i in range(count)
        )
        return pool, len(names), np.repeat(np.arange(len(names)), seats), ids


def _seats(sizes: np.ndarray, clients: int) -> np.ndarray:
    """Number of clients of each pool: one for each of the largest, then where most rows per client remain."""
    seats = np.zeros(len(sizes), dtype=np.int64)
    seats[np.argsort(-sizes, kind="stable")[:clients]] = 1
    heap = [(-size / 2, i) for i, size in enumerate(sizes.tolist())]
    heapq.heapify(heap)
    for _ in range(clients - len(sizes)):
        _, i = heap[0]
        seats[i] += 1
        heapq.heapreplace(heap, (-sizes[i] / (seats[i] + 1), i))
    return seats


@dataclass(frozen=True)
class Skewed(Partitioner):
    """Two-sided skew: half of the clients hold mostly the first group, half mostly the second (KFFL's 90/10).

    of="client": a share m of each client's rows is of its half's own group. Using every row fixes the sizes of the
    halves: with n0 and n1 rows in the groups, m A + (1-m) B = n0 and (1-m) A + m B = n1. So clients of the halves
    differ in size when the groups do, and a group that has less than 1 - m of all rows makes it impossible.
    of="group": a share m of each group's rows lies with its own half. That is possible whatever the groups' sizes
    (Bank: 2.6 % are under 25), but with unequal groups most rows of every client are of the larger one.
    Rows of unknown group are dealt to all clients alike.
    """

    num_partitions: int
    """Number of clients, even."""
    majority: float = 0.9
    """m, above 0.5 and at most 1."""
    of: Literal["client", "group"] = "client"
    """What the majority is a share of: each client's rows, or each group's."""

    def __post_init__(self) -> None:
        check_number("num_partitions", self.num_partitions, whole=True, above=0)
        if self.of not in ("client", "group"):
            text = f"must be 'client' or 'group', got {self.of!r}."
            raise ConfigError(text, key="of", value=self.of, allowed=("client", "group"))
        if self.num_partitions % 2:
            text = f"must be even for a partition of two halves, got {self.num_partitions}."
            raise ConfigError(text, key="num_partitions", value=self.num_partitions)
        check_number("majority", self.majority)
        if not 0.5 < self.majority <= 1:
            text = f"must be above 0.5 and at most 1, got {self.majority}; use IID for 0.5."
            raise ConfigError(text, key="majority", value=self.majority)

    def __call__(self, table: Table, rng: np.random.Generator) -> Partition:
        n = row_count(table, self.num_partitions)
        known = np.flatnonzero(table.group != UNKNOWN)
        values, group = np.unique(table.group[known], return_inverse=True)
        if len(values) != 2:
            raise ConfigError(
                f"Skewed needs exactly two groups; the rows have {len(values)} groups "
                f"(codes {', '.join(map(str, values.tolist()[:6]))}{', ...' if len(values) > 6 else ''})."
            )
        n0, n1 = np.bincount(group).tolist()
        m = self.majority
        half = self.num_partitions // 2
        # rows of each group that go to the first half
        to_first = np.rint([m * n0, (1 - m) * n1] if self.of == "group" else self._to_first(n0, n1)).astype(np.int64)
        owner = np.empty(n, dtype=np.int64)
        order = known[shuffled_by(group, rng)]
        for block, cut in zip(np.split(order, [n0]), to_first, strict=True):
            owner[block[:cut]] = np.arange(cut) % half
            # from the last client backwards: the odd rows of the two groups then fall to different clients
            owner[block[cut:]] = self.num_partitions - 1 - np.arange(len(block) - cut) % half
        unknown = rng.permutation(np.flatnonzero(table.group == UNKNOWN))
        owner[unknown] = np.arange(len(unknown)) % self.num_partitions
        return Partition.from_owner(owner, numbered(self.num_partitions))

    def _to_first(self, n0: int, n1: int) -> list[float]:
        m, n, half = self.majority, n0 + n1, self.num_partitions // 2
        # A = (m n0 - (1-m) n1) / (2m - 1), the size of the first half; B = n - A
        first = (m * n0 - (1 - m) * n1) / (2 * m - 1)
        if min(first, n - first) < half:
            raise ConfigError(
                f"A {m:.0%} skew on both sides cannot use every row: with {n0} and {n1} rows in the groups "
                f"the halves would hold {first:.0f} and {n - first:.0f} rows for {half} clients each. "
                "Lower majority, or take it as a share of each group with of='group'.",
                key="majority",
                value=m,
            )
        return [m * first, (1 - m) * first]


@dataclass(frozen=True)
class Natural(Partitioner):
    """One client per value of a column, such as a state or a hospital, in sorted order of the values.

    A value that has rows in the table but none among the training rows is a client without rows, so that every seed has
    the same clients.
    """

    column: str
    """Name of the column ("label" and "group" work too)."""
    min_rows: int = 0
    """Refuse a column that has a value with fewer rows."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "column", check_column("column", self.column))
        check_number("min_rows", self.min_rows, whole=True, low=0)

    @property
    def client_columns(self) -> tuple[str, ...]:
        return (self.column,)

    def __call__(self, table: Table, rng: np.random.Generator) -> Partition:
        row_count(table)
        names, owner = table.values(self.column)
        sizes = np.bincount(owner, minlength=len(names))
        small = np.flatnonzero(sizes < self.min_rows)
        if len(small):
            shown = ", ".join(f"{names[i]} ({sizes[i]})" for i in small[:6])
            raise ConfigError(
                f"{len(small)} of {len(names)} values of {self.column!r} have fewer than "
                f"min_rows={self.min_rows} rows: {shown}. Lower min_rows or drop these rows.",
                key="min_rows",
                value=self.min_rows,
            )
        return Partition.from_owner(owner, tuple(map(str, names.tolist())))


@dataclass(frozen=True)
class RotationGroups(Partitioner):
    """Equal clients in groups of given sizes, for images rotated by group (FairMNISTRotate, E2FL).

    Rows are dealt at random, each to at most one client, or to one of each group; the result has each client's group
    and each group's angle. Rows that no client takes stay unused.
    """

    clients_per_group: tuple[int, ...] = (8, 14, 62, 152, 256, 257, 160, 68, 19, 4)
    """Number of clients of each group; group i is rotated by 360 i / groups degrees."""
    rows_per_client: int = 60
    """Images of each client."""
    each_group_anew: bool = False
    """Whether every group is dealt its images from all there are, so that clients of several groups may hold an image,
    turned differently."""

    def __post_init__(self) -> None:
        check_number("rows_per_client", self.rows_per_client, whole=True, above=0)
        if not isinstance(self.clients_per_group, tuple | list):
            raise ConfigError(
                f"must list the number of clients of each group, got {self.clients_per_group!r}.",
                key="clients_per_group",
                value=self.clients_per_group,
            )
        object.__setattr__(self, "clients_per_group", tuple(self.clients_per_group))
        for count in self.clients_per_group:
            check_number("clients_per_group", count, whole=True, low=0, what="Every entry of clients_per_group")
        if not sum(self.clients_per_group):
            raise ConfigError(f"has no client: {self.clients_per_group}.", key="clients_per_group")

    def __call__(self, table: Table, rng: np.random.Generator) -> Partition:
        n, groups = row_count(table), len(self.clients_per_group)
        dealings = self.clients_per_group if self.each_group_anew else (sum(self.clients_per_group),)
        if max(dealings) * self.rows_per_client > n:
            text = (
                f"{max(dealings)} clients with {self.rows_per_client} rows each need "
                f"{max(dealings) * self.rows_per_client} rows; there are {n}."
            )
            raise ConfigError(text, key="rows_per_client", value=self.rows_per_client)
        rows: list[np.ndarray] = []
        for clients in dealings:
            owner = np.full(n, -1, dtype=np.int64)
            owner[rng.permutation(n)[: clients * self.rows_per_client]] = np.repeat(
                np.arange(clients), self.rows_per_client
            )
            rows += Partition.from_owner(owner, numbered(clients)).rows
        client_groups = np.repeat(np.arange(groups), self.clients_per_group)
        angles = tuple(360 / groups * g for g in range(groups))
        return Partition(tuple(rows), numbered(len(rows)), client_groups, angles)
