"""KFFL's tables and figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from equifed.experiments import Request
from equifed.experiments.base import Experiment, Part, Table, Watch, check_names, plus_minus
from equifed.experiments.kffl import settings as kffl
from equifed.experiments.kffl.settings import TableCell

SHORT = {"accuracy": "Acc.", **{name: short for short, name in kffl.MEASURES.items()}}
"""The paper's names of the metrics."""


# -- tables 6 and 7 ----------------------------------------------------------------------------------------------------


def table(usual: Sequence[str], request: Request, watch: Watch) -> Iterator[Part]:
    datasets = request.datasets or list(usual)
    check_names("data set of this experiment", datasets, kffl.CLASSIFICATION)
    kffl.chosen(kffl.arms("SPD"), request.methods)
    seeds, rounds = request.amount(kffl.CLASSIFICATION_SEEDS, kffl.ROUNDS)
    tables = []
    for dataset in datasets:
        cells: list[TableCell] = []
        for row, result in kffl.classification(dataset, request.methods, seeds, rounds, watch):
            cells += row
            figures = ", ".join(f"{SHORT[cell.metric]} {plus_minus(cell.mean, cell.std, 3)}" for cell in row)
            setting = f" ({row[0].setting})" if row[0].setting else ""
            yield Part(row, [f"{dataset} {row[0].method}: {figures}{setting}"], results=[result], page=(dataset,))
        tables.append(_table(cells, dataset))
    yield Part(
        shown=[
            *tables,
            f"Ours (published), mean±std over {seeds} seeds. Every method at the setting with the smallest SPD on "
            f"validation rows that costs at most {100 * kffl.MAX_ACCURACY_LOSS:g} points of FedAvg's accuracy there; "
            "where none does, at its most accurate. Published settings were not chosen so, and lambda scales differ: "
            "compare rows within ours.",
            f"x: published by defective code ({', '.join(kffl.DEFECTIVE)}), not a target. "
            "*: constant for more than 99 % of a group in some seed.",
        ]
    )


def _table(cells: Sequence[TableCell], dataset: str) -> Table:
    rows = []
    for method in dict.fromkeys(cell.method for cell in cells):
        row = [cell for cell in cells if cell.method == method]
        mark = "x" if method in kffl.DEFECTIVE else ""
        figures = [
            plus_minus(cell.mean, cell.std, 3)
            + ("" if np.isnan(cell.published_mean) else f" ({cell.published_mean:.3g}{mark})")
            for cell in row
        ]
        rows.append([method + ("*" if row[0].degenerate else ""), *figures, row[0].setting])
    columns = ("method", *SHORT.values(), "setting")
    return Table(f"{dataset}, non-IID: ours (published)", columns, rows, left=(0, len(columns) - 1))


# -- figures 3 and 4 ---------------------------------------------------------------------------------------------------


def figure(dataset: str, request: Request, watch: Watch) -> Iterator[Part]:
    skews = request.skew or ["non-iid"]
    check_names("skew", skews, kffl.SKEWS)
    kffl.chosen(kffl.arms("EOD", centralized=True), request.methods)
    seeds, rounds = request.amount(kffl.CLASSIFICATION_SEEDS, kffl.ROUNDS)
    for skew in skews:
        for name, fronts, results in kffl.figure(dataset, skew, request.methods, seeds, rounds, watch):
            measure = fronts[0].measure
            table = Table(
                f"{dataset}, {skew}: accuracy against {measure}, test rows",
                ("method", "hypervolume x 1000", f"front: accuracy / {measure}"),
                [_cells(front, name) for front in sorted(fronts, key=lambda front: -front.hypervolume)],
                left=(0, 2),
            )
            yield Part(fronts, shown=[table], results=results, page=(dataset, skew, measure), disparity=name)
    yield Part(
        shown=[
            "Hypervolume: what lies between the front, the accuracy of always predicting the majority and 1.05 times "
            "FedAvg's disparity; 95 % intervals of a bootstrap over seeds. Centralized is pooled training, not a "
            "federated method."
        ]
    )


