"""FairFed: Ezzeldin et al., FairFed: Enabling Group Fairness in Federated Learning, AAAI 2023.

measure:  client k:  counts by group, label and prediction of theta on its rows;    server: their sum
compare:  Delta_k = |F - F_k|, F of all rows and F_k of its own; |Acc - Acc_k| where F_k is undefined
          server: the mean of Delta_k
train:    omega_k <- omega_k - beta (Delta_k - mean Delta),  n_k / n at the start, clamped at 0 and normalised
          theta  <- sum_k omega_k theta_k / sum_k omega_k

version "v1" (arXiv v1): omega_k = exp(-beta Delta_k) n_k / n, without memory and without `compare`. The client computes
its own weight, so that the server needs only sums. With several groups, Delta_k is the largest difference over pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.methods._cells import AIMS, DIFFERENCES, counts_of, decisions, rate_parts
from equifed.methods._debias import REWEIGHING, Debiasing, fair_batch, kernel
from equifed.methods.hyper import hyper
from equifed.protocol import (
    ROWS,
    Bound,
    Data,
    Knob,
    LocalTraining,
    Method,
    Phase,
    Record,
    Start,
    Task,
    Update,
    store_replies,
)
from equifed.tree import Tree

BY_WEIGHT = {"update": Update(weight="weight")}


class Server(NamedTuple):
    theta: Tree
    """theta, the global model."""
    counts: Tensor
    """Rows by group, label and prediction of theta, over the round's clients [G, 2, 2]."""
    gap: Tensor
    """Mean of Delta_k over the round's clients."""
    n: Tensor
    """n, number of all clients' rows."""
    ratio: Tensor
    """Factor that normalises the last round's weights: their sum before the step and the clamping, over that after."""
    t: Tensor
    """Number of rounds so far."""


class Client(NamedTuple):
    theta: Tree
    """theta as received in `measure`, so that it is not sent again in `train`."""
    counts: Tensor
    """The client's counts for theta."""
    right: Tensor
    """Number of rows with a correct prediction, including those of unknown group."""
    omega: Tensor
    """omega_k before it is normalised; below 0 until the first round."""
    t: Tensor
    """Number of rounds when the client last took part."""
    shares: Tensor
    """lambda of FairBatch [2, G]; 0 until its first epoch."""


