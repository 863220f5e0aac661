"""SCAFFOLD, FedNova and FedDyn against plain NumPy, and where their rounds end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equifed as ef
from equifed import methods, randomness
from equifed.errors import ConfigError
from equifed.federation import Federation
from equifed.protocol import Data, Method, Task
from methods.plain import client, sigmoid

RATE, ROUNDS, COHORT, DROPOUT, SEED = 0.3, 5, 6, 0.3, 4
LOCAL = ef.Local(epochs=2, batch_size=16, learning_rate=RATE, learning_rate_decay=0.9)


# -- two parabolas -----------------------------------------------------------------------------------------------------


def parabolas(*rows: int) -> Federation:
    """Clients with f_1 = (x - 1)^2 / 2 and f_2 = 3 (x + 1)^2 / 2: squared errors of x times one feature."""
    curves = [(0.5, 1.0), (1.5, -1.0)]
    clients = []
    for (curve, centre), n in zip(curves, rows, strict=True):
        feature = np.full((n, 1), np.sqrt(curve), dtype=np.float32)
        clients.append((feature, centre * feature[:, 0], np.zeros(n, int)))
    return ef.Federation.from_arrays(clients, test=clients[0], task="regression")


def ends(method: Method, rounds: int, rows: tuple[int, int] = (1, 1), **local: Any) -> tuple[float, Any]:
    """x after these rounds from 0, and the final state."""
    options: dict[str, Any] = {"epochs": 2, "batch_size": None, "learning_rate": 0.1, **local}
    result = ef.simulate(
        method,
        parabolas(*rows),
        model=nn.Linear(1, 1, bias=False),
        initial_parameters={"weight": torch.zeros(1, 1)},
        rounds=rounds,
        local=ef.Local(**options),
        seeds=[0],
        eval_every=rounds,
    )
    return float(result.parameters[0]["weight"].squeeze()), result.final_states[0]


def test_scaffold_by_hand() -> None:
    x, state = ends(methods.Scaffold(), 1)
    assert x == pytest.approx(-0.16, rel=1e-6)
    assert float(state.server.c["weight"]) == pytest.approx(0.8, rel=1e-6)
    np.testing.assert_allclose(state.clients.c["weight"].ravel(), [-0.95, 2.55], rtol=1e-6)
    x, state = ends(methods.Scaffold(), 2)
    assert x == pytest.approx(-0.2815, rel=1e-5)
    assert float(state.server.c["weight"]) == pytest.approx(0.6075, rel=1e-5)


def test_where_the_rounds_end() -> None:
    """At the minimum of the mean loss, -1/2, however many the local steps; FedAvg's end beside it."""
    assert ends(methods.FedAvg(), 60)[0] == pytest.approx(-0.457143, abs=1e-5)
    assert ends(methods.Scaffold(), 60)[0] == pytest.approx(-0.5, abs=1e-5)
    assert ends(methods.FedDyn(alpha=1.0), 60)[0] == pytest.approx(-0.5, abs=1e-5)
    # weight decay 1/2 is part of every client's loss: (x - 1) + 3 (x + 1) + x = 0
    assert ends(methods.Scaffold(), 80, weight_decay=0.5)[0] == pytest.approx(-0.4, abs=1e-5)
    # by rows: 3 (x - 1) + 3 (x + 1) = 0; all alike: -1/2 again
    assert ends(methods.Scaffold(), 80, rows=(3, 1))[0] == pytest.approx(0, abs=1e-5)
    assert ends(methods.Scaffold(weights="uniform"), 80, rows=(3, 1))[0] == pytest.approx(-0.5, abs=1e-5)
    assert ends(methods.FedDyn(alpha=1.0), 80, rows=(3, 1))[0] == pytest.approx(-0.5, abs=1e-5)


def test_scaffold_with_half_of_the_step() -> None:
    assert ends(methods.Scaffold(global_step_size=0.5), 1)[0] == pytest.approx(-0.08, rel=1e-6)


