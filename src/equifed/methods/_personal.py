"""What methods with a model for each client share."""

from __future__ import annotations

from equifed.protocol import Data, LocalTraining, Start
from equifed.training import optimizer_start
from equifed.tree import Tree


def fitted(work: LocalTraining, start: Start, data: Data, steps: int) -> Tree:
    """The parameters of a client that took no part in training, after so many steps on all its rows at once, by the
    optimiser and with the learning rate of the run's local training."""
    local = data.task.local
    rate = local.learning_rate
    assert rate is not None, "resolved"
    rows = data.replace(per_row=start.per_row, learning_rate=rate)
    parameters, optimizer = start.parameters, optimizer_start(local, start.parameters)
    for _ in range(steps):
        parameters, optimizer = work.stepped(local, parameters, optimizer, start.context, rows, rate)
    return parameters
