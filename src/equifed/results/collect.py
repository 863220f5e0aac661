"""Gathers what the rounds of a run leave behind, and makes a result of it, whatever the engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from equifed import tree
from equifed.metrics.frame import Scored, metrics_frame
from equifed.results.predict import FinalState
from equifed.results.result import Result

if TYPE_CHECKING:
    from equifed.simulator.engine import Message, Rejection, State
    from equifed.simulator.job import Job, Run
    from equifed.simulator.loop import RoundLog, Step

TOLERANCE = 1e-3
"""What a constraint may lie beyond its bound without a word."""
MESSAGES = ["stage", "phase", "down", "up", "gather", "bytes_down", "bytes_up", "sizes_down", "sizes_up"]
REJECTIONS = ["seed", "round", "phase", "client", "reason", "answered"]


@dataclass
class Collector:
    """Gathers finished rounds; turned into a `Result` at any time."""

    job: Job
    scores: list[tuple[int, int, dict[str, Scored]]] = field(default_factory=list)
    """(round, run, scores)."""
    logs: list[RoundLog] = field(default_factory=list)
    rejections: list[tuple[int, Rejection]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, step: Step) -> None:
        self.logs += step.logs
        self.rejections += step.rejections
        self.seconds.append(step.seconds)
        for number, scores in step.scores.items():
            self.scores += [(number, run, scored) for run, scored in enumerate(scores)]

    def result(self, state: State, messages: Iterable[Message], notes: Sequence[str]) -> Result:
        job = self.job
        fed = job.runs[0].federation
        swept = list(job.runs[0].hyper)
        info = {
            "method": job.method.name,
            "hyper_parameters": dataclasses.asdict(job.method),
            "swept": swept,
            "data": fed.name,
            "provenance": dict(fed.provenance),
            "task": fed.task,
            "classes": list(fed.classes),
            "groups": list(fed.groups),
            "clients": list(fed.ids),
            "cells": job.runs[0].given.cells().tolist() if fed.num_clients <= 1000 else None,
            "rows": {
                "train": int(fed.train.sizes.sum()),
                "validation": len(fed.validation),
                "test": len(fed.test),
            },
            "model": str(job.task.module),
            **dataclasses.asdict(job.settings),
            "seeds": job.settings.seed_list,
        }
        kept = tree.map(lambda leaf: leaf.detach().to("cpu", copy=True), state)
        return Result(
            metrics=metrics_frame(self.scores, fed, job.labels),
            messages=_messages(messages),
            log=_log(job, self.logs),
            rejections=_rejections(job, self.rejections),
            parameters=_parameters(job, kept),
            info=info,
            timings={"seconds": float(np.sum(self.seconds)), "seconds_per_round": float(np.mean(self.seconds))},
            notes=[*notes, *_remarks(job, self.logs, self.rejections)],
            final_states={_key(run): _final_state(job, kept, r) for r, run in enumerate(job.runs)},
        )


def _remarks(job: Job, logs: list[RoundLog], rejections: list[tuple[int, Rejection]]) -> list[str]:
    lost = [log for log in logs if not log.applied]
    rejected = sum(log.rejected for log in logs)
    remarks = []
    fed = job.runs[0].federation
    if not len(fed.test) and fed.client_test is None:
        remarks.append("The federation has no test rows, so nothing was measured.")
    if lost:
        remarks.append(
            f"{len(lost)} of {len(logs)} rounds had too few usable replies and left the model as it was "
            f"(first: seed {job.runs[lost[0].run].seed}, round {lost[0].round})."
        )
    if rejected:
        remarks.append(f"{rejected} replies were rejected; `rejections` names the clients, rounds and reasons.")
    return [*remarks, *_absences(rejections), *_ending(job, logs)]


def _absences(rejections: list[tuple[int, Rejection]]) -> list[str]:
    """Which clients did not answer, and when."""
    absent: dict[str, list[tuple[int, str]]] = {}
    for number, each in rejections:
        if not each.answered:
            absent.setdefault(each.client, []).append((number, each.reason))
    return [
        f"{client} did not answer {_times([number for number, _ in when])} "
        f"({'; '.join(dict.fromkeys(reason for _, reason in when))})."
        for client, when in absent.items()
    ]


def _times(numbers: list[int]) -> str:
    later = [number for number in numbers if number]
    parts = ["before round 1"] * (0 in numbers)
    parts += [f"in round{'s' * (len(later) > 1)} {ranges(later)}"] if later else []
    return " and ".join(parts)


def ranges(numbers: Iterable[int]) -> str:
    """3, 5 to 9."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts)


