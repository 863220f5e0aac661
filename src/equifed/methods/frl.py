"""FRL: Mozaffari, Shejwalkar and Houmansadr, FSL: Federated Supermask Learning, arXiv:2110.04350, 2021.

client k:  theta^s[R_g] = sort(theta^s);  train the scores on mean loss, by edge-popup;  R_k = argsort(theta^s)
server:    R_g = VOTE{R_k} = argsort(sum_k positions of R_k)

Only rankings are sent, ceil(log2 n) bits per edge of a layer with n edges; weights are drawn from the shared seed and
never change (see _supermask.py). All steps are done layer by layer. The vote is a sum: so that the server sees only
this, clients send positions instead of rankings, in 8 bytes per edge (`summed`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

from equifed import tree
from equifed.codec import CodecName
from equifed.edge_popup import EdgePopup
from equifed.methods import _supermask as supermask
from equifed.methods.hyper import hyper
from equifed.protocol import Data, LocalTraining, Method, Phase, Record, Start, Task
from equifed.tree import Tree


class Server(NamedTuple):
    theta: Tree
    """theta^w * M_g, the network that remains."""
    R: Tree
    """R_g, the global ranking of each layer's edges [n]."""
    w: Tree
    """theta^w, the weights."""


@dataclass(frozen=True)
class FRL(Method):
    """Clients rank the edges of a random network by importance, and the server lets them vote."""

    name: ClassVar[str] = "frl"
    reveals: ClassVar[str] = "the importance of every edge to all silos together"
    label_kinds: ClassVar[tuple[str, ...]] = ("binary", "multiclass")

    keep: float = hyper(0.5, low=0, high=1)
    """k: share of a layer's edges that remain, at least one edge."""

    @property
    def round(self) -> tuple[Phase, ...]:
        train = LocalTraining(reply, self.loss, start)
        codecs: dict[str, CodecName] = {"R": "ranking", "ranking": "ranking"}
        return (Phase("train", ("R",), ("ranking",), train, self.count_votes, codecs=codecs, initial=True),)

    @property
    def summed(self) -> Method:
        return SummedFRL(**self.hyper)

    def check(self, task: Task) -> None:
        supermask.check_network(self.name, task)

    def init(self, task: Task, parameters: Tree) -> Server:
        supermask.check_initial(self.name, parameters)
        return self.network(supermask.initial_ranking(parameters), supermask.weights(parameters))

    def network(self, R: Tree, w: Tree) -> Server:
        return Server(tree.map(torch.mul, w, supermask.masks(R, w, self.keep)), R, w)

    @property
    def loss(self) -> EdgePopup:
        return EdgePopup(self.keep)

    def count_votes(self, server: Server, replies: Record, validation: Data | None) -> Server:
        voted = supermask.vote(replies["ranking"], replies["present"][None])
        return self.network(tree.take(voted, 0), server.w)


@dataclass(frozen=True)
class SummedFRL(FRL):
    """FRL by the sum of the clients' positions."""

    @property
    def round(self) -> tuple[Phase, ...]:
        train, bounds = LocalTraining(add_positions, self.loss, start), {"positions": supermask.position_bound()}
        codecs: dict[str, CodecName] = {"R": "ranking"}
        options: dict[str, Any] = {"codecs": codecs, "bounds": bounds, "initial": True}
        return (Phase("train", ("R",), ("positions",), train, self.add_up, "sum", **options),)

    def add_up(self, server: Server, replies: Record, validation: Data | None) -> Server:
        return self.network(supermask.elect(replies["positions"]), server.w)


def start(down: Record, state: Tree, data: Data) -> Start:
    return Start(supermask.scores(down["R"], data.initial), context=supermask.weights(data.initial))


def reply(scores: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
    return {"ranking": supermask.ranking(scores)}, state


def add_positions(scores: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
    R = supermask.ranking(scores)
    return {"positions": tree.take(supermask.votes(R, torch.ones(1, device=data.mask.device)), 0)}, state
