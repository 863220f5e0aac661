"""Methods, or the settings of one, on the same federations: which of them fit, their runs, and what these say."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Unpack

import numpy as np

from equifed import modules, tree
from equifed.config import Config
from equifed.errors import ConfigError, EquifedWarning
from equifed.federation import Federation
from equifed.files import writable_folder
from equifed.methods import REGISTRY, Method, make
from equifed.results import Result
from equifed.results.merge import merged
from equifed.settings import MARGIN, Cluster, RunOptions, RunSettings, SeekSettings
from equifed.simulation import DEFAULTS, Simulation, train, with_fields
from equifed.simulator import Job, make_job
from equifed.store import Recording, RunFolder, Store, load_result, save_result
from equifed.store.environment import environment, fingerprint
from equifed.store.sums import SUMS
from equifed.studies.jobs import Watch
from equifed.studies.runs import Study, blocks, data_key, opened
from equifed.tracking import Callback
from equifed.verdict import Comparison, Seeking, Sought, check_margin, need_validation

PERSONAL_TESTS = 20_000_000
"""Test rows times clients beyond which methods whose clients have models of their own are left out, unless named."""

T = TypeVar("T")
Say = Callable[[str], object]


# -- which methods fit -------------------------------------------------------------------------------------------------


def check_distinct(names: Sequence[str]) -> None:
    """Refuse two names of one method, such as ditto and fedavg+ditto."""
    first: dict[str, str] = {}
    for name in names:
        if (same := first.setdefault(make(name).name, name)) != name:
            raise ConfigError(f"--methods names one method twice, as {same} and as {name}. Leave out one of them.")


def make_fitting_jobs(
    methods: Mapping[T, Method], job_of: Callable[[T], Job], feds: Sequence[Federation], named: bool, say: Say
) -> dict[T, Job]:
    """Make the job of each method. Unless they were named, methods that do not fit the data are left out.

    Every job is made before the first trains: what is wrong with the last method must not come after hours of others.
    """
    jobs, clients, rows = {}, feds[0].num_clients, len(feds[0].test)
    for key, method in methods.items():
        if not named and method.personal and clients * rows > PERSONAL_TESTS:
            say(
                f"{method.name} is left out: every evaluation would test {clients:,} models on {rows:,} rows each. "
                "Name it among the methods to include it."
            )
            continue
        try:
            jobs[key] = job_of(key)
        except ConfigError as error:
            own = error.section == "method" or error.key in ("clip", "robust")
            if named or not own:  # the settings are no method's fault
                raise
            say(f"{method.name} is left out: {error.text}")
    targets = next((job.settings.target for job in jobs.values()), ())
    if targets and sum(not methods[key].pooled for key in jobs) > 1:
        need_validation(feds)
    return jobs


# -- runs of configurations --------------------------------------------------------------------------------------------


class Ended(NamedTuple):
    """A configuration whose run, or runs, have ended."""

    number: int
    """Which of them."""
    folders: list[RunFolder]
    result: Result | None
    """None where something went wrong."""
    error: str = ""


def run_in_turn(
    store: Store,
    runs: Sequence[tuple[Config, Job]],
    feds: Sequence[Federation],
    train: Callable[[int, Recording], Result],
    say: Say,
) -> Iterator[Ended]:
    """Carry out every run in this process: a study of them, so that the same call goes on where it was interrupted and
    repeats nothing that has finished. train: all rounds of a recording, given the run's number."""
    study = Study([config for config, _ in runs], store, Cluster(), {data_key(runs[0][0]): feds})
    if study.before:
        say(study.going_on("runs"))
    numbers = {id(config): number for number, (config, _) in enumerate(runs)}
    results: dict[int, Result] = {}

    def work(federations: Sequence[Federation], config: Config, root: Path, run: str) -> None:
        number = numbers[id(config)]
        recording = opened(store, config, run, lambda config: Simulation(runs[number][1]))
        if recording is None:
            return
        begun = f" continues after round {recording.done} of {config.run.rounds}." if recording.done else ""
        if begun or len(runs) == 1:
            say(f"Run {run}{begun}")
        results[number] = train(number, recording)

    for number, folder, error in study.carry_out(train=work):
        own = RunFolder(store.root / folder.id)
        result = results.pop(number) if number in results else None if error else own.result()
        yield Ended(number, [own], result, error)


