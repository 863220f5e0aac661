"""Local training of many lanes as steps of all lanes at once, for any model and loss.

A step takes every lane's next batch from the shared rows with one `index_select`, and updates all models with one
`vmap`. Lanes are sorted by their number of steps, so finished ones are cut off at the end. The step is traced once per
width to plain tensor operations, without vmap's and autograd's Python, and compiled if the run is long enough for that
to pay.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equifed import tree
from equifed.notes import Note
from equifed.simulator import tracing
from equifed.simulator.cuda_graphs import CudaSteps
from equifed.simulator.fused import cuda
from equifed.simulator.fused.cpu import fill_orders
from equifed.simulator.job import Job
from equifed.simulator.lane_data import LaneInputs, portions
from equifed.simulator.lane_steps import LaneSteps, LaneTraining
from equifed.simulator.tables import Tables
from equifed.simulator.tracing import StepFunction, trace
from equifed.tree import Tree

COMPILE_FROM = 25_000
"""Number of steps in the whole job from which compiling (some 10 s at first, later 1 s per width) pays."""
COMPILE_WORK = 400_000
"""Multiplications per layer and step above which compiling does not help, because they dominate the time."""

RunSteps = Callable[[list[Tensor], list[Tensor], list[Tensor]], list[Tensor]]
"""Function (carry, constants, values of each step [T, ...]) -> carry after all these steps."""


class Traced:
    """Local training by traced or compiled steps of all lanes at once."""

    def __init__(self, job: Job, tables: Tables, notes: list[Note]) -> None:
        self.job, self.tables, self.notes = job, tables, notes
        self._ready: dict[Any, RunSteps] = {}

    def train(self, work: LaneTraining, parameters: Tree) -> tuple[Tree, Tree]:
        """Train all lanes for all epochs; return the trained parameters and the last epoch's context."""
        carry = work.steps.start(parameters)
        size = self.job.task.local.batch_size
        if size is not None:
            return self._epochs(work, carry, size)
        # full batches: lanes of similar size together, so that padding stays small
        settings = tree.prototype(parameters).shape[1] if work.steps.shared else 1
        done = [
            self._epochs(work.part(lanes), tree.take(carry, lanes), width)
            for lanes, width in portions(work.lanes.n, self.job.row_bytes(settings))
        ]
        joined: tuple[Tree, Tree] = tree.map(lambda *parts: torch.cat(parts), *done)
        return joined

    def _epochs(self, work: LaneTraining, carry: Tree, size: int) -> tuple[Tree, Tree]:
        for epoch in range(work.epochs):
            work = work.with_resampled_rows(carry[0], epoch)
            carry = self._epoch(work, carry, size, epoch)
        return carry[0], work.context

    def _epoch(self, work: LaneTraining, carry: Tree, size: int, epoch: int) -> Tree:
        positions = self._draw_orders(work, epoch)
        count = -(-work.lanes.n // size)
        # a compiled step is fast, but each width takes seconds to compile: use fewer widths
        shrink = 0.5 if self._is_worth_compiling(carry, size) else 0.7
        idle = bool(count[-1] < count[0])
        for begin, end, width in segments(count, shrink):
            some = slice(width)
            same, moving = tree.map(
                lambda leaf, some=some: leaf[some].contiguous(), ((work.context, work.inputs.for_steps()), carry)
            )
            taken = self._batches(work, positions, begin, end, width, size)
            batches = *taken, work.dropout_words(epoch, range(begin, end), some)
            run = self._prepare(work, (moving, same, tree.take(batches, 0)), size, idle, end - begin)
            flat, structure = tree.flatten(moving)
            moving = tree.unflatten(run(flat, tree.leaves(same), tree.leaves(batches)), structure)
            carry = tree.map(
                lambda new, leaf, width=width: new if width == len(leaf) else torch.cat([new, leaf[width:]]),
                moving,
                carry,
            )
        return carry

    def _draw_orders(self, work: LaneTraining, epoch: int) -> Tensor:
        """Return the order of each lane's rows [L, longest], padded with its first row."""
        longest = max(int(work.lanes.n[0]), 1)
        if self.job.device.type == "cuda" and cuda.has_triton() and self.job.task.local.batch_size is not None:
            return cuda.orders(work.keys, epoch, work.inputs.n, longest)
        out = np.zeros((len(work.lanes), longest), dtype=np.int32)
        if self.job.task.local.batch_size is None:
            out[:] = np.arange(out.shape[1], dtype=np.int32)
            out[out >= work.lanes.n[:, None]] = 0
        else:
            fill_orders(work.keys.cpu().numpy().view(np.uint64), epoch, work.lanes.n, out)
        return torch.from_numpy(out).to(self.job.device)

    def _batches(
        self, work: LaneTraining, positions: Tensor, begin: int, end: int, width: int, size: int
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the batches of steps begin to end of an epoch for the first `width` lanes: rows in the tables [T, W,
        B], the number of actual rows among the B [T, W], and the values per row. Batches are padded with the client's
        first row, with mask 0."""
        steps, device = end - begin, self.job.device
        taken = positions[:width, begin * size : end * size]
        taken = torch.nn.functional.pad(taken, (0, steps * size - taken.shape[1]))
        places = taken.view(width, steps, size).transpose(0, 1).contiguous()
        lane = torch.arange(width, device=device)[:, None]
        if work.chosen is not None:
            places = work.chosen[lane, places]
        start = torch.from_numpy(work.lanes.start[:width].astype(np.int32)).to(device)
        rows = self.tables.index[(places + start[:, None]).clamp_(max=len(self.tables.index) - 1)]
        left = work.lanes.n[None, :width] - np.arange(begin, end)[:, None] * size
        filled = torch.from_numpy(np.clip(left, 0, size).astype(np.int32)).to(device)

        def of_rows(values: Tensor) -> Tensor:
            if not work.steps.shared:
                return values[lane, places]
            # [T, W, V, B, ...]: each setting's values of the rows that all settings share
            return values[lane[..., None], torch.arange(values.shape[1], device=device)[:, None], places[:, :, None]]

        return rows, filled, tree.map(of_rows, work.per_row)

    def _prepare(self, work: LaneTraining, example: tuple[Any, ...], size: int, idle: bool, steps: int) -> RunSteps:
        """Return a function that carries out the steps of a segment, traced or compiled if that pays."""
        values, structure = tree.flatten(example)
        whole = self._make_step(work.steps, size, idle)

        def flat(*values: Tensor) -> list[Tensor]:
            return whole(*tree.unflatten(values, structure))

        if steps * work.epochs * self.job.rounds < tracing.TRACE_FROM:
            return run_one_by_one(flat)
        key = (work.place, size, idle, tuple(value.shape for value in values))
        if key not in self._ready:
            step: StepFunction = trace(flat, values)
            if self._is_worth_compiling(example[0], size):
                step = self._compile(step, values)
            make: Callable[[StepFunction], RunSteps] = CudaSteps if self.job.device.type == "cuda" else run_one_by_one
            self._ready[key] = make(step)
        return self._ready[key]

    def _make_step(self, steps: LaneSteps, size: int, idle: bool) -> StepFunction:
        """Return the step from row positions to new parameters. `idle`: some lanes have finished and must not
        change."""
        tables = self.tables

        def whole(
            carry: Tree, fixed: tuple[Tree, LaneInputs], batch: tuple[Tensor, Tensor, dict[str, Tensor], Tree]
        ) -> list[Tensor]:
            rows, filled, own, key = batch
            width = rows.shape[0]
            flat = rows.reshape(-1)
            x = tables.x.index_select(0, flat).view(width, size, *tables.x.shape[1:])
            y = tables.y.index_select(0, flat).view(width, size)
            s = tables.s.index_select(0, flat).view(width, size)
            mask = (torch.arange(size, device=rows.device) < filled[:, None]).to(torch.float32)
            new = steps.step(carry, *fixed, (x, y, s, mask, own, key))
            moved = tree.where(filled > 0, new, carry) if idle else new
            # the next step expects the memory layout it was prepared for
            return [leaf.contiguous() for leaf in tree.leaves(moved)]

        return whole

    def _compile(self, graph: Any, values: list[Tensor]) -> StepFunction:
        try:
            from torch import _inductor

            # not by torch.compile, which checks its guards at every step and so doubles the time
            compiled: StepFunction = _inductor.compile(graph, [*values])
            compiled(*values)
        except Exception as error:  # a broken compiler must not end the run
            self._note(Note("compiling-failed", {"error": type(error).__name__}))
            return graph
        return compiled

    def _is_worth_compiling(self, carry: Tree, size: int) -> bool:
        if self.job.settings.kernel != "auto":
            return self.job.settings.kernel == "compiled"
        if self.job.device.type != "cpu":
            return False
        local = self.job.task.local
        longest = self._longest if local.batch_size else 1
        planned = -(-longest // size) * local.epochs * self.job.rounds
        effort = size * sum(leaf.numel() for leaf in tree.leaves(carry))
        if planned < COMPILE_FROM or effort > COMPILE_WORK:
            return False
        if not _has_compiler():
            self._note(Note("no-compiler"))
            return False
        return True

    @cached_property
    def _longest(self) -> int:
        """Rows of the largest client of the median federation."""
        return int(np.median(self.tables.sizes.max(1)))

    def _note(self, note: Note) -> None:
        if note not in self.notes:
            self.notes.append(note)


@cache
def _has_compiler() -> bool:
    return any(shutil.which(name) for name in ("c++", "g++", "clang++"))


def run_one_by_one(step: StepFunction) -> RunSteps:
    def run(carry: list[Tensor], same: list[Tensor], batches: list[Tensor]) -> list[Tensor]:
        for batch in zip(*batches, strict=True):
            carry = step(*carry, *same, *batch)
        return carry

    return run


def segments(count: np.ndarray, shrink: float) -> list[tuple[int, int, int]]:
    """Split an epoch into segments (begin, end, width); `count` holds each lane's number of steps, most first.

    As lanes finish, the width falls, but only by the factor `shrink` at a time, because every new width must be traced.
    """
    widths = [len(count)]
    while widths[-1] > 4:
        widths.append(math.ceil(widths[-1] * shrink))
    parts, begin = [], 0
    for width, smaller in zip(widths, [*widths[1:], 0], strict=True):
        # this width lasts until all lanes beyond the next smaller one have finished
        end = int(count[smaller]) if smaller < len(count) and smaller > 0 else int(count[0])
        if end > begin:
            parts.append((begin, end, width))
            begin = end
    return parts
