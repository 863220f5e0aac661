"""AgnosticFair (AF): Du, Xu, Wu and Tong, Fairness-aware Agnostic Federated Learning, SDM 2021.

A model that stays accurate and fair if the test rows come from another mixture of the training rows. An adversary
weights the rows, w(x) = sum_j a_j k(x, r_j) with a Gaussian kernel k at reference points r_j, and the model is trained
against it. With d the signed distance to the decision boundary, s in 0..1 and its mean sbar, a round is

adversary:  maximise (1/n) sum_i w_i loss_i  over 0 <= a <= B
            subject to  sum_i w_i = n  and  |(1/n) sum_i w_i (s_i - sbar) d_i| <= tau
learner:    some steps on  (1/n) sum_i w_i loss_i + c (1/n) sum_i ((w_i s_i - sbar) d_i)^2

The adversary's linear programme has a few numbers per reference point, which are sums over the clients' rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equifed import tree
from equifed.errors import ConfigError
from equifed.gradients import grad
from equifed.methods._cells import logit
from equifed.methods._programme import best_weights
from equifed.methods.hyper import hyper
from equifed.protocol import (
    ROWS,
    WRONG,
    Bound,
    Data,
    Draw,
    Knob,
    Method,
    Phase,
    Record,
    Task,
    Update,
    notions,
    worst_loss,
)
from equifed.tree import Tree

WIDEST, WIDE = 1e6, 100.0
"""Largest norm of a row's features; norm of a row's features up to which clients are not compared."""


class Server(NamedTuple):
    theta: Tree
    """theta, the global model."""
    sbar: Tensor
    """Mean of s."""
    mean: Tensor
    """Mean of the features [d], the centre of the reference points."""
    std: Tensor
    """Standard deviation of the features [d], the spread of the reference points."""
    a: Tensor
    """The adversary's coefficients [J]."""
    uniform: Tensor
    """1 if no coefficients within the bound give weights with mean 1: then w = 1."""
    relaxed: Tensor
    """1 if the adversary of this round could not meet its fairness constraint, which was dropped."""
    unfairness: Tensor
    """|(1/n) sum_i w_i (s_i - sbar) d_i| under the adversary's weights."""


