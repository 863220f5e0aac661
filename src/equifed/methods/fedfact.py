"""FedFACT, in-processing: Zhang et al., FedFACT: A Provable Framework for Controllable Group-Fairness Calibration in
Federated Learning, NeurIPS 2025. Read from the paper alone: its authors' code was not to be had.

    least loss  subject to  r_qa - r_qb <= gap  over all rows,  r_qak - r_qbk <= local_gap  at every client k,

for rates r_q of decisions in groups a and b. Prices l_qab >= 0 of the first and m_qabk >= 0 of the second make it a
problem of costs: deciding a row of group a and label y as j is worth M(a, k)_yj, of which Mbar has no entry below 0,

    M(a, k) = I - sum_q (l_qa (n / n_qa) + m_qak (n_k / n_qak)) D_q,    l_qa = sum_b l_qab - l_qba,    m_qak alike

where D_q is 1 for the labels and decisions that rate q counts, and n_qa the rows of group a that it is a share of.

client k:  r_k of the decisions of w_k p_theta + (1 - w_k) p_phi_k
           m_k <- project(m_k + eta (r_qak - r_qbk - local_gap))
           w_k <- w_k / (w_k + (1 - w_k) exp(-eta_w (L_k(phi_k) - L_k(theta))))
           theta_k and phi_k each minimise  L_k = - mean over rows of sum_j Mbar(s, k)_yj log p_j
server:    theta <- sum_k (n_k / n) theta_k;   l <- project(l + eta (r_qa - r_qb - gap)),  r from summed counts

project: the closest prices that are at least 0 and together at most `largest_price`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.gradients import grad
from equifed.methods._cells import cell_counts, cell_sums, one_hot
from equifed.methods._constrained import COUNTS, counted
from equifed.methods._parity import NOTIONS
from equifed.methods._prices import cells, charges, differences, row_costs, together_at_most, total_cost
from equifed.methods._wrapper import derived
from equifed.methods.fedavg import ALONE, BY_ROWS, MEAN_UPDATE, apply_mean_update, weighted_update
from equifed.methods.hyper import hyper
from equifed.protocol import (
    CONSTRAINT_TOLERANCE,
    YES_OR_NO,
    Bound,
    Data,
    Knob,
    LocalTraining,
    Method,
    Phase,
    Record,
    Start,
    Task,
    kept,
    notions,
)
from equifed.tree import Tree

KNOB = Knob("gap", 1e-3, 0.3, notions(**{notion: {"notion": notion} for notion in NOTIONS}), fairer="less", neutral=1.0)


class Server(NamedTuple):
    theta: Tree
    """theta, the global model."""
    l: Tensor
    """l [Q, G, G], the price of rate q in group a above that in group b."""
    counts: Tensor
    """Rows by group and label [G, C]."""
    gap: Tensor
    """The largest difference of two groups in a rate, when last measured; inf before."""
    constraints: Tensor
    """How many clients have a gap of their own,"""
    violated: Tensor
    """how many of them lie beyond local_gap, when last measured, inf before,"""
    excess: Tensor
    """and by how much together."""


class Client(NamedTuple):
    """What a setting does not need is ()."""

    m: Tree
    """m_k [Q, G, G], the prices of the client's own gap."""
    phi: Tree
    """phi_k, the client's own model."""
    w: Tree
    """w_k, the share of the global model in the client's predictions."""
    trained: Tree
    """1 where phi_k has been trained; before, the global model alone predicts."""


