"""Gathers what the rounds of a run leave behind, and makes a result of it, whatever the engine."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from equifed import tree
from equifed.metrics.frame import metrics_frame
from equifed.metrics.scored import Scored
from equifed.modules import frozen_values
from equifed.notes import Note
from equifed.protocol import CONSTRAINT_TOLERANCE, STAGES, VALIDATION, LocalTraining
from equifed.results.counts import SPLITS, calibration_frame, counts_frame, local_gaps_frame, shared_rows
from equifed.results.predict import FinalState
from equifed.results.result import Result
from equifed.results.stored import LISTED
from equifed.secure import FEWEST
from equifed.simulator.engine import SECURE_SUM, unmask_message

if TYPE_CHECKING:
    import pandas as pd

    from equifed.federation import Federation
    from equifed.simulator import Job, Message, Rejection, RoundLog, State, Step

CUT_MOST = 3
"""Clients that a note names, of whose updates a robust rule cut most."""
FEW_ROWS = 20
"""Training rows of a group below which what is fitted on them is mostly noise."""
MESSAGES = ["stage", "phase", "down", "up", "gather", "bytes_down", "bytes_up", "sizes_down", "sizes_up", "times"]
CUTS = ["client", "updates", "cut", "everyone"]
TOO_FEW = ("too-few-replies", "too-few-masked", "too-few-unmasked")
"""Obstacles that are the same whatever the number of clients."""
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

    def result(self, state: State, messages: Iterable[Message], notes: Sequence[Note]) -> Result:
        job, wanted = self.job, len(self.job.wanted)
        fed = job.federation
        scores = [scored for scored in self.scores if scored[1] < wanted]
        logs = [log for log in self.logs if log.run < wanted]
        cuts = cuts_frame(job, logs)
        rejections = [rejection for rejection in self.rejections if rejection[1].run < wanted]
        given = list({run.seed: run.given for run in job.runs}.values())
        info = {
            "method": job.method.name,
            "hyper_parameters": job.method.hyper,
            "swept": list(job.hyper),
            "data": fed.name,
            "provenance": dict(fed.provenance),
            "task": fed.task,
            "classes": list(fed.classes),
            "positive": fed.classes[1] if fed.label_kind == "binary" else None,
            "meaning": fed.schema.meaning if fed.schema else "",
            "groups": list(fed.groups),
            "clients": list(fed.ids) if fed.num_clients <= LISTED else [],
            "num_clients": fed.num_clients,
            "cells": job.runs[0].given.cells().tolist() if fed.num_clients <= 1000 else None,
            "rows": {"train": int(fed.train.sizes.sum()), "validation": len(fed.validation), "test": len(fed.test)},
            "unknown_groups": fed.unknown_groups,
            "shared_rows": {split: shared_rows(given, split) for split in SPLITS},
            "model": str(job.task.module),
            "metrics": [metric.facts for metric in job.outside_metrics],
        }
        if fed.unknown_groups["train"] and info["cells"] is not None:
            info["unknown_cells"] = job.runs[0].given.unknown_cells().tolist()
        states = _final_states(job, tree.map(lambda leaf: leaf.detach().to("cpu", copy=True), state))
        return Result(
            metrics=metrics_frame(scores, fed, job.labels, job.outside_metrics),
            counts=counts_frame(job, scores),
            calibration=calibration_frame(job, scores),
            local_gaps=local_gaps_frame(job, scores),
            cuts=cuts,
            plain_mean=_plain_mean(job, self.scores),
            messages=_messages(job, messages),
            log=log_frame(job, logs),
            rejections=_rejections(job, rejections),
            parameters={key: final.parameters for key, final in states.items()},
            info=info,
            settings=dataclasses.replace(job.settings, metrics=job.settings.to_dict()["metrics"]),  # by name
            timings={"seconds": float(np.sum(self.seconds)), "seconds_per_round": float(np.mean(self.seconds))},
            notes=[*_notes(job, logs, rejections), *_resistance(job, cuts), *notes],
            final_states=states,
            schema=fed.schema,
        )


def _notes(job: Job, logs: list[RoundLog], rejections: list[tuple[int, Rejection]]) -> list[Note]:
    """What a reader should know about the rounds of all runs."""
    phases = [phase for stage in STAGES for phase in job.phases(stage)]
    undropped = job.has_dropout and not any(isinstance(phase.client, LocalTraining) for phase in phases)
    unmeasured = not len(job.federation.test) and job.federation.client_test is None
    rejected = sum(log.rejected for log in logs)
    return [
        *([Note("no-test-rows")] if unmeasured else []),
        *_table(job.federation),
        *_groups(job.federation),
        *([Note("nothing-dropped", {"method": job.method.name})] if undropped else []),
        *_not_applied(job, logs),
        *([Note("replies-rejected", {"count": rejected})] if rejected else []),
        *_clipping(job, logs),
        *_shown(job, logs),
        *_absences(rejections),
        *_few_fitted(job),
        *_endings(job, logs),
    ]


def _table(fed: Federation) -> list[Note]:
    """What became of a table's rows and columns."""
    notes = []
    if fed.schema is not None and fed.schema.left_out:
        notes.append(Note("columns-left-out", {"columns": {each.column: each.reason for each in fed.schema.left_out}}))
    if dropped := fed.provenance.get("dropped_rows"):
        notes.append(Note("rows-dropped", {"rows": dropped}))
    return notes


