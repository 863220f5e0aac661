"""The fast engine: all clients of all runs as lanes of one vectorised computation.

A lane is one client of one seed. Lanes are sorted by their rows, most first; the stepper chooses how they train
(`stepper.py`).

The settings of a sweep share a lane: the same seed samples the same clients, batches and random numbers for all
hyperparameters, so rows are taken once and a second axis holds the models of all settings (leaves [L, V, ...]).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equifed import tree
from equifed.bounds import Replies
from equifed.channel import Gathered, RobustReplies
from equifed.errors import RunError
from equifed.notes import Note
from equifed.protocol import VALIDATION, LocalTraining, Phase, Record, Stage
from equifed.simulator.engine import (
    ExchangeResult,
    LocalEngine,
    Rejection,
    State,
    check_reply,
    data_of,
    map_over_runs,
    note_too_few,
    record_message,
    sent,
)
from equifed.simulator.job import Job
from equifed.simulator.lane_clients import LaneClients, LaneExchange
from equifed.simulator.lane_data import Lanes
from equifed.simulator.tables import AT_ONCE, Tables
from equifed.tree import Tree


class _Answers(NamedTuple):
    """The replies of some of an exchange's clients."""

    replies: Record
    """Replies [R, K, ...], zeros if missing."""
    arrived: Tensor
    """1 for clients with a reply [R, K]."""
    present: np.ndarray
    """The same as an array of bool."""
    rejections: list[Rejection]


def _add_sums(first: Gathered, *more: Gathered) -> Gathered:
    """Add sums over parts of the clients to sums over all."""
    for second in more:
        clipped = None if first.clipped is None or second.clipped is None else first.clipped + second.clipped
        first = Gathered(tree.add(first.replies, second.replies), clipped)
    return first


