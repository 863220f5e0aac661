"""The reference engine: one client at a time, in plain code. It defines what is correct.

Errors in a method's code are raised with their run, phase and client.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equifed import randomness, tree
from equifed.bounds import NOT_FINITE, is_finite
from equifed.channel import CLIPPED, Gathered
from equifed.errors import EquifedError, RunError
from equifed.notes import Note
from equifed.protocol import Data, LocalTraining, Phase, Record, Stage
from equifed.simulator.engine import (
    ExchangeResult,
    LocalEngine,
    Rejection,
    State,
    check_reply,
    data_of,
    note_too_few,
    record_message,
    sent,
)
from equifed.simulator.job import Job
from equifed.tree import Tree


class Reference(LocalEngine):
    """The engine that computes one client after another."""

    def exchange(
        self, state: State, stage: Stage, position: int, step: int, round: int, cohorts: np.ndarray, present: np.ndarray
    ) -> ExchangeResult:
        asked, present, rejections, servers = present, present.copy(), [], []
        clipped, cuts = np.zeros(len(self.job.runs)), np.full(cohorts.shape, np.nan)
        obstacles: dict[int, Note] = {}
        for r, run in enumerate(self.job.runs):
            phase = self.job.phases(stage, run.hyper)[position]
            server = tree.take(state.server, r)
            validation = tree.take(self.validation, r)
            down = sent(self.job.method, server, validation, phase.down)
            replies: dict[int, Record] = {}
            kept: dict[int, Tree] = {}
            refused: dict[int, str] = {}
            for slot, client in enumerate(cohorts[r]):
                if not present[r, slot]:
                    continue
                own = tree.map(lambda leaf, r=r, client=client: leaf[r, client], state.clients)
                reply, new = self.work(phase, down, own, r, int(client), round)
                check_reply(self.job.method, phase, reply)
                if (stage, position) not in self.messages:
                    self.messages[stage, position] = record_message(self.job, stage, phase, down, reply)
                if is_finite((reply, new)):
                    replies[slot], kept[slot] = reply, new
                else:
                    refused[slot] = NOT_FINITE
            rows = {slot: int(self.tables.count_rows(r, cohorts[r, slot])) for slot in replies}
            refused |= self.bounds(stage, position).find_refused(down, replies, rows, r)
            for slot, wrong in sorted(refused.items()):
                present[r, slot] = False
                rejections.append(Rejection(r, run.federation.ids[cohorts[r, slot]], phase.name, wrong))
            used = [slot for slot in replies if slot not in refused]
            for slot in used:
                for leaf, value in zip(tree.leaves(state.clients), tree.leaves(kept[slot]), strict=True):
                    leaf[r, cohorts[r, slot]] = value
            if used:
                seen = [replies[slot] for slot in used]
                gathered, cuts[r, used], obstacle = gather(
                    self.job, stage, phase, down, seen, cohorts[r][present[r]], r
                )
                if obstacle is not None:
                    obstacles[r] = obstacle
                clipped[r] = 0 if gathered.clipped is None else float(gathered.clipped)
                server = phase.server(server, gathered.replies, data_of(validation, self.job))
            servers.append(server)
        missing, late = self.check_sums(phase, self.job.late(stage, round, step, cohorts), asked, present)
        counted = clipped if CLIPPED in phase.up else None
        cut = cuts if self.job.channel.has_rule(phase) else None
        state = State(tree.stack(servers), state.clients)
        return ExchangeResult(state, present, rejections, obstacles | missing, counted, cut, late)

    def work(self, phase: Phase, down: Record, state: Tree, run: int, client: int, round: int) -> tuple[Record, Tree]:
        """Carry out one client's part of a phase; return its reply and new state."""
        try:
            return phase.client(down, state, self._data(phase, run, client, round))
        except EquifedError:
            raise
        except Exception as error:
            name = self.job.runs[run].federation.ids[client]
            raise RunError(
                f"{self.job.method.name}, seed {self.job.runs[run].seed}, round {round}, phase {phase.name!r}, client "
                f"{name!r} ({self.tables.count_rows(run, client)} rows): {type(error).__name__}: {error}"
            ) from error

    def _data(self, phase: Phase, run: int, client: int, round: int) -> Data:
        job, tables, seed = self.job, self.tables, self.job.runs[run].seed
        who, n = np.array([client]), int(tables.count_rows(run, client))
        begin = int(tables.bring(np.array([run]), who, np.array([n]))[0])
        rows = tables.index[begin : begin + n].long()
        batches: tuple[Tensor, ...] = ()
        uniforms: tuple[Tensor, ...] = ()
        dropout: tuple[Tensor, ...] = ()
        if isinstance(phase.client, LocalTraining):
            local = job.task.local
            source = randomness.Batches(seed, round, int(job.client_keys(who)[0]), phase.name, n, local)
            epochs = range(phase.client.passes(local))
            batches = tuple(torch.from_numpy(rows).to(job.device) for e in epochs for rows in source.of_epoch(e))
            if job.has_dropout:
                dropout = tuple(torch.from_numpy(key).to(job.device) for e in epochs for key in source.dropout(e))
            if phase.client.resample is not None:
                uniforms = tuple(torch.from_numpy(source.uniforms(e)).to(job.device) for e in epochs)
        groups = job.runs[run].federation.client_groups
        return Data(
            tables.features(rows, run),
            tables.y[rows],
            tables.s[rows],
            torch.ones(n, device=job.device),
            job.task,
            draws={
                name: torch.from_numpy(values).to(job.device)
                for name, values in randomness.make_draws(seed, round, phase.draws, job.task).items()
            },
            client_group=None if groups is None else torch.tensor(groups[client], device=job.device),
            batches=batches,
            uniforms=uniforms,
            dropout=dropout,
            learning_rate=phase.rate(job.task, round),
            attribute=None if tables.attribute is None else tables.attribute[rows],
            client=torch.tensor(client, device=job.device),
            initial=tree.map(lambda leaf: leaf.to(job.device), job.initial[run]) if phase.initial else (),
        )


class Seen(NamedTuple):
    """The gathered replies to an exchange of one run, for the server's step."""

    gathered: Gathered
    cut: np.ndarray
    """Share of each update that a robust rule cut [K]; NaN without a rule."""
    obstacle: Note | None
    """Reason why the server's step must not be applied."""


def gather(
    job: Job, stage: Stage, phase: Phase, down: Record, replies: list[Record], clients: np.ndarray, run: int = 0
) -> Seen:
    """Gather the replies of these clients, all present, for the server's step."""
    present, who = torch.ones(len(replies), device=job.device), torch.from_numpy(clients).to(job.device)
    stacked, channel = tree.stack(replies), job.configure(job.runs[run].hyper)[1]
    if not channel.has_rule(phase) or job.runs[run].plain:
        return Seen(channel.gather(phase, stacked, present, who), np.full(len(replies), np.nan), None)
    found = channel.apply_rule(phase, down, stacked, present, job.asked(stage))
    cut = torch.where(found.counted, found.cut, torch.nan).cpu().numpy()
    obstacle = None if bool(found.enough) else note_too_few(channel, job.asked(stage))
    return Seen(channel.gather(phase, found.replies, found.present, who), cut, obstacle)
