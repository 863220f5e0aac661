"""The only round loop, for every engine and every method."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equifed import tree
from equifed.errors import RunError
from equifed.metrics.scored import Scored
from equifed.notes import Note
from equifed.protocol import Method, Stage
from equifed.simulator.engine import Engine, Rejection, State, map_over_runs
from equifed.simulator.evaluate import Measure
from equifed.simulator.job import Job
from equifed.simulator.memory import keep_freed


class RoundLog(NamedTuple):
    """The log of one round of one run."""

    run: int
    round: int
    sampled: int
    replied: int
    dropped: int
    rejected: int
    applied: bool
    observed: dict[str, float]
    stopped: bool = False
    """True if the run converged in this round and is not trained further."""
    obstacle: Note | None = None
    """Reason why the round was not applied; None if it was."""
    cut: Mapping[str, float] = {}
    """By client with an examined update, the share of it that a robust rule cut, from 0 to 1."""


@dataclass(frozen=True)
class Step:
    """A finished round. Save `state` now if at all, because the next round changes it."""

    round: int
    state: State
    logs: list[RoundLog]
    rejections: list[tuple[int, Rejection]]
    """Rejections as (round, rejection)."""
    scores: dict[int, list[dict[str, Scored]]]
    """By round, the scores of every run: those of this round if it is evaluated, or of an earlier one if clients
    evaluate a round's model when the next round sends it to them."""
    seconds: float
    """Wall time of the round including evaluation."""
    last: bool
    """True for the last round: all rounds are done, or all runs have converged."""


def rounds(job: Job, engine: Engine, evaluator: Measure, resume: tuple[int, State] | None = None) -> Iterator[Step]:
    """Carry out the job, yielding after every round; `resume` = (last finished round, state after it).

    A run that has converged carries out its final phases at once and is then unchanged, so that its result does not
    depend on the other runs.
    """
    clock = time.perf_counter()
    rejections: list[tuple[int, Rejection]] = []
    with _torch_settings():
        done, state = resume or (0, engine.start())
        if not done:
            state = _ask_all_clients(job, engine, state, "setup", 0, np.ones(len(job.runs), dtype=bool), rejections)
        running = ~_observe(job, state)[1] if done else np.ones(len(job.runs), dtype=bool)
    for number in range(done + 1, job.rounds + 1):
        if not running.any():
            return
        with _torch_settings():  # not around the yield, because the caller has its own torch settings
            cohorts = job.cohorts(number)
            here = job.present(number, cohorts) & running[:, None]
            found = _carry_out_stage(job, engine, state, "round", number, cohorts, here, rejections)
            state = found.state
            gone = [missing.run for when, missing in rejections if when == number and not missing.answered]
            observed, converged = _observe(job, state)
            ended = running & converged if number < job.rounds else running
            if ended.any() and job.phases("final"):
                state = _ask_all_clients(job, engine, state, "final", number, ended, rejections)
                observed, _ = _observe(job, state)
            observed |= found.observed
            stopped = ended & converged
            logs = _make_logs(
                number, running, stopped, here, found, gone, observed, _list_cuts(job, cohorts, found.cut)
            )
            running = running & ~ended
            last = not running.any()
            scores = evaluator.measure(number, state, running)
        yield Step(number, state, logs, rejections, scores, time.perf_counter() - clock, last)
        clock, rejections = time.perf_counter(), []


