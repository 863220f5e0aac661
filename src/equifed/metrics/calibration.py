"""Calibration: whether a score says how often the label comes true, from histograms that clients can add up.

Scores are sorted into `BINS` equal-width bins. Of every group and bin, three numbers are kept: rows n, rows k where
what the score is about came true, and the sum of the scores, so that with b over the bins

    ECE = sum_b n_b / n |k_b / n_b - mean score_b|        (expected calibration error; Guo et al., ICML 2017)

With two classes the score is that of class 1, and it comes true where the label is 1. With more, it is that of the
predicted class, and comes true where the prediction is right (top-label calibration).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from equifed.errors import DataError
from equifed.metrics import _inputs
from equifed.metrics.disparities import difference
from equifed.metrics.rates import divide

BINS = 16
"""Close to the 15 that are usual, and a power of two: ranges of bins can be halved, down to single bins."""
EDGES = np.linspace(0.0, 1.0, BINS + 1)[1:-1]
"""Between the bins. A score on an edge belongs below it, as a score of one half is no positive decision."""


def histograms(y_true: Any, y_score: Any, *, sensitive_features: Any) -> np.ndarray:
    """Rows, rows with label 1, and the sum of scores, by group and bin [G, BINS, 3]."""
    label, score = (_inputs.numbers(values, name) for values, name in ((y_true, "y_true"), (y_score, "y_score")))
    if not np.isin(label, (0, 1)).all():
        raise DataError("Calibration is about scores of one event: y_true must be 0 or 1 (False or True).")
    if ((score < 0) | (score > 1)).any():
        raise DataError("Scores must be probabilities, within 0 to 1; y_score has others.")
    group, names = _inputs.groups(sensitive_features)
    _inputs.same_length(y_true=label, y_score=score, sensitive_features=group)
    cell = group * BINS + np.searchsorted(EDGES, score)
    sums = [np.bincount(cell, values, len(names) * BINS) for values in (np.ones(len(cell)), label, score)]
    return np.stack(sums, -1).reshape(len(names), BINS, 3)


def expected_calibration_error(y_true: Any, y_score: Any, *, sensitive_features: Any = None) -> Any:
    """Mean distance of the scores from how often the label is 1, over rows in `BINS` bins of scores. A dict by group
    when `sensitive_features` is given."""
    if sensitive_features is None:
        everyone = np.zeros(len(_inputs.column(y_score, "y_score")), dtype=np.int64)
        return float(calibration_error(histograms(y_true, y_score, sensitive_features=everyone))[0])
    errors = calibration_error(histograms(y_true, y_score, sensitive_features=sensitive_features))
    return dict(zip(_inputs.groups(sensitive_features)[1], errors.tolist(), strict=True))


def calibration_error(histogram: np.ndarray) -> np.ndarray:
    """ECE of histograms [..., BINS, 3] -> [...]; nan without rows."""
    rows, true, scores = np.moveaxis(histogram, -1, 0)
    return divide(np.abs(true - scores).sum(-1), rows.sum(-1))


def calibration_gap(histogram: np.ndarray) -> np.ndarray:
    """Largest distance between two groups' reliability curves [..., G, BINS, 3] -> [...].

    The distance of two curves is the mean over bins of how far apart the two groups are in `rate of the label - mean
    score`. A bin weighs n m / (n + m) with the two groups' rows n and m, the precision of such a difference: bins that
    few rows of either group fall into count for little. nan where no two groups share a bin, or a group is withheld.
    """
    rows, true, scores = np.moveaxis(histogram, -1, 0)
    excess = np.where(rows > 0, divide(true - scores, rows), 0.0)
    one, other = rows[..., :, None, :], rows[..., None, :, :]
    weight = np.where(one * other > 0, divide(one * other, one + other), 0.0)
    apart = np.abs(excess[..., :, None, :] - excess[..., None, :, :])
    distance = divide((weight * apart).sum(-1), weight.sum(-1))
    same = np.eye(distance.shape[-1], dtype=bool)
    found = np.where(same | np.isnan(distance), -np.inf, distance).max((-2, -1), initial=-np.inf)
    return np.where(np.isneginf(found) | _withheld(histogram), np.nan, found)


def error_difference(histogram: np.ndarray) -> np.ndarray:
    """Largest gap between groups in ECE [..., G, BINS, 3] -> [...]; nan where a group is withheld."""
    return np.where(_withheld(histogram), np.nan, difference(calibration_error(histogram)))


def _withheld(histogram: np.ndarray) -> np.ndarray:
    """Whether some group's histogram is [..., G, BINS, 3] -> [...]."""
    hidden: np.ndarray = np.isnan(histogram).any((-3, -2, -1))
    return hidden


def error_by_chance(histogram: np.ndarray) -> np.ndarray:
    """The ECE that an exactly calibrated model shows on average on so many rows [..., BINS, 3] -> [...].

    In a bin with n rows and mean score p the label then comes true for a binomial number of rows, whose mean distance
    from n p is 2 m (1 - p) P(m) with m = floor(n p) + 1 (de Moivre).
    """
    from scipy.special import betaln, xlog1py, xlogy

    rows, _, scores = np.moveaxis(histogram, -1, 0)
    score = np.clip(np.where(rows > 0, divide(scores, rows), 0.0), 0.0, 1.0)
    n = np.maximum(np.round(rows), 1)  # rows that several models share are counted as the mean over these
    m = np.minimum(np.floor(n * score) + 1, n)  # more only where the score is 1, and the distance 0
    likely = np.exp(xlogy(m, score) + xlog1py(n - m, -score) - betaln(m + 1, n - m + 1)) / (n + 1)  # P(m)
    apart = 2 * m * (1 - score) * likely / n
    return divide((rows * apart).sum(-1), rows.sum(-1))
