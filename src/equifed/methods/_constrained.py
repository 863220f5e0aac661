"""Training under a fairness constraint: shared parts of FedFair, LCO and separate training.

Donini et al., Empirical Risk Minimization under Fairness Constraints, NeurIPS 2018: a model is epsilon-fair if

    |D| <= epsilon,   D = mean loss of the rows of group a and class c, minus that of the rows of group b and class c

With more than two groups there is one constraint for each pair. Each has two multipliers, updated by projected gradient
steps (Xu et al., alternating gradient projection, 2020):

    la <- max((1 - gamma beta) la + beta ( D - epsilon), 0)
    lb <- max((1 - gamma beta) lb + beta (-D - epsilon), 0)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.errors import ConfigError
from equifed.gradients import pull_back
from equifed.methods._cells import one_hot, over_rows
from equifed.methods.hyper import hyper
from equifed.protocol import (
    CONSTRAINT_TOLERANCE,
    WRONG,
    Bound,
    Data,
    Knob,
    Method,
    Record,
    Task,
    Update,
    notions,
    worst_loss,
)
from equifed.tree import Tree

DECAY_EVERY = 20_000
"""Rounds after which the primal step shrinks tenfold."""
COUNTS = ("constraints", "violated", "excess")
"""Reply fields about the clients' own constraints."""
UPDATES = {"loss_gradient": Update(weight="rows"), "gap_gradient": Update()}
"""Reply fields that move the model: the mean gradients of a client's loss and of its gaps."""


def widest_gap(task: Task) -> float:
    """Return the largest norm of the gaps of all pairs of groups."""
    return math.sqrt(math.comb(task.num_groups, 2)) * worst_loss(task)


BOUNDS = {"gap": Bound(norm=widest_gap, alike=WRONG)}


class Terms(NamedTuple):
    """The quantities that a client computes in one pass over its rows."""

    loss_gradient: Tree
    """m_i grad L_i, summed over its rows."""
    gap: Tensor
    """D_i of each pair of groups [P]; 0 where it lacks one of the two cells."""
    gap_gradient: Tree
    """grad D_i, leaves [P, ...]."""
    holders: Tensor
    """1 for pairs of which it has rows in both cells, else 0 [P]."""


