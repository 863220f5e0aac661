"""KFFL's tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equifed.cli.console import near, print_json, say, show
from equifed.cli.reproduce import Wanted, figure, kept, watching, write_pages
from equifed.cli.tables import plain_table
from equifed.experiments.kffl import settings as kffl
from equifed.experiments.kffl.settings import Cell, Front
from equifed.simulator import Result

TABLES = {"kffl/table6": kffl.CLASSIFICATION[1:], "kffl/table7": kffl.CLASSIFICATION}
FIGURES = {"kffl/figure3": "compas", "kffl/figure4": "adult"}
REGRESSIONS = {f"kffl/table{number}": number for number in kffl.REGRESSION_TABLES}
OPTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(TABLES, ("datasets", "methods", "seeds", "rounds")),
    **dict.fromkeys(FIGURES, ("skew", "methods", "seeds", "rounds")),
    **dict.fromkeys(REGRESSIONS, ("seeds", "rounds")),
}
QUICK = (2, 3)
"""Seeds and rounds of --quick."""


def reproduce(name: str, wanted: Wanted, runs: Path | None, json: bool) -> None:
    usual = kffl.SEEDS["regression" if name in REGRESSIONS else "classification"]
    rounds = kffl.REGRESSION_ROUNDS if name in REGRESSIONS else kffl.ROUNDS
    seeds = min(wanted.seeds or usual, QUICK[0]) if wanted.quick else wanted.seeds or usual
    rounds = min(wanted.rounds or rounds, QUICK[1]) if wanted.quick else wanted.rounds or rounds
    kffl.check(wanted.datasets or (), wanted.skew or (), wanted.methods)
    if name in TABLES:
        _table(name, wanted.datasets or list(TABLES[name]), wanted, seeds, rounds, runs, json)
    elif name in FIGURES:
        _figure(name, wanted, seeds, rounds, json)
    else:
        _regression(name, wanted, seeds, rounds, json)


# -- tables 6 and 7 ----------------------------------------------------------------------------------------------------


def _table(
    name: str, datasets: Sequence[str], wanted: Wanted, seeds: int, rounds: int, runs: Path | None, json: bool
) -> None:
    cells: list[Cell] = []
    results: dict[tuple[str, ...], list[Result]] = {}
    with kept(name, runs, Cell._fields, per_row=3) as (write, file), watching() as watch:
        for dataset in datasets:
            for row, result in kffl.classification(dataset, wanted.methods, seeds, rounds, watch):
                cells += row
                write(row)
                results.setdefault((dataset,), []).append(result)
                say(_line(row))
    pages = write_pages(results, wanted.pages, "KFFL")
    if json:
        print_json({"cells": [cell._asdict() for cell in cells], "pages": pages})
    else:
        for dataset in datasets:
            _show_table([cell for cell in cells if cell.dataset == dataset], dataset)
        show(
            f"Ours (published), mean±std over {seeds} seeds. Every method at the setting with the smallest SPD on "
            f"validation rows that costs at most {100 * kffl.DROP:g} points of FedAvg's accuracy there; where none "
            "does, at its most accurate. Published settings were not chosen so, and lambda scales differ: compare rows "
            "within ours.",
            f"x: published by defective code ({', '.join(kffl.DEFECTIVE)}), not a target. "
            "*: constant for more than 99 % of a group in some seed.",
        )
    say(f"All cells: {near(file)}")


def _line(row: Sequence[Cell]) -> str:
    figures = ", ".join(f"{_short(cell.metric)} {figure(cell.mean, cell.std, 3)}" for cell in row)
    return f"{row[0].dataset} {row[0].method}: {figures}" + (f" ({row[0].setting})" if row[0].setting else "")


def _short(metric: str) -> str:
    return {"accuracy": "Acc.", **{name: short for short, name in kffl.MEASURES.items()}}[metric]


def _show_table(cells: Sequence[Cell], dataset: str) -> None:
    table = plain_table(
        "method", "Acc.", "SPD", "EOD", "setting", numbers=range(1, 4), title=f"{dataset}, non-IID: ours (published)"
    )
    for method in dict.fromkeys(cell.method for cell in cells):
        row = [cell for cell in cells if cell.method == method]
        mark = "x" if method in kffl.DEFECTIVE else ""
        shown = [
            figure(cell.mean, cell.std, 3)
            + ("" if cell.published_mean != cell.published_mean else f" ({cell.published_mean:.3g}{mark})")
            for cell in row
        ]
        table.add_row(method + ("*" if row[0].degenerate else ""), *shown, row[0].setting)
    show(table, "")


# -- figures 3 and 4 ---------------------------------------------------------------------------------------------------


def _figure(name: str, wanted: Wanted, seeds: int, rounds: int, json: bool) -> None:
    dataset = FIGURES[name]
    found: list[dict[str, Any]] = []
    groups: dict[tuple[str, ...], list[Result]] = {}
    with watching() as watch:
        for skew in wanted.skew or ["non-iid"]:
            for measure, fronts in kffl.figure(dataset, skew, wanted.methods, seeds, rounds, watch):
                groups[(dataset, skew, measure)] = [front.result for front in fronts]
                found += [_front(front, dataset, skew, measure) for front in fronts]
                if not json:
                    _show_fronts(fronts, dataset, skew, measure)
    pages = write_pages(groups, wanted.pages, "KFFL", lambda where: kffl.MEASURES[where[2]])
    if json:
        print_json({"fronts": found, "pages": pages})


def _front(front: Front, dataset: str, skew: str, measure: str) -> dict[str, Any]:
    points = front.result.pareto("accuracy", kffl.MEASURES[measure])
    return {
        "dataset": dataset,
        "skew": skew,
        "measure": measure,
        "method": front.arm.label,
        "hypervolume": front.hypervolume,
        "hypervolume_low": front.low,
        "hypervolume_high": front.high,
        "points": points.astype({"method": str}).to_dict("records"),
    }


def _show_fronts(fronts: Sequence[Front], dataset: str, skew: str, measure: str) -> None:
    table = plain_table(
        "method", "hypervolume x 1000", "front: accuracy / " + measure, numbers=[1],
        title=f"{dataset}, {skew}: accuracy against {measure}, test rows",
    )  # fmt: skip
    for front in sorted(fronts, key=lambda front: -front.hypervolume):
        points = front.result.pareto("accuracy", kffl.MEASURES[measure])
        points = points[~points["dominated"]].sort_values("accuracy", ascending=False)
        pairs = zip(points["accuracy"], points[kffl.MEASURES[measure]], strict=True)
        area = f"{1000 * front.hypervolume:.2f}"
        interval = "" if front.low != front.low else f" [{1000 * front.low:.2f}, {1000 * front.high:.2f}]"
        table.add_row(front.arm.label, area + interval, "  ".join(f"{a:.3f}/{d:.3f}" for a, d in pairs))
    show(
        table,
        "Hypervolume: what lies between the front, the accuracy of always predicting the majority and 1.05 times "
        "FedAvg's disparity; 95 % intervals of a bootstrap over seeds. Centralized is pooled training, no federated "
        "method.",
        "",
    )


# -- regression --------------------------------------------------------------------------------------------------------


def _regression(name: str, wanted: Wanted, seeds: int, rounds: int, json: bool) -> None:
    number = REGRESSIONS[name]
    dataset, skew, arm = kffl.REGRESSION_TABLES[number]
    with watching() as watch:
        result = kffl.regression(number, seeds, rounds, watch)
    ours, theirs = kffl.at_equal_rmse(result), kffl.published_at_equal_rmse(number)
    trivial = kffl.trivial_rmse(dataset, skew, seeds)
    known = kffl.published(number, dataset, skew)
    pages = write_pages({(dataset, skew): [result]}, wanted.pages, "KFFL")
    if json:
        points = result.pareto("rmse", "ks_distance").astype({"method": str}).to_dict("records")
        print_json({"points": points, "at_equal_rmse": ours._asdict(), "published": theirs._asdict(),
                    "rmse_of_the_mean": trivial, "pages": pages})  # fmt: skip
        return
    swept = plain_table(
        "alpha", "lambda", "RMSE", "KS distance", numbers=range(4),
        title=f"{arm.label}, {dataset}, {skew}: ours, over {seeds} seeds, {rounds} rounds",
    )  # fmt: skip
    for _, point in result.summary().reset_index().iterrows():
        figures = (figure(point[metric, "mean"], point[metric, "std"], 4) for metric in ("rmse", "ks_distance"))
        swept.add_row(f"{point['step_size', '']:g}", f"{point['fairness_weight', '']:g}", *figures)
    beside = plain_table("lambda", "RMSE", "KS distance", numbers=range(3), title="Published")
    for weight in sorted({weight for _, weight, _ in known}, key=float):
        means = [known[arm.label, weight, metric] for metric in ("rmse", "ks_distance")]
        beside.add_row(weight, *(figure(mean, std, 4) for mean, std in means))
    show(swept, "", beside, "")
    for who, found in (("Ours, chosen on validation rows", ours), ("Published", theirs)):
        halved = "never" if found.rmse_at_half != found.rmse_at_half else f"at RMSE {found.rmse_at_half:.4f}"
        show(
            f"{who}: RMSE {found.rmse_at_0:.4f}, KS {found.ks_at_0:.3f} at lambda 0. KS {found.ks:.3f} at most "
            f"{kffl.WORSE:.0%} above that RMSE (lambda {found.weight:g}); KS halved {halved}."
        )
    show(f"Predicting the mean of the training rows has an RMSE of {trivial:.4f}.")
    if theirs.rmse_at_0 > trivial:
        show(
            "The published models are worse than that: with the paper's step size of 0.01 they are hardly trained, and "
            "KS, which does not depend on scale, is then cheap to lower. Ours are trained."
        )
