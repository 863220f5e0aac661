"""Plain numpy that the methods' tests compute their expectations with."""

from __future__ import annotations

from typing import Any

import numpy as np

import equifed as ef
from equifed.federation import Federation
from equifed.settings import RunSettings
from equifed.simulator import make_job

LOGISTIC = {"0.weight": np.array([[0.3, -0.2, 0.1]], np.float32), "0.bias": np.array([0.05], np.float32)}
"""A logistic regression of three inputs to begin with."""


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def client(fed: Federation, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = fed.train[k]
    return fed.rows.x[rows].astype(float), fed.rows.y[rows], fed.rows.s[rows]


def logit(theta: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Of logistic regression, whose last parameter is the bias."""
    return x @ theta[:-1] + theta[-1]


def log_loss(theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of each row."""
    z = logit(theta, x)
    return np.logaddexp(0, z) - y * z


def trained(
    theta: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray | float = 1.0,
    slope: np.ndarray | float = 0.0,
    *,
    rate: float,
    steps: int,
) -> np.ndarray:
    """Logistic regression after full-batch steps down (1/n) sum_i [ weight_i loss_i + slope_i p_i ]."""
    for _ in range(steps if len(y) else 0):
        p = sigmoid(logit(theta, x))
        d = weight * (p - y) + slope * p * (1 - p)
        theta = theta - rate * np.append(x.T @ d, d.sum()) / len(y)
    return theta


def averaged(theta: np.ndarray, models: list[np.ndarray], weights: list[float]) -> np.ndarray:
    """theta moved by the weighted mean of the models' updates."""
    total = sum(weight * (model - theta) for model, weight in zip(models, weights, strict=True))
    moved: np.ndarray = theta + total / sum(weights)
    return moved


def parameters(model: dict[str, np.ndarray]) -> np.ndarray:
    """Of a logistic regression, the bias last."""
    return np.append(model["0.weight"].ravel(), model["0.bias"]).astype(float)


def cohorts(fed: Federation, method: ef.methods.Method, **options: Any) -> list[np.ndarray]:
    """The clients that take part in each round of a simulation with these options."""
    made = {name: value for name, value in options.items() if name != "model"}
    job = make_job(method, fed, options["model"], RunSettings(**made))
    return [job.cohorts(number)[0] for number in range(1, job.rounds + 1)]
