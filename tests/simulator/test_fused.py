"""The fused kernels against plain NumPy in double precision, and the path's place in the simulator."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equifed as ef
from equifed import shuffle
from equifed.errors import ConfigError
from equifed.federation import Federation
from equifed.methods import FedAvg
from equifed.notes import Note
from equifed.settings import Local
from equifed.simulator import threads
from equifed.simulator.fused import cpu
from equifed.simulator.fused.problem import Network, Problem, network_of

TANH, RELU, SIGMOID = 1, 2, 3
ACTIVATE = {TANH: np.tanh, RELU: lambda z: np.maximum(z, 0), SIGMOID: lambda z: 1 / (1 + np.exp(-z))}
SLOPE = {TANH: lambda a: 1 - a * a, RELU: lambda a: (a > 0) * 1.0, SIGMOID: lambda a: a * (1 - a)}


def make(
    widths: tuple[int, ...], activations: tuple[int, ...] = (), loss: str = "logistic", bias: Any = True
) -> Network:
    biases = (bias,) * (len(widths) - 1) if isinstance(bias, bool) else bias
    return Network(widths, activations, biases, (), loss)  # type: ignore[arg-type]


def problem(
    network: Network, local: Local, sizes: list[int], models: int, rng: np.random.Generator, **more: Any
) -> Problem:
    total, outputs = sum(sizes) + 7, network.widths[-1]
    y = rng.normal(size=total) if network.loss == "squared" else rng.integers(0, max(outputs, 2), total)
    lanes = len(sizes)
    flags = {name: more.pop(name, False) for name in ("weights", "proximal", "linear", "chosen", "scaling")}

    def numbers(*shape: int, low: float = -0.3, high: float = 0.3) -> torch.Tensor:
        return torch.from_numpy(rng.uniform(low, high, shape).astype(np.float32))

    chosen = np.zeros((lanes, max(sizes)), np.int32)
    for line, n in zip(chosen, sizes, strict=True):
        line[:n] = rng.integers(0, max(n, 1), n)
    return Problem(
        network=network,
        local=local,
        x=cpu.features(torch.from_numpy(rng.normal(size=(total, network.widths[0])).astype(np.float32))),
        y=torch.from_numpy(y.astype(np.float32)),
        index=torch.from_numpy(rng.permutation(total).astype(np.int32)),
        start=torch.from_numpy(np.cumsum([0, *sizes[:-1]])),
        n=torch.tensor(sizes),
        keys=torch.from_numpy(rng.integers(-(2**63), 2**63 - 1, lanes)),
        rate=0.05,
        scaling=(numbers(lanes, network.widths[0]), numbers(lanes, network.widths[0], low=0.5, high=2.0))
        if flags["scaling"]
        else (),
        weights=numbers(lanes, models, max(sizes), low=0.0, high=3.0) if flags["weights"] else None,
        mu=numbers(lanes, models, low=0.1, high=2.0) if flags["proximal"] else None,
        centre=numbers(lanes, models, network.size) if flags["proximal"] else None,
        linear=numbers(lanes, models, network.size) if flags["linear"] else None,
        chosen=torch.from_numpy(chosen) if flags["chosen"] else None,
        **more,
    )


def gradient(network: Network, theta: np.ndarray, x: np.ndarray, y: np.ndarray, scale: np.ndarray) -> np.ndarray:
    layers, at, activations = [], 0, [x]
    for inputs, outputs, bias in zip(network.widths, network.widths[1:], network.biases, strict=False):
        weight = theta[at : at + inputs * outputs].reshape(outputs, inputs)
        at += weight.size
        layers.append((weight, theta[at : at + outputs] if bias else np.zeros(outputs)))
        at += outputs if bias else 0
    for number, (weight, bias) in enumerate(layers):
        z = activations[-1] @ weight.T + bias
        activations.append(z if number == len(layers) - 1 else ACTIVATE[network.activations[number]](z))
    z = activations[-1]
    if network.loss == "logistic":
        slope = 1 / (1 + np.exp(-z)) - y[:, None]
    elif network.loss == "squared":
        slope = 2 * (z - y[:, None])
    else:
        e = np.exp(z - z.max(1, keepdims=True))
        slope = e / e.sum(1, keepdims=True) - np.eye(z.shape[1])[y.astype(int)]
    slope = slope * scale[:, None]
    parts = []
    for number in range(len(layers) - 1, -1, -1):
        own = [(slope.T @ activations[number]).ravel(), *([slope.sum(0)] if network.biases[number] else [])]
        parts = own + parts
        if number:
            slope = slope @ layers[number][0] * SLOPE[network.activations[number - 1]](activations[number])
    return np.concatenate(parts)


def expected(p: Problem, theta: np.ndarray, epochs: range) -> np.ndarray:
    """All lanes and models, step by step, in double precision."""
    done, local, inputs = theta.astype(float), p.local, p.network.widths[0]
    for lane in range(len(done)):
        n, start = int(p.n[lane]), int(p.start[lane])
        for model in range(done.shape[1]):
            w = done[lane, model]
            u, m, v, t = np.zeros(len(w)), np.zeros(len(w)), np.zeros(len(w)), 0
            for epoch in epochs:
                order = np.arange(n)
                if local.batch_size:
                    key = shuffle.folded(p.keys[lane : lane + 1].numpy().view(np.uint64), epoch)
                    order = shuffle.order(int(key[0]), n)
                size = local.batch_size or max(n, 1)
                for begin in range(0, n, size):
                    own = order[begin : begin + size]
                    own = own if p.chosen is None else p.chosen[lane].numpy()[own]
                    rows = p.index.numpy()[start + own]
                    x = p.x.numpy()[rows, :inputs].astype(float)
                    if p.scaling:
                        x = (x - p.scaling[0][lane].numpy()) * p.scaling[1][lane].numpy()
                    scale = (
                        np.ones(len(own)) if p.weights is None else p.weights[lane, model].numpy()[own].astype(float)
                    )
                    g = gradient(p.network, w, x, p.y.numpy()[rows].astype(float), scale / len(own))
                    if p.mu is not None and p.centre is not None:
                        g += float(p.mu[lane, model]) * (w - p.centre[lane, model].numpy())
                    if p.linear is not None:
                        g += p.linear[lane, model].numpy()
                    g += local.weight_decay * w
                    if local.optimizer == "adam":
                        t += 1
                        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
                        w -= p.rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
                    else:
                        u = local.momentum * u + g
                        w -= p.rate * u
    return done


def trained(p: Problem, theta: np.ndarray, *parts: range) -> np.ndarray:
    moments = 2 if p.local.optimizer == "adam" else int(p.local.momentum > 0)
    values = torch.from_numpy(theta.copy())
    state = torch.zeros(*theta.shape[:2], moments, theta.shape[2])
    taken = torch.zeros(len(theta), dtype=torch.int64)
    for epochs in parts:
        cpu.train(p, values, state, taken, epochs)
    return values.numpy()


BATCHES = Local(epochs=2, batch_size=8)
CASES: dict[str, tuple[Network, Local, dict[str, Any]]] = {
    "logistic": (make((50, 1)), BATCHES, {}),
    "linear without bias": (make((5, 1), loss="squared", bias=False), BATCHES, {"weights": True}),
    "softmax": (make((20, 3), loss="softmax"), BATCHES, {}),
    "softmax, many classes": (make((17, 11), loss="softmax"), Local(batch_size=100), {"weights": True}),
    "two outputs for two classes": (make((6, 2), loss="softmax"), BATCHES, {}),
    "mlp tanh": (make((14, 10, 1), (TANH,)), Local(epochs=2, batch_size=10), {}),
    "mlp sigmoid, narrow": (make((3, 2, 4, 1), (SIGMOID, SIGMOID)), BATCHES, {"proximal": True}),
    "mlp mixed": (make((33, 20, 5, 9, 4), (RELU, TANH, SIGMOID), "softmax", (True, False, True, False)), BATCHES, {}),
    "regression mlp": (make((7, 16, 1), (RELU,), "squared"), BATCHES, {"linear": True, "scaling": True}),
    "full batch": (make((14, 10, 1), (TANH,)), Local(epochs=3, batch_size=None), {"weights": True}),
    "large batch": (make((9, 1)), Local(epochs=2, batch_size=150), {"scaling": True}),
    "momentum, decay": (make((8, 6, 1), (TANH,)), Local(batch_size=8, momentum=0.9, weight_decay=0.1), {}),
    "adam": (make((8, 6, 1), (TANH,)), Local(batch_size=8, optimizer="adam", weight_decay=0.05), {}),
    "everything": (
        make((8, 12, 3), (RELU,), "softmax"),
        Local(batch_size=8, momentum=0.5),
        {"weights": True, "proximal": True, "linear": True, "chosen": True, "scaling": True},
    ),
}


@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_kernels_equal_plain_numpy(case: str, models: int) -> None:
    network, local, flags = CASES[case]
    rng = np.random.default_rng(len(case))
    p = problem(network, local, [163, 40, 8, 1, 0], models, rng, **flags)
    theta = rng.uniform(-0.5, 0.5, (5, models, network.size)).astype(np.float32)
    epochs = range(local.epochs)
    done = trained(p, theta, epochs)
    np.testing.assert_allclose(done, expected(p, theta, epochs), rtol=2e-5, atol=5e-6)
    assert (done[-1] == theta[-1]).all()  # no rows, no steps
    assert not np.allclose(done[:-1], theta[:-1])
    # epoch by epoch, as for methods that choose their rows anew: the same bits
    assert trained(p, theta, *(range(e, e + 1) for e in epochs)).tobytes() == done.tobytes()
    # more threads: the same bits
    assert trained(dataclasses.replace(p, threads=3), theta, epochs).tobytes() == done.tobytes()


def test_functions_of_one_number_keep_their_digits() -> None:
    """A model with the identity inside shows them: one step from zero has the activation's value as its gradient."""
    x = np.concatenate([np.linspace(-95, 95, 1501), np.geomspace(1e-6, 1, 200), -np.geomspace(1e-6, 1, 200)])
    x = x.astype(np.float32)
    n = len(x)
    for number, true in ((TANH, np.tanh(x.astype(float))), (SIGMOID, 1 / (1 + np.exp(-x.astype(float))))):
        network = make((1, 1, 1), (number,), "squared", False)
        p = Problem(
            *(
                network,
                Local(epochs=1, batch_size=1),
                cpu.features(torch.from_numpy(x)[:, None]),
                torch.full((n,), -0.5),
            ),
            *(torch.arange(n, dtype=torch.int32), torch.arange(n), torch.ones(n, dtype=torch.int64)),
            *(torch.zeros(n, dtype=torch.int64), 1.0),
        )
        theta = np.tile(np.array([1, 0], np.float32), (n, 1, 1))
        # squared error at output 0 and label -0.5 has slope 1: theta_2 <- 0 - activation
        np.testing.assert_allclose(-trained(p, theta, range(1))[:, 0, 1], true, rtol=4e-7, atol=1e-37)