def test_feddyn_by_hand() -> None:
    """With exact local solutions, by 200 steps each."""
    exactly = {"epochs": 200, "learning_rate": 0.2}
    x, state = ends(methods.FedDyn(alpha=1.0), 1, **exactly)
    # x_1 = .5 and x_2 = -.75; h_k = -x_k, h = .125, theta = -.125 - .125
    np.testing.assert_allclose(state.clients.h["weight"].ravel(), [-0.5, 0.75], rtol=1e-5)
    assert float(state.server.h["weight"]) == pytest.approx(0.125, rel=1e-5)
    assert x == pytest.approx(-0.25, rel=1e-5)
    assert ends(methods.FedDyn(alpha=1.0), 2, **exactly)[0] == pytest.approx(-0.375, rel=1e-5)


def test_fednova_by_hand() -> None:
    """f_1 = (x - 1)^2 / 2 with one step, f_2 = (x + 1)^2 / 2 with three, eta .1, from 0."""
    (phase,) = methods.FedNova().round
    replies = {
        "update": {"w": torch.tensor(0.1 / 1 - 0.271 / 3)},
        "steps": torch.tensor(4.0),
        "rows": torch.tensor(2.0),
    }
    server = phase.server(methods.FedNova().init(TASK, {"w": torch.tensor(0.0)}), replies, None)
    assert float(server.theta["w"]) == pytest.approx(0.0096667, abs=1e-7)


# -- weights of gradients ----------------------------------------------------------------------------------------------

TASK = Task(
    nn.Linear(1, 1), "classification", num_classes=2, num_groups=2, num_clients=1, rounds=1, local=ef.Local(),
    binary=True,
)  # fmt: skip


@pytest.mark.parametrize(
    ("mu", "momentum", "rate"), [(0.0, 0.0, 0.1), (0.0, 0.9, 0.1), (0.7, 0.0, 0.1), (1e-5, 0.0, 0.01), (4.0, 0.0, 0.2)]
)
@pytest.mark.parametrize("steps", [0, 1, 2, 40])
def test_the_weight_of_gradients_is_how_far_steps_of_a_gradient_of_one_go(
    mu: float, momentum: float, rate: float, steps: int
) -> None:
    local = ef.Local(epochs=1, batch_size=3, learning_rate=rate, momentum=momentum)
    task = Task(nn.Linear(1, 1), "classification", 2, 2, 1, 1, local, binary=True)
    n = 3 * steps - 1 if steps else 0  # the last batch is shorter
    rows = Data(*(torch.zeros(n) for _ in range(3)), torch.ones(n), task, learning_rate=rate)
    moved, u = 0.0, 0.0
    for _ in range(steps):
        u = momentum * u + 1 + mu * -moved
        moved += rate * u
    reply, _ = methods.FedNova(mu=mu).reply(
        {"w": torch.tensor(-moved)}, {"theta": {"w": torch.tensor(0.0)}}, (), rows, ()
    )
    assert float(reply["rows"]) == n
    assert float(reply["steps"]) == pytest.approx(n * moved / rate, rel=1e-5)
    assert float(reply["update"]["w"]) == pytest.approx(-n * rate, rel=1e-5)


# -- rounds ------------------------------------------------------------------------------------------------------------


def train(
    theta: np.ndarray, fed: Federation, k: int, t: int, linear: np.ndarray | float = 0.0, mu: float = 0.0
) -> tuple[np.ndarray, int, float]:
    """Local SGD of client k in round t with the engine's batches: the model, its steps, and their size."""
    x, y, _ = client(fed, k)
    x = np.c_[np.ones(len(x)), x]
    batches = randomness.Batches(SEED, t, randomness.key(fed.ids[k]), "train", len(y), LOCAL)
    w, rate, steps = theta, RATE * 0.9 ** (t - 1), 0
    for rows in (rows for epoch in range(LOCAL.epochs) for rows in batches.of_epoch(epoch)):
        gradient = x[rows].T @ (sigmoid(x[rows] @ w) - y[rows]) / len(rows)
        w, steps = w - rate * (gradient + mu * (w - theta) + linear), steps + 1
    return w, steps, rate


