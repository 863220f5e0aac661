"""All randomness of a run: numbers drawn from (seed, purpose, round, client) with NumPy's Philox; the orders of rows in
local training, which kernels need by the million, with the keyed permutation of `equifed.shuffle`.

The simulator and a real federation call these functions with the same arguments and get the same numbers, regardless
of the order of clients, the number of processes, and interruptions of the run.
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
    """Return a stable number for a name (client id, purpose), unlike Python's salted hash."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


_purpose = cache(key)
"""Cached `key` of a purpose or a phase, of which there are few."""


def generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """Return the generator for one purpose, e.g. generator(seed, "batches", round, key(client))."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, _purpose(purpose), *numbers))))


def client_order(ids: Sequence[str]) -> np.ndarray:
    """Return the clients' positions sorted by name. Clients are drawn and summed in this order, so that the order in
    which they are listed has no effect."""
    return np.argsort(np.asarray(ids, dtype=str), kind="stable")


def draw_cohort(seed: int, round: int, order: np.ndarray, count: int | None) -> np.ndarray:
    """Draw the positions of this round's clients uniformly without replacement from `client_order`; None takes all."""
    if count is None or count >= len(order):
        return order
    drawn = generator(seed, "cohort", round).choice(len(order), size=count, replace=False)
    return order[np.sort(drawn)]


def draw_present(seed: int, round: int, client_keys: Sequence[int], dropout: float) -> np.ndarray:
    """Draw the clients of the cohort that stay in the round, as booleans: each drops out with this probability."""
    if dropout == 0:
        return np.ones(len(client_keys), dtype=bool)
    return np.array([generator(seed, "dropout", round, client).random() >= dropout for client in client_keys])


def draw_late(seed: int, round: int, step: int, client_keys: Sequence[int], dropout: float) -> np.ndarray:
    """Draw the clients that drop out between masking and unmasking, as booleans, in exchange 0, 1, ... of the round."""
    return np.array([generator(seed, "dropout-late", round, step, key).random() < dropout for key in client_keys])


def batch_keys(seeds: np.ndarray | int, round: int, client_keys: np.ndarray | int, phase: str) -> np.ndarray:
    """Return the keys of the orders of rows in local training, for one client or many [K], uint64."""
    return shuffle.key_of(_purpose("batches"), seeds, round, client_keys, _purpose(phase))


def dropout_keys(seeds: np.ndarray | int, round: int, client_keys: np.ndarray | int, phase: str) -> np.ndarray:
    """Return the keys of dropout in local training, for one client or many [K], uint64."""
    return shuffle.key_of(_purpose("dropout-masks"), seeds, round, client_keys, _purpose(phase))


def dropout_words(keys: np.ndarray, epoch: int, steps: range) -> np.ndarray:
    """Return the clients' dropout keys [T, K] for these steps of an epoch, counted from 0, as two 32-bit words each,
    the lower one first, int64 [T, K, 2]."""
    numbers = np.arange(steps.start, steps.stop, dtype=np.uint64)
    found = shuffle.fold(shuffle.fold(keys, epoch), numbers[:, None])
    return np.stack([found & np.uint64(shuffle.MASK), found >> np.uint64(32)], -1).astype(np.int64)


class Batches:
    """The batches of one client's local training in one round and phase: a new order of its rows every epoch."""

    def __init__(self, seed: int, round: int, client_key: int, phase: str, n: int, local: Local) -> None:
        self._key, self._dropout = (of(seed, round, client_key, phase) for of in (batch_keys, dropout_keys))
        self._resampling = (seed, "resample", round, client_key, _purpose(phase))
        self._n, self._size = n, local.batch_size

    def order(self, epoch: int) -> np.ndarray:
        """Return the rows in the order of epoch 0, 1, ... [n]; not shuffled if all rows are one batch."""
        if self._size is None:
            return np.arange(self._n)
        return shuffle.order(int(shuffle.fold(self._key, epoch)[0]), self._n)

    def of_epoch(self, epoch: int) -> list[np.ndarray]:
        """Return the rows of each batch."""
        order, size = self.order(epoch), self._size or max(self._n, 1)
        return [order[i : i + size] for i in range(0, self._n, size)]

    def dropout(self, epoch: int) -> np.ndarray:
        """Return the dropout key of each step of an epoch [T, 2]; see `dropout_words`."""
        return dropout_words(self._dropout, epoch, range(len(self.of_epoch(epoch))))[:, 0]

    def uniforms(self, epoch: int) -> np.ndarray:
        """Return random numbers in [0, 1) for an epoch that resamples [n]."""
        return generator(*self._resampling, epoch).random(self._n, dtype=np.float32)


def make_draws(seed: int, round: int, wanted: Mapping[str, Draw], task: Task) -> dict[str, np.ndarray]:
    """Draw a phase's named random numbers."""
    return {
        name: np.asarray(draw.make(generator(seed, f"draw:{name}", 0 if draw.per == "run" else round), task))
        for name, draw in wanted.items()
    }


def initial_generator(seed: int, model: int = 0) -> np.random.Generator:
    """Return the generator for a model's initial parameters."""
    return generator(seed, "initial", model)
