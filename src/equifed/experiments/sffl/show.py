"""SFFL's table and figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from equifed.cli.console import near, print_json, say, show
from equifed.cli.reproduce import Wanted, figure, kept, watching, write_pages
from equifed.cli.tables import plain_table
from equifed.errors import ConfigError
from equifed.experiments.sffl import settings as sffl
from equifed.experiments.sffl.settings import Arm, Row
from equifed.simulator import Result

GRIDS = ("sffl/table1", "sffl/figure3", "sffl/figure4", "sffl/figure5")
"""Experiments whose outcome is a table of rows."""
OPTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(GRIDS, ("datasets", "alpha", "methods", "seeds", "rounds")),
    "sffl/figure2": ("datasets", "alpha"),
    "sffl/figure6": ("datasets", "alpha", "seeds", "rounds"),
    "sffl/figure7": ("datasets", "alpha", "rounds"),
}
QUICK = (2, 3)
"""Seeds and rounds of --quick."""
COMPONENTS, CLIENTS = (1, 2, 3, 4), (10, 20, 30, 40, 50)


def reproduce(name: str, wanted: Wanted, runs: Path | None, json: bool) -> None:
    seeds, rounds = wanted.seeds or sffl.SEEDS, wanted.rounds or sffl.ROUNDS
    if wanted.quick:
        seeds, rounds = min(seeds, QUICK[0]), min(rounds, QUICK[1])
    usual = sffl.ALPHAS if name in ("sffl/table1", "sffl/figure2", "sffl/figure5") else (0.1,)
    alphas = [_alpha(text) for text in wanted.alpha] if wanted.alpha else list(usual)
    data = {"sffl/table1": ["acs_income", "acs_employment"], "sffl/figure5": ["acs_employment"]}
    datasets = wanted.datasets or data.get(name, ["acs_income"])
    if name in GRIDS:
        _grid(name, wanted, datasets, alphas, seeds, rounds, runs, json)
    elif name == "sffl/figure2":
        _partitions(datasets, alphas, json)
    elif name == "sffl/figure6":
        _step_sizes(wanted, datasets, alphas, seeds, rounds, json)
    else:
        _weights(datasets, alphas, rounds, json)


def _alpha(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--alpha takes numbers such as 0.1,1,1000, got {text!r}.") from None


# -- table 1, figures 3, 4 and 5 ---------------------------------------------------------------------------------------


def _grid(
    name: str,
    wanted: Wanted,
    datasets: Sequence[str],
    alphas: Sequence[float],
    seeds: int,
    rounds: int,
    runs: Path | None,
    json: bool,
) -> None:
    plans = _plans(name, wanted.methods)
    rows: list[Row] = []
    results: dict[tuple[str, ...], list[Result]] = {}
    with kept(name, runs, Row._fields) as (write, file), watching() as watch:
        for dataset in datasets:
            for clients, arms in plans:
                for made, result in sffl.table(dataset, alphas, arms, seeds, rounds, watch, clients):
                    rows += made
                    write(made)
                    where = (dataset, f"alpha {made[0].alpha:g}", f"{clients} clients")
                    results.setdefault(where, []).append(result)
                    for row in made:
                        say(_line(row))
    pages = write_pages(results, wanted.pages, "SFFL")
    verdicts = sffl.verdicts(rows) if name == "sffl/table1" else []
    if json:
        print_json(
            {
                "rows": [row._asdict() for row in rows],
                "verdicts": [verdict._asdict() for verdict in verdicts],
                "pages": pages,
            }
        )
    else:
        for dataset in datasets:
            for alpha in alphas:
                _show([row for row in rows if (row.dataset, row.alpha) == (dataset, alpha)])
        show(
            f"Percent, ours (published), mean±std over {seeds} seeds of the mean over clients, each on its own test "
            "rows; [worst client .. best]. floor: the mean EOP that sampling alone gives "
            "on those rows to a model with the same true positive rates but no gap. "
            "global: of all clients' test rows together.",
            *(f"{dataset}: {sffl.DATASETS[dataset]}." for dataset in datasets),
        )
        for verdict in verdicts:
            show(_verdict(verdict))
    say(f"All rows: {near(file)}")


def _plans(name: str, labels: Sequence[str] | None) -> list[tuple[int, list[Arm]]]:
    """(number of clients, arms) of the experiment."""
    every = {arm.label: arm for arm in sffl.arms()}
    if name == "sffl/figure3":
        arms = [arm for many in COMPONENTS for arm in sffl.arms(many) if arm.label in ("FedEM", "SFFL")]
        return [(sffl.CLIENTS, sffl.chosen(arms, labels))]
    if name == "sffl/figure4":
        arms = [every[label] for label in ("FedEM", "FCFL", "FairFed", "SFFL")]
        return [(clients, sffl.chosen(arms, labels)) for clients in CLIENTS]
    arms = [every["FedEM"], every["SFFL"]] if name == "sffl/figure5" else list(every.values())
    return [(sffl.CLIENTS, sffl.chosen(arms, labels))]


def _line(row: Row) -> str:
    accuracy, eop = (figure(100 * a, 100 * b) for a, b in ((row.accuracy, row.accuracy_std), (row.eop, row.eop_std)))
    return f"{row.dataset} alpha {row.alpha:g} {_name(row)}: Acc. {accuracy}, EOP {eop} ({row.seconds:.0f} s)"


def _name(row: Row) -> str:
    mixture = row.method not in ("FedAvg", "FCFL", "FairFed") and row.components != 3
    clients = f", {row.clients} clients" if row.clients != sffl.CLIENTS else ""
    return row.method + (f", M = {row.components}" if mixture else "") + clients


def _show(rows: Sequence[Row]) -> None:
    title = f"{rows[0].dataset}, alpha {rows[0].alpha:g}: ours (published)"
    table = plain_table("method", "Acc.", "Acc. of clients", "EOP", "EOP of clients", "floor", "global Acc.",
                        "global EOP", numbers=range(1, 8), title=title)  # fmt: skip
    for row in rows:
        table.add_row(
            _name(row),
            _beside(row.accuracy, row.accuracy_std, row.published_accuracy),
            f"{100 * row.accuracy_worst:.1f} .. {100 * row.accuracy_best:.1f}",
            _beside(row.eop, row.eop_std, row.published_eop),
            f"{100 * row.eop_worst:.1f} .. {100 * row.eop_best:.1f}",
            *(f"{100 * value:.2f}" for value in (row.floor, row.global_accuracy, row.global_eop)),
        )
    show(table, "")


def _beside(mean: float, std: float, published: float) -> str:
    return figure(100 * mean, 100 * std) + ("" if published != published else f" ({100 * published:.2f})")


def _verdict(verdict: sffl.Verdict) -> str:
    below = "below every baseline's" if not verdict.not_below else f"not below that of {', '.join(verdict.not_below)}"
    return (
        f"{verdict.dataset}, alpha {verdict.alpha:g}: SFFL's EOP is {below}; its accuracy is "
        f"{100 * abs(verdict.accuracy_lost):.2f} points {'below' if verdict.accuracy_lost > 0 else 'above'} FedEM's."
    )


# -- figures 2, 6 and 7 ------------------------------------------------------------------------------------------------

CELLS = {"female -": "░", "female +": "▒", "male -": "▓", "male +": "█"}


def _partitions(datasets: Iterable[str], alphas: Sequence[float], json: bool) -> None:
    found = [
        {"dataset": dataset, "alpha": alpha, "clients": sffl.cells(dataset, alpha)}
        for dataset in datasets
        for alpha in alphas
    ]
    if json:
        print_json({"cells": list(CELLS), "partitions": found})
        return
    for each in found:
        table = plain_table("client", "rows", *CELLS, "cells", numbers=range(1, 6),
                            title=f"{each['dataset']}, alpha {each['alpha']:g}: training rows")  # fmt: skip
        clients: dict[str, list[int]] = each["clients"]  # type: ignore[assignment]
        for client, counts in clients.items():
            ends = [round(40 * sum(counts[: i + 1]) / max(sum(counts), 1)) for i in range(len(counts))]
            bar = "".join(
                mark * (b - a) for mark, a, b in zip(CELLS.values(), [0, *ends[:-1]], ends, strict=True)
            )  # fmt: skip
            table.add_row(client, f"{sum(counts)}", *map(str, counts), bar)
        show(table, "")


def _step_sizes(
    wanted: Wanted, datasets: Sequence[str], alphas: Sequence[float], seeds: int, rounds: int, json: bool
) -> None:
    found = []
    results: dict[tuple[str, ...], list[Result]] = {}
    for dataset in datasets:
        for alpha in alphas:
            with watching() as watch:
                result = sffl.step_sizes(dataset, alpha, seeds, rounds, watch)
            results[(dataset, f"alpha {alpha:g}")] = [result]
            frame = result.metrics[result.metrics["metric"] == f"client_{sffl.EOP}.mean"]
            over = frame.groupby(["round", "fairness_step"], observed=True)["value"].mean().unstack()
            found += [
                {"dataset": dataset, "alpha": alpha, "round": number, "step": step, "eop": over.loc[number, step]}
                for number in over.index.tolist()
                for step in over.columns.tolist()
            ]
            if not json:
                table = plain_table("round", *(f"step {step:g}" for step in over.columns), numbers=range(5),
                                    title=f"{dataset}, alpha {alpha:g}: mean EOP of clients, percent")  # fmt: skip
                for number, line in over.iterrows():
                    table.add_row(str(number), *(f"{100 * value:.2f}" for value in line))
                show(table, "")
    pages = write_pages(results, wanted.pages, "SFFL")
    if json:
        print_json({"points": found, "pages": pages})


def _weights(datasets: Sequence[str], alphas: Sequence[float], rounds: int, json: bool) -> None:
    records = []
    for dataset in datasets:
        for alpha in alphas:
            with watching() as watch:
                found = sffl.weights(dataset, alpha, rounds, watch)
            agreement = sffl.agreement(found)
            records.append(
                {
                    "dataset": dataset,
                    "alpha": alpha,
                    "weights": [each._asdict() for each in found],
                    "correlation": {str(number): value for number, value in agreement.items()},
                }
            )
            if not json:
                _show_weights(found, agreement, f"{dataset}, alpha {alpha:g}")
    if json:
        print_json({"weights": records})


def _show_weights(found: Sequence[sffl.Weights], agreement: dict[int, float], where: str) -> None:
    """The client whose mixture weight ends highest, for each component, and all clients' correlation."""
    last = [each for each in found if each.round == max(agreement)]
    tops = [max((e for e in last if e.component == m), key=lambda e: e.mixture) for m in {e.component for e in last}]
    headings = [f"{top.client}, m = {top.component + 1}: w / pi" for top in tops]
    table = plain_table("round", *headings, "correlation", numbers=range(len(tops) + 2),
                        title=f"{where}: aggregation weight w and mixture weight pi")  # fmt: skip
    at = {(each.round, each.client, each.component): each for each in found}
    for number, correlation in agreement.items():
        own = [at[number, top.client, top.component] for top in tops]
        table.add_row(str(number), *(f"{e.aggregation:.3f} / {e.mixture:.3f}" for e in own), f"{correlation:.2f}")
    show(table, "Correlation over clients of w and pi, mean over components. Only a simulation sees pi.", "")
