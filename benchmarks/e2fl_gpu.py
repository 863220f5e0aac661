"""E2FL's FairMNISTRotate (1,000 clients, 10 groups, LeNet) on a GPU: the time of a round, and as many rounds as fit.

    python benchmarks/e2fl_gpu.py --pack mnist.npz          where the data is (needs the whole package)
    PYTHONPATH=src python benchmarks/e2fl_gpu.py --data mnist.npz --out OUT --methods e2fl,fedavg --minutes 4

The second needs only torch and NumPy, and this file of images. It writes OUT/curve.csv (a line per evaluation) as it
goes, and says how many rounds it shows. --threshold times ways to find a layer's k-th score; --table5 clusters all
clients' first rankings; --small takes the federation of 100 clients, for a trial on a CPU.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import equifed
from equifed import partition, randomness, tree
from equifed.experiments.e2fl import settings as e2fl
from equifed.federation import Federation, Rows, RowSets
from equifed.methods import E2FL, FRL, IFCA, QFFL, FedAvg
from equifed.methods.e2fl import BY_CLIENT, rank_clusters
from equifed.metrics.clients import client_equality, group_equity
from equifed.simulation import Simulation
from equifed.simulator import Evaluator, Step, make_tables


def pack(path: Path) -> None:
    """The pixels and digits of MNIST, without pandas: 11 MB."""
    from equifed.data import fetch_mnist

    frame = fetch_mnist().frame
    pixels = [name for name in frame.columns if name.startswith("pixel_")]
    arrays = {}
    for half, part in frame.groupby("split"):
        arrays[f"{half}_x"] = part[pixels].to_numpy(np.uint8).reshape(-1, 1, 28, 28)
        arrays[f"{half}_y"] = part["digit"].to_numpy(np.int64)
    np.savez_compressed(path, **arrays)
    print(f"{path.name}: {path.stat().st_size / 2**20:.1f} MiB")


def federation(path: Path, size: e2fl.Size, seed: int) -> Federation:
    """What `equifed.load("mnist", partition=RotationGroups(...))` gives, from the packed file."""
    # by its path: the package of all data sets needs pandas
    where = Path(equifed.__file__).parent / "data" / "images.py"
    spec = importlib.util.spec_from_file_location("images", where)
    assert spec is not None
    assert spec.loader is not None
    rotate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rotate)
    arrays = np.load(path)
    train_x, test_x = (arrays[f"{half}_x"].astype(np.float32) / 255 for half in ("train", "test"))
    train_y, test_y = (arrays[f"{half}_y"] for half in ("train", "test"))
    counts = size.clients_per_group
    rows = partition.base.Rows(train_y, np.zeros_like(train_y))
    deal = partition.RotationGroups(counts)(rows, randomness.generator(seed, "partition"))
    groups = np.repeat(np.arange(len(counts)), counts)
    images, labels, codes, held, stop = [], [], [], [], 0
    for g in range(len(counts)):
        angle = 360 / len(counts) * g
        members = [deal.rows[k] for k in np.flatnonzero(groups == g)]
        for own in members:
            held.append(stop + np.arange(len(own)))
            stop += len(own)
        mine = np.concatenate([*members, np.zeros(0, np.int64)]).astype(np.int64)
        images.append(rotate.rotate_images(train_x[mine], angle))
        labels.append(train_y[mine])
        codes.append(np.full(len(mine), g))
    first = stop
    for g in range(len(counts)):
        images.append(rotate.rotate_images(test_x, 360 / len(counts) * g))
        labels.append(test_y)
        codes.append(np.full(len(test_y), g))
    tests = np.arange(first, first + len(counts) * len(test_y))
    return Federation(
        rows=Rows(np.concatenate(images), np.concatenate(labels), np.concatenate(codes)),
        train=RowSets.of(held),
        validation=tests[:0],
        test=tests[:0],
        client_test=RowSets(tests, groups * len(test_y), (groups + 1) * len(test_y)),
        ids=deal.ids,
        classes=tuple(map(str, range(10))),
        groups=tuple(f"{360 / len(counts) * g:g} degrees" for g in range(len(counts))),
        client_groups=groups,
        name="mnist",
        seed=seed,
    )


def summaries(simulation: Simulation, evaluator: Evaluator, step: Step) -> dict[str, float]:
    """Equity and equality in percent."""
    with torch.no_grad():
        counts = evaluator.score(step.state, 0)["clients"].counts.sum(1)  # [N, C, C]
    accuracy = 100 * np.trace(counts, axis1=1, axis2=2) / counts.sum((1, 2))
    groups = simulation.job.runs[0].federation.client_groups
    found = {f"equity_{name}": value for name, value in group_equity(accuracy, groups).items()}
    return found | {f"equality_{name}": value for name, value in client_equality(accuracy).items()}


def curve(
    label: str, fed: Federation, size: e2fl.Size, most: int, minutes: float, every: int, write: Callable[..., None]
) -> None:
    """Rounds until there are enough or the time is over; evaluated by hand, so that it can stop anywhere."""
    groups = len(size.clients_per_group)
    methods = {"e2fl": E2FL(), "fedavg": FedAvg(), "q-ffl": QFFL(0.1), "frl": FRL(), "ifca": IFCA(groups, known=True),
               "lowest-loss": E2FL(groups="lowest-loss", num_groups=groups)}  # fmt: skip
    simulation = e2fl.simulation(methods[label], [fed], size, most, 10**9)
    tables = make_tables(simulation.job)
    views = {label: Evaluator(simulation.job, tables)}
    if label == "e2fl":
        views["e2fl-gm"] = Evaluator(e2fl.with_global_ranking(simulation.job), tables)
    begin, spent = time.perf_counter(), []
    for step in simulation.rounds():
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        spent.append(step.seconds)
        late = time.perf_counter() - begin > 60 * minutes
        if not (late or step.round % every == 0 or step.round == most):
            continue
        # the first rounds prepare the steps
        usual = float(np.median(spent[2:])) if len(spent) > 2 else float(np.mean(spent))
        for name, evaluator in views.items():
            values = summaries(simulation, evaluator, step)
            if name == "e2fl" and step.round <= 300:
                server = tree.take(step.state.server, 0)
                for how in BY_CLIENT:
                    found = e2fl.inferred(how, server, fed, simulation.job.task, tables, 0)
                    values[f"finds_{how}"] = 100 * float((found == fed.client_groups).mean())
            if label == "lowest-loss":
                found = step.state.clients.group[0].cpu().numpy()
                values["finds_lowest-loss"] = 100 * e2fl.matched_accuracy(found, fed.client_groups)
            write(name, step.round, usual, values)
        if late:
            print(f"{label}: stopped after {step.round} of {most} rounds", flush=True)
            break
    if torch.cuda.is_available():
        print(f"{label}: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most", flush=True)
        torch.cuda.reset_peak_memory_stats()
    for message in simulation.engine.messages.values():
        print(f"{label}: {message.phase} {message.bytes_up / 2**20:.2f} MiB up, {message.bytes_down / 2**20:.2f} down")


def threshold() -> None:
    """Ways to the k-th largest of a million and a half scores, for 25 lanes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    values = torch.rand(25, 1_605_632, device=device)
    keep = values.shape[1] // 2
    ways = {
        "sort": lambda: values.sort(-1).values[:, keep],
        "kthvalue": lambda: values.kthvalue(values.shape[1] - keep + 1).values,
        "topk": lambda: values.topk(keep, sorted=False).values.amin(-1),
    }
    for name, way in ways.items():
        for _ in range(2):
            if device == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            way()
            if device == "cuda":
                torch.cuda.synchronize()
            spent = time.perf_counter() - begin
        print(f"threshold by {name}: {1000 * spent:.2f} ms", flush=True)


