"""Writing in one step, and lock files."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from equifed.files import unwritable, write_atomic
from equifed.store.locks import is_held, lock_at, take


def test_a_crash_while_writing_leaves_the_old_file_and_no_scrap(tmp_path: Path, monkeypatch) -> None:
    target = tmp_path / "thing.csv"
    write_atomic(target, b"old")

    def crash(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(target, b"new")
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["thing.csv"]


def test_others_may_read_what_the_umask_lets_them_and_nothing_private(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "shared", b"")
        write_atomic(tmp_path / "private", b"", mode=0o600)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"shared": 0o640, "private": 0o600}


def test_a_long_name_can_be_written(tmp_path: Path) -> None:
    write_atomic(tmp_path / ("x" * 250), b"content")
    assert (tmp_path / ("x" * 250)).read_bytes() == b"content"


def test_why_a_folder_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert unwritable(tmp_path / "file") == "it is a file"
    assert unwritable(tmp_path / "file" / "below") == "Not a directory"
    assert unwritable(tmp_path / "new" / "folder") == ""


def test_a_lock_is_taken_once(tmp_path: Path) -> None:
    one, other = lock_at(tmp_path / "lock"), lock_at(tmp_path / "lock")
    assert not is_held(one)
    assert take(one)
    assert not take(one)
    assert not take(other)
    assert is_held(one)
    assert is_held(other)
    one.release()
    assert not is_held(other)
    assert take(other)
    other.release()


def test_a_lock_ends_with_its_holder_however_that_ends(tmp_path: Path) -> None:
    code = (
        "import sys, filelock as f; lock = f.FileLock(sys.argv[1]); lock.acquire(); print('held', flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            lock = lock_at(tmp_path / "lock")
            assert is_held(lock)
            assert not take(lock)
        finally:
            holder.kill()
    assert not is_held(lock)
    assert take(lock)
    lock.release()
