"""Robust rules: what takes the place of the mean of the clients' updates where some clients may lie.

u_k are the updates of n clients, and f of them may be anything. Of each coordinate, u_(1) <= ... <= u_(n):

    median          the middle of u_(1), ..., u_(n)                                     (Yin et al., ICML 2018)
    trimmed-mean    mean of u_(f+1), ..., u_(n-f)                                       (the same)
    krum            the u_k with the least score; the score of k is the sum of ||u_k - u_j||^2 over the n - f - 2
                    updates j that are nearest to it                                    (Blanchard et al., NeurIPS 2017)
    multi-krum      mean of the n - f updates with the least scores                     (the same)
    clipped-mean    mean of u_k min(1, m / ||u_k||), m the median of all norms          (after Sun et al., 2019)

The papers count all clients alike. Here a client has its weight, rows or what its method gives it, in every mean, but
no more than the median of all weights: so whoever declares many rows gains nothing beyond the middle client. Ranks,
distances, norms and the coordinate median do not know weights. With at most f liars among at least `fewest` replies,
every coordinate of median and trimmed mean lies between those of honest clients, and the length of the clipped mean is
at most that of an honest update.

All functions are of one exchange and can be vmapped: trees have leaves [K, ...], and only clients that are `here` [K]
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
"""Those that take whole updates or leave them."""

Updates = Mapping[str, Tree]
"""The fields that move the model, each with the updates of all clients."""


class Robust(NamedTuple):
    """What a rule makes of the updates."""

    centre: dict[str, Tree]
    """The robust mean of each field, leaves [...]."""
    single: dict[str, Tree]
    """Every client's update as far as it is trusted, leaves [K, ...], for servers that see them singly: within the
    values that are not trimmed, or shortened."""
    dropped: Tensor
    """Clients whose update was not taken at all [K], boolean."""
    cut: Tensor
    """How much of a client's update was cut [K]: 1 or 0 where it was not taken or was shortened, else the share of its
    coordinates that are among the f smallest or the f largest, and beyond the others."""


def liars_among(share: float | Tensor, clients: int) -> Tensor:
    """f, how many of so many clients may lie; 29 % of 100 are 29, however 0.29 is rounded."""
    return torch.floor(torch.as_tensor(share, dtype=torch.float64) * clients + 1e-4).long()


def fewest(rule: RuleName, f: Tensor) -> Tensor:
    """How many replies a rule needs for what it promises about f liars."""
    return 2 * f + (3 if rule in SELECTING else 1)


def aggregate(rule: RuleName, updates: Updates, weights: Mapping[str, Tensor], here: Tensor, f: Tensor) -> Robust:
    """The rule's view of the updates, in whose means every client has its weight [K] of that field."""
    capped = {name: capped_weights(weight, here) for name, weight in weights.items()}
    return _CODE[rule](updates, capped, here, f)


def capped_weights(weight: Tensor, here: Tensor) -> Tensor:
    """Weights of at most their median; 0 for those who are not here."""
    return torch.where(here, torch.minimum(weight, median(weight, here)), 0.0)


def median(values: Tensor, here: Tensor) -> Tensor:
    """The median along the first axis."""
    ordered = Ordered.of(values, here)
    return ordered.mean(torch.ones_like(here, dtype=values.dtype), _middle(here))


def _middle(here: Tensor) -> Tensor:
    """How many values there are on each side of the one or two in the middle."""
    return (here.sum() - 1).clamp_min(0) // 2


# -- coordinate by coordinate ------------------------------------------------------------------------------------------


def _median(updates: Updates, weights: Mapping[str, Tensor], here: Tensor, f: Tensor) -> Robust:
    alike = {name: torch.ones_like(weight) for name, weight in weights.items()}
    return _coordinates(updates, alike, here, _middle(here), f)


def _trimmed_mean(updates: Updates, weights: Mapping[str, Tensor], here: Tensor, f: Tensor) -> Robust:
    return _coordinates(updates, weights, here, f, f)


