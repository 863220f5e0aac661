"""FedFB's client parity: the clients are the groups that it weights, and the server sees only sums.

Client k keeps its weight, w_k <- w_k + a_t (n / n_k) mu_k with mu_k = q_k - mean of the others' q, q_k = its mean loss,
at least 0. It gets the mean of the q, and replies the change of its share n_k w_k of the total, from which the server
computes the factor that rescales all weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equifed.protocol import WRONG, Bound, Data, Phase, Record, store_replies, worst_loss
from equifed.tree import Tree


class Client(NamedTuple):
    theta: Tree
    """theta as received in `measure`, so that it is not sent again in `train`."""
    loss: Tensor
    """q_k, the client's mean loss; this and the rest are for client parity."""
    weight: Tensor
    """w_k, before it is divided by the mass."""


def count(down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
    """Reply the number of rows."""
    return {"rows": data.n}, state


COUNT_ROWS = Phase("count", (), ("rows",), count, store_replies, "sum")
"""Exchange from which the server learns the number of all clients' rows."""


def weight_phases(alpha: float, rate: Callable[[Tensor], Tensor]) -> tuple[Phase, Phase]:
    """Return the exchanges in which clients report their losses and move their weights; rate: a_t of t."""

    def move(down: Record, state: Client, data: Data) -> tuple[Record, Tree]:
        number, n, mass = down["clients"], down["rows"].clamp_min(1), down["mass"]
        # q_k - mean of the others' = (q_k - mean) K / (K - 1)
        mean = down["loss"] / number.clamp_min(1)
        mu = torch.where(number > 1, (state.loss - mean) * number / (number - 1).clamp_min(1), 0.0)
        moved = (state.weight + mass * rate(down["t"]) * n / data.n.clamp_min(1) * mu).clamp_min(0)
        weight = torch.where(data.n > 0, moved, state.weight)
        return {"change": data.n * (weight - state.weight) / (n * mass)}, state._replace(weight=weight)

    loss = {"loss": Bound(low=0, norm=worst_loss, alike=WRONG)}
    change = {"change": Bound(-1, lambda task: float(2 * alpha * worst_loss(task)))}
    down = ("loss", "clients", "rows", "mass", "t")
    return (
        Phase("measure", ("theta",), ("loss", "clients"), mean_loss, store_replies, "sum", bounds=loss),
        Phase("move", down, ("change",), move, rescale, "sum", bounds=change),
    )


def mean_loss(down: Record, state: Client, data: Data) -> tuple[Record, Tree]:
    """Reply q_k, and keep it and theta."""
    q = data.mean(data.task.row_loss(down["theta"], data.x, data.y))
    return {"loss": q, "clients": (data.n > 0).to(q.dtype)}, state._replace(theta=down["theta"], loss=q)


def rescale(server: Any, replies: Record, validation: Data | None) -> Any:
    """Rescale the total of the weights, which changes only by clamping at 0, by the reported changes."""
    return server._replace(mass=server.mass * (1 + replies["change"]), t=server.t + 1)
