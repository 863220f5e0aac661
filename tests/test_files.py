"""Writing in one step, and lock files."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from equifed.errors import DiskError
from equifed.files import checksum, checksum_of, find_write_problem, read_sealed, write_atomic, write_sealed
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
    assert find_write_problem(tmp_path / "file") == "it is a file"
    assert find_write_problem(tmp_path / "file" / "below") == "Not a directory"
    assert find_write_problem(tmp_path / "new" / "folder") == ""


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


def test_a_lock_is_seen_where_nothing_may_be_written(tmp_path: Path, monkeypatch) -> None:
    one, other = lock_at(tmp_path / "lock"), lock_at(tmp_path / "lock")
    assert take(one)

    def read_only(**values: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(other, "acquire", read_only)
    assert is_held(other)
    one.release()
    assert not is_held(other)


def test_a_sealed_file_is_taken_as_a_whole_and_under_its_name_only(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    value = {"status": "running", "share": 0.1, "none": None, "text": "ä"}
    write_sealed(path, value)
    assert read_sealed(path) == value
    content = path.read_bytes()
    for position in range(len(content)):
        for bit in range(8):
            path.write_bytes(content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :])
            with pytest.raises(ValueError, match="checksum"):
                read_sealed(path)
    for other in (b"", b"[]", b"null", b"[" * 100_000, content[:-1], content * 2):
        path.write_bytes(other)
        with pytest.raises(ValueError, match="checksum"):
            read_sealed(path)
    (tmp_path / "other.json").write_bytes(content)
    with pytest.raises(ValueError, match="checksum"):
        read_sealed(tmp_path / "other.json")


def test_the_checksum_is_that_of_b2sum(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc" * 1000)
    assert checksum(b"") == "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8"  # b2sum -l 256 /dev/null
    assert checksum_of(tmp_path / "file") == checksum(b"abc" * 1000)


@pytest.mark.parametrize(
    ("number", "size", "said"),
    [
        (errno.ENOSPC, 1500, "the disk is full. 1,500 bytes are needed, 1,000 are free: 500 are missing."),
        (errno.ENOSPC, 9, "1,000 bytes are free, so a quota or the number of files is at its limit."),
        (errno.EDQUOT, 9, "the quota of the disk is used up. 9 bytes are needed, 1,000 bytes are free."),
        (errno.EROFS, 9, "Read-only file system."),
    ],
)
def test_what_the_disk_lacks_is_said(tmp_path: Path, monkeypatch, number: int, size: int, said: str) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=1000))

    def refused(*args: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(DiskError) as error:
        write_atomic(tmp_path / "thing", bytes(size))
    assert str(error.value).startswith(f"{tmp_path / 'thing'} could not be written: ")
    assert str(error.value).endswith(said)
    assert not list(tmp_path.iterdir())


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
