"""IFCA: Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020.

client k:  q_k = argmin_q F_k(theta_q), the model with the lowest loss on its rows (or its known group)
           theta_k = theta_{q_k} after local training
server:    theta_q <- theta_q + sum_{k: q_k = q} n_k (theta_k - theta_q) / sum_{k: q_k = q} n_k

A model that no client chose stays unchanged. The Q models start from different initial parameters.

The server needs only the sums over the clients of each model. So that it sees only these, a client sends an update for
every model, zero except for its own, at Q times the bytes (`summed`).
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
    ignore_replies,
    store_replies,
)
from equifed.tree import Tree


class Client(NamedTuple):
    group: Tensor
    """q_k, the model that the client chose last; -1 for none yet."""


@dataclass(frozen=True)
class IFCA(Method):
    """Train several models; every client trains, and uses, the one that fits it best."""

    name: ClassVar[str] = "ifca"
    reveals: ClassVar[str] = (
        "the mean update of every model, the number of silos that chose it (with known groups, also which) and the "
        "number of their rows: for a model of a single silo, its update"
    )
    personal: ClassVar[bool] = True

    num_groups: int = hyper(2, low=1, high=10_000)
    """Q: number of models."""
    known: bool = hyper(False, choices=(False, True))
    """True: a client's model is that of its known group; false: the one with the lowest loss."""
    min_clients: int = hyper(1, low=1)
    """Smallest number of clients in a round that changes their model. With secure sums, 3 protects the updates of one
    or two clients."""

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
        return () if self.known else (choice_phase(lowest_loss, "theta"),)

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
        return ungrouped(parameters)

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
        """Return predictions of the client's model; for a client that has not chosen, the mean over all models."""
        predictions = vmap(task.predict, (0, None))(server.theta, x)
        return torch.where(client.group < 0, predictions.mean(0), tree.pick(predictions, client.group.clamp_min(0)))


@dataclass(frozen=True)
class SummedIFCA(IFCA):
    """IFCA by Q sums; with `min_clients` above 1, the clients of each model are counted first."""

    @property
    def round(self) -> tuple[Phase, ...]:
        bounds = {"of_model": TABLE, "choices": YES_OR_NO}
        updates = {"update": Update(weight="rows", among="of_model")}
        count = Phase("count", ("theta",), ("choices",), self.count, store_replies, "sum", bounds=bounds)
        train, up = LocalTraining(self.finish, prepare=self.start), ("update", "rows", "of_model", "choices")
        down = ("theta",) if self.min_clients == 1 else ("theta", "choices")
        add = Phase("train", down, up, train, average_each, "sum", bounds=bounds, updates=updates)
        return (add,) if self.min_clients == 1 else (count, add)

    def init(self, task: Task, parameters: Tree) -> Any:
        return SummedServer(parameters, tree.zeros(parameters, self.num_groups))

    def choice(self, group: Tensor, data: Data) -> Tensor:
        """Return 1 for the model that the client chooses, else 0 [Q]; all 0 without rows."""
        return one_hot(group, self.num_groups, data.mask) * (data.n > 0)

    def count(self, down: Record, state: Client, data: Data) -> tuple[Record, Tree]:
        return {"choices": self.choice(self.start(down, state, data).context, data)}, state

    def finish(self, parameters: Tree, down: Record, state: Client, data: Data, group: Tensor) -> tuple[Record, Tree]:
        reply, state = finish(parameters, down, state, data, group)
        mine = self.choice(group, data)
        added = mine if self.min_clients == 1 else mine * (down["choices"] >= self.min_clients)
        update = tree.map(lambda leaf: torch.einsum("q,...->q...", added, leaf), reply["update"])
        return {"update": update, "rows": data.n, "of_model": added * data.n, "choices": mine}, state

    def observe(self, server: SummedServer) -> dict[str, Tensor]:
        return {"fewest_clients": smallest_sum(server.choices, self.min_clients)}


class SummedServer(NamedTuple):
    """The server's state of `SummedIFCA`."""

    theta: Tree
    """theta_q, the models."""
    choices: Tensor
    """Number of clients of the last round that chose each model [Q]."""


def average_each(server: SummedServer, replies: Record, validation: Data | None) -> SummedServer:
    # theta_q <- theta_q + sum_{k in q} n_k Delta_k / sum_{k in q} n_k
    share = 1 / replies["of_model"].clamp_min(1)
    theta = tree.map(lambda p, u: p + torch.einsum("q,q...->q...", share, u), server.theta, replies["update"])
    return SummedServer(theta, replies["choices"])


def smallest_sum(clients: Tensor, least: int) -> Tensor:
    """Return the smallest number of clients in a sum, among sums over at least `least` clients; 1 means that the sum is
    a single client's reply. 0: there was no sum."""
    some = torch.where((clients > 0) & (clients >= least), clients, torch.inf).amin()
    return torch.where(some.isinf(), 0.0, some)


def ungrouped(parameters: Tree) -> Client:
    """Return the state of a client without a group."""
    return Client(torch.tensor(-1, device=tree.prototype(parameters).device))


def keep_known_group(down: Record, state: Client, data: Data) -> tuple[Record, Tree]:
    assert data.client_group is not None
    return {}, Client(data.client_group)


KNOWN_GROUPS = Phase("group", (), (), keep_known_group, ignore_replies, "sum")


def choice_phase(group: Callable[[Tree, Data], Tensor], models: str, **options: Any) -> Phase:
    """Return the phase in which all clients choose among the final models."""

    def choose(down: Record, state: Client, data: Data) -> tuple[Record, Tree]:
        return {}, Client(torch.where(data.n > 0, group(down[models], data), state.group))

    return Phase("choose", (models,), (), choose, ignore_replies, "sum", **options)


def lowest_loss(theta: Tree, data: Data) -> Tensor:
    """Return argmin_q of the mean loss on the client's rows; of losses equal up to rounding, the first, so that the
    choice between equal models does not depend on the machine."""

    def risk(theta: Tree) -> Tensor:
        return data.mean(data.task.row_loss(theta, data.x, data.y))

    return first_least(vmap(risk)(theta))


def finish(parameters: Tree, down: Record, state: Client, data: Data, group: Tensor) -> tuple[Record, Tree]:
    update = tree.scale(tree.sub(parameters, tree.pick(down["theta"], group)), data.n)
    chosen = torch.where(data.n > 0, group, state.group)
    return {"update": update, "rows": data.n, "group": group}, Client(chosen)
