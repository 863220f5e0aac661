"""SFFL's table and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product

import numpy as np

from equifed.errors import ConfigError
from equifed.experiments import Request
from equifed.experiments.base import Experiment, Part, Table, Watch, check_names, plus_minus
from equifed.experiments.sffl import settings as sffl
from equifed.experiments.sffl.settings import Row, TableArm

COMPONENTS, CLIENTS = (1, 2, 3, 4), (10, 20, 30, 40, 50)


def _scope(
    request: Request, datasets: Sequence[str], alphas: Sequence[float]
) -> tuple[list[str], list[float], int, int]:
    """Data sets, alphas, seeds and rounds."""
    check_names("data set of this experiment", request.datasets or (), sffl.DATASETS)
    try:
        given = [float(text) for text in request.alpha or ()]
    except ValueError:
        texts = ",".join(request.alpha or ())
        raise ConfigError(f"--alpha takes numbers such as 0.1,1,1000, got {texts!r}.", key="--alpha") from None
    amount = request.amount(sffl.SEEDS, sffl.ROUNDS)
    return request.datasets or list(datasets), given or list(alphas), *amount


# -- table 1, figures 3, 4 and 5 ---------------------------------------------------------------------------------------


def grid(
    plans: Mapping[int, Sequence[TableArm]],
    datasets: Sequence[str],
    alphas: Sequence[float],
    verdicts: bool,
    request: Request,
    watch: Watch,
) -> Iterator[Part]:
    """plans: {number of clients: arms}."""
    datasets, alphas, seeds, rounds = _scope(request, datasets, alphas)
    chosen = {clients: sffl.chosen(arms, request.methods) for clients, arms in plans.items()}
    rows: list[Row] = []
    for dataset, (clients, arms) in product(datasets, chosen.items()):
        for new, result in sffl.table(dataset, alphas, arms, seeds, rounds, watch, clients):
            rows += new
            page = (dataset, f"alpha {new[0].alpha:g}", f"{clients} clients")
            yield Part(new, [_line(row) for row in new], results=[result], page=page)
    judged = sffl.verdicts(rows) if verdicts else []
    yield Part(
        shown=[
            *(
                _table([row for row in rows if (row.dataset, row.alpha) == where])
                for where in product(datasets, alphas)
            ),
            f"Percent, ours (published), mean±std over {seeds} seeds of the mean over clients, each on its own test "
            "rows; [worst client .. best]. floor: the mean EOP that sampling alone gives on those rows to a model with "
            "the same true positive rates but no gap. global: of all clients' test rows together.",
            *(f"{dataset}: {sffl.DATASETS[dataset]}." for dataset in datasets),
            *map(_verdict, judged),
        ],
        record={"verdicts": [asdict(verdict) for verdict in judged]},
    )


def _line(row: Row) -> str:
    accuracy, eop = _percent(row.accuracy, row.accuracy_std), _percent(row.eop, row.eop_std)
    return f"{row.dataset} alpha {row.alpha:g} {_name(row)}: Acc. {accuracy}, EOP {eop} ({row.seconds:.0f} s)"


def _percent(mean: float, std: float, published: float = np.nan) -> str:
    return plus_minus(100 * mean, 100 * std) + ("" if np.isnan(published) else f" ({100 * published:.2f})")


def _name(row: Row) -> str:
    mixture = row.method not in ("FedAvg", "FCFL", "FairFed") and row.components != 3
    clients = f", {row.clients} clients" if row.clients != sffl.CLIENTS else ""
    return row.method + (f", M = {row.components}" if mixture else "") + clients


def _table(rows: Sequence[Row]) -> Table:
    return Table(
        f"{rows[0].dataset}, alpha {rows[0].alpha:g}: ours (published)",
        ("method", "Acc.", "Acc. of clients", "EOP", "EOP of clients", "floor", "global Acc.", "global EOP"),
        [
            [
                _name(row),
                _percent(row.accuracy, row.accuracy_std, row.published_accuracy),
                f"{100 * row.accuracy_worst:.1f} .. {100 * row.accuracy_best:.1f}",
                _percent(row.eop, row.eop_std, row.published_eop),
                f"{100 * row.eop_worst:.1f} .. {100 * row.eop_best:.1f}",
                *(f"{100 * value:.2f}" for value in (row.floor, row.global_accuracy, row.global_eop)),
            ]
            for row in rows
        ],
    )


def _verdict(verdict: sffl.Claims) -> str:
    below = "below every baseline's" if not verdict.not_below else f"not below that of {', '.join(verdict.not_below)}"
    return (
        f"{verdict.dataset}, alpha {verdict.alpha:g}: SFFL's EOP is {below}; its accuracy is "
        f"{100 * abs(verdict.accuracy_lost):.2f} points {'below' if verdict.accuracy_lost > 0 else 'above'} FedEM's."
    )


# -- figures 2, 6 and 7 ------------------------------------------------------------------------------------------------

CELLS = {"female -": "░", "female +": "▒", "male -": "▓", "male +": "█"}
BAR = 40
"""Characters of a client's bar."""


