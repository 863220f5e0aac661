"""E2FL: Mozaffari and Houmansadr, E2FL: Equal and Equitable Federated Learning, arXiv:2205.10454, 2022.

client k of group q:  theta^s[R_g] = sort(theta^s);  train the scores by edge-popup;  R_k = argsort(theta^s)
server:               R_{g,q} = VOTE{R_k : k of group q};   R_g = VOTE{R_{g,q} : q}

Every group has one vote, however many clients it has, and a group without a participant votes as before. Clients of
group q use the edges that R_{g,q} keeps. Where groups are unknown, they are inferred

rank-clustering  once, by the server: k-means of all clients' first rankings under Spearman's footrule, centres by VOTE
lowest-loss      every round, by the client:  argmin_q F_k(theta^w * M_q), M_q the mask of R_{g,q}
one-shot         argmin_q dH/d alpha_q at alpha = 1/Q, H the entropy of the outputs of theta^w * sum_q alpha_q M_q
binary           the same, repeatedly, keeping the half of the masks with the smaller derivatives
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from equifed import tree
from equifed.errors import ConfigError, check_number
from equifed.methods import _supermask as supermask
from equifed.methods import frl
from equifed.methods.hyper import hyper
from equifed.methods.ifca import Client, keep_known_group, lowest_loss
from equifed.protocol import Data, LocalTraining, Method, Phase, Record, Start, Task, unchanged
from equifed.tree import Tree

GROUPS = ("known", "sensitive", "rank-clustering", "lowest-loss", "one-shot", "binary")
BY_CLIENT = ("lowest-loss", "one-shot", "binary")
ITERATIONS = 20
"""Of k-means over rankings."""


class Server(NamedTuple):
    theta: Tree
    """theta^w * M_g, the network of the global ranking."""
    R: Tree
    """R_g, the global ranking of each layer's edges [n]."""
    R_q: Tree
    """R_{g,q}, the groups' rankings [Q, n]."""
    M_q: Tree
    """M_{g,q}, the edges that they keep [Q, ...]."""
    w: Tree
    """theta^w, the weights."""
    assigned: Tensor
    """Each client's group by rank clustering [N]; -1 where there is none."""


