"""FAIR-FATE: Salazar, Fernandes, Araujo and Abreu, Fair Federated Learning with Momentum, ICCS 2023.

F_0 = F(theta), F_k = F(theta_k)                          on the server's validation set
alpha_N = sum_k n_k Delta_k / sum_k n_k,                  Delta_k = theta_k - theta
alpha_F = sum_fair F_k Delta_k / sum_fair F_k,            fair = {k : F_k >= F_0}
beta_t  = beta0 (1 - t/T) / ((1 - beta0) + beta0 (1 - t/T))
v      <- beta_t v + (1 - beta_t) alpha_F
lambda_t = min(lambda0 (1 + rho)^t, lambda_max)
theta  <- theta + lambda_t v + (1 - lambda_t) alpha_N

A client that sees the server's validation rows can measure F_0 and F_k itself, so that the server needs only sums
(`summed`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from equifed import tree
from equifed.methods._cells import RATIOS, ratios
from equifed.methods._ties import compare
from equifed.methods.fedavg import BY_ROWS, MEAN_UPDATE
from equifed.methods.feddemon import decay_momentum
from equifed.methods.fedval import OWN_MODEL, own_model
from equifed.methods.hyper import hyper
from equifed.protocol import (
    VALIDATION,
    YES_OR_NO,
    Bound,
    Data,
    Knob,
    LocalTraining,
    Method,
    Phase,
    Record,
    Task,
    Update,
    notions,
    store_replies,
)
from equifed.tree import Tree


class Server(NamedTuple):
    theta: Tree
    """theta, the global model."""
    v: Tree
    """v, the fair momentum."""
    t: Tensor
    """t, number of rounds applied so far."""
    T: Tensor
    """T, number of planned rounds."""
    beta: Tensor
    """beta_t of the last round."""
    amount: Tensor
    """lambda_t of the last round."""
    fair: Tensor
    """Number of clients in the fair set of the last round."""
    undefined: Tensor
    """Number of clients left out of the fair set of the last round because F_k was undefined."""


@dataclass(frozen=True)
class FairFate(Method):
    """Move along the updates of the clients that are fairer than the global model, with momentum, more and more."""

    name: ClassVar[str] = "fair-fate"
    reveals: ClassVar[str] = (
        f"{MEAN_UPDATE}; the mean update and F_k of the fair silos and their number, but not their names: of a single "
        "fair silo, its update. The silos see the server's validation rows"
    )
    parent: ClassVar[str] = "fedavg"
    knob: ClassVar[Knob | None] = Knob(
        "lambda_max",
        0.0,
        1.0,
        notions(
            demographic_parity={"fairness": "demographic_parity_ratio"},
            equal_opportunity={"fairness": "equal_opportunity_ratio"},
            equalized_odds={"fairness": "average_odds_ratio"},
        ),
        scale="linear",
        neutral=0.0,
    )
    label_kinds: ClassVar[tuple[str, ...]] = ("binary",)
    needs_validation: ClassVar[bool] = True

    fairness: str | tuple[str, ...] = hyper("demographic_parity_ratio", choices=RATIOS, several=True)
    """F: the fairness metric, or the mean of several."""
    beta0: float = hyper(0.9, low=0, high=0.999)
    """Momentum of the first rounds."""
    rho: float = hyper(0.05, low=0)
    """Growth of lambda_t per round."""
    lambda0: float = hyper(0.1, low=0, high=1)
    """lambda at the start: the weight of the fair update relative to the plain one."""
    lambda_max: float = hyper(1.0, low=0, high=1, vanishes=True)
    """MAX, the largest lambda: the trade-off between fairness and accuracy; 0 gives FedAvg."""
    as_published: bool = False
    """True: the variant behind the paper's tables, as in its authors' code, instead of its Algorithm 1: F with the
    defects of their metrics and scaled to 0..1 over the round's models, F_k > F_0 strictly, v divided by
    1 - beta_t^t."""
    min_clients: int = hyper(1, low=1)
    """Smallest number of clients in a fair set; a smaller set counts as empty. With secure sums, 3 protects the updates
    of one or two clients."""

    @property
    def round(self) -> tuple[Phase, ...]:
        up = ("theta", "rows")
        return (Phase("train", ("theta",), up, LocalTraining(own_model), self.step, updates=OWN_MODEL),)

    @property
    def summed(self) -> Method | None:
        # F_k is scaled by the values of all clients
        return None if self.as_published else SummedFairFate(**self.hyper)

    def init(self, task: Task, parameters: Tree) -> Server:
        zero = tree.zeros(parameters)
        return Server(parameters, tree.zeros_like(parameters), zero, zero + task.rounds, zero, zero, zero, zero)

    def step(self, server: Server, replies: Record, validation: Data | None) -> Server:
        present = replies["present"]
        update = tree.map(lambda own, theta: own - theta, replies["theta"], server.theta)  # Delta_k

        # alpha_N = sum_k n_k Delta_k / sum_k n_k
        n = replies["rows"] * present
        alpha_n = tree.weighted_sum(update, n / n.sum().clamp_min(1))

        # alpha_F = sum_fair F_k Delta_k / sum_fair F_k; 0 if no client is fairer
        fair, weight, undefined = self.fair_set(server.theta, replies["theta"], present, validation)
        total = torch.where(fair.sum() >= self.min_clients, weight.sum(), 0.0)
        alpha_f = tree.weighted_sum(update, torch.where(total > 0, weight / total, torch.zeros_like(weight)))
        return self.move(server, alpha_n, alpha_f, fair.sum(), undefined)

    def move(self, server: Server, alpha_n: Tree, alpha_f: Tree, fair: Tensor, undefined: Tensor) -> Server:
        t = server.t + 1

        # v <- beta_t v + (1 - beta_t) alpha_F
        beta = decay_momentum(self.beta0, t, server.T)
        v = tree.map(lambda old, new: beta * old + (1 - beta) * new, server.v, alpha_f)

        # lambda_t = min(lambda0 (1 + rho)^t, MAX);  theta <- theta + lambda_t v + (1 - lambda_t) alpha_N
        amount = torch.clamp(self.lambda0 * (1 + self.rho) ** t, max=self.lambda_max)
        scale = amount / (1 - beta**t) if self.as_published else amount
        theta = tree.map(lambda p, f, a: p + scale * f + (1 - amount) * a, server.theta, v, alpha_n)
        return Server(theta, v, t, server.T, beta, amount, fair, undefined)

    def fair_set(
        self, theta: Tree, own: Tree, present: Tensor, validation: Data | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return True for clients at least as fair as the global model [K], their weights F_k [K], and the number of
        clients with undefined F_k."""
        assert validation is not None

        def F(model: Tree) -> Tensor:
            return ratios(model, validation, self.fairness, self.as_published)

        together = tree.map(lambda one, many: torch.cat([one[None], many]), theta, own)
        f = vmap(F)(together)
        f0, fk = f[0], f[1:]  # [M], [K, M]
        if self.as_published:
            f0, fk = scale_metrics(f0, fk, present)
        f0, fk = torch.nan_to_num(f0.mean(), nan=0.0), fk.mean(1)  # if F_0 is undefined, every defined F_k is fair
        defined = (present > 0) & ~fk.isnan()
        undefined = ((present > 0) & fk.isnan()).sum().to(present.dtype)
        ahead = compare(fk, f0)
        fair = defined & ((ahead > 0) if self.as_published else (ahead >= 0))
        return fair, torch.where(fair, fk, torch.zeros_like(fk)), undefined

    def observe(self, server: Server) -> dict[str, Tensor]:
        return {
            "lambda": server.amount,
            "beta": server.beta,
            "fair_clients": server.fair,
            "undefined_clients": server.undefined,
        }


