"""The fused kernel of edge-popup (`EdgePopup`) for the CPU: all steps of a lane's scores in one compiled loop.

A step cuts each layer's scores, writes the remaining network, passes the batch through it and updates the scores. The
cut is searched near the last step's, in a few passes over scores in the cache. If every group has its own scores, a
group's network sees the group's rows only. The remaining work are matrix products by BLAS.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from threadpoolctl import ThreadpoolController
from torch import Tensor

from equifed.jit import kept
from equifed.selection import cut_near
from equifed.simulator.fused.cpu_loop import OPTIONS, f32, fill_order, move, output_slope, sigmoid, tanh, u64
from equifed.simulator.fused.problem import LOSSES, Problem
from equifed.simulator.threads import share_out

TILE = 256
"""Number of rows that pass through the network at a time."""
_compiled = kept(**OPTIONS)
_NONE, _NONE_2 = np.zeros(0, f32), np.zeros((0, 0), f32)


@dataclass(frozen=True)
class Edges:
    """The inputs of edge-popup other than a `Problem`, in which the scores are the parameters."""

    weights: Tensor
    """theta^w of each lane [L, size]."""
    kept: Tensor
    """Number of remaining edges of each layer in each model of each lane [L, U, layers], int64."""
    s: Tensor
    """Groups of all rows [rows], int64; negative if unknown."""
    groups: int
    """Number of groups: model u learns from rows of group u modulo this, and of unknown group; 0: from all rows."""


def train(problem: Problem, edges: Edges, scores: Tensor, state: Tensor, taken: Tensor, epochs: range) -> None:
    """Train all lanes for these epochs; update scores [L, U, size], optimiser state [L, U, moments, size] and the
    number of steps of each lane [L] in place."""
    network, local = problem.network, problem.local
    shift, factor = (part.contiguous().numpy() for part in problem.scaling) if problem.scaling else (_NONE_2, _NONE_2)
    given = (
        *(np.array(network.widths), np.array([*network.activations, 0]), LOSSES[network.loss]),
        *(local.optimizer == "adam", f32(local.momentum), f32(local.weight_decay), f32(problem.rate)),
        *(problem.batch_size, epochs.start, epochs.stop),
        *(problem.x.numpy(), problem.y.numpy(), edges.s.numpy(), edges.groups, problem.index.numpy()),
        *(problem.start.numpy(), problem.n.numpy(), problem.keys.numpy().view(np.uint64), shift, factor),
        *(edges.weights.numpy(), edges.kept.numpy(), scores.numpy(), state.numpy(), taken.numpy()),
    )
    # lanes are distributed over threads, which BLAS threads would only slow down
    with _blas().limit(limits=1, user_api="blas"):
        share_out(lambda lane: _lane(lane, *given), len(scores), problem.threads)


@cache
def _blas() -> ThreadpoolController:
    import scipy.linalg.cython_blas  # noqa: F401  (numba's np.dot is this library's)

    return ThreadpoolController()


@_compiled
def _lane(  # type: ignore[no-untyped-def]
    lane, widths, activations, loss, adam, momentum, decay, rate, batch, first_epoch, last_epoch,
    x, y, s, groups, index, start, n, keys, shift, factor, weights, kept, scores, state, taken,
):  # fmt: skip
    """Train one lane; see `Problem` and `Edges` for the arrays; missing ones are empty."""
    count, models, size, depth = n[lane], scores.shape[1], scores.shape[2], len(widths) - 1
    if count == 0:
        return
    step = batch if batch else count
    tile = min(TILE, step)
    order, left, right = np.empty(count, np.int32), np.empty(count, np.uint32), np.empty(count, np.uint32)
    own = np.empty(min(step, count), np.int64)
    values, labels, scale = np.empty(tile * widths.sum(), f32), np.empty(tile, f32), np.empty(tile, f32)
    slope, spare = np.empty(tile * widths.max(), f32), np.empty(tile * widths.max(), f32)
    theta, gradient, part = np.empty(size, f32), np.empty(size, f32), np.empty(size if step > tile else 0, f32)
    cuts, w = np.zeros((models, depth), f32), weights[lane]
    for p in range(count):
        order[p] = p
    for epoch in range(first_epoch, last_epoch):
        if batch:
            fill_order(keys[lane], epoch, count, left, right, order)
        for first in range(0, count, step):
            taken[lane] += 1
            for model in range(models):
                rows = 0
                for p in range(first, min(first + step, count)):
                    source = index[start[lane] + order[p]]
                    if groups == 0 or s[source] == model % groups or s[source] < 0:
                        own[rows] = source
                        rows += 1
                _select(widths, w, scores[lane, model], kept[lane, model], cuts[model], theta)
                if rows == 0:
                    for p in range(size):
                        gradient[p] = f32(0)
                for begun in range(0, rows, tile):
                    some = min(tile, rows - begun)
                    features = values[: some * widths[0]].reshape(some, widths[0])
                    for row in range(some):
                        source = own[begun + row]
                        labels[row], scale[row] = y[source], f32(1) / f32(rows)
                        if len(shift):
                            for d in range(widths[0]):
                                features[row, d] = (x[source, d] - shift[lane, d]) * factor[lane, d]
                        else:
                            for d in range(widths[0]):
                                features[row, d] = x[source, d]
                    into = part if begun else gradient
                    _tile(widths, activations, loss, theta, values, labels, scale, some, slope, spare, into)
                    if begun:
                        for p in range(size):
                            gradient[p] += part[p]
                for p in range(size):
                    gradient[p] *= w[p]  # straight through the mask
                move(
                    scores[lane, model], gradient, state[lane, model], taken[lane], adam, momentum, decay, rate,
                    f32(0), _NONE, _NONE,
                )  # fmt: skip


@_compiled
def _select(widths, w, scores, kept, cuts, theta):  # type: ignore[no-untyped-def]
    """Write theta^w * M to `theta`; `cuts` holds the previous step's cuts."""
    begin = 0
    for layer in range(len(cuts)):
        end = begin + widths[layer] * widths[layer + 1]
        ranked, frozen, network = scores[begin:end], w[begin:end], theta[begin:end]
        cut = cut_near(cuts[layer], ranked, kept[layer])
        for p in range(end - begin):
            network[p] = frozen[p] if ranked[p] >= cut else f32(0)
        cuts[layer], begin = cut, end


