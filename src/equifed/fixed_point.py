"""Fixed point: numbers as integers, whose sums are exact, the same in whatever order, and can be masked modulo 2^64.

    integer = rint(x 2^30),  where one of n clients has  |x| <= 2^32 / n
    sum = (sum of integers) / 2^30, which is at most n 2^-31 off

Integers in range add up to at most 2^62, so that no sum wraps around. What is out of range is refused, never cut. A
field of larger numbers has fewer places (`Phase.places`). Numbers of any size, such as sums of squares of raw columns,
are written as several integers each (`encode_wide`), which lose nothing.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

PLACES = 30
"""Binary places behind the point."""
_BITS = 62
"""A sum's integer is at most 2^62."""
LIMB = 40
"""Bits of each integer of a wide number: sums of 2^22 of them have 62."""
LIMBS = 8
_AT_ONCE = 2**17
"""Numbers that are made integers at once: a megabyte, which stays in the cache."""
_WIDE_PLACES = LIMB * LIMBS // 2
"""Binary places of a wide number, and as many bits before the point."""


class OutOfRange(ValueError):
    """A value that a sum of so many clients does not hold; in words that may follow the name of a field."""


def largest(clients: int, places: int = PLACES) -> float:
    """The largest absolute value that one of so many clients may have."""
    return 2.0 ** (_BITS - places) / clients


def beyond(clients: int, places: int = PLACES) -> str:
    """What is said of a larger one."""
    return f"beyond {largest(clients, places):.2g}, the most that a secure sum of {clients} clients holds"


def encode(values: Tensor, clients: int, places: int = PLACES) -> Tensor:
    """One client's values as integers [int64], floats or not; OutOfRange for what is too large, NaN or Inf."""
    if not bool((values.double().abs() <= largest(clients, places)).all()):
        raise OutOfRange(beyond(clients, places))
    return _integers(values, places)


def decode(total: Tensor, dtype: torch.dtype, places: int = PLACES) -> Tensor:
    """The values of a sum of integers, as numbers of this type."""
    return (total.double() / 2.0**places).to(dtype)


def summed(values: Tensor, axis: int, places: int = PLACES) -> Tensor:
    """The sum of clients' values along an axis, as it comes out of their integers. They are in range: see
    `equifed.bounds`. Can be vmapped."""
    clients = values.shape[axis]
    at_once = max(1, _AT_ONCE * clients // max(values.numel(), 1))
    total = sum(_integers(some, places).sum(axis) for some in values.split(at_once, axis))
    return decode(torch.as_tensor(total), values.dtype, places)


def _integers(values: Tensor, places: int) -> Tensor:
    # a product with a power of two is exact, and torch rounds halves to even, as rint does
    return values.to(torch.float64, copy=True).mul_(2.0**places).round_().to(torch.int64)


def encode_wide(values: np.ndarray, clients: int) -> np.ndarray:
    """One client's float64 values [...] as integers [..., LIMBS] (int64), the lowest bits first: below 2^160 (1e48) in
    size, and exact where they are multiples of 2^-160, as all above 1e-32 are."""
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
        rest = rest - np.ldexp(part, LIMB * limb)  # leading bits taken away: exact
    return integers


def decode_wide(total: np.ndarray) -> np.ndarray:
    """The float64 values [...] nearest to a sum of wide integers [..., LIMBS]."""
    wholes = (
        sum(int(part) << (LIMB * limb) for limb, part in enumerate(parts))
        for parts in np.asarray(total).reshape(-1, LIMBS).tolist()
    )
    nearest = [whole / (1 << _WIDE_PLACES) for whole in wholes]  # Python rounds the quotient of integers correctly
    return np.array(nearest, dtype=np.float64).reshape(np.shape(total)[:-1])
