"""E2FL's Tables 1 and 5 and Figure 4."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import typer

from equifed.cli.console import print_json, say, show
from equifed.cli.reproduce import Wanted, figure, watching, write_pages
from equifed.cli.tables import plain_table
from equifed.errors import ConfigError
from equifed.experiments.e2fl import settings as e2fl
from equifed.experiments.e2fl.settings import Point, Row
from equifed.simulator import Result

OPTIONS: dict[str, tuple[str, ...]] = {
    "e2fl/table1": ("datasets", "methods", "seeds", "rounds"),
    "e2fl/table5": ("datasets", "seeds"),
    "e2fl/figure4": ("datasets", "seeds", "rounds"),
}
USUAL = {"small": (3, 100), "full": (e2fl.SEEDS, e2fl.ROUNDS)}
"""Seeds and rounds by size."""
FIGURE_ROUNDS = {"small": 50, "full": 300}
QUICK = (1, 2)
"""Seeds and rounds of --quick."""
NAMES = {"mean": "avg", "worst10": "worst 10 %", "best10": "best 10 %", "variance": "variance"}


def reproduce(name: str, wanted: Wanted, runs: Path | None, json: bool) -> None:
    sizes = wanted.datasets or ["small"]
    if len(sizes) > 1:
        raise ConfigError("E2FL's experiments take one size at a time: --datasets small, or --datasets full.")
    (size,) = sizes
    e2fl.size_of(size)
    seeds, rounds = USUAL[size]
    if name == "e2fl/figure4":
        rounds = FIGURE_ROUNDS[size]
    seeds, rounds = wanted.seeds or seeds, wanted.rounds or rounds
    if wanted.quick:
        seeds, rounds = min(seeds, QUICK[0]), min(rounds, QUICK[1])
    if name == "e2fl/table1":
        _table1(size, wanted, seeds, rounds, json)
    elif name == "e2fl/table5":
        _table5(size, seeds, json)
    else:
        _figure4(size, seeds, rounds, json)


def _table1(size: str, wanted: Wanted, seeds: int, rounds: int, json: bool) -> None:
    rows: list[Row] = []
    results: list[Result] = []
    try:
        with watching() as watch:
            for made, result in e2fl.table1(size, wanted.methods, seeds, rounds, watch):
                rows += made
                results.append(result)
                for row in made:
                    say(_line(row))
    except KeyboardInterrupt:
        say(f"Interrupted after {len(rows)} rows.")
        raise typer.Exit(130) from None
    pages = write_pages({("fair-mnist-rotate", size): results}, wanted.pages, "E2FL")
    if json:
        print_json({"rows": [row._asdict() for row in rows], "pages": pages})
        return
    for what, title in (("group_equity", "equity, over groups"), ("client_equality", "equality, over clients")):
        beside = size == "full"
        table = plain_table(
            "method", *NAMES.values(), numbers=range(1, 5),
            title=f"FairMNISTRotate ({size}), {title}: ours" + (" (published)" if beside else ""),
        )  # fmt: skip
        for row in rows:
            table.add_row(row.method, *(_cell(row, f"{what}.{part}", beside) for part in NAMES))
        show(table, "")
    cost = plain_table(
        "method", "rounds", "up (MiB)", "down (MiB)", "in their group", "s per round", numbers=range(1, 6),
        title="Bytes per client and round",
    )  # fmt: skip
    for row in rows:
        found = "" if math.isnan(row.found) else f"{100 * row.found:.1f} %"
        cost.add_row(
            row.method,
            str(row.rounds),
            f"{row.mib_up:.2f}",
            f"{row.mib_down:.2f}",
            found,
            f"{row.seconds_per_round:.2f}",
        )
    show(
        cost,
        "",
        f"Percent (variances in percent squared), mean±std over {seeds} seeds after {rounds} rounds; the paper has "
        f"{e2fl.ROUNDS}, and q-FFL twice as many as the others. E2FL (GM): the same run with the global ranking.",
    )


def _line(row: Row) -> str:
    means = row.means
    return (
        f"{row.method}: groups {means['group_equity.mean']:.2f} (variance {means['group_equity.variance']:.2f}), "
        f"clients {means['client_equality.mean']:.2f} (variance {means['client_equality.variance']:.2f}), "
        f"{row.rounds} rounds"
    )


def _cell(row: Row, name: str, beside: bool) -> str:
    ours = figure(row.means[name], row.deviations[name])
    return ours + (f" ({row.published[name]:.2f})" if beside and name in row.published else "")


def _table5(size: str, seeds: int, json: bool) -> None:
    with watching() as watch:
        rows = e2fl.table5(size, seeds, watch)
    if json:
        print_json({"rows": [row._asdict() for row in rows]})
        return
    table = plain_table(
        "layer", "edges", "right group (%)", "published", numbers=range(1, 4),
        title=f"FairMNISTRotate ({size}): clusters of the clients' first rankings",
    )  # fmt: skip
    for row in rows:
        beside = "" if math.isnan(row.published) else f"{row.published:.2f}"
        table.add_row(row.layer, str(row.edges), figure(row.mean, row.deviation), beside)
    show(table, "", f"Mean±std over {seeds} seeds; clusters are named after groups so that most clients are right.")


def _figure4(size: str, seeds: int, rounds: int, json: bool) -> None:
    every = max(rounds // 10, 1)
    with watching() as watch:
        points = list(e2fl.figure4(size, seeds, rounds, every, watch))
    if json:
        print_json({"points": [point._asdict() for point in points]})
        return
    ways = list(dict.fromkeys(point.how for point in points))
    table = plain_table(
        "round",
        *ways,
        numbers=range(len(ways) + 1),
        title=f"FairMNISTRotate ({size}): clients that find their group (%)",
    )
    for number in dict.fromkeys(point.round for point in points):
        table.add_row(str(number), *(_mean([p for p in points if (p.round, p.how) == (number, how)]) for how in ways))
    show(table, "", f"Mean over {seeds} seeds. The groups' masks are those of E2FL with known groups.")


def _mean(points: Sequence[Point]) -> str:
    return f"{100 * sum(point.accuracy for point in points) / len(points):.1f}"
