"""The messages of silos and server for one sum, and the seeds that both sides derive in the same way."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from equifed.notes import Note
from equifed.secure.primitives import derive, pack
from equifed.secure.rules import threshold


class Refused(Exception):
    """A silo's refusal to take part. Its text may follow "its reply"."""


class NotSummed(Exception):
    """The reason why the server has no sum: the round is not applied."""

    def __init__(self, note: Note) -> None:
        super().__init__(str(note))
        self.note = note


class Exchange(NamedTuple):
    """A summed exchange, with the same description for all its silos."""

    run: str
    number: int
    """Number of the exchange; it grows within a run."""
    attempt: int
    """Number of the attempt; it grows when the exchange is repeated."""
    names: tuple[str, ...]
    """Names of the silos, sorted."""
    keys: tuple[bytes, ...]
    """X25519 public keys of the silos in this run, in that order."""
    planned: int
    """Number of planned silos, including unavailable ones. A silo computes it itself and never takes it from the
    server, which could otherwise obtain sums of few silos by leaving out different silos in different exchanges."""

    @property
    def threshold(self) -> int:
        return threshold(self.planned)

    def transcript(self, layout: bytes, sent: bytes) -> bytes:
        """Return the digest to which all masks of the exchange are bound: silos that received different messages cannot
        be unmasked.

        layout: the kind and number of the values. sent: the SHA-256 of the message to all silos.
        """
        asked = pack(
            *("equifed secure sum", self.run, self.number, self.attempt),
            *(self.planned, self.names, self.keys, layout, sent),
        )
        return hashlib.sha256(asked).digest()


class Masked(NamedTuple):
    """A silo's masked reply."""

    values: np.ndarray
    """Masked values, uint64 [m]."""
    commitment: bytes
    """Commitment by which the server checks the rebuilt self-mask."""
    shares: dict[str, bytes]
    """Sealed share of the self-mask for each other silo."""


class UnmaskReply(NamedTuple):
    """A silo's reply to `unmask`."""

    shares: dict[str, bytes]
    """Shares of the self-masks of the surviving silos."""
    seeds: dict[str, bytes]
    """Locked seeds of its masks with the silos that dropped out; see `lock_key`."""
    openers: dict[str, bytes]
    """Its part of the keys to the seeds of the other survivors; empty if no silo dropped out."""


class Total(NamedTuple):
    """The sum over the silos of an exchange."""

    numbers: np.ndarray
    """Sum modulo 2^64, uint64 [m]."""
    faulty: tuple[str, ...]
    """Silos that sent false shares, which were detected and ignored."""


def self_seed(secret: bytes, transcript: bytes) -> bytes:
    """Return the seed of a silo's self-mask, from its 16 shared secret bytes."""
    return derive(secret, "self", transcript)


def lock_key(openers: Sequence[bytes]) -> bytes:
    """Return the key that locks a survivor's seeds. openers: those of all other survivors, in the order of names.

    Each survivor discloses its opener for one set of survivors only. Otherwise a server could name different survivors
    to different silos, get shares of a self-mask from some and seeds from others, and so the sum of a few silos.
    """
    return derive(b"".join(openers), "lock")


def lock_seed(seed: bytes, key: bytes, gone: str) -> bytes:
    """Lock the seed of the mask with a silo that dropped out, or unlock a locked one."""
    return bytes(one ^ other for one, other in zip(seed, derive(key, "locked", gone), strict=True))


def commitment(secret: bytes, transcript: bytes) -> bytes:
    """Return the commitment to the secret of a self-mask."""
    return derive(secret, "commit", transcript)
