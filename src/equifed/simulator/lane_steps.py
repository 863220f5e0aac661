"""Local training in lanes, independent of the way its steps are carried out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from equifed import randomness, tree
from equifed.protocol import Data, LocalTraining, Phase, Task
from equifed.simulator.lane_data import LaneInputs, Lanes
from equifed.training import init_optimizer
from equifed.tree import Tree

Batch = tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Tensor], Tree]
"""x, y, s and mask of a step's rows, the values per row, and the step's dropout key, () without dropout."""


@dataclass(frozen=True)
class LaneSteps:
    """The step of a phase's local training, for one lane and for many."""

    phase: Callable[[dict[str, Tensor]], Phase]
    """Function that returns the phase with given hyperparameters."""
    work: LocalTraining
    """The first run's work: its loss has the form of all runs'."""
    task: Task
    shared: bool
    """True if settings share lanes: parameters, context and hyperparameters then have leaves [L, V, ...]."""

    def start(self, parameters: Tree) -> Tree:
        """Return the values that steps change: (parameters, optimiser state), leaves [L, ...] or [L, V, ...]."""
        start: Callable[[Tree], Tree] = lambda one: init_optimizer(self.task.local, one)  # noqa: E731
        for _ in range(2 if self.shared else 1):
            start = vmap(start)
        return parameters, start(parameters) if tree.leaves(parameters) else ()

    def step(self, carry: Tree, context: Tree, inputs: LaneInputs, batch: Batch) -> Tree:
        """Carry out one step of any number of lanes; all leaves [L, ...]."""
        return vmap(self._lane)(carry, context, inputs, batch)

    def _lane(self, carry: Tree, context: Tree, inputs: LaneInputs, batch: Batch) -> Tree:
        if not self.shared:
            return self.one(carry, context, inputs, batch)
        x, y, s, mask, own, key = batch

        def setting(carry: Tree, context: Tree, hyper: dict[str, Tensor], own: dict[str, Tensor]) -> Tree:
            return self.one(carry, context, inputs._replace(hyper=hyper), (x, y, s, mask, own, key))

        return vmap(setting)(carry, context, inputs.hyper, own)

    def one(self, carry: Tree, context: Tree, inputs: LaneInputs, batch: Batch) -> Tree:
        """Carry out one step of one lane with one setting; this defines a step."""
        (parameters, optimizer), (x, y, s, mask, own, key) = carry, batch
        if inputs.scaling:
            x = (x - inputs.scaling[0]) * inputs.scaling[1]
        work: Any = self.phase(inputs.hyper).client
        task = self.task.in_step(key) if isinstance(key, Tensor) else self.task
        data = Data(x, y, s, mask, task, own, inputs.draws, inputs.client_group, learning_rate=inputs.rate)
        return work.step(self.task.local, parameters, optimizer, context, data, inputs.rate)

    def number(self, name: str, hyper: dict[str, Tensor]) -> Tensor:
        """Return a number of the declared loss, such as an `EmpiricalRisk`'s mu: a scalar, or [L] or [L, V] if
        swept."""

        def one(hyper: dict[str, Tensor]) -> Tensor:
            work: Any = self.phase(hyper).client
            value = getattr(work.loss, name)
            return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)

        for _ in range(next(iter(hyper.values())).dim() if hyper else 0):
            one = vmap(one)
        return one(hyper)


@dataclass(frozen=True)
class LaneTraining:
    """The local training of many lanes in one phase of one round."""

    place: tuple[str, int]
    """(stage, position), which together with the shapes identifies a prepared step."""
    name: str
    """The phase's name."""
    steps: LaneSteps
    context: Tree
    """Values of the loss other than the parameters, leaves [L, ...] or [L, V, ...]."""
    inputs: LaneInputs
    per_row: dict[str, Tensor]
    """Values of each lane's rows [L, n, ...], or [L, V, n, ...] if settings share the lane."""
    lanes: Lanes
    keys: Tensor
    """Keys of the lanes' row orders [L], int64 with the bits of a uint64; epoch e has `shuffle.fold(key, e)`."""
    dropout: np.ndarray | None
    """Dropout keys of the lanes' models [L], uint64; None without dropout. See `dropout_words`."""
    rate: float
    """Learning rate."""
    resample: Callable[[Tree, Tree, int], tuple[Tree, Tensor]] | None
    """Function called before each epoch: (parameters, context, epoch) -> (context, rows to train on [L, n])."""
    chosen: Tensor | None = None
    """Rows of this epoch [L, n], if they are resampled."""

    def part(self, lanes: slice) -> LaneTraining:
        """Return the training of some of the lanes."""
        context, inputs, per_row, keys = tree.take((self.context, self.inputs, self.per_row, self.keys), lanes)
        dropout = None if self.dropout is None else self.dropout[lanes]
        parts = {"context": context, "inputs": inputs, "per_row": per_row, "keys": keys, "dropout": dropout}
        return replace(self, lanes=self.lanes.part(lanes), **parts)

    def dropout_words(self, epoch: int, steps: range, lanes: slice) -> Tree:
        """Return the dropout keys of these steps of an epoch [T, L, 2]; () without dropout."""
        if self.dropout is None:
            return ()
        return torch.from_numpy(randomness.dropout_words(self.dropout[lanes], epoch, steps)).to(self.keys.device)

    @property
    def epochs(self) -> int:
        """Number of passes over the rows."""
        return self.steps.work.passes(self.steps.task.local)

    def stretches(self) -> list[range]:
        """Return ranges of epochs between which all lanes must be synchronised to resample rows."""
        epochs = self.epochs
        return [range(epochs)] if self.resample is None else [range(epoch, epoch + 1) for epoch in range(epochs)]

    def with_resampled_rows(self, parameters: Tree, epoch: int) -> LaneTraining:
        """Return the training with this epoch's rows and context."""
        if self.resample is None:
            return self
        context, chosen = self.resample(parameters, self.context, epoch)
        return replace(self, context=context, chosen=chosen)
