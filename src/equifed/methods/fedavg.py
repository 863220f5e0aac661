"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.

    client k:  theta_k = theta after local training on mean loss
    server:    theta <- theta + sum_k n_k (theta_k - theta) / sum_k n_k

The server needs only the two sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from equifed import tree
from equifed.protocol import ClientWork, Data, LocalTraining, Method, Phase, Record, ServerStep, Update
from equifed.tree import Tree

BY_ROWS = {"update": Update(weight="rows")}
"""Updates of clients that reply n_k times their update, and n_k."""

MEAN_UPDATE = "the mean update, which roughly discloses the share of each label among all rows; the number of rows"
"""Information in the two sums, for `Method.reveals`."""
ALONE = "for a group of a single silo, they are that silo's"
"""Addition to `Method.reveals` for sums by group."""


def weighted_update(parameters: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
    """Reply n_k (theta_k - theta) and n_k."""
    return {"update": tree.scale(tree.sub(parameters, down["theta"]), data.n), "rows": data.n}, state


def apply_mean_update(server: Any, replies: Record, validation: Data | None) -> Any:
    """Move theta by the mean update: theta + sum_k n_k Delta_k / sum_k n_k, unchanged if no client has rows."""
    mean = tree.scale(replies["update"], 1 / replies["rows"].clamp_min(1))
    return server._replace(theta=tree.add(server.theta, mean))


def averaging(
    train: ClientWork, step: ServerStep = apply_mean_update, down: tuple[str, ...] = ("theta",), **options: Any
) -> Phase:
    """Return the phase in which clients train and reply n_k times their update, and n_k. The server needs only sums."""
    return Phase("train", down, ("update", "rows"), train, step, "sum", updates=BY_ROWS, **options)


@dataclass(frozen=True)
class FedAvg(Method):
    """Average the clients' models, weighted by their numbers of rows."""

    name: ClassVar[str] = "fedavg"
    reveals: ClassVar[str] = MEAN_UPDATE

    @property
    def round(self) -> tuple[Phase, ...]:
        return (averaging(LocalTraining(weighted_update)),)
