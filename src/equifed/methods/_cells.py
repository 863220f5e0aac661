"""Sums and counts of rows by group, label and decision, as tensors, and fairness metrics computed from them.

The definitions are those of `equifed.metrics` (a test checks that), written for use inside a client's work or a server
step, where a model is one of many in a vectorised computation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equifed.protocol import Data, Phase, Record, notions, store_replies
from equifed.tree import Tree

DIFFERENCES = ("demographic_parity_difference", "equal_opportunity_difference", "equalized_odds_difference")
"""Gaps between groups in selection rate, in true positive rate, and in both error rates."""
AIMS = notions(**{name.removesuffix("_difference"): {"fairness": name} for name in DIFFERENCES})
"""`Knob.aims` of methods with a `fairness` hyperparameter that is one of `DIFFERENCES`."""
RATIOS = ("demographic_parity_ratio", "equal_opportunity_ratio", "average_odds_ratio")
"""SP, EO and EQO of the FAIR-FATE paper."""
MIN_WEIGHT = 1e-6
"""Smallest weight of a cell that has a rate."""
AT_ONCE = 2**12
"""Largest number of rows in one block of a product."""


def one_hot(codes: Tensor, count: int, like: Tensor) -> Tensor:
    """Return codes [...] as indicators [..., count] with the dtype of `like`."""
    return (codes[..., None] == torch.arange(count, device=codes.device)).to(like.dtype)


def logit(theta: Tree, data: Data) -> Tensor:
    """Return the logit z [n] of class 1 against class 0: the signed distance to the decision boundary."""
    return logit_of(data.task.forward(theta, data.x))


def logit_of(output: Tensor) -> Tensor:
    """Return the logit [n] from the output of a model for two classes."""
    return output if output.dim() == 1 else output[:, 1] - output[:, 0]


def positive(prediction: Tensor) -> Tensor:
    """Return the probability of class 1 [n] from the prediction of a model for two classes."""
    return prediction if prediction.dim() == 1 else prediction[..., 1]


# -- sums and counts ---------------------------------------------------------------------------------------------------


def over_rows(left: Tensor, right: Tensor) -> Tensor:
    """Return left [..., n] @ right [n, ...], a sum over rows, computed in blocks: a library may add the terms one by
    one, with an error of 1 % for a million rows in 32 bits."""
    if len(right) <= AT_ONCE:
        return left @ right
    blocks = zip(left.split(AT_ONCE, -1), right.split(AT_ONCE), strict=True)
    return torch.stack([some @ rows for some, rows in blocks]).sum(0)


def group_sums(data: Data, values: Tensor) -> Tensor:
    """Return the sum of the values [n] over the rows of each group [G]."""
    return data.sum(values[:, None] * one_hot(data.s, data.task.num_groups, values))


def cell_sums(data: Data, values: Tensor) -> Tensor:
    """Return the sum of the values [n, ...] over the rows of each group and label [G, C, ...]."""
    s, y = one_hot(data.s, data.task.num_groups, values), one_hot(data.y, data.task.num_classes, values)
    cell = s[:, :, None] * y[:, None, :]
    return data.sum(cell.reshape(*cell.shape, *(1,) * (values.dim() - 1)) * values[:, None, None])


def cell_counts(data: Data) -> Tensor:
    """Return the number of rows by group and label [G, C]."""
    return cell_sums(data, torch.ones_like(data.mask))


def count_cells(down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
    """Reply the number of rows by group and label: a client's work."""
    return {"counts": cell_counts(data)}, state


COUNT_CELLS = Phase("count", (), ("counts",), count_cells, store_replies, gather="sum")
"""Exchange from which the server learns the number of all clients' rows by group and label."""


def of_cells(values: Tensor, data: Data, unknown: float) -> Tensor:
    """Return the value of each row's group and label, [G, C] -> [n]; `unknown` for rows of unknown group."""
    return torch.where(data.s >= 0, values[data.s.clamp_min(0), data.y], unknown)


def decision_counts(theta: Tree, data: Data) -> Tensor:
    """Return the number of rows by group, label and decision of the model [G, 2, 2]."""
    return counts_of(decisions(theta, data), data)


def decisions(theta: Tree, data: Data) -> Tensor:
    """Return 1.0 for the rows that the model assigns to class 1, else 0.0 [n]."""
    return data.task.decide(data.task.predict(theta, data.x)).to(data.mask.dtype)


def counts_of(decided: Tensor, data: Data) -> Tensor:
    """Return the number of rows by group, label and decision [G, 2, 2]; rows of unknown group are not counted."""
    cell = one_hot(2 * data.s + data.y, 2 * data.task.num_groups, data.mask) * data.mask[:, None]
    rows, selected = data.mask @ cell, decided @ cell
    return torch.stack([rows - selected, selected], -1).reshape(-1, 2, 2)


