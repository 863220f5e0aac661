"""Fixed point: numbers as integers, with sums that are exact, independent of their order, and maskable modulo 2^64.

    integer = rint(x 2^30),  with |x| <= 2^32 / n for each of n clients
    sum = (sum of integers) / 2^30, with an error of at most n 2^-31

Integers in range add up to at most 2^62, so that no sum wraps around. A value out of range is refused, never cut. A
field with larger numbers has fewer places (`Phase.places`). Numbers of any size, such as sums of squares of raw
columns, are encoded as several integers each (`encode_wide`), without loss.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

PLACES = 30
"""Binary places after the point."""
_BITS = 62
"""Bits of the largest integer of a sum, 2^62."""
LIMB = 40
"""Bits of each integer of a wide number: sums of 2^22 of them have 62."""
LIMBS = 8
"""Integers of a wide number."""
_AT_ONCE = 2**17
"""Numbers converted to integers at once: a megabyte, which stays in the cache."""
_WIDE_PLACES = LIMB * LIMBS // 2
"""Binary places of a wide number, and as many bits before the point."""


class OutOfRange(ValueError):
    """A value that is too large for the secure sum. Its text may follow the name of a field."""


def largest(clients: int, places: int = PLACES) -> float:
    """Return the largest absolute value that each of `clients` clients may send."""
    return 2.0 ** (_BITS - places) / clients


def describe_limit(clients: int, places: int = PLACES) -> str:
    """Return the reason for refusing a larger value."""
    return f"beyond {largest(clients, places):.2g}, the most that a secure sum of {clients} clients holds"


def encode(values: Tensor, clients: int, places: int = PLACES) -> Tensor:
    """Return one client's values (floats or integers) as int64; raise OutOfRange for too large values, NaN or Inf."""
    if not bool((values.double().abs() <= largest(clients, places)).all()):
        raise OutOfRange(describe_limit(clients, places))
    return _integers(values, places)


def decode(total: Tensor, dtype: torch.dtype, places: int = PLACES) -> Tensor:
    """Return the values of a sum of integers, in this dtype."""
    return (total.double() / 2.0**places).to(dtype)


def sum_exactly(values: Tensor, axis: int, places: int = PLACES) -> Tensor:
    """Return the sum of the clients' values along an axis, computed with integers. `equifed.bounds` has checked that
    they are in range. Can be vmapped."""
    clients = values.shape[axis]
    at_once = max(1, _AT_ONCE * clients // max(values.numel(), 1))
    total = sum(_integers(some, places).sum(axis) for some in values.split(at_once, axis))
    return decode(torch.as_tensor(total), values.dtype, places)


def _integers(values: Tensor, places: int) -> Tensor:
    # a product with a power of two is exact, and torch rounds halves to even, as rint does
    return values.to(torch.float64, copy=True).mul_(2.0**places).round_().to(torch.int64)


def encode_wide(values: np.ndarray, clients: int) -> np.ndarray:
    """Return one client's float64 values [...], below 2^160 (1e48) in size, as int64 [..., LIMBS], the lowest bits
    first. Multiples of 2^-160, such as all values above 1e-32, are exact."""
    if clients > 2 ** (_BITS - LIMB):
        raise OutOfRange(f"cannot be summed over more than {2 ** (_BITS - LIMB):,} clients")
    values = np.asarray(values, dtype=np.float64)
    if not (np.abs(values) < 2.0**_WIDE_PLACES).all():
        raise OutOfRange(f"beyond {2.0**_WIDE_PLACES:.2g}, the most that a secure sum holds")
    rest = np.rint(np.ldexp(values, _WIDE_PLACES))
    integers = np.zeros((*values.shape, LIMBS), dtype=np.int64)
    for limb in reversed(range(LIMBS)):
        part = np.trunc(np.ldexp(rest, -LIMB * limb))
        integers[..., limb] = part
        rest = rest - np.ldexp(part, LIMB * limb)  # exact: removes the leading bits
    return integers


def decode_wide(total: np.ndarray) -> np.ndarray:
    """Return the float64 values [...] nearest to a sum of wide integers [..., LIMBS]."""
    wholes = (
        sum(int(part) << (LIMB * limb) for limb, part in enumerate(parts))
        for parts in np.asarray(total).reshape(-1, LIMBS).tolist()
    )
    nearest = [whole / (1 << _WIDE_PLACES) for whole in wholes]  # Python rounds the quotient of integers correctly
    return np.array(nearest, dtype=np.float64).reshape(np.shape(total)[:-1])
