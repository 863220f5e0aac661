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
    for node in list(graph.graph.nodes):
        if node.target is aten.detach.default:  # nothing is differentiated any more
            node.replace_all_uses_with(node.args[0])
        elif node.target is aten.t.default and node.args[0].target is aten.t.default:  # there and back
            node.replace_all_uses_with(node.args[0].args[0])
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph
