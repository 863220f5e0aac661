"""FedVal: Mehrabi et al., Towards Multi-Objective Statistically Fair Federated Learning, arXiv:2201.09917.

F_k   = fairness of theta_k on the server's validation set
s_k   = 0.001 + F_k
theta <- sum_k s_k theta_k / sum_k s_k

A client that sees the server's validation rows can measure F_k itself, so that the server needs only the two sums
(`summed`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import vmap

from equifed import tree
from equifed.methods._cells import RATIOS, ratios
from equifed.methods.hyper import hyper
from equifed.protocol import VALIDATION, Bound, Data, LocalTraining, Method, Phase, Record, Server, Update
from equifed.tree import Tree

LEAST = 0.001
"""Score of the least fair model."""
OWN_MODEL = {"theta": Update(around="theta")}
"""Updates of clients that reply their own models."""


def own_model(parameters: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
    """Reply theta_k and n_k."""
    return {"theta": parameters, "rows": data.n}, state


@dataclass(frozen=True)
class FedVal(Method):
    """Average of the clients' models weighted by their fairness on a validation set."""

    name: ClassVar[str] = "fedval"
    reveals: ClassVar[str] = (
        "the mean update, weighted by fairness, and the mean of F_k. The silos see the server's validation rows"
    )
    label_kinds: ClassVar[tuple[str, ...]] = ("binary",)
    needs_validation: ClassVar[bool] = True

    fairness: str | tuple[str, ...] = hyper("demographic_parity_ratio", choices=RATIOS, several=True)
    """F: the fairness metric, or the mean of several."""
    as_published: bool = False
    """True: measure F as the code behind FAIR-FATE's tables, including its defects."""

    @property
    def round(self) -> tuple[Phase, ...]:
        up = ("theta", "rows")
        return (Phase("train", ("theta",), up, LocalTraining(own_model), self.average, updates=OWN_MODEL),)

    @property
    def summed(self) -> Method:
        return SummedFedVal(**self.hyper)

    def score(self, theta: Tree, validation: Data | None) -> Tensor:
        assert validation is not None
        # s_k = 0.001 + F_k; an undefined F_k counts as 0
        F = ratios(theta, validation, self.fairness, self.as_published).mean()
        return LEAST + torch.nan_to_num(F, nan=0.0)

    def average(self, server: Server, replies: Record, validation: Data | None) -> Server:
        s = vmap(lambda theta: self.score(theta, validation))(replies["theta"]) * replies["present"]
        return Server(tree.weighted_sum(replies["theta"], s / s.sum()))


@dataclass(frozen=True)
class SummedFedVal(FedVal):
    """FedVal with F_k measured by the clients."""

    @property
    def round(self) -> tuple[Phase, ...]:
        down, up, updates = ("theta", VALIDATION), ("update", "score"), {"update": Update(weight="score")}
        train, bounds = LocalTraining(self.finish), {"score": Bound(LEAST, LEAST + 1)}
        return (Phase("train", down, up, train, self.add_up, "sum", bounds=bounds, updates=updates),)

    def finish(self, parameters: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
        s = self.score(parameters, Data.of(down[VALIDATION], data.task))
        return {"update": tree.scale(tree.sub(parameters, down["theta"]), s), "score": s}, state

    def add_up(self, server: Server, replies: Record, validation: Data | None) -> Server:
        # theta <- theta + sum_k s_k (theta_k - theta) / sum_k s_k
        return Server(tree.add_scaled(server.theta, replies["update"], 1 / replies["score"]))
