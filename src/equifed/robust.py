"""Robust rules: aggregation of the clients' updates that tolerates some malicious clients.

u_k are the updates of n clients, f of which may be arbitrary. In each coordinate, u_(1) <= ... <= u_(n):

    median          the middle of u_(1), ..., u_(n)                                     (Yin et al., ICML 2018)
    trimmed-mean    mean of u_(f+1), ..., u_(n-f)                                       (the same)
    krum            the u_k with the least score; the score of k is the sum of ||u_k - u_j||^2 over the n - f - 2
                    updates j that are nearest to it                                    (Blanchard et al., NeurIPS 2017)
    multi-krum      mean of the n - f updates with the least scores                     (the same)
    clipped-mean    mean of u_k min(1, m / ||u_k||), m the median of all norms          (after Sun et al., 2019)

The papers weight all clients equally. Here every mean uses the clients' weights, such as their rows, capped at the
median weight: a client gains nothing by declaring more rows than the median client. Ranks, distances, norms and the
coordinate median do not use weights. With at most f malicious clients among at least `min_updates` replies, every
coordinate of median and trimmed mean lies between those of honest clients, and the clipped mean is at most as long as
an honest update.

All functions handle one exchange and can be vmapped: trees have leaves [K, ...], and only clients that are `here` [K]
count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from equifed import tree
from equifed.settings import RuleName
from equifed.tree import Tree

SELECTING: tuple[RuleName, ...] = ("krum", "multi-krum")
"""Rules that accept or reject whole updates."""

Updates = Mapping[str, Tree]
"""The fields that move the model, each with the updates of all clients."""


class Robust(NamedTuple):
    """The result of a rule."""

    centre: dict[str, Tree]
    """Robust mean of each field, leaves [...]."""
    single: dict[str, Tree]
    """Each client's update, clamped to the values that are not trimmed, or shortened, leaves [K, ...]; for servers that
    see single replies."""
    dropped: Tensor
    """True for clients with a rejected update [K]."""
    cut: Tensor
    """Share of each client's update that was cut [K]: 1 if it was rejected or shortened (else 0), or the share of its
    coordinates that are among the f smallest or the f largest, and beyond the others."""


def count_malicious(share: float | Tensor, clients: int) -> Tensor:
    """Return f, the largest number of malicious clients among `clients`; 29 % of 100 are 29, however 0.29 is
    rounded."""
    return torch.floor(torch.as_tensor(share, dtype=torch.float64) * clients + 1e-4).long()


def min_updates(rule: RuleName, f: Tensor) -> Tensor:
    """Return the number of updates that a rule needs to tolerate f malicious clients."""
    return 2 * f + (3 if rule in SELECTING else 1)


def aggregate(rule: RuleName, updates: Updates, weights: Mapping[str, Tensor], here: Tensor, f: Tensor) -> Robust:
    """Apply the rule to the updates; means use the clients' weights [K] of each field, capped at their median."""
    capped = {name: capped_weights(weight, here) for name, weight in weights.items()}
    return _CODE[rule](updates, capped, here, f)


def capped_weights(weight: Tensor, here: Tensor) -> Tensor:
    """Return the weights, capped at their median; 0 for clients that are not here."""
    return torch.where(here, torch.minimum(weight, median(weight, here)), 0.0)


def median(values: Tensor, here: Tensor) -> Tensor:
    """Return the median along the first axis."""
    ordered = Ordered.of(values, here)
    return ordered.mean(torch.ones_like(here, dtype=values.dtype), _middle(here))


def _middle(here: Tensor) -> Tensor:
    """Return the number of values on each side of the one or two in the middle."""
    return (here.sum() - 1).clamp_min(0) // 2


# -- coordinate by coordinate ------------------------------------------------------------------------------------------


def _median(updates: Updates, weights: Mapping[str, Tensor], here: Tensor, f: Tensor) -> Robust:
    equal = {name: torch.ones_like(weight) for name, weight in weights.items()}
    return _trim(updates, equal, here, _middle(here), f)


def _trimmed_mean(updates: Updates, weights: Mapping[str, Tensor], here: Tensor, f: Tensor) -> Robust:
    return _trim(updates, weights, here, f, f)


def _trim(updates: Updates, weights: Mapping[str, Tensor], here: Tensor, trimmed: Tensor, outer: Tensor) -> Robust:
    """Average each coordinate without its `trimmed` smallest and largest values; the `outer` smallest and largest count
    as cut."""
    centre, single, beyond, size = {}, {}, torch.zeros_like(here, dtype=torch.float32), 0
    for name, update in updates.items():
        ordered = [Ordered.of(leaf, here) for leaf in tree.leaves(update)]
        structure = tree.flatten(update)[1]
        centre[name] = tree.unflatten([each.mean(weights[name], trimmed) for each in ordered], structure)
        ranges = tree.unflatten([each.range(trimmed) for each in ordered], structure)
        single[name] = tree.map(lambda leaf, limits: leaf.clamp(*limits), update, ranges)
        for leaf, each in zip(tree.leaves(update), ordered, strict=True):
            low, high = each.range(outer)
            beyond = beyond + ((leaf < low) | (leaf > high)).reshape(len(here), -1).sum(1)
            size += leaf[0].numel()
    return Robust(centre, single, torch.zeros_like(here), torch.where(here, beyond / max(size, 1), 0.0))


