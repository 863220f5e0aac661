"""Counts and sums by group, label and decision, against loops in NumPy."""

from __future__ import annotations

import numpy as np
import torch
from torch.func import vmap

import equifed as ef
from equifed.methods._cells import cell_counts, cell_sums, decision_counts, group_sums, rate_parts
from equifed.protocol import Data, Task

RNG = np.random.default_rng(2)
N, G = 50, 3
X, Y, S = RNG.normal(size=(N, 2)).astype(np.float32), RNG.integers(0, 2, N), RNG.integers(0, G, N)
MASK = np.arange(N) < 41
THETA = RNG.normal(size=(4, 1, 2)).astype(np.float32)


def data() -> Data:
    task = Task(torch.nn.Linear(2, 1, bias=False), "classification", 2, G, 1, 1, ef.Local(), binary=True)
    return Data(torch.tensor(X), torch.tensor(Y), torch.tensor(S), torch.tensor(MASK.astype(np.float32)), task)


def test_sums_by_group_and_label() -> None:
    values = RNG.normal(size=(N, 2))
    sums, counts = np.zeros((G, 2, 2)), np.zeros((G, 2))
    for i in np.flatnonzero(MASK):
        sums[S[i], Y[i]] += values[i]
        counts[S[i], Y[i]] += 1
    np.testing.assert_allclose(cell_sums(data(), torch.tensor(values)), sums)
    np.testing.assert_array_equal(cell_counts(data()), counts)
    np.testing.assert_allclose(group_sums(data(), torch.tensor(values[:, 0])), sums.sum(1)[:, 0])


def test_decisions_of_several_models_at_once() -> None:
    rows = data()
    counts = vmap(lambda theta: decision_counts({"weight": theta}, rows))(torch.tensor(THETA))
    expected = np.zeros((4, G, 2, 2))
    for m, theta in enumerate(THETA):
        for i in np.flatnonzero(MASK):
            expected[m, S[i], Y[i], int(X[i] @ theta[0] > 0)] += 1
    np.testing.assert_array_equal(counts, expected)
    c = expected[0]
    for fairness, selected, total in (
        ("demographic_parity_difference", [c[:, :, 1].sum(1)], [c.sum((1, 2))]),
        ("equal_opportunity_difference", [c[:, 1, 1]], [c[:, 1].sum(1)]),
        ("equalized_odds_difference", [c[:, 1, 1], c[:, 0, 1]], [c[:, 1].sum(1), c[:, 0].sum(1)]),
    ):
        parts = rate_parts(counts[0], fairness)
        np.testing.assert_array_equal(parts[0], selected)
        np.testing.assert_array_equal(parts[1], total)
