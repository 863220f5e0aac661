"""Small files, written so that a reader sees either the old or the new content, whatever happens in between."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from equifed.errors import ConfigError

try:
    import fcntl
except ImportError:  # a system without file locks: then nothing stops two processes from taking one run
    fcntl = None  # type: ignore[assignment]


def writable_folder(folder: Path, otherwise: str) -> None:
    """Make the folder where it is missing, and try that files can be made in it; `otherwise` says what to do."""
    try:
        if folder.is_file():
            raise NotADirectoryError(0, "it is a file")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(f"Cannot write to the folder {folder} ({error.strerror or error}). {otherwise}") from None


def write_atomic(path: Path, content: bytes) -> None:
    """Write beside the file, flush to the disk, and put it in the file's place in one step."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file or folder to the disk, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(plain(value), indent=2) + "\n").encode())


def plain(value: Any) -> Any:
    """The value in JSON's own types. NaN and the infinities, which JSON lacks, become text that float() reads."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


class Lock:
    """A lock file that the system releases when its holder ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None

    def take(self, wait: bool = False) -> bool:
        """Whether the lock is now ours."""
        if fcntl is None:
            return True
        file = open(self.path, "a")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            file.close()
            return False
        self._file = file
        return True

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def held_elsewhere(self) -> bool:
        """Whether a living process holds it."""
        if not self.path.exists():
            return False
        if self.take():
            self.release()
            return False
        return True


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for the lock and hold it."""
    lock = Lock(path)
    lock.take(wait=True)
    try:
        yield
    finally:
        lock.release()
