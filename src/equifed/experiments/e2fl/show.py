"""E2FL's Tables 1 and 5 and Figure 4."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from equifed.errors import ConfigError
from equifed.experiments import Request
from equifed.experiments.base import Experiment, Part, Table, Watch, plus_minus
from equifed.experiments.e2fl import settings as e2fl
from equifed.experiments.e2fl.settings import Point, Row

TABLE_AMOUNT = {"small": (3, 100), "full": (e2fl.SEEDS, e2fl.ROUNDS)}
"""Seeds and rounds by size."""
FIGURE_AMOUNT = {"small": (3, 50), "full": (e2fl.SEEDS, 300)}
COLUMNS = {"mean": "avg", "worst10": "worst 10 %", "best10": "best 10 %", "variance": "variance"}


def _scope(request: Request, amount: dict[str, tuple[int, int]]) -> tuple[str, int, Any]:
    """Size, seeds and rounds."""
    sizes = request.datasets or ["small"]
    if len(sizes) > 1:
        raise ConfigError("E2FL's experiments take one size at a time: --datasets small, or --datasets full.")
    e2fl.size_of(sizes[0])
    return sizes[0], *request.amount(*amount[sizes[0]])


def table1(request: Request, watch: Watch) -> Iterator[Part]:
    size, seeds, rounds = _scope(request, TABLE_AMOUNT)
    e2fl.chosen(e2fl.size_of(size), request.methods)
    rows: list[Row] = []
    for new, result in e2fl.table1(size, request.methods, seeds, rounds, watch):
        rows += new
        yield Part(new, [_line(row) for row in new], results=[result], page=("fair-mnist-rotate", size))
    published = size == "full"
    title = f"FairMNISTRotate ({size}), {{}}: ours" + (" (published)" if published else "")
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
    size, seeds, _ = _scope(request, TABLE_AMOUNT)
    rows = e2fl.table5(size, seeds, watch)
    table = Table(
        f"FairMNISTRotate ({size}): clusters of the clients' first rankings",
        ("layer", "edges", "right group (%)", "published"),
        [
            [row.layer, str(row.edges), plus_minus(row.mean, row.deviation),
             "" if np.isnan(row.published) else f"{row.published:.2f}"]
            for row in rows
        ],
    )  # fmt: skip
    note = f"Mean±std over {seeds} seeds; clusters are named after groups so that most clients are right."
    yield Part(rows, shown=[table, note])


def figure4(request: Request, watch: Watch) -> Iterator[Part]:
    size, seeds, rounds = _scope(request, FIGURE_AMOUNT)
    points = list(e2fl.figure4(size, seeds, rounds, max(rounds // 10, 1), watch))
    ways = list(dict.fromkeys(point.how for point in points))
    rows = [
        [str(number), *(_mean([p for p in points if (p.round, p.how) == (number, how)]) for how in ways)]
        for number in dict.fromkeys(point.round for point in points)
    ]
    table = Table(f"FairMNISTRotate ({size}): clients that find their group (%)", ("round", *ways), rows, left=())
    note = f"Mean over {seeds} seeds. The groups' masks are those of E2FL with known groups."
    yield Part(points, shown=[table, note])


def _mean(points: Sequence[Point]) -> str:
    return f"{100 * sum(point.accuracy for point in points) / len(points):.1f}"


EXPERIMENTS = {
    "table1": Experiment(table1, "rows"),
    "table5": Experiment(table5, "rows"),
    "figure4": Experiment(figure4),
}
