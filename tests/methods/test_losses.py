"""The loss that methods declare by its parts, against the closed-form gradient of logistic regression in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.func import grad, vmap

import equifed as ef
from equifed.protocol import Data, EmpiricalRisk, LocalTraining, Method, Task

TASK = Task(
    torch.nn.Linear(3, 1, bias=False), "classification", num_classes=2, num_groups=2, num_clients=1, rounds=1,
    local=ef.Local(), binary=True,
)  # fmt: skip
RNG = np.random.default_rng(5)
X, Y, MASK = RNG.normal(size=(12, 3)), RNG.integers(0, 2, 12), (np.arange(12) < 9).astype(float)
W, THETA, CENTRE, LINEAR = RNG.uniform(size=(12, 2)), *RNG.normal(size=(3, 2, 3))
MU = 0.7
TERMS = [
    EmpiricalRisk(),
    EmpiricalRisk(weights="w"),
    EmpiricalRisk(mu=MU),
    EmpiricalRisk(linear="slope"),
    EmpiricalRisk(weights="w", mu=MU, centre="anchor", linear="slope"),
]


def batch(weights: np.ndarray) -> Data:
    x = torch.from_numpy(np.where(MASK[:, None] > 0, X, 99.0))  # padding holds other rows
    values = torch.from_numpy(weights)
    return Data(x, torch.from_numpy(Y), torch.zeros(12).long(), torch.from_numpy(MASK), TASK, per_row={"w": values})


def context(models: Any) -> Any:
    tensors = [{"weight": torch.from_numpy(values[models]).reshape(-1, 1, 3)} for values in (CENTRE, LINEAR)]
    if isinstance(models, int):
        tensors = [{"weight": each["weight"][0]} for each in tensors]
    return {"centre": tensors[0], "anchor": tensors[0], "slope": tensors[1]}


def expected(loss: EmpiricalRisk, model: int) -> tuple[float, np.ndarray]:
    """The value and its gradient, by the formulas of logistic regression."""
    theta, n = THETA[model], MASK.sum()
    w = MASK * (W[:, model] if loss.weights else 1)
    z = X @ theta
    p = 1 / (1 + np.exp(-z))
    value = (w * -np.log(np.where(Y == 1, p, 1 - p))).sum() / n
    gradient = X.T @ (w * (p - Y)) / n
    if loss.mu is not None:
        value += MU / 2 * ((theta - CENTRE[model]) ** 2).sum()
        gradient += MU * (theta - CENTRE[model])
    if loss.linear is not None:
        value += LINEAR[model] @ theta
        gradient += LINEAR[model]
    return value, gradient


@pytest.mark.parametrize("loss", TERMS)
def test_value_and_gradient_are_those_of_the_formula(loss: EmpiricalRisk) -> None:
    theta, rows, given = torch.from_numpy(THETA[:1]), batch(W[:, 0]), context(0)
    value, gradient = expected(loss, 0)
    assert float(loss({"weight": theta}, given, rows)) == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(grad(loss)({"weight": theta}, given, rows)["weight"][0], gradient, rtol=1e-12)
    for i in range(3):  # and that of the value itself, by differences
        step = torch.zeros(1, 3, dtype=torch.float64)
        step[0, i] = 1e-6
        ends = [float(loss({"weight": theta + sign * step}, given, rows)) for sign in (1, -1)]
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(gradient[i], abs=1e-8)


@pytest.mark.parametrize("loss", TERMS)
def test_several_models_have_each_the_gradient_of_its_own(loss: EmpiricalRisk) -> None:
    several = EmpiricalRisk(loss.weights, loss.mu, loss.centre, loss.linear, models=True)
    theta, given = {"weight": torch.from_numpy(THETA).reshape(2, 1, 3)}, context(slice(None))
    (a, da), (b, db) = (expected(loss, model) for model in (0, 1))
    assert float(several(theta, given, batch(W))) == pytest.approx(a + b, rel=1e-12)
    gradient = grad(several)(theta, given, batch(W))["weight"]
    np.testing.assert_allclose(gradient.reshape(2, 3), [da, db], rtol=1e-12)


def test_a_sweep_over_mu_is_one_call() -> None:
    theta, rows, given = {"weight": torch.from_numpy(THETA[:1])}, batch(W[:, 0]), context(0)
    values = torch.tensor([0.0, MU], dtype=torch.float64)
    swept = vmap(lambda mu: grad(EmpiricalRisk(mu=mu))(theta, given, rows)["weight"][0])(values)
    np.testing.assert_allclose(swept[0], expected(EmpiricalRisk(), 0)[1], rtol=1e-12)
    np.testing.assert_allclose(swept[1], expected(EmpiricalRisk(mu=MU), 0)[1], rtol=1e-12)


# -- which methods declare it ------------------------------------------------------------------------------------------

MEAN, WEIGHTED = EmpiricalRisk(), EmpiricalRisk(weights="weight")
DECLARED = {
    "fedavg": MEAN,
    "fedprox": EmpiricalRisk(mu=0.01),
    "local": MEAN,
    "fedmom": MEAN,
    "feddemon": MEAN,
    "fedavg-lr": WEIGHTED,
    "fedavg-gr": WEIGHTED,
    "fedval": MEAN,
    "fair-fate": MEAN,
    "fairfed": MEAN,
    "kffl": EmpiricalRisk(mu=0.1),
    "kffl-td": EmpiricalRisk(mu=0.1),
    "fedminmax": WEIGHTED,
    "fedem": EmpiricalRisk(weights="q", models=True),
    "ifca": MEAN,
    "q-ffl": MEAN,
    "fedfb": WEIGHTED,
    "fed-fairgrad": WEIGHTED,
    "afl": MEAN,
    "term": MEAN,
    "gifair": MEAN,
    "fedmgda+": MEAN,
    "scaffold": EmpiricalRisk(linear="correction"),
    "fednova": EmpiricalRisk(mu=0.0),
    "feddyn": EmpiricalRisk(mu=0.1, linear="slope"),
    "fedper": MEAN,
}
FREE = {
    "local-kernel": "adds the dependence within the batch",
    "centralized-kernel": "adds the dependence within the batch",
    "sffl": "adds the gap between groups of the batch",
    "fedfact": "has a cost for every decision of a row, and two models",
    "frl": "trains scores through a mask",
    "fedgft": "adds probabilities by weights of both signs",
    "e2fl": "trains scores through a mask",
    "propfair": "takes the logarithm of a batch's utility",
    "cvar": "looks at the part of a loss above a threshold",
    "fedrep": "trains a part of the model",
    "apfl": "adds the loss of a mixture",
}
SEVERAL = {"ditto": [MEAN, EmpiricalRisk(mu=1.0), EmpiricalRisk(mu=1.0)]}
"""Those that train more than once, each time with a declared loss."""
WITHOUT = {
    "fedfair": "one full gradient per round",
    "lco": "one full gradient per round",
    "separate-training": "one full gradient per round",
    "agnostic-fair": "one full gradient per exchange",
    "fcfl": "one full gradient per round",
}


def losses(method: Method) -> list[Any]:
    phases = (*method.setup, *method.round, *method.final)
    return [phase.client.loss for phase in phases if isinstance(phase.client, LocalTraining)]


def test_which_methods_declare_the_loss_and_which_do_not() -> None:
    assert sorted([*DECLARED, *SEVERAL, *FREE, *WITHOUT]) == sorted(ef.methods.REGISTRY)
    for name, loss in DECLARED.items():
        assert losses(ef.methods.make(name)) == [loss], name
    for name in FREE:
        made = losses(ef.methods.make(name))
        assert made, name
        assert not any(isinstance(loss, EmpiricalRisk) for loss in made), name
    for name, declared in SEVERAL.items():
        assert losses(ef.methods.make(name)) == declared, name
    for name in WITHOUT:
        assert losses(ef.methods.make(name)) == [], name
    assert losses(ef.methods.FairFed(debias="reweighing")) == [WEIGHTED]
    assert losses(ef.methods.FairFed(debias="fairbatch")) == [MEAN]
    assert losses(ef.methods.make("fedprox+eo", mu=0.5)) == [EmpiricalRisk(mu=0.5)]


@pytest.mark.parametrize("alpha", [0.0123, 0.03, 0.7, 3.3, 10.0])
def test_the_proximal_term_of_kffl_is_the_papers_to_the_bit(alpha: float) -> None:
    """||theta - theta_half||^2 / (2 alpha) in 32 bits, for any alpha: its slope with nothing else in the loss."""
    (loss,) = losses(ef.methods.KFFL(step_size=alpha))
    theta, centre = ({"weight": torch.from_numpy(values[:1]).float()} for values in (THETA, CENTRE))
    empty = batch(W[:, 0]).where(torch.zeros(12))
    slope = grad(loss)(theta, {"centre": centre}, empty.replace(x=empty.x.float()))["weight"]
    expected = grad(lambda theta: (theta - centre["weight"]).square().sum() / (2 * alpha))(theta["weight"])
    assert torch.equal(slope, expected)
