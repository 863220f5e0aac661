"""Shared parts of methods against client drift: a client's number of steps and its weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equifed.protocol import Data, Phase, Record
from equifed.tree import Tree

ROWS, CLIENTS = "rows", "clients"
"""Reply fields that hold w_k: n_k, or 1 for every client with rows."""


def weight_of(name: str, data: Data) -> Tensor:
    """Return w_k; 0 for a client without rows, which does not train."""
    return data.n if name == ROWS else (data.n > 0).to(data.mask.dtype)


def total_weight(name: str) -> Phase:
    """Return the phase before round 1 in which the server learns the sum of w_k over all clients."""

    def count(down: Record, state: Tree, data: Data) -> tuple[Record, Tree]:
        return {name: weight_of(name, data)}, state

    return Phase("count", (), (name,), count, keep_total, "sum")


def keep_total(server: Any, replies: Record, validation: Data | None) -> Any:
    """Store the sum of w_k as `total`."""
    (name,) = replies.keys() & {ROWS, CLIENTS}
    return server._replace(total=replies[name])


def local_steps(data: Data) -> Tensor:
    """Return K, the number of a client's local steps: epochs * ceil(n_k / B); 0 without rows."""
    local = data.task.local
    batches = (data.n > 0).to(data.n.dtype) if local.batch_size is None else torch.ceil(data.n / local.batch_size)
    return local.epochs * batches