def _cells(front: kffl.Front, disparity: str) -> list[str]:
    area = f"{1000 * front.hypervolume:.2f}"
    if not np.isnan(front.hypervolume_low):
        area += f" [{1000 * front.hypervolume_low:.2f}, {1000 * front.hypervolume_high:.2f}]"
    points = sorted((p for p in front.points if not p["dominated"]), key=lambda point: -point["accuracy"])
    return [front.method, area, "  ".join(f"{point['accuracy']:.3f}/{point[disparity]:.3f}" for point in points)]


# -- regression --------------------------------------------------------------------------------------------------------


def regression(number: int, request: Request, watch: Watch) -> Iterator[Part]:
    dataset, skew, arm = kffl.REGRESSION_TABLES[number]
    seeds, rounds = request.amount(kffl.REGRESSION_SEEDS, kffl.REGRESSION_ROUNDS)
    result = kffl.regression(number, seeds, rounds, watch)
    ours, theirs = kffl.at_equal_rmse(result), kffl.published_at_equal_rmse(number)
    trivial = kffl.trivial_rmse(dataset, skew, seeds)
    metrics = ("rmse", "ks_distance")
    swept = [
        [
            f"{point['step_size', '']:g}",
            f"{point['fairness_weight', '']:g}",
            *(plus_minus(point[metric, "mean"], point[metric, "std"], 4) for metric in metrics),
        ]
        for _, point in result.summary().reset_index().iterrows()
    ]
    known = kffl.published_figures(number, dataset, skew)
    weights = sorted({weight for _, weight, _ in known}, key=float)
    pairs = {weight: [known[arm.label, weight, metric] for metric in metrics] for weight in weights}
    beside = [[weight, *(plus_minus(mean, std, 4) for mean, std in pair)] for weight, pair in pairs.items()]
    title = f"{arm.label}, {dataset}, {skew}: ours, over {seeds} seeds, {rounds} rounds"
    notes = [
        f"{who}: RMSE {point.rmse_at_0:.4f}, KS {point.ks_at_0:.3f} at lambda 0. KS {point.ks:.3f} at most "
        f"{kffl.MAX_RMSE_RISE:.0%} above that RMSE (lambda {point.weight:g}); KS halved "
        + ("never." if np.isnan(point.rmse_at_half) else f"at RMSE {point.rmse_at_half:.4f}.")
        for who, point in (("Ours, chosen on validation rows", ours), ("Published", theirs))
    ]
    notes.append(f"Predicting the mean of the training rows has an RMSE of {trivial:.4f}.")
    if theirs.rmse_at_0 > trivial:
        notes.append(
            "The published models are worse than that: with the paper's step size of 0.01 they are hardly trained, and "
            "KS, which does not depend on scale, is then cheap to lower. Ours are trained."
        )
    yield Part(
        result.pareto(*metrics).astype({"method": str}).to_dict("records"),
        shown=[
            Table(title, ("alpha", "lambda", "RMSE", "KS distance"), swept, left=()),
            Table("Published", ("lambda", "RMSE", "KS distance"), beside, left=()),
            *notes,
        ],
        record={"at_equal_rmse": ours._asdict(), "published": theirs._asdict(), "rmse_of_the_mean": trivial},
        results=[result],
        page=(dataset, skew),
    )


EXPERIMENTS = {
    "table6": Experiment(partial(table, kffl.CLASSIFICATION[1:]), "cells", kept=TableCell),
    "table7": Experiment(partial(table, kffl.CLASSIFICATION), "cells", kept=TableCell),
    "figure3": Experiment(partial(figure, "compas"), "fronts"),
    "figure4": Experiment(partial(figure, "adult"), "fronts"),
    **{f"table{number}": Experiment(partial(regression, number)) for number in kffl.REGRESSION_TABLES},
}
