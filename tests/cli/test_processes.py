"""Signals, pipes, imports and neighbours: what only a process of its own can show."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from store.silos import write_config

from equifed.errors import RunError
from equifed.store import RunFolder, Store, load_result

ROUNDS = 200
WAIT = 90


@pytest.fixture
def long(place) -> Path:
    """Long enough to be stopped in the middle; with client memory, drop-outs and rare evaluations."""
    return write_config(
        place,
        run={"rounds": ROUNDS, "seeds": [1], "dropout": 0.3, "eval-every": 10},
        method={"name": "local"},
        local={"momentum": 0.5},
    )


def wait_for_round(place: Path, number: int, process: subprocess.Popen[str]) -> RunFolder:
    """Until the only run has committed this round."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        for path in place.glob("runs/*/checkpoint.safetensors"):
            folder = RunFolder(path.parent)
            try:
                if folder.rounds_done() >= number:
                    return folder
            except RunError:
                continue
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.kill()
    pytest.fail(f"round {number} was not reached in {WAIT} s")


def assert_same_as_uninterrupted(place: Path, folder: RunFolder, spawn) -> None:
    whole = spawn("run", str(folder.path / "config.toml"), "--runs", "whole", "--json")
    out, err = whole.communicate(timeout=WAIT)
    assert whole.returncode == 0, err
    other = RunFolder(place / json.loads(out)["folder"])
    assert (folder.path / "final.safetensors").read_bytes() == (other.path / "final.safetensors").read_bytes()
    one, two = load_result(folder.path), load_result(other.path)
    for name in ("metrics", "log", "messages", "rejections"):
        pd.testing.assert_frame_equal(getattr(one, name), getattr(two, name), check_exact=True)


def test_kill_and_resume_give_the_bits_of_a_whole_run(place, long, spawn):
    process = spawn("run", str(long))
    folder = wait_for_round(place, 15, process)
    process.kill()
    process.communicate(timeout=WAIT)
    done = folder.rounds_done()
    assert 15 <= done < ROUNDS, "the run was over before it could be killed"
    assert folder.status()["status"] == "interrupted"
    again = spawn("resume", "latest", "--json")
    out, err = again.communicate(timeout=WAIT)
    assert again.returncode == 0, err
    assert f"goes on after round {done} of {ROUNDS}" in err
    assert json.loads(out)["status"] == "finished"
    assert_same_as_uninterrupted(place, folder, spawn)
    last = spawn("resume", folder.id)
    out, err = last.communicate(timeout=WAIT)
    assert (last.returncode, out) == (0, "")
    assert "already finished" in err


def test_ctrl_c_leaves_a_resumable_run(place, long, spawn):
    process = spawn("run", str(long), "--set", "method.name=fedavg")
    folder = wait_for_round(place, 5, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WAIT)
    assert process.returncode == 130
    assert out == ""
    assert f"Continue with: equifed resume {folder.id}" in err
    assert "Traceback" not in err
    assert folder.status()["reason"] == "stopped by the user"
    assert Store(place / "runs").entries()[0].status == "interrupted"
    again = spawn("resume", folder.id)
    assert again.communicate(timeout=WAIT)[0]
    assert again.returncode == 0
    assert_same_as_uninterrupted(place, folder, spawn)


def test_two_runs_at_once(place, spawn):
    path = write_config(place, run={"rounds": 10})
    processes = [spawn("run", str(path), "--json") for _ in range(2)]
    found = []
    for process in processes:
        out, err = process.communicate(timeout=WAIT)
        assert process.returncode == 0, err
        assert "Warning" not in err
        found.append(json.loads(out))
    assert found[0]["metrics"] == found[1]["metrics"]
    entries = Store(place / "runs").entries()
    assert {entry.id for entry in entries} == {each["run"] for each in found}
    assert {entry.status for entry in entries} == {"finished"}


def test_a_closed_pipe_is_no_error(place, spawn):
    with spawn("data", "list", "--json") as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=WAIT) == 0


def test_a_run_does_not_need_listeners(place, spawn):
    with spawn("run", str(write_config(place)), "--json") as process:
        process.stderr.close()
        assert json.loads(process.stdout.read())["status"] == "finished"
        assert process.wait(timeout=WAIT) == 0


def test_help_does_not_wait_for_torch():
    """The package's own imports aside, nothing that the command line imports at first needs torch."""
    code = """
import sys, types, pathlib, importlib.util
package = types.ModuleType("equifed")
package.__path__ = [str(pathlib.Path(importlib.util.find_spec("equifed").origin).parent)]
sys.modules["equifed"] = package
from equifed.cli.app import app
try:
    app(["--help"])
except SystemExit as end:
    assert not end.code
heavy = {"torch", "numpy", "pandas", "pydantic", "pyarrow"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 0, done.stderr
    assert "compare" in done.stdout
