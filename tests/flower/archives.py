"""What is in a silo's bundle, as its owner unpacks it."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: Path, where: Path) -> Path:
    """As `tar -xzf` does; the silo's folder."""
    where.mkdir()
    with tarfile.open(archive) as packed:
        packed.extractall(where, filter="tar")
    (folder,) = where.iterdir()
    return folder


def everything(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as packed:
        return {entry.name: packed.extractfile(entry).read() if entry.isfile() else b"" for entry in packed}
