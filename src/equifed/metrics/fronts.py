"""Trade-offs between two things of which less is better: which points are dominated, and how much a front covers."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def dominated(costs: ArrayLike, by: ArrayLike = True) -> NDArray[np.bool_]:
    """Which of the points [n, 2] another one, of those in `by`, equals or betters in both costs, and betters in one."""
    points = np.asarray(costs, dtype=np.float64).reshape(-1, 2)
    no_worse = np.all(points[None] <= points[:, None], axis=-1)
    better = np.any(points[None] < points[:, None], axis=-1)
    return np.any(no_worse & better & np.asarray(by, dtype=np.bool_), axis=1)


def hypervolume(costs: ArrayLike, reference: ArrayLike) -> float:
    """The area that the points [n, 2] dominate, up to the reference point; undefined points count for nothing.

    0 when no point is better than the reference in both costs.
    """
    points = np.asarray(costs, dtype=np.float64).reshape(-1, 2)
    right, top = np.asarray(reference, dtype=np.float64)
    points = points[(points < [right, top]).all(1)]
    area, height = 0.0, top
    # from the best first cost on: each point adds the strip below the lowest second cost so far
    for first, second in points[np.lexsort((points[:, 1], points[:, 0]))]:
        if second < height:
            area += (right - first) * (height - second)
            height = second
    return float(area)
