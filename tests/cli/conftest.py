"""The command line in this process (quick) and in one of its own (for signals, pipes and imports)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from store.silos import write_silos
from typer.testing import CliRunner

from equifed.cli.app import app
from equifed.data import DATASETS, Dataset, Preset, Sensitive

MAIN = "from equifed.cli import main; main()"


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """An empty working directory with silo files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EQUIFED_RUNS", raising=False)
    monkeypatch.delenv("EQUIFED_DEBUG", raising=False)
    write_silos(tmp_path)
    return tmp_path


@pytest.fixture
def invoke(place) -> Callable[..., Any]:
    def call(*args: str) -> Any:
        return CliRunner().invoke(app, list(args), env={"COLUMNS": "160", "NO_COLOR": "1"})

    return call


@pytest.fixture
def spawn(place, start) -> Callable[..., subprocess.Popen[str]]:
    def equifed(*args: str, program: str = MAIN) -> subprocess.Popen[str]:
        return start(program, *args, cwd=place)

    return equifed


def _read(files: Any) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(300, 3)), columns=["a", "b", "c"])
    group = rng.integers(0, 2, 300)
    frame["sex"] = np.where(group, "f", "m")
    frame["label"] = np.where(frame["a"] + 0.5 * group > 0.3, "yes", "no")
    return frame


@pytest.fixture
def tiny(monkeypatch) -> str:
    """A data set of 300 rows under the name "tiny"; its second preset has no validation rows."""
    common: dict[str, Any] = {
        "description": "made up",
        "rows": 300,
        "inputs": 3,
        "groups": ("f", "m"),
        "label": "label",
        "positive": "yes",
        "features": ("a", "b", "c"),
        "sensitive": (Sensitive(column="sex"),),
        "num_partitions": 4,
        "clients_per_round": 2,
    }
    presets = {
        "default": Preset(name="default", **common),
        "bare": Preset(name="bare", split=(0.8, 0.0, 0.2), **common),
    }
    monkeypatch.setitem(DATASETS, "tiny", Dataset("tiny", "Tiny", (), _read, presets, "made up", "none", "none"))
    return "tiny"
