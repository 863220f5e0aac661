"""A pytest plugin: no program that a test has started outlives the session, not even one that ends by kill -9.

A small process waits for the end of the session's and then ends what is left, Flower's and Ray's programs above all,
which start others in sessions of their own. All inherit an environment variable, by which they are found where the
system shows it (Linux).
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys

import pytest

MARK = "EQUIFED_TESTS"
PROGRAM = """
import os, signal, sys, time
from pathlib import Path

sys.stdin.read()  # comes to its end with the process that holds the other end of the pipe, however that ends
mark = sys.argv[1].encode()
for attempt in range(100):
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\\0"):
                found.append(int(path.parent.name))
        except OSError:  # another user's, or it has just ended
            pass
    if not found:
        break
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    time.sleep(0.05)
"""


def pytest_configure(config: pytest.Config) -> None:
    mark = secrets.token_hex(8)
    unmarked = {
        name: value for name, value in os.environ.items() if name != MARK
    }  # a session may have started this one
    guard = subprocess.Popen(
        [sys.executable, "-SEc", PROGRAM, f"{MARK}={mark}"],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, env=unmarked,
    )  # fmt: skip
    os.environ[MARK] = mark
    config.add_cleanup(guard.communicate)
