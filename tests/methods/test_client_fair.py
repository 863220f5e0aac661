"""AFL, TERM, GIFAIR-FL, PropFair, FedMGDA+ and tail risk against plain NumPy, by hand, and in their limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.func import grad

import equifed as ef
from equifed import randomness
from equifed.errors import ConfigError
from equifed.federation import Federation
from equifed.methods import AFL, GIFAIR, TERM, CVaR, FedAvg, FedMGDA, PropFair
from equifed.methods.cvar import count, edges
from equifed.methods.fedmgda import onto_simplex, shortest
from equifed.protocol import Data, Method, Task

from . import plain

RATE, SEED, ROUNDS = 0.4, 3, 3
BEGIN = {"0.bias": np.array([0.3], np.float32), "0.weight": np.array([[1.0, -0.7, 0.4, -0.2]], np.float32)}
"""A first model under which losses differ, unlike zeros."""
Slope = Callable[[np.ndarray], np.ndarray]
"""What every row's loss counts, from the losses."""


def client(fed: Federation, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y, s = plain.client(fed, k)
    return np.c_[np.ones(len(y)), x], y, s


def row_losses(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    z = x @ w
    return np.logaddexp(0, z) - y * z


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Of the mean over rows of slope times loss."""
    return x.T @ (slope * (plain.sigmoid(x @ w) - y)) / len(y)


def trained(w: np.ndarray, x: np.ndarray, y: np.ndarray, slope: Slope = np.ones_like, epochs: int = 2) -> np.ndarray:
    """By full batches; the slopes follow the losses."""
    for _ in range(epochs if len(y) else 0):
        w = w - RATE * gradient(w, x, y, slope(row_losses(w, x, y)))
    return w


def mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0


def run(method: Method, fed: Federation, epochs: int = 2, **options: Any) -> ef.Result:
    made: dict[str, Any] = {
        "model": ef.models.Logistic(),
        "rounds": ROUNDS,
        "seeds": [SEED],
        "local": ef.Local(epochs=epochs, batch_size=None, learning_rate=RATE),
        "initial_parameters": BEGIN,
    }
    return ef.simulate(method, fed, **(made | options))


def parameters(result: ef.Result) -> np.ndarray:
    return np.concatenate([result.parameters[SEED][name].ravel() for name in ("0.bias", "0.weight")]).astype(float)


def cohorts(fed: Federation, size: int) -> list[list[int]]:
    order = randomness.client_order(fed.ids)
    return [randomness.draw_cohort(SEED, t, order, size).tolist() for t in range(1, ROUNDS + 1)]


START = np.concatenate([BEGIN["0.bias"], BEGIN["0.weight"][0]]).astype(float)


def assert_close(result: ef.Result, w: np.ndarray, tolerance: float = 2e-5) -> None:
    assert np.abs(w - START).max() > 0.05  # something was learned
    np.testing.assert_allclose(parameters(result), w, rtol=tolerance, atol=tolerance)
    assert result.rejections.empty


def same(a: ef.Result, b: ef.Result, tolerance: float = 0.0) -> None:
    for name, value in a.parameters[SEED].items():
        np.testing.assert_allclose(value, b.parameters[SEED][name], rtol=tolerance, atol=tolerance)


def replies_of(update: list[list[float]], **fields: list[float]) -> dict[str, Any]:
    """As a server gets them from clients 0, 1, ..., who are all there."""
    count = len(update)
    tensors = {name: torch.tensor(values) for name, values in fields.items()}
    return {
        "update": {"w": torch.tensor(update)},
        "present": torch.ones(count),
        "client": torch.arange(count),
        **tensors,
    }


def task(features: int, clients: int = 2, kind: Any = "regression") -> Task:
    module = torch.nn.Linear(features, 1, bias=False)
    return Task(module, kind, 0 if kind == "regression" else 2, 2, clients, 1, ef.Local(), binary=kind != "regression")


# -- AFL ---------------------------------------------------------------------------------------------------------------


def test_afl_by_hand() -> None:
    method = AFL(adversary_rate=0.1)
    server = method.init(task(2), {"w": torch.zeros(2)})
    replies = replies_of([[1.0, 0.0], [0.0, 1.0]], loss=[1.0, 0.4], rows=[7.0, 7.0])
    server = method.step(method.begin(server, replies, None), replies, None)
    np.testing.assert_allclose(server.theta["w"], [0.5, 0.5])  # the weights before they are moved
    np.testing.assert_allclose(server.a, [0.53, 0.47], rtol=1e-6)
    np.testing.assert_allclose(method.step(server, replies, None).theta["w"], [1.03, 0.97], rtol=1e-6)


def projected(v: np.ndarray) -> np.ndarray:
    """Onto the simplex, by bisection on the shift."""
    low, high = v.min() - 1, v.max()
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - low, 0)


@pytest.mark.parametrize("method", [AFL(0.5), AFL(0.5, start="equal", average=True)], ids=repr)
@pytest.mark.parametrize("size", [10, 4])
def test_afl_against_numpy(method: AFL, size: int, uneven: Federation) -> None:
    n = uneven.train.sizes.astype(float)
    some = n > 0
    a = (n if method.start == "rows" else some.astype(float)) / (n.sum() if method.start == "rows" else some.sum())
    w, models, cut = START, [], False
    for cohort in cohorts(uneven, size):
        F = {k: mean(row_losses(w, *client(uneven, k)[:2])) for k in cohort if some[k]}
        moves = np.array([trained(w, *client(uneven, k)[:2]) - w for k in cohort])
        w = w + a[cohort] @ moves / a[cohort].sum()
        average = np.mean(list(F.values()))
        moved = a[some] + 0.5 * np.array([F.get(k, average) for k in np.flatnonzero(some)])
        a[some] = projected(moved)
        cut |= bool((a[some] == 0).any())
        models.append(w)
    assert cut or size == 4  # the projection has something to do
    assert_close(run(method, uneven, clients_per_round=size), np.mean(models, 0) if method.average else w)


def test_afl_decides_with_the_mean_of_its_models(uneven: Federation) -> None:
    result = run(AFL(0.5, average=True), uneven)
    x = uneven.rows.x[uneven.test]
    w = parameters(result)
    np.testing.assert_allclose(result.predict(x), plain.sigmoid(w[0] + x @ w[1:]), rtol=1e-5)


def test_afl_averages_the_models_of_a_server_optimiser(uneven: Federation) -> None:
    same(run(ef.methods.make("afl@momentum", average=True, beta1=0.0), uneven), run(AFL(average=True), uneven))
    last = ef.methods.make("afl@momentum", server_learning_rate=5.0)
    each = [parameters(run(last, uneven, rounds=rounds)) for rounds in (1, 2, 3)]
    assert_close(run(last.with_hyper(average=True), uneven), np.mean(each, 0), 1e-6)


# -- TERM --------------------------------------------------------------------------------------------------------------


def test_term_by_hand() -> None:
    """n = (10, 30) rows with the labels 1 and sqrt(1/2), squared loss at 0: F = (1, 0.5)."""
    rows = [
        (np.zeros((n, 1), np.float32), np.full(n, y, np.float32), np.zeros(n, int))
        for n, y in ((10, 1), (30, 0.5**0.5))
    ]
    fed = ef.Federation.from_arrays(rows, test=rows[0], task="regression")
    begin = {"0.bias": np.zeros(1, np.float32), "0.weight": np.zeros((1, 1), np.float32)}
    result = run(TERM(t=2.0), fed, 1, rounds=1, initial_parameters=begin, model=ef.models.Linear())
    # one step of client k is 2 RATE y_k
    moved = 2 * RATE * (0.475367 * 1 + 0.524633 * 0.5**0.5)
    assert result.parameters[SEED]["0.bias"] == pytest.approx(moved, rel=1e-6)


@pytest.mark.parametrize("t", [2.0, -3.0])
@pytest.mark.parametrize("size", [10, 4])
def test_term_of_clients_against_numpy(t: float, size: int, uneven: Federation) -> None:
    n, w = uneven.train.sizes.astype(float), START
    for cohort in cohorts(uneven, size):
        F = np.array([mean(row_losses(w, *client(uneven, k)[:2])) for k in cohort])
        a = n[cohort] * np.exp(t * F)
        w = a @ np.array([trained(w, *client(uneven, k)[:2]) for k in cohort]) / a.sum()
    assert_close(run(TERM(t=t), uneven, clients_per_round=size), w)


@pytest.mark.parametrize("t", [2.0, -3.0, 0.0])
def test_one_step_of_term_on_rows_is_that_of_all_rows_together(t: float, uneven: Federation) -> None:
    """However the rows are dealt to the clients."""
    everyone = [client(uneven, k) for k in range(uneven.num_clients)]
    x, y = (np.concatenate([rows[i] for rows in everyone]) for i in (0, 1))
    w = START
    for _ in range(ROUNDS):
        tilt = np.exp(t * row_losses(w, x, y))
        w = w - RATE * gradient(w, x, y, tilt / tilt.mean())
    assert_close(run(TERM(t=t, level="row"), uneven, 1), w)


def test_term_on_rows_tilts_within_every_batch(uneven: Federation) -> None:
    """Two local steps: the tilt follows the losses, the client's weight is that of its rows before."""
    t, w = 1.5, START
    for cohort in cohorts(uneven, 4):
        own = [row_losses(w, *client(uneven, k)[:2]) for k in cohort]
        a = np.array([np.exp(t * losses).sum() for losses in own])

        def tilt(losses: np.ndarray) -> np.ndarray:
            return np.exp(t * losses) / np.exp(t * losses).mean()

        w = a @ np.array([trained(w, *client(uneven, k)[:2], tilt) for k in cohort]) / a.sum()
    assert_close(run(TERM(t=t, level="row"), uneven, clients_per_round=4), w)


@pytest.mark.parametrize("size", [10, 3])
def test_term_of_groups_against_numpy(size: int, uneven: Federation) -> None:
    t, w, n = 3.0, START, uneven.train.sizes.astype(float)
    everyone = [client(uneven, k) for k in range(uneven.num_clients)]

    def of_groups(clients: list[int]) -> tuple[np.ndarray, np.ndarray]:
        losses, counts = np.zeros(2), np.zeros(2)
        for k in clients:
            x, y, s = everyone[k]
            np.add.at(losses, s, row_losses(w, x, y))
            np.add.at(counts, s, 1)
        return losses, counts

    losses, counts = of_groups([*range(len(everyone))])
    r, share = losses / counts, counts / counts.sum()
    for cohort in cohorts(uneven, size):
        weight = np.exp(t * r) / (share * np.exp(t * r)).sum()
        losses, counts = of_groups(cohort)
        row_weights = [weight[everyone[k][2]] for k in cohort]
        models = [
            trained(w, *everyone[k][:2], lambda _, own=own: own) for k, own in zip(cohort, row_weights, strict=True)
        ]  # type: ignore[misc]
        r = np.where(counts > 0, losses / np.maximum(counts, 1), r)
        w = n[cohort] @ np.array(models) / n[cohort].sum()
    result = run(TERM(t=t, level="group"), uneven, clients_per_round=size)
    assert_close(result, w)
    expected = (np.exp(t * r) / (share * np.exp(t * r)).sum()).max()
    assert result.log["largest_weight"].iloc[-1] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("level", ["client", "group", "row"])
def test_term_without_a_tilt_is_fedavg(level: Any, uneven: Federation) -> None:
    options = {"clients_per_round": 6, "local": ef.Local(epochs=2, batch_size=8, learning_rate=0.1)}
    same(
        run(TERM(t=0.0, level=level), uneven, **options),
        run(FedAvg(), uneven, **options),
        0 if level == "client" else 1e-6,
    )


def test_a_large_tilt_is_the_worst_client(uneven: Federation) -> None:
    w = START
    losses = [mean(row_losses(w, *client(uneven, k)[:2])) for k in range(uneven.num_clients)]
    worst = int(np.argmax(losses))
    assert_close(run(TERM(t=100.0), uneven, rounds=1), trained(w, *client(uneven, worst)[:2]), 1e-3)


@pytest.mark.parametrize("t", [1e4, -1e4])
@pytest.mark.parametrize("level", ["client", "group", "row"])
def test_any_tilt_stays_finite(t: float, level: Any, uneven: Federation) -> None:
    result = run(TERM(t=t, level=level), uneven, rounds=6)
    assert np.isfinite(parameters(result)).all()
    assert result.rejections.empty


# -- GIFAIR-FL ---------------------------------------------------------------------------------------------------------


def test_gifair_by_hand() -> None:
    p, method = torch.tensor([0.5, 0.3, 0.2]), GIFAIR(fairness_weight=0.5)  # lambda = 0.5 * 0.2 / 2 = 0.05
    np.testing.assert_allclose(method.weights(p, torch.tensor([3.0, 2.0, 1.0])), [0.6, 0.3, 0.1], rtol=1e-6)
    np.testing.assert_allclose(method.weights(p, torch.tensor([1.0, 1.0, 1.0])), p)
    # two equal losses share their ranks, 2 and 0
    np.testing.assert_allclose(method.weights(p, torch.tensor([1.0, 4.0, 4.0])), [0.4, 0.35, 0.25], rtol=1e-6)
    # one without rows is not ranked
    p = torch.tensor([0.6, 0.0, 0.4])
    np.testing.assert_allclose(method.weights(p, torch.tensor([1.0, 0.0, 2.0])), [0.4, 0.0, 0.6], rtol=1e-6)
    np.testing.assert_allclose(method.weights(torch.tensor([1.0]), torch.tensor([2.0])), [1.0])


@pytest.mark.parametrize("size", [10, 4])
def test_gifair_against_numpy(size: int, uneven: Federation) -> None:
    n, w = uneven.train.sizes.astype(float), START
    for cohort in cohorts(uneven, size):
        there = [k for k in cohort if n[k] > 0]
        F = np.array([row_losses(w, *client(uneven, k)[:2]).mean() for k in there])
        p = n[there] / n[there].sum()
        rank = 2 * F.argsort().argsort() - (len(there) - 1)
        a = p + 0.8 * p.min() / (len(there) - 1) * rank
        assert a.sum() == pytest.approx(1)
        w = a @ np.array([trained(w, *client(uneven, k)[:2]) for k in there])
    assert_close(run(GIFAIR(0.8), uneven, clients_per_round=size), w)


# -- PropFair ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "huber", "slope"), [(0.5, False, 1 / 1.5), (0.5, True, 1 / 1.5), (1.9, False, 1 / 2), (1.9, True, 1 / 0.2)]
)
def test_propfair_by_hand(loss: float, huber: bool, slope: float) -> None:
    """The slope in a batch's loss, at M = 2, as the paper has it: ours is M times that."""
    batch = Data(
        torch.ones(1, 1).double(), torch.zeros(1).double(), torch.zeros(1).long(), torch.ones(1).double(), task(1)
    )
    method, theta = PropFair(M=2.0, eps=0.2, huber=huber), torch.tensor([[loss**0.5]]).double()
    found = grad(method.loss)({"weight": theta}, (), batch)["weight"].item()
    assert found == pytest.approx(2 * slope * 2 * loss**0.5)  # the batch's loss is theta^2
    step = 1e-6
    ends = [method.loss({"weight": theta + sign * step}, (), batch).item() for sign in (1, -1)]
    assert found == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6)


