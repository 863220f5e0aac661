"""Dropout with masks that are a function of a key, not random draws, so that every engine and every silo drops the same
units, and a resumed run continues with the same bits.

A step of local training has a key of 64 bits (`randomness.dropout_keys`), as two words (a, b) of 32 bits. The c-th call
of a dropout layer in a forward pass, c = 0, 1, ..., drops the unit at position (i_0, i_1, ...) of its input, i_0 being
the row's place in the batch, where

    mix(h_0(i_0) ^ h_1(i_1) ^ ...) < p 2^32        h_j(i) = mix(i ^ mix(a ^ mix(b ^ (16 c + j))))

and multiplies the others by 1 / (1 - p). mix, a bijection of 32 bits that changes half of them whenever one changes, is

    x ^= x >> 16;  x *= 0x21F0AAAD;  x ^= x >> 15;  x *= 0x735A2D97;  x ^= x >> 15        (mod 2^32)

All of it is integer arithmetic on tensors, the same under vmap, in traced and compiled steps and on a GPU. Each axis
has its own hash, so that the mask of a unit does not depend on the number of padding rows. Layers that drop whole
channels (`nn.Dropout2d`) omit the axes after the channel's.

Without a key, outside the steps of local training, nothing is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import reduce
from operator import xor

import torch
from torch import Tensor, nn

MASK = 0xFFFFFFFF
MOST_AXES = 16
"""Largest number of axes of an input; a call's number is multiplied by it."""
KINDS: dict[type[nn.Module], bool] = {
    nn.Dropout: False,
    nn.Dropout1d: True,
    nn.Dropout2d: True,
    nn.Dropout3d: True,
}
"""Layers of torch that are replaced; True if they drop whole channels."""


class _Active(threading.local):
    """The masks of a thread's current forward pass."""

    masks: Masks | None = None


_active = _Active()


class Masks:
    """The masks of one forward pass: each call of a layer takes the next."""

    def __init__(self, key: Tensor) -> None:
        self.key, self.calls = key, 0

    def take(self, shape: tuple[int, ...], p: float) -> Tensor:
        """Return the factors for units of this shape: 0 or 1 / (1 - p)."""
        call, self.calls = self.calls, self.calls + 1
        a, b = self.key[0], self.key[1]
        parts = []
        for axis, size in enumerate(shape):
            place = torch.arange(size, device=self.key.device)
            hashed = mix(place ^ mix(a ^ mix(b ^ (MOST_AXES * call + axis))))
            parts.append(hashed.reshape(-1, *(1,) * (len(shape) - 1 - axis)))
        kept = mix(reduce(xor, parts)) >= round(p * 2**32)
        return kept.to(torch.float32) / (1 - p)


def mix(value: Tensor) -> Tensor:
    """Return the image of 32 bits under the bijection, in int64, where its products do not overflow."""
    value = ((value ^ (value >> 16)) * 0x21F0AAAD) & MASK
    value = ((value ^ (value >> 15)) * 0x735A2D97) & MASK
    return value ^ (value >> 15)


@contextmanager
def use_dropout(key: Tensor) -> Iterator[None]:
    """Drop units by this key [2] in all layers of this thread inside."""
    _active.masks = Masks(key)
    try:
        yield
    finally:
        _active.masks = None


class SeededDropout(nn.Module):
    """A replacement for torch's dropout layers."""

    def __init__(self, p: float, channels: bool = False) -> None:
        super().__init__()
        self.p, self.channels = p, channels

    def forward(self, x: Tensor) -> Tensor:
        masks = _active.masks
        if masks is None:
            return x
        behind = x.dim() - 2 if self.channels else 0
        shape = (*x.shape[: x.dim() - behind], *(1,) * behind)
        return x * masks.take(tuple(shape), self.p).to(x.dtype)

    def extra_repr(self) -> str:
        return f"p={self.p}" + ", channels=True" * self.channels


def replace_dropout(module: nn.Module, keep: Collection[int]) -> None:
    """Replace the module's dropout layers, except those with an `id` in `keep`."""
    for name, part in module._modules.items():
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0 and id(part) not in keep:
            setattr(module, name, SeededDropout(part.p, KINDS[type(part)]))
        elif part is not None:
            replace_dropout(part, keep)


def has_dropout(module: nn.Module) -> bool:
    """Return True if the prepared module has a dropout layer."""
    return any(isinstance(part, SeededDropout) for part in module.modules())
