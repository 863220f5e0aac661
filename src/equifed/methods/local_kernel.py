"""Local-Kernel, KFFL's baseline: Arif et al., Group Fair Federated Learning via Stochastic Kernel Regularization, 2025.

Each client adds the dependence in its own rows to its loss:

client k:  theta_k minimises  mean loss + lambda psi_k,   psi_k the dependence within its batch    (see kernels.py)
server:    as FedAvg

It does not measure dependence across clients: psi_k has little information if a client has mostly one group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from equifed.methods._kernels import dependence, feature_draws, outputs
from equifed.methods.fedavg import FedAvg, averaging, weighted_update
from equifed.methods.hyper import hyper
from equifed.protocol import Data, Knob, LocalTraining, Phase, Record, Start, notions
from equifed.training import mean_loss
from equifed.tree import Tree


def with_attribute(down: Record, state: Tree, data: Data) -> Start:
    """Start from theta, with the rows' sensitive attribute as numbers in every batch."""
    return Start(down["theta"], per_row={"sensitive": data.sensitive})


KERNEL_KNOB = Knob(
    "fairness_weight",
    1.0,
    1000.0,
    notions(demographic_parity={}) | {"ks_distance": {}, "mean_difference": {}},
    neutral=0.0,
)
"""Knob for the weight of the dependence in the clients' loss."""


@dataclass(frozen=True)
class LocalKernel(FedAvg):
    """FedAvg with the kernel dependence of each client's own rows added to its loss."""

    name: ClassVar[str] = "local-kernel"
    parent: ClassVar[str] = "fedavg"
    knob: ClassVar[Knob | None] = KERNEL_KNOB

    fairness_weight: float = hyper(1.0, low=0, vanishes=True)
    """lambda: weight of the dependence; 0 gives FedAvg."""
    features: int = hyper(10, low=1, high=100_000)
    """D, number of random features of each of the two kernels."""
    kernel_width: float = hyper(1.0, low=1e-6)
    """sigma of the Gaussian kernels."""

    @property
    def round(self) -> tuple[Phase, ...]:
        train = LocalTraining(weighted_update, self.loss, with_attribute)
        return (averaging(train, draws=feature_draws(self.features)),)

    def loss(self, parameters: Tree, context: Tree, batch: Data) -> Tensor:
        s, f = batch.per_row["sensitive"], outputs(parameters, batch)
        psi = dependence(s, f, batch.known, batch.draws, self.kernel_width)
        return mean_loss(parameters, (), batch) + self.fairness_weight * psi
