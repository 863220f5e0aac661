"""The list of runs as an sqlite file. The folders are the truth; the index can be made from them at any time."""

from __future__ import annotations

import errno
import json
import sqlite3
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from filelock import FileLock

from equifed.errors import ConfigError, DiskError, EquifedWarning, RunError
from equifed.files import checksum, describe_os_error, refuse_link
from equifed.store.folder import Entry, RunFolder
from equifed.words import clean

T = TypeVar("T")
METRICS = Entry._fields.index("metrics")

TABLE = """create table if not exists runs (
    id text primary key, created text, name text, method text, data text, status text,
    rounds integer, seeds integer, metrics text, folder text, seal text)"""
"""seal: the checksum of the rest of the row."""
DISK = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
"""Errors that are not the index's fault, so that making it anew would not help."""


class Index:
    """Every access holds a lock file, so that processes take turns, also while one of them rebuilds the index."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "index.sqlite"

    def put(self, entry: Entry) -> None:
        """A disk that does not take it ends no run: the folder itself is enough to be found."""
        try:
            self._with(lambda db: _put(db, [entry]), new=entry.id)
        except OSError as error:
            warnings.warn(f"The list of runs is not up to date: {error}", EquifedWarning, stacklevel=2)

    def entries(self) -> list[Entry]:
        """All runs, newest first; folders that were added or removed by hand are noticed.

        Reading creates no file where there are no runs, and works where nothing may be written.
        """

        def read(db: sqlite3.Connection) -> list[Entry]:
            known = {row[0] for row in db.execute("select id from runs")}
            folders = {folder.id: folder for folder in self._folders()}
            _put(db, _readable(folders[name] for name in folders.keys() - known))
            db.executemany("delete from runs where id = ?", [(name,) for name in known - folders.keys()])
            rows = db.execute("select * from runs").fetchall()
            if any(seal != _seal(row) for *row, seal in rows):
                raise sqlite3.DatabaseError("a row does not fit its checksum")
            entries = [Entry._make(row)._replace(metrics=json.loads(row[METRICS])) for *row, _ in rows]
            if any(entry.folder != entry.id for entry in entries):
                raise sqlite3.DatabaseError("a row leads to another run's folder")
            # a run that was killed, or whose end the disk did not take, could not record it
            unsure = [entry.id for entry in entries if entry.status == "running"]
            now = _readable(folders[name] for name in unsure)
            return _newest_first([*now, *(entry for entry in entries if entry.id not in unsure)])

        try:
            if not self.root.is_dir():
                if not self.root.exists():
                    return []
                raise NotADirectoryError(0, "it is a file")
            if not self.path.exists() and not self._folders():
                return []
        except OSError as error:
            raise ConfigError(
                f"{clean(self.root)} is not a readable folder of runs ({error.strerror or error}). "
                "Name another with --runs or $EQUIFED_RUNS."
            ) from None
        try:
            return self._with(read)
        except OSError:  # the index cannot be written; the folders hold the same
            return _newest_first(_readable(self._folders()))

    @contextmanager
    def held(self) -> Iterator[None]:
        """While no other process of equifed adds a run."""
        path = self.root / "index.lock"
        refuse_link(path)
        with FileLock(path):
            yield

    def _folders(self) -> list[RunFolder]:
        return [RunFolder(path.parent) for path in sorted(self.root.glob("*/status.json"))]

    def _with(self, action: Callable[[sqlite3.Connection], T], new: str = "") -> T:
        """Do it, on a new index where the old one is missing or damaged; `new` is a folder just made."""
        self.root.mkdir(parents=True, exist_ok=True)
        with self.held():
            folders = self._folders()
            wrong = "missing" if not self.path.exists() and any(folder.id != new for folder in folders) else ""
            if self.path.is_symlink():  # a database that is not ours to change
                wrong = "a link"
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
        try:
            with closing(sqlite3.connect(self.path, timeout=30)) as db, db:
                db.execute(TABLE)
                return action(db)
        except sqlite3.OperationalError as error:
            code = getattr(error, "sqlite_errorcode", 0)
            kind = code & 0xFF  # the low byte of an extended code
            if kind not in DISK or code == sqlite3.SQLITE_IOERR_SHORT_READ:
                raise
            cause = OSError(errno.ENOSPC if kind == sqlite3.SQLITE_FULL else 0, str(error))
            raise DiskError(f"{self.path} could not be written: {describe_os_error(cause, self.root)}") from error


def _put(db: sqlite3.Connection, entries: Iterable[Entry]) -> None:
    rows = [[json.dumps(value) if isinstance(value, dict) else value for value in entry] for entry in entries]
    places = ", ".join("?" * (len(Entry._fields) + 1))
    db.executemany(f"insert or replace into runs values ({places})", [[*row, _seal(row)] for row in rows])


def _seal(row: Sequence[object]) -> str:
    return checksum(json.dumps(row, default=repr).encode())


def _newest_first(entries: list[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: (entry.created, entry.id), reverse=True)


def _readable(folders: Iterable[RunFolder]) -> list[Entry]:
    """The entries of the folders that can be read; one that cannot must not hide the others."""
    entries = []
    for folder in folders:
        try:
            entries.append(folder.entry())
        except (OSError, ValueError, KeyError, TypeError, RunError) as error:
            warnings.warn(f"Run folder {folder.id} cannot be read ({error}).", EquifedWarning, stacklevel=2)
    return entries
