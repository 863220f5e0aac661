"""Server optimisers around any method: hand checks, plain NumPy, and the plain step that changes nothing."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import equifed as ef
from equifed import methods, tree
from equifed.errors import ConfigError
from equifed.federation import Federation
from equifed.methods.server_optimizers import ServerOptimizer
from equifed.protocol import Data, Phase

from .plain import client, sigmoid

SETTINGS: dict[str, Any] = {
    "model": ef.models.MLP(hidden=(3,), activation="tanh"), "rounds": 4, "clients_per_round": 5, "dropout": 0.2,
    "local": ef.Local(epochs=2, batch_size=8, learning_rate=0.2), "seeds": [0, 3],
}  # fmt: skip


@pytest.mark.parametrize(
    ("suffix", "first"), [("@adagrad", 0.009900), ("@yogi", 0.090499), ("@adam", 0.090503), ("@momentum", 0.001)]
)
def test_the_first_step(suffix: str, first: float) -> None:
    """FRONTIER's hand check: D = 0.1, eta 0.1, tau 1e-3."""
    method = methods.make(f"fedavg{suffix}", server_learning_rate=0.1)
    theta = {"w": torch.zeros(1, dtype=torch.float64)}
    state = method.init(None, theta)  # type: ignore[arg-type]
    (phase,) = method.round
    replies = {"update": {"w": torch.full((1,), 0.4, dtype=torch.float64)}, "rows": torch.tensor(4.0)}
    after = phase.server(state, replies, None)
    assert float(after.inner.theta["w"]) == pytest.approx(first, abs=5e-7)


@pytest.mark.parametrize("name", ["adagrad", "adam", "yogi", "momentum"])
def test_rounds_in_plain_numpy(name: str, uneven: Federation) -> None:
    """Full-batch steps of a logistic regression: FedAvg's way is the gradient over all rows."""
    eta, b1, b2, tau, rate = 0.3, 0.7, 0.9, 0.01, 0.5
    values: dict[str, float] = {"server_learning_rate": eta, "beta1": b1}
    values |= {} if name == "momentum" else {"tau": tau}
    values |= {"beta2": b2} if name in ("adam", "yogi") else {}
    ran = ef.simulate(
        methods.make(f"fedavg@{name}", **values), uneven, model=ef.models.Logistic(), rounds=3, seeds=[0],
        local=ef.Local(epochs=1, batch_size=None, learning_rate=rate),
    )  # fmt: skip
    rows = [client(uneven, k) for k in range(uneven.num_clients)]
    x, y = np.concatenate([each[0] for each in rows]), np.concatenate([each[1] for each in rows])
    x = np.column_stack([x, np.ones(len(x))])
    theta = m = np.zeros(x.shape[1])
    v = theta + tau**2
    for _ in range(3):
        D = -rate * x.T @ (sigmoid(x @ theta) - y) / len(y)
        m = b1 * m + (1 - b1) * D
        if name == "adagrad":
            v = v + D**2
        elif name == "adam":
            v = b2 * v + (1 - b2) * D**2
        elif name == "yogi":
            v = v - (1 - b2) * D**2 * np.sign(v - D**2)
        theta = theta + eta * m / (1 if name == "momentum" else np.sqrt(v) + tau)
    weight, bias = ran.parameters[0].values()
    np.testing.assert_allclose(np.r_[weight[0], bias], theta, rtol=1e-4, atol=1e-6)


OPTIMISABLE = [name for name in methods.REGISTRY if any(phase.updates for phase in methods.make(name).round)]


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in ("fedavg", "kffl", "fedem", "fcfl") else pytest.mark.full) for n in OPTIMISABLE],
)
def test_a_plain_step_is_the_method_itself_bit_by_bit(name: str, uneven: Federation) -> None:
    plain = ef.simulate(methods.make(name), uneven, **SETTINGS)
    wrapped = ef.simulate(methods.make(f"{name}@momentum", beta1=0.0), uneven, **SETTINGS)
    for seed, parameters in plain.parameters.items():
        for key, value in parameters.items():
            assert value.tobytes() == wrapped.parameters[seed][key].tobytes()
    assert plain.metrics["value"].to_numpy().tobytes() == wrapped.metrics["value"].to_numpy().tobytes()


