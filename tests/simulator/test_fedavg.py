"""FedAvg and the optimisers against computations that share no code with the simulator."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import equifed as ef
from equifed import randomness
from equifed.federation import Federation
from equifed.simulator.lanes import LanesEngine
from equifed.simulator.reference import Reference

ENGINES = ("lanes", "reference")


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def step(w: np.ndarray, x: np.ndarray, y: np.ndarray, rate: float) -> np.ndarray:
    """One step of logistic regression; w = (bias, weights)."""
    error = sigmoid(w[0] + x @ w[1:]) - y
    return w - rate * np.concatenate([[error.mean()], x.T @ error / len(y)])


def held(federation: Federation, k: int) -> tuple[np.ndarray, np.ndarray]:
    rows = federation.train[k]
    return federation.rows.x[rows].astype(np.float64), federation.rows.y[rows].astype(np.float64)


def as_vector(parameters: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([parameters["0.bias"].ravel(), parameters["0.weight"].ravel()])


@pytest.mark.parametrize("engine", ENGINES)
def test_two_rounds_of_full_batches(uneven: Federation, engine: str) -> None:
    result = ef.simulate(
        ef.methods.FedAvg(),
        uneven,
        model=ef.models.Logistic(),
        rounds=2,
        local=ef.Local(epochs=3, batch_size=None, learning_rate=0.5, learning_rate_decay=0.9),
        seeds=[3],
        engine=engine,  # type: ignore[arg-type]
    )
    w = np.zeros(5)
    for number in (1, 2):
        models, sizes = [], []
        for k in range(uneven.num_clients):
            x, y = held(uneven, k)
            own = w
            for _ in range(3):
                own = step(own, x, y, 0.5 * 0.9 ** (number - 1)) if len(y) else own
            models.append(own)
            sizes.append(len(y))
        w = np.average(models, axis=0, weights=sizes)
    np.testing.assert_allclose(as_vector(result.parameters[3]), w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_two_rounds_of_sampled_clients_and_mini_batches(uneven: Federation, engine: str) -> None:
    """The plan says who takes part and in which order rows come; everything else is plain NumPy."""
    local = ef.Local(epochs=2, batch_size=8, learning_rate=0.3)
    result = ef.simulate(
        ef.methods.FedAvg(),
        uneven,
        model=ef.models.Logistic(),
        rounds=2,
        clients_per_round=4,
        dropout=0.3,
        local=local,
        seeds=[11],
        engine=engine,  # type: ignore[arg-type]
    )
    w = np.zeros(5)
    for number in (1, 2):
        sampled = randomness.draw_cohort(11, number, randomness.client_order(uneven.ids), 4)
        stay = randomness.draw_present(11, number, [randomness.key(uneven.ids[k]) for k in sampled], 0.3)
        models, sizes = [w], [0]
        for k in sampled[stay]:
            x, y = held(uneven, k)
            batches = randomness.Batches(11, number, randomness.key(uneven.ids[k]), "train", len(y), local)
            own = w
            for epoch in range(2):
                order = batches.order(epoch)
                for begin in range(0, len(y), 8):
                    some = order[begin : begin + 8]
                    own = step(own, x[some], y[some], 0.3)
            models.append(own)
            sizes.append(len(y))
        w = np.average(models, axis=0, weights=sizes) if sum(sizes) else w
    np.testing.assert_allclose(as_vector(result.parameters[11]), w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("local", "make"),
    [
        (
            ef.Local(epochs=3, batch_size=8, learning_rate=0.1, momentum=0.9, weight_decay=0.02),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.02),
        ),
        (
            ef.Local(epochs=3, batch_size=8, learning_rate=0.05, optimizer="adam", weight_decay=0.01),
            lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.01),
        ),
    ],
    ids=["sgd", "adam"],
)
def test_optimisers_are_torch_s(uneven: Federation, engine: str, local: ef.Local, make: object) -> None:
    """One client, one round, against torch.optim and autograd."""
    x, y = held(uneven, 0)
    alone = ef.Federation.from_arrays([(x, y, np.arange(len(y)) % 2)], ids=["only"])
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    result = ef.simulate(ef.methods.FedAvg(), alone, model=net, rounds=1, local=local, seeds=[0], engine=engine)  # type: ignore[arg-type]
    optimizer = make(net.parameters())  # type: ignore[operator]
    batches = randomness.Batches(0, 1, randomness.key("only"), "train", len(y), local)
    for epoch in range(3):
        order = batches.order(epoch)
        for begin in range(0, len(y), 8):
            some = order[begin : begin + 8]
            optimizer.zero_grad()
            out = net(torch.tensor(x[some], dtype=torch.float32))
            nn.functional.cross_entropy(out, torch.tensor(y[some], dtype=torch.long)).backward()
            optimizer.step()
    for name, parameter in net.named_parameters():
        np.testing.assert_allclose(result.parameters[0][name], parameter.detach(), rtol=2e-4, atol=1e-5)


def test_regression_finds_the_least_squares_solution() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    y = x @ [1.0, -2.0, 0.5] + 0.7 + 0.01 * rng.normal(size=300)
    clients = [(x[i::3], y[i::3], np.arange(100) % 2) for i in range(3)]
    fed = ef.Federation.from_arrays(clients, test=(x, y, np.arange(300) % 2), task="regression")
    result = ef.simulate(
        ef.methods.FedAvg(), fed, model=ef.models.Linear(), rounds=200, eval_every=200,
        local=ef.Local(batch_size=None, learning_rate=0.1),
    )  # fmt: skip
    best = np.linalg.lstsq(np.c_[np.ones(300), x], y, rcond=None)[0]
    np.testing.assert_allclose(as_vector(result.parameters[0]), best, atol=1e-4)
    expected = np.sqrt(np.mean((np.c_[np.ones(300), x] @ best - y) ** 2))
    assert result.final()["rmse"].item() == pytest.approx(expected, rel=1e-3)


def test_fedprox_first_round_against_numpy(uneven: Federation) -> None:
    """Two full-batch steps: the second feels mu (theta_k - theta)."""
    mu, rate = 0.7, 0.5
    result = ef.simulate(
        ef.methods.FedProx(mu=mu), uneven, model=ef.models.Logistic(), rounds=1, seeds=[0],
        local=ef.Local(epochs=2, batch_size=None, learning_rate=rate),
    )  # fmt: skip
    models, sizes = [], []
    for k in range(uneven.num_clients):
        x, y = held(uneven, k)
        if not len(y):
            continue
        one = step(np.zeros(5), x, y, rate)
        models.append(step(one, x, y, rate) - rate * mu * one)
        sizes.append(len(y))
    expected = np.average(models, axis=0, weights=sizes)
    np.testing.assert_allclose(as_vector(result.parameters[0]), expected, rtol=1e-5, atol=1e-6)


def test_local_training_is_one_model_per_client(uneven: Federation) -> None:
    result = ef.simulate(
        ef.methods.LocalOnly(), uneven, model=ef.models.Logistic(), rounds=3, seeds=[0],
        local=ef.Local(epochs=1, batch_size=None, learning_rate=0.5),
    )  # fmt: skip
    for k in range(uneven.num_clients):
        x, y = held(uneven, k)
        w = np.zeros(5)
        for _ in range(3):
            w = step(w, x, y, 0.5) if len(y) else w
        own = {name: value[k] for name, value in result.parameters[0].items()}
        np.testing.assert_allclose(as_vector(own), w, rtol=1e-5, atol=1e-6)
    assert result.messages[["bytes_up", "bytes_down"]].to_numpy().sum() == 0


def test_engines_are_what_their_names_say() -> None:
    from equifed.simulation import ENGINES as known

    assert known == {"lanes": LanesEngine, "reference": Reference}
