"""TERM: Li, Beirami, Sanjabi and Smith, Tilted Empirical Risk Minimization, ICLR 2021.

level client:  min (1/t) log sum_k (n_k/n) exp(t F_k)     theta <- theta + sum_k a_k (theta_k - theta) / sum_k a_k
                   a_k = n_k exp(t F_k - c),  F_k = loss of theta on the rows of client k
level row:     min (1/t) log (1/n) sum_i exp(t loss_i)    the same with a_k = sum of exp(t loss_i - c) over its rows,
                   which client k descends as (1/t) log mean exp(t loss_i) of every batch
level group:   min (1/t) log sum_s (n_s/n) exp(t r_s)     FedAvg with row weights exp(t r_s) / sum_s (n_s/n) exp(t r_s),
                   r_s = mean loss of theta on all rows of group s, from the previous round

c only keeps the numbers in range: log of the mean of exp(t F_k) in the previous round. t = 0 is FedAvg, t -> inf the
worst client, row or group alone; t < 0 reduces the weight of outliers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.methods._by_loss import CLIENTS
from equifed.methods._cells import group_sums
from equifed.methods.fedavg import BY_ROWS, FedAvg, apply_mean_update
from equifed.methods.fedminmax import update_and_risks
from equifed.methods.hyper import hyper
from equifed.methods.reweighing import weighted_loss
from equifed.protocol import WRONG, Bound, Data, Knob, LocalTraining, Phase, Record, Start, Task, Update, worst_loss
from equifed.training import mean_loss
from equifed.tree import Tree

CUT = 15.0
"""Largest absolute value of exponents: a client so much worse than the others has all the weight anyway."""
LOSSES = {"losses": Bound(low=0, per_row=worst_loss, alike=WRONG)}


class Tilted(NamedTuple):
    """The server's state with tilted clients or rows."""

    theta: Tree
    """theta, the global model."""
    c: Tensor
    """c, the log of the mean of exp(t F_k)."""


class Grouped(NamedTuple):
    """The server's state with tilted groups."""

    theta: Tree
    """theta, the global model."""
    r: Tensor
    """r_s [G], the groups' last known losses."""
    share: Tensor
    """n_s / n [G], the groups' shares of all rows of known group."""
    weight: Tensor
    """Weight of a row of each group [G]."""


