"""Statistics over seeds: means and deviations, their intervals, paired tests between methods, intervals of shares.

Seeds are few (3 to 10) and every method runs on the same ones, so methods are compared by the differences seed by seed.
The test is the paired t-test. A rank test has next to no power here: of 5 pairs, the smallest p-value that Wilcoxon's
signed ranks can give is 0.0625. Each metric of a comparison is a family of its own, corrected by Holm's step-down.

A seed draws split, partition, initial model and cohorts; what is found holds for other seeds on these data. It says
nothing about other data.

A value that is undefined for a seed is nan and left out; `n` counts those that are defined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

MIN_SEEDS = 3
"""Fewer give no interval worth showing."""
MAX_SEEDS = 1000
"""More are not asked for."""
LEVEL = 0.05
"""Of tests; intervals cover 1 - LEVEL."""
ROUNDING = 1e-12
"""Differences up to here are rounding."""
RESAMPLES = 1000
"""Draws of a bootstrap."""


class Moments(NamedTuple):
    """Of the defined values of one metric."""

    mean: float
    std: float
    """Sample standard deviation; nan for fewer than two values."""
    n: int
    """How many are defined."""


def moments(values: Any) -> Moments:
    """Mean and deviation over the seeds of `values` [seeds]."""
    defined = _defined(values)
    if not len(defined):
        return Moments(np.nan, np.nan, 0)
    if not np.isfinite(defined).all():  # an infinite loss has no deviation
        return Moments(sum(defined.tolist()) / len(defined), np.nan, len(defined))
    std = float(defined.std(ddof=1)) if len(defined) > 1 else np.nan
    return Moments(float(defined.mean()), std, len(defined))


def _defined(values: Any) -> np.ndarray:
    numbers = np.asarray(values, dtype=np.float64)
    return numbers[~np.isnan(numbers)]


def moments_by(frame: Any, keys: Sequence[str], column: str = "value") -> Any:
    """A frame with mean, std and n of a tidy frame's column, a row for each value of the keys."""
    groups = frame.groupby(list(keys), observed=True, sort=False)[column]
    return groups.agg(mean="mean", std="std", n="count")


def moments_wide(frame: Any, keys: Sequence[str]) -> Any:
    """Mean and std of every column of a frame with a row for each seed, a row for each value of the keys."""
    return frame.drop(columns="seed").groupby(list(keys), observed=True, sort=False).agg(["mean", "std"])


def mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Means over an axis of seeds; nan where no value is defined."""
    defined = ~np.isnan(values)
    total = np.where(defined, values, 0).sum(axis)
    return np.where(defined.any(axis), total / np.maximum(defined.sum(axis), 1), np.nan)


# -- intervals ---------------------------------------------------------------------------------------------------------


def mean_interval(values: Any, level: float = LEVEL) -> tuple[float, float] | None:
    """t-interval, 95 % or 1 - level, of the mean over seeds; None with fewer than three defined values, or infinite
    ones."""
    defined = _defined(values)
    if len(defined) < MIN_SEEDS or not np.isfinite(defined).all():
        return None
    centre, half = _student(defined, level)
    return centre - half, centre + half


def _student(values: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """Mean, and half the width of its interval."""
    from scipy.special import stdtrit

    quantile = float(stdtrit(len(values) - 1, 1 - level / 2))
    return float(values.mean()), quantile * float(values.std(ddof=1)) / np.sqrt(len(values))


def resampled_means(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Means over seeds drawn with replacement, the same draw for all else [RESAMPLES, ...]; one nan for one seed."""
    seeds = values.shape[axis]
    if seeds < 2:
        return np.full((1, *np.delete(values.shape, axis)), np.nan)
    draws = np.random.default_rng(0).integers(seeds, size=(RESAMPLES, seeds))
    return np.stack([mean(np.take(values, draw, axis), axis) for draw in draws])


def percentile_interval(resampled: Any) -> np.ndarray:
    """(low, high) that cover 95 % of resampled values, along the first axis."""
    return np.quantile(resampled, [LEVEL / 2, 1 - LEVEL / 2], axis=0)


def wilson(share: Any, rows: Any, level: float = LEVEL) -> tuple[Any, Any]:
    """Wilson's intervals, 95 % or 1 - level, of shares that rest on so many rows; nan without rows."""
    share, rows = np.broadcast_arrays(np.asarray(share, dtype=np.float64), np.asarray(rows, dtype=np.float64))
    n = np.where(np.isfinite(share) & (rows > 0), rows, np.nan)
    z = NormalDist().inv_cdf(1 - level / 2)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(np.maximum(share * (1 - share), 0.0) / n + z * z / (4 * n * n))
    return np.maximum(0.0, centre - half)[()], np.minimum(1.0, centre + half)[()]


# -- tests -------------------------------------------------------------------------------------------------------------


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
    holm: float
    """p corrected for all comparisons of the family; p itself until then."""

    @property
    def clear(self) -> bool:
        """Whether the two can be told apart."""
        return self.holm < LEVEL


def paired(differences: Any) -> Paired | None:
    """The paired t-test of one difference per seed; None where these are too few or infinite."""
    from scipy.special import stdtr

    gaps = _defined(differences)
    if len(gaps) < MIN_SEEDS or not np.isfinite(gaps).all():
        return None
    gaps = np.where(np.abs(gaps) <= ROUNDING, 0.0, gaps)
    centre, half = _student(gaps)
    error = float(gaps.std(ddof=1)) / np.sqrt(len(gaps))
    statistic = abs(centre) / error if error > ROUNDING else np.inf if centre else 0.0  # equal gaps: 0, or beyond doubt
    p = float(2 * stdtr(len(gaps) - 1, -statistic))
    return Paired(centre, centre - half, centre + half, p, len(gaps), p)


def seeds_needed(differences: Any, bound: float) -> float:
    """How many seeds it takes until the interval of the mean difference ends within `bound`, if mean and deviation stay
    as they are; infinite beyond MAX_SEEDS, and where the mean is not below the bound. nan for fewer than two seeds."""
    from scipy.special import stdtrit

    known = _defined(differences)
    if len(known) < 2 or not np.isfinite(known).all():
        return np.nan
    counts = np.arange(MIN_SEEDS, MAX_SEEDS + 1)
    halves = stdtrit(counts - 1, 1 - LEVEL / 2) * known.std(ddof=1) / np.sqrt(counts)
    enough = counts[halves <= bound - known.mean()]
    return float(enough[0]) if len(enough) else np.inf


def corrected(tests: Sequence[Paired | None]) -> list[Paired | None]:
    """The tests of one family with Holm's p-values; None where there was no test."""
    p = iter(holm([test.p for test in tests if test is not None]))
    return [None if test is None else replace(test, holm=next(p)) for test in tests]


def holm(p: Sequence[float]) -> list[float]:
    """Holm's correction: the k-th smallest of m p-values times m - k + 1, never decreasing, at most 1."""
    order = np.argsort(p, kind="stable")
    m = len(order)
    scaled = np.maximum.accumulate(np.asarray(p, dtype=np.float64)[order] * (m - np.arange(m)))
    adjusted = np.empty(m)
    adjusted[order] = np.minimum(scaled, 1.0)
    return [float(value) for value in adjusted]
