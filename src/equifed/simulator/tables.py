"""The rows of all runs on the device, stored once, and the positions of each client's rows.

Training rows that stay in a file (`equifed.Mapped`) are loaded when their clients work, into a part of the
tables that is allocated once, because prepared steps refer to the tables' memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equifed.federation import Federation, Rows
from equifed.federation.mapped import MappedSets
from equifed.protocol import STAGES, Stage
from equifed.simulator.job import Job


@dataclass(frozen=True, eq=False)
class Tables:
    """The rows of all runs, and each client's positions in them."""

    x: Tensor
    """Features of all rows [rows, ...]."""
    y: Tensor
    """Labels [rows]."""
    s: Tensor
    """Groups [rows]."""
    attribute: Tensor | None
    """The sensitive attribute as numbers [rows, d], if it differs from the group."""
    index: Tensor
    """Training row positions of all clients of all federations, one after the other (int32)."""
    federation: np.ndarray
    """Position of each run's federation among those with different rows per client [R]."""
    start: np.ndarray
    """Start of client k of each federation in `index` [F, N]; empty if rows stay in files: see `bring`."""
    sizes: np.ndarray
    """Number of training rows of client k of each federation [F, N]."""
    offset: np.ndarray
    """Offset from run r's row positions to those in these tables [R]."""
    scaling: tuple[Tensor, Tensor] | tuple[()]
    """Shift and factor of the features of each run [R, ...]; () if the stored features are scaled."""
    window: Window | None = None
    """Window for training rows that stay in files; None if all rows are in memory."""

    def bring(self, run: np.ndarray, client: np.ndarray, n: np.ndarray) -> np.ndarray:
        """Return where the rows of these clients of these runs, n each (0 if absent), start in `index`. Rows that stay
        in files are loaded and replace those loaded before."""
        if self.window is None:
            return self.start[self.federation[run], client]
        starts = np.zeros(len(n), np.int64)
        starts[n > 0] = self.window.bring(self, run[n > 0], client[n > 0])
        return starts

    def count_rows(self, run: np.ndarray | int, client: np.ndarray | int) -> np.ndarray:
        """Return the number of training rows of these clients of these runs."""
        return self.sizes[self.federation[run], client]

    def features(self, rows: Tensor, run: int) -> Tensor:
        """Return the scaled features of these rows for this run's model."""
        x = self.x.index_select(0, rows)
        return (x - self.scaling[0][run]) * self.scaling[1][run] if self.scaling else x

    def rows_of(self, positions: np.ndarray, run: int) -> Tensor:
        """Convert a run's row positions to positions in these tables."""
        return torch.from_numpy(positions + self.offset[run]).to(self.x.device)


AT_ONCE: dict[Stage, int] = {"setup": 2**12, "round": 2**14, "final": 2**12}
"""Largest number of clients, over all seeds, that are computed at once, by stage. A phase may ask a million; setup and
final phases, which take place once, need not be fast."""
WINDOW_BYTES = 256 * 2**20
"""Largest size of features loaded from files at once in bytes, unless one client has more."""


class Window:
    """The part of the tables into which training rows are loaded from files."""

    def __init__(
        self, begin: int, size: int, sets: Sequence[MappedSets], scaling: tuple[np.ndarray, np.ndarray] | None
    ) -> None:
        """begin: its start in the tables. size: its capacity in rows. sets: the clients' rows in each federation.
        scaling: shift and factor of the features, if the tables hold scaled features."""
        self.begin, self.size, self._sets, self._scaling = begin, size, sets, scaling
        self.filled = 0
        """Number of loaded rows."""
        self._here, self._starts = np.empty((0, 2), np.int64), np.empty(0, np.int64)
        """The loaded clients, (federation, client), and the start of each one's rows."""

    def bring(self, tables: Tables, run: np.ndarray, client: np.ndarray) -> np.ndarray:
        wanted, which = np.unique(np.stack([tables.federation[run], client], 1), axis=0, return_inverse=True)
        if not np.array_equal(wanted, self._here):  # the phases of a round need the same rows
            self.filled, starts = 0, []
            for number, sets in enumerate(self._sets):
                clients = wanted[wanted[:, 0] == number, 1]
                sizes = sets.sizes[clients]
                starts.append(self.filled + np.cumsum(sizes) - sizes)
                self._fill(tables, sets.take(clients))
            self._here, self._starts = wanted, np.concatenate(starts)
        return self._starts[which.reshape(-1)]

    def _fill(self, tables: Tables, rows: Rows) -> None:
        x = rows.x if self._scaling is None else (rows.x - self._scaling[0]) * self._scaling[1]
        begin, count = self.begin + self.filled, len(rows.y)
        assert self.filled + count <= self.size, "more rows than the window was made for"
        columns = ((tables.x, x), (tables.y, rows.y), (tables.s, rows.s), (tables.attribute, rows.attribute))
        for column, values in columns:
            if column is not None and values is not None:
                column[begin : begin + count] = torch.from_numpy(np.ascontiguousarray(values)).to(column.device)
        self.filled += count


