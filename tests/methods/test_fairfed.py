"""FairFed with its local debiasings, and FedMinMax, against plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import nn

import equifed as ef
from equifed import metrics
from equifed.federation import Federation
from equifed.methods import FairFed, FedMinMax
from equifed.methods import _debias as fairbatch
from equifed.methods._cells import DIFFERENCES
from equifed.methods.fairfed import difference
from equifed.methods.fedminmax import project
from equifed.protocol import Data, Task
from equifed.settings import Local
from methods.plain import client, sigmoid

STEP = Local(epochs=1, batch_size=None, learning_rate=0.4)
MODEL = ef.models.Logistic()


def trained(w: np.ndarray, x: np.ndarray, y: np.ndarray, weight: np.ndarray | float = 1.0) -> np.ndarray:
    """One full-batch step of size 0.4."""
    if not len(y):
        return w
    error = weight * (sigmoid(x @ w[1:] + w[0]) - y) / len(y)
    return w - 0.4 * np.r_[error.sum(), x.T @ error]


def parameters(result: ef.Result, seed: int) -> np.ndarray:
    got = result.parameters[seed]
    return np.r_[got["0.bias"].ravel(), got["0.weight"].ravel()]


def F(y: np.ndarray, p: np.ndarray, s: np.ndarray, name: str) -> list[float]:
    """Signed gap(s) of group 1 over group 0; nan where undefined."""
    gaps = []
    for label in {"demographic": [None], "equal": [1], "equalized": [1, 0]}[name.split("_")[0]]:
        keep = np.ones(len(y), bool) if label is None else y == label
        cells = [p[keep & (s == g)] for g in (0, 1)]
        gaps.append(cells[1].mean() - cells[0].mean() if all(map(len, cells)) else np.nan)
    return gaps


def delta(w: np.ndarray, fed: Federation, members: list[int], k: int, name: str) -> float:
    own, everyone = (
        client(fed, k),
        [np.concatenate(part) for part in zip(*(client(fed, j) for j in members), strict=True)],
    )

    def measured(part: Any) -> tuple[list[float], float]:
        x, y, s = part
        p = (x @ w[1:] + w[0] > 0).astype(int)
        return F(y, p, s, name), float((p == y).mean()) if len(y) else 0.0

    (mine, accuracy), (all_rows, total) = measured(own), measured(everyone)
    gaps = [abs(a - b) for a, b in zip(all_rows, mine, strict=True) if not np.isnan(b)]
    return max(gaps) if gaps else abs(total - accuracy)


@pytest.mark.parametrize("name", DIFFERENCES)
@pytest.mark.parametrize("version", ["aaai", "v1"])
def test_rounds_against_numpy(name: str, version: str, uneven: Federation) -> None:
    """Several rounds with every client, those without rows or without a group among them; some weights are cut at 0."""
    method = FairFed(name, beta=1.5, version=version)  # type: ignore[arg-type]
    result = ef.simulate(method, uneven, model=MODEL, rounds=6, local=STEP, seeds=[1])
    everyone = list(range(uneven.num_clients))
    n = uneven.train.sizes.astype(float)
    omega, w = n / n.sum(), np.zeros(5)
    cut = False
    for _ in range(6):
        gaps = np.array([delta(w, uneven, everyone, k, name) for k in everyone])
        some = n > 0
        if version == "v1":
            omega = np.exp(-1.5 * gaps) * n / n.sum()
        else:
            omega = np.where(some, omega - 1.5 * (gaps - gaps[some].mean()), 0)
            cut |= bool((omega < 0).any())
            omega = np.maximum(omega, 0)
        omega = omega / omega.sum()
        w = omega @ np.array([trained(w, *client(uneven, k)[:2]) for k in everyone])
    assert cut == (version == "aaai")
    np.testing.assert_allclose(parameters(result, 1), w, rtol=1e-3, atol=1e-5)
    assert set(result.messages["gather"]) == {"sum"}
    assert result.messages[result.messages["stage"] == "round"]["phase"].tolist() == (
        ["measure", "compare", "train"] if version == "aaai" else ["measure", "train"]
    )


def test_weights_of_clients_persist_when_they_are_away(uneven: Federation) -> None:
    """With sampling, a client's weight goes on from its last round, normalised if that was the one before; the average
    is over the round's clients."""
    method = FairFed(beta=0.7)
    result = ef.simulate(method, uneven, model=MODEL, rounds=12, clients_per_round=4, local=STEP, seeds=[4])
    from equifed import randomness

    n = uneven.train.sizes.astype(float)
    omega, w, last, ratio = n / n.sum(), np.zeros(5), set[int](), 1.0
    for t in range(1, 13):
        cohort = randomness.draw_cohort(4, t, randomness.client_order(uneven.ids), 4).tolist()
        gaps = np.array([delta(w, uneven, cohort, k, "equal_opportunity_difference") for k in cohort])
        some = n[cohort] > 0
        before = np.array([omega[k] * (ratio if k in last else 1) for k in cohort])
        new = np.where(some, np.maximum(before - 0.7 * (gaps - gaps[some].mean()), 0), 0)
        omega[cohort], last = new, set(cohort)
        ratio = before.sum() / new.sum() if before.sum() > 0 and new.sum() > 0 else 1.0
        if new.sum() > 0:
            w = (new / new.sum()) @ np.array([trained(w, *client(uneven, k)[:2]) for k in cohort])
    np.testing.assert_allclose(parameters(result, 4), w, rtol=1e-3, atol=1e-5)


