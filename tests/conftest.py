"""What all tests share: where the real data lies, and small federations."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import equifed as ef
from equifed.data import get_dataset
from equifed.data.download import fetch_files

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
if "EQUIFED_DATA" not in os.environ and BESIDE.is_dir():
    os.environ["EQUIFED_DATA"] = str(BESIDE)


@functools.cache
def lacking(name: str) -> str:
    """Why a data set is not to be had here, from the data home or any other source; empty if it is."""
    try:
        fetch_files(get_dataset(name).files, None)
    except ef.DataError as error:
        return f"{name} is not to be had here: {str(error).splitlines()[0]}"
    return ""


@pytest.fixture(scope="session")
def needs() -> Callable[[str], None]:
    """needs(name) fetches a data set, or skips the test with the reason."""

    def check(name: str) -> None:
        if lacking(name):
            pytest.skip(lacking(name))

    return check


def rows(rng: np.random.Generator, n: int, groups: int = 2, features: int = 4) -> tuple[np.ndarray, ...]:
    """Labels that depend on the features and, unfairly, on the group."""
    x = rng.normal(size=(n, features)).astype(np.float32)
    s = rng.integers(0, groups, n)
    y = (x[:, 0] - x[:, 1] + 0.8 * s + 0.5 * rng.normal(size=n) > 0.4).astype(int)
    return x, y, s


@pytest.fixture(scope="session")
def uneven() -> ef.Federation:
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
