"""Fed-FairGrad: Maheshwari and Perrot, FairGrad: Fairness Aware Gradient Descent, TMLR 2023; federated as in declearn.

Cells c = (s, y) have n_c rows and error rates err_c. A notion of fairness is a matrix C and a vector C0:

    F_c = C0_c + sum_c' C_cc' err_c',    above 0 if cell c is favoured;    the constraint is |F_c| <= epsilon

    equal opportunity, equalised odds:  C_cc' = [y = y'] (n_c' / n_y - [c = c']),           C0 = 0
    accuracy parity:                    C_cc' = n_c' / n - [s = s'] n_c' / n_s,             C0 = 0
    demographic parity:                 the same times 1 where y = y', else -1,             C0_c = n_c / n_s - n_y / n

    measure:  client k:  its rows and errors of theta by cell
              server:    up_c <- max(0, up_c + eta (F_c - epsilon)),  lo_c <- max(0, lo_c - eta (F_c + epsilon))
    train:    client k:  minimise (1/B) sum_i w(s_i, y_i) loss_i,   w_c = 1 + (n / n_c) sum_c' C_c'c (up_c' - lo_c')
              server:    theta <- sum_k (n_k / n) theta_k

The server needs only sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.errors import ConfigError
from equifed.methods._cells import AIMS, COUNT_CELLS, DIFFERENCES, cell_counts, cell_sums
from equifed.methods._measured import Client, kept_update, measure_phase, start_weighted
from equifed.methods.fedavg import ALONE, MEAN_UPDATE, FedAvg, averaging
from equifed.methods.hyper import hyper
from equifed.methods.reweighing import weighted_loss
from equifed.protocol import CONSTRAINT_TOLERANCE, TABLE, Data, Knob, LocalTraining, Phase, Record, Task
from equifed.tree import Tree

DEMOGRAPHIC, OPPORTUNITY, _ = DIFFERENCES
ACCURACY = "accuracy_difference"


class Server(NamedTuple):
    theta: Tree
    """theta, the global model."""
    counts: Tensor
    """n_c [G, C], number of all clients' rows by group and label."""
    up: Tensor
    """Multipliers of F_c <= epsilon [G, C]."""
    lo: Tensor
    """Multipliers of -F_c <= epsilon [G, C]."""
    F: Tensor
    """F_c [G, C] of the round's clients."""
    weight: Tensor
    """w_c [G, C], the weight of each row."""


