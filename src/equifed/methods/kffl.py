"""KFFL: Arif et al., Group Fair Federated Learning via Stochastic Kernel Regularization, TMLR 2025.

Three exchanges per round:

fair1:  client i:  n_i, sum Z_s, sum Z_f, Z_s'Z_f  at theta                    (see kernels.py)
        server:    mu_s = sum Z_s / n,  mu_f = sum Z_f / n,  G = sum Z_s'Z_f - n mu_s mu_f'
fair2:  client i:  grad of h_i(theta) = < G, (Z_s - 1 mu_s')' Z_f(theta) >,   G and mu_s held fixed
        server:    theta_half = theta - alpha lambda (2 / (n-1)^2) sum_i grad h_i = theta - alpha lambda grad psi
train:  client i:  minimises  mean loss + ||theta - theta_half||^2 / (2 alpha)  from theta_half
        server:    theta <- sum_i (n_i / n) theta_i

In all three, the server needs only sums over the clients. Rows of unknown group are in the loss and its n_i, but not in
Z_s, Z_f and the n of `fair1`.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.errors import ConfigError, EquifedWarning
from equifed.gradients import grad
from equifed.methods._cells import over_rows
from equifed.methods._kernels import feature_draws, outputs, phi
from equifed.methods.fedavg import ALONE, MEAN_UPDATE, apply_mean_update, averaging
from equifed.methods.hyper import hyper
from equifed.protocol import (
    Bound,
    Data,
    EmpiricalRisk,
    Knob,
    LocalTraining,
    Method,
    Phase,
    Record,
    Start,
    Task,
    notions,
)
from equifed.tree import Tree

BOUNDS = {
    "sum_s": Bound(per_row=math.sqrt(2)),
    "sum_f": Bound(per_row=math.sqrt(2)),
    "sum_sf": Bound(per_row=2.0),
    "gradient": Bound(per_row=1e9, alike=1.0),
}
"""Bounds: ||phi(a)||^2 = (2/D) sum cos^2 is at most 2. A row's term of the gradient grows with G, that is with all
rows."""
PLACES = {"gradient": 16}
"""Binary places that give secure sums room for gradients of 100 million rows. The server divides them by the square of
the number of all rows."""


class Server(NamedTuple):
    theta: Tree
    """theta, the global model."""
    half: Tree
    """theta_half, after the fairness step."""
    G: Tensor
    """G [D, D], cross-covariance of the features, times n."""
    mu_s: Tensor
    """mu_s [D], mean feature of the sensitive attribute."""
    n: Tensor
    """n, number of rows over which G was summed."""
    t: Tensor
    """t, number of rounds with statistics so far."""


class Client(NamedTuple):
    theta: Tree
    """theta as received in fair1, so that it is not sent again in fair2."""


@dataclass(frozen=True)
class KFFL(Method):
    """Step down the gradient of a kernel measure of dependence, computed from sums, then train close to that point."""

    name: ClassVar[str] = "kffl"
    reveals: ClassVar[str] = (
        f"{MEAN_UPDATE}; the sizes of the groups, exactly, and roughly the distribution of their predictions: {ALONE}"
    )
    parent: ClassVar[str] = "fedprox"
    knob: ClassVar[Knob | None] = Knob(
        "fairness_weight",
        1.0,
        1000.0,
        notions(demographic_parity={"condition_on": None}, equal_opportunity={"condition_on": "label"})
        | {"ks_distance": {"condition_on": None}, "mean_difference": {"condition_on": None}},
        neutral=0.0,
    )

    fairness_weight: float = hyper(1.0, low=0, vanishes=True)
    """lambda: weight of the dependence between prediction and sensitive attribute; 0 gives FedProx with
    mu = 1/step_size."""
    features: int = hyper(10, low=1, high=100_000)
    """D, number of random features of each of the two kernels."""
    kernel_width: float = hyper(1.0, low=1e-6)
    """sigma of the Gaussian kernels."""
    step_size: float = hyper(10.0, low=1e-6)
    """alpha: step of the fairness gradient, and inverse weight of the proximal term of local training."""
    redraw: Literal["round", "once"] = hyper("round", choices=("round", "once"))
    """Random features: new ones every "round", or drawn "once" for the whole run."""
    condition_on: Literal["label"] | None = hyper(None, choices=(None, "label"))
    """Rows of the dependence: "label" for those of class 1 (equal opportunity), None for all rows (demographic
    parity)."""

    @property
    def round(self) -> tuple[Phase, ...]:
        draws = feature_draws(self.features, self.redraw)
        statistics = ("n", "sum_s", "sum_f", "sum_sf")
        gradient, step = ("gradient",), self.fairness_step
        return (
            Phase("fair1", ("theta",), statistics, self.statistics, self.combine, "sum", draws, bounds=BOUNDS),
            Phase("fair2", ("G", "mu_s"), gradient, self.gradient, step, "sum", draws, bounds=BOUNDS, places=PLACES),
            self.train,
        )

    @property
    def train(self) -> Phase:
        proximal = EmpiricalRisk(mu=1 / torch.as_tensor(self.step_size))
        return averaging(LocalTraining(weighted_step, proximal, from_half), apply_to_half, down=("half",))

    def check(self, task: Task) -> None:
        if self.condition_on == "label" and (task.kind == "regression" or task.num_classes != 2):
            raise ConfigError("is 'label', which needs two classes; leave it at None.", key="condition_on")
        if task.kind == "regression" and self.step_size > 1:
            warnings.warn(
                f"{self.name}: with step_size {self.step_size:g} a regression, which has unbounded predictions, is "
                "likely to diverge or to lose accuracy. Try 0.03 to 0.1 with more rounds.",
                EquifedWarning,
                stacklevel=2,
            )

    def init(self, task: Task, parameters: Tree) -> Server:
        D, zeros = self.features, partial(tree.zeros, parameters)
        return Server(parameters, parameters, zeros(D, D), zeros(D), zeros(), zeros())

    def init_client(self, task: Task, parameters: Tree) -> Any:
        return Client(parameters)

    # -- fair1 ---------------------------------------------------------------------------------------------------------

    def statistics(self, down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
        return self.sums(down["theta"], data), Client(down["theta"])

    def sums(self, theta: Tree, data: Data) -> Record:
        """Return n_i, sum Z_s, sum Z_f, Z_s'Z_f."""
        rows = self.measured_rows(data)
        zs = rows.masked(phi(rows.sensitive, rows.draws["phi_s"], self.kernel_width))
        zf = rows.masked(phi(outputs(theta, rows), rows.draws["phi_f"], self.kernel_width))
        return {"n": rows.n, "sum_s": zs.sum(0), "sum_f": zf.sum(0), "sum_sf": over_rows(zs.T, zf)}

    def measured_rows(self, data: Data) -> Data:
        """Return the rows on which the dependence is measured."""
        return data.known.where(data.y == 1) if self.condition_on == "label" else data.known

    @staticmethod
    def combine(server: Server, replies: Record, validation: Data | None) -> Server:
        n, t = replies["n"].clamp_min(1), server.t + 1
        mu_s, mu_f = replies["sum_s"] / n, replies["sum_f"] / n
        # G = sum Z_s'Z_f - n mu_s mu_f'
        return server._replace(G=replies["sum_sf"] - n * torch.outer(mu_s, mu_f), mu_s=mu_s, n=n, t=t)

    # -- fair2 ---------------------------------------------------------------------------------------------------------

    def gradient(self, down: Record, state: Client, data: Data) -> tuple[Record, Tree]:
        return {"gradient": self.slope(state.theta, down["G"], down["mu_s"], data)}, state

    def slope(self, theta: Tree, G: Tensor, mu_s: Tensor, data: Data) -> Tree:
        """Return the gradient of h_i(theta) = < G, (Z_s - 1 mu_s')' Z_f(theta) >, which is the sum over rows of
        < (z_s - mu_s) G, z_f(theta) >."""
        rows = self.measured_rows(data)
        weight = (phi(rows.sensitive, rows.draws["phi_s"], self.kernel_width) - mu_s) @ G

        def h(theta: Tree) -> Tensor:
            zf = phi(outputs(theta, rows), rows.draws["phi_f"], self.kernel_width)
            return rows.sum((weight * zf).sum(1))

        return grad(h)(theta)

    def fairness_step(self, server: Server, replies: Record, validation: Data | None) -> Server:
        # theta_half = theta - alpha lambda (2 / (n-1)^2) sum_i grad h_i
        scale = self.step_size * self.fairness_weight * 2 / (server.n - 1).clamp_min(1) ** 2
        return server._replace(half=tree.add_scaled(server.theta, replies["gradient"], -scale))

    def observe(self, server: Server) -> dict[str, Tensor]:
        # psi = ||G||^2 / (n-1)^2
        return {"dependence": server.G.square().sum() / (server.n - 1).clamp_min(1) ** 2}


def from_half(down: Record, state: Tree, data: Data) -> Start:
    return Start(down["half"], context={"centre": down["half"]})


def weighted_step(parameters: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
    """Reply n_i (theta_i - theta_half) and n_i."""
    return {"update": tree.scale(tree.sub(parameters, down["half"]), data.n), "rows": data.n}, state


def apply_to_half(server: Server, replies: Record, validation: Data | None) -> Any:
    # theta <- theta_half + sum_i n_i (theta_i - theta_half) / sum_i n_i
    return apply_mean_update(server._replace(theta=server.half), replies, validation)
