"""Losses and scores that are equal but for rounding, which must not decide who is ahead.

The losses of clients that are equal in real numbers, as all are of a model that starts at zero, differ in the last
places when they were computed in 32 bits: with the processor, the engine, and how rows are added up. So

    a and b are equal  where  |a - b| <= EQUAL max(|a|, |b|)

wherever clients, groups or models are ranked, or the best of them is taken.
"""

from __future__ import annotations

import torch
from torch import Tensor

EQUAL = 1e-5
"""A hundred roundings in 32 bits: more than a mean over a million rows goes through, and far less than what clients
differ by."""


def above(a: Tensor, b: Tensor) -> Tensor:
    """1 where a > b, -1 where a < b, 0 where they are equal, of any shapes that go together. Infinity equals itself."""
    endless = (a != b) & (a.isinf() | b.isinf())
    apart = ((a - b).abs() > EQUAL * torch.maximum(a.abs(), b.abs())) | endless
    return torch.where(apart, torch.sign(a - b), 0.0)


def first_least(values: Tensor, equal: float = EQUAL) -> Tensor:
    """The position of the least of the values [..., n]: of those that are equal to it, the first. inf: left out."""
    least = values.amin(-1, keepdim=True)
    equals = (values <= least + equal * least.abs()) | (values == least)  # infinity less itself is no number
    return equals.to(torch.int64).argmax(-1)


def first_largest(values: Tensor) -> Tensor:
    """The same of the largest; -inf: left out."""
    return first_least(-values)
