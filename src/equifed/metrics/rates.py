"""Counts by (group, label, prediction), and the rates of each group that follow from them.

Everything works on an integer array `counts[..., group, label, prediction]` with any leading axes (runs,
clients, bootstrap draws). Counts of clients add up, rates do not: sum first, then divide. A rate whose
denominator is empty is nan, never 0 or 1.
"""

from __future__ import annotations

from typing import Any, Protocol, overload

import numpy as np

from equifed.errors import ConfigError, DataError
from equifed.metrics import _inputs


def counts(
    y_true: Any,
    y_pred: Any,
    *,
    sensitive_features: Any,
    num_groups: int | None = None,
    num_classes: int | None = None,
) -> np.ndarray:
    """Number of rows by group, label and prediction: int array [G, C, C].

    Labels and predictions are class codes 0..C-1. Groups are numbered in sorted order of their values; with
    `num_groups` they must already be codes 0..G-1, so that clients lacking a group give the same shape.
    """
    true, pred = _inputs.label_pair(y_true, y_pred)
    if num_groups is None:
        group, names = _inputs.groups(sensitive_features)
        num_groups = len(names)
    else:
        group = _codes(_inputs.labels(sensitive_features, "sensitive_features"), num_groups, "sensitive_features")
    _inputs.same_length(y_true=true, sensitive_features=group)
    true, pred = _codes(true, num_classes, "y_true"), _codes(pred, num_classes, "y_pred")
    if num_classes is None:
        num_classes = int(max(true.max(initial=1), pred.max(initial=1))) + 1
    cell = (group * num_classes + true) * num_classes + pred
    size = num_groups * num_classes * num_classes
    return np.bincount(cell, minlength=size).reshape(num_groups, num_classes, num_classes)


def _codes(values: np.ndarray, limit: int | None, name: str) -> np.ndarray:
    top = "" if limit is None else f"..{limit - 1}"
    if len(values) == 0:
        return values.astype(np.int64)
    if values.dtype.kind not in "iuf" or values.min() < 0 or (limit is not None and values.max() >= limit):
        shown = np.unique(values)[:6].tolist()
        raise DataError(f"{name} must hold the codes 0{top or ', 1, ...'}, but has values such as {shown}.")
    return values.astype(np.int64)


def rates(counts: np.ndarray, positive: int | None = None) -> dict[str, np.ndarray]:
    """Rates of each group, each [..., G], with `count` (rows) and `positives` (rows with the positive label).

    `positive` is the class that counts as positive, against all others; None means 1 when there are two
    classes. With more classes and no `positive` only `count` and `accuracy` have a meaning.
    """
    counts = check_counts(counts)
    classes = counts.shape[-1]
    count = counts.sum((-2, -1))
    accuracy = divide(np.trace(counts, axis1=-2, axis2=-1), count)
    if positive is None and classes > 2:
        return {"count": count, "accuracy": accuracy}
    tp, fn, fp, tn = confusion(counts, positive)
    return {
        "count": count,
        "positives": tp + fn,
        "selection_rate": divide(tp + fp, count),
        "true_positive_rate": divide(tp, tp + fn),
        "false_positive_rate": divide(fp, fp + tn),
        "true_negative_rate": divide(tn, fp + tn),
        "false_negative_rate": divide(fn, tp + fn),
        "accuracy": accuracy,
        # F1 = harmonic mean of precision and recall = 2 TP / (2 TP + FP + FN)
        "f1": divide(2 * tp, 2 * tp + fp + fn),
    }


