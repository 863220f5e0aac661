"""FedEM and SFFL against plain NumPy, and what mixtures are for."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import grad

import equifed as ef
from equifed import metrics
from equifed.errors import EquifedWarning
from equifed.federation import Federation
from equifed.methods import SFFL, FedEM
from equifed.methods._cells import DIFFERENCES, gap
from equifed.methods.sffl import self_aware
from equifed.protocol import Data, Task
from equifed.settings import Local
from equifed.simulation import Simulation
from equifed.simulator import make_job
from methods.plain import client, sigmoid

STEP = Local(epochs=1, batch_size=None, learning_rate=0.4)
MODEL = ef.models.Logistic()


def simulation(method: Any, fed: Federation, initial_parameters: Any = None, **changes: Any) -> Simulation:
    settings = ef.RunSettings(**({"rounds": 5, "eval_every": 5, "local": STEP, "seeds": [0]} | changes))
    return Simulation(make_job(method, fed, MODEL, settings, initial_parameters=initial_parameters))


def components(theta: Any) -> np.ndarray:
    """[M, 1 + d], the bias first."""
    return np.c_[np.asarray(theta["0.bias"], float), np.asarray(theta["0.weight"], float)[:, 0]]


def rates(p: np.ndarray, weight: np.ndarray, y: np.ndarray, s: np.ndarray, fairness: str) -> list[list[float]]:
    """The rate of every group that has one, for each label that the criterion looks at."""
    labels: Any = {"d": [None], "equal_": [1], "equali": [1, 0]}["d" if fairness[0] == "d" else fairness[:6]]
    made = []
    for label in labels:
        cells = [(s == g) & ((y == label) if label is not None else True) for g in range(int(s.max(initial=0)) + 1)]
        made.append([float(np.average(p[c], weights=weight[c])) for c in cells if weight[c].sum() > 1e-6])
    return made


def widest(p: np.ndarray, weight: np.ndarray, y: np.ndarray, s: np.ndarray, fairness: str) -> float | None:
    found = [max(each) - min(each) for each in rates(p, weight, y, s, fairness) if len(each) > 1]
    return max(found) if found else None


def soft_gradient(w: np.ndarray, q: np.ndarray, x: np.ndarray, y: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Gradient of |softTPR_1 - softTPR_0| by the quotient rule; 0 where a cell is missing."""
    z = np.c_[np.ones(len(x)), x]
    p = sigmoid(z @ w)
    parts = []
    for g in (0, 1):
        c = (s == g) & (y == 1)
        if q[c].sum() <= 1e-6:
            return np.zeros_like(w)
        parts.append((np.average(p[c], weights=q[c]), (q[c] * p[c] * (1 - p[c])) @ z[c] / q[c].sum()))
    return np.sign(parts[1][0] - parts[0][0]) * (parts[1][1] - parts[0][1])


