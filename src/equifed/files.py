"""Files written so that a reader sees either the old or the new content, whatever happens in between."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from equifed.errors import ConfigError


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


def write_atomic(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write beside the file, flush to the disk, and put it in the file's place in one step. The umask applies to
    `mode`."""
    temporary = path.with_name(f".{path.name[:60]}.{secrets.token_hex(6)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(temporary, flags, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
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
