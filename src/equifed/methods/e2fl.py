"""E2FL: Mozaffari and Houmansadr, E2FL: Equal and Equitable Federated Learning, arXiv:2205.10454, 2022.

client k of group q:  theta^s[R_g] = sort(theta^s);  train the scores by edge-popup;  R_k = argsort(theta^s)
server:               R_{g,q} = VOTE{R_k : k of group q};   R_g = VOTE{R_{g,q} : q}

Every group has one vote, however many clients it has, and a group without a participant votes as before. Clients of
group q use the edges that R_{g,q} keeps. If groups are unknown, they are inferred

rank-clustering  once, by the server: k-means of all clients' first rankings under Spearman's footrule, centres by VOTE
lowest-loss      every round, by the client:  argmin_q F_k(theta^w * M_q), M_q the mask of R_{g,q}
one-shot         argmin_q dH/d alpha_q at alpha = 1/Q, H the entropy of the outputs of theta^w * sum_q alpha_q M_q
binary           the same, repeatedly, keeping the half of the masks with the smaller derivatives

The votes within groups are sums: so that the server sees only these, a client sends positions for every group, zero
except for its own, in 8 bytes per edge and group (`summed`). Rank clustering cannot: it compares single rankings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.codec import CodecName
from equifed.edge_popup import EdgePopup
from equifed.errors import ConfigError, check_number
from equifed.gradients import grad
from equifed.methods import _supermask as supermask
from equifed.methods._cells import one_hot
from equifed.methods._ties import first_least
from equifed.methods.hyper import hyper
from equifed.methods.ifca import KNOWN_GROUPS, Client, choice_phase, lowest_loss, smallest_sum, ungrouped
from equifed.protocol import YES_OR_NO, Bound, Data, LocalTraining, Method, Phase, Record, Start, Task, ignore_replies
from equifed.tree import Tree

CODECS: dict[str, CodecName] = {"R": "ranking", "ranking": "ranking", "M_q": "mask"}
MAX_ITERATIONS = 20
"""Largest number of iterations of k-means over rankings."""


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
    """Each client's group by rank clustering [N]; -1 for none."""
    voters: Tensor
    """Number of clients that voted in each group in the last round [Q]."""


@dataclass(frozen=True)
class Grouping:
    """The way in which clients get their groups."""

    count: Callable[[Task], int] | None = None
    """Number of groups in the data. None: `num_groups` groups are inferred."""
    infer: Callable[[Tree, Tree, Data], Tensor] | None = None
    """(M_q, theta^w, data) -> group: each client chooses, in every round, the best mask for its rows."""
    setup: Callable[[E2FL], tuple[Phase, ...]] = lambda method: ()
    """Exchanges by which clients learn their groups before round 1."""
    of_rows: bool = False
    """True if a client has a ranking and a vote in each group of its rows."""