@pytest.mark.parametrize("huber", [False, True])
def test_propfair_against_numpy(huber: bool, uneven: Federation) -> None:
    M, eps, n, w = 1.0, 0.3, uneven.train.sizes.astype(float), START
    beyond = 0

    def slope(losses: np.ndarray) -> np.ndarray:
        nonlocal beyond
        utility = M - losses.mean()
        beyond += utility < eps
        return np.full_like(losses, M / utility if utility >= eps else M / eps if huber else 1)

    for cohort in cohorts(uneven, 6):
        w = n[cohort] @ np.array([trained(w, *client(uneven, k)[:2], slope) for k in cohort]) / n[cohort].sum()
    assert beyond
    assert_close(run(PropFair(M, eps, huber), uneven, clients_per_round=6), w)


def test_propfair_with_a_large_m_is_fedavg(uneven: Federation) -> None:
    same(run(PropFair(M=1e6), uneven), run(FedAvg(), uneven), 1e-4)


def test_propfair_needs_losses_below_m(uneven: Federation) -> None:
    with pytest.raises(
        ConfigError, match=r"M must exceed eps by more than 0\.693, the loss of guessing among 2 classes"
    ):
        run(PropFair(M=0.8), uneven)
    PropFair(M=0.8).check(task(1))  # of a regression nobody knows where losses begin