class Ordered(NamedTuple):
    """The sorted values u_(1) <= ... <= u_(n) of each coordinate."""

    values: Tensor
    """Sorted values [K, ...], infinite from n on."""
    who: Tensor
    """Client of each value [K, ...]; of equal values, the first client comes first."""
    n: Tensor

    @classmethod
    def of(cls, values: Tensor, here: Tensor) -> Ordered:
        """Sort the values of the clients that are here."""
        return cls(*torch.where(expand_to(here, values), values, torch.inf).sort(dim=0, stable=True), here.sum())

    def mean(self, weight: Tensor, f: Tensor) -> Tensor:
        """Return the mean of u_(f+1), ..., u_(n-f), each with the weight of its client."""
        rank = torch.arange(len(self.values), device=self.values.device)
        inside = expand_to((rank >= f) & (rank < self.n - f), self.values)
        share = torch.where(inside, weight.to(self.values.dtype)[self.who], 0.0)
        return (torch.where(inside, self.values, 0.0) * share).sum(0) / share.sum(0).clamp_min(1e-30)

    def range(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Return u_(f+1) and u_(n-f)."""
        last = len(self.values) - 1
        return tree.pick(self.values, f.clamp(0, last)), tree.pick(self.values, (self.n - 1 - f).clamp(0, last))


# -- by distance -------------------------------------------------------------------------------------------------------


def _krum(updates: Updates, weights: Mapping[str, Tensor], here: Tensor, f: Tensor) -> Robust:
    return _select(updates, weights, here, f, torch.ones_like(f))


def _multi_krum(updates: Updates, weights: Mapping[str, Tensor], here: Tensor, f: Tensor) -> Robust:
    return _select(updates, weights, here, f, here.sum() - f)


def _select(updates: Updates, weights: Mapping[str, Tensor], here: Tensor, f: Tensor, count: Tensor) -> Robust:
    """Average the `count` updates with the least scores; of equal scores, the first."""
    others = here[:, None] & here & ~torch.eye(len(here), dtype=torch.bool, device=here.device)
    distance = torch.where(others, _squared_distances(updates), torch.inf)
    nearest, rank = distance.sort(1).values, torch.arange(len(here), device=here.device)
    score = torch.where(rank < here.sum() - f - 2, nearest, 0.0).sum(1)
    place = torch.where(here, score, torch.inf).sort(stable=True).indices.argsort()
    taken = here & (place < count)
    centre = {name: _mean(update, torch.where(taken, weights[name], 0.0)) for name, update in updates.items()}
    dropped = here & ~taken
    return Robust(centre, dict(updates), dropped, dropped.to(torch.float32))


def _squared_distances(updates: Updates) -> Tensor:
    """Return ||u_k - u_j||^2 over all fields together [K, K], in 64 bits."""
    total: Tensor | float = 0.0
    for leaf in tree.leaves(dict(updates)):
        flat = leaf.double().reshape(len(leaf), -1)
        square = flat.square().sum(1)
        total = total + square[:, None] + square - 2 * flat @ flat.T
    assert isinstance(total, Tensor)
    return ((total + total.T) / 2).clamp_min(0)  # symmetric in every bit


# -- by length ---------------------------------------------------------------------------------------------------------


def _clipped_mean(updates: Updates, weights: Mapping[str, Tensor], here: Tensor, f: Tensor) -> Robust:
    centre, single, cut = {}, {}, torch.zeros_like(here)
    for name, update in updates.items():
        norm = _norms(update)
        most = median(norm, here)
        factor = torch.where(norm > most, most / norm.clamp_min(1e-300), 1.0)
        single[name] = tree.map(lambda leaf, factor=factor: leaf * expand_to(factor.to(leaf.dtype), leaf), update)
        centre[name] = _mean(single[name], weights[name])
        cut = cut | (here & (norm > most))
    return Robust(centre, single, torch.zeros_like(here), cut.to(torch.float32))


def _norms(update: Tree) -> Tensor:
    """Return ||u_k|| over all leaves [K], in 64 bits, so that squares of 32-bit numbers do not overflow."""
    squares = [leaf.double().square().reshape(len(leaf), -1).sum(1) for leaf in tree.leaves(update)]
    return torch.stack(squares).sum(0).sqrt()


def _mean(update: Tree, weight: Tensor) -> Tree:
    return tree.weighted_sum(update, weight / weight.sum().clamp_min(1e-30))


def expand_to(values: Tensor, leaf: Tensor) -> Tensor:
    """Return values of the clients [K] with as many axes as a leaf [K, ...]."""
    return values.reshape(-1, *(1,) * (leaf.dim() - 1))


_CODE: Mapping[RuleName, Callable[[Updates, Mapping[str, Tensor], Tensor, Tensor], Robust]] = {
    "median": _median,
    "trimmed-mean": _trimmed_mean,
    "krum": _krum,
    "multi-krum": _multi_krum,
    "clipped-mean": _clipped_mean,
}
