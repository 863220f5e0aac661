"""The benchmark on the command line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from equifed.cli.console import near, print_json, say, show
from equifed.cli.options import Sharing
from equifed.cli.progress import Board
from equifed.cli.runs import AGAIN
from equifed.cli.tables import plain_table
from equifed.errors import ConfigError, RunError, check_number
from equifed.methods import make
from equifed.signals import exit_code
from equifed_papers.benchmark.page import HEADLINE, publish, rankings, write_page
from equifed_papers.benchmark.plan import KINDS, asked, known_methods, tier_of
from equifed_papers.benchmark.ranks import by_dataset
from equifed_papers.benchmark.records import ROWS
from equifed_papers.benchmark.run import PAGE, Asked, carry_out, merge
from equifed_papers.benchmark.scores import SCORES, scored
from equifed_papers.cli.options import BenchmarkOptions

if TYPE_CHECKING:
    import pandas as pd


def benchmark(options: BenchmarkOptions, sharing: Sharing) -> None:
    """Run what is missing, then write the page."""
    tier = tier_of(options.tier)
    names = asked(options.datasets, list(tier.datasets), "data set of this tier")
    known = list(dict.fromkeys(name for each in tier.datasets.values() for name in each))
    partitions = asked(options.partitions, known, "partition of this tier")
    datasets = {name: kept for name in names if (kept := [p for p in tier.datasets[name] if p in partitions])}
    if not datasets:
        raise ConfigError("None of these data sets has one of these partitions in this tier.")
    methods = _methods(options)
    seeds = tier.seeds if options.seeds is None else options.seeds
    check_number("seeds", seeds, whole=True, low=1)
    rows = merge(options.merge or (), options.folder)
    failed: list[str] = []
    if not options.only_page:
        wanted = Asked(tier, datasets, methods, seeds)
        try:
            with Board() as board:
                rows, failed = carry_out(wanted, options.folder, sharing.cluster(), options.keep_runs, say, board)
        except KeyboardInterrupt as stopped:
            say(f"Interrupted. {AGAIN}")
            raise typer.Exit(exit_code(stopped)) from None
    if not (rows["tier"] == tier.name).any():
        raise ConfigError(f"{options.folder / ROWS} has no rows of the tier {tier.name}. Leave out --only-page.")
    page = options.folder / PAGE
    write_page(rows, page, tier.name)
    published = publish(rows, options.publish, tier.name) if options.publish else []
    scores = scored(rows[rows["tier"] == tier.name])
    if options.json:
        ranks = {
            name: each.table.reset_index(names="method").to_dict("records") for name, each in rankings(scores).items()
        }
        found = {"rows": len(rows), "page": str(page), "failed": failed, "ranks": ranks}
        print_json(found | {"scores": scores.to_dict("records")})
    else:
        _show(scores)
    say(f"Rows: {near(options.folder / ROWS)}; page: {near(page)}")
    for path in published:
        say(f"Published: {near(path)}")
    if failed:
        raise RunError(f"{len(failed)} computations failed, the first: {failed[0]}")


def _methods(options: BenchmarkOptions) -> Sequence[str]:
    if options.add:
        if options.methods:
            raise ConfigError("--add runs only what it names: leave out --methods.")
        for name in options.add:
            make(name)
        return list(dict.fromkeys(options.add))
    return asked(options.methods, known_methods(), "method of the benchmark (--add takes your own)")


def _cell(value: float, form: str) -> str:
    return "" if math.isnan(value) else f"{value:{form}}"


def _show(scores: pd.DataFrame) -> None:
    """Means over the data sets of two classes, the methods by their average rank in the first score."""
    binary = scores[scores["data"].map(KINDS) == "binary"]
    of = scores if binary.empty else binary
    means = {name: by_dataset(of, name).mean(skipna=False) for name in SCORES if (of["score"] == name).any()}
    found = rankings(scores).get(HEADLINE)
    first = next(iter(means))
    order = means[first].sort_values(ascending=False).index if found is None else [*found.table.index, *found.partial]
    table = plain_table("method", "rank", *(SCORES[name].title for name in means))
    for method in order:
        rank = found.table["rank"].get(method, math.nan) if found else math.nan
        cells = [
            _cell(values.get(method, math.nan), ",.0f" if name == "bytes" else ".3f") for name, values in means.items()
        ]
        table.add_row(str(method), _cell(rank, ".1f"), *cells)
    show(table)
    if found is not None and found.partial:
        say(f"Without means and ranks, since they lack a federation that others have: {', '.join(found.partial)}.")
    others = sorted({*scores["data"]} - {*of["data"]})
    if others:
        say(f"Means over data sets of two classes; {' and '.join(others)}: see the page.")