def share_out(
    store: Store,
    cluster: Cluster,
    configs: Sequence[Config],
    feds: Sequence[Federation],
    watch: Watch,
    say: Say,
) -> Iterator[Ended]:
    """Share out configurations on the same federations, cut into jobs, among workers. They end in their order; a result
    is that of all its jobs."""
    pieces = [(number, block) for number, config in enumerate(configs) for block in blocks(config)]
    study = Study([block for _, block in pieces], store, cluster, {data_key(configs[0]): feds})
    folders: list[dict[int, RunFolder]] = [{} for _ in configs]
    errors: dict[int, str] = {}
    todo = Counter(number for number, _ in pieces)
    if cluster.workers > len(pieces):
        say(
            f"Note: {len(pieces)} jobs for {cluster.workers} workers. Smaller blocks (--seeds-per-job, "
            "--settings-per-job) make more of them."
        )
    if study.before:
        say(study.going_on())
    following = 0
    for position, folder, error in study.carry_out(watch):
        number = pieces[position][0]
        folders[number][position] = folder
        if error:
            errors.setdefault(number, error)
        todo[number] -= 1
        while following < len(configs) and not todo[following]:
            parts = [folders[following][key] for key in sorted(folders[following])]
            lost = errors.get(following, "")
            result = None if lost else merged([part.result() for part in parts], feds)
            yield Ended(following, parts, result, lost)
            following += 1


# -- from Python -------------------------------------------------------------------------------------------------------


def compare(
    federations: Federation | Sequence[Federation],
    methods: Sequence[Method | str] | None = None,
    *,
    model: Any,
    margin: float = MARGIN,
    disparity: str | None = None,
    baseline: str | None = None,
    initial_parameters: Any = None,
    callbacks: Sequence[Callback | str] = (),
    runs: str | Path | None = None,
    settings: RunSettings = DEFAULTS,
    **options: Unpack[RunOptions],
) -> Comparison:
    """Train every method on the same federations, and say which to take: what `equifed compare` prints.

    methods: methods, or their names; left out, all that fit the data. margin: how much quality may be given up for
    fairness; disparity: the metric that the verdict is about; baseline: the method that the others are tested against.
    target, confidence: as in `RunSettings`. runs: a folder that keeps the results: the same call repeats none that is
    there. The other arguments are those of `simulate`.
    """
    check_margin(margin)
    feds = [federations] if isinstance(federations, Federation) else list(federations)
    settings, named = replace(settings, **options), methods is not None
    given = REGISTRY.usable() if methods is None else methods
    if isinstance(given, str | Method):
        raise ConfigError(f"must be a list of methods or of their names, got {given!r}.", key="methods")
    made = [each if isinstance(each, Method) else make(each) for each in given]

    def job_of(number: int) -> Job:
        return make_job(made[number], feds, model, settings, initial_parameters=initial_parameters)

    jobs = make_fitting_jobs(
        dict(enumerate(made)), job_of, feds, named, lambda text: warnings.warn(text, EquifedWarning, 4)
    )
    if not jobs:
        raise ConfigError("There is no method to compare.", key="methods")
    results = [_load_or_train(runs, job, callbacks) for job in jobs.values()]
    return Comparison.of(results, disparity, baseline, margin)


def sweep(
    federations: Federation | Sequence[Federation],
    method: Method | str,
    *,
    over: Mapping[str, Sequence[float]],
    model: Any,
    margin: float = MARGIN,
    disparity: str | None = None,
    initial_parameters: Any = None,
    callbacks: Sequence[Callback | str] = (),
    runs: str | Path | None = None,
    settings: RunSettings = DEFAULTS,
    **options: Unpack[RunOptions],
) -> Comparison:
    """Train a method with every combination of the values in `over`, {hyper-parameter: values}, in one computation, and
    say which setting to take: what `equifed sweep --over` prints.

    The other arguments are those of `compare`. `simulate(..., over=over)` gives the `Result` alone; `seek` searches the
    values for a target.
    """
    check_margin(margin)
    if isinstance(federations, Method):
        raise ConfigError(
            "sweep takes the federation first, then the method, and gives a comparison of the settings. For the result "
            "alone: simulate(method, federation, over=...)."
        )
    feds = [federations] if isinstance(federations, Federation) else list(federations)
    settings, method = replace(settings, **options), make(method) if isinstance(method, str) else method
    job = make_job(method, feds, model, settings, over=over, initial_parameters=initial_parameters)
    if settings.target and math.prod(map(len, over.values())) > 1:
        need_validation(feds)
    return Comparison.of([_load_or_train(runs, job, callbacks)], disparity, None, margin)


