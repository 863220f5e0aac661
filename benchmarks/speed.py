"""Speed of the simulator as ratios within one process and one run; the machine's own speed cancels out.

    python benchmarks/speed.py [--quick]

Workloads: the clients' steps of a logistic regression with large batches, of a small network with small batches, of
networks whose time is arithmetic; a large population of which few take part; a sweep of KFFL over 20 weights, and
rounds of full gradients (FedFair); rankings of edges (FRL, E2FL) on a tabular network. And
what the first call of a process costs beyond the second, what checking replies takes of a round, and secure sums.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import equifed as ef
from equifed import edge_popup
from equifed.bounds import Bounds
from equifed.simulation import Simulation
from equifed.simulator import make_job


def federation(sizes: list[int], *shape: int, seed: int = 0) -> ef.Federation:
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=math.prod(shape))

    def part(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = rng.normal(size=(n, *shape)).astype(np.float32)
        return x, (x.reshape(n, -1) @ truth + rng.normal(size=n) > 0).astype(int), rng.integers(0, 2, n)

    return ef.Federation.from_arrays([part(rows) for rows in sizes], test=part(1000))


def timed(work: Callable[[], object]) -> float:
    gc.collect()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def parts(fed: ef.Federation) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [
        (torch.from_numpy(fed.rows.x[rows]), torch.from_numpy(fed.rows.y[rows]).float())
        for rows in (fed.train[k] for k in range(fed.num_clients))
    ]


def average(models: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([model[name] for model in models]).mean(0) for name in models[0]}


def dataloader_loop(fed: ef.Federation, net: nn.Module, rounds: int, epochs: int, batch: int, rate: float) -> None:
    """FedAvg as it is usually written: a DataLoader and an optimiser per client and round."""
    loaders = [
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=batch, shuffle=True)
        for x, y in parts(fed)
    ]
    theta = {name: value.clone() for name, value in net.state_dict().items()}
    for _ in range(rounds):
        trained = []
        for loader in loaders:
            net.load_state_dict(theta)
            optimizer = torch.optim.SGD(net.parameters(), lr=rate)
            for _ in range(epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    F.binary_cross_entropy_with_logits(net(x).squeeze(-1), y).backward()
                    optimizer.step()
            trained.append({name: value.clone() for name, value in net.state_dict().items()})
        theta = average(trained)


def tight_loop(fed: ef.Federation, net: nn.Module, rounds: int, epochs: int, batch: int, rate: float) -> None:
    """The same without DataLoader: rows are taken by index."""
    data = parts(fed)
    theta = {name: value.clone() for name, value in net.state_dict().items()}
    for _ in range(rounds):
        trained = []
        for x, y in data:
            net.load_state_dict(theta)
            optimizer = torch.optim.SGD(net.parameters(), lr=rate)
            for _ in range(epochs):
                for rows in torch.randperm(len(y)).split(batch):
                    optimizer.zero_grad()
                    F.binary_cross_entropy_with_logits(net(x[rows]).squeeze(-1), y[rows]).backward()
                    optimizer.step()
            trained.append({name: value.clone() for name, value in net.state_dict().items()})
        theta = average(trained)


def batched_matmuls(fed: ef.Federation, rounds: int, epochs: int, batch: int, rate: float, seeds: int) -> None:
    """Logistic regression with its gradient by hand, all clients of all seeds in batched matrix products."""
    clients, n, d = fed.num_clients, int(fed.train.sizes[0]), fed.shape[0]
    x, y = torch.from_numpy(fed.rows.x), torch.from_numpy(fed.rows.y).float()
    base = torch.from_numpy(np.tile(fed.train.start, seeds))[:, None]
    w, b = torch.zeros(seeds, d), torch.zeros(seeds)
    for _ in range(rounds):
        wk, bk = w.repeat_interleave(clients, 0)[:, :, None], b.repeat_interleave(clients)[:, None]
        for _ in range(epochs):
            order = base + torch.stack([torch.randperm(n) for _ in range(seeds * clients)])
            for rows in order.split(batch, 1):
                flat = rows.reshape(-1)
                xb = x.index_select(0, flat).view(*rows.shape, d)
                yb = y.index_select(0, flat).view(rows.shape)
                error = (torch.sigmoid(torch.bmm(xb, wk).squeeze(-1) + bk) - yb) / rows.shape[1]
                wk = wk - rate * torch.bmm(xb.transpose(1, 2), error[:, :, None])
                bk = bk - rate * error.sum(1, keepdim=True)
        w, b = wk.view(seeds, clients, d).mean(1), bk.view(seeds, clients).mean(1)


def logistic(fed: ef.Federation, rounds: int, seeds: int) -> ef.Result:
    """Logistic regression, batch 128, 2 local epochs."""
    local = ef.Local(epochs=2, batch_size=128, learning_rate=0.1)
    return ef.simulate(
        ef.methods.FedAvg(), fed, model=ef.models.Logistic(), rounds=rounds, local=local, seeds=range(seeds),
        eval_every=rounds, device="cpu",
    )  # fmt: skip


def start_up(quick: bool) -> dict[str, float]:
    """What the first `simulate` of a process costs beyond the second, after importing equifed and torch: 20 clients x
    2,400 rows x 50 features, 30 rounds. Each figure is the best of several processes; one before them compiles."""
    program = (
        "from speed import *; fed = federation([2400] * 20, 50); "
        "print(*(timed(lambda: logistic(fed, 30, 1)) for _ in range(2)))"
    )

    def process() -> tuple[float, float]:
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=Path(__file__).parent,
            check=True,
            capture_output=True,
            text=True,
        )
        first, second = map(float, done.stdout.split())
        return first, second

    process()
    seen = [process() for _ in range(2 if quick else 5)]
    return {
        "first call in a process, s": min(first for first, _ in seen),
        "second call, s": min(second for _, second in seen),
        "first beyond second, s (target <= 0.5)": min(first - second for first, second in seen),
    }


def large_batches(quick: bool) -> dict[str, float]:
    """20 clients x 2,400 rows x 50 features, logistic regression, batch 128, 2 local epochs, 30 rounds."""
    fed = federation([2400] * 20, 50)
    epochs, batch, rate, rounds = 2, 128, 0.1, 6 if quick else 30
    loader = timed(lambda: dataloader_loop(fed, nn.Linear(50, 1), rounds, epochs, batch, rate))
    tight = timed(lambda: tight_loop(fed, nn.Linear(50, 1), rounds, epochs, batch, rate))
    hand = timed(lambda: batched_matmuls(fed, rounds, epochs, batch, rate, 5)) / 5
    one, five = timed(lambda: logistic(fed, rounds, 1)), timed(lambda: logistic(fed, rounds, 5)) / 5
    return {
        "DataLoader loop, s": loader,
        "tight loop, s": tight,
        "hand-written batched matmuls (5 seeds), s per seed": hand,
        "lanes, 1 seed, s": one,
        "lanes, 5 seeds, s per seed": five,
        "lanes vs DataLoader, 1 seed (target >= 12)": loader / one,
        "lanes vs DataLoader, 5 seeds (target >= 30)": loader / five,
        "lanes vs hand-written, 5 seeds (target <= 2.5)": five / hand,
    }


def small_batches(quick: bool) -> dict[str, float]:
    """50 lanes (10 clients, 5 seeds), MLP 14-10-1, batch 10: the cost of one client's step."""
    fed = federation([200] * 10, 14)
    model = ef.models.MLP(hidden=(10,), activation="tanh")
    local = ef.Local(epochs=10, batch_size=10, learning_rate=0.01)
    rounds = 30 if quick else 200
    steps = 10 * 20  # of each client in each round

    def lanes(kernel: str, rounds: int, threads: int = 1) -> Callable[[], object]:
        return lambda: ef.simulate(
            ef.methods.FedAvg(), fed, model=model, rounds=rounds, local=local, seeds=range(5), eval_every=rounds,
            device="cpu", kernel=kernel, threads=threads,
        )  # fmt: skip

    plain = timed(
        lambda: tight_loop(fed, nn.Sequential(nn.Linear(14, 10), nn.Tanh(), nn.Linear(10, 1)), 2, 10, 10, 0.01)
    )
    timed(lanes("fused", 1))  # loads the compiled loop
    fused, twice = timed(lanes("fused", rounds)), timed(lanes("fused", rounds, threads=2))
    traced = timed(lanes("traced", rounds))
    timed(lanes("compiled", 3))  # the first compilation ever loads the compiler itself
    compiled = timed(lanes("compiled", rounds))
    scale = 1e6 / (50 * steps)
    return {
        "plain loop, us per client step": plain * 1e6 / (2 * 10 * steps),
        "lanes fused, us per client step (target <= 2)": fused * scale / rounds,
        "lanes traced, us per client step": traced * scale / rounds,
        f"lanes compiled, {rounds} rounds with compilation, us per client step": compiled * scale / rounds,
        "lanes traced vs fused": traced / fused,
        "lanes fused, 1 thread vs 2 (target >= 1.6)": fused / twice,
        "lanes traced vs plain loop (target <= 20/550 = 0.036)": traced / rounds / 50 / (plain / 2 / 10),
        "lanes compiled vs plain loop (target <= 20/550 = 0.036)": compiled / rounds / 50 / (plain / 2 / 10),
    }


