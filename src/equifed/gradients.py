"""Gradients by parameter trees, with the meaning that `torch.func` gives them.

`torch.func` imports torch's compiler at its first gradient, which takes more than a second: a third of what a silo's
process, one per message, needs. Where no transformation of `torch.func` is active, autograd gives the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, func

from equifed import tree
from equifed.tree import Tree


class _Depth(threading.local):
    plain = 0


_depth = _Depth()
"""How many gradients by autograd this thread is computing: one inside another needs the graph of the inner one."""


def grad(function: Callable[..., Tensor]) -> Callable[..., Tree]:
    """Return the function that computes the gradient of `function` by its first argument, a tree."""
    both = grad_and_value(function)
    return lambda *arguments: both(*arguments)[0]


def grad_and_value(function: Callable[..., Any], has_aux: bool = False) -> Callable[..., tuple[Tree, Any]]:
    """Return the function that computes the gradient by the first argument, and what `function` returned: its value,
    or with `has_aux` (value, auxiliary tree)."""

    def compute(parameters: Tree, *rest: Any) -> tuple[Tree, Any]:
        if _is_transformed():
            return func.grad_and_value(function, has_aux=has_aux)(parameters, *rest)
        inputs, structure = _inputs(parameters)
        with _recording():
            found = function(tree.unflatten(inputs, structure), *rest)
            slopes = _slopes(found[0] if has_aux else found, inputs)
        return tree.unflatten(slopes, structure), tree.map(Tensor.detach, found)

    return compute


def pull_back(function: Callable[[Tree], Tensor], parameters: Tree, weights: Tensor) -> tuple[Tensor, Tree]:
    """Return the values [n] of `function`, and the gradients of the weighted sums of them [P, ...] by weights [P, n],
    in one forward and one backward pass."""
    if _is_transformed():
        values, pull = func.vjp(function, parameters)  # type: ignore[misc]
        return values, func.vmap(pull)(weights)[0]
    inputs, structure = _inputs(parameters)
    with _recording():
        values = function(tree.unflatten(inputs, structure))
        slopes = _slopes(values, inputs, weights)
    return values.detach(), tree.unflatten(slopes, structure)


def _is_transformed() -> bool:
    return _depth.plain > 0 or torch._C._functorch.maybe_current_level() is not None


def _inputs(parameters: Tree) -> tuple[list[Tensor], Tree]:
    leaves, structure = tree.flatten(parameters)
    # unlike detach(), data has a version of its own: other threads write their clients' parts of the same memory
    return [leaf.data.requires_grad_() for leaf in leaves], structure


def _slopes(values: Tensor, inputs: list[Tensor], weights: Tensor | None = None) -> list[Tensor]:
    if not values.requires_grad:
        shape = () if weights is None else weights.shape[:1]
        return [leaf.new_zeros(*shape, *leaf.shape) for leaf in inputs]
    return [*torch.autograd.grad(values, inputs, weights, is_grads_batched=weights is not None, materialize_grads=True)]


@contextmanager
def _recording() -> Iterator[None]:
    _depth.plain += 1
    try:
        with torch.enable_grad():
            yield
    finally:
        _depth.plain -= 1
