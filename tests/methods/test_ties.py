"""Losses and scores that are equal but for rounding: who is ahead does not depend on the last places."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import rankdata

import equifed as ef
from equifed import methods
from equifed.federation import Federation
from equifed.methods import _debias
from equifed.methods._rules import equal_odds
from equifed.methods._ties import EQUAL, compare, first_largest, first_least
from equifed.robust import _squared_distances

NEAR = 1 + np.float32(3e-7)
"""A few roundings in 32 bits."""


def test_equal_is_equal_up_to_a_share() -> None:
    a = torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0, 0.0, 1e-20, 0.0])
    b = torch.tensor([1.0, 1 + EQUAL / 2, 1 + 3 * EQUAL, 1 - 3 * EQUAL, -1 - EQUAL / 2, 0.0, 2e-20, 1e-30])
    assert compare(a, b).tolist() == [0, 0, -1, 1, 0, 0, -1, -1]
    assert compare(b, a).tolist() == [0, 0, 1, -1, 0, 0, 1, 1]
    values = torch.tensor([[2.0, 1.0 * NEAR, 1.0, math.inf], [-1.0, -1.0 * NEAR, 3.0, 3.0 * NEAR]])
    assert first_least(values).tolist() == [1, 0]
    assert first_largest(torch.where(values.isinf(), -math.inf, values)).tolist() == [0, 2]


def test_infinity_is_ahead_of_every_number_and_equal_to_itself() -> None:
    inf = math.inf
    a, b = torch.tensor([inf, 1.0, inf, -inf, -inf]), torch.tensor([1.0, inf, inf, inf, -inf])
    assert compare(a, b).tolist() == [1, -1, 0, -1, 0]
    values = torch.tensor([[1.0, inf, 2.0], [1.0, -inf, 2.0], [inf, inf, inf]])
    assert first_largest(values).tolist() == values.argmax(-1).tolist() == [1, 2, 0]
    assert first_least(values).tolist() == values.argmin(-1).tolist() == [0, 1, 0]


def test_gifairs_ranks_are_those_of_losses_without_their_last_places() -> None:
    """As SciPy ranks them: of equal ones each has the mean rank."""
    method, p = methods.GIFAIR(fairness_weight=1.0), torch.full((5,), 0.2)
    losses = np.array([0.7, 0.3, 0.7, 0.7, 0.9])
    noisy = torch.from_numpy((losses * np.array([1, 1, NEAR, 2 - NEAR, NEAR])).astype(np.float32))
    expected = 0.2 + 0.2 / 4 * (2 * rankdata(losses) - 6)  # lower ones less higher ones: 2 rank - (K + 1)
    np.testing.assert_allclose(method.weights(p, noisy).numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("engine", ["lanes", "reference"])
def test_gifair_begins_as_fedavg_from_a_model_of_zeros(engine: str, uneven: Federation) -> None:
    """All losses are log 2, whose means over 41, 17 or 60 rows differ in the last place."""
    made: dict[str, Any] = {
        "model": ef.models.Logistic(),
        "rounds": 1,
        "seeds": [0],
        "clients_per_round": "all",
        "engine": engine,
        "local": ef.Local(epochs=1, batch_size=8, learning_rate=0.1),
    }
    ranked = ef.simulate(methods.GIFAIR(fairness_weight=1.0), uneven, **made).parameters[0]
    mean = ef.simulate(methods.FedAvg(), uneven, **made).parameters[0]
    for name, value in ranked.items():
        np.testing.assert_allclose(value, mean[name], rtol=2e-6, atol=2e-7)


def test_means_of_log_2_differ_in_the_last_place() -> None:
    """So the test above is about something."""
    means = [float(torch.full((n,), math.log(2)).sum() / n) for n in (41, 17, 60, 33, 24, 9, 20, 10**6)]
    assert len(set(means)) > 1
    assert max(means) < min(means) * (1 + EQUAL / 10)


def test_a_gap_of_rounding_has_no_slope() -> None:
    """FedGFT's |F| has slope 1 or -1 beside 0, and at 0 none."""
    method = methods.FedGFT(penalty="id", fairness_weight=1.0)
    rows = torch.tensor([[3.0, 2.0], [4.0, 6.0]])
    sizes: Any = SimpleNamespace(num_groups=2)
    server = method.init(sizes, {"w": torch.zeros(1)})
    for factor, slope in ((NEAR, False), (1.01, True)):
        scores = rows * 0.3 * torch.tensor([[factor], [1.0]])
        moved = method.combine(server, {"scores": scores, "counts": rows, "rows": rows.sum()}, None)
        assert bool((moved.slope != 0).any()) == slope


def test_fairbatch_moves_no_shares_between_equal_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, shares = torch.tensor([[10.0, 10.0], [10.0, 10.0]]), torch.full((2, 2), 0.5)
    monkeypatch.setattr(_debias, "cell_counts", lambda data: counts)
    data: Any = SimpleNamespace(y=torch.zeros(1))
    for factor, moves in ((NEAR, False), (1.01, True)):
        losses = torch.tensor([[5.0 * float(factor), 5.0], [5.0, 5.0 * float(factor)]])
        monkeypatch.setattr(_debias, "cell_losses", lambda *_, losses=losses: losses)
        moved = _debias.move(shares, {}, data, "equalized_odds_difference", 0.1)
        assert bool((moved != shares).any()) == moves


def test_fair_fates_set_holds_whoever_is_as_fair_up_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    method = methods.FairFate(fairness=("demographic_parity_ratio", "equal_opportunity_ratio", "average_odds_ratio"))
    scores = torch.tensor([[0.3], [0.3 / float(NEAR)], [0.3 * float(NEAR)], [0.2], [0.4]])
    monkeypatch.setattr("equifed.methods.fair_fate.ratios", lambda model, *_: model)
    fair, _, _ = method.fair_set(scores[0], scores[1:], torch.ones(4), object())  # type: ignore[arg-type]
    assert fair.tolist() == [True, True, False, True]


def test_two_updates_that_are_nearest_to_each_other_are_equally_near() -> None:
    """Krum takes the first of them, whatever a library's product of matrices rounds to."""
    rng = np.random.default_rng(0)
    updates = {"u": torch.from_numpy(rng.normal(size=(9, 1001)).astype(np.float32)) * 1e3}
    distance = _squared_distances(updates)
    assert torch.equal(distance, distance.T)
    exact = ((updates["u"].numpy().astype(float)[:, None] - updates["u"].numpy().astype(float)) ** 2).sum(2)
    np.testing.assert_allclose(distance.numpy(), exact, rtol=1e-9, atol=1e-3)


def test_equalized_odds_of_equal_errors_takes_the_first() -> None:
    """Counts of two groups that are one another's mirror: the rule does not depend on how sums are rounded."""
    counts = torch.tensor([[[6.0, 3.0], [3.0, 6.0]], [[6.0, 3.0], [3.0, 6.0]]], dtype=torch.float64)
    one, other = equal_odds(counts), torch.func.vmap(equal_odds)(torch.stack([counts, counts]))[1]
    np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-12)
