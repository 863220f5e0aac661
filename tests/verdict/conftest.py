"""The command line, with a data set "even" on which some methods have numbers in closed form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from equifed.cli.app import app
from equifed.data import DATASETS, Dataset, Preset, Sensitive
from verdict.made import evenly


def _read(files: Any) -> pd.DataFrame:
    rows = evenly(200).rows
    columns = {"score": rows.x[:, 0], "side": rows.x[:, 1], "s": rows.s, "y": rows.y}
    return pd.DataFrame({name: np.asarray(values) for name, values in columns.items()})


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EQUIFED_RUNS", raising=False)
    preset = Preset(
        name="default",
        description="made up",
        rows=1200,
        inputs=2,
        groups=("0", "1"),
        label="y",
        positive="1",
        features=("score", "side"),
        sensitive=(Sensitive(column="s"),),
        split=(0.4, 0.3, 0.3),
        num_partitions=3,
    )
    made = Dataset("even", "Even", (), _read, {"default": preset}, "made up", "none", "none")
    monkeypatch.setitem(DATASETS, "even", made)
    return lambda *words: CliRunner().invoke(app, list(words), env={"COLUMNS": "160", "NO_COLOR": "1"})
