"""Carrying the benchmark out: what is not in the records yet, as a study, whose runs become rows one by one."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from equifed.benchmark import records
from equifed.benchmark.plan import Tier, Trial, trials
from equifed.config import job_of, load_federations
from equifed.errors import ConfigError
from equifed.files import writable_folder
from equifed.settings import Cluster
from equifed.store import Store
from equifed.studies import Study, data_key

EVERY = 15.0
"""Seconds between two writings of the records: what is lost at most when the process is killed."""
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


def missing(asked: Asked, path: Path) -> tuple[list[Trial], list[dict[str, Any]]]:
    """The trials whose rows are not in the file, each with the seeds that are missing; and the rows of methods that
    cannot run on the data, which is known before the first one trains. What is there of another plan is removed."""
    planned = list(trials(asked.tier, asked.datasets, asked.methods, asked.seeds))
    plans: dict[tuple[str, ...], set[str]] = {}
    for trial in planned:
        plans.setdefault((trial.tier, trial.data, trial.partition, trial.method), set()).add(trial.plan)
    have = records.done(records.keep(path, plans))
    todo, without = [], []
    refused: dict[tuple[str, str, str], str] = {}
    example: dict[str, Any] = {}
    for trial in planned:
        place = (trial.data, trial.partition, trial.method)
        key, plan = (trial.tier, *place), trial.plan
        if place in refused or (*key, "", -1, plan) in have:
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
            refused[place] = error.text
            without.append(records.left_out(trial, error.text))
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
) -> tuple[pd.DataFrame, list[str]]:
    """All rows that the folder has in the end, and what failed. What is there already is not run again."""
    writable_folder(folder, "Name another one with --output.")
    path = folder / records.ROWS
    todo, without = missing(asked, path)
    rows = records.add(path, records.table_of(without))
    if not todo:
        return rows, []
    tell(f"{len(todo)} computations to do: {len(asked.methods)} methods, {len(asked.datasets)} data sets.")
    place = folder / RUNS if keep_runs else Path(tempfile.mkdtemp(prefix="runs-", dir=folder))
    try:
        return _carried_out(todo, path, Store(place), cluster, keep_runs, tell)
    finally:
        if not keep_runs:
            shutil.rmtree(place, ignore_errors=True)


def _carried_out(
    todo: Sequence[Trial], path: Path, store: Store, cluster: Cluster, keep_runs: bool, tell: Callable[[str], object]
) -> tuple[pd.DataFrame, list[str]]:
    began = written = time.monotonic()
    new: list[dict[str, Any]] = []
    failed: list[str] = []
    rows = records.read(path)
    try:
        for count, ended in enumerate(Study([trial.config for trial in todo], store, cluster).carry_out(), 1):
            trial = todo[ended.position]
            title = f"{trial.method} on {trial.data}, {trial.partition}, {trial.step[0]} {trial.step[1]:g}"
            if ended.error:
                failed.append(f"{title}: {ended.error}")
                tell(f"{failed[-1]}")
            else:
                new += records.rows_of(trial, ended.folder.result(), ended.folder.record("environment.json"))
            if not keep_runs:
                shutil.rmtree(ended.folder.path, ignore_errors=True)
            if time.monotonic() - written > EVERY:
                rows, new, written = records.add(path, records.table_of(new)), [], time.monotonic()
                passed = time.monotonic() - began
                left = passed / count * (len(todo) - count)
                tell(f"{count} of {len(todo)} after {_minutes(passed)}, {_minutes(left)} to go: {title}")
    finally:
        rows = records.add(path, records.table_of(new))
    return rows, failed


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def merge(paths: Iterable[Path], folder: Path) -> pd.DataFrame:
    """Add the rows of parts that were run elsewhere."""
    parts = []
    for path in paths:
        if not path.exists():
            raise ConfigError(f"There is no file {path} to merge.")
        parts.append(records.read(path))
    return records.add(folder / records.ROWS, records.joined(parts))