def table5(fed: Federation, size: e2fl.Size) -> None:
    begin = time.perf_counter()
    rankings = e2fl.first_rankings(fed, size, lambda title, simulation: lambda step: None)
    print(f"first rankings: {time.perf_counter() - begin:.1f} s", flush=True)
    truth = fed.client_groups[np.argsort(np.asarray(fed.ids, dtype=str), kind="stable")]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    views = {layer: [leaf] for layer, leaf in zip(size.layers, rankings.values(), strict=True)}
    for layer, leaves in {**views, "ALL": list(rankings.values())}.items():
        there = torch.ones(len(truth), dtype=torch.bool, device=device)
        on_device = {str(i): leaf.to(device) for i, leaf in enumerate(leaves)}
        found = rank_clusters(on_device, there, len(size.clients_per_group)).cpu().numpy()
        print(f"clusters by {layer}: {100 * e2fl.matched_accuracy(found, truth):.2f} % right", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, metavar="FILE", help="write the images to this file, and nothing else")
    parser.add_argument("--data", type=Path, metavar="FILE", help="the file that --pack wrote")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of curve.csv")
    parser.add_argument("--methods", default="", help="of e2fl, fedavg, q-ffl, frl, ifca, lowest-loss")
    parser.add_argument("--rounds", type=int, default=e2fl.ROUNDS)
    parser.add_argument("--minutes", type=float, default=4.0, help="at most, for each method")
    parser.add_argument("--every", type=int, default=50, help="rounds between evaluations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--threshold", action="store_true")
    parser.add_argument("--table5", action="store_true")
    args = parser.parse_args()
    if args.pack:
        pack(args.pack)
        return
    if args.threshold:
        threshold()
    if not (args.methods or args.table5):
        return
    size = e2fl.SIZES["small" if args.small else "full"]
    begin = time.perf_counter()
    fed = federation(args.data, size, args.seed)
    print(f"federation: {time.perf_counter() - begin:.1f} s, {fed.num_clients} clients", flush=True)
    with (args.out / "curve.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "round", "seconds_per_round", "figure", "value"])

        def write(name: str, number: int, seconds: float, values: dict[str, float]) -> None:
            writer.writerows(
                [name, number, f"{seconds:.4f}", figure, f"{value:.4f}"] for figure, value in values.items()
            )
            file.flush()
            shown = ", ".join(f"{figure} {value:.2f}" for figure, value in values.items())
            print(f"{name} {number} ({seconds:.3f} s per round): {shown}", flush=True)

        for label in filter(None, args.methods.split(",")):
            curve(label, fed, size, args.rounds, args.minutes, args.every, write)
    if args.table5:
        table5(fed, size)


if __name__ == "__main__":
    main()
