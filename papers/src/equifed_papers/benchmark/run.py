"""Carrying the benchmark out: what is not in the records yet, as a study, whose runs become rows one by one."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from equifed.config import Config, job_of, load_federations
from equifed.errors import ConfigError
from equifed.files import check_writable, refuse_link
from equifed.settings import Cluster
from equifed.store import RunFolder, Store
from equifed.studies import Study, blocks, data_key
from equifed.studies.jobs import Watch
from equifed_papers.benchmark import records
from equifed_papers.benchmark.plan import Tier, Trial, source_of, trials

EVERY = 15.0
"""Seconds between two writings of the records, each of which reads and writes all of them."""
PAGE, RUNS = "benchmark.html", "runs"
"""In the benchmark's folder, beside the rows."""


@dataclass(frozen=True)
class Asked:
    """What of the benchmark is to be run."""

    tier: Tier
    datasets: Mapping[str, Sequence[str]]
    """The partitions of every data set."""
    methods: Sequence[str]
    seeds: int

    @property
    def name(self) -> str:
        """The same for the same command and the same methods."""
        sources = [source_of(method) for method in self.methods]
        text = repr((self.tier, sorted(self.datasets.items()), list(self.methods), sources, self.seeds))
        return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def missing(asked: Asked, path: Path) -> tuple[list[Trial], list[dict[str, Any]]]:
    """The trials whose rows are not in the file, each with the seeds that are missing; and the rows of methods that
    cannot run on the data, which is known before the first one trains. What is there of another plan is removed."""
    planned = list(trials(asked.tier, asked.datasets, asked.methods, asked.seeds))
    plans: dict[tuple[str, ...], dict[str, set[str]]] = {}
    for trial in planned:
        plans.setdefault((trial.tier, *trial.place), {})[trial.plan] = {*trial.settings, ""}  # "": of a method left out
    have = records.done(records.keep(path, plans))
    todo, without = [], []
    refused: set[tuple[str, str, str]] = set()
    example: dict[str, Any] = {}
    for trial in planned:
        place, key, plan = trial.place, (trial.tier, *trial.place), trial.plan
        if place in refused or any((*key, "", -1, each) in have for each in plans[key]):
            continue
        seeds = [
            seed
            for seed in range(asked.seeds)
            if any((*key, setting, seed, plan) not in have for setting in trial.settings)
        ]
        if not seeds:
            continue
        config = dataclasses.replace(trial.config, run=dataclasses.replace(trial.config.run, seeds=seeds))
        data = data_key(config)
        if data not in example:
            example = {data: load_federations(_of_one_seed(config))}  # the trials of one federation follow each other
        try:
            job_of(_of_one_seed(config), example[data])
        except ConfigError as error:
            if error.section != "method":
                raise
            refused.add(place)
            without.append(records.left_out(trial, error.sentence))
            continue
        todo.append(dataclasses.replace(trial, config=config))
    return todo, without


def _of_one_seed(config: Any) -> Any:
    return dataclasses.replace(config, run=dataclasses.replace(config.run, seeds=[0]))


def carry_out(
    asked: Asked,
    folder: Path,
    cluster: Cluster,
    keep_runs: bool = False,
    tell: Callable[[str], object] = lambda text: None,
    watch: Watch = lambda states: None,
) -> tuple[pd.DataFrame, list[str]]:
    """All rows that the folder has in the end, and what failed. What is there already is not run again, and what a
    process before this one had begun goes on."""
    check_writable(folder, "Name another one with --output.")
    path = folder / records.ROWS
    todo, without = missing(asked, path)
    rows = records.add(path, records.table_of(without))
    if not todo:
        return rows, []
    tell(f"{len(todo)} computations to do: {len(asked.methods)} methods, {len(asked.datasets)} data sets.")
    jobs = [dataclasses.replace(trial, config=block) for trial in todo for block in _jobs(trial, cluster)]
    place = folder / (RUNS if keep_runs else f"{RUNS}-{asked.name}")
    refuse_link(place)
    study = Study([trial.config for trial in jobs], Store(place), cluster, name=asked.name)
    if study.before:
        tell(study.going_on())
    writing = _Writing(path, keep_runs)
    failed: list[str] = []
    try:
        for ended in study.carry_out(watch):
            trial = jobs[ended.position]
            if ended.error:
                title = f"{trial.method} on {trial.data}, {trial.partition}, {trial.step[0]} {trial.step[1]:g}"
                failed.append(f"{title}: {ended.error}")
                tell(failed[-1])
            else:
                writing.add(trial, ended.folder)
    finally:
        rows = writing.written()
    if not keep_runs and not failed:
        shutil.rmtree(place, ignore_errors=True)
    return rows, failed


def _jobs(trial: Trial, cluster: Cluster) -> list[Config]:
    return blocks(dataclasses.replace(trial.config, cluster=cluster))


class _Writing:
    """Runs that have finished become rows, and are removed once their rows are in the file."""

    def __init__(self, path: Path, keep_runs: bool) -> None:
        self.path, self.keep_runs = path, keep_runs
        self._rows: list[dict[str, Any]] = []
        self._folders: list[RunFolder] = []
        self._last = time.monotonic()

    def add(self, trial: Trial, folder: RunFolder) -> None:
        self._rows += records.rows_of(trial, folder.result(), folder.record("environment.json"))
        self._folders.append(folder)
        if time.monotonic() - self._last > EVERY:
            self.written()

    def written(self) -> pd.DataFrame:
        """All rows of the file, these included."""
        rows = records.add(self.path, records.table_of(self._rows))
        if not self.keep_runs:
            for folder in self._folders:
                shutil.rmtree(folder.path, ignore_errors=True)
        self._rows, self._folders, self._last = [], [], time.monotonic()
        return rows


def merge(paths: Sequence[Path], folder: Path) -> pd.DataFrame:
    """Add the rows of parts that were run elsewhere, where the folder has none of its own."""
    for path in paths:
        if not path.exists():
            raise ConfigError(f"There is no file {path} to merge.")
    parts = [records.read(path) for path in paths]
    own = folder / records.ROWS
    return records.add(own, records.joined(parts), over=False) if parts else records.read(own)