@pytest.mark.parametrize("method", [FedEM(), SFFL(aggregation="size", fairness_step=2.0), SFFL(fairness_step=2.0)])
def test_rounds_against_numpy(method: Any, uneven: Federation) -> None:
    """E-step, mixture weights, multipliers, M-step with the fairness term, and aggregation, over 5 rounds."""
    run = simulation(method, uneven)
    w = components(ef.tree.take(run.engine.start().server.theta, 0))
    K, M, n = uneven.num_clients, 3, uneven.train.sizes.astype(float)
    pi, lam, weight = np.full((K, M), 1 / M), np.zeros((K, M)), np.tile((n / n.sum())[:, None], (1, M))
    fair = isinstance(method, SFFL)
    for step in run.rounds():
        trained = np.tile(w, (K, 1, 1))
        for k in range(K):
            x, y, s = client(uneven, k)
            if not len(y):
                continue
            z = np.c_[np.ones(len(x)), x]
            p = sigmoid(z @ w.T)
            likelihood = pi[k] * np.where(y[:, None] == 1, p, 1 - p)
            q = likelihood / likelihood.sum(1, keepdims=True)
            pi[k] = q.mean(0)
            for m in range(M):
                gradient = (q[:, m] * (p[:, m] - y)) @ z / len(y)
                if fair:
                    found = widest((p[:, m] > 0.5).astype(float), np.ones(len(y)), y, s, method.fairness)
                    if found is not None:
                        lam[k, m] = max(0, lam[k, m] + 2.0 * (found - 0.01))
                    gradient = gradient + lam[k, m] * soft_gradient(w[m], q[:, m], x, y, s)
                trained[k, m] -= 0.4 * gradient
        if fair and method.aggregation == "self-aware":
            d = np.linalg.norm(trained - w, axis=2)
            some = n > 0
            weight = np.where(some[:, None], weight * np.exp(d - d[some].mean(0)), 0)
            weight = weight / weight.sum(0)
            share = (n / n.sum())[:, None]
            weight = np.clip(weight, share / 5, share * 5)
        w = np.einsum("km,kmd->md", weight / weight.sum(0), trained)
        server, own = ef.tree.take(step.state.server, 0), ef.tree.take(step.state.clients, 0)
        np.testing.assert_allclose(components(server.theta), w, rtol=2e-3, atol=2e-5)
        np.testing.assert_allclose(own.pi, pi, rtol=2e-3, atol=1e-5)
        if fair:
            np.testing.assert_allclose(own.multiplier, lam, rtol=2e-3, atol=1e-4)
    if fair:
        assert lam.max() > 0.5


def test_self_aware_weights_against_the_paper() -> None:
    """Equations 17 to 19 with all clients; the weights stay a distribution, and the farthest gains most."""
    rng = np.random.default_rng(0)
    n, d = rng.integers(100, 900, 6).astype(float), rng.random((6, 3)) * 2
    w = rng.random((6, 3))
    w = w / w.sum(0)
    expected = np.exp(np.log(w) - (d.mean(0) - d))
    expected = expected / expected.sum(0)
    share = (n / n.sum())[:, None]
    got = self_aware(torch.tensor(w / share), torch.tensor(d), torch.tensor(n)[:, None], 1e9).numpy() * share
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    clipped = self_aware(torch.tensor(w / share), torch.tensor(d), torch.tensor(n)[:, None], 1.5).numpy()
    np.testing.assert_allclose(clipped, np.clip(expected / share, 1 / 1.5, 1.5), rtol=1e-6)
    far = self_aware(torch.ones(2, 1), torch.tensor([[0.0], [500.0]]), torch.ones(2, 1), 1e9)
    assert far.isfinite().all()


def test_absent_clients_keep_their_weight(uneven: Federation) -> None:
    run = simulation(SFFL(fairness_step=2.0), uneven, clients_per_round=3, rounds=4)
    before = run.engine.start().server.ratio[0]
    from equifed import randomness

    for step in run.rounds():
        after = step.state.server.ratio[0].clone()
        here = randomness.draw_cohort(0, step.round, randomness.client_order(uneven.ids), 3)
        away = np.setdiff1d(np.arange(uneven.num_clients), here)
        assert torch.equal(after[away], before[away])
        before = after
    assert not torch.equal(before, torch.ones_like(before))


def batch_data(n: int = 300, groups: int = 2) -> Data:
    rng = np.random.default_rng(3)
    x, s = rng.normal(size=(n, 2)), rng.integers(0, groups, n)
    y = (x[:, 0] + 0.8 * s + rng.normal(size=n) > 0.5).astype(np.int64)
    task = Task(nn.Linear(2, 1), "classification", 2, groups, 1, 1, Local(), binary=True)
    return Data(torch.tensor(x), torch.tensor(y), torch.tensor(s), torch.ones(n, dtype=torch.double), task)


