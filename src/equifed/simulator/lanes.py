"""The fast engine: all clients of all runs as lanes of one vectorised computation.

A lane is one client of one seed. Local training steps through all lanes together: a step takes every lane's next batch
from the shared rows with one `index_select`, and moves all models with one `vmap`. Lanes are sorted by their number of
steps, so those that have finished fall off the end. The step is traced once per width to plain tensor operations,
without vmap's and autograd's Python, and compiled when the run is long enough to pay for it.

The settings of a sweep share a lane: the same seed samples the same clients, batches and random numbers whatever the
hyper-parameters, so its rows are taken once and a second axis holds the models of all settings (leaves [L, V, ...]).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from equifed import randomness, tree
from equifed.channel import Gathered
from equifed.errors import RunError
from equifed.notes import Note
from equifed.protocol import ClientWork, Data, LocalTraining, Phase, Record, Stage, Start
from equifed.simulator.engine import (
    Exchange,
    Message,
    Rejection,
    State,
    check_reply,
    data_of,
    initial_state,
    record_message,
    validation_data,
)
from equifed.simulator.job import Job
from equifed.simulator.stepper import Stepper, Training, portions
from equifed.simulator.tables import Tables
from equifed.training import optimizer_start, optimizer_step
from equifed.tree import Tree


@dataclass(frozen=True)
class Lanes:
    """Which client of which run each lane is; sorted by rows, most first."""

    run: np.ndarray
    """The lane's run, or the first of its runs where settings share it."""
    slot: np.ndarray
    client: np.ndarray
    n: np.ndarray
    start: np.ndarray

    def __len__(self) -> int:
        return len(self.run)

    def part(self, lanes: slice) -> Lanes:
        return Lanes(*(values[lanes] for values in (self.run, self.slot, self.client, self.n, self.start)))


class _LaneData(Data):
    """One lane's rows, gathered only if the method looks at them; built inside vmap."""

    def __init__(self, tables: Tables, start: Tensor, n: Tensor, width: int, scaling: Tree, **rest: Any) -> None:
        positions = torch.arange(width, device=tables.x.device)
        own = (positions < n).to(torch.float32)
        for name, value in {
            "mask": own, "per_row": {}, "batches": (),
            "_tables": tables, "_scaling": scaling,
            "_positions": (start + positions).clamp_max(len(tables.index) - 1), **rest,
        }.items():  # fmt: skip
            object.__setattr__(self, name, value)

    @cached_property
    def _rows(self) -> Tensor:
        rows: Tensor = self._tables.index[self._positions].long()  # type: ignore[attr-defined]
        return rows

    @cached_property
    def x(self) -> Tensor:
        x = self._tables.x[self._rows]  # type: ignore[attr-defined]
        return (x - self._scaling[0]) * self._scaling[1] if self._scaling else x  # type: ignore[attr-defined]

    @cached_property
    def y(self) -> Tensor:
        return self._tables.y[self._rows]  # type: ignore[attr-defined]

    @cached_property
    def s(self) -> Tensor:
        return self._tables.s[self._rows]  # type: ignore[attr-defined]

    @cached_property
    def attribute(self) -> Tensor | None:
        stored = self._tables.attribute  # type: ignore[attr-defined]
        return None if stored is None else stored[self._rows]


TAKEN_BYTES = 2**30
"""Rows that are kept at hand between rounds, because the same clients look at them again and again."""


