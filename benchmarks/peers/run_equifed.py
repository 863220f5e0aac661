"""FedAvg in equifed: run_equifed.py WORKLOAD SEEDS THREADS

The first call of `simulate` in a process, then later ones. A call is everything from arrays to a `Result`; the model is
measured on test rows at the end."""

from __future__ import annotations

import sys
import time

import numpy as np
from workload import Workload, given, report

from equifed import Federation, Local, Result, methods, models, simulate

LATER = 5


def call(work: Workload, seeds: int, threads: int) -> Result:
    group = np.arange(work.y.shape[1]) % 2
    parts = [(xk, yk.astype(int), group) for xk, yk in zip(work.x, work.y, strict=True)]
    test = tuple(part[:1000] for part in parts[0])
    zero = {"0.weight": np.zeros((1, work.features), np.float32), "0.bias": np.zeros(1, np.float32)}
    local = Local(epochs=work.epochs, batch_size=work.batch, learning_rate=work.rate)
    return simulate(
        methods.FedAvg(), Federation.from_arrays(parts, test=test), model=models.Logistic(), rounds=work.rounds,
        local=local, seeds=seeds, eval_every=work.rounds, device="cpu", threads=threads,
        initial_parameters=zero,
    )  # fmt: skip


def main(seeds: int, threads: int) -> None:
    work, seconds = given(), []
    for _ in range(1 + LATER):
        begin = time.perf_counter()
        result = call(work, seeds, threads)
        seconds.append(time.perf_counter() - begin)
    first, *later = seconds
    final = [(theta["0.weight"], theta["0.bias"].item()) for theta in result.parameters.values()]
    report(first, float(np.median(later)), final, "equifed", "torch", "numba", further=sum(later))


if __name__ == "__main__":
    main(int(sys.argv[2]), int(sys.argv[3]))
