"""FedEM: Marfoq et al., Federated Multi-Task Learning under a Mixture of Distributions, NeurIPS 2021.

Each client's rows come from M underlying distributions, in its own proportions; each has a component model.

client k:  q_mi = pi_km exp(-loss_i(theta_m)) / sum_m' pi_km' exp(-loss_i(theta_m'))                          (E-step)
           pi_km <- mean over its rows of q_mi,  1/M at the start;  pi_k never leaves the client
           theta_km minimises  mean of q_mi loss_i(theta_km),  from theta_m,  for every m                     (M-step)
server:    theta_m <- sum_k (n_k / n) theta_km
predict:   client k:  sum_m pi_km p_m(x)

The components must start from different parameters: equal ones have equal q and stay equal.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from equifed import tree
from equifed.errors import EquifedWarning
from equifed.methods.fedavg import averaging, weighted_update
from equifed.methods.hyper import hyper
from equifed.protocol import Data, EmpiricalRisk, LocalTraining, Method, Phase, Record, Server, Start, Task
from equifed.tree import Tree


class Client(NamedTuple):
    pi: Tensor
    """pi_k [M], the client's mixture weights."""


@dataclass(frozen=True)
class FedEM(Method):
    """Learn component models together; every client predicts with its own mixture of them."""

    name: ClassVar[str] = "fedem"
    reveals: ClassVar[str] = (
        "the mean update of every component (for a component of a single silo, that silo's update); the number of rows"
    )
    personal: ClassVar[bool] = True

    components: int = hyper(3, low=1, high=1_000)
    """M, the number of component models."""

    @property
    def num_models(self) -> int:
        return self.components

    @property
    def round(self) -> tuple[Phase, ...]:
        return (averaging(LocalTraining(reply, EmpiricalRisk("q", models=True), start)),)

    def init(self, task: Task, parameters: Tree) -> Any:
        warn_if_equal(self.name, parameters)
        return Server(parameters)

    def init_client(self, task: Task, parameters: Tree) -> Any:
        return Client(uniform(parameters))

    def predict(self, task: Task, server: Server, client: Client, x: Tensor) -> Tensor:
        return torch.tensordot(client.pi, vmap(task.predict, (0, None))(server.theta, x), dims=1)

    def adapt(self, task: Task, server: Any, data: Data, steps: int) -> Any:
        """Return pi of a client that was not in the training, after E-steps with fixed components."""
        losses, pi = component_losses(server.theta, data), uniform(server.theta)
        for _ in range(steps):
            pi = data.mean(posterior(losses, pi))
        return Client(pi)


def uniform(theta: Tree) -> Tensor:
    """Return 1/M for each component along the leading axis."""
    M = tree.length(theta)
    return tree.zeros(theta, M) + 1 / M


def warn_if_equal(name: str, theta: Tree) -> None:
    """Warn if components have the same initial parameters."""
    flat = torch.cat([leaf.flatten(1) for leaf in tree.leaves(theta)], 1)
    different = len(torch.unique(flat, dim=0))
    if different < len(flat):
        warnings.warn(
            f"{name}: only {different} of {len(flat)} component models start from different parameters; equal ones "
            "stay equal. Give initial_parameters with a leading axis of different components, or a model that is "
            "initialised at random (a function that makes a new module, not a module).",
            EquifedWarning,
            stacklevel=2,
        )


def component_losses(theta: Tree, data: Data) -> Tensor:
    """Return loss_i(theta_m) [n, M]."""
    losses: Tensor = vmap(data.task.row_loss, (0, None, None), 1)(theta, data.x, data.y)
    return losses


def posterior(losses: Tensor, pi: Tensor) -> Tensor:
    """Return q [n, M]: the probability that a row comes from each component."""
    # q_mi = pi_m exp(-loss_mi), normalised over m; softmax is far quicker over a leading axis
    return torch.softmax(pi.log()[:, None] - losses.T, 0).T


def e_step(theta: Tree, pi: Tensor, data: Data) -> tuple[Tensor, Tensor]:
    """Return q [n, M] and the new pi [M] of a client."""
    q = posterior(component_losses(theta, data), pi)
    # pi_km <- (1/n_k) sum_i q_mi; a client without rows keeps its own
    return q, torch.where(data.n > 0, data.mean(q), pi)


def start(down: Record, state: Client, data: Data) -> Start:
    q, pi = e_step(down["theta"], state.pi, data)
    return Start(down["theta"], context=Client(pi), per_row={"q": q})


def reply(theta: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
    """Reply as in FedAvg; the client keeps the context."""
    return weighted_update(theta, down, state, data, context)[0], context
