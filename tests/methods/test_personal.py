"""Ditto, FedPer, FedRep and APFL: hand checks, rounds in plain NumPy, their limits, and new clients."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equifed as ef
from equifed import methods, tree
from equifed.errors import ConfigError
from equifed.federation import Federation
from equifed.methods import APFL, Ditto, FedPer, FedRep, LocalOnly
from equifed.methods.apfl import Client as Mixed
from equifed.protocol import Data, Task
from equifed.simulation import Simulation
from equifed.simulator import make_job

from .plain import client, sigmoid

RATE, EPOCHS, ROUNDS = 0.3, 2, 3
LOGISTIC, NETWORK = ef.models.Logistic(), ef.models.MLP(hidden=(3,), activation="tanh")
BATCHES: dict[str, Any] = {
    "rounds": 3, "clients_per_round": 5, "dropout": 0.2, "seeds": [0, 3],
    "local": ef.Local(epochs=2, batch_size=8, learning_rate=0.2),
}  # fmt: skip


def simulation(method: methods.Method, fed: Federation, model: Any = LOGISTIC, sampled: int = 3) -> Simulation:
    """Full batches, with so few clients in a round that some never take part."""
    local = ef.Local(epochs=EPOCHS, batch_size=None, learning_rate=RATE)
    settings = ef.RunSettings(rounds=ROUNDS, clients_per_round=sampled, seeds=[0], local=local)
    return Simulation(make_job(method, fed, model, settings))


def rounds(run: Simulation) -> Iterator[tuple[np.ndarray, Any, Any]]:
    """(the round's clients, the server's state after it, the clients' states after it)."""
    for step in run.rounds():
        state = tree.map(torch.clone, step.state)
        yield run.job.cohorts(step.round)[0], tree.take(state.server, 0), tree.take(state.clients, 0)


def flat(parameters: Any) -> np.ndarray:
    """Weights and bias of a logistic regression, also of many."""
    weight, bias = (np.asarray(value, float) for value in parameters.values())
    return np.concatenate([weight[..., 0, :], bias], -1)


def own(fed: Federation, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y, s = client(fed, k)
    return np.column_stack([x, np.ones(len(x))]), y, s


def slope(theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    gradient: np.ndarray = x.T @ (sigmoid(x @ theta) - y) / max(len(y), 1)
    return gradient


def never(fed: Federation, cohorts: list[np.ndarray]) -> list[int]:
    seen = {int(k) for cohort in cohorts for k in cohort}
    return [k for k in range(fed.num_clients) if k not in seen]


# -- by hand -----------------------------------------------------------------------------------------------------------


def one_number(steps: int = 1, **local: Any) -> Data:
    """Rows on which a model with a single weight x has the loss (x - 2)^2 / 2."""
    task = Task(
        nn.Linear(1, 1, bias=False), "regression", 0, 1, 1, 1,
        ef.Local(epochs=steps, batch_size=None, learning_rate=0.1, **local),
    )  # fmt: skip
    half = math.sqrt(0.5)
    x, y = torch.tensor([[half]], dtype=torch.float64), torch.tensor([2 * half], dtype=torch.float64)
    batches = (torch.tensor([0]),) * steps
    return Data(x, y, torch.zeros(1).long(), torch.ones(1), task, batches=batches, learning_rate=0.1)


def number(x: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.tensor([[x]], dtype=torch.float64)}


@pytest.mark.parametrize(("proximity", "steps", "v"), [(1.0, 1, 0.3), (1.0, 80, 1.5), (9.0, 2, 1.1), (0.0, 150, 2)])
def test_ditto_by_hand(proximity: float, steps: int, v: float) -> None:
    """From v = 0 with theta = 1: one step, and where it ends: between the client's own 2 and theta."""
    method, data = Ditto(proximity=proximity), one_number(steps)
    state = method.init_client(data.task, number(0.0))
    train, personal = method.round
    _, state = train.client({"theta": number(1.0)}, state, data)
    reply, state = personal.client({}, state, data)
    assert reply == {}
    assert float(state.own["v"]["weight"]) == pytest.approx(v, abs=1e-6)


@pytest.mark.parametrize("local", [{}, {"weight_decay": 0.3}])
def test_apfl_by_hand(local: dict[str, float]) -> None:
    """w = 1, v = 0, a = 1/2; weight decay is for models, not for a."""
    data, (phase,) = one_number(**local), APFL().round
    state = Mixed(number(0.0), torch.tensor(0.5, dtype=torch.float64), torch.ones(()))
    reply, state = phase.client({"theta": number(1.0)}, state, data)
    assert float(state.v["weight"]) == pytest.approx(0.075)  # of v = 0 nothing decays
    assert float(state.a) == pytest.approx(0.35)
    assert float(reply["update"]["weight"]) == pytest.approx(0.1 - 0.1 * local.get("weight_decay", 0.0))


def test_the_weight_of_apfl_stays_within_its_range() -> None:
    (phase,) = APFL().round
    for v, a in ((-30.0, 0.0), (3.0, 1.0)):  # far from the optimum, which w has found; close, with w far from it
        state = Mixed(number(v), torch.tensor(0.5, dtype=torch.float64), torch.ones(()))
        _, state = phase.client({"theta": number(2.0 if a == 0 else -30.0)}, state, one_number())
        assert float(state.a) == a


# -- rounds in NumPy ---------------------------------------------------------------------------------------------------


def soft_gap_slope(v: np.ndarray, x: np.ndarray, y: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Of the difference between the two groups' mean probabilities of class 1, among rows of class 1."""
    p = sigmoid(x @ v)
    cells = [(s == g) & (y == 1) for g in (0, 1)]
    if not all(cell.any() for cell in cells):
        return np.zeros_like(v)
    slopes = [(p * (1 - p))[cell] @ x[cell] / cell.sum() for cell in cells]
    return np.sign(p[cells[1]].mean() - p[cells[0]].mean()) * (slopes[1] - slopes[0])


@pytest.mark.parametrize("weight", [0.0, 1.5])
def test_ditto_in_plain_numpy(weight: float, uneven: Federation) -> None:
    """theta is FedAvg's; who took part in no round makes a model from theta at the end, and only they."""
    fairness = {"personal_fairness": "equal_opportunity_difference", "personal_fairness_weight": weight}
    run = simulation(Ditto(proximity=0.8, personal_epochs=3, **(fairness if weight else {})), uneven)

    def trained(v: np.ndarray, theta: np.ndarray, k: int) -> np.ndarray:
        x, y, s = own(uneven, k)
        for _ in range(3 if len(y) else 0):
            v = v - RATE * (slope(v, x, y) + 0.8 * (v - theta) + weight * soft_gap_slope(v, x, y, s))
        return v if len(y) else theta

    theta = np.zeros(5)
    v = np.zeros((uneven.num_clients, 5))
    cohorts = []
    for cohort, server, clients in rounds(run):
        cohorts.append(cohort)
        moved, n = np.zeros(5), 0
        for k in cohort:
            x, y, _ = own(uneven, k)
            local = theta
            for _ in range(EPOCHS):
                local = local - RATE * slope(local, x, y)
            v[k] = trained(v[k], theta, k)
            moved, n = moved + len(y) * (local - theta), n + len(y)
        theta = theta + moved / n
        if len(cohorts) == ROUNDS:
            for k in never(uneven, cohorts):
                v[k] = trained(theta, theta, k)
        np.testing.assert_allclose(flat(server.inner.theta), theta, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(flat(clients.own["v"]), v, rtol=1e-4, atol=1e-6)
        assert float(server.own["late"]) == (len(never(uneven, cohorts)) if len(cohorts) == ROUNDS else 0)
    assert len(never(uneven, cohorts)) > 1


def network(theta: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """The gradient of the mean loss of a network with one hidden layer of tanh."""
    hidden = np.tanh(x @ theta["0.weight"].T + theta["0.bias"])
    error = (sigmoid(hidden @ theta["2.weight"][0] + theta["2.bias"][0]) - y) / max(len(y), 1)
    back = error[:, None] * theta["2.weight"] * (1 - hidden**2)
    return {"0.weight": back.T @ x, "0.bias": back.sum(0), "2.weight": (error @ hidden)[None], "2.bias": error.sum()}


def stepped(
    theta: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray, parts: str, steps: int
) -> dict[str, np.ndarray]:
    """After so many steps of the layers named in `parts`."""
    for _ in range(steps):
        gradient = network(theta, x, y)
        theta = {name: value - RATE * gradient[name] * (name[0] in parts) for name, value in theta.items()}
    return theta


@pytest.mark.parametrize(
    ("method", "schedule", "final"),
    [
        (FedPer(), [("02", EPOCHS)], 0),
        (FedPer(final_epochs=2), [("02", EPOCHS)], 2),
        (FedRep(head_epochs=3, body_epochs=2, final_epochs=1), [("2", 3), ("0", 2)], 1),
        (FedRep(head_epochs=0, body_epochs=2, final_epochs=0), [("0", 2)], 0),  # FedAvg of the body under one head
    ],
    ids=repr,
)
def test_own_heads_in_plain_numpy(
    method: FedPer, schedule: list[tuple[str, int]], final: int, uneven: Federation
) -> None:
    run = simulation(method, uneven, NETWORK)
    theta = {name: value.double().numpy() for name, value in run.job.initial[0].items()}
    heads = [{name: theta[name] for name in ("2.weight", "2.bias")} for _ in range(uneven.num_clients)]
    start = dict(theta)
    for number, (cohort, server, clients) in enumerate(rounds(run), 1):
        moved, n = {name: np.zeros_like(theta[name]) for name in ("0.weight", "0.bias")}, 0
        for k in cohort:
            x, y, _ = client(uneven, k)
            local = {**theta, **heads[k]}
            for parts, steps in schedule:
                local = stepped(local, x, y, parts, steps)
            heads[k] = {name: local[name] for name in heads[k]}
            moved, n = {name: value + len(y) * (local[name] - theta[name]) for name, value in moved.items()}, n + len(y)
        theta = {**theta, **{name: theta[name] + value / n for name, value in moved.items()}}
        for k in range(uneven.num_clients if number == ROUNDS else 0):
            x, y, _ = client(uneven, k)
            local = stepped({**theta, **heads[k]}, x, y, "2", final)
            heads[k] = {name: local[name] for name in heads[k]}
        for name, value in theta.items():
            np.testing.assert_allclose(server.theta[name], value, rtol=1e-4, atol=1e-6)
        for name in heads[0]:
            np.testing.assert_array_equal(theta[name], start[name])  # the server's head is where all start
            expected = np.stack([np.reshape(head[name], start[name].shape) for head in heads])
            np.testing.assert_allclose(clients.head[name], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("adaptive", [True, False])
def test_apfl_in_plain_numpy(adaptive: bool, uneven: Federation) -> None:
    run = simulation(APFL(mixing=0.4, adaptive=adaptive), uneven)
    w, v, a = np.zeros(5), np.zeros((uneven.num_clients, 5)), np.full(uneven.num_clients, 0.4)
    trained: set[int] = set()
    for cohort, server, clients in rounds(run):
        moved, n = np.zeros(5), 0
        for k in cohort:
            x, y, _ = own(uneven, k)
            local = w
            if k not in trained:
                v[k] = w
            for _ in range(EPOCHS if len(y) else 0):
                there = slope(a[k] * v[k] + (1 - a[k]) * local, x, y)
                step, turn = a[k] * there, (v[k] - local) @ there
                local = local - RATE * slope(local, x, y)
                v[k] = v[k] - RATE * step
                a[k] = np.clip(a[k] - RATE * turn, 0, 1) if adaptive else a[k]
            moved, n = moved + len(y) * (local - w), n + len(y)
            trained |= {int(k)} if len(y) else set()
        w = w + moved / n
        np.testing.assert_allclose(flat(server.theta), w, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(clients.a, a, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(flat(clients.v)[sorted(trained)], v[sorted(trained)], rtol=1e-4, atol=1e-6)
    assert (a[sorted(trained)] != 0.4).any() == adaptive
    result = run.result()
    x = uneven.rows.x[:30]
    for k in range(uneven.num_clients):  # who never trained predicts with w
        mixed = a[k] * v[k] + (1 - a[k]) * w if k in trained else w
        expected = sigmoid(np.column_stack([x, np.ones(30)]) @ mixed)
        np.testing.assert_allclose(result.predict(x, client=uneven.ids[k]), expected, rtol=1e-4, atol=1e-6)


# -- limits ------------------------------------------------------------------------------------------------------------


def assert_same_bits(a: ef.Result, b: ef.Result) -> None:
    for seed, parameters in a.parameters.items():
        for name, value in parameters.items():
            assert value.tobytes() == b.parameters[seed][name].tobytes()


@pytest.mark.parametrize("name", ["fedavg", "kffl", "fedminmax", "fedavg@adam"])
def test_ditto_leaves_the_common_model_as_it_is(name: str, uneven: Federation) -> None:
    plain = ef.simulate(methods.make(name), uneven, model=NETWORK, **BATCHES)
    assert_same_bits(plain, ef.simulate(methods.make(f"{name}+ditto"), uneven, model=NETWORK, **BATCHES))


def test_ditto_without_proximity_trains_alone(uneven: Federation) -> None:
    """But for a client without rows, which has theta, and those who took part in no round."""
    last = [list(rounds(simulation(method, uneven)))[-1] for method in (Ditto(proximity=0.0), LocalOnly())]
    (_, _, ditto), (_, _, local) = last
    who = np.flatnonzero((np.asarray(ditto.own["trained"]) > 0) & (uneven.train.sizes > 0))
    assert len(who) > 2
    np.testing.assert_array_equal(flat(ditto.own["v"])[who], flat(local.theta)[who])
    assert np.abs(flat(local.theta)[who]).max() > 0.05


def test_a_client_without_rows_has_the_common_model(uneven: Federation) -> None:
    (empty,) = np.flatnonzero(uneven.train.sizes == 0)
    before = np.zeros(5)
    for _, server, clients in rounds(simulation(Ditto(), uneven, sampled=uneven.num_clients)):
        np.testing.assert_array_equal(flat(clients.own["v"])[empty], before)  # as it came down
        before = flat(server.inner.theta)


@pytest.mark.parametrize("method", [FedPer(head_layers=0), FedRep(head_layers=0, body_epochs=2), APFL()], ids=repr)
def test_the_common_model_is_that_of_fedavg(method: methods.Method, uneven: Federation) -> None:
    """Without a head, and for APFL whatever the weight is."""
    plain, found = (ef.simulate(each, uneven, model=NETWORK, **BATCHES) for each in (methods.FedAvg(), method))
    for seed, parameters in plain.parameters.items():
        for name, value in parameters.items():
            np.testing.assert_allclose(found.parameters[seed][name], value, rtol=2e-6, atol=2e-6)
    assert method.personal == isinstance(method, APFL)


def test_apfl_with_no_weight_of_its_own_predicts_as_fedavg(uneven: Federation) -> None:
    fixed = APFL(mixing=0.0, adaptive=False)
    found, plain = (ef.simulate(each, uneven, model=LOGISTIC, **BATCHES) for each in (fixed, methods.FedAvg()))
    x = uneven.rows.x[:30]
    for who in uneven.ids:
        np.testing.assert_allclose(found.predict(x, client=who, run=3), plain.predict(x, run=3), rtol=1e-5)


# -- what leaves a client ----------------------------------------------------------------------------------------------


def test_nothing_of_a_clients_own_leaves_it(uneven: Federation) -> None:
    """By names and by bytes: four numbers and a bias, or a network's 4 x 3 + 3 of hidden and 3 + 1 of head."""
    sizes = {}
    for method in (methods.FedAvg(), Ditto(), APFL(), FedPer(), FedRep()):
        model = NETWORK if isinstance(method, FedPer) else LOGISTIC
        result = ef.simulate(method, uneven, model=model, rounds=1, seeds=[0])
        for each in result.messages.itertuples():
            sizes[method.name, each.stage, each.phase] = each.sizes_down, each.sizes_up
    both = {"theta": 20}, {"update": 20, "rows": 4}
    assert sizes == {
        ("fedavg", "round", "train"): both,
        ("ditto", "round", "train"): both,
        ("ditto", "round", "personal"): ({}, {}),
        ("ditto", "final", "personal"): ({"theta": 20}, {"clients": 4}),
        ("apfl", "round", "train"): both,
        ("fedper", "round", "train"): ({"body": 60}, {"update": 60, "rows": 4}),
        ("fedrep", "round", "head"): ({"body": 60}, {}),
        ("fedrep", "round", "train"): ({}, {"update": 60, "rows": 4}),
        ("fedrep", "final", "head"): ({"body": 60}, {}),
    }


# -- new clients -------------------------------------------------------------------------------------------------------

STEPS = 7


def new_rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(8)
    return rng.normal(size=(25, 4)).astype(np.float32), rng.integers(0, 2, 25)


def test_ditto_adapts_by_steps_from_theta(uneven: Federation) -> None:
    x, y = new_rows()
    result = ef.simulate(Ditto(proximity=0.5), uneven, model=LOGISTIC, **BATCHES)
    theta = v = flat(result.parameters[3])
    z = np.column_stack([x, np.ones(25)])
    for _ in range(STEPS):
        v = v - 0.2 * (slope(v, z, y) + 0.5 * (v - theta))
    new = result.adapt((x, y), steps=STEPS)
    np.testing.assert_allclose(flat({n: new.state[3][f"own.v.{n}"] for n in ("0.weight", "0.bias")}), v, rtol=1e-4)
    np.testing.assert_allclose(new.predict(x)[3], sigmoid(z @ v), rtol=1e-4)


@pytest.mark.parametrize("adaptive", [True, False])
def test_apfl_adapts_with_the_common_model_as_it_is(adaptive: bool, uneven: Federation) -> None:
    x, y = new_rows()
    result = ef.simulate(APFL(adaptive=adaptive), uneven, model=LOGISTIC, **BATCHES)
    w = v = flat(result.parameters[3])
    z, a = np.column_stack([x, np.ones(25)]), 0.5
    for _ in range(STEPS):
        there = slope(a * v + (1 - a) * w, z, y)
        v, a = v - 0.2 * a * there, np.clip(a - 0.2 * (v - w) @ there, 0, 1) if adaptive else a
    new = result.adapt((x, y), steps=STEPS)
    assert float(new.state[3]["a"]) == pytest.approx(float(a), rel=1e-5)
    np.testing.assert_allclose(new.predict(x)[3], sigmoid(z @ (a * v + (1 - a) * w)), rtol=1e-4)


@pytest.mark.parametrize("method", [FedPer(), FedRep()], ids=repr)
def test_a_new_client_trains_its_head(method: FedPer, uneven: Federation) -> None:
    x, y = new_rows()
    result = ef.simulate(method, uneven, model=NETWORK, **BATCHES)
    theta = {name: value.astype(float) for name, value in result.parameters[3].items()}
    for _ in range(STEPS):
        gradient = network(theta, x, y)
        theta |= {name: theta[name] - 0.2 * gradient[name] for name in ("2.weight", "2.bias")}
    hidden = np.tanh(x @ theta["0.weight"].T + theta["0.bias"])
    expected = sigmoid(hidden @ theta["2.weight"][0] + theta["2.bias"][0])
    np.testing.assert_allclose(result.adapt((x, y), steps=STEPS).predict(x)[3], expected, rtol=1e-4)
    alone = ef.simulate(dataclasses.replace(method, head_layers=0), uneven, model=NETWORK, **BATCHES)
    with pytest.raises(ConfigError, match="one model serves all clients"):
        alone.adapt((x, y))


@pytest.mark.parametrize("name", ["ditto", "kffl+ditto", "ditto@adam", "fedper", "fedrep", "apfl"])
def test_what_was_saved_predicts_and_adapts_alike(name: str, uneven: Federation, tmp_path: Path) -> None:
    live = ef.simulate(methods.make(name), uneven, model=NETWORK, **{**BATCHES, "rounds": 1})
    ef.save_result(tmp_path, live)
    loaded, (x, y) = ef.load_result(tmp_path), new_rows()
    assert loaded.final_states[3].method == methods.make(name)
    for who in uneven.ids[:2]:
        np.testing.assert_array_equal(loaded.predict(x, client=who, run=3), live.predict(x, client=who, run=3))
    new, expected = (result.adapt((x, y), steps=2).predict(x)[3] for result in (loaded, live))
    np.testing.assert_array_equal(new, expected)
    with pytest.raises(ConfigError, match="clients have models of their own: name one of them"):
        loaded.predict(x, run=3)


def test_a_model_without_heads_is_saved_as_one_for_all(uneven: Federation, tmp_path: Path) -> None:
    live = ef.simulate(FedPer(head_layers=0), uneven, model=NETWORK, **BATCHES)
    ef.save_result(tmp_path, live)
    x, _ = new_rows()
    np.testing.assert_array_equal(ef.load_result(tmp_path).predict(x, run=3), live.predict(x, run=3))


# -- settings ----------------------------------------------------------------------------------------------------------


def test_names_and_papers_of_ditto() -> None:
    assert methods.make("ditto") == methods.make("fedavg+ditto") == Ditto()
    assert (Ditto.name, Ditto.label_kinds, Ditto.needs_validation) == ("ditto", methods.FedAvg.label_kinds, False)
    around = methods.make("kffl+ditto", fairness_weight=3.0, proximity=0.2)
    assert (around.name, around.hyper["fairness_weight"], around.hyper["proximity"]) == ("kffl+ditto", 3.0, 0.2)
    assert "li2021ditto" in methods.citation(Ditto()).bibtex
    assert "mcmahan" not in methods.citation(Ditto()).bibtex.lower()
    assert all(part in methods.citation(around).bibtex for part in ("li2021ditto", "@"))
    assert len(methods.citations(around)) == 2


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("local", "already have personal models"),
        ("fedem", "already have personal models"),
        ("ditto", "already have personal models"),
        ("fedper", "already have personal models"),
        ("frl", "does not send its clients a model"),
        ("centralized-kernel", "trains in one place"),
        ("fedavg+fair", "put its suffix after Ditto's"),
    ],
)
def test_what_ditto_cannot_go_around(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        methods.make(f"{name}+ditto")


def test_impossible_settings(uneven: Federation) -> None:
    made = {"rounds": 1, "seeds": [0]}
    fast = ef.Local(learning_rate=0.5)
    with pytest.raises(ConfigError, match=r"proximity is 3.*times the learning rate, 0.5.*Set it to 2 or less"):
        ef.simulate(Ditto(proximity=3.0), uneven, model=LOGISTIC, local=fast, **made)
    ef.simulate(Ditto(proximity=2.0), uneven, model=LOGISTIC, local=fast, **made)
    for method in (FedPer(), FedRep()):
        with pytest.raises(ConfigError, match=r"head_layers is 1, and the model has 1 layer with parameters"):
            ef.simulate(method, uneven, model=LOGISTIC, **made)
    with pytest.raises(ConfigError, match="head_layers is 2, and the model has 2 layers"):
        ef.simulate(FedPer(head_layers=2), uneven, model=NETWORK, **made)
    values = Federation.from_arrays([(x, x[:, 0], s) for x, _, s in (client(uneven, 0),)], task="regression")
    fair = Ditto(personal_fairness="demographic_parity_difference")
    with pytest.raises(ConfigError, match="needs two classes"):
        ef.simulate(fair, values, model=ef.models.Linear(), **made)


def test_the_head_is_last_in_the_model_whatever_the_order_of_given_parameters(uneven: Federation) -> None:
    made: dict[str, Any] = {"model": NETWORK, **BATCHES, "seeds": [0]}
    job = simulation(FedPer(), uneven, NETWORK).job
    given = {name: value.numpy() for name, value in reversed(job.initial[0].items())}
    assert next(iter(given)).startswith("2.")
    assert_same_bits(*(ef.simulate(FedPer(), uneven, **made, initial_parameters=each) for each in (None, given)))


def test_fairer_models_of_their_own() -> None:
    """The more weight the gap has, the smaller it is, over all clients' predictions on common rows."""

    def rows(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
        s = rng.integers(0, 2, n)
        x = rng.normal(size=(n, 3)) + np.outer(s, [1.0, 0.0, 0.0])  # an input tells the group
        return x, (x[:, 0] + x[:, 1] > 0.5).astype(int), s

    rng = np.random.default_rng(2)
    fed = Federation.from_arrays([rows(rng, 80) for _ in range(4)], test=rows(rng, 400))
    fair = Ditto(personal_fairness="demographic_parity_difference")
    weights = {"personal_fairness_weight": [0.0, 1.0, 10.0]}
    swept = ef.simulate(fair, fed, over=weights, model=LOGISTIC, rounds=6, seeds=[0, 1], eval_every=6).final()
    gaps = swept.groupby("personal_fairness_weight")["demographic_parity_difference"].mean().tolist()
    assert gaps[0] - 0.03 > gaps[1] > gaps[2] + 0.03
    plain = ef.simulate(Ditto(), fed, model=LOGISTIC, rounds=6, seeds=[0, 1], eval_every=6).final()
    assert plain["demographic_parity_difference"].mean() == pytest.approx(gaps[0])


@pytest.mark.parametrize("engine", ["lanes", "reference"])
def test_what_is_trained_after_the_last_round_has_the_learning_rate_itself(engine: str, uneven: Federation) -> None:
    """A cosine has hardly any left in the last round."""
    options: dict[str, Any] = {
        "model": ef.models.MLP(hidden=(3,), activation="tanh"), "rounds": 20, "seeds": [0], "engine": engine,
        "local": ef.Local(epochs=1, batch_size=8, learning_rate=0.2, schedule="cosine"), "clients_per_round": 1,
    }  # fmt: skip
    runs = [ef.simulate(FedPer(final_epochs=epochs), uneven, **options).final_states[0] for epochs in (0, 3)]
    heads = [tree.leaves(run.clients.head) for run in runs]
    assert sum(float((a - b).abs().sum()) for a, b in zip(*heads, strict=True)) > 1
