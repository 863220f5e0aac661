"""The rows of all runs on the device, held once, and where each client's rows lie.

Training rows that stay in a file (`equifed.Mapped`) are brought in when their clients are at work: into a part
of the tables that is made once, since prepared steps hold on to the tables' memory.
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
    x: Tensor
    """Features of all rows [rows, ...]."""
    y: Tensor
    """Labels [rows]."""
    s: Tensor
    """Groups [rows]."""
    attribute: Tensor | None
    """The sensitive attribute as numbers [rows, d], where it is more than the group."""
    index: Tensor
    """Training row positions of all clients of all federations, one after the other (int32)."""
    federation: np.ndarray
    """Which federation each run has, of those whose clients hold different rows [R]."""
    start: np.ndarray
    """Where each federation's client k starts in `index` [F, N]; empty where rows stay in files: see `bring`."""
    sizes: np.ndarray
    """Its number of training rows [F, N]."""
    offset: np.ndarray
    """What to add to run r's own row positions [R]."""
    scaling: tuple[Tensor, Tensor] | tuple[()]
    """Shift and factor of the features of each run [R, ...]; () where the rows are stored as the model sees them."""
    window: Window | None = None
    """Where training rows are brought in that stay in files; None where all are here."""

    def bring(self, run: np.ndarray, client: np.ndarray, n: np.ndarray) -> np.ndarray:
        """Where the rows of these clients of these runs, n of each, start in `index`; those that stay in files are
        brought in, and take the place of the ones before. Of a client that is absent, n is 0."""
        if self.window is None:
            return self.start[self.federation[run], client]
        starts = np.zeros(len(n), np.int64)
        starts[n > 0] = self.window.bring(self, run[n > 0], client[n > 0])
        return starts

    def rows_held(self, run: np.ndarray | int, client: np.ndarray | int) -> np.ndarray:
        """How many training rows these clients of these runs have."""
        return self.sizes[self.federation[run], client]

    def features(self, rows: Tensor, run: int) -> Tensor:
        """Features of these rows as the model of this run sees them."""
        x = self.x.index_select(0, rows)
        return (x - self.scaling[0][run]) * self.scaling[1][run] if self.scaling else x

    def rows_of(self, positions: np.ndarray, run: int) -> Tensor:
        """A run's own row positions as positions in these tables."""
        return torch.from_numpy(positions + self.offset[run]).to(self.x.device)


AT_ONCE: dict[Stage, int] = {"setup": 2**12, "round": 2**14, "final": 2**12}
"""Clients, over all seeds, whose work is done at once. A phase may ask a million of them; what takes place once
need not be quick."""
WINDOW_BYTES = 256 * 2**20
"""Features that are brought in from files at once, unless those of one client are more."""


class Window:
    """The part of the tables into which training rows are brought from files."""

    def __init__(
        self, begin: int, size: int, sets: Sequence[MappedSets], scaling: tuple[np.ndarray, np.ndarray] | None
    ) -> None:
        """begin: where it begins in the tables. size: how many rows it can hold. sets: the clients' rows in each
        federation. scaling: shift and factor of the features, where the tables hold them as the model sees them."""
        self.begin, self.size, self._sets, self._scaling = begin, size, sets, scaling
        self.filled = 0
        """How many rows are in it."""
        self._here, self._starts = np.empty((0, 2), np.int64), np.empty(0, np.int64)
        """Whose rows are in it, (federation, client), and where those of each start."""

    def bring(self, tables: Tables, run: np.ndarray, client: np.ndarray) -> np.ndarray:
        wanted, which = np.unique(np.stack([tables.federation[run], client], 1), axis=0, return_inverse=True)
        if not np.array_equal(wanted, self._here):  # the phases of a round ask for the same
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


def _window_rows(job: Job) -> int:
    """How many rows a window holds: those of the largest clients that are worked on at once, but no more than those of
    `WINDOW_BYTES`, since more are worked on in parts, or those of one client of each seed."""
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
        window = Window(total, _window_rows(job), sets, None if shift_and_factor else scalings[0])
        index, start = np.arange(total, total + window.size, dtype=np.int32), np.zeros((len(sets), 0), np.int64)
    else:
        index, start = _indices(apart, [stored[_identity(fed.rows)][1] for fed in apart])
    sizes = _lines([fed.train.sizes for fed in apart])

    def column(values: np.ndarray) -> Tensor:
        held = on_device(values)
        return held if window is None else torch.cat([held, held.new_zeros(window.size, *held.shape[1:])])

    attribute = column(_join(attributes)) if attributes else None
    columns = column(x), column(y), column(s), attribute
    return Tables(*columns, on_device(index), federation, start, sizes, offset, shift_and_factor, window)


def _identity(rows: Rows) -> tuple[int, ...]:
    """What tells whether two federations share their rows: features alone do not, if somebody has changed labels."""
    return tuple(map(id, rows))


def _join(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _indices(feds: list[Federation], offset: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """All clients' positions in one array, and where those of each federation's client k start [F, N]."""
    parts = [(fed.train.index + shift).astype(np.int32) for fed, shift in zip(feds, offset, strict=True)]
    ends = np.cumsum([len(part) for part in parts])
    begins = [end - len(part) for end, part in zip(ends, parts, strict=True)]
    return _join(parts), _lines([fed.train.start + begin for fed, begin in zip(feds, begins, strict=True)])


def _lines(lines: list[np.ndarray]) -> np.ndarray:
    """One under the other; a single one is not copied."""
    return lines[0][None] if len(lines) == 1 else np.stack(lines)