class LanesEngine(LocalEngine):
    """The engine that computes all clients of all runs at once."""

    def __init__(self, job: Job, tables: Tables) -> None:
        super().__init__(job, tables)
        self._clients = LaneClients(job, tables, self.notes)
        # runs are settings x seeds
        self._settings = len({(run.plain, *run.hyper.values()) for run in job.runs})

    def exchange(
        self, state: State, stage: Stage, position: int, step: int, round: int, cohorts: np.ndarray, present: np.ndarray
    ) -> ExchangeResult:
        phase, channel = self.job.phases(stage)[position], self.job.channel
        if not present.any():
            return ExchangeResult(state, present, [])
        asked = present
        summed = phase.gather == "sum" and not channel.is_hidden(phase) and not channel.has_rule(phase)
        parts: list[_Answers] = []
        sums: list[Gathered] = []
        for part in self._split_cohorts(stage, cohorts):
            answers = self._collect_answers(state, stage, position, round, cohorts[:, part], asked[:, part])
            if summed:
                found = channel.gather(phase, answers.replies, answers.arrived, self._clients.index(cohorts[:, part]))
                sums = [_add_sums(*sums, found)]
                answers = answers._replace(replies={})
            parts.append(answers)
        present = np.concatenate([part.present for part in parts], axis=1)
        rejections = [rejection for part in parts for rejection in part.rejections]
        cut: np.ndarray | None = None
        obstacles, late = self.check_sums(phase, self.job.late(stage, round, step, cohorts), asked, present)
        if summed:
            gathered = sums[0]
        else:
            stacked, arrived = parts[0].replies, parts[0].arrived
            if len(parts) > 1:
                together = [(part.replies, part.arrived) for part in parts]
                stacked, arrived = tree.map(lambda *leaves: torch.cat(leaves, 1), *together)
            if channel.has_rule(phase):
                stacked, arrived, cut, obstacles = self._resist(state, stage, phase, stacked, arrived)
            gathered = channel.gather(phase, stacked, arrived, self._clients.index(cohorts))
        server = self._step_servers(stage, position, state.server, gathered.replies, np.asarray(present.any(axis=1)))
        counted = None if gathered.clipped is None else gathered.clipped.cpu().numpy()
        return ExchangeResult(State(server, state.clients), present, rejections, obstacles, counted, cut, late)

    def _split_cohorts(self, stage: Stage, cohorts: np.ndarray) -> list[slice]:
        """Return slices of the cohorts' slots that are computed at once, usually one. Several are needed for more than
        `AT_ONCE` clients, or more rows than fit the window for rows in files."""
        seeds, window = cohorts[: len(cohorts) // self._settings], self.tables.window
        many, most = cohorts.shape[1], max(1, AT_ONCE[stage] // len(seeds))
        if window is None:
            return [slice(begin, min(begin + most, many)) for begin in range(0, many, most)]
        ends = np.cumsum(self.tables.count_rows(np.arange(len(seeds))[:, None], seeds).sum(0))
        parts, begin = [], 0
        while begin < many:
            before = ends[begin - 1] if begin else 0
            end = int(np.searchsorted(ends, before + window.size, side="right"))
            end = min(max(end, begin + 1), begin + most)
            parts.append(slice(begin, end))
            begin = end
        return parts

    def _collect_answers(
        self, state: State, stage: Stage, position: int, round: int, cohorts: np.ndarray, present: np.ndarray
    ) -> _Answers:
        """Return the replies of these clients, and update their states in `state`."""
        phase = self.job.phases(stage)[position]
        # a client resamples its rows by its model, so settings differ in their batches and cannot share lanes
        alone = self._settings == 1 or (isinstance(phase.client, LocalTraining) and phase.client.resample is not None)
        settings = 1 if alone else self._settings
        lanes = self._make_lanes(cohorts, present, settings)
        # the runs of each lane [L, V], or [L] where settings do not share it
        runs = lanes.run[:, None] + len(cohorts) // settings * np.arange(settings)
        runs = runs[:, 0] if alone else runs
        per_lane = (slice(None),) if alone else (slice(None), None)
        slot, client = lanes.slot[per_lane], lanes.client[per_lane]
        run_at, client_at = self._clients.index(runs), self._clients.index(client)
        down = self._send_down(phase, state.server, lanes, runs)
        own = tree.map(lambda leaf: leaf[run_at, client_at], state.clients)
        try:
            reply, new = LaneExchange(self._clients, stage, position, round).work(lanes, runs, down, own)
        except RuntimeError as error:  # vmap's messages do not name the method
            raise RunError(
                f"{self.job.method.name}, phase {phase.name!r}: {error}\nModels and methods may not draw torch's "
                "random numbers or branch on a tensor's value. Use engine='reference', which names the client."
            ) from error
        check_reply(self.job.method, phase, reply)
        if (stage, position) not in self.messages:
            self.messages[stage, position] = record_message(self.job, stage, phase, down, reply, runs.ndim)

        rows = lanes.n[per_lane]
        if not alone:
            slot, rows = np.broadcast_to(slot, runs.shape), np.broadcast_to(rows, runs.shape)
        cohort = Replies(down, reply, new, runs, slot, rows)
        refused = self.bounds(stage, position).find_refused_in_runs(cohort, np.asarray(present[runs, slot]))
        present, rejections = present.copy(), []
        for place, wrong in refused.items():
            run, lane = int(runs[place]), int(place[0])
            name = self.job.runs[run].federation.ids[lanes.client[lane]]
            rejections.append(Rejection(run, name, phase.name, wrong))
            present[run, lanes.slot[lane]] = False
        use = torch.from_numpy(np.asarray(present[runs, slot])).to(self.job.device)
        for leaf, value in zip(tree.leaves(state.clients), tree.leaves(new), strict=True):
            leaf[run_at, client_at] = tree.where(use, value, leaf[run_at, client_at])
        stacked, arrived = self._stack(reply, use, (run_at, self._clients.index(slot)), cohorts, present)
        return _Answers(stacked, arrived, present, rejections)

    def _send_down(self, phase: Phase, server: Tree, lanes: Lanes, runs: np.ndarray) -> Record:
        """Return the fields sent to each lane."""
        down = self._clients.of_runs(sent(self.job.method, server, (), phase.down), runs)
        if VALIDATION in down:  # many rows, so settings that share a lane share them, too
            rows = self._clients.of_runs(self.validation, lanes.run)
            extra = (None,) * (runs.ndim - 1)
            down[VALIDATION] = tree.map(lambda leaf: leaf[:, *extra].expand(*runs.shape, *leaf.shape[1:]), rows)
        return down

    def _make_lanes(self, cohorts: np.ndarray, present: np.ndarray, settings: int) -> Lanes:
        """Make a lane for every client of the cohorts. An absent client's lane has no rows and does nothing, so that
        widths and prepared steps do not depend on dropout. (A client refused in some settings only is still computed in
        all; its refused replies are not used.)"""
        seeds = len(cohorts) // settings
        somewhere = np.asarray(present.reshape(settings, seeds, -1).any(0))
        run, slot = (index.reshape(-1) for index in np.indices((seeds, cohorts.shape[1])))
        client = cohorts[run, slot]
        n = np.where(somewhere[run, slot], self.tables.count_rows(run, client), 0)
        order = np.argsort(-n, kind="stable")
        run, slot, client, n = run[order], slot[order], client[order], n[order]
        return Lanes(run, slot, client, n, self.tables.bring(run, client, n))

    def _stack(
        self, reply: Record, use: Tensor, at: tuple[Tensor, ...], cohorts: np.ndarray, present: np.ndarray
    ) -> tuple[Record, Tensor]:
        """Return the replies per run, in the order of the clients' names and zero if absent, and who is present. at:
        run and slot of each reply."""

        everyone = bool(use.all())

        def spread(leaf: Tensor) -> Tensor:
            out = leaf.new_zeros(*cohorts.shape, *leaf.shape[use.dim() :])
            out[at] = leaf if everyone else tree.where(use, leaf, torch.zeros_like(leaf))
            return out

        stacked: Record = tree.map(spread, reply)
        return stacked, torch.from_numpy(present.astype(np.float32)).to(self.job.device)

    def _resist(
        self, state: State, stage: Stage, phase: Phase, replies: Record, present: Tensor
    ) -> tuple[Record, Tensor, np.ndarray, dict[int, Note]]:
        """Apply the robust rule; return its replies [R, K, ...] and presence, the shares it cut [R, K], and notes for
        runs with too few replies. Runs with the plain mean are unchanged."""
        asked, runs = self.job.asked(stage), self.job.runs

        def one(down: Record, replies: Record, present: Tensor, hyper: dict[str, Tensor]) -> RobustReplies:
            return self.job.configure(hyper)[1].apply_rule(phase, down, replies, present, asked)

        down = sent(self.job.method, state.server, (), phase.down)
        found = map_over_runs(one, (down, replies, present, self.job.hyper), len(runs))
        plain = torch.tensor([run.plain for run in runs], device=self.job.device)
        cut = torch.where(found.counted & ~plain[:, None], found.cut, torch.nan).cpu().numpy()
        enough = (found.enough | plain | ~present.any(1)).tolist()  # without any reply, another note gives the reason
        obstacles = {
            r: note_too_few(self.job.configure(run.hyper)[1], asked) for r, run in enumerate(runs) if not enough[r]
        }
        return *tree.where(plain, (replies, present), (found.replies, found.present)), cut, obstacles

    def _step_servers(self, stage: Stage, position: int, server: Tree, replies: Record, answered: np.ndarray) -> Tree:
        """Apply every run's server step; a run without replies keeps its state."""

        def one(server: Tree, replies: Record, hyper: dict[str, Tensor], validation: Tree) -> Tree:
            return self.job.phases(stage, hyper)[position].server(server, replies, data_of(validation, self.job))

        values = (server, replies, self.job.hyper, self.validation)
        if self.job.method.sweepable:
            new = map_over_runs(one, values, len(self.job.runs))
        else:
            new = tree.stack([one(*tree.take(values, run)) for run in range(len(self.job.runs))])
        if answered.all():
            return new
        return tree.where(torch.from_numpy(answered).to(self.job.device), new, server)