@dataclass(frozen=True)
class FedFACT(Method):
    """Train a shared model, and one for every client beside it, under limits on the gaps of all rows and of each
    client's, by costs of decisions."""

    name: ClassVar[str] = "fedfact"
    label_kinds: ClassVar[tuple[str, ...]] = ("binary", "multiclass")
    personal: ClassVar[bool] = derived(lambda self: not self.shared_only)
    keeps_gap: ClassVar[Literal["", "global", "local"]] = derived(
        lambda self: "global" if self.level == "global" else "local"
    )
    knob: ClassVar[Knob | None] = derived(lambda self: None if self.level == "local" else KNOB)
    reveals: ClassVar[str] = derived(
        lambda self: "; ".join(
            [MEAN_UPDATE]
            + [f"rows by group, label and decision: {ALONE}"] * (self.level != "local")
            + ["how many silos have a gap of their own, how many keep it, and by how much the others do not"]
            * (self.level != "global")
        )
    )

    notion: str = hyper("demographic_parity", choices=NOTIONS)
    """The rates that are compared: of positive decisions among all rows, among those with a positive label, or among
    those of each label. With more than two classes: of every decision, of the right one within every label, or of every
    decision within every label."""
    level: str = hyper("both", choices=("global", "local", "both"))
    """Where the gap is bounded: over the rows of all clients together, at every client, or both."""
    gap: float = hyper(0.01, low=0, high=1)
    """xi: the largest difference between two groups over the training rows of all clients; 1 asks for nothing."""
    local_gap: float = hyper(0.01, low=0, high=1)
    """xi_k: the largest difference between two groups over the training rows of each client; 1 asks for nothing."""
    dual_step_size: float = hyper(0.1, low=0)
    """eta: step of the prices, usually 0.03 to 0.3: a larger one is quicker, until the gap swings. 0 leaves them at 0,
    which is FedAvg, beside which every client trains a model alone."""
    largest_price: float = hyper(5.0, low=1e-3)
    """What all prices of the global gap, and all of a client's, may add up to."""
    weight_step_size: float = hyper(0.3, low=0)
    """eta_w: how fast a client turns to the model with the lower loss, of the global one and its own."""
    shared_only: bool = hyper(False, choices=(False, True))
    """One global model for all clients, without models of their own."""

    # -- exchanges -----------------------------------------------------------------------------------------------------

    @property
    def setup(self) -> tuple[Phase, ...]:
        def count(down: Record, state: Client, data: Data) -> tuple[Record, Client]:
            return {"counts": cell_counts(data)}, state

        return () if self.level == "local" else (Phase("count", (), ("counts",), count, kept, "sum"),)

    @property
    def round(self) -> tuple[Phase, ...]:
        train = LocalTraining(self.reply, total_cost, self.start)
        down = ("theta",) if self.level == "local" else ("theta", "l", "counts")
        up = ("update", "rows", *self.reported)
        return (Phase("train", down, up, train, self.step, "sum", bounds=BOUNDS, updates=BY_ROWS),)

    @property
    def final(self) -> tuple[Phase, ...]:
        return (Phase("measure", ("theta",), self.reported, self.measure, self.look, "sum", bounds=BOUNDS),)

    @property
    def reported(self) -> tuple[str, ...]:
        """What clients say of the gaps."""
        return (*(("decisions",) if self.level != "local" else ()), *(COUNTS if self.level != "global" else ()))

    def init(self, task: Task, parameters: Tree) -> Server:
        zero = tree.zeros(parameters)
        prices, counts = self.no_prices(task, zero), zero.new_zeros(task.num_groups, task.num_classes)
        return Server(parameters, prices, counts, zero + torch.inf, zero, zero + torch.inf, zero)

    def init_client(self, task: Task, parameters: Tree) -> Client:
        zero = tree.zeros(parameters)
        m: Tree = () if self.level == "global" else self.no_prices(task, zero)
        # phi_k starts where theta does, with an equal share
        return Client(m, (), (), ()) if self.shared_only else Client(m, parameters, zero + 0.5, zero)

    def no_prices(self, task: Task, like: Tensor) -> Tensor:
        return like.new_zeros(len(cells(self.notion, task.num_classes, like)), task.num_groups, task.num_groups)

    # -- gaps, prices and costs ----------------------------------------------------------------------------------------

    def priced(self, prices: Tensor, decisions: Tensor, gap: float | Tensor) -> Tensor:
        """The prices after a step; where a rate is not there, theirs stay."""
        found, both = differences(self.notion, decisions)
        moved = torch.where(both, prices + self.dual_step_size * (found - gap), prices)
        return together_at_most(self.largest_price, moved)

    def costs(self, down: Record, m: Tree, data: Data) -> Tensor:
        """Mbar(s, k)_y of each row [n, C]; the label alone for a row of unknown group."""
        label = one_hot(data.y, data.task.num_classes, data.mask)
        M = torch.eye(data.task.num_classes).to(label).expand(data.task.num_groups, -1, -1)
        if self.level != "local":
            M = M - charges(self.notion, down["l"], down["counts"])
        if isinstance(m, Tensor):
            M = M - charges(self.notion, m, cell_counts(data))
        # what is added to a whole line does not change the best decision
        Mbar = M - M.amin(2, keepdim=True).clamp_max(0)
        return torch.where((data.s >= 0)[:, None], Mbar[data.s.clamp_min(0), data.y], label)

    # -- client --------------------------------------------------------------------------------------------------------

    def decided(self, theta: Tree, state: Client, data: Data) -> Tensor:
        """Rows by group, label and decision [G, C, C]."""
        decision = data.task.decide(self.mixed(data.task, theta, state, data.x))
        return cell_sums(data, one_hot(decision, data.task.num_classes, data.mask))

    def report(self, decisions: Tensor) -> Record:
        found, both = differences(self.notion, decisions)
        excess = (found.amax() - self.local_gap).clamp_min(0)
        # a group is compared with another one, not with itself
        holds = (both.sum((1, 2)) > both.diagonal(dim1=1, dim2=2).sum(1)).any().to(excess.dtype)
        local = (holds, holds * (excess > CONSTRAINT_TOLERANCE), holds * excess)
        reply = {"decisions": decisions, **dict(zip(COUNTS, local, strict=True))}
        return {name: reply[name] for name in self.reported}

    def start(self, down: Record, state: Client, data: Data) -> Start:
        decisions = self.decided(down["theta"], state, data)
        m = self.priced(state.m, decisions, self.local_gap) if isinstance(state.m, Tensor) else ()
        cost, models, w = self.costs(down, m, data), {"theta": down["theta"]}, state.w
        if isinstance(w, Tensor):
            models["phi"] = state.phi
            behind = data.mean(row_costs(state.phi, cost, data) - row_costs(down["theta"], cost, data))
            w = turned(w, self.weight_step_size * behind)
        return Start(models, {"m": m, "w": w, "report": self.report(decisions)}, {"cost": cost})

    def reply(self, models: Tree, down: Record, state: Client, data: Data, context: Tree) -> tuple[Record, Client]:
        reply, _ = weighted_update(models["theta"], down, (), data, ())
        trained = torch.where(data.n > 0, 1.0, state.trained) if isinstance(state.trained, Tensor) else ()
        return reply | context["report"], Client(context["m"], models.get("phi", ()), context["w"], trained)

    def measure(self, down: Record, state: Client, data: Data) -> tuple[Record, Client]:
        return self.report(self.decided(down["theta"], state, data)), state

    # -- server --------------------------------------------------------------------------------------------------------

    def step(self, server: Server, replies: Record, validation: Data | None) -> Server:
        if self.level != "local":
            server = server._replace(l=self.priced(server.l, replies["decisions"], self.gap))
        return self.look(apply_mean_update(server, replies, validation), replies, validation)

    def look(self, server: Server, replies: Record, validation: Data | None) -> Server:
        if self.level != "local":
            server = server._replace(gap=differences(self.notion, replies["decisions"])[0].amax())
        return server if self.level == "global" else kept(server, replies, validation)

    def observe(self, server: Server) -> dict[str, Tensor]:
        """Of level "both", `excess` and `feasible` speak of the worse of the two."""
        seen: dict[str, Tensor] = {}
        if self.level != "global":
            seen = counted(server.constraints, server.violated, server.excess)
        if self.level != "local":
            excess = (server.gap - self.gap).clamp_min(0)
            met = (excess <= CONSTRAINT_TOLERANCE).to(excess.dtype)
            seen["excess"] = torch.maximum(seen.get("excess", excess), excess)
            seen["feasible"] = torch.minimum(seen.get("feasible", met), met)
            seen |= {"multiplier": server.l.amax(), "training_gap": server.gap}
        return seen

    # -- use -----------------------------------------------------------------------------------------------------------

    def mixed(self, task: Task, theta: Tree, client: Client, x: Tensor) -> Tensor:
        """w_k p_theta + (1 - w_k) p_phi_k."""
        shared = task.predict(theta, x)
        if self.shared_only:
            return shared
        return torch.lerp(task.predict(client.phi, x), shared, torch.where(client.trained > 0, client.w, 1.0))

    def predict(self, task: Task, server: Server, client: Client, x: Tensor) -> Tensor:
        return self.mixed(task, server.theta, client, x)

    def adapt(self, task: Task, server: Server, data: Data, steps: int) -> Tree:
        """phi and w of a client that took no part in training. Its rows' groups are not known, so that costs are of
        labels alone: phi is theta after so many steps down the mean loss."""
        if self.shared_only:
            return super().adapt(task, server, data, steps)
        phi, w, rate = server.theta, tree.zeros(server.theta) + 0.5, task.local.learning_rate
        assert rate is not None, "resolved"

        def loss(theta: Tree) -> Tensor:
            return data.mean(task.row_loss(theta, data.x, data.y))

        for _ in range(steps):
            phi = tree.add_scaled(phi, grad(loss)(phi), -rate)
            w = turned(w, self.weight_step_size * (loss(phi) - loss(server.theta)))
        return Client(() if self.level == "global" else self.no_prices(task, w), phi, w, torch.ones_like(w))


BOUNDS = {"constraints": YES_OR_NO, "violated": YES_OR_NO, "excess": Bound(0, 1)}


def turned(w: Tensor, behind: Tensor) -> Tensor:
    """w / (w + (1 - w) exp(-behind)), in a form that holds for any number; a share of 0 or 1 could never turn again."""
    return torch.sigmoid(torch.logit(w, eps=1e-6) + behind)
