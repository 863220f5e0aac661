"""Child programs that do not outlive this one.

Flower's programs start others, some in new sessions. All inherit an environment variable by which they are found if
the system shows it (Linux). Elsewhere process groups are used, and Flower's programs end soon after their parent.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from equifed.errors import RunError
from equifed.files import make_private_folder
from equifed.signals import ENDING, set_handlers

MARK = "EQUIFED_PROCESSES"
GRACE = 5.0
"""Seconds between asking a program to end and killing it."""
PAUSE = 0.05
COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
SHOWN = Path("/proc/self/environ").exists()
"""True if the system shows the environment of processes."""


class Processes:
    """Named programs with a log file each, to be used in a `with` statement only."""

    def __init__(self, logs: Path, mark: str | None = None) -> None:
        """mark: identifies the programs; reuse it to find those that a killed process left behind."""
        self.logs = logs
        self._mark = mark or secrets.token_hex(8)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._begins: dict[str, int] = {}

    def start(self, name: str, command: Sequence[str | Path], env: Mapping[str, str], cwd: Path) -> None:
        """Start a program in a new session, so that a Ctrl-C reaches only this process, which then ends it in order.
        Its files are for its user only, because the SuperLink's database holds every silo's replies."""
        make_private_folder(self.logs)
        with open(self.log(name), "ab", opener=partial(os.open, mode=0o600)) as log:
            self._begins[name] = log.tell()
            self._running[name] = subprocess.Popen(
                [str(part) for part in command],
                cwd=cwd,
                env={**os.environ, **env, MARK: f"{self._mark}/{name}"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0o077,
            )

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def ended(self, name: str) -> int | None:
        """Return the exit status of a program, None if it is running."""
        return self._running[name].poll()

    def wait(self, name: str, seconds: float) -> int:
        try:
            return self._running[name].wait(seconds)
        except subprocess.TimeoutExpired:
            raise RunError(f"{name} did not end in {seconds:.0f} s.\n{self.tail(name)}") from None

    def tail(self, name: str, lines: int = 15) -> str:
        """Return the last lines that a program has logged since its last start, for a message."""
        logged = COLOURS.sub(b"", self.log(name).read_bytes()[self._begins[name] :]).decode(errors="replace")
        return "\n  ".join([f"The end of {self.log(name)}:", *logged.splitlines()[-lines:]])

    def alive(self, *names: str) -> set[int]:
        """Return the ids of the running programs of these names, or of all, with their descendants."""
        meant = [process for name, process in self._running.items() if not names or name in names]
        return {process.pid for process in meant if process.poll() is None} | _find_marked(self._mark, names)

    def kill(self, name: str) -> None:
        """Kill a program and its descendants at once, as a crash would."""
        self._end(0, name)

    def stop(self) -> None:
        """End all programs: ask, wait for `GRACE` seconds, then kill."""
        # an impatient second Ctrl-C must not leave half of the programs behind
        with set_handlers(dict.fromkeys(ENDING, signal.SIG_IGN)):
            self._end(GRACE)

    def _end(self, grace: float, *names: str) -> None:
        deadline = time.monotonic() + grace
        asked: set[int] = set()
        while alive := self.alive(*names):
            late = time.monotonic() >= deadline
            for pid in alive if late else alive - asked:
                # to the process if all are found, because a second request makes Flower abort; else to its group
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    (os.kill if SHOWN else os.killpg)(pid, signal.SIGKILL if late else signal.SIGTERM)
            asked |= alive
            time.sleep(PAUSE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def _find_marked(mark: str, names: Collection[str]) -> set[int]:
    """Return the ids of all processes with this mark in their environment (a zombie has none)."""
    markers = [f"\0{MARK}={mark}/{name}\0".encode() for name in names] or [f"\0{MARK}={mark}/".encode()]
    processes = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            variables = b"\0" + entry.read_bytes() + b"\0"
            if any(marker in variables for marker in markers):
                processes.add(int(entry.parent.name))
    return processes
