"""Arithmetic on parameter trees: nested dicts, tuples and NamedTuples whose leaves are tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Tree = Any
"""A nest of dicts, tuples, lists and NamedTuples with tensors as leaves; every function keeps its structure."""


def map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply `function` leaf by leaf over trees of one structure."""
    return pytree.tree_map(function, tree, *others)


def leaves(tree: Tree) -> list[Tensor]:
    return pytree.tree_leaves(tree)


def flatten(tree: Tree) -> tuple[list[Tensor], Any]:
    return pytree.tree_flatten(tree)


def unflatten(values: Sequence[Any], structure: Any) -> Tree:
    return pytree.tree_unflatten(list(values), structure)


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
    entries = pytree.tree_flatten_with_path(tree)[0]
    return {_join(prefix, path): leaf for path, leaf in entries}


def from_named(like: Tree, values: dict[str, Tensor], prefix: str = "") -> Tree:
    """The inverse of `named`, with the structure of `like`."""
    entries, structure = pytree.tree_flatten_with_path(like)
    return unflatten([values[_join(prefix, path)] for path, _ in entries], structure)


def _join(prefix: str, path: Sequence[Any]) -> str:
    parts = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    return ".".join([prefix, *parts] if prefix else parts)