def test_a_diverged_model_shows(uneven: Federation) -> None:
    network = make((4, 1), loss="squared")
    p = problem(network, Local(epochs=60, batch_size=2), [60], 1, np.random.default_rng(0))
    p = dataclasses.replace(p, rate=1e3)
    theta = np.ones((1, 1, network.size), np.float32)
    assert not np.isfinite(trained(p, theta, range(60))).all()
    result = ef.simulate(
        FedAvg(), uneven, model=nn.Linear(4, 1), rounds=2, local=Local(learning_rate=1e38, batch_size=4), kernel="fused"
    )
    assert "NaN or Inf in its reply" in set(result.rejections["reason"])


def test_threads_are_those_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads.usable_cores() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    assert threads.usable_cores() == 4
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 5}, raising=False)
    assert threads.usable_cores() == 2


def test_threads_do_every_piece_once_and_tell_errors() -> None:
    done: list[int] = []
    threads.share_out(done.append, 50, 4)
    assert sorted(done) == list(range(50))

    def fails(piece: int) -> None:
        if piece == 3:
            raise ValueError("piece three")

    with pytest.raises(ValueError, match="piece three"):
        threads.share_out(fails, 5, 2)
    threads.share_out(done.append, 0, 2)


NETWORKS: list[tuple[nn.Module, tuple[int, ...] | None]] = [
    (nn.Linear(4, 1), (4, 1)),
    (nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2, bias=False)), (4, 3, 2)),
    (nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 1)), None),
    (nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1)), None),
    (nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.ReLU(), nn.Linear(3, 1)), None),
    (nn.Sequential(nn.Linear(4, 3), nn.ReLU()), None),
]


