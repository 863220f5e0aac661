"""Selection of the largest values without sorting: a threshold ("cut"), found by counting.

A pass over the values counts those at or above a guess, several per instruction. About four passes find the cut if the
last step's cut is the guess, ten from a sample. To select half of the values, topk takes ten times as long, a sort
sixty times.

Guesses are 32-bit floats. As integers (`_place`) they have the same order, so that a bracket around the cut shrinks to
nothing even if values are equal or lie far apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from equifed.jit import kept

LOWEST, BEYOND = -0x7F800001, 0x7F800001
"""Places of minus infinity and after infinity: all values are at or above the first, none at or above the second."""
NEAR = 1 << 14
"""Distance between a wrong guess and the next one, in places: about 0.2 % of a number."""
SAMPLE = 256
"""Number of values from which the first guess is computed."""

f32, i32, i64 = np.float32, np.int32, np.int64
_compiled = kept(nogil=True, boundscheck=False, error_model="numpy")
_inlined: Any = njit(inline="always", boundscheck=False, error_model="numpy")


@_inlined
def _place(value):  # type: ignore[no-untyped-def]
    bits = f32(value).view(np.int32)
    return i64(bits if bits >= 0 else bits ^ i32(0x7FFFFFFF))


@_inlined
def _number(place):  # type: ignore[no-untyped-def]
    bits = i32(place)
    return i32(bits if bits >= 0 else bits ^ i32(0x7FFFFFFF)).view(np.float32)


@_compiled
def _count(values, cut):  # type: ignore[no-untyped-def]
    count = i32(0)
    for i in range(len(values)):
        count += i32(not (values[i] < cut))  # NaN is above all, as in a sort
    return i64(count)


@_compiled
def cut_near(guess, values, number):  # type: ignore[no-untyped-def]
    """Return a cut with `number` of the float32 values [n] at or above it. If equal values make that impossible, the
    largest cut with more: values >= cut are always those at least as large as the value of this rank."""
    low, high, many, few = i64(LOWEST), i64(BEYOND), i64(len(values)), i64(0)
    place, step, turn = min(max(_place(guess), low + 1), high - 1), i64(NEAR), 0
    while True:
        cut = _number(place)
        count = _count(values, cut)
        if count == number:
            return cut
        if count > number:
            low, many = place, count
        else:
            high, few = place, count
        if high - low <= 1:
            return _number(low)
        if low == LOWEST:  # all cuts so far were too high
            place, step = max(high - step, low + 1), 8 * step
        elif high == BEYOND:
            place, step = min(low + step, high - 1), 8 * step
        else:
            # interpolate as if the values were spread evenly, and bisect every third time
            share = 0.5 if turn % 3 == 2 else (many - number + 0.5) / (many - few)
            place, turn = min(max(low + i64(share * (high - low)), low + 1), high - 1), turn + 1


@_compiled
def _cuts(values, number, cuts):  # type: ignore[no-untyped-def]
    n = values.shape[1]
    size = min(n, SAMPLE)
    sample = np.empty(size, f32)
    for row in range(len(values)):
        for i in range(size):
            sample[i] = values[row, i * (n // size)]
        sample.sort()
        guess = sample[max(size - 1 - (number[row] - 1) * size // n, 0)]
        cuts[row] = cut_near(guess, values[row], number[row])


# -- as an operation of torch ------------------------------------------------------------------------------------------


def cut(values: Tensor, number: Tensor) -> Tensor:
    """Return the cut (see `cut_near`) of each row of float32 values [..., n], `number` [...]; works in vmap and
    traces, too."""
    result: Tensor = torch.ops.equifed.cut.default(values, number)
    return result


def _on_cpu(values: Tensor, number: Tensor) -> Tensor:
    cuts = values.new_empty(values.shape[:-1])
    lines = values.contiguous().view(-1, values.shape[-1])
    _cuts(lines.numpy(), number.expand(cuts.shape).contiguous().view(-1).numpy(), cuts.view(-1).numpy())
    return cuts


def _shape_only(values: Tensor, number: Tensor) -> Tensor:
    return values.new_empty(values.shape[:-1])


def _vmapped(info: Any, in_dims: tuple[int | None, int | None], values: Tensor, number: Tensor) -> tuple[Tensor, int]:
    of_values, of_number = in_dims
    values = values.expand(info.batch_size, *values.shape) if of_values is None else values.movedim(of_values, 0)
    number = number.expand(info.batch_size, *number.shape) if of_number is None else number.movedim(of_number, 0)
    # repeat a lane's number for each of its rows
    number = number.reshape(*number.shape, *(1,) * (values.dim() - 1 - number.dim()))
    return cut(values, number), 0


# not torch.library.custom_op, whose first call imports the compiler
_library = torch.library.Library("equifed", "DEF")
_library.define("cut(Tensor values, Tensor number) -> Tensor")
_library.impl("cut", _on_cpu, "CPU")
_library.impl("cut", _shape_only, "Meta")
torch.library.register_vmap("equifed::cut", _vmapped, lib=_library)
