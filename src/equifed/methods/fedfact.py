"""FedFACT, in-processing: Zhang et al., FedFACT: A Provable Framework for Controllable Group-Fairness Calibration in
Federated Learning, NeurIPS 2025. Implemented from the paper alone: its authors' code was not available.

    least loss  subject to  r_qa - r_qb <= gap  over all rows,  r_qak - r_qbk <= local_gap  at every client k,

for rates r_q of decisions in groups a and b. Prices l_qab >= 0 of the first and m_qabk >= 0 of the second make it a
cost-sensitive problem: deciding a row of group a and label y as j is worth M(a, k)_yj; Mbar is M shifted to be >= 0,

    M(a, k) = I - sum_q (l_qa (n / n_qa) + m_qak (n_k / n_qak)) D_q,    l_qa = sum_b l_qab - l_qba,    m_qak alike

where D_q is 1 for the labels and decisions that rate q counts, and n_qa the rows of group a in its denominator.

client k:  r_k of the decisions of w_k p_theta + (1 - w_k) p_phi_k
           m_k <- project(m_k + eta (r_qak - r_qbk - local_gap))
           w_k <- w_k / (w_k + (1 - w_k) exp(-eta_w (L_k(phi_k) - L_k(theta))))
           theta_k and phi_k each minimise  L_k = - mean over rows of sum_j Mbar(s, k)_yj log p_j
server:    theta <- sum_k (n_k / n) theta_k;   l <- project(l + eta (r_qa - r_qb - gap)),  r from summed counts

project: the closest prices that are at least 0 and add up to at most `largest_price`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.gradients import grad
from equifed.methods._cells import cell_counts, cell_sums, one_hot
from equifed.methods._constrained import COUNTS, log_counts
from equifed.methods._parity import NOTIONS
from equifed.methods._prices import cells, charges, differences, project_prices, row_costs, total_cost
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
    notions,
    store_replies,
)
from equifed.tree import Tree

KNOB = Knob("gap", 1e-3, 0.3, notions(**{notion: {"notion": notion} for notion in NOTIONS}), fairer="less", neutral=1.0)


class Server(NamedTuple):
    theta: Tree
    """theta, the global model."""
    l: Tensor
    """l [Q, G, G], the price of rate q in group a above that in group b."""
    counts: Tensor
    """Number of rows by group and label [G, C]."""
    gap: Tensor
    """Largest difference of two groups in a rate, when last measured; inf before."""
    constraints: Tensor
    """Number of clients with a gap."""
    violated: Tensor
    """Number of clients with a gap above local_gap, when last measured; inf before."""
    excess: Tensor
    """Sum of their excess over local_gap."""


class Client(NamedTuple):
    """The client's state; fields that a setting does not need are ()."""

    m: Tree
    """m_k [Q, G, G], the prices of the client's own gap."""
    phi: Tree
    """phi_k, the client's own model."""
    w: Tree
    """w_k, the weight of the global model in the client's predictions."""
    trained: Tree
    """1 once phi_k has been trained; until then only the global model predicts."""


