"""IFCA: Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020.

client k:  q_k = argmin_q F_k(theta_q), the model with the lowest loss on its rows (or its known group)
           theta_k = theta_{q_k} after local training
server:    theta_q <- theta_q + sum_{k: q_k = q} n_k (theta_k - theta_q) / sum_{k: q_k = q} n_k

A model that nobody chose stays as it is. The Q models start from different initial parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from equifed import tree
from equifed.errors import ConfigError
from equifed.methods._cells import one_hot
from equifed.methods.hyper import hyper
from equifed.protocol import Bound, Data, LocalTraining, Method, Phase, Record, Server, Start, Task, Update, unchanged
from equifed.tree import Tree

EQUAL = 1e-6
"""Losses that differ by this share are the same up to rounding."""


class Client(NamedTuple):
    group: Tensor
    """q_k, the model that the client chose last; -1 until it has."""


@dataclass(frozen=True)
class IFCA(Method):
    """Train several models; every client trains, and uses, the one that suits it best."""

    name: ClassVar[str] = "ifca"
    personal: ClassVar[bool] = True

    num_groups: int = hyper(2, low=1)
    """Q: how many models."""
    known: bool = hyper(False, choices=(False, True))
    """Whether a client's model is that of its known group, instead of the one with the lowest loss."""

    @property
    def setup(self) -> tuple[Phase, ...]:
        return (KNOWN_GROUPS,) if self.known else ()

    @property
    def round(self) -> tuple[Phase, ...]:
        train, up = LocalTraining(finish, prepare=self.start), ("update", "rows", "group")
        bounds = {"group": Bound(-1, self.num_groups - 1, whole=True)}
        updates = {"update": Update(weight="rows", among="group")}
        return (Phase("train", ("theta",), up, train, average, bounds=bounds, updates=updates),)

    @property
    def final(self) -> tuple[Phase, ...]:
        return () if self.known else (choosing(lowest_loss, "theta"),)

    @property
    def num_models(self) -> int:
        return self.num_groups

    def check(self, task: Task) -> None:
        if self.known and not 0 < task.num_client_groups <= self.num_groups:
            raise ConfigError(
                f"is true, which needs each client's group, below num_groups={self.num_groups}; this federation has "
                f"{task.num_client_groups or 'no client'} groups. Give client_groups, or known=False.",
                key="known",
            )

    def init_client(self, task: Task, parameters: Tree) -> Client:
        return nobody(parameters)

    def start(self, down: Record, state: Client, data: Data) -> Start:
        group = state.group if self.known else lowest_loss(down["theta"], data)
        return Start(tree.pick(down["theta"], group), context=group)

    def predict(self, task: Task, server: Server, client: Client, x: Tensor) -> Tensor:
        """Those of the client's model; the mean over all models for a client that has not chosen."""
        predictions = vmap(task.predict, (0, None))(server.theta, x)
        return torch.where(client.group < 0, predictions.mean(0), tree.pick(predictions, client.group.clamp_min(0)))


def nobody(parameters: Tree) -> Client:
    """Of no group yet."""
    return Client(torch.tensor(-1, device=tree.prototype(parameters).device))


def keep_known_group(down: Record, state: Client, data: Data) -> tuple[Record, Tree]:
    assert data.client_group is not None
    return {}, Client(data.client_group)


KNOWN_GROUPS = Phase("group", (), (), keep_known_group, unchanged, "sum")


def choosing(group: Callable[[Tree, Data], Tensor], models: str, **options: Any) -> Phase:
    """At the end, whoever has not taken part, or not lately, chooses among the models as they are."""

    def choose(down: Record, state: Client, data: Data) -> tuple[Record, Tree]:
        return {}, Client(torch.where(data.n > 0, group(down[models], data), state.group))

    return Phase("choose", (models,), (), choose, unchanged, "sum", **options)


def lowest_loss(theta: Tree, data: Data) -> Tensor:
    """argmin_q of the mean loss on the client's rows; the first of those that are equal up to rounding, so that equal
    models are told apart alike wherever they are computed."""

    def risk(theta: Tree) -> Tensor:
        return data.mean(data.task.row_loss(theta, data.x, data.y))

    risks = vmap(risk)(theta)
    return (risks <= risks.min() * (1 + EQUAL)).to(torch.int64).argmax()


def finish(parameters: Tree, down: Record, state: Client, data: Data, group: Tensor) -> tuple[Record, Tree]:
    update = tree.scale(tree.sub(parameters, tree.pick(down["theta"], group)), data.n)
    chosen = torch.where(data.n > 0, group, state.group)
    return {"update": update, "rows": data.n, "group": group}, Client(chosen)


def average(server: Server, replies: Record, validation: Data | None) -> Server:
    # theta_q <- theta_q + sum_{k in q} n_k Delta_k / sum_{k in q} n_k
    present = replies["present"]
    member = one_hot(replies["group"], tree.length(server.theta), present).T * present  # [Q, K]
    share = member / (member * replies["rows"]).sum(1, keepdim=True).clamp_min(1)
    return Server(tree.add(server.theta, tree.weighted_sum(replies["update"], share)))
