"""FedFair's Table I and Figures 2 and 4."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from equifed.experiments import Request
from equifed.experiments.base import Experiment, Part, Table, Watch, arms_named, check_names, plus_minus
from equifed.experiments.fedfair import settings as fedfair
from equifed.experiments.fedfair.settings import TableCell


def _scope(request: Request) -> tuple[list[str], int, int | None]:
    """Data sets, seeds, and rounds where they are not the usual."""
    datasets = request.datasets or ["compas"]
    check_names("data set of FedFair", datasets, fedfair.DATASETS)
    return datasets, *request.amount(fedfair.SEEDS, None)


def table1(request: Request, watch: Watch) -> Iterator[Part]:
    datasets, seeds, rounds = _scope(request)
    select = request.select or "test"
    check_names("selection", [select], ("test", "train"))
    arms_named(fedfair.arms(datasets[0]), request.methods)
    cells: list[TableCell] = []
    for row, result in fedfair.table1(datasets, request.methods, seeds, rounds, select, watch):
        cells += row
        line = f"{row[0].dataset} {row[0].method}: " + ", ".join(f"{cell.metric} {cell.text}" for cell in row)
        yield Part(row, [line], results=[result], page=(row[0].dataset,))
    compared = [cell for cell in cells if cell.metric == "HM" and cell.within is not None]
    yield Part(
        shown=[
            *(_table([cell for cell in cells if cell.dataset == dataset], dataset, seeds) for dataset in datasets),
            "Ours (published), mean±std; = within noise, ≠ not: |difference| > 2 sqrt(s1²/n+s2²/5). "
            f"HM: {sum(bool(cell.within) for cell in compared)} of {len(compared)} within noise. "
            f"opt: the epsilon or tau with the best HM on {select} rows.",
            "* constant for more than 99 % of a group in some model.",
            "\nAbout the published table:",
            *(f"- {line}" for line in fedfair.KNOWN_ERRORS),
        ],
        record={"known_errors": fedfair.KNOWN_ERRORS},
    )


def _table(cells: Sequence[TableCell], dataset: str, seeds: int) -> Table:
    rows = []
    for method in dict.fromkeys(cell.method for cell in cells):
        row = [cell for cell in cells if cell.method == method]
        first = row[0]
        opt = "" if first.opt is None else f"{first.opt:g}"
        opt += "" if first.published_opt is None else f" ({first.published_opt:g})"
        stopped = "" if first.opt is None else f"{first.stopped} of {seeds}"
        rows.append([method + ("*" if first.degenerate else ""), *(cell.beside for cell in row), opt, stopped])
    return Table(f"{dataset}: ours (published)", ("method", *fedfair.MEASURES, "opt", "stopped"), rows)


def figure2(request: Request, watch: Watch) -> Iterator[Part]:
    datasets, seeds, rounds = _scope(request)
    columns = ("epsilon", "|federated estimate|", "DGEO, test", "fairness", "accuracy", "rounds", "feasible")
    for dataset, frame, result in fedfair.figure2(datasets, seeds, rounds, watch):
        rows, points = [], []
        for epsilon, row in frame.iterrows():
            mean = {str(name): float(row[name, "mean"]) for name in frame.columns.levels[0]}  # type: ignore[attr-defined]
            points.append({"dataset": dataset, "epsilon": float(epsilon), **mean})  # type: ignore[arg-type]
            figures = [
                plus_minus(mean[name], row[name, "std"], digits)
                for name, digits in (("afe", 4), ("dgeo", 4), ("fairness", 3), ("accuracy", 3))
            ]
            rows.append([f"{epsilon:g}", *figures, f"{mean['round']:.0f}", f"{mean['feasible']:.0%}"])
        table = Table(f"{dataset}: FedFair over epsilon, {seeds} seeds", columns, rows, left=())
        yield Part(points, shown=[table], results=[result], page=(dataset, "epsilon"))
    yield Part(
        shown=[
            "The federated estimate lies on training rows, where the constraint holds; DGEO is the gap on test rows."
        ]
    )


def figure4(request: Request, watch: Watch) -> Iterator[Part]:
    datasets, seeds, rounds = _scope(request)
    rows: dict[tuple[str, str], list[str]] = {}
    for point, result in fedfair.figure4(datasets, seeds, rounds, fedfair.DROP_RATES, watch):
        where, hm = (point.dataset, point.method), plus_minus(point.hm, point.hm_std, 3)
        rows.setdefault(where, [point.method]).append(hm)
        line = f"{' '.join(where)}, drop rate {point.drop_rate:g}: HM {hm} (epsilon {point.epsilon:g})"
        yield Part([point], [line], results=[result], page=where)
    columns = ("method", *(f"{rate:g}" for rate in fedfair.DROP_RATES))
    for dataset in datasets:
        title = f"{dataset}: HM at each drop rate, {seeds} seeds"
        yield Part(shown=[Table(title, columns, [rows[dataset, method] for method in ("FedFair", "LCO")])])


EXPERIMENTS = {
    "table1": Experiment(table1, "cells", kept=TableCell),
    "figure2": Experiment(figure2),
    "figure4": Experiment(figure4),
}