def _groups(fed: Federation) -> list[Note]:
    """What a reader should know about who is in a group."""
    notes = []
    if fed.schema is not None and fed.schema.merged is not None:
        rows = dict(fed.provenance.get("merged_groups", {}))
        facts = {"group": fed.schema.merged, "min_group": fed.schema.min_group, "rows": rows}
        notes.append(Note("groups-merged", facts))
    if unknown := {part: rows for part, rows in fed.unknown_groups.items() if rows}:
        notes.append(Note("unknown-groups", {"rows": unknown, "of": {part: fed.row_counts[part] for part in unknown}}))
    return notes


def _few_fitted(job: Job) -> list[Note]:
    """Groups, and where every client has a gap of its own, groups of clients, that decisions are fitted on few rows
    of: of each group the fewest."""
    where = job.method.keeps_gap
    if not where:
        return []
    given = job.runs[0].given
    rows = given.total_cells()[None, :-1].sum(2) if where == "global" else given.cells().sum(2)
    few = (rows > 0) & (rows < FEW_ROWS)
    if not few.any():
        return []
    fewest = np.where(few, rows, FEW_ROWS).min(0)
    groups = {name: int(least) for name, least in zip(job.federation.groups, fewest, strict=True) if least < FEW_ROWS}
    clients = 0 if where == "global" else int(few.any(1).sum())
    facts = {"method": job.method.name, "few": FEW_ROWS, "groups": groups, "clients": clients}
    return [Note("few-fitted", facts)]


def _clipping(job: Job, logs: list[RoundLog]) -> list[Note]:
    """To which norm updates were clipped, and how often that was needed."""
    shares: dict[float, list[float]] = {}
    for log in logs:
        if "clipped" in log.observed:
            clip = job.runs[log.run].hyper.get("clip", job.settings.clip)
            shares.setdefault(float(clip or 0), []).append(log.observed["clipped"])
    if not shares:
        return []
    fields = {phase.name: list(phase.updates) for phase in job.phases("round") if phase.updates}
    clipped = [{"norm": norm, "share": float(np.mean(share))} for norm, share in shares.items()]
    return [Note("clipped", {"fields": fields, "norms": clipped})]


