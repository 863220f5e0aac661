"""The fused kernel of edge-popup against plain NumPy in double precision, and against the step-by-step path."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import equifed as ef
from equifed import shuffle
from equifed.federation import Federation
from equifed.methods import E2FL, FRL
from equifed.notes import Note
from equifed.settings import Local
from equifed.simulator.fused.edges import Edges, train
from equifed.simulator.fused.problem import Network, Problem

from .fused_reference import RELU, SIGMOID, TANH, gradient, make, problem

SIZES = [70, 40, 8, 1, 0]


def edges_of(p: Problem, models: int, groups: int, rng: np.random.Generator) -> Edges:
    widths = p.network.widths
    layers = [inputs * outputs for inputs, outputs in pairwise(widths)]
    signs = np.where(rng.random((len(SIZES), p.network.size)) < 0.5, -0.5, 0.5).astype(np.float32)
    kept = np.stack([rng.integers(1, n + 1, (len(SIZES), models)) for n in layers], -1)
    s = rng.integers(-1, max(groups, 1), len(p.y))
    return Edges(torch.from_numpy(signs), torch.from_numpy(kept), torch.from_numpy(s), groups)


def expected(p: Problem, edges: Edges, scores: np.ndarray) -> np.ndarray:
    """All lanes and models, step by step, in double precision; masks by sorting."""
    done, local, inputs = scores.astype(float), p.local, p.network.widths[0]
    layers = np.cumsum([0, *(a * b for a, b in pairwise(p.network.widths))])
    for lane, model in np.ndindex(*done.shape[:2]):
        n, own, w = int(p.n[lane]), done[lane, model], edges.weights[lane].numpy().astype(float)
        u, m, v, t = np.zeros_like(own), np.zeros_like(own), np.zeros_like(own), 0
        for epoch in range(local.epochs):
            order = np.arange(n)
            if local.batch_size:
                key = shuffle.fold(p.keys[lane : lane + 1].numpy().view(np.uint64), epoch)
                order = shuffle.order(int(key[0]), n)
            for batch in np.split(order, range(local.batch_size or n, n, local.batch_size or n)) if n else []:
                rows = p.index.numpy()[int(p.start[lane]) + batch]
                s = edges.s.numpy()[rows]
                rows = rows[(s == model % edges.groups) | (s < 0)] if edges.groups else rows
                mask = np.zeros_like(own)
                for layer, (begin, end) in enumerate(pairwise(layers)):
                    part = own[begin:end]
                    border = np.sort(part)[len(part) - int(edges.kept[lane, model, layer])]
                    mask[begin:end] = part >= border
                x = p.x.numpy()[rows, :inputs].astype(float)
                if p.scaling:
                    x = (x - p.scaling[0][lane].numpy()) * p.scaling[1][lane].numpy()
                scale = np.full(len(rows), 1 / max(len(rows), 1))
                g = w * gradient(p.network, w * mask, x, p.y.numpy()[rows].astype(float), scale)
                g += local.weight_decay * own
                t += 1
                if local.optimizer == "adam":
                    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
                    own -= p.rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
                else:
                    u = local.momentum * u + g
                    own -= p.rate * u
    return done


CASES: dict[str, tuple[Network, Local, int, dict[str, Any]]] = {
    "one layer": (make((40, 1), bias=False), Local(epochs=2, batch_size=8), 0, {}),
    "three layers, by group": (make((12, 10, 7, 1), (RELU, TANH), bias=False), Local(batch_size=8), 2, {}),
    "softmax, momentum, decay": (
        make((12, 9, 3), (SIGMOID,), "softmax", bias=False),
        Local(epochs=2, batch_size=8, momentum=0.9, weight_decay=0.01),
        0,
        {"scaling": True},
    ),
    "adam, full batch": (
        make((12, 6, 1), (TANH,), bias=False),
        Local(epochs=3, batch_size=None, optimizer="adam"),
        2,
        {"scaling": True},
    ),
    "tiles": (make((12, 6, 1), (TANH,), bias=False), Local(epochs=2, batch_size=None), 0, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_kernel_equals_plain_numpy(case: str) -> None:
    """Scores are multiples of 1/16 to begin with, and a third of the inputs is 0, so that the edges of these have no
    gradient and stay equal: there are ties at the borders throughout. (Adam moves all by nearly the same step, and
    would leave it to rounding who is first.)"""
    network, local, groups, flags = CASES[case]
    rng = np.random.default_rng(len(case))
    sizes = [300 if case == "tiles" else SIZES[0], *SIZES[1:]]
    p = problem(network, local, sizes, 4, rng, **flags)
    p.x[:, ::3] = 0
    edges = edges_of(p, 4, groups, rng)
    shape = len(SIZES), 4, network.size
    tied = rng.integers(0, 17, shape) / 16
    scores = (rng.random(shape) if local.optimizer == "adam" else tied).astype(np.float32)

    def trained(p: Problem, *parts: range) -> np.ndarray:
        moments = 2 if local.optimizer == "adam" else int(local.momentum > 0)
        values, state = torch.from_numpy(scores.copy()), torch.zeros(*scores.shape[:2], moments, network.size)
        taken = torch.zeros(len(SIZES), dtype=torch.int64)
        for epochs in parts:
            train(p, edges, values, state, taken, epochs)
        return values.numpy()

    done = trained(p, range(local.epochs))
    np.testing.assert_allclose(done, expected(p, edges, scores), rtol=2e-5, atol=5e-6)
    assert (done[-1] == scores[-1]).all()  # no rows, no steps
    assert not np.allclose(done[:-1], scores[:-1])
    # epoch by epoch, where cuts are looked for from elsewhere, and with more threads: the same bits
    assert trained(p, *(range(e, e + 1) for e in range(local.epochs))).tobytes() == done.tobytes()
    assert trained(dataclasses.replace(p, threads=3), range(local.epochs)).tobytes() == done.tobytes()


@pytest.mark.parametrize("method", [FRL(), E2FL(groups="sensitive"), E2FL(groups="lowest-loss", num_groups=2)])
def test_runs_and_sweeps_are_those_of_the_traced_path(method: Any, uneven: Federation) -> None:
    """Rankings, so the same ones or others. 0.35 of 10 edges is at the border of 3 and 4 in single precision."""
    settings: dict[str, Any] = {
        "model": ef.models.MLP((5, 2), bias=False), "rounds": 2, "seeds": range(2),
        "local": Local(epochs=1, batch_size=8, momentum=0.9, weight_decay=1e-4),
    }  # fmt: skip
    method = dataclasses.replace(method, keep=0.35)
    fused, traced = (ef.simulate(method, uneven, kernel=kernel, **settings) for kernel in ("fused", "traced"))
    assert Note("kernel", {"phase": "train", "kernel": "fused"}) in fused.notes
    over = {"keep": [0.35, 0.6]}
    swept = [ef.simulate(method, uneven, over=over, kernel=kernel, **settings) for kernel in ("fused", "traced")]
    for one, other in ((fused, traced), swept):
        assert len(one.parameters) == len(other.parameters)
        for a, b in zip(one.parameters.values(), other.parameters.values(), strict=True):
            for name, value in a.items():
                np.testing.assert_array_equal(value, b[name])
