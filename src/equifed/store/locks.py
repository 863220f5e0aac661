"""Lock files that the system releases when their holder ends, however it ends."""

from __future__ import annotations

from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from equifed.errors import DiskError
from equifed.files import describe_os_error, refuse_link


def lock_at(path: Path) -> BaseFileLock:
    """A lock of this process, whichever thread takes and releases it."""
    return FileLock(path, thread_local=False)


def take(lock: BaseFileLock) -> bool:
    """Whether the lock, free until now, is ours now."""
    if lock.is_locked:
        return False
    refuse_link(Path(lock.lock_file))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    except OSError as error:
        path = Path(lock.lock_file)
        raise DiskError(
            f"{path} could not be locked: {describe_os_error(error, path.parent)} If it is anything but an ordinary "
            "file, remove it: it holds nothing."
        ) from error
    return True


def is_held(lock: BaseFileLock) -> bool:
    """Whether a living process, this one included, holds the lock."""
    if lock.is_locked or not Path(lock.lock_file).exists():
        return lock.is_locked
    try:
        free = take(lock)
    except OSError:  # nothing can be written here
        return _is_held_by_another(Path(lock.lock_file))
    lock.release()
    return not free


def _is_held_by_another(path: Path) -> bool:
    """Without the right to write, by which `filelock` opens it."""
    try:
        import fcntl

        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return False
    return False
