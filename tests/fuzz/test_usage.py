"""Configurations and command lines that nobody writes on purpose: a usage error, an error of ours or a result, never a
traceback. A few of what `usage.py` tries."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fuzz.mutations import EXAMPLES
from fuzz.usage import commands, place, try_command_lines, try_configurations


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with place() as made:
        yield made


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(None if "EQUIFED_FUZZ" in os.environ else 0)


@pytest.mark.full
def test_configurations(folder: Path, rng: np.random.Generator) -> None:
    assert [tried for tried in try_configurations(folder, EXAMPLES, rng) if tried[1].wrong] == []


def test_command_lines(folder: Path, rng: np.random.Generator) -> None:
    assert len(dict(commands())) > 12
    assert [tried for tried in try_command_lines(EXAMPLES, rng) if tried[1].wrong] == []
