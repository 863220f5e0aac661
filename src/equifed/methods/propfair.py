"""PropFair: Zhang et al., Proportional Fairness in Federated Learning, TMLR 2023.

max over theta:  sum_k p_k log(M - F_k(theta)),  M - F_k is the utility of client k

client k:  descends  - M log(1 - L/M)  instead of a batch's mean loss L while M - L >= eps,
           else L, or with `huber` the line that continues with the slope at M - L = eps
server:    as FedAvg

The step of a batch is longer by M / (M - L): the worse the model fits it, the longer. M -> inf is FedAvg.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equifed.errors import ConfigError
from equifed.methods._by_loss import CLIENTS
from equifed.methods.fedavg import FedAvg, averaging, weighted_update
from equifed.methods.hyper import hyper
from equifed.protocol import Data, Knob, LocalTraining, Phase, Task
from equifed.training import mean_loss
from equifed.tree import Tree


@dataclass(frozen=True)
class PropFair(FedAvg):
    """Maximise the product of the clients' utilities: batches that the model fits badly count more."""

    name: ClassVar[str] = "propfair"
    knob: ClassVar[Knob | None] = Knob("M", 1.0, 10.0, CLIENTS, fairer="less")

    M: float = hyper(2.0, low=1e-3)
    """Loss with utility 0; must exceed that of guessing, log 2 for two classes; the paper uses 2 to 10. The smaller,
    the more a bad fit counts."""
    eps: float = hyper(0.2, low=1e-3)
    """Smallest utility M - L of which the logarithm is taken."""
    huber: bool = hyper(False)
    """Slope of batches with less utility: true for that at `eps`, M / eps times the slope of their loss; false for the
    slope of their loss."""

    @property
    def round(self) -> tuple[Phase, ...]:
        return (averaging(LocalTraining(weighted_update, self.loss)),)

    def loss(self, theta: Tree, context: Tree, batch: Data) -> Tensor:
        L = mean_loss(theta, context, batch)
        utility = self.M - L
        curved = -torch.log(torch.where(utility >= self.eps, utility, self.eps) / self.M)
        beyond = curved - (utility - self.eps) / self.eps if self.huber else L / self.M
        return self.M * torch.where(utility >= self.eps, curved, beyond)

    def check(self, task: Task) -> None:
        guessing = math.log(max(task.num_classes, 2))
        if task.kind == "classification" and float(self.M) - float(self.eps) <= guessing:
            raise ConfigError(
                f"must exceed eps by more than {guessing:.3g}, the loss of guessing among {task.num_classes} classes, "
                f"or all batches start without utility: {self.M:g} - {self.eps:g} is not above it. Increase M.",
                key="M",
                value=self.M,
            )
