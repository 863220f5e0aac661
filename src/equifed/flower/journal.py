"""The journal of a run with secure sums: the outcome of every exchange since the last checkpoint, one file each.

A silo helps to unmask an exchange only once. So whenever the server is killed, the resumed run must have the sum
already, be able to send the identical request again, or know that no silo has unmasked anything:

    asked    before the first message is sent: the attempt's number. A resumed run makes the next attempt
    masked   before the silos are asked to unmask: the masked replies. A resumed run sends the same request again
    done     the sum; the silos used, the silos that refused, and the reasons. A resumed run uses it as it is

A file is replaced atomically by its successor, and all are removed once a checkpoint covers them. Each begins with the
checksum of its name and content.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from equifed.errors import RunError
from equifed.files import (
    checksum,
    clear_temporaries,
    make_private_folder,
    read_regular,
    refuse_link,
    sync_folder,
    write_atomic,
)

NAME = re.compile(r"\d{10}\.sum")
"""Pattern of its files' names."""
CHECKSUM = len(checksum(b""))


class JournalEntry(NamedTuple):
    """The journal's record of an exchange."""

    stage: str
    """One of "asked", "masked" and "done"."""
    facts: dict[str, Any]
    """Facts as JSON types."""
    arrays: dict[str, np.ndarray]


class Journal:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        refuse_link(folder)
        if folder.is_dir():
            clear_temporaries(folder)

    def read(self, number: int) -> JournalEntry | None:
        """Return the record of an exchange; None if it has not begun."""
        path = self._file(number)
        if not path.exists():
            return None
        try:
            stored = read_regular(path)
            digest, content = stored[:CHECKSUM], stored[CHECKSUM:]
            if digest != self._checksum(path, content):
                raise ValueError("it does not fit its checksum")
            head, arrays = content.split(b"\n", 1)
            stage, facts = json.loads(head)
            return JournalEntry(stage, facts, load(arrays))
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise RunError(
                f"{path} is damaged ({error}), so the run cannot go on. Put back a copy, or start a new run."
            ) from None

    def write(self, number: int, stage: str, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Write the record of an exchange and flush it to the disk."""
        make_private_folder(self.folder)
        path = self._file(number)
        head = json.dumps([stage, dict(facts)]).encode()
        content = head + b"\n" + save({name: np.asarray(values, order="C") for name, values in arrays.items()})
        write_atomic(path, self._checksum(path, content) + content, mode=0o600)

    def forget(self, before: int | None = None) -> None:
        """Remove the records that a checkpoint covers: exchanges numbered below `before`, or all."""
        if not self.folder.is_dir():
            return
        files = list(self.folder.iterdir())
        covered = [path for path in files if NAME.fullmatch(path.name) and (before is None or int(path.stem) < before)]
        for path in covered:
            os.unlink(path)
        if len(covered) == len(files):
            os.rmdir(self.folder)
            sync_folder(self.folder.parent)

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:010d}.sum"

    @staticmethod
    def _checksum(path: Path, content: bytes) -> bytes:
        return checksum(path.name.encode() + content).encode()
