"""Fed-FairGrad against rates that are counted, and against a Lagrangian whose derivatives are differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import equifed as ef
from equifed.errors import ConfigError
from equifed.methods import FedFairGrad
from equifed.methods.fed_fairgrad import Server, coefficients
from methods.plain import LOGISTIC, averaged, client, cohorts, logit, parameters, trained

D, GROUPS, ETA, EPSILON, RATE, STEPS, ROUNDS = 3, 3, 0.6, 0.02, 0.5, 2, 5
DP, EO, ODDS, ACCURACY = NOTIONS = (
    "demographic_parity_difference",
    "equal_opportunity_difference",
    "equalized_odds_difference",
    "accuracy_difference",
)
OPTIONS: dict[str, Any] = {
    "model": ef.models.Logistic(),
    "rounds": ROUNDS,
    "local": ef.Local(epochs=STEPS, batch_size=None, learning_rate=RATE),
    "seeds": (3,),
}


def federation(classes: int = 2) -> ef.Federation:
    """Unequal clients, one without rows; one row in six is of unknown group."""
    rng = np.random.default_rng(0)

    def part(n: int) -> tuple[np.ndarray, ...]:
        x, s = rng.normal(size=(n, D)), rng.integers(0, GROUPS, n)
        score = x[:, 0] + 0.8 * s + rng.normal(size=n)
        return x, np.digitize(score, [0.8, 2.0][: classes - 1]), np.where(rng.random(n) < 1 / 6, -1, s)

    return ef.Federation.from_arrays([part(n) for n in (40, 25, 0, 60, 33)], test=part(50))


def favour(notion: str, n: np.ndarray, err: np.ndarray) -> np.ndarray:
    """F [G, C] from n [G, C] and error rates, by the definition of each notion: a group's rate less that of all."""
    wrong, F = n * err, np.zeros_like(err)
    if notion == DP:
        selected = wrong[:, 0] + n[:, 1] - wrong[:, 1]
        F[:, 1] = selected / np.maximum(n.sum(1), 1) - selected.sum() / n.sum()
        F[:, 0] = -F[:, 1]
    elif notion == ACCURACY:
        F[:] = (wrong.sum() / n.sum() - wrong.sum(1) / np.maximum(n.sum(1), 1))[:, None]
    else:
        labels = [1] if notion == EO and n.shape[1] == 2 else range(n.shape[1])
        for y in labels:
            F[:, y] = wrong[:, y].sum() / max(n[:, y].sum(), 1) - err[:, y]
    return np.where(n > 0, F, 0)


# -- one step by hand --------------------------------------------------------------------------------------------------


def test_a_step_by_hand() -> None:
    """16 rows; positives: six of group 0 with error .5, two of group 1 with .25: F = -.0625 and .1875."""
    n = torch.tensor([[5, 6], [3, 2]], dtype=torch.double)
    zeros = torch.zeros_like(n)
    server = Server({}, n, zeros, zeros, zeros, zeros + 1)
    method = FedFairGrad(EO, epsilon=0.01, dual_step_size=0.1)
    server = method.move(server, {"errors": torch.tensor([[2.0, 3.0], [1.0, 0.5]]).double(), "counts": n}, None)
    np.testing.assert_allclose(server.F, [[0, -0.0625], [0, 0.1875]], atol=1e-12)
    np.testing.assert_allclose(server.up, [[0, 0], [0, 0.01775]], atol=1e-12)
    np.testing.assert_allclose(server.lo, [[0, 0.00525], [0, 0]], atol=1e-12)
    np.testing.assert_allclose(server.weight, [[1, 1.039], [1, 0.883]], rtol=1e-12)
    seen = method.observe(server)
    assert float(seen["excess"]) == pytest.approx(0.1775)
    assert float(seen["feasible"]) == 0
    assert float(FedFairGrad(EO, epsilon=0.19).observe(server)["feasible"]) == 1


@pytest.mark.parametrize("notion", NOTIONS)
@pytest.mark.parametrize("shape", [(2, 2), (3, 2), (2, 4)])
def test_the_matrix_is_the_notion(notion: str, shape: tuple[int, int]) -> None:
    if notion == DP and shape[1] > 2:
        return  # refused
    rng = np.random.default_rng(1)
    n, err = rng.integers(1, 30, shape).astype(float), rng.random(shape)
    n[-1, 0] = 0  # a cell without rows
    C, C0 = (part.numpy() for part in coefficients(torch.from_numpy(n), notion))
    np.testing.assert_allclose((C0 + C @ err.ravel()).reshape(shape), favour(notion, n, err), atol=1e-12)
    gone = np.flatnonzero(n.ravel() == 0)
    assert not C[gone].any()
    assert not C[:, gone].any()


@pytest.mark.parametrize("notion", NOTIONS)
def test_the_total_of_the_weights(notion: str) -> None:
    """It stays 1 but for demographic parity, where `rescale` keeps it."""
    rng = np.random.default_rng(2)
    n = torch.from_numpy(rng.integers(1, 30, (3, 2)).astype(float))
    zeros = torch.zeros_like(n)
    replies = {"errors": n * torch.from_numpy(rng.random((3, 2))), "counts": n}
    totals = []
    for rescale in (False, True):
        method = FedFairGrad(notion, dual_step_size=0.3, rescale=rescale)
        server = method.move(Server({}, n, zeros, zeros, zeros, zeros + 1), replies, None)
        totals.append(float((n * server.weight).sum() / n.sum()))
    assert totals[1] == pytest.approx(1)
    assert (totals[0] == pytest.approx(1)) == (notion != DP)


