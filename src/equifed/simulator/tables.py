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
    shift: Tensor | None
    """Feature shift of each run [R, ...], None when the rows are stored as the model sees them."""
    factor: Tensor | None
    """Feature factor of each run [R, ...]."""

    def features(self, rows: Tensor, run: int) -> Tensor:
        """Features of these rows as the model of this run sees them."""
        x = self.x.index_select(0, rows)
        return x if self.shift is None or self.factor is None else (x - self.shift[run]) * self.factor[run]

    def rows_of(self, positions: np.ndarray, run: int) -> Tensor:
        """A run's own row positions as positions in these tables."""
        return torch.from_numpy(positions + self.offset[run]).to(self.x.device)


def make_tables(job: Job) -> Tables:
    feds = [run.federation for run in job.runs]
    stored: dict[int, tuple[Rows, int]] = {}
    total = 0
    for fed in feds:
        if id(fed.rows.x) not in stored:
            stored[id(fed.rows.x)] = (fed.rows, total)
            total += len(fed.rows.y)
    if total >= 2**31:
        raise ValueError(f"{total} rows are more than 32-bit positions can address.")
    offset = np.array([stored[id(fed.rows.x)][1] for fed in feds], dtype=np.int64)
    tables = [rows for rows, _ in stored.values()]
    x, y, s = (_join([getattr(table, part) for table in tables]) for part in ("x", "y", "s"))
    attributes = [table.attribute for table in tables if table.attribute is not None]
    attribute = _join(attributes) if attributes else None
    one_scaling = len(tables) == 1 and all(fed.scaling is feds[0].scaling for fed in feds)
    shift = factor = None
    if one_scaling and feds[0].scaling is not None:
        x = (x - feds[0].scaling[0]) * feds[0].scaling[1]
    elif not one_scaling and any(fed.scaling is not None for fed in feds):
        shift, factor = (
            torch.from_numpy(np.stack([_scaling(fed)[i] for fed in feds])).to(job.device) for i in range(2)
        )
    index, start, sizes = _indices(feds, offset)
    return Tables(
        torch.from_numpy(x).to(job.device),
        torch.from_numpy(y).to(job.device),
        torch.from_numpy(s).to(job.device),
        None if attribute is None else torch.from_numpy(attribute).to(job.device),
        torch.from_numpy(index).to(job.device),
        start,
        sizes,
        offset,
        shift,
        factor,
    )


def _join(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _scaling(fed: Federation) -> tuple[np.ndarray, np.ndarray]:
    if fed.scaling is not None:
        return fed.scaling
    return np.zeros(fed.shape, np.float32), np.ones(fed.shape, np.float32)


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
