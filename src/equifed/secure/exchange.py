"""What silos and server send each other for one sum, and the seeds that both sides derive in the same way."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from equifed.notes import Note
from equifed.secure.primitives import derive, packed
from equifed.secure.rules import threshold


class Refused(Exception):
    """Why a silo does not take part, in words that may follow "its reply"."""


class NotSummed(Exception):
    """Why the server has no sum: the round is not applied."""

    def __init__(self, note: Note) -> None:
        super().__init__(str(note))
        self.note = note


class Exchange(NamedTuple):
    """A summed exchange, of which all its silos are told alike."""

    run: str
    number: int
    """Larger for later exchanges of a run."""
    attempt: int
    """Larger when the exchange is asked anew."""
    names: tuple[str, ...]
    """The silos, sorted."""
    keys: tuple[bytes, ...]
    """Their X25519 public keys in this run, in that order."""
    planned: int
    """How many silos are to take part, with those who cannot. A silo knows it by itself, and never from the server,
    which could otherwise make sums of few silos by leaving some out of one exchange, and others out of another."""

    @property
    def threshold(self) -> int:
        return threshold(self.planned)

    def transcript(self, layout: bytes, sent: bytes) -> bytes:
        """What all masks of the exchange are bound to: silos that were told different things cannot be unmasked.

        layout: what the values are and how many. sent: the SHA-256 of what all silos got alike.
        """
        asked = packed(
            *("equifed secure sum", self.run, self.number, self.attempt),
            *(self.planned, self.names, self.keys, layout, sent),
        )
        return hashlib.sha256(asked).digest()


class Masked(NamedTuple):
    """A silo's masked reply."""

    values: np.ndarray
    """uint64 [m]."""
    commitment: bytes
    """By which the server knows that it has rebuilt the self-mask rightly."""
    shares: dict[str, bytes]
    """For each other silo, its share of the self-mask, sealed for it."""


class Told(NamedTuple):
    """A silo's answer to `unmask`."""

    shares: dict[str, bytes]
    """Of the self-mask of each silo that is still there."""
    seeds: dict[str, bytes]
    """Of the mask that it has with each silo that is gone, locked; see `lock`."""
    openers: dict[str, bytes]
    """Its part in unlocking the seeds of each other silo that is still there; none where nobody is gone."""


class Total(NamedTuple):
    numbers: np.ndarray
    """The sum modulo 2^64: uint64 [m]."""
    liars: tuple[str, ...]
    """Silos by whom false shares came, which were found and left out."""


def self_seed(secret: bytes, transcript: bytes) -> bytes:
    """Of a silo's self-mask, by its 16 secret bytes that are shared."""
    return derive(secret, "self", transcript)


def lock(openers: Sequence[bytes]) -> bytes:
    """The key by which a survivor's seeds are locked. openers: those of all other survivors, in the order of names.

    Each of them gives its opener away for one set of survivors only. Otherwise a server could name other survivors to
    each silo, have some shares of a self-mask from these and seeds from those, and so the sum of a few silos.
    """
    return derive(b"".join(openers), "lock")


def locked(seed: bytes, key: bytes, gone: str) -> bytes:
    """The seed of the mask with a silo that is gone, locked or, if it was, unlocked."""
    return bytes(one ^ other for one, other in zip(seed, derive(key, "locked", gone), strict=True))


def commitment(secret: bytes, transcript: bytes) -> bytes:
    return derive(secret, "commit", transcript)
