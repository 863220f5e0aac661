"""The shapes that the papers' methods need, as short sketches: proof that the protocol carries them.

Three exchanges in a round with shared random features (KFFL); several models, client memory and values per row (SFFL);
votes per client group, and server memory per client (E2FL, SFFL's weights); full gradients and dual variables without
local training (FedFair); a validation set and each client's model at the server (FAIR-FATE); setup and final phases.
They are sketches: the methods themselves live in equifed.methods, tested there against their papers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vmap

from equifed import tree
from equifed.methods.fedavg import apply_mean_update, weighted_update
from equifed.methods.hyper import hyper
from equifed.protocol import Data, Draw, LocalTraining, Method, Phase, Record, Start, Task
from equifed.tree import Tree

# -- three exchanges per round, shared random features ----------------------------------------------------------------


class KernelServer(NamedTuple):
    theta: Tree
    half: Tree
    G: Tensor
    mu_s: Tensor
    n: Tensor


def omega(rng: Any, task: Task) -> Any:
    return rng.normal(size=(2, 2, 6)).astype("float32")  # (s, f) x (frequency, phase) x features


def features(values: Tensor, draw: Tensor) -> Tensor:
    return torch.cos(values[:, None] * draw[0] + draw[1])


@dataclass(frozen=True)
class ThreeExchanges(Method):
    """Statistics, gradient of a pooled dependence measure, then proximal local training."""

    name: ClassVar[str] = "three-exchanges"
    parent: ClassVar[str] = "fedavg"
    weight: float = hyper(5.0, low=0, vanishes=True)
    """Weight of the dependence."""

    @property
    def round(self) -> tuple[Phase, ...]:
        draws = {"omega": Draw(omega)}
        train = LocalTraining(self.finish, prepare=lambda down, state, data: Start(down["half"]))
        return (
            Phase("stats", ("theta",), ("n", "s", "f", "sf"), self.statistics, self.combine, "sum", draws),
            Phase("slope", ("theta", "G", "mu_s"), ("gradient",), self.slope, self.step, "sum", draws),
            Phase("train", ("half", "theta"), ("update", "rows"), train, apply_mean_update, "sum"),
        )

    def init(self, task: Task, parameters: Tree) -> KernelServer:
        some = tree.leaves(parameters)[0]
        return KernelServer(parameters, parameters, some.new_zeros(6, 6), some.new_zeros(6), some.new_zeros(()))

    def statistics(self, down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
        draw = data.draws["omega"]
        zs = features(data.s.float(), draw[0])
        zf = features(data.task.predict(down["theta"], data.x), draw[1])
        return {"n": data.n, "s": data.sum(zs), "f": data.sum(zf), "sf": data.sum(zs[:, :, None] * zf[:, None])}, state

    def combine(self, server: KernelServer, replies: Record, validation: Data | None) -> KernelServer:
        n = replies["n"].clamp_min(2)
        mu_s, mu_f = replies["s"] / n, replies["f"] / n
        return server._replace(G=replies["sf"] - n * torch.outer(mu_s, mu_f), mu_s=mu_s, n=n)

    def slope(self, down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
        draw = data.draws["omega"]

        def dependence(theta: Tree) -> Tensor:
            zs = features(data.s.float(), draw[0]) - down["mu_s"]
            zf = features(data.task.predict(theta, data.x), draw[1])
            return (down["G"] * data.sum(zs[:, :, None] * zf[:, None])).sum()

        return {"gradient": grad(dependence)(down["theta"])}, state

    def step(self, server: KernelServer, replies: Record, validation: Data | None) -> KernelServer:
        scale = -self.weight * 2 / (server.n - 1) ** 2
        return server._replace(half=tree.add_scaled(server.theta, replies["gradient"], scale))

    @staticmethod
    def finish(parameters: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
        return weighted_update(parameters, down, state, data, context)


# -- several models, client memory, values per row --------------------------------------------------------------------


class MixtureClient(NamedTuple):
    pi: Tensor


class MixtureServer(NamedTuple):
    theta: Tree
    w: Tensor
    """Weight of every client at the server, by its position in the federation."""


@dataclass(frozen=True)
class Mixture(Method):
    """EM over three component models; aggregation weights per client kept at the server."""

    name: ClassVar[str] = "mixture"
    personal: ClassVar[bool] = True

    @property
    def num_models(self) -> int:
        return 3

    @property
    def setup(self) -> tuple[Phase, ...]:
        def sizes(down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
            return {"rows": data.n}, state

        def weights(server: MixtureServer, replies: Record, validation: Data | None) -> MixtureServer:
            share = replies["rows"] * replies["present"]
            return server._replace(w=server.w.index_put((replies["client"],), share / share.sum().clamp_min(1)))

        return (Phase("sizes", (), ("rows",), sizes, weights),)

    @property
    def round(self) -> tuple[Phase, ...]:
        train = LocalTraining(self.finish, self.loss, self.e_step)
        return (Phase("train", ("theta",), ("theta",), train, self.aggregate),)

    def init(self, task: Task, parameters: Tree) -> MixtureServer:
        return MixtureServer(parameters, tree.leaves(parameters)[0].new_zeros(task.num_clients))

    def init_client(self, task: Task, parameters: Tree) -> MixtureClient:
        return MixtureClient(torch.full((3,), 1 / 3, device=tree.leaves(parameters)[0].device))

    def e_step(self, down: Record, state: MixtureClient, data: Data) -> Start:
        losses = vmap(data.task.row_loss, (0, None, None))(down["theta"], data.x, data.y)
        q = torch.softmax(state.pi.clamp_min(1e-6).log()[:, None] - losses, 0)
        return Start(down["theta"], context=data.mean(q.T), per_row={"q": q.T})

    def loss(self, theta: Tree, context: Tree, batch: Data) -> Tensor:
        losses = vmap(batch.task.row_loss, (0, None, None))(theta, batch.x, batch.y)
        return batch.mean((losses.T * batch.per_row["q"]).sum(1))

    def finish(self, theta: Tree, down: Record, state: Tree, data: Data, pi: Tensor) -> tuple[Record, Tree]:
        return {"theta": theta}, MixtureClient(torch.where(data.n > 0, pi, state.pi))

    def aggregate(self, server: MixtureServer, replies: Record, validation: Data | None) -> MixtureServer:
        w = server.w[replies["client"]] * replies["present"]
        mean = tree.weighted_sum(replies["theta"], w / w.sum().clamp_min(1e-9))
        return server._replace(theta=tree.where(w.sum() > 0, mean, server.theta))

    def predict(self, task: Task, server: MixtureServer, client: MixtureClient, x: Tensor) -> Tensor:
        return client.pi @ vmap(task.predict, (0, None))(server.theta, x)


# -- votes per client group -------------------------------------------------------------------------------------------


class VoteServer(NamedTuple):
    theta: Tree
    groups: Tree
    """A model per client group; a group without a participant keeps its last one."""


@dataclass(frozen=True)
class GroupVote(Method):
    """Every client group has one vote, however many clients it has."""

    name: ClassVar[str] = "group-vote"
    needs_client_groups: ClassVar[bool] = True

    @property
    def round(self) -> tuple[Phase, ...]:
        return (Phase("train", ("theta",), ("theta", "group"), LocalTraining(self.finish), self.vote),)

    def init(self, task: Task, parameters: Tree) -> VoteServer:
        many = task.num_client_groups
        return VoteServer(parameters, tree.map(lambda leaf: leaf.expand(many, *leaf.shape).clone(), parameters))

    @staticmethod
    def finish(theta: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
        return {"theta": theta, "group": data.client_group}, state

    @staticmethod
    def vote(server: VoteServer, replies: Record, validation: Data | None) -> VoteServer:
        many = tree.leaves(server.groups)[0].shape[0]
        member = (replies["group"][None] == torch.arange(many, device=replies["group"].device)[:, None]).float()
        member = member * replies["present"]  # [groups, K]
        number = member.sum(1)
        means = tree.map(
            lambda leaf: torch.tensordot(member / number.clamp_min(1)[:, None], leaf, dims=1), replies["theta"]
        )
        groups = tree.where(number > 0, means, server.groups)
        return VoteServer(tree.map(lambda leaf: leaf.mean(0), groups), groups)


# -- full gradients and dual variables --------------------------------------------------------------------------------


class DualServer(NamedTuple):
    theta: Tree
    dual: Tensor


@dataclass(frozen=True)
class Dual(Method):
    """One full gradient per round of the loss and of a group gap, with a dual variable; no local training."""

    name: ClassVar[str] = "dual"
    step_size: float = hyper(0.1, low=0)
    """Step of theta and of the dual variable."""

    @property
    def round(self) -> tuple[Phase, ...]:
        up = ("loss_gradient", "gap_gradient", "gap", "rows", "holders")
        return (Phase("gradients", ("theta",), up, self.gradients, self.update, "sum"),)

    def init(self, task: Task, parameters: Tree) -> DualServer:
        return DualServer(parameters, tree.leaves(parameters)[0].new_zeros(()))

    @staticmethod
    def gradients(down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
        a, b = data.where((data.s == 1) & (data.y == 1)), data.where((data.s == 0) & (data.y == 1))
        both = ((a.n > 0) & (b.n > 0)).float()

        def total(theta: Tree) -> Tensor:
            return data.sum(data.task.row_loss(theta, data.x, data.y))

        def gap(theta: Tree) -> Tensor:
            losses = data.task.row_loss(theta, data.x, data.y)
            return both * (a.mean(losses) - b.mean(losses))

        theta = down["theta"]
        return {
            "loss_gradient": grad(total)(theta),
            "gap_gradient": grad(gap)(theta),
            "gap": gap(theta),
            "rows": data.n,
            "holders": both,
        }, state

    def update(self, server: DualServer, replies: Record, validation: Data | None) -> DualServer:
        n, many = replies["rows"].clamp_min(1), replies["holders"].clamp_min(1)
        theta = tree.map(
            lambda p, g, h: p - self.step_size * (g / n + server.dual * h / many),
            server.theta,
            replies["loss_gradient"],
            replies["gap_gradient"],
        )
        return DualServer(theta, server.dual + self.step_size * replies["gap"] / many)

    def observe(self, server: DualServer) -> dict[str, Tensor]:
        return {"dual": server.dual}


# -- a validation set at the server, and a final phase ----------------------------------------------------------------


class ChosenServer(NamedTuple):
    theta: Tree
    threshold: Tensor


@dataclass(frozen=True)
class ValidationWeighted(Method):
    """Models weighted by their validation loss; a decision offset fitted from all clients at the end."""

    name: ClassVar[str] = "validation-weighted"
    needs_validation: ClassVar[bool] = True
    predicts_with: ClassVar[tuple[str, ...]] = ("theta", "threshold")

    @property
    def round(self) -> tuple[Phase, ...]:
        def finish(theta: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
            return {"theta": theta}, state

        return (Phase("train", ("theta",), ("theta",), LocalTraining(finish), self.weigh),)

    @property
    def final(self) -> tuple[Phase, ...]:
        def mean_score(down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
            return {"sum": data.sum(data.task.predict(down["theta"], data.x)), "rows": data.n}, state

        def keep(server: ChosenServer, replies: Record, validation: Data | None) -> ChosenServer:
            return server._replace(threshold=replies["sum"] / replies["rows"].clamp_min(1))

        return (Phase("offset", ("theta",), ("sum", "rows"), mean_score, keep, "sum"),)

    def init(self, task: Task, parameters: Tree) -> ChosenServer:
        return ChosenServer(parameters, tree.leaves(parameters)[0].new_full((), 0.5))

    @staticmethod
    def weigh(server: ChosenServer, replies: Record, validation: Data | None) -> ChosenServer:
        assert validation is not None

        def score(theta: Tree) -> Tensor:
            return validation.mean(validation.task.row_loss(theta, validation.x, validation.y))

        w = torch.exp(-vmap(score)(replies["theta"])) * replies["present"]
        return server._replace(theta=tree.weighted_sum(replies["theta"], w / w.sum()))

    def predict(self, task: Task, server: ChosenServer, client: Tree, x: Tensor) -> Tensor:
        return (task.predict(server.theta, x) - server.threshold + 0.5).clamp(0, 1)


# -- something after each step, and passes of its own -----------------------------------------------------------------


@dataclass(frozen=True)
class Projected(Method):
    """Three passes whatever `Local` says; after each step the model is put back into a ball around where it began."""

    name: ClassVar[str] = "projected"
    radius: float = hyper(0.3, low=0)
    """Of the ball."""

    @property
    def round(self) -> tuple[Phase, ...]:
        def start(down: Record, state: Tree, data: Data) -> Start:
            return Start(down["theta"], context=down["theta"])

        train = LocalTraining(weighted_update, prepare=start, after_step=self.back, epochs=3)
        return (Phase("train", ("theta",), ("update", "rows"), train, apply_mean_update, "sum"),)

    def back(self, parameters: Tree, context: Tree, batch: Data) -> Tree:
        away = tree.sub(parameters, context)
        length = tree.squared_norm(away).clamp_min(1e-20).sqrt()
        return tree.add_scaled(context, away, (self.radius / length).clamp_max(1.0))


SKETCHES: tuple[Method, ...] = (ThreeExchanges(), Mixture(), GroupVote(), Dual(), ValidationWeighted(), Projected())
