"""Supermasks: networks with fixed random weights, in which training selects the edges that remain.

    theta^w = sign(p) sqrt(2 / fan in)   signed Kaiming constant, never trained
    theta^s = |p|                        positive scores, trained (edge-popup: Ramanujan et al., CVPR 2020)
    M       = 1 for the share `keep` of a layer's edges with the highest scores;  the network is theta^w * M

p are the model's initial parameters, uniform in +-1/sqrt(fan in): their signs and sizes are independent, so that one
draw gives both. Server and clients compute p from the shared seed, and it is never sent.

A ranking R of a layer lists its n edges from the least to the most important one (argsort of the scores); the position
of an edge is its index in R. All functions work on trees with a leaf per layer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equifed import tree
from equifed.edge_popup import num_kept
from equifed.errors import ConfigError
from equifed.protocol import Bound, Task
from equifed.tree import Tree


def check_network(name: str, task: Task) -> None:
    """Raise a ConfigError for a model with parameters other than weights of linear and convolution layers."""
    other = [path for path, parameter in task.parameters.items() if parameter.dim() < 2]
    if other:
        raise ConfigError(
            f"{name} ranks the edges of linear and convolution layers, but the model also has {', '.join(other[:3])}. "
            "Use a model without biases, such as models.LeNet() or models.MLP(bias=False)."
        )


def check_initial(name: str, parameters: Tree) -> None:
    """Raise a ConfigError if all initial values of a layer are equal."""
    for path, value in tree.to_named(parameters).items():
        if value.numel() > 1 and bool((value == value.reshape(-1)[0]).all()):
            raise ConfigError(
                f"{name} selects edges of a network with random weights, but all initial values of {path} are equal. "
                'Use a random initialisation, such as init="torch".'
            )


def weights(initial: Tree) -> Tree:
    """Return theta^w, from the initial parameters."""
    return tree.map(lambda p: torch.where(p < 0, -1.0, 1.0) * math.sqrt(2 / math.prod(p.shape[1:])), initial)


def initial_ranking(initial: Tree) -> Tree:
    """Return the ranking of the common initial scores."""
    return ranking(tree.map(torch.abs, initial))


def scores(R: Tree, initial: Tree) -> Tree:
    """Return theta^s[R] = sort(theta^s): the initial scores, redistributed by a ranking."""

    def deal(order: Tensor, p: Tensor) -> Tensor:
        ordered = p.abs().reshape(-1).sort().values
        return torch.zeros_like(ordered).scatter(0, order.long(), ordered).reshape(p.shape)

    return tree.map(deal, R, initial)


def ranking(scores: Tree) -> Tree:
    """Return R = argsort(scores), each layer flat [n]; of equal scores the earlier edge is less important."""
    return tree.map(lambda s: s.reshape(-1).sort(stable=True).indices.to(torch.int32), scores)


def positions(R: Tensor) -> Tensor:
    """Return the position of each edge in one layer's ranking(s) [..., n]: the inverse permutation."""
    places = torch.arange(R.shape[-1], dtype=torch.int32, device=R.device)
    return torch.zeros_like(R).scatter(-1, R.long(), places.expand(R.shape))


def masks(R: Tree, like: Tree, keep: float | Tensor) -> Tree:
    """Return M, the edges that rankings [..., n] keep, in the layers' shapes [..., *shape]."""
    return tree.map(
        lambda order, p: (positions(order) >= p.numel() - num_kept(keep, p.numel())).reshape(
            *order.shape[:-1], *p.shape
        ),
        R,
        like,
    )


def vote(R: Tree, weight: Tensor) -> Tree:
    """Return VOTE of rankings, [K, n] -> [Q, n], with weight [Q, K] of each ranking in each result. Reputations
    (positions) are summed and sorted; of equal sums the earlier edge is less important."""
    # doubles hold these sums of integers exactly
    return tree.map(lambda order: rank_by(weight.double() @ positions(order).double()), R)


def votes(R: Tree, weight: Tensor) -> Tree:
    """Return one client's addition to the reputations of Q votes [Q, n]: its positions where its weight [Q] is 1. R is
    one ranking for all [n], or one for each [Q, n]."""
    return tree.map(lambda order: weight.long()[:, None] * positions(order).long(), R)


def elect(reputations: Tree) -> Tree:
    """Return VOTE from the sums of the clients' additions, [..., n] -> [..., n]."""
    return tree.map(rank_by, reputations)


def position_bound() -> Bound:
    """Return the bound of positions: whole numbers below the number of edges of the largest layer."""
    return Bound(0, lambda task: max(p.numel() for p in task.parameters.values()) - 1, whole=True)


def rank_by(reputation: Tensor) -> Tensor:
    """Return the ranking [..., n] by reputation; of equal ones the earlier edge comes first."""
    return reputation.sort(dim=-1, stable=True).indices.to(torch.int32)


def footrule(positions: Tree, centre: Tree) -> Tensor:
    """Return Spearman's footrule distance, sum |position - position|, of each of [K, n] to one [n], over all layers."""
    parts = tree.map(lambda own, one: (own - one).abs().sum(-1, dtype=torch.int64), positions, centre)
    return torch.stack(tree.leaves(parts)).sum(0)
