"""Pooled kernels: Arif et al., Group Fair Federated Learning via Stochastic Kernel Regularization, 2025.

All rows in one place, regularised with the kernels themselves:

theta minimises  mean loss + lambda HSIC,   HSIC of the batch by its full kernel matrices    (see kernels.py)

It is not a federated method: it shows the result of pooling the data, which is not allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from equifed.methods._kernels import exact_dependence, outputs
from equifed.methods.fedavg import FedAvg, averaging, weighted_update
from equifed.methods.hyper import hyper
from equifed.methods.local_kernel import KERNEL_KNOB, with_attribute
from equifed.protocol import Data, Knob, LocalTraining, Phase
from equifed.training import mean_loss
from equifed.tree import Tree


@dataclass(frozen=True)
class CentralizedKernel(FedAvg):
    """Training on the pooled rows of all clients with the exact kernel dependence of each batch: for comparison."""

    name: ClassVar[str] = "centralized-kernel"
    pooled: ClassVar[bool] = True
    knob: ClassVar[Knob | None] = KERNEL_KNOB

    fairness_weight: float = hyper(1.0, low=0)
    """lambda: weight of the dependence."""
    kernel_width: float = hyper(1.0, low=1e-6)
    """sigma of the Gaussian kernels."""

    @property
    def round(self) -> tuple[Phase, ...]:
        return (averaging(LocalTraining(weighted_update, self.loss, with_attribute)),)

    def loss(self, parameters: Tree, context: Tree, batch: Data) -> Tensor:
        s, f = batch.per_row["sensitive"], outputs(parameters, batch)
        hsic = exact_dependence(s, f, batch.known, self.kernel_width)
        return mean_loss(parameters, (), batch) + self.fairness_weight * hsic
