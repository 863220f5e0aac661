"""Training under a fairness constraint: what FedFair, LCO and separate training have in common.

Donini et al., Empirical Risk Minimization under Fairness Constraints, NeurIPS 2018: a model is epsilon-fair if

    |D| <= epsilon,   D = mean loss of the rows of group a and class c, minus that of the rows of group b and class c

With more than two groups there is one such constraint for each pair of them. Each has two multipliers, moved by
projected gradient steps (Xu et al., alternating gradient projection, 2020):

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
"""The primal step shrinks tenfold after every so many rounds."""
COUNTS = ("constraints", "violated", "excess")
"""What clients reply about constraints of their own."""
UPDATES = {"loss_gradient": Update(weight="rows"), "gap_gradient": Update()}
"""What moves the model: the mean gradients of a client's loss and of its gaps."""


def widest_gap(task: Task) -> float:
    """Of all pairs of groups together."""
    return math.sqrt(math.comb(task.num_groups, 2)) * worst_loss(task)


BOUNDS = {"gap": Bound(norm=widest_gap, alike=WRONG)}


class Terms(NamedTuple):
    """What a client computes in one pass over its rows."""

    loss_gradient: Tree
    """m_i grad L_i, summed over its rows."""
    gap: Tensor
    """D_i of each pair of groups [P]; 0 where it lacks one of the two cells."""
    gap_gradient: Tree
    """grad D_i, leaves [P, ...]."""
    holders: Tensor
    """1 where it has rows in both cells of the pair [P]."""


