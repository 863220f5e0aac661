"""FedVal: Mehrabi et al., Towards Multi-Objective Statistically Fair Federated Learning, arXiv:2201.09917.

F_k   = fairness of theta_k on the server's validation set
s_k   = 0.001 + F_k
theta <- sum_k s_k theta_k / sum_k s_k
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.func import vmap

from equifed import tree
from equifed.methods._cells import RATIOS, ratios
from equifed.methods.hyper import hyper
from equifed.protocol import Data, LocalTraining, Method, Phase, Record, Server, Update
from equifed.tree import Tree

OWN_MODEL = {"theta": Update(around="theta")}
"""What moves the model where clients reply with their own."""


def own_model(parameters: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
    """Reply theta_k and n_k."""
    return {"theta": parameters, "rows": data.n}, state


@dataclass(frozen=True)
class FedVal(Method):
    """Average of the clients' models weighted by their fairness on a validation set."""

    name: ClassVar[str] = "fedval"
    label_kinds: ClassVar[tuple[str, ...]] = ("binary",)
    needs_validation: ClassVar[bool] = True

    fairness: str | tuple[str, ...] = hyper("demographic_parity_ratio", choices=RATIOS, several=True)
    """F: the fairness metric, or several whose mean is taken."""
    as_published: bool = False
    """Measure F as the code behind FAIR-FATE's tables does, defects included."""

    @property
    def round(self) -> tuple[Phase, ...]:
        up = ("theta", "rows")
        return (Phase("train", ("theta",), up, LocalTraining(own_model), self.average, updates=OWN_MODEL),)

    def average(self, server: Server, replies: Record, validation: Data | None) -> Server:
        def score(theta: Tree) -> Any:
            assert validation is not None
            return ratios(theta, validation, self.fairness, self.as_published).mean()

        # s_k = 0.001 + F_k; an undefined F_k counts as 0
        s = (0.001 + torch.nan_to_num(vmap(score)(replies["theta"]), nan=0.0)) * replies["present"]
        return Server(tree.weighted_sum(replies["theta"], s / s.sum()))