def figure2(request: Request, watch: Watch) -> Iterator[Part]:
    datasets, alphas, _, _ = _scope(request, ["acs_income"], sffl.ALPHAS)
    for dataset, alpha in product(datasets, alphas):
        clients = sffl.cells(dataset, alpha)
        rows = []
        for client, counts in clients.items():
            ends = [round(BAR * sum(counts[: i + 1]) / max(sum(counts), 1)) for i in range(len(counts))]
            bar = "".join(mark * (b - a) for mark, a, b in zip(CELLS.values(), [0, *ends[:-1]], ends, strict=True))
            rows.append([client, str(sum(counts)), *map(str, counts), bar])
        columns = ("client", "rows", *CELLS, "cells")
        table = Table(f"{dataset}, alpha {alpha:g}: training rows", columns, rows, left=(0, len(columns) - 1))
        yield Part([{"dataset": dataset, "alpha": alpha, "clients": clients}], shown=[table])
    yield Part(record={"cells": list(CELLS)})


def figure6(request: Request, watch: Watch) -> Iterator[Part]:
    datasets, alphas, seeds, rounds = _scope(request, ["acs_income"], [0.1])
    for dataset, alpha in product(datasets, alphas):
        result = sffl.step_sizes(dataset, alpha, seeds, rounds, watch)
        frame = result.metrics[result.metrics["metric"] == f"client_{sffl.EOP}.mean"]
        curves = frame.groupby(["round", "fairness_step"], observed=True)["value"].mean().unstack()
        points = [
            {"dataset": dataset, "alpha": alpha, "round": number, "step": step, "eop": curves.loc[number, step]}
            for number, step in product(curves.index.tolist(), curves.columns.tolist())
        ]
        table = Table(
            f"{dataset}, alpha {alpha:g}: mean EOP of clients, percent",
            ("round", *(f"step {step:g}" for step in curves.columns)),
            [[str(number), *(f"{100 * value:.2f}" for value in line)] for number, line in curves.iterrows()],
            left=(),
        )
        yield Part(points, shown=[table], results=[result], page=(dataset, f"alpha {alpha:g}"))


def figure7(request: Request, watch: Watch) -> Iterator[Part]:
    datasets, alphas, _, rounds = _scope(request, ["acs_income"], [0.1])
    for dataset, alpha in product(datasets, alphas):
        weights = sffl.weights(dataset, alpha, rounds, watch)
        correlation = sffl.agreement(weights)
        record = {
            "dataset": dataset,
            "alpha": alpha,
            "weights": [asdict(weight) for weight in weights],
            "correlation": {str(number): value for number, value in correlation.items()},
        }
        yield Part([record], shown=[_weights_table(weights, correlation, f"{dataset}, alpha {alpha:g}")])
    yield Part(shown=["Correlation over clients of w and pi, mean over components. Only a simulation sees pi."])


def _weights_table(weights: Sequence[sffl.Weights], correlation: Mapping[int, float], where: str) -> Table:
    """The client whose mixture weight ends highest, for each component, and all clients' correlation."""
    last = [weight for weight in weights if weight.round == max(correlation)]
    tops = [
        max((weight for weight in last if weight.component == component), key=lambda weight: weight.mixture)
        for component in {weight.component for weight in last}
    ]
    at = {(weight.round, weight.client, weight.component): weight for weight in weights}
    rows = []
    for number, value in correlation.items():
        pairs = [at[number, top.client, top.component] for top in tops]
        rows.append([str(number), *(f"{w.aggregation:.3f} / {w.mixture:.3f}" for w in pairs), f"{value:.2f}"])
    headings = [f"{top.client}, m = {top.component + 1}: w / pi" for top in tops]
    title = f"{where}: aggregation weight w and mixture weight pi"
    return Table(title, ("round", *headings, "correlation"), rows, left=())


def _grid(
    plans: Mapping[int, Sequence[TableArm]], datasets: Sequence[str], alphas: Sequence[float], verdicts: bool = False
) -> Experiment:
    return Experiment(partial(grid, plans, datasets, alphas, verdicts), "rows", kept=Row)


def _arms(*labels: str, components: int = 3) -> list[TableArm]:
    return [arm for arm in sffl.arms(components) if arm.label in labels]


EXPERIMENTS = {
    "table1": _grid({sffl.CLIENTS: sffl.arms()}, ["acs_income", "acs_employment"], sffl.ALPHAS, verdicts=True),
    "figure2": Experiment(figure2, "partitions"),
    "figure3": _grid(
        {sffl.CLIENTS: [arm for many in COMPONENTS for arm in _arms("FedEM", "SFFL", components=many)]},
        ["acs_income"],
        [0.1],
    ),
    "figure4": _grid(dict.fromkeys(CLIENTS, _arms("FedEM", "FCFL", "FairFed", "SFFL")), ["acs_income"], [0.1]),
    "figure5": _grid({sffl.CLIENTS: _arms("FedEM", "SFFL")}, ["acs_employment"], sffl.ALPHAS),
    "figure6": Experiment(figure6),
    "figure7": Experiment(figure7, "weights"),
}
