"""Local training without any exchange: the baseline that shows what federating gains a client.

client k:  theta_k <- theta_k after local training, kept by the client
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from equifed.protocol import Data, LocalTraining, Method, Phase, Record, Start, Task, unchanged
from equifed.tree import Tree


class Client(NamedTuple):
    theta: Tree
    """theta_k, the client's own model."""


@dataclass(frozen=True)
class LocalOnly(Method):
    """Every client trains alone on its own rows and keeps its model."""

    name: ClassVar[str] = "local"
    reveals: ClassVar[str] = "nothing: no reply leaves a client"
    personal: ClassVar[bool] = True
    predicts_with: ClassVar[tuple[str, ...]] = ()

    @property
    def round(self) -> tuple[Phase, ...]:
        return (Phase("train", (), (), LocalTraining(keep, prepare=go_on), server=unchanged, gather="sum"),)

    def init(self, task: Task, parameters: Tree) -> Tree:
        return ()  # the server knows nothing

    def init_client(self, task: Task, parameters: Tree) -> Client:
        return Client(parameters)


def go_on(down: Record, state: Client, data: Data) -> Start:
    return Start(state.theta)


def keep(parameters: Tree, down: Record, state: Client, data: Data, context: Tree) -> tuple[Record, Client]:
    return {}, Client(parameters)
