"""Lanes, and the rows that each of them works on."""

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
    """Which client of which run each lane is; sorted by rows, most first."""

    run: np.ndarray
    """The lane's run, or the first of its runs where settings share it."""
    slot: np.ndarray
    """The client's position in its run's cohort."""
    client: np.ndarray
    """Its position in the federation."""
    n: np.ndarray
    """Its number of rows."""
    start: np.ndarray
    """Where its rows start in the tables' `index`."""

    def __len__(self) -> int:
        return len(self.run)

    def part(self, lanes: slice) -> Lanes:
        return Lanes(*(getattr(self, entry.name)[lanes] for entry in fields(self)))


class Inputs(NamedTuple):
    """What belongs to each lane besides its rows, leaves [L, ...], in `Data`'s words; () where there is nothing, since
    trees have no None."""

    hyper: dict[str, Tensor]
    """Swept hyper-parameters [L], or [L, V] where settings share the lane."""
    draws: dict[str, Tensor]
    group: Tree
    scaling: Tree
    """Shift and factor of the features."""
    rate: Tensor
    client: Tree
    initial: Tree
    start: Tree
    """Where the lane's rows start in the tables."""
    n: Tree
    """How many they are."""

    @property
    def client_group(self) -> Tensor | None:
        return self.group if isinstance(self.group, Tensor) else None

    def for_steps(self) -> Inputs:
        """Without what only `prepare` and `finish` look at."""
        return self._replace(client=(), initial=(), start=(), n=())


@dataclass(frozen=True, eq=False)
class LaneRows:
    """Where one lane's rows are, padded to `width`, inside vmap; those of all lanes outside it, with a start and a
    scaling [L, 1, ...]."""

    tables: Tables
    start: Tensor
    width: int
    scaling: Tree
    """Shift and factor of the features; () where the tables hold them as the model sees them."""

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
    """Data whose x, y and s are taken from the tables when the method first looks at them, if it does."""

    x: Tensor = field(init=False)
    y: Tensor = field(init=False)
    s: Tensor = field(init=False)
    source: LaneRows

    def __getattr__(self, name: str) -> Tensor:  # only for what is not there
        if name not in ("x", "y", "s"):
            raise AttributeError(name)
        value = self.source.column(name)
        self.__dict__[name] = value
        return value


KEPT_BYTES = 2**30
"""Memory for rows that are kept from round to round, because the same clients look at them again and again."""


class KeptRows:
    """The rows of lanes that come again unchanged: full-gradient methods go over all rows in every round.

    Only what is asked for twice in a row is kept, so that sampled clients cost nothing.
    """

    def __init__(self) -> None:
        self._asked: dict[Hashable, bytes] = {}
        self._kept: dict[Hashable, dict[str, Tensor]] = {}

    def rows(self, place: Hashable, lanes: Lanes, source: LaneRows) -> dict[str, Tensor]:
        """x, y and s of these lanes [L, width, ...]; empty the first time they are asked for at this place, and where
        rows stay in files, for the sake of memory."""
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
"""Lanes whose whole rows are needed at once are taken in portions of about this size."""


WHOLE_BYTES = {"cpu": 8 * 2**20, "cuda": PORTION_BYTES}
"""What is done once in a round takes all lanes in one portion up to this size, by device: rows that pad it cost less
than another call."""


def portions(n: np.ndarray, row_bytes: int, whole: int = 0) -> list[tuple[slice, int]]:
    """Slices of lanes (sorted by rows, most first) with a padded width each: at most half of it padding, and not too
    much memory at once; or all in one, where that takes no more than `whole` bytes."""
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
    """The next number on the grid 1, 2, ..., 8, 10, 12, 14, 16, 20, 24, ...: at most a quarter more.

    Padded sizes lie on it, so that rounds with other clients meet the same shapes again.
    """
    if n <= 8:
        return max(n, 1)
    unit = 2 ** (int(math.log2(n - 1)) - 2)
    return -(-n // unit) * unit