def test_weights_stay_finite_when_they_are_all_cut(uneven: Federation) -> None:
    """A large beta with few clients a round cuts weights at 0 again and again."""
    result = ef.simulate(
        FairFed(beta=50.0), uneven, model=MODEL, rounds=60, clients_per_round=2, local=STEP, seeds=[0, 1]
    )
    assert not len(result.rejections)
    assert all(np.isfinite(value).all() for found in result.parameters.values() for value in found.values())


def test_difference_over_three_groups_is_the_largest_over_pairs() -> None:
    rng = np.random.default_rng(0)
    everyone, own = (torch.tensor(rng.integers(1, 30, size=(3, 2, 2))).float() for _ in range(2))
    for name in DIFFERENCES:
        rates = []
        for counts in (everyone.numpy(), own.numpy()):
            tpr, fpr = counts[:, 1, 1] / counts[:, 1].sum(1), counts[:, 0, 1] / counts[:, 0].sum(1)
            selected = counts[:, :, 1].sum(1) / counts.sum((1, 2))
            rates.append({"d": [selected], "equal_": [tpr], "equali": [tpr, fpr]}["d" if name[0] == "d" else name[:6]])
        pairs = [(a, b) for a in range(3) for b in range(3)]
        expected = max(abs((g[a] - g[b]) - (k[a] - k[b])) for g, k in zip(*rates, strict=True) for a, b in pairs)
        assert difference(everyone, own, name).item() == pytest.approx(expected, rel=1e-5)


def test_measured_counts_are_those_of_the_metrics(uneven: Federation) -> None:
    """F of all rows from the summed counts is the metric of the pooled rows."""
    x, y, s = (np.concatenate(part) for part in zip(*(client(uneven, k) for k in range(10)), strict=True))
    counts = np.zeros((2, 2, 2))
    p = (x[:, 0] > 0).astype(int)
    np.add.at(counts, (s, y, p), 1)
    gap = difference(torch.tensor(counts), torch.tensor([[[1.0, 1], [1, 1]]] * 2), "equal_opportunity_difference")
    assert gap.item() == pytest.approx(metrics.equal_opportunity_difference(y, p, sensitive_features=s))


# -- local debiasing ---------------------------------------------------------------------------------------------------


def test_reweighing_as_debiasing(uneven: Federation) -> None:
    """beta 0: the average of FedAvg, so FedAvg+LR."""
    a = ef.simulate(FairFed(beta=0.0, debias="reweighing"), uneven, model=MODEL, rounds=3, local=STEP, seeds=[0])
    b = ef.simulate(ef.methods.FedAvgLR(), uneven, model=MODEL, rounds=3, local=STEP, seeds=[0])
    np.testing.assert_allclose(parameters(a, 0), parameters(b, 0), atol=1e-6)


def batch_data(n: int = 400, groups: int = 2, seed: int = 0) -> Data:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    s = rng.integers(0, groups, n)
    y = (x[:, 0] + 0.8 * s + rng.normal(size=n) > 0.5).astype(np.int64)
    task = Task(nn.Linear(2, 1), "classification", 2, groups, 1, 1, Local(), binary=True)
    return Data(torch.tensor(x), torch.tensor(y), torch.tensor(s), torch.ones(n, dtype=torch.double), task)


THETA = {"weight": torch.tensor([[0.9, 0.1]]).double(), "bias": torch.tensor([-0.3]).double()}