# -- FedMGDA+ ----------------------------------------------------------------------------------------------------------


def test_fedmgda_by_hand() -> None:
    """Unit updates (1, 0) and (-0.6, 0.8): half of each, the direction (0.2, 0.4), however long they were."""
    method = FedMGDA(step_size=1.0, decay=0.5)
    server = method.init(task(2), {"w": torch.zeros(2)})
    replies = replies_of([[3.0, 0.0], [-0.06, 0.08], [0.0, 0.0]], rows=[5.0, 9.0, 0.0])
    server = method.step(server, replies, None)
    np.testing.assert_allclose(server.theta["w"], [0.2, 0.4], rtol=1e-5)
    assert server.length == pytest.approx(0.2**0.5)
    np.testing.assert_allclose(method.step(server, replies, None).theta["w"], [0.3, 0.6], rtol=1e-5)
    # weights that are fixed: the mean of unit updates, equal or by rows
    for start, a in (("equal", 1 / 2), ("rows", 5 / 14)):
        fixed = FedMGDA(epsilon=0.0, start=start)
        expected = [a - 0.6 * (1 - a), 0.8 * (1 - a)]
        np.testing.assert_allclose(
            fixed.step(fixed.init(task(2), {"w": torch.zeros(2)}), replies, None).theta["w"], expected, rtol=1e-5
        )