@dataclass(frozen=True)
class AgnosticFair(Method):
    """Train against an adversary that reweighs the rows, with a penalty on the covariance of group and decision."""

    name: ClassVar[str] = "agnostic-fair"
    reveals: ClassVar[str] = (
        "mean and deviation of every input, the mean of the sensitive attribute, losses near every reference point, "
        "and mean gradients (for inputs of a single silo, that silo's); the number of rows"
    )
    label_kinds: ClassVar[tuple[str, ...]] = ("binary",)
    knob: ClassVar[Knob | None] = Knob("penalty", 0.1, 10.0, notions(demographic_parity={}), neutral=0.0)
    sweepable: ClassVar[bool] = False  # the adversary's linear programme

    tau: float = hyper(0.05, low=0)
    """Largest covariance of group and distance to the boundary that the adversary may cause."""
    references: int = hyper(20, low=1, high=10_000)
    """J, the number of reference points."""
    bandwidth: float = hyper(2.0, low=1e-6)
    """sigma of the kernel exp(-|x - r|^2 / (2 sigma^2))."""
    bound: float = hyper(5.0, low=0)
    """B, largest coefficient of a reference point."""
    penalty: float = hyper(2.0, low=0)
    """c, the weight of the learner's fairness term."""
    steps: int = hyper(10, low=1, high=1_000_000)
    """Full gradient steps of the learner per round, one exchange each."""
    step_size: float = hyper(0.1, low=0)
    """The learner's step."""

    @property
    def setup(self) -> tuple[Phase, ...]:
        up = ("rows", "known", "s", "x", "xx")
        x, xx = Bound(per_row=WIDEST, alike=WIDE), Bound(low=0, per_row=WIDEST**2, alike=WIDE**2)
        bounds = {"s": Bound(0, ROWS, whole=True), "x": x, "xx": xx}
        return (Phase("describe", (), up, self.describe, self.keep_description, gather="sum", bounds=bounds),)

    @property
    def round(self) -> tuple[Phase, ...]:
        draws = {"references": Draw(self.draw, per="run")}
        place = ("theta", "sbar", "mean", "std")
        up = ("rows", "loss", "kernel", "cov")
        weigh = Phase("weigh", place, up, self.weigh, self.adversary, "sum", draws, bounds=self.bounds)
        down = (*place, "a", "uniform")
        updates = {"gradient": Update(weight="rows")}
        learn = [
            Phase(
                f"learn_{i + 1}", down, ("rows", "gradient"), self.gradient, self.learn, "sum", draws, updates=updates
            )
            for i in range(self.steps)
        ]
        return (weigh, *learn)

    @property
    def bounds(self) -> dict[str, Bound]:
        """The bounds of `weigh`: a row adds to every reference point's sum, with a weight of 0 to 1; a logit is as
        large as its loss."""
        root = math.sqrt(self.references)

        def worst(task: Task) -> float:
            return root * worst_loss(task)

        loss, cov = Bound(low=0, per_row=worst, alike=root * WRONG), Bound(per_row=worst, alike=root * WRONG)
        return {"loss": loss, "kernel": Bound(0, ROWS), "cov": cov}

    def draw(self, rng: np.random.Generator, task: Task) -> np.ndarray:
        return rng.normal(size=(self.references, _features(task))).astype(np.float32)

    def check(self, task: Task) -> None:
        if task.num_groups != 2:
            raise ConfigError(f"agnostic-fair compares two groups; this data has {task.num_groups}.")
        _features(task)

    def init(self, task: Task, parameters: Tree) -> Server:
        zero = tree.zeros(parameters)
        origin = zero.expand(_features(task)).clone()
        a = zero.expand(self.references).clone()
        return Server(parameters, zero, origin, origin + 1, a, zero + 1, zero, zero + torch.nan)

    # -- before round 1: mean and spread of the rows -------------------------------------------------------------------

    def describe(self, down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
        known, s = data.known, data.s.to(data.x.dtype)
        where = {"rows": data.n, "x": data.sum(data.x), "xx": data.sum(data.x.square())}
        return where | {"known": known.n, "s": known.sum(s)}, state

    def keep_description(self, server: Server, replies: Record, validation: Data | None) -> Server:
        n = replies["rows"].clamp_min(1)
        mean = replies["x"] / n
        variance = (replies["xx"] / n - mean.square()).clamp_min(0)
        return server._replace(sbar=replies["s"] / replies["known"].clamp_min(1), mean=mean, std=variance.sqrt())

    # -- the adversary -------------------------------------------------------------------------------------------------

    def kernel(self, down: Record, data: Data) -> Tensor:
        """Return k(x_i, r_j) [n, J]."""
        points = down["mean"] + down["std"] * data.draws["references"]
        # |x - r|^2 = |x|^2 + |r|^2 - 2 x.r, without the differences [n, J, d]
        distance = data.x.square().sum(-1, keepdim=True) + points.square().sum(-1) - 2 * data.x @ points.T
        return torch.exp(-distance.clamp_min(0) / (2 * self.bandwidth**2))

    def weigh(self, down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
        k = self.kernel(down, data)
        loss, d = data.task.row_loss(down["theta"], data.x, data.y), logit(down["theta"], data)
        # rows of unknown group count as the mean
        centred = torch.where(data.s >= 0, data.s.to(d.dtype) - down["sbar"], 0.0)
        sums = {"loss": loss, "kernel": torch.ones_like(loss), "cov": centred * d}
        return {"rows": data.n} | {name: data.sum(k * values[:, None]) for name, values in sums.items()}, state

    def adversary(self, server: Server, replies: Record, validation: Data | None) -> Server:
        n = replies["rows"].clamp_min(1)
        loss, kernel, cov = (np.asarray((replies[name] / n).tolist()) for name in ("loss", "kernel", "cov"))
        tau, bound = float(self.tau), float(self.bound)
        fair: dict[str, Any] = {"A_ub": np.stack([cov, -cov]), "b_ub": [tau, tau]}
        relaxed, solution = 0.0, best_weights(loss, kernel, bound, **fair)
        if solution is None:
            relaxed, solution = 1.0, best_weights(loss, kernel, bound)
        uniform = solution is None
        a = np.zeros_like(loss) if solution is None else solution
        return server._replace(
            a=server.a.new_tensor(a),
            uniform=server.uniform.new_tensor(float(uniform)),
            relaxed=server.relaxed.new_tensor(relaxed),
            unfairness=server.unfairness.new_tensor(float("nan") if uniform else abs(float(cov @ a))),
        )

    # -- the learner ---------------------------------------------------------------------------------------------------

    def gradient(self, down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
        w = torch.where(down["uniform"] > 0, torch.ones_like(data.mask), self.kernel(down, data) @ down["a"])
        s = data.s.to(w.dtype)

        def objective(theta: Tree) -> Tensor:
            loss, d = data.task.row_loss(theta, data.x, data.y), logit(theta, data)
            centred = torch.where(data.s >= 0, w * s - down["sbar"], 0.0)
            return data.sum(w * loss + self.penalty * (centred * d).square())

        return {"rows": data.n, "gradient": grad(objective)(down["theta"])}, state

    def learn(self, server: Server, replies: Record, validation: Data | None) -> Server:
        step = -self.step_size / replies["rows"].clamp_min(1)
        return server._replace(theta=tree.add_scaled(server.theta, replies["gradient"], step))

    def observe(self, server: Server) -> dict[str, Tensor]:
        return {"unfairness": server.unfairness, "relaxed": server.relaxed, "uniform_weights": server.uniform}


def _features(task: Task) -> int:
    """Return the number of the model's inputs, which is that of the reference points."""
    first = next(task.module.parameters())
    if first.dim() != 2:
        raise ConfigError(
            "agnostic-fair places reference points among the inputs, so it needs a model with plain features as inputs."
        )
    return int(first.shape[1])