@dataclass(frozen=True)
class Constrained(Method):
    """The base of the methods that train under the constraint; not itself a method."""

    label_kinds: ClassVar[tuple[str, ...]] = ("binary", "multiclass")
    knob: ClassVar[Knob | None] = Knob(
        "epsilon",
        1e-4,
        0.4,
        notions(equal_opportunity={"protected_class": 1}) | {"dgeo": {"protected_class": 1}},
        fairer="less",
    )

    epsilon: float = hyper(0.1, low=0)
    """Largest gap in mean loss between two groups, on the protected class."""
    step_size: float = hyper(0.05, low=0)
    """alpha, the step of the model; it shrinks tenfold after every 20,000 rounds."""
    dual_step_size: float = hyper(0.05, low=0)
    """beta, the step of the multipliers."""
    dual_decay: float = hyper(0.001, low=0)
    """gamma, which pulls the multipliers to 0: it stabilises them and leaves an active gap at epsilon + gamma
    lambda."""
    protected_class: int = hyper(1, low=0)
    """c, the code of the class in which the groups' losses are compared."""
    groups: tuple[int, ...] | None = None
    """Codes of the groups to compare pair by pair. Default: all groups."""

    def pairs(self, task: Task) -> list[tuple[int, int]]:
        """Return the pairs (a, b) of groups that are constrained."""
        return list(combinations(range(task.num_groups) if self.groups is None else self.groups, 2))

    @property
    def bounds(self) -> dict[str, Bound]:
        """The bounds of the reply fields about the clients' own constraints."""

        def pairs(task: Task) -> float:
            return len(self.pairs(task))

        def excess(task: Task) -> float:
            return pairs(task) * worst_loss(task)

        def residual(task: Task) -> float:
            return (3 * worst_loss(task)) ** 2  # squared; gamma lambda is at most the gap by which it grew

        number = Bound(0, pairs, whole=True)
        return {
            "constraints": number,
            "violated": number,
            "excess": Bound(0, excess),
            "residual": Bound(0, residual),
        }

    def check(self, task: Task) -> None:
        """Raise a ConfigError for groups or a class that the data does not have."""
        if self.protected_class >= task.num_classes:
            raise ConfigError(
                f"is {self.protected_class}, but the classes of this data have the codes 0 to {task.num_classes - 1}.",
                key="protected_class",
            )
        groups = range(task.num_groups) if self.groups is None else self.groups
        unknown = [group for group in groups if group not in range(task.num_groups)]
        if unknown or len(set(groups)) < len(groups) or len(groups) < 2:
            raise ConfigError(
                f"must name at least two different groups for {self.name} to compare, with codes 0 to "
                f"{task.num_groups - 1} in this data; got {list(groups)}.",
                key="groups",
            )

    def remedy(self, converged: bool) -> str:
        return "dual_decay" if converged else "rounds"

    def gap_weights(self, data: Data) -> tuple[Tensor, Tensor]:
        """Return row weights [P, n] that times the losses give D_i, and 1 if the client has both cells, else 0 [P]."""
        rows = data.where(data.y == self.protected_class)
        member = one_hot(data.s, data.task.num_groups, data.mask).T * rows.mask  # [G, n]
        number = member.sum(1, keepdim=True)
        share = member / number.clamp_min(1)
        a, b = map(list, zip(*self.pairs(data.task), strict=True))
        holds = ((number[a] > 0) & (number[b] > 0)).to(data.mask.dtype)  # [P, 1]
        return holds * (share[a] - share[b]), holds[:, 0]

    def gaps(self, theta: Tree, data: Data) -> tuple[Tensor, Tensor]:
        """Return D_i [P], and 1 if the client has both cells, else 0 [P]."""
        weights, holds = self.gap_weights(data)
        return over_rows(weights, data.masked(data.task.row_loss(theta, data.x, data.y))), holds

    def terms(self, theta: Tree, data: Data) -> Terms:
        """Compute the terms in one forward pass and one backward pass for the loss and all gaps together."""
        weights, holds = self.gap_weights(data)

        def row_losses(theta: Tree) -> Tensor:
            return data.masked(data.task.row_loss(theta, data.x, data.y))

        losses, gradients = pull_back(row_losses, theta, torch.cat([data.mask[None], weights]))
        loss_gradient, gap_gradient = tree.take(gradients, 0), tree.take(gradients, slice(1, None))
        return Terms(loss_gradient, over_rows(weights, losses), gap_gradient, holds)

    def dual_step(self, la: Tensor, lb: Tensor, gap: Tensor, holds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the new multipliers [P] and their residual: the largest unit step that projection would still take.

        If no client has both cells, the gap is unknown and the multipliers stay.
        """

        def move(multiplier: Tensor, excess: Tensor, step: Any) -> Tensor:
            up = torch.clamp(multiplier + step * (excess - self.dual_decay * multiplier), min=0)
            return torch.where(holds > 0, up, multiplier)

        above, below = gap - self.epsilon, -gap - self.epsilon
        residual = torch.maximum((move(la, above, 1.0) - la).abs(), (move(lb, below, 1.0) - lb).abs()).amax()
        return move(la, above, self.dual_step_size), move(lb, below, self.dual_step_size), residual

    def is_violated(self, gap: Tensor, la: Tensor, lb: Tensor) -> Tensor:
        """Return True for constraints [P] that are not met: beyond the fixed point of their multipliers, epsilon +
        gamma lambda, and the tolerance."""
        above, below = gap - self.dual_decay * la, -gap - self.dual_decay * lb
        return torch.maximum(above, below) > self.epsilon + CONSTRAINT_TOLERANCE

    def excess(self, gap: Tensor) -> Tensor:
        """Return the excess of |D| over epsilon [P], at least 0."""
        return (gap.abs() - self.epsilon).clamp_min(0)

    def counts(self, gap: Tensor, holds: Tensor, la: Tensor, lb: Tensor) -> Record:
        """Return the number of a client's constraints, the number it does not meet, and the sum of their excess."""
        values = (torch.ones_like(gap), self.is_violated(gap, la, lb), self.excess(gap))
        return {name: (holds * value).sum() for name, value in zip(COUNTS, values, strict=True)}

    def rate(self, t: Tensor) -> Tensor:
        """Return alpha after t rounds."""
        return self.step_size * 0.1 ** torch.floor(t / DECAY_EVERY)


@dataclass(frozen=True)
class Converging(Constrained):
    """The base of the methods that train one model for all clients until it has converged; not itself a method."""

    tolerance: float = hyper(1e-4, low=0)
    """Stop a run when the gradient's norm and the multipliers' residual are both below this; 0: never."""

    def descend(self, server: Any, gradient: Tree, any_rows: Tensor, any_gap: Tensor, residual: Tensor) -> Any:
        """Return the server's state after a step down the Lagrangian's gradient; residual: the multipliers'."""
        theta = tree.add_scaled(server.theta, gradient, -self.rate(server.t))
        # without rows convergence is unknown, and without a gap the multipliers' residual is
        primal = torch.where(any_rows, tree.squared_norm(gradient).sqrt(), torch.inf)
        dual = torch.where(any_rows, torch.where(any_gap, residual, server.dual), torch.inf)
        return server._replace(theta=theta, t=server.t + 1, primal=primal, dual=dual)

    def converged(self, server: Any) -> Tensor:
        return (server.primal < self.tolerance) & (server.dual < self.tolerance)


def lagrangian(loss_gradient: Tree, m: Tensor, gap_gradient: Tree, price: Tensor) -> Tree:
    """Return loss gradient / m + sum over pairs of price times gap gradient."""
    return tree.map(lambda loss, gaps: loss / m + torch.tensordot(price, gaps, dims=1), loss_gradient, gap_gradient)


def log_counts(constraints: Tensor, violated: Tensor, excess: Tensor) -> dict[str, Tensor]:
    """Return all clients' `counts` for the log; nan while they are unknown, which is inf in the state."""
    met, mean = (violated == 0).to(violated.dtype), excess / constraints.clamp_min(1)
    values = {"constraints": constraints, "violated": violated, "excess": mean, "feasible": met}
    return {name: torch.where(violated.isinf(), torch.nan, value) for name, value in values.items()}


def by_pair(name: str, values: Tensor) -> dict[str, Tensor]:
    """Return a value per pair of groups [P] as scalars: named `name` for one pair, else numbered."""
    if len(values) == 1:
        return {name: values[0]}
    return {f"{name}_{p}": value for p, value in enumerate(values)}
