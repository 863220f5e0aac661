"""Files written so that a reader sees either the old or the new content, whatever happens in between, and checksums by
which a reader knows them again."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from equifed.errors import ConfigError, DiskError
from equifed.words import clean

TEMPORARY = re.compile(r"\..{1,60}\.[0-9a-f]{12}", re.DOTALL)
"""What a file is called while it is written."""
SEAL = "blake2"
"""The key of a sealed file's checksum."""
MOST_JSON = 2**28
"""Bytes of a JSON file that is read."""
FULL = (errno.ENOSPC, errno.EDQUOT)


# -- where one can write -----------------------------------------------------------------------------------------------


def cache_home() -> Path:
    """Return the folder for what is derived from other files and can be deleted at any time: $EQUIFED_CACHE, or
    ~/.cache/equifed-derived. It is not in the default data home, into which only downloads are written."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "equifed-derived"
    return Path(os.environ.get("EQUIFED_CACHE") or usual).expanduser()


def unwritable(folder: Path) -> str:
    """Why no file can be made in the folder, which is made first where it is missing; empty if one can."""
    try:
        if folder.is_file():
            return "it is a file"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def writable_folder(folder: Path, otherwise: str) -> None:
    """Refuse a folder in which no file can be made; `otherwise` says what to do."""
    if why := unwritable(folder):
        raise ConfigError(f"Cannot write to the folder {folder} ({why}). {otherwise}")


def private_folder(folder: Path) -> None:
    """Make the folder and those above it that are missing, for their user alone."""
    for each in (*reversed(folder.parents), folder):
        if not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)


def refuse_link(path: Path) -> None:
    """Refuse a link in a place where files are written or removed: those that it leads to belong to something else."""
    if path.is_symlink():
        raise DiskError(
            f"{path} is a link, to {clean(os.readlink(path))}, and links are not followed where files are written or "
            "removed. Put there what it leads to, or remove it."
        )


@contextmanager
def private() -> Iterator[None]:
    """All files and folders that the process makes inside are for their user alone."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


# -- writing -----------------------------------------------------------------------------------------------------------


def open_regular(path: Path) -> BufferedReader:
    """An ordinary file; an OSError for anything else, such as a device that never ends or a pipe that nobody writes
    to."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "Not an ordinary file", str(path))
    return open(path, "rb")


def read_regular(path: Path, most: int | None = None) -> bytes:
    """The content of an ordinary file, of at most so many bytes."""
    with open_regular(path) as file:
        content = file.read() if most is None else file.read(most + 1)
    if most is not None and len(content) > most:
        raise OSError(errno.EFBIG, f"Larger than {most / 2**20:.0f} MiB", str(path))
    return content


def write_atomic(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write beside the file, flush to the disk, and put it in the file's place in one step. The umask applies to
    `mode`."""
    temporary = path.with_name(f".{path.name[:60]}.{secrets.token_hex(6)}")
    with _explained(path, len(content)):
        try:
            _write(temporary, content, os.O_CREAT | os.O_EXCL, mode, flush=True)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    sync_folder(path.parent)


def clear_temporaries(folder: Path) -> None:
    """Remove what `write_atomic` has left where its process was killed. Only for a process that alone writes in the
    folder."""
    for path in folder.iterdir():
        if TEMPORARY.fullmatch(path.name) and not path.is_dir():  # a folder is not of its making
            os.unlink(path)


def write(path: Path, content: bytes) -> None:
    """Write in place, without flushing: for a file that counts only once another one names it."""
    with _explained(path, len(content)):
        _write(path, content, os.O_CREAT | os.O_TRUNC)


def append(path: Path, content: bytes) -> None:
    """Add to the end, without flushing."""
    with _explained(path, len(content)):
        _write(path, content, os.O_CREAT | os.O_APPEND)


def sync(path: Path) -> None:
    """Flush a file to the disk."""
    with _explained(path, 0):
        _write(path, b"", 0, flush=True)


def sync_folder(path: Path) -> None:
    """Flush a folder's list of names to the disk, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _write(path: Path, content: bytes, flags: int, mode: int = 0o666, flush: bool = False) -> None:
    """Write to a file, but not through a link."""
    handle = os.open(path, os.O_WRONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | flags, mode)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(handle, rest) :]
        if flush:
            os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _explained(path: Path, size: int) -> Iterator[None]:
    """An error of the disk says which file it was about and, on a full disk, how much is missing."""
    try:
        yield
    except OSError as error:
        raise DiskError(f"{path} could not be written: {why_not(error, path.parent, size)}") from error


def why_not(error: OSError, folder: Path, size: int = 0) -> str:
    """Why nothing could be written to the folder, in sentences; size: bytes that were to be written."""
    if error.errno == errno.ELOOP:
        return "it is a link, and links are not followed here."
    if error.errno not in FULL:
        return f"{error.strerror or error}."
    text = "the disk is full." if error.errno == errno.ENOSPC else "the quota of the disk is used up."
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return text
    needed = f"{size:,} bytes are needed, " if size else ""
    if size > free:
        return f"{text} {needed}{free:,} are free: {size - free:,} are missing."
    other = ", so a quota or the number of files is at its limit" if size and error.errno == errno.ENOSPC else ""
    return f"{text} {needed}{free:,} bytes are free{other}."


# -- checksums ---------------------------------------------------------------------------------------------------------


def blake2(content: bytes = b"") -> Any:
    """A running checksum, BLAKE2b of 256 bits (`b2sum -l 256`)."""
    return hashlib.blake2b(content, digest_size=32)


def checksum(content: bytes) -> str:
    digest: str = blake2(content).hexdigest()
    return digest


def checksum_of(path: Path) -> str:
    """Of a file that may be large."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, blake2).hexdigest()


def write_sealed(path: Path, value: dict[str, Any], mode: int = 0o666) -> None:
    """As JSON that carries its own checksum: for a file that changes by itself."""
    write_atomic(path, _sealed(path.name, value), mode)


def read_sealed(path: Path) -> dict[str, Any]:
    """What `write_sealed` has written under this name; a ValueError if a single bit of the file is another."""
    content = read_regular(path, MOST_JSON)
    try:
        value = json.loads(content)
        del value[SEAL]
        if _sealed(path.name, value) == content:
            return dict(value)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ValueError("it does not fit its checksum")


def _sealed(name: str, value: dict[str, Any]) -> bytes:
    return to_json(value | {SEAL: checksum(name.encode() + to_json(value))})


# -- JSON --------------------------------------------------------------------------------------------------------------


def to_json(value: Any) -> bytes:
    """The text of a file."""
    return (json.dumps(plain(value), indent=2) + "\n").encode()


def plain(value: Any) -> Any:
    """The value in JSON's own types. NaN and the infinities, which JSON lacks, become text that float() reads."""
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
