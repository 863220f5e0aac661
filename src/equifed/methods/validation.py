"""Fairness of a model on the server's validation set, in tensors: what FAIR-FATE and FedVal weigh clients by.

The definitions are those of `equifed.metrics` (a test holds them equal), written for use inside a server step, where a
model is one of many in a vectorised computation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equifed.protocol import Data
from equifed.tree import Tree

RATIOS = ("demographic_parity_ratio", "equal_opportunity_ratio", "average_odds_ratio")
"""SP, EO and EQO of the FAIR-FATE paper."""


def fairness(theta: Tree, data: Data, names: str | tuple[str, ...], as_published: bool = False) -> Tensor:
    """F(theta) in [0, 1], 1 is fair; the mean where several metrics are named; nan where one is undefined."""
    return fairness_values(theta, data, names, as_published).mean()


def fairness_values(theta: Tree, data: Data, names: str | tuple[str, ...], as_published: bool = False) -> Tensor:
    """Each of the named metrics [M].

    `as_published`: the ratios as in the authors' code, with their defects (see `equifed.metrics.fair_fate_ratios`).
    """
    values = _published(theta, data) if as_published else _ratios(theta, data)
    return torch.stack([values[name] for name in ((names,) if isinstance(names, str) else names)])


def _counts(theta: Tree, data: Data) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(TP, FN, FP, TN) of each group, each [G]."""
    predicted = data.task.decide(data.task.predict(theta, data.x)).to(torch.float32)
    actual = (data.y == 1).to(torch.float32)
    groups = torch.arange(data.task.num_groups, device=data.s.device)
    member = (data.s[None] == groups[:, None]).to(torch.float32) * data.mask  # [G, n]
    tp, fp = member @ (predicted * actual), member @ (predicted * (1 - actual))
    fn, tn = member @ ((1 - predicted) * actual), member @ ((1 - predicted) * (1 - actual))
    return tp, fn, fp, tn


def _ratios(theta: Tree, data: Data) -> dict[str, Tensor]:
    tp, fn, fp, tn = _counts(theta, data)
    tpr, fpr = _ratio(tp, tp + fn), _ratio(fp, fp + tn)
    # a 0/0 ratio (nobody in any group) is left out of the mean
    odds = torch.where(tpr.isnan(), fpr, torch.where(fpr.isnan(), tpr, (tpr + fpr) / 2))
    both = _comparable(tp + fn) & _comparable(fp + tn)
    return {
        "demographic_parity_ratio": _ratio(tp + fp, tp + fn + fp + tn),
        "equal_opportunity_ratio": tpr,
        "average_odds_ratio": torch.where(both, odds, torch.nan),
    }


def _comparable(number: Tensor) -> Tensor:
    """Whether at least two groups have a rate."""
    return (number > 0).sum() >= 2


def _ratio(part: Tensor, number: Tensor) -> Tensor:
    """Smallest rate over largest rate, part/number, among the groups that have one; nan if fewer than two, or 0/0."""
    rate = part / number.clamp_min(1)
    low = torch.where(number > 0, rate, torch.inf).min()
    high = torch.where(number > 0, rate, -torch.inf).max()
    return torch.where(_comparable(number) & (high > 0), low / high, torch.nan)


def _published(theta: Tree, data: Data) -> dict[str, Tensor]:
    tp, fn, fp, tn = _counts(theta, data)
    tpr, fpr = _published_ratio(tp, fn), _published_ratio(fp, tn)
    return {
        # p/(1+p) in place of p: positives over (positives + rows)
        "demographic_parity_ratio": _published_ratio(tp + fp, tp + fn + fp + tn),
        "equal_opportunity_ratio": tpr,
        "average_odds_ratio": _round((tpr + fpr) / 2),
    }


def _published_ratio(a: Tensor, b: Tensor) -> Tensor:
    """min/max over groups of a/(a+b), 0 as soon as any a or b is 0, rounded to 2 decimals."""
    rate = a / (a + b).clamp_min(1)
    ratio = rate.min() / rate.max().clamp_min(1e-12)
    return torch.where(((a == 0) | (b == 0)).any(), torch.zeros_like(ratio), _round(ratio))


def _round(value: Tensor) -> Tensor:
    return torch.round(value * 100) / 100
