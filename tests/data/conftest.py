"""Data sets as numbers, for the loader tests; the root `conftest.py` has the fixture by which a test asks for data."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from equifed import data
from equifed.data.dataset import Loaded


@pytest.fixture(scope="session")
def load(asked_data: Path) -> Callable[[str, str], Loaded]:
    """`Dataset.encode` by (name, preset); the last few results are kept, the large ones make way."""

    @functools.lru_cache(maxsize=4)
    def loaded(name: str, preset: str) -> Loaded:
        return data.get_dataset(name).encode(preset, asked_data)

    return loaded
