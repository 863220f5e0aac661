"""What an evaluation is reduced to: counts and sums, from which every metric follows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Scored(NamedTuple):
    """One split of one run at one round. The leading axis S is 1 for a global set, or the clients."""

    counts: np.ndarray
    """Rows by group, label and prediction [S, G, C, C]; for regression [S, G, 1, 1]."""
    loss: np.ndarray
    """Summed loss by group and label [S, G, C] (squared error for regression: [S, G, 1])."""
    ks: np.ndarray
    """Largest KS distance between two groups' predictions [S] (regression; nan otherwise)."""
    mean: np.ndarray
    """Mean prediction by group [S, G] (regression; nan otherwise)."""
    predicted: np.ndarray
    """Rows by group and prediction [S, G, C]: the counts' sums over labels, known also of clients that withhold those
    (regression: rows by group [S, G, 1])."""
    calibration: np.ndarray
    """Rows, rows where the score came true and the sum of scores, by group and bin of scores [S, G, BINS, 3]; see
    `metrics.calibration`. [S, G, 0, 3] for regression, and for the clients' own sets."""
    unknown: np.ndarray
    """Rows of unknown group by label and prediction [S, C, C] (regression: [S, 1, 1]): part of what is said of all
    rows, and of nothing that is said of groups."""
    unknown_loss: np.ndarray
    """Their summed loss by label [S, C]."""
    unknown_calibration: np.ndarray
    """Their `calibration` [S, BINS, 3] (regression, and the clients' own sets: [S, 0, 3])."""
