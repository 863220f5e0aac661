"""Programs that run beside this one, none of which outlives it.

Flower's programs start others, some in sessions of their own. All of them inherit an environment variable, by which
they are found where the system shows it (Linux); elsewhere process groups have to do, and Flower's own programs end
soon after the one that started them.
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
"""Seconds between asking a program to end and ending it."""
PAUSE = 0.05
COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
SHOWN = Path("/proc/self/environ").exists()
"""Whether the system shows the environment of processes."""


class Processes:
    """Named programs with a log file each; use it in a `with`, and only there."""

    def __init__(self, logs: Path, mark: str | None = None) -> None:
        """mark: by which the programs are known; one that is given again finds those that were left by a kill."""
        self.logs = logs
        self._mark = mark or secrets.token_hex(8)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._begins: dict[str, int] = {}

    def start(self, name: str, command: Sequence[str | Path], env: Mapping[str, str], cwd: Path) -> None:
        """In a session of its own, so that a Ctrl-C reaches only us, who then end it in order. What it writes is for
        its user alone: the SuperLink's database holds every silo's replies."""
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
        """The exit status of a program that has ended."""
        return self._running[name].poll()

    def wait(self, name: str, seconds: float) -> int:
        try:
            return self._running[name].wait(seconds)
        except subprocess.TimeoutExpired:
            raise RunError(f"{name} did not end in {seconds:.0f} s.\n{self.tail(name)}") from None

    def tail(self, name: str, lines: int = 15) -> str:
        """The end of what a program has logged since it was last started, for a message."""
        logged = COLOURS.sub(b"", self.log(name).read_bytes()[self._begins[name] :]).decode(errors="replace")
        return "\n  ".join([f"The end of {self.log(name)}:", *logged.splitlines()[-lines:]])

    def alive(self, *names: str) -> set[int]:
        """The programs of these names, or all, and everything that they have started."""
        meant = [process for name, process in self._running.items() if not names or name in names]
        return {process.pid for process in meant if process.poll() is None} | _marked(self._mark, names)

    def kill(self, name: str) -> None:
        """As a crash would: at once, with everything it has started."""
        self._end(0, name)

    def stop(self) -> None:
        """End everything: ask, wait a little, then make it."""
        # an impatient second Ctrl-C must not leave half of the programs behind
        with set_handlers(dict.fromkeys(ENDING, signal.SIG_IGN)):
            self._end(GRACE)

    def _end(self, grace: float, *names: str) -> None:
        deadline = time.monotonic() + grace
        asked: set[int] = set()
        while alive := self.alive(*names):
            late = time.monotonic() >= deadline
            for pid in alive if late else alive - asked:
                # to this one where all are known, since Flower takes a second request for impatience; else to its group
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    (os.kill if SHOWN else os.killpg)(pid, signal.SIGKILL if late else signal.SIGTERM)
            asked |= alive
            time.sleep(PAUSE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def _marked(mark: str, names: Collection[str]) -> set[int]:
    """Everybody's descendants, by what their environment says; a zombie has none."""
    markers = [f"\0{MARK}={mark}/{name}\0".encode() for name in names] or [f"\0{MARK}={mark}/".encode()]
    processes = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has just ended, or is somebody else's
            variables = b"\0" + entry.read_bytes() + b"\0"
            if any(marker in variables for marker in markers):
                processes.add(int(entry.parent.name))
    return processes
