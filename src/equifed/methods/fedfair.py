"""FedFair: Chu et al., FedFair: Training Fair Models in Cross-Silo Federated Learning, arXiv:2109.05662.

minimise sum_i (m_i/m) L_i(theta)  subject to  |Dbar(theta)| <= epsilon,  Dbar = (1/N) sum_i D_i(theta)
D_i = mean loss of client i's rows of group a and class c, minus that of its rows of group b and class c

One full gradient of each client per round, all at the same theta:
theta <- theta - alpha [ sum_i (m_i/m) grad L_i + (la - lb)/N sum_i grad D_i ]
la    <- max((1 - gamma beta) la + beta ( Dbar - epsilon), 0)
lb    <- max((1 - gamma beta) lb + beta (-Dbar - epsilon), 0)

N counts the clients that have rows in both cells; the server needs only sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.methods._constrained import BOUNDS, UPDATES, Converging, by_pair, lagrangian
from equifed.protocol import Data, Phase, Record, Task
from equifed.tree import Tree


class Server(NamedTuple):
    theta: Tree
    """theta, the global model."""
    la: Tensor
    """lambda_a of each pair of groups [P]: the price of Dbar above epsilon."""
    lb: Tensor
    """lambda_b [P]: the price of Dbar below -epsilon."""
    gap: Tensor
    """Dbar [P], the federated estimate for the last model sent; nan if no client could compute it."""
    t: Tensor
    """k, number of rounds applied so far."""
    primal: Tensor
    """Norm of the Lagrangian's gradient in the last round."""
    dual: Tensor
    """Distance of the multipliers from their fixed point in the last round."""


@dataclass(frozen=True)
class FedFair(Converging):
    """Train one model under a constraint on the clients' mean gap in loss between groups, by dual ascent."""

    name: ClassVar[str] = "fedfair"
    reveals: ClassVar[str] = (
        "the mean gradients of loss and gap, the mean gap in loss, the number of rows, and the number of silos with "
        "both groups: of a single one, its gap"
    )

    @property
    def round(self) -> tuple[Phase, ...]:
        up = ("loss_gradient", "rows", "gap", "gap_gradient", "holders")
        return (Phase("gradients", ("theta",), up, self.gradients, self.step, "sum", bounds=BOUNDS, updates=UPDATES),)

    @property
    def final(self) -> tuple[Phase, ...]:
        return (
            Phase("measure", ("theta",), ("gap", "holders"), self.measure, self.keep_gap, gather="sum", bounds=BOUNDS),
        )

    def init(self, task: Task, parameters: Tree) -> Server:
        zero = tree.zeros(parameters)
        none = zero.expand(len(self.pairs(task))).clone()
        return Server(parameters, none, none.clone(), none + torch.nan, zero, zero + torch.inf, zero + torch.inf)

    def gradients(self, down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
        return {**self.terms(down["theta"], data)._asdict(), "rows": data.n}, state

    def step(self, server: Server, replies: Record, validation: Data | None) -> Server:
        m, N = replies["rows"].clamp_min(1), replies["holders"].clamp_min(1)
        # sum_i (m_i/m) grad L_i + sum over pairs of (la - lb)/N sum_i grad D_i
        gradient = lagrangian(replies["loss_gradient"], m, replies["gap_gradient"], (server.la - server.lb) / N)
        la, lb, residual = self.dual_step(server.la, server.lb, replies["gap"] / N, replies["holders"])
        moved = self.descend(server, gradient, replies["rows"] > 0, replies["holders"].sum() > 0, residual)
        return self.keep_gap(moved._replace(la=la, lb=lb), replies, validation)

    def measure(self, down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
        gap, holds = self.gaps(down["theta"], data)
        return {"gap": gap, "holders": holds}, state

    def keep_gap(self, server: Server, replies: Record, validation: Data | None) -> Server:
        holders = replies["holders"]
        return server._replace(gap=torch.where(holders > 0, replies["gap"] / holders.clamp_min(1), torch.nan))

    def observe(self, server: Server) -> dict[str, Tensor]:
        defined = ~server.gap.isnan()
        # the left-hand side of the constraint; 0 if no pair of groups can be compared
        gap = torch.where(defined, server.gap, torch.zeros_like(server.gap))
        met = ~self.is_violated(gap, server.la, server.lb).any()
        return {
            **by_pair("lambda_a", server.la),
            **by_pair("lambda_b", server.lb),
            "constraint": gap.abs().amax(),
            "excess": self.excess(gap).amax(),
            "feasible": met.to(gap.dtype),
            "primal_residual": server.primal,
            "dual_residual": server.dual,
        }