def _count_window_rows(job: Job) -> int:
    """Return the window's capacity in rows: enough for the largest clients computed at once, but at most
    `WINDOW_BYTES`, since more are computed in parts, or one client of each seed if that is more."""
    seeds = [run.federation for run in job.runs[: len(job.settings.seed_list)]]
    at_once = {stage: max(1, AT_ONCE[stage] // len(seeds)) for stage in STAGES if job.phases(stage)}
    asked = max(min(job.asked(stage), clients) for stage, clients in at_once.items())
    most: dict[int, tuple[int, int]] = {}
    for fed in seeds:
        if id(fed) not in most:
            largest = np.partition(fed.train.sizes, fed.num_clients - asked)[fed.num_clients - asked :]
            most[id(fed)] = int(largest.sum()), int(largest.max())
    together, single = np.sum([most[id(fed)] for fed in seeds], axis=0)
    return int(min(together, max(single, WINDOW_BYTES // (4 * math.prod(job.federation.shape)))))


def make_tables(job: Job) -> Tables:
    def on_device(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(job.device)

    feds = [run.federation for run in job.runs]
    stored: dict[tuple[int, ...], tuple[Rows, int]] = {}
    total = 0
    for fed in feds:
        if _identity(fed.rows) not in stored:
            stored[_identity(fed.rows)] = (fed.rows, total)
            total += len(fed.rows.y)
    if total >= 2**31:
        raise ValueError(f"{total} rows are more than 32-bit positions can address.")
    offset = np.array([stored[_identity(fed.rows)][1] for fed in feds], dtype=np.int64)
    tables = [rows for rows, _ in stored.values()]
    x, y, s = (_join([getattr(table, part) for table in tables]) for part in ("x", "y", "s"))
    attributes = [table.attribute for table in tables if table.attribute is not None]
    scalings = [fed.scaling for fed in feds]
    shift_and_factor: tuple[Tensor, Tensor] | tuple[()] = ()
    if len(tables) == 1 and all(scaling is scalings[0] for scaling in scalings):
        x = x if scalings[0] is None else (x - scalings[0][0]) * scalings[0][1]
    elif any(scalings):
        none = np.zeros(feds[0].shape, np.float32), np.ones(feds[0].shape, np.float32)
        shifts, factors = zip(*(scaling or none for scaling in scalings), strict=True)
        shift_and_factor = on_device(np.stack(shifts)), on_device(np.stack(factors))
    window: Window | None = None
    holdings = [(id(fed.train), _identity(fed.rows)) for fed in feds]
    apart = [feds[holdings.index(each)] for each in dict.fromkeys(holdings)]
    federation = np.array([[*dict.fromkeys(holdings)].index(each) for each in holdings])
    sets = [fed.mapped for fed in apart if fed.mapped is not None]
    if sets:
        window = Window(total, _count_window_rows(job), sets, None if shift_and_factor else scalings[0])
        index, start = np.arange(total, total + window.size, dtype=np.int32), np.zeros((len(sets), 0), np.int64)
    else:
        index, start = _join_indices(apart, [stored[_identity(fed.rows)][1] for fed in apart])
    sizes = _stack([fed.train.sizes for fed in apart])

    def column(values: np.ndarray) -> Tensor:
        held = on_device(values)
        return held if window is None else torch.cat([held, held.new_zeros(window.size, *held.shape[1:])])

    attribute = column(_join(attributes)) if attributes else None
    columns = column(x), column(y), column(s), attribute
    return Tables(*columns, on_device(index), federation, start, sizes, offset, shift_and_factor, window)


def _identity(rows: Rows) -> tuple[int, ...]:
    """Return a key that is equal for federations that share all rows' arrays; labels may differ for equal features."""
    return tuple(map(id, rows))


def _join(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _join_indices(feds: list[Federation], offset: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return all clients' positions in one array, and the start of those of client k of each federation [F, N]."""
    parts = [(fed.train.index + shift).astype(np.int32) for fed, shift in zip(feds, offset, strict=True)]
    ends = np.cumsum([len(part) for part in parts])
    begins = [end - len(part) for end, part in zip(ends, parts, strict=True)]
    return _join(parts), _stack([fed.train.start + begin for fed, begin in zip(feds, begins, strict=True)])


def _stack(lines: list[np.ndarray]) -> np.ndarray:
    """Stack arrays; a single one is not copied."""
    return lines[0][None] if len(lines) == 1 else np.stack(lines)
