"""SCAFFOLD: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020.

c_k, kept by the client, and c, kept by the server, estimate the gradients of client k and of all; both 0 at the start

client k:  y <- y - eta (gradient of the batch at y + c - c_k),  K_k steps from theta
           c_k' = c_k - c + (theta - y) / (K_k eta)                                            (option II)
server:    theta <- theta + eta_g sum_k w_k (y - theta) / sum_k w_k            over the clients of the round
           c     <- c + sum_k w_k (c_k' - c_k) / W                   so that c is the mean of c_k over all clients

w_k = n_k (or 1), W = sum of w_k over all clients. The correction is the gradient of a linear term, <c - c_k, y>.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.errors import ConfigError
from equifed.methods._drift import CLIENTS, ROWS, local_steps, total_weight, weight_of
from equifed.methods.fedavg import MEAN_UPDATE
from equifed.methods.hyper import hyper
from equifed.protocol import Data, EmpiricalRisk, LocalTraining, Method, Phase, Record, Start, Task, Update
from equifed.tree import Tree


class Server(NamedTuple):
    theta: Tree
    """theta, the global model."""
    c: Tree
    """c, the control variate of the server: the mean of all c_k."""
    total: Tensor
    """W, the sum of all clients' weights."""


class Client(NamedTuple):
    c: Tree
    """c_k, the client's control variate: its mean gradient when it last took part."""


@dataclass(frozen=True)
class Scaffold(Method):
    """Correct every local step by the difference of the client's gradient from that of all clients."""

    name: ClassVar[str] = "scaffold"
    reveals: ClassVar[str] = f"{MEAN_UPDATE}; the mean change of the clients' gradients, which discloses nothing more"

    global_step_size: float = hyper(1.0, low=0)
    """eta_g: the server's step along the mean update; 1 gives the mean of the clients' models."""
    weights: Literal["rows", "uniform"] = hyper("rows", choices=("rows", "uniform"))
    """Weights of clients: their rows, or uniform, as in the paper."""

    @property
    def weight(self) -> str:
        return ROWS if self.weights == "rows" else CLIENTS

    @property
    def setup(self) -> tuple[Phase, ...]:
        return (total_weight(self.weight),)

    @property
    def round(self) -> tuple[Phase, ...]:
        train = LocalTraining(self.reply, EmpiricalRisk(linear="correction"), correct)
        up, weight = ("update", "control", self.weight), Update(weight=self.weight)
        updates = {"update": weight, "control": weight}
        return (Phase("train", ("theta", "c"), up, train, self.step, "sum", updates=updates),)

    def init(self, task: Task, parameters: Tree) -> Server:
        return Server(parameters, tree.zeros_like(parameters), tree.zeros(parameters))

    def init_client(self, task: Task, parameters: Tree) -> Client:
        return Client(tree.zeros_like(parameters))

    def check(self, task: Task) -> None:
        if task.local.optimizer != "sgd" or task.local.momentum:
            raise ConfigError(
                f"{self.name} computes a client's mean gradient from its local steps, which must be plain SGD, without "
                "momentum or Adam. Train locally with optimizer = sgd and momentum = 0; for Adam at the server use "
                "scaffold@adam."
            )

    def reply(self, y: Tree, down: Record, state: Client, data: Data, context: Tree) -> tuple[Record, Client]:
        steps, weight = local_steps(data), weight_of(self.weight, data)
        update = tree.sub(y, down["theta"])
        # c_k' - c_k = -c + (theta - y) / (K eta); 0 for a client without rows
        pace = 1 / (steps.clamp_min(1) * data.learning_rate)
        change = tree.map(lambda c, u: torch.where(steps > 0, -c - u * pace, 0.0), down["c"], update)
        reply = {"update": tree.scale(update, weight), "control": tree.scale(change, weight), self.weight: weight}
        return reply, Client(tree.add(state.c, change))

    def step(self, server: Server, replies: Record, validation: Data | None) -> Server:
        share = self.global_step_size / replies[self.weight].clamp_min(1)
        theta = tree.add_scaled(server.theta, replies["update"], share)
        return server._replace(
            theta=theta, c=tree.add_scaled(server.c, replies["control"], 1 / server.total.clamp_min(1))
        )

    def observe(self, server: Server) -> dict[str, Tensor]:
        return {"control_norm": tree.squared_norm(server.c).sqrt()}


def correct(down: Record, state: Any, data: Data) -> Start:
    return Start(down["theta"], context={"correction": tree.sub(down["c"], state.c)})
