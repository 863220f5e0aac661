"""The list of runs as an sqlite file. The folders are the truth; the index can be made from them at any time."""

from __future__ import annotations

import json
import sqlite3
import warnings
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from filelock import FileLock

from equifed.errors import ConfigError, EquifedWarning, RunError
from equifed.store.folder import Entry, RunFolder

T = TypeVar("T")

TABLE = """create table if not exists runs (
    id text primary key, created text, name text, method text, data text, status text,
    rounds integer, seeds integer, metrics text, folder text)"""


class Index:
    """Every access holds a lock file, so that processes take turns, also while one of them rebuilds the index."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "index.sqlite"

    def put(self, entry: Entry) -> None:
        self._with(lambda db: _put(db, [entry]), new=entry.id)

    def entries(self) -> list[Entry]:
        """All runs, newest first; folders that were added or removed by hand are noticed.

        Reading creates no file where there are no runs, and works where nothing may be written.
        """

        def read(db: sqlite3.Connection) -> list[Entry]:
            known = {row[0] for row in db.execute("select id from runs")}
            folders = {folder.id: folder for folder in self._folders()}
            _put(db, _readable(folders[name] for name in folders.keys() - known))
            db.executemany("delete from runs where id = ?", [(name,) for name in known - folders.keys()])
            rows = db.execute("select * from runs order by created desc, id desc").fetchall()
            entries = [entry._replace(metrics=json.loads(str(entry.metrics))) for entry in map(Entry._make, rows)]
            # a run that was killed could not record it
            return [
                entry._replace(status=folders[entry.id].status()["status"]) if entry.status == "running" else entry
                for entry in entries
            ]

        try:
            if not self.root.is_dir():
                if not self.root.exists():
                    return []
                raise NotADirectoryError(0, "it is a file")
            if not self.path.exists() and not self._folders():
                return []
        except OSError as error:
            raise ConfigError(
                f"{self.root} is not a readable folder of runs ({error.strerror or error}). "
                "Name another with --runs or $EQUIFED_RUNS."
            ) from None
        try:
            return self._with(read)
        except OSError:  # the index cannot be written; the folders hold the same
            return sorted(_readable(self._folders()), key=lambda entry: (entry.created, entry.id), reverse=True)

    def _folders(self) -> list[RunFolder]:
        return [RunFolder(path.parent) for path in sorted(self.root.glob("*/status.json"))]

    def _with(self, action: Callable[[sqlite3.Connection], T], new: str = "") -> T:
        """Do it, on a new index where the old one is missing or damaged; `new` is a folder just made."""
        self.root.mkdir(parents=True, exist_ok=True)
        with FileLock(self.root / "index.lock"):
            folders = self._folders()
            wrong = "missing" if not self.path.exists() and any(folder.id != new for folder in folders) else ""
            try:
                if not wrong:
                    return self._transaction(action)
            except sqlite3.DatabaseError as error:
                wrong = f"damaged ({error})"
            for name in ("index.sqlite", "index.sqlite-journal"):
                (self.root / name).unlink(missing_ok=True)
            self._transaction(lambda db: _put(db, _readable(folders)))
            warnings.warn(
                f"The index of {self.root} was {wrong}; it was rebuilt from {len(folders)} run folders.",
                EquifedWarning,
                stacklevel=2,
            )
            return self._transaction(action)

    def _transaction(self, action: Callable[[sqlite3.Connection], T]) -> T:
        with closing(sqlite3.connect(self.path, timeout=30)) as db, db:
            db.execute(TABLE)
            return action(db)


def _put(db: sqlite3.Connection, entries: Iterable[Entry]) -> None:
    rows = [tuple(json.dumps(value) if isinstance(value, dict) else value for value in entry) for entry in entries]
    db.executemany("insert or replace into runs values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)


def _readable(folders: Iterable[RunFolder]) -> list[Entry]:
    """The entries of the folders that can be read; one that cannot must not hide the others."""
    entries = []
    for folder in folders:
        try:
            entries.append(folder.entry())
        except (OSError, ValueError, KeyError, RunError) as error:
            warnings.warn(f"Run folder {folder.id} cannot be read ({error}).", EquifedWarning, stacklevel=2)
    return entries
