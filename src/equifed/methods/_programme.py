"""The linear programme of servers that optimise weights."""

from __future__ import annotations

from typing import Any

import numpy as np


def best_weights(worth: np.ndarray, share: np.ndarray, high: float | None = None, **limits: Any) -> np.ndarray | None:
    """Return argmax worth.a over 0 <= a <= high with share.a = 1 and A_ub a <= b_ub, by HiGHS; None if infeasible."""
    from scipy.optimize import linprog  # here, so that the simulator needs only torch and NumPy

    solved = linprog(-worth, A_eq=share[None], b_eq=[1.0], bounds=(0, high), method="highs", **limits)
    return np.asarray(solved.x) if solved.success else None
