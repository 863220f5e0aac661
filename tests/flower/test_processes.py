"""Programs that do not want to end, and their descendants."""

from __future__ import annotations

import os
import signal
import stat
import time
from pathlib import Path

import pytest

from equifed.errors import RunError
from equifed.flower.deployment import processes
from equifed.flower.deployment.processes import Processes

STUBBORN = "trap '' TERM; setsid sh -c \"trap '' TERM; sleep 1000\" & echo up; sleep 1000"
"""Deaf to SIGTERM, with a grandchild in another session."""
POLITE = "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.05; done"

pytestmark = pytest.mark.skipif(not processes.SHOWN, reason="the system does not show the environment of processes")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(processes, "GRACE", 0.3)


def wait_for(what, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return (Path(f"/proc/{pid}/stat")).read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def run(programs: Processes, name: str, script: str) -> None:
    programs.start(name, ["sh", "-c", script], {}, programs.logs.parent)


def test_nothing_survives_not_even_the_deaf_in_another_session(tmp_path):
    with Processes(tmp_path / "logs") as programs:
        run(programs, "stubborn", STUBBORN)
        run(programs, "polite", "sleep 1000")
        wait_for(lambda: len(programs.alive()) >= 5)
        before = programs.alive()
    assert programs.alive() == set()
    assert not [pid for pid in before if alive(pid)]


def test_what_programs_write_is_for_their_user_alone(tmp_path):
    before = os.umask(0o022)
    try:
        with Processes(tmp_path / "own" / "logs") as programs:
            run(programs, "writer", "touch replies.db; mkdir home")
            assert programs.wait("writer", 300) == 0
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"own": 0o700, "logs": 0o700, "writer.log": 0o600, "replies.db": 0o600, "home": 0o700}


def test_nothing_survives_an_error(tmp_path):
    before: set[int] = set()

    def fail() -> None:
        with Processes(tmp_path / "logs") as programs:
            run(programs, "stubborn", STUBBORN)
            wait_for(lambda: len(programs.alive()) >= 4)
            before.update(programs.alive())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert before
    assert not [pid for pid in before if alive(pid)]


def test_one_is_killed_with_its_descendants_and_the_others_live(tmp_path):
    with Processes(tmp_path / "logs") as programs:
        run(programs, "silo", STUBBORN)
        run(programs, "polite", POLITE)
        run(programs, "silo-2", "sleep 1000")
        wait_for(lambda: len(programs.alive("silo")) >= 4 and b"up" in programs.log("polite").read_bytes())
        for name in ("silo", "polite"):
            programs.kill(name)
            assert programs.alive(name) == set()
            # a shell whose child was killed first may end with that before its own turn comes
            assert programs.ended(name) in (-signal.SIGKILL, 128 + signal.SIGKILL)
        assert "asked" not in programs.log("polite").read_text()
        assert programs.alive("silo-2")
        run(programs, "silo", "sleep 1000")
        assert programs.alive("silo")


def test_a_program_that_ends_when_asked_is_not_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "GRACE", 300.0)
    with Processes(tmp_path / "logs") as programs:
        run(programs, "polite", POLITE)
        wait_for(lambda: b"up" in programs.log("polite").read_bytes())
    assert programs.log("polite").read_text().splitlines()[-1] == "asked"
    assert programs.ended("polite") == 0


def test_the_tail_is_of_the_last_start_and_without_colours(tmp_path):
    with Processes(tmp_path / "logs") as programs:
        for word in ("first", "\033[92msecond\033[0m"):
            run(programs, "talker", f"printf '{word}\\n'")
            assert programs.wait("talker", 300) == 0
        assert programs.tail("talker").splitlines()[1:] == ["  second"]
        assert "first" in programs.log("talker").read_text()
        run(programs, "talker", "sleep 1000")
        with pytest.raises(RunError, match="talker did not end in 0 s"):
            programs.wait("talker", 0.1)


PROGRAM = """
import sys, time
from pathlib import Path
from equifed.flower.deployment import processes
from equifed.signals import end_on_signals
processes.GRACE = 0.3
with end_on_signals(), processes.Processes(Path(sys.argv[1])) as programs:
    programs.start("stubborn", ["sh", "-c", sys.argv[2]], {}, Path(sys.argv[1]))
    while len(found := programs.alive()) < 4:
        time.sleep(0.05)
    print(*found, flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_survives_a_signal(tmp_path, start, number):
    process = start(PROGRAM, str(tmp_path), STUBBORN)
    started = [int(pid) for pid in process.stdout.readline().split()]
    assert len(started) >= 4
    process.send_signal(number)
    process.send_signal(number)  # impatience changes nothing
    process.communicate(timeout=300)
    assert process.returncode != 0
    if number != signal.SIGINT:
        assert process.returncode == 128 + number
    assert not [pid for pid in started if alive(pid)]
