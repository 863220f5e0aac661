"""Local training client by client with torch's own kernels, the clients distributed over threads.

Where arithmetic dominates a step's time, all lanes at once gain nothing: torch multiplies one client's matrices as fast
as those of many. A client's last batch may be shorter, so nothing is padded, and only one batch per thread is in
memory. Lanes are independent: the results do not depend on the number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equifed import tree
from equifed.modules import copy_module
from equifed.protocol import Task
from equifed.simulator import tracing
from equifed.simulator.fused.cpu import fill_orders
from equifed.simulator.job import Job
from equifed.simulator.lane_steps import LaneSteps, LaneTraining
from equifed.simulator.tables import Tables
from equifed.simulator.threads import share_out
from equifed.simulator.tracing import StepFunction, trace
from equifed.tree import Tree


class Apart:
    """Local training client by client."""

    def __init__(self, job: Job, tables: Tables) -> None:
        self.job, self.tables = job, tables
        self._traced: dict[Any, StepFunction] = {}
        self._steps_of: dict[int, float] = {}
        """By number of rows, the steps of that size in one epoch of a round of all runs."""

    @cached_property
    def _tasks(self) -> SimpleQueue[Task]:
        """One copy of the task per thread, because a module holds the parameters it is called with while it runs."""
        tasks: SimpleQueue[Task] = SimpleQueue()
        tasks.put(self.job.task)
        for _ in range(self.job.threads - 1):
            tasks.put(replace(self.job.task, module=copy_module(self.job.task.module)))
        return tasks

    def train(self, work: LaneTraining, parameters: Tree) -> tuple[Tree, Tree]:
        """Train all lanes for all epochs; return the trained parameters and the last epoch's context."""
        # copied, because every lane writes its part
        carry = tree.map(lambda leaf: leaf.clone(memory_format=torch.contiguous_format), work.steps.start(parameters))
        for epochs in work.stretches():
            work = work.with_resampled_rows(carry[0], epochs.start)
            flat = _Flat.of(work, carry)
            # before the threads start, because both change state that threads share
            steps, tasks = self._steps(work, flat), self._tasks
            some = int(np.count_nonzero(work.lanes.n))  # lanes without rows are the last
            train = partial(self._lane, work, flat, epochs, steps, tasks, torch.get_num_threads())
            share_out(train, some, self.job.threads)
        return carry[0], work.context

    @torch.no_grad()  # a setting of each thread
    def _lane(
        self,
        work: LaneTraining,
        flat: _Flat,
        epochs: range,
        steps: dict[int, StepFunction],
        tasks: SimpleQueue[Task],
        torch_threads: int,
        lane: int,
    ) -> None:
        """Train one lane for these epochs, updating its part of the carry in place."""
        torch.set_num_threads(torch_threads)  # a new thread uses all cores unless limited
        task = tasks.get()
        models, eager = flat.models(lane), flat.step(replace(work.steps, task=task))
        moving = [carry for carry, _, _ in models]
        for epoch in epochs:
            batches = self._batches(work, lane, epoch)
            keys = tree.leaves(work.dropout_words(epoch, range(len(batches)), slice(lane, lane + 1)))
            for at, places in enumerate(batches):
                step, rows = steps.get(len(places), eager), self._rows(work, lane, places)
                key = [words[at, 0] for words in keys]
                for number, (_, same, own) in enumerate(models):
                    moving[number] = step(*moving[number], *same, *rows, *(values[places] for values in own), *key)
        for (begin, _, _), end in zip(models, moving, strict=True):
            for leaf, value in zip(begin, end, strict=True):
                leaf.copy_(value)
        tasks.put(task)

    def _batches(self, work: LaneTraining, lane: int, epoch: int) -> tuple[Tensor, ...]:
        """Return the batches of an epoch, as positions among the lane's rows."""
        n, size = int(work.lanes.n[lane]), self.job.task.local.batch_size
        order = np.arange(n, dtype=np.int32)[None]
        if size is not None:
            key = work.keys[lane : lane + 1].numpy().view(np.uint64)
            fill_orders(key, epoch, work.lanes.n[lane : lane + 1], order)
        places = torch.from_numpy(order[0])
        return (places if work.chosen is None else work.chosen[lane][places]).split(size or n)

    def _rows(self, work: LaneTraining, lane: int, places: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return x, y, s and mask of a batch."""
        tables, start = self.tables, int(work.lanes.start[lane])
        rows = tables.index[start : start + int(work.lanes.n[lane])].index_select(0, places)
        x, y, s = (values.index_select(0, rows) for values in (tables.x, tables.y, tables.s))
        return x, y, s, torch.ones(len(rows))

    def _steps(self, work: LaneTraining, flat: _Flat) -> dict[int, StepFunction]:
        """Return traced steps by number of rows, for sizes that are frequent enough."""
        size, steps = self.job.task.local.batch_size, {}
        n = np.unique(work.lanes.n[work.lanes.n > 0])
        for rows in np.unique(n if size is None else np.concatenate([np.minimum(n, size), n % size])).tolist():
            if rows == 0 or self._count_planned(rows, work.epochs) < tracing.TRACE_FROM:
                continue
            key = work.place, rows, flat.shapes
            if key not in self._traced:
                carry, same, own = flat.models(0)[0]  # the lane with most rows
                places = torch.arange(rows, dtype=torch.int32)
                values = [*carry, *same, *self._rows(work, 0, places), *(values[places] for values in own)]
                values += [words[0, 0] for words in tree.leaves(work.dropout_words(0, range(1), slice(1)))]
                self._traced[key] = trace(flat.step(work.steps), values)
            steps[rows] = self._traced[key]
        return steps

    def _count_planned(self, rows: int, epochs: int) -> float:
        """Return the number of steps of `rows` rows in the whole job."""
        if rows not in self._steps_of:
            sizes, size = self.tables.sizes, self.job.task.local.batch_size
            each = sizes == rows if size is None else (sizes // size) * (rows == size) + (sizes % size == rows)
            share = self.job.cohort_size * len(self.job.runs) / sizes.size
            self._steps_of[rows] = float(each.sum()) * share
        return self._steps_of[rows] * epochs * self.job.rounds


@dataclass(frozen=True)
class _Flat:
    """The tensors of all lanes as lists, which makes taking a lane's part cheap."""

    carry: list[Tensor]
    """Values that steps change: parameters and optimiser state [L, ...], or [L, V, ...] if settings share a lane."""
    context: list[Tensor]
    """Constant values that may differ between settings; same leading shape."""
    inputs: list[Tensor]
    """Constant values of the lane [L, ...]."""
    own: list[Tensor]
    """Values of the lane's rows [L, n, ...] or [L, V, n, ...]."""
    structure: Any
    """Tree structure of a step's arguments: (carry, context, hyperparameters, inputs, batch)."""
    shared: bool

    @classmethod
    def of(cls, work: LaneTraining, carry: Tree) -> _Flat:
        hyper, inputs = work.inputs.hyper, work.inputs.for_steps()._replace(hyper={})
        batch = (0, 0, 0, 0, work.per_row, () if work.dropout is None else 0)
        return cls(
            carry=tree.leaves(carry),
            context=tree.leaves((work.context, hyper)),
            inputs=tree.leaves(inputs),
            own=tree.leaves(work.per_row),
            structure=tree.flatten((carry, work.context, hyper, inputs, batch))[1],
            shared=work.steps.shared,
        )

    @cached_property
    def shapes(self) -> tuple[torch.Size, ...]:
        """Shapes of a step's arguments other than rows."""
        return tuple(leaf.shape[1 + self.shared :] for leaf in (*self.carry, *self.context))

    def step(self, steps: LaneSteps) -> StepFunction:
        """Return the step of one lane with one setting, as defined by `LaneSteps.one`."""

        def step(*values: Tensor) -> list[Tensor]:
            carry, context, hyper, inputs, batch = tree.unflatten(values, self.structure)
            new = steps.one(carry, context, inputs._replace(hyper=hyper), batch)
            # the next step expects the layout that the first one had
            return [leaf.contiguous() for leaf in tree.leaves(new)]

        return step

    def models(self, lane: int) -> list[tuple[list[Tensor], list[Tensor], list[Tensor]]]:
        """Return, for each setting that shares the lane: views of the values that steps change, constants, and values
        per row."""
        inputs = [leaf[lane] for leaf in self.inputs]
        settings = [(lane, v) for v in range(self.carry[0].shape[1])] if self.shared else [(lane,)]

        def parts(leaves: list[Tensor], at: tuple[int, ...]) -> list[Tensor]:
            return [leaf[at] for leaf in leaves]

        return [(parts(self.carry, at), parts(self.context, at) + inputs, parts(self.own, at)) for at in settings]
