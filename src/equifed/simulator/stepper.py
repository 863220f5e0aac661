"""Local training of many lanes: which way its steps are carried out.

- fused: each lane's whole training in one compiled loop, for networks and losses of a known form (`fused`);
- traced, compiled: a step of all lanes at once as tensor operations (`traced`), for any model and loss;

The choice depends only on the job and the phase, never on what ran before, so a resumed run takes the same path and
gives the same bits.
"""

from __future__ import annotations

from equifed.errors import ConfigError
from equifed.notes import NOT_FUSED, Note
from equifed.simulator.apart import Apart
from equifed.simulator.fused.training import Fused
from equifed.simulator.job import Job
from equifed.simulator.lane_steps import LaneTraining
from equifed.simulator.tables import Tables
from equifed.simulator.traced import Traced
from equifed.tree import Tree


class Stepper:
    def __init__(self, job: Job, tables: Tables, notes: list[Note]) -> None:
        self.job, self._notes = job, notes
        self._fused, self._traced = Fused(job, tables), Traced(job, tables, notes)
        self._apart = Apart(job, tables)

    def train(self, work: LaneTraining, parameters: Tree) -> tuple[Tree, Tree]:
        """All epochs of all lanes, from these parameters: the trained ones, and the context of the last epoch."""
        if not work.lanes.n.any():
            return parameters, work.context
        wanted, obstacle = self.job.settings.kernel, self._fused.obstacle(work, parameters)
        if wanted == "fused" and obstacle:
            text = f"cannot be 'fused' for {self.job.method.name}, phase {work.name!r}: {NOT_FUSED[obstacle]}."
            raise ConfigError(text, key="kernel", value=wanted)
        fused = wanted in ("auto", "fused") and not obstacle
        if wanted == "clients":
            return self._apart.train(work, parameters)
        kernel = "fused" if fused else "compiled" if wanted == "compiled" else "traced"
        note = Note("kernel", {"phase": work.name, "kernel": kernel} | ({"obstacle": obstacle} if obstacle else {}))
        if note not in self._notes:
            self._notes.append(note)
        return (self._fused if fused else self._traced).train(work, parameters)
