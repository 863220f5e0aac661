"""Supermasks: networks whose weights stay as they were drawn, and whose training decides which edges remain.

    theta^w = sign(p) sqrt(2 / fan in)   signed Kaiming constant, never trained
    theta^s = |p|                        positive scores, trained (edge-popup: Ramanujan et al., CVPR 2020)
    M       = 1 for the edges of a layer with the highest scores, a share `keep` of them;  the network is theta^w * M

p are the model's initial parameters, uniform in +-1/sqrt(fan in): the sign and the size of a number so drawn are
independent, so that one draw gives both. Everyone makes p from the shared seed, and it is never sent.

A ranking R of a layer lists its n edges from the least to the most important one (argsort of the scores); the position
of an edge is where it stands in R. All functions work on trees with a leaf per layer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equifed import tree
from equifed.edge_popup import kept
from equifed.errors import ConfigError
from equifed.protocol import Bound, Task
from equifed.tree import Tree


def check_network(name: str, task: Task) -> None:
    """Refuse a model that has anything but weights of linear and convolution layers."""
    other = [path for path, parameter in task.parameters.items() if parameter.dim() < 2]
    if other:
        raise ConfigError(
            f"{name} ranks the edges of linear and convolution layers, but the model also has {', '.join(other[:3])}. "
            "Use a model without biases, such as models.LeNet() or models.MLP(bias=False)."
        )


def check_initial(name: str, parameters: Tree) -> None:
    for path, value in tree.named(parameters).items():
        if value.numel() > 1 and bool((value == value.reshape(-1)[0]).all()):
            raise ConfigError(
                f"{name} selects edges of a network with random weights, but all initial values of {path} are equal. "
                'Use a random initialisation, such as init="torch".'
            )


def weights(initial: Tree) -> Tree:
    """theta^w, from the initial parameters."""
    return tree.map(lambda p: torch.where(p < 0, -1.0, 1.0) * math.sqrt(2 / math.prod(p.shape[1:])), initial)


def initial_ranking(initial: Tree) -> Tree:
    """The ranking of the scores that everyone starts with."""
    return ranking(tree.map(torch.abs, initial))


def scores(R: Tree, initial: Tree) -> Tree:
    """theta^s[R] = sort(theta^s): the initial scores, dealt out again by a ranking."""

    def deal(order: Tensor, p: Tensor) -> Tensor:
        ordered = p.abs().reshape(-1).sort().values
        return torch.zeros_like(ordered).scatter(0, order.long(), ordered).reshape(p.shape)

    return tree.map(deal, R, initial)


def ranking(scores: Tree) -> Tree:
    """R = argsort(scores), each layer flat [n]; of equal scores the earlier edge is the less important one."""
    return tree.map(lambda s: s.reshape(-1).sort(stable=True).indices.to(torch.int32), scores)


def positions(R: Tensor) -> Tensor:
    """Where each edge stands in one layer's ranking(s) [..., n]: the inverse permutation."""
    places = torch.arange(R.shape[-1], dtype=torch.int32, device=R.device)
    return torch.zeros_like(R).scatter(-1, R.long(), places.expand(R.shape))


def masks(R: Tree, like: Tree, keep: float | Tensor) -> Tree:
    """M, the edges that rankings [..., n] keep, in the layers' shapes [..., *shape]."""
    return tree.map(
        lambda order, p: (positions(order) >= p.numel() - kept(keep, p.numel())).reshape(*order.shape[:-1], *p.shape),
        R,
        like,
    )


def vote(R: Tree, weight: Tensor) -> Tree:
    """VOTE: rankings [K, n] -> [Q, n], weight [Q, K] says whose count for which result. Reputations (positions) are
    added up and sorted; of equal sums the earlier edge is the less important one."""
    # doubles hold these sums of integers exactly
    return tree.map(lambda order: sorted_by(weight.double() @ positions(order).double()), R)


def votes(R: Tree, weight: Tensor) -> Tree:
    """What one client adds to the reputations of Q votes [Q, n]: its positions where its weight [Q] is 1. R is one
    ranking for all [n], or one for each [Q, n]."""
    return tree.map(lambda order: weight.long()[:, None] * positions(order).long(), R)


def elected(reputations: Tree) -> Tree:
    """VOTE from the sums of what clients add, [..., n] -> [..., n]."""
    return tree.map(sorted_by, reputations)


def position_bound() -> Bound:
    """Positions are whole and below the edges of the largest layer."""
    return Bound(0, lambda task: max(p.numel() for p in task.parameters.values()) - 1, whole=True)


def sorted_by(reputation: Tensor) -> Tensor:
    return reputation.sort(dim=-1, stable=True).indices.to(torch.int32)


def footrule(positions: Tree, centre: Tree) -> Tensor:
    """Spearman's footrule distance, sum |position - position|, of each of [K, n] to one [n], over all layers."""
    parts = tree.map(lambda own, one: (own - one).abs().sum(-1, dtype=torch.int64), positions, centre)
    return torch.stack(tree.leaves(parts)).sum(0)