@pytest.mark.parametrize(("module", "widths"), NETWORKS)
def test_networks_are_recognised(module: nn.Module, widths: tuple[int, ...] | None, uneven: Federation) -> None:
    from equifed.simulator import make_job

    job = make_job(FedAvg(), uneven, ef.models.Logistic(), ef.RunSettings(seeds=1))
    found = network_of(dataclasses.replace(job.task, module=module))
    assert (found and found.widths) == widths
    hooked = nn.Sequential(nn.Linear(4, 1))
    hooked[0].register_forward_hook(lambda module, inputs, output: output * 2)
    assert network_of(dataclasses.replace(job.task, module=hooked)) is None
    twice = nn.Linear(4, 4)
    again = nn.Sequential(twice, nn.ReLU(), twice, nn.ReLU(), nn.Linear(4, 1))
    assert network_of(dataclasses.replace(job.task, module=again)) is None


class Squashed(nn.Linear):
    """Is a linear layer by its class, and something else by what it does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) ** 3


def test_a_layer_of_one_s_own_is_not_taken_for_a_linear_one(uneven: Federation) -> None:
    with pytest.raises(ConfigError, match="not a linear one or a fully connected network"):
        ef.simulate(FedAvg(), uneven, model=lambda: nn.Sequential(Squashed(4, 1)), rounds=1, kernel="fused")


def test_which_kernel_ran_is_told(uneven: Federation) -> None:
    result = ef.simulate(FedAvg(), uneven, model=ef.models.Logistic(), rounds=1)
    assert result.notes == [Note("kernel", {"phase": "train", "kernel": "fused"})]
    gelu = ef.simulate(FedAvg(), uneven, model=ef.models.MLP(activation="gelu"), rounds=1)
    assert gelu.notes == [Note("kernel", {"phase": "train", "kernel": "traced", "obstacle": "model"})]
    assert "not a linear one or a fully connected network" in str(gelu.notes[0])
    own = ef.simulate(ef.methods.LocalKernel(), uneven, model=ef.models.Logistic(), rounds=1)
    assert own.notes[-1].fields["obstacle"] == "loss"
    with pytest.raises(ConfigError, match="kernel cannot be 'fused' for local-kernel, phase 'train': its loss"):
        ef.simulate(ef.methods.LocalKernel(), uneven, model=ef.models.Logistic(), rounds=1, kernel="fused")
