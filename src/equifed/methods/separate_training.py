"""Separate training (ST): Chu et al., FedFair, arXiv:2109.05662, its Equation 14. The baseline without federation.

each client i alone:  minimise L_i(theta_i)  subject to  |D_i(theta_i)| <= epsilon

by FedFair's iteration for a single client:
theta_i <- theta_i - alpha [ grad L_i + (la_i - lb_i) grad D_i ]
la_i    <- max((1 - gamma beta) la_i + beta ( D_i - epsilon), 0)
lb_i    <- max((1 - gamma beta) lb_i + beta (-D_i - epsilon), 0)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.methods._constrained import COUNTS, Constrained, lagrangian, log_counts
from equifed.protocol import Data, Phase, Record, Task, ignore_replies, store_replies
from equifed.tree import Tree


class Server(NamedTuple):
    constraints: Tensor
    """Number of constraints: clients and pairs of groups with rows in both cells; inf before the end."""
    violated: Tensor
    """Number of constraints that the clients' models do not meet."""
    excess: Tensor
    """Sum of their excess of |D_i| over epsilon."""


class Client(NamedTuple):
    theta: Tree
    """theta_i, the client's own model."""
    la: Tensor
    """lambda_a of each pair of groups [P]."""
    lb: Tensor
    """lambda_b [P]."""
    t: Tensor
    """k, number of rounds applied so far."""


@dataclass(frozen=True)
class SeparateTraining(Constrained):
    """Train a fair model for every client alone, under a constraint on its own gap in loss."""

    name: ClassVar[str] = "separate-training"
    reveals: ClassVar[str] = (
        "the numbers of constraints and of violated ones, and the sum of their excess; models stay with the silos"
    )
    personal: ClassVar[bool] = True
    predicts_with: ClassVar[tuple[str, ...]] = ()

    @property
    def round(self) -> tuple[Phase, ...]:
        return (Phase("alone", (), (), self.iterate, server=ignore_replies, gather="sum"),)

    @property
    def final(self) -> tuple[Phase, ...]:
        return (Phase("measure", (), COUNTS, self.measure, store_replies, gather="sum", bounds=self.bounds),)

    def init(self, task: Task, parameters: Tree) -> Server:
        unknown = tree.zeros(parameters) + torch.inf
        return Server(unknown, unknown, unknown)

    def init_client(self, task: Task, parameters: Tree) -> Client:
        zero = tree.zeros(parameters)
        none = zero.expand(len(self.pairs(task))).clone()
        return Client(parameters, none, none.clone(), zero)

    def iterate(self, down: Record, state: Client, data: Data) -> tuple[Record, Client]:
        loss_gradient, gap, gap_gradient, holds = self.terms(state.theta, data)
        gradient = lagrangian(loss_gradient, data.n.clamp_min(1), gap_gradient, state.la - state.lb)
        la, lb, _ = self.dual_step(state.la, state.lb, gap, holds)
        return {}, Client(tree.add_scaled(state.theta, gradient, -self.rate(state.t)), la, lb, state.t + 1)

    def measure(self, down: Record, state: Client, data: Data) -> tuple[Record, Client]:
        return self.counts(*self.gaps(state.theta, data), state.la, state.lb), state

    def observe(self, server: Server) -> dict[str, Tensor]:
        return log_counts(*server)
