"""What the fused kernels compute: the local training of many lanes as flat arrays of numbers.

A loss of the declared form (`EmpiricalRisk`) of a fully connected network has a gradient that is known in advance, so
its steps need no autograd: a kernel goes through a lane's rows with its weights at hand, all steps in one call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from equifed.models import NetworkLinear, SharedLinear
from equifed.modules import frozen_values
from equifed.protocol import Task
from equifed.settings import Local

LAYERS = (nn.Linear, SharedLinear, NetworkLinear)
"""Layers that kernels know."""
LossName = Literal["logistic", "softmax", "squared"]
ACTIVATIONS: dict[type[nn.Module], int] = {nn.Tanh: 1, nn.ReLU: 2, nn.Sigmoid: 3}
"""Activations that kernels know, by number."""
LOSSES: dict[LossName, int] = {"logistic": 1, "softmax": 2, "squared": 3}
"""Losses of a row: of one logit, of a logit for each class, of a number; by number."""


@dataclass(frozen=True)
class Network:
    """A fully connected network as kernels see it. All its parameters lie in one vector, layer by layer: the weight
    [outputs, inputs] row by row, as torch has it, then the bias where there is one."""

    widths: tuple[int, ...]
    """Inputs, hidden layers, outputs."""
    activations: tuple[int, ...]
    """After each hidden layer, as in `ACTIVATIONS`."""
    biases: tuple[bool, ...]
    """Whether each layer has a bias."""
    names: tuple[str, ...]
    """The parameters by name, in the vector's order."""
    loss: LossName

    @property
    def size(self) -> int:
        """How many parameters there are."""
        pairs = zip(self.widths, self.widths[1:], self.biases, strict=False)
        return sum((inputs + bias) * outputs for inputs, outputs, bias in pairs)

    @property
    def products(self) -> int:
        """Multiplications for one row's forward pass."""
        return sum(inputs * outputs for inputs, outputs in zip(self.widths, self.widths[1:], strict=False))


def network_of(task: Task) -> Network | None:
    """The task's model as a network that kernels know; None where it is none."""
    # exactly these classes: others, and hooks, may do anything
    layers = list(task.module) if type(task.module) is nn.Sequential else [task.module]
    if frozen_values(task.module):
        return None
    if any(module._forward_hooks or module._forward_pre_hooks for module in task.module.modules()):
        return None
    if layers and type(layers[0]) is nn.Flatten and (layers[0].start_dim, layers[0].end_dim) == (1, -1):
        layers = layers[1:]
    linear = [each for each in layers[::2] if isinstance(each, nn.Linear) and type(each) in LAYERS]
    between = [layer for layer in layers[1::2] if type(layer) in ACTIVATIONS]
    if len(linear) != len(between) + 1 or len(linear) + len(between) != len(layers):
        return None
    names = {id(parameter): name for name, parameter in task.module.named_parameters(remove_duplicate=False)}
    ordered = [part for layer in linear for part in (layer.weight, layer.bias) if part is not None]
    if len(names) != len(ordered) or any(part.dtype != torch.float32 for part in ordered):  # a layer used twice
        return None
    widths = (linear[0].in_features, *(layer.out_features for layer in linear))
    loss: LossName = "squared" if task.kind == "regression" else "logistic" if task.binary else "softmax"
    return Network(
        widths=widths,
        activations=tuple(ACTIVATIONS[type(layer)] for layer in between),
        biases=tuple(layer.bias is not None for layer in linear),
        names=tuple(names[id(part)] for part in ordered),
        loss=loss,
    )


@dataclass(frozen=True)
class Problem:
    """The local training of L lanes, each with U models that go through the same batches of the lane's rows.

    A model's step is one of the optimiser along the gradient of

        (1/B) sum_i w_i loss_i(theta)  +  (mu/2) ||theta - c||^2  +  <g, theta>

    over a batch of B rows. Batch t of an epoch holds positions t*size to (t+1)*size of the lane's rows in the epoch's
    order (`equifed.shuffle`), the last one what is left.
    """

    network: Network
    local: Local
    x: Tensor
    """Features of all rows [rows, inputs], float32; as the kernels' `features` made them."""
    y: Tensor
    """Labels [rows], float32: classes by number."""
    index: Tensor
    """Rows of all clients, one client after another, int32."""
    start: Tensor
    """Where each lane's rows start in `index` [L], int64."""
    n: Tensor
    """How many they are [L], int64; 0: the lane does nothing."""
    keys: Tensor
    """Keys of the lanes' orders [L], int64 with the bits of a uint64; epoch e has `shuffle.fold(key, e)`."""
    rate: float
    """The step size."""
    scaling: tuple[Tensor, Tensor] | tuple[()] = ()
    """Shift and factor of the features [L, inputs]: the model sees (x - shift) * factor."""
    weights: Tensor | None = None
    """w: values of each lane's rows for each model [L, U, n], in the order that `index` has them; None: 1."""
    mu: Tensor | None = None
    """mu [L, U]; None: there is no proximal term."""
    centre: Tensor | None = None
    """c [L, U, size], where there is a proximal term."""
    linear: Tensor | None = None
    """g [L, U, size]; None: there is no such term."""
    chosen: Tensor | None = None
    """Rows that stand in for the lane's own [L, n], int32, as positions among them: position p of an epoch's order is
    row chosen[p]. None: p itself."""

    threads: int = 1
    """Threads of the CPU that share the lanes."""

    @property
    def batch_size(self) -> int:
        """Rows per step; 0: all of them, in the order they lie (an order would not change their mean)."""
        return self.local.batch_size or 0
