"""The fast engine: all clients of all runs as lanes of one vectorised computation.

A lane is one client of one seed. Lanes are sorted by their rows, most first; how they train is the stepper's choice
(`stepper.py`).

The settings of a sweep share a lane: the same seed samples the same clients, batches and random numbers whatever the
hyper-parameters, so its rows are taken once and a second axis holds the models of all settings (leaves [L, V, ...]).
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
    Exchange,
    LocalEngine,
    Rejection,
    State,
    check_reply,
    data_of,
    over_runs,
    record_message,
    sent,
    too_few_for,
)
from equifed.simulator.job import Job
from equifed.simulator.lane_clients import LaneClients, LaneExchange
from equifed.simulator.lane_data import Lanes
from equifed.simulator.tables import AT_ONCE, Tables
from equifed.tree import Tree


class _Answers(NamedTuple):
    """What came back from some of the clients of an exchange."""

    replies: Record
    """[R, K, ...], zeros where there is none."""
    arrived: Tensor
    """1 where there is one [R, K]."""
    present: np.ndarray
    """The same."""
    rejections: list[Rejection]


def _added(first: Gathered, *more: Gathered) -> Gathered:
    """Sums over all clients, from those over some."""
    for second in more:
        clipped = None if first.clipped is None or second.clipped is None else first.clipped + second.clipped
        first = Gathered(tree.add(first.replies, second.replies), clipped)
    return first


class LanesEngine(LocalEngine):
    def __init__(self, job: Job, tables: Tables) -> None:
        super().__init__(job, tables)
        self._clients = LaneClients(job, tables, self.notes)
        # runs are settings x seeds
        self._settings = len({(run.plain, *run.hyper.values()) for run in job.runs})

    def exchange(
        self, state: State, stage: Stage, position: int, step: int, round: int, cohorts: np.ndarray, present: np.ndarray
    ) -> Exchange:
        phase, channel = self.job.phases(stage)[position], self.job.channel
        if not present.any():
            return Exchange(state, present, [])
        asked = present
        summed = phase.gather == "sum" and not channel.is_hidden(phase) and not channel.has_rule(phase)
        parts: list[_Answers] = []
        sums: list[Gathered] = []
        for part in self._parts(stage, cohorts):
            answers = self._answers(state, stage, position, round, cohorts[:, part], asked[:, part])
            if summed:
                found = channel.gather(phase, answers.replies, answers.arrived, self._clients.index(cohorts[:, part]))
                sums = [_added(*sums, found)]
                answers = answers._replace(replies={})
            parts.append(answers)
        present = np.concatenate([part.present for part in parts], axis=1)
        rejections = [rejection for part in parts for rejection in part.rejections]
        cut: np.ndarray | None = None
        obstacles, late = self.unsummed(phase, self.job.late(stage, round, step, cohorts), asked, present)
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
        server = self._server(stage, position, state.server, gathered.replies, np.asarray(present.any(axis=1)))
        counted = None if gathered.clipped is None else gathered.clipped.cpu().numpy()
        return Exchange(State(server, state.clients), present, rejections, obstacles, counted, cut, late)

    def _parts(self, stage: Stage, cohorts: np.ndarray) -> list[slice]:
        """Slots of the cohorts that are worked on at once: mostly all of them. More than `AT_ONCE`, or more than the
        window for rows of files holds, take turns, the same wherever their rows are unless it is for the window."""
        seeds, window = cohorts[: len(cohorts) // self._settings], self.tables.window
        many, most = cohorts.shape[1], max(1, AT_ONCE[stage] // len(seeds))
        if window is None:
            return [slice(begin, min(begin + most, many)) for begin in range(0, many, most)]
        ends = np.cumsum(self.tables.rows_held(np.arange(len(seeds))[:, None], seeds).sum(0))
        parts, begin = [], 0
        while begin < many:
            before = ends[begin - 1] if begin else 0
            end = int(np.searchsorted(ends, before + window.size, side="right"))
            end = min(max(end, begin + 1), begin + most)
            parts.append(slice(begin, end))
            begin = end
        return parts

    def _answers(
        self, state: State, stage: Stage, position: int, round: int, cohorts: np.ndarray, present: np.ndarray
    ) -> _Answers:
        """The replies of these clients; what they keep is kept in `state`."""
        phase = self.job.phases(stage)[position]
        # a client that resamples its rows does so by the model it has, so that settings differ in their batches
        alone = self._settings == 1 or (isinstance(phase.client, LocalTraining) and phase.client.resample is not None)
        settings = 1 if alone else self._settings
        lanes = self._lanes(cohorts, present, settings)
        # the runs of each lane [L, V], or [L] where settings do not share it
        runs = lanes.run[:, None] + len(cohorts) // settings * np.arange(settings)
        runs = runs[:, 0] if alone else runs
        per_lane = (slice(None),) if alone else (slice(None), None)
        slot, client = lanes.slot[per_lane], lanes.client[per_lane]
        run_at, client_at = self._clients.index(runs), self._clients.index(client)
        down = self._down(phase, state.server, lanes, runs)
        own = tree.map(lambda leaf: leaf[run_at, client_at], state.clients)
        try:
            reply, new = LaneExchange(self._clients, stage, position, round).work(lanes, runs, down, own)
        except RuntimeError as error:  # vmap's own words are about vmap
            raise RunError(
                f"{self.job.method.name}, phase {phase.name!r}: {error}\nModels and methods may not draw torch's "
                "random numbers or branch on a tensor's value. engine='reference' goes client by client, to find where."
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

    def _down(self, phase: Phase, server: Tree, lanes: Lanes, runs: np.ndarray) -> Record:
        """What comes down to each lane."""
        down = self._clients.of_runs(sent(self.job.method, server, (), phase.down), runs)
        if VALIDATION in down:  # many rows, which the settings that share a lane share too
            rows = self._clients.of_runs(self.validation, lanes.run)
            extra = (None,) * (runs.ndim - 1)
            down[VALIDATION] = tree.map(lambda leaf: leaf[:, *extra].expand(*runs.shape, *leaf.shape[1:]), rows)
        return down

    def _lanes(self, cohorts: np.ndarray, present: np.ndarray, settings: int) -> Lanes:
        """A lane for everyone in the cohorts. Absent clients have one too, without rows, which does nothing: so widths,
        and with them the prepared steps, stay the same whoever drops out. (One whose reply was refused in some settings
        only goes on there too; its replies are not used.)"""
        seeds = len(cohorts) // settings
        somewhere = np.asarray(present.reshape(settings, seeds, -1).any(0))
        run, slot = (index.reshape(-1) for index in np.indices((seeds, cohorts.shape[1])))
        client = cohorts[run, slot]
        n = np.where(somewhere[run, slot], self.tables.rows_held(run, client), 0)
        order = np.argsort(-n, kind="stable")
        run, slot, client, n = run[order], slot[order], client[order], n[order]
        return Lanes(run, slot, client, n, self.tables.bring(run, client, n))

    def _stack(
        self, reply: Record, use: Tensor, at: tuple[Tensor, ...], cohorts: np.ndarray, present: np.ndarray
    ) -> tuple[Record, Tensor]:
        """Replies per run, in the order of the clients' names, absent ones zero, and who is present. at: the run and
        the slot of each."""

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
        """What the robust rule leaves of the replies [R, K, ...] and of who is present, how much it cut [R, K], and
        runs in which it had too few replies. Runs with the plain mean keep what they have."""
        asked, runs = self.job.asked(stage), self.job.runs

        def one(down: Record, replies: Record, present: Tensor, hyper: dict[str, Tensor]) -> RobustReplies:
            return self.job.configured(hyper)[1].apply_rule(phase, down, replies, present, asked)

        down = sent(self.job.method, state.server, (), phase.down)
        found = over_runs(one, (down, replies, present, self.job.hyper), len(runs))
        plain = torch.tensor([run.plain for run in runs], device=self.job.device)
        cut = torch.where(found.counted & ~plain[:, None], found.cut, torch.nan).cpu().numpy()
        enough = (found.enough | plain | ~present.any(1)).tolist()  # without any reply another reason is given
        obstacles = {
            r: too_few_for(self.job.configured(run.hyper)[1], asked) for r, run in enumerate(runs) if not enough[r]
        }
        return *tree.where(plain, (replies, present), (found.replies, found.present)), cut, obstacles

    def _server(self, stage: Stage, position: int, server: Tree, replies: Record, answered: np.ndarray) -> Tree:
        """Every run's server step; a run that nobody answered keeps its state."""

        def one(server: Tree, replies: Record, hyper: dict[str, Tensor], validation: Tree) -> Tree:
            return self.job.phases(stage, hyper)[position].server(server, replies, data_of(validation, self.job))

        values = (server, replies, self.job.hyper, self.validation)
        if self.job.method.sweepable:
            new = over_runs(one, values, len(self.job.runs))
        else:
            new = tree.stack([one(*tree.take(values, run)) for run in range(len(self.job.runs))])
        if answered.all():
            return new
        return tree.where(torch.from_numpy(answered).to(self.job.device), new, server)
