"""Steps of local training as plain lists of tensor operations: the Python of vmap, grad and the model is run once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TRACE_FROM = 100
"""Steps of one shape in the whole job from which tracing it (about 0.1 s) pays."""

Step = Callable[..., list[Tensor]]
"""One step: (what it changes, what stays the same, a batch) -> what it changes, all as tensors one after another."""


def trace(step: Step, values: list[Tensor]) -> Any:
    """The step as a graph of the operations that it carries out on values of these shapes."""
    from torch.fx.experimental.proxy_tensor import make_fx

    aten = torch.ops.aten
    graph = make_fx(step)(*values)
    nodes = list(graph.graph.nodes)
    numbers = {node for node, value in zip(nodes, values, strict=False) if value.dim() == 0}
    for node in nodes:
        if node.target is aten.detach.default:  # nothing is differentiated any more
            node.replace_all_uses_with(node.args[0])
        elif node.target is aten.t.default and node.args[0].target is aten.t.default:  # there and back
            node.replace_all_uses_with(node.args[0].args[0])
        elif node.target is aten.ones_like.default:  # where gradients start from; what the loss is need not be known
            made = node.meta["tensor_meta"]
            with graph.graph.inserting_before(node):
                ones = graph.graph.call_function(
                    aten.full.default, (list(made.shape), 1), {"dtype": made.dtype, "device": values[0].device}
                )
            node.replace_all_uses_with(ones)
        elif node.target is aten.sub.Tensor and node.args[0].op == "placeholder" and len(node.all_input_nodes) == 2:
            # parameter - rate * gradient, in one pass over them
            parameter, change = node.args
            if change.target is aten.mul.Tensor and change.args[0] in numbers and len(change.users) == 1:
                with graph.graph.inserting_before(node):
                    moved = graph.graph.call_function(aten.addcmul.default, (parameter, *change.args), {"value": -1})
                node.replace_all_uses_with(moved)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph
