"""FedFB: Zeng, Chen and Lee, Improving Fairness via Federated Learning, arXiv:2110.15545.

FairBatch with weights kept by the server: w(s, y) of a row, 1 at the start. There are m(s, y) rows, m_s of a group.

    measure:  client k:  S_k(s, y) = sum of theta's loss over its rows of each group and label;   S = sum_k S_k
              server:    demographic parity:  q_s = (S(s, 0) - S(s, 1)) / m_s - m(s, 0) / m_s, roughly the selection
                         rate minus a constant;  w(s, 0) <- w(s, 0) + a_t (n / m_s) mu_s within 0 and 2,
                         w(s, 1) = 2 - w(s, 0)
                         equal opportunity, y = 1; equalised odds, all y:  q_s = S(s, y) / m(s, y);
                         w(s, y) <- w(s, y) + a_t (n / m(s, y)) mu_s, at least 0, rescaled to a mean of 1 per label
                         mu_s = q_s - mean of the other groups' q;   a_t = alpha / sqrt(t) after t rounds of training
    train:    client k:  minimise (1/B) sum_i w(s_i, y_i) loss_i
              server:    theta <- sum_k (n_k / n) theta_k

Client parity: the clients are the groups, and each keeps its own weight (`_client_parity`). All exchanges are sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.errors import ConfigError
from equifed.methods import _by_loss
from equifed.methods._cells import AIMS, COUNT_CELLS, DIFFERENCES, cell_counts, cell_sums, of_cells
from equifed.methods._client_parity import COUNT_ROWS, Client, weight_phases
from equifed.methods._measured import kept_update, measure_phase
from equifed.methods._wrapper import derived
from equifed.methods.fedavg import ALONE, MEAN_UPDATE, FedAvg, averaging
from equifed.methods.hyper import hyper
from equifed.methods.reweighing import weighted_loss
from equifed.protocol import WRONG, Bound, Data, Knob, LocalTraining, Phase, Record, Start, Task, Update, worst_loss
from equifed.tree import Tree

DEMOGRAPHIC, OPPORTUNITY, _ = DIFFERENCES
CLIENTS = "client_parity"


class Server(NamedTuple):
    theta: Tree
    """theta, the global model."""
    counts: Tensor
    """m(s, y) [G, C], number of all clients' rows by group and label."""
    weight: Tensor
    """w(s, y) [G, C]."""
    t: Tensor
    """t, number of rounds of training so far."""
    rows: Tensor
    """n, number of all clients' rows; this and the rest are for client parity."""
    loss: Tensor
    """Sum of the mean losses q_k of the round's clients."""
    clients: Tensor
    """Number of the round's clients."""
    mass: Tensor
    """sum_k n_k w_k / n, by which clients divide their weights."""


