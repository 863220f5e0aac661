"""IFCA: Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020.

client k:  q_k = argmin_q F_k(theta_q), the model with the lowest loss on its rows (or its known group)
           theta_k = theta_{q_k} after local training
server:    theta_q <- theta_q + sum_{k: q_k = q} n_k (theta_k - theta_q) / sum_{k: q_k = q} n_k

A model that nobody chose stays as it is. The Q models start from different initial parameters.

The sums over the clients of each model are all that the server needs. To have it see nothing else, a client sends an
update for every model, zero but for its own, at Q times the bytes (`summed`).
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
from equifed.methods._ties import first_least
from equifed.methods.hyper import hyper
from equifed.protocol import (
    TABLE,
    YES_OR_NO,
    Bound,
    Data,
    LocalTraining,
    Method,
    Phase,
    Record,
    Server,
    Start,
    Task,
    Update,
    kept,
    unchanged,
)
from equifed.tree import Tree


class Client(NamedTuple):
    group: Tensor
    """q_k, the model that the client chose last; -1 until it has."""


@dataclass(frozen=True)
class IFCA(Method):
    """Train several models; every client trains, and uses, the one that suits it best."""

    name: ClassVar[str] = "ifca"
    reveals: ClassVar[str] = (
        "the mean update of every model, how many chose it (who, only with known groups) and how many rows they have: "
        "of a single one, its update"
    )
    personal: ClassVar[bool] = True

    num_groups: int = hyper(2, low=1, high=10_000)
    """Q: how many models."""
    known: bool = hyper(False, choices=(False, True))
    """Whether a client's model is that of its known group, instead of the one with the lowest loss."""
    min_clients: int = hyper(1, low=1)
    """A model that fewer clients choose in a round stays as it is. With secure sums, 3 keeps the updates of one or two
    to themselves."""

    @property
    def setup(self) -> tuple[Phase, ...]:
        return (KNOWN_GROUPS,) if self.known else ()

    @property
    def round(self) -> tuple[Phase, ...]:
        train, up = LocalTraining(finish, prepare=self.start), ("update", "rows", "group")
        bounds = {"group": Bound(-1, self.num_groups - 1, whole=True)}
        updates = {"update": Update(weight="rows", among="group")}
        return (Phase("train", ("theta",), up, train, self.average, bounds=bounds, updates=updates),)

    @property
    def final(self) -> tuple[Phase, ...]:
        return () if self.known else (choosing(lowest_loss, "theta"),)

    @property
    def summed(self) -> Method:
        return SummedIFCA(**self.hyper)

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

    def average(self, server: Server, replies: Record, validation: Data | None) -> Server:
        # theta_q <- theta_q + sum_{k in q} n_k Delta_k / sum_{k in q} n_k
        present, rows = replies["present"], replies["rows"]
        member = one_hot(replies["group"], self.num_groups, present).T * present  # [Q, K]
        enough = (member * (rows > 0)).sum(1, keepdim=True) >= self.min_clients
        share = member * enough / (member * rows).sum(1, keepdim=True).clamp_min(1)
        return Server(tree.add(server.theta, tree.weighted_sum(replies["update"], share)))

    def predict(self, task: Task, server: Server, client: Client, x: Tensor) -> Tensor:
        """Those of the client's model; the mean over all models for a client that has not chosen."""
        predictions = vmap(task.predict, (0, None))(server.theta, x)
        return torch.where(client.group < 0, predictions.mean(0), tree.pick(predictions, client.group.clamp_min(0)))


@dataclass(frozen=True)
class SummedIFCA(IFCA):
    """IFCA by Q sums; if one can be over too few clients, they count themselves before they add up."""

    @property
    def round(self) -> tuple[Phase, ...]:
        bounds = {"of_model": TABLE, "choices": YES_OR_NO}
        updates = {"update": Update(weight="rows", among="of_model")}
        count = Phase("count", ("theta",), ("choices",), self.count, kept, "sum", bounds=bounds)
        train, up = LocalTraining(self.finish, prepare=self.start), ("update", "rows", "of_model", "choices")
        down = ("theta",) if self.min_clients == 1 else ("theta", "choices")
        add = Phase("train", down, up, train, average_each, "sum", bounds=bounds, updates=updates)
        return (add,) if self.min_clients == 1 else (count, add)

    def init(self, task: Task, parameters: Tree) -> Any:
        return Counted(parameters, tree.zeros(parameters, self.num_groups))

    def choice(self, group: Tensor, data: Data) -> Tensor:
        """1 for the model that the client chooses [Q], if it has rows."""
        return one_hot(group, self.num_groups, data.mask) * (data.n > 0)

    def count(self, down: Record, state: Client, data: Data) -> tuple[Record, Tree]:
        return {"choices": self.choice(self.start(down, state, data).context, data)}, state

    def finish(self, parameters: Tree, down: Record, state: Client, data: Data, group: Tensor) -> tuple[Record, Tree]:
        reply, state = finish(parameters, down, state, data, group)
        mine = self.choice(group, data)
        added = mine if self.min_clients == 1 else mine * (down["choices"] >= self.min_clients)
        update = tree.map(lambda leaf: torch.einsum("q,...->q...", added, leaf), reply["update"])
        return {"update": update, "rows": data.n, "of_model": added * data.n, "choices": mine}, state

    def observe(self, server: Counted) -> dict[str, Tensor]:
        return {"fewest_clients": fewest(server.choices, self.min_clients)}


class Counted(NamedTuple):
    """The server's state where it sees sums."""

    theta: Tree
    """theta_q, the models."""
    choices: Tensor
    """How many clients of the last round chose each [Q]."""


def average_each(server: Counted, replies: Record, validation: Data | None) -> Counted:
    # theta_q <- theta_q + sum_{k in q} n_k Delta_k / sum_{k in q} n_k
    share = 1 / replies["of_model"].clamp_min(1)
    theta = tree.map(lambda p, u: p + torch.einsum("q,q...->q...", share, u), server.theta, replies["update"])
    return Counted(theta, replies["choices"])


def fewest(clients: Tensor, least: int) -> Tensor:
    """The smallest number of clients that a sum was over, of those that are over at least so many: where it is 1, the
    sum is that client's reply. 0: there was none."""
    some = torch.where((clients > 0) & (clients >= least), clients, torch.inf).amin()
    return torch.where(some.isinf(), 0.0, some)


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

    return first_least(vmap(risk)(theta))


def finish(parameters: Tree, down: Record, state: Client, data: Data, group: Tensor) -> tuple[Record, Tree]:
    update = tree.scale(tree.sub(parameters, tree.pick(down["theta"], group)), data.n)
    chosen = torch.where(data.n > 0, group, state.group)
    return {"update": update, "rows": data.n, "group": group}, Client(chosen)
