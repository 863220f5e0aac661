"""Atomic writing of files (a reader sees either the old or the new content), and checksums that detect changes."""

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
"""Name of a file while it is written."""
SEAL = "blake2"
"""Key of a sealed file's checksum."""
MOST_JSON = 2**28
"""Largest size of a JSON file that is read, in bytes."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk or quota."""


# -- folders and permissions -------------------------------------------------------------------------------------------


def cache_home() -> Path:
    """Return the folder for derived files, which can be deleted at any time: $EQUIFED_CACHE, or
    ~/.cache/equifed-derived. It is not in the default data home, which holds only downloads."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "equifed-derived"
    return Path(os.environ.get("EQUIFED_CACHE") or usual).expanduser()


def find_write_problem(folder: Path) -> str:
    """Return why a file cannot be created in the folder, or "". Creates a missing folder."""
    try:
        if folder.is_file():
            return "it is a file"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def check_writable(folder: Path, remedy: str) -> None:
    """Raise a ConfigError, which ends with `remedy`, if a file cannot be created in the folder."""
    if why := find_write_problem(folder):
        raise ConfigError(f"Cannot write to the folder {folder} ({why}). {remedy}")


def make_private_folder(folder: Path) -> None:
    """Create the folder and its missing parents with access for their user only."""
    for each in (*reversed(folder.parents), folder):
        if not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)


def refuse_link(path: Path) -> None:
    """Raise a DiskError for a link where files are written or removed: its target belongs to something else."""
    if path.is_symlink():
        raise DiskError(
            f"{path} is a link, to {clean(os.readlink(path))}, and links are not followed where files are written or "
            "removed. Replace the link by its target, or remove it."
        )


@contextmanager
def private_umask() -> Iterator[None]:
    """Create all files and folders inside with access for their user only."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


# -- reading and writing -----------------------------------------------------------------------------------------------


def open_regular(path: Path) -> BufferedReader:
    """Open an ordinary file; raise an OSError for anything else, such as an endless device or a pipe without a
    writer."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "Not an ordinary file", str(path))
    return open(path, "rb")


def read_regular(path: Path, most: int | None = None) -> bytes:
    """Return the content of an ordinary file; raise an OSError if it has more than `most` bytes."""
    with open_regular(path) as file:
        content = file.read() if most is None else file.read(most + 1)
    if most is not None and len(content) > most:
        raise OSError(errno.EFBIG, f"Larger than {most / 2**20:.0f} MiB", str(path))
    return content


def write_atomic(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write to a temporary file, flush it to the disk, and rename it to `path` in one step. The umask applies to
    `mode`."""
    temporary = path.with_name(f".{path.name[:60]}.{secrets.token_hex(6)}")
    with _explain_errors(path, len(content)):
        try:
            _write(temporary, content, os.O_CREAT | os.O_EXCL, mode, flush=True)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    sync_folder(path.parent)


def clear_temporaries(folder: Path) -> None:
    """Remove temporary files that a killed `write_atomic` has left. Only for a process that is the only writer in the
    folder."""
    for path in folder.iterdir():
        if TEMPORARY.fullmatch(path.name) and not path.is_dir():  # `write_atomic` creates no folders
            os.unlink(path)


def write(path: Path, content: bytes) -> None:
    """Write in place, without flushing: for a file that is valid only when another file names it."""
    with _explain_errors(path, len(content)):
        _write(path, content, os.O_CREAT | os.O_TRUNC)


def append(path: Path, content: bytes) -> None:
    """Append to a file, without flushing."""
    with _explain_errors(path, len(content)):
        _write(path, content, os.O_CREAT | os.O_APPEND)


def sync(path: Path) -> None:
    """Flush a file to the disk."""
    with _explain_errors(path, 0):
        _write(path, b"", 0, flush=True)


def sync_folder(path: Path) -> None:
    """Flush a folder's directory entries to the disk, if the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _write(path: Path, content: bytes, flags: int, mode: int = 0o666, flush: bool = False) -> None:
    """Write to a file; refuse a link."""
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
def _explain_errors(path: Path, size: int) -> Iterator[None]:
    """Raise a DiskError for an OSError inside: it names the file and, on a full disk, the missing bytes."""
    try:
        yield
    except OSError as error:
        raise DiskError(f"{path} could not be written: {describe_os_error(error, path.parent, size)}") from error


def describe_os_error(error: OSError, folder: Path, size: int = 0) -> str:
    """Return why writing `size` bytes to the folder failed, in sentences."""
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
    """Return a hash object, BLAKE2b with 256 bits (`b2sum -l 256`)."""
    return hashlib.blake2b(content, digest_size=32)


def checksum(content: bytes) -> str:
    """Return the checksum of bytes."""
    digest: str = blake2(content).hexdigest()
    return digest


def checksum_of(path: Path) -> str:
    """Return the checksum of a file, which may be large."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, blake2).hexdigest()


def write_sealed(path: Path, value: dict[str, Any], mode: int = 0o666) -> None:
    """Write JSON with a checksum inside: for a file that changes independently of others."""
    write_atomic(path, _seal(path.name, value), mode)


def read_sealed(path: Path) -> dict[str, Any]:
    """Return what `write_sealed` has written under this name; raise a ValueError if any bit has changed."""
    content = read_regular(path, MOST_JSON)
    try:
        value = json.loads(content)
        del value[SEAL]
        if _seal(path.name, value) == content:
            return dict(value)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ValueError("it does not fit its checksum")


def _seal(name: str, value: dict[str, Any]) -> bytes:
    return to_json(value | {SEAL: checksum(name.encode() + to_json(value))})


# -- JSON --------------------------------------------------------------------------------------------------------------


def to_json(value: Any) -> bytes:
    """Return the value as the text of a JSON file."""
    return (json.dumps(plain(value), indent=2) + "\n").encode()


def plain(value: Any) -> Any:
    """Return the value in JSON's types. NaN and the infinities, which JSON lacks, become text that float() reads."""
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