class _Taken:
    """The gathered rows of lanes that come again unchanged: full-gradient methods go over all rows every round.

    Only what is asked for twice in a row is kept, so that sampled clients cost nothing.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._asked: dict[Any, bytes] = {}
        self._kept: dict[Any, dict[str, Tensor]] = {}

    def rows(self, place: Any, lanes: Lanes, width: int) -> dict[str, Tensor]:
        """x, y and s of these lanes [L, width, ...]; empty the first time they are asked for at this place."""
        tables = self._tables
        key = b"".join(values.tobytes() for values in (lanes.run, lanes.client, lanes.n))
        if self._asked.get(place) != key:
            self._asked[place] = key
            self._kept.pop(place, None)
            return {}
        if place not in self._kept:
            size = len(lanes) * width * tables.x[0].numel() * 4
            if size + sum(tree.num_bytes(kept) for kept in self._kept.values()) > TAKEN_BYTES:
                return {}
            positions = torch.from_numpy(lanes.start[:, None] + np.arange(width)).clamp_max(len(tables.index) - 1)
            rows = tables.index[positions.to(tables.index.device)].long()
            x = tables.x[rows]
            if tables.shift is not None and tables.factor is not None:
                run = torch.from_numpy(lanes.run).to(x.device)
                shift, factor = (values[run].unsqueeze(1) for values in (tables.shift, tables.factor))
                x = (x - shift) * factor
            self._kept[place] = {"x": x, "y": tables.y[rows], "s": tables.s[rows]}
        return self._kept[place]


class LanesEngine:
    def __init__(self, job: Job, tables: Tables) -> None:
        self.job, self.tables = job, tables
        self.messages: dict[tuple[str, int], Message] = {}
        self.notes: list[Note] = []
        names = list(job.runs[0].hyper)
        self._hyper = {name: torch.tensor([run.hyper[name] for run in job.runs], device=job.device) for name in names}
        # runs are settings x seeds
        self._settings = len({tuple(run.hyper.values()) for run in job.runs})
        validation = validation_data(job, tables)
        self._validation = None if validation is None else tree.stack(validation)
        groups = job.runs[0].federation.client_groups  # the same in all runs
        self._client_groups = None if groups is None else torch.from_numpy(groups).to(job.device)
        self._stepper = Stepper(job, tables, self.notes)
        self._taken = _Taken(tables)

    @cached_property
    def _initial(self) -> Tree:
        """The initial parameters of every run, leaves [R, ...]."""
        return tree.map(lambda leaf: leaf.to(self.job.device), tree.stack(self.job.initial))

    def start(self) -> State:
        return initial_state(self.job)

    # -- one exchange --------------------------------------------------------------------------------------------------

    def exchange(
        self, state: State, stage: Stage, position: int, round: int, cohorts: np.ndarray, present: np.ndarray
    ) -> Exchange:
        phase = self.job.phases(stage)[position]
        if not present.any():
            return Exchange(state, present, [])
        # a client that resamples its rows does so by the model it has, so that settings differ in their batches
        alone = self._settings == 1 or (isinstance(phase.client, LocalTraining) and phase.client.resample is not None)
        settings = 1 if alone else self._settings
        lanes = self._lanes(cohorts, present, settings)
        # the runs of each lane [L, V], or [L] where settings do not share it
        runs = lanes.run[:, None] + len(cohorts) // settings * np.arange(settings)
        runs = runs[:, 0] if alone else runs
        per_lane = (slice(None),) if alone else (slice(None), None)
        slot, client = lanes.slot[per_lane], lanes.client[per_lane]
        run_at, client_at = self._index(runs), self._index(client)
        down = self._of_runs(self.job.method.sent(state.server, phase.down), runs)
        own = tree.map(lambda leaf: leaf[run_at, client_at], state.clients)
        inputs = self._inputs(phase, lanes, round, runs)
        try:
            if isinstance(phase.client, LocalTraining):
                reply, new = self._train(stage, position, phase, down, own, inputs, lanes, round)
            else:
                reply, new = self._map(stage, position, _call, (down, own), inputs, lanes)
        except RuntimeError as error:  # vmap's own words are about vmap
            raise RunError(
                f"{self.job.method.name}, phase {phase.name!r}: {error}\nModels and methods may not draw torch's "
                "random numbers or branch on a tensor's value. engine='reference' goes client by client, to find where."
            ) from error
        check_reply(self.job.method, phase, reply)
        self.messages.setdefault((stage, position), record_message(stage, phase, down, reply, runs.ndim))

        fine = _finite_lanes((reply, new), runs.shape, self.job.device)
        here = torch.from_numpy(np.asarray(present[runs, slot])).to(self.job.device)
        use = fine & here
        for leaf, value in zip(tree.leaves(state.clients), tree.leaves(new), strict=True):
            leaf[run_at, client_at] = _where_lane(use, value, leaf[run_at, client_at])
        bad = np.asarray((here & ~fine).cpu().numpy())
        present = present.copy()
        rejections = []
        for place in zip(*np.nonzero(bad), strict=True):
            run, lane = int(runs[place]), int(place[0])
            name = self.job.runs[run].federation.ids[lanes.client[lane]]
            rejections.append(Rejection(run, name, phase.name, "NaN or Inf in its reply"))
            present[run, lanes.slot[lane]] = False
        replies, clipped = self._gather(phase, reply, use, runs, slot, cohorts, present)
        heard = np.asarray(present.any(axis=1))
        server = self._server(stage, position, state.server, replies, heard)
        counted = None if clipped is None else clipped.cpu().numpy()
        return Exchange(State(server, state.clients), present, rejections, clipped=counted)

    def _lanes(self, cohorts: np.ndarray, present: np.ndarray, settings: int) -> Lanes:
        """A lane for everyone in the cohorts. Absent clients have one too, without rows, which does nothing: so widths,
        and with them the prepared steps, stay the same whoever drops out. (One whose reply was refused in some settings
        only goes on there too; its replies are not used.)"""
        seeds = len(cohorts) // settings
        somewhere = np.asarray(present.reshape(settings, seeds, -1).any(0))
        run, slot = (index.reshape(-1) for index in np.indices((seeds, cohorts.shape[1])))
        client = cohorts[run, slot]
        n = np.where(somewhere[run, slot], self.tables.sizes[run, client], 0)
        order = np.argsort(-n, kind="stable")
        run, slot, client, n = run[order], slot[order], client[order], n[order]
        return Lanes(run, slot, client, n, self.tables.start[run, client])

    def _index(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(self.job.device)

    def _of_runs(self, values: Tree, runs: np.ndarray) -> Tree:
        """What each lane has of leaves [R, ...]: [L, ...] or [L, V, ...]. One run's is not copied for every lane."""
        if len(self.job.runs) == 1:
            return tree.map(lambda leaf: leaf.expand(*runs.shape, *leaf.shape[1:]), values)
        return tree.take(values, self._index(runs))

    def _inputs(self, phase: Phase, lanes: Lanes, round: int, runs: np.ndarray) -> dict[str, Tree]:
        """What belongs to each lane besides its rows: hyper-parameters, random numbers, group, feature scaling."""
        job, run = self.job, self._index(lanes.run)
        draws: dict[str, Tensor] = {}
        if phase.draws:
            made = [
                randomness.draws(each.seed, round, phase.draws, job.task) for each in job.runs[: lanes.run.max() + 1]
            ]
            draws = {
                name: torch.from_numpy(np.stack([values[name] for values in made])).to(job.device)[run]
                for name in phase.draws
            }
        scaling = () if self.tables.shift is None else (self.tables.shift[run], self.tables.factor[run])  # type: ignore[index]
        return {
            "hyper": {name: values[self._index(runs)] for name, values in self._hyper.items()},
            "draws": draws,
            "group": () if self._client_groups is None else self._client_groups[self._index(lanes.client)],
            "scaling": scaling,
            "client": self._index(lanes.client),
            "initial": self._of_runs(self._initial, lanes.run) if phase.initial else (),
            "start": self._index(lanes.start),
            "n": self._index(lanes.n),
            "rate": torch.full((len(lanes),), job.task.local.rate(max(round, 1)), device=job.device),
        }

    def _phase(self, hyper: dict[str, Tensor], stage: Stage, position: int) -> Phase:
        return self.job.phases(stage, hyper)[position]

    # -- client work on whole rows -------------------------------------------------------------------------------------

    def _map(
        self,
        stage: Stage,
        position: int,
        part: Callable[..., Any],
        values: tuple[Tree, ...],
        inputs: dict[str, Tree],
        lanes: Lanes,
    ) -> Any:
        """part(the phase's work, *values, data) for every lane, in portions of similar size."""
        results = []
        shared = self._is_shared(inputs)
        for rows, width in portions(lanes.n, self.job.row_bytes(self._settings if shared else 1)):
            taken = self._taken.rows((stage, position, rows.start), lanes.part(rows), width) if part is _call else {}

            def one(values: tuple[Tree, ...], inputs: dict[str, Tree], taken: Any, width: int = width) -> Any:
                data = _LaneData(
                    self.tables,
                    inputs["start"],
                    inputs["n"],
                    width,
                    inputs["scaling"],
                    task=self.job.task,
                    draws=inputs["draws"],
                    client_group=_tensor_or_none(inputs["group"]),
                    learning_rate=inputs["rate"],
                    client=inputs["client"],
                    initial=inputs["initial"],
                    **taken,
                )

                def setting(values: tuple[Tree, ...], hyper: dict[str, Tensor]) -> Any:
                    return part(self._phase(hyper, stage, position).client, *values, data)

                return (vmap(setting) if shared else setting)(values, inputs["hyper"])

            results.append(vmap(one)(*(*tree.take((values, inputs), rows), taken)))
        return results[0] if len(results) == 1 else tree.map(lambda *parts: torch.cat(parts), *results)

    def _is_shared(self, inputs: dict[str, Tree]) -> bool:
        """Whether settings share lanes here: values then have a second axis."""
        return any(values.dim() == 2 for values in inputs["hyper"].values())

    # -- local training ------------------------------------------------------------------------------------------------

    def _train(
        self,
        stage: Stage,
        position: int,
        phase: Phase,
        down: Record,
        own: Tree,
        inputs: dict[str, Tree],
        lanes: Lanes,
        round: int,
    ) -> tuple[Record, Tree]:
        job, local = self.job, self.job.task.local
        longest = max(int(lanes.n[0]), 1)

        def prepare(work: LocalTraining, down: Record, own: Tree, data: Data) -> Start:
            made = work.prepare(down, own, data)
            return made._replace(per_row={name: _fit(values, longest) for name, values in made.per_row.items()})

        def finish(work: LocalTraining, parameters: Tree, down: Record, own: Tree, context: Tree, data: Data) -> Any:
            return work.finish(parameters, down, own, data, context)

        shared = self._is_shared(inputs)
        begin: Start = self._map(stage, position, prepare, (down, own), inputs, lanes)
        start = partial(optimizer_start, local)
        make = vmap(vmap(start)) if shared else vmap(start)
        optimizer = make(begin.parameters) if tree.leaves(begin.parameters) else ()
        carry, structure = tree.flatten((begin.parameters, optimizer))
        fixed = (begin.context, inputs["rate"], inputs["hyper"], inputs["draws"], inputs["group"], inputs["scaling"])

        def loss(parameters: Tree, fixed: Tree, x: Tensor, y: Tensor, s: Tensor, mask: Tensor, rows: Tree) -> Tensor:
            context, rate, hyper, draws, group, scaling = fixed
            work: Any = self._phase(hyper, stage, position).client
            if scaling:
                x = (x - scaling[0]) * scaling[1]
            batch = Data(x, y, s, mask, job.task, rows, draws, _tensor_or_none(group), learning_rate=rate)
            value: Tensor = work.loss(parameters, context, batch)
            return value

        def step(carry: Tree, fixed: Tree, batch: tuple[Tensor, Tensor, Tensor], mask: Tensor, rows: Tree) -> Tree:
            def one(carry: Tree, fixed: Tree, x: Tensor, y: Tensor, s: Tensor, mask: Tensor, rows: Tree) -> Tree:
                def setting(carry: Tree, context: Tree, hyper: dict[str, Tensor], rows: Tree) -> Tree:
                    own = (context, fixed[1], hyper, *fixed[3:])
                    parameters, optimizer = tree.unflatten(carry, structure)
                    gradient = grad(loss)(parameters, own, x, y, s, mask, rows)
                    return tree.leaves(optimizer_step(local, parameters, gradient, optimizer, fixed[1]))

                return (vmap(setting) if shared else setting)(carry, fixed[0], fixed[2], rows)

            return vmap(one)(carry, fixed, *batch, mask, rows)

        sources = [
            randomness.Batches(job.runs[r].seed, round, job.client_keys[k], phase.name, int(n), local)
            for r, k, n in zip(lanes.run, lanes.client, lanes.n, strict=True)
        ]

        def resample(carry: list[Tensor], work: Training) -> tuple[Tree, Tensor]:
            def one(work: LocalTraining, parameters: Tree, context: Tree, uniforms: Tensor, data: Data) -> Any:
                assert work.resample is not None
                context, rows = work.resample(parameters, context, _fit(uniforms, data.mask.shape[0]), data)
                return context, _fit(rows.to(torch.int32), longest)

            parameters, _ = tree.unflatten(carry, structure)
            uniforms = np.zeros((len(work.lanes), longest), dtype=np.float32)
            for line, source in zip(uniforms, work.sources, strict=True):
                made = source.uniforms()
                line[: len(made)] = made
            values = (parameters, work.fixed[0], torch.from_numpy(uniforms).to(job.device))
            inputs = self._inputs(phase, work.lanes, round, work.lanes.run)
            context, rows = self._map(stage, position, one, values, inputs, work.lanes)
            return (context, *work.fixed[1:]), rows

        work = Training((stage, position), step, fixed, begin.per_row, shared, lanes, sources)
        if isinstance(phase.client, LocalTraining) and phase.client.resample is not None:
            work = dataclasses.replace(work, resample=resample)
        carry, fixed = self._stepper.train(work, carry)
        parameters, _ = tree.unflatten(carry, structure)
        reply, new = self._map(stage, position, finish, (parameters, down, own, fixed[0]), inputs, lanes)
        return reply, new

    # -- the server ----------------------------------------------------------------------------------------------------

    def _gather(
        self,
        phase: Phase,
        reply: Record,
        use: Tensor,
        runs: np.ndarray,
        slots: np.ndarray,
        cohorts: np.ndarray,
        present: np.ndarray,
    ) -> Gathered:
        """Replies as the servers see them: per run, in the order of the clients' names, absent ones zero."""
        run, slot = self._index(runs), self._index(slots)
        shape = cohorts.shape

        def spread(leaf: Tensor) -> Tensor:
            out = torch.zeros(*shape, *leaf.shape[runs.ndim :], dtype=leaf.dtype, device=leaf.device)
            out[run, slot] = _where_lane(use, leaf, torch.zeros_like(leaf))
            return out

        stacked: Record = tree.map(spread, reply)
        here = torch.from_numpy(present.astype(np.float32)).to(self.job.device)
        return self.job.channel.gather(phase, stacked, here, self._index(cohorts))

    def _server(self, stage: Stage, position: int, server: Tree, replies: Record, heard: np.ndarray) -> Tree:
        """Every run's server step; a run that heard nobody keeps its state."""

        def one(server: Tree, replies: Record, hyper: dict[str, Tensor], validation: Tree) -> Tree:
            data = data_of(validation if validation else None, self.job)
            return self._phase(hyper, stage, position).server(server, replies, data)

        validation = () if self._validation is None else self._validation
        if self.job.method.sweepable:
            new = vmap(one)(server, replies, self._hyper, validation)
        else:
            cut = [tree.take((server, replies, self._hyper, validation), r) for r in range(len(self.job.runs))]
            new = tree.stack([one(*each) for each in cut])
        if heard.all():
            return new
        return tree.where(torch.from_numpy(heard).to(self.job.device), new, server)


def _call(work: ClientWork, down: Record, own: Tree, data: Data) -> tuple[Record, Tree]:
    return work(down, own, data)


def _tensor_or_none(value: Tree) -> Tensor | None:
    """Lane inputs hold () where there is nothing, since trees have no None."""
    return value if isinstance(value, Tensor) else None


def _fit(values: Tensor, length: int) -> Tensor:
    """Values per row, cut or padded to one length for all lanes."""
    short = length - values.shape[0]
    return torch.cat([values, values.new_zeros(short, *values.shape[1:])]) if short > 0 else values[:length]


def _where_lane(fine: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(fine.reshape(*fine.shape, *(1,) * (a.dim() - fine.dim())), a, b)


def _finite_lanes(value: Tree, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Which lanes, and settings in them, have only finite numbers."""
    fine = torch.ones(shape, dtype=torch.bool, device=device)
    for leaf in tree.leaves(value):
        if leaf.is_floating_point():
            fine &= leaf.isfinite().reshape(*shape, -1).all(-1)
    return fine