@pytest.mark.parametrize("fairness", DIFFERENCES)
@pytest.mark.parametrize("groups", [2, 4])
def test_soft_gap_and_its_gradient(fairness: str, groups: int) -> None:
    """The value against weighted means, the gradient against finite differences; padding is without effect."""
    data = batch_data(groups=groups)
    data = data.where(torch.arange(300) < 280)
    q = torch.tensor(np.random.default_rng(1).random(300))
    x, y, s = data.x.numpy(), data.y.numpy(), data.s.numpy()

    def soft(w: torch.Tensor) -> torch.Tensor:
        return gap(torch.sigmoid(data.x @ w), q, data, fairness)[0]

    w = torch.tensor([0.7, -0.4]).double()
    weight = np.where(np.arange(300) < 280, q.numpy(), 0)
    expected = widest(sigmoid(x @ w.numpy()), weight, y, s, fairness)
    assert soft(w).item() == pytest.approx(expected)
    slopes = [
        (soft(w + 1e-6 * e) - soft(w - 1e-6 * e)).item() / 2e-6 for e in torch.eye(2, dtype=torch.double)
    ]  # fmt: skip
    np.testing.assert_allclose(grad(soft)(w), slopes, rtol=1e-5)


@pytest.mark.parametrize("fairness", DIFFERENCES)
def test_hard_gap_is_the_metric(fairness: str) -> None:
    data = batch_data(groups=3)
    p = (data.x[:, 0] > 0).double()
    value, defined = gap(p, torch.ones(300).double(), data, fairness)
    expected = getattr(metrics, fairness)(data.y.numpy(), p.numpy().astype(int), sensitive_features=data.s.numpy())
    assert value.item() == pytest.approx(expected)
    assert defined


def test_gap_without_two_groups_is_undefined_and_has_no_gradient() -> None:
    data = batch_data().where((batch_data().s == 1) | (batch_data().y == 0))

    def soft(w: torch.Tensor) -> torch.Tensor:
        return gap(torch.sigmoid(data.x @ w), torch.ones(300).double(), data, "equal_opportunity_difference")[0]

    w = torch.tensor([0.7, -0.4]).double()
    assert not gap(data.x[:, 0], torch.ones(300).double(), data, "equal_opportunity_difference")[1]
    assert soft(w) == 0
    np.testing.assert_array_equal(grad(soft)(w), [0, 0])


def test_with_a_large_epsilon_and_weights_by_size_it_is_fedem(uneven: Federation) -> None:
    a = simulation(SFFL(epsilon=1.0, aggregation="size"), uneven)
    b = simulation(FedEM(), uneven)
    for one, other in zip(a.rounds(), b.rounds(), strict=True):
        assert torch.equal(one.state.clients.multiplier, torch.zeros_like(one.state.clients.multiplier))
        models = (components(ef.tree.take(step.state.server.theta, 0)) for step in (one, other))
        np.testing.assert_allclose(*models, atol=1e-6)
        np.testing.assert_allclose(one.state.clients.pi, other.state.clients.pi, atol=1e-6)


def test_a_clip_of_1_is_weights_by_size(uneven: Federation) -> None:
    settings: dict[str, Any] = {"model": MODEL, "rounds": 4, "local": STEP, "seeds": [0]}
    a = ef.simulate(SFFL(fairness_step=2.0, weight_clip=1.0), uneven, **settings).parameters[0]
    b = ef.simulate(SFFL(fairness_step=2.0, aggregation="size"), uneven, **settings).parameters[0]
    for name, value in b.items():
        np.testing.assert_allclose(a[name], value, atol=2e-6)


def test_one_component_is_fedavg(uneven: Federation) -> None:
    start = {"0.bias": np.array([0.1]), "0.weight": np.array([[0.3, -0.2, 0.1, 0.0]])}
    settings: dict[str, Any] = {"model": MODEL, "rounds": 4, "local": STEP, "seeds": [0], "initial_parameters": start}
    a = ef.simulate(FedEM(components=1), uneven, **settings).parameters[0]
    b = ef.simulate(ef.methods.FedAvg(), uneven, **settings).parameters[0]
    for name, value in b.items():
        np.testing.assert_allclose(a[name][0], value, atol=1e-6)


