"""All randomness of a run: numbers made from (seed, purpose, round, client), with NumPy's Philox; the orders of rows in
local training, which kernels need by the million, with the keyed permutation of `equifed.shuffle`.

The simulator and a real federation call these functions with the same arguments and so see the same numbers, whatever
the order of clients, the number of processes, or where a run was resumed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from equifed import shuffle

if TYPE_CHECKING:
    from equifed.protocol import Draw, Task
    from equifed.settings import Local


def key(name: str) -> int:
    """A stable number for a name (client id, purpose), unlike Python's salted hash."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


_purpose = cache(key)
"""That of a purpose or a phase, of which there are few."""


def generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """The generator of one purpose, e.g. generator(seed, "batches", round, key(client))."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, _purpose(purpose), *numbers))))


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


def late(seed: int, round: int, step: int, client_keys: Sequence[int], dropout: float) -> np.ndarray:
    """Which of the cohort are gone between masking and unmasking, in exchange 0, 1, ... of the round."""
    return np.array([generator(seed, "dropout-late", round, step, key).random() < dropout for key in client_keys])


def batch_keys(seeds: np.ndarray | int, round: int, client_keys: np.ndarray | int, phase: str) -> np.ndarray:
    """Keys of the orders of rows in local training, of one client or of many [K], uint64."""
    return shuffle.key_of(_purpose("batches"), seeds, round, client_keys, _purpose(phase))


def dropout_keys(seeds: np.ndarray | int, round: int, client_keys: np.ndarray | int, phase: str) -> np.ndarray:
    """Keys of what dropout drops in local training, of one client or of many [K], uint64."""
    return shuffle.key_of(_purpose("dropout-masks"), seeds, round, client_keys, _purpose(phase))


def dropout_words(keys: np.ndarray, epoch: int, steps: range) -> np.ndarray:
    """Of these steps of an epoch, from 0, the keys of each client [T, K] as two words of 32 bits each, the lower one
    first, int64 [T, K, 2]."""
    numbers = np.arange(steps.start, steps.stop, dtype=np.uint64)
    found = shuffle.folded(shuffle.folded(keys, epoch), numbers[:, None])
    return np.stack([found & np.uint64(shuffle.MASK), found >> np.uint64(32)], -1).astype(np.int64)


class Batches:
    """The batches of one client's local training in one round and phase: a new order of its rows every epoch."""

    def __init__(self, seed: int, round: int, client_key: int, phase: str, n: int, local: Local) -> None:
        self._key, self._dropout = (of(seed, round, client_key, phase) for of in (batch_keys, dropout_keys))
        self._resampling = (seed, "resample", round, client_key, _purpose(phase))
        self._n, self._size = n, local.batch_size

    def order(self, epoch: int) -> np.ndarray:
        """The rows in the order of epoch 0, 1, ... [n]; where all are one batch, as they lie."""
        if self._size is None:
            return np.arange(self._n)
        return shuffle.order(int(shuffle.folded(self._key, epoch)[0]), self._n)

    def of_epoch(self, epoch: int) -> list[np.ndarray]:
        """The rows of each batch."""
        order, size = self.order(epoch), self._size or max(self._n, 1)
        return [order[i : i + size] for i in range(0, self._n, size)]

    def dropout(self, epoch: int) -> np.ndarray:
        """The key of what is dropped in each step of an epoch [T, 2]; see `dropout_words`."""
        return dropout_words(self._dropout, epoch, range(len(self.of_epoch(epoch))))[:, 0]

    def uniforms(self, epoch: int) -> np.ndarray:
        """Random numbers in [0, 1) for an epoch that resamples [n]."""
        return generator(*self._resampling, epoch).random(self._n, dtype=np.float32)


def draws(seed: int, round: int, wanted: Mapping[str, Draw], task: Task) -> dict[str, np.ndarray]:
    """A phase's named random numbers."""
    return {
        name: np.asarray(draw.make(generator(seed, f"draw:{name}", 0 if draw.per == "run" else round), task))
        for name, draw in wanted.items()
    }


def initial(seed: int, model: int = 0) -> np.random.Generator:
    """The generator of a model's initial parameters."""
    return generator(seed, "initial", model)