@pytest.mark.parametrize("fairness", DIFFERENCES)
@pytest.mark.parametrize("seed", range(4))
def test_fairbatch_moves_towards_the_group_with_the_higher_loss(fairness: str, seed: int) -> None:
    data = batch_data(seed=seed)
    y, s = data.y.numpy(), data.s.numpy()
    z = data.x.numpy() @ [0.9, 0.1] - 0.3
    loss = np.log1p(np.exp(z)) - y * z
    own = np.array([[((y == c) & (s == g)).sum() / (y == c).sum() for g in (0, 1)] for c in (0, 1)])
    shares = fairbatch.begin(torch.zeros(2, 2).double(), data)
    np.testing.assert_allclose(shares, own)
    got = fairbatch.move(shares, THETA, data, fairness, 0.005).numpy()
    # lambda_1 = share of s = 1 in positives, lambda_0 in negatives
    lam = {c: own[c, 1] for c in (0, 1)}
    mean = {(c, g): loss[(y == c) & (s == g)].mean() for c in (0, 1) for g in (0, 1)}
    if fairness.startswith("demographic"):
        against = np.log1p(np.exp(-z))  # the loss of label 1
        mean = {(c, g): against[(y == c) & (s == g)].sum() / (s == g).sum() for c, g in mean}
    gap = {c: mean[c, 1] - mean[c, 0] for c in (0, 1)}
    moving = 1 if fairness.startswith("equal_opp") or abs(gap[1]) > abs(gap[0]) else 0
    sign = -1 if fairness.startswith("demographic") and moving == 0 else 1
    lam[moving] += sign * np.sign(gap[moving]) * 0.005
    np.testing.assert_allclose(got[:, 1], [lam[0], lam[1]], atol=1e-6)
    np.testing.assert_allclose(got.sum(1), 1, atol=1e-6)


def test_fairbatch_shares_stay_within_0_and_1_and_leave_missing_cells_alone() -> None:
    data = batch_data(groups=3)
    data = data.where(~((data.s == 2) & (data.y == 1)))  # nobody of group 2 is positive
    shares = fairbatch.begin(torch.zeros(2, 3).double(), data)
    for _ in range(60):
        shares = fairbatch.move(shares, THETA, data, "equalized_odds_difference", 0.05)
        assert shares.min() >= 0
        assert shares[1, 2] == 0
        np.testing.assert_allclose(shares.sum(1), 1, atol=1e-6)


def test_fairbatch_draws_cells_in_their_shares() -> None:
    data = batch_data(4000)
    data = data.where(torch.arange(4000) < 3900)  # the rest is padding
    shares = torch.tensor([[0.9, 0.1], [0.25, 0.75]]).double()
    uniforms = torch.tensor(np.random.default_rng(0).random(4000))
    rows = fairbatch.pick(shares, uniforms, data).numpy()
    assert rows.max() < 3900
    y, s = data.y.numpy(), data.s.numpy()
    positive = (y[:3900] == 1).mean()
    drawn = np.array([[((y[rows] == c) & (s[rows] == g)).mean() for g in (0, 1)] for c in (0, 1)])
    expected = np.array([[0.9, 0.1], [0.25, 0.75]]) * [[1 - positive], [positive]]
    np.testing.assert_allclose(drawn, expected, atol=0.02)
    inside = rows[(y[rows] == 1) & (s[rows] == 0)]
    assert len(np.unique(inside)) > 0.4 * len(inside)  # spread over the cell, not one row


def test_fairbatch_persists_over_rounds(uneven: Federation) -> None:
    """Shares go on from the last round: after 3 rounds of 2 epochs a client's share has moved by at most 6 steps."""
    from equifed.simulation import Simulation
    from equifed.simulator import make_job

    settings = ef.RunSettings(rounds=3, eval_every=3, local=Local(epochs=2, batch_size=8, learning_rate=0.1))
    job = make_job(FairFed(beta=0.0, debias="fairbatch", debias_step=0.01), uneven, MODEL, settings)
    moved = []
    for step in Simulation(job).rounds():
        _, y, s = client(uneven, 2)
        own = ((y == 1) & (s == 1)).sum() / (y == 1).sum()
        moved.append(abs(step.state.clients.shares[0, 2, 1, 1].item() - own))
    assert moved[0] <= 0.02 + 1e-6 and max(moved) <= 0.06 + 1e-6  # noqa: PT018
    assert max(moved) > 0.005


@pytest.mark.parametrize("fairness", DIFFERENCES)
def test_fairbatch_lowers_the_gap_it_is_told_to(fairness: str) -> None:
    """The point of it: biased clients, and less of the gap in question."""
    rng = np.random.default_rng(3)

    def rows(n: int) -> tuple[np.ndarray, ...]:
        s = rng.integers(0, 2, n)
        x = rng.normal(size=(n, 3)) + np.c_[1.2 * s, np.zeros(n), np.zeros(n)]
        y = (x[:, 0] + x[:, 1] + 0.5 * rng.normal(size=n) > 1.0).astype(int)
        return np.c_[x[:, 1:], s[:, None]], y, s  # the group is the best input

    fed = ef.Federation.from_arrays([rows(800), rows(600)], test=rows(2000))
    gaps = {}
    for debias in (None, "fairbatch"):
        method = FairFed(fairness, beta=0.0, debias=debias, debias_step=0.02)  # type: ignore[arg-type]
        local = Local(epochs=2, batch_size=50, learning_rate=0.2)
        result = ef.simulate(method, fed, model=MODEL, rounds=15, local=local, seeds=[0])
        gaps[debias] = result.final()[fairness].item()
    assert gaps["fairbatch"] < 0.6 * gaps[None]


