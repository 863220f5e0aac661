"""CUSUM: cumulative sums of deviations that are each too small to be significant, and their false alarm rate.

With standardised deviations z_1, z_2, ..., independent with mean 0 and variance 1 as long as nothing changes,

    up_t   = max(0, up_{t-1}   + z_t - ALLOWANCE)
    down_t = max(0, down_{t-1} - z_t - ALLOWANCE)

and an alarm sounds when either exceeds the limit h. The average number of periods until a false alarm (average run
length) is that of the Markov chain with which Brook and Evans (Biometrika 59, 1972) approximate the sum; for both
directions together it is half as long, because one direction is at 0 whenever the other one sounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple

import numpy as np

ALLOWANCE = 0.5
"""Half of the shift, in standard errors of a period, that is detected fastest."""
STATES = 150
"""Number of states of the Markov chain."""


class Alarm(NamedTuple):
    """The first alarm of a path."""

    sign: Literal[1, -1]
    """1 for upwards, -1 for downwards."""
    noticed: int
    """Position at which it sounds."""


class Path(NamedTuple):
    """The two cumulative sums, and the alarm if there is one."""

    up: np.ndarray
    down: np.ndarray
    """Both sums after each deviation; nan without a deviation, and after the alarm."""
    alarm: Alarm | None


def run_length(limit: float, allowance: float = ALLOWANCE) -> float:
    """Return the average number of periods until a false alarm, with both directions monitored."""
    from scipy.special import ndtr

    width = 2 * limit / (2 * STATES - 1)
    middle = width * np.arange(STATES)
    step = middle[None] - middle[:, None] + allowance
    moves = ndtr(step + width / 2) - ndtr(step - width / 2)
    moves[:, 0] = ndtr(step[:, 0] + width / 2)  # includes all sums below 0
    return float(np.linalg.solve(np.eye(STATES) - moves, np.ones(STATES))[0]) / 2


@cache
def limit_for(periods: float, allowance: float = ALLOWANCE) -> float:
    """Return the limit with one false alarm in `periods` periods on average."""
    from scipy.optimize import brentq

    return float(brentq(lambda limit: run_length(limit, allowance) - periods, 1e-3, 30, xtol=1e-6))


def follow(deviations: Sequence[float] | np.ndarray, limit: float, allowance: float = ALLOWANCE) -> Path:
    """Compute both sums along the deviations, up to the first alarm; nan deviations are skipped."""
    sums = np.full((2, len(deviations)), np.nan)
    now = np.zeros(2)
    for t, z in enumerate(deviations):
        if np.isnan(z):
            continue
        sums[:, t] = now = np.maximum(0, now + np.array([z, -z]) - allowance)
        if now.max() > limit:
            return Path(sums[0], sums[1], Alarm(1 if now[0] > limit else -1, t))
    return Path(sums[0], sums[1], None)
