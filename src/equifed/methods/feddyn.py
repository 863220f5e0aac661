"""FedDyn: Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021.

client k:  theta_k minimises  mean loss - <h_k, theta_k> + (alpha/2) ||theta_k - theta||^2,  from theta
           h_k <- h_k - alpha (theta_k - theta),  0 at the start: the gradient of its loss at theta_k
server:    h     <- h - alpha (1/N) sum_k (theta_k - theta)           over the clients of the round
           theta <- mean of their theta_k - h / alpha

N = number of all clients with rows, so that h is the mean of h_k over them. All clients with rows count equally.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from equifed import tree
from equifed.methods._drift import CLIENTS, total_weight, weight_of
from equifed.methods.hyper import hyper
from equifed.protocol import Data, EmpiricalRisk, LocalTraining, Method, Phase, Record, Start, Task, Update
from equifed.tree import Tree


class Server(NamedTuple):
    theta: Tree
    """theta, the global model."""
    h: Tree
    """h, the mean of all h_k."""
    total: Tensor
    """N, number of clients with rows."""


class Client(NamedTuple):
    h: Tree
    """h_k, the gradient of the client's loss at its last model."""


@dataclass(frozen=True)
class FedDyn(Method):
    """Change every client's loss from round to round so that its minimum moves to that of all clients."""

    name: ClassVar[str] = "feddyn"
    reveals: ClassVar[str] = (
        "the mean update, which roughly discloses the clients' mean share of each label; the number of clients with "
        "rows"
    )

    alpha: float = hyper(0.1, low=1e-4)
    """Weight of the regularisation: small values move far in a round, large values are stable."""

    @property
    def setup(self) -> tuple[Phase, ...]:
        return (total_weight(CLIENTS),)

    @property
    def round(self) -> tuple[Phase, ...]:
        train = LocalTraining(self.reply, EmpiricalRisk(mu=self.alpha, linear="slope"), regularise)
        updates = {"update": Update(weight=CLIENTS)}
        return (Phase("train", ("theta",), ("update", CLIENTS), train, self.step, "sum", updates=updates),)

    def init(self, task: Task, parameters: Tree) -> Server:
        return Server(parameters, tree.zeros_like(parameters), tree.zeros(parameters))

    def init_client(self, task: Task, parameters: Tree) -> Client:
        return Client(tree.zeros_like(parameters))

    def reply(self, parameters: Tree, down: Record, state: Client, data: Data, context: Tree) -> tuple[Record, Client]:
        update = tree.sub(parameters, down["theta"])  # 0 without rows, which take no steps
        return {"update": update, CLIENTS: weight_of(CLIENTS, data)}, Client(
            tree.add_scaled(state.h, update, -self.alpha)
        )

    def step(self, server: Server, replies: Record, validation: Data | None) -> Server:
        update, present, N = replies["update"], replies[CLIENTS], server.total
        h = tree.add_scaled(server.h, update, -self.alpha / N.clamp_min(1))
        mean = tree.add_scaled(server.theta, update, 1 / present.clamp_min(1))
        # if no client has rows, the round is skipped: h alone would move theta
        moved = tree.add_scaled(mean, h, -(present > 0).to(N.dtype) / self.alpha)
        return server._replace(theta=moved, h=h)

    def observe(self, server: Server) -> dict[str, Tensor]:
        return {"h_norm": tree.squared_norm(server.h).sqrt()}


def regularise(down: Record, state: Client, data: Data) -> Start:
    return Start(down["theta"], context={"centre": down["theta"], "slope": tree.scale(state.h, -1.0)})
