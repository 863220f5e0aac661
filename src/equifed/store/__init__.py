"""Runs on disk: a folder for each, finding them, and resuming a run where it stopped."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock

from equifed import modules
from equifed.config import Config, build, identity
from equifed.errors import ConfigError, DataError, EquifedWarning, RunError, blaming
from equifed.files import check_writable, refuse_link
from equifed.simulation import Training
from equifed.simulator import Job
from equifed.store.environment import environment, federations_of, fingerprint, sources
from equifed.store.folder import FEDERATION, STATUS, Entry, Recording, RunFolder, not_begun
from equifed.store.locks import take
from equifed.store.package import load_model
from equifed.store.results import load_result, save_result
from equifed.tracking import Callbacks, get_callbacks
from equifed.words import clean

__all__ = [
    "Entry",
    "Recording",
    "RunFolder",
    "Store",
    "load_model",
    "load_result",
    "read_entries",
    "save_result",
    "trackers",
]

ID = re.compile(r"\d{8}-\d{6}-[a-z0-9-]+-[0-9a-f]{4}")
"""What `Store.new_id` makes."""
SECOND = re.compile(r"\d{8}-\d{6}")
"""The time at which an id was made, with which it begins."""
LOCK = "index.lock"
"""Held while a run's folder is made. Versions of equifed that kept an index of the runs take the same lock."""


def trackers(config: Config, track: Sequence[str] | None = None) -> Callbacks:
    """The trackers of a run; `track`: in place of those that its configuration names."""
    with blaming(source=config.source, section="run", key="track"):
        return get_callbacks(config.run.track, received=True) if track is None else get_callbacks(track)


