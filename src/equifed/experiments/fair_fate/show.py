"""FAIR-FATE's Table 1 and Figure 3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from equifed.errors import ConfigError
from equifed.experiments import Request
from equifed.experiments.base import Experiment, Part, Table, Watch, check_names, plus_minus, within_noise
from equifed.experiments.fair_fate import settings as fair_fate
from equifed.experiments.fair_fate.settings import TableCell


def _scope(request: Request) -> tuple[list[str], list[str], int, int]:
    """Data sets, sigmas, seeds and rounds."""
    datasets, sigmas = request.datasets or ["compas"], request.sigma or list(fair_fate.SIGMAS)
    check_names("data set of FAIR-FATE", datasets, fair_fate.CLIENTS)
    check_names("sigma", sigmas, fair_fate.SIGMAS)
    if (request.seeds or 0) > fair_fate.SEEDS:
        raise ConfigError(f"The authors have {fair_fate.SEEDS} seeds, got --seeds {request.seeds}.", key="--seeds")
    return datasets, sigmas, *request.amount(fair_fate.SEEDS, fair_fate.ROUNDS)


def table1(request: Request, watch: Watch) -> Iterator[Part]:
    datasets, sigmas, seeds, rounds = _scope(request)
    readings = list(fair_fate.READINGS) if request.reading in (None, "both") else [str(request.reading)]
    check_names("reading", readings, fair_fate.READINGS)
    if request.select not in (None, "validation"):
        raise ConfigError(f"--select takes only validation, got {request.select!r}.", key="--select")
    cells: list[TableCell] = []
    for row, result in fair_fate.table1(
        datasets, sigmas, readings, request.methods, seeds, rounds, request.select is not None, watch
    ):
        cells += row
        where = (row[0].dataset, row[0].sigma, row[0].reading)
        lines = [f"{' '.join(where)} {row[0].method}: " + ", ".join(f"{cell.metric} {cell.text}" for cell in row)]
        if request.select and result.info["method"] == "fair-fate":
            chosen = result.info["hyper_parameters"]
            lines.append(f"  chosen on validation: {', '.join(f'{name} {chosen[name]:g}' for name in fair_fate.GRID)}")
        yield Part(row, lines, results=[result], page=where)
    summary = _summary(cells)
    tables = [_table(cells, *where) for where in dict.fromkeys((c.dataset, c.sigma, c.reading) for c in cells)]
    yield Part(shown=[*tables, *_notes(summary, seeds, rounds)], record={"summary": summary})


def _table(cells: Sequence[TableCell], *where: str) -> Table:
    rows: dict[str, list[str]] = {}
    for cell in cells:
        if (cell.dataset, cell.sigma, cell.reading) == where:
            rows.setdefault(cell.method + ("*" if cell.degenerate else ""), []).append(cell.beside)
    title = f"{where[0]}, sigma {where[1]}, {where[2]}: ours (published)"
    return Table(title, ("method", *fair_fate.MEASURES), [[method, *figures] for method, figures in rows.items()])


def _summary(cells: Sequence[TableCell]) -> dict[str, Any]:
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


def _changed(cells: Sequence[TableCell]) -> list[str]:
    """Cells that differ between the readings by more than noise."""
    by_key = {(cell.dataset, cell.sigma, cell.method, cell.metric, cell.reading): cell for cell in cells}
    lines = []
    for key, old in by_key.items():
        new = by_key.get((*key[:4], "algorithm-1"))
        if old.reading != "as-published" or new is None:
            continue
        if not within_noise((old.mean, old.std), (new.mean, new.std), fair_fate.SEEDS):
            before, after = plus_minus(old.mean, old.std), plus_minus(new.mean, new.std)
            lines.append(f"{' '.join(key[:4])}: {before} as published, {after} corrected")
    return lines


def _notes(summary: dict[str, Any], seeds: int, rounds: int) -> Iterator[str]:
    yield "Ours (published), mean±std over runs; = within noise, ≠ not: |difference| > 2 sqrt((s1²+s2²)/runs)."
    if summary["compared"]:
        share = summary["within_noise"] / summary["compared"]
        yield f"As published: {summary['within_noise']} of {summary['compared']} cells within noise ({share:.0%})."
    if (seeds, rounds) != (fair_fate.SEEDS, fair_fate.ROUNDS):
        yield f"With {seeds} seeds and {rounds} rounds instead of 10 and 100 this is a look, not a test."
    for title, lines in (
        ("Cells that change between the readings by more than noise:", summary["changed_by_reading"]),
        ("* Degenerate predictors (one class for more than 99 % of a group), per row:", summary["degenerate"]),
        ("Known errors of the published table:", summary["known_errors"]),
    ):
        if lines:
            yield "\n".join(["", title, *(f"- {line}" for line in lines)])


def figure3(request: Request, watch: Watch) -> Iterator[Part]:
    datasets, sigmas, seeds, rounds = _scope(request)
    for dataset, sigma, short, result in fair_fate.figure3(datasets, sigmas, seeds, rounds, watch):
        name = fair_fate.NAMES[short]
        frame = result.pareto("accuracy", name)
        rows = [
            [
                f"{point['lambda_max']:g}",
                *(_with_interval(point, metric) for metric in ("accuracy", name)),
                f"{point['defined']} of {point['runs']}",
                "yes" if point["dominated"] else "no",
            ]
            for _, point in frame.iterrows()
        ]
        title = f"{dataset}, sigma {sigma}, F = {short}, over MAX"
        points = frame.astype({"method": str}).to_dict("records")
        yield Part(
            [{"dataset": dataset, "sigma": sigma, "F": short, **point} for point in points],
            shown=[Table(title, ("MAX", "accuracy", short, "defined", "dominated"), rows, left=())],
            results=[result],
            page=(dataset, sigma, short),
        )


def _with_interval(point: Any, metric: str) -> str:
    low, high = point[f"{metric}_low"], point[f"{metric}_high"]
    return f"{point[metric]:.4f}" + ("" if np.isnan(low) else f" [{low:.4f}, {high:.4f}]")


EXPERIMENTS = {"table1": Experiment(table1, "cells", kept=TableCell), "figure3": Experiment(figure3)}
