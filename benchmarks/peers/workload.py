"""What the script of every peer does in the same way: read the workload, time the rounds, report.

NumPy only: it is imported in every peer's own environment."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import NamedTuple

import numpy as np

Array = np.ndarray


class Workload(NamedTuple):
    x: Array
    """x[client, row, feature], float32."""
    y: Array
    """y[client, row], 0 or 1, float32."""
    rounds: int
    epochs: int
    batch: int
    rate: float

    @property
    def clients(self) -> int:
        return len(self.x)

    @property
    def features(self) -> int:
        return self.x.shape[2]

    def loss(self, weights: Array, bias: float) -> float:
        """Mean logistic loss over the rows of all clients, in double precision."""
        margin = self.x.astype(np.float64) @ np.asarray(weights, np.float64).reshape(-1) + float(bias)
        return float(np.mean(np.logaddexp(0, margin) - self.y * margin))


@functools.cache
def read(path: str) -> Workload:
    """What `benchmarks/peers.py` wrote; once per process."""
    with np.load(path) as file:
        return Workload(**{name: file[name] if file[name].ndim else file[name].item() for name in Workload._fields})


def given() -> Workload:
    """The file that the command line names first."""
    return read(sys.argv[1])


class Clock:
    """Starts when it is made: after a script's imports, before it does anything with the rows."""

    def __init__(self) -> None:
        self.ticks = [time.perf_counter()]

    def tick(self) -> None:
        """After every round."""
        self.ticks.append(time.perf_counter())

    def report(self, weights: Array, bias: float, *packages: str) -> None:
        """Of a run whose rounds were told by `tick`. Steady are the rounds after the first, in which things are
        compiled and started; their median counts, so that a hiccup of the machine does not."""
        rounds = np.diff(self.ticks)
        steady = float(np.median(rounds[1:])) * len(rounds)
        report(float(rounds.sum()), steady, [(weights, bias)], *packages)


def report(
    whole: float, steady: float, models: Sequence[tuple[Array, float]], *packages: str, further: float = 0.0
) -> None:
    """One line for `benchmarks/peers.py`. whole: seconds of the first run; steady: of as many rounds once everything is
    warm; models: (weights, bias) at the end, of each seed; further: seconds of all runs after the first."""
    losses = [given().loss(*model) for model in models]
    versions = {name: version(name).split("+")[0] for name in packages}  # 2.13.0+cpu
    line = {"whole": whole, "steady": steady, "further": further, "losses": losses, "versions": versions}
    print(json.dumps(line), flush=True)
