"""The fused kernel for the CPU: one compiled loop that takes a lane through all steps of its local training.

The lane's weights stay in the core's cache, its rows are read in place, and nothing else is written. Vectors are
padded to whole SIMD registers; padding is zero in weights, activations and gradients, and so remains zero.

The loop itself is in `cpu_loop`; `native` stores it as machine code. Lanes are independent, so they are distributed
over threads and the results do not depend on the number of threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from equifed.simulator.fused.native import Native
from equifed.simulator.fused.problem import LOSSES, Network, Problem
from equifed.simulator.threads import share_out

LANES = 16
"""Vectors are padded to multiples of this many numbers: one or two SIMD registers."""
NARROW = 8
"""Number of outputs below which a layer is stored as one vector of inputs per output, not of outputs per input."""
TILE = 64
"""Number of rows that pass through the network at a time."""
PIECES = 8
"""Number of shares of the lanes per thread."""
PER_ROW = 100
"""Overhead of a row, counted in multiplications."""
SMALLEST = 200_000
"""Multiplications below which passing a share to a thread costs more than it gains."""


f32, i32, i64, u32, u64 = np.float32, np.int32, np.int64, np.uint32, np.uint64

INTEGER, NUMBER = (i64, 0), (f32, 0)
_lanes = Native(
    *("cpu_loop", "lanes"),
    *((u64, 2), (u64, 1), INTEGER, INTEGER, NUMBER, NUMBER, NUMBER, INTEGER, INTEGER, INTEGER),  # layers to last_epoch
    *((f32, 1), INTEGER, (f32, 1), (i32, 1), (i64, 1), (i64, 1), (u64, 1), (f32, 2), (f32, 2)),  # x to factor
    *((f32, 3), (f32, 2), (f32, 3), (f32, 3), (i32, 2), (f32, 3), (f32, 4), (i64, 1)),  # weights to taken
    *((i32, 1), (u32, 1), (u32, 1), (i64, 1), (u64, 1), (u64, 1)),  # order to starts
    *(*[(f32, 1)] * 5, *[(f32, 2)] * 4, (f32, 3)),  # values to s
    *(INTEGER, INTEGER),  # begin, end
)
_orders = Native("cpu_loop", "orders", (u64, 1), (i64, 1), (u32, 1), (u32, 1), (i32, 2), INTEGER)


# -- layout ------------------------------------------------------------------------------------------------------------

INPUTS, OUTPUTS, IN_STRIDE, OUT_STRIDE, WEIGHT, HAS_BIAS, BIAS, BY_OUTPUT, ACTIVATION, VALUES = range(10)
"""Columns of the table of layers: sizes, padded sizes, start of weight and bias in the padded vector, 1 if the weight
is stored by output, the activation that follows (0: none), start of the outputs. All are unsigned, because numba takes
a signed index as possibly negative, counted from the end, and then cannot use vectors."""


def layout(network: Network) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Return the table of layers, each parameter's place in the padded vector, the length of that vector, and the
    length of all activations of a row."""

    def padded(width: int) -> int:
        return -(-width // LANES) * LANES

    layers, places = [], []
    position, values, last = 0, padded(network.widths[0]), len(network.biases) - 1
    for number, bias in enumerate(network.biases):
        inputs, outputs = network.widths[number : number + 2]
        by_output = outputs < NARROW
        stride = padded(inputs)
        out_stride = outputs if number == last and by_output else padded(outputs)
        o, i = np.indices((outputs, inputs))
        places.append(position + (o * stride + i if by_output else i * out_stride + o))
        start, position = position, position + (outputs * stride if by_output else inputs * out_stride)
        if bias:
            places.append(position + np.arange(outputs))
        at, position = position, position + (padded(outputs) if bias else 0)
        activation = 0 if number == last else network.activations[number]
        layers.append((inputs, outputs, stride, out_stride, start, bias, at, by_output, activation, values))
        values += out_stride
    place = np.concatenate([part.reshape(-1) for part in places])
    return np.array(layers, np.uint64), place.astype(np.uint64), position, values


# -- lanes -------------------------------------------------------------------------------------------------------------


def obstacle(network: Network) -> str:
    """Return why this kernel cannot train a network: empty, because it can train all."""
    return ""


def features(x: Tensor) -> Tensor:
    """Pad rows [rows, inputs] to whole vectors with zeros, so that they can be read in place. They are returned
    unchanged if that would take half as much memory again, or more: the loop then pads a few at a time."""
    short = -x.shape[1] % LANES
    worth = 0 < short < x.shape[1] / 2
    return torch.nn.functional.pad(x, (0, short)) if worth else x.contiguous()


def train(problem: Problem, theta: Tensor, state: Tensor, taken: Tensor, epochs: range) -> None:
    """Train all lanes for these epochs; update parameters [L, U, size], optimiser state [L, U, moments, size] and the
    number of steps of each lane [L] in place."""
    layers, place, size, values = layout(problem.network)
    local, n = problem.local, problem.n.numpy()
    work = np.cumsum(n) * len(epochs) * theta.shape[1] * (problem.network.products + PER_ROW)
    pieces = int(min(PIECES * problem.threads, work[-1] // SMALLEST)) if problem.threads > 1 else 1
    # pieces of about equal work; lanes are sorted by their rows, most first
    ends = np.searchsorted(work, work[-1] * np.arange(1, pieces) / max(pieces, 1), side="left") + 1
    bounds = np.unique(np.concatenate([[0], np.minimum(ends, len(n)), [len(n)]]))
    shift, factor = (part.numpy() for part in problem.scaling) if problem.scaling else [_to_numpy(None, 2)] * 2
    given = (
        *(layers, place, LOSSES[problem.network.loss], int(local.optimizer == "adam")),
        *(f32(local.momentum), f32(local.weight_decay), f32(problem.rate)),
        *(problem.batch_size, epochs.start, epochs.stop),
        *(problem.x.numpy().reshape(-1), problem.x.shape[1], problem.y.numpy(), problem.index.numpy()),
        *(problem.start.numpy(), n, problem.keys.numpy().view(np.uint64), shift, factor),
        _to_numpy(problem.weights, 3),
        _to_numpy(problem.mu, 2),
        _to_numpy(problem.centre, 3),
        _to_numpy(problem.linear, 3),
        _to_numpy(problem.chosen, 2, i32),
        *(theta.numpy(), state.numpy(), taken.numpy()),
    )
    longest, widest = int(n.max()), int(layers[:, [IN_STRIDE, OUT_STRIDE]].max())
    models, moments = state.shape[1:3]

    def scratch() -> tuple[np.ndarray, ...]:
        """Return a thread's scratch memory: an order, rows, their positions, and numbers, zero where vectors are
        padded."""
        vectors = (values * TILE, TILE, TILE, widest * TILE, widest * TILE)
        per_model = (size, size, 0 if problem.centre is None else size, 0 if problem.linear is None else size)
        return (
            *(np.empty(longest, i32), np.empty(longest, u32), np.empty(longest, u32)),
            *(np.empty(TILE, i64), np.empty(TILE, u64), np.empty(TILE, u64)),
            *(np.zeros(length, f32) for length in vectors),
            *(np.zeros((models, length), f32) for length in per_model),
            np.zeros((models, moments, size), f32),
        )

    calls: dict[int, Callable[..., None]] = {}

    def part(piece: int) -> None:
        thread = threading.get_ident()
        if thread not in calls:
            calls[thread] = _lanes.bind(*given, *scratch())
        calls[thread](bounds[piece], bounds[piece + 1])

    share_out(part, len(bounds) - 1, problem.threads)


def fill_orders(keys: np.ndarray, epoch: int, n: np.ndarray, out: np.ndarray) -> None:
    """Write the orders of many lanes (`shuffle.order`) to out[lane, :n[lane]]."""
    _orders.bind(keys, n, *(np.empty(out.shape[1], u32) for _ in range(2)), out)(epoch)


def _to_numpy(values: Tensor | None, axes: int, kind: type = f32) -> np.ndarray:
    """Return an array with `axes` axes, empty if values is None: the kernel has a fixed type for each argument."""
    return np.zeros((0,) * axes, kind) if values is None else values.contiguous().numpy()
