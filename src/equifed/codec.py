"""How fields of a message are written in fewer bits than their tensors have. What is counted is what is sent.

A ranking of n edges costs ceil(log2 n) bits per edge, a mask one bit per edge. Every tensor starts at a whole byte;
within it, values follow each other bit by bit, the lowest bit first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import numpy as np

from equifed.errors import DataError


class Codec(Protocol):
    """Writes one tensor of a field; its shape and type are known to both sides."""

    def size(self, shape: Sequence[int]) -> int:
        """Bytes of a tensor of this shape: the length of what `encode` returns."""
        ...

    def encode(self, values: np.ndarray) -> bytes: ...
    def decode(self, content: bytes, shape: Sequence[int]) -> np.ndarray: ...


class Ranking:
    """Orders of n edges [..., n]: every number below n once; decoded as int32."""

    def size(self, shape: Sequence[int]) -> int:
        return packed_size(math.prod(shape), self._bits(shape))

    def encode(self, values: np.ndarray) -> bytes:
        return pack(values, self._bits(values.shape))

    def decode(self, content: bytes, shape: Sequence[int]) -> np.ndarray:
        order = unpack(content, self._bits(shape), math.prod(shape)).astype(np.int32).reshape(tuple(shape))
        seen = np.zeros(order.shape, dtype=np.bool_)
        if order.max(initial=0) < shape[-1]:
            np.put_along_axis(seen, order, True, axis=-1)
        if not seen.all():
            raise DataError("A packed ranking does not have every position once.")
        return order

    @staticmethod
    def _bits(shape: Sequence[int]) -> int:
        return max(shape[-1] - 1, 1).bit_length()


class Mask:
    """True or false; decoded as bool."""

    def size(self, shape: Sequence[int]) -> int:
        return packed_size(math.prod(shape), 1)

    def encode(self, values: np.ndarray) -> bytes:
        return np.packbits(np.asarray(values) != 0, bitorder="little").tobytes()

    def decode(self, content: bytes, shape: Sequence[int]) -> np.ndarray:
        _check_length(content, self.size(shape))
        bits = np.unpackbits(np.frombuffer(content, np.uint8), count=math.prod(shape), bitorder="little")
        return bits.astype(np.bool_).reshape(tuple(shape))


CodecName = Literal["ranking", "mask"]
CODECS: Mapping[str, Codec] = {"ranking": Ranking(), "mask": Mask()}
"""By the name that a phase gives in `codecs`."""


def packed_size(count: int, bits: int) -> int:
    """Bytes of so many values of so many bits each."""
    return -(-count * bits // 8)


def pack(values: np.ndarray, bits: int) -> bytes:
    """Non-negative integers below 2^bits, bits <= 24, one after the other."""
    flat = np.asarray(values).reshape(-1)
    if not 1 <= bits <= 24:
        raise DataError(f"Values of {bits} bits cannot be packed; 1 to 24 can.")
    if len(flat) and not (flat.min() >= 0 and int(flat.max()) < 1 << bits):
        raise DataError(f"Values from {flat.min()} to {flat.max()} do not fit into {bits} bits each.")
    places = np.unpackbits(flat.astype("<u4")[:, None].view(np.uint8), axis=1, count=bits, bitorder="little")
    return np.packbits(places, bitorder="little").tobytes()


def unpack(content: bytes, bits: int, count: int) -> np.ndarray:
    """The inverse of `pack`: `count` values as uint32."""
    _check_length(content, packed_size(count, bits))
    places = np.unpackbits(np.frombuffer(content, np.uint8), count=count * bits, bitorder="little")
    octets = np.packbits(places.reshape(count, bits), axis=1, bitorder="little")
    return np.pad(octets, ((0, 0), (0, 4 - octets.shape[1]))).view("<u4").reshape(-1)


def _check_length(content: bytes, expected: int) -> None:
    if len(content) != expected:
        raise DataError(f"A packed field has {len(content)} bytes where {expected} belong.")
