"""FAIR-FATE's server step, its baselines and its fairness measure, against plain NumPy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import equifed as ef
from equifed import metrics
from equifed.federation import Federation
from equifed.methods import FairFate, FedAvgGR, FedAvgLR, FedDemon, FedMom, FedVal
from equifed.methods._cells import RATIOS, cell_counts, ratios
from equifed.methods.reweighing import cell_weights
from equifed.protocol import Data, Task
from equifed.settings import Local
from methods.plain import sigmoid

D = 3


def make_task(groups: int = 2, rounds: int = 10) -> Task:
    return Task(nn.Linear(D, 1), "classification", 2, groups, 4, rounds, Local(), binary=True)


def validation(groups: int = 2, n: int = 60, seed: int = 0, **changes: object) -> Data:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, D)).astype(np.float32)
    s = rng.integers(0, groups, n)
    y = (x[:, 0] + 0.5 * s + rng.normal(size=n) > 0.3).astype(np.int64)
    data = Data(torch.tensor(x), torch.tensor(y), torch.tensor(s), torch.ones(n), make_task(groups))
    return dataclasses.replace(data, **changes)


def theta_of(w: np.ndarray) -> dict[str, torch.Tensor]:
    """A model from (bias, weights)."""
    w = np.asarray(w, dtype=np.float32)
    return {"weight": torch.tensor(w[..., None, 1:]), "bias": torch.tensor(w[..., :1])}


def vector(theta: dict[str, torch.Tensor]) -> np.ndarray:
    return np.concatenate([theta["bias"].numpy().ravel(), theta["weight"].numpy().ravel()])


def predict(w: np.ndarray, data: Data) -> np.ndarray:
    return (data.x.numpy() @ w[1:] + w[0] > 0).astype(int)


def F(w: np.ndarray, data: Data, name: str, compat: str | None = None) -> float:
    """The metric by equifed.metrics, which is tested against fairlearn and by hand."""
    keep = data.mask.numpy() > 0
    return getattr(metrics, name)(
        data.y.numpy()[keep], predict(w, data)[keep], sensitive_features=data.s.numpy()[keep], paper_compat=compat
    )


@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("name", RATIOS)
@pytest.mark.parametrize("published", [False, True])
def test_fairness_is_the_metric(groups: int, name: str, published: bool) -> None:
    rng = np.random.default_rng(1)
    data = validation(groups)
    data = dataclasses.replace(data, mask=torch.tensor((rng.random(60) < 0.8).astype(np.float32)))
    for _ in range(60):
        w = rng.normal(size=D + 1) * [3, 1, 1, 1]  # the bias makes some models nearly constant
        ours = ratios(theta_of(w), data, name, published).item()
        # a ratio of small counts, or a mean of two rounded ones, may lie half-way between two decimals: either is right
        tie = 0.01 if published else 0
        assert ours == pytest.approx(F(w, data, name, "fair-fate" if published else None), abs=1e-6 + tie, nan_ok=True)


def test_several_metrics_are_averaged() -> None:
    w, data = np.array([0.1, 1.0, -0.5, 0.2]), validation()
    expected = np.mean([F(w, data, name) for name in RATIOS])
    assert ratios(theta_of(w), data, RATIOS).mean().item() == pytest.approx(expected)


@pytest.mark.parametrize("s", [np.zeros(60), np.ones(60)])
def test_a_group_missing_from_the_validation_set_is_undefined(s: np.ndarray) -> None:
    data = validation(s=torch.tensor(s.astype(np.int64)))
    for name in RATIOS:
        assert np.isnan(ratios(theta_of(np.array([0.1, 1, 0, 0])), data, name).item())


def exact_tie(w: np.ndarray, data: Data, name: str, compat: str | None) -> float:
    """Where a rounding tie decides (see test_fairness_is_the_metric), take the tensor's side of it."""
    return ratios(theta_of(w), data, name, compat is not None).item()


# -- one server step ---------------------------------------------------------------------------------------------------


