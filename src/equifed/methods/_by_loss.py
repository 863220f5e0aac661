"""Shared parts of AFL and GIFAIR-FL, which weight clients by their losses at the server.

One exchange: clients train as in FedAvg and reply with their update and with the loss of the received theta. The server
computes weights from all losses and moves theta by the weighted mean of the updates. It needs each client's loss, so
these methods do not work with secure aggregation.
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
"""Metrics that methods for the worst clients improve, for `Knob.aims`."""


def update_and_loss(parameters: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
    """Reply the update, the loss of the received theta, and the number of rows."""
    loss = data.mean(data.task.row_loss(down["theta"], data.x, data.y))
    return {"update": tree.sub(parameters, down["theta"]), "loss": loss, "rows": data.n}, state


def loss_phase(step: ServerStep) -> Phase:
    """Return the phase in which clients train and reply their losses."""
    bounds = {"loss": Bound(low=0, norm=worst_loss, alike=WRONG)}
    train, updates = LocalTraining(update_and_loss), {"update": Update()}
    return Phase("train", ("theta",), ("update", "loss", "rows"), train, step, bounds=bounds, updates=updates)


def move_theta(theta: Tree, replies: Record, weights: Tensor) -> Tree:
    """Return theta + sum_k a_k Delta_k / sum_k a_k, or theta if no client has a weight."""
    total = weights.sum()
    share = torch.where(total > 0, weights / total.clamp_min(1e-30), 0.0)
    return tree.add(theta, tree.weighted_sum(replies["update"], share))
