"""How far apart the groups are: differences (0 is fair) and ratios (1 is fair) of their rates, and the worst of them.

With any number of groups a difference is the largest pairwise gap and a ratio the smallest pairwise ratio,
i.e. max - min and min / max. Groups whose rate is undefined are left out; with fewer than two groups left the
disparity is nan. Where fairlearn is defined the values are fairlearn's, with its two conventions for 0/0:

* a ratio of rates that are all 0 is nan (no row is selected: equal, but no ratio);
* equalized_odds_ratio and average_odds_ratio then use the other ratio alone, so that a perfect classifier
  (every TPR 1, every FPR 0) scores 1. (fairlearn's minimum is nan when it is the TPR ratio that is 0/0.)

fairlearn gives a rate with an empty denominator the value 0; here it is undefined.

With more than two classes there are more rates to compare, and a disparity is the one of the rate in which two groups
are farthest apart: the share of every prediction (demographic parity), of right predictions within every label (equal
opportunity), of every prediction within every label (equalised odds). Labels that fewer than two groups have are left
out. These are the gaps that `X+fair` bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, Literal, NamedTuple

import numpy as np

from equifed.metrics import _inputs
from equifed.metrics.rates import cells, divide, group_means, subtract


def difference(rate: np.ndarray, reference: int | None = None) -> np.ndarray:
    """Largest gap between the groups of `rate` [..., G] -> [...].

    With `reference` the gap is signed: (other - reference) of the group farthest from the reference group.
    """
    if reference is None:
        low, high = _extremes(rate)
        return np.where(_comparable(rate), subtract(high, low), np.nan)
    gap = subtract(rate, rate[..., reference, None])
    size = np.where(np.isnan(gap), -1.0, np.abs(gap))
    size[..., reference] = -1.0
    farthest = size.argmax(-1)[..., None]
    found = np.take_along_axis(size, farthest, -1) >= 0
    return np.where(found, np.take_along_axis(gap, farthest, -1), np.nan)[..., 0]


def ratio(rate: np.ndarray) -> np.ndarray:
    """Smallest ratio between two groups of `rate` [..., G] -> [...]; nan when all rates are 0."""
    low, high = _extremes(rate)
    return divide(low, np.where(_comparable(rate), high, 0.0))


def _comparable(rate: np.ndarray) -> np.ndarray:
    """Whether at least two groups have a rate."""
    return (~np.isnan(rate)).sum(-1) >= 2


def _extremes(rate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest defined value; (inf, -inf) when there is none."""
    unknown = np.isnan(rate)
    low = np.where(unknown, np.inf, rate).min(-1, initial=np.inf)
    high = np.where(unknown, -np.inf, rate).max(-1, initial=-np.inf)
    return low, high


Comparison = Literal["difference", "ratio", "mean ratio", "worst"]
"""How groups are compared: the largest gap, the smallest ratio, the mean of the ratios of several rates, or the group
served worst."""
OVER_CLASSES: dict[tuple[str, ...], frozenset[Comparison]] = {
    ("selection_rate",): frozenset({"difference", "ratio"}),
    ("true_positive_rate",): frozenset({"difference", "ratio"}),
    ("true_positive_rate", "false_positive_rate"): frozenset({"difference"}),
}
"""The rates that have a meaning for more than two classes: those of every class. There is no ratio of equalised odds:
of the many kinds of mistakes some group makes one never, and the smallest ratio is 0."""


def compare(how: Comparison, rates: Sequence[np.ndarray], reference: int | None = None) -> np.ndarray:
    """Return how far apart the groups are in one rate or several, each [..., G] -> [...]. With `reference` a difference
    is signed."""
    if how == "difference":
        # of several the larger gap, with its sign when signed
        return reduce(_larger, (difference(rate, reference) for rate in rates))
    ratios = [ratio(rate) for rate in rates]
    # fmin leaves out a 0/0 ratio, but all rates must be comparable
    comparable = np.logical_and.reduce([_comparable(rate) for rate in rates])
    lowest = np.where(comparable, np.fmin.reduce(ratios), np.nan)
    if how == "ratio":
        return lowest
    mean = sum(ratios[1:], ratios[0]) / len(ratios)
    return np.where(np.isnan(mean), lowest, mean)


class ClassRates(NamedTuple):
    """Rates of every group, of which each is about one class."""

    label: int | None
    """Of the rows with this label; None: of all. -1: of those that have the predicted class as their label."""
    rates: np.ndarray
    """The share of them that is predicted as each class [..., C, G]; nan without such rows."""


def class_rates(rates: tuple[str, ...], counts: np.ndarray) -> Iterator[ClassRates]:
    """Return what one of `OVER_CLASSES` stands for with these classes, of counts [..., G, C, C]; label by label where
    it is of labels, so that many classes do not take much memory."""
    blocks: list[tuple[int | None, np.ndarray]]
    if rates == ("selection_rate",):
        blocks = [(None, counts.sum(-2))]
    elif len(rates) > 1:
        blocks = [(label, counts[..., label, :]) for label in range(counts.shape[-1])]
    else:
        blocks = [(-1, np.diagonal(counts, axis1=-2, axis2=-1))]
    for label, chosen in blocks:  # [..., G, C]
        rows = counts.sum(-1) if label == -1 else np.broadcast_to(chosen.sum(-1, keepdims=True), chosen.shape)
        yield ClassRates(label, divide(chosen, rows).swapaxes(-1, -2))


