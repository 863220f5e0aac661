"""Runs on disk: a folder for each, an index of them, and resuming a run where it stopped."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from equifed import modules
from equifed.config import Config, build, identity
from equifed.errors import ConfigError, DataError, EquifedWarning, RunError, blaming
from equifed.files import writable_folder
from equifed.simulation import Training
from equifed.simulator import Job
from equifed.store.environment import environment, federations_of, fingerprint, sources
from equifed.store.folder import FEDERATION, Entry, Recording, RunFolder, not_begun
from equifed.store.index import Index
from equifed.store.locks import take
from equifed.store.package import load_model
from equifed.store.results import load_result, save_result
from equifed.tracking import Callbacks, get_callbacks

__all__ = ["Entry", "Recording", "RunFolder", "Store", "load_model", "load_result", "save_result", "trackers"]

ID = re.compile(r"\d{8}-\d{6}-[a-z0-9-]+-[0-9a-f]{4}")
"""What `Store.new_id` makes."""


def trackers(config: Config, track: Sequence[str] | None = None) -> Callbacks:
    """The trackers of a run; `track`: in place of those that its configuration names."""
    with blaming(source=config.source, section="run", key="track"):
        return get_callbacks(config.run.track, received=True) if track is None else get_callbacks(track)


class Store:
    """The runs under one folder: `runs/` in the current one, $EQUIFED_RUNS, or the folder given."""

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root = Path(root or os.environ.get("EQUIFED_RUNS") or "runs")
        self.index = Index(self.root)

    def prepare(self) -> None:
        """Make the folder of the runs, refusing one that cannot be written to before anything is computed."""
        writable_folder(self.root, "Name a folder for runs with --runs or $EQUIFED_RUNS.")

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
        with self.index.held():
            self._clear()
            folder = RunFolder.create(self.root / (id or self.new_id(config)), config, simulation)
        self.index.put(folder.entry())
        return Recording(folder, config, simulation, self.index.put, callbacks)

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
            index = Index(folder.path.parent)  # not ours when the run was named by its path
            simulation = self._same(folder, config, make(config))
            if check is not None:
                check(simulation)
            recording = Recording(folder, config, simulation, index.put, callbacks)
            recording.restore()
            folder.set_status("running")
            index.put(folder.entry())
        except BaseException:
            folder.lock.release()
            raise
        return recording

    def find(self, reference: str) -> RunFolder:
        """By id, by a prefix that only one id has, by the run's own name, "latest", or its folder's path."""
        if not reference.strip():
            raise ConfigError('Which run? Give its id or the beginning of it, its name, its folder, or "latest".')
        path = Path(reference)
        if os.path.isfile(path / "status.json"):  # no error for a name that no file can have
            return RunFolder(path)
        entries = self.index.entries()
        if not entries:
            raise ConfigError(f"There are no runs in {self.root}. Start one with `equifed run` or `equifed compare`.")
        if reference == "latest":
            return self._folder(entries[0])
        exact = [entry for entry in entries if reference in (entry.id, entry.name)]
        matching = exact or [entry for entry in entries if entry.id.startswith(reference)]
        if len(matching) == 1:
            return self._folder(matching[0])
        shown = ", ".join(entry.id for entry in (matching or entries)[:5])
        if matching:
            more = f" and {len(matching) - 5} more (equifed list)" if len(matching) > 5 else ""
            raise ConfigError(f"{len(matching)} runs are called {reference!r}: {shown}{more}. Write more of the id.")
        raise ConfigError(f"There is no run {reference!r} in {self.root}. The latest: {shown}.")

    def same(self, config: Config, job: Job) -> RunFolder | None:
        """The newest run of this configuration on these rows by these versions, finished or interrupted."""
        rows, versions = fingerprint(federations_of(config, job)), environment(job)
        frozen, code = modules.fingerprint(job.task.module), sources(config)
        for entry in self.entries():
            folder = self._folder(entry)
            if entry.method != config.method.name or entry.status not in ("finished", "interrupted"):
                continue
            try:
                if (
                    identity(folder.settings()) == identity(config.resolved(folder.path))
                    and folder.record("data.json")["fingerprint"] == rows
                    and folder.record("data.json").get("frozen", "") == frozen
                    and folder.record("data.json").get("code", {}) == code
                    and folder.record("environment.json") == versions
                ):
                    return folder
            except RunError as error:
                warnings.warn(f"Run {folder.id} is not used: {error}", EquifedWarning, stacklevel=2)
        return None

    def entries(self) -> list[Entry]:
        """All runs, newest first."""
        return self.index.entries()

    def _folder(self, entry: Entry) -> RunFolder:
        return RunFolder(self.root / entry.folder)

    def _clear(self) -> None:
        """Remove the folders of runs whose process was killed before they were one. For who holds the index."""
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