def _resistance(job: Job, cuts: pd.DataFrame) -> list[Note]:
    """By which rule updates were gathered, and of whom it cut most, against the other clients of the same rounds."""
    if job.settings.robust is None:
        return []
    means = cuts.groupby("client", sort=False)[["cut", "everyone"]].mean()
    most = means[means["cut"] > means["everyone"]].assign(more=lambda each: each["cut"] - each["everyone"])
    most = most.sort_values("more", ascending=False).head(CUT_MOST)
    cut = {str(client): [float(share), float(everyone)] for client, share, everyone, _ in most.itertuples()}
    facts = {"rule": job.settings.robust, "liars": job.settings.liars, "cut": cut}
    return [Note("robust", facts | {"simulated": len(job.wanted) < len(job.runs)})]


def _shown(job: Job, logs: list[RoundLog]) -> list[Note]:
    """What secure sums did not hide: the server's rows from the clients, and replies that were nearly all of a sum."""
    if not job.settings.secure:
        return []
    notes = []
    if any(VALIDATION in phase.down for phase in job.phases("round")):
        notes.append(Note("validation-shown", {"rows": len(job.federation.validation)}))
    few = [log.observed["fewest_clients"] for log in logs if log.applied and "fewest_clients" in log.observed]
    few = [clients for clients in few if 0 < clients < FEWEST]
    if few:
        facts = {"method": job.method.name, "rounds": len(few), "of": len(logs), "one": few.count(1)}
        notes.append(Note("sum-of-few", facts))
    return notes


def _not_applied(job: Job, logs: list[RoundLog]) -> list[Note]:
    """Rounds that had no effect, by what stood in their way: of those with too few clients, in the words of the
    first."""
    obstacles: dict[str, tuple[Note, list[RoundLog]]] = {}
    for log in logs:
        if log.obstacle is not None:
            same = log.obstacle.kind if log.obstacle.kind in TOO_FEW else json.dumps(log.obstacle.to_json())
            obstacles.setdefault(same, (log.obstacle, []))[1].append(log)
    return [
        Note(
            "rounds-not-applied",
            {
                "obstacle": obstacle.to_json(),
                "count": len(lost),
                "of": len(logs),
                "rounds": sorted({log.round for log in lost}),
                "seed": job.runs[lost[0].run].seed,
            },
        )
        for obstacle, lost in obstacles.values()
    ]


def _absences(rejections: list[tuple[int, Rejection]]) -> list[Note]:
    """Which clients did not answer, and when."""
    absent: dict[str, list[tuple[int, str]]] = {}
    for number, rejection in rejections:
        if not rejection.answered:
            absent.setdefault(rejection.client, []).append((number, rejection.reason))
    return [
        Note(
            "did-not-answer",
            {
                "client": client,
                "rounds": sorted({number for number, _ in missed}),
                "reasons": list(dict.fromkeys(reason for _, reason in missed)),
            },
        )
        for client, missed in absent.items()
    ]


def _endings(job: Job, logs: list[RoundLog]) -> list[Note]:
    """Which runs stopped before the last round, and which ended without meeting their constraint."""
    final = {log.run: log for log in logs}
    stopped = [log.round for log in final.values() if log.stopped and log.round < job.rounds]
    missed = [run for run, log in final.items() if log.observed.get("feasible") == 0]
    near = [
        run
        for run, log in final.items()
        if log.observed.get("feasible") == 1 and log.observed.get("excess", 0.0) > CONSTRAINT_TOLERANCE
    ]
    notes = []
    if stopped:
        at = {"first": min(stopped), "last": max(stopped), "rounds": job.rounds}
        notes.append(Note("stopped-early", {"runs": len(stopped), "of": len(job.wanted), **at}))
    if missed:
        remedy = job.method.remedy(converged=all(final[run].stopped for run in missed))
        notes.append(Note("constraint-missed", _first(job, final, missed) | {"remedy": remedy}))
    if near:
        remedy = job.method.remedy(converged=True)
        notes.append(Note("constraint-nearly-met", _first(job, final, near) | {"remedy": remedy}))
    return notes


