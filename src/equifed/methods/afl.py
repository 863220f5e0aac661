"""AFL: Mohri, Sivek and Suresh, Agnostic Federated Learning, ICML 2019.

min over theta, max over the simplex of a:  sum_k a_k F_k(theta)

client k:  F_k = loss of theta on its rows;  theta_k = theta after local training
server:    theta <- theta + sum_k a_k (theta_k - theta) / sum_k a_k
           a <- projection of a + gamma F on the simplex,  F at the theta that was sent;  a = n_k / n at the start
           `average`: the result is the mean of theta after rounds 1, ..., t

The paper takes one gradient step a round: `Local(epochs=1, batch_size=None)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.methods._by_loss import CLIENTS, loss_phase, move_theta
from equifed.methods._wrapper import derived
from equifed.methods.fedminmax import project
from equifed.methods.hyper import hyper
from equifed.protocol import Data, Knob, Method, Phase, Record, Task
from equifed.tree import Tree


class Server(NamedTuple):
    theta: Tree
    """theta, the model that is trained."""
    a: Tensor
    """a [K], the adversary's weight of each client."""
    rows: Tensor
    """n_k [K]."""
    t: Tensor
    """Number of rounds so far."""
    before: Tree
    """The mean of theta after all rounds but the last; () without `average`."""


@dataclass(frozen=True)
class AFL(Method):
    """Minimise the loss of the worst client: an adversary shifts weight to the clients with high loss."""

    name: ClassVar[str] = "afl"
    parent: ClassVar[str] = "fedavg"
    knob: ClassVar[Knob | None] = Knob("adversary_rate", 1e-3, 1.0, CLIENTS, neutral=0.0)
    predicts_with: ClassVar[tuple[str, ...]] = derived(
        lambda self: ("theta", "t", "before") if self.average else ("theta",)
    )

    adversary_rate: float = hyper(0.1, low=0, vanishes=True)
    """gamma: step of the adversary, usually 0.01 to 0.1; 0 leaves the weights as they start."""
    start: str = hyper("rows", choices=("rows", "equal"))
    """a at the start: "rows" for n_k / n, as in FedAvg, or "equal" for 1 / K."""
    average: bool = hyper(False)
    """True: the result is the mean of the models after all rounds, as in the paper; false: the last model."""

    @property
    def setup(self) -> tuple[Phase, ...]:
        def count(down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
            return {"rows": data.n}, state

        return (Phase("count", (), ("rows",), count, self.begin),)

    @property
    def round(self) -> tuple[Phase, ...]:
        return (loss_phase(self.step),)

    def init(self, task: Task, parameters: Tree) -> Server:
        by_client = tree.zeros(parameters, task.num_clients)
        before = tree.zeros_like(parameters) if self.average else ()
        return Server(parameters, by_client, by_client, tree.zeros(parameters), before)

    def begin(self, server: Server, replies: Record, validation: Data | None) -> Server:
        rows = server.rows.scatter_add(0, replies["client"], replies["present"] * replies["rows"])
        start = rows if self.start == "rows" else (rows > 0).to(rows.dtype)
        return server._replace(rows=rows, a=start / start.sum().clamp_min(1))

    def step(self, server: Server, replies: Record, validation: Data | None) -> Server:
        who, present = replies["client"], replies["present"]
        theta = move_theta(server.theta, replies, present * server.a.gather(0, who))
        answered = present * (replies["rows"] > 0)
        mean = (answered * replies["loss"]).sum() / answered.sum().clamp_min(1)
        # an absent client counts with the mean of the others, which the projection takes off
        F = (mean + torch.zeros_like(server.a)).scatter_add(0, who, answered * (replies["loss"] - mean))
        # a client without training rows keeps weight 0
        a = project(torch.where(server.rows > 0, server.a + self.adversary_rate * F, -torch.inf))
        # the initial model is not part of the mean
        before = tree.scale(self.model_of(server, ()), (server.t > 0).to(a.dtype)) if self.average else ()
        return Server(theta, a, server.rows, server.t + 1, before)

    def model_of(self, server: Server, clients: Tree) -> Tree:
        if not self.average:
            return server.theta
        return tree.map(lambda m, p: m + (p - m) / server.t.clamp_min(1), server.before, server.theta)

    def observe(self, server: Server) -> dict[str, Tensor]:
        """Return the largest ratio of a client's weight to its share of the rows."""
        share = server.rows / server.rows.sum().clamp_min(1)
        return {"largest_weight": torch.where(share > 0, server.a / share.clamp_min(1e-12), 0.0).max()}
