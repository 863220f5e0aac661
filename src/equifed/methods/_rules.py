"""The two rules of post-processing: each group's change of decisions or scores, from sums over its rows."""

from __future__ import annotations

import torch
from torch import Tensor

from equifed.methods._ties import first_least

ROUNDING = 1e-11
"""Largest rounding error of a probability outside 0..1 that still counts as feasible."""


def equal_odds(counts: Tensor) -> Tensor:
    """Return (p, q) of each group [G, 2], the linear programme's optimum, from counts by group, label and decision
    [G, 2, 2].

    With p and q group g can reach the parallelogram with the corners (0, 0), (FPR, TPR), (1, 1), (1-FPR, 1-TPR) in the
    plane of (F, T), and the error is linear there. So the optimum is a corner of the intersection of all
    parallelograms: a corner of one of them, or an intersection of two edges. These are few, and all are tried, which is
    exact and needs no solver, so that it can run at a client. (0, 0) and (1, 1) are in all of them: there is always a
    solution. Groups without both labels have no rates and stay unchanged; so do all if fewer than two groups are left.
    """
    number = counts.sum(-1)
    usable = (number > 0).all(-1)
    rate = torch.where(usable[:, None], counts[..., 1] / number.clamp_min(1), torch.zeros_like(number))  # FPR, TPR
    zero, one = torch.zeros_like(rate), torch.ones_like(rate)
    corners = torch.stack([zero, rate, one, 1 - rate], 1)  # [G, 4, 2], in order around the parallelogram
    corner, along = corners.reshape(-1, 2), (corners.roll(-1, 1) - corners).reshape(-1, 2)
    points = torch.cat([corner, _crossings(corner, along)])  # [M, 2]

    # p and q of every group for every point
    F, T = points[:, None, 0], points[:, None, 1]
    fpr, tpr = rate[:, 0], rate[:, 1]
    det = tpr - fpr
    flat = det.abs() < ROUNDING  # decisions without information reach only F = T, by chance
    scale = torch.where(flat, torch.ones_like(det), det)
    p = torch.where(flat, T, (T * (1 - fpr) - F * (1 - tpr)) / scale)
    q = torch.where(flat, T, (F * tpr - T * fpr) / scale)
    reached = (torch.minimum(p, q) >= -ROUNDING) & (torch.maximum(p, q) <= 1 + ROUNDING)
    reached &= ~flat | ((T - F).abs() < ROUNDING)

    # the error of the groups with rates
    weight = number * usable[:, None]
    error = points[:, 0] * weight[:, 0].sum() + (1 - points[:, 1]) * weight[:, 1].sum()
    best = first_least(torch.where((reached | ~usable).all(1), error, torch.inf), ROUNDING)[None]
    fitted = torch.cat([p.index_select(0, best), q.index_select(0, best)]).T.clamp(0, 1)
    as_it_is = torch.stack([one[:, 0], zero[:, 0]], -1)
    return torch.where(usable[:, None] & (usable.sum() >= 2), fitted, as_it_is)


def _crossings(start: Tensor, along: Tensor) -> Tensor:
    """Return the intersections of all pairs of lines start + t along [M * M, 2]; (0, 0) for parallel ones."""
    a, da, b, db = start[:, None], along[:, None], start[None], along[None]
    cross = da[..., 0] * db[..., 1] - da[..., 1] * db[..., 0]
    parallel = cross.abs() < ROUNDING
    gap = b - a
    t = (gap[..., 0] * db[..., 1] - gap[..., 1] * db[..., 0]) / torch.where(parallel, torch.ones_like(cross), cross)
    points = torch.where(parallel[..., None], torch.zeros_like(gap), a + t[..., None] * da)
    return points.reshape(-1, 2)


def equal_cost(sums: Tensor, cost: str) -> Tensor:
    """Return (m, base rate) of each group [G, 2] from (rows, sum of scores) by group and label [G, 2, 2].

    A group without both labels has no cost and stays unchanged. If the cost of its base rate is below the highest cost,
    a group cannot reach that and gets m = 1, the nearest value; if its base rate does not raise its cost, it gets 0.
    """
    number, score = sums[..., 0], sums[..., 1]
    usable = (number > 0).all(-1)
    mean = score / number.clamp_min(1)
    base = number[:, 1] / number.sum(-1).clamp_min(1)
    c_fp, c_fn = mean[:, 0], 1 - mean[:, 1]
    cost_of, trivial = {
        "fnr": (c_fn, 1 - base),
        "fpr": (c_fp, base),
        "weighted": (base * c_fn + (1 - base) * c_fp, 2 * base * (1 - base)),
    }[cost]
    highest = torch.where(usable, cost_of, -torch.inf).amax()
    missing, possible = highest - cost_of, trivial - cost_of
    m = torch.where(possible > 0, missing / torch.where(possible > 0, possible, 1.0), 0.0).clamp(0, 1)
    return torch.stack([torch.where(usable & (usable.sum() >= 2), m, torch.zeros_like(m)), base], -1)