def confusion(counts: np.ndarray, positive: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """TP, FN, FP, TN of the class `positive` against the rest, each [..., G]."""
    positive = 1 if positive is None else positive
    if not 0 <= positive < counts.shape[-1]:
        raise ConfigError(f"positive={positive} is not one of the {counts.shape[-1]} classes.")
    tp = counts[..., positive, positive]
    fn = counts[..., positive, :].sum(-1) - tp
    fp = counts[..., :, positive].sum(-1) - tp
    tn = counts.sum((-2, -1)) - tp - fn - fp
    return tp, fn, fp, tn


def check_counts(counts: Any) -> np.ndarray:
    counts = np.asarray(counts)
    if counts.ndim < 3 or counts.shape[-1] != counts.shape[-2] or counts.shape[-1] < 2:
        raise DataError(f"counts must have the shape [..., group, label, prediction], but has {counts.shape}.")
    return counts


# A model that has diverged has infinite errors, and NumPy warns of inf - inf and inf / inf where the processor raises a
# flag. What comes of them is undefined: nan, without computing it.


def divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """numerator / denominator, nan where the denominator is 0 or infinite."""
    numerator, denominator = np.asarray(numerator), np.asarray(denominator)
    undefined = np.full(np.broadcast_shapes(numerator.shape, denominator.shape), np.nan)
    return np.divide(numerator, denominator, out=undefined, where=(denominator != 0) & ~np.isinf(denominator))


def subtract(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a - b, nan where either is nan or infinite."""
    a, b = np.asarray(a), np.asarray(b)
    undefined = np.full(np.broadcast_shapes(a.shape, b.shape), np.nan)
    return np.subtract(a, b, out=undefined, where=np.isfinite(a) & np.isfinite(b))


def degenerate(counts: np.ndarray, threshold: float = 0.99) -> np.ndarray:
    """Whether one class is predicted for more than `threshold` of a group's rows: bool [..., G].

    Such a model is perfectly "fair" by most disparities and useless; an empty group is not degenerate.
    """
    predicted = check_counts(counts).sum(-2)
    return predicted.max(-1) > threshold * predicted.sum(-1)


class Rate(Protocol):
    """(y_true, y_pred) -> one number; with `sensitive_features`, one number per group."""

    @overload
    def __call__(
        self, y_true: Any, y_pred: Any, *, sensitive_features: None = None, pos_label: Any = None
    ) -> float: ...
    @overload
    def __call__(
        self, y_true: Any, y_pred: Any, *, sensitive_features: Any, pos_label: Any = None
    ) -> dict[Any, float]: ...


def _rate(name: str, meaning: str) -> Rate:
    def rate(y_true: Any, y_pred: Any, *, sensitive_features: Any = None, pos_label: Any = None) -> Any:
        true, pred = _inputs.binary(y_true, y_pred, pos_label)
        everyone = np.zeros(len(true), dtype=np.int64), [None]
        group, names = everyone if sensitive_features is None else _inputs.groups(sensitive_features)
        table = counts(true, pred, sensitive_features=group, num_groups=len(names), num_classes=2)
        values = rates(table)[name].tolist()
        return values[0] if sensitive_features is None else dict(zip(names, values, strict=True))

    rate.__name__ = rate.__qualname__ = name
    rate.__doc__ = f"{meaning}; nan where there is no such row. A dict by group when `sensitive_features` is given."
    return rate


selection_rate = _rate("selection_rate", "Share of rows predicted positive")
true_positive_rate = _rate("true_positive_rate", "Share of the positive rows that are predicted positive")
false_positive_rate = _rate("false_positive_rate", "Share of the negative rows that are predicted positive")
true_negative_rate = _rate("true_negative_rate", "Share of the negative rows that are predicted negative")
false_negative_rate = _rate("false_negative_rate", "Share of the positive rows that are predicted negative")
f1 = _rate("f1", "Harmonic mean of precision and recall, 2 TP / (2 TP + FP + FN)")


def accuracy(y_true: Any, y_pred: Any, *, sensitive_features: Any = None) -> Any:
    """Share of rows predicted right, for any classes. A dict by group when `sensitive_features` is given."""
    right = hits(y_true, y_pred)
    if sensitive_features is None:
        return float(divide(right.sum(), np.asarray(len(right))))
    group, names = _inputs.groups(sensitive_features)
    return dict(zip(names, group_means(right, group, len(names)).tolist(), strict=True))


def hits(y_true: Any, y_pred: Any) -> np.ndarray:
    """1.0 where the prediction is right."""
    true, pred = _inputs.label_pair(y_true, y_pred)
    return (true == pred).astype(np.float64)


def group_means(values: np.ndarray, group: np.ndarray, num_groups: int) -> np.ndarray:
    """Mean of `values` over each group's rows [G]; nan for a group without rows."""
    _inputs.same_length(values=values, sensitive_features=group)
    total = np.bincount(group, weights=values, minlength=num_groups)
    return divide(total, np.bincount(group, minlength=num_groups))