def _ending(job: Job, logs: list[RoundLog]) -> list[str]:
    """Which runs stopped before the last round, and which ended without meeting their constraint."""
    final = {log.run: log for log in logs}
    many = len(job.runs)
    stopped = [log.round for log in final.values() if log.stopped and log.round < job.rounds]
    missed = [run for run, log in final.items() if log.observed.get("feasible") == 0]
    near = [run for run, log in final.items() if log.observed.get("feasible") == 1 and _excess(log) > TOLERANCE]
    remarks = []
    if stopped:
        rounds = f"round {stopped[0]}" if len(set(stopped)) == 1 else f"rounds {min(stopped)} to {max(stopped)}"
        who = "The run" if many == 1 else f"{len(stopped)} of {many} runs"
        remarks.append(f"{who} converged and stopped at {rounds} of {job.rounds}; `log` says when each.")
    decay = " A smaller dual_decay brings it closer." if hasattr(job.method, "dual_decay") else ""
    if missed:
        by = f", by {_excess(final[missed[0]]):.3g} there" if "excess" in final[missed[0]].observed else ""
        advice = decay if all(final[run].stopped for run in missed) else " More rounds may help."
        remarks.append(f"The constraint is not met at the end of {_who(job, missed)}{by}; see `log`.{advice}")
    if near:
        who, beyond = _who(job, near), _excess(final[near[0]])
        remarks.append(
            f"{who[0].upper()}{who[1:]} ended with the constraint met only up to what the decay of its multipliers "
            f"allows, {beyond:.3g} above the bound; `log` has it as `excess`.{decay}"
        )
    return remarks


def _excess(log: RoundLog) -> float:
    """How far beyond its bound the constraint is, where the method says."""
    return log.observed.get("excess", 0.0)


def _who(job: Job, runs: list[int]) -> str:
    if len(job.runs) == 1:
        return "the run"
    where = ", ".join(f"{name} {value:g}" for name, value in job.runs[runs[0]].hyper.items())
    first = f"seed {job.runs[runs[0]].seed}{f', {where}' if where else ''}"
    return f"{len(runs)} of {len(job.runs)} runs (first: {first})"


def _messages(messages: Iterable[Message]) -> pd.DataFrame:
    return pd.DataFrame(
        [{**message._asdict(), "down": ", ".join(message.down), "up": ", ".join(message.up)} for message in messages],
        columns=MESSAGES,
    )


def _log(job: Job, logs: list[RoundLog]) -> pd.DataFrame:
    rows = []
    for log in logs:
        entry = dict(job.labels[log.run])
        entry |= {key: value for key, value in log._asdict().items() if key not in ("run", "observed", "stopped")}
        entry["stopped"] = log.stopped
        rows.append(entry | log.observed)
    return pd.DataFrame(rows)


def _rejections(job: Job, rejections: list[tuple[int, Rejection]]) -> pd.DataFrame:
    rows = []
    for number, rejection in rejections:
        run = job.runs[rejection.run]
        rows.append({**run.hyper, "seed": run.seed, "round": number, **rejection._asdict()})
    return pd.DataFrame(rows, columns=[*job.runs[0].hyper, *REJECTIONS])


def _key(run: Run) -> Any:
    """The seed; (swept values..., seed) after a sweep."""
    return (*run.hyper.values(), run.seed) if run.hyper else run.seed


def _final_state(job: Job, state: State, r: int) -> FinalState:
    fed, seed = job.runs[r].federation, job.runs[r].seed
    server, clients = tree.take(state.server, r), tree.take(state.clients, r)
    return FinalState(job.method_of(r), job.task, server, clients, tuple(fed.ids), seed, fed.scaling, tuple(fed.shape))


def _parameters(job: Job, state: State) -> dict[Any, dict[str, np.ndarray]]:
    """The final model(s) of each run: the server's `theta`, or the clients' own with a leading axis."""
    result: dict[Any, dict[str, np.ndarray]] = {}
    for r, run in enumerate(job.runs):
        server: Any = tree.take(state.server, r)
        own: Any = tree.take(state.clients, r)
        # what wraps a method keeps that one's states under `inner`
        server, own = getattr(server, "inner", server), getattr(own, "inner", own)
        theta = server.theta if hasattr(server, "theta") else getattr(own, "theta", {})
        result[_key(run)] = {name: value.numpy() for name, value in tree.named(theta).items()}
    return result
