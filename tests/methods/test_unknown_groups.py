"""Rows of unknown group (code -1): in the loss like any other row, in no statistic of groups."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

import equifed as ef
from equifed import tree
from equifed.methods import (
    FCFL,
    KFFL,
    KFFLTD,
    LCO,
    AgnosticFair,
    FairFed,
    FedAvgGR,
    FedAvgLR,
    FedFair,
    FedFairGrad,
    FedFB,
    FedGFT,
    FedMinMax,
)
from equifed.methods.fair import Fair
from equifed.methods.postprocess import CalibratedEqualizedOdds, EqualizedOdds
from equifed.protocol import Data, Method, Phase, Record, Task
from equifed.settings import Local
from equifed.training import LocalTraining
from methods.plain import client, sigmoid

D = 3
FEDAVG = ef.methods.FedAvg()
STATISTICS: dict[Method, set[str]] = {
    KFFL(3.0, step_size=0.5): {"n", "sum_s", "sum_f", "sum_sf", "gradient"},
    KFFL(3.0, condition_on="label"): {"n", "sum_s", "sum_f", "sum_sf", "gradient"},
    KFFLTD(3.0): {"n", "sum_s", "sum_f", "sum_sf", "gradient", "gradient_rows"},
    FedMinMax(): {"counts"},
    FedAvgGR(): {"counts"},
    FedFair(): {"gap", "gap_gradient", "holders"},
    LCO(): {"gap_gradient", "constraints", "violated", "excess", "residual"},
    AgnosticFair(steps=1, penalty=0.0): {"known", "s", "cov"},
    FairFed(): {"counts"},
    FedFB(): {"losses", "counts"},
    FedFB("client_parity"): set(),
    FedFairGrad(): {"errors", "counts"},
    FedGFT(): {"scores", "counts"},
    FCFL(): {"gap", "gap_gradient", "defined"},
    ef.methods.FedFACT(): {"counts", "decisions", "constraints", "violated", "excess"},
    EqualizedOdds(FEDAVG, fit="global"): {"decisions"},
    CalibratedEqualizedOdds(FEDAVG, fit="global"): {"scores"},
    Fair(FEDAVG): {"histogram"},
}
"""What replies say of groups. The other fields are of all rows."""


def phases_of(method: Method, task: Task) -> Iterator[Phase]:
    for phase in (*method.setup, *method.round, *method.final):
        if phase.repeat(task) and not isinstance(phase.client, LocalTraining):
            yield phase


def data_of(task: Task, x: np.ndarray, y: np.ndarray, s: np.ndarray) -> Data:
    return Data(torch.tensor(x), torch.tensor(y), torch.tensor(s), torch.ones(len(y), dtype=torch.double), task)


@pytest.mark.parametrize("method", STATISTICS, ids=lambda method: f"{method.name} {method.hyper}"[:60])
def test_replies_say_of_groups_what_the_known_rows_say(method: Method) -> None:
    """Statistics equal those of a client that never had the other rows; the rest does not look at the group."""
    rng = np.random.default_rng(0)
    task = Task(nn.Linear(D, 1).double(), "classification", 2, 2, 1, 10, Local(), binary=True)
    x, s = rng.normal(size=(50, D)), rng.integers(-1, 2, 50)
    y = (x[:, 0] + 0.5 * s + rng.normal(size=50) > 0).astype(np.int64)
    known, anyhow = s >= 0, np.where(s < 0, 1, s)
    theta = {"weight": torch.tensor(rng.normal(size=(1, D))), "bias": torch.tensor([0.1]).double()}
    whole = {
        "all": data_of(task, x, y, s),
        "known": data_of(task, x[known], y[known], s[known]),
        "anyhow": data_of(task, x, y, anyhow),
    }
    server = method.init(task, theta)
    states = dict.fromkeys(whole, method.init_client(task, theta))
    looked_at = set()
    for phase in phases_of(method, task):
        drawn = {
            name: torch.tensor(draw.make(np.random.default_rng(1), task)).double() for name, draw in phase.draws.items()
        }
        replies: dict[str, Record] = {}
        for name, data in whole.items():
            given = data.replace(draws=drawn)
            replies[name], states[name] = phase.client(method.sent(server, phase.down), states[name], given)
        assert set(replies["all"]) == set(phase.up)
        for field, found in replies["all"].items():
            expected = replies["known" if field in STATISTICS[method] else "anyhow"][field]
            for a, b in zip(tree.leaves(found), tree.leaves(expected), strict=True):
                np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-12, err_msg=f"{phase.name}.{field}")
        looked_at |= set(phase.up)
        if phase.gather == "sum":  # what the next exchange goes on from
            server = phase.server(server, replies["known"] | {"present": torch.ones(())}, None)
    assert looked_at >= STATISTICS[method]


def test_agnostic_fairs_penalty_is_of_the_known_rows() -> None:
    rng = np.random.default_rng(0)
    task = Task(nn.Linear(D, 1).double(), "classification", 2, 2, 1, 10, Local(), binary=True)
    x, y, s = rng.normal(size=(40, D)), rng.integers(0, 2, 40), rng.integers(-1, 2, 40)
    theta = {"weight": torch.tensor(rng.normal(size=(1, D))), "bias": torch.tensor([0.1]).double()}
    draws = {"references": torch.tensor(AgnosticFair().draw(rng, task)).double()}
    origin, a = torch.zeros(D).double(), torch.tensor(rng.random(20))
    down = {"theta": theta, "sbar": torch.tensor(0.4), "mean": origin, "std": origin + 1, "a": a, "uniform": origin[0]}

    def penalty(rows: np.ndarray) -> np.ndarray:
        data = data_of(task, x[rows], y[rows], s[rows]).replace(draws=draws)
        with_it, without = (AgnosticFair(penalty=c).gradient(down, (), data)[0]["gradient"] for c in (2.0, 0.0))
        return (with_it["weight"] - without["weight"]).numpy()

    np.testing.assert_allclose(penalty(s >= -1), penalty(s >= 0), rtol=1e-9)


def federation(seed: int = 0) -> ef.Federation:
    """Unequal clients; one has no known group."""
    rng = np.random.default_rng(seed)

    def part(n: int, share: float) -> tuple[np.ndarray, ...]:
        x, s = rng.normal(size=(n, D)), rng.integers(0, 2, n)
        y = (x[:, 0] + s + 0.5 * rng.normal(size=n) > 0.5).astype(int)
        return x, y, np.where(rng.random(n) < share, -1, s)

    return ef.Federation.from_arrays([part(40, 0.3), part(25, 0.2), part(30, 1.0)], test=part(80, 0.3))


START = {"0.weight": np.array([[0.3, -0.2, 0.1]], np.float32), "0.bias": np.array([0.05], np.float32)}
THETA = np.array([0.3, -0.2, 0.1, 0.05], np.float32).astype(float)
RATE, ROUNDS = 0.5, 3


def trained(method: Method, fed: ef.Federation, rounds: int = ROUNDS, **more: object) -> ef.Result:
    """Every client takes one full step per round."""
    settings = {"local": ef.Local(epochs=1, batch_size=None, learning_rate=RATE), "initial_parameters": START, **more}
    return ef.simulate(method, fed, model=ef.models.Logistic(), rounds=rounds, seeds=[0], **settings)


def vector(result: ef.Result) -> np.ndarray:
    (found,) = result.parameters.values()
    by_end = {name.rpartition(".")[2]: value for name, value in found.items()}
    return np.append(by_end["weight"].ravel(), by_end["bias"])


def clients_of(fed: ef.Federation) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(x with a column of ones, y, s) of each client."""
    parts = (client(fed, k) for k in range(fed.num_clients))
    return [(np.column_stack([x, np.ones(len(x))]), y, s) for x, y, s in parts]


