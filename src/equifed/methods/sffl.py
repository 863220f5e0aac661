"""SFFL: Zhang et al., SFFL: Self-Aware Fairness Federated Learning Framework for Heterogeneous Data
Distributions, 2024.

FedEM (see there) with components that are trained to be fair; each client has its own multipliers lambda_km:

client k:  q, pi_k  by the E-step of FedEM                                                                   (Fair-EM)
           lambda_km <- max(0, lambda_km + eta (gap_km - epsilon)),  0 at the start; lambda_k never leaves the client
           theta_km minimises  mean of q_mi loss_i  +  lambda_km |softTPR_1 - softTPR_0|
server:    d_km = ||theta_km - theta_m||;  w_km <- w_km exp(d_km - mean_k d_km),  normalised over k       (self-aware)
           theta_m <- sum_k w_km theta_km,  w_km = n_k / n at the start

gap_km is the gap between groups in the true positive rate of theta_m on the client's rows; softTPR_s of a batch is
sum q_mi p_m(x_i) / sum q_mi over its rows with y = 1 of group s, and the term is omitted for batches without two such
groups. With several groups the gap is that between the highest and the lowest rate. The rows of a client that moves a
component far belong to it; the weights compound over the rounds and stay within the factor `weight_clip` of n_k / n.

A client can compute its own weights from two sums over clients, of n_k r_km and of n_k r_km exp(d_km) with r_km = w_km
over n_k / n, so that the server needs only sums, in two exchanges (`summed`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from equifed import tree
from equifed.methods._cells import AIMS, DIFFERENCES, gap
from equifed.methods.fedavg import BY_ROWS, averaging
from equifed.methods.fedem import FedEM, e_step, reply, uniform, warn_if_equal
from equifed.methods.hyper import hyper
from equifed.protocol import Bound, Data, Knob, LocalTraining, Method, Phase, Record, Start, Task, Update, store_replies
from equifed.tree import Tree

LARGEST = 1e9
"""Largest product of a client's rows and its weight, also times the exponential of its extra distance, at which it is
clamped: a client that moves that far has all the weight anyway."""
PLACES = dict.fromkeys(("before", "moved", "weight"), 16)
"""Binary places that give secure sums room for these fields."""


class Server(NamedTuple):
    theta: Tree
    """theta_m, the component models, along the leading axis."""
    ratio: Tensor
    """w_km over n_k / n, for every client and component [K, M]."""


class Client(NamedTuple):
    pi: Tensor
    """pi_k [M], the client's mixture weights."""
    multiplier: Tensor
    """lambda_k [M], its fairness multipliers."""


