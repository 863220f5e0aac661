"""Carrying out one simulation of an experiment, with somebody watching."""

from __future__ import annotations

from collections.abc import Callable

from equifed.simulator import Simulation, Step

Watch = Callable[[str, Simulation], Callable[[Step], None]]
"""Is told of every simulation by title, and then of its steps."""


def carry_out(sim: Simulation, tell: Callable[[Step], None]) -> Step:
    """All rounds; the last one."""
    step = None
    for step in sim.rounds():
        tell(step)
    assert step is not None
    return step
