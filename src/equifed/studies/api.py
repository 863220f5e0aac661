"""Comparing methods, the settings of one, or seeking a target, from Python: what the commands of these names do."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from equifed import modules, tree
from equifed.errors import ConfigError, EquifedWarning
from equifed.federation import Federation
from equifed.files import check_writable
from equifed.methods import REGISTRY, Method, make
from equifed.results import Result
from equifed.settings import MARGIN, RunOptions, RunSettings, SeekSettings
from equifed.simulation import DEFAULTS, train, with_fields
from equifed.simulator import Job, make_job
from equifed.store import load_result, save_result
from equifed.store.environment import environment, fingerprint
from equifed.store.sums import SUMS
from equifed.studies.comparing import make_fitting_jobs
from equifed.tracking import Callback
from equifed.verdict import Comparison, Seeking, Sought, check_margin, need_validation


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
    """Train a method with every combination of the values in `over`, {hyperparameter: values}, in one computation, and
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
    check_writable(Path(runs), "Name another folder with runs.")
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
