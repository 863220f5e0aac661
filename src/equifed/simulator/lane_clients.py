"""The clients' work in all lanes at once.

A phase's work is mapped over the lanes, and within a lane over the sweep settings that share it. Local training is
split: `prepare` and `finish` are mapped like other work, and the stepper carries out the steps between them, which need
only a batch of rows each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from operator import call
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equifed import randomness, tree
from equifed.notes import Note
from equifed.protocol import Data, LocalTraining, Phase, Record, Stage, Start
from equifed.simulator.job import Job
from equifed.simulator.lane_data import WHOLE_BYTES, KeptRows, LaneData, LaneInputs, LaneRows, Lanes, portions
from equifed.simulator.lane_steps import LaneSteps, LaneTraining
from equifed.simulator.stepper import Stepper
from equifed.simulator.tables import Tables
from equifed.training import start_from_theta
from equifed.tree import Tree


class LaneClients:
    """The data and stepper that the clients' part of all exchanges needs."""

    def __init__(self, job: Job, tables: Tables, notes: list[Note]) -> None:
        self.job, self.tables = job, tables
        self.stepper = Stepper(job, tables, notes)
        self.kept = KeptRows()
        groups = job.federation.client_groups
        self._groups = None if groups is None else torch.from_numpy(groups).to(job.device)

    @cached_property
    def _initial(self) -> Tree:
        """Initial parameters of every run, leaves [R, ...]."""
        return tree.map(lambda leaf: leaf.to(self.job.device), tree.stack(self.job.initial))

    def index(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(self.job.device)

    def of_runs(self, values: Tree, runs: np.ndarray) -> Tree:
        """Return each lane's entry of leaves [R, ...]: [L, ...] or [L, V, ...]. A single run's is not copied per
        lane."""
        if len(self.job.runs) == 1:
            return tree.map(lambda leaf: leaf.expand(*runs.shape, *leaf.shape[1:]), values)
        return tree.take(values, self.index(runs))

    def inputs(self, phase: Phase, lanes: Lanes, round: int, runs: np.ndarray) -> LaneInputs:
        job, run, client = self.job, self.index(lanes.run), self.index(lanes.client)
        draws: dict[str, Tensor] = {}
        if phase.draws:
            made = [
                randomness.make_draws(r.seed, round, phase.draws, job.task) for r in job.runs[: lanes.run.max() + 1]
            ]
            draws = {
                name: torch.from_numpy(np.stack([values[name] for values in made])).to(job.device)[run]
                for name in phase.draws
            }
        return LaneInputs(
            hyper={name: values[self.index(runs)] for name, values in job.hyper.items()},
            draws=draws,
            group=() if self._groups is None else self._groups[client],
            scaling=tree.take(self.tables.scaling, run),
            rate=torch.full((len(lanes),), phase.rate(job.task, round), device=job.device),
            client=client,
            initial=self.of_runs(self._initial, lanes.run) if phase.initial else (),
            start=self.index(lanes.start),
            n=self.index(lanes.n),
        )


@dataclass(frozen=True)
class LaneExchange:
    """The clients' part of one phase of one round."""

    clients: LaneClients
    stage: Stage
    position: int
    round: int

    def phase(self, hyper: dict[str, Tensor]) -> Phase:
        return self.clients.job.phases(self.stage, hyper)[self.position]

    @cached_property
    def first(self) -> Phase:
        """The phase of the first run, which has the names and shapes of all runs."""
        return self.clients.job.phases(self.stage)[self.position]

    def work(self, lanes: Lanes, runs: np.ndarray, down: Record, own: Tree) -> tuple[Record, Tree]:
        """Return the replies and new states of all lanes, leaves [L, ...], or [L, V, ...] if the second axis of `runs`
        has the settings that share a lane."""
        inputs = self.clients.inputs(self.first, lanes, self.round, runs)
        settings = runs.shape[1] if runs.ndim == 2 else 1
        if isinstance(self.first.client, LocalTraining):
            return self._train(self.first.client, lanes, inputs, settings, down, own)
        replies: tuple[Record, Tree] = self.map(call, (down, own), inputs, lanes, settings)
        return replies

    def map(
        self, part: Callable[..., Any], values: tuple[Tree, ...], inputs: LaneInputs, lanes: Lanes, settings: int = 1
    ) -> Any:
        """Call part(the phase's work, *values, data) for every lane, in portions of similar size. settings: the number
        of settings that share a lane."""
        job, results = self.clients.job, []
        whole = 0 if part is call else WHOLE_BYTES.get(job.device.type, 0)  # before and after local training
        for lane, width in portions(lanes.n, job.row_bytes(settings), whole):
            some = tree.take(inputs, lane)
            kept = self._kept(lanes, lane, some, width) if part is call else {}

            def one(values: tuple[Tree, ...], inputs: LaneInputs, kept: dict[str, Any], width: int = width) -> Any:
                data = self._data(inputs, kept, width)

                def setting(values: tuple[Tree, ...], hyper: dict[str, Tensor]) -> Any:
                    return part(self.phase(hyper).client, *values, data)

                if settings == 1:
                    return setting(values, inputs.hyper)
                if not tree.leaves((values, inputs.hyper)):  # settings do not differ here
                    alike = setting(values, inputs.hyper)
                    return tree.map(lambda leaf: leaf.expand(settings, *leaf.shape), alike)
                return tree.vmap_over(setting, values, inputs.hyper)

            results.append(tree.vmap_over(one, tree.take(values, lane), some, kept))
        return results[0] if len(results) == 1 else tree.map(lambda *parts: torch.cat(parts), *results)

    def _kept(self, lanes: Lanes, lane: slice, inputs: LaneInputs, width: int) -> dict[str, Tensor]:
        source = LaneRows(self.clients.tables, inputs.start, width, inputs.scaling)
        return self.clients.kept.rows((self.stage, self.position, lane.start), lanes.part(lane), source)

    def _data(self, inputs: LaneInputs, kept: dict[str, Any], width: int) -> Data:
        """Return one lane's data, inside vmap."""
        tables = self.clients.tables
        source = LaneRows(tables, inputs.start, width, inputs.scaling)
        given: dict[str, Any] = {
            "mask": (torch.arange(width, device=tables.x.device) < inputs.n).to(torch.float32),
            "task": self.clients.job.task,
            "draws": inputs.draws,
            "client_group": inputs.client_group,
            "learning_rate": inputs.rate,
            "attribute": source.attribute,
            "client": inputs.client,
            "initial": inputs.initial,
        }
        return Data(**kept, **given) if kept else LaneData(source=source, **given)

    def _train(
        self, work: LocalTraining, lanes: Lanes, inputs: LaneInputs, settings: int, down: Record, own: Tree
    ) -> tuple[Record, Tree]:
        """Train locally, from the values of `down` and the clients' states to their replies and new states."""
        job, longest = self.clients.job, max(int(lanes.n[0]), 1)

        def prepare(work: LocalTraining, down: Record, own: Tree, data: Data) -> Start:
            start = work.prepare(down, own, data)
            return start._replace(per_row={name: _fit(values, longest) for name, values in start.per_row.items()})

        def finish(work: LocalTraining, parameters: Tree, down: Record, own: Tree, context: Tree, data: Data) -> Any:
            return work.finish(parameters, down, own, data, context)

        if work.prepare is start_from_theta:
            begin = Start(down["theta"])
        else:
            begin = self.map(prepare, (down, own), inputs, lanes, settings)
        seeds = np.array([run.seed % 2**64 for run in job.runs], np.uint64)
        clients = job.client_keys(lanes.client)
        which = seeds[lanes.run], self.round, clients, self.first.name
        keys = randomness.batch_keys(*which)
        training = LaneTraining(
            place=(self.stage, self.position),
            name=self.first.name,
            steps=LaneSteps(self.phase, work, job.task, settings > 1),
            context=begin.context,
            inputs=inputs,
            per_row=begin.per_row,
            lanes=lanes,
            keys=torch.from_numpy(keys.view(np.int64)).to(job.device),
            dropout=randomness.dropout_keys(*which) if job.has_dropout else None,
            rate=self.first.rate(job.task, self.round),
            resample=None if work.resample is None else partial(self._resample, lanes, longest),
        )
        parameters, context = self.clients.stepper.train(training, begin.parameters)
        replies: tuple[Record, Tree] = self.map(finish, (parameters, down, own, context), inputs, lanes, settings)
        return replies

    def _resample(self, lanes: Lanes, longest: int, parameters: Tree, context: Tree, epoch: int) -> tuple[Tree, Tensor]:
        """Choose the rows of an epoch by the current models. Settings do not share lanes here."""

        def one(work: LocalTraining, parameters: Tree, context: Tree, uniforms: Tensor, data: Data) -> Any:
            assert work.resample is not None
            context, rows = work.resample(parameters, context, _fit(uniforms, data.mask.shape[0]), data)
            return context, _fit(rows.to(torch.int32), longest)

        job, name = self.clients.job, self.first.name
        uniforms = np.zeros((len(lanes), longest), dtype=np.float32)
        keys = job.client_keys(lanes.client).tolist()
        for line, r, key, n in zip(uniforms, lanes.run, keys, lanes.n, strict=True):
            source = randomness.Batches(job.runs[r].seed, self.round, key, name, int(n), job.task.local)
            line[:n] = source.uniforms(epoch)
        inputs = self.clients.inputs(self.first, lanes, self.round, lanes.run)
        values = (parameters, context, torch.from_numpy(uniforms).to(job.device))
        chosen: tuple[Tree, Tensor] = self.map(one, values, inputs, lanes)
        return chosen


def _fit(values: Tensor, length: int) -> Tensor:
    """Cut or pad values per row to a length that all lanes share."""
    short = length - values.shape[0]
    return torch.cat([values, values.new_zeros(short, *values.shape[1:])]) if short > 0 else values[:length]
