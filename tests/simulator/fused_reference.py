"""What the fused kernels must compute, in plain NumPy and double precision, and cases to compare them on.

Also benchmarks/gpu.py uses it, where there is a GPU and nothing of the test suite's tools: import neither here.
"""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import numpy as np
import torch

from equifed import shuffle
from equifed.settings import Local
from equifed.simulator.fused.problem import Network, Problem

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
        x=torch.from_numpy(rng.normal(size=(total, network.widths[0])).astype(np.float32)),
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
    done, local = theta.astype(float), p.local
    for lane in range(len(done)):
        n, start = int(p.n[lane]), int(p.start[lane])
        for model in range(done.shape[1]):
            w = done[lane, model]
            u, m, v, t = np.zeros(len(w)), np.zeros(len(w)), np.zeros(len(w)), 0
            for epoch in epochs:
                order = np.arange(n)
                if local.batch_size:
                    key = shuffle.fold(p.keys[lane : lane + 1].numpy().view(np.uint64), epoch)
                    order = shuffle.order(int(key[0]), n)
                size = local.batch_size or max(n, 1)
                for begin in range(0, n, size):
                    own = order[begin : begin + size]
                    own = own if p.chosen is None else p.chosen[lane].numpy()[own]
                    rows = p.index.numpy()[start + own]
                    x = p.x.numpy()[rows].astype(float)
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


def trained(kernels: ModuleType, p: Problem, theta: np.ndarray, *parts: range, device: str = "cpu") -> np.ndarray:
    """What `cpu` or `cuda` computes, in one or several calls."""

    def put(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(put, value))
        return value.to(device) if isinstance(value, torch.Tensor) else value

    p = dataclasses.replace(p, x=kernels.features(p.x))
    p = Problem(**{field.name: put(getattr(p, field.name)) for field in dataclasses.fields(p)})
    moments = 2 if p.local.optimizer == "adam" else int(p.local.momentum > 0)
    values = put(torch.from_numpy(theta.copy()))
    state = values.new_zeros(*theta.shape[:2], moments, theta.shape[2])
    taken = torch.zeros(len(theta), dtype=torch.int64, device=device)
    for epochs in parts:
        kernels.train(p, values, state, taken, epochs)
    return values.cpu().numpy()


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
    "scaled rows, padded": (make((14, 3), loss="softmax"), BATCHES, {"scaling": True}),
    "full batch": (make((14, 10, 1), (TANH,)), Local(epochs=3, batch_size=None), {"weights": True}),
    "large batch": (make((9, 1)), Local(epochs=2, batch_size=150), {"scaling": True}),
    "momentum, decay": (make((8, 6, 1), (TANH,)), Local(batch_size=8, momentum=0.9, weight_decay=0.1), {}),
    "adam": (make((8, 6, 1), (TANH,)), Local(batch_size=8, optimizer="adam", weight_decay=0.05), {}),
    "everything": (
        make((8, 12, 3), (RELU,), "softmax"),
        Local(batch_size=8, momentum=0.5),
        {"weights": True, "proximal": True, "linear": True, "chosen": True, "scaling": True},
    ),
    "wide": (make((9, 70, 5, 1), (RELU, TANH)), BATCHES, {"weights": True, "scaling": True, "chosen": True}),
    "wide softmax": (
        make((40, 66, 37, 30), (TANH, SIGMOID), "softmax", (False, True, False)),
        Local(batch_size=8, optimizer="adam"),
        {"proximal": True, "linear": True},
    ),
    "wide, full batch": (make((70, 33, 1), (SIGMOID,)), Local(batch_size=None, momentum=0.9), {"weights": True}),
    "wide input": (make((700, 4), loss="softmax"), Local(batch_size=20, weight_decay=0.1), {"scaling": True}),
}