def loss(theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, x @ theta) - y * (x @ theta)


def weighted_round(theta: np.ndarray, parts: list, weight_of) -> np.ndarray:
    """FedAvg of one full weighted step per client: weights of the rows from (y, s)."""
    n = sum(len(y) for _, y, _ in parts)
    new = np.zeros_like(theta)
    for x, y, s in parts:
        gradient = x.T @ (weight_of(y, s) * (sigmoid(x @ theta) - y)) / len(y)
        new += len(y) / n * (theta - RATE * gradient)
    return new


def simplex(v: np.ndarray) -> np.ndarray:
    """The closest point of the simplex in two dimensions: along the diagonal."""
    a = np.clip((v[0] - v[1] + 1) / 2, 0, 1)
    return np.array([a, 1 - a])


def test_fedminmax_gives_them_weight_one_and_no_say_in_the_risks():
    fed = federation()
    parts, theta = clients_of(fed), THETA
    groups = np.concatenate([s for _, _, s in parts])
    rho = np.array([(groups == g).sum() for g in (0, 1)]) / (groups >= 0).sum()
    mu, eta = rho.copy(), 0.8
    for _ in range(ROUNDS):
        losses = np.concatenate([loss(theta, x, y) for x, y, _ in parts])
        risk = np.array([losses[groups == g].mean() for g in (0, 1)])
        ratio = np.append(mu / rho, 1.0)  # the last, by code -1, is the unknown one
        theta = weighted_round(theta, parts, lambda y, s, ratio=ratio: ratio[s])
        mu = simplex(mu + eta * risk)
    found = trained(FedMinMax(adversary_rate=eta), fed)
    np.testing.assert_allclose(vector(found), theta, rtol=1e-5, atol=1e-6)
    assert found.log["largest_weight"].iloc[-1] == pytest.approx((mu / rho).max(), rel=1e-5)


