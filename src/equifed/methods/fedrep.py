"""FedRep: Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021.

theta = (body, head) as in FedPer, but a client trains first its head, then the body:

client k:  head_k <- head_k after E_h epochs with the received body;  head_k stays with the client
           body_k = body after E_b epochs with the new head_k
server:    body <- body + sum_k n_k (body_k - body) / sum_k n_k
predict:   client k:  (body, head_k)

After the last round every client trains its head once more, on the final body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from equifed.methods.fedavg import averaging, weighted_update
from equifed.methods.fedper import FedPer, apply_to_body, head_phase, joined_loss
from equifed.methods.hyper import hyper
from equifed.protocol import Data, LocalTraining, Phase, Record, Start, Task
from equifed.tree import Tree


class Client(NamedTuple):
    head: Tree
    """head_k, the client's own last layers."""
    body: Tree
    """The body as received for the head, so that it is not sent again."""


@dataclass(frozen=True)
class FedRep(FedPer):
    """Share all layers but the last, as FedPer; each client trains first its own head, then the shared layers."""

    name: ClassVar[str] = "fedrep"
    parent: ClassVar[str] = ""

    head_layers: int = hyper(1, low=0, high=10_000)
    """Number of last layers that stay with the clients; 0 gives FedAvg with `body_epochs` epochs."""
    final_epochs: int = hyper(10, low=0, high=1_000_000)
    """Passes over the rows for the head alone, by every client after the last round."""
    head_epochs: int = hyper(4, low=0, high=1_000_000)
    """E_h: passes over the rows for the head in a round; 0 leaves the heads at their initial values."""
    body_epochs: int = hyper(1, low=1, high=1_000_000)
    """E_b: passes over the rows for the shared layers, after those for the head."""

    @property
    def round(self) -> tuple[Phase, ...]:
        work = LocalTraining(update_of_body, joined_loss, body_alone, epochs=self.body_epochs)
        if not self.head_epochs or not self.head_layers:
            return (averaging(work, apply_to_body, ("body",)),)
        return (head_phase(self.head_epochs, keep_both), averaging(work, apply_to_body, ()))

    def init_client(self, task: Task, parameters: Tree) -> Any:
        return Client(*self.split(self.init(task, parameters).theta))


def body_before(down: Record, state: Client) -> Tree:
    return down.get("body", state.body)


def body_alone(down: Record, state: Client, data: Data) -> Start:
    return Start(body_before(down, state), context=state.head)


def keep_both(head: Tree, down: Record, state: Client, data: Data, context: Tree) -> tuple[Record, Client]:
    return {}, Client(head, down["body"])


def update_of_body(body: Tree, down: Record, state: Client, data: Data, context: Tree) -> tuple[Record, Client]:
    """Reply n_k (body_k - body) and n_k."""
    return weighted_update(body, {"theta": body_before(down, state)}, (), data, ())[0], state
