"""E2FL's Tables 1 and 5 and Figure 4."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from equifed import tree
from equifed.errors import ConfigError
from equifed.experiments import Request
from equifed.experiments.base import NAN, Cell, Experiment, Part, Table, Watch, carry_out, plus_minus, requested
from equifed.experiments.e2fl import settings as e2fl
from equifed.experiments.e2fl.settings import Row
from equifed.methods import E2FL
from equifed.methods.e2fl import GROUPINGS
from equifed.metrics.seeds import moments
from equifed.simulator import make_tables

TABLE_AMOUNT = {"small": (3, 100), "full": (e2fl.SEEDS, e2fl.ROUNDS)}
"""Seeds and rounds by size."""
FIGURE_AMOUNT = {"small": (3, 50), "full": (e2fl.SEEDS, 300)}
COLUMNS = {"mean": "avg", "worst10": "worst 10 %", "best10": "best 10 %", "variance": "variance"}


def _scope(request: Request, amount: dict[str, tuple[int, int]]) -> tuple[str, int, Any]:
    """Size, seeds and rounds."""
    sizes = requested(request, "datasets", ["small"], e2fl.SIZES)
    if len(sizes) > 1:
        raise ConfigError("E2FL's experiments take one size at a time: --datasets small, or --datasets full.")
    return sizes[0], *request.amount(*amount[sizes[0]])


def table1(request: Request, watch: Watch) -> Iterator[Part]:
    name, seeds, rounds = _scope(request, TABLE_AMOUNT)
    size = e2fl.SIZES[name]
    arms = e2fl.chosen(size, request.methods)
    feds = e2fl.federations(size, range(seeds))
    rows: list[Row] = []
    for arm in arms:
        count = rounds * arm.round_factor
        sim = e2fl.simulation(arm.method, feds, size, count, count)
        step = carry_out(sim, f"FairMNISTRotate ({name}) {arm.label}", watch)
        result = sim.result()
        new = e2fl.rows(arm, sim, step, result)
        rows += new
        cells = [cell for row in new for cell in row.cells] if name == "full" else []
        lines = [_line(row) for row in new]
        yield Part(new, lines, cells=cells, results=[result], page=("fair-mnist-rotate", name))
    published = name == "full"
    title = f"FairMNISTRotate ({name}), {{}}: ours" + (" (published)" if published else "")
    tables = [
        Table(
            title.format(what),
            ("method", *COLUMNS.values()),
            [[row.method, *(_cell(row, f"{metric}.{part}", published) for part in COLUMNS)] for row in rows],
        )
        for metric, what in (("group_equity", "equity, over groups"), ("client_equality", "equality, over clients"))
    ]
    cost = Table(
        "Bytes per client and round",
        # MiB, as in the paper
        ("method", "rounds", "up (MiB)", "down (MiB)", "in their group", "s per round"),
        [
            [
                row.method, str(row.rounds), f"{row.mib_up:.2f}", f"{row.mib_down:.2f}",
                "" if np.isnan(row.group_accuracy) else f"{100 * row.group_accuracy:.1f} %",
                f"{row.seconds_per_round:.2f}",
            ]
            for row in rows
        ],
    )  # fmt: skip
    note = (
        f"Percent (variances in percent squared), mean±std over {seeds} seeds after {rounds} rounds; the paper has "
        f"{e2fl.ROUNDS}, and q-FFL twice as many as the others. E2FL (GM): the same run with the global ranking."
    )
    yield Part(shown=[*tables, cost, note])


def _line(row: Row) -> str:
    means = row.means
    return (
        f"{row.method}: groups {means['group_equity.mean']:.2f} (variance {means['group_equity.variance']:.2f}), "
        f"clients {means['client_equality.mean']:.2f} (variance {means['client_equality.variance']:.2f}), "
        f"{row.rounds} rounds"
    )


def _cell(row: Row, name: str, published: bool) -> str:
    ours = plus_minus(row.means[name], row.deviations[name])
    return ours + (f" ({row.published[name]:.2f})" if published and name in row.published else "")


def table5(request: Request, watch: Watch) -> Iterator[Part]:
    """Clusters from one layer's rankings, and from all layers'."""
    name, seeds, _ = _scope(request, TABLE_AMOUNT)
    size = e2fl.SIZES[name]
    theirs = e2fl.published_figures(5) if name == "full" else {}
    clusterings = [e2fl.clustered(fed, size, watch) for fed in e2fl.federations(size, range(seeds))]
    rows, lines = [], []
    cells: list[Cell] = []
    for layer, (edges, _) in clusterings[0].items():
        accuracies = {"accuracy": [clustering[layer][1] for clustering in clusterings]}
        published = {"accuracy": (theirs.get((layer, "accuracy"), NAN), NAN)}
        cells += Cell.row(accuracies, published, their_runs=e2fl.SEEDS, dataset="fair-mnist-rotate", method=layer)
        mean, deviation, _ = moments(accuracies["accuracy"])
        known = theirs.get((layer, "accuracy"), NAN)
        rows.append({"layer": layer, "edges": edges, "mean": mean, "deviation": deviation, "published": known})
        lines.append([layer, str(edges), plus_minus(mean, deviation), "" if np.isnan(known) else f"{known:.2f}"])
    title = f"FairMNISTRotate ({name}): clusters of the clients' first rankings"
    table = Table(title, ("layer", "edges", "right group (%)", "published"), lines)
    note = f"Mean±std over {seeds} seeds; clusters are named after groups so that most clients are right."
    yield Part(rows, cells=cells, shown=[table, note])


def figure4(request: Request, watch: Watch) -> Iterator[Part]:
    """The groups' masks are those of E2FL with known groups, so that there is a right answer; every client looks for
    its group among them in each way."""
    name, seeds, rounds = _scope(request, FIGURE_AMOUNT)
    size, every = e2fl.SIZES[name], max(rounds // 10, 1)
    feds = e2fl.federations(size, range(seeds))
    sim = e2fl.simulation(E2FL(), feds, size, rounds, rounds)
    watch_step = watch(f"FairMNISTRotate ({name}) E2FL", sim)
    tables, ways = make_tables(sim.job), {how: way.infer for how, way in GROUPINGS.items() if way.infer}
    points = []
    for step in sim.rounds():
        watch_step(step)
        if step.round % every and step.round != rounds:
            continue
        for run, fed in enumerate(feds):
            server = tree.take(step.state.server, run)
            for how, infer in ways.items():
                groups = e2fl.inferred(infer, server, fed, sim.job.task, tables, run)
                share = float((groups == fed.client_groups).mean())
                points.append({"seed": fed.seed, "round": step.round, "how": how, "accuracy": share})
    means = pd.DataFrame(points).pivot_table(index="round", columns="how", values="accuracy")
    rows = [[str(number), *(f"{100 * line[how]:.1f}" for how in ways)] for number, line in means.iterrows()]
    table = Table(f"FairMNISTRotate ({name}): clients that find their group (%)", ("round", *ways), rows, left=())
    note = f"Mean over {seeds} seeds. The groups' masks are those of E2FL with known groups."
    yield Part(points, shown=[table, note])


_SMALL, _FULL = [Request(datasets=["small"])], [Request(datasets=["full"])]

EXPERIMENTS = {
    "table1": Experiment(table1, "rows", jobs=_SMALL, gpu_jobs=_FULL),
    "table5": Experiment(table5, "rows", jobs=_SMALL, gpu_jobs=_FULL),
    "figure4": Experiment(figure4, jobs=_SMALL, gpu_jobs=_FULL),
}
