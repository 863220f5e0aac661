"""FedPer: Arivazhagan et al., Federated Learning with Personalization Layers, arXiv:1912.00818, 2019.

theta = (body, head): the head is the last layer, or the last few; every client has its own head.

client k:  (body_k, head_k) = (body, head_k) after local training on mean loss;  head_k stays with the client
server:    body <- body + sum_k n_k (body_k - body) / sum_k n_k
predict:   client k:  (body, head_k)

All heads start as theta's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from equifed import tree
from equifed.errors import ConfigError
from equifed.methods._personal import fit_client
from equifed.methods._wrapper import derived
from equifed.methods.fedavg import averaging, weighted_update
from equifed.methods.hyper import hyper
from equifed.protocol import Data, LocalTraining, Method, Phase, Record, Server, Start, Task, ignore_replies
from equifed.training import Finish, mean_loss
from equifed.tree import Tree


class Client(NamedTuple):
    head: Tree
    """head_k, the client's own last layers."""


@dataclass(frozen=True)
class FedPer(Method):
    """Share all layers but the last; every client has its own last layer."""

    name: ClassVar[str] = "fedper"
    parent: ClassVar[str] = "fedavg"
    reveals: ClassVar[str] = "the mean update of the layers before the head; the number of rows"
    personal: ClassVar[bool] = derived(lambda self: self.head_layers > 0)
    predicts_with: ClassVar[tuple[str, ...]] = ("body", "head")  # a new client starts from the head

    head_layers: int = hyper(1, low=0, high=10_000, vanishes=True)
    """Number of last layers that stay with the clients; 0 gives FedAvg."""
    final_epochs: int = hyper(0, low=0, high=1_000_000)
    """Passes over the rows for the head alone, by every client after the last round: for heads last trained many rounds
    ago, or never."""

    def check(self, task: Task) -> None:
        layers = layers_of(task.parameters)
        if self.head_layers >= len(layers):
            raise ConfigError(
                f"is {self.head_layers}, and the model has {len(layers)} layer{'s' * (len(layers) > 1)} with "
                "parameters: there is no layer left for the clients to share. Use a model with a hidden layer, such as "
                "an mlp, or a smaller head.",
                key="head_layers",
            )

    # -- exchanges -----------------------------------------------------------------------------------------------------

    @property
    def round(self) -> tuple[Phase, ...]:
        return (averaging(LocalTraining(update_and_head, prepare=both), apply_to_body, ("body",)),)

    @property
    def final(self) -> tuple[Phase, ...]:
        return (head_phase(self.final_epochs, scheduled=False),) if self.final_epochs and self.head_layers else ()

    # -- states --------------------------------------------------------------------------------------------------------

    def init(self, task: Task, parameters: Tree) -> Server:
        # in the model's order, which determines the last layers
        return Server({name: parameters[name] for name in task.parameters})

    def init_client(self, task: Task, parameters: Tree) -> Any:
        return Client(self.split(self.init(task, parameters).theta)[0])

    def split(self, theta: Tree) -> tuple[Tree, Tree]:
        """Return (head, body)."""
        layers = layers_of(theta)
        own = layers[max(len(layers) - int(self.head_layers), 0) :]
        return tree.split(theta, [name for name in theta if layer_of(name) in own])

    def sent(self, server: Any, names: tuple[str, ...]) -> Record:
        head, body = self.split(server.theta)
        return {name: {"head": head, "body": body}[name] for name in names}

    def model_of(self, server: Any, clients: Any) -> Tree:
        return server.theta if hasattr(server, "theta") else {**server.body, **server.head}

    # -- use -----------------------------------------------------------------------------------------------------------

    def predict(self, task: Task, server: Any, client: Any, x: Tensor) -> Tensor:
        return task.predict({**self.model_of(server, ()), **client.head}, x)

    def adapt(self, task: Task, server: Any, data: Data, steps: int) -> Any:
        """Return the state of a client that was not in the training, with a head trained on the fixed body."""
        theta = self.model_of(server, ())
        if not self.personal:
            return super().adapt(task, server, data, steps)
        state, (_, body) = self.init_client(task, theta), self.split(theta)
        start = head_alone({"body": body}, state, data)
        return state._replace(head=fit_client(LocalTraining(keep_head, joined_loss), start, data, steps))


def layer_of(name: str) -> str:
    """Return the layer of a parameter: "2" for "2.weight"."""
    return name.rpartition(".")[0]


def layers_of(names: Iterable[str]) -> list[str]:
    """Return the layers with parameters, in the model's order."""
    return list(dict.fromkeys(map(layer_of, names)))


def joined_loss(trained: Tree, fixed: Tree, batch: Data) -> Tensor:
    """Return the mean loss of a model with a trained part and a fixed part, which is the context."""
    return mean_loss({**fixed, **trained}, (), batch)


def both(down: Record, state: Client, data: Data) -> Start:
    return Start({**down["body"], **state.head})


def update_and_head(parameters: Tree, down: Record, state: Client, data: Data, context: Tree) -> tuple[Record, Client]:
    """Reply n_k (body_k - body) and n_k; keep the head."""
    head, body = tree.split(parameters, state.head)
    return weighted_update(body, {"theta": down["body"]}, (), data, ())[0], state._replace(head=head)


def apply_to_body(server: Any, replies: Record, validation: Data | None) -> Any:
    # body <- body + sum_k n_k (body_k - body) / sum_k n_k; unchanged if no client has rows
    mean = tree.scale(replies["update"], 1 / replies["rows"].clamp_min(1))
    _, body = tree.split(server.theta, server.theta.keys() - mean.keys())
    return server._replace(theta={**server.theta, **tree.add(body, mean)})


def head_alone(down: Record, state: Any, data: Data) -> Start:
    return Start(state.head, context=down["body"])


def keep_head(head: Tree, down: Record, state: Any, data: Data, context: Tree) -> tuple[Record, Any]:
    return {}, state._replace(head=head)


def head_phase(epochs: int, finish: Finish = keep_head, scheduled: bool = True) -> Phase:
    """Return the phase in which clients train their heads on the fixed body."""
    work = LocalTraining(finish, joined_loss, head_alone, epochs=epochs, scheduled=scheduled)
    return Phase("head", ("body",), (), work, ignore_replies, "sum")