@pytest.mark.parametrize("method", [FedAvgLR(), FedAvgGR()], ids=lambda method: method.name)
def test_reweighing_leaves_them_at_weight_one(method: Method):
    fed = federation()
    parts, theta = clients_of(fed), THETA
    pooled = [np.concatenate([part[i] for part in parts]) for i in (1, 2)]

    def weights(y: np.ndarray, s: np.ndarray) -> np.ndarray:
        ys, ss = (y, s) if method.name == "fedavg-lr" else pooled
        ys, ss = ys[ss >= 0], ss[ss >= 0]
        made = np.ones(len(y))
        for i, (label, group) in enumerate(zip(y, s, strict=True)):
            if group >= 0:
                made[i] = (ss == group).mean() * (ys == label).mean() / ((ss == group) & (ys == label)).mean()
        return made

    for _ in range(ROUNDS):
        theta = weighted_round(theta, parts, weights)
    np.testing.assert_allclose(vector(trained(method, fed)), theta, rtol=1e-5, atol=1e-6)


def test_fedfair_takes_the_gap_from_the_clients_that_know_it():
    """A client without any known group adds its loss, and nothing to the constraint."""
    fed = federation()
    found = trained(FedFair(epsilon=0.05, step_size=0.3, dual_step_size=0.5), fed, rounds=30)
    theta, gaps = vector(found).astype(float), []
    for x, y, s in clients_of(fed)[:2]:
        losses = loss(theta, x, y)
        gaps.append(losses[(s == 0) & (y == 1)].mean() - losses[(s == 1) & (y == 1)].mean())
    assert found.log["constraint"].iloc[-1] == pytest.approx(abs(np.mean(gaps)), rel=1e-4)
    # and its loss does move the model
    others = ef.Federation.from_arrays([client(fed, 0), client(fed, 1)])
    assert np.abs(vector(trained(FedFair(), fed)) - vector(trained(FedFair(), others))).max() > 1e-3


