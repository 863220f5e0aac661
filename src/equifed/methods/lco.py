"""LCO, locally constrained optimisation: Chu et al., FedFair, arXiv:2109.05662, its Equation 4.

minimise sum_i (m_i/m) L_i(theta)  subject to  |D_i(theta)| <= epsilon for every client i

As FedFair, with a pair of multipliers for each client, which never leave it:
theta <- theta - alpha sum_i [ (m_i/m) grad L_i + (la_i - lb_i) grad D_i ]
la_i  <- max((1 - gamma beta) la_i + beta ( D_i - epsilon), 0)
lb_i  <- max((1 - gamma beta) lb_i + beta (-D_i - epsilon), 0)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.methods._constrained import COUNTS, UPDATES, Converging, log_counts
from equifed.protocol import Data, Phase, Record, Task, store_replies
from equifed.tree import Tree


class Server(NamedTuple):
    theta: Tree
    """theta, the global model."""
    t: Tensor
    """k, number of rounds applied so far."""
    constraints: Tensor
    """Number of constraints: clients and pairs of groups with rows in both cells."""
    violated: Tensor
    """Number of constraints that the model does not meet."""
    excess: Tensor
    """Sum of their excess of |D_i| over epsilon."""
    primal: Tensor
    """Norm of the Lagrangian's gradient in the last round."""
    dual: Tensor
    """Distance of the clients' multipliers from their fixed point in the last round (root of the sum of squares)."""


class Client(NamedTuple):
    la: Tensor
    """lambda_a of each pair of groups [P]."""
    lb: Tensor
    """lambda_b [P]."""


@dataclass(frozen=True)
class LCO(Converging):
    """Train one model under a constraint for every client on its own gap in loss between groups."""

    name: ClassVar[str] = "lco"
    reveals: ClassVar[str] = (
        "the mean gradient of the loss; the sum of the gaps' gradients, each times multipliers that only its silo "
        "knows (if a single silo violates its limit, its gradient); the numbers of constraints and of violated ones, "
        "and the sum of their excess; the number of rows"
    )

    @property
    def round(self) -> tuple[Phase, ...]:
        up = ("loss_gradient", "rows", "gap_gradient", *COUNTS, "residual")
        return (
            Phase("gradients", ("theta",), up, self.gradients, self.step, "sum", bounds=self.bounds, updates=UPDATES),
        )

    @property
    def final(self) -> tuple[Phase, ...]:
        return (Phase("measure", ("theta",), COUNTS, self.measure, store_replies, gather="sum", bounds=self.bounds),)

    def init(self, task: Task, parameters: Tree) -> Server:
        zero = tree.zeros(parameters)
        return Server(parameters, zero, zero, zero, zero, zero + torch.inf, zero + torch.inf)

    def init_client(self, task: Task, parameters: Tree) -> Client:
        none = tree.zeros(parameters, len(self.pairs(task)))
        return Client(none, none.clone())

    def gradients(self, down: Record, state: Client, data: Data) -> tuple[Record, Client]:
        loss_gradient, gap, gap_gradient, holds = self.terms(down["theta"], data)
        la, lb, residual = self.dual_step(state.la, state.lb, gap, holds)
        price = state.la - state.lb
        return {
            "loss_gradient": loss_gradient,
            "rows": data.n,
            "gap_gradient": tree.map(lambda gaps: torch.tensordot(price, gaps, dims=1), gap_gradient),
            **self.counts(gap, holds, la, lb),
            "residual": residual.square(),
        }, Client(la, lb)

    def step(self, server: Server, replies: Record, validation: Data | None) -> Server:
        # sum_i [ (m_i/m) grad L_i + (la_i - lb_i) grad D_i ]
        m = replies["rows"].clamp_min(1)
        gradient = tree.map(lambda loss, gap: loss / m + gap, replies["loss_gradient"], replies["gap_gradient"])
        residual = replies["residual"].sqrt()
        moved = self.descend(server, gradient, replies["rows"] > 0, replies["constraints"] > 0, residual)
        return store_replies(moved, replies, validation)

    def measure(self, down: Record, state: Client, data: Data) -> tuple[Record, Client]:
        return self.counts(*self.gaps(down["theta"], data), state.la, state.lb), state

    def observe(self, server: Server) -> dict[str, Tensor]:
        return {
            **log_counts(server.constraints, server.violated, server.excess),
            "primal_residual": server.primal,
            "dual_residual": server.dual,
        }
