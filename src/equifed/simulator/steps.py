"""Local training of many lanes: the step loop, outside vmap, with the step traced or compiled.

How a step is run (eagerly, traced, compiled) depends only on the job and the round, never on what ran before, so a
resumed run takes the same path and gives the same bits.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from equifed import tree
from equifed.simulator.cuda import CudaSteps
from equifed.simulator.job import Job
from equifed.simulator.plan import Batches
from equifed.simulator.tables import Tables
from equifed.tree import Tree

if TYPE_CHECKING:
    from equifed.simulator.lanes import Lanes

TRACE_FROM = 100
"""Steps of one shape in the whole job from which tracing it (about 0.1 s) pays."""
COMPILE_FROM = 40_000
"""Steps in the whole job from which compiling (some 10 s the first time, 1 s for each width later) pays."""
COMPILE_WORK = 400_000
"""Multiplications per layer and step above which compiling no longer helps: the time is spent in them."""

Step = Callable[..., list[Tensor]]
"""One step of all lanes."""
Run = Callable[[list[Tensor], list[Tensor], tuple[Tensor, Tensor, Tensor], Tensor], list[Tensor]]
"""(carry, what stays the same, (rows, own, filled) of each step, rate) -> carry after all these steps."""


class Stepper:
    def __init__(self, job: Job, tables: Tables, notes: list[str]) -> None:
        self.job, self.tables, self.notes = job, tables, notes
        self._ready: dict[Any, Run] = {}

    def train(
        self,
        phase: tuple[str, int],
        step: Step,
        carry: list[Tensor],
        fixed: Tree,
        per_row: dict[str, Tensor],
        lanes: Lanes,
        sources: Sequence[Batches],
        round: int,
    ) -> list[Tensor]:
        """All epochs of all lanes: `carry` holds parameters and optimiser state, leaves [L, ...]."""
        local = self.job.task.local
        size = local.batch_size or grid_up(int(lanes.n[0]))
        count = -(-lanes.n // size)
        if not count.any():
            return carry
        rate = torch.tensor(local.rate(max(round, 1)), dtype=torch.float32, device=self.job.device)
        for _ in range(local.epochs):
            positions = [source.epoch() for source in sources]
            carry = self._epoch(phase, step, carry, fixed, per_row, lanes, positions, size, count, rate)
        return carry

    def _epoch(
        self,
        phase: tuple[str, int],
        step: Step,
        carry: list[Tensor],
        fixed: Tree,
        per_row: dict[str, Tensor],
        lanes: Lanes,
        positions: list[np.ndarray],
        size: int,
        count: np.ndarray,
        rate: Tensor,
    ) -> list[Tensor]:
        own, rows, filled = self._batches(lanes, positions, size, int(count[0]))
        # a compiled step is quick but each width takes seconds to compile: use fewer of them
        shrink = 0.5 if self._worth_compiling(carry, size) else 0.7
        idle = bool(count[-1] < count[0])
        for begin, end, width in segments(count, shrink):
            rest = tree.map(lambda leaf, width=width: leaf[:width].contiguous(), (fixed, per_row))
            work = [leaf[:width].contiguous() for leaf in carry]
            example = (work, *rest, rows[begin, :width], own[begin, :width], filled[begin, :width], rate)
            run = self._prepared(phase, step, example, size, idle, end - begin)
            batches = (rows[begin:end, :width], own[begin:end, :width], filled[begin:end, :width])
            work = run(work, tree.leaves(rest), batches, rate)
            carry = [
                new if width == len(leaf) else torch.cat([new, leaf[width:]])
                for new, leaf in zip(work, carry, strict=True)
            ]
        return carry

    def _batches(
        self, lanes: Lanes, positions: list[np.ndarray], size: int, steps: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One epoch of all lanes: each row's position within its client and in the tables [T, L, B], and how many of
        the B are rows [T, L]. Beyond them the client's first row stands in, with mask 0."""
        own = np.zeros((len(lanes), steps * size), dtype=np.int32)
        for lane, order in enumerate(positions):
            own[lane, : len(order)] = order
        begin = torch.from_numpy(lanes.start.astype(np.int32)).to(self.job.device)
        places = torch.from_numpy(own).to(self.job.device)
        rows = self.tables.index[(places + begin[:, None]).clamp_(max=len(self.tables.index) - 1)]
        left = lanes.n[None, :] - np.arange(steps)[:, None] * size
        filled = torch.from_numpy(np.clip(left, 0, size).astype(np.int32)).to(self.job.device)

        def by_step(values: Tensor) -> Tensor:
            return values.view(len(lanes), steps, size).transpose(0, 1).contiguous()

        return by_step(places), by_step(rows), filled

    def _prepared(
        self, phase: tuple[str, int], step: Step, example: tuple[Any, ...], size: int, idle: bool, steps: int
    ) -> Run:
        """A function that carries out the steps of a segment, as fast as is worth the preparation."""
        values, structure = tree.flatten(example)
        whole = self._whole_step(step, size, idle)

        def flat(*values: Tensor) -> list[Tensor]:
            return whole(*tree.unflatten(values, structure))

        if steps * self.job.task.local.epochs * self.job.rounds < TRACE_FROM:
            return one_by_one(flat)
        key = (phase, size, idle, tuple(value.shape for value in values))
        if key not in self._ready:
            traced = self._traced(flat, values, example[0], size)
            on_gpu = self.job.device.type == "cuda"
            self._ready[key] = CudaSteps(traced) if on_gpu else one_by_one(traced)
        return self._ready[key]

    def _whole_step(self, step: Step, size: int, idle: bool) -> Step:
        """A step from row positions to new parameters. `idle`: some lanes have finished and must not move."""
        tables = self.tables

        def whole(
            carry: list[Tensor],
            fixed: Tree,
            per_row: dict[str, Tensor],
            rows: Tensor,
            own: Tensor,
            filled: Tensor,
            rate: Tensor,
        ) -> list[Tensor]:
            width = rows.shape[0]
            flat = rows.reshape(-1)
            x = tables.x.index_select(0, flat).view(width, size, *tables.x.shape[1:])
            y = tables.y.index_select(0, flat).view(width, size)
            s = tables.s.index_select(0, flat).view(width, size)
            mask = (torch.arange(size, device=rows.device) < filled[:, None]).to(torch.float32)
            lane = torch.arange(width, device=rows.device)[:, None]
            extra = {name: values[lane, own] for name, values in per_row.items()}
            new = step(carry, fixed, (x, y, s), mask, extra, rate)
            moved = tree.where(filled > 0, new, carry) if idle else new
            return [leaf.contiguous() for leaf in moved]  # the next step expects the layout it was prepared for

        return whole

    def _traced(self, flat: Step, values: list[Tensor], carry: list[Tensor], size: int) -> Step:
        """The step as a plain list of tensor operations: what vmap and grad do in Python is done once, here."""
        from torch.fx.experimental.proxy_tensor import make_fx

        graph = make_fx(flat)(*values)
        graph.graph.eliminate_dead_code()
        graph.recompile()
        if not self._worth_compiling(carry, size):
            return graph
        try:
            from torch import _inductor

            # straight to the compiler: torch.compile would check its guards at every step, which costs as much again
            compiled: Step = _inductor.compile(graph, [*values])
            compiled(*values)
        except Exception as error:  # a broken compiler must not cost the run
            self._note(f"Compiling the training step failed ({type(error).__name__}); it runs uncompiled, and slower.")
            return graph
        return compiled

    def _worth_compiling(self, carry: list[Tensor], size: int) -> bool:
        if self.job.compile is not None:
            return self.job.compile
        if self.job.device.type != "cpu":
            return False
        local, sizes = self.job.task.local, self.tables.sizes
        typical = int(np.median(sizes.max(1))) if local.batch_size else 1
        planned = -(-typical // size) * local.epochs * self.job.rounds
        effort = size * sum(leaf.numel() for leaf in carry)
        if planned < COMPILE_FROM or effort > COMPILE_WORK:
            return False
        if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
            self._note(
                "A C++ compiler would let this long run be compiled and go several times faster; none was found."
            )
            return False
        return True

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def one_by_one(step: Step) -> Run:
    def run(
        carry: list[Tensor], same: list[Tensor], batches: tuple[Tensor, Tensor, Tensor], rate: Tensor
    ) -> list[Tensor]:
        for rows, own, filled in zip(*batches, strict=True):
            carry = step(*carry, *same, rows, own, filled, rate)
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


def grid_up(n: int) -> int:
    """The next number on the grid 1, 2, ..., 8, 10, 12, 14, 16, 20, 24, ...: at most a quarter more.

    Padded sizes lie on it, so that rounds with other clients meet the same shapes again.
    """
    if n <= 8:
        return max(n, 1)
    unit = 2 ** (int(math.log2(n - 1)) - 2)
    return -(-n // unit) * unit