@dataclass(frozen=True)
class FairFed(Method):
    """Give clients whose fairness is close to that of all rows more weight in the average."""

    name: ClassVar[str] = "fairfed"
    reveals: ClassVar[str] = (
        "rows by group, label and decision, exactly (for a group of a single silo, that silo's); the mean distance of "
        "the silos' gaps from that of all rows; the mean update, by weights that only the silos know"
    )
    parent: ClassVar[str] = "fedavg"
    label_kinds: ClassVar[tuple[str, ...]] = ("binary",)
    knob: ClassVar[Knob | None] = Knob("beta", 0.05, 5.0, AIMS, neutral=0.0)

    fairness: str = hyper("equal_opportunity_difference", choices=DIFFERENCES)
    """F: the gap between groups in selection rate, in true positive rate, or in both error rates."""
    beta: float = hyper(1.0, low=0, vanishes=True)
    """The fairness budget; 0 gives FedAvg (with the local debiasing, if any)."""
    version: Literal["aaai", "v1"] = hyper("aaai", choices=("aaai", "v1"))
    """Weights: accumulated over the rounds (AAAI 2023), or exponential without memory (arXiv v1)."""
    debias: Literal["reweighing", "fairbatch", "kernel"] | None = hyper(
        None, choices=(None, "reweighing", "fairbatch", "kernel")
    )
    """Local debiasing of each client's training."""
    debias_weight: float = hyper(1.0, low=0)
    """Weight of the kernel dependence with debias="kernel"."""
    debias_step: float = hyper(0.005, low=0, high=1)
    """Step of the groups' shares per epoch with debias="fairbatch"."""

    # -- exchanges -----------------------------------------------------------------------------------------------------

    @property
    def setup(self) -> tuple[Phase, ...]:
        if self.version == "v1":
            return ()

        def rows(down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
            return {"rows": data.n}, state

        def total(server: Server, replies: Record, validation: Data | None) -> Server:
            return server._replace(n=replies["rows"])

        return (Phase("rows", (), ("rows",), rows, total, "sum"),)

    @property
    def round(self) -> tuple[Phase, ...]:
        measure = Phase("measure", ("theta",), ("counts",), count_decisions, store_replies, "sum")
        apart = {"gap": Bound(0, 2)}  # Delta_k compares two gaps between rates, from -1 to 1 each
        compare = Phase("compare", ("counts",), ("gap", "clients"), self.compare, mean_gap, "sum", bounds=apart)
        debiasing = self.debiasing
        train = LocalTraining(self.reply, debiasing.loss, self.start, debiasing.resample)
        up = ("update", "weight", "weight_before")
        down = ("counts",) if self.version == "v1" else ("counts", "gap", "n", "ratio", "t")
        weight = Bound(0, ROWS if self.version == "v1" else self.heaviest)  # omega_k is n_k at most in v1
        bounds = {"weight": weight, "weight_before": weight}
        fit = Phase("train", down, up, train, average, "sum", debiasing.draws, bounds=bounds, updates=BY_WEIGHT)
        return (measure, fit) if self.version == "v1" else (measure, compare, fit)

    def init(self, task: Task, parameters: Tree) -> Server:
        zero = tree.zeros(parameters)
        return Server(parameters, tree.zeros(parameters, task.num_groups, 2, 2), zero, zero, zero + 1, zero)

    def init_client(self, task: Task, parameters: Tree) -> Client:
        G, zeros = task.num_groups, partial(tree.zeros, parameters)
        return Client(parameters, zeros(G, 2, 2), zeros(), zeros() - 1, zeros() - 1, zeros(2, G))

    def compare(self, down: Record, state: Client, data: Data) -> tuple[Record, Tree]:
        has_rows = (data.n > 0).to(data.mask.dtype)
        return {"gap": has_rows * self.delta(down, state, data), "clients": has_rows}, state

    def delta(self, down: Record, state: Client, data: Data) -> Tensor:
        """Return Delta_k."""
        return difference(down["counts"], state.counts, self.fairness, state.right / data.n.clamp_min(1))

    @property
    def heaviest(self) -> float | Tensor:
        """The largest omega_k: 1 at the start, to which a round adds beta times the mean of Delta_k, at most 2. The
        weight of a client that misses the next round is not normalised and could grow without limit: it is clamped."""
        return 1 + 4 * self.beta

    # -- local training ------------------------------------------------------------------------------------------------

    @property
    def debiasing(self) -> Debiasing:
        fairbatch = fair_batch(self.fairness, self.debias_step)
        values = {"reweighing": REWEIGHING, "fairbatch": fairbatch, "kernel": kernel(self.debias_weight)}
        return values[self.debias] if self.debias else Debiasing()

    def start(self, down: Record, state: Client, data: Data) -> Start:
        return self.debiasing.prepare({"theta": state.theta}, state, data)

    def reply(self, parameters: Tree, down: Record, state: Client, data: Data, context: Tree) -> tuple[Record, Tree]:
        gap = self.delta(down, state, data)
        if self.version == "v1":
            # omega_k = exp(-beta Delta_k) n_k; the n falls out of the average
            before = omega = torch.exp(-self.beta * gap) * data.n
        else:
            # omega_k <- max(omega_k - beta (Delta_k - mean Delta), 0), n_k / n at the start
            normalised = state.omega * torch.where(state.t == down["t"], down["ratio"], 1.0)
            before = torch.where(state.omega < 0, data.n / down["n"].clamp_min(1), normalised).clamp(max=self.heaviest)
            omega = (before - self.beta * (gap - down["gap"])).clamp_min(0).clamp(max=self.heaviest) * (data.n > 0)
            state = state._replace(omega=omega, t=down["t"] + 1)
        if self.debias == "fairbatch":
            state = state._replace(shares=context)
        update = tree.scale(tree.sub(parameters, state.theta), omega)
        return {"update": update, "weight": omega, "weight_before": before}, state

    def observe(self, server: Server) -> dict[str, Tensor]:
        return {"mean_gap": server.gap} if self.version == "aaai" else {}


def count_decisions(down: Record, state: Client, data: Data) -> tuple[Record, Tree]:
    """Reply the number of rows by group, label and prediction of theta."""
    decided = decisions(down["theta"], data)
    counts, right = counts_of(decided, data), data.sum((decided == data.y).to(data.mask.dtype))
    return {"counts": counts}, state._replace(theta=down["theta"], counts=counts, right=right)


def mean_gap(server: Server, replies: Record, validation: Data | None) -> Server:
    return server._replace(gap=replies["gap"] / replies["clients"].clamp_min(1))


def average(server: Server, replies: Record, validation: Data | None) -> Server:
    # theta <- theta + sum_k omega_k (theta_k - theta) / sum_k omega_k
    total, before = replies["weight"], replies["weight_before"]
    theta = tree.map(
        lambda p, u: p + torch.where(total > 0, u / total.clamp_min(1e-30), 0.0), server.theta, replies["update"]
    )
    # clamping at 0 increases the sum; no normalisation if all weights are 0
    ratio = torch.where((total > 0) & (before > 0), before / total.clamp_min(1e-30), 1.0)
    return server._replace(theta=theta, ratio=ratio, t=server.t + 1)


def difference(everyone: Tensor, own: Tensor, fairness: str, own_accuracy: Tensor | None = None) -> Tensor:
    """Return Delta_k from counts [G, label, prediction] of all rows and of the client's own. own_accuracy: Acc_k,
    including rows of unknown group. Default: the accuracy of the counts."""
    (all_part, all_number), (own_part, own_number) = (rate_parts(counts, fairness) for counts in (everyone, own))
    rate = all_part / all_number.clamp_min(1) - own_part / own_number.clamp_min(1)  # [rates, G]
    there = (all_number > 0) & (own_number > 0)
    # |(r_a - r_b) of all rows - (r_a - r_b) of its own|, the largest over pairs of groups and rates
    widest = torch.where(there, rate, -torch.inf).amax(1) - torch.where(there, rate, torch.inf).amin(1)
    defined = there.sum(1) >= 2
    gap = torch.where(defined, widest, 0.0).amax()
    own_accuracy = accuracy(own) if own_accuracy is None else own_accuracy
    return torch.where(defined.any(), gap, (accuracy(everyone) - own_accuracy).abs())


def accuracy(counts: Tensor) -> Tensor:
    """Return the accuracy from counts by group, label and prediction."""
    return (counts[:, 0, 0] + counts[:, 1, 1]).sum() / counts.sum().clamp_min(1)