def image_network() -> nn.Module:
    """Two 3x3 convolutions for images of 28 x 28."""
    first = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(32 * 49, 1))


def wide_network() -> nn.Module:
    return nn.Sequential(nn.Linear(100, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))


def arithmetic(quick: bool) -> dict[str, float]:
    """Models whose time is multiplications: rounds of 10 clients with 6 steps each, in turn with those of a plain loop;
    the best of each."""
    results: dict[str, float] = {}
    workloads = (
        ("CNN, batch 20", image_network, (1, 28, 28), 20, ("traced", "clients")),
        ("MLP 100-256-256-1, batch 20", wide_network, (100,), 20, ("fused", "traced", "clients")),
        ("MLP 100-256-256-1, batch 128", wide_network, (100,), 128, ("fused", "traced", "clients")),
    )
    for name, network, shape, batch, kernels in workloads:
        fed = federation([6 * batch] * 10, *shape)
        local = ef.Local(epochs=1, batch_size=batch, learning_rate=0.01)

        def lanes(kernel: str, threads: int, fed=fed, network=network, local=local) -> Callable[[], object]:  # type: ignore[no-untyped-def]
            settings = ef.RunSettings(
                rounds=1000, eval_every=1000, local=local, seeds=1, device="cpu", kernel=kernel, threads=threads
            )  # type: ignore[arg-type]
            rounds = iter(Simulation(make_job(ef.methods.FedAvg(), fed, network, settings)).rounds())
            next(rounds)  # traces the step
            return lambda: next(rounds)

        work = {"plain loop": partial(tight_loop, fed, network(), 1, 1, batch, 0.01), "auto": lanes("auto", 1)}
        work |= {"auto, 2 threads": lanes("auto", 2)} | {kernel: lanes(kernel, 1) for kernel in kernels}
        best = dict.fromkeys(work, math.inf)
        for _ in range(3 if quick else 15):
            best = {what: min(best[what], timed(rounds)) for what, rounds in work.items()}
        results |= {f"{name}: {what}, ms per round": 1000 * seconds for what, seconds in best.items()}
        results[f"{name}: plain loop vs auto (target >= 1)"] = best["plain loop"] / best["auto"]
        results[f"{name}: auto, 1 thread vs 2 (target >= 1.6)"] = best["auto"] / best["auto, 2 threads"]
    return results


