"""Domination and hypervolume by hand and by counting."""

from __future__ import annotations

import numpy as np
import pytest

from equifed import metrics as M
from equifed.metrics.catalogue import costs


def test_dominated_by_hand() -> None:
    points = [[1, 5], [2, 3], [3, 3], [4, 1], [2, 3], [np.nan, 0]]
    assert M.dominated(points).tolist() == [False, False, True, False, False, False]


def test_hypervolume_by_hand() -> None:
    # (1, 5) covers 9 x 5 below (10, 10); (4, 1) adds 6 x 4; (3, 6) and (11, 0) add nothing
    assert M.hypervolume([[1, 5], [4, 1], [3, 6], [11, 0], [np.nan, 1]], (10, 10)) == 9 * 5 + 6 * 4
    assert M.hypervolume([[10, 1], [1, 10]], (10, 10)) == 0
    assert M.hypervolume(np.empty((0, 2)), (1, 1)) == 0


@pytest.mark.parametrize("seed", range(5))
def test_hypervolume_by_counting(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.random((12, 2))
    samples = rng.random((200_000, 2))
    covered = (samples[:, None] >= points[None]).all(-1).any(1).mean()
    assert M.hypervolume(points, (1, 1)) == pytest.approx(covered, abs=0.005)
    keep = ~M.dominated(points)
    assert M.hypervolume(points[keep], (1, 1)) == pytest.approx(M.hypervolume(points, (1, 1)))


def test_costs_know_what_is_better() -> None:
    np.testing.assert_allclose(costs(("accuracy", "demographic_parity_ratio"), [0.8, 0.7]), [-0.8, 0.3])
    np.testing.assert_allclose(costs(("rmse", "ks_distance"), [[0.3, 0.2]]), [[0.3, 0.2]])
    np.testing.assert_allclose(costs(("accuracy", "equal_opportunity_difference"), [0.8, -0.1]), [-0.8, 0.1])
