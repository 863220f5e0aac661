"""Traced steps of local training, as plain lists of tensor operations: vmap, grad and the model run in Python once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TRACE_FROM = 100
"""Number of steps of one shape in the whole job from which tracing (about 0.1 s) pays."""

StepFunction = Callable[..., list[Tensor]]
"""One step: (carry, constants, batch) -> carry, all as flat sequences of tensors."""


def trace(step: StepFunction, values: list[Tensor]) -> Any:
    """Return the step as a graph of its operations on values of these shapes."""
    from torch.fx.experimental.proxy_tensor import make_fx

    aten = torch.ops.aten
    graph = make_fx(step)(*values)
    nodes = list(graph.graph.nodes)
    numbers = {node for node, value in zip(nodes, values, strict=False) if value.dim() == 0}
    for node in nodes:
        if node.target is aten.detach.default:  # gradients have been traced already
            node.replace_all_uses_with(node.args[0])
        elif node.target is aten.t.default and node.args[0].target is aten.t.default:  # transposed twice
            node.replace_all_uses_with(node.args[0].args[0])
        elif node.target is aten.ones_like.default:  # the start of gradients, which does not depend on the loss's value
            made = node.meta["tensor_meta"]
            with graph.graph.inserting_before(node):
                ones = graph.graph.call_function(
                    aten.full.default, (list(made.shape), 1), {"dtype": made.dtype, "device": values[0].device}
                )
            node.replace_all_uses_with(ones)
        elif node.target is aten.sub.Tensor and node.args[0].op == "placeholder" and len(node.all_input_nodes) == 2:
            # parameter - rate * gradient in a single pass
            parameter, change = node.args
            if change.target is aten.mul.Tensor and change.args[0] in numbers and len(change.users) == 1:
                with graph.graph.inserting_before(node):
                    moved = graph.graph.call_function(aten.addcmul.default, (parameter, *change.args), {"value": -1})
                node.replace_all_uses_with(moved)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph
