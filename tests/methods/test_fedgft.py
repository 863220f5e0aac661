"""FedGFT against the pooled objective, whose gradient is a finite difference in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import equifed as ef
from equifed.methods import FedGFT
from equifed.methods.fedgft import Server
from methods.plain import LOGISTIC, averaged, client, cohorts, log_loss, logit, parameters, sigmoid, trained

D, GROUPS, WEIGHT, RATE = 3, 3, 6.0, 0.5
DP, EO, PREDICTIVE = NOTIONS = ("demographic_parity", "equal_opportunity", "predictive_parity")


def options(rounds: int, steps: int, **more: Any) -> dict[str, Any]:
    local = ef.Local(epochs=steps, batch_size=None, learning_rate=RATE)
    return {"model": ef.models.Logistic(), "rounds": rounds, "local": local, "seeds": (3,), **more}


def federation() -> ef.Federation:
    """Unequal clients, one without rows, one with one group; one row in six is of unknown group."""
    rng = np.random.default_rng(0)

    def part(n: int, groups: int = GROUPS) -> tuple[np.ndarray, ...]:
        s = rng.integers(0, groups, n)
        x = rng.normal(size=(n, D)) + 0.5 * s[:, None]
        y = (x[:, 0] + 0.8 * s + rng.normal(size=n) > 0.8).astype(int)
        return x, y, np.where(rng.random(n) < 1 / 6, -1, s)

    return ef.Federation.from_arrays([part(40), part(25, 1), part(0), part(60), part(33)], test=part(50))


def pooled(fed: ef.Federation, clients: Any) -> tuple[np.ndarray, ...]:
    return tuple(np.concatenate(parts) for parts in zip(*(client(fed, k) for k in clients), strict=True))


def rates(notion: str, p: np.ndarray, y: np.ndarray, s: np.ndarray) -> dict[int, float]:
    """The soft rate of each group that has one."""
    found = {}
    for group in range(GROUPS):
        own = (s == group) & ((y == 1) | (notion != EO))
        if own.any():
            found[group] = p[own & (y == 1)].sum() / p[own].sum() if notion == PREDICTIVE else p[own].mean()
    return found


def objective(theta: np.ndarray, notion: str, penalty: str, weight: float, rows: tuple[np.ndarray, ...]) -> float:
    """mean loss + lambda J(F) over the pooled rows."""
    x, y, s = rows
    found = rates(notion, sigmoid(logit(theta, x)), y, s).values()
    F = max(found) - min(found)
    return float(log_loss(theta, x, y).mean() + weight * (F**2 / 2 if penalty == "l2" else F))


def gradient(theta: np.ndarray, *given: Any) -> np.ndarray:
    steps = 1e-6 * np.eye(len(theta))
    return np.array([(objective(theta + h, *given) - objective(theta - h, *given)) / 2e-6 for h in steps])


def test_a_step_by_hand() -> None:
    """p = .8 .6 | .3 .5: F = .3, and at lambda 20 a row has slope +3 in group 0 and -3 in group 1, of the mean."""
    zero = torch.zeros((), dtype=torch.double)
    replies = {
        "scores": torch.tensor([[0.6, 0.8], [0.3, 0.5]]).double(),
        "counts": torch.ones(2, 2).double(),
        "rows": zero + 4,
    }
    start = Server({}, zero, torch.zeros(2, 2).double())
    server = FedGFT(fairness_weight=20.0).combine(start, replies, None)
    assert float(server.F) == pytest.approx(0.3)
    # lambda F n / m_s = 20 * .3 * 4 / 2, so that a row's part of the mean over four rows is +-3
    np.testing.assert_allclose(server.slope / 4, [[3, 3], [-3, -3]], rtol=1e-6)
    absolute = FedGFT(fairness_weight=20.0, penalty="id").combine(start, replies, None)
    np.testing.assert_allclose(absolute.slope / 4, [[10, 10], [-10, -10]], rtol=1e-6)
    positives = FedGFT(notion=EO, fairness_weight=20.0).combine(start, replies, None)
    np.testing.assert_allclose(positives.slope / 4, [[0, 6], [0, -6]], rtol=1e-6)  # F = .8 - .5
    auto = FedGFT(auto=True).combine(start, replies, None)
    np.testing.assert_allclose(auto.slope / 4, [[0.09, 0.09], [-0.09, -0.09]], rtol=1e-6)  # 2 F F / 2


@pytest.mark.parametrize("notion", NOTIONS)
@pytest.mark.parametrize("penalty", ["l2", "id"])
def test_one_step_is_down_the_pooled_gradient(notion: str, penalty: Any) -> None:
    """Whatever the partition: one full-batch step of every client is one of all rows in one place."""
    fed, theta = federation(), parameters(LOGISTIC)
    method = FedGFT(notion, fairness_weight=WEIGHT, penalty=penalty)
    result = ef.simulate(method, fed, initial_parameters=LOGISTIC, **options(1, 1))
    step = -RATE * gradient(theta, notion, penalty, WEIGHT, pooled(fed, range(5)))
    plain = -RATE * gradient(theta, notion, penalty, 0.0, pooled(fed, range(5)))
    assert np.abs(step - plain).max() > 0.02  # the penalty is a part of it
    np.testing.assert_allclose(parameters(result.parameters[3]) - theta, step, atol=1e-6)


@pytest.mark.parametrize("notion", NOTIONS)
def test_rounds_of_some_clients(notion: str) -> None:
    """The gap and its slope are those of the round's clients at the model that came down, held for all local steps."""
    fed, theta, made = federation(), parameters(LOGISTIC), options(4, 2, clients_per_round=3)
    method = FedGFT(notion, fairness_weight=WEIGHT)
    result = ef.simulate(method, fed, initial_parameters=LOGISTIC, **made)
    for present in cohorts(fed, method, **made):
        x, y, s = pooled(fed, present)
        p = sigmoid(logit(theta, x))
        found = rates(notion, p, y, s)
        high, low = max(found, key=found.__getitem__), min(found, key=found.__getitem__)
        F, models, rows = found[high] - found[low], [], []
        for k in present:
            own_x, own_y, own_s = client(fed, k)
            slope = np.zeros(len(own_y))
            for group, sign in ((high, 1), (low, -1)):
                inside, members = own_s == group, s == group
                if notion == PREDICTIVE:
                    part = (own_y - found[group]) / p[members].sum()
                else:
                    inside = inside & ((own_y == 1) | (notion == DP))
                    part = 1 / (members & ((y == 1) | (notion == DP))).sum()
                slope += sign * WEIGHT * F * len(y) * inside * part
            models.append(trained(theta, own_x, own_y, slope=slope, rate=RATE, steps=2))
            rows.append(len(own_y))
        theta = averaged(theta, models, rows)
    np.testing.assert_allclose(parameters(result.parameters[3]), theta, rtol=2e-5, atol=2e-6)
    assert result.log["soft_gap"].iloc[-1] == pytest.approx(F, rel=1e-4)


@pytest.mark.parametrize("notion", NOTIONS)
def test_two_outputs_are_as_one(notion: str) -> None:
    """A model with a logit for each class has the gradient of one with their difference."""
    fed = federation()

    def theta(weights: np.ndarray, bias: np.ndarray) -> dict[str, np.ndarray]:
        return {"weight": weights.astype(np.float32), "bias": bias.astype(np.float32)}

    w, b = LOGISTIC["0.weight"], LOGISTIC["0.bias"]
    ends = []
    for outputs, start in ((1, theta(w, b)), (2, theta(np.r_[-w / 2, w / 2], np.r_[-b / 2, b / 2]))):
        made = options(1, 1) | {"model": torch.nn.Linear(D, outputs)}
        method = FedGFT(notion, fairness_weight=WEIGHT)
        found = ef.simulate(method, fed, initial_parameters=start, **made).parameters[3]
        moved = np.c_[found["weight"], found["bias"]] - np.c_[start["weight"], start["bias"]]
        ends.append(moved[-1] - (moved[0] if outputs == 2 else 0))
    np.testing.assert_allclose(ends[1], 2 * ends[0], atol=1e-6)  # both logits move


@pytest.mark.parametrize("notion", NOTIONS)
def test_groups_without_rows_are_no_part_of_the_gap(notion: str) -> None:
    zero = torch.zeros((), dtype=torch.double)
    start = Server({}, zero, torch.zeros(3, 2).double())

    def replies(there: list[int]) -> dict[str, Any]:
        mask = torch.zeros(3, 1).double()
        mask[there] = 1
        scores = torch.tensor([[0.6, 0.8], [0.3, 0.5], [0.1, 0.9]]).double()
        return {"scores": mask * scores, "counts": mask.expand(3, 2), "rows": zero + 6}

    two = FedGFT(notion).combine(start, replies([0, 2]), None)
    assert float(two.F) > 0
    assert not two.slope[1].any()
    for there in ([1], []):
        alone = FedGFT(notion, penalty="id").combine(start, replies(there), None)
        assert float(alone.F) == 0
        assert not alone.slope.any()


@pytest.mark.parametrize("penalty", ["l2", "id"])
def test_lambda_0_is_fedavg(penalty: Any) -> None:
    fed, made = federation(), options(4, 2)
    fedavg = ef.simulate(ef.methods.FedAvg(), fed, **made)
    found = ef.simulate(FedGFT(fairness_weight=0.0, penalty=penalty), fed, **made)
    for name, value in found.parameters[3].items():
        np.testing.assert_allclose(value, fedavg.parameters[3][name], rtol=1e-6, atol=1e-7)
