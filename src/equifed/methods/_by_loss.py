"""Clients weighed by their losses, at the server: what AFL and GIFAIR-FL have in common.

One exchange: clients train as in FedAvg and reply with their update and with their loss before it, on the theta that
came down. The server makes weights of the losses of all and moves theta by the weighted mean of the updates. It needs
each client's loss, so these methods do not work with secure sums.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equifed import tree
from equifed.protocol import WRONG, Bound, Data, LocalTraining, Phase, Record, ServerStep, Update, worst_loss
from equifed.tree import Tree

CLIENTS: dict[str, dict[str, Any]] = {
    "client_accuracy.worst": {},
    "client_equality.worst10": {},
    "client_equality.variance": {},
    "worst_clients_rmse": {},
}
"""The metrics that methods for the worst clients move."""


def update_and_loss(parameters: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
    loss = data.mean(data.task.row_loss(down["theta"], data.x, data.y))
    return {"update": tree.sub(parameters, down["theta"]), "loss": loss, "rows": data.n}, state


def weighing(step: ServerStep) -> Phase:
    bounds = {"loss": Bound(low=0, norm=worst_loss, alike=WRONG)}
    train, updates = LocalTraining(update_and_loss), {"update": Update()}
    return Phase("train", ("theta",), ("update", "loss", "rows"), train, step, bounds=bounds, updates=updates)


def moved(theta: Tree, replies: Record, weights: Tensor) -> Tree:
    """theta + sum_k a_k Delta_k / sum_k a_k; theta where no client has a weight."""
    total = weights.sum()
    share = torch.where(total > 0, weights / total.clamp_min(1e-30), 0.0)
    return tree.add(theta, tree.weighted_sum(replies["update"], share))
