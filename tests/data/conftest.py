"""The real files for the loader tests: $EQUIFED_DATA, else a shared folder beside the checkout, else the cache."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from equifed import data

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def home() -> Path:
    if "EQUIFED_DATA" not in os.environ and SHARED.is_dir():
        return SHARED
    return data.data_home()


@pytest.fixture(scope="session")
def load(home):
    """`data.load_encoded` by (name, preset); the last few results are kept, the large ones make way."""

    @functools.lru_cache(maxsize=4)
    def loaded(name: str, preset: str):
        return data.load_encoded(name, preset, home)

    return loaded
