"""SUMS.json: the checksums of a folder's files, so that nothing that a disk has changed is taken for what was written.

A file that is written once is in it. Files that change by themselves (status.json, federation.json, SUMS.json) carry
their own checksum. While a run goes on, the checkpoint vouches for rounds.jsonl, whose lines vouch for the scores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
from pyarrow import ArrowException

from equifed.errors import DataError, RunError
from equifed.federation.reading import Kind, check_parquet
from equifed.files import MOST_JSON, checksum, checksum_of, read_regular, read_sealed, write_atomic, write_sealed
from equifed.words import clean

SUMS = "SUMS.json"
CHANGED = "is damaged: its content is not what was written"


class Sums(dict[str, str]):
    """BLAKE2 of files by their names in the folder."""

    def __init__(self, folder: Path, remedy: str = "") -> None:
        """remedy: said where a file is damaged, what can be done."""
        super().__init__()
        self.folder, self.remedy = folder, remedy

    @classmethod
    def load(cls, folder: Path, remedy: str) -> Sums:
        sums = cls(folder, remedy)
        if not (folder / SUMS).is_file():
            raise RunError(
                f"{folder} has no {SUMS}, so its files cannot be checked: an older version of equifed made them, or it "
                f"was removed. {remedy}"
            )
        try:
            sums.update(read_sealed(folder / SUMS)["files"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise sums.damaged(SUMS, f"is damaged: {error}") from None
        return sums

    def save(self) -> None:
        write_sealed(self.folder / SUMS, {"files": dict(sorted(self.items()))})

    def write(self, name: str, content: bytes) -> None:
        write_atomic(self.folder / name, content)
        self[name] = checksum(content)

    def read(self, name: str, most: int | None = None) -> bytes:
        """The file as it was written, of at most so many bytes."""
        try:
            content = read_regular(self.folder / name, most)
        except OSError as error:
            raise self.damaged(name, _unreadable(error)) from None
        if checksum(content) != self.get(name):
            raise self.damaged(name, CHANGED)
        return content

    def read_json(self, name: str) -> Any:
        """What a JSON file as it was written holds."""
        try:
            return json.loads(self.read(name, MOST_JSON))
        except (ValueError, RecursionError) as error:
            raise self.damaged(name, f"cannot be read as JSON ({clean(error)})") from None

    def read_parquet(self, name: str, columns: Mapping[str, Kind]) -> pd.DataFrame:
        """A table as it was written, with these columns; nothing is read of one that would fill the memory."""
        content = self.read(name)
        try:
            check_parquet(content, name, columns)
            return pd.read_parquet(BytesIO(content))
        except DataError as error:
            raise self.damaged(name, f"cannot be used: {': '.join(filter(None, (error.place, error.text)))}") from None
        except (ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            raise self.damaged(name, f"cannot be read as Parquet ({clean(error)})") from None

    def wrong(self) -> dict[str, str]:
        """Every file that is not as it was written, and why."""
        found = {}
        for name, digest in self.items():
            try:
                if checksum_of(self.folder / name) != digest:
                    found[name] = CHANGED
            except OSError as error:
                found[name] = _unreadable(error)
        return found

    def damaged(self, name: str, why: str) -> RunError:
        return RunError(f"{self.folder / name} {why}. {self.remedy}")


def _unreadable(error: OSError) -> str:
    return "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror or error})"
