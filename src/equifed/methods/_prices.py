"""Prices of gaps between groups, and the costs of decisions that follow: the arithmetic of FedFACT.

A notion of fairness compares rates r_q of decisions between groups: D_q is 1 for the labels and decisions that rate q
counts, and n_qa is the number of rows of group a in its denominator (`_parity.cells_of`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from equifed.methods._parity import cells_of
from equifed.methods.fedminmax import project
from equifed.protocol import Data
from equifed.tree import Tree


def cells(notion: str, classes: int, like: Tensor) -> Tensor:
    """Return D [Q, C, C]."""
    return torch.from_numpy(cells_of(notion, classes)).to(like)


def rows_of(notion: str, counts: Tensor) -> Tensor:
    """Return n_qa [Q, G] from rows by group and label [G, C]."""
    return cells(notion, counts.shape[1], counts).amax(2) @ counts.T


def differences(notion: str, decisions: Tensor) -> tuple[Tensor, Tensor]:
    """Return r_qa - r_qb [Q, G, G] from rows by group, label and decision, and True if both groups have the rate."""
    rows = rows_of(notion, decisions.sum(2))
    D = cells(notion, decisions.shape[1], rows)
    rate = torch.einsum("qyj,ayj->qa", D, decisions) / rows.clamp_min(1)
    both = (rows[:, :, None] > 0) & (rows[:, None, :] > 0)
    return torch.where(both, rate[:, :, None] - rate[:, None, :], 0.0), both


def project_prices(largest: float | Tensor, prices: Tensor) -> Tensor:
    """Return the closest prices that are at least 0 and add up to at most `largest`."""
    within = prices.clamp_min(0)
    cut = largest * project(prices.flatten() / largest).reshape(prices.shape)
    return torch.where(within.sum() <= largest, within, cut)


def charges(notion: str, prices: Tensor, counts: Tensor) -> Tensor:
    """Return sum_q l_qa (n / n_qa) D_q [G, C, C], the costs of decisions at these prices."""
    rows = rows_of(notion, counts)
    net = prices.sum(2) - prices.sum(1)
    share = torch.where(rows > 0, net * counts.sum() / rows.clamp_min(1), 0.0)
    return torch.einsum("qa,qyj->ayj", share, cells(notion, counts.shape[1], rows))


def row_costs(theta: Tree, cost: Tensor, data: Data) -> Tensor:
    """Return - sum_j Mbar_yj log p_j of each row [n], for costs [n, C]."""
    output = data.task.forward(theta, data.x)
    if output.dim() == 1:  # the logit of class 1; that of class 0 is 0
        return cost.sum(1) * F.softplus(output) - cost[:, 1] * output
    return cost.sum(1) * torch.logsumexp(output, 1) - (cost * output).sum(1)


def total_cost(models: Tree, context: Tree, batch: Data) -> Tensor:
    """Return L_k of theta plus that of phi_k, which are minimised independently."""
    losses = [batch.mean(row_costs(theta, batch.per_row["cost"], batch)) for theta in models.values()]
    return torch.stack(losses).sum()