def _observe(job: Job, state: State) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the method's observations of every run, by name [R], and True for runs that have converged [R]."""
    kind = type(job.method)
    unseen = kind.observe is Method.observe and kind.converged is Method.converged
    if unseen or not tree.leaves(state.server):
        return {}, np.zeros(len(job.runs), dtype=bool)

    def one(server: Any, hyper: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        method, _ = job.configure(hyper)
        return method.observe(server), method.converged(server)

    observed, converged = map_over_runs(one, (state.server, job.hyper), len(job.runs))
    values = torch.stack([value.to(job.device, torch.float64) for value in (*observed.values(), converged)])
    *seen, ended = values.cpu().numpy()
    return dict(zip(observed, seen, strict=True)), ended > 0


def _ask_all_clients(
    job: Job,
    engine: Engine,
    state: State,
    stage: Stage,
    number: int,
    runs: np.ndarray,
    rejections: list[tuple[int, Rejection]],
) -> State:
    """Carry out setup or final phases of these runs [R], once, with all clients and without planned dropout."""
    if not job.phases(stage):
        return state
    cohorts = job.everyone()
    present = np.broadcast_to(runs[:, None], cohorts.shape)
    found = _carry_out_stage(job, engine, state, stage, number, cohorts, present, rejections)
    for run, obstacle in found.obstacles.items():
        missing = "; ".join(f"{each.client}: {each.reason}" for _, each in rejections if each.run == run)
        raise RunError(
            f"The {stage} phases could not be finished, without which the result would not be the method's: "
            f"{obstacle} ({int(found.present[run].sum())} of {cohorts.shape[1]} clients)."
            + (f" Missing: {missing}." if missing else "")
        )
    return found.state


class Stages(NamedTuple):
    """The outcome of a stage for all runs."""

    state: State
    present: np.ndarray
    """True for clients with used replies [R, K]; in an unfinished run, until it stopped."""
    obstacles: Mapping[int, Note]
    """By run in which the stage had no effect, the reason."""
    observed: Mapping[str, np.ndarray]
    """Values for the log [R]: the share of clipped replies, over the phases that send updates, and the number of
    clients that dropped out before a secure sum was unmasked, over all phases."""
    cut: np.ndarray | None
    """Share of each client's update that a robust rule cut [R, K], averaged over the phases it examines."""


def _carry_out_stage(
    job: Job,
    engine: Engine,
    state: State,
    stage: Stage,
    number: int,
    cohorts: np.ndarray,
    present: np.ndarray,
    rejections: list[tuple[int, Rejection]],
) -> Stages:
    """Carry out all phases of a stage with one cohort; a client with a refused reply is excluded from the next phases.
    In a run in which a phase could not be finished, the stage has no effect."""
    before, lost = _copy_state(job, state), np.zeros(len(job.runs), dtype=bool)
    obstacles: dict[int, Note] = {}
    observed: dict[str, np.ndarray] = {}
    clipped, replied, late, cuts = [], [], [], []
    positions = [p for p, phase in enumerate(job.phases(stage)) for _ in range(phase.repeat(job.task))]
    for step, position in enumerate(positions):
        exchange = engine.exchange(state, stage, position, step, number, cohorts, present & ~lost[:, None])
        state, present = exchange.state, np.where(lost[:, None], present, exchange.present)
        rejections += [(number, rejection) for rejection in exchange.rejections]
        obstacles |= exchange.obstacles
        lost[list(exchange.obstacles)] = True
        if exchange.late is not None:
            late.append(exchange.late)
            observed["late"] = np.sum(late, axis=0)
        if lost.all():
            return Stages(before, present, obstacles, observed, None)
        if exchange.clipped is not None:
            clipped.append(exchange.clipped)
            replied.append(present.sum(1))
        if exchange.cut is not None:
            cuts.append(exchange.cut)
    if lost.any():
        state = State(*tree.where(torch.from_numpy(lost).to(job.device), before, state))
    if clipped:
        observed["clipped"] = np.sum(clipped, axis=0) / np.maximum(np.sum(replied, axis=0), 1)
    return Stages(state, present, obstacles, observed, _average_cuts(cuts, lost) if cuts else None)


def _copy_state(job: Job, state: State) -> State:
    """Return the state to restore if the round stops. Engines change client states in place, so it is copied, but only
    for robust rules and secure sums, which alone can stop a round."""
    stops = job.channel.robust is not None or job.channel.secure
    return tree.map(torch.clone, state) if stops else state


def _average_cuts(cuts: list[np.ndarray], lost: np.ndarray) -> np.ndarray:
    """Average over the exchanges in which a rule examined the client's update; NaN if it examined none."""
    looked = ~np.isnan(cuts)
    mean: np.ndarray = np.where(looked, cuts, 0.0).sum(0) / np.maximum(looked.sum(0), 1)
    return np.where(looked.any(0) & ~lost[:, None], mean, np.nan)


def _list_cuts(job: Job, cohorts: np.ndarray, cut: np.ndarray | None) -> list[dict[str, float]]:
    """Return the share cut of each client's update [R, K], by run and name."""
    if cut is None:
        return [{} for _ in job.runs]
    return [
        {run.federation.ids[client]: float(share) for client, share in zip(*each, strict=True) if not np.isnan(share)}
        for run, *each in zip(job.runs, cohorts, cut, strict=True)
    ]


def _make_logs(
    number: int,
    running: np.ndarray,
    stopped: np.ndarray,
    here: np.ndarray,
    found: Stages,
    gone: list[int],
    observed: dict[str, np.ndarray],
    cuts: list[dict[str, float]],
) -> list[RoundLog]:
    """Return a log entry for every run of the round; `gone` has the run of each client that did not answer."""
    sampled, stayed, replied, obstacles = here.shape[1], here.sum(1), found.present.sum(1), found.obstacles
    return [
        RoundLog(
            run,
            number,
            sampled,
            int(replied[run]),
            sampled - int(stayed[run]) + gone.count(run),
            int(stayed[run] - replied[run]) - gone.count(run),
            run not in obstacles and bool(replied[run]),
            {name: float(values[run]) for name, values in observed.items()},
            bool(stopped[run]),
            obstacles.get(run) or (None if replied[run] else Note("too-few-replies")),
            cuts[run],
        )
        for run in map(int, np.flatnonzero(running))
    ]


@contextmanager
def _torch_settings() -> Iterator[None]:
    """Disable autograd, and use one torch thread of the CPU, where also a GPU's scores are added up: clients are shared
    out over threads, and small operations are slower with several threads, far slower on a busy machine."""
    keep_freed()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(before)
