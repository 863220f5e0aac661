"""Local debiasing of FairFed's clients: a value that replaces parts of their local training.

FairBatch: Roh et al., FairBatch: Batch Selection for Model Fairness, ICLR 2021. Batches hold the labels in the client's
own shares, but within label y the groups in shares lambda_y, which start at the client's own and move before every
epoch by a small step, from the group with the lowest loss to that with the highest:
equal_opportunity:   within y = 1
equalized_odds:      within the label whose gap between groups is larger
demographic_parity:  the same with the cost of deciding against a row: the loss as if all labels were 1, per row of the
                     group; rows with y = 0 pull decisions down, so within y = 0 the shares move the other way
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from equifed.methods._cells import cell_counts, cell_sums
from equifed.methods._kernels import feature_draws
from equifed.methods._ties import first_largest, first_least
from equifed.methods.local_kernel import LocalKernel, with_attribute
from equifed.methods.reweighing import own_weights, weighted_loss
from equifed.protocol import Data, Draw, Record, Start
from equifed.training import mean_loss, start_from_theta
from equifed.tree import Tree


@dataclass(frozen=True)
class Debiasing:
    """The parts of `LocalTraining` and its phase that debiasing replaces. Default: plain training."""

    prepare: Callable[[Record, Any, Data], Start] = start_from_theta
    loss: Callable[[Tree, Tree, Data], Tensor] = mean_loss
    draws: Mapping[str, Draw] = field(default_factory=dict)
    resample: Callable[[Tree, Tree, Tensor, Data], tuple[Tree, Tensor]] | None = None


REWEIGHING = Debiasing(own_weights, weighted_loss)


def kernel(weight: float) -> Debiasing:
    """Add the dependence within a batch to its loss."""
    return Debiasing(with_attribute, LocalKernel(weight).loss, feature_draws(10))


def fair_batch(fairness: str, step: float) -> Debiasing:
    """Resample by FairBatch, with lambda as `shares` in the client's state."""

    def prepare(down: Record, state: Any, data: Data) -> Start:
        return Start(down["theta"], context=begin(state.shares, data))

    def resample(parameters: Tree, shares: Tree, uniforms: Tensor, data: Data) -> tuple[Tree, Tensor]:
        shares = move(shares, parameters, data, fairness, step)
        return shares, pick(shares, uniforms, data)

    return Debiasing(prepare, resample=resample)


def begin(shares: Tensor, data: Data) -> Tensor:
    """Return lambda [2, G]: the stored shares, or the client's own before the first epoch (all zeros)."""
    counts = cell_counts(data).T  # [label, group]
    return torch.where(shares.sum() > 0, shares, counts / counts.sum(1, keepdim=True).clamp_min(1))


def move(shares: Tensor, parameters: Tree, data: Data, fairness: str, step: Tensor | float) -> Tensor:
    """Return lambda after one step towards the groups with high loss."""
    counts = cell_counts(data).T
    if fairness.startswith("demographic_parity"):
        losses = cell_losses(parameters, data, torch.ones_like(data.y))
        loss = losses / counts.sum(0, keepdim=True).clamp_min(1)
    else:
        loss = cell_losses(parameters, data, data.y) / counts.clamp_min(1)
    there = counts > 0
    highest, lowest = torch.where(there, loss, -torch.inf), torch.where(there, loss, torch.inf)
    gap = torch.where(there.sum(1) >= 2, highest.amax(1) - lowest.amin(1), 0.0)  # [label]
    # move the shares of class 1, or of the label with the larger gap
    if fairness.startswith("equal_opportunity"):
        moves = torch.stack([torch.zeros_like(gap[0]), (gap[1] > 0).to(gap.dtype)])
    else:
        moves = one_hot(first_largest(gap), 2).to(gap.dtype) * (gap > 0)
    if fairness.startswith("demographic_parity"):
        moves = moves * torch.tensor([-1.0, 1.0], device=gap.device)
    groups = shares.shape[1]  # with equal losses both groups are the first, and the shares stay
    up = one_hot(first_largest(highest), groups) - one_hot(first_least(lowest), groups)
    new = (shares + step * moves[:, None] * up).clamp(0, 1) * there
    return new / new.sum(1, keepdim=True).clamp_min(1e-12)


def cell_losses(parameters: Tree, data: Data, target: Tensor) -> Tensor:
    """Return the summed loss of predicting `target`, by label and group [2, G]."""
    return cell_sums(data, data.task.row_loss(parameters, data.x, target)).T


def pick(shares: Tensor, uniforms: Tensor, data: Data) -> Tensor:
    """Draw rows [n] independently: a label by its own share, a group by lambda, then a row of that cell."""
    counts = cell_counts(data).T
    labels = counts.sum(1, keepdim=True)
    # P(row) = P(y) lambda(s | y) / rows of the cell; padding 0, and rows of unknown group as without lambda
    chance = torch.where(counts > 0, labels * shares / counts.clamp_min(1), 0.0)[data.y, data.s.clamp_min(0)]
    chance = torch.where(data.s >= 0, chance, 1.0) * data.mask
    ends = chance.double().cumsum(0)
    drawn = torch.searchsorted(ends, uniforms.double() * ends[-1:], right=True)
    return drawn.clamp_max((data.n - 1).clamp_min(0).long())
