"""Edge-popup: training of scores that select edges of a network with frozen weights.

    M = 1 for the share `keep` of a layer's edges with the highest scores;  the network is theta^w * M

Ramanujan et al., What's Hidden in a Randomly Weighted Neural Network?, CVPR 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from equifed import tree
from equifed.tree import Tree

if TYPE_CHECKING:
    from equifed.task import Data


@dataclass(frozen=True)
class EdgePopup:
    """The mean loss of the network that the scores select, declared so that an engine can recognise it. Calling it with
    scores, frozen weights and a batch computes the loss."""

    keep: float | Tensor
    """Share of a layer's edges that remain, at least one edge. A tensor if it differs between runs of a sweep."""
    by_group: bool = False
    """True if scores have a leading axis of groups: each group's scores learn from its rows and from rows of unknown
    group. The losses are summed."""

    def __call__(self, scores: Tree, w: Tree, batch: Data) -> Tensor:
        if not self.by_group:
            return self._mean(scores, w, batch)
        rows = [batch.where((batch.s == g) | (batch.s < 0)) for g in range(batch.task.num_groups)]
        return torch.stack([self._mean(tree.take(scores, g), w, own) for g, own in enumerate(rows)]).sum()

    def _mean(self, scores: Tree, w: Tree, batch: Data) -> Tensor:
        return batch.mean(batch.task.row_loss(subnetwork(w, scores, self.keep), batch.x, batch.y))


def num_kept(keep: float | Tensor, n: int) -> int | Tensor:
    """Return the number of edges, of n, that remain: keep * n, rounded, at least one."""
    if isinstance(keep, Tensor):
        return torch.floor(keep.double() * n + 0.5).clamp_min(1).long()
    return max(math.floor(keep * n + 0.5), 1)


def subnetwork(weights: Tree, scores: Tree, keep: float | Tensor) -> Tree:
    """Return theta^w * M with M from the scores (equal scores at the threshold all remain), for training: a
    straight-through gradient, d loss / d score = theta^w * d loss / d (theta^w * M)."""

    def select(w: Tensor, s: Tensor) -> Tensor:
        fixed = s.detach()
        hard = (fixed >= threshold(fixed.reshape(-1), keep)).to(s.dtype)
        # the second term is 0 and has the gradient of s
        return w * (hard + (s - fixed))

    return tree.map(select, weights, scores)


def threshold(values: Tensor, keep: float | Tensor) -> Tensor:
    """Return the threshold at or above which values [n] remain."""
    n = values.shape[0]
    number = num_kept(keep, n)
    if values.device.type == "cpu" and values.dtype == torch.float32:
        from equifed.selection import cut

        return cut(values, number if isinstance(number, Tensor) else torch.tensor(number))
    if isinstance(number, Tensor):  # in a sweep, each setting has its own number
        return values.sort().values.gather(0, (n - number).reshape(1))
    # a full sort would take four times as long for a million edges
    return values.topk(number, sorted=False).values.amin()
