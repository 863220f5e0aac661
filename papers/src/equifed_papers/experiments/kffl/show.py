"""KFFL's tables and figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from equifed.models import Linear, Logistic
from equifed.protocol import Method
from equifed.results import Result
from equifed_papers.experiments import Request
from equifed_papers.experiments.base import (
    Experiment,
    Part,
    Table,
    Watch,
    plus_minus,
    requested,
    table_of_cells,
)  # fmt: skip
from equifed_papers.experiments.kffl import settings as kffl
from equifed_papers.experiments.kffl.settings import CommunicationCell, KFFLCell

SHORT = {"accuracy": "Acc.", **{name: short for short, name in kffl.MEASURES.items()}}
"""The paper's names of the metrics."""


# -- tables 2 and 3 ----------------------------------------------------------------------------------------------------


def communication(number: int, request: Request, watch: Watch) -> Iterator[Part]:
    """What each method sends in one round, for the paper's two models; on Adult, though no row decides it."""
    (fed,) = kffl.federations("adult", "iid", [0])
    tables = []
    for name, model in kffl.COMMUNICATION_MODELS.items():
        sent = {label: kffl.sent(method, fed, model) for label, method in kffl.COMMUNICATING.items()}
        cells = [
            cell
            for label, ours in sent.items()
            for cell in kffl.communication_cells(number, fed, name, label, ours, sent["FedAvg"])
        ]
        size, features = kffl.parameters(fed, model), kffl.KFFL().features
        title = f"{name}, |omega| = {size:,}, D = {features}, epsilon = {features**2 / size:.4f}: ours (published)"
        made = table_of_cells(title, cells, lambda cell: f"{cell.mean:.4g} ({cell.published_mean:.4g}){cell.mark}")
        bytes_of = [[f"{count:,}" for count in (ours.uplink, ours.downlink)] for ours in sent.values()]
        rows = [[*row, *sizes] for row, sizes in zip(made.rows, bytes_of, strict=True)]
        tables.append(made._replace(columns=(*made.columns, "bytes up", "bytes down"), rows=rows))
        yield Part(cells)
    yield Part(
        shown=[
            *tables,
            "Per client and round, from the recorded messages of one round. Table 3 counts in FedAvg's messages; the "
            "published a + b epsilon leaves out the features' means (2 D numbers up, D down) and counts of rows.",
        ]
    )


# -- tables 6, 7 and 8 -------------------------------------------------------------------------------------------------


def table(number: int, default: Sequence[str], request: Request, watch: Watch) -> Iterator[Part]:
    """Each method, non-IID, at the setting that is fairest for a small loss of accuracy against FedAvg."""
    quickest = default[-1:]
    datasets = requested(request, "datasets", quickest if request.quick else default, kffl.CLASSIFICATION)
    model, network = kffl.MODELS[number], number == 8
    kffl.chosen(kffl.arms("SPD", network=network), request.methods)
    seeds, rounds = request.amount(kffl.CLASSIFICATION_SEEDS, kffl.NETWORK_ROUNDS if network else kffl.ROUNDS)
    tables = []
    for dataset in datasets:
        cells: list[KFFLCell] = []
        floor = -np.inf
        feds = kffl.federations(dataset, "non-iid", range(seeds))
        arms = kffl.chosen(kffl.arms("SPD", kffl.scale(feds), network=network), request.methods)
        for arm, result in kffl.sweeps(feds, arms, model, rounds, watch):
            if arm.label == "FedAvg":
                floor = float(result.final("validation")["accuracy"].mean()) - kffl.MAX_ACCURACY_LOSS
            setting = kffl.best_setting(result, kffl.MEASURES["SPD"], floor)
            row = kffl.cells(number, dataset, "non-iid", arm.label, result, setting)
            cells += row
            figures = ", ".join(f"{SHORT[cell.metric]} {plus_minus(cell.mean, cell.std, 3)}" for cell in row)
            chosen = f" ({row[0].setting})" if row[0].setting else ""
            yield Part(row, [f"{dataset} {arm.label}: {figures}{chosen}"], results=[result], page=(dataset,))
        title = f"{dataset}, non-IID: ours (published)"
        made = table_of_cells(title, cells, _beside, setting=lambda cell: cell.setting)
        columns = [SHORT.get(name, name) for name in made.columns]
        tables.append(made._replace(columns=columns, left=(0, len(columns) - 1)))
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


def _beside(cell: KFFLCell) -> str:
    mark = "x" if cell.method in kffl.DEFECTIVE else ""
    theirs = "" if np.isnan(cell.published_mean) else f" ({cell.published_mean:.3g}{mark})"
    return plus_minus(cell.mean, cell.std, 3) + theirs


# -- figures 3 and 4 ---------------------------------------------------------------------------------------------------


