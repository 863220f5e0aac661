"""FedMom: Liu et al., Accelerating Federated Learning via Momentum Gradient Descent, IEEE TPDS 2020.

alpha_N = sum_k n_k (theta_k - theta) / sum_k n_k
m     <- beta m + (1 - beta) alpha_N
theta <- theta + m / (1 - beta^t)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from equifed import tree
from equifed.methods.fedavg import MEAN_UPDATE, averaging, weighted_update
from equifed.methods.hyper import hyper
from equifed.protocol import Data, LocalTraining, Method, Phase, Record, Task
from equifed.tree import Tree


class Server(NamedTuple):
    theta: Tree
    """theta, the global model."""
    m: Tree
    """m, the momentum."""
    t: Tensor
    """t, number of rounds applied so far."""
    T: Tensor
    """T, number of planned rounds."""


@dataclass(frozen=True)
class ServerMomentum(Method):
    """The base of FedMom and FedDemon; not itself a method."""

    parent: ClassVar[str] = "fedavg"
    reveals: ClassVar[str] = MEAN_UPDATE

    @property
    def round(self) -> tuple[Phase, ...]:
        return (averaging(LocalTraining(weighted_update), self.step),)

    def init(self, task: Task, parameters: Tree) -> Server:
        zero = tree.zeros(parameters)
        return Server(parameters, tree.zeros_like(parameters), zero, zero + task.rounds)

    def momentum(self, t: Tensor, T: Tensor) -> Tensor | float:
        """Return beta of round t of T."""
        raise NotImplementedError

    def step(self, server: Server, replies: Record, validation: Data | None) -> Server:
        alpha = tree.scale(replies["update"], 1 / replies["rows"].clamp_min(1))
        t = server.t + 1
        beta = self.momentum(t, server.T)
        m = tree.map(lambda old, new: beta * old + (1 - beta) * new, server.m, alpha)
        return Server(tree.add_scaled(server.theta, m, 1 / (1 - beta**t)), m, t, server.T)


@dataclass(frozen=True)
class FedMom(ServerMomentum):
    """FedAvg with momentum at the server."""

    name: ClassVar[str] = "fedmom"

    beta: float = hyper(0.9, low=0, high=0.999, vanishes=True)
    """Momentum; 0 gives FedAvg."""

    def momentum(self, t: Tensor, T: Tensor) -> Tensor | float:
        return self.beta

    def observe(self, server: Server) -> dict[str, Tensor]:
        return {"momentum_norm": tree.squared_norm(server.m).sqrt()}
