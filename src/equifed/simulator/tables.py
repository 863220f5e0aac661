"""The rows of all runs on the device, held once, and where each client's rows lie."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equifed.federation import Federation, Rows
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
    start: np.ndarray
    """Where run r's client k starts in `index` [R, N]."""
    sizes: np.ndarray
    """Its number of training rows [R, N]."""
    offset: np.ndarray
    """What to add to run r's own row positions [R]."""
    scaling: tuple[Tensor, Tensor] | tuple[()]
    """Shift and factor of the features of each run [R, ...]; () where the rows are stored as the model sees them."""

    def features(self, rows: Tensor, run: int) -> Tensor:
        """Features of these rows as the model of this run sees them."""
        x = self.x.index_select(0, rows)
        return (x - self.scaling[0][run]) * self.scaling[1][run] if self.scaling else x

    def rows_of(self, positions: np.ndarray, run: int) -> Tensor:
        """A run's own row positions as positions in these tables."""
        return torch.from_numpy(positions + self.offset[run]).to(self.x.device)


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
    index, start, sizes = _indices(feds, offset)
    attribute = on_device(_join(attributes)) if attributes else None
    columns = on_device(x), on_device(y), on_device(s), attribute
    return Tables(*columns, on_device(index), start, sizes, offset, shift_and_factor)


def _identity(rows: Rows) -> tuple[int, ...]:
    """What tells whether two federations share their rows: features alone do not, if somebody has changed labels."""
    return tuple(map(id, rows))


def _join(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _indices(feds: list[Federation], offset: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All clients' positions in one array; runs that share a federation share its part."""
    parts: list[np.ndarray] = []
    begins: dict[int, int] = {}
    total = 0
    for fed, shift in zip(feds, offset, strict=True):
        if id(fed) not in begins:
            begins[id(fed)] = total
            parts.append((fed.train.index + shift).astype(np.int32))
            total += len(fed.train.index)
    start = np.stack([fed.train.start + begins[id(fed)] for fed in feds])
    return _join(parts), start, np.stack([fed.train.sizes for fed in feds])