@dataclass(frozen=True)
class E2FL(Method):
    """Rank the edges of a random network by two votes, within groups of clients and between them."""

    name: ClassVar[str] = "e2fl"
    reveals: ClassVar[str] = (
        "the importance of every edge to the silos of each group together, and the number of votes in it: for a group "
        "with a single voter, its ranking"
    )
    predicts_with: ClassVar[tuple[str, ...]] = ("theta", "M_q", "w")
    label_kinds: ClassVar[tuple[str, ...]] = ("binary", "multiclass")
    personal: ClassVar[bool] = True

    keep: float = hyper(0.5, low=0, high=1)
    """k: share of a layer's edges that remain, at least one edge."""
    groups: Literal["known", "sensitive", "rank-clustering", "lowest-loss", "one-shot", "binary"] = hyper(
        "known", choices=("known", "sensitive", "rank-clustering", "lowest-loss", "one-shot", "binary")
    )
    """Groups in which clients vote: their known groups; the rows' groups (a client trains and sends a ranking for each
    of its rows' groups); or groups inferred from clients' first rankings, their loss, or their outputs' entropy."""
    num_groups: int | None = hyper(None, low=1, high=10_000)
    """Q, required if groups are inferred."""
    use: Literal["group", "global"] = hyper("group", choices=("group", "global"))
    """Ranking for predictions: that of the client's group (the global one while it has no group), or the global
    ranking, which is "E2FL (GM)"."""
    min_clients: int = hyper(1, low=1)
    """Smallest number of voters in a round that changes a group's ranking. With secure sums, 3 protects the rankings of
    one or two clients."""

    @property
    def grouping(self) -> Grouping:
        return GROUPINGS[self.groups]

    # -- exchanges -----------------------------------------------------------------------------------------------------

    @property
    def setup(self) -> tuple[Phase, ...]:
        return self.grouping.setup(self)

    @property
    def round(self) -> tuple[Phase, ...]:
        train = LocalTraining(self.reply, self.loss, self.start)
        down = ("R", "M_q") if self.grouping.infer else ("R",)
        bounds = {"group": Bound(-1, lambda task: self.count(task) - 1, whole=True), "votes": YES_OR_NO}
        up = ("ranking", "votes" if self.grouping.of_rows else "group")
        return (Phase("train", down, up, train, self.count_votes, codecs=CODECS, bounds=bounds, initial=True),)

    @property
    def final(self) -> tuple[Phase, ...]:
        infer = self.grouping.infer
        if infer is None:
            return ()

        def group(M_q: Tree, data: Data) -> Tensor:
            return infer(M_q, supermask.weights(self.network_initial(data.initial)), data)

        return (choice_phase(group, "M_q", codecs=CODECS, initial=True),)

    @property
    def summed(self) -> Method | None:
        return None if self.groups == "rank-clustering" else SummedE2FL(**self.hyper)

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def num_models(self) -> int | None:
        """The number of models: if clients choose among the groups' masks, these must differ from the start, so each
        has its own initial scores. The weights and the global ranking are those of the first."""
        return self.num_groups if self.grouping.infer else None

    def count(self, task: Task) -> int:
        """Return Q, the number of groups."""
        if self.grouping.count:
            return self.grouping.count(task)
        assert self.num_groups is not None, "refused by check"
        return self.num_groups

    def network_initial(self, initial: Tree) -> Tree:
        """Return the initial parameters of the network, those of the first model."""
        return initial if self.num_models is None else tree.take(initial, 0)

    def check(self, task: Task) -> None:
        supermask.check_network(self.name, task)
        if self.groups == "known" and not task.num_client_groups:
            raise ConfigError(
                'is "known", which needs each client\'s group, but this federation has no client groups. Give them '
                '(from_arrays: client_groups=...), or infer them: groups="lowest-loss", num_groups=...; '
                'groups="sensitive" uses the rows\' groups.',
                key="groups",
            )
        if self.grouping.count:
            if self.num_groups is not None:
                raise ConfigError(f"must stay None: groups={self.groups!r} come from the data.", key="num_groups")
        elif self.num_groups is None:
            raise ConfigError(f"must be the number of groups that {self.groups!r} infers.", key="num_groups")
        else:
            check_number("num_groups", self.num_groups, whole=True, low=1)

    def init(self, task: Task, parameters: Tree) -> Server:
        supermask.check_initial(self.name, parameters)
        initial = self.network_initial(parameters)
        R = supermask.initial_ranking(initial)
        if self.num_models is None:
            R_q = tree.map(lambda order: order.repeat(self.count(task), 1), R)
        else:
            R_q = tree.stack([supermask.initial_ranking(tree.take(parameters, q)) for q in range(self.num_models)])
        unknown = torch.full((task.num_clients,), -1, dtype=torch.int16, device=tree.prototype(R).device)
        return self.networks(R, R_q, supermask.weights(initial), unknown, tree.zeros(initial, tree.length(R_q)))

    def networks(self, R: Tree, R_q: Tree, w: Tree, assigned: Tensor, voters: Tensor) -> Server:
        theta = tree.map(torch.mul, w, supermask.masks(R, w, self.keep))
        return Server(theta, R, R_q, supermask.masks(R_q, w, self.keep), w, assigned, voters)

    def init_client(self, task: Task, parameters: Tree) -> Client:
        return ungrouped(parameters)

    def predict(self, task: Task, server: Server, client: Client, x: Tensor) -> Tensor:
        if self.use == "global":
            return task.predict(server.theta, x)
        own = tree.map(torch.mul, server.w, tree.pick(server.M_q, client.group.clamp_min(0)))
        return task.predict(tree.where(client.group >= 0, own, server.theta), x)

    # -- clients -------------------------------------------------------------------------------------------------------

    def start(self, down: Record, state: Client, data: Data) -> Start:
        initial = self.network_initial(data.initial)
        scores = supermask.scores(down["R"], initial)
        if self.grouping.of_rows:
            scores = tree.map(lambda s: s.expand(data.task.num_groups, *s.shape), scores)
        return Start(scores, context=supermask.weights(initial))

    @property
    def loss(self) -> EdgePopup:
        return EdgePopup(self.keep, by_group=self.grouping.of_rows)

    def group(self, down: Record, state: Client, data: Data, w: Tree) -> Tensor:
        group = self.grouping.infer(down["M_q"], w, data) if self.grouping.infer else state.group
        # a client without rows does not vote, and keeps its group
        return torch.where(data.n > 0, group, -1)

    def reply(self, scores: Tree, down: Record, state: Client, data: Data, w: Tree) -> tuple[Record, Client]:
        if self.grouping.of_rows:
            rankings = tree.stack([supermask.ranking(tree.take(scores, g)) for g in range(data.task.num_groups)])
            return {"ranking": rankings, "votes": has_rows_of_groups(data)}, state
        group = self.group(down, state, data, w)
        state = Client(torch.where(data.n > 0, group, state.group))
        return {"ranking": supermask.ranking(scores), "group": group.to(torch.int16)}, state

    # -- server --------------------------------------------------------------------------------------------------------

    def count_votes(self, server: Server, replies: Record, validation: Data | None) -> Server:
        if self.grouping.of_rows:
            votes = replies["votes"] * replies["present"][:, None]  # [K, Q]
            voted = tree.map(lambda order: votes_within(order, votes), replies["ranking"])
        else:
            votes = one_hot(replies["group"], tree.length(server.R_q), replies["present"]) * replies["present"][:, None]
            voted = supermask.vote(replies["ranking"], votes.T)
        return self.vote_of_groups(server, voted, votes.sum(0))

    def vote_of_groups(self, server: Server, voted: Tree, voters: Tensor) -> Server:
        """Return the server's state after the votes within groups [Q, n], with `voters` clients [Q]."""
        R_q = tree.where((voters > 0) & (voters >= self.min_clients), voted, server.R_q)
        # every group has one vote
        R = tree.take(supermask.vote(R_q, torch.ones(1, len(voters), device=voters.device)), 0)
        return self.networks(R, R_q, server.w, server.assigned, voters)

    def observe(self, server: Server) -> dict[str, Tensor]:
        return {"fewest_clients": smallest_sum(server.voters, self.min_clients)}


