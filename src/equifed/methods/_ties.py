"""Comparison of losses and scores that treats values as equal if they differ only by rounding.

Losses that are equal in real numbers, as all clients' are for a model that starts at zero, differ in the last digits
when computed in 32 bits, depending on the processor, the engine, and the order of additions. So

    a and b are equal  if  |a - b| <= EQUAL max(|a|, |b|)

whenever clients, groups or models are ranked, or the best of them is taken.
"""

from __future__ import annotations

import torch
from torch import Tensor

EQUAL = 1e-5
"""Relative difference of values that count as equal, a hundred roundings in 32 bits: more than the error of a mean over
a million rows, and far less than real differences between clients."""


def compare(a: Tensor, b: Tensor) -> Tensor:
    """Return 1 for a > b, -1 for a < b and 0 for equal values, with broadcasting. Infinity equals itself."""
    endless = (a != b) & (a.isinf() | b.isinf())
    apart = ((a - b).abs() > EQUAL * torch.maximum(a.abs(), b.abs())) | endless
    return torch.where(apart, torch.sign(a - b), 0.0)


def first_least(values: Tensor, equal: float = EQUAL) -> Tensor:
    """Return the position of the least of the values [..., n]; of equal ones, the first. inf: ignored."""
    least = values.amin(-1, keepdim=True)
    equals = (values <= least + equal * least.abs()) | (values == least)  # inf - inf is nan
    return equals.to(torch.int64).argmax(-1)


def first_largest(values: Tensor) -> Tensor:
    """Return the position of the largest of the values [..., n]; of equal ones, the first. -inf: ignored."""
    return first_least(-values)