def numpy_step(
    method: FairFate, theta: np.ndarray, v: np.ndarray, t: int, T: int, own: np.ndarray, n: np.ndarray, data: Data
) -> tuple[np.ndarray, np.ndarray]:
    """Algorithm 1, or as published, line by line."""
    compat = "fair-fate" if method.as_published else None
    names = (method.fairness,) if isinstance(method.fairness, str) else method.fairness
    measure = exact_tie if compat else F
    f0 = np.array([measure(theta, data, name, compat) for name in names])
    fk = np.array([[measure(w, data, name, compat) for name in names] for w in own])
    if method.as_published:  # every metric is scaled by itself
        for j in range(len(names)):
            everything = np.append(fk[:, j], f0[j])
            low, high = everything.min(), everything.max()
            f0[j] = (f0[j] - low) / (high - low) if high > low else 0
            fk[:, j] = (fk[:, j] - low) / (high - low) if high > low else 0
    f0, fk = np.nan_to_num(f0.mean()), fk.mean(1)
    defined = ~np.isnan(fk)
    fk = np.nan_to_num(fk)
    fair = defined & ((fk > f0) if method.as_published else (fk >= f0))
    delta = own - theta
    total = fk[fair].sum()
    alpha_f = (fk[fair, None] * delta[fair]).sum(0) / total if total > 0 else np.zeros_like(theta)
    alpha_n = (n[:, None] * delta).sum(0) / n.sum()
    beta = method.beta0 * (1 - t / T) / ((1 - method.beta0) + method.beta0 * (1 - t / T))
    v = beta * v + (1 - beta) * alpha_f
    amount = min(method.lambda0 * (1 + method.rho) ** t, method.lambda_max)
    fair_part = v / (1 - beta**t) if method.as_published else v
    return theta + amount * fair_part + (1 - amount) * alpha_n, v


