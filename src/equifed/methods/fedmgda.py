"""FedMGDA+: Hu et al., Federated Learning Meets Multi-Objective Optimization, IEEE Transactions on Network Science and
Engineering 2022.

client k:  theta_k = theta after local training
server:    g_k = (theta - theta_k) / ||theta - theta_k||
           a = argmin ||sum_k a_k g_k||^2  over the simplex with |a_k - a0_k| <= epsilon
           theta <- theta - eta_t sum_k a_k g_k

With epsilon = 1 the step lowers the loss of every client of the round, or is 0. The lengths of updates have no effect,
so that none dominates by its length; epsilon = 0 is the mean of unit updates with the weights a0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.methods.hyper import hyper
from equifed.protocol import Data, LocalTraining, Method, Phase, Record, Task, Update
from equifed.tree import Tree

STEPS = 200
"""Number of steps of the search for a."""


class Server(NamedTuple):
    theta: Tree
    """theta, the global model."""
    eta: Tensor
    """eta_t, the step of the next round."""
    length: Tensor
    """||sum_k a_k g_k|| of the last round, from 0 (opposite updates) to 1 (equal directions)."""


@dataclass(frozen=True)
class FedMGDA(Method):
    """Move along the shortest mixture of the clients' unit updates, which lowers the loss of every client."""

    name: ClassVar[str] = "fedmgda+"

    epsilon: float = hyper(1.0, low=0, high=1)
    """Largest distance of a client's weight from a0: 1 leaves it free, 0 fixes it."""
    step_size: float = hyper(1.0, low=0)
    """eta of round 1: the length of the longest step, as the updates' own lengths are not used."""
    decay: float = hyper(0.95, low=0, high=1)
    """Factor by which eta is multiplied after every round."""
    start: Literal["equal", "rows"] = hyper("equal", choices=("equal", "rows"))
    """a0: equal for all clients of the round, or in proportion to their rows."""

    @property
    def round(self) -> tuple[Phase, ...]:
        train, updates = LocalTraining(update_and_rows), {"update": Update()}
        return (Phase("train", ("theta",), ("update", "rows"), train, self.step, updates=updates),)

    def init(self, task: Task, parameters: Tree) -> Server:
        zero = tree.zeros(parameters)
        return Server(parameters, zero + self.step_size, zero)

    def step(self, server: Server, replies: Record, validation: Data | None) -> Server:
        delta = torch.cat([leaf.flatten(1) for leaf in tree.leaves(replies["update"])], 1).double()
        norm = delta.square().sum(1).sqrt()
        # updates of 0, which have no direction, are left out
        there = (replies["present"] > 0) & (norm > 0)
        unit = torch.where(there[:, None], delta / norm.clamp_min(1e-30)[:, None], 0.0)
        a0 = there * (replies["rows"] if self.start == "rows" else torch.ones_like(norm))
        a0 = a0.double() / a0.sum().clamp_min(1)
        low, high = (a0 - self.epsilon).clamp_min(0), torch.where(there, (a0 + self.epsilon).clamp_max(1), 0.0)
        a = shortest(unit @ unit.T, a0, low, high)
        scale = (a * server.eta / norm.clamp_min(1e-30)).to(server.eta.dtype)
        theta = tree.add(server.theta, tree.weighted_sum(replies["update"], scale * there))
        return Server(theta, server.eta * self.decay, (a @ unit).square().sum().sqrt().to(server.eta.dtype))

    def observe(self, server: Server) -> dict[str, Tensor]:
        """Return how far the clients agree on the direction, from 0 to 1."""
        return {"direction_length": server.length}


def update_and_rows(parameters: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
    return {"update": tree.sub(parameters, down["theta"]), "rows": data.n}, state


def shortest(products: Tensor, start: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return argmin a' products a over the simplex with low <= a <= high, by accelerated projected gradient steps."""
    rate = 1 / products.square().sum().sqrt().clamp_min(1e-30)  # the Frobenius norm bounds the Lipschitz constant
    a = ahead = start
    for number in range(STEPS):
        new = onto_simplex(ahead - rate * (products @ ahead), low, high)
        ahead = new + number / (number + 3) * (new - a)
        a = new
    return a


def onto_simplex(v: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the closest point of {low <= a <= high, sum = 1}: v - shift, clamped at both ends."""
    # the clamped sum over k of v_k - shift falls piecewise linearly from sum(high) to sum(low): its value at each bend
    bends, order = torch.cat([v - high, v - low]).sort()
    falling = torch.cat([torch.ones_like(v), -torch.ones_like(v)]).gather(0, order).cumsum(0)
    total = high.sum() - torch.cat([v.new_zeros(1), (falling[:-1] * bends.diff()).cumsum(0)])
    last = ((total >= 1).sum() - 1).clamp_min(0).reshape(1)
    shift = bends.gather(0, last) + (total.gather(0, last) - 1) / falling.gather(0, last).clamp_min(1)
    return (v - shift).clamp_min(low).clamp_max(high)