def population(quick: bool) -> dict[str, float]:
    """10,000 clients of 20 rows, 50 per round, against 100 clients: a round must not cost more."""
    seconds = {}
    rounds = 20 if quick else 60
    for clients in (100, 10_000):
        fed = federation([20] * clients, 20)

        def run(fed: ef.Federation = fed, rounds: int = rounds) -> object:
            return ef.simulate(
                ef.methods.FedAvg(), fed, model=ef.models.Logistic(), rounds=rounds, clients_per_round=50,
                local=ef.Local(epochs=2, batch_size=10), seeds=range(2), eval_every=rounds, device="cpu",
            )  # fmt: skip

        seconds[clients] = timed(run)
    return {
        "100 clients, s": seconds[100],
        "10,000 clients, s": seconds[10_000],
        "10,000 vs 100 clients (about 1: no cost per client of the population)": seconds[10_000] / seconds[100],
    }


def sweeps(quick: bool) -> dict[str, float]:
    """Sizes of Adult: KFFL, 4 clients of 9,000 rows, 101 features; one weight, and 20 of them in one call."""
    fed = federation([9000] * 4, 101)
    local = ef.Local(epochs=5, batch_size=64, learning_rate=0.01, optimizer="adam")
    rounds = 2 if quick else 10
    settings = {"model": ef.models.Logistic(), "rounds": rounds, "local": local, "eval_every": rounds, "device": "cpu"}
    weights = np.geomspace(1, 100, 20).tolist()
    one = timed(lambda: ef.simulate(ef.methods.KFFL(), fed, **settings))
    many = timed(lambda: ef.simulate(ef.methods.KFFL(), fed, over={"fairness_weight": weights}, **settings))
    # 50 clients, full gradients of all rows each round: 6 values of epsilon for 5 seeds in one call
    fed = federation([800] * 50, 104)
    epsilons = [1e-4, 1e-3, 0.01, 0.1, 0.2, 0.4]
    settings = {"model": ef.models.Logistic(), "rounds": 40, "eval_every": 40, "device": "cpu", "seeds": range(5)}
    full = timed(lambda: ef.simulate(ef.methods.FedFair(), fed, over={"epsilon": epsilons}, **settings))
    return {
        "KFFL, one weight, s": one,
        "KFFL, 20 weights in one call, s": many,
        "20 weights vs one (target <= 3)": many / one,
        "FedFair, 30 runs x 40,000 rows, ms per round": 1000 * full / 40,
    }


