"""Shamir's secret sharing modulo the prime 2^130 - 5: any `threshold` shares give the secret, fewer disclose nothing.

Silo number i (from 0) of an exchange holds the polynomial's value at i + 1; the secret is its value at 0.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from functools import cache

from equifed.secure.rules import SHARE

PRIME = 2**130 - 5
SECRET = 16
"""Bytes of a secret; every secret is below the prime."""


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Split a secret into shares for `count` holders."""
    if len(secret) != SECRET or not 1 <= threshold <= count:
        raise ValueError(f"{len(secret)} bytes cannot be shared among {count} by a threshold of {threshold}")
    coefficients = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [_value(coefficients, point).to_bytes(SHARE, "big") for point in range(1, count + 1)]


def _value(coefficients: Sequence[int], point: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % PRIME
    return value


def read(share: bytes) -> int | None:
    """Return the number of a share; None if it is not a possible share."""
    value = int.from_bytes(share, "big") if len(share) == SHARE else PRIME
    return value if value < PRIME else None


class Interpolation:
    """The polynomial of least degree through values at these points. Terms that depend only on the points are computed
    once for all secrets with shares held by the same silos."""

    def __init__(self, points: Sequence[int]) -> None:
        self._points = points
        differences = ([point - other for other in points if other != point] for point in points)
        self._nodes = [pow(math.prod(each), -1, PRIME) for each in differences]
        self._weights: dict[int, list[int]] = {}

    def value(self, values: Sequence[int], at: int = 0) -> int:
        """Return the polynomial's value at a place other than the points; the value at 0 is the secret."""
        if at not in self._weights:
            whole = math.prod(at - point for point in self._points) % PRIME
            self._weights[at] = [
                whole * node * _inverse(at - point) % PRIME
                for point, node in zip(self._points, self._nodes, strict=True)
            ]
        return sum(weight * value for weight, value in zip(self._weights[at], values, strict=True)) % PRIME


@cache
def _inverse(difference: int) -> int:
    return pow(difference, -1, PRIME)