@_compiled
def _tile(widths, activations, loss, theta, values, labels, scale, rows, slope, spare, gradient):  # type: ignore[no-untyped-def]
    """Add the gradient of these rows' scaled losses by the network's weights, from features at the start of
    `values`."""
    depth, source, begin = len(widths) - 1, 0, 0
    for layer in range(depth):
        inputs, outputs = widths[layer], widths[layer + 1]
        target, end = source + rows * inputs, begin + inputs * outputs
        out = values[target : target + rows * outputs]
        into, weight = values[source:target].reshape(rows, inputs), theta[begin:end].reshape(outputs, inputs)
        np.dot(into, weight.T, out.reshape(rows, outputs))
        if activations[layer] == 1:
            for q in range(len(out)):
                out[q] = tanh(out[q])
        elif activations[layer] == 2:
            for q in range(len(out)):
                out[q] = max(out[q], f32(0))
        elif activations[layer] == 3:
            for q in range(len(out)):
                out[q] = sigmoid(out[q])
        source, begin = target, end
    output_slope(loss, widths[-1], widths[-1], values, u64(source), labels, scale, rows, slope)
    for layer in range(depth - 1, -1, -1):
        inputs, outputs = widths[layer], widths[layer + 1]
        end, begin = begin, begin - inputs * outputs
        target, source = source, source - rows * inputs
        into, back = values[source:target], slope[: rows * outputs].reshape(rows, outputs)
        np.dot(back.T, into.reshape(rows, inputs), gradient[begin:end].reshape(outputs, inputs))
        if layer == 0:
            return
        np.dot(back, theta[begin:end].reshape(outputs, inputs), spare[: rows * inputs].reshape(rows, inputs))
        if activations[layer - 1] == 1:
            for q in range(len(into)):
                spare[q] *= f32(1) - into[q] * into[q]
        elif activations[layer - 1] == 2:
            for q in range(len(into)):
                spare[q] = spare[q] if into[q] > f32(0) else f32(0)
        else:
            for q in range(len(into)):
                spare[q] *= into[q] * (f32(1) - into[q])
        slope, spare = spare, slope
