"""The round loop, the only one there is: every engine and every method goes through it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from equifed import tree
from equifed.simulator.engine import Engine, Rejection, Stage, State, phases
from equifed.simulator.evaluate import Evaluator, Scored
from equifed.simulator.job import Job


class RoundLog(NamedTuple):
    """What happened in one round of one run."""

    run: int
    round: int
    sampled: int
    replied: int
    dropped: int
    rejected: int
    applied: bool
    observed: dict[str, float]


@dataclass(frozen=True)
class Step:
    """A finished round. `state` may be saved now; going on changes it."""

    round: int
    state: State
    logs: list[RoundLog]
    rejections: list[tuple[int, Rejection]]
    """(round, who and why)."""
    scores: list[dict[str, Scored]] | None
    """Per run, in rounds that are evaluated."""
    seconds: float
    """Wall time of the round, evaluation included."""


def rounds(job: Job, engine: Engine, evaluator: Evaluator, resume: tuple[int, State] | None = None) -> Iterator[Step]:
    """Carry out the job, yielding after every round; `resume` = (last finished round, state after it)."""
    clock = time.perf_counter()
    rejections: list[tuple[int, Rejection]] = []
    with _settings(job):
        done, state = resume or (0, engine.start())
        if not done:
            state = _with_everyone(job, engine, state, "setup", 0, rejections)
    for number in range(done + 1, job.rounds + 1):
        with _settings(job):  # not around the yield: the caller's torch settings are its own
            cohorts = job.cohorts(number)
            here = job.present(number, cohorts)
            state, present = _stage(job, engine, state, "round", number, cohorts, here, rejections)
            if number == job.rounds:
                state = _with_everyone(job, engine, state, "final", number, rejections)
            logs = _logs(job, state, number, here, present)
            evaluated = number % job.eval_every == 0 or number == job.rounds
            scores = [evaluator.score(state, run) for run in range(len(job.runs))] if evaluated else None
        yield Step(number, state, logs, rejections, scores, time.perf_counter() - clock)
        clock, rejections = time.perf_counter(), []


def _with_everyone(
    job: Job, engine: Engine, state: State, stage: Stage, number: int, rejections: list[tuple[int, Rejection]]
) -> State:
    """Setup or final phases: once, with all clients, none of whom drops out."""
    cohorts = job.everyone()
    return _stage(job, engine, state, stage, number, cohorts, np.ones(cohorts.shape, dtype=bool), rejections)[0]


def _stage(
    job: Job,
    engine: Engine,
    state: State,
    stage: Stage,
    number: int,
    cohorts: np.ndarray,
    present: np.ndarray,
    rejections: list[tuple[int, Rejection]],
) -> tuple[State, np.ndarray]:
    """All phases of a stage with one cohort; whoever's reply is refused is out of the phases that follow."""
    for position in range(len(phases(job.method, stage))):
        exchange = engine.exchange(state, stage, position, number, cohorts, present)
        state, present = exchange.state, exchange.present
        rejections += [(number, rejection) for rejection in exchange.rejections]
    return state, present


def _logs(job: Job, state: State, number: int, here: np.ndarray, present: np.ndarray) -> list[RoundLog]:
    logs = []
    for run in range(len(job.runs)):
        observed = job.method_of(run).observe(tree.take(state.server, run))
        sampled, stayed, replied = here.shape[1], int(here[run].sum()), int(present[run].sum())
        logs.append(
            RoundLog(
                run,
                number,
                sampled,
                replied,
                sampled - stayed,
                stayed - replied,
                replied > 0,
                {name: float(value) for name, value in observed.items()},
            )
        )
    return logs


@contextmanager
def _settings(job: Job) -> Iterator[None]:
    """No autograd tape, and one torch thread on a CPU: with small batches more threads are slower, and far slower on
    a busy machine. Whoever sets OMP_NUM_THREADS knows better and is left alone."""
    before = torch.get_num_threads()
    if job.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(before)
