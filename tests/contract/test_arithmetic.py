"""A silo's processor may round otherwise than the server's: no honest reply is refused, and the model is the same.

Every process here trains the same methods with other instructions (tests/arithmetic.py).
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from arithmetic import NEITHER, arithmetics

from .elsewhere import ALL, train
from .registered import METHODS
from .test_contract import assert_same

TESTS = Path(__file__).resolve().parents[1]
SAMPLE = [i for i, m in enumerate(METHODS) if m.name in ("fedavg", "fedem", "frl", "gifair", "ifca", "kffl", "term")]


def train_elsewhere(environment: dict[str, str], numbers: Sequence[int], file: Path) -> dict[Any, dict[str, Any]]:
    """Train these methods in a process of its own, and return what came out by method, setting and engine."""
    command = [sys.executable, "-W", "error", "-m", "contract.elsewhere", str(file), *map(str, numbers)]
    done = subprocess.run(command, cwd=TESTS, env=NEITHER | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[Any, dict[str, Any]] = pickle.loads(file.read_bytes())
    return found


def check(environment: dict[str, str], numbers: Sequence[int], folder: Path) -> None:
    """Check that both engines give there what lanes give here."""
    here = train(numbers, ["lanes"])
    for (number, name, engine), facts in train_elsewhere(environment, numbers, folder / "found").items():
        assert facts["rejections"].empty, (ALL[number], name, engine, facts["rejections"])
        assert_same(SimpleNamespace(**facts), here[number, name, "lanes"])


def test_other_instructions_give_the_same_models_and_no_reply_is_refused(tmp_path: Path) -> None:
    """But for kernels, which another processor's would have to be compiled for first."""
    environment = arithmetics()["default"]
    check({name: value for name, value in environment.items() if "NUMBA" not in name}, SAMPLE, tmp_path)


@pytest.mark.full  # every method and variant
@pytest.mark.parametrize("name", ["default", "avx2", "avx512"])
def test_every_instruction_set_gives_the_same_models_and_no_reply_is_refused(name: str, tmp_path: Path) -> None:
    if name not in arithmetics():
        pytest.skip(f"This processor has no {name}.")
    check(arithmetics()[name], range(len(ALL)), tmp_path)
