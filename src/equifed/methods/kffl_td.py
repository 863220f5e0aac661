"""KFFL-TD: Arif et al., Group Fair Federated Learning via Stochastic Kernel Regularization, TMLR 2025.

KFFL with a time delay: two exchanges per round instead of three.

fair, round t:  client i:  statistics at theta_t, as in KFFL's fair1, and
                           grad of h_i at theta_{t-1}, with G, mu_s and the random features of round t-1
                server:    theta_half = theta_t - alpha lambda (2 / (n-1)^2) sum_i grad h_i(theta_{t-1}), n of t-1
                           (theta_half = theta_t in the first round), then G and mu_s from the new statistics
train:          as in KFFL

The client keeps theta and the random features of its last round, so neither is sent twice. A client that was absent in
round t-1 does not contribute to its gradient; the others' sum is scaled by n / sum of their rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.methods._kernels import feature_draws, output_size
from equifed.methods.kffl import BOUNDS, KFFL, PLACES, Server
from equifed.protocol import Data, Phase, Record, Task
from equifed.tree import Tree


class Client(NamedTuple):
    theta: Tree
    """theta_{t-1}, the global model of the client's last round."""
    phi_s: Tensor
    """Random features of that round, for the sensitive attribute."""
    phi_f: Tensor
    """Random features of that round, for the predictions."""
    t: Tensor
    """Number of that round; 0 before the first."""


@dataclass(frozen=True)
class KFFLTD(KFFL):
    """KFFL with one exchange less: its fairness step uses the gradient of the previous round."""

    name: ClassVar[str] = "kffl-td"
    parent: ClassVar[str] = "fedprox"

    @property
    def round(self) -> tuple[Phase, ...]:
        up = ("n", "sum_s", "sum_f", "sum_sf", "gradient", "gradient_rows")
        draws = feature_draws(self.features, self.redraw)
        down, step = ("theta", "G", "mu_s", "t"), self.delayed_step
        fair = Phase("fair", down, up, self.statistics, step, "sum", draws, bounds=BOUNDS, places=PLACES)
        return (fair, self.train)

    def init_client(self, task: Task, parameters: Tree) -> Client:
        sizes = (task.sensitive_size, output_size(task))
        phi_s, phi_f = (tree.zeros(parameters, size + 1, self.features) for size in sizes)
        return Client(parameters, phi_s, phi_f, tree.zeros(parameters))

    def statistics(self, down: Record, state: Client, data: Data) -> tuple[Record, Tree]:
        before = data.replace(draws={"phi_s": state.phi_s, "phi_f": state.phi_f})
        was_there = ((down["t"] > 0) & (state.t == down["t"])).to(data.mask.dtype)
        gradient = tree.scale(self.slope(state.theta, down["G"], down["mu_s"], before), was_there)
        reply = self.sums(down["theta"], data)
        reply |= {"gradient": gradient, "gradient_rows": reply["n"] * was_there}
        return reply, Client(down["theta"], data.draws["phi_s"], data.draws["phi_f"], down["t"] + 1)

    def delayed_step(self, server: Server, replies: Record, validation: Data | None) -> Server:
        # the clients that were present in round t-1 represent all n rows of G
        share = replies["gradient_rows"] / server.n.clamp_min(1)
        # before the first statistics all honest gradients are 0, so any other reply must be ignored
        there = (share > 0) & (server.t > 0)
        gradient = tree.scale(replies["gradient"], torch.where(there, 1 / share.clamp_min(1e-12), 0.0))
        stepped = self.fairness_step(server, {"gradient": gradient}, validation)
        return self.combine(stepped, replies, validation)