def _coordinates(
    updates: Updates, weights: Mapping[str, Tensor], here: Tensor, trimmed: Tensor, outer: Tensor
) -> Robust:
    """Without so many of the smallest and of the largest values; `outer`: so many of them are called cut."""
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
    """Of each coordinate, u_(1) <= ... <= u_(n)."""

    values: Tensor
    """[K, ...], infinite from n on."""
    who: Tensor
    """[K, ...], whose they are: the first of equal ones comes first."""
    n: Tensor

    @classmethod
    def of(cls, values: Tensor, here: Tensor) -> Ordered:
        return cls(*torch.where(like(here, values), values, torch.inf).sort(dim=0, stable=True), here.sum())

    def mean(self, weight: Tensor, f: Tensor) -> Tensor:
        """Mean of u_(f+1), ..., u_(n-f), each with the weight of the client whose it is."""
        rank = torch.arange(len(self.values), device=self.values.device)
        inside = like((rank >= f) & (rank < self.n - f), self.values)
        share = torch.where(inside, weight.to(self.values.dtype)[self.who], 0.0)
        return (torch.where(inside, self.values, 0.0) * share).sum(0) / share.sum(0).clamp_min(1e-30)

    def range(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """u_(f+1) and u_(n-f)."""
        last = len(self.values) - 1
        return tree.pick(self.values, f.clamp(0, last)), tree.pick(self.values, (self.n - 1 - f).clamp(0, last))


# -- by distance -------------------------------------------------------------------------------------------------------


def _krum(updates: Updates, weights: Mapping[str, Tensor], here: Tensor, f: Tensor) -> Robust:
    return _selected(updates, weights, here, f, torch.ones_like(f))


def _multi_krum(updates: Updates, weights: Mapping[str, Tensor], here: Tensor, f: Tensor) -> Robust:
    return _selected(updates, weights, here, f, here.sum() - f)


def _selected(updates: Updates, weights: Mapping[str, Tensor], here: Tensor, f: Tensor, many: Tensor) -> Robust:
    """Those with the least scores, so many; the first of equal ones."""
    others = here[:, None] & here & ~torch.eye(len(here), dtype=torch.bool, device=here.device)
    distance = torch.where(others, _squared_distances(updates), torch.inf)
    nearest, rank = distance.sort(1).values, torch.arange(len(here), device=here.device)
    score = torch.where(rank < here.sum() - f - 2, nearest, 0.0).sum(1)
    place = torch.where(here, score, torch.inf).sort(stable=True).indices.argsort()
    taken = here & (place < many)
    centre = {name: _mean(update, torch.where(taken, weights[name], 0.0)) for name, update in updates.items()}
    dropped = here & ~taken
    return Robust(centre, dict(updates), dropped, dropped.to(torch.float32))


def _squared_distances(updates: Updates) -> Tensor:
    """||u_k - u_j||^2 over all fields together [K, K], in 64 bits."""
    total: Tensor | float = 0.0
    for leaf in tree.leaves(dict(updates)):
        flat = leaf.double().reshape(len(leaf), -1)
        square = flat.square().sum(1)
        total = total + square[:, None] + square - 2 * flat @ flat.T
    assert isinstance(total, Tensor)
    return ((total + total.T) / 2).clamp_min(0)  # two that are nearest to each other are equally near


# -- by length ---------------------------------------------------------------------------------------------------------


def _clipped_mean(updates: Updates, weights: Mapping[str, Tensor], here: Tensor, f: Tensor) -> Robust:
    centre, single, cut = {}, {}, torch.zeros_like(here)
    for name, update in updates.items():
        norm = _norms(update)
        most = median(norm, here)
        factor = torch.where(norm > most, most / norm.clamp_min(1e-300), 1.0)
        single[name] = tree.map(lambda leaf, factor=factor: leaf * like(factor.to(leaf.dtype), leaf), update)
        centre[name] = _mean(single[name], weights[name])
        cut = cut | (here & (norm > most))
    return Robust(centre, single, torch.zeros_like(here), cut.to(torch.float32))


def _norms(update: Tree) -> Tensor:
    """||u_k|| over all leaves [K], in 64 bits: no square of a 32-bit number overflows there."""
    squares = [leaf.double().square().reshape(len(leaf), -1).sum(1) for leaf in tree.leaves(update)]
    return torch.stack(squares).sum(0).sqrt()


def _mean(update: Tree, weight: Tensor) -> Tree:
    return tree.weighted_sum(update, weight / weight.sum().clamp_min(1e-30))


def like(values: Tensor, leaf: Tensor) -> Tensor:
    """Values of the clients [K] with as many axes as a leaf [K, ...]."""
    return values.reshape(-1, *(1,) * (leaf.dim() - 1))


_CODE: Mapping[RuleName, Callable[[Updates, Mapping[str, Tensor], Tensor, Tensor], Robust]] = {
    "median": _median,
    "trimmed-mean": _trimmed_mean,
    "krum": _krum,
    "multi-krum": _multi_krum,
    "clipped-mean": _clipped_mean,
}