@dataclass(frozen=True)
class E2FL(Method):
    """Rank the edges of a random network by two votes, within groups of clients and between them."""

    name: ClassVar[str] = "e2fl"
    predicts_with: ClassVar[tuple[str, ...]] = ("theta", "M_q", "w")
    tasks: ClassVar[tuple[str, ...]] = ("binary", "multiclass")
    personal: ClassVar[bool] = True

    keep: float = hyper(0.5, low=0, high=1)
    """k: the share of a layer's edges that remain; at least one does."""
    groups: Literal["known", "sensitive", "rank-clustering", "lowest-loss", "one-shot", "binary"] = hyper(
        "known", choices=GROUPS
    )
    """Whose vote counts where: clients' known groups; the rows' groups, where a client with rows of several trains and
    sends a ranking for each; or groups inferred from clients' first rankings, their loss, or their outputs' entropy."""
    num_groups: int | None = None
    """Q, needed where groups are inferred."""
    use: Literal["group", "global"] = hyper("group", choices=("group", "global"))
    """What clients predict with: the ranking of their group (the global one as long as they have none), or the global
    ranking, which is "E2FL (GM)"."""

    # -- exchanges -----------------------------------------------------------------------------------------------------

    @property
    def setup(self) -> tuple[Phase, ...]:
        if self.groups == "known":
            return (Phase("group", (), (), keep_known_group, unchanged, "sum"),)
        if self.groups == "rank-clustering":
            rank = LocalTraining(ranking_and_rows, self.loss, self.start)
            up = ("ranking", "rows")
            return (
                Phase("rank", ("R",), up, rank, self.cluster, codecs=_codecs("R", "ranking"), initial=True),
                Phase("assign", ("assigned",), (), keep_assigned, unchanged, "sum"),
            )
        return ()

    @property
    def round(self) -> tuple[Phase, ...]:
        train = LocalTraining(self.reply, self.loss, self.start)
        down = ("R", "M_q") if self.groups in BY_CLIENT else ("R",)
        up = ("ranking", "votes" if self.groups == "sensitive" else "group")
        codecs = _codecs("R", "ranking", masks=("M_q",))
        limits = {"group": (-1.0, math.inf if self.num_groups is None else self.num_groups - 1.0), "votes": (0.0, 1.0)}
        return (Phase("train", down, up, train, self.count_votes, codecs=codecs, limits=limits, initial=True),)

    @property
    def final(self) -> tuple[Phase, ...]:
        """Whoever has not taken part, or not lately, finds its group by the masks as they are."""

        def choose(down: Record, state: Client, data: Data) -> tuple[Record, Tree]:
            group = infer(self.groups, down["M_q"], supermask.weights(self.seeded(data.initial)), data)
            return {}, Client(torch.where(data.n > 0, group, state.group))

        if self.groups not in BY_CLIENT:
            return ()
        codecs = _codecs(masks=("M_q",))
        return (Phase("choose", ("M_q",), (), choose, unchanged, "sum", codecs=codecs, initial=True),)

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def num_models(self) -> int | None:
        """Where clients choose among the groups' masks, these have to differ from the start: each has initial scores of
        its own. The weights, and the global ranking, are those of the first."""
        return self.num_groups if self.groups in BY_CLIENT else None

    def seeded(self, initial: Tree) -> Tree:
        """The initial parameters of the network itself."""
        return tree.take(initial, 0) if self.groups in BY_CLIENT else initial

    def check(self, task: Task) -> None:
        supermask.check_network(self.name, task)
        if self.groups == "known" and not task.num_client_groups:
            raise ConfigError(
                'e2fl with groups="known" needs each client\'s group, but this federation has no client groups. Give '
                'them (from_arrays: client_groups=...), or infer them: groups="lowest-loss", num_groups=...; '
                'groups="sensitive" takes the rows\' groups.'
            )
        if self.groups in ("known", "sensitive"):
            if self.num_groups is not None:
                raise ConfigError(f"e2fl: groups={self.groups!r} come from the data; leave num_groups at None.")
        elif self.num_groups is None:
            raise ConfigError(f"e2fl: groups={self.groups!r} are inferred; say how many there are: num_groups=...")
        else:
            check_number("e2fl: num_groups", self.num_groups, whole=True, low=1)

    def init(self, task: Task, parameters: Tree) -> Server:
        supermask.check_initial(self.name, parameters)
        initial = self.seeded(parameters)
        R = supermask.initial_ranking(initial)
        if self.groups in BY_CLIENT:
            each = range(tree.length(parameters))
            R_q = tree.stack([supermask.initial_ranking(tree.take(parameters, q)) for q in each])
        else:
            many = {"known": task.num_client_groups, "sensitive": task.num_groups}.get(self.groups, self.num_groups)
            R_q = tree.map(lambda order: order.repeat(many, 1), R)
        nobody = torch.full((task.num_clients,), -1, dtype=torch.int16, device=tree.prototype(R).device)
        return self.networks(R, R_q, supermask.weights(initial), nobody)

    def networks(self, R: Tree, R_q: Tree, w: Tree, assigned: Tensor) -> Server:
        theta = tree.map(lambda w, mask: w * mask, w, supermask.masks(R, w, self.keep))
        return Server(theta, R, R_q, supermask.masks(R_q, w, self.keep), w, assigned)

    def init_client(self, task: Task, parameters: Tree) -> Client:
        return Client(torch.tensor(-1, device=tree.prototype(parameters).device))

    def predict(self, task: Task, server: Server, client: Client, x: Tensor) -> Tensor:
        if self.use == "global":
            return task.predict(server.theta, x)
        own = tree.map(lambda w, mask: w * mask, server.w, tree.pick(server.M_q, client.group.clamp_min(0)))
        return task.predict(tree.where(client.group >= 0, own, server.theta), x)

    # -- clients -------------------------------------------------------------------------------------------------------

    def start(self, down: Record, state: Client, data: Data) -> Start:
        initial = self.seeded(data.initial)
        w, scores = supermask.weights(initial), supermask.scores(down["R"], initial)
        if self.groups == "sensitive":
            scores = tree.map(lambda s: s.expand(data.task.num_groups, *s.shape), scores)
        return Start(scores, context=w)

    def loss(self, scores: Tree, w: Tree, batch: Data) -> Tensor:
        if self.groups != "sensitive":
            return frl.edge_popup(scores, w, batch, self.keep)
        # each ranking learns from the rows of its own group
        parts = [
            frl.edge_popup(tree.take(scores, g), w, batch.where(batch.s == g), self.keep)
            for g in range(batch.task.num_groups)
        ]
        return torch.stack(parts).sum()

    def reply(self, scores: Tree, down: Record, state: Client, data: Data, w: Tree) -> tuple[Record, Tree]:
        if self.groups == "sensitive":
            many = range(data.task.num_groups)
            each = [supermask.ranking(tree.take(scores, g)) for g in many]
            return {
                "ranking": tree.stack(each),
                "votes": torch.stack([(data.where(data.s == g).n > 0) for g in many]),
            }, state
        group = infer(self.groups, down["M_q"], w, data) if self.groups in BY_CLIENT else state.group
        # a client without rows has nothing to say
        group = torch.where(data.n > 0, group, -1)
        state = Client(torch.where(data.n > 0, group, state.group))
        return {"ranking": supermask.ranking(scores), "group": group.to(torch.int16)}, state

    # -- server --------------------------------------------------------------------------------------------------------

    def cluster(self, server: Server, replies: Record, validation: Data | None) -> Server:
        assert self.num_groups is not None
        there = (replies["present"] > 0) & (replies["rows"] > 0)
        groups = rank_clusters(replies["ranking"], there, self.num_groups)
        return server._replace(assigned=server.assigned.index_put((replies["client"],), groups.to(torch.int16)))

    def count_votes(self, server: Server, replies: Record, validation: Data | None) -> Server:
        many = tree.length(server.R_q)
        if self.groups == "sensitive":
            votes = replies["votes"] * replies["present"][:, None]  # [K, Q]
            voted = tree.map(lambda order: own_votes(order, votes), replies["ranking"])
            number = votes.sum(0)
        else:
            groups = torch.arange(many, device=replies["group"].device)
            member = (replies["group"] == groups[:, None]) * replies["present"]  # [Q, K]
            voted = supermask.vote(replies["ranking"], member)
            number = member.sum(1)
        R_q = tree.where(number > 0, voted, server.R_q)
        # every group has one vote
        R = tree.take(supermask.vote(R_q, torch.ones_like(number)[None]), 0)
        return self.networks(R, R_q, server.w, server.assigned)


