"""GIFAIR-FL: Yue, Nouiehed and Al Kontar, GIFAIR-FL: A Framework for Group and Individual Fairness in Federated
Learning, INFORMS Journal on Data Science 2023.

min over theta:  sum_k p_k F_k(theta) + lambda sum over pairs |F_k - F_j|,  p_k = n_k / n

client k:  F_k = loss of theta on its rows;  theta_k = theta after local training
server:    r_k = number of clients with a lower loss - number of clients with a higher one (`_ties`: beyond rounding)
           theta <- theta + sum_k (p_k + lambda r_k) (theta_k - theta) / sum_k (p_k + lambda r_k)

lambda is a share of min_k p_k / (K - 1), the limit up to which all weights are positive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equifed.methods._by_loss import CLIENTS, loss_phase, move_theta
from equifed.methods._ties import compare
from equifed.methods.hyper import hyper
from equifed.protocol import Data, Knob, Method, Phase, Record, Server


@dataclass(frozen=True)
class GIFAIR(Method):
    """Penalise differences between clients' losses: a client's rank by loss is added to its weight."""

    name: ClassVar[str] = "gifair"
    parent: ClassVar[str] = "fedavg"
    knob: ClassVar[Knob | None] = Knob("fairness_weight", 0.05, 1.0, CLIENTS, scale="linear", neutral=0.0)

    fairness_weight: float = hyper(0.5, low=0, high=1, vanishes=True)
    """lambda, as a share of the largest value without negative weights; 0 gives FedAvg."""

    @property
    def round(self) -> tuple[Phase, ...]:
        return (loss_phase(self.step),)

    def step(self, server: Server, replies: Record, validation: Data | None) -> Server:
        rows = replies["present"] * replies["rows"]
        p = rows / rows.sum().clamp_min(1)
        return server._replace(theta=move_theta(server.theta, replies, self.weights(p, replies["loss"])))

    def weights(self, p: Tensor, loss: Tensor) -> Tensor:
        """Return p_k + lambda r_k of the clients with p_k > 0; equal losses, up to rounding, have the mean rank."""
        there = p > 0
        rank = (compare(loss[:, None], loss) * there).sum(1)
        smallest = torch.where(there, p, 1.0).min()
        largest = smallest / (there.sum() - 1).clamp_min(1)
        return torch.where(there, p + self.fairness_weight * largest * rank, 0.0)