def rankings(quick: bool) -> dict[str, float]:
    """Sizes of Adult in E2FL: 5 clients of 7,200 rows, 101 features, MLP 100-100 without biases; CPU seconds, since the
    fused path takes all cores. Before, steps were traced and topk found which edges remain."""
    fed = federation([1200 if quick else 7200] * 5, 101)
    model = ef.models.MLP((100, 100), bias=False)
    counting = edge_popup.threshold

    def topk(values: torch.Tensor, keep: float) -> torch.Tensor:
        return values.topk(edge_popup.num_kept(keep, len(values)), sorted=False).values.amin()

    def seconds(method: ef.Method, kernel: str) -> float:
        # the first round of a process loads the kernels
        ef.simulate(method, federation([64] * 2, 101), model=model, rounds=1, kernel=kernel, device="cpu")
        begin = time.process_time()
        ef.simulate(method, fed, model=model, rounds=2, kernel=kernel, device="cpu", eval_every=2)
        return (time.process_time() - begin) / 2

    results = {}
    for name, method in (("FRL", ef.methods.FRL()), ("E2FL", ef.methods.E2FL(groups="sensitive"))):
        fused, traced = seconds(method, "fused"), seconds(method, "traced")
        edge_popup.threshold = topk
        before = seconds(method, "traced")
        edge_popup.threshold = counting
        results |= {
            f"{name}, topk and traced, CPU s per round": before,
            f"{name}, traced, CPU s per round": traced,
            f"{name}, fused, CPU s per round": fused,
            f"{name}, topk and traced vs fused (target >= 10)": before / fused,
        }
    return results


def checks(quick: bool) -> dict[str, float]:
    """What share of a job's CPU time goes into looking whether replies are within their bounds: 20 clients x 2,400
    rows, Adult's sizes, and 10 clients x 60 rows, whose rounds are as short as rounds get."""
    look, spent = Bounds.find_refused_in_runs, [0.0]

    def timed_look(self: Bounds, *arguments: Any) -> Any:
        begin = time.thread_time()
        found = look(self, *arguments)
        spent[0] += time.thread_time() - begin
        return found

    def share(method: ef.Method, fed: ef.Federation, **options: Any) -> float:
        settings = {
            "model": ef.models.Logistic(),
            "rounds": 5 if quick else 20,
            "threads": 1,
            "device": "cpu",
            **options,
        }
        shares = []
        for _ in range(4):
            spent[0], begin = 0.0, time.process_time()
            ef.simulate(method, fed, **settings)
            shares.append(100 * spent[0] / (time.process_time() - begin))
        return min(shares)

    adult = federation([9000] * 4, 101)
    batches = {"local": ef.Local(epochs=2, batch_size=128)}
    small = {"model": ef.models.MLP(hidden=(10,)), "local": ef.Local(epochs=1, batch_size=10)}
    Bounds.find_refused_in_runs = timed_look  # type: ignore[method-assign]
    try:
        return {
            "FedAvg, 20 x 2,400 rows, % of a round (target <= 3)": share(
                ef.methods.FedAvg(), federation([2400] * 20, 50), **batches
            ),
            "KFFL, 4 x 9,000 rows, % of a round (target <= 3)": share(ef.methods.KFFL(), adult),
            "FedFair, 4 x 9,000 rows, % of a round (target <= 3)": share(ef.methods.FedFair(), adult),
            "FedAvg, 10 x 60 rows, % of a round": share(ef.methods.FedAvg(), federation([60] * 10, 14), **small),
        }
    finally:
        Bounds.find_refused_in_runs = look  # type: ignore[method-assign]


