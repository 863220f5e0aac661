"""What all tests share: where the real data lies, and small federations."""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import typer.testing
from hypothesis import HealthCheck, settings

import equifed as ef
from equifed.data import get_dataset
from equifed.data.download import fetch_files
from equifed.metrics import evidence

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
if "EQUIFED_DATA" not in os.environ and BESIDE.is_dir():
    os.environ["EQUIFED_DATA"] = str(BESIDE)


# The same examples in every run, however busy the machine: a failure is a failure of the change at hand.
settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

# Intervals that are only shown need no fine quantiles; the tests of the intervals themselves take what users get.
evidence.TABLES = 800

# What a loss of power leaves is tested on a disk that forgets (store/faults.py): waiting for a real one tells nothing.
os.fsync = lambda handle: None

# A process builds its command line once. typer's runner would for every command that a test calls, a tenth of a second.
typer.testing._get_command = functools.cache(typer.testing._get_command)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is loaded before the first test stays: looking through it for garbage, again and again, takes long."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


HEARING = """import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
"""
"""A suite started in the background (`nohup make test &`) ignores these signals, and its children would too."""


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """start(program, *arguments) runs Python code in a process with pipes for its output; none outlives its test."""
    started = []

    def popen(program: str, *arguments: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HEARING + program, *arguments]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, cwd=cwd, env=environment, text=True, **pipes))
        return started[-1]

    yield popen
    for process in started:
        with process:  # closes its pipes and waits for it
            process.kill()


@functools.cache
def lacking(name: str) -> str:
    """Why a data set is not to be had here, from the data home or any other source; empty if it is."""
    try:
        fetch_files(get_dataset(name).files, None)
    except ef.DataError as error:
        return f"{name} is not to be had here: {str(error).splitlines()[0]}"
    return ""


@pytest.fixture(scope="session")
def needs() -> Callable[[str], None]:
    """needs(name) fetches a data set, or skips the test with the reason."""

    def check(name: str) -> None:
        if lacking(name):
            pytest.skip(lacking(name))

    return check


def rows(rng: np.random.Generator, n: int, groups: int = 2, features: int = 4) -> tuple[np.ndarray, ...]:
    """Labels that depend on the features and, unfairly, on the group."""
    x = rng.normal(size=(n, features)).astype(np.float32)
    s = rng.integers(0, groups, n)
    y = (x[:, 0] - x[:, 1] + 0.8 * s + 0.5 * rng.normal(size=n) > 0.4).astype(int)
    return x, y, s


@pytest.fixture(scope="session")
def uneven() -> ef.Federation:
    return make_uneven()


def make_uneven() -> ef.Federation:
    """Clients as unlike as they come: many rows, few, one, none, one group only, no positive label."""
    rng = np.random.default_rng(7)
    clients = [rows(rng, n) for n in (41, 17, 60, 1, 0, 33, 24, 9)]
    x, y, s = rows(rng, 20)
    clients += [(x, y, np.ones_like(s)), (x, np.zeros_like(y), s)]
    return ef.Federation.from_arrays(
        clients,
        validation=rows(rng, 80),
        test=rows(rng, 120),
        client_tests=[rows(rng, 12) for _ in clients],
        ids=[f"silo-{i}" for i in range(len(clients))],
        client_groups=[i % 3 for i in range(len(clients))],
    )