# -- differences -------------------------------------------------------------------------------------------------------


def rate_parts(counts: Tensor, fairness: str) -> tuple[Tensor, Tensor]:
    """Return (selected, rows) for each rate that the criterion compares and each group [rates, G], from decision
    counts."""
    selected, rows = counts[..., 1], counts.sum(-1)  # [G, label]
    if fairness.startswith("demographic_parity"):
        return selected.sum(1)[None], rows.sum(1)[None]
    labels = [1] if fairness.startswith("equal_opportunity") else [1, 0]
    return selected[:, labels].T, rows[:, labels].T


def gap(p: Tensor, weight: Tensor, data: Data, fairness: str) -> tuple[Tensor, Tensor]:
    """Return the largest difference between groups in the weighted mean of p, over the criterion's rows, and True if it
    is defined. It is 0 and undefined if fewer than two groups have such rows."""
    labels = {"demographic": (None,), "equal": (1,), "equalized": (1, 0)}[fairness.split("_")[0]]
    gaps, defined = [], []
    for label in labels:
        rows = data if label is None else data.where(data.y == label)
        member = one_hot(data.s, data.task.num_groups, data.mask) * rows.mask[:, None]  # [n, G]
        total = over_rows(weight, member)
        rate = over_rows(weight * p, member) / total.clamp_min(MIN_WEIGHT)
        has_rate = total > MIN_WEIGHT
        # rates are in [0, 1], so -1 and 2 are never picked
        widest = torch.where(has_rate, rate, -1.0).amax() - torch.where(has_rate, rate, 2.0).amin()
        defined.append(has_rate.sum() >= 2)
        gaps.append(torch.where(defined[-1], widest, 0.0))
    return torch.stack(gaps).amax(), torch.stack(defined).any()


# -- ratios ------------------------------------------------------------------------------------------------------------


def ratios(theta: Tree, data: Data, names: str | tuple[str, ...], as_published: bool = False) -> Tensor:
    """Return F(theta) in [0, 1], 1 is fair, by each of the named metrics [M]; nan if undefined.

    `as_published`: as in the code of FAIR-FATE's authors, with its defects (see `equifed.metrics.fair_fate_ratios`).
    """
    values = (_published_ratios if as_published else _ratios)(decision_counts(theta, data))
    return torch.stack([values[name] for name in ((names,) if isinstance(names, str) else names)])


def _ratios(counts: Tensor) -> dict[str, Tensor]:
    selected, rows = counts[..., 1], counts.sum(-1)  # [G, label]
    fpr, tpr = (_ratio(selected[:, y], rows[:, y]) for y in (0, 1))
    # a 0/0 ratio (no selected rows in any group) is left out of the mean
    odds = torch.where(tpr.isnan(), fpr, torch.where(fpr.isnan(), tpr, (tpr + fpr) / 2))
    both = _is_comparable(rows[:, 0]) & _is_comparable(rows[:, 1])
    return {
        "demographic_parity_ratio": _ratio(selected.sum(1), rows.sum(1)),
        "equal_opportunity_ratio": tpr,
        "average_odds_ratio": torch.where(both, odds, torch.nan),
    }


def _is_comparable(number: Tensor) -> Tensor:
    """Return True if at least two groups have a rate."""
    return (number > 0).sum() >= 2


def _ratio(part: Tensor, number: Tensor) -> Tensor:
    """Return the smallest rate over the largest, part/number, among groups with a rate; nan if fewer than two, or
    0/0."""
    rate = part / number.clamp_min(1)
    low = torch.where(number > 0, rate, torch.inf).min()
    high = torch.where(number > 0, rate, -torch.inf).max()
    return torch.where(_is_comparable(number) & (high > 0), low / high, torch.nan)


def _published_ratios(counts: Tensor) -> dict[str, Tensor]:
    fpr, tpr = (_published_ratio(counts[:, y, 1], counts[:, y, 0]) for y in (0, 1))
    return {
        # p/(1+p) instead of p: positives over (positives + rows)
        "demographic_parity_ratio": _published_ratio(counts[..., 1].sum(1), counts.sum((1, 2))),
        "equal_opportunity_ratio": tpr,
        "average_odds_ratio": _round((tpr + fpr) / 2),
    }


def _published_ratio(a: Tensor, b: Tensor) -> Tensor:
    """Return min/max over groups of a/(a+b), rounded to 2 decimals; 0 if any a or b is 0."""
    rate = a / (a + b).clamp_min(1)
    ratio = rate.min() / rate.max().clamp_min(1e-12)
    return torch.where(((a == 0) | (b == 0)).any(), torch.zeros_like(ratio), _round(ratio))


def _round(value: Tensor) -> Tensor:
    return torch.round(value * 100) / 100
