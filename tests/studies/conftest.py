"""Programs that share work out by Ray, and what is left of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from store.silos import write_silos

WAIT = 600
"""Seconds; only a program that hangs takes so long."""
PROGRAM = """import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
from equifed.cli import main
main()
"""
TESTS = Path(__file__).parent.parent


def find_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let programs and workers that are started from now on find what the tests name, and not be patient with others:
    Ray lets workers give way to everything else, which on a busy machine takes minutes."""
    monkeypatch.setenv("RAY_worker_niceness", "0")
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(TESTS), *before])))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with silo files, whose programs and Ray workers find the tests' own tracker."""
    monkeypatch.chdir(tmp_path)
    for name in ("EQUIFED_RUNS", "EQUIFED_DEBUG", "EQUIFED_TRACK", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    find_tests(monkeypatch)
    write_silos(tmp_path)
    return tmp_path


@pytest.fixture
def spawn(place: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """spawn(*arguments) is a command in a session of its own, as in a terminal: a signal can be sent to all of it."""
    started: list[subprocess.Popen[str]] = []

    def equifed(*arguments: str) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [sys.executable, "-c", PROGRAM, *arguments]
        started.append(
            subprocess.Popen(command, cwd=place, env=_environment(), text=True, start_new_session=True, **pipes)
        )
        return started[-1]

    yield equifed
    for process in started:
        with process:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "160"}


@contextlib.contextmanager
def nodes(*each: dict[str, Any]) -> Iterator[Any]:
    """Ray's own test cluster: every node is a few processes of this machine. They see the environment of now."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        for resources in each:
            cluster.add_node(object_store_memory=80 * 2**20, include_dashboard=False, **resources)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def descendants(pid: int) -> set[int]:
    """The processes that a living one has started, and those that they have."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    found, todo = set(), [pid]
    while todo:
        new = children.get(todo.pop(), [])
        found.update(new)
        todo += new
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill_with_workers(process: subprocess.Popen[str]) -> None:
    """kill -9, and wait until the workers have noticed, which takes a while on a busy machine: until then they write.
    `test_deaths.py` has the case where the next command begins before."""
    below = descendants(process.pid)
    process.kill()
    process.wait(WAIT)
    until(lambda: not any(map(is_alive, below)))


def until(condition: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Wait for it, and no longer than a program that is to bring it about lives."""
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "it never came about"
        if process is not None and process.poll() is not None:
            raise AssertionError(f"the program ended: {process.communicate()}")
        time.sleep(0.05)
