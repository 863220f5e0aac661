"""FedGFT: Wang et al., Mitigating Group Bias in Federated Learning: Beyond Local Fairness, TMLR 2024.

minimise  mean loss + lambda J(F),   F = r_a - r_b, the widest gap between groups,   J(F) = F^2 / 2 ("l2") or |F| ("id")
p_i is the probability of class 1, and r_s a mean of it or a quotient of two sums over the rows of group s, all clients:

    demographic parity: sum p / rows;    equal opportunity: the same where y = 1;    predictive parity: sum p y / sum p

    measure:  client k:  sum of p by group and label at theta, its rows
              server:    F, and g(s, y) = n lambda J'(F) dF / dp_i, the same for all rows i of a group and label
    train:    client k:  minimise  (1/B) sum_i [ loss_i + g(s_i, y_i) p_i(theta) ]
              server:    theta <- sum_k (n_k / n) theta_k

The mean over all clients' rows then has the gradient of mean loss + lambda J(F) at theta, however rows are distributed
over clients. The server needs only sums; a row of unknown group has g = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.methods._cells import cell_counts, cell_sums, logit, logit_of, of_cells, one_hot
from equifed.methods._measured import Client, kept_update, measure_phase
from equifed.methods._ties import first_largest, first_least
from equifed.methods.fedavg import ALONE, MEAN_UPDATE, FedAvg, averaging
from equifed.methods.hyper import hyper
from equifed.protocol import Bound, Data, Knob, LocalTraining, Phase, Record, Start, Task, notions
from equifed.tree import Tree

PARTS: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "demographic_parity": ((1, 1), (0, 0)),
    "equal_opportunity": ((0, 1), (0, 0)),
    "predictive_parity": ((0, 1), (1, 1)),
}
"""For labels 0 and 1: 1 if a row's p is in the numerator of its group's rate; 1 if it is in the denominator, which is
otherwise the number of the numerator's rows."""


class Server(NamedTuple):
    theta: Tree
    """theta, the global model."""
    F: Tensor
    """F, the gap of the round's clients."""
    slope: Tensor
    """g [G, 2], the slope by group and label."""


@dataclass(frozen=True)
class FedGFT(FedAvg):
    """Penalise the gap between the groups' mean predictions over all clients: clients add its slope to their loss."""

    name: ClassVar[str] = "fedgft"
    reveals: ClassVar[str] = f"{MEAN_UPDATE}; rows and mean prediction by group and label: {ALONE}"
    parent: ClassVar[str] = "fedavg"
    label_kinds: ClassVar[tuple[str, ...]] = ("binary",)
    knob: ClassVar[Knob | None] = Knob(
        "fairness_weight",
        0.1,
        50.0,
        notions(**{notion: {"notion": notion} for notion in ("demographic_parity", "equal_opportunity")}),
        neutral=0.0,
    )

    notion: str = hyper("demographic_parity", choices=tuple(PARTS))
    """Mean prediction to equalise between groups: of all rows, or of those with a positive label; or the share of
    positive labels among rows weighted by their predictions ("predictive_parity", the paper's calibration)."""
    fairness_weight: float = hyper(2.0, low=0, vanishes=True)
    """lambda: weight of the gap in the loss; 0 gives FedAvg. The stable range depends on how far a round moves."""
    penalty: Literal["l2", "id"] = hyper("l2", choices=("l2", "id"))
    """J: half the square of the gap, or the gap itself."""
    auto: bool = hyper(False)
    """True: use lambda = 2 |F| of each round instead of fairness_weight."""

    @property
    def round(self) -> tuple[Phase, ...]:
        up, train = ("scores", "counts", "rows"), LocalTraining(kept_update, penalised_loss, start)
        measure = measure_phase(up, scores, self.combine, {"scores": Bound(low=0, per_row=1.0)})
        return (measure, averaging(train, down=("slope",)))

    def init(self, task: Task, parameters: Tree) -> Server:
        return Server(parameters, tree.zeros(parameters), tree.zeros(parameters, task.num_groups, 2))

    def init_client(self, task: Task, parameters: Tree) -> Any:
        return Client(parameters)

    def combine(self, server: Server, replies: Record, validation: Data | None) -> Server:
        P, m, n = replies["scores"], replies["counts"], replies["rows"]
        above, below = (P.new_tensor(labels) for labels in PARTS[self.notion])
        soft = self.notion == "predictive_parity"
        denominator = (P * below).sum(1) if soft else (m * above).sum(1)
        there = denominator > 0
        inverse = torch.where(there, 1 / denominator.clamp_min(1e-12), 0.0)
        r = (P * above).sum(1) * inverse
        # the groups with the largest and the smallest rate; F = 0 if fewer than two have one, or all are equal
        high, low = first_largest(torch.where(there, r, -torch.inf)), first_least(torch.where(there, r, torch.inf))
        sign = one_hot(high, len(r), r) - one_hot(low, len(r), r)
        F = (sign * r).sum()
        J = F if self.penalty == "l2" else torch.sign(F)
        weight = 2 * F if self.auto else self.fairness_weight
        # d r_s / dp_i = (above - r_s below) / denominator, times n, as clients take means
        slope = (weight * J * n * sign * inverse)[:, None] * (above - r[:, None] * below)
        return server._replace(F=F, slope=slope)

    def observe(self, server: Server) -> dict[str, Tensor]:
        return {"soft_gap": server.F}


def scores(theta: Tree, data: Data) -> Record:
    """Return the sum of p by group and label, and the numbers of rows."""
    p = torch.sigmoid(logit(theta, data))
    return {"scores": cell_sums(data, p), "counts": cell_counts(data), "rows": data.n}


def start(down: Record, state: Client, data: Data) -> Start:
    return Start(state.theta, per_row={"slope": of_cells(down["slope"], data, 0.0)})


def penalised_loss(theta: Tree, context: Tree, batch: Data) -> Tensor:
    """Return (1/B) sum_i [ loss_i + g_i p_i ]."""
    output = batch.task.forward(theta, batch.x)
    loss = batch.task.loss_of(output, batch.y)
    return batch.mean(loss + batch.per_row["slope"] * torch.sigmoid(logit_of(output)))
