"""FedNova: Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS
2020.

client k:  tau_k steps from theta;  Delta_k = theta_k - theta is -eta times a sum of gradients with total weight

    a_k = tau_k                                                   SGD
    a_k = (tau_k - rho (1 - rho^tau_k) / (1 - rho)) / (1 - rho)   with momentum rho
    a_k = (1 - (1 - eta mu)^tau_k) / (eta mu)                     with a proximal term (mu/2) ||theta_k - theta||^2

server:    theta <- theta + tau sum_k (n_k / n) Delta_k / a_k,    tau = sum_k (n_k / n) a_k

So clients are weighted by their rows, not by their rows times their steps. With equal a_k it is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from equifed import tree
from equifed.errors import ConfigError
from equifed.methods._drift import local_steps
from equifed.methods.fedavg import BY_ROWS, MEAN_UPDATE
from equifed.methods.fedprox import keep_centre
from equifed.methods.hyper import hyper
from equifed.protocol import Bound, Data, EmpiricalRisk, LocalTraining, Method, OfRows, Phase, Record, Task
from equifed.tree import Tree

MANY_BATCHES = 1e5
"""Number of batches per epoch up to which clients are not compared: a million rows in batches of ten."""


@dataclass(frozen=True)
class FedNova(Method):
    """Average the clients' updates per local step, so that clients with more steps do not count more."""

    name: ClassVar[str] = "fednova"
    reveals: ClassVar[str] = f"{MEAN_UPDATE}; the mean number of local steps"

    mu: float = hyper(0.0, low=0)
    """Weight of a proximal term, as in FedProx; only for SGD without momentum."""

    @property
    def round(self) -> tuple[Phase, ...]:
        train = LocalTraining(self.reply, EmpiricalRisk(mu=self.mu), keep_centre)
        bounds = {"steps": Bound(0, per_row=OfRows(most_gradients), alike=many_gradients)}
        up, places = ("update", "steps", "rows"), {"steps": 16}
        return (Phase("train", ("theta",), up, train, step, "sum", bounds=bounds, updates=BY_ROWS, places=places),)

    def check(self, task: Task) -> None:
        local, mu = task.local, float(self.mu)
        if local.optimizer != "sgd":
            raise ConfigError(
                f"{self.name} divides a client's update by the total weight of its gradients, which is unknown for "
                "Adam. Train locally with optimizer = sgd, with or without momentum; for Adam at the server use "
                "fednova@adam."
            )
        if mu and local.momentum:
            text = f"needs SGD without momentum, and the momentum is {local.momentum:g}. Set one of them to 0."
            raise ConfigError(text, key="mu", value=mu)
        fastest = local.largest_rate(task.rounds)
        if mu * fastest >= 1:
            text = f"times the learning rate, {fastest:g}, must be below 1: steps would overshoot. Reduce one of them."
            raise ConfigError(text, key="mu", value=mu)

    def reply(self, parameters: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
        a = self.weight_of_gradients(local_steps(data), data)
        # n_k Delta_k / a_k and n_k a_k; a_k is 1 or more with rows, and 0 without
        update = tree.scale(tree.sub(parameters, down["theta"]), data.n / a.clamp_min(1))
        return {"update": update, "steps": data.n * a, "rows": data.n}, state

    def weight_of_gradients(self, tau: Tensor, data: Data) -> Tensor:
        """Return a_k."""
        rho = data.task.local.momentum
        if rho:
            return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
        # expm1 and log1p are exact for small eta mu
        pull = torch.as_tensor(data.learning_rate * self.mu, dtype=tau.dtype, device=tau.device)
        held = -torch.expm1(tau * torch.log1p(-pull)) / torch.where(pull > 0, pull, 1.0)
        return torch.where(pull > 0, held, tau)


def most_gradients(task: Task, rows: np.ndarray) -> np.ndarray:
    """Return a_k of a client with `rows` rows without a proximal term; with one it is smaller."""
    local = task.local
    batches = np.ones(np.shape(rows)) if local.batch_size is None else np.ceil(rows / local.batch_size)
    return local.epochs * batches / (1 - local.momentum)


def many_gradients(task: Task) -> float:
    """Return the a_k up to which clients are not compared. A limit is needed because the server multiplies the mean
    update by a_k, and clients report their own numbers of rows."""
    return MANY_BATCHES * task.local.epochs / (1 - task.local.momentum)


def step(server: Any, replies: Record, validation: Data | None) -> Any:
    # theta <- theta + (sum_k n_k a_k / n) (sum_k n_k Delta_k / a_k) / n; nothing moves when no client has rows
    n = replies["rows"].clamp_min(1)
    return server._replace(theta=tree.add_scaled(server.theta, replies["update"], replies["steps"] / n / n))
