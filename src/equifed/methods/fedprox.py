"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.

client k:  theta_k minimises  mean loss + (mu/2) ||theta_k - theta||^2
server:    as FedAvg
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equifed.methods.fedavg import FedAvg, averaging, weighted_update
from equifed.methods.hyper import hyper
from equifed.protocol import Data, EmpiricalRisk, LocalTraining, Phase, Record, Start
from equifed.tree import Tree


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term that keeps each client's model close to the global one."""

    name: ClassVar[str] = "fedprox"
    parent: ClassVar[str] = "fedavg"

    mu: float = hyper(0.01, low=0, vanishes=True)
    """Weight of the proximal term; 0 gives FedAvg."""

    @property
    def round(self) -> tuple[Phase, ...]:
        return (averaging(LocalTraining(weighted_update, EmpiricalRisk(mu=self.mu), keep_centre)),)


def keep_centre(down: Record, state: Tree, data: Data) -> Start:
    return Start(down["theta"], context={"centre": down["theta"]})
