"""Arithmetic on parameter trees: nested dicts, tuples and NamedTuples whose leaves are tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

Tree = Any
"""A nest of dicts, tuples, lists and NamedTuples with tensors as leaves; every function keeps its structure."""


def _parts(tree: Tree) -> list[Any] | None:
    """The entries of a node; None for a leaf."""
    if isinstance(tree, Tensor):  # what most are
        return None
    if isinstance(tree, dict):
        return list(tree.values())
    return list(tree) if isinstance(tree, tuple | list) else None


def _rebuilt(tree: Tree, parts: list[Any]) -> Tree:
    """A node like this one with other entries."""
    if isinstance(tree, dict):
        return dict(zip(tree, parts, strict=True))
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


def map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply `function` leaf by leaf over trees of one structure."""
    parts = _parts(tree)
    if parts is None:
        return function(tree, *others)
    if not others:
        return _rebuilt(tree, [map(function, part) for part in parts])
    if isinstance(tree, dict):  # by name: the order of names may differ
        if any(other.keys() != tree.keys() for other in others):
            raise ValueError(f"Trees differ: one has {list(tree)}, others {[list(other) for other in others]}.")
        rest = [[other[name] for name in tree] for other in others]
    else:
        rest = [list(other) for other in others]
    return _rebuilt(tree, [map(function, *each) for each in zip(parts, *rest, strict=True)])


def leaves(tree: Tree) -> list[Tensor]:
    parts = _parts(tree)
    if parts is None:
        return [tree]
    return [leaf for part in parts for leaf in leaves(part)]


def flatten(tree: Tree) -> tuple[list[Tensor], Tree]:
    """The leaves, and the structure from which `unflatten` makes the tree again: the same with positions as leaves."""
    values = leaves(tree)
    positions = iter(range(len(values)))
    return values, map(lambda _: next(positions), tree)


def unflatten(values: Sequence[Any], structure: Tree) -> Tree:
    return map(values.__getitem__, structure)


def vectorised(function: Callable[..., Tree], *trees: Tree) -> Tree:
    """`torch.func.vmap` of the function over the leading axis of all leaves; vmap takes nests apart too, but slowly."""
    values, structure = flatten(trees)
    found: list[Tree] = []

    def flat(*values: Tensor) -> tuple[Tensor, ...]:
        result, shape = flatten(function(*unflatten(values, structure)))
        found.append(shape)
        return tuple(result)

    made = vmap(flat)(*values)
    return unflatten(made, found[0])


def add(a: Tree, b: Tree) -> Tree:
    return map(torch.add, a, b)


def sub(a: Tree, b: Tree) -> Tree:
    return map(torch.sub, a, b)


def scale(tree: Tree, factor: Tensor | float) -> Tree:
    return map(lambda leaf: leaf * factor, tree)


def add_scaled(a: Tree, b: Tree, factor: Tensor | float) -> Tree:
    """a + factor * b."""
    return map(lambda x, y: x + factor * y, a, b)


def prototype(tree: Tree) -> Tensor:
    """The first leaf: new tensors that go with the tree take its type and device."""
    return leaves(tree)[0]


def zeros(like: Tree, *shape: int) -> Tensor:
    """Zeros of this shape, of the type and on the device of the tree."""
    return prototype(like).new_zeros(shape)


def length(tree: Tree) -> int:
    """Entries along the leading axis that all leaves have."""
    return prototype(tree).shape[0]


def zeros_like(tree: Tree) -> Tree:
    return map(torch.zeros_like, tree)


def squared_norm(tree: Tree) -> Tensor:
    """The sum of squares over all leaves, e.g. ||theta_k - theta||^2 of a proximal term."""
    return torch.stack([leaf.square().sum() for leaf in leaves(tree)]).sum()


def dot(a: Tree, b: Tree) -> Tensor:
    """The sum of products over all leaves."""
    return torch.stack([(x * y).sum() for x, y in zip(leaves(a), leaves(b), strict=True)]).sum()


def weighted_sum(tree: Tree, weights: Tensor) -> Tree:
    """sum_k weights[k] * leaf[k] over the leading (client) axis of every leaf."""
    return map(lambda leaf: torch.tensordot(weights.to(leaf.dtype), leaf, dims=1), tree)


def take(tree: Tree, index: int | slice | Tensor) -> Tree:
    """Entry (or entries) `index` of the leading axis of every leaf."""
    return map(lambda leaf: leaf[index], tree)


def pick(tree: Tree, index: Tensor) -> Tree:
    """Entry `index` of the leading axis of every leaf, where the index is a tensor that vmap may have batched."""
    return map(lambda leaf: leaf.index_select(0, index.reshape(1)).squeeze(0), tree)


def split(tree: dict[str, Tree], names: Collection[str]) -> tuple[dict[str, Tree], dict[str, Tree]]:
    """The entries of these names, such as a model's last layer, and the others; `{**a, **b}` is the whole again."""
    return (
        {name: part for name, part in tree.items() if name in names},
        {name: part for name, part in tree.items() if name not in names},
    )


def stack(trees: Sequence[Tree]) -> Tree:
    return map(lambda *parts: torch.stack(parts), *trees)


def where(condition: Tensor, a: Tree, b: Tree) -> Tree:
    """Leaf-wise choice; `condition` has the shape of the leaves' leading axes."""

    def choose(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(condition.reshape(condition.shape + (1,) * (x.dim() - condition.dim())), x, y)

    return map(choose, a, b)


def num_bytes(tree: Tree) -> int:
    """Memory of the leaves."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))


def named(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """Leaves by their path, "theta.layer.weight": what checkpoints and result files store."""
    if isinstance(tree, dict):
        entries = list(tree.items())
    elif isinstance(tree, tuple | list):
        entries = list(zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True))
    else:
        return {prefix: tree}
    inside = (named(part, f"{prefix}.{name}" if prefix else str(name)) for name, part in entries)
    return {path: leaf for each in inside for path, leaf in each.items()}


def from_named(like: Tree, values: dict[str, Tensor], prefix: str = "") -> Tree:
    """The inverse of `named`, with the structure of `like`."""
    return unflatten([values[path] for path in named(like, prefix)], flatten(like)[1])
