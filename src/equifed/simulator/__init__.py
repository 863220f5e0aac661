"""The simulator: whole federations, all seeds and all sweep values, in one vectorised computation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from equifed.errors import ConfigError
from equifed.federation import Federation
from equifed.protocol import Method
from equifed.results import Collector, Result
from equifed.simulator.engine import Engine, State
from equifed.simulator.evaluate import Evaluator, Measure
from equifed.simulator.job import Job, make_job
from equifed.simulator.lanes import LanesEngine
from equifed.simulator.loop import Step, rounds
from equifed.simulator.reference import Reference
from equifed.simulator.tables import make_tables
from equifed.training import Local

__all__ = ["Collector", "Result", "Simulation", "Step", "Training", "make_job", "simulate", "sweep"]

EngineName = Literal["lanes", "reference"]
ENGINES: dict[str, Any] = {"lanes": LanesEngine, "reference": Reference}


class Training:
    """A job with an engine and an evaluator, wherever its clients are: iterate over its rounds, then take the
    result."""

    def __init__(self, job: Job, engine: Engine, evaluator: Measure) -> None:
        self.job, self.engine, self._evaluator = job, engine, evaluator
        self.collector = Collector(job)
        self._state: State | None = None

    def rounds(self, resume: tuple[int, State] | None = None) -> Iterator[Step]:
        if resume is not None:
            self._state = resume[1]
        for step in rounds(self.job, self.engine, self._evaluator, resume):
            self.collector.add(step)
            self._state = step.state
            yield step

    def result(self) -> Result:
        assert self._state is not None, "no round has finished"
        return self.collector.result(self._state, self.engine.messages.values(), self.engine.notes)


class Simulation(Training):
    """A job whose clients are all here. `simulate` carries one out."""

    def __init__(self, job: Job, engine: str = "lanes") -> None:
        if engine not in ENGINES:
            raise ConfigError(f"Unknown engine {engine!r}. Known: lanes (fast), reference (one client at a time).")
        tables = make_tables(job)
        super().__init__(job, ENGINES[engine](job, tables), Evaluator(job, tables))


def simulate(
    method: Method,
    federations: Federation | Sequence[Federation],
    *,
    model: Any,
    rounds: int,
    clients_per_round: int | None = None,
    local: Local | None = None,
    seeds: Sequence[int] | None = None,
    initial_parameters: Any = None,
    dropout: float = 0.0,
    eval_every: int = 1,
    device: str = "auto",
    engine: EngineName = "lanes",
    compile: bool | None = None,
    over: Mapping[str, Sequence[float]] | None = None,
) -> Result:
    """Train `method` on a federation (or one federation per seed) and measure it.

    model: one of `equifed.models`, any `nn.Module` without buffers, or a function that makes one.
    clients_per_round: sampled without replacement; None takes all. dropout: chance that one of them fails to answer.
    seeds: one run each, all in one computation. initial_parameters: {name: array}, or {seed: {name: array}}.
    engine: "lanes" (vectorised) or "reference" (one client at a time, for checking and debugging).
    compile: compile the training step; None decides by the length of the run.
    over: {hyper-parameter: values}: every combination, in the same computation.
    """
    job = make_job(
        method,
        federations,
        model=model,
        rounds=rounds,
        clients_per_round=clients_per_round,
        local=Local() if local is None else local,
        seeds=seeds,
        initial_parameters=initial_parameters,
        dropout=dropout,
        eval_every=eval_every,
        device=device,
        compile=compile,
        over=over,
    )
    simulation = Simulation(job, engine)
    for _ in simulation.rounds():
        pass
    return simulation.result()


def sweep(
    method: Method,
    federations: Federation | Sequence[Federation],
    *,
    over: Mapping[str, Sequence[float]],
    **settings: Any,
) -> Result:
    """`simulate` for every combination of the values in `over`, {hyper-parameter: values}, in one computation.

    settings: as for `simulate`.
    """
    return simulate(method, federations, over=over, **settings)
