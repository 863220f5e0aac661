"""Arithmetic on parameter trees: nested dicts, tuples and NamedTuples whose leaves are tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

Tree = Any
"""Nested dicts, tuples, lists and NamedTuples with tensors as leaves; every function keeps the structure."""


def _parts(tree: Tree) -> list[Any] | None:
    """Return the entries of a node; None for a leaf."""
    if isinstance(tree, Tensor):  # the most frequent case
        return None
    if isinstance(tree, dict):
        return list(tree.values())
    return list(tree) if isinstance(tree, tuple | list) else None


def _rebuild(tree: Tree, parts: list[Any]) -> Tree:
    """Return a node like this one with other entries."""
    if isinstance(tree, dict):
        return dict(zip(tree, parts, strict=True))
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


def map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply `function` leaf by leaf to trees of one structure."""
    parts = _parts(tree)
    if parts is None:
        return function(tree, *others)
    if not others:
        return _rebuild(tree, [map(function, part) for part in parts])
    if isinstance(tree, dict):  # the order of names may differ
        if any(other.keys() != tree.keys() for other in others):
            raise ValueError(f"Trees differ: one has {list(tree)}, others {[list(other) for other in others]}.")
        rest = [[other[name] for name in tree] for other in others]
    else:
        rest = [list(other) for other in others]
    return _rebuild(tree, [map(function, *each) for each in zip(parts, *rest, strict=True)])


def leaves(tree: Tree) -> list[Tensor]:
    """Return all leaves in order."""
    parts = _parts(tree)
    if parts is None:
        return [tree]
    return [leaf for part in parts for leaf in leaves(part)]


def flatten(tree: Tree) -> tuple[list[Tensor], Tree]:
    """Return the leaves, and the structure for `unflatten`: the tree with positions as leaves."""
    values = leaves(tree)
    positions = iter(range(len(values)))
    return values, map(lambda _: next(positions), tree)


def unflatten(values: Sequence[Any], structure: Tree) -> Tree:
    """Return the tree with this structure and these leaves."""
    return map(values.__getitem__, structure)


def vmap_over(function: Callable[..., Tree], *trees: Tree) -> Tree:
    """Apply `torch.func.vmap` over the leading axis of all leaves; faster than vmap's own handling of nested inputs."""
    values, structure = flatten(trees)
    found: list[Tree] = []

    def flat(*values: Tensor) -> tuple[Tensor, ...]:
        result, shape = flatten(function(*unflatten(values, structure)))
        found.append(shape)
        return tuple(result)

    made = vmap(flat)(*values)
    return unflatten(made, found[0])


def add(a: Tree, b: Tree) -> Tree:
    """Return a + b."""
    return map(torch.add, a, b)


def sub(a: Tree, b: Tree) -> Tree:
    """Return a - b."""
    return map(torch.sub, a, b)


def scale(tree: Tree, factor: Tensor | float) -> Tree:
    """Return factor * tree."""
    return map(lambda leaf: leaf * factor, tree)


def add_scaled(a: Tree, b: Tree, factor: Tensor | float) -> Tree:
    """Return a + factor * b."""
    return map(lambda x, y: x + factor * y, a, b)


def prototype(tree: Tree) -> Tensor:
    """Return the first leaf, which has the tree's dtype and device."""
    return leaves(tree)[0]


def zeros(like: Tree, *shape: int) -> Tensor:
    """Return zeros of this shape with the tree's dtype and device."""
    return prototype(like).new_zeros(shape)


def length(tree: Tree) -> int:
    """Return the length of the leaves' common leading axis."""
    return prototype(tree).shape[0]


def zeros_like(tree: Tree) -> Tree:
    """Return a tree of zeros with the same structure and shapes."""
    return map(torch.zeros_like, tree)


def squared_norm(tree: Tree) -> Tensor:
    """Return the sum of squares over all leaves, e.g. ||theta_k - theta||^2 of a proximal term."""
    return torch.stack([leaf.square().sum() for leaf in leaves(tree)]).sum()


def dot(a: Tree, b: Tree) -> Tensor:
    """Return the sum of products over all leaves."""
    return torch.stack([(x * y).sum() for x, y in zip(leaves(a), leaves(b), strict=True)]).sum()


def weighted_sum(tree: Tree, weights: Tensor) -> Tree:
    """Return sum_k weights[k] * leaf[k] over the leading (client) axis of every leaf."""
    return map(lambda leaf: torch.tensordot(weights.to(leaf.dtype), leaf, dims=1), tree)


def take(tree: Tree, index: int | slice | Tensor) -> Tree:
    """Return entry (or entries) `index` of the leading axis of every leaf."""
    return map(lambda leaf: leaf[index], tree)


def pick(tree: Tree, index: Tensor) -> Tree:
    """Return entry `index` of the leading axis of every leaf; the index is a tensor that vmap may have batched."""
    return map(lambda leaf: leaf.index_select(0, index.reshape(1)).squeeze(0), tree)


def split(tree: dict[str, Tree], names: Collection[str]) -> tuple[dict[str, Tree], dict[str, Tree]]:
    """Return the entries of these names, such as a model's last layer, and the others; `{**a, **b}` is the whole."""
    return (
        {name: part for name, part in tree.items() if name in names},
        {name: part for name, part in tree.items() if name not in names},
    )


def stack(trees: Sequence[Tree]) -> Tree:
    """Stack trees along a new leading axis."""
    return map(lambda *parts: torch.stack(parts), *trees)


def where(condition: Tensor, a: Tree, b: Tree) -> Tree:
    """Return leaves of a where `condition` is True, else of b; it has the shape of the leaves' leading axes."""

    def choose(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(condition.reshape(condition.shape + (1,) * (x.dim() - condition.dim())), x, y)

    return map(choose, a, b)


def num_bytes(tree: Tree) -> int:
    """Return the memory of the leaves in bytes."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))


def to_named(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """Return the leaves by path, such as "theta.layer.weight", as checkpoints and result files store them."""
    if isinstance(tree, dict):
        entries = list(tree.items())
    elif isinstance(tree, tuple | list):
        entries = list(zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True))
    else:
        return {prefix: tree}
    inside = (to_named(part, f"{prefix}.{name}" if prefix else str(name)) for name, part in entries)
    return {path: leaf for each in inside for path, leaf in each.items()}


def from_named(like: Tree, values: dict[str, Tensor], prefix: str = "") -> Tree:
    """Return the tree with the structure of `like` from its leaves by path: the inverse of `to_named`."""
    return unflatten([values[path] for path in to_named(like, prefix)], flatten(like)[1])