class Store:
    """The runs under one folder: `runs/` in the current one, $EQUIFED_RUNS, or the folder given."""

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root = Path(root or os.environ.get("EQUIFED_RUNS") or "runs")

    def prepare(self) -> None:
        """Make the folder of the runs, refusing one that cannot be written to before anything is computed."""
        check_writable(self.root, "Name a folder for runs with --runs or $EQUIFED_RUNS.")

    def start(
        self,
        config: Config,
        simulation: Training | None = None,
        id: str | None = None,
        callbacks: Callbacks | None = None,
    ) -> Recording:
        """A new run in a folder of its own; `simulation`, `id` and `callbacks` where they are there already."""
        self.prepare()
        callbacks = trackers(config) if callbacks is None else callbacks
        simulation = simulation or build(config)
        with self._held():
            self._clear()
            folder = RunFolder.create(self.root / (id or self.new_id(config)), config, simulation)
        return Recording(folder, config, simulation, callbacks)

    def resume(
        self,
        reference: str,
        check: Callable[[Training], object] | None = None,
        make: Callable[[Config], Training] = build,
        callbacks: Callbacks | None = None,
        track: Sequence[str] | None = None,
    ) -> Recording:
        """The run from its last checkpoint on; what `check` refuses stays as it is. make: its training, from its
        configuration. callbacks: where they are there already; track: in place of the trackers that it names. A
        finished run whose result is damaged is resumed, too: finishing writes the result again."""
        folder = self.find(reference)
        if folder.is_finished():
            raise RunError(f"Run {folder.id} has already finished.")
        if make is build and (folder.path / FEDERATION).is_file():
            raise RunError(f"Run {folder.id} is a federation's, whose silos are elsewhere. Use: {folder.resuming()}")
        if not take(folder.lock):
            raise RunError(f"Run {folder.id} is being run by another process.")
        try:
            config = folder.config()
            callbacks = trackers(config, track) if callbacks is None else callbacks
            simulation = self._same(folder, config, make(config))
            if check is not None:
                check(simulation)
            recording = Recording(folder, config, simulation, callbacks)
            recording.restore()
            folder.set_status("running")
        except BaseException:
            folder.lock.release()
            raise
        return recording

    def find(self, reference: str) -> RunFolder:
        """By id, by a prefix that only one id has, by the run's own name, "latest", or its folder's path."""
        if not reference.strip():
            raise ConfigError('Which run? Give its id or the beginning of it, its name, its folder, or "latest".')
        path = Path(reference)
        if os.path.isfile(path / STATUS):  # no error for a name that no file can have
            return RunFolder(path)
        ids = self._ids()
        if not ids:
            raise ConfigError(f"There are no runs in {self.root}. Start one with `equifed run` or `equifed compare`.")
        matching = self._matching(reference, ids)
        if len(matching) == 1:
            return RunFolder(self.root / matching[0])
        shown = ", ".join((matching or [folder.id for folder in self.folders()] or ids)[:5])
        if matching:
            more = f" and {len(matching) - 5} more (equifed list)" if len(matching) > 5 else ""
            raise ConfigError(f"{len(matching)} runs are called {reference!r}: {shown}{more}. Write more of the id.")
        raise ConfigError(f"There is no run {reference!r} in {self.root}. The latest: {shown}.")

    def same(self, config: Config, job: Job) -> RunFolder | None:
        """The newest run of this configuration on these rows by these versions, finished or interrupted."""
        rows, versions = fingerprint(federations_of(config, job)), environment(job)
        frozen, code = modules.fingerprint(job.task.module), sources(config)
        for folder in self.folders():
            with _warning_of(folder):
                if (
                    folder.status()["status"] in ("finished", "interrupted")
                    and (settings := folder.settings())["method"]["name"] == config.method.name
                    and identity(settings) == identity(config.resolved(folder.path))
                    and folder.record("data.json")["fingerprint"] == rows
                    and folder.record("data.json").get("frozen", "") == frozen
                    and folder.record("data.json").get("code", {}) == code
                    and folder.record("environment.json") == versions
                ):
                    return folder
        return None

    def folders(self) -> list[RunFolder]:
        """All runs, newest first; one that does not say when it began is warned of and left out."""
        created = {}
        for id in self._ids():
            folder = RunFolder(self.root / id)
            with _warning_of(folder):
                created[folder] = folder.created
        return sorted(created, key=lambda folder: (created[folder], folder.id), reverse=True)

    def entries(self) -> list[Entry]:
        """All runs, newest first."""
        return list(read_entries(self.folders()))

    def _ids(self) -> list[str]:
        """The names of the runs' folders, from the last to the first. No file in them is read."""
        try:
            if self.root.is_file():
                raise NotADirectoryError(0, "it is a file")
            names = os.listdir(self.root) if self.root.exists() else []
        except OSError as error:
            raise ConfigError(
                f"{clean(self.root)} is not a readable folder of runs ({error.strerror or error}). "
                "Name another with --runs or $EQUIFED_RUNS."
            ) from None
        return sorted((name for name in names if os.path.isfile(self.root / name / STATUS)), reverse=True)

    def _matching(self, reference: str, ids: Sequence[str]) -> list[str]:
        """The runs that may be meant; where an id says enough, no file of any run is read."""
        if reference == "latest":
            return [folder.id for folder in self.folders()[:1]]
        if reference in ids:
            return [reference]
        begun = [id for id in ids if id.startswith(reference)]
        return begun if len(begun) == 1 and SECOND.match(reference) else self._named(reference, ids) or begun

    def _named(self, name: str, ids: Sequence[str]) -> list[str]:
        """The runs whose configuration gives them this name."""
        named = []
        for id in ids:
            folder = RunFolder(self.root / id)
            with _warning_of(folder):
                if folder.settings()["run"]["name"] == name:
                    named.append(id)
        return named

    @contextmanager
    def _held(self) -> Iterator[None]:
        """While no other process of equifed adds a run."""
        path = self.root / LOCK
        refuse_link(path)
        with FileLock(path):
            yield

    def _clear(self) -> None:
        """Remove the folders of runs whose process was killed before they were one. For a process that holds `LOCK`."""
        for path in self.root.iterdir():
            if ID.fullmatch(path.name) and path.is_dir() and not_begun(path):
                shutil.rmtree(path, ignore_errors=True)

    def new_id(self, config: Config) -> str:
        """A name for a new run's folder."""
        method = re.sub(r"[^a-z0-9-]", "-", config.method.name.lower())
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        return f"{stamp}-{method}-{secrets.token_hex(2)}"

    @staticmethod
    def _same(folder: RunFolder, config: Config, simulation: Training) -> Training:
        """The run's training, refused when its data are others than they were."""
        then = folder.record("data.json")
        if fingerprint(federations_of(config, simulation.job)) != then["fingerprint"]:
            raise DataError(
                f"The data of run {folder.id} have changed since it started (other rows, or other rows per client), "
                "so it cannot be continued. Put the files back, or start again: "
                f"equifed run {folder.path}/config.toml"
            )
        if modules.fingerprint(simulation.job.task.module) != then.get("frozen", ""):
            raise DataError(
                f"What is frozen in the model of run {folder.id} has other values than when it started, so it cannot "
                f"be continued. Put them back, or start again: equifed run {folder.path}/config.toml"
            )
        before, now = folder.record("environment.json"), environment(simulation.job)
        changed = [name for name, value in now.items() if name != "commit" and before.get(name) != value]
        if changed:
            differences = ", ".join(f"{name} {before.get(name)} -> {now[name]}" for name in changed)
            warnings.warn(
                f"Run {folder.id} started in another environment ({differences}): the last bits may differ.",
                EquifedWarning,
                stacklevel=3,
            )
        return simulation


def read_entries(folders: Iterable[RunFolder]) -> Iterator[Entry]:
    """Yield the entry of each run that can be read; one that cannot is warned of, so that it does not hide the
    others."""
    for folder in folders:
        with _warning_of(folder):
            yield folder.entry()


@contextmanager
def _warning_of(folder: RunFolder) -> Iterator[None]:
    """Turn an error in reading one run's folder into a warning."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, RunError) as error:
        warnings.warn(f"Run folder {folder.id} cannot be read ({error}).", EquifedWarning, stacklevel=2)
