"""Counts by (group, label, prediction), and what a rate is: the share of one count of rows in another.

Everything works on an integer array `counts[..., group, label, prediction]` with any leading axes (runs,
clients, bootstrap draws). Counts of clients add up, rates do not: sum first, then divide. A rate whose
denominator is empty is nan, never 0 or 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, reduce
from operator import add
from typing import Any, NamedTuple

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


def cells(counts: np.ndarray, positive: int | None = None) -> dict[str, np.ndarray]:
    """Return the rows of each group, each [..., G], by what `Share` calls them.

    `TP`, `FN`, `FP` and `TN` are about the class `positive` against all others; None means 1 when there are two
    classes. With more classes and no `positive` only `right` and `wrong` have a meaning: those of any class.
    """
    counts = check_counts(counts)
    classes = counts.shape[-1]
    right = np.trace(counts, axis1=-2, axis2=-1)
    rows = counts.sum((-2, -1))
    found = {"right": right, "wrong": rows - right}
    if positive is None and classes > 2:
        return found
    positive = 1 if positive is None else positive
    if not 0 <= positive < classes:
        raise ConfigError(f"positive={positive} is not one of the {classes} classes.")
    tp = counts[..., positive, positive]
    fn = counts[..., positive, :].sum(-1) - tp
    fp = counts[..., :, positive].sum(-1) - tp
    return {"TP": tp, "FN": fn, "FP": fp, "TN": rows - tp - fn - fp, **found}


CELLS = ("TP", "FN", "FP", "TN", "right", "wrong")
"""The counts that a rate is made of: true and false positives and negatives of two classes, right and wrong predictions
of any number."""
_TERM = re.compile(rf"\s*(\d+)?\s*({'|'.join(CELLS)})\s*")


@cache
def _terms(sum: str) -> dict[str, int]:
    """Return the cells of a sum such as "2 TP + FP", and how often each is counted."""
    found = [_TERM.fullmatch(term) for term in sum.split("+")]
    terms = {term[2]: int(term[1] or 1) for term in found if term}
    if None in found or len(terms) < len(found):
        raise ConfigError(
            f"{sum!r} is not a sum of counts. Write such as 'TP' or '2 TP + FP', with each of {', '.join(CELLS)} at "
            "most once."
        )
    return terms


class Share(NamedTuple):
    """A rate as two counts of rows: numerator / denominator, undefined where the denominator is empty."""

    numerator: str
    """A sum of `CELLS`, such as "TP"."""
    denominator: str
    """A sum of `CELLS`, such as "TP + FP"."""

    def parts(self, cells: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return numerator and denominator, of arrays or Series by the names of `CELLS`."""
        numerator, denominator = (
            reduce(add, (times * cells[name] for name, times in _terms(sum).items())) for sum in self
        )
        return numerator, denominator

    def of(self, cells: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the rate of each group [..., G]; nan where the denominator is empty."""
        return divide(*self.parts(cells))

    def rows(self, cells: Mapping[str, Any]) -> Any:
        """Return the rows that it rests on: those in its denominator, each counted once."""
        return reduce(add, (cells[name] for name in _terms(self.denominator)))

    @property
    def is_of_rows(self) -> bool:
        """Whether it is a share of the rows that it rests on, so that Wilson's interval is one of it."""
        numerator, denominator = map(_terms, self)
        return {*numerator.values(), *denominator.values()} == {1} and numerator.keys() <= denominator.keys()

    @property
    def is_of_any_classes(self) -> bool:
        """Whether it has a meaning for more than two classes."""
        return {*_terms(self.numerator), *_terms(self.denominator)} <= {"right", "wrong"}

    @property
    def needs_labels(self) -> bool:
        """Whether it takes more than predictions: not if it counts TP like FP and FN like TN."""
        alike = (("TP", "FP"), ("TN", "FN"))
        return self.is_of_any_classes or any(
            terms.get(hit) != terms.get(miss) for terms in map(_terms, self) for hit, miss in alike
        )


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


def hits(y_true: Any, y_pred: Any) -> np.ndarray:
    """1.0 where the prediction is right."""
    true, pred = _inputs.label_pair(y_true, y_pred)
    return (true == pred).astype(np.float64)


def group_means(values: np.ndarray, group: np.ndarray, num_groups: int) -> np.ndarray:
    """Mean of `values` over each group's rows [G]; nan for a group without rows."""
    _inputs.same_length(values=values, sensitive_features=group)
    total = np.bincount(group, weights=values, minlength=num_groups)
    return divide(total, np.bincount(group, minlength=num_groups))
