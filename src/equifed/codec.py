"""Codecs that write fields of a message in fewer bits than their tensors have. Message sizes count the encoded bytes.

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
    """An encoder of one tensor of a field; both sides know its shape and dtype."""

    def size(self, shape: Sequence[int]) -> int:
        """Return the number of bytes that `encode` returns for a tensor of this shape."""
        ...

    def encode(self, values: np.ndarray) -> bytes: ...
    def decode(self, content: bytes, shape: Sequence[int]) -> np.ndarray: ...


class RankingCodec:
    """A codec for orders of n edges [..., n], which have every number below n once; decoded as int32."""

    def size(self, shape: Sequence[int]) -> int:
        return packed_size(math.prod(shape), self._bits(shape))

    def encode(self, values: np.ndarray) -> bytes:
        return pack(values, self._bits(values.shape))

    def decode(self, content: bytes, shape: Sequence[int]) -> np.ndarray:
        found = unpack(content, self._bits(shape), math.prod(shape)).astype(np.int32).reshape(tuple(shape))
        seen = np.zeros((found.size // max(shape[-1], 1), shape[-1]), dtype=np.bool_)
        if found.max(initial=0) < max(shape[-1], 1):
            np.put_along_axis(seen, found.reshape(seen.shape), True, axis=1)
        if not seen.all():
            raise DataError("A packed ranking does not have every position once.")
        return found

    @staticmethod
    def _bits(shape: Sequence[int]) -> int:
        return max(shape[-1] - 1, 1).bit_length()


class MaskCodec:
    """A codec for booleans; decoded as bool."""

    def size(self, shape: Sequence[int]) -> int:
        return packed_size(math.prod(shape), 1)

    def encode(self, values: np.ndarray) -> bytes:
        return np.packbits(np.asarray(values).reshape(-1) != 0, bitorder="little").tobytes()

    def decode(self, content: bytes, shape: Sequence[int]) -> np.ndarray:
        count = math.prod(shape)
        _check_length(content, self.size(shape))
        bits = np.unpackbits(np.frombuffer(content, np.uint8), count=count, bitorder="little")
        return bits.astype(np.bool_).reshape(tuple(shape))


CodecName = Literal["ranking", "mask"]
CODECS: Mapping[str, Codec] = {"ranking": RankingCodec(), "mask": MaskCodec()}
"""Codecs by the name that a phase gives in `codecs`."""


def packed_size(count: int, bits: int) -> int:
    """Return the number of bytes of `count` values with `bits` bits each."""
    return -(-count * bits // 8)


def pack(values: np.ndarray, bits: int) -> bytes:
    """Pack non-negative integers below 2^bits, bits <= 24, one after the other.

    Eight values fill `bits` bytes; all groups of eight are written together, byte by byte.
    """
    flat = np.asarray(values).reshape(-1)
    if len(flat) and not (flat.min() >= 0 and int(flat.max()) < 1 << bits):
        raise DataError(f"Values from {flat.min()} to {flat.max()} do not fit into {bits} bits each.")
    groups = -(-len(flat) // 8)
    padded = np.zeros(groups * 8, dtype=np.uint32)
    padded[: len(flat)] = flat
    lines = np.ascontiguousarray(padded.reshape(groups, 8).T)
    out = np.zeros((bits, groups), dtype=np.uint8)
    for place, byte, shift in _overlaps(bits):
        part = lines[place] >> shift if shift >= 0 else lines[place] << -shift
        out[byte] |= part.astype(np.uint8)
    return np.ascontiguousarray(out.T).tobytes()[: packed_size(len(flat), bits)]


def unpack(content: bytes, bits: int, count: int) -> np.ndarray:
    """Return `count` values as uint32: the inverse of `pack`."""
    overlaps = _overlaps(bits)
    _check_length(content, packed_size(count, bits))
    groups = -(-count // 8)
    padded = np.zeros(groups * bits, dtype=np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    lines = np.ascontiguousarray(padded.reshape(groups, bits).T)
    out = np.zeros((8, groups), dtype=np.uint32)
    for place, byte, shift in overlaps:
        part = lines[byte].astype(np.uint32)
        out[place] |= part << shift if shift >= 0 else part >> -shift
    out &= np.uint32((1 << bits) - 1)
    return np.ascontiguousarray(out.T).reshape(-1)[:count]


def _overlaps(bits: int) -> list[tuple[int, int, int]]:
    """Return (value, byte, shift) for a group of eight values: the byte holds the value's bits from `shift` on (below
    0: the value starts that many bits inside it)."""
    if not 1 <= bits <= 24:
        raise DataError(f"Values of {bits} bits cannot be packed; 1 to 24 can.")
    return [
        (place, byte, 8 * byte - place * bits)
        for place in range(8)
        for byte in range(place * bits // 8, ((place + 1) * bits - 1) // 8 + 1)
    ]


def _check_length(content: bytes, expected: int) -> None:
    if len(content) != expected:
        raise DataError(f"A packed field has {len(content)} bytes instead of {expected}.")
