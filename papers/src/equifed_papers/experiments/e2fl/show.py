"""E2FL's tables and Figure 4."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from equifed import tree
from equifed.errors import ConfigError
from equifed.methods import E2FL
from equifed.methods.e2fl import GROUPINGS
from equifed.metrics.seeds import moments
from equifed.simulator import make_tables
from equifed_papers.experiments import Request
from equifed_papers.experiments.base import (
    NAN,
    Cell,
    Experiment,
    Part,
    Table,
    Watch,
    arms_named,
    carry_out,
    plus_minus,
    requested,
    row_line,
    table_of_cells,
)
from equifed_papers.experiments.e2fl import adult, femnist
from equifed_papers.experiments.e2fl import settings as e2fl
from equifed_papers.experiments.e2fl.settings import Row

TABLE_AMOUNT = {"small": (3, 100), "full": (e2fl.SEEDS, e2fl.ROUNDS)}
"""Seeds and rounds by size."""
CLUSTERING_AMOUNT = {"small": (3, 1), "full": (e2fl.CLUSTERING_SEEDS, 1)}
FIGURE_AMOUNT = {"small": (3, 50), "full": (e2fl.SEEDS, 300)}
ADULT_AMOUNT = dict.fromkeys(adult.WIDTHS, (e2fl.SEEDS, adult.ROUNDS))
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
    arms, full = e2fl.chosen(size, request.methods), e2fl.SIZES["full"]
    paper = {arm.label: arm.method for arm in e2fl.arms(full)}
    feds = e2fl.federations(size, range(seeds))
    rows: list[Row] = []
    for arm in arms:
        count = round(rounds * arm.round_factor)
        sim = e2fl.simulation(arm.method, feds, size, count, count)
        step = carry_out(sim, f"FairMNISTRotate ({name}) {arm.label}", watch)
        result = sim.result()
        new = e2fl.rows(arm, sim, step, result)
        rows += new
        cells = [cell for row in new for cell in row.cells] if name == "full" else []
        if arm.label in e2fl.PAPER_ROWS:
            cells += e2fl.byte_cells(arm.label, paper[arm.label], 1, e2fl.DATASET, 10, full.groups)
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
    name, seeds, _ = _scope(request, CLUSTERING_AMOUNT)
    size = e2fl.SIZES[name]
    theirs = e2fl.published_figures(5) if name == "full" else {}
    clusterings = [e2fl.clustered(fed, size, watch) for fed in e2fl.federations(size, range(seeds))]
    rows, lines = [], []
    cells = e2fl.edge_cells()
    for layer, (edges, _) in clusterings[0].items():
        accuracies = {"accuracy": [clustering[layer][1] for clustering in clusterings]}
        known = theirs.get((layer, "accuracy"), NAN)
        both = accuracies, {"accuracy": (known, NAN)}
        cells += Cell.row(*both, their_runs=e2fl.CLUSTERING_SEEDS, dataset=e2fl.DATASET, method=layer)
        mean, deviation, _ = moments(accuracies["accuracy"])
        rows.append({"layer": layer, "edges": edges, "mean": mean, "deviation": deviation, "published": known})
        lines.append([layer, str(edges), plus_minus(mean, deviation), "" if np.isnan(known) else f"{known:.2f}"])
    title = f"FairMNISTRotate ({name}): clusters of the clients' first rankings"
    table = Table(title, ("layer", "edges", "right group (%)", "published"), lines)
    note = (
        f"Mean±std over {seeds} seeds (the paper: {e2fl.CLUSTERING_SEEDS}); clusters are named after groups so that "
        "most clients are right."
    )
    yield Part(rows, cells=cells, shown=[table, note])


def figure4(request: Request, watch: Watch) -> Iterator[Part]:
    """The groups' masks are those of E2FL with known groups, so that there is a right answer; every client looks for
    its group among them in each way."""
    name, seeds, rounds = _scope(request, FIGURE_AMOUNT)
    size, every = e2fl.SIZES[name], max(rounds // 10, 1)
    feds = e2fl.federations(size, range(seeds))
    sim = e2fl.simulation(E2FL(), feds, size, rounds, rounds)
    tables, ways = make_tables(sim.job), {how: way.infer for how, way in GROUPINGS.items() if way.infer}
    points = []
    for step in watch(f"FairMNISTRotate ({name}) E2FL", sim, whole=True):
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


# -- tables 3 and 4: Adult ---------------------------------------------------------------------------------------------


def table3(request: Request, watch: Watch) -> Iterator[Part]:
    seeds, _ = request.amount(e2fl.SEEDS, None)
    cells = adult.share_cells(adult.federations("1", range(seeds)))
    note = f"Percent, ours (published), mean±std over {seeds} random splits; the paper has one. {_MARKS}"
    yield Part(cells, shown=[table_of_cells("Adult: men (A = 1), women, and high incomes (Y = 1)", cells), note])


def table4(request: Request, watch: Watch) -> Iterator[Part]:
    name, seeds, rounds = _scope(request, ADULT_AMOUNT)
    alphas = requested(request, "alpha", adult.ALPHAS, adult.ALPHAS)
    arms, width = arms_named(adult.ARMS, request.methods), adult.QUICK_WIDTH if request.quick else adult.WIDTHS[name]
    if request.select not in (None, "validation"):
        raise ConfigError(f"--select takes only validation, got {request.select!r}.", key="--select")
    tables = []
    for alpha in alphas:
        feds = adult.federations(alpha, range(seeds))
        cells: list[adult.AdultCell] = []
        for arm in arms:
            what, results = f"alpha {alpha} {arm.label}", []
            for rate in adult.RATES if request.select else [arm.rate]:
                sim = adult.simulation(arm.method, rate, feds, width, rounds)
                carry_out(sim, f"Adult, {what}", watch)
                results.append(sim.result())
                accuracy = 100 * adult.validation_accuracy(results[-1])
                yield Part(lines=[f"{what}, rate {rate:g}: accuracy {accuracy:.2f} on validation rows"])
            result = max(results, key=adult.validation_accuracy)
            row = adult.cells(alpha, width, arm.label, result)
            cells += row
            line = f"{what}: " + ", ".join(f"{cell.metric} {_gap(cell)}" for cell in row)
            yield Part(row, [line], results=[result], page=("adult", f"alpha {alpha}"))
        title = f"Adult, alpha {alpha}, {width} units in both hidden layers: ours (published)"
        tables.append(table_of_cells(title, cells, _gap, rate=lambda cell: f"{cell.rate:g}"))
    note = (
        f"Accuracy in percent; EOD: true positive rate of women less men's; DI: the same of F1. Mean±std over {seeds} "
        f"seeds after {rounds} rounds (the paper: {e2fl.SEEDS} seeds, {adult.ROUNDS} rounds). {_MARKS}"
    )
    yield Part(shown=[*tables, note])


def _gap(cell: adult.AdultCell) -> str:
    digits = 2 if cell.metric == "accuracy" else 4
    theirs = "" if np.isnan(cell.published_mean) else f" ({cell.published_mean:.{digits}f})"
    return plus_minus(cell.mean, cell.std, digits) + theirs + cell.mark


# -- tables 2 and 6: FEMNIST -------------------------------------------------------------------------------------------


def table2(request: Request, watch: Watch) -> Iterator[Part]:
    name, seeds, rounds = _scope(request, TABLE_AMOUNT)
    size, arms = e2fl.SIZES[name], arms_named(femnist.ARMS, request.methods)
    cells = [cell for arm in arms for cell in femnist.byte_cells(arm)]
    yield Part(tuple(cells))  # for which FEMNIST is not needed
    feds = femnist.federations(range(seeds))
    for arm in arms:
        sim = femnist.simulation(arm.method, feds, size, round(rounds * arm.round_factor))
        carry_out(sim, f"FEMNIST ({name}) {arm.label}", watch)
        result = sim.result()
        row = femnist.cells(arm.label, result, published=name == "full")
        cells += row
        yield Part(row, [row_line(row, "FEMNIST")], results=[result], page=("femnist", name))
    yield Part(shown=[_writers_table(f"FEMNIST ({name})", cells), _writers_note(feds[0].num_clients, seeds, rounds)])


def table6(request: Request, watch: Watch) -> Iterator[Part]:
    name, seeds, rounds = _scope(request, TABLE_AMOUNT)
    size, feds = e2fl.SIZES[name], femnist.federations(range(seeds))
    tables = []
    for clusters in femnist.CLUSTERS:
        sim = femnist.simulation(E2FL(groups="rank-clustering", num_groups=clusters), feds, size, rounds)
        step = carry_out(sim, f"FEMNIST ({name}) {clusters} clusters", watch)
        result = sim.result()
        row = femnist.cluster_cells(clusters, sim, step, result, published=name == "full")
        tables.append(_writers_table(f"FEMNIST ({name}), {clusters} clusters", row))
        yield Part(
            row, [row_line(row, f"FEMNIST, {clusters} clusters")], results=[result], page=("femnist", "clusters")
        )
    yield Part(shown=[*tables, _writers_note(feds[0].num_clients, seeds, rounds)])


def _writers_table(title: str, cells: Sequence[Cell]) -> Table:
    table = table_of_cells(f"{title}: ours (published)", cells)
    names = {f"{what}.{part}": f"{short}: {word}" for what, short in (("group_equity", "groups"),
             ("client_equality", "writers")) for part, word in COLUMNS.items()}  # fmt: skip
    return table._replace(columns=[names.get(name, name) for name in table.columns])


def _writers_note(writers: int, seeds: int, rounds: int) -> str:
    return (
        f"{writers} writers. Percent (variances in percent squared), mean±std over {seeds} seeds after {rounds} "
        f"rounds, q-FFL after twice as many; the paper has {e2fl.SEEDS} and {e2fl.ROUNDS}. MiB per client and round, "
        f"of the paper's network. {_MARKS}"
    )


_MARKS = "= and ≠: whether both agree within noise."
_SMALL, _FULL = [Request(datasets=["small"])], [Request(datasets=["full"])]

EXPERIMENTS = {
    "table1": Experiment(table1, "rows", jobs=_SMALL, gpu_jobs=_FULL),
    "table2": Experiment(table2, "cells", kept=Cell, jobs=_SMALL, gpu_jobs=_FULL),
    "table3": Experiment(table3, "cells", kept=Cell),
    "table4": Experiment(
        table4,
        "cells",
        kept=adult.AdultCell,
        jobs=[Request(datasets=["small"], alpha=[alpha]) for alpha in adult.ALPHAS],
        gpu_jobs=[Request(datasets=["full"], alpha=[alpha]) for alpha in adult.ALPHAS],
    ),
    "table5": Experiment(table5, "rows", jobs=_SMALL, gpu_jobs=_FULL),
    "table6": Experiment(table6, "cells", kept=femnist.ClusterCell, jobs=_SMALL, gpu_jobs=_FULL),
    "figure4": Experiment(figure4, jobs=_SMALL, gpu_jobs=_FULL),
}
