"""All randomness of a run: numbers made on the host from (seed, purpose, round, client), with NumPy's Philox.

The simulator and a real federation call these functions with the same arguments and so see the same numbers, whatever
the order of clients, the number of processes, or where a run was resumed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from equifed.protocol import Draw, Task
    from equifed.settings import Local


@cache
def key(name: str) -> int:
    """A stable number for a name (client id, purpose), unlike Python's salted hash."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """The generator of one purpose, e.g. generator(seed, "batches", round, key(client))."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, key(purpose), *numbers))))


def client_order(ids: Sequence[str]) -> np.ndarray:
    """Positions of the clients sorted by name: the order everything is drawn and summed in, so that the order in
    which clients are listed is without effect."""
    return np.argsort(np.asarray(ids, dtype=str), kind="stable")


def cohort(seed: int, round: int, order: np.ndarray, count: int | None) -> np.ndarray:
    """Positions of this round's clients, drawn uniformly without replacement from `client_order`; None takes all."""
    if count is None or count >= len(order):
        return order
    drawn = generator(seed, "cohort", round).choice(len(order), size=count, replace=False)
    return order[np.sort(drawn)]


def present(seed: int, round: int, client_keys: Sequence[int], dropout: float) -> np.ndarray:
    """Which of the cohort stay in the round: each drops out with this probability, independently."""
    if dropout == 0:
        return np.ones(len(client_keys), dtype=bool)
    return np.array([generator(seed, "dropout", round, client).random() >= dropout for client in client_keys])


class Batches:
    """The batches of one client's local training in one round and phase: a new order of its rows every epoch."""

    def __init__(self, seed: int, round: int, client_key: int, phase: str, n: int, local: Local) -> None:
        self._rng = generator(seed, "batches", round, client_key, key(phase))
        self._source = (seed, "resample", round, client_key, key(phase))
        self._n = n
        self._size = local.batch_size or max(n, 1)

    def epoch(self) -> np.ndarray:
        """The rows' order of the next epoch [n]; batch b holds entries b*size to (b+1)*size."""
        return self._rng.permutation(self._n)

    @cached_property
    def _resampling(self) -> np.random.Generator:
        return generator(*self._source)

    def uniforms(self) -> np.ndarray:
        """Random numbers in [0, 1) for the next epoch that resamples [n]."""
        return self._resampling.random(self._n, dtype=np.float32)

    def split(self, order: np.ndarray) -> list[np.ndarray]:
        return [order[i : i + self._size] for i in range(0, self._n, self._size)]


def draws(seed: int, round: int, wanted: Mapping[str, Draw], task: Task) -> dict[str, np.ndarray]:
    """A phase's named random numbers."""
    return {
        name: np.asarray(draw.make(generator(seed, f"draw:{name}", 0 if draw.per == "run" else round), task))
        for name, draw in wanted.items()
    }


def initial(seed: int, model: int = 0) -> np.random.Generator:
    """The generator of a model's initial parameters."""
    return generator(seed, "initial", model)