def figure(dataset: str, request: Request, watch: Watch) -> Iterator[Part]:
    """For each measure the fronts of all methods, and how much of the plane beyond FedAvg's disparity and the
    majority's accuracy each of them covers. Methods that do not depend on the measure are run once."""
    skews = requested(request, "skew", ["non-iid"], kffl.SKEWS)
    kffl.chosen(kffl.arms("EOD", centralized=True), request.methods)
    seeds, rounds = request.amount(kffl.CLASSIFICATION_SEEDS, kffl.ROUNDS)
    for skew in skews:
        feds = kffl.federations(dataset, skew, range(seeds))
        done: dict[Method, Result] = {}
        for measure, name in kffl.MEASURES.items():
            arms = kffl.chosen(kffl.arms(measure, kffl.scale(feds), centralized=True), request.methods)
            new = [arm for arm in arms if arm.method not in done]
            done |= {arm.method: result for arm, result in kffl.sweeps(feds, new, Logistic(), rounds, watch)}
            results = [done[arm.method] for arm in arms]
            reference = kffl.majority(feds), 1.05 * float(results[0].final()[name].mean())  # FedAvg comes first
            fronts: list[dict[str, Any]] = []
            for arm, result in zip(arms, results, strict=True):
                area, low, high, _ = result.hypervolume("accuracy", name, reference=reference)
                fronts.append(
                    {
                        "dataset": dataset, "skew": skew, "measure": measure, "method": arm.label,
                        "hypervolume": area, "hypervolume_low": low, "hypervolume_high": high,
                        "points": result.pareto("accuracy", name).astype({"method": str}).to_dict("records"),
                    }
                )  # fmt: skip
            table = Table(
                f"{dataset}, {skew}: accuracy against {measure}, test rows",
                ("method", "hypervolume x 1000", f"front: accuracy / {measure}"),
                [_cells(front, name) for front in sorted(fronts, key=lambda front: -front["hypervolume"])],
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


def _cells(front: dict[str, Any], disparity: str) -> list[str]:
    area, low, high = (1000 * front[f"hypervolume{end}"] for end in ("", "_low", "_high"))
    interval = "" if np.isnan(low) else f" [{low:.2f}, {high:.2f}]"
    points = sorted((p for p in front["points"] if not p["dominated"]), key=lambda point: -point["accuracy"])
    texts = [f"{point['accuracy']:.3f}/{point[disparity]:.3f}" for point in points]
    return [front["method"], f"{area:.2f}{interval}", "  ".join(texts)]


# -- regression --------------------------------------------------------------------------------------------------------


def regression(number: int, request: Request, watch: Watch) -> Iterator[Part]:
    dataset, skew, arm, rounds = kffl.REGRESSION_TABLES[number]
    seeds, rounds = request.amount(kffl.REGRESSION_SEEDS, rounds)
    feds = kffl.federations(dataset, skew, range(seeds), regression=True)
    ((_, result),) = kffl.sweeps(feds, [arm], Linear(), rounds, watch)
    ours, theirs = kffl.ours_at_equal_rmse(result), kffl.published_at_equal_rmse(number)
    trivial, metrics = kffl.trivial_rmse(feds), ("rmse", "ks_distance")
    swept = [
        [
            f"{point['step_size', '']:g}",
            f"{point['fairness_weight', '']:g}",
            *(plus_minus(point[metric, "mean"], point[metric, "std"], 4) for metric in metrics),
        ]
        for _, point in result.summary().reset_index().iterrows()
    ]
    pairs = kffl.published_regression(number).items()
    beside = [[weight, *(plus_minus(mean, std, 4) for mean, std in pair)] for weight, pair in pairs]
    title = f"{arm.label}, {dataset}, {skew}: ours, over {seeds} seeds, {rounds} rounds"
    notes = [
        f"{who}: RMSE {point.rmse_at_0:.4f}, KS {point.ks_at_0:.3f} at lambda 0. KS {point.ks:.3f} at most "
        f"{kffl.MAX_RMSE_RISE:.0%} above that RMSE (lambda {point.weight:g}); KS halved "
        + (
            "never."
            if np.isnan(point.rmse_at_half)
            else f"at RMSE {point.rmse_at_half:.4f} (lambda {point.weight_at_half:g})."
        )
        for who, point in (("Ours, chosen on validation rows", ours), ("Published", theirs))
    ]
    least, its_ks = kffl.least_squares(feds)
    notes.append(
        f"Predicting the mean of the training rows has an RMSE of {trivial:.4f}; least squares on all training rows "
        f"one of {least:.4f}, and a KS distance of {its_ks:.3f}."
    )
    if theirs.rmse_at_0 > trivial:
        notes.append(
            "The published models are worse than the mean: with the paper's step size of 0.01 they are hardly trained, "
            "and KS, which does not depend on scale, is then cheap to lower. Ours are trained."
        )
    yield Part(
        result.pareto(*metrics).astype({"method": str}).to_dict("records"),
        cells=kffl.regression_cells(number, result),
        shown=[
            Table(title, ("alpha", "lambda", "RMSE", "KS distance"), swept, left=()),
            Table("Published", ("lambda", "RMSE", "KS distance"), beside, left=()),
            *notes,
        ],
        record={
            "at_equal_rmse": ours._asdict(),
            "published": theirs._asdict(),
            "rmse_of_the_mean": trivial,
            "least_squares": {"rmse": least, "ks_distance": its_ks},
        },
        results=[result],
        page=(dataset, skew),
    )


_SKEWS = [Request(skew=[skew]) for skew in kffl.SKEWS]

_DATASETS = [Request(datasets=[dataset]) for dataset in reversed(kffl.CLASSIFICATION)]

EXPERIMENTS = {
    **{
        f"table{number}": Experiment(
            partial(communication, number), "cells", kept=CommunicationCell, own=lambda cell: cell.model == "network"
        )
        for number in (2, 3)
    },
    "table6": Experiment(
        partial(table, 6, kffl.CLASSIFICATION[1:]),
        "cells",
        kept=KFFLCell,
        jobs=(),  # all in table 7
    ),
    **{
        f"table{number}": Experiment(
            partial(table, number, kffl.CLASSIFICATION), "cells", kept=KFFLCell, jobs=_DATASETS
        )
        for number in (7, 8)
    },
    "figure3": Experiment(partial(figure, "compas"), "fronts", jobs=_SKEWS),
    "figure4": Experiment(partial(figure, "adult"), "fronts", jobs=_SKEWS),
    **{f"table{number}": Experiment(partial(regression, number)) for number in kffl.REGRESSION_TABLES},
}
