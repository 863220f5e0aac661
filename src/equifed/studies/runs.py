"""Jobs that are configurations: each a run folder, which another process can go on with.

A study that is killed, or some of whose jobs fail, leaves `study-<hash>.json` in the folder of the runs: which of its
jobs has which folder. The same command finds it, and goes on. Once all jobs have succeeded it is removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from equifed.config import Config, build, load_federations
from equifed.errors import EquifedError, RunError
from equifed.federation import Federation
from equifed.files import MOST_JSON, read_regular, to_json, write_atomic
from equifed.settings import Cluster
from equifed.simulation import Training
from equifed.store import ID, Recording, RunFolder, Store, trackers
from equifed.store.environment import fingerprint, sources, versions
from equifed.store.locks import is_held, lock_at, take
from equifed.studies.jobs import Job, Load, Watch, carry_out

GONE = 120.0
"""Seconds within which a process that was killed lets go of its run."""


# -- blocks ------------------------------------------------------------------------------------------------------------


def blocks(config: Config) -> list[Config]:
    """The configuration cut into jobs: blocks of its seeds times blocks of its sweep's settings, in their order.

    Blocks follow from the configuration's `seeds_per_job` and `settings_per_job` alone, not from the number of workers.
    """
    cluster = config.cluster or Cluster()
    seeds = config.run.seed_list
    size = cluster.seeds_per_job or len(seeds)
    return [
        dataclasses.replace(config, run=dataclasses.replace(config.run, seeds=seeds[begin : begin + size]), sweep=over)
        for over in _cut(config.sweep, cluster.settings_per_job)
        for begin in range(0, len(seeds), size)
    ]


def _cut(over: Mapping[str, Sequence[float]], most: int | None) -> list[Mapping[str, Sequence[float]]]:
    """A grid cut into grids of at most so many settings, along the axis that has most values."""
    if most is None or math.prod(map(len, over.values())) <= most:
        return [over]
    longest = max(over, key=lambda name: len(over[name]))
    values = over[longest]
    others = math.prod(len(each) for name, each in over.items() if name != longest)
    size = max(1, most // others)
    parts = [{**over, longest: list(values[begin : begin + size])} for begin in range(0, len(values), size)]
    return [piece for part in parts for piece in _cut(part, most)]


# -- one job -----------------------------------------------------------------------------------------------------------


def opened(store: Store, config: Config, id: str, make: Callable[[Config], Training]) -> Recording | None:
    """The run with this id, new or from its last checkpoint on, followed by the trackers of this configuration, which
    may be others than it began with; None where it has finished. make: its training."""
    folder = RunFolder(store.root / id)
    until = time.monotonic() + GONE
    while is_held(folder.lock) and time.monotonic() < until:  # by a process that is about to die
        time.sleep(0.2)
    if not RunFolder.is_one(folder.path):
        return store.start(config, make(config), id)
    if folder.is_finished():
        return None
    return store.resume(str(folder.path), make=make, callbacks=trackers(config))


def train(federations: Sequence[Federation], config: Config, root: Path, id: str) -> None:
    """The work of a job: all rounds of a run, or those that are left."""
    own = [fed for fed in federations if fed.seed in config.run.seed_list]
    recording = opened(Store(root), config, id, lambda config: build(config, own))
    if recording is not None:
        with recording:
            for _ in recording.rounds():
                pass
            recording.finish()


def on_shared_folder(data: Any, record: Path, work: Callable[..., Any], *arguments: Any) -> Any:
    """The work, refused on a machine that does not see the folder of the runs, or has another one of this name."""
    if not record.is_file():
        raise RunError(
            f"The folder of the runs, {record.parent}, is not there on a machine that is to work on them. Name one "
            "with --runs that all nodes of the cluster share."
        )
    return work(data, *arguments)


def rounds_done(folder: RunFolder) -> int:
    with contextlib.suppress(EquifedError, OSError):
        return folder.rounds_done()
    return 0


# -- all of them -------------------------------------------------------------------------------------------------------


class Finished(NamedTuple):
    """A configuration whose run has ended."""

    position: int
    """Which of them."""
    folder: RunFolder
    error: str = ""
    """What went wrong; empty where nothing did."""


class Study:
    """Configurations, each a job with a run folder, in a store whose folder all workers see."""

    def __init__(
        self,
        configs: Sequence[Config],
        store: Store,
        cluster: Cluster,
        loaded: Mapping[Any, Sequence[Federation]] = {},
        name: str = "",
    ) -> None:
        """loaded: federations that are there already, by `data_key`. name: what tells this study from others where
        another attempt at it may have fewer configurations, because the results of some are kept elsewhere."""
        self.configs, self.cluster = configs, cluster
        self.store = Store(store.root.resolve())
        """By its full name: workers have working folders of their own."""
        self._loaded = loaded
        # code of one's own that has changed makes another job
        code = [json.dumps(sources(config)) for config in configs]
        self._fingerprints = [
            config.fingerprint(self.store.root) + hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
            for config, text in zip(configs, code, strict=True)
        ]
        # another version, or other rows, make another study: what was computed before must not become a part of it
        identity = [name or self._fingerprints, versions(), [fingerprint(feds) for feds in loaded.values()]]
        digest = hashlib.blake2b(json.dumps(identity).encode(), digest_size=8)
        self._record = self.store.root / f"study-{digest.hexdigest()}.json"
        self._known = self._recorded()
        self.before = sum(
            RunFolder.is_one(self.store.root / id)
            for each in dict.fromkeys(self._fingerprints)
            for id in self._known.get(each, ())
        )
        """Jobs that a process before this one had begun."""

    def going_on(self, noun: str = "jobs") -> str:
        """Return what to say where a process before this one had begun some of them, with the way to begin anew."""
        begun = f"Going on with {self.before} of {len(self.configs)} {noun}, which were begun before."
        return f"{begun} (To begin anew, remove {self._record}.)"

    def carry_out(self, watch: Watch = lambda states: None, train: Callable[..., Any] = train) -> Iterator[Finished]:
        """Each run as it ends. train: the work of a job, where that is more than training."""
        self.store.prepare()
        path = self._record.with_suffix(".lock")
        lock = lock_at(path)
        if not take(lock):
            raise RunError(
                "Another process is carrying out the same study. Wait for it, or name another folder with --runs."
            )
        failed = False
        try:
            for ended in self._ended(watch, train):
                failed |= bool(ended.error)
                yield ended
            if not failed:
                self._record.unlink(missing_ok=True)
        finally:
            path.unlink(missing_ok=True)
            lock.release()

    def _ended(self, watch: Watch, train: Callable[..., Any]) -> Iterator[Finished]:
        folders = [RunFolder(self.store.root / id) for id in self._ids()]
        jobs = [
            Job(
                _title(config),
                on_shared_folder,
                (self._record, train, config, self.store.root, folder.id),
                data_key(config),
                config.run.rounds,
                partial(rounds_done, folder),
            )
            for config, folder in zip(self.configs, folders, strict=True)
        ]
        for outcome in carry_out(jobs, self._load, self.cluster, watch):
            yield Finished(outcome.position, folders[outcome.position], outcome.error)

    def _recorded(self) -> dict[str, list[str]]:
        """The folders' names that a process before this one has left, by their configurations' fingerprints."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            recorded = json.loads(read_regular(self._record, MOST_JSON))["runs"]
            # no other names than a study gives: a folder of another name is not its own
            return {each: [id for id in map(str, ids) if ID.fullmatch(id)] for each, ids in recorded.items()}
        return {}

    def _ids(self) -> list[str]:
        """The folders' names: those that a process before this one has left, or new ones."""
        left = {each: list(ids) for each, ids in self._known.items()}
        taken = {id for ids in left.values() for id in ids}
        ids, recorded = [], defaultdict(list)
        for config, each in zip(self.configs, self._fingerprints, strict=True):
            if left.get(each):
                id = left[each].pop(0)
            else:
                while (id := self.store.new_id(config)) in taken:  # four random digits, and perhaps thousands of jobs
                    pass
                taken.add(id)
            ids.append(id)
            recorded[each].append(id)
        write_atomic(self._record, to_json({"runs": recorded}))
        return ids

    @property
    def _load(self) -> Load:
        """The federations of all seeds that jobs with this data have: the rows are read once, and held once."""
        seeds: dict[Any, dict[int, None]] = {}
        examples: dict[Any, Config] = {}
        for config in self.configs:
            key = data_key(config)
            seeds.setdefault(key, {}).update(dict.fromkeys(config.run.seed_list))
            examples.setdefault(key, config)

        def load(key: Any) -> list[Federation]:
            if key in self._loaded:
                return list(self._loaded[key])
            config = examples[key]
            return load_federations(
                dataclasses.replace(config, run=dataclasses.replace(config.run, seeds=[*seeds[key]]))
            )

        return load


def data_key(config: Config) -> str:
    """Equal for configurations whose federations are the same, but for the seeds."""
    sections = config.resolved()
    return json.dumps([sections["data"], sections.get("partition"), str(config.folder)], sort_keys=True)


def _title(config: Config) -> str:
    swept = math.prod(map(len, config.sweep.values()))
    seeds = config.run.seed_list
    return ", ".join(
        [
            f"{config.method.name} on {config.data.title}",
            f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}",
            *([f"{swept} settings"] if swept > 1 else []),
        ]
    )