def test_fedmgda_stays_where_nobody_moves() -> None:
    method = FedMGDA()
    server = method.init(task(2), {"w": torch.ones(2)})
    found = method.step(server, replies_of([[0.0, 0.0], [0.0, 0.0]], rows=[5.0, 9.0]), None)
    np.testing.assert_array_equal(found.theta["w"], [1, 1])


def solved(products: np.ndarray, a0: np.ndarray, epsilon: float) -> np.ndarray:
    """The shortest mixture by a general solver."""
    ends = [(max(a - epsilon, 0), min(a + epsilon, 1)) for a in a0]
    total = {"type": "eq", "fun": lambda a: a.sum() - 1, "jac": lambda a: np.ones(len(a))}
    found = minimize(
        lambda a: a @ products @ a, a0, jac=lambda a: 2 * products @ a, bounds=ends, constraints=total, method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )  # fmt: skip
    return np.asarray(found.x)


@pytest.mark.parametrize("epsilon", [1.0, 0.1, 0.02])
@pytest.mark.parametrize("size", [(4, 10), (9, 30), (12, 5)])
def test_the_shortest_mixture(epsilon: float, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(size[0])
    unit = rng.normal(size=size) + 0.5
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    a0 = rng.dirichlet(np.ones(len(unit)))
    low, high = np.maximum(a0 - epsilon, 0), np.minimum(a0 + epsilon, 1)
    a = shortest(*(torch.from_numpy(each) for each in (unit @ unit.T, a0, low, high))).numpy()
    assert a.sum() == pytest.approx(1)
    assert (a >= low - 1e-12).all()
    assert (a <= high + 1e-12).all()
    # where clients are more than parameters many mixtures are the same
    np.testing.assert_allclose(a @ unit, solved(unit @ unit.T, a0, epsilon) @ unit, atol=2e-4)
    if epsilon == 1:  # it goes down for everyone
        assert (unit @ (a @ unit) >= (a @ unit) @ (a @ unit) - 1e-4).all()


def test_the_closest_point_of_a_simplex_with_ends() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        a0, v = rng.dirichlet(np.ones(6)), rng.normal(size=6)
        low, high = np.maximum(a0 - 0.2, 0), a0 + 0.15
        ends = [-10.0, 10.0]
        for _ in range(100):
            middle = sum(ends) / 2
            ends[0 if np.clip(v - middle, low, high).sum() > 1 else 1] = middle
        found = onto_simplex(*(torch.from_numpy(each) for each in (v, low, high)))
        np.testing.assert_allclose(found, np.clip(v - ends[0], low, high), atol=1e-10)


def test_fedmgda_against_numpy(uneven: Federation) -> None:
    n, w, eta = uneven.train.sizes, START, 0.5
    for cohort in cohorts(uneven, 5):
        moves = np.array([trained(w, *client(uneven, k)[:2]) - w for k in cohort if n[k]])
        unit = moves / np.linalg.norm(moves, axis=1, keepdims=True)
        w = w + eta * solved(unit @ unit.T, np.full(len(unit), 1 / len(unit)), 0.2) @ unit
        eta *= 0.8
    assert_close(run(FedMGDA(epsilon=0.2, step_size=0.5, decay=0.8), uneven, clients_per_round=5), w, 2e-4)


def test_a_name_may_end_in_a_plus() -> None:
    assert ef.methods.make("fedmgda+", epsilon=0.1) == FedMGDA(epsilon=0.1)
    wrapped = ef.methods.make("fedmgda++eo", fit="global")
    assert (wrapped.name, wrapped.parts[0]) == ("fedmgda++eo", FedMGDA())
    assert ef.methods.make("fedmgda+@adam").name == "fedmgda+@adam"


# -- tail risk ---------------------------------------------------------------------------------------------------------


def slopes(method: CVaR, losses: list[float]) -> np.ndarray:
    """What every row's loss counts in the training of one client that has these rows: row i has the loss theta_i^2."""
    n = len(losses)
    rows = Data(torch.eye(n), torch.zeros(n), torch.zeros(n).long(), torch.ones(n), task(n))
    theta = {"weight": torch.tensor([losses]).sqrt()}
    reply, _ = count({"theta": theta}, (), rows)
    assert reply["histogram"].sum() == n
    server = method.threshold(method.init(task(n), theta), reply, None)
    found = grad(method.loss)(theta, {"low": server.low, "high": server.high, "f": server.f}, rows)["weight"][0]
    return np.asarray(found * n / (2 * theta["weight"][0]))


def test_tail_risk_by_hand() -> None:
    losses = [0.4, 0.1, 0.3, 0.2]
    np.testing.assert_allclose(slopes(CVaR(rho=0.5, tail_weight=1.0), losses), [2, 0, 2, 0], rtol=1e-5)
    # one and a half rows: half of the one in between
    np.testing.assert_allclose(slopes(CVaR(rho=0.375, tail_weight=1.0), losses), [8 / 3, 0, 4 / 3, 0], rtol=1e-5)
    np.testing.assert_allclose(
        slopes(CVaR(rho=0.375, tail_weight=0.25), losses), [17 / 12, 3 / 4, 13 / 12, 3 / 4], rtol=1e-5
    )
    # equal losses share the tail
    np.testing.assert_allclose(
        slopes(CVaR(rho=0.5, tail_weight=1.0), [0.3, 0.3, 0.3, 0.1]), [4 / 3] * 3 + [0], rtol=1e-5
    )
    # less than a row
    np.testing.assert_allclose(slopes(CVaR(rho=0.1, tail_weight=1.0), losses), [4, 0, 0, 0], rtol=1e-5)
    np.testing.assert_allclose(slopes(CVaR(rho=1.0, tail_weight=1.0), losses), [1, 1, 1, 1], rtol=1e-5)


def test_losses_of_any_size_have_a_bin() -> None:
    losses = torch.tensor([0.0, 1e-9, 2.0**-16, 0.7, 1e5, 1e12])
    n = len(losses)
    mask = torch.ones(n + 1)
    mask[n] = 0  # a row of padding, and what stands there does not matter
    x = torch.cat([torch.eye(n), torch.full((1, n), torch.nan)])
    rows = Data(x, torch.zeros(n + 1), torch.zeros(n + 1).long(), mask, task(n))
    histogram = count({"theta": {"weight": losses.sqrt()[None]}}, (), rows)[0]["histogram"]
    ends = edges(losses)
    assert len(ends) == len(histogram) + 1
    assert histogram[0] == 2  # below the smallest
    assert histogram[1] == 1
    assert histogram[-1] == 1  # above the largest
    assert histogram.sum() == n
    (inside,) = np.flatnonzero((ends[:-1] <= 0.7) & (ends[1:] > 0.7))
    assert histogram[inside] == 1
    assert ends[inside + 1] / ends[inside] == pytest.approx(2 ** (1 / 16))


@pytest.mark.parametrize("method", [CVaR(rho=0.3, tail_weight=0.6), CVaR(rho=0.7, tail_weight=1.0)], ids=repr)
@pytest.mark.parametrize("size", [10, 4])
def test_tail_risk_against_numpy(method: CVaR, size: int, uneven: Federation) -> None:
    rho, weight, n, w = method.rho, method.tail_weight, uneven.train.sizes.astype(float), START
    for cohort in cohorts(uneven, size):
        losses = np.concatenate([row_losses(w, *client(uneven, k)[:2]) for k in cohort])
        steps = np.floor(np.log2(losses) * 16)  # 16 bins between a loss and twice as much
        tail = rho * len(losses)
        tau = max(step for step in steps if (steps >= step).sum() >= tail)
        f = (tail - (steps > tau).sum()) / (steps == tau).sum()
        assert 0 < f <= 1

        def slope(own: np.ndarray, tau: float = tau, f: float = f) -> np.ndarray:
            step = np.floor(np.log2(own) * 16)
            return (1 - weight) + weight * np.where(step > tau, 1, np.where(step == tau, f, 0)) / rho

        assert slope(losses).mean() == pytest.approx(1)
        w = n[cohort] @ np.array([trained(w, *client(uneven, k)[:2], slope) for k in cohort]) / n[cohort].sum()
    assert_close(run(method, uneven, clients_per_round=size), w)


def test_one_step_is_close_to_the_gradient_of_the_tails_loss(uneven: Federation) -> None:
    """As if there were no bins, and all rows were in one place."""
    everyone = [client(uneven, k) for k in range(uneven.num_clients)]
    x, y = (np.concatenate([rows[i] for rows in everyone]) for i in (0, 1))

    def tail_loss(w: np.ndarray) -> float:
        return float(np.sort(row_losses(w, x, y))[-round(0.2 * len(y)) :].mean())

    slope = np.array([(tail_loss(START + e) - tail_loss(START - e)) / 2e-6 for e in 1e-6 * np.eye(5)])
    moved = parameters(run(CVaR(rho=0.2, tail_weight=1.0), uneven, 1, rounds=1)) - START
    np.testing.assert_allclose(moved, -RATE * slope, atol=0.05 * np.linalg.norm(RATE * slope))


@pytest.mark.parametrize("method", [CVaR(rho=1.0, tail_weight=1.0), CVaR(rho=0.2, tail_weight=0.0)], ids=repr)
def test_a_tail_of_all_rows_is_fedavg(method: CVaR, uneven: Federation) -> None:
    options = {"clients_per_round": 6, "local": ef.Local(epochs=2, batch_size=8, learning_rate=0.1)}
    same(run(method, uneven, **options), run(FedAvg(), uneven, **options), 1e-6)


# -- what they are for -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unlike() -> Federation:
    """Nine clients of one kind and a small one whose labels follow another column."""
    rng = np.random.default_rng(1)
    clients = []
    for k in range(10):
        x = rng.normal(size=(30 if k == 9 else 80, 3)).astype(np.float32)
        score = x[:, 1] - 0.5 * x[:, 0] if k == 9 else x[:, 0] + 0.3 * x[:, 2]
        clients.append((x, (score + 0.5 * rng.normal(size=len(x)) > 0).astype(int), rng.integers(0, 2, len(x))))
    return ef.Federation.from_arrays(clients, test=clients[0], client_tests=clients)


def client_losses(method: Method, fed: Federation) -> np.ndarray:
    w = parameters(run(method, fed, initial_parameters=None, rounds=60, eval_every=60))
    return np.array([row_losses(w, *client(fed, k)[:2]).mean() for k in range(fed.num_clients)])


@pytest.fixture(scope="module")
def fedavg(unlike: Federation) -> np.ndarray:
    return client_losses(FedAvg(), unlike)


@pytest.mark.parametrize("method", [AFL(), TERM(), GIFAIR(1.0), PropFair(), FedMGDA()], ids=repr)
@pytest.mark.sample(2)
def test_the_worst_client_is_better_off(method: Method, unlike: Federation, fedavg: np.ndarray) -> None:
    assert fedavg.argmax() == 9
    assert client_losses(method, unlike).max() < 0.9 * fedavg.max()


@pytest.mark.parametrize("method", [TERM(t=1.0, level="row"), CVaR()], ids=repr)
def test_the_worst_rows_are_better_off(method: Method, unlike: Federation) -> None:
    def worst(method: Method) -> float:
        w = parameters(run(method, unlike, initial_parameters=None, rounds=15))
        losses = np.concatenate([row_losses(w, *client(unlike, k)[:2]) for k in range(unlike.num_clients)])
        return float(np.sort(losses)[-len(losses) // 10 :].mean())

    assert worst(method) < 0.9 * worst(FedAvg())


def test_a_tilt_of_groups_helps_the_group_served_worst(unlike: Federation, fedavg: np.ndarray) -> None:
    s = np.isin(np.arange(len(unlike.rows.s)), unlike.train[9]).astype(int)
    fed = dataclasses.replace(unlike, rows=unlike.rows._replace(s=s))
    assert client_losses(TERM(t=2.0, level="group"), fed)[9] < 0.9 * fedavg[9]


@pytest.mark.parametrize("t", [0.1, 0.2])
def test_term_takes_the_worst_client_of_a_regression(t: float) -> None:
    """Whose weight is an exponential of its loss, and so far above the others'."""
    rng = np.random.default_rng(0)
    rows = [(x := rng.normal(size=(30, 2)), x @ [1.0, -1.0] + 9 * (k == 6), np.zeros(30, int)) for k in range(7)]
    fed = ef.Federation.from_arrays(rows, test=rows[0], task="regression")
    result = ef.simulate(TERM(t=t), fed, model=ef.models.Linear(), rounds=5, seeds=[0])
    assert result.rejections.empty


def test_term_with_a_large_tilt_goes_on_in_secure_sums() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for k in range(5):
        x = rng.normal(size=(3000, 1))
        rows.append((x, ((x[:, 0] > 0) != (k == 4)).astype(int), rng.integers(0, 2, 3000)))
    fed = ef.Federation.from_arrays(rows, test=rows[0])
    options: dict[str, Any] = {
        "model": ef.models.Logistic(), "rounds": 12, "seeds": [0],
        "local": ef.Local(epochs=3, batch_size=50, learning_rate=0.3),
    }  # fmt: skip
    plain, secure = (ef.simulate(TERM(t=10.0), fed, **options, secure=hidden) for hidden in (False, True))
    assert secure.rejections.empty
    for name, value in plain.parameters[0].items():
        np.testing.assert_allclose(secure.parameters[0][name], value, rtol=1e-2, atol=1e-2)
