"""Local training: optimisers, and its meaning as a value that one client can call and the simulator can vectorise."""

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
    t: Tensor
    """Steps taken."""
    m: Tree
    """First moment."""
    v: Tree
    """Second moment."""


def optimizer_start(local: Local, parameters: Tree) -> Tree:
    """The optimiser's state before the first step."""
    if local.optimizer == "adam":
        zeros = tree.zeros_like(parameters)
        return AdamState(tree.zeros(parameters), zeros, zeros)
    return tree.zeros_like(parameters) if local.momentum else ()


def optimizer_step(
    local: Local, parameters: Tree, gradient: Tree, state: Tree, rate: Tensor | float
) -> tuple[Tree, Tree]:
    """One step of the optimiser; pure."""
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
    """What a client's training starts from."""

    parameters: Tree
    """The parameters that are trained."""
    context: Tree = ()
    """What the loss needs besides them: a proximal centre, multipliers."""
    per_row: dict[str, Tensor] = {}  # noqa: RUF012
    """Values for each of the client's rows, e.g. weights; a batch gets those of its rows in `batch.per_row`."""


def start_from_theta(down: Record, state: Tree, data: Data) -> Start:
    """Train the global model as it came down."""
    return Start(down["theta"])


@dataclass(frozen=True)
class EmpiricalRisk:
    """The loss that most local training descends, declared by its parts so that an engine can recognise it:

        (1/B) sum_i w_i loss_i(theta)  +  (mu/2) ||theta - c||^2  +  <g, theta>

    Calling it is its meaning. Which terms there are is fixed; numbers in them may be tensors, one per run of a sweep.
    """

    weights: str | None = None
    """Name of w among the values per row; none: w = 1."""
    mu: Tensor | float | None = None
    """Weight of the proximal term; none: there is no such term."""
    centre: str = "centre"
    """Name of c in the context, a tree like theta, where there is a proximal term."""
    linear: str | None = None
    """Name of g in the context, a tree like theta; none: there is no such term."""
    models: bool = False
    """theta holds several models along a leading axis [M, ...], with w [n, M]; their losses are summed."""

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
"""(1/B) sum_i loss_i."""

Finish = Callable[[Tree, "Record", Tree, "Data", Tree], "tuple[Record, Tree]"]
"""(trained parameters, down, client state, data, context) -> (reply, client state)."""


@dataclass(frozen=True)
class LocalTraining:
    """A client's work that trains locally, written as its three parts.

    Calling it with one client's data is the reference meaning; the simulator takes the parts and runs the steps of
    all clients at once. Both see the same batches, which are data, not drawn here.
    """

    finish: Finish
    """Makes the reply from the trained parameters."""
    loss: Callable[[Tree, Tree, Data], Tensor] = mean_loss
    """(parameters, context, batch) -> scalar: an `EmpiricalRisk`, or any other function."""
    prepare: Callable[[Record, Tree, Data], Start] = start_from_theta
    """(down, client state, data) -> where training starts."""
    resample: Callable[[Tree, Tree, Tensor, Data], tuple[Tree, Tensor]] | None = None
    """Before each epoch, (parameters, context, uniform random numbers [n], data) -> (context, rows [n]): the rows to
    train on in place of the client's own, each as often as it is named."""
    after_step: Callable[[Tree, Tree, Data], Tree] | None = None
    """After each step, (parameters, context, batch) -> parameters: a projection, or numbers that follow a rule of their
    own and not their gradient."""
    epochs: int | None = None
    """Passes over the rows, where they are other than those of `Local`."""
    scheduled: bool = True
    """Whether the step size follows the schedule of the rounds; False after the last of them, where a schedule may have
    left next to nothing: the learning rate itself."""

    def passes(self, local: Local) -> int:
        """Passes over the rows."""
        return local.epochs if self.epochs is None else self.epochs

    def stepped(
        self, local: Local, parameters: Tree, optimizer: Tree, context: Tree, batch: Data, rate: Tensor | float
    ) -> tuple[Tree, Tree]:
        """One step: the parameters and the optimiser's state after it."""
        slope = grad(self.loss)(parameters, context, batch)
        parameters, optimizer = optimizer_step(local, parameters, slope, optimizer, rate)
        return parameters if self.after_step is None else self.after_step(parameters, context, batch), optimizer

    def __call__(self, down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
        local = data.task.local
        parameters, context, per_row = self.prepare(down, state, data)
        optimizer = optimizer_start(local, parameters)
        steps = len(data.batches) // self.passes(local)
        chosen = None
        for number, rows in enumerate(data.batches):
            if self.resample is not None and number % steps == 0:
                context, chosen = self.resample(parameters, context, data.uniforms[number // steps], data)
            batch = data.batch(rows if chosen is None else chosen[rows], per_row)
            if data.dropout:
                batch = batch.replace(task=batch.task.in_step(data.dropout[number]))
            parameters, optimizer = self.stepped(local, parameters, optimizer, context, batch, data.learning_rate)
        return self.finish(parameters, down, state, data, context)
