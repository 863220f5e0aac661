"""FedMinMax: Papadaki et al., Minimax Demographic Group Fairness in Federated Learning, FAccT 2022.

rho_a = n_a / n, the share of group a in all clients' rows;  mu = rho at the start
client k:  theta_k minimises  sum_a (n_ak / n_k) (mu_a / rho_a) r_ak  =  mean of (mu_s / rho_s) loss over its rows
           and reports the loss of theta on its rows of each group; a row of unknown group has weight 1
server:    theta <- sum_k (n_k / n) theta_k
           r_a = mean loss of theta on all rows of group a;  mu <- projection of mu + eta r on the simplex
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.methods._cells import group_sums
from equifed.methods.fedavg import ALONE, BY_ROWS, MEAN_UPDATE, FedAvg, apply_mean_update, weighted_update
from equifed.methods.hyper import hyper
from equifed.methods.reweighing import weighted_loss
from equifed.protocol import WRONG, Bound, Data, Knob, LocalTraining, Phase, Record, Start, Task, worst_loss
from equifed.tree import Tree


class Server(NamedTuple):
    theta: Tree
    """theta, the global model."""
    mu: Tensor
    """mu [G], the adversary's weight of each group."""
    rho: Tensor
    """rho [G], the groups' shares of all rows."""


@dataclass(frozen=True)
class FedMinMax(FedAvg):
    """Minimise the loss of the worst group: an adversary shifts weight to the groups with high loss."""

    name: ClassVar[str] = "fedminmax"
    reveals: ClassVar[str] = f"{MEAN_UPDATE}; rows and loss by group: {ALONE}"
    parent: ClassVar[str] = "fedavg"
    knob: ClassVar[Knob | None] = Knob(
        "adversary_rate", 1e-3, 1.0, {"worst_group_accuracy": {}, "worst_group_rmse": {}}, neutral=0.0
    )

    adversary_rate: float = hyper(0.01, low=0, vanishes=True)
    """eta: step of the adversary, usually 0.001 to 0.1; 0 leaves mu at rho, which is FedAvg."""

    @property
    def setup(self) -> tuple[Phase, ...]:
        def count(down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
            return {"counts": group_sums(data, torch.ones_like(data.mask))}, state

        def begin(server: Server, replies: Record, validation: Data | None) -> Server:
            rho = replies["counts"] / replies["counts"].sum().clamp_min(1)
            return server._replace(mu=rho, rho=rho)

        return (Phase("count", (), ("counts",), count, begin, "sum"),)

    @property
    def round(self) -> tuple[Phase, ...]:
        train = LocalTraining(update_and_risks, weighted_loss, adversarial_weights)
        up = ("update", "rows", "losses", "counts")
        bounds = {"losses": Bound(low=0, per_row=worst_loss, alike=WRONG)}
        return (Phase("train", ("theta", "mu", "rho"), up, train, self.step, "sum", bounds=bounds, updates=BY_ROWS),)

    def init(self, task: Task, parameters: Tree) -> Server:
        zeros = tree.zeros(parameters, task.num_groups)
        return Server(parameters, zeros, zeros)

    def step(self, server: Server, replies: Record, validation: Data | None) -> Server:
        losses, counts = replies["losses"], replies["counts"]
        has_rows = counts > 0
        risk = losses / counts.clamp_min(1)
        # a group without rows in this round gets the mean over groups, which the projection removes
        risk = torch.where(has_rows, risk, risk.sum() / has_rows.sum().clamp_min(1))
        # a group without training rows keeps weight 0
        mu = project(torch.where(server.rho > 0, server.mu + self.adversary_rate * risk, -torch.inf))
        averaged: Server = apply_mean_update(server, replies, validation)
        return averaged._replace(mu=mu)

    def observe(self, server: Server) -> dict[str, Tensor]:
        """Return the largest ratio of a group's weight to its share of the rows."""
        return {"largest_weight": torch.where(server.rho > 0, server.mu / server.rho.clamp_min(1e-12), 0.0).max()}


def adversarial_weights(down: Record, state: Tree, data: Data) -> Start:
    weight = down["mu"] / down["rho"].clamp_min(1e-12)
    return Start(down["theta"], per_row={"weight": data.of_groups(weight, 1.0)})


def update_and_risks(parameters: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
    reply, state = weighted_update(parameters, down, state, data, context)
    losses = data.task.row_loss(down["theta"], data.x, data.y)
    reply |= {"losses": group_sums(data, losses), "counts": group_sums(data, torch.ones_like(data.mask))}
    return reply, state


def project(mu: Tensor) -> Tensor:
    """Return the closest point of the simplex {mu >= 0, sum = 1}, in Euclidean distance (Held, Wolfe and Crowder
    1974)."""
    ordered = mu.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(mu) + 1, device=mu.device)
    # the last threshold below its own entry
    kept = (ordered > excess).sum()
    return (mu - excess.gather(0, (kept - 1).clamp_min(0).reshape(1))).clamp_min(0)
