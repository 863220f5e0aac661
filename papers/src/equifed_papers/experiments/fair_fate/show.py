"""FAIR-FATE's tables and figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from equifed.errors import ConfigError
from equifed.methods import FairFate
from equifed.metrics.seeds import Moments, moments
from equifed.protocol import Method
from equifed.results import Result
from equifed.simulator import Step
from equifed_papers.experiments import Request
from equifed_papers.experiments.base import (
    NAN,
    Experiment,
    Part,
    Table,
    Watch,
    arms_named,
    carry_out,
    check_names,
    plus_minus,
    requested,
    row_line,
    table_of_cells,
    within_noise,
)  # fmt: skip
from equifed_papers.experiments.fair_fate import settings as fair_fate
from equifed_papers.experiments.fair_fate.settings import FairFateCell


def _scope(request: Request, known: Sequence[str], default: str) -> tuple[list[tuple[str, str]], list[int], int]:
    """Data sets with sigmas, the authors' seeds, which go on in tens if there are to be more, and rounds."""
    datasets = requested(request, "datasets", [default], known)
    sigmas = requested(request, "sigma", fair_fate.SIGMAS, fair_fate.SIGMAS)
    runs, rounds = request.amount(fair_fate.SEEDS, fair_fate.ROUNDS)
    return list(product(datasets, sigmas)), [10 * run for run in range(1, runs + 1)], rounds


def table(datasets: Sequence[str], request: Request, watch: Watch) -> Iterator[Part]:
    """Methods that both readings share are run once."""
    places, seeds, rounds = _scope(request, datasets, datasets[0])
    readings = list(fair_fate.READINGS) if request.reading in (None, "both") else [str(request.reading)]
    check_names("reading", readings, fair_fate.READINGS)
    if request.select not in (None, "validation"):
        raise ConfigError(f"--select takes only validation, got {request.select!r}.", key="--select")
    methods = len(arms_named(fair_fate.arms(*places[0], readings[0]), request.methods))
    total = len(places) * len(readings) * methods
    cells: list[FairFateCell] = []
    tables = []
    for dataset, sigma in places:
        feds = fair_fate.federations(dataset, sigma, seeds)
        done: dict[Method, tuple[Step, Result]] = {}
        floor = fair_fate.accuracy_floor(feds, rounds, watch) if request.select else None
        for reading in readings:
            where = (dataset, sigma, reading)
            begin = len(cells)
            for arm in arms_named(fair_fate.arms(*where), request.methods):
                method, chosen = arm.method, []
                if floor is not None and isinstance(method, FairFate):
                    method = fair_fate.select_on_validation(method, feds, rounds, floor, watch)
                    settings = ", ".join(f"{name} {getattr(method, name):g}" for name in fair_fate.GRID)
                    chosen = [f"  chosen on validation: {settings}"]
                if method not in done:
                    sim = fair_fate.simulation(method, feds, rounds)
                    number = len(cells) // len(fair_fate.MEASURES) + 1
                    last = carry_out(sim, f"{number}/{total} {dataset} {sigma} {arm.label}", watch)
                    done[method] = last, sim.result()
                last, result = done[method]
                row = fair_fate.cells(dataset, sigma, arm, reading, last)
                cells += row
                yield Part(row, [row_line(row, *where), *chosen], results=[result], page=where)
            title = f"{dataset}, sigma {sigma}, {reading}: ours (published)"
            tables.append(table_of_cells(title, cells[begin:]))
    summary = _summary(cells)
    yield Part(shown=[*tables, *_notes(summary, len(seeds), rounds)], record={"summary": summary})


def _summary(cells: Sequence[FairFateCell]) -> dict[str, Any]:
    compared = [cell for cell in cells if cell.within is not None and cell.reading == "as-published"]
    return {
        "compared": len(compared),
        "within_noise": sum(bool(cell.within) for cell in compared),
        "changed_by_reading": _changed(cells),
        "degenerate": [
            f"{cell.dataset} {cell.sigma} {cell.method}, {cell.reading}: in {cell.degenerate} of the runs"
            for cell in cells
            if cell.metric == "ACC" and cell.degenerate
        ],
        "known_errors": list(fair_fate.KNOWN_ERRORS),
    }


def _changed(cells: Sequence[FairFateCell]) -> list[str]:
    """Cells that differ between the readings by more than noise."""
    by_key = {(cell.dataset, cell.sigma, cell.method, cell.metric, cell.reading): cell for cell in cells}
    lines = []
    for key, old in by_key.items():
        new = by_key.get((*key[:4], "algorithm-1"))
        if old.reading != "as-published" or new is None:
            continue
        if not within_noise((old.mean, old.std), (new.mean, new.std), old.runs, new.runs):
            before, after = plus_minus(old.mean, old.std), plus_minus(new.mean, new.std)
            lines.append(f"{' '.join(key[:4])}: {before} as published, {after} corrected")
    return lines


def _notes(summary: dict[str, Any], seeds: int, rounds: int) -> Iterator[str]:
    yield "Ours (published), mean±std over runs; = within noise, ≠ not: |difference| > 2 sqrt(s1²/n1 + s2²/n2)."
    if summary["compared"]:
        share = summary["within_noise"] / summary["compared"]
        yield f"As published: {summary['within_noise']} of {summary['compared']} cells within noise ({share:.0%})."
    if seeds < fair_fate.SEEDS or rounds < fair_fate.ROUNDS:
        yield f"With {seeds} seeds and {rounds} rounds instead of 10 and 100 this is a look, not a test."
    for title, lines in (
        ("Cells that change between the readings by more than noise:", summary["changed_by_reading"]),
        ("* Degenerate predictors (one class for more than 99 % of a group), per row:", summary["degenerate"]),
        ("Known errors of the published table:", summary["known_errors"]),
    ):
        if lines:
            yield "\n".join(["", title, *(f"- {line}" for line in lines)])