def test_overall_figures_are_of_all_rows_and_groups_of_known_ones():
    fed = federation()
    result = trained(FEDAVG, fed)
    rows, y, s = fed.test, fed.rows.y[fed.test], fed.rows.s[fed.test]
    p = np.asarray(result.predict(fed.rows.x[rows]), dtype=float)
    right, chosen = (p > 0.5) == y, p > 0.5
    last = result.metrics[result.metrics["round"] == ROUNDS].set_index(["scope", "metric"])["value"]
    assert last["global", "rows"] == 80
    assert last["global", "accuracy"] == pytest.approx(right.mean())
    assert last["global", "loss"] == pytest.approx(-np.log(np.where(y == 1, p, 1 - p)).mean(), rel=1e-5)
    assert last["global", "selection_rate"] == pytest.approx(chosen.mean())
    for g in (0, 1):
        assert last[f"group:{g}", "count"] == (s == g).sum()
        assert last[f"group:{g}", "accuracy"] == pytest.approx(right[s == g].mean())
    gap = abs(chosen[s == 0].mean() - chosen[s == 1].mean())
    assert last["global", "demographic_parity_difference"] == pytest.approx(gap)
    assert last["global", "worst_group_accuracy"] == pytest.approx(min(right[s == g].mean() for g in (0, 1)))
    errors = ef.metrics.expected_calibration_error(y, p)
    assert last["global", "expected_calibration_error"] == pytest.approx(errors, abs=1e-6)
    # what intervals are computed from are the groups' counts
    (table,) = result.count_tables("test").values()
    assert table.sum() == (s >= 0).sum()


def test_overall_figures_of_a_regression_are_of_all_rows():
    rng = np.random.default_rng(2)

    def part(n: int) -> tuple[np.ndarray, ...]:
        x, s = rng.normal(size=(n, D)), rng.integers(-1, 2, n)
        return x, x[:, 0] + s, s

    fed = ef.Federation.from_arrays([part(40), part(30)], test=part(60), task="regression")
    local = ef.Local(batch_size=10, learning_rate=0.05)
    result = ef.simulate(FEDAVG, fed, model=ef.models.Linear(), rounds=2, local=local)
    p, y, s = result.predict(fed.rows.x[fed.test]), fed.rows.y[fed.test], fed.rows.s[fed.test]
    last = result.metrics[result.metrics["round"] == 2].set_index(["scope", "metric"])["value"]
    assert last["global", "rmse"] == pytest.approx(np.sqrt(np.mean((p - y) ** 2)), rel=1e-5)
    assert last["group:0", "rmse"] == pytest.approx(np.sqrt(np.mean((p - y)[s == 0] ** 2)), rel=1e-5)
    known = s >= 0
    expected = ef.metrics.ks_distance(p[known], sensitive_features=s[known])
    assert last["global", "ks_distance"] == pytest.approx(expected)
    assert last["global", "mean_difference"] == pytest.approx(abs(p[s == 0].mean() - p[s == 1].mean()), rel=1e-4)


@pytest.mark.parametrize("rule", [EqualizedOdds, CalibratedEqualizedOdds, Fair])
def test_post_processing_leaves_them_as_they_are(rule):
    fed = federation()
    inner, result = trained(FEDAVG, fed), trained(rule(FEDAVG, **({} if rule is Fair else {"fit": "global"})), fed)
    x, s = fed.rows.x[fed.test], fed.rows.s[fed.test]
    before, after = inner.predict(x), result.predict(x, s=s)
    np.testing.assert_array_equal(after[s < 0], before[s < 0])
    assert (after[s >= 0] != before[s >= 0]).any()
    # names, and None for what is not known, say the same
    named = np.array([fed.groups[code] if code >= 0 else None for code in s], dtype=object)
    np.testing.assert_array_equal(result.predict(x, s=named), after)
    np.testing.assert_array_equal(result.predict(x, s=np.where(s < 0, np.nan, s)), after)
    with pytest.raises(ef.ConfigError, match="group code -2"):
        result.predict(x, s=s - 1)
