"""The real files for the loader tests; `tests/conftest.py` says where the data home is."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from equifed import data


@pytest.fixture(scope="session")
def home() -> Path:
    return data.data_home()


@pytest.fixture(scope="session")
def load(home):
    """`Dataset.encode` by (name, preset); the last few results are kept, the large ones make way."""

    @functools.lru_cache(maxsize=4)
    def loaded(name: str, preset: str):
        return data.get_dataset(name).encode(preset, home)

    return loaded