def seek(
    method: Method,
    federations: Federation | Sequence[Federation],
    *,
    model: Any,
    steps: int = SeekSettings.steps,
    at_once: int = SeekSettings.at_once,
    initial_parameters: Any = None,
    callbacks: Sequence[Callback | str] = (),
    settings: RunSettings = DEFAULTS,
    **options: Unpack[RunOptions],
) -> Sought:
    """Turn the method's knob until the targets are met with the confidence asked for, at the least loss of quality.

    target, confidence: as in `RunSettings`. steps: sweeps at most; at_once: settings in each. The other arguments are
    those of `simulate`.
    """
    settings = replace(settings, **options)
    feds = [federations] if isinstance(federations, Federation) else list(federations)
    seeking = Seeking(method, feds, settings, SeekSettings(steps, at_once))
    while over := seeking.over():
        job = make_job(seeking.method, feds, model, settings, over=over, initial_parameters=initial_parameters)
        seeking.add(train(job, callbacks))
    return seeking.sought()


def _load_or_train(runs: str | Path | None, job: Job, callbacks: Sequence[Callback | str]) -> Result:
    """Return the job's result: the one that the folder has, or a new one, which the folder then has."""
    if runs is None:
        return train(job, callbacks)
    code = _hash_code(job)
    name = re.sub(r"[^a-z0-9-]+", "-", job.method.name.lower())
    folder = Path(runs) / f"{name}-{_fingerprint(job, code)}"
    if (folder / SUMS).is_file():  # which is written last
        return load_result(folder, trust=list(code))
    writable_folder(Path(runs), "Name another folder with runs.")
    result = train(job, callbacks)
    save_result(folder, result)
    return result


def _fingerprint(job: Job, code: Mapping[str, str]) -> str:
    """Return a hash that is equal for the same method, settings, rows, model, code and versions."""
    start = hashlib.blake2b()
    for leaf in (leaf for parameters in job.initial for leaf in tree.leaves(parameters)):
        start.update(np.ascontiguousarray(leaf.cpu().numpy()).data)
    feds = list({id(run.federation): run.federation for run in job.runs}.values())
    facts = (
        *(job.method.name, job.method.hyper, job.labels, job.settings.to_dict()),
        *(str(job.task.module), modules.fingerprint(job.task.module), start.hexdigest()),
        *(fingerprint(feds), environment(job), code),
    )
    return hashlib.blake2b(json.dumps(facts, default=str).encode(), digest_size=8).hexdigest()


def _hash_code(job: Job) -> dict[str, str]:
    """Return a hash of every module's file, outside equifed and torch, that method, model and metrics are from."""
    objects = [job.method, job.model, *job.task.module.modules(), *job.settings.metrics]
    objects += [value for value in vars(job.method).values() if isinstance(value, Method)]
    kinds = [kind for each in objects for kind in ((each,) if inspect.isroutine(each) else inspect.getmro(type(each)))]
    hashes = {}
    for name in sorted({kind.__module__ for kind in kinds}):
        if name.partition(".")[0] in {"equifed", "torch", *sys.stdlib_module_names} - {"__main__"}:
            continue
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None:
            raise ConfigError(
                f"cannot keep a result of code from {name}, which is not in a file: whether it changes would not be "
                "seen. Put the method or model in a module of its own, or leave runs out.",
                key="runs",
            )
        hashes[name] = hashlib.blake2b(Path(file).read_bytes(), digest_size=8).hexdigest()
    return hashes


for each in (compare, sweep, seek):
    with_fields(each)
