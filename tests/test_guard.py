"""What the suite's own parts promise: no program outlives it, a test gets the data that it asks for and no others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import conftest

TESTS = Path(__file__).resolve().parent
WAIT = 300.0
"""Seconds; only what hangs takes so long."""
LEAVING = """
import subprocess, time
from pathlib import Path

def test_that_leaves_a_program_in_a_session_of_its_own():
    program = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path("pid.new").write_text(str(program.pid))
    Path("pid.new").rename("pid")
    while {stays}:
        time.sleep(0.02)
"""
ASKING = """
import equifed as ef

def test_that_asks(needs):
    needs("german")
    assert ef.load("german").num_clients == 5

def test_that_forgets_to_ask():
    ef.load("german")
"""


LACKING = """
def test_where_data_may_lack(needs, monkeypatch):
    monkeypatch.delenv("EQUIFED_MUST_HAVE_DATA", raising=False)
    needs("german")

def test_where_data_must_be_there(needs, monkeypatch):
    monkeypatch.setenv("EQUIFED_MUST_HAVE_DATA", "1")
    needs("german")
"""


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def suite(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """suite(content, *options, **environment) runs a suite of one file with the conftest of this one."""
    started = []

    def begin(content: str, *options: str, **environment: str) -> subprocess.Popen[str]:
        (tmp_path / "conftest.py").write_text(Path(conftest.__file__).read_text())
        (tmp_path / "test_some.py").write_text(content)
        # no address and no package index can be reached
        shut = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "PIP_NO_INDEX": "1"}
        paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **shut, **environment}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rfs", "test_some.py", *options]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        environment = {"COLUMNS": "200", **environment}
        started.append(subprocess.Popen(command, cwd=tmp_path, env=env, text=True, **pipes))
        return started[-1]

    yield begin
    for process in started:
        with process:
            process.kill()


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the system does not show who started a program")
@pytest.mark.parametrize("stays", [True, pytest.param(False, marks=pytest.mark.full)], ids=["killed", "ended"])
def test_no_program_outlives_the_suite(
    suite: Callable[..., subprocess.Popen[str]], tmp_path: Path, stays: bool
) -> None:
    session = suite(LEAVING.format(stays=stays))
    until((tmp_path / "pid").exists)
    left = int((tmp_path / "pid").read_text())
    if stays:
        assert is_alive(left)
        session.kill()
    session.communicate(timeout=WAIT)
    until(lambda: not is_alive(left))


@pytest.mark.full
def test_a_test_gets_the_data_that_it_asks_for_and_no_others(
    suite: Callable[..., subprocess.Popen[str]], needs: Callable[[str], Path]
) -> None:
    real = (needs("german") / "german").resolve().parent
    said, _ = suite(ASKING, EQUIFED_DATA=str(real)).communicate(timeout=WAIT)
    assert "1 failed, 1 passed" in said
    assert "FAILED test_some.py::test_that_forgets_to_ask - equifed.errors.DataError" in said
    assert "ask-with-needs" in said


@pytest.mark.parametrize("workers", ["2", pytest.param("0", marks=pytest.mark.full)])
@pytest.mark.full
def test_without_data_and_network_tests_are_skipped_with_the_reason_or_fail_where_data_must_be_there(
    suite: Callable[..., subprocess.Popen[str]], tmp_path: Path, workers: str
) -> None:
    """With and without pytest-xdist."""
    said, _ = suite(LACKING, "-n", workers, EQUIFED_DATA=str(tmp_path / "nothing")).communicate(timeout=WAIT)
    assert "1 failed, 1 skipped" in said
    assert len(re.findall("german is not to be had here: german.data is not in the data home", said)) >= 2
    assert "FAILED test_some.py::test_where_data_must_be_there" in said


def test_a_source_that_took_long_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the data sets of a whole session: both are at UCI."""
    asked: list[str] = []
    clock = [0.0]

    def slow(address: str, *folder: Path) -> bytes:
        asked.append(address)
        clock[0] += 2 * conftest.PATIENCE
        raise OSError("no answer")

    monkeypatch.setattr(conftest, "REAL", tmp_path / "home")
    for name in ("download", "pip_download"):
        monkeypatch.setattr(conftest, name, slow)
    monkeypatch.setattr(conftest.time, "monotonic", lambda: clock[0])
    assert "german.data is not in the data home" in conftest.why_lacking("german", tmp_path)
    assert [address for address in asked if "archive.ics.uci.edu" in address]
    asked.clear()
    assert "drug_consumption.data is not in the data home" in conftest.why_lacking("drug", tmp_path)
    assert not [address for address in asked if "archive.ics.uci.edu" in address]