def _first(job: Job, final: dict[int, RoundLog], runs: list[int]) -> dict[str, Any]:
    """How many runs these are, and the first of them."""
    first, excess = job.runs[runs[0]], final[runs[0]].observed.get("excess")
    return {"runs": len(runs), "of": len(job.wanted), "seed": first.seed, "hyper": dict(first.hyper), "excess": excess}


def cuts_frame(job: Job, logs: list[RoundLog]) -> pd.DataFrame:
    """How often, and how much of it, each client's update was cut by a robust rule: see `Result.cuts`."""
    import pandas as pd

    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for log in logs:
        everyone = float(np.mean([*log.cut.values()])) if log.cut else np.nan
        for client, share in log.cut.items():
            found.setdefault((log.run, client), []).append((share, everyone))
    labels, wanted = job.labels, {client for _, client in found}
    place = {client: k for k, client in enumerate(job.federation.ids) if client in wanted} if wanted else {}
    rows = [
        {
            **labels[run],
            "client": client,
            "updates": len(found[run, client]),
            **dict(zip(("cut", "everyone"), np.mean(found[run, client], axis=0).tolist(), strict=True)),
        }
        for run, client in sorted(found, key=lambda key: (key[0], place[key[1]]))
    ]
    return pd.DataFrame(rows, columns=[*labels[0], *CUTS])


def _plain_mean(job: Job, scores: Sequence[tuple[int, int, dict[str, Scored]]]) -> pd.DataFrame:
    """What the runs with the plain mean came to: see `Result.plain_mean`."""
    import pandas as pd

    last = max((number for number, _, _ in scores), default=0)
    own = [scored for scored in scores if scored[0] == last and job.runs[scored[1]].plain]
    frame = metrics_frame(own, job.federation, job.labels, job.outside_metrics)
    return frame if own else pd.DataFrame(columns=frame.columns)  # names without any cannot be read back the same


def _messages(job: Job, messages: Iterable[Message]) -> pd.DataFrame:
    """A line for each, and after a secure sum one for what takes its masks off."""
    import pandas as pd

    lines = [
        line
        for message in messages
        for line in (message, *([unmask_message(job, message)] if message.gather == SECURE_SUM else []))
    ]
    return pd.DataFrame(
        [{**line._asdict(), "down": ", ".join(line.down), "up": ", ".join(line.up)} for line in lines],
        columns=MESSAGES,
    )


def log_frame(job: Job, logs: Sequence[RoundLog]) -> pd.DataFrame:
    """See `Result.log`."""
    import pandas as pd

    columns = ("round", "sampled", "replied", "dropped", "rejected", "applied", "stopped")
    labels = job.labels
    return pd.DataFrame(
        [labels[log.run] | {name: getattr(log, name) for name in columns} | log.observed for log in logs]
    )


def _rejections(job: Job, rejections: list[tuple[int, Rejection]]) -> pd.DataFrame:
    import pandas as pd

    labels = job.labels
    rows = [{**labels[each.run], "round": number, **each._asdict()} for number, each in rejections]
    return pd.DataFrame(rows, columns=[*job.hyper, *REJECTIONS])


def _final_states(job: Job, state: State) -> dict[Any, FinalState]:
    """What each run ended with, by its seed; by (swept values..., seed) after a sweep."""
    states, task = {}, job.task
    if job.device.type != "cpu" and frozen_values(task.module):  # what is predicted later is predicted on the CPU
        task = dataclasses.replace(task, module=copy.deepcopy(task.module).cpu())
    for r, run in enumerate(job.wanted):
        fed, server, clients = run.federation, tree.take(state.server, r), tree.take(state.clients, r)
        states[(*run.hyper.values(), run.seed) if run.hyper else run.seed] = FinalState(
            job.method_of(r), task, server, clients, fed.ids, run.seed, fed.scaling, tuple(fed.shape), job.model
        )
    return states