@dataclass(frozen=True)
class FedFACT(Method):
    """Train a shared model, and a personal one for every client, under limits on the gaps of all rows and of each
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
            + ["the number of silos with a gap, the number above local_gap, and the sum of their excess"]
            * (self.level != "global")
        )
    )

    notion: str = hyper("demographic_parity", choices=NOTIONS)
    """Rates to compare: of positive decisions among all rows, among those with a positive label, or within each label.
    With more than two classes: of each decision, of the right one within each label, or of each decision within each
    label."""
    level: str = hyper("both", choices=("global", "local", "both"))
    """Rows over which the gap is limited: those of all clients together, of each client, or both."""
    gap: float = hyper(0.01, low=0, high=1)
    """xi: largest difference between two groups over the training rows of all clients; 1 has no effect."""
    local_gap: float = hyper(0.01, low=0, high=1)
    """xi_k: largest difference between two groups over the training rows of each client; 1 has no effect."""
    dual_step_size: float = hyper(0.1, low=0)
    """eta: step of the prices, usually 0.03 to 0.3: larger steps are faster, until the gap oscillates. 0 keeps prices
    at 0, which is FedAvg plus a model that each client trains alone."""
    largest_price: float = hyper(5.0, low=1e-3)
    """Largest sum of all prices of the global gap, and of all prices of a client's gap."""
    weight_step_size: float = hyper(0.3, low=0)
    """eta_w: how fast a client shifts to the model with the lower loss, the global one or its own."""
    shared_only: bool = hyper(False, choices=(False, True))
    """True: one global model for all clients, without personal models."""

    # -- exchanges -----------------------------------------------------------------------------------------------------

    @property
    def setup(self) -> tuple[Phase, ...]:
        def count(down: Record, state: Client, data: Data) -> tuple[Record, Client]:
            return {"counts": cell_counts(data)}, state

        return () if self.level == "local" else (Phase("count", (), ("counts",), count, store_replies, "sum"),)

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
        """The reply fields about the gaps."""
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

    def move_prices(self, prices: Tensor, decisions: Tensor, gap: float | Tensor) -> Tensor:
        """Return the prices after a step; prices of rates without rows stay."""
        found, both = differences(self.notion, decisions)
        moved = torch.where(both, prices + self.dual_step_size * (found - gap), prices)
        return project_prices(self.largest_price, moved)

    def costs(self, down: Record, m: Tree, data: Data) -> Tensor:
        """Return Mbar(s, k)_y of each row [n, C]; the label alone for a row of unknown group."""
        label = one_hot(data.y, data.task.num_classes, data.mask)
        M = torch.eye(data.task.num_classes).to(label).expand(data.task.num_groups, -1, -1)
        if self.level != "local":
            M = M - charges(self.notion, down["l"], down["counts"])
        if isinstance(m, Tensor):
            M = M - charges(self.notion, m, cell_counts(data))
        # adding a constant to a row of M does not change the best decision
        Mbar = M - M.amin(2, keepdim=True).clamp_max(0)
        return torch.where((data.s >= 0)[:, None], Mbar[data.s.clamp_min(0), data.y], label)

    # -- client --------------------------------------------------------------------------------------------------------

    def count_decisions(self, theta: Tree, state: Client, data: Data) -> Tensor:
        """Return the number of rows by group, label and decision [G, C, C]."""
        decision = data.task.decide(self.mix_predictions(data.task, theta, state, data.x))
        return cell_sums(data, one_hot(decision, data.task.num_classes, data.mask))

    def report(self, decisions: Tensor) -> Record:
        """Return the reply fields about the gaps."""
        found, both = differences(self.notion, decisions)
        excess = (found.amax() - self.local_gap).clamp_min(0)
        # a group is compared with another one, not with itself
        holds = (both.sum((1, 2)) > both.diagonal(dim1=1, dim2=2).sum(1)).any().to(excess.dtype)
        local = (holds, holds * (excess > CONSTRAINT_TOLERANCE), holds * excess)
        reply = {"decisions": decisions, **dict(zip(COUNTS, local, strict=True))}
        return {name: reply[name] for name in self.reported}

    def start(self, down: Record, state: Client, data: Data) -> Start:
        decisions = self.count_decisions(down["theta"], state, data)
        m = self.move_prices(state.m, decisions, self.local_gap) if isinstance(state.m, Tensor) else ()
        cost, models, w = self.costs(down, m, data), {"theta": down["theta"]}, state.w
        if isinstance(w, Tensor):
            models["phi"] = state.phi
            behind = data.mean(row_costs(state.phi, cost, data) - row_costs(down["theta"], cost, data))
            w = shift_weight(w, self.weight_step_size * behind)
        return Start(models, {"m": m, "w": w, "report": self.report(decisions)}, {"cost": cost})

    def reply(self, models: Tree, down: Record, state: Client, data: Data, context: Tree) -> tuple[Record, Client]:
        reply, _ = weighted_update(models["theta"], down, (), data, ())
        trained = torch.where(data.n > 0, 1.0, state.trained) if isinstance(state.trained, Tensor) else ()
        return reply | context["report"], Client(context["m"], models.get("phi", ()), context["w"], trained)

    def measure(self, down: Record, state: Client, data: Data) -> tuple[Record, Client]:
        return self.report(self.count_decisions(down["theta"], state, data)), state

    # -- server --------------------------------------------------------------------------------------------------------

    def step(self, server: Server, replies: Record, validation: Data | None) -> Server:
        if self.level != "local":
            server = server._replace(l=self.move_prices(server.l, replies["decisions"], self.gap))
        return self.look(apply_mean_update(server, replies, validation), replies, validation)

    def look(self, server: Server, replies: Record, validation: Data | None) -> Server:
        if self.level != "local":
            server = server._replace(gap=differences(self.notion, replies["decisions"])[0].amax())
        return server if self.level == "global" else store_replies(server, replies, validation)

    def observe(self, server: Server) -> dict[str, Tensor]:
        """Return the scalars to log; for level "both", `excess` and `feasible` are the worse of the two levels."""
        seen: dict[str, Tensor] = {}
        if self.level != "global":
            seen = log_counts(server.constraints, server.violated, server.excess)
        if self.level != "local":
            excess = (server.gap - self.gap).clamp_min(0)
            met = (excess <= CONSTRAINT_TOLERANCE).to(excess.dtype)
            seen["excess"] = torch.maximum(seen.get("excess", excess), excess)
            seen["feasible"] = torch.minimum(seen.get("feasible", met), met)
            seen |= {"multiplier": server.l.amax(), "training_gap": server.gap}
        return seen

    # -- use -----------------------------------------------------------------------------------------------------------

    def mix_predictions(self, task: Task, theta: Tree, client: Client, x: Tensor) -> Tensor:
        """Return w_k p_theta + (1 - w_k) p_phi_k."""
        shared = task.predict(theta, x)
        if self.shared_only:
            return shared
        return torch.lerp(task.predict(client.phi, x), shared, torch.where(client.trained > 0, client.w, 1.0))

    def predict(self, task: Task, server: Server, client: Client, x: Tensor) -> Tensor:
        return self.mix_predictions(task, server.theta, client, x)

    def adapt(self, task: Task, server: Server, data: Data, steps: int) -> Tree:
        """Return phi and w of a client that was not in the training. Its rows' groups are unknown, so that costs depend
        on labels alone: phi is theta after `steps` steps down the mean loss."""
        if self.shared_only:
            return super().adapt(task, server, data, steps)
        phi, w, rate = server.theta, tree.zeros(server.theta) + 0.5, task.local.learning_rate
        assert rate is not None, "resolved"

        def loss(theta: Tree) -> Tensor:
            return data.mean(task.row_loss(theta, data.x, data.y))

        for _ in range(steps):
            phi = tree.add_scaled(phi, grad(loss)(phi), -rate)
            w = shift_weight(w, self.weight_step_size * (loss(phi) - loss(server.theta)))
        return Client(() if self.level == "global" else self.no_prices(task, w), phi, w, torch.ones_like(w))


BOUNDS = {"constraints": YES_OR_NO, "violated": YES_OR_NO, "excess": Bound(0, 1)}


def shift_weight(w: Tensor, behind: Tensor) -> Tensor:
    """Return w / (w + (1 - w) exp(-behind)) in a numerically stable form; w stays off 0 and 1, which never change."""
    return torch.sigmoid(torch.logit(w, eps=1e-6) + behind)
