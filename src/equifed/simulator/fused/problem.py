"""The fused kernels' problem: the local training of many lanes as flat arrays of numbers.

The gradient of a loss of the declared form (`EmpiricalRisk`) of a fully connected network is known in advance, so its
steps need no autograd: a kernel carries out all steps of a lane in one call.
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
"""Layers that kernels support."""
LossName = Literal["logistic", "softmax", "squared"]
ACTIVATIONS: dict[type[nn.Module], int] = {nn.Tanh: 1, nn.ReLU: 2, nn.Sigmoid: 3}
"""Activations that kernels support, with their numbers."""
LOSSES: dict[LossName, int] = {"logistic": 1, "softmax": 2, "squared": 3}
"""Losses of a row, with their numbers: of one logit, of one logit per class, of a regression's output."""


@dataclass(frozen=True)
class Network:
    """A fully connected network as kernels see it. Its parameters are one vector, layer by layer: the weight [outputs,
    inputs] row by row, as in torch, then the bias if there is one."""

    widths: tuple[int, ...]
    """Widths of inputs, hidden layers and outputs."""
    activations: tuple[int, ...]
    """Number of the activation after each hidden layer, as in `ACTIVATIONS`."""
    biases: tuple[bool, ...]
    """True for each layer with a bias."""
    names: tuple[str, ...]
    """Names of the parameters, in the vector's order."""
    loss: LossName

    @property
    def size(self) -> int:
        """Number of parameters."""
        pairs = zip(self.widths, self.widths[1:], self.biases, strict=False)
        return sum((inputs + bias) * outputs for inputs, outputs, bias in pairs)

    @property
    def products(self) -> int:
        """Multiplications of one row's forward pass."""
        return sum(inputs * outputs for inputs, outputs in zip(self.widths, self.widths[1:], strict=False))


def network_of(task: Task) -> Network | None:
    """Return the task's model as a network that kernels support; None if they do not."""
    # exactly these classes, because subclasses and hooks may do anything
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
    """The local training of L lanes, each with U models that are trained on the same batches of the lane's rows.

    A model's step is an optimiser's step along the gradient of

        (1/B) sum_i w_i loss_i(theta)  +  (mu/2) ||theta - c||^2  +  <g, theta>

    over a batch of B rows. Batch t of an epoch holds positions t*size to (t+1)*size of the lane's rows in the epoch's
    order (`equifed.shuffle`), the last one the remaining rows.
    """

    network: Network
    local: Local
    x: Tensor
    """Features of all rows [rows, inputs], float32, as returned by the kernels' `features`."""
    y: Tensor
    """Labels [rows], float32: classes by number."""
    index: Tensor
    """Rows of all clients, one client after another, int32."""
    start: Tensor
    """Start of each lane's rows in `index` [L], int64."""
    n: Tensor
    """Number of each lane's rows [L], int64; 0: the lane does nothing."""
    keys: Tensor
    """Keys of the lanes' orders [L], int64 with the bits of a uint64; epoch e has `shuffle.fold(key, e)`."""
    rate: float
    """Learning rate."""
    scaling: tuple[Tensor, Tensor] | tuple[()] = ()
    """Shift and factor of the features [L, inputs]: the model sees (x - shift) * factor."""
    weights: Tensor | None = None
    """w: values of each lane's rows for each model [L, U, n], in the order of `index`; None: 1."""
    mu: Tensor | None = None
    """mu [L, U]; None without a proximal term."""
    centre: Tensor | None = None
    """c [L, U, size], with a proximal term."""
    linear: Tensor | None = None
    """g [L, U, size]; None without this term."""
    chosen: Tensor | None = None
    """Resampled rows [L, n], int32, as positions among the lane's rows: position p of an epoch's order is row
    chosen[p]. None: row p."""

    threads: int = 1
    """Number of CPU threads for the lanes."""

    @property
    def batch_size(self) -> int:
        """Rows per step; 0: all rows, unshuffled, because the order does not change their mean."""
        return self.local.batch_size or 0