def compare_over_classes(
    how: Comparison, rates: tuple[str, ...], counts: np.ndarray, reference: int | None = None
) -> np.ndarray:
    """Return the widest gap, or the smallest ratio, of all that `class_rates` gives [...]; nan where there is none."""
    if counts.shape[-3] < 2:
        return np.full(counts.shape[:-3], np.nan)
    blocks = (block.rates for block in class_rates(rates, counts))
    if how == "ratio":
        return np.fmin.reduce([np.fmin.reduce(ratio(rates), axis=-1) for rates in blocks])
    return _widest(np.stack([_widest(difference(rates, reference)) for rates in blocks], axis=-1))


def _widest(gaps: np.ndarray) -> np.ndarray:
    """Over the last axis the one of largest magnitude, with its sign; nan where all are."""
    size = np.where(np.isnan(gaps), -1.0, np.abs(gaps))
    return np.take_along_axis(gaps, size.argmax(-1)[..., None], -1)[..., 0]


def _larger(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The one of larger magnitude, with its sign; nan if either is."""
    return np.where(np.isnan(a + b), np.nan, np.where(np.abs(a) >= np.abs(b), a, b))


def fair_fate_ratios(counts: np.ndarray, positive: int | None = None) -> dict[str, np.ndarray]:
    """The ratios as FAIR-FATE's published figures were computed, defects included.

    Each is min/max of a / (a + b) over the groups with (a, b) = (TP, FN) for TPR and (FP, TN) for FPR, but
    (predicted positives, rows) for demographic parity, i.e. p / (1 + p) instead of p. Any a or b of 0 makes
    the ratio 0, and every ratio is rounded to 2 decimals, the mean of two rounded ratios once more.
    """
    found = cells(counts, positive)
    tp, fn, fp, tn = (found[name] for name in ("TP", "FN", "FP", "TN"))
    tpr_ratio = _fair_fate_ratio(tp, fn)
    return {
        "demographic_parity_ratio": _fair_fate_ratio(tp + fp, tp + fn + fp + tn),
        "equal_opportunity_ratio": tpr_ratio,
        "average_odds_ratio": _round2((tpr_ratio + _fair_fate_ratio(fp, tn)) / 2),
    }


def _fair_fate_ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    zero = ((a == 0) | (b == 0)).any(-1)
    return _round2(np.where(zero, 0.0, ratio(divide(a, a + b))))


# Python's round, not numpy's: they differ on halves such as 0.715, as means of rounded ratios often are.
_round2 = np.vectorize(lambda value: round(float(value), 2), otypes=[np.float64])


def dgeo(
    losses: Any,
    y_true: Any,
    *,
    sensitive_features: Any,
    protected_class: Any = 1,
    signed: bool = False,
    reference_group: Any = None,
) -> float:
    """Largest gap in mean loss between two groups on the rows of `protected_class` (FedFair's constraint)."""
    loss, true = _inputs.numbers(losses, "losses"), _inputs.labels(y_true, "y_true")
    group, names = _inputs.groups(sensitive_features)
    _inputs.same_length(losses=loss, y_true=true, sensitive_features=group)
    kept = true == protected_class
    means = group_means(loss[kept], group[kept], len(names))
    return float(difference(means, _inputs.reference_index(names, signed, reference_group)))


def mean_difference(
    y_pred: Any, *, sensitive_features: Any, signed: bool = False, reference_group: Any = None
) -> float:
    """Largest gap in mean prediction between two groups: demographic parity of scores and regressions."""
    return _mean_gap(_inputs.numbers(y_pred, "y_pred"), sensitive_features, signed, reference_group)


def _mean_gap(values: np.ndarray, sensitive_features: Any, signed: bool, reference_group: Any) -> float:
    group, names = _inputs.groups(sensitive_features)
    means = group_means(values, group, len(names))
    return float(difference(means, _inputs.reference_index(names, signed, reference_group)))


def ks_distance(y_pred: Any, *, sensitive_features: Any) -> float:
    """Largest Kolmogorov-Smirnov distance of two groups' predictions, max over s, s' of sup |F_s - F_s'|."""
    values = _inputs.numbers(y_pred, "y_pred")
    group, names = _inputs.groups(sensitive_features)
    _inputs.same_length(y_pred=values, sensitive_features=group)
    if len(names) < 2:
        return float("nan")
    points = np.unique(values)
    # F_s at every distinct prediction; the largest pairwise gap at a point is max_s F_s - min_s F_s
    below = np.stack([np.searchsorted(np.sort(values[group == g]), points, "right") for g in range(len(names))])
    cdf = below / np.bincount(group)[:, None]
    return float((cdf.max(0) - cdf.min(0)).max())


def rmse(y_true: Any, y_pred: Any) -> float:
    """Root mean squared error; nan without rows."""
    errors = _squared_error(y_true, y_pred)
    return float(np.sqrt(divide(errors.sum(), np.asarray(len(errors)))))


def rmse_by_group(y_true: Any, y_pred: Any, *, sensitive_features: Any) -> dict[Any, float]:
    """Root mean squared error of each group."""
    group, names = _inputs.groups(sensitive_features)
    means = group_means(_squared_error(y_true, y_pred), group, len(names))
    return dict(zip(names, np.sqrt(means).tolist(), strict=True))


def _squared_error(y_true: Any, y_pred: Any) -> np.ndarray:
    true, pred = _inputs.numbers(y_true, "y_true"), _inputs.numbers(y_pred, "y_pred")
    _inputs.same_length(y_true=true, y_pred=pred)
    return (true - pred) ** 2


def harmonic_mean(accuracy: Any, disparity: Any) -> Any:
    """Harmonic mean of accuracy and 1 - disparity (FedFair's HM), elementwise; 0 when both are 0."""
    accuracy, fairness = np.asarray(accuracy, dtype=float), 1.0 - np.asarray(disparity, dtype=float)
    total = accuracy + fairness
    # HM = 2 a f / (a + f)
    return np.where(total == 0, 0.0, divide(2 * accuracy * fairness, total))[()]