@dataclass(frozen=True)
class FedFairGrad(FedAvg):
    """Weight groups and labels so that differences in error rates stay within a tolerance, by dual ascent."""

    name: ClassVar[str] = "fed-fairgrad"
    reveals: ClassVar[str] = f"{MEAN_UPDATE}; rows and errors by group and label: {ALONE}"
    parent: ClassVar[str] = "fedavg"
    label_kinds: ClassVar[tuple[str, ...]] = ("binary", "multiclass")
    knob: ClassVar[Knob | None] = Knob(
        "epsilon", 1e-3, 0.3, AIMS | {ACCURACY: {"fairness": ACCURACY}}, fairer="less", neutral=1.0
    )

    fairness: str = hyper(DEMOGRAPHIC, choices=(*DIFFERENCES, ACCURACY))
    """Rate to equalise between groups: the selection rate (for two classes), the share of correct predictions among
    positive labels (for more classes, of each label), that of each label, or the accuracy."""
    epsilon: float = hyper(0.03, low=0)
    """Largest difference of a group's rate from that of all rows, on training rows; 1 has no effect."""
    dual_step_size: float = hyper(0.1, low=0, vanishes=True)
    """eta: step of the multipliers per round, usually 0.001 to 0.5; 0 gives FedAvg."""
    floor: float | None = hyper(0.0)
    """Smallest weight of a row; None: as in FairGrad, rows of favoured cells may have weights below 0."""
    rescale: bool = hyper(False)
    """True: divide weights by their mean over all rows. For demographic parity the mean changes, and with it the size
    of steps."""

    @property
    def setup(self) -> tuple[Phase, ...]:
        return (COUNT_CELLS,)

    @property
    def round(self) -> tuple[Phase, ...]:
        train = LocalTraining(kept_update, weighted_loss, start_weighted)
        return (measure_phase(*STATISTICS, self.move, BOUNDS), averaging(train, down=("weight",)))

    @property
    def final(self) -> tuple[Phase, ...]:
        return (measure_phase(*STATISTICS, self.update_F, BOUNDS),)

    def init(self, task: Task, parameters: Tree) -> Server:
        zeros = tree.zeros(parameters, task.num_groups, task.num_classes)
        return Server(parameters, zeros, zeros, zeros, zeros, zeros + 1)

    def init_client(self, task: Task, parameters: Tree) -> Any:
        return Client(parameters)

    def check(self, task: Task) -> None:
        if self.fairness == DEMOGRAPHIC and task.num_classes > 2:
            raise ConfigError(
                "is demographic parity, which FairGrad defines for two classes only. Choose another notion.",
                key="fairness",
            )

    def update_F(self, server: Server, replies: Record, validation: Data | None) -> Server:
        """Compute F of the clients that are present, without cells that none of them has."""
        there = replies["counts"] > 0
        C, C0 = coefficients(torch.where(there, server.counts, 0.0), self.fairness)
        error = replies["errors"] / replies["counts"].clamp_min(1)
        return server._replace(F=(C0 + C @ error.flatten()).reshape(error.shape))

    def move(self, server: Server, replies: Record, validation: Data | None) -> Server:
        server = self.update_F(server, replies, validation)
        eta, F, n = self.dual_step_size, server.F, server.counts
        # the multipliers of a cell without F stay
        there = replies["counts"] > 0
        up = torch.where(there, (server.up + eta * (F - self.epsilon)).clamp_min(0), server.up)
        lo = torch.where(there, (server.lo - eta * (F + self.epsilon)).clamp_min(0), server.lo)
        # w_c = 1 + (n / n_c) sum_c' C_c'c (up_c' - lo_c')
        C, _ = coefficients(n, self.fairness)
        weight = 1 + n.sum() / n.clamp_min(1) * ((up - lo).flatten() @ C).reshape(n.shape)
        if self.floor is not None:
            weight = torch.maximum(weight, torch.as_tensor(self.floor, dtype=weight.dtype, device=weight.device))
        if self.rescale:
            weight = weight * n.sum() / (n * weight).sum().clamp_min(1e-12)
        return server._replace(up=up, lo=lo, weight=weight)

    def observe(self, server: Server) -> dict[str, Tensor]:
        excess = server.F.abs().amax() - self.epsilon
        return {
            "constraint": server.F.abs().amax(),
            "excess": excess,
            "feasible": (excess <= CONSTRAINT_TOLERANCE).to(excess.dtype),
            "smallest_weight": server.weight.amin(),
            "largest_weight": server.weight.amax(),
        }


def errors(theta: Tree, data: Data) -> Record:
    """Return the numbers of rows and of errors by group and label."""
    wrong = (data.task.decide(data.task.predict(theta, data.x)) != data.y).to(data.mask.dtype)
    return {"errors": cell_sums(data, wrong), "counts": cell_counts(data)}


STATISTICS, BOUNDS = (("errors", "counts"), errors), {"errors": TABLE}


def coefficients(counts: Tensor, fairness: str) -> tuple[Tensor, Tensor]:
    """Return C [cells, cells] and C0 [cells] from n_c [G, C]; 0 for cells without rows. Cells are ordered as n_c."""
    G, labels = counts.shape
    cell = torch.arange(G * labels, device=counts.device)
    s, y = cell // labels, cell % labels
    n_c, n = counts.flatten(), counts.sum().clamp_min(1)
    n_s, n_y = counts.sum(1).clamp_min(1)[s], counts.sum(0).clamp_min(1)[y]
    same_s, same_y = s[:, None] == s, y[:, None] == y
    if fairness in (DEMOGRAPHIC, ACCURACY):
        # n_c' / n - [s = s'] n_c' / n_s'
        C = n_c / n - same_s * (n_c / n_s)
        C0 = n_c / n_s - n_y / n
        if fairness == DEMOGRAPHIC:
            C = torch.where(same_y, C, -C)
        else:
            C0 = torch.zeros_like(C0)
    else:
        # [y = y'] (n_c' / n_y' - [c = c']); with two classes, equal opportunity is for class 1 only
        looked_at = (y == 1) | (fairness != OPPORTUNITY) | (labels > 2)
        C = same_y * looked_at * (n_c / n_y - torch.eye(G * labels, dtype=n_c.dtype, device=n_c.device))
        C0 = torch.zeros_like(n_c)
    has_rows = (n_c > 0).to(n_c.dtype)
    return C * has_rows * has_rows[:, None], C0 * has_rows
