"""FedDemon: Fernandes et al., Decay Momentum for Improving Federated Learning, ESANN 2021.

FedMom with a momentum that decays to 0 over the T rounds:

    beta_t = beta0 (1 - t/T) / ((1 - beta0) + beta0 (1 - t/T))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from equifed import tree
from equifed.methods.fedavg import BY_ROWS, weighted_update
from equifed.methods.fedmom import Server as Momentum
from equifed.methods.fedmom import momentum_step
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
    T: Tensor
    """T, rounds planned."""


def decayed(beta0: Tensor | float, t: Tensor, T: Tensor) -> Tensor:
    """beta_t = beta0 (1 - t/T) / ((1 - beta0) + beta0 (1 - t/T)): beta0 at the start, 0 in the last round."""
    left = 1 - t / T
    return beta0 * left / ((1 - beta0) + beta0 * left)


@dataclass(frozen=True)
class FedDemon(Method):
    """FedAvg with a momentum at the server that decays over the rounds."""

    name: ClassVar[str] = "feddemon"
    parent: ClassVar[str] = "fedavg"

    beta0: float = hyper(0.9, low=0, high=0.999, vanishes=True)
    """Momentum of the first rounds; 0 gives FedAvg."""

    @property
    def round(self) -> tuple[Phase, ...]:
        train = LocalTraining(weighted_update)
        return (Phase("train", ("theta",), ("update", "rows"), train, self.step, "sum", updates=BY_ROWS),)

    def init(self, task: Task, parameters: Tree) -> Server:
        zero = tree.zeros(parameters)
        return Server(parameters, tree.zeros_like(parameters), zero, zero + task.rounds)

    def step(self, server: Server, replies: Record, validation: Data | None) -> Server:
        alpha = tree.scale(replies["update"], 1 / replies["rows"].clamp_min(1))
        beta = decayed(self.beta0, server.t + 1, server.T)
        return Server(*momentum_step(Momentum(server.theta, server.m, server.t), alpha, beta), server.T)

    def observe(self, server: Server) -> dict[str, Tensor]:
        return {"beta": decayed(self.beta0, server.t, server.T)}
