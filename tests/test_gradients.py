"""Gradients by autograd are those of torch.func, bit by bit, and do not import torch's compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import func, nn

from equifed import gradients

MODELS = {
    "logistic": (nn.Linear(5, 1), (7, 5)),
    "layers": (nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3)), (7, 5)),
    "images": (
        nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 2)),
        (4, 1, 8, 8),
    ),
}


def loss_of(model: nn.Module, x: torch.Tensor):
    def loss(theta, scale=1.0):
        z = func.functional_call(model, theta, (x,))
        return (scale * z.square()).mean() + z.exp().sum().log()

    return loss


@pytest.mark.parametrize("name", MODELS)
def test_gradients_have_the_bits_of_torch_func(name: str) -> None:
    model, shape = MODELS[name]
    loss, theta = loss_of(model, torch.randn(shape)), {key: leaf.detach() for key, leaf in model.named_parameters()}
    expected, value = func.grad_and_value(loss)(theta, 0.3)
    found, same = gradients.grad_and_value(loss)(theta, 0.3)
    assert torch.equal(same, value)
    assert not same.requires_grad
    assert all(torch.equal(found[key], expected[key]) for key in theta)
    assert all(torch.equal(gradients.grad(loss)(theta, 0.3)[key], expected[key]) for key in theta)
    with torch.no_grad():
        assert all(torch.equal(gradients.grad(loss)(theta, 0.3)[key], expected[key]) for key in theta)
    assert all(not leaf.requires_grad for leaf in theta.values())


def test_auxiliary_values_unused_parameters_and_constants() -> None:
    theta = (torch.tensor([1.0, -2.0]), torch.tensor([3.0]))
    slope, (value, extra) = gradients.grad_and_value(lambda t: (t[0].square().sum(), {"a": t[1]}), has_aux=True)(theta)
    assert torch.equal(slope[0], torch.tensor([2.0, -4.0]))
    assert torch.equal(slope[1], torch.tensor([0.0]))
    assert value == 5
    assert not value.requires_grad
    assert not extra["a"].requires_grad
    assert torch.equal(gradients.grad(lambda t: torch.ones(()))(theta)[0], torch.zeros(2))


def test_gradients_within_gradients_and_within_vmap() -> None:
    x = torch.tensor([0.5, -1.5])
    cube = gradients.grad(lambda t: gradients.grad(lambda s: s.pow(3).sum())(t).sum())(x)
    torch.testing.assert_close(cube, 6 * x)
    torch.testing.assert_close(func.vmap(gradients.grad(lambda t: t.square()))(x), 2 * x)


def test_pulled_back_weights_are_those_of_vjp() -> None:
    a, weights = torch.randn(6, 3), torch.randn(2, 6)

    def values(theta):
        return torch.sigmoid(a @ theta["w"]) * theta["b"]

    theta = {"w": torch.randn(3), "b": torch.randn(())}
    expected, pull = func.vjp(values, theta)
    found, slopes = gradients.pull_back(values, theta, weights)
    assert torch.equal(found, expected)
    for key, leaf in func.vmap(pull)(weights)[0].items():
        assert torch.equal(slopes[key], leaf)
    assert torch.equal(gradients.pull_back(lambda t: torch.ones(6), theta, weights)[1]["w"], torch.zeros(2, 3))


@pytest.mark.full
def test_a_clients_training_does_not_import_the_compiler() -> None:
    code = """
import sys, numpy as np, equifed as ef
rng = np.random.default_rng(0)
rows = lambda: (rng.normal(size=(20, 3)), rng.integers(0, 2, 20), rng.integers(0, 2, 20))
fed = ef.Federation.from_arrays([rows(), rows()], test=rows())
for method in (ef.methods.FedAvg(), ef.methods.KFFL(), ef.methods.FedFair()):
    ef.simulate(method, fed, rounds=1, model=ef.models.Logistic(), engine="reference", local=ef.Local(epochs=1))
print("torch._dynamo" in sys.modules)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split()[-1] == "False"


def test_other_clients_parameters_in_the_same_memory_may_change_meanwhile() -> None:
    memory = torch.ones(2, 3)

    def loss(theta: torch.Tensor) -> torch.Tensor:
        value = theta.square().sum()
        memory[1] += 1  # as another thread does
        return value

    assert torch.equal(gradients.grad(loss)(memory[0]), torch.full((3,), 2.0))
