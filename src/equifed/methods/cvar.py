"""Tail risk: Papadaki et al., Federated Fairness without Access to Sensitive Groups, arXiv:2402.14929, 2024.

CVaR_rho = mean loss of the worst share rho of all clients' rows  =  min over tau:  tau + mean of (loss - tau)_+ / rho

client k:  counts its rows by their loss under theta
server:    tau = the loss that a share rho of all rows exceeds, from the summed counts
client k:  theta_k minimises  mean of (1 - w) loss + w (loss - tau)_+ / rho  over its rows
server:    as FedAvg

tau is in a bin of the counts, [low, high), of which the tail takes the share f:  (loss - tau)_+ is
f (loss - low)_+ + (1 - f) (loss - high)_+, so that the slopes of all rows add up to n under theta. It needs no groups:
the mean loss of the tail is an upper bound of that of every group with at least a share rho of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from equifed import tree
from equifed.methods.fedavg import MEAN_UPDATE, FedAvg, averaging, weighted_update
from equifed.methods.hyper import hyper
from equifed.protocol import Data, LocalTraining, Phase, Record, Start, Task
from equifed.tree import Tree

PER_OCTAVE, SMALLEST, OCTAVES = 16, -16, 40
"""Bins of losses, from 2^-16 to 2^24: the number per octave, the lowest octave, the number of octaves. Each is 4 %
wide; there is one more below and one above."""


class Server(NamedTuple):
    theta: Tree
    """theta, the global model."""
    low: Tensor
    """Lower end of the bin of tau."""
    high: Tensor
    """Upper end of the bin of tau."""
    f: Tensor
    """Share of the bin's rows in the tail."""


@dataclass(frozen=True)
class CVaR(FedAvg):
    """Minimise the loss of the worst share of all rows: fairness without a sensitive attribute."""

    name: ClassVar[str] = "cvar"
    reveals: ClassVar[str] = f"{MEAN_UPDATE}; the distribution of the losses of all rows, to 4 %"
    parent: ClassVar[str] = "fedavg"

    rho: float = hyper(0.5, low=1e-3, high=1)
    """Share of rows in the tail, and so the smallest share of a group that is protected; 1 gives FedAvg."""
    tail_weight: float = hyper(0.5, low=0, high=1, vanishes=True)
    """w: weight of the tail's loss relative to that of all rows; 0 gives FedAvg, 1 the tail alone."""

    @property
    def round(self) -> tuple[Phase, ...]:
        measure = Phase("measure", ("theta",), ("histogram",), count, self.threshold, "sum")
        train = LocalTraining(weighted_update, self.loss, with_threshold)
        return measure, averaging(train, down=("theta", "low", "high", "f"))

    def init(self, task: Task, parameters: Tree) -> Server:
        zero = tree.zeros(parameters)
        return Server(parameters, zero, zero, zero)

    def threshold(self, server: Server, replies: Record, validation: Data | None) -> Server:
        histogram = replies["histogram"]
        from_here = histogram.flip(0).cumsum(0).flip(0)  # rows in this bin and above
        rows = histogram.sum()
        tail = self.rho * rows
        tau = ((from_here >= tail).sum() - 1).clamp_min(0).reshape(1)
        inside = histogram.gather(0, tau).squeeze(0)
        f = (tail - (from_here.gather(0, tau).squeeze(0) - inside)) / inside.clamp_min(1)
        ends = edges(histogram)
        low, high = (ends.gather(0, tau + i).squeeze(0) for i in (0, 1))
        # a tail of all rows contains them however small their losses become
        return server._replace(low=torch.where(tail >= rows, 0.0, low), high=high, f=f)

    def loss(self, theta: Tree, context: Tree, batch: Data) -> Tensor:
        losses = batch.task.row_loss(theta, batch.x, batch.y)
        above = (losses - context["low"]).relu() * context["f"] + (losses - context["high"]).relu() * (1 - context["f"])
        return batch.mean(losses + self.tail_weight * (above / self.rho - losses))

    def observe(self, server: Server) -> dict[str, Tensor]:
        return {"tau": server.high - server.f * (server.high - server.low)}


def edges(like: Tensor) -> Tensor:
    """Return the edges of all bins, one more than there are bins."""
    between = torch.arange(OCTAVES * PER_OCTAVE + 1, device=like.device, dtype=like.dtype) / PER_OCTAVE + SMALLEST
    return pad(pad(torch.exp2(between), (1, 0)), (0, 1), value=1e30)


def count(down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
    """Reply the numbers of rows by loss."""
    losses = data.task.row_loss(down["theta"], data.x, data.y)
    ends = edges(losses)
    bins = torch.bucketize(data.masked(losses), ends[1:-1], right=True)
    return {"histogram": torch.zeros_like(ends[1:]).scatter_add(0, bins, data.mask)}, state


def with_threshold(down: Record, state: Tree, data: Data) -> Start:
    return Start(down["theta"], context={name: down[name] for name in ("low", "high", "f")})
