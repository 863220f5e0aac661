"""Training of a job: `simulate`, and a training with rounds that can be followed one by one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from equifed.federation import Federation
from equifed.protocol import Method
from equifed.registry import allow
from equifed.results import Collector, Result
from equifed.settings import RunOptions, RunSettings
from equifed.simulator import Evaluator, Job, LanesEngine, Reference, State, Step, make_job, make_tables, rounds
from equifed.simulator.engine import Engine
from equifed.simulator.evaluate import Measure
from equifed.tracking import Callback, Round, Run, get_callbacks

ENGINES: dict[str, Any] = {"lanes": LanesEngine, "reference": Reference}
DEFAULTS = RunSettings()


class Training:
    """A job with an engine and an evaluator, simulated or real: iterate over its rounds, then take the result."""

    def __init__(self, job: Job, engine: Engine, evaluator: Measure) -> None:
        self.job, self.engine, self._evaluator = job, engine, evaluator
        self.collector = Collector(job)
        self._state: State | None = None

    def rounds(self, resume: tuple[int, State] | None = None) -> Iterator[Step]:
        """Run the rounds, yielding each; `resume`: the last finished round and its state."""
        if resume is not None:
            self._state = resume[1]
        for step in rounds(self.job, self.engine, self._evaluator, resume):
            self.collector.add(step)
            self._state = step.state
            yield step

    def result(self) -> Result:
        """Return the result after the last round."""
        assert self._state is not None, "no round has finished"
        return self.collector.result(self._state, self.engine.messages.values(), self.engine.notes)


class Simulation(Training):
    """A training with simulated clients. `simulate` runs one."""

    def __init__(self, job: Job) -> None:
        tables = make_tables(job)
        super().__init__(job, ENGINES[job.settings.engine](job, tables), Evaluator(job, tables))


def simulate(
    method: Method,
    federations: Federation | Sequence[Federation],
    *,
    model: Any,
    over: Mapping[str, Sequence[float]] | None = None,
    initial_parameters: Any = None,
    callbacks: Sequence[Callback | str] = (),
    settings: RunSettings = DEFAULTS,
    **options: Unpack[RunOptions],
) -> Result:
    """Train `method` on a federation (or one federation per seed) and evaluate it.

    model: one of `equifed.models`, any `nn.Module` without buffers, or a function that makes one.
    over: {hyperparameter: values}: every combination, in one computation; the result is that of a sweep.
    initial_parameters: {name: array}, or {seed: {name: array}}.
    callbacks: receive progress and metrics: `equifed.tracking.Callback`s, or names of trackers such as "mlflow".
    settings, options: settings of the run, as one `RunSettings` or field by field; a field given by name wins.
    """
    settings = replace(settings, **options)
    return train(
        make_job(method, federations, model, settings, over=over, initial_parameters=initial_parameters), callbacks
    )


def train(job: Job, callbacks: Sequence[Callback | str] = ()) -> Result:
    """Carry out a job in this process."""
    trackers = get_callbacks(callbacks)
    allow(*(name for name in job.settings.metrics if isinstance(name, str)))
    simulation = Simulation(job)
    with trackers.follow(Run.of(job)):
        for step in simulation.rounds():
            trackers.round_finished(Round(job, step))
        result = simulation.result()
    trackers.run_finished(result, None)
    return result


def with_fields(function: Callable[..., Any]) -> None:
    """Add the fields of `RunSettings` as keyword arguments to the function's signature, for help and notebooks."""
    signature, settings = inspect.signature(function), inspect.signature(RunSettings)
    *named, _ = signature.parameters.values()
    named += [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in settings.parameters.values()]
    function.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]


with_fields(simulate)