def cohorts(fed: Federation) -> list[list[int]]:
    """Who takes part in every round, and does not drop out."""
    found = []
    for t in range(1, ROUNDS + 1):
        cohort = randomness.draw_cohort(SEED, t, randomness.client_order(fed.ids), COHORT)
        here = randomness.draw_present(SEED, t, [randomness.key(fed.ids[k]) for k in cohort], DROPOUT)
        found.append(cohort[here].tolist())
    return found


def scaffold(fed: Federation, uniform: bool) -> np.ndarray:
    n = np.minimum(fed.train.sizes, 1).astype(float) if uniform else fed.train.sizes.astype(float)
    theta, c, own = np.zeros(5), np.zeros(5), np.zeros((fed.num_clients, 5))
    for t, present in enumerate(cohorts(fed), 1):
        update, change = np.zeros(5), np.zeros(5)
        for k in present:
            y, steps, rate = train(theta, fed, k, t, c - own[k])
            if steps:
                new = own[k] - c + (theta - y) / (steps * rate)
                update, change = update + n[k] * (y - theta), change + n[k] * (new - own[k])
                own[k] = new
        theta, c = theta + 0.8 * update / n[present].sum(), c + change / n.sum()
    return theta


def fednova(fed: Federation) -> np.ndarray:
    n, theta = fed.train.sizes.astype(float), np.zeros(5)
    for t, present in enumerate(cohorts(fed), 1):
        share = n / n[present].sum()
        update, tau = np.zeros(5), 0.0
        for k in present:
            y, steps, _ = train(theta, fed, k, t)
            if steps:
                update, tau = update + share[k] * (y - theta) / steps, tau + share[k] * steps
        theta = theta + tau * update
    return theta


def feddyn(fed: Federation, alpha: float) -> np.ndarray:
    some = fed.train.sizes > 0
    theta, h, own = np.zeros(5), np.zeros(5), np.zeros((fed.num_clients, 5))
    for t, present in enumerate(cohorts(fed), 1):
        new = {k: train(theta, fed, k, t, -own[k], alpha)[0] for k in present if some[k]}
        for k, y in new.items():
            own[k] -= alpha * (y - theta)
        h = h - alpha / some.sum() * sum(y - theta for y in new.values())
        theta = np.mean(list(new.values()), 0) - h / alpha
    return theta


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (methods.Scaffold(global_step_size=0.8), lambda fed: scaffold(fed, uniform=False)),
        (methods.Scaffold(global_step_size=0.8, weights="uniform"), lambda fed: scaffold(fed, uniform=True)),
        (methods.FedNova(), fednova),
        (methods.FedDyn(alpha=0.4), lambda fed: feddyn(fed, 0.4)),
    ],
    ids=["scaffold", "scaffold, uniform", "fednova", "feddyn"],
)
def test_rounds_against_numpy(method: Method, expected: Callable[[Federation], np.ndarray], uneven: Federation) -> None:
    """Some clients are not asked, some drop out, one has no rows, and numbers of steps differ."""
    asked = cohorts(uneven)
    assert min(map(len, asked)) < COHORT
    assert any(4 in present for present in asked)  # the client without rows
    result = simulated(method, uneven)
    got = result.parameters[SEED]
    found = np.r_[got["0.bias"].ravel(), got["0.weight"].ravel()]
    np.testing.assert_allclose(found, expected(uneven), rtol=1e-4, atol=1e-5)
    assert set(result.messages["gather"]) == {"sum"}


def simulated(method: Method, fed: Federation, **changes: Any) -> ef.Result:
    options: dict[str, Any] = {"clients_per_round": COHORT, "dropout": DROPOUT, "local": LOCAL, "rounds": ROUNDS}
    return ef.simulate(method, fed, model=ef.models.Logistic(), seeds=[SEED], **{**options, **changes})