@dataclass(frozen=True)
class TERM(FedAvg):
    """Tilt the mean of losses towards the high ones, of clients, of groups, or of rows without groups."""

    name: ClassVar[str] = "term"
    reveals: ClassVar[str] = (
        "the sum of updates, each weighted by an exponential of its silo's loss, and the sum of these weights; the "
        'number of rows; the mean loss of the first model. With level = "group" the mean update, and rows and loss by '
        "group"
    )
    parent: ClassVar[str] = "fedavg"
    knob: ClassVar[Knob | None] = Knob(
        "t",
        0.1,
        3.0,
        {metric: {"level": "client"} for metric in CLIENTS}
        | {metric: {"level": "group"} for metric in ("worst_group_accuracy", "worst_group_rmse")},
        neutral=0.0,
    )

    t: float = hyper(1.0, vanishes=True)
    """Tilt, usually 0.1 to 2: the larger, the more a high loss counts; 0 gives FedAvg, below 0 it counts less."""
    level: Literal["client", "group", "row"] = hyper("client", choices=("client", "group", "row"))
    """Losses to tilt: of clients, groups or rows; "row" does not need a sensitive attribute."""

    # -- exchanges -----------------------------------------------------------------------------------------------------

    @property
    def setup(self) -> tuple[Phase, ...]:
        if self.level == "group":
            return (Phase("measure", ("theta",), ("losses", "counts"), risks, self.tilt, "sum", bounds=LOSSES),)
        return (Phase("measure", ("theta",), ("losses", "rows"), total_loss, self.begin, "sum", bounds=LOSSES),)

    @property
    def round(self) -> tuple[Phase, ...]:
        if self.level == "group":
            train = LocalTraining(update_and_risks, weighted_loss, group_weights)
            down, by_group = ("theta", "weight"), ("update", "rows", "losses", "counts")
            return (Phase("train", down, by_group, train, self.group_step, "sum", bounds=LOSSES, updates=BY_ROWS),)
        train = LocalTraining(self.reply, self.tilted_loss if self.level == "row" else mean_loss)
        bounds, updates = {"weight": Bound(0, per_row=math.exp(CUT), alike=self.large)}, {"update": Update("weight")}
        up = ("update", "weight", "rows")
        places = {"update": 16, "weight": 16}  # weights of up to e^CUT per row
        return (Phase("train", ("theta", "c"), up, train, step, "sum", bounds=bounds, updates=updates, places=places),)

    def init(self, task: Task, parameters: Tree) -> Any:
        if self.level == "group":
            zeros = tree.zeros(parameters, task.num_groups)
            return Grouped(parameters, zeros, zeros, zeros + 1)
        return Tilted(parameters, tree.zeros(parameters))

    def begin(self, server: Tilted, replies: Record, validation: Data | None) -> Tilted:
        return server._replace(c=self.t * replies["losses"] / replies["rows"].clamp_min(1))

    # -- clients and rows ----------------------------------------------------------------------------------------------

    def large(self, task: Task) -> float:
        """Return a_k / n_k of a client with the least probability for all its labels, while the others fit; squared
        errors are unbounded."""
        return math.exp(CUT if task.kind == "regression" else min(abs(float(self.t)) * WRONG, CUT))

    def reply(self, parameters: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
        losses = data.task.row_loss(down["theta"], data.x, data.y)

        def tilt(loss: Tensor) -> Tensor:
            return torch.exp((self.t * loss - down["c"]).clamp(-CUT, CUT))

        weight = data.sum(tilt(losses)) if self.level == "row" else data.n * tilt(data.mean(losses))
        update = tree.scale(tree.sub(parameters, down["theta"]), weight)
        return {"update": update, "weight": weight, "rows": data.n}, state

    def tilted_loss(self, theta: Tree, context: Tree, batch: Data) -> Tensor:
        """Return sum_i p_i loss_i with p = softmax(t loss) fixed: its gradient is that of (1/t) log mean
        exp(t loss_i)."""
        losses = batch.task.row_loss(theta, batch.x, batch.y)
        exponent = self.t * losses.detach()
        highest = torch.where(batch.mask > 0, exponent, -1e30).amax()
        tilt = batch.masked(torch.exp(exponent - highest))
        return batch.sum(tilt / tilt.sum().clamp_min(1e-30) * losses)

    # -- groups --------------------------------------------------------------------------------------------------------

    def tilt(self, server: Grouped, replies: Record, validation: Data | None) -> Grouped:
        counts = replies["counts"]
        share = counts / counts.sum().clamp_min(1)
        return self.weigh(server._replace(share=share), replies)

    def group_step(self, server: Grouped, replies: Record, validation: Data | None) -> Grouped:
        return self.weigh(apply_mean_update(server, replies, validation), replies)

    def weigh(self, server: Grouped, replies: Record) -> Grouped:
        # a group without rows in this round keeps its loss
        r = torch.where(replies["counts"] > 0, replies["losses"] / replies["counts"].clamp_min(1), server.r)
        exponent = torch.where(server.share > 0, self.t * r, -torch.inf)
        tilt = torch.exp(exponent - exponent.max().clamp_min(-1e30))
        mean = (server.share * tilt).sum()
        return server._replace(r=r, weight=torch.where(mean > 0, tilt / mean.clamp_min(1e-30), 1.0))

    def observe(self, server: Any) -> dict[str, Tensor]:
        """Return the largest weight of a group's rows."""
        return {"largest_weight": server.weight.max()} if self.level == "group" else {}


def total_loss(down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
    return {"losses": data.sum(data.task.row_loss(down["theta"], data.x, data.y)), "rows": data.n}, state


def step(server: Tilted, replies: Record, validation: Data | None) -> Tilted:
    total, rows = replies["weight"], replies["rows"]
    # theta <- theta + sum_k a_k Delta_k / sum_k a_k; unchanged if no client has rows
    inverse = torch.where(total > 0, 1 / total.clamp_min(1e-30), 0.0)
    # sum_k a_k / n = mean of exp(t F_k - c)
    c = server.c + torch.where(total > 0, total.clamp_min(1e-30) / rows.clamp_min(1), 1.0).log()
    return Tilted(tree.add(server.theta, tree.scale(replies["update"], inverse)), c)


def risks(down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
    losses = data.task.row_loss(down["theta"], data.x, data.y)
    return {"losses": group_sums(data, losses), "counts": group_sums(data, torch.ones_like(data.mask))}, state


def group_weights(down: Record, state: Tree, data: Data) -> Start:
    return Start(down["theta"], per_row={"weight": data.of_groups(down["weight"], 1.0)})
