"""Functions of rows and of counts, for every rate and gap of the catalogue.

Functions of rows follow fairlearn, `(y_true, y_pred, *, sensitive_features)`. They are made from the catalogue's
entries, so that a new entry has one: `equifed.metrics.NAME`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import numpy as np

from equifed.errors import ConfigError, unknown_name
from equifed.metrics import _inputs
from equifed.metrics.catalogue import CATALOGUE, Metric
from equifed.metrics.disparities import compare, compare_over_classes, fair_fate_ratios
from equifed.metrics.rates import cells, check_counts, counts, hits

PaperCompat = Literal["fair-fate"] | None


def rates(counts: np.ndarray, positive: int | None = None) -> dict[str, np.ndarray]:
    """Every rate of each group, each [..., G], with `count` (rows) and `positives` (rows with the positive label).

    `positive` is the class that counts as positive, against all others; None means 1 when there are two
    classes. With more classes and no `positive` only `count` and `accuracy` have a meaning.
    """
    found = cells(counts, positive)
    values = {"count": found["right"] + found["wrong"]}
    if "TP" in found:
        values["positives"] = found["TP"] + found["FN"]
    shares = {name: metric.share for name, metric in CATALOGUE.items() if metric.share}
    return values | {
        name: share.of(found) for name, share in shares.items() if "TP" in found or share.is_of_any_classes
    }


def disparities(
    counts: np.ndarray,
    positive: int | None = None,
    *,
    reference: int | None = None,
    paper_compat: PaperCompat = None,
) -> dict[str, np.ndarray]:
    """Every gap between rates of `counts` [..., G, C, C], by name, each [...].

    `positive` as in `rates`: with more than two classes and no `positive`, those that have a meaning then.
    `reference` makes the differences signed, (other - reference group). `paper_compat="fair-fate"` computes
    the three ratios that FAIR-FATE publishes the way its figures were computed (see `fair_fate_ratios`).
    """
    if paper_compat not in (None, "fair-fate"):
        raise unknown_name("paper_compat", paper_compat, ["fair-fate"])
    counts = check_counts(counts)
    several = positive is None and counts.shape[-1] > 2
    rate, found = rates(counts, positive), {}
    for name, gap in CATALOGUE.items():
        if not _is_gap_of_rates(gap) or not gap.disparity:
            continue
        if all(name in rate for name in gap.compares):
            found[name] = compare(gap.how, [rate[name] for name in gap.compares], reference)
        elif several and "multiclass" in gap.kinds:
            found[name] = compare_over_classes(gap.how, gap.compares, counts, reference)
    return found if several or paper_compat is None else found | fair_fate_ratios(counts, positive)


def _is_gap_of_rates(metric: Metric) -> bool:
    return bool(metric.compared) and all(rate.share for rate in metric.compared)


def names() -> list[str]:
    """Return the metrics that `of_rows` knows."""
    return [name for name, metric in CATALOGUE.items() if metric.share or _is_gap_of_rates(metric)]


@cache
def of_rows(name: str) -> Callable[..., Any]:
    """Return the function of rows of a rate or gap of the catalogue."""
    metric = CATALOGUE[name]
    any_classes = all(rate.share.is_of_any_classes for rate in metric.compared or (metric,) if rate.share)
    if metric.share:
        function, says = _rate(name, any_classes), "nan without such rows. A dict by group with `sensitive_features`"
    elif metric.how == "difference":
        function, says = _difference(name, any_classes), "nan with fewer than two defined groups"
    elif metric.how == "worst":
        function, says = _worst(metric, any_classes), "nan without a defined group"
    else:
        function, says = _ratio(name, any_classes), "nan with fewer than two defined groups or when all rates are 0"
    function.__name__ = function.__qualname__ = name
    function.__module__ = "equifed.metrics"
    function.__doc__ = f"{metric.help}\n\n{says}.\n\n{function.__doc__ or ''}".strip()
    return function


def _table(
    y_true: Any, y_pred: Any, sensitive_features: Any, pos_label: Any, *, right: bool = False, classes: bool = False
) -> tuple[np.ndarray, list[Any]]:
    """Return counts [G, C, C] and the groups' names. right: only right and wrong predictions are to be told apart.
    classes: there may be more than two."""
    if right:
        if pos_label is not None:
            raise ConfigError(f"pos_label={pos_label!r} has no meaning here: all classes count alike. Leave it out.")
        pred = hits(y_true, y_pred).astype(np.int64)
        true, number = np.ones_like(pred), 2
    elif classes:
        true, pred, number = _inputs.class_codes(y_true, y_pred, pos_label)
    else:
        true, pred, number = *_inputs.binary(y_true, y_pred, pos_label), 2
    everyone = np.zeros(len(true), dtype=np.int64), [None]
    group, names = everyone if sensitive_features is None else _inputs.groups(sensitive_features)
    return counts(true, pred, sensitive_features=group, num_groups=len(names), num_classes=number), names


def _rate(name: str, right: bool) -> Callable[..., Any]:
    def rate(y_true: Any, y_pred: Any, *, sensitive_features: Any = None, pos_label: Any = None) -> Any:
        table, names = _table(y_true, y_pred, sensitive_features, pos_label, right=right)
        values = rates(table)[name].tolist()
        return values[0] if sensitive_features is None else dict(zip(names, values, strict=True))

    return rate


def _difference(name: str, right: bool) -> Callable[..., Any]:
    classes = "multiclass" in CATALOGUE[name].kinds

    def difference(
        y_true: Any,
        y_pred: Any,
        *,
        sensitive_features: Any,
        pos_label: Any = None,
        signed: bool = False,
        reference_group: Any = None,
    ) -> float:
        """With `signed=True` it is (other - reference_group), of the group farthest from the reference."""
        table, names = _table(y_true, y_pred, sensitive_features, pos_label, right=right, classes=classes)
        reference = _inputs.reference_index(names, signed, reference_group)
        return float(disparities(table, reference=reference)[name])

    return difference


def _ratio(name: str, right: bool) -> Callable[..., Any]:
    classes = "multiclass" in CATALOGUE[name].kinds

    def ratio(
        y_true: Any,
        y_pred: Any,
        *,
        sensitive_features: Any,
        pos_label: Any = None,
        paper_compat: PaperCompat = None,
    ) -> float:
        """`paper_compat="fair-fate"` gives the value as FAIR-FATE publishes it; see `fair_fate_ratios`."""
        several = classes and paper_compat is None
        table, _ = _table(y_true, y_pred, sensitive_features, pos_label, right=right, classes=several)
        if paper_compat is not None and name not in (published := fair_fate_ratios(table)):
            raise ConfigError(f"paper_compat={paper_compat!r} is for {', '.join(published)} only. Leave it out.")
        return float(disparities(table, paper_compat=paper_compat)[name])

    return ratio


def _worst(metric: Metric, right: bool) -> Callable[..., Any]:
    def worst(y_true: Any, y_pred: Any, *, sensitive_features: Any, pos_label: Any = None) -> float:
        table, _ = _table(y_true, y_pred, sensitive_features, pos_label, right=right)
        values = rates(table)[metric.compares[0]]
        return float((np.fmax if metric.better == "lower" else np.fmin).reduce(values))

    return worst
