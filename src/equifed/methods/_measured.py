"""Rounds of two exchanges: clients compute statistics of the model on their rows, then train with the server's result.

measure:  down theta, which the client keeps; up sums over its rows
train:    down the server's result from all sums; up n_k (theta_k - theta) and n_k
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
    """theta as received in `measure`, so that it is not sent again in `train`."""


def measure_phase(
    up: tuple[str, ...],
    statistics: Callable[[Tree, Data], Record],
    step: ServerStep,
    bounds: Mapping[str, Bound] | None = None,
) -> Phase:
    """Return the exchange in which clients reply statistics of theta, and keep theta."""

    def measure(down: Record, state: Any, data: Data) -> tuple[Record, Tree]:
        return statistics(down["theta"], data), state._replace(theta=down["theta"])

    return Phase("measure", ("theta",), up, measure, step, "sum", bounds=bounds or {})


def start_weighted(down: Record, state: Any, data: Data) -> Start:
    """Start from the kept model, with rows weighted by their cells; rows of unknown group have weight 1."""
    return Start(state.theta, per_row={"weight": of_cells(down["weight"], data, 1.0)})


def kept_update(parameters: Tree, down: Record, state: Any, data: Data, context: Tree) -> tuple[Record, Tree]:
    """Reply n_k (theta_k - theta) and n_k, with theta the kept model."""
    return weighted_update(parameters, {"theta": state.theta}, state, data, context)
