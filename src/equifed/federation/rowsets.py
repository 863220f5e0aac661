"""Which rows each client holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RowSets:
    """Row positions of many clients in one array; clients may share a range (a common test set)."""

    index: np.ndarray
    """Positions in `Rows`, int64."""
    start: np.ndarray
    """Where client k's positions start in `index`."""
    stop: np.ndarray
    """Where they end."""

    @classmethod
    def of(cls, parts: Sequence[np.ndarray]) -> RowSets:
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        stop = np.cumsum(sizes)
        index = np.concatenate([*parts, np.empty(0, np.int64)]).astype(np.int64)
        return cls(index, stop - sizes, stop)

    @property
    def sizes(self) -> np.ndarray:
        return self.stop - self.start

    def __len__(self) -> int:
        return len(self.start)

    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """(client, row position) of every row that a client holds."""
        sizes = self.sizes
        owner = np.repeat(np.arange(len(self)), sizes)
        within = np.arange(len(owner)) - (np.cumsum(sizes) - sizes)[owner]
        return owner, self.index[self.start[owner] + within]

    def __getitem__(self, client: int) -> np.ndarray:
        return self.index[self.start[client] : self.stop[client]]
