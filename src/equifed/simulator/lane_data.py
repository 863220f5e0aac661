"""Lanes and their rows."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equifed import tree
from equifed.protocol import Data
from equifed.simulator.tables import Tables
from equifed.tree import Tree


@dataclass(frozen=True)
class Lanes:
    """The run and client of each lane, sorted by rows, most first."""

    run: np.ndarray
    """The lane's run, or the first of its runs if settings share it."""
    slot: np.ndarray
    """The client's position in its run's cohort."""
    client: np.ndarray
    """The client's position in the federation."""
    n: np.ndarray
    """The client's number of rows."""
    start: np.ndarray
    """Start of the client's rows in the tables' `index`."""

    def __len__(self) -> int:
        return len(self.run)

    def part(self, lanes: slice) -> Lanes:
        return Lanes(*(getattr(self, entry.name)[lanes] for entry in fields(self)))


class LaneInputs(NamedTuple):
    """The values of each lane other than its rows, leaves [L, ...], as in `Data`; () stands for None, which trees do
    not have."""

    hyper: dict[str, Tensor]
    """Swept hyperparameters [L], or [L, V] if settings share the lane."""
    draws: dict[str, Tensor]
    group: Tree
    scaling: Tree
    """Shift and factor of the features."""
    rate: Tensor
    client: Tree
    initial: Tree
    start: Tree
    """Start of the lane's rows in the tables."""
    n: Tree
    """Number of these rows."""

    @property
    def client_group(self) -> Tensor | None:
        return self.group if isinstance(self.group, Tensor) else None

    def for_steps(self) -> LaneInputs:
        """Return the inputs without those that only `prepare` and `finish` use."""
        return self._replace(client=(), initial=(), start=(), n=())


@dataclass(frozen=True, eq=False)
class LaneRows:
    """The positions of one lane's rows, padded to `width`, inside vmap; outside vmap those of all lanes, with start and
    scaling [L, 1, ...]."""

    tables: Tables
    start: Tensor
    width: int
    scaling: Tree
    """Shift and factor of the features; () if the tables hold scaled features."""

    @cached_property
    def rows(self) -> Tensor:
        """Positions in the tables [width], or [L, width]."""
        positions = self.start + torch.arange(self.width, device=self.tables.x.device)
        return self.tables.index[positions.clamp_max(len(self.tables.index) - 1)].long()

    def column(self, name: str) -> Tensor:
        values: Tensor = getattr(self.tables, name)[self.rows]
        return (values - self.scaling[0]) * self.scaling[1] if name == "x" and self.scaling else values

    @property
    def attribute(self) -> Tensor | None:
        return None if self.tables.attribute is None else self.column("attribute")


@dataclass(frozen=True, eq=False, kw_only=True)
class LaneData(Data):
    """Data that takes x, y and s from the tables when a method first uses them."""

    x: Tensor = field(init=False)
    y: Tensor = field(init=False)
    s: Tensor = field(init=False)
    source: LaneRows

    def __getattr__(self, name: str) -> Tensor:  # called for missing attributes only
        if name not in ("x", "y", "s"):
            raise AttributeError(name)
        value = self.source.column(name)
        self.__dict__[name] = value
        return value


KEPT_BYTES = 2**30
"""Memory for rows that are kept between rounds because the same clients use them repeatedly, in bytes."""


class KeptRows:
    """A cache of the rows of lanes that repeat unchanged: full-gradient methods use all rows in every round.

    Only rows that are requested twice in a row are kept, so that sampled clients take no memory.
    """

    def __init__(self) -> None:
        self._asked: dict[Hashable, bytes] = {}
        self._kept: dict[Hashable, dict[str, Tensor]] = {}

    def rows(self, place: Hashable, lanes: Lanes, source: LaneRows) -> dict[str, Tensor]:
        """Return x, y and s of these lanes [L, width, ...]; empty on the first request at this place, and if rows stay
        in files, to save memory."""
        if source.tables.window is not None:
            return {}
        key = b"".join(values.tobytes() for values in (lanes.run, lanes.client, lanes.n))
        if self._asked.get(place) != key:
            self._asked[place] = key
            self._kept.pop(place, None)
            return {}
        if place not in self._kept:
            size = len(lanes) * source.width * source.tables.x[0].numel() * 4
            if size + sum(tree.num_bytes(kept) for kept in self._kept.values()) > KEPT_BYTES:
                return {}
            start, scaling = tree.map(lambda leaf: leaf.unsqueeze(1), (source.start, source.scaling))
            source = replace(source, start=start, scaling=scaling)
            self._kept[place] = {name: source.column(name) for name in ("x", "y", "s")}
        return self._kept[place]


PORTION_BYTES = 256 * 2**20
"""Approximate size of a portion of lanes that need all their rows at once, in bytes."""


WHOLE_BYTES = {"cpu": 8 * 2**20, "cuda": PORTION_BYTES}
"""By device, the size up to which work done once per round takes all lanes in one portion, in bytes: padding costs less
than another call."""


def portions(n: np.ndarray, row_bytes: int, whole: int = 0) -> list[tuple[slice, int]]:
    """Return slices of lanes (sorted by rows, most first) with a padded width each: at most half of it is padding, and
    memory is limited; or all lanes in one slice if that takes at most `whole` bytes."""
    if len(n) and (widest := grid_up(int(n[0]))) * len(n) * row_bytes <= whole:
        return [(slice(0, len(n)), widest)]
    parts, begin = [], 0
    while begin < len(n):
        width = grid_up(int(n[begin]))
        most = max(1, PORTION_BYTES // (width * row_bytes))
        end = begin + int(np.searchsorted(-n[begin : begin + most], -(width // 2), side="right"))
        end = max(end, begin + 1)
        parts.append((slice(begin, end), width))
        begin = end
    return parts


def grid_up(n: int) -> int:
    """Round up to the grid 1, 2, ..., 8, 10, 12, 14, 16, 20, 24, ..., by at most a quarter.

    Padded sizes lie on this grid, so that rounds with other clients have the same shapes.
    """
    if n <= 8:
        return max(n, 1)
    unit = 2 ** (int(math.log2(n - 1)) - 2)
    return -(-n // unit) * unit
