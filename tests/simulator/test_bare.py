"""The simulator needs torch, NumPy and numba only, so that it runs on a bare machine with a GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys

for name in ABSENT:
    sys.modules[name] = None  # importing it raises ImportError

import numpy as np

import equifed as ef
from equifed.settings import RunSettings
from equifed.simulation import Simulation
from equifed.simulator import make_job

rng = np.random.default_rng(0)


def rows(n):
    x = rng.normal(size=(n, 4)).astype("float32")
    return x, (x[:, 0] > 0).astype(int), rng.integers(0, 2, n)


fed = ef.Federation.from_arrays([rows(20) for _ in range(4)], test=rows(30))
job = make_job(ef.methods.KFFL(), fed, ef.models.Logistic(), RunSettings(rounds=2, seeds=[0]))
print([step.round for step in Simulation(job).rounds()])
"""
ABSENT = [
    *(
        "flwr",
        "jinja2",
        "markupsafe",
        "pandas",
        "pooch",
        "pyarrow",
        "pydantic",
        "requests",
        "rich",
        "safetensors",
        "scipy",
    ),
    *("sklearn", "tomli_w", "typer", "vl_convert"),
]


@pytest.mark.full
def test_a_simulation_needs_torch_numpy_and_numba_only() -> None:
    done = subprocess.run([sys.executable, "-c", f"ABSENT = {ABSENT}{PROGRAM}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[1, 2]\n"
