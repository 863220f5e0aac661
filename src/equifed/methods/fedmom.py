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
from equifed.methods.fedavg import BY_ROWS, weighted_update
from equifed.methods.hyper import hyper
from equifed.protocol import Data, LocalTraining, Method, Phase, Record, Task
from equifed.tree import Tree


class Server(NamedTuple):
    theta: Tree
    """theta, the global model."""
    m: Tree
    """m, the momentum."""
    t: Tensor
    """t, rounds applied so far."""


def momentum_step(server: Server, alpha: Tree, beta: Tensor | float) -> Server:
    """m <- beta m + (1-beta) alpha;  theta <- theta + m / (1 - beta^t)."""
    t = server.t + 1
    m = tree.map(lambda old, new: beta * old + (1 - beta) * new, server.m, alpha)
    return Server(tree.add_scaled(server.theta, m, 1 / (1 - beta**t)), m, t)


@dataclass(frozen=True)
class FedMom(Method):
    """FedAvg with momentum at the server."""

    name: ClassVar[str] = "fedmom"
    parent: ClassVar[str] = "fedavg"

    beta: float = hyper(0.9, low=0, high=0.999, vanishes=True)
    """Momentum; 0 gives FedAvg."""

    @property
    def round(self) -> tuple[Phase, ...]:
        train = LocalTraining(weighted_update)
        return (Phase("train", ("theta",), ("update", "rows"), train, self.step, "sum", updates=BY_ROWS),)

    def init(self, task: Task, parameters: Tree) -> Server:
        return Server(parameters, tree.zeros_like(parameters), tree.zeros(parameters))

    def step(self, server: Server, replies: Record, validation: Data | None) -> Server:
        return momentum_step(server, tree.scale(replies["update"], 1 / replies["rows"].clamp_min(1)), self.beta)

    def observe(self, server: Server) -> dict[str, Tensor]:
        return {"momentum_norm": tree.squared_norm(server.m).sqrt()}
