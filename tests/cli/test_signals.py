"""SIGTERM and SIGHUP end a command as Ctrl-C does, and the same command goes on where it was ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from store.silos import write_config

from equifed.signals import Stopped, end_on_signals, exit_code
from equifed.store import RunFolder, Store, load_result

from .test_processes import STOPPED, WAIT

METHODS = ("fedavg", "local", "fedprox")


def compare(*more: str) -> tuple[str, ...]:
    files = ",".join(f"silo-{k}.csv" for k in range(4))
    data = ("--data", files, "--label", "label", "--sensitive", "sex")
    return ("compare", *data, "--methods", ",".join(METHODS), "--rounds", "40", "--seeds", "1", *more)


@pytest.mark.full
def test_a_compare_that_is_ended_goes_on_by_the_same_command(
    place: Path, spawn: Callable[..., subprocess.Popen[str]], invoke: Callable[..., Any]
) -> None:
    """In the midst of the second method: the first is not repeated, the second goes on, the third begins."""
    store = Store(place / "runs")
    program = STOPPED.replace('Path("runs").glob("*/', 'Path("runs").glob("*-local-*/')
    process = spawn(str(int(signal.SIGTERM)), "5", *compare(), program=program)
    out, err = process.communicate(timeout=WAIT)
    assert (process.returncode, out) == (128 + signal.SIGTERM, ""), err
    assert "Traceback" not in err
    states = {entry.method: entry for entry in store.entries()}
    assert {name: entry.status for name, entry in states.items()} == {"fedavg": "finished", "local": "interrupted"}
    ended = RunFolder(store.root / states["local"].id)
    assert ended.status()["reason"] == "ended by SIGTERM"
    assert f"Interrupted after round {ended.rounds_done()} of 40. Continue with: equifed resume {ended.id}" in err
    assert "give the same command again" in err
    first = RunFolder(store.root / states["fedavg"].id)
    before = {path: path.stat().st_mtime_ns for path in first.path.rglob("*") if path.is_file()}

    done = invoke(*compare("--json"))
    assert done.exit_code == 0, done.stderr
    assert "Going on with 2 of 3 runs" in done.stderr
    assert [method["method"] for method in json.loads(done.stdout)["methods"]] == list(METHODS)
    assert {entry.method: entry.status for entry in store.entries()} == dict.fromkeys(METHODS, "finished")
    assert {entry.id for entry in store.entries()} >= {first.id, ended.id}
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert not list(store.root.glob("study-*"))

    whole = json.loads(invoke(*compare("--json", "--runs", "whole")).stdout)
    for entry in store.entries():
        (undisturbed,) = (each["folder"] for each in whole["methods"] if each["method"] == entry.method)
        pd.testing.assert_frame_equal(
            load_result(store.root / entry.id).metrics, load_result(place / undisturbed).metrics, check_exact=True
        )
    again = json.loads(invoke(*compare("--json")).stdout)  # all had finished: this is another comparison
    assert not {each["run"] for each in again["methods"]} & {entry.id for entry in store.entries()[3:]}


@pytest.mark.full
def test_a_method_that_fails_is_tried_again_and_no_other(
    place: Path, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from equifed import methods

    def fail(*given: Any) -> None:
        raise RuntimeError("no")

    with monkeypatch.context() as patched:
        patched.setattr(methods.LocalOnly, "init", fail)
        failed = invoke(*compare("--rounds", "2"))
    assert failed.exit_code == 4
    assert "1 of 3 methods failed: local. The same command tries again what failed, and nothing else." in failed.stderr
    kept = {entry.id for entry in Store("runs").entries() if entry.status == "finished"}
    done = json.loads(invoke(*compare("--rounds", "2", "--json")).stdout)
    assert kept < {each["run"] for each in done["methods"]}
    assert len(Store("runs").entries()) == 3


def test_a_sweep_that_is_interrupted_goes_on_by_the_same_command(
    place: Path, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ",".join(f"silo-{k}.csv" for k in range(4))
    words = ("sweep", "--data", files, "--label", "label", "--sensitive", "sex", "--method", "fedprox")
    words += ("--over", "mu=0,1", "--rounds", "3", "--seeds", "1", "--json")
    from equifed.store.folder import RunFolder as Folder

    write = Folder.write_checkpoint

    def interrupted(folder: Any, number: int, *given: Any) -> bytes:
        written = write(folder, number, *given)
        if number == 2:
            raise Stopped(signal.SIGHUP)
        return written

    with monkeypatch.context() as patched:
        patched.setattr(Folder, "write_checkpoint", interrupted)
        outcome = invoke(*words)
    assert outcome.exit_code == 128 + signal.SIGHUP, outcome.stderr
    (entry,) = Store("runs").entries()
    assert f"Interrupted after round 2 of 3. Continue with: equifed resume {entry.id}" in outcome.stderr
    done = invoke(*words)
    assert json.loads(done.stdout)["run"] == entry.id
    assert f"Run {entry.id} continues after round 2 of 3." in done.stderr
    assert len(Store("runs").entries()) == 1


SENT = """
import os, signal, sys
from equifed.signals import Stopped, end_on_signals
if sys.argv[1] == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
with end_on_signals((signal.SIGTERM, signal.SIGHUP)):
    try:
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
        print("went on")
    except Stopped as stopped:
        os.kill(os.getpid(), signal.SIGTERM)  # an impatient second one
        print(stopped)
        raise
"""


@pytest.mark.parametrize(
    ("how", "name", "said", "code"),
    [
        ("plain", "SIGTERM", "ended by SIGTERM", 143),
        ("plain", "SIGHUP", "ended by SIGHUP", 129),
        ("nohup", "SIGHUP", "went on", 0),
        ("nohup", "SIGTERM", "ended by SIGTERM", 143),
    ],
)
def test_signals_end_a_program_through_its_with_statements_and_nohup_is_kept(
    start: Callable[..., subprocess.Popen[str]], how: str, name: str, said: str, code: int
) -> None:
    out, err = (process := start(SENT, how, name)).communicate(timeout=WAIT)
    assert (out.strip(), process.returncode, err) == (said, code, "")


def test_exit_codes_are_those_of_a_shell() -> None:
    assert [exit_code(each) for each in (KeyboardInterrupt(), Stopped(signal.SIGTERM))] == [130, 143]


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with end_on_signals():
        assert signal.getsignal(signal.SIGTERM) is not before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.full
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_single_run_says_how_to_go_on(place: Path, spawn: Callable[..., subprocess.Popen[str]], name: str) -> None:
    number = getattr(signal, name)
    config = write_config(place, run={"rounds": 60, "seeds": [1]})
    process = spawn(str(int(number)), "10", "run", str(config), program=STOPPED)
    _, err = process.communicate(timeout=WAIT)
    (entry,) = Store(place / "runs").entries()
    assert process.returncode == 128 + number
    assert f"Continue with: equifed resume {entry.id}" in err
    assert entry.status == "interrupted"


@pytest.mark.full
def test_the_workers_of_a_compare_end_with_it(place: Path, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    pytest.importorskip("ray")
    process = spawn(str(int(signal.SIGTERM)), "3", *compare("--workers", "2"), program=STOPPED)
    _, err = process.communicate(timeout=WAIT)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "Give the same command again" in err
    for environ in Path("/proc").glob("[0-9]*/cwd"):
        try:
            cwd = os.readlink(environ)
        except OSError:
            continue
        assert int(environ.parent.name) == os.getpid() or cwd != str(place)