@dataclass(frozen=True)
class SummedFairFate(FairFate):
    """FAIR-FATE with F_0 and F_k measured by the clients; with `min_clients` above 1, the fair set is counted first."""

    @property
    def round(self) -> tuple[Phase, ...]:
        down, sums, counts = ("theta", VALIDATION), ("update", "rows", "fair_update", "F"), ("fair", "undefined")
        updates = {**BY_ROWS, "fair_update": Update(weight="F")}
        bounds = {"F": Bound(0, 1), "fair": YES_OR_NO, "undefined": YES_OR_NO}
        if self.min_clients == 1:
            train = LocalTraining(self.finish)
            return (Phase("train", down, (*sums, *counts), train, self.add_up, "sum", bounds=bounds, updates=updates),)
        return (
            Phase("train", down, counts, LocalTraining(self.keep), store_replies, "sum", bounds=bounds),
            Phase("add", ("fair",), sums, self.add, self.add_up, "sum", bounds=bounds, updates=updates),
        )

    def init_client(self, task: Task, parameters: Tree) -> Tree:
        if self.min_clients == 1:
            return ()
        zeros, zero = tree.zeros_like(parameters), tree.zeros(parameters)
        return {"update": zeros, "rows": zero, "fair_update": zeros, "F": zero}

    def finish(self, parameters: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
        update = tree.sub(parameters, down["theta"])
        alone, validation = tree.map(lambda leaf: leaf[None], parameters), Data.of(down[VALIDATION], data.task)
        (fair,), (F,), undefined = self.fair_set(down["theta"], alone, data.mask.new_ones(1), validation)
        return {
            "update": tree.scale(update, data.n),
            "rows": data.n,
            "fair_update": tree.scale(update, F),
            "F": F,
            "fair": fair.to(F.dtype),
            "undefined": undefined,
        }, state

    def keep(self, parameters: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
        reply, _ = self.finish(parameters, down, state, data, context)
        counts = {name: reply.pop(name) for name in ("fair", "undefined")}
        return counts, reply

    def add(self, down: Record, state: Record, data: Data) -> tuple[Record, Tree]:
        enough = (down["fair"] >= self.min_clients).to(data.mask.dtype)
        return {**state, **{name: tree.scale(state[name], enough) for name in ("fair_update", "F")}}, state

    def add_up(self, server: Server, replies: Record, validation: Data | None) -> Server:
        alpha_n = tree.scale(replies["update"], 1 / replies["rows"].clamp_min(1))
        total = replies["F"]
        alpha_f = tree.scale(replies["fair_update"], torch.where(total > 0, 1 / total, torch.zeros_like(total)))
        counted = {**server._asdict(), **replies}
        return self.move(server, alpha_n, alpha_f, counted["fair"], counted["undefined"])

    def observe(self, server: Server) -> dict[str, Tensor]:
        summed = torch.where(server.fair >= self.min_clients, server.fair, 0.0)
        return {**super().observe(server), "fewest_clients": summed}


def scale_metrics(f0: Tensor, fk: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Return each metric of the global model [M] and the clients [K, M], scaled to 0..1 over the round; 0 if all are
    equal."""
    is_present = present[:, None] > 0
    low = torch.minimum(f0, torch.where(is_present, fk, torch.inf).amin(0))
    high = torch.maximum(f0, torch.where(is_present, fk, -torch.inf).amax(0))
    width = torch.where(high > low, high - low, torch.inf)
    return (f0 - low) / width, (fk - low) / width