@dataclass(frozen=True)
class SFFL(FedEM):
    """Mixtures of fair component models, aggregated with more weight on the clients that move a component."""

    name: ClassVar[str] = "sffl"
    reveals: ClassVar[str] = (
        "as fedem, with weights that only silos know; the mean distance by which silos move every component"
    )
    label_kinds: ClassVar[tuple[str, ...]] = ("binary",)
    knob: ClassVar[Knob | None] = Knob("epsilon", 1e-3, 0.3, AIMS, fairer="less", neutral=1.0)

    fairness: str = hyper("equal_opportunity_difference", choices=DIFFERENCES)
    """Gap between groups to limit: in true positive rate (the paper's), in both error rates (the larger of the two), or
    in selection rate."""
    epsilon: float = hyper(0.01, low=0)
    """Largest gap of each component on each client's rows; 1 or more has no effect."""
    fairness_step: float = hyper(0.1, low=0)
    """eta: step of the multipliers per round."""
    weight_clip: float = hyper(5.0, low=1)
    """Largest factor between a client's weight and n_k / n; 1e9 leaves the weight free, as in the paper."""
    aggregation: Literal["self-aware", "size"] = hyper("self-aware", choices=("self-aware", "size"))
    """Weights by distance, or by n_k / n, which is the paper's ablation "Fair-EM only"."""

    @property
    def round(self) -> tuple[Phase, ...]:
        if self.aggregation == "size":
            return (averaging(LocalTraining(reply, self.loss, self.begin)),)
        train = LocalTraining(own_update, self.loss, self.begin)
        return (Phase("train", ("theta",), ("update", "rows"), train, self.aggregate, updates={"update": Update()}),)

    def init(self, task: Task, parameters: Tree) -> Server:
        warn_if_equal(self.name, parameters)
        return Server(parameters, tree.zeros(parameters, task.num_clients, self.components) + 1)

    def init_client(self, task: Task, parameters: Tree) -> Client:
        return Client(uniform(parameters), torch.zeros_like(uniform(parameters)))

    def adapt(self, task: Task, server: Server, data: Data, steps: int) -> Client:
        pi = super().adapt(task, server, data, steps).pi
        return Client(pi, torch.zeros_like(pi))

    @property
    def summed(self) -> Method:
        return self if self.aggregation == "size" else SummedSFFL(**self.hyper)

    # -- Fair-EM -------------------------------------------------------------------------------------------------------

    def begin(self, down: Record, state: Client, data: Data) -> Start:
        q, pi = e_step(down["theta"], state.pi, data)

        def measure_gap(theta: Tree) -> tuple[Tensor, Tensor]:
            decided = data.task.decide(data.task.predict(theta, data.x)).to(data.mask.dtype)
            return gap(decided, torch.ones_like(data.mask), data, self.fairness)

        gaps, defined = vmap(measure_gap)(down["theta"])
        # lambda_km <- max(0, lambda_km + eta (gap_km - epsilon)); unchanged if the client lacks two groups
        moved = (state.multiplier + self.fairness_step * (gaps - self.epsilon)).clamp_min(0)
        multiplier = torch.where(defined, moved, state.multiplier)
        return Start(down["theta"], context=Client(pi, multiplier), per_row={"q": q})

    def loss(self, theta: Tree, context: Client, batch: Data) -> Tensor:
        def terms(theta: Tree, q: Tensor) -> tuple[Tensor, Tensor]:
            output = batch.task.forward(theta, batch.x)
            losses = batch.task.loss_of(output, batch.y)
            return batch.mean(q * losses), gap(probability(output), q, batch, self.fairness)[0]

        # sum_m (1/B) sum_i q_mi loss_i + lambda_km |softTPR_1 - softTPR_0|
        losses, gaps = vmap(terms, (0, 1))(theta, batch.per_row["q"])
        return (losses + context.multiplier * gaps).sum()

    # -- self-aware aggregation ----------------------------------------------------------------------------------------

    def aggregate(self, server: Server, replies: Record, validation: Data | None) -> Server:
        update, who = replies["update"], replies["client"]
        rows = (replies["rows"] * replies["present"])[:, None]  # [K, 1]
        before = server.ratio[who]
        ratio = torch.where(rows > 0, self_aware(before, distances(update), rows, self.weight_clip), before)
        weight = rows * ratio
        weight = weight / weight.sum(0).clamp_min(1e-30)
        # theta_m <- theta_m + sum_k w_km (theta_km - theta_m)
        theta = tree.map(lambda p, u: p + torch.einsum("km,km...->m...", weight, u), server.theta, update)
        return Server(theta, server.ratio.index_put((who,), ratio))

    def observe(self, server: Server) -> dict[str, Tensor]:
        return {"largest_weight": server.ratio.max()} if self.aggregation == "self-aware" else {}


# -- by sums -----------------------------------------------------------------------------------------------------------


class SummedServer(NamedTuple):
    """The server's state of `SummedSFFL`."""

    theta: Tree
    """theta_m, the component models, along the leading axis."""
    before: Tensor
    """sum_k n_k r_km over the round's clients [M]."""
    moved: Tensor
    """sum_k n_k r_km exp(d_km - level_m) [M]."""
    level: Tensor
    """Offset of the exponents [M], which cancels: the last round's log of the mean of exp(d_km)."""


class SummedClient(NamedTuple):
    """The client's state of `SummedSFFL`."""

    pi: Tensor
    """pi_k, as in `Client`."""
    multiplier: Tensor
    """lambda_k, as in `Client`."""
    ratio: Tensor
    """r_km, its w_km over n_k / n [M]."""
    d: Tensor
    """d_km of the round [M]."""
    update: Tree
    """theta_km - theta_m of the round."""