@dataclass(frozen=True)
class SummedE2FL(E2FL):
    """E2FL by sums of positions within groups; with `min_clients` above 1, the voters are counted first."""

    @property
    def round(self) -> tuple[Phase, ...]:
        (phase,) = super().round
        bounds = {"positions": supermask.position_bound(), "votes": YES_OR_NO}
        count = replace(phase, name="count", up=("votes",), client=self.count_voters, server=self.store_voters)
        train = LocalTraining(self.add_votes, self.loss, self.start)
        add = replace(phase, up=("positions", "votes"), client=train, server=self.add_up)
        if self.min_clients > 1:
            add = replace(add, down=(*phase.down, "voters"))
        used = (add,) if self.min_clients == 1 else (count, add)
        return tuple(replace(phase, gather="sum", bounds=bounds) for phase in used)

    def votes(self, down: Record, state: Client, data: Data, w: Tree) -> Tensor:
        """Return 1 for the groups in which the client votes, else 0 [Q]."""
        if self.grouping.of_rows:
            return has_rows_of_groups(data).to(data.mask.dtype)
        return one_hot(self.group(down, state, data, w), self.count(data.task), data.mask)

    def count_voters(self, down: Record, state: Client, data: Data) -> tuple[Record, Client]:
        return {"votes": self.votes(down, state, data, supermask.weights(self.network_initial(data.initial)))}, state

    def store_voters(self, server: Server, replies: Record, validation: Data | None) -> Server:
        return server._replace(voters=replies["votes"])

    def add_votes(self, scores: Tree, down: Record, state: Client, data: Data, w: Tree) -> tuple[Record, Client]:
        votes = self.votes(down, state, data, w)
        reply, state = self.reply(scores, down, state, data, w)
        added = votes if self.min_clients == 1 else votes * (down["voters"] >= self.min_clients)
        return {"positions": supermask.votes(reply["ranking"], added), "votes": votes}, state

    def add_up(self, server: Server, replies: Record, validation: Data | None) -> Server:
        return self.vote_of_groups(server, supermask.elect(replies["positions"]), replies["votes"])


def has_rows_of_groups(data: Data) -> Tensor:
    """Return True for the groups of which a client has rows [Q]."""
    return torch.stack([data.where(data.s == g).n > 0 for g in range(data.task.num_groups)])


def votes_within(order: Tensor, votes: Tensor) -> Tensor:
    """Return VOTE within each group, from clients' rankings per group: [K, Q, n], votes [K, Q] -> [Q, n]."""
    return supermask.rank_by((votes.double()[..., None] * supermask.positions(order)).sum(0))


# -- groupings ---------------------------------------------------------------------------------------------------------


def clustering_phases(method: E2FL) -> tuple[Phase, ...]:
    """Return the phases of rank clustering."""

    def cluster(server: Server, replies: Record, validation: Data | None) -> Server:
        there = (replies["present"] > 0) & (replies["rows"] > 0)
        groups = rank_clusters(replies["ranking"], there, tree.length(server.R_q))
        return server._replace(assigned=server.assigned.index_put((replies["client"],), groups.to(torch.int16)))

    rank = LocalTraining(ranking_and_rows, method.loss, method.start)
    return (
        Phase("rank", ("R",), ("ranking", "rows"), rank, cluster, codecs=CODECS, initial=True),
        Phase("assign", ("assigned",), (), keep_assigned, ignore_replies, "sum"),
    )


