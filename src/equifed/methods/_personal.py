"""Shared parts of methods with a model for each client."""

from __future__ import annotations

from equifed.protocol import Data, LocalTraining, Start
from equifed.training import init_optimizer
from equifed.tree import Tree


def fit_client(work: LocalTraining, start: Start, data: Data, steps: int) -> Tree:
    """Return the parameters of a client that was not in the training after `steps` full-batch steps, with the optimiser
    and the learning rate of the run's local training."""
    local = data.task.local
    rate = local.learning_rate
    assert rate is not None, "resolved"
    rows = data.replace(per_row=start.per_row, learning_rate=rate)
    parameters, optimizer = start.parameters, init_optimizer(local, start.parameters)
    for _ in range(steps):
        parameters, optimizer = work.step(local, parameters, optimizer, start.context, rows, rate)
    return parameters
