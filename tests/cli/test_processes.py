"""Signals, pipes, imports and neighbours: what only a process of its own can show."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pandas as pd
import pytest
from store.silos import write_config

from equifed.store import RunFolder, Store, load_result

ROUNDS = 60
WAIT = 600
"""Seconds; only a program that hangs takes so long."""

STOPPED = """
import os, sys, threading, time
from pathlib import Path
from equifed.cli import main

def stop(signal, number):
    while not any(file.read_bytes().count(b"\\n") >= number for file in Path("runs").glob("*/rounds.jsonl")):
        time.sleep(0.001)
    os.kill(os.getpid(), signal)

threading.Thread(target=stop, args=(int(sys.argv.pop(1)), int(sys.argv.pop(1))), daemon=True).start()
main()
"""
"""The command line with a thread that sends a signal in the midst of things, soon after the line of a round is written.
On a busy machine, a tester in another process might come too late."""


def test_killed_interrupted_and_resumed_a_run_has_the_bits_of_a_whole_one(place, spawn, invoke):
    """With client memory, drop-outs and rare evaluations."""
    config = write_config(
        place,
        run={"rounds": ROUNDS, "seeds": [1], "dropout": 0.3, "eval-every": 10},
        method={"name": "local"},
        local={"momentum": 0.5},
    )
    process = spawn(str(int(signal.SIGKILL)), "15", "run", str(config), program=STOPPED)
    process.communicate(timeout=WAIT)
    assert process.returncode == -signal.SIGKILL
    (entry,) = Store(place / "runs").entries()
    folder = RunFolder(place / "runs" / entry.id)
    killed = folder.rounds_done()
    assert 14 <= killed < ROUNDS  # 14 where it was killed between the line of round 15 and its checkpoint
    assert folder.status()["status"] == "interrupted"

    process = spawn(str(int(signal.SIGINT)), "30", "resume", "latest", program=STOPPED)
    out, err = process.communicate(timeout=WAIT)
    assert process.returncode == 130, err
    assert out == ""
    assert f"continues after round {killed} of {ROUNDS}" in err
    stopped = folder.rounds_done()
    assert 29 <= stopped < ROUNDS
    assert f"Interrupted after round {stopped} of {ROUNDS}. Continue with: equifed resume {folder.id}" in err
    assert "Traceback" not in err
    assert folder.status()["reason"] == "stopped by the user"
    assert Store(place / "runs").entries()[0].status == "interrupted"

    done = invoke("resume", folder.id, "--json")
    assert done.exit_code == 0, done.stderr
    assert f"continues after round {stopped} of {ROUNDS}" in done.stderr
    assert json.loads(done.stdout)["status"] == "finished"

    done = invoke("run", str(config), "--runs", "whole", "--json")
    assert done.exit_code == 0, done.stderr
    whole = RunFolder(place / json.loads(done.stdout)["folder"])
    assert (folder.path / "final.safetensors").read_bytes() == (whole.path / "final.safetensors").read_bytes()
    one, two = load_result(folder.path), load_result(whole.path)
    for name in ("metrics", "log", "messages", "rejections"):
        pd.testing.assert_frame_equal(getattr(one, name), getattr(two, name), check_exact=True)


def test_a_finished_run_is_not_resumed(place, invoke):
    config = write_config(place, run={"rounds": 1})
    assert invoke("run", str(config)).exit_code == 0
    done = invoke("resume", Store(place / "runs").entries()[0].id)
    assert (done.exit_code, done.stdout) == (0, "")
    assert "already finished" in done.stderr


@pytest.mark.full
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


@pytest.mark.full
def test_a_run_does_not_need_listeners(place, spawn):
    with spawn("run", str(write_config(place)), "--json") as process:
        process.stderr.close()
        assert json.loads(process.stdout.read())["status"] == "finished"
        assert process.wait(timeout=WAIT) == 0


RUN_AND_LIST = """
import sys
from equifed.cli import main
for words in (sys.argv[1:], ["list"]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        assert not end.code
"""


@pytest.mark.full
def test_letters_that_the_terminal_lacks(place, spawn, monkeypatch):
    """They are shown as escapes; the run was not in vain."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    config = write_config(place, run={"rounds": 1, "seeds": [0], "name": "Größe"})
    with spawn("run", str(config), program=RUN_AND_LIST) as process:
        out, err = process.communicate(timeout=WAIT)
    assert process.returncode == 0, err
    assert r"Gr\xf6\xdfe" in out


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
