"""FedAvg+LR and FedAvg+GR: Abay et al., Mitigating Bias in Federated Learning, arXiv:2012.02447.

Kamiran and Calders' reweighing before FedAvg: in the weighted rows, group and label are independent.

    W(s, y) = P(s) P(y) / P(s, y),  1 if a factor is 0
    client k minimises  (1/B) sum_i W(s_i, y_i) loss_i

LR takes the probabilities from the client's own rows; GR from all clients, from summed counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.methods._cells import COUNT_CELLS, cell_counts, of_cells
from equifed.methods.fedavg import ALONE, MEAN_UPDATE, FedAvg, averaging, weighted_update
from equifed.methods.hyper import hyper
from equifed.protocol import Data, EmpiricalRisk, LocalTraining, Phase, Record, Start, Task
from equifed.tree import Tree


class Server(NamedTuple):
    theta: Tree
    """theta, the global model."""
    counts: Tensor
    """n(s, y), number of rows by group and label."""


def cell_weights(counts: Tensor) -> Tensor:
    """Return W(s, y) = P(s) P(y) / P(s, y) from counts [G, C]; 1 if a factor is 0."""
    expected = counts.sum(1, keepdim=True) * counts.sum(0, keepdim=True)
    observed = counts * counts.sum()
    return torch.where((expected > 0) & (observed > 0), expected / observed.clamp_min(1), torch.ones_like(counts))


def row_weights(counts: Tensor, data: Data) -> Tensor:
    """Return W of each row [n]; 1 for a row of unknown group."""
    return of_cells(cell_weights(counts), data, 1.0)


weighted_loss = EmpiricalRisk(weights="weight")
"""Weighted mean loss, (1/B) sum_i W_i loss_i."""


def own_weights(down: Record, state: Tree, data: Data) -> Start:
    """Start from theta, with weights from the client's own counts."""
    return Start(down["theta"], per_row={"weight": row_weights(cell_counts(data), data)})


def common_weights(down: Record, state: Tree, data: Data) -> Start:
    """Start from theta, with weights from the counts of all clients."""
    return Start(down["theta"], per_row={"weight": row_weights(down["counts"], data)})


@dataclass(frozen=True)
class FedAvgLR(FedAvg):
    """FedAvg on rows that each client reweighs by its own counts of group and label."""

    name: ClassVar[str] = "fedavg-lr"
    label_kinds: ClassVar[tuple[str, ...]] = ("binary", "multiclass")

    @property
    def round(self) -> tuple[Phase, ...]:
        return (averaging(LocalTraining(weighted_update, weighted_loss, own_weights)),)


@dataclass(frozen=True)
class FedAvgGR(FedAvg):
    """FedAvg on rows reweighed by the counts of group and label over all clients."""

    name: ClassVar[str] = "fedavg-gr"
    reveals: ClassVar[str] = f"{MEAN_UPDATE}; rows by group and label: {ALONE}"
    label_kinds: ClassVar[tuple[str, ...]] = ("binary", "multiclass")

    scope: str = hyper("all", choices=("all", "round"))
    """Clients to count: "all", once before round 1, or those of the "round", as in FAIR-FATE's authors' code."""

    @property
    def setup(self) -> tuple[Phase, ...]:
        return (COUNT_CELLS,) if self.scope == "all" else ()

    @property
    def round(self) -> tuple[Phase, ...]:
        train = LocalTraining(weighted_update, weighted_loss, common_weights)
        fit = averaging(train, down=("theta", "counts"))
        return (fit,) if self.scope == "all" else (COUNT_CELLS, fit)

    def init(self, task: Task, parameters: Tree) -> Server:
        return Server(parameters, tree.zeros(parameters, task.num_groups, task.num_classes))
