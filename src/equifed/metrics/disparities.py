"""How far apart the groups are: differences (0 is fair) and ratios (1 is fair) of the rates in `rates`.

With any number of groups a difference is the largest pairwise gap and a ratio the smallest pairwise ratio,
i.e. max - min and min / max. Groups whose rate is undefined are left out; with fewer than two groups left the
disparity is nan. Where fairlearn is defined the values are fairlearn's, with its two conventions for 0/0:

* a ratio of rates that are all 0 is nan (nobody is selected: equal, but no ratio);
* equalized_odds_ratio and average_odds_ratio then use the other ratio alone, so that a perfect classifier
  (every TPR 1, every FPR 0) scores 1. (fairlearn's minimum is nan when it is the TPR ratio that is 0/0.)

fairlearn gives a rate with an empty denominator the value 0; here it is undefined.

With more than two classes there are more rates to compare, and a disparity is the one of the rate in which two groups
are farthest apart: the share of every prediction (demographic parity), of right predictions within every label (equal
opportunity), of every prediction within every label (equalised odds). Labels that fewer than two groups have are left
out. These are the gaps that `X+fair` bounds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec

import numpy as np

from equifed.errors import unknown_name
from equifed.metrics import _inputs
from equifed.metrics.rates import check_counts, confusion, counts, divide, group_means, hits, rates, subtract

PaperCompat = Literal["fair-fate"] | None
P = ParamSpec("P")


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


def disparities(
    counts: np.ndarray,
    positive: int | None = None,
    *,
    reference: int | None = None,
    paper_compat: PaperCompat = None,
) -> dict[str, np.ndarray]:
    """Every disparity of `counts` [..., G, C, C], by name, each [...].

    `positive` as in `rates`: with more than two classes and no `positive`, those of `BY_CLASS` and accuracy_difference.
    `reference` makes the differences signed, (other - reference group). `paper_compat="fair-fate"` computes
    the three ratios that FAIR-FATE publishes the way its figures were computed (see `fair_fate_ratios`).
    """
    counts = check_counts(counts)
    rate = rates(counts, positive)
    if paper_compat not in (None, "fair-fate"):
        raise unknown_name("paper_compat", paper_compat, ["fair-fate"])
    result: dict[str, np.ndarray] = {}
    if "selection_rate" in rate:
        selection, tpr, fpr = rate["selection_rate"], rate["true_positive_rate"], rate["false_positive_rate"]
        tpr_gap, fpr_gap = difference(tpr, reference), difference(fpr, reference)
        tpr_ratio, fpr_ratio = ratio(tpr), ratio(fpr)
        # fmin and the where below leave out a 0/0 ratio, but both rates must be comparable
        lower = np.where(_comparable(tpr) & _comparable(fpr), np.fmin(tpr_ratio, fpr_ratio), np.nan)
        mean = (tpr_ratio + fpr_ratio) / 2
        result = {
            "demographic_parity_difference": difference(selection, reference),
            "demographic_parity_ratio": ratio(selection),
            "equal_opportunity_difference": tpr_gap,
            "equal_opportunity_ratio": tpr_ratio,
            # max(|TPR gap|, |FPR gap|), with its sign when signed
            "equalized_odds_difference": _larger(tpr_gap, fpr_gap),
            "equalized_odds_ratio": lower,
            # mean(TPR ratio, FPR ratio)
            "average_odds_ratio": np.where(np.isnan(mean), lower, mean),
            "discrimination_index": difference(rate["f1"], reference),
        }
        if paper_compat == "fair-fate":
            result |= fair_fate_ratios(counts, positive)
    else:
        result = {name: _over_classes(name, counts, reference) for name in BY_CLASS}
    return result | {"accuracy_difference": difference(rate["accuracy"], reference)}


def parity(predicted: np.ndarray) -> dict[str, np.ndarray]:
    """The disparities that follow from predictions alone, of rows by group and prediction [..., G, C]; each [...]."""
    counts = predicted[..., None, :]
    if predicted.shape[-1] > 2:
        return {name: _over_classes(name, counts, None) for name in PARITY}
    selection = divide(predicted[..., 1], predicted.sum(-1))
    return dict(zip(PARITY, (difference(selection), ratio(selection)), strict=True))


PARITY = ("demographic_parity_difference", "demographic_parity_ratio")
BY_CLASS = (
    *PARITY,
    *("equal_opportunity_difference", "equal_opportunity_ratio", "equalized_odds_difference"),
)
"""The disparities of more than two classes. There is no ratio of equalised odds: of the many kinds of mistakes some
group makes one never, and the smallest ratio is 0."""


class ClassRates(NamedTuple):
    """Rates of every group, of which each is about one class."""

    label: int | None
    """Of the rows with this label; None: of all. -1: of those that have the predicted class as their label."""
    rates: np.ndarray
    """The share of them that is predicted as each class [..., C, G]; nan without such rows."""


def class_rates(disparity: str, counts: np.ndarray) -> Iterator[ClassRates]:
    """What one of `BY_CLASS` compares, of counts [..., G, C, C]; label by label where it is of labels, so that many
    classes do not take much memory."""
    blocks: list[tuple[int | None, np.ndarray]]
    if disparity in PARITY:
        blocks = [(None, counts.sum(-2))]
    elif disparity == "equalized_odds_difference":
        blocks = [(label, counts[..., label, :]) for label in range(counts.shape[-1])]
    else:
        blocks = [(-1, np.diagonal(counts, axis1=-2, axis2=-1))]
    for label, chosen in blocks:  # [..., G, C]
        rows = counts.sum(-1) if label == -1 else np.broadcast_to(chosen.sum(-1, keepdims=True), chosen.shape)
        yield ClassRates(label, divide(chosen, rows).swapaxes(-1, -2))


def _over_classes(disparity: str, counts: np.ndarray, reference: int | None) -> np.ndarray:
    """The widest gap, or the smallest ratio, of all rates that it compares [...]; nan where there is none."""
    if counts.shape[-3] < 2:
        return np.full(counts.shape[:-3], np.nan)
    blocks = (block.rates for block in class_rates(disparity, counts))
    if disparity.endswith("_ratio"):
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
    counts = check_counts(counts)
    tp, fn, fp, tn = confusion(counts, positive)
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


def _counts(
    y_true: Any, y_pred: Any, sensitive_features: Any, pos_label: Any, *, classes: bool
) -> tuple[np.ndarray, list]:
    """classes: whether there may be more than two."""
    if classes:
        true, pred, number = _inputs.class_codes(y_true, y_pred, pos_label)
    else:
        true, pred, number = *_inputs.binary(y_true, y_pred, pos_label), 2
    group, names = _inputs.groups(sensitive_features)
    return counts(true, pred, sensitive_features=group, num_groups=len(names), num_classes=number), names


def _difference(
    name: str,
    y_true: Any,
    y_pred: Any,
    *,
    sensitive_features: Any,
    pos_label: Any = None,
    signed: bool = False,
    reference_group: Any = None,
) -> float:
    """{meaning}; 0 is fair, nan with fewer than two defined groups.

    With `signed=True` it is (other - reference_group), of the group farthest from the reference.
    """
    table, names = _counts(y_true, y_pred, sensitive_features, pos_label, classes=name in BY_CLASS)
    reference = _inputs.reference_index(names, signed, reference_group)
    return float(disparities(table, reference=reference)[name])


def _ratio(
    name: str,
    y_true: Any,
    y_pred: Any,
    *,
    sensitive_features: Any,
    pos_label: Any = None,
    paper_compat: PaperCompat = None,
) -> float:
    """{meaning}; 1 is fair, nan with fewer than two defined groups or when all rates are 0.

    `paper_compat="fair-fate"` gives the value as FAIR-FATE publishes it; see `fair_fate_ratios`.
    """
    table, _ = _counts(y_true, y_pred, sensitive_features, pos_label, classes=name in BY_CLASS and paper_compat is None)
    return float(disparities(table, paper_compat=paper_compat)[name])


def _named(compute: Callable[Concatenate[str, P], float], name: str, meaning: str) -> Callable[P, float]:
    """The public function of one disparity: `compute` for this name, with a signature and a docstring of its own."""

    def disparity(*args: P.args, **kwargs: P.kwargs) -> float:
        return compute(name, *args, **kwargs)

    disparity.__name__ = disparity.__qualname__ = name
    disparity.__doc__ = (compute.__doc__ or "").format(meaning=meaning)
    whole = inspect.signature(compute)
    disparity.__signature__ = whole.replace(parameters=list(whole.parameters.values())[1:])  # type: ignore[attr-defined]
    return disparity


demographic_parity_difference = _named(
    _difference,
    "demographic_parity_difference",
    "Largest gap between two groups in selection rate, with more than two classes in the share of any prediction",
)
demographic_parity_ratio = _named(_ratio, "demographic_parity_ratio", "Smallest ratio of two groups' selection rates")
equal_opportunity_difference = _named(
    _difference,
    "equal_opportunity_difference",
    "Largest gap between two groups in true positive rate, with more than two classes in that of any label",
)
equal_opportunity_ratio = _named(_ratio, "equal_opportunity_ratio", "Smallest ratio of two groups' true positive rates")
equalized_odds_difference = _named(
    _difference,
    "equalized_odds_difference",
    "The larger of the gaps in true and in false positive rate, with more than two classes the largest gap in the "
    "share of any prediction within any label",
)
average_odds_ratio = _named(
    _ratio, "average_odds_ratio", "Mean of the ratios of true and of false positive rates (FAIR-FATE's EQO)"
)
discrimination_index = _named(_difference, "discrimination_index", "Largest gap in F1 score between two groups")


def equalized_odds_ratio(y_true: Any, y_pred: Any, *, sensitive_features: Any, pos_label: Any = None) -> float:
    """The smaller of the ratios of true and of false positive rates; 1 is fair."""
    table, _ = _counts(y_true, y_pred, sensitive_features, pos_label, classes=False)
    return float(disparities(table)["equalized_odds_ratio"])


def accuracy_difference(
    y_true: Any, y_pred: Any, *, sensitive_features: Any, signed: bool = False, reference_group: Any = None
) -> float:
    """Largest gap in accuracy between two groups, for any classes."""
    return _mean_gap(hits(y_true, y_pred), sensitive_features, signed, reference_group)


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