def _codecs(*rankings: str, masks: tuple[str, ...] = ()) -> Any:
    return {**dict.fromkeys(rankings, "ranking"), **dict.fromkeys(masks, "mask")}


def own_votes(order: Tensor, votes: Tensor) -> Tensor:
    """VOTE within each group, of clients that sent a ranking per group: [K, Q, n], votes [K, Q] -> [Q, n]."""
    return supermask.sorted_by((votes.double()[..., None] * supermask.positions(order)).sum(0))


def ranking_and_rows(scores: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
    return {"ranking": supermask.ranking(scores), "rows": data.n}, state


def keep_assigned(down: Record, state: Client, data: Data) -> tuple[Record, Tree]:
    assert data.client is not None
    return {}, Client(down["assigned"].index_select(0, data.client.reshape(1)).squeeze(0).to(state.group.dtype))


# -- inference ---------------------------------------------------------------------------------------------------------


def infer(how: str, M_q: Tree, w: Tree, data: Data) -> Tensor:
    """The group whose mask suits the client's rows."""
    if how == "lowest-loss":
        return lowest_loss(tree.map(lambda mask, w: mask * w, M_q, w), data)
    many = tree.length(M_q)
    active = torch.ones(many, device=data.mask.device)
    if how == "one-shot":
        return entropy_slope(active, M_q, w, data).argmin()
    for _ in range(math.ceil(math.log2(many))):
        # keep the ceil(half) of those left with the smallest derivatives
        slope = torch.where(active > 0, entropy_slope(active, M_q, w, data), torch.inf)
        place = slope.sort(stable=True).indices.sort().indices
        active = (place < torch.ceil(active.sum() / 2)).to(active.dtype)
    return active.argmax()


def entropy_slope(active: Tensor, M_q: Tree, w: Tree, data: Data) -> Tensor:
    """dH/d alpha [Q] at equal alpha over the active masks; H is the mean entropy of their superposition's outputs."""

    def entropy(alpha: Tensor) -> Tensor:
        mixed = tree.map(lambda mask, w: torch.tensordot(alpha, mask.to(alpha.dtype), dims=1) * w, M_q, w)
        p = data.task.predict(mixed, data.x)
        if p.dim() == 1:
            p = torch.stack([p, 1 - p], -1)
        return data.mean(-(p * p.clamp_min(1e-12).log()).sum(-1))

    return grad(entropy)(active / active.sum())


def rank_clusters(R: Tree, there: Tensor, count: int) -> Tensor:
    """k-means of rankings [K, n] under the footrule; the group of each [K], -1 for those that are not `there`.

    It starts from the first ranking and, one by one, from the ranking farthest from those taken. Of equally near
    centres the first is taken. An empty cluster is started anew from the ranking that is farthest from its centre,
    unless that is no distance at all: with fewer different rankings than clusters, some stay empty.
    """
    places = tree.map(supermask.positions, R)
    first = tree.pick(places, there.to(torch.int8).argmax())
    centres, nearest = [first], supermask.footrule(places, first)
    for _ in range(count - 1):
        centres.append(tree.pick(places, torch.where(there, nearest, -1).argmax()))
        nearest = torch.minimum(nearest, supermask.footrule(places, centres[-1]))
    numbers = torch.arange(count, device=there.device)
    for _ in range(ITERATIONS):
        distance = torch.stack([supermask.footrule(places, centre) for centre in centres])  # [Q, K]
        group = distance.argmin(0)
        member = (group == numbers[:, None]) & there
        empty = ~member.any(1)
        voted = tree.map(supermask.positions, supermask.vote(R, member))
        own = torch.where(there, distance.amin(0), -1)
        order = own.sort(descending=True, stable=True).indices
        turn = (empty.cumsum(0) - 1).clamp(0, len(order) - 1)  # the how-manieth empty cluster it is
        centres = []
        for q in range(count):
            far = order.index_select(0, turn[q].reshape(1))
            anew = empty[q] & (own.index_select(0, far) > 0).squeeze(0)
            centres.append(tree.where(anew, tree.pick(places, far), tree.take(voted, q)))
    return torch.where(there, group, -1)
