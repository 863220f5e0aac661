"""APFL: Deng, Kamani, Mahdavi, Adaptive Personalized Federated Learning, arXiv:2003.13461, 2020.

Client k has its own model v_k with the weight a_k, 1/2 at the start; w is the common model.

client k:  in every step, with  mix = a_k v_k + (1 - a_k) w_k  and all gradients at the same point,
           w_k <- w_k - eta grad f(w_k),                        from w
           v_k <- v_k - eta a_k grad f(mix)
           a_k <- a_k - eta <v_k - w_k, grad f(mix)>,           then clipped to [0, 1]
server:    w <- w + sum_k n_k (w_k - w) / sum_k n_k;            v_k and a_k stay with the client
predict:   client k:  a_k v_k + (1 - a_k) w

w is trained as in FedAvg; with every a_k fixed at 0 the predictions are FedAvg's, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.methods._personal import fit_client
from equifed.methods.fedavg import MEAN_UPDATE, averaging, weighted_update
from equifed.methods.hyper import hyper
from equifed.protocol import Data, LocalTraining, Method, Phase, Record, Start, Task
from equifed.training import mean_loss
from equifed.tree import Tree


class Client(NamedTuple):
    v: Tree
    """v_k, the client's own model."""
    a: Tensor
    """a_k, the weight of its own model in the mixture."""
    trained: Tensor
    """1 once the client has trained v_k and a_k; until then it predicts with w."""


@dataclass(frozen=True)
class APFL(Method):
    """Mix the common model with each client's own model, by a weight that the client learns."""

    name: ClassVar[str] = "apfl"
    reveals: ClassVar[str] = MEAN_UPDATE
    personal: ClassVar[bool] = True

    mixing: float = hyper(0.5, low=0, high=1)
    """a_k at the start: 0 is the common model, 1 a client's own."""
    adaptive: bool = True
    """True if clients learn a_k; false: it stays at `mixing`."""

    @property
    def round(self) -> tuple[Phase, ...]:
        return (averaging(LocalTraining(reply, loss, self.start, after_step=clip_mixing if self.adaptive else None)),)

    def init_client(self, task: Task, parameters: Tree) -> Client:
        zero = tree.zeros(parameters)
        return Client(parameters, zero + self.mixing, zero)

    def start(self, down: Record, state: Client, data: Data) -> Start:
        w = down["theta"]
        # v_k starts from w when the client first trains: from the initial model, if that is round 1
        v = tree.where(state.trained > 0, state.v, w)
        if self.adaptive:
            return Start({"w": w, "v": v, "a": state.a}, context={})
        return Start({"w": w, "v": v}, context={"a": state.a})

    def predict(self, task: Task, server: Any, client: Client, x: Tensor) -> Tensor:
        return task.predict(mixture(client.a * client.trained, client.v, server.theta), x)

    def adapt(self, task: Task, server: Any, data: Data, steps: int) -> Client:
        """Return v and a of a client that was not in the training, after steps with w fixed."""
        state = self.init_client(task, server.theta)
        (parameters, context, _) = self.start({"theta": server.theta}, state, data)
        w = parameters.pop("w")
        work = LocalTraining(reply, loss, after_step=clip_mixing)
        found = fit_client(work, Start(parameters, {**context, "w": w}), data, steps)
        return Client(found["v"], found.get("a", state.a), torch.ones_like(state.trained))


def mixture(a: Tensor, v: Tree, w: Tree) -> Tree:
    """Return a v + (1 - a) w, with a slope in a of exactly 0 if v = w: Adam turns any rounding error into a step."""
    return tree.map(lambda v, w: w + a * (v - w), v, w)


def loss(parameters: Tree, context: Tree, batch: Data) -> Tensor:
    """Return f(w) + f(a v + (1 - a) w) with w fixed in the mixture: its gradients are those of the three updates."""
    w, v, a = ({**context, **parameters}[name] for name in ("w", "v", "a"))
    both = mean_loss(w, (), batch) + mean_loss(mixture(a, v, tree.map(torch.detach, w)), (), batch)
    if "a" not in parameters:
        return both
    # weight decay is for models: compensate the optimiser's addition to the slope of a
    return both - batch.task.local.weight_decay / 2 * a.square()


def clip_mixing(parameters: Tree, context: Tree, batch: Data) -> Tree:
    """Clip a to [0, 1]."""
    return {**parameters, "a": parameters["a"].clamp(0, 1)} if "a" in parameters else parameters


def reply(parameters: Tree, down: Record, state: Client, data: Data, context: Tree) -> tuple[Record, Client]:
    """Reply for w as in FedAvg; v and a stay with the client."""
    trained = torch.maximum(state.trained, (data.n > 0).to(data.mask.dtype))  # without rows nothing is learned
    kept = Client(parameters["v"], parameters.get("a", state.a), trained)
    return weighted_update(parameters["w"], down, (), data, ())[0], kept
