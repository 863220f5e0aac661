"""Groups as numbers, for methods that measure dependence on the sensitive attribute."""

from __future__ import annotations

import numpy as np


def as_numbers(codes: np.ndarray, count: int) -> np.ndarray:
    """Group codes as numbers [n, d] without an order among more than two: 0 or 1 for two groups, one-hot for more."""
    return codes[:, None].astype(np.float32) if count <= 2 else np.eye(count, dtype=np.float32)[codes]
