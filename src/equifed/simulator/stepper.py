"""Local training of many lanes: the step loop, outside vmap, with the step traced or compiled.

How a step is run (eagerly, traced, compiled) depends only on the job and the round, never on what ran before, so a
resumed run takes the same path and gives the same bits.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equifed import tree
from equifed.notes import Note
from equifed.randomness import Batches
from equifed.simulator.cuda import CudaSteps
from equifed.simulator.job import Job
from equifed.simulator.lane_data import Lanes
from equifed.simulator.tables import Tables
from equifed.tree import Tree

TRACE_FROM = 100
"""Steps of one shape in the whole job from which tracing it (about 0.1 s) pays."""
COMPILE_FROM = 25_000
"""Steps in the whole job from which compiling (some 10 s the first time, 1 s for each width later) pays."""
COMPILE_WORK = 400_000
"""Multiplications per layer and step above which compiling no longer helps: the time is spent in them."""

PORTION_BYTES = 256 * 2**20
"""Lanes whose whole rows are needed at once are taken in portions of about this size."""

Step = Callable[..., list[Tensor]]
"""One step of all lanes."""
Run = Callable[[list[Tensor], list[Tensor], list[Tensor]], list[Tensor]]
"""(carry, what stays the same, what each step has of its own [T, ...]) -> carry after all these steps."""


@dataclass(frozen=True)
class LaneTraining:
    """Local training of many lanes in one phase of one round."""

    phase: tuple[str, int]
    """(stage, position): with the shapes, what a prepared step is known by."""
    step: Step
    """(carry, fixed, (x, y, s), mask, per-row values) -> carry, for any number of lanes."""
    fixed: Tree
    """What the steps need besides their batches, leaves [L, ...]."""
    per_row: dict[str, Tensor]
    """Values of each lane's rows [L, n, ...], or [L, V, n, ...] where settings share the lane."""
    shared: bool
    """Whether settings share lanes: carry and fixed then have leaves [L, V, ...]."""
    lanes: Lanes
    sources: Sequence[Batches]
    resample: Callable[[list[Tensor], LaneTraining], tuple[Tree, Tensor]] | None
    """Before each epoch, (carry, this training) -> (fixed, rows to train on [L, n])."""
    chosen: Tensor | None = None
    """The rows of this epoch [L, n], where they are resampled."""
    size: int = 0
    """Rows per step."""

    def part(self, lanes: slice) -> LaneTraining:
        fixed, per_row = tree.take((self.fixed, self.per_row), lanes)
        return replace(self, fixed=fixed, per_row=per_row, lanes=self.lanes.part(lanes), sources=self.sources[lanes])


