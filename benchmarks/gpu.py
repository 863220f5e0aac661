"""The lanes engine on a GPU against the CPU: equal results, and the time of a client's step by the number of lanes.

    PYTHONPATH=src python benchmarks/gpu.py

Needs only torch and NumPy.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from equifed.federation import Federation
from equifed.methods import FedAvg, FedProx, LocalTraining
from equifed.models import MLP
from equifed.settings import Local, RunSettings
from equifed.simulation import Simulation
from equifed.simulator import make_job


def federation(sizes: list[int], features: int) -> Federation:
    rng = np.random.default_rng(0)

    def part(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = rng.normal(size=(n, features)).astype(np.float32)
        return x, (x[:, 0] + rng.normal(size=n) > 0).astype(int), rng.integers(0, 2, n)

    return Federation.from_arrays([part(n) for n in sizes], test=part(500))


def simulation(fed: Federation, device: str, rounds: int, seeds: int, method=None, **changes) -> Simulation:
    local = changes.pop("local", Local(epochs=10, batch_size=10, learning_rate=0.01))
    settings = RunSettings(rounds, seeds=seeds, eval_every=rounds, device=device, local=local)
    return Simulation(make_job(method or FedAvg(), fed, MLP(hidden=(10,), activation="tanh"), settings))


def final(sim: Simulation) -> torch.Tensor:
    for step in sim.rounds():
        state = step.state
    from equifed import tree

    return torch.cat([leaf.reshape(-1).cpu() for leaf in tree.leaves(state)])


def main() -> None:
    uneven = federation([41, 17, 60, 1, 0, 33, 24, 9], 6)
    for method in (FedAvg(), FedProx(mu=0.3), LocalTraining()):
        for local in (Local(epochs=3, batch_size=7, learning_rate=0.1, momentum=0.9), Local(3, 7, 0.01, "adam")):
            a, b = (final(simulation(uneven, d, 20, 3, method, local=local)) for d in ("cpu", "cuda"))
            print(
                f"{method.name:8s} {local.optimizer:5s} largest CPU-GPU difference {(a - b).abs().max():.2e}",
                flush=True,
            )
    for lanes in (50, 550, 5500):
        fed = federation([200] * (lanes // 5), 14)
        rounds = 6
        for device in ("cuda", "cpu") if lanes <= 550 else ("cuda",):
            sim = simulation(fed, device, rounds, 5)
            seconds = []
            clock = time.perf_counter()
            for _ in sim.rounds():
                if device == "cuda":
                    torch.cuda.synchronize()
                seconds.append(time.perf_counter() - clock)
                clock = time.perf_counter()
            best = min(seconds[1:-1])
            print(f"{lanes:5d} lanes {device:5s} {best * 1e6 / 200:9.1f} us per step, "
                  f"{best * 1e6 / 200 / lanes:7.3f} us per client step (round {best:.3f} s)", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