def figure1(request: Request, watch: Watch) -> Iterator[Part]:
    """Each client's share of the rows of every group and label, very unlike clients beside clients that are alike."""
    datasets = requested(request, "datasets", ["compas"], fair_fate.CLIENTS)
    for dataset, sigma in product(datasets, ("0.5", "inf")):
        (fed,) = fair_fate.federations(dataset, sigma, [10])
        cells = fed.cells()  # [client, group, label]
        shares = cells / cells.sum(0)
        names = [f"{group}, {label}" for group in fed.groups for label in fed.classes]
        yield Part(
            [
                {"dataset": dataset, "sigma": sigma, "client": client, "group": group, "label": label,
                 "rows": int(cells[k, g, c]), "share": float(shares[k, g, c])}
                for k, client in enumerate(fed.ids)
                for g, group in enumerate(fed.groups)
                for c, label in enumerate(fed.classes)
            ],
            shown=[
                Table(
                    f"{dataset}, sigma {sigma}: each client's share of the rows of a group and label (%)",
                    ("client", *names, "rows"),
                    [
                        [client, *(f"{100 * share:.1f}" for share in shares[k].flat), str(cells[k].sum())]
                        for k, client in enumerate(fed.ids)
                    ],
                )
            ],
        )  # fmt: skip


def figure2(request: Request, watch: Watch) -> Iterator[Part]:
    """Accuracy and fairness over the rounds, every fair method by the F that it works on, as the authors measure."""
    places, seeds, rounds = _scope(request, list(fair_fate.CLIENTS), "adult")
    for dataset, sigma in places:
        feds = fair_fate.federations(dataset, sigma, seeds)
        curves: dict[str, dict[int, dict[str, Moments]]] = {}
        for arm in arms_named(fair_fate.arms(dataset, sigma, "as-published"), request.methods):
            sim = fair_fate.simulation(arm.method, feds, rounds)
            over = curves[arm.label] = {}
            for step in watch(f"{dataset} {sigma} {arm.label} over rounds", sim, whole=True):
                if step.round in step.scores:
                    values = fair_fate.measured(step, "test", compat=True)
                    over[step.round] = {metric: moments(values[metric]) for metric in fair_fate.MEASURES}
            points = [
                {"dataset": dataset, "sigma": sigma, "method": arm.label, "round": number, "metric": metric,
                 "mean": value.mean, "std": value.std}
                for number, measured in over.items()
                for metric, value in measured.items()
            ]  # fmt: skip
            yield Part(points, results=[sim.result()], page=(dataset, sigma))
        yield Part(
            shown=[
                Table(
                    f"{dataset}, sigma {sigma}: {metric} over rounds, mean of {len(seeds)} runs",
                    ("method", *map(str, next(iter(curves.values())))),
                    [
                        [label, *(plus_minus(values[metric].mean, NAN) for values in over.values())]
                        for label, over in curves.items()
                    ],
                )
                for metric in fair_fate.MEASURES
            ]
        )


def figure3(request: Request, watch: Watch) -> Iterator[Part]:
    """Accuracy against fairness over MAX, for every F."""
    places, seeds, rounds = _scope(request, list(fair_fate.CLIENTS), "compas")
    for dataset, sigma in places:
        feds = fair_fate.federations(dataset, sigma, seeds)
        arms = fair_fate.arms(dataset, sigma, "algorithm-1")[-len(fair_fate.NAMES) :]
        for (short, name), arm in zip(fair_fate.NAMES.items(), arms, strict=True):
            sim = fair_fate.simulation(arm.method, feds, rounds, over={"lambda_max": fair_fate.TRADE_OFF})
            carry_out(sim, f"{dataset} {sigma} {arm.label} over MAX", watch)
            points = sim.result().pareto("accuracy", name).astype({"method": str}).to_dict("records")
            rows = [
                [
                    f"{point['lambda_max']:g}",
                    *(_with_interval(point, metric) for metric in ("accuracy", name)),
                    f"{point['defined']} of {point['runs']}",
                    "yes" if point["dominated"] else "no",
                ]
                for point in points
            ]
            title = f"{dataset}, sigma {sigma}, F = {short}, over MAX"
            yield Part(
                [{"dataset": dataset, "sigma": sigma, "F": short, **point} for point in points],
                shown=[Table(title, ("MAX", "accuracy", short, "defined", "dominated"), rows, left=())],
                results=[sim.result()],
                page=(dataset, sigma, short),
            )


def _with_interval(point: Any, metric: str) -> str:
    low, high = point[f"{metric}_low"], point[f"{metric}_high"]
    return f"{point[metric]:.4f}" + ("" if np.isnan(low) else f" [{low:.4f}, {high:.4f}]")


_SIGMAS = [Request(sigma=[sigma]) for sigma in fair_fate.SIGMAS]

EXPERIMENTS = {
    **{
        name: Experiment(
            partial(table, datasets),
            "cells",
            kept=FairFateCell,
            jobs=[
                Request(datasets=[dataset], sigma=[sigma], reading="as-published")
                for dataset, sigma in product(datasets, fair_fate.SIGMAS)
            ],
        )
        for name, datasets in fair_fate.TABLES.items()
    },
    "figure1": Experiment(figure1),
    "figure2": Experiment(figure2, jobs=_SIGMAS),
    "figure3": Experiment(figure3, jobs=_SIGMAS),
}