@dataclass(frozen=True)
class FedFB(FedAvg):
    """Weight groups and labels (or clients) by rules of FairBatch, with losses summed over all clients."""

    name: ClassVar[str] = "fedfb"
    reveals: ClassVar[str] = derived(
        lambda self: (
            f"{MEAN_UPDATE}; rows and loss by group and label: {ALONE}"
            if self.of_groups
            else f"{MEAN_UPDATE}; the sum of the silos' mean losses, the number of silos with rows, and the weight cut"
        )
    )
    parent: ClassVar[str] = "fedavg"
    knob: ClassVar[Knob | None] = Knob(
        "alpha", 1e-3, 2.0, AIMS | {metric: {"fairness": CLIENTS} for metric in _by_loss.CLIENTS}, neutral=0.0
    )

    fairness: str = hyper(DEMOGRAPHIC, choices=(*DIFFERENCES, CLIENTS))
    """Quantity to equalise: the groups' selection rates (for two classes), their losses on positive labels (for more
    classes, on each label), on each label, or the clients' losses."""
    alpha: float = hyper(0.3, low=0, vanishes=True)
    """Step of the weights; 0 gives FedAvg."""
    reference: Literal["mean", "first"] = hyper("mean", choices=("mean", "first"))
    """Reference of a group: the mean of the others, or the first group, which then moves against the sum of the others'
    steps, as in the authors' code. With two groups both are the same."""
    normalise: bool = hyper(False)
    """True: divide mu by its norm over groups and labels, so that a step has length a_t however large the gap is."""
    average_by: Literal["rows", "row-weights"] = hyper("rows", choices=("rows", "row-weights"))
    """Weight of a client: its number of rows, or the sum of their weights, as in the authors' code."""

    @property
    def setup(self) -> tuple[Phase, ...]:
        return (COUNT_CELLS if self.of_groups else COUNT_ROWS,)

    @property
    def round(self) -> tuple[Phase, ...]:
        if self.of_groups:
            losses = {"losses": Bound(low=0, per_row=worst_loss, alike=WRONG)}
            return (measure_phase(("losses", "counts"), cell_losses, self.move, losses), self.train)
        return (*weight_phases(self.alpha, self.rate), self.train)

    @property
    def train(self) -> Phase:
        down = ("weight",) if self.of_groups else ("mass",)
        if self.average_by == "rows":
            return averaging(LocalTraining(kept_update, weighted_loss, self.start), down=down)
        train = LocalTraining(self.update_by_weights, weighted_loss, self.start)
        bounds = {"weight": Bound(low=0, per_row=1e6, alike=2.0)}
        updates = {"update": Update(weight="weight")}
        return Phase("train", down, ("update", "weight"), train, by_weights, "sum", bounds=bounds, updates=updates)

    @property
    def of_groups(self) -> bool:
        return self.fairness != CLIENTS

    def init(self, task: Task, parameters: Tree) -> Server:
        cells, zero = tree.zeros(parameters, task.num_groups, task.num_classes), tree.zeros(parameters)
        return Server(parameters, cells, cells + 1, zero, zero, zero, zero, zero + 1)

    def init_client(self, task: Task, parameters: Tree) -> Any:
        zero = tree.zeros(parameters)
        return Client(parameters, zero, zero + 1)

    def check(self, task: Task) -> None:
        if self.of_groups and task.kind == "regression":
            raise ConfigError(f"is {self.fairness!r}, which needs classes; take {CLIENTS!r}.", key="fairness")
        if self.fairness == DEMOGRAPHIC and task.num_classes > 2:
            raise ConfigError("is demographic parity, which FedFB defines for two classes.", key="fairness")
        if not self.of_groups and (self.reference == "first" or self.normalise):
            name = "normalise" if self.normalise else "reference"
            text = "applies to groups only: the server does not know single clients' losses. Leave it out."
            raise ConfigError(text, key=name)

    def rate(self, t: Tensor) -> Tensor:
        # a_t = alpha / sqrt(t); 0 for the untrained model, which gives no information about weights
        return torch.where(t > 0, self.alpha / t.clamp_min(1).sqrt(), 0.0)

    # -- groups --------------------------------------------------------------------------------------------------------

    def move(self, server: Server, replies: Record, validation: Data | None) -> Server:
        S, m, counts = replies["losses"], replies["counts"], server.counts
        step = self.rate(server.t) * counts.sum()
        if self.fairness == DEMOGRAPHIC:
            # q_s = (S(s, 0) - S(s, 1) - m(s, 0)) / m_s of the round's clients
            rows = m.sum(1)
            mu = self.compare((S[:, 0] - S[:, 1] - m[:, 0]) / rows.clamp_min(1), rows > 0)
            negative = (server.weight[:, 0] + step / counts.sum(1).clamp_min(1) * mu).clamp(0, 2)
            weight = torch.stack([negative, 2 - negative], 1)
        else:
            label = torch.arange(m.shape[1], device=m.device)
            looked_at = (label == 1) | (self.fairness != OPPORTUNITY) | (len(label) > 2)
            mu = self.compare(S / m.clamp_min(1), (m > 0) & looked_at)
            moved = (server.weight + step / counts.clamp_min(1) * mu).clamp_min(0)
            total, before = (counts * moved).sum(0), counts.sum(0)
            weight = moved * torch.where(total > 0, before / total.clamp_min(1e-12), 1.0)
        return server._replace(weight=weight, t=server.t + 1)

    def compare(self, q: Tensor, there: Tensor) -> Tensor:
        """Return mu [G, ...], the difference of each group's q from the reference; 0 if there is none, or no other."""
        q = torch.where(there, q, 0.0)
        if self.reference == "first":
            mu = torch.where(there & there[0], q - q[0], 0.0)
            mu = torch.cat([-mu.sum(0, keepdim=True), mu[1:]])
        else:
            number = there.sum(0)
            others = (q.sum(0) - q) / (number - 1).clamp_min(1)
            mu = torch.where(there & (number > 1), q - others, 0.0)
        return mu / mu.square().sum().sqrt().clamp_min(1e-12) if self.normalise else mu

    # -- training ------------------------------------------------------------------------------------------------------

    def weights(self, down: Record, state: Client, data: Data) -> Tensor:
        """Return w of each row [n]; 1 for a row of unknown group, if groups are weighted."""
        if self.of_groups:
            return of_cells(down["weight"], data, 1.0)
        return state.weight / down["mass"] * torch.ones_like(data.mask)

    def start(self, down: Record, state: Client, data: Data) -> Start:
        return Start(state.theta, per_row={"weight": self.weights(down, state, data)})

    def update_by_weights(
        self, parameters: Tree, down: Record, state: Client, data: Data, context: Tree
    ) -> tuple[Record, Tree]:
        weight = data.sum(self.weights(down, state, data))
        return {"update": tree.scale(tree.sub(parameters, state.theta), weight), "weight": weight}, state

    def observe(self, server: Server) -> dict[str, Tensor]:
        if self.of_groups:
            return {"smallest_weight": server.weight.amin(), "largest_weight": server.weight.amax()}
        return {"mean_client_loss": server.loss / server.clients.clamp_min(1)}


def cell_losses(theta: Tree, data: Data) -> Record:
    """Return S_k(s, y) and m_k(s, y)."""
    return {"losses": cell_sums(data, data.task.row_loss(theta, data.x, data.y)), "counts": cell_counts(data)}


def by_weights(server: Server, replies: Record, validation: Data | None) -> Server:
    # theta <- theta + sum_k W_k Delta_k / sum_k W_k, W_k the sum of the client's row weights
    total = replies["weight"]
    inverse = torch.where(total > 0, 1 / total.clamp_min(1e-30), 0.0)
    return server._replace(theta=tree.add_scaled(server.theta, replies["update"], inverse))
