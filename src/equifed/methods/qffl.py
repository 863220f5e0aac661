"""q-FFL (q-FedAvg): Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020.

client k:  F_k = loss of theta on all its rows;  dw_k = L (theta - theta_k) after local training,  L = 1 / learning rate
           Delta_k = F_k^q dw_k;  h_k = q F_k^(q-1) ||dw_k||^2 + L F_k^q
server:    theta <- theta - sum_k Delta_k / sum_k h_k

The larger q, the more clients with a high loss count; q = 0 is the unweighted mean of the clients' models. The server
needs only the two sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from equifed import fixed_point, tree
from equifed.methods._by_loss import CLIENTS
from equifed.methods.hyper import hyper
from equifed.protocol import (
    WRONG,
    Bound,
    Data,
    Knob,
    LocalTraining,
    Method,
    Phase,
    Record,
    Task,
    Update,
    worst_loss,
)
from equifed.tree import Tree

EPSILON = 1e-10
"""Constant added to F_k, so that negative powers of a loss of 0 are defined."""
STEEPEST = 1e10
"""Largest ||dw_k||^2 / F_k: T descending steps of 1/L have ||dw_k||^2 <= 2 L T F_k."""


@dataclass(frozen=True)
class QFFL(Method):
    """Give clients with a higher loss more weight, so that accuracies become more equal."""

    name: ClassVar[str] = "q-ffl"
    reveals: ClassVar[str] = (
        "the sum of updates, each weighted by its silo's loss, and the sum of their steepness, which roughly discloses "
        "the mean loss; that of the first model exactly"
    )
    knob: ClassVar[Knob | None] = Knob("q", 0.01, 10.0, CLIENTS, neutral=0.0)

    q: float = hyper(0.1, low=0, high=100)
    """Exponent of the loss in a client's weight; 0 is the unweighted mean of the clients' models."""

    @property
    def round(self) -> tuple[Phase, ...]:
        updates = {"delta": Update(weight="h")}  # Delta_k / h_k: the step of client k if it were alone
        work, bounds = LocalTraining(self.reply), {"h": Bound(low=0, norm=self.largest, alike=self.large)}
        return (Phase("train", ("theta",), ("delta", "h"), work, step, "sum", bounds=bounds, updates=updates),)

    @property
    def summed(self) -> Method:
        return SummedQFFL(self.q)

    def largest(self, task: Task) -> float:
        """Return the largest h_k: F_k^q (q ||dw_k||^2 / F_k + L) with the worst loss."""
        return float(worst_loss(task) ** self.q * (self.q * STEEPEST + steepness(task)))

    def large(self, task: Task) -> float:
        """Return h_k = L F_k^q of a client that trains from a model with the least probability for all its labels."""
        return float(WRONG**self.q * steepness(task))

    def reply(self, parameters: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
        theta, has_rows = down["theta"], (data.n > 0).to(data.mask.dtype)
        F = mean_loss(theta, data) + EPSILON
        L = 1 / data.learning_rate
        dw = tree.scale(tree.sub(theta, parameters), L)
        weight = has_rows * F**self.q
        # h_k = q F_k^(q-1) ||dw_k||^2 + L F_k^q
        h = has_rows * self.q * F ** (self.q - 1) * tree.squared_norm(dw) + L * weight
        return {"delta": tree.scale(dw, weight), "h": h}, state


def mean_loss(theta: Tree, data: Data) -> Tensor:
    """Return F_k, clamped at 0: its powers are undefined for a loss that rounding has made negative."""
    return data.mean(data.task.row_loss(theta, data.x, data.y)).clamp_min(0)


def steepness(task: Task) -> float:
    """Return the largest L of all rounds."""
    return 1 / task.local.least_rate(task.rounds)


def step(server: Any, replies: Record, validation: Data | None) -> Any:
    # theta <- theta - sum_k Delta_k / sum_k h_k; unchanged if no client has rows
    h = replies["h"]
    inverse = torch.where(h > 0, 1 / h.clamp_min(1e-30), 0.0)
    return server._replace(theta=tree.add_scaled(server.theta, replies["delta"], -inverse))


class Relative(NamedTuple):
    """The server's state of `SummedQFFL`."""

    theta: Tree
    """theta, the global model."""
    scale: Tensor
    """Factor of Delta_k and h_k: one over the mean h_k of the previous round."""


@dataclass(frozen=True)
class SummedQFFL(QFFL):
    """q-FFL for secure sums, which have room for numbers from 1e-9 to some millions, while F_k^q may be 1e-10 or 1e10.
    The step is a quotient of two sums, so clients multiply both by a factor from the last round or, in round 1, from
    the mean loss."""

    @property
    def summed(self) -> Method:
        return self

    @property
    def setup(self) -> tuple[Phase, ...]:
        bounds = {"loss": Bound(0, worst_loss)}
        return (Phase("begin", ("theta",), ("loss", "clients"), self.begin, self.first, "sum", bounds=bounds),)

    @property
    def round(self) -> tuple[Phase, ...]:
        (train,) = super().round
        bounds = {"h": Bound(0, fixed_point.largest(1))}
        return (replace(train, down=("theta", "scale"), bounds=bounds, server=self.relative_step),)

    def init(self, task: Task, parameters: Tree) -> Relative:
        return Relative(parameters, tree.zeros(parameters) + 1)

    def begin(self, down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
        has_rows = (data.n > 0).to(data.mask.dtype)
        return {"loss": mean_loss(down["theta"], data), "clients": has_rows}, state

    def first(self, server: Relative, replies: Record, validation: Data | None) -> Relative:
        mean = replies["loss"] / replies["clients"].clamp_min(1) + EPSILON
        return server._replace(scale=clamp_scale(mean ** -torch.as_tensor(self.q)))

    def reply(self, parameters: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
        reply, state = super().reply(parameters, down, state, data, context)
        return tree.scale(reply, down["scale"]), state

    def relative_step(self, server: Relative, replies: Record, validation: Data | None) -> Relative:
        mean = replies["h"] / replies["present"].clamp_min(1)
        scale = torch.where(mean > 0, clamp_scale(server.scale / mean.clamp_min(1e-30)), server.scale)
        return step(server, replies, validation)._replace(scale=scale)


def clamp_scale(scale: Tensor) -> Tensor:
    """Clamp a factor so that its products in 32 bits are neither 0 nor Inf."""
    return scale.clamp(1e-30, 1e30)
