"""The simulator on a GPU: its kernels against plain NumPy, every method against the reference engine, and times.

    PYTHONPATH=src python benchmarks/gpu.py                    # kernels, contract and speed
    PYTHONPATH=src:papers/src python benchmarks/gpu.py tables  # all twelve columns of FAIR-FATE's tables, 11 rows each

Needs torch for CUDA with Triton, and for `tables` the data (EQUIFED_DATA). Ends with an error where a result is wrong.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests' reference and methods

from equifed import shuffle, tree
from equifed.federation import Federation
from equifed.methods import FedAvg
from equifed.models import MLP, Logistic
from equifed.protocol import Method
from equifed.settings import Local, RunSettings
from equifed.simulation import Simulation
from equifed.simulator import make_job
from equifed.simulator.fused import cuda
from tests.contract.registered import METHODS
from tests.simulator.fused_reference import CASES, expected, make, problem, trained

WRONG: list[str] = []
"""What was not as it must be."""


def told(ok: bool, text: str) -> None:
    print(f"{'ok   ' if ok else 'WRONG'} {text}", flush=True)
    if not ok:
        WRONG.append(text)


# -- kernels -----------------------------------------------------------------------------------------------------------


def kernels() -> None:
    """Results to 1e-5 of double precision, the same bits again; batch orders; microseconds per step of all lanes."""
    for name, (network, local, flags) in CASES.items():
        rng = np.random.default_rng(len(name))
        p = problem(network, local, [163, 40, 8, 1, 0], 2, rng, **flags)
        theta = rng.uniform(-0.5, 0.5, (5, 2, network.size)).astype(np.float32)
        epochs = range(local.epochs)
        done, again = (trained(cuda, p, theta, epochs, device="cuda") for _ in range(2))
        parts = trained(cuda, p, theta, *(range(e, e + 1) for e in epochs), device="cuda")
        error = np.abs(done - expected(p, theta, epochs)).max()
        same = done.tobytes() == again.tobytes() == parts.tobytes()
        where = "registers" if cuda.plan_of(network, p.batch_size).small else "memory"
        told(error < 1e-5 and same, f"{name} (weights in {where}): {error:.1e} from NumPy, same bits again: {same}")
    for widths in ((4, 1), (4, 3, 1), (40, 33, 1)):
        network = make(widths, (2,) * (len(widths) - 2), "squared")
        p = problem(network, Local(epochs=2, batch_size=2), [20, 20], 1, np.random.default_rng(0))
        p = type(p)(**{**vars(p), "rate": 1e30})
        done = trained(cuda, p, np.ones((2, 1, network.size), np.float32), range(2), device="cuda")
        told(not np.isfinite(done).all(-1).any(), f"a diverged model of {widths} shows")
    n = [0, 1, 2, 3, 17, 1000, 99_999, 1_000_000]
    keys = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, len(n))
    found = cuda.orders(torch.from_numpy(keys).cuda(), 3, torch.tensor(n).cuda(), max(n)).cpu().numpy()
    wanted = (shuffle.order(int(shuffle.fold(keys.view(np.uint64)[i : i + 1], 3)[0]), n[i]) for i in range(len(n)))
    told(all((a[: len(b)] == b).all() for a, b in zip(found, wanted, strict=True)), "batch orders are those of NumPy")
    many = torch.arange(5500, device="cuda")
    seconds = best(lambda: cuda.orders(many, 0, torch.full_like(many, 200), 200))
    print(f"orders of 5,500 lanes of 200 rows: {seconds * 1e6:.0f} us")
    for widths, loss, batch, lane_counts in (
        ((14, 10, 1), "logistic", 10, (50, 550, 5500)),
        ((50, 1), "logistic", 128, (50, 550, 5500)),
        ((784, 10), "softmax", 64, (50, 550)),
        ((30, 20, 1), "logistic", 32, (550,)),
        ((50, 50, 1), "logistic", 32, (550,)),
        ((100, 64, 64, 1), "logistic", 64, (50, 550)),
    ):
        for lanes in lane_counts:
            kernel_time(widths, loss, batch, lanes)


def kernel_time(widths: tuple[int, ...], loss: str, batch: int, lanes: int) -> None:
    network = make(widths, (1,) * (len(widths) - 2), loss)
    table, n, epochs = 100_000, 20 * batch, 10
    on = {"device": "cuda"}
    labels, index = torch.randint(0, max(2, widths[-1]), (table,), **on), torch.randint(0, table, (lanes * n,), **on)
    p = cuda.Problem(
        *(network, Local(epochs, batch, 0.01), torch.randn(table, widths[0], **on), labels.float(), index.int()),
        *(torch.arange(lanes, **on) * n, torch.full((lanes,), n, **on), torch.arange(lanes, **on), 0.01),
    )
    theta = 0.1 * torch.randn(lanes, 1, network.size, **on)
    state, taken = theta.new_empty(lanes, 1, 0, network.size), torch.zeros(lanes, dtype=torch.int64, **on)
    seconds = best(lambda: cuda.train(p, theta, state, taken, range(epochs))) / (20 * epochs)
    print(f"{'-'.join(map(str, widths))}, batch {batch}, {lanes:5d} lanes: {seconds * 1e6:7.2f} us per step of all "
          f"lanes, {seconds / lanes * 1e9:7.2f} ns per client step", flush=True)  # fmt: skip


def best(work: Callable[[], Any]) -> float:
    """Seconds of the fastest of several calls, after one that compiles."""
    work()
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        clock = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - clock)
    return min(times)


# -- simulations -------------------------------------------------------------------------------------------------------


def federation(sizes: list[int], features: int, **more: Any) -> Federation:
    rng = np.random.default_rng(0)

    def part(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = rng.normal(size=(n, features)).astype(np.float32)
        return x, (x[:, 0] + rng.normal(size=n) > 0).astype(int), rng.integers(0, 2, n)

    return Federation.from_arrays([part(n) for n in sizes], validation=part(200), test=part(500), **more)


def final(sim: Simulation) -> torch.Tensor:
    for step in sim.rounds():
        state = step.state
    return torch.cat([leaf.reshape(-1).cpu().double() for leaf in tree.leaves(state)])


def contract() -> None:
    """Every method on the GPU within 1e-5 of the reference engine on the CPU."""
    fed = federation([41, 17, 60, 1, 0, 33, 24, 9], 6, client_groups=[i % 3 for i in range(8)])

    def simulation(method: Method, **changes: Any) -> Simulation:
        settings = RunSettings(4, 6, seeds=(0, 5), dropout=0.2, local=Local(2, 8, 0.1), **changes)
        bias = method.name not in ("frl", "e2fl")  # they rank edges, and biases are none
        return Simulation(make_job(method, fed, MLP(hidden=(3,), activation="tanh", bias=bias), settings))

    for method in METHODS:
        right = final(simulation(method, engine="reference", device="cpu"))
        sim = simulation(method, device="cuda")
        error = ((final(sim) - right).abs() / (1 + right.abs())).max()
        ways = {f"{note.fields['phase']} {note.fields['kernel']}" for note in sim.engine.notes if note.kind == "kernel"}
        told(bool(error < 1e-5), f"{method.name}: {error:.1e} from the reference engine ({', '.join(sorted(ways))})")


def speed() -> None:
    """A round's local training, fused against the CUDA graphs of traced steps."""
    workloads: list[tuple[str, Any, int, int, tuple[int, ...]]] = [
        ("MLP 14-10-1", MLP(hidden=(10,), activation="tanh"), 14, 10, (50, 550, 5500)),
        ("logistic 50", Logistic(), 50, 128, (550,)),
        ("MLP 50-50-1", MLP(hidden=(50,), activation="tanh"), 50, 32, (550,)),
        ("MLP 100-64-64-1", MLP(hidden=(64, 64), activation="tanh"), 100, 64, (50, 550)),
    ]
    for name, model, features, batch, lane_counts in workloads:
        for lanes in lane_counts:
            fed = federation([20 * batch] * (lanes // 5), features)
            line = f"{name}, batch {batch}, {lanes} lanes:"
            for kernel in ("fused", "traced"):
                line += f" {kernel} {round_seconds(fed, model, batch, kernel) / 200 * 1e6:.1f} us per step;"
            print(line, flush=True)


def round_seconds(fed: Federation, model: Any, batch: int, kernel: Any) -> float:
    """Of the fastest round in the middle: 10 epochs of 20 steps, with all that a round needs besides them."""
    settings = RunSettings(
        5,
        seeds=5,
        eval_every=5,
        device="cuda",
        kernel=kernel,
        local=Local(epochs=10, batch_size=batch, learning_rate=0.01),
    )
    sim = Simulation(make_job(FedAvg(), fed, model, settings))
    seconds, clock = [], time.perf_counter()
    for _ in sim.rounds():
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - clock)
        clock = time.perf_counter()
    return min(seconds[1:-1])


def tables(datasets: list[str], processes: int) -> None:
    """All columns of FAIR-FATE's tables, as `equifed reproduce fair-fate/table1 --reading as-published` has them. Most
    of the time goes by on the host, one core for each process, so several share the GPU."""
    from equifed_papers.experiments.fair_fate import settings as fair_fate

    everything = time.perf_counter()
    places = [(dataset, sigma) for dataset in datasets for sigma in fair_fate.SIGMAS]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for text in pool.map(column, *zip(*places, strict=True)):
            print(text, flush=True)
    print(f"{len(places)} columns by {processes} processes: {time.perf_counter() - everything:.1f} s", flush=True)


def column(dataset: str, sigma: Any) -> str:
    from equifed_papers.experiments.fair_fate import settings as fair_fate

    clock = time.perf_counter()
    feds = fair_fate.federations(dataset, sigma, [10 * run for run in range(1, fair_fate.SEEDS + 1)])
    accuracies = []
    for arm in fair_fate.arms(dataset, sigma, "as-published"):
        for step in fair_fate.simulation(arm.method, feds, fair_fate.ROUNDS).rounds():
            last = step
        accuracies.append(fair_fate.measured(last, "test", True)["ACC"].mean())
    found = " ".join(f"{value:.3f}" for value in accuracies)
    return f"{dataset} {sigma}: {time.perf_counter() - clock:.1f} s; accuracies {found}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("kernels", "contract", "speed", "tables")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(parts)} (default: all but tables)")
    parser.add_argument("--datasets", default="compas,adult,law,dutch", help="of the tables")
    parser.add_argument("--processes", type=int, default=4, help="that share the GPU for the tables")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(parts):
        parser.error(f"There is no part {', '.join(sorted(unknown))}; there are {', '.join(parts)}.")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    for part in given.parts or parts[:-1]:
        if part == "tables":
            tables(given.datasets.split(","), given.processes)
        else:
            {"kernels": kernels, "contract": contract, "speed": speed}[part]()
    if WRONG:
        sys.exit(f"{len(WRONG)} wrong results.")


if __name__ == "__main__":
    main()
