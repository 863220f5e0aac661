"""IFCA and q-FFL against plain NumPy and FedAvg."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import equifed as ef
from equifed.federation import Federation, RowSets
from equifed.methods import IFCA, QFFL, FedAvg

STEP = ef.Local(epochs=1, batch_size=None, learning_rate=0.4)
TRAIN = ef.Local(epochs=2, batch_size=8, learning_rate=0.1, momentum=0.9)
MODEL = ef.models.Logistic(init="torch")


def client(fed: Federation, k: int) -> tuple[np.ndarray, np.ndarray]:
    rows = fed.train[k]
    return np.c_[np.ones(len(rows)), fed.rows.x[rows]].astype(float), fed.rows.y[rows]


def loss(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    z = x @ w
    return float((np.logaddexp(0, z) - y * z).mean()) if len(y) else 0.0


def trained(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return w - 0.4 * x.T @ (1 / (1 + np.exp(-x @ w)) - y) / len(y) if len(y) else w


def vector(parameters: dict[str, np.ndarray], model: int | None = None) -> np.ndarray:
    parts = [parameters[name] if model is None else parameters[name][model] for name in ("0.bias", "0.weight")]
    return np.concatenate([part.ravel() for part in parts]).astype(float)


def start(fed: Federation, seed: int, models: int) -> list[np.ndarray]:
    """The initial models, from a method that keeps them: q-FFL where nobody learns."""
    still = dataclasses.replace(STEP, learning_rate=1e-30)
    result = ef.simulate(IFCA(models), fed, model=MODEL, rounds=1, local=still, seeds=[seed])
    return [vector(result.parameters[seed], q) for q in range(models)]


def only(fed: Federation, members: np.ndarray) -> Federation:
    assert fed.client_groups is not None
    assert fed.client_test is not None
    return dataclasses.replace(
        fed,
        train=RowSets.of([fed.train[k] for k in members]),
        client_test=RowSets.of([fed.client_test[k] for k in members]),
        ids=tuple(fed.ids[k] for k in members),
        client_groups=fed.client_groups[members],
    )


@pytest.mark.parametrize("q", [0.0, 0.1, 2.0])
def test_qffl_against_numpy(q: float, uneven: Federation) -> None:
    result = ef.simulate(QFFL(q), uneven, model=MODEL, rounds=4, local=STEP, seeds=[3])
    (w,) = start(uneven, 3, 1)
    for _ in range(4):
        deltas, hs = [], []
        for k in range(uneven.num_clients):
            x, y = client(uneven, k)
            if len(y):
                F, dw = loss(w, x, y) + 1e-10, (w - trained(w, x, y)) / 0.4
                deltas.append(F**q * dw)
                hs.append(q * F ** (q - 1) * (dw @ dw) + F**q / 0.4)
        w = w - np.sum(deltas, 0) / np.sum(hs)
    np.testing.assert_allclose(vector(result.parameters[3]), w, rtol=1e-4, atol=1e-5)


def test_qffl_with_q_0_is_the_plain_mean_of_models(uneven: Federation) -> None:
    some = np.flatnonzero(uneven.train.sizes > 0)
    fed = only(uneven, some)
    result = ef.simulate(QFFL(0.0), fed, model=MODEL, rounds=1, local=TRAIN, seeds=[1])
    alone = ef.simulate(ef.methods.LocalOnly(), fed, model=MODEL, rounds=1, local=TRAIN, seeds=[1])
    for name, value in result.parameters[1].items():
        np.testing.assert_allclose(value, alone.parameters[1][name].mean(0), rtol=1e-5, atol=1e-6)


def test_ifca_with_known_groups_is_one_fedavg_per_group(uneven: Federation) -> None:
    result = ef.simulate(IFCA(3, known=True), uneven, model=MODEL, rounds=5, local=TRAIN, seeds=[2])
    initial = start(uneven, 2, 3)
    assert uneven.client_groups is not None
    for q in range(3):
        fed = only(uneven, np.flatnonzero(uneven.client_groups == q))
        begin = {"0.bias": initial[q][:1], "0.weight": initial[q][None, 1:]}
        alone = ef.simulate(FedAvg(), fed, model=MODEL, rounds=5, local=TRAIN, seeds=[2], initial_parameters=begin)
        np.testing.assert_allclose(vector(result.parameters[2], q), vector(alone.parameters[2]), rtol=1e-5, atol=1e-6)
        for name in fed.ids:
            ours, theirs = (
                r.metrics.query("scope == @scope and metric == 'accuracy' and round == 5")["value"].item()
                for scope in [f"client:{name}"]
                for r in (result, alone)
            )
            assert ours == theirs


def test_ifca_finds_the_groups(uneven: Federation) -> None:
    """Two kinds of clients with opposite labels: each ends up with a model of its own; NumPy agrees on the way."""
    rng = np.random.default_rng(0)
    clients = []
    for k in range(8):
        x = rng.normal(size=(40, 3)).astype(np.float32)
        y = (x[:, 0] > 0).astype(int)
        clients.append((x, y if k % 2 else 1 - y, np.zeros(40, int)))
    fed = ef.Federation.from_arrays(clients, client_tests=clients, client_groups=[k % 2 for k in range(8)])
    result = ef.simulate(IFCA(2), fed, model=MODEL, rounds=12, local=STEP, seeds=[0])
    models = start(fed, 0, 2)
    for _ in range(12):
        chosen = [int(np.argmin([loss(w, *client(fed, k)) for w in models])) for k in range(8)]
        models = [
            np.mean([trained(w, *client(fed, k)) for k in range(8) if chosen[k] == q] or [w], axis=0)
            for q, w in enumerate(models)
        ]
    for q in range(2):
        np.testing.assert_allclose(vector(result.parameters[0], q), models[q], rtol=1e-4, atol=1e-5)
    final = result.final()
    assert final["client_equality.worst10"].item() > 0.85


def test_a_model_that_nobody_chose_stays(uneven: Federation) -> None:
    begin = {
        "0.bias": np.array([[0.0], [90.0]], np.float32),
        "0.weight": np.zeros((2, 1, 4), np.float32),
    }
    result = ef.simulate(IFCA(2), uneven, model=MODEL, rounds=2, local=STEP, seeds=[0], initial_parameters=begin)
    assert vector(result.parameters[0], 1).tolist() == [90.0, 0, 0, 0, 0]
    assert np.abs(vector(result.parameters[0], 0)).max() > 0


def test_ifca_says_what_it_needs(uneven: Federation) -> None:
    without = dataclasses.replace(uneven, client_groups=None)
    for fed, number in ((without, 3), (uneven, 2)):
        with pytest.raises(ef.ConfigError, match="known is true, which needs each client's group"):
            ef.simulate(IFCA(number, known=True), fed, model=MODEL, rounds=1)