def test_the_floor() -> None:
    n = torch.tensor([[5, 6], [3, 2]], dtype=torch.double)
    zeros = torch.zeros_like(n)
    replies = {"errors": torch.tensor([[2.0, 3.0], [1.0, 0.5]]).double(), "counts": n}
    lowest = []
    for floor in (None, 0.0, 0.3):
        method = FedFairGrad(EO, epsilon=0.01, dual_step_size=2.0, floor=floor)
        weight = method.move(Server({}, n, zeros, zeros, zeros, zeros + 1), replies, None).weight
        lowest.append(float(weight.min()))
    assert lowest[0] < 0
    assert lowest[1:] == [0.0, 0.3]


# -- rounds ------------------------------------------------------------------------------------------------------------


def counted(fed: ef.Federation, theta: np.ndarray | None, clients: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows and errors by group and label."""
    n, wrong = np.zeros((GROUPS, 2)), np.zeros((GROUPS, 2))
    for k in clients:
        x, y, s = client(fed, k)
        np.add.at(n, (s[s >= 0], y[s >= 0]), 1)
        if theta is not None:
            np.add.at(wrong, (s[s >= 0], y[s >= 0]), ((logit(theta, x) > 0) != y)[s >= 0])
    return n, wrong


@pytest.mark.parametrize("notion", NOTIONS)
@pytest.mark.parametrize("per_round", ["all", 2])
def test_rounds_descend_the_lagrangian(notion: str, per_round: Any) -> None:
    """Weights are n / n_c times the derivative of mean error + sum (up - lo) F in err_c, by differences."""
    fed, options = federation(), OPTIONS | {"clients_per_round": per_round}
    method = FedFairGrad(notion, epsilon=EPSILON, dual_step_size=ETA)
    result = ef.simulate(method, fed, initial_parameters=LOGISTIC, **options)
    N, _ = counted(fed, None, range(5))
    theta, up, lo = parameters(LOGISTIC), np.zeros_like(N), np.zeros_like(N)
    absent = 0
    for present in cohorts(fed, method, **options):
        n, wrong = counted(fed, theta, present)
        absent += int((n == 0).sum())
        F = favour(notion, np.where(n > 0, N, 0), wrong / np.maximum(n, 1))
        up, lo = (
            np.where(n > 0, np.maximum(before + sign * ETA * (F - sign * EPSILON), 0), before)
            for before, sign in ((up, 1), (lo, -1))
        )

        def lagrangian(err: np.ndarray, gap: np.ndarray = up - lo) -> float:
            return float((N * err).sum() / N.sum() + (gap * favour(notion, N, err)).sum())

        slope = np.zeros_like(N)
        for cell in np.ndindex(N.shape):
            unit = np.zeros_like(N)
            unit[cell] = 1
            slope[cell] = lagrangian(unit) - lagrangian(0 * unit)  # it is linear
        weight = np.maximum(N.sum() / N * slope, 0)
        models, rows = [], []
        for k in present:
            x, y, s = client(fed, k)
            w = np.where(s >= 0, weight[s, y], 1.0)
            models.append(trained(theta, x, y, w, rate=RATE, steps=STEPS))
            rows.append(len(y))
        theta = averaged(theta, models, rows)
    assert np.abs(weight - 1).max() > 0.05  # multipliers are at work
    np.testing.assert_allclose(parameters(result.parameters[3]), theta, rtol=2e-5, atol=2e-6)
    # what is said of the constraint at the end is about the final model on all clients' rows
    n, wrong = counted(fed, theta, range(5))
    assert result.log["constraint"].iloc[-1] == pytest.approx(np.abs(favour(notion, n, wrong / n)).max(), abs=1e-6)


@pytest.mark.parametrize("setting", [{"dual_step_size": 0.0}, {"epsilon": 1.0}, {"epsilon": 1.0, "floor": None}])
@pytest.mark.parametrize("notion", NOTIONS)
def test_without_a_step_or_within_the_tolerance_it_is_fedavg_bit_by_bit(notion: str, setting: dict[str, Any]) -> None:
    fed = federation()
    fedavg = ef.simulate(ef.methods.FedAvg(), fed, **OPTIONS)
    found = ef.simulate(FedFairGrad(notion, **setting), fed, **OPTIONS)
    for name, value in found.parameters[3].items():
        assert value.tobytes() == fedavg.parameters[3][name].tobytes()


@pytest.mark.parametrize("notion", [EO, ODDS, ACCURACY])
def test_more_classes(notion: str) -> None:
    """Equal opportunity of more than two classes is about every label, as its metric is."""
    fed, options = federation(classes=3), OPTIONS | {"rounds": 30, "eval_every": 30}
    ends = [
        ef.simulate(FedFairGrad(notion, epsilon=0.0, dual_step_size=eta), fed, **options).log["constraint"].iloc[-1]
        for eta in (0.0, 0.1)
    ]
    assert ends[1] < 0.8 * ends[0]


def test_demographic_parity_is_of_two_classes() -> None:
    with pytest.raises(ConfigError, match="FairGrad defines for two classes"):
        ef.simulate(FedFairGrad(), federation(classes=3), **OPTIONS)