@dataclass(frozen=True)
class SummedSFFL(SFFL):
    """SFFL with weights computed by the clients."""

    @property
    def round(self) -> tuple[Phase, ...]:
        bounds = dict.fromkeys(("before", "moved", "weight"), Bound(0, LARGEST))
        train = LocalTraining(measure, self.loss, self.begin)
        return (
            Phase(
                "train",
                ("theta", "level"),
                ("before", "moved"),
                train,
                store_replies,
                "sum",
                bounds=bounds,
                places=PLACES,
            ),
            Phase(
                "add",
                ("before", "moved", "level"),
                ("update", "rows", "weight"),
                self.add,
                add_up,
                "sum",
                bounds=bounds,
                updates=BY_ROWS,
                places=PLACES,
            ),
        )

    def init(self, task: Task, parameters: Tree) -> Any:
        warn_if_equal(self.name, parameters)
        zeros = tree.zeros(parameters, self.components)
        return SummedServer(parameters, zeros, zeros, zeros)

    def init_client(self, task: Task, parameters: Tree) -> Any:
        pi, multiplier = super().init_client(task, parameters)
        zeros = torch.zeros_like(pi)
        return SummedClient(pi, multiplier, zeros + 1, zeros, tree.zeros_like(parameters))

    def add(self, down: Record, state: SummedClient, data: Data) -> tuple[Record, SummedClient]:
        # w_km exp(d_km), normalised over k
        grown = state.ratio * torch.exp(state.d - down["level"]) * down["before"] / down["moved"].clamp_min(1e-30)
        ratio = torch.where(data.n > 0, grown.clamp(1 / self.weight_clip, self.weight_clip), state.ratio)
        weight = data.n * ratio
        update = tree.map(lambda u: torch.einsum("m,m...->m...", weight, u), state.update)
        return {"update": update, "rows": data.n, "weight": weight}, state._replace(ratio=ratio)

    def observe(self, server: Any) -> dict[str, Tensor]:
        return {}


def measure(theta: Tree, down: Record, state: SummedClient, data: Data, context: Client) -> tuple[Record, SummedClient]:
    update = tree.sub(theta, down["theta"])
    d = tree.take(distances(tree.map(lambda leaf: leaf[None], update)), 0)
    before = data.n * state.ratio
    state = SummedClient(*context, state.ratio, d, update)
    return {"before": before, "moved": (before * torch.exp(d - down["level"])).clamp_max(LARGEST)}, state


def add_up(server: SummedServer, replies: Record, validation: Data | None) -> SummedServer:
    # theta_m <- theta_m + sum_k w_km (theta_km - theta_m)
    share = 1 / replies["weight"].clamp_min(1e-30)
    theta = tree.map(lambda p, u: p + torch.einsum("m,m...->m...", share, u), server.theta, replies["update"])
    level = server.level + torch.where(server.before > 0, (server.moved / server.before.clamp_min(1e-30)).log(), 0.0)
    return server._replace(theta=theta, level=level)


def distances(update: Tree) -> Tensor:
    """Return d_km = ||theta_km - theta_m||_2 [K, M]."""
    return torch.stack([leaf.flatten(2).square().sum(2) for leaf in tree.leaves(update)]).sum(0).sqrt()


def self_aware(ratio: Tensor, d: Tensor, rows: Tensor, clip: Any) -> Tensor:
    """Return w_km over n_k / n after a round [K, M], from the ratio before, the distances and the clients' rows [K, 1].

    The total weight of the round's clients stays: with all clients it is 1, as in the paper.
    """
    before = rows * ratio
    # w_km exp(d_km - mean_k d_km), normalised over k; the mean is the same for all and cancels
    w = torch.softmax(before.clamp_min(1e-30).log() + d, 0)
    return (w * before.sum(0) / rows.clamp_min(1)).clamp(1 / clip, clip)


def probability(output: Tensor) -> Tensor:
    """Return the probability of class 1 [n] from a model's raw output."""
    return torch.sigmoid(output) if output.dim() == 1 else torch.softmax(output, 1)[:, 1]


def own_update(theta: Tree, down: Record, state: Client, data: Data, context: Client) -> tuple[Record, Tree]:
    return {"update": tree.sub(theta, down["theta"]), "rows": data.n}, context
