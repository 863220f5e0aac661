"""Local training without any exchange: the baseline that shows a client's gain from federated training.

client k:  theta_k <- theta_k after local training, kept by the client
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from equifed.protocol import Data, LocalTraining, Method, Phase, Record, Start, Task, ignore_replies
from equifed.tree import Tree


class Client(NamedTuple):
    theta: Tree
    """theta_k, the client's own model."""


@dataclass(frozen=True)
class LocalOnly(Method):
    """Every client trains alone on its own rows and keeps its model."""

    name: ClassVar[str] = "local"
    reveals: ClassVar[str] = "nothing: clients do not reply"
    personal: ClassVar[bool] = True
    predicts_with: ClassVar[tuple[str, ...]] = ()

    @property
    def round(self) -> tuple[Phase, ...]:
        return (Phase("train", (), (), LocalTraining(keep, prepare=from_own), server=ignore_replies, gather="sum"),)

    def init(self, task: Task, parameters: Tree) -> Tree:
        return ()  # the server has no state

    def init_client(self, task: Task, parameters: Tree) -> Client:
        return Client(parameters)


def from_own(down: Record, state: Client, data: Data) -> Start:
    return Start(state.theta)


def keep(parameters: Tree, down: Record, state: Client, data: Data, context: Tree) -> tuple[Record, Client]:
    return {}, Client(parameters)