class Stepper:
    def __init__(self, job: Job, tables: Tables, notes: list[Note]) -> None:
        self.job, self.tables, self.notes = job, tables, notes
        self._ready: dict[Any, Run] = {}

    def train(self, work: LaneTraining, carry: list[Tensor]) -> tuple[list[Tensor], Tree]:
        """All epochs of all lanes: `carry` holds parameters and optimiser state, leaves [L, ...]. Returns them, and
        what stays fixed within an epoch."""
        size = self.job.task.local.batch_size
        if size is not None:
            return self._epochs(replace(work, size=size), carry)
        # full batches: lanes of similar size together, so that padding stays small
        done = [
            self._epochs(replace(work.part(lanes), size=width), tree.take(carry, lanes))
            for lanes, width in portions(work.lanes.n, self.job.row_bytes(carry[0].shape[1] if work.shared else 1))
        ]
        joined: tuple[list[Tensor], Tree] = tree.map(lambda *parts: torch.cat(parts), *done)
        return joined

    def _epochs(self, work: LaneTraining, carry: list[Tensor]) -> tuple[list[Tensor], Tree]:
        if work.lanes.n.any():
            for _ in range(self.job.task.local.epochs):
                if work.resample is not None:
                    fixed, chosen = work.resample(carry, work)
                    work = replace(work, fixed=fixed, chosen=chosen)
                carry = self._epoch(work, carry)
        return carry, work.fixed

    def _epoch(self, work: LaneTraining, carry: list[Tensor]) -> list[Tensor]:
        positions = [source.epoch() for source in work.sources]
        count = -(-work.lanes.n // work.size)
        # a compiled step is quick but each width takes seconds to compile: use fewer of them
        shrink = 0.5 if self._worth_compiling(carry, work.size) else 0.7
        idle = bool(count[-1] < count[0])
        for begin, end, width in segments(count, shrink):
            same = tree.map(lambda leaf, width=width: leaf[:width].contiguous(), work.fixed)
            moving = [leaf[:width].contiguous() for leaf in carry]
            batches = self._batches(work, positions, begin, end, width)
            run = self._prepared(work, (moving, same, tree.take(batches, 0)), idle, end - begin)
            moving = run(moving, tree.leaves(same), tree.leaves(batches))
            carry = [
                new if width == len(leaf) else torch.cat([new, leaf[width:]])
                for new, leaf in zip(moving, carry, strict=True)
            ]
        return carry

    def _batches(
        self, work: LaneTraining, positions: list[np.ndarray], begin: int, end: int, width: int
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Steps begin to end of an epoch for the first `width` lanes: the batches' rows in the tables [T, W, B], how
        many of the B are rows [T, W], and the rows' own values. Beyond them the client's first row stands in, with
        mask 0."""
        steps, size, device = end - begin, work.size, self.job.device
        taken = np.zeros((width, steps * size), dtype=np.int32)
        for line, order in zip(taken, positions, strict=False):
            part = order[begin * size : end * size]
            line[: len(part)] = part
        places = torch.from_numpy(taken).to(device).view(width, steps, size).transpose(0, 1).contiguous()
        lane = torch.arange(width, device=device)[:, None]
        if work.chosen is not None:
            places = work.chosen[lane, places]
        start = torch.from_numpy(work.lanes.start[:width].astype(np.int32)).to(device)
        rows = self.tables.index[(places + start[:, None]).clamp_(max=len(self.tables.index) - 1)]
        left = work.lanes.n[None, :width] - np.arange(begin, end)[:, None] * size
        filled = torch.from_numpy(np.clip(left, 0, size).astype(np.int32)).to(device)

        def of_rows(values: Tensor) -> Tensor:
            if not work.shared:
                return values[lane, places]
            # [T, W, V, B, ...]: each setting's values of the rows that all of them take
            return values[lane[..., None], torch.arange(values.shape[1], device=device)[:, None], places[:, :, None]]

        return rows, filled, tree.map(of_rows, work.per_row)

    def _prepared(self, work: LaneTraining, example: tuple[Any, ...], idle: bool, steps: int) -> Run:
        """A function that carries out the steps of a segment, as fast as is worth the preparation."""
        values, structure = tree.flatten(example)
        whole = self._whole_step(work.step, work.size, idle)

        def flat(*values: Tensor) -> list[Tensor]:
            return whole(*tree.unflatten(values, structure))

        if steps * self.job.task.local.epochs * self.job.rounds < TRACE_FROM:
            return one_by_one(flat)
        key = (work.phase, work.size, idle, tuple(value.shape for value in values))
        if key not in self._ready:
            traced = self._traced(flat, values, self._worth_compiling(example[0], work.size))
            make: Callable[[Step], Run] = CudaSteps if self.job.device.type == "cuda" else one_by_one
            self._ready[key] = make(traced)
        return self._ready[key]

    def _whole_step(self, step: Step, size: int, idle: bool) -> Step:
        """A step from row positions to new parameters. `idle`: some lanes have finished and must not move."""
        tables = self.tables

        def whole(carry: list[Tensor], fixed: Tree, batch: tuple[Tensor, Tensor, dict[str, Tensor]]) -> list[Tensor]:
            rows, filled, extra = batch
            width = rows.shape[0]
            flat = rows.reshape(-1)
            x = tables.x.index_select(0, flat).view(width, size, *tables.x.shape[1:])
            y = tables.y.index_select(0, flat).view(width, size)
            s = tables.s.index_select(0, flat).view(width, size)
            mask = (torch.arange(size, device=rows.device) < filled[:, None]).to(torch.float32)
            new = step(carry, fixed, (x, y, s), mask, extra)
            moved = tree.where(filled > 0, new, carry) if idle else new
            return [leaf.contiguous() for leaf in moved]  # the next step expects the layout it was prepared for

        return whole

    def _traced(self, flat: Step, values: list[Tensor], compiling: bool) -> Step:
        """The step as a plain list of tensor operations: what vmap and grad do in Python is done once, here."""
        from torch.fx.experimental.proxy_tensor import make_fx

        graph = make_fx(flat)(*values)
        graph.graph.eliminate_dead_code()
        graph.recompile()
        if not compiling:
            return graph
        try:
            from torch import _inductor

            # straight to the compiler: torch.compile would check its guards at every step, which costs as much again
            compiled: Step = _inductor.compile(graph, [*values])
            compiled(*values)
        except Exception as error:  # a broken compiler must not cost the run
            self._note(Note("compiling-failed", {"error": type(error).__name__}))
            return graph
        return compiled

    def _worth_compiling(self, carry: list[Tensor], size: int) -> bool:
        if self.job.settings.compile != "auto":
            return self.job.settings.compile
        if self.job.device.type != "cpu":
            return False
        local, sizes = self.job.task.local, self.tables.sizes
        typical = int(np.median(sizes.max(1))) if local.batch_size else 1
        planned = -(-typical // size) * local.epochs * self.job.rounds
        effort = size * sum(leaf.numel() for leaf in carry)
        if planned < COMPILE_FROM or effort > COMPILE_WORK:
            return False
        if not _has_compiler():
            self._note(Note("no-compiler"))
            return False
        return True

    def _note(self, note: Note) -> None:
        if note not in self.notes:
            self.notes.append(note)


@cache
def _has_compiler() -> bool:
    return any(shutil.which(name) for name in ("c++", "g++", "clang++"))


def one_by_one(step: Step) -> Run:
    def run(carry: list[Tensor], same: list[Tensor], batches: list[Tensor]) -> list[Tensor]:
        for batch in zip(*batches, strict=True):
            carry = step(*carry, *same, *batch)
        return carry

    return run


def segments(count: np.ndarray, shrink: float) -> list[tuple[int, int, int]]:
    """Stretches (begin, end, width) of an epoch: `count` holds each lane's number of steps, most first.

    As lanes finish, the width falls, but each time by the factor `shrink`, since every new width has to be traced.
    """
    widths = [len(count)]
    while widths[-1] > 4:
        widths.append(math.ceil(widths[-1] * shrink))
    parts, begin = [], 0
    for width, smaller in zip(widths, [*widths[1:], 0], strict=True):
        # with this width until all lanes beyond the next smaller one have finished
        end = int(count[smaller]) if smaller < len(count) and smaller > 0 else int(count[0])
        if end > begin:
            parts.append((begin, end, width))
            begin = end
    return parts


def portions(n: np.ndarray, row_bytes: int) -> list[tuple[slice, int]]:
    """Slices of lanes (sorted by rows, most first) with a padded width each: at most half of it padding, and not too
    much memory at once."""
    parts, begin = [], 0
    while begin < len(n):
        width = grid_up(int(n[begin]))
        most = max(1, PORTION_BYTES // (width * row_bytes))
        end = begin + int(np.searchsorted(-n[begin : begin + most], -(width // 2), side="right"))
        end = max(end, begin + 1)
        parts.append((slice(begin, end), width))
        begin = end
    return parts


def grid_up(n: int) -> int:
    """The next number on the grid 1, 2, ..., 8, 10, 12, 14, 16, 20, 24, ...: at most a quarter more.

    Padded sizes lie on it, so that rounds with other clients meet the same shapes again.
    """
    if n <= 8:
        return max(n, 1)
    unit = 2 ** (int(math.log2(n - 1)) - 2)
    return -(-n // unit) * unit