# -- FedMinMax ---------------------------------------------------------------------------------------------------------


def test_projection_is_the_closest_point_of_the_simplex() -> None:
    rng = np.random.default_rng(0)
    for size in (2, 3, 6):
        for _ in range(10):
            v = rng.normal(size=size)
            best = optimize.minimize(
                lambda m, v=v: ((m - v) ** 2).sum(), np.full(size, 1 / size), bounds=[(0, None)] * size,
                constraints={"type": "eq", "fun": lambda m: m.sum() - 1}, options={"ftol": 1e-14},
            ).x  # fmt: skip
            got = project(torch.tensor(v)).numpy()
            np.testing.assert_allclose(got, best, atol=1e-5)
            assert got.sum() == pytest.approx(1)
            assert got.min() >= 0


def test_fedminmax_rounds_against_numpy(uneven: Federation) -> None:
    eta = 0.8
    result = ef.simulate(FedMinMax(eta), uneven, model=MODEL, rounds=5, local=STEP, seeds=[0])
    n = uneven.train.sizes.astype(float)
    s_all = np.concatenate([client(uneven, k)[2] for k in range(10)])
    rho = np.bincount(s_all) / len(s_all)
    mu, w = rho.copy(), np.zeros(5)
    for _ in range(5):
        models, losses = [], np.zeros(2)
        for k in range(10):
            x, y, s = client(uneven, k)
            z = x @ w[1:] + w[0]
            np.add.at(losses, s, np.log1p(np.exp(z)) - y * z)
            models.append(trained(w, x, y, (mu / rho)[s]))
        w = np.average(models, axis=0, weights=n)
        v = mu + eta * losses / np.bincount(s_all)
        # two groups: the closest point of the simplex to v
        mu = np.clip([(1 + v[0] - v[1]) / 2, (1 + v[1] - v[0]) / 2], 0, 1)
    np.testing.assert_allclose(parameters(result, 0), w, rtol=1e-4, atol=1e-5)
    assert set(result.messages["gather"]) == {"sum"}


def test_fedminmax_helps_the_worst_group() -> None:
    rng = np.random.default_rng(5)

    def rows(n: int) -> tuple[np.ndarray, ...]:
        s = (rng.random(n) < 0.2).astype(int)  # a small group with another rule
        x = rng.normal(size=(n, 2))
        y = (np.where(s == 1, x[:, 1] - x[:, 0] / 2, x[:, 0]) > 0).astype(int)
        return x, y, s

    fed = ef.Federation.from_arrays([rows(300) for _ in range(4)], test=rows(2000))
    worst = {}
    for rate in (0.0, 0.1):
        local = Local(epochs=2, batch_size=50, learning_rate=0.2)
        result = ef.simulate(FedMinMax(rate), fed, model=MODEL, rounds=40, local=local, seeds=[0])
        worst[rate] = result.final()["worst_group_accuracy"].item()
    assert worst[0.1] > worst[0.0] + 0.05


def test_fedminmax_gives_no_weight_to_a_group_without_training_rows_and_keeps_that_of_an_absent_one() -> None:
    method = FedMinMax(0.1)
    server = method.init(
        Task(nn.Linear(2, 1), "classification", 2, 3, 2, 1, Local(), binary=True), {"w": torch.zeros(1)}
    )
    server = server._replace(mu=torch.tensor([0.5, 0.3, 0.2]), rho=torch.tensor([0.6, 0.3, 0.1]))
    replies = {
        "losses": torch.tensor([9.0, 0.2, 0.0]), "counts": torch.tensor([9.0, 1.0, 0.0]),
        "update": {"w": torch.zeros(1)}, "rows": torch.tensor(10.0),
    }  # fmt: skip
    after = method.step(server, replies, None)  # nobody of group 2 took part
    np.testing.assert_allclose(after.mu, [0.5 + 0.1 * 0.4, 0.3 - 0.1 * 0.4, 0.2], atol=1e-6)
    server = server._replace(mu=torch.tensor([0.6, 0.4, 0.0]), rho=torch.tensor([0.6, 0.4, 0.0]))
    after = method.step(server, replies, None)  # nobody at all is in group 2
    np.testing.assert_allclose(after.mu, [0.6 + 0.1 * 0.4, 0.4 - 0.1 * 0.4, 0.0], atol=1e-6)
    assert method.observe(after)["largest_weight"].item() == pytest.approx(0.64 / 0.6)