CASES = {
    "ordinary": lambda rng: rng.normal(size=(4, D + 1)) * [0.5, 1, 1, 1],
    "nobody fairer": lambda rng: np.array([[0.0, 3, 0, 0], [0.1, 4, 0, 0], [0.0, 3.5, 0.1, 0], [-0.1, 3, 0, 0]]),
    "all equal": lambda rng: np.tile([0.2, 1.0, -0.3, 0.1], (4, 1)),
    "nobody positive": lambda rng: np.tile([-99.0, 0.1, 0, 0], (4, 1)) + rng.normal(size=(4, D + 1)) * 0.01,
    "one undefined": lambda rng: np.vstack([rng.normal(size=(3, D + 1)), [-99, 0, 0, 0]]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("name", [*RATIOS, RATIOS[:2]], ids=str)
def test_server_steps_against_numpy(case: str, published: bool, name: str | tuple[str, ...]) -> None:
    """All rounds of a short run, the last one (t = T, beta = 0) included."""
    T, data, rng = 6, validation(), np.random.default_rng(3)
    method = FairFate(fairness=name, beta0=0.9, rho=0.3, lambda0=0.2, lambda_max=0.8, as_published=published)
    theta = rng.normal(size=D + 1)
    if case == "nobody fairer":
        theta = np.array([50.0, 0, 0, 0])  # predicts everybody positive: every ratio is 1 (or, as published, 0)
    server = method.init(make_task(rounds=T), theta_of(theta))
    v = np.zeros(D + 1)
    for t in range(1, T + 1):
        own, n = CASES[case](rng), np.array([10.0, 40, 5, 20])
        replies = {"theta": theta_of(own), "rows": torch.tensor(n), "present": torch.ones(4), "client": torch.arange(4)}
        server = method.step(server, replies, data)
        theta, v = numpy_step(method, theta, v, t, T, own, n, data)
        np.testing.assert_allclose(vector(server.theta), theta, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(vector(server.v), v, rtol=1e-4, atol=1e-4)
        theta = vector(server.theta).astype(np.float64)  # go on from the same numbers
        v = vector(server.v).astype(np.float64)
    assert server.beta.item() == 0
    assert server.amount.item() == pytest.approx(0.8)


def test_undefined_clients_are_left_out_and_counted() -> None:
    data = validation()
    method = FairFate(fairness="equal_opportunity_ratio")
    own = np.array([[0.1, 1.0, 0, 0], [-99.0, 0, 0, 0]])  # the second predicts nobody positive: 0/0
    server = method.init(make_task(), theta_of(np.array([-99.0, 0, 0, 0])))
    replies = {"theta": theta_of(own), "rows": torch.ones(2), "present": torch.ones(2), "client": torch.arange(2)}
    after = method.step(server, replies, data)
    assert (after.fair.item(), after.undefined.item()) == (1, 1)
    assert method.observe(after)["undefined_clients"].item() == 1


def test_no_fair_client_moves_by_momentum_and_the_plain_update_only() -> None:
    data = validation(s=torch.zeros(60, dtype=torch.long))  # one group: nothing is defined, nobody is fair
    method = FairFate(lambda0=0.5, rho=0.0)
    theta, own = np.zeros(D + 1), np.array([[1.0, 2, 3, 4], [3.0, 2, 1, 0]])
    server = method.init(make_task(), theta_of(theta))
    replies = {"theta": theta_of(own), "rows": torch.tensor([1.0, 3.0]), "present": torch.ones(2)}
    after = method.step(server, replies, data)
    np.testing.assert_allclose(vector(after.theta), 0.5 * np.average(own, axis=0, weights=[1, 3]), rtol=1e-6)
    assert vector(after.v).tolist() == [0, 0, 0, 0]


# -- baselines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mom", "demon"])
def test_momentum_against_numpy(kind: str) -> None:
    T, rng = 5, np.random.default_rng(0)
    method = FedMom(beta=0.7) if kind == "mom" else FedDemon(beta0=0.7)
    theta, m = rng.normal(size=D + 1), np.zeros(D + 1)
    server = method.init(make_task(rounds=T), theta_of(theta))
    for t in range(1, T + 1):
        update, rows = rng.normal(size=D + 1) * 30, 30.0
        server = method.step(server, {"update": theta_of(update), "rows": torch.tensor(rows)}, None)
        beta = 0.7 if kind == "mom" else 0.7 * (1 - t / T) / (0.3 + 0.7 * (1 - t / T))
        m = beta * m + (1 - beta) * update / rows
        theta = theta + m / (1 - beta**t)
        np.testing.assert_allclose(vector(server.theta), theta, rtol=1e-5)


@pytest.mark.parametrize("published", [False, True])
def test_fedval_against_numpy(published: bool) -> None:
    data, rng = validation(), np.random.default_rng(5)
    method = FedVal("average_odds_ratio", as_published=published)
    own = np.vstack([rng.normal(size=(3, D + 1)), [-99, 0, 0, 0]])
    replies = {"theta": theta_of(own), "rows": torch.ones(4), "present": torch.ones(4)}
    after = method.average(method.init(make_task(), theta_of(own[0])), replies, data)
    measure = exact_tie if published else F
    s = 0.001 + np.nan_to_num([measure(w, data, "average_odds_ratio", "fair-fate" if published else None) for w in own])
    np.testing.assert_allclose(vector(after.theta), s @ own / s.sum(), rtol=1e-4)


def test_reweighing_makes_group_and_label_independent() -> None:
    rng = np.random.default_rng(0)
    s, y = rng.integers(0, 3, 200), rng.integers(0, 2, 200)
    y[s == 2] = 1  # an empty cell
    data = Data(torch.zeros(200, 1), torch.tensor(y), torch.tensor(s), torch.ones(200), make_task(groups=3))
    counts = cell_counts(data)
    expected = np.array([[((s == g) & (y == c)).sum() for c in (0, 1)] for g in range(3)])
    np.testing.assert_array_equal(counts, expected)
    weights = cell_weights(counts).numpy()
    for g in range(3):
        for c in (0, 1):
            joint = ((s == g) & (y == c)).mean()
            assert weights[g, c] == pytest.approx((s == g).mean() * (y == c).mean() / joint if joint else 1)
    assert cell_weights(torch.zeros(2, 2)).tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("method", [FedAvgLR(), FedAvgGR(), FedAvgGR(scope="round")], ids=repr)
def test_one_round_of_reweighing_against_numpy(method: FedAvgLR | FedAvgGR, uneven: Federation) -> None:
    from equifed import randomness

    result = ef.simulate(
        method, uneven, model=ef.models.Logistic(), rounds=1, clients_per_round=5, seeds=[2],
        local=Local(epochs=2, batch_size=None, learning_rate=0.4),
    )  # fmt: skip
    everybody = randomness.client_order(uneven.ids)
    cohort = randomness.draw_cohort(2, 1, everybody, 5)

    def cells(clients: np.ndarray) -> np.ndarray:
        counts = np.zeros((2, 2))
        for k in clients:
            np.add.at(counts, (uneven.rows.s[uneven.train[k]], uneven.rows.y[uneven.train[k]]), 1)
        return counts

    models, sizes = [], []
    for k in cohort:
        rows = uneven.train[k]
        x, y, s = uneven.rows.x[rows].astype(float), uneven.rows.y[rows], uneven.rows.s[rows]
        if method.name == "fedavg-lr":
            counts = cells(np.array([k]))
        else:
            counts = cells(everybody if method.scope == "all" else cohort)  # type: ignore[union-attr]
        p = counts / max(counts.sum(), 1)
        weight = np.array([p[a].sum() * p[:, b].sum() / p[a, b] if p[a, b] else 1 for a, b in zip(s, y, strict=True)])
        w = np.zeros(5)
        for _ in range(2 if len(y) else 0):
            error = weight * (sigmoid(w[0] + x @ w[1:]) - y) / len(y)
            w = w - 0.4 * np.concatenate([[error.sum()], x.T @ error])
        models.append(w)
        sizes.append(len(y))
    expected = np.average(models, axis=0, weights=sizes)
    got = np.concatenate([result.parameters[2]["0.bias"].ravel(), result.parameters[2]["0.weight"].ravel()])
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
    sent = result.messages.set_index("phase")["up"].to_dict()
    assert sent["train"] == "update, rows"
    assert (sent.get("count") == "counts") == (method.name == "fedavg-gr")
    assert set(result.messages["gather"]) == {"sum"}


def test_fair_fate_on_compas_trades_accuracy_for_fairness(needs: Callable[[str], Path]) -> None:
    """The point of the method, on real data: lambda_max buys fairness."""
    needs("compas")
    feds = ef.load("compas", preset="fair-fate", partition=ef.partition.Dirichlet(10, 1.0), seeds=range(4))
    result = ef.simulate(
        FairFate(fairness="demographic_parity_ratio", beta0=0.8, rho=0.1, lambda0=0.1), feds,
        over={"lambda_max": [0.0, 0.9]}, model=ef.models.MLP(hidden=(10,), activation="tanh"), rounds=25,
        clients_per_round=3, local=Local(epochs=2, batch_size=16, learning_rate=0.1), eval_every=25,
    )  # fmt: skip
    ratio = result.summary()[("demographic_parity_ratio", "mean")]
    assert ratio.iloc[1] > ratio.iloc[0] + 0.05


def test_bad_hyper_parameters() -> None:
    with pytest.raises(ef.ConfigError, match=r"^fairness must be one of .* or several of them, got 'sp'"):
        ef.methods.make("fair-fate", fairness="sp")
    with pytest.raises(ef.ConfigError, match=r"^fairness must be one of"):
        ef.methods.make("fair-fate", fairness=["demographic_parity_ratio", "eo"])
    with pytest.raises(ef.ConfigError, match=r"^beta0 must be a number of at least 0 and at most 0\.999, got 1"):
        ef.methods.make("fair-fate", beta0=1)
    with pytest.raises(ef.ConfigError, match=r"^scope must be one of 'all', 'round'"):
        ef.methods.make("fedavg-gr", scope="some")
    assert ef.methods.make("fedval", fairness=list(RATIOS)).fairness == RATIOS