def test_what_follows_the_step_sees_the_model_where_it_ends_up(uneven: Federation) -> None:
    """A method that measures its model after training it."""

    class State(NamedTuple):
        theta: Any
        seen: Any

    @dataclass(frozen=True)
    class Looks(methods.FedAvg):
        @property
        def round(self) -> tuple[Phase, ...]:
            def look(down: Any, state: Any, data: Data) -> Any:
                size = torch.stack([leaf.abs().sum() for leaf in tree.leaves(down["theta"])]).sum()
                return {"seen": size, "clients": torch.ones(())}, state

            def keep(server: Any, replies: Any, validation: Any) -> Any:
                return server._replace(seen=replies["seen"] / replies["clients"])

            return (*super().round, Phase("look", ("theta",), ("seen", "clients"), look, keep, "sum"))

        def init(self, task: Any, parameters: Any) -> State:
            return State(parameters, torch.zeros(()))

        def observe(self, server: State) -> dict[str, torch.Tensor]:
            return {"seen": server.seen}

    settings = {**SETTINGS, "dropout": 0.0, "seeds": [0]}
    ran = ef.simulate(methods.Momentum(Looks(), server_learning_rate=3.0, beta1=0.0), uneven, **settings)
    size = sum(np.abs(value).sum() for value in ran.parameters[0].values())
    assert float(ran.log["seen"].iloc[-1]) == pytest.approx(float(size), rel=1e-5)


def test_it_composes(uneven: Federation) -> None:
    method = methods.make("kffl@adam+fair", gap=0.1, beta2=0.5, fairness_weight=3.0)
    assert method.name == "kffl@adam+fair"
    assert method.hyper["beta2"] == 0.5
    assert method.knob is methods.make("kffl+fair").knob
    ran = ef.simulate(method, uneven, **SETTINGS)
    other = ef.simulate(methods.make("kffl+fair@adam", **method.hyper), uneven, **SETTINGS)
    for seed, parameters in ran.parameters.items():
        for key, value in parameters.items():
            assert value.tobytes() == other.parameters[seed][key].tobytes()
    assert "Adaptive Federated Optimization" in methods.citation(method).plain
    assert "reddi2021adaptive" in methods.citation(method).bibtex


def test_settings_share_a_call(uneven: Federation) -> None:
    over = {"server_learning_rate": [0.03, 0.3]}
    swept = ef.simulate(methods.make("fedavg@adam"), uneven, over=over, **SETTINGS)
    for value in over["server_learning_rate"]:
        alone = ef.simulate(methods.make("fedavg@adam", server_learning_rate=value), uneven, **SETTINGS)
        for seed, parameters in alone.parameters.items():
            for key, number in parameters.items():
                np.testing.assert_allclose(number, swept.parameters[value, seed][key], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", ["local", "frl", "e2fl", "separate-training"])
def test_no_updates_no_optimiser(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}@adam: a server optimiser uses the clients' updates"):
        methods.make(f"{name}@adam")


def test_names_of_wrappers() -> None:
    with pytest.raises(ConfigError, match="already has a server optimiser"):
        methods.make("fedavg@adam@yogi")
    with pytest.raises(ConfigError, match=r"Unknown wrapper '@adan'.*@adam"):
        methods.make("fedavg@adan")
    with pytest.raises(ConfigError, match="Unknown method 'fedavgg'"):
        methods.make("fedavgg@adam")
    assert all(issubclass(kind, ServerOptimizer) for suffix, kind in methods.WRAPPERS.items() if suffix[0] == "@")


@pytest.mark.parametrize("name", ["fedavg@momentum", "fedavg@adam", "kffl@yogi"])
def test_a_round_in_which_nobody_has_rows_changes_nothing(name: str) -> None:
    rng = np.random.default_rng(0)
    x, y, s = rng.normal(size=(40, 2)), rng.integers(0, 2, 40), rng.integers(0, 2, 40)
    fed = ef.Federation.from_arrays([(x, y, s), (x[:0], y[:0], s[:0])], test=(x, y, s))
    options: dict[str, Any] = {"model": ef.models.Logistic(), "clients_per_round": 1, "seeds": [0]}
    after = [ef.simulate(methods.make(name), fed, rounds=rounds, **options).parameters[0] for rounds in range(1, 9)]
    stood = [all(np.array_equal(a[key], b[key]) for key in a) for a, b in itertools.pairwise(after)]
    assert any(stood)  # the rounds of the second client
    assert not all(stood)
