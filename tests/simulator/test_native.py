"""Machine code on disk: later processes need no numba, and nothing that happens to the file ends a run."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from equifed import shuffle
from equifed.simulator.fused import cpu, native

KEYS = np.array([1, 2**63 + 5, 77], np.uint64)
SIZES = np.array([9, 30, 1])


def orders() -> list[list[int]]:
    """By code that is loaded, or compiled, anew."""
    code = native.Native(cpu._orders.module, cpu._orders.name, *cpu._orders.kinds)
    out = np.zeros((3, 30), np.int32)
    code.bind(KEYS, SIZES, *(np.empty(30, np.uint32) for _ in range(2)), out)(4)
    return [order[:n].tolist() for order, n in zip(out, SIZES, strict=True)]


EXPECTED = [
    shuffle.order(int(key), int(n)).tolist() for key, n in zip(shuffle.fold(KEYS, 4), SIZES, strict=True)
]  # fmt: skip


@pytest.mark.full
def test_a_damaged_or_foreign_file_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_folders", lambda: [tmp_path])
    assert orders() == EXPECTED
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for damaged in (b"", whole[:-1], whole[:500] + bytes([whole[500] ^ 1]) + whole[501:]):
        file.write_bytes(damaged)
        assert orders() == EXPECTED
        made = file.read_bytes()
        assert hashlib.sha256(made[32:]).digest() == made[:32], "and is whole again"
    monkeypatch.setattr(native, "_processor", lambda: {"cpu": "generic", "features": ""})
    assert orders() == EXPECTED
    assert len(list(tmp_path.iterdir())) == 2, "another processor has code of its own"


@pytest.mark.full
def test_code_is_kept_where_a_file_can_be_written_and_else_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("no folder can be made here")
    nowhere = tmp_path / "taken" / "cache"
    monkeypatch.setenv("EQUIFED_CACHE", str(tmp_path / "cache"))
    assert list(native._folders())[1:] == [tmp_path / "cache" / "kernels"]
    monkeypatch.setattr(native, "_folders", lambda: [nowhere])
    assert orders() == EXPECTED
    monkeypatch.setattr(native, "_folders", lambda: [nowhere, tmp_path / "user"])
    assert orders() == EXPECTED
    assert len(list((tmp_path / "user").iterdir())) == 1


def test_arrays_of_another_form_never_reach_the_code() -> None:
    scratch = np.empty(30, np.uint32)
    for keys, out in (
        (KEYS.view(np.int64), np.zeros((3, 30), np.int32)),
        (KEYS, np.zeros((3, 60), np.int32)[:, ::2]),
        (KEYS, np.zeros(90, np.int32)),
    ):
        with pytest.raises(TypeError, match="orders does not accept an array"):
            cpu._orders.bind(keys, SIZES, scratch, scratch, out)


PROGRAM = """
import sys

sys.modules["numba"] = None  # importing it raises ImportError

import numpy as np

import equifed as ef
from equifed import tree
from equifed.settings import RunSettings
from equifed.simulation import Simulation
from equifed.simulator import make_job

x = np.linspace(-1, 1, 120).reshape(40, 3).astype("float32") ** 3
rows = x, (x[:, 0] > 0.1).astype(int), np.arange(40) % 2
fed = ef.Federation.from_arrays([rows, rows], test=rows)
local = ef.Local(batch_size=10, optimizer="adam")
settings = RunSettings(rounds=2, seeds=[0], kernel="fused", local=local, device="cpu")
job = make_job(ef.methods.FedAvg(), fed, ef.models.MLP(hidden=(4,)), settings)
for step in Simulation(job).rounds():
    pass
print([value.tolist() for value in tree.leaves(step.state.server)])
"""


def test_a_later_process_needs_no_numba(capsys: pytest.CaptureFixture[str]) -> None:
    exec(PROGRAM.replace('sys.modules["numba"] = None', ""), {})  # now it is on disk
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == capsys.readouterr().out