def test_the_servers_part_is_the_mean_of_the_clients_whoever_took_part(uneven: Federation) -> None:
    """c is the mean of c_k by rows, h the plain mean of h_k: else the model would come to rest beside the minimum."""
    n = uneven.train.sizes
    for method, name, weight in [
        (methods.Scaffold(), "c", n / n.sum()),
        (methods.Scaffold(weights="uniform"), "c", (n > 0) / (n > 0).sum()),
        (methods.FedDyn(), "h", (n > 0) / (n > 0).sum()),
    ]:
        state = simulated(method, uneven, rounds=12).final_states[SEED]
        for part, found in getattr(state.clients, name).items():
            own = found.numpy()
            mean = np.tensordot(weight, own, 1)
            np.testing.assert_allclose(getattr(state.server, name)[part], mean, atol=2e-6)
            assert np.abs(own[4]).max() == 0  # the client without rows
            assert np.abs(mean).max() > 1e-3


def test_a_round_of_a_client_without_rows_changes_nothing(uneven: Federation) -> None:
    """A round in which nobody but a client without rows is asked, after one with rows."""
    none, some = client(uneven, 4), client(uneven, 0)
    fed = ef.Federation.from_arrays([none, none, some], test=some, ids=["a", "b", "c"])
    order = randomness.client_order(fed.ids)
    asked = [int(randomness.draw_cohort(SEED, t, order, 1)[0]) for t in range(1, 20)]
    t = next(t for t in range(1, 19) if asked[t - 1] == 2 and asked[t] != 2)  # rounds before it
    for method in (methods.Scaffold(), methods.FedNova(), methods.FedDyn()):
        before, after = (
            simulated(method, fed, rounds=rounds, clients_per_round=1, dropout=0.0).parameters[SEED]
            for rounds in (t, t + 1)
        )
        for name, value in before.items():
            assert np.abs(value).max() > 0
            np.testing.assert_array_equal(value, after[name])


def test_with_equal_steps_fednova_is_fedavg(uneven: Federation) -> None:
    local = ef.Local(epochs=3, batch_size=None, learning_rate=0.3, momentum=0.8)
    fednova, fedavg = (simulated(method, uneven, local=local) for method in (methods.FedNova(), methods.FedAvg()))
    fednova_prox, fedprox = (
        simulated(method, uneven, local=ef.Local(epochs=3, batch_size=None, learning_rate=0.3))
        for method in (methods.FedNova(mu=0.5), methods.FedProx(mu=0.5))
    )
    for a, b in ((fednova, fedavg), (fednova_prox, fedprox)):
        for name, value in a.parameters[SEED].items():
            np.testing.assert_allclose(value, b.parameters[SEED][name], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("method", [methods.Scaffold(), methods.FedNova(mu=0.1), methods.FedDyn()], ids=repr)
def test_the_fused_kernel_runs_it(method: Method, uneven: Federation) -> None:
    fused, reference = (simulated(method, uneven, **how) for how in ({"kernel": "fused"}, {"engine": "reference"}))
    for name, value in fused.parameters[SEED].items():
        np.testing.assert_allclose(value, reference.parameters[SEED][name], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("method", "local", "words"),
    [
        (methods.Scaffold(), {"momentum": 0.9}, "Train locally with optimizer = sgd and momentum = 0"),
        (methods.Scaffold(), {"optimizer": "adam"}, "Train locally with optimizer = sgd and momentum = 0"),
        (methods.FedNova(), {"optimizer": "adam"}, "Train locally with optimizer = sgd, with or without momentum"),
        (methods.FedNova(mu=0.1), {"momentum": 0.5}, "mu needs SGD without momentum, and the momentum is 0.5"),
        (methods.FedNova(mu=5.0), {"learning_rate": 0.2}, "mu times the learning rate, 0.2, must be below 1"),
    ],
)
def test_what_is_refused(method: Method, local: dict[str, Any], words: str, uneven: Federation) -> None:
    with pytest.raises(ConfigError, match=words):
        simulated(method, uneven, local=ef.Local(**local))
