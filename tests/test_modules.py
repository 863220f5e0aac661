"""What of a module is trained and what is frozen, and by which last step a model gives probabilities."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from simulator.frozen_models import Pretrained
from torch import Tensor, nn

import equifed as ef
from equifed import modules
from equifed.federation import Federation

PROBABILITIES: dict[str, list[Callable[[Tensor], Tensor]]] = {
    "sigmoid": [
        torch.sigmoid,
        F.sigmoid,
        torch.special.expit,
        torch.sigmoid_,
        nn.Sequential(nn.Sigmoid(), nn.Flatten()),
        nn.Sequential(nn.Sigmoid(), nn.Flatten(0), nn.Identity()),
        lambda z: torch.sigmoid(z).squeeze(),
        lambda z: torch.sigmoid(z).squeeze(1),
        lambda z: torch.sigmoid(z)[:, 0],
        lambda z: torch.sigmoid(z)[:, [0]],
        lambda z: torch.sigmoid(z).narrow(1, 0, 1),
        lambda z: torch.sigmoid(z).reshape(-1),
        lambda z: torch.sigmoid(z).T.T,
        lambda z: torch.sigmoid(z).unbind(1)[0],
        lambda z: torch.sigmoid(z).split(1, 1)[0],
        lambda z: torch.sigmoid(z).double().float(),
        lambda z: torch.sigmoid(z).clamp(1e-6, 1 - 1e-6),
        lambda z: 1 - torch.sigmoid(z),
        lambda z: torch.cat([1 - torch.sigmoid(z), torch.sigmoid(z)], 1),
        lambda z: torch.stack([1 - torch.sigmoid(z[:, 0]), torch.sigmoid(z[:, 0])], 1),
    ],
    "softmax": [
        lambda z: F.softmax(z, -1),
        lambda z: F.softmin(z, -1),
        lambda z: torch.softmax(torch.cat([z, -z], 1), 1)[:, 1],
    ],
    "hardsigmoid": [F.hardsigmoid],
    "logsigmoid": [F.logsigmoid],
    "": [
        lambda z: z,
        lambda z: F.log_softmax(z, -1),
        lambda z: 3 * torch.sigmoid(z),
        lambda z: torch.cat([torch.sigmoid(z), z], 1),
        lambda z: z.clamp(-5, 5).squeeze(1),
        lambda z: torch.sigmoid(z) @ torch.ones(1, 1, requires_grad=True),
        torch.tanh,
    ],
}


@pytest.mark.parametrize(
    ("ending", "name"), [(ending, name) for name, endings in PROBABILITIES.items() for ending in endings]
)
@pytest.mark.parametrize("model", [nn.Linear(4, 1), Pretrained()], ids=["plain", "frozen body"])
def test_endings_in_probabilities(model: nn.Module, ending: Callable[[Tensor], Tensor], name: str) -> None:
    assert modules.ends_in_probabilities(ending(modules.prepare_module(model)(torch.randn(5, 4)))) == name


def test_a_log_softmax_at_the_end_changes_nothing(uneven: Federation) -> None:
    """Cross entropy of it is cross entropy of the logits: its own log-softmax is itself."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 2)
    ends = [nn.Sequential(layer), nn.Sequential(layer, nn.LogSoftmax(-1))]
    found = [ef.simulate(ef.methods.FedAvg(), uneven, model=model, rounds=3, seeds=[1]) for model in ends]
    for name, value in found[0].parameters[1].items():
        np.testing.assert_allclose(found[1].parameters[1][name], value, rtol=1e-5, atol=1e-6)


def test_trained_and_frozen_are_all_there_is() -> None:
    model = Pretrained()
    assert set(modules.trained_parameters(model)) == {"head.weight", "head.bias"}
    everything = {*dict(model.named_parameters()), *dict(model.named_buffers())}
    assert set(modules.frozen_values(model)) == everything - set(modules.trained_parameters(model))
    assert modules.prepare_module(model) is not model
    plain = nn.Linear(4, 1)
    assert modules.prepare_module(plain) is plain
    assert not modules.frozen_values(plain)
    assert modules.fingerprint(plain) == ""


def test_a_fingerprint_is_of_the_bits_of_what_is_frozen() -> None:
    first, second = Pretrained(), Pretrained()
    assert modules.fingerprint(first) == modules.fingerprint(second)  # whatever their heads are
    with torch.no_grad():
        second.body[1].running_mean[2] += 1e-6  # type: ignore[index, union-attr]
    assert modules.fingerprint(first) != modules.fingerprint(second)


def test_a_copy_for_a_thread_shares_what_is_frozen() -> None:
    model = Pretrained()
    made = modules.copy_module(model)
    for name, value in modules.frozen_values(made).items():
        assert value is modules.frozen_values(model)[name]
    assert made.get_parameter("head.weight") is not model.head.weight