@pytest.mark.parametrize("method", [FedEM(), SFFL()])
def test_equal_components_stay_equal_and_a_warning_says_so(method: FedEM, uneven: Federation) -> None:
    same = {"0.bias": np.array([0.1]), "0.weight": np.array([[0.3, -0.2, 0.1, 0.0]])}
    with pytest.warns(EquifedWarning, match="only 1 of 3 component models"):
        result = ef.simulate(
            method, uneven, model=MODEL, rounds=4, local=STEP, seeds=[0], initial_parameters=same
        )  # fmt: skip
    w = components({name: torch.tensor(value) for name, value in result.parameters[0].items()})
    np.testing.assert_allclose(w[1:], w[:1].repeat(2, 0), atol=1e-6)
    assert np.abs(w[0, 0] - 0.1) > 1e-3
    with pytest.warns(EquifedWarning):
        ef.simulate(method, uneven, model=nn.Linear(4, 1), rounds=1, local=STEP, seeds=[0])


def test_components_start_apart_with_every_seed_its_own(uneven: Federation) -> None:
    """Also with logistic regression, which alone starts from zero; given components are taken as they are."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a, b, again = (
            components(ef.tree.take(simulation(FedEM(), uneven, seeds=[s]).engine.start().server.theta, 0))
            for s in (0, 1, 0)
        )
    assert len(np.unique(np.round(np.r_[a, b], 6), axis=0)) == 6
    np.testing.assert_array_equal(a, again)
    given = {"0.bias": np.arange(3.0)[:, None], "0.weight": np.arange(12.0).reshape(3, 1, 4)}
    run = simulation(FedEM(), uneven, initial_parameters=given)
    np.testing.assert_array_equal(
        components(ef.tree.take(run.engine.start().server.theta, 0)), np.c_[np.arange(3), np.arange(12).reshape(3, 4)]
    )


@pytest.mark.parametrize("method", [FedEM(), SFFL(), SFFL(aggregation="size")])
def test_mixture_weights_and_multipliers_never_leave_the_client(method: FedEM, uneven: Federation) -> None:
    """The recorded messages: M models and a number of rows go up, M models come down, nothing else."""
    result = ef.simulate(method, uneven, model=MODEL, rounds=2, local=STEP, seeds=[0])
    (message,) = result.messages.to_dict("records")
    assert message["up"] == "update, rows"
    assert message["bytes_up"] == 4 * (3 * 5 + 1)
    assert message["down"] == "theta"
    assert message["bytes_down"] == 4 * 3 * 5
    stacked = isinstance(method, SFFL) and method.aggregation == "self-aware"
    assert message["gather"] == ("stack" if stacked else "sum")


# -- what mixtures are for ---------------------------------------------------------------------------------------------

RULES = np.array([[3.0, 3, 0, 0], [-3, 3, 0, 0], [0, -3, 3, 0]])


def mixture(shares: np.ndarray, n: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Rows whose label follows one of three rules, in these shares."""
    x = rng.normal(size=(n, 4))
    rule = rng.choice(3, size=n, p=shares)
    y = (rng.random(n) < sigmoid(2 * (x * RULES[rule]).sum(1))).astype(int)
    return x, y, rng.integers(0, 2, n)


@pytest.fixture(scope="module")
def known_mixtures() -> tuple[np.ndarray, Federation]:
    rng = np.random.default_rng(11)
    shares = np.r_[np.eye(3) * 0.85 + 0.05, rng.dirichlet(np.full(3, 0.3), 9)]
    clients = [mixture(each, 600, rng) for each in shares]
    return shares, Federation.from_arrays(clients, client_tests=[mixture(each, 500, rng) for each in shares])


LONG: dict[str, Any] = {"model": MODEL, "rounds": 60, "local": Local(1, 50, 0.1), "seeds": [0], "eval_every": 60}


def matched(result: ef.Result) -> np.ndarray:
    """The order of the components that fits the rules best."""
    from itertools import permutations

    w = result.parameters[0]["0.weight"][:, 0]
    unit = w / np.linalg.norm(w, axis=1, keepdims=True)
    rules = RULES / np.linalg.norm(RULES, axis=1, keepdims=True)
    return np.array(max(permutations(range(3)), key=lambda order: (unit[list(order)] * rules).sum()))


