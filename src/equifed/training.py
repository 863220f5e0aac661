"""Local training: optimisers, and the training itself as a value that one client can call and the simulator can
vectorise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor
from torch.func import vmap

from equifed import tree
from equifed.gradients import grad
from equifed.tree import Tree

if TYPE_CHECKING:
    from equifed.settings import Local
    from equifed.task import Data, Record


class AdamState(NamedTuple):
    """The state of Adam."""

    t: Tensor
    """Number of steps taken."""
    m: Tree
    """First moment."""
    v: Tree
    """Second moment."""


def init_optimizer(local: Local, parameters: Tree) -> Tree:
    """Return the optimiser's state before the first step."""
    if local.optimizer == "adam":
        zeros = tree.zeros_like(parameters)
        return AdamState(tree.zeros(parameters), zeros, zeros)
    return tree.zeros_like(parameters) if local.momentum else ()


def apply_optimizer(
    local: Local, parameters: Tree, gradient: Tree, state: Tree, rate: Tensor | float
) -> tuple[Tree, Tree]:
    """Return the parameters and the optimiser's state after one step."""
    if local.weight_decay:
        gradient = tree.add_scaled(gradient, parameters, local.weight_decay)
    if local.optimizer == "adam":
        return _adam(parameters, gradient, state, rate)
    if local.momentum:
        # u <- momentum u + g;  theta <- theta - rate u
        state = tree.map(lambda u, g: local.momentum * u + g, state, gradient)
        gradient = state
    return tree.map(lambda p, g: p - rate * g, parameters, gradient), state


def _adam(parameters: Tree, gradient: Tree, state: AdamState, rate: Tensor | float) -> tuple[Tree, Tree]:
    b1, b2, eps = 0.9, 0.999, 1e-8
    t = state.t + 1
    # m <- b1 m + (1-b1) g;  v <- b2 v + (1-b2) g^2;  theta <- theta - rate mhat / (sqrt(vhat) + eps)
    m = tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.m, gradient)
    v = tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.v, gradient)
    c1, c2 = 1 - b1**t, 1 - b2**t
    new = tree.map(lambda p, m, v: p - rate * (m / c1) / ((v / c2).sqrt() + eps), parameters, m, v)
    return new, AdamState(t, m, v)


class Start(NamedTuple):
    """The start of a client's training."""

    parameters: Tree
    """Parameters to train."""
    context: Tree = ()
    """Other inputs of the loss: a proximal centre, multipliers."""
    per_row: dict[str, Tensor] = {}  # noqa: RUF012
    """Values for each of the client's rows, e.g. weights; a batch gets those of its rows in `batch.per_row`."""


def start_from_theta(down: Record, state: Tree, data: Data) -> Start:
    """Start from the global model that the server sent."""
    return Start(down["theta"])


@dataclass(frozen=True)
class EmpiricalRisk:
    """The loss that most local training minimises, declared by its parts so that an engine can recognise it:

        (1/B) sum_i w_i loss_i(theta)  +  (mu/2) ||theta - c||^2  +  <g, theta>

    Calling it computes the loss. Its terms are fixed; numbers in them may be tensors, one per run of a sweep.
    """

    weights: str | None = None
    """Name of w among the values per row. None: w = 1."""
    mu: Tensor | float | None = None
    """Weight of the proximal term. None: without this term."""
    centre: str = "centre"
    """Name of c in the context, a tree like theta, for the proximal term."""
    linear: str | None = None
    """Name of g in the context, a tree like theta. None: without this term."""
    models: bool = False
    """True if theta holds several models along a leading axis [M, ...], with w [n, M]; their losses are summed."""

    def __call__(self, theta: Tree, context: Tree, batch: Data) -> Tensor:
        losses = batch.task.row_loss
        values = (vmap(losses, (0, None, None), 1) if self.models else losses)(theta, batch.x, batch.y)
        if self.weights is not None:
            values = batch.per_row[self.weights] * values
        risk = batch.mean(values.sum(1) if self.models else values)
        if self.mu is not None:
            risk = risk + self.mu / 2 * tree.squared_norm(tree.sub(theta, context[self.centre]))
        return risk if self.linear is None else risk + tree.dot(context[self.linear], theta)


mean_loss = EmpiricalRisk()
"""Mean loss of the rows, (1/B) sum_i loss_i."""

Finish = Callable[[Tree, "Record", Tree, "Data", Tree], "tuple[Record, Tree]"]
"""(trained parameters, down, client state, data, context) -> (reply, client state)."""


@dataclass(frozen=True)
class LocalTraining:
    """A client's local training, declared by its parts.

    Calling it with one client's data defines the result; the simulator takes the parts and runs the steps of all
    clients at once. Both see the same batches, which are data and not drawn here.
    """

    finish: Finish
    """Function that makes the reply from the trained parameters."""
    loss: Callable[[Tree, Tree, Data], Tensor] = mean_loss
    """(parameters, context, batch) -> scalar: an `EmpiricalRisk`, or any other function."""
    prepare: Callable[[Record, Tree, Data], Start] = start_from_theta
    """(down, client state, data) -> start of the training."""
    resample: Callable[[Tree, Tree, Tensor, Data], tuple[Tree, Tensor]] | None = None
    """Before each epoch, (parameters, context, uniform random numbers [n], data) -> (context, rows [n]): the rows to
    train on, with repetitions, instead of each row once."""
    after_step: Callable[[Tree, Tree, Data], Tree] | None = None
    """After each step, (parameters, context, batch) -> parameters: a projection, or an update that is not a gradient
    step."""
    epochs: int | None = None
    """Number of passes over the rows. Default: that of `Local`."""
    scheduled: bool = True
    """True if the step size follows the schedule of the rounds. False for training after the last round, where the
    schedule may have reduced it to almost nothing: the learning rate itself."""

    def passes(self, local: Local) -> int:
        """Return the number of passes over the rows."""
        return local.epochs if self.epochs is None else self.epochs

    def step(
        self, local: Local, parameters: Tree, optimizer: Tree, context: Tree, batch: Data, rate: Tensor | float
    ) -> tuple[Tree, Tree]:
        """Return the parameters and the optimiser's state after one step."""
        slope = grad(self.loss)(parameters, context, batch)
        parameters, optimizer = apply_optimizer(local, parameters, slope, optimizer, rate)
        return parameters if self.after_step is None else self.after_step(parameters, context, batch), optimizer

    def __call__(self, down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
        local = data.task.local
        parameters, context, per_row = self.prepare(down, state, data)
        optimizer = init_optimizer(local, parameters)
        steps = len(data.batches) // self.passes(local)
        chosen = None
        for number, rows in enumerate(data.batches):
            if self.resample is not None and number % steps == 0:
                context, chosen = self.resample(parameters, context, data.uniforms[number // steps], data)
            batch = data.batch(rows if chosen is None else chosen[rows], per_row)
            if data.dropout:
                batch = batch.replace(task=batch.task.in_step(data.dropout[number]))
            parameters, optimizer = self.step(local, parameters, optimizer, context, batch, data.learning_rate)
        return self.finish(parameters, down, state, data, context)
