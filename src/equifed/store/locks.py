"""Lock files that the system releases when their holder ends, however it ends."""

from __future__ import annotations

from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout


def lock_at(path: Path) -> BaseFileLock:
    """A lock of this process, whichever thread takes and releases it."""
    return FileLock(path, thread_local=False)


def take(lock: BaseFileLock) -> bool:
    """Whether the lock, free until now, is ours now."""
    if lock.is_locked:
        return False
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    return True


def is_held(lock: BaseFileLock) -> bool:
    """Whether a living process, this one included, holds the lock."""
    if lock.is_locked or not Path(lock.lock_file).exists():
        return lock.is_locked
    free = take(lock)
    lock.release()
    return not free
