"""Which counts of a silo are too small to leave it: the one rule of evaluation on Flower and of monitoring.

A group with a (label, prediction) cell below the limit has its whole table withheld: the small cell alone would follow
from the others, because sums over predictions are the same in every round. How many of the group's rows got which
prediction is disclosed all the same where those numbers are not small: with the sums of both sides known, a table
remains open. Where a single group has fewer rows than the limit, the next smallest is withheld with it, because the
number of all rows is known. The rows of unknown group count as a group in all this, save that a silo without any says
so.
"""

from __future__ import annotations

import numpy as np


def small_groups(
    counts: np.ndarray, min_count: int, predicted: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(the groups whose tables are withheld, those of which not even the predictions are disclosed), bool [G] each.

    counts: rows [G, label, prediction], those of unknown group last. predicted: rows by prediction [G, prediction],
    where they are more than the rows with a label.
    """
    predicted = counts.sum(-2) if predicted is None else predicted
    small: np.ndarray = np.any(counts < min_count, axis=(-2, -1))
    hidden = np.asarray((predicted < min_count).any(-1))
    # one group of few rows would follow from the others and the number of all rows
    rows = predicted.sum(-1)
    few = (rows > 0) & (rows < min_count)
    if few.sum() == 1 and (rows >= max(min_count, 1)).any():
        next_smallest = np.where(rows >= min_count, rows, rows.max() + 1).argmin()
        small[next_smallest] = hidden[next_smallest] = True
    small[-1] &= rows[-1] > 0
    return small, hidden


def small_bins(counts: np.ndarray, min_count: int) -> np.ndarray:
    """Which of the bins [n] that all rows fall into are withheld, bool [n]: small ones, and as many of the next
    smallest as it takes until those withheld do not have a small number of rows together."""
    hidden: np.ndarray = counts < min_count
    for bin in np.argsort(counts, kind="stable"):
        if not hidden.any() or counts[hidden].sum() >= min_count:
            break
        hidden[bin] = True
    return hidden