def ranking_and_rows(scores: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
    return {"ranking": supermask.ranking(scores), "rows": data.n}, state


def keep_assigned(down: Record, state: Client, data: Data) -> tuple[Record, Client]:
    assert data.client is not None
    return {}, Client(tree.pick(down["assigned"], data.client).to(state.group.dtype))


def by_loss(M_q: Tree, w: Tree, data: Data) -> Tensor:
    """Return the group with the lowest loss."""
    return lowest_loss(tree.map(torch.mul, M_q, w), data)


def by_entropy(M_q: Tree, w: Tree, data: Data) -> Tensor:
    """Return the group with the smallest derivative of the entropy."""
    return first_least(entropy_slope(torch.ones(tree.length(M_q), device=data.mask.device), M_q, w, data))


def by_halving(M_q: Tree, w: Tree, data: Data) -> Tensor:
    """Return the group that remains after repeatedly halving the masks by the derivative of the entropy."""
    left = tree.length(M_q)
    active = torch.ones(left, device=data.mask.device)
    while left > 1:
        # keep the ceil(half) of the remaining ones with the smallest derivatives
        slope = torch.where(active > 0, entropy_slope(active, M_q, w, data), torch.inf)
        left, active = math.ceil(left / 2), torch.zeros_like(active)
        for _ in range(left):
            taken = one_hot(first_least(slope), len(active), active)
            slope, active = torch.where(taken > 0, torch.inf, slope), active + taken
    return active.argmax()


def entropy_slope(active: Tensor, M_q: Tree, w: Tree, data: Data) -> Tensor:
    """Return dH/d alpha [Q] at equal alpha over the active masks; H: mean output entropy of their superposition."""

    def entropy(alpha: Tensor) -> Tensor:
        mixed = tree.map(lambda mask, w: torch.tensordot(alpha, mask.to(alpha.dtype), dims=1) * w, M_q, w)
        p = data.task.predict(mixed, data.x)
        if p.dim() == 1:
            p = torch.stack([p, 1 - p], -1)
        return data.mean(-(p * p.clamp_min(1e-12).log()).sum(-1))

    return grad(entropy)(active / active.sum())


def rank_clusters(R: Tree, there: Tensor, count: int) -> Tensor:
    """Return the group of each ranking [K] by k-means of rankings [K, n] under the footrule; -1 if not `there`.

    The first centre is the first ranking; each next one is the ranking farthest from all centres so far. Of equally
    near centres the first is taken. An empty cluster restarts from the ranking that is farthest from its centre, unless
    that distance is 0: with fewer different rankings than clusters, some stay empty.
    """
    places = tree.map(supermask.positions, R)
    first = tree.pick(places, there.to(torch.int8).argmax())
    centres, nearest = [first], supermask.footrule(places, first)
    for _ in range(count - 1):
        centres.append(tree.pick(places, torch.where(there, nearest, -1).argmax()))
        nearest = torch.minimum(nearest, supermask.footrule(places, centres[-1]))
    numbers = torch.arange(count, device=there.device)
    for _ in range(MAX_ITERATIONS):
        distance = torch.stack([supermask.footrule(places, centre) for centre in centres])  # [Q, K]
        group = distance.argmin(0)
        member = (group == numbers[:, None]) & there
        empty = ~member.any(1)
        voted = tree.map(supermask.positions, supermask.vote(R, member))
        to_centre = torch.where(there, distance.amin(0), -1)
        order = to_centre.sort(descending=True, stable=True).indices
        turn = (empty.cumsum(0) - 1).clamp(0, len(order) - 1)  # an empty cluster's number among the empty ones
        centres = []
        for q in range(count):
            far = order.index_select(0, turn[q].reshape(1))
            anew = empty[q] & (to_centre.index_select(0, far) > 0).squeeze(0)
            centres.append(tree.where(anew, tree.pick(places, far), tree.take(voted, q)))
    return torch.where(there, group, -1)


GROUPINGS = {
    "known": Grouping(lambda task: task.num_client_groups, setup=lambda method: (KNOWN_GROUPS,)),
    "sensitive": Grouping(lambda task: task.num_groups, of_rows=True),
    "rank-clustering": Grouping(setup=clustering_phases),
    "lowest-loss": Grouping(infer=by_loss),
    "one-shot": Grouping(infer=by_entropy),
    "binary": Grouping(infer=by_halving),
}