@dataclass(frozen=True)
class Constrained(Method):
    """Base of the methods that train under the constraint; not a method by itself."""

    label_kinds: ClassVar[tuple[str, ...]] = ("binary", "multiclass")
    knob: ClassVar[Knob | None] = Knob(
        "epsilon",
        1e-4,
        0.4,
        notions(equal_opportunity={"protected_class": 1}) | {"dgeo": {"protected_class": 1}},
        fairer="less",
    )

    epsilon: float = hyper(0.1, low=0)
    """Largest gap in mean loss, on the protected class, between two groups."""
    step_size: float = hyper(0.05, low=0)
    """alpha, the step of the model; a tenth of it after every 20,000 rounds."""
    dual_step_size: float = hyper(0.05, low=0)
    """beta, the step of the multipliers."""
    dual_decay: float = hyper(0.001, low=0)
    """gamma, which pulls the multipliers to 0: it steadies them, and leaves an active gap at epsilon + gamma lambda."""
    protected_class: int = hyper(1, low=0)
    """c, the code of the class in which the groups' losses are compared."""
    groups: tuple[int, ...] | None = None
    """Codes of the groups that are compared, pair by pair; none: all of them."""

    def pairs(self, task: Task) -> list[tuple[int, int]]:
        """The pairs (a, b) of groups that are constrained."""
        return list(combinations(range(task.num_groups) if self.groups is None else self.groups, 2))

    @property
    def bounds(self) -> dict[str, Bound]:
        """Of what clients reply about constraints of their own."""

        def pairs(task: Task) -> float:
            return len(self.pairs(task))

        def excess(task: Task) -> float:
            return pairs(task) * worst_loss(task)

        def residual(task: Task) -> float:
            return (3 * worst_loss(task)) ** 2  # squared; gamma lambda is no larger than the gap it grew by

        number = Bound(0, pairs, whole=True)
        return {
            "constraints": number,
            "violated": number,
            "excess": Bound(0, excess),
            "residual": Bound(0, residual),
        }

    def check(self, task: Task) -> None:
        """Refuse groups and a class that the data does not have."""
        if self.protected_class >= task.num_classes:
            raise ConfigError(
                f"is {self.protected_class}, but the classes of this data have the codes 0 to {task.num_classes - 1}.",
                key="protected_class",
            )
        groups = range(task.num_groups) if self.groups is None else self.groups
        unknown = [group for group in groups if group not in range(task.num_groups)]
        if unknown or len(set(groups)) < len(groups) or len(groups) < 2:
            raise ConfigError(
                f"must be at least two different groups, which {self.name} compares, of the codes 0 to "
                f"{task.num_groups - 1} that this data has; got {list(groups)}.",
                key="groups",
            )

    def remedy(self, converged: bool) -> str:
        return "dual_decay" if converged else "rounds"

    def gap_weights(self, data: Data) -> tuple[Tensor, Tensor]:
        """Row weights [P, n] whose product with the losses is D_i, and whether the client holds both cells [P]."""
        rows = data.where(data.y == self.protected_class)
        member = one_hot(data.s, data.task.num_groups, data.mask).T * rows.mask  # [G, n]
        number = member.sum(1, keepdim=True)
        share = member / number.clamp_min(1)
        a, b = map(list, zip(*self.pairs(data.task), strict=True))
        holds = ((number[a] > 0) & (number[b] > 0)).to(data.mask.dtype)  # [P, 1]
        return holds * (share[a] - share[b]), holds[:, 0]

    def gaps(self, theta: Tree, data: Data) -> tuple[Tensor, Tensor]:
        """D_i [P], and whether the client holds both cells [P]."""
        weights, holds = self.gap_weights(data)
        return over_rows(weights, data.masked(data.task.row_loss(theta, data.x, data.y))), holds

    def terms(self, theta: Tree, data: Data) -> Terms:
        """One forward pass, and one backward pass for the loss and all gaps together."""
        weights, holds = self.gap_weights(data)

        def row_losses(theta: Tree) -> Tensor:
            return data.masked(data.task.row_loss(theta, data.x, data.y))

        losses, gradients = pull_back(row_losses, theta, torch.cat([data.mask[None], weights]))
        loss_gradient, gap_gradient = tree.take(gradients, 0), tree.take(gradients, slice(1, None))
        return Terms(loss_gradient, over_rows(weights, losses), gap_gradient, holds)

    def dual_step(self, la: Tensor, lb: Tensor, gap: Tensor, holds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The new multipliers [P] and their residual, the largest unit step that projection would still take.

        Where nobody holds both cells nothing is known of the gap, and the multipliers stay.
        """

        def moved(multiplier: Tensor, excess: Tensor, step: Any) -> Tensor:
            up = torch.clamp(multiplier + step * (excess - self.dual_decay * multiplier), min=0)
            return torch.where(holds > 0, up, multiplier)

        above, below = gap - self.epsilon, -gap - self.epsilon
        residual = torch.maximum((moved(la, above, 1.0) - la).abs(), (moved(lb, below, 1.0) - lb).abs()).amax()
        return moved(la, above, self.dual_step_size), moved(lb, below, self.dual_step_size), residual

    def missed(self, gap: Tensor, la: Tensor, lb: Tensor) -> Tensor:
        """Which constraints [P] are not met: beyond the fixed point of their multipliers, epsilon + gamma lambda,
        and the tolerance."""
        above, below = gap - self.dual_decay * la, -gap - self.dual_decay * lb
        return torch.maximum(above, below) > self.epsilon + CONSTRAINT_TOLERANCE

    def excess(self, gap: Tensor) -> Tensor:
        """How far |D| lies above epsilon [P]; 0 where it does not."""
        return (gap.abs() - self.epsilon).clamp_min(0)

    def counts(self, gap: Tensor, holds: Tensor, la: Tensor, lb: Tensor) -> Record:
        """How many constraints a client has, how many of them it does not meet, and the sum of their excess."""
        values = (torch.ones_like(gap), self.missed(gap, la, lb), self.excess(gap))
        return {name: (holds * value).sum() for name, value in zip(COUNTS, values, strict=True)}

    def rate(self, t: Tensor) -> Tensor:
        """alpha after t rounds."""
        return self.step_size * 0.1 ** torch.floor(t / DECAY_EVERY)


@dataclass(frozen=True)
class Converging(Constrained):
    """Base of the methods that train one model for all clients until it has converged; not a method by itself."""

    tolerance: float = hyper(1e-4, low=0)
    """Stop a run when the gradient's norm and the multipliers' residual are both below this; 0: never."""

    def descended(self, server: Any, gradient: Tree, any_rows: Tensor, any_gap: Tensor, residual: Tensor) -> Any:
        """The server after a step down the Lagrangian's gradient, given the multipliers' residual."""
        theta = tree.add_scaled(server.theta, gradient, -self.rate(server.t))
        # whoever has no rows shows nothing about convergence, and without a gap the multipliers' residual is unknown
        primal = torch.where(any_rows, tree.squared_norm(gradient).sqrt(), torch.inf)
        dual = torch.where(any_rows, torch.where(any_gap, residual, server.dual), torch.inf)
        return server._replace(theta=theta, t=server.t + 1, primal=primal, dual=dual)

    def converged(self, server: Any) -> Tensor:
        return (server.primal < self.tolerance) & (server.dual < self.tolerance)


def lagrangian(loss_gradient: Tree, m: Tensor, gap_gradient: Tree, price: Tensor) -> Tree:
    """loss gradient / m + sum over pairs of price times gap gradient."""
    return tree.map(lambda loss, gaps: loss / m + torch.tensordot(price, gaps, dims=1), loss_gradient, gap_gradient)


def counted(constraints: Tensor, violated: Tensor, excess: Tensor) -> dict[str, Tensor]:
    """What is logged of all clients' `counts`; nan while they are unknown, which is inf in the state."""
    met, mean = (violated == 0).to(violated.dtype), excess / constraints.clamp_min(1)
    values = {"constraints": constraints, "violated": violated, "excess": mean, "feasible": met}
    return {name: torch.where(violated.isinf(), torch.nan, value) for name, value in values.items()}


def by_pair(name: str, values: Tensor) -> dict[str, Tensor]:
    """A value per pair of groups [P] as scalars: under the name itself for one pair, else numbered."""
    if len(values) == 1:
        return {name: values[0]}
    return {f"{name}_{p}": value for p, value in enumerate(values)}
