"""A federation of clients as unlike as they come."""

from __future__ import annotations

import numpy as np

import equifed as ef


def rows(rng: np.random.Generator, n: int, groups: int = 2, features: int = 4) -> tuple[np.ndarray, ...]:
    """Labels that depend on the features and, unfairly, on the group."""
    x = rng.normal(size=(n, features)).astype(np.float32)
    s = rng.integers(0, groups, n)
    y = (x[:, 0] - x[:, 1] + 0.8 * s + 0.5 * rng.normal(size=n) > 0.4).astype(int)
    return x, y, s


def make_uneven() -> ef.Federation:
    """Clients as unlike as they come: many rows, few, one, none, one group only, no positive label."""
    rng = np.random.default_rng(7)
    clients = [rows(rng, n) for n in (41, 17, 60, 1, 0, 33, 24, 9)]
    x, y, s = rows(rng, 20)
    clients += [(x, y, np.ones_like(s)), (x, np.zeros_like(y), s)]
    return ef.Federation.from_arrays(
        clients,
        validation=rows(rng, 80),
        test=rows(rng, 120),
        client_tests=[rows(rng, 12) for _ in clients],
        ids=[f"silo-{i}" for i in range(len(clients))],
        client_groups=[i % 3 for i in range(len(clients))],
    )