@pytest.mark.parametrize("method", [FedEM(), SFFL(epsilon=0.05)])
@pytest.mark.full
def test_known_components_are_recovered(method: FedEM, known_mixtures: tuple[np.ndarray, Federation]) -> None:
    shares, fed = known_mixtures
    run = simulation(method, fed, **{name: LONG[name] for name in LONG if name != "model"})
    steps = list(run.rounds())
    result = run.result()
    order = matched(result)
    pi = steps[-1].state.clients.pi[0].numpy()[:, order]
    assert np.abs(pi - shares).mean() < 0.06
    accuracy = result.final()["accuracy"].item()
    assert fed.client_test is not None
    right = []
    for k, own in enumerate(shares):  # the oracle knows the rules and the shares
        rows = fed.client_test[k]
        p = sigmoid(2 * fed.rows.x[rows] @ RULES.T) @ own
        right.append(((p > 0.5) == fed.rows.y[rows]).mean())
    single = ef.simulate(ef.methods.FedAvg(), fed, **LONG).final()["accuracy"].item()
    assert accuracy > np.mean(right) - 0.02
    assert single < np.mean(right) - 0.1


def biased(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    s = rng.integers(0, 2, n)
    x = rng.normal(size=(n, 3)) + np.c_[1.2 * s, np.zeros(n), np.zeros(n)]
    y = (x[:, 0] + x[:, 1] + 0.5 * rng.normal(size=n) > 1.0).astype(int)
    return np.c_[x[:, 1:], s[:, None]], y, s


@pytest.mark.parametrize(
    "fairness", [pytest.param(name, marks=pytest.mark.full if i else ()) for i, name in enumerate(DIFFERENCES)]
)
def test_it_lowers_the_gap_it_is_told_to(fairness: str) -> None:
    """Equal opportunity as in the paper; equalized odds and demographic parity are its stated future work."""
    rng = np.random.default_rng(3)
    fed = Federation.from_arrays(
        [biased(rng, 800), biased(rng, 600)], client_tests=[biased(rng, 1500) for _ in range(2)]
    )
    settings = LONG | {"rounds": 40, "local": Local(2, 50, 0.1), "eval_every": 40}
    plain = ef.simulate(FedEM(), fed, **settings).final()[fairness].item()
    fair = ef.simulate(SFFL(fairness=fairness), fed, **settings).final()[fairness].item()
    assert fair < 0.5 * plain


def test_wrong_settings_are_refused(uneven: Federation) -> None:
    for wrong, what in (
        (SFFL(components=0), "components"),
        (SFFL(weight_clip=0.5), "weight_clip"),
        (SFFL(epsilon=-0.1), "epsilon"),
        (SFFL(aggregation="median"), "aggregation"),  # type: ignore[arg-type]
        (SFFL(fairness="accuracy"), "fairness"),
    ):
        with pytest.raises(ef.ConfigError, match=what):
            ef.simulate(wrong, uneven, model=MODEL, rounds=1)
    with pytest.raises(ef.ConfigError, match="shape"):
        ef.simulate(
            dataclasses.replace(FedEM(), components=2), uneven, model=MODEL, rounds=1,
            initial_parameters={"0.bias": np.zeros((3, 1)), "0.weight": np.zeros((3, 1, 4))},
        )  # fmt: skip


# -- clients that never trained ----------------------------------------------------------------------------------------


def test_new_clients_adapt_by_e_steps_alone(known_mixtures: tuple[np.ndarray, Federation]) -> None:
    """Mixture weights close to the truth and to plain EM, predictions of that mixture, models untouched."""
    _, fed = known_mixtures
    result = ef.simulate(FedEM(), fed, **LONG)
    before = {name: value.copy() for name, value in result.parameters[0].items()}
    rng = np.random.default_rng(2)
    for truth in ([0.8, 0.1, 0.1], [0.0, 0.3, 0.7]):
        x, y, _ = mixture(np.array(truth), 1500, rng)
        new = result.adapt((x, y))
        pi = new.state[0]["pi"]
        w = components({name: torch.tensor(value) for name, value in before.items()})
        p = sigmoid(np.c_[np.ones(len(x)), x] @ w.T)
        own = np.full(3, 1 / 3)
        for _ in range(100):
            q = own * np.where(y[:, None] == 1, p, 1 - p)
            own = (q / q.sum(1, keepdims=True)).mean(0)
        np.testing.assert_allclose(pi, own, atol=1e-4)
        # the rules are steeper than the components after 60 rounds, which draws pi to the largest
        np.testing.assert_allclose(pi[matched(result)], truth, atol=0.12)
        fresh, labels, _ = mixture(np.array(truth), 2000, rng)
        predicted = new.predict(fresh)[0]
        np.testing.assert_allclose(predicted, sigmoid(np.c_[np.ones(2000), fresh] @ w.T) @ own, atol=1e-4)
        oracle = ((sigmoid(2 * fresh @ RULES.T) @ truth > 0.5) == labels).mean()
        assert ((predicted > 0.5) == labels).mean() > oracle - 0.03
    for name, value in before.items():
        np.testing.assert_array_equal(value, result.parameters[0][name])


def test_adapting_applies_the_federations_scaling_and_every_setting(uneven: Federation) -> None:
    x, y, _ = client(uneven, 0)
    shift, factor = np.full(4, 0.5, np.float32), np.full(4, 2.0, np.float32)
    scaled = dataclasses.replace(uneven, scaling=(shift, factor))
    result = ef.simulate(SFFL(), scaled, over={"epsilon": [0.0, 0.1]}, model=MODEL, rounds=3, local=STEP, seeds=[0, 1])
    new = result.adapt((x, y), steps=1)
    assert set(new.state) == {(0.0, 0), (0.0, 1), (0.1, 0), (0.1, 1)}
    for key, own in new.state.items():
        w = components({name: torch.tensor(value) for name, value in result.parameters[key].items()})
        p = sigmoid(np.c_[np.ones(len(x)), (x - 0.5) * 2] @ w.T)
        q = np.where(y[:, None] == 1, p, 1 - p)
        np.testing.assert_allclose(own["pi"], (q / q.sum(1, keepdims=True)).mean(0), atol=1e-5)
        assert (own["multiplier"] == 0).all()


def test_what_cannot_adapt_says_so(uneven: Federation) -> None:
    x, y, _ = client(uneven, 0)
    settings: dict[str, Any] = {"model": MODEL, "rounds": 1, "local": STEP, "seeds": [0]}
    with pytest.raises(ef.ConfigError, match="one model serves all"):
        ef.simulate(ef.methods.FedAvg(), uneven, **settings).adapt((x, y))
    with pytest.raises(ef.ConfigError, match="training alone"):
        ef.simulate(ef.methods.LocalOnly(), uneven, **settings).adapt((x, y))
    result = ef.simulate(FedEM(), uneven, **settings)
    for rows, what in (((x[:, :2], y), "features"), ((x, y + 1), "class codes"), ((x[:0], y[:0]), "needs rows")):
        with pytest.raises(ef.DataError, match=what):
            result.adapt(rows)


def test_fairness_of_clients_beside_the_global_one(uneven: Federation) -> None:
    """Mean, worst and best client, for accuracy and for the gap, from each client's own test rows."""
    result = ef.simulate(SFFL(), uneven, model=MODEL, rounds=3, local=STEP, seeds=[0])
    final = result.final().iloc[0]
    last = result.metrics[result.metrics["round"] == 3]
    for metric, lowest_is in (("accuracy", "worst"), ("equal_opportunity_difference", "best")):
        own = last[(last["metric"] == metric) & last["scope"].astype(str).str.startswith("client:")]["value"]
        other = {"worst": "best", "best": "worst"}[lowest_is]
        assert final[f"client_{metric}.mean"] == pytest.approx(own.mean())
        assert final[f"client_{metric}.{lowest_is}"] == own.min()
        assert final[f"client_{metric}.{other}"] == own.max()
    assert np.isnan(list(metrics.client_range([np.nan, np.nan]).values())).all()
    assert metrics.client_range([0.2, np.nan, 0.4], lower_is_better=True) == pytest.approx(
        {"mean": 0.3, "worst": 0.4, "best": 0.2}
    )