def secure_sums(quick: bool) -> dict[str, float]:
    """CPU time of a run with secure sums over one with plain sums, in turn, the best of each: large rounds, rounds as
    short as they get, and a model of 100,000 parameters, of which each round adds up 50."""
    workloads: dict[str, tuple[ef.Method, ef.Federation, Any, ef.Local]] = {
        "FedAvg, 20 x 2,400 rows, logistic": (
            ef.methods.FedAvg(), federation([2400] * 20, 50), ef.models.Logistic(), ef.Local(epochs=2, batch_size=128)
        ),
        "KFFL, 4 x 9,000 rows, logistic": (
            ef.methods.KFFL(), federation([9000] * 4, 101), ef.models.Logistic(), ef.Local()
        ),
        "FedAvg, 10 x 60 rows, MLP 14-10-1": (
            ef.methods.FedAvg(), federation([60] * 10, 14), ef.models.MLP((10,)), ef.Local(epochs=1, batch_size=10)
        ),
        "FedAvg, 50 x 60 rows, MLP 100-256-256-1": (
            ef.methods.FedAvg(), federation([60] * 50, 100), wide_network, ef.Local(epochs=1, batch_size=20)
        ),
    }  # fmt: skip

    def seconds(method: ef.Method, fed: ef.Federation, model: Any, local: ef.Local, secure: bool) -> float:
        rounds = 3 if quick else 10
        begin = time.process_time()
        ef.simulate(
            method, fed, model=model, rounds=rounds, local=local, eval_every=rounds, threads=1, device="cpu",
            secure=secure,
        )  # fmt: skip
        return time.process_time() - begin

    results = {}
    for name, workload in workloads.items():
        best = dict.fromkeys((False, True), math.inf)
        for _ in range(3 if quick else 8):
            best = {secure: min(best[secure], seconds(*workload, secure)) for secure in best}
        results[f"{name}: secure vs plain sums"] = best[True] / best[False]
    return results


def memory(quick: bool) -> dict[str, float]:
    """Peak memory of a run over the data's own size, for equal clients and for one large beside many small ones."""
    many = 10_000 if quick else 400_000
    results = {}
    for name, sizes in (("unequal", [many] + [20] * 2000), ("equal", [many // 50] * 50)):
        fed = federation(sizes, 50)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        ef.simulate(
            ef.methods.FedAvg(), fed, model=ef.models.Logistic(), rounds=3, local=ef.Local(epochs=1, batch_size=32),
            seeds=range(2), eval_every=3, device="cpu",
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        results[f"{name} clients: data, MB"] = fed.rows.x.nbytes / 1e6
        results[f"{name} clients: additional peak over the data (target <= 2)"] = (after - before) / fed.rows.x.nbytes
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a look")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    options = parser.parse_args()
    torch.set_num_threads(1)
    # memory first: the peak of a process never falls
    results = {
        work.__name__: work(options.quick)
        for work in (
            memory, start_up, large_batches, small_batches, arithmetic, population, sweeps, rankings, checks,
            secure_sums,
        )
    }  # fmt: skip
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for name, values in results.items():
        print(f"\n{name}")
        for what, value in values.items():
            print(f"  {what:70s} {value:10.3f}")


if __name__ == "__main__":
    main()
