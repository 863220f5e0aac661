"""How sure the numbers are: intervals of means over seeds, paired tests between methods, intervals of groups' rates.

Seeds are few (3 to 10) and every method runs on the same ones, so methods are compared by the differences seed by seed.
The test is the paired t-test. A rank test could not speak at all here: of 5 pairs, the smallest p-value that Wilcoxon's
signed ranks can give is 0.0625. Each metric of a comparison is a family of its own, corrected by Holm's step-down.

A seed draws split, partition, initial model and cohorts; what is found holds for other seeds on these data. It says
nothing about other data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from equifed.report.comparison import Arm

ENOUGH_SEEDS = 3
"""Fewer give no interval worth showing."""
LEVEL = 0.05
"""Of tests; intervals cover 1 - LEVEL."""
SAME = 1e-12
"""Differences up to here are rounding."""


@dataclass(frozen=True)
class Paired:
    """One method minus another, over the seeds that both have."""

    difference: float
    low: float
    high: float
    p: float
    """Of the two-sided paired t-test."""
    n: int
    """Seeds that both have."""
    holm: float = np.nan
    """p corrected for all comparisons of the family."""

    @property
    def clear(self) -> bool:
        """Whether the two can be told apart."""
        return self.holm < LEVEL


def mean_interval(values: pd.Series) -> tuple[float, float] | None:
    """95 % t-interval of the mean over seeds; None with fewer than three defined values."""
    known = values.dropna().to_numpy(dtype=np.float64)
    if len(known) < ENOUGH_SEEDS or not np.isfinite(known).all():
        return None
    mean, half = _student(known)
    return mean - half, mean + half


def paired(a: Arm, b: Arm, metric: str) -> Paired | None:
    """a - b over the seeds they share, not yet corrected; None when these are too few, or the data are others."""
    from scipy.stats import t

    if a.data != b.data:
        return None
    both = a.values(metric).to_frame("a").join(b.values(metric).rename("b"), how="inner").dropna()
    gaps = (both["a"] - both["b"]).to_numpy(dtype=np.float64)
    if len(gaps) < ENOUGH_SEEDS or not np.isfinite(gaps).all():
        return None
    gaps = np.where(np.abs(gaps) <= SAME, 0.0, gaps)
    mean, half = _student(gaps)
    error = float(gaps.std(ddof=1)) / np.sqrt(len(gaps))
    statistic = abs(mean) / error if error > SAME else np.inf if mean else 0.0  # equal gaps: 0, or beyond doubt
    p = float(2 * t.sf(statistic, len(gaps) - 1))
    return Paired(mean, mean - half, mean + half, p, len(gaps), p)


def against(found: Sequence[Arm], other: Arm, metric: str) -> list[Paired | None]:
    """Every arm minus `other` in one metric, corrected together; None for itself and where nothing can be said."""
    tests = [None if arm is other else paired(arm, other, metric) for arm in found]
    known = [test for test in tests if test is not None]
    corrected = iter(holm([test.p for test in known]))
    return [None if test is None else replace(test, holm=next(corrected)) for test in tests]


def holm(p: Sequence[float]) -> list[float]:
    """Holm's correction: the k-th smallest of m p-values times m - k + 1, never decreasing, at most 1."""
    order = np.argsort(p, kind="stable")
    m = len(order)
    scaled = np.maximum.accumulate(np.asarray(p, dtype=np.float64)[order] * (m - np.arange(m)))
    corrected = np.empty(m)
    corrected[order] = np.minimum(scaled, 1.0)
    return [float(value) for value in corrected]


def wilson(rate: float, n: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share that rests on n rows; nan without rows."""
    from scipy.stats import norm

    if not n > 0 or not np.isfinite(rate):
        return np.nan, np.nan
    z = float(norm.ppf(1 - LEVEL / 2))
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(max(rate * (1 - rate), 0.0) / n + z * z / (4 * n * n))
    return float(max(0.0, centre - half)), float(min(1.0, centre + half))


def _student(values: np.ndarray) -> tuple[float, float]:
    """Mean, and half the width of its interval."""
    from scipy.stats import t

    quantile = float(t.ppf(1 - LEVEL / 2, len(values) - 1))
    return float(values.mean()), quantile * float(values.std(ddof=1)) / np.sqrt(len(values))
