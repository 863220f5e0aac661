"""Local training of many lanes: the choice of the way in which steps are carried out.

- fused: each lane's whole training in one compiled loop, for networks and losses of a known form (`fused`);
- clients: one lane after another, with torch's own operations for one client (`apart`), for any model and loss;
- traced, compiled: a step of all lanes at once as tensor operations (`traced`), for any model and loss.

The first and the second distribute lanes over threads. The choice depends only on the job and the phase, not on timings
or earlier runs, so that a resumed run takes the same path and gives the same bits.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import numpy as np

from equifed import tree
from equifed.errors import ConfigError
from equifed.notes import NOT_FUSED, Note
from equifed.protocol import EmpiricalRisk
from equifed.simulator.apart import Apart
from equifed.simulator.fused.training import Fused
from equifed.simulator.job import Job
from equifed.simulator.lane_steps import LaneTraining
from equifed.simulator.tables import Tables
from equifed.simulator.traced import Traced
from equifed.tree import Tree

APART_FROM = 5_000_000
"""Multiplications of a client's forward step from which all lanes at once are not faster than one after another:
torch's overhead per operation, some 0.3 ms, is then smaller than the cost of larger operations in memory."""
UNFUSED_FROM = 10_000_000
"""Multiplications of a client's forward step from which torch's products, in blocks that fit the cache, save more than
those 0.3 ms over the compiled loop."""
THREADS = 4
"""Threads that torch's operations keep busy at this size, because Python starts operations on one thread at a time.
With more threads a step must be larger in proportion."""

Way = Literal["fused", "clients", "traced", "compiled"]


class Stepper:
    """The choice between the ways of local training."""

    def __init__(self, job: Job, tables: Tables, notes: list[Note]) -> None:
        self.job, self.tables, self._notes = job, tables, notes
        self._fused, self._apart, self._traced = Fused(job, tables), Apart(job, tables), Traced(job, tables, notes)

    def train(self, work: LaneTraining, parameters: Tree) -> tuple[Tree, Tree]:
        """Train all lanes for all epochs; return the trained parameters and the last epoch's context."""
        if not work.lanes.n.any():
            return parameters, work.context
        way, obstacle = self._choose_way(work, parameters)
        note = Note("kernel", {"phase": work.name, "kernel": way} | ({"obstacle": obstacle} if obstacle else {}))
        if note not in self._notes:
            self._notes.append(note)
        path = self._fused if way == "fused" else self._apart if way == "clients" else self._traced
        return path.train(work, parameters)

    def _choose_way(self, work: LaneTraining, parameters: Tree) -> tuple[Way, str]:
        """Return the way of this training, and the obstacle to fusing it."""
        wanted, obstacle = self.job.settings.kernel, self._fused.obstacle(work, parameters)
        if wanted == "fused" and obstacle:
            text = f"cannot be 'fused' for {self.job.method.name}, phase {work.name!r}: {NOT_FUSED[obstacle]}."
            raise ConfigError(text, key="kernel", value=wanted)
        if wanted != "auto":
            return wanted, obstacle
        if self.job.device.type != "cpu":
            return "traced" if obstacle else "fused", obstacle
        products = self._count_products(work, parameters)
        if obstacle:
            return "clients" if products >= APART_FROM else "traced", obstacle
        # the loop for edge-popup works in blocks, too
        usual = isinstance(work.steps.work.loss, EmpiricalRisk)
        if usual and products >= UNFUSED_FROM * max(1, self.job.threads / THREADS):
            return "clients", "wide"
        return "fused", ""

    def _count_products(self, work: LaneTraining, parameters: Tree) -> float:
        """Return the multiplications of one client's forward step with one setting."""
        axes = 2 if work.steps.shared else 1
        trained = sum(leaf[(0,) * axes].numel() for leaf in tree.leaves(parameters))
        models = max(1.0, trained / sum(leaf.numel() for leaf in self.job.task.parameters.values()))
        return models * self._rows * self.job.row_products

    @cached_property
    def _rows(self) -> int:
        """Rows of a typical step: a batch, or the median client's rows if these are fewer."""
        typical, size = int(np.median(self.tables.sizes)), self.job.task.local.batch_size
        return typical if size is None else min(size, typical)
