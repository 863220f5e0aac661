"""Rounds of two exchanges: clients measure the model on their rows, then train it by what the server made of that.

measure:  down theta, which the client keeps; up sums over its rows
train:    down what the server made of all sums; up n_k (theta_k - theta) and n_k
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from equifed.methods._cells import of_cells
from equifed.methods.fedavg import weighted_update
from equifed.protocol import Bound, Data, Phase, Record, ServerStep, Start
from equifed.tree import Tree


class Client(NamedTuple):
    theta: Tree
    """theta as it came down in `measure`, so that it need not come again in `train`."""


def measuring(
    up: tuple[str, ...],
    statistics: Callable[[Tree, Data], Record],
    step: ServerStep,
    bounds: Mapping[str, Bound] | None = None,
) -> Phase:
    """The exchange in which clients reply with statistics of theta, and keep it."""

    def measure(down: Record, state: Any, data: Data) -> tuple[Record, Tree]:
        return statistics(down["theta"], data), state._replace(theta=down["theta"])

    return Phase("measure", ("theta",), up, measure, step, "sum", bounds=bounds or {})


def start_weighted(down: Record, state: Any, data: Data) -> Start:
    """Train the kept model on rows by the weights of their cells; those of unknown group have weight 1."""
    return Start(state.theta, per_row={"weight": of_cells(down["weight"], data, 1.0)})


def kept_update(parameters: Tree, down: Record, state: Any, data: Data, context: Tree) -> tuple[Record, Tree]:
    """Reply n_k (theta_k - theta) and n_k, theta being the kept model."""
    return weighted_update(parameters, {"theta": state.theta}, state, data, context)
