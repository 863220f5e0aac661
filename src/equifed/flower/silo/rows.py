"""A silo's rows, and the work on them.

The silo opens a federation in which only it has rows, and the reference engine does its work as that of one client.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message

from equifed import tree
from equifed.bounds import is_finite
from equifed.data.encode import MAX_STANDARDISED
from equifed.errors import ConfigError
from equifed.flower.agreement import Scaling, Setting, codecs
from equifed.flower.records import FIELDS, SCALING, BadMessage, distrusting, unpack
from equifed.metrics.catalogue import measured, shown
from equifed.metrics.frame import overall
from equifed.metrics.scored import Scored
from equifed.protocol import VALIDATION, Record, Stage
from equifed.simulator import Evaluator, Job, Reference, make_tables
from equifed.simulator.engine import check_reply, sent


@dataclass(eq=False)
class OpenSilo:
    """One silo's rows, ready to work on."""

    setting: Setting
    name: str
    place: int
    """Position among the silos."""
    engine: Reference
    evaluator: Evaluator
    min_count: int
    """Counts below this number are withheld."""

    @classmethod
    def open(cls, setting: Setting, name: str, file: Path, scaling: Scaling | None, min_count: int) -> OpenSilo:
        job = setting.job(setting.view(silo=name, file=file), scaling)
        tables = make_tables(job)
        return cls(setting, name, setting.silos.index(name), Reference(job, tables), Evaluator(job, tables), min_count)

    @property
    def job(self) -> Job:
        return self.engine.job

    @property
    def before_first(self) -> Any:
        """A client's state before its first exchange."""
        return self.job.method.init_client(self.job.task, self.job.initial[0])

    def _on_device(self, values: Any) -> Any:
        return tree.map(lambda leaf: leaf.to(self.job.device), values)

    def received(self, message: Message, names: tuple[str, ...]) -> Record:
        """Read the server's fields of these names, with the shapes and types that they have before the first round."""
        job = self.job
        server = job.method.init(job.task, job.initial[0])
        try:
            expected = sent(job.method, server, self._like_validation(message), names)
            return unpack(message.content, FIELDS, expected, codecs(job.method))
        except BadMessage as error:
            raise ConfigError(f"the server's message {error}") from error

    def _like_validation(self, message: Message) -> Any:
        """Return the shapes and types of the server's validation rows, of which a message may have any number."""
        arrays, tables = message.content.get(FIELDS), self.engine.tables
        found = arrays.get(f"{VALIDATION}.0") if isinstance(arrays, ArrayRecord) else None
        with distrusting():
            rows = 0 if found is None else int(found.shape[0])
            x = tables.features(torch.zeros(0, dtype=torch.int64, device=tables.x.device), 0)
            kinds = (x, tables.y, tables.s, torch.ones(0))
            return tuple(values.new_zeros(()).cpu().expand(rows, *values.shape[1:]) for values in kinds)

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of training and test rows."""
        fed = self.job.federation
        assert fed.client_test is not None
        return len(fed.train[self.place]), len(fed.client_test[self.place])

    def sums(self) -> np.ndarray:
        """Return sums and sums of squares over its training rows, of the standardised inputs [2, d]."""
        fed = self.job.federation
        x = fed.rows.x[fed.train[self.place]][:, self.setting.scaled].astype(np.float64)
        return np.stack([x.sum(0), (x * x).sum(0)])

    def work(
        self, stage: Stage, position: int, down: Record, state: Any, round: int, hidden: bool
    ) -> tuple[Record, Any]:
        """Return its reply in a phase, and its new state. hidden: neither the reply nor a value that is out of bounds
        may be disclosed to the server."""
        phase, bounds = self.job.phases(stage)[position], self.engine.bounds(stage, position)
        down = self._on_device({name: down[name] for name in phase.down})
        with torch.no_grad():
            reply, state = self.engine.work(phase, down, self._on_device(state), 0, self.place, round)
        check_reply(self.job.method, phase, reply)
        if not is_finite(state):
            raise BadMessage("would leave NaN or Inf in the silo's state")
        _check_finite(reply)
        rows = int(self.engine.tables.sizes[0, self.place])
        wrong = bounds.find_problem(down, reply, rows)
        if wrong and hidden:
            field = bounds.find_impossible(down, reply, 1, rows)
            raise BadMessage(f"has {field} out of bounds (see the silo's log)") from BadMessage(wrong)
        if wrong:
            raise BadMessage(wrong)
        return reply, state

    def evaluated(self, down: Record, state: Any) -> Scored:
        """Count on its own test rows."""
        server = self.job.method.received(self._on_device(down))
        with torch.no_grad():
            scored = self.evaluator.own(server, self._on_device(state), self.place)
        if not (np.isfinite(scored.loss).all() and np.isfinite(scored.unknown_loss).all()):
            raise BadMessage("would have NaN or Inf in its evaluation: the model's predictions are not finite")
        return scored

    def log(self, scored: Scored) -> None:
        """Log its own metrics, which with secure sums only the silo knows."""
        metrics = [metric.name for metric in measured(self.job.federation) if metric.overall]
        values = overall([{"test": scored}], shown(metrics, "table"))
        text = ", ".join(f"{name} {float(value[0]):.3f}" for name, value in values.items() if np.isfinite(value[0]))
        logging.getLogger("flwr").info("equifed: this silo's own test rows: %s", text or "none")


def read_scaling(message: Message, inputs: int) -> Scaling | None:
    """Read the shift and factor of the inputs [d] from the server's message."""
    if SCALING not in message.content:
        return None
    like = {name: torch.zeros(inputs) for name in ("shift", "factor")}
    try:
        read = unpack(message.content, SCALING, like)
    except BadMessage as error:
        raise ConfigError(f"the server's message {error}") from error
    shift, factor = (read[name].numpy() for name in like)
    if not ((factor > 0) & (factor <= MAX_STANDARDISED) & (np.abs(shift) <= MAX_STANDARDISED)).all():
        raise ConfigError("the server's message standardises inputs by impossible numbers")
    return shift, factor


def _check_finite(reply: Record) -> None:
    """Raise `BadMessage` if a reply has NaN or infinity."""
    for name, leaf in tree.to_named(reply).items():
        if not leaf.isfinite().all():
            raise BadMessage(f"would have NaN or Inf in {name}: training has diverged (try a smaller learning rate)")
