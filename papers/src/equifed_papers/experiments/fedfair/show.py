"""FedFair's tables and figures."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

from equifed.metrics.seeds import moments, moments_wide
from equifed_papers.experiments import Request
from equifed_papers.experiments.base import (
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
)  # fmt: skip
from equifed_papers.experiments.fedfair import settings as fedfair
from equifed_papers.experiments.fedfair.settings import FedFairCell


def _scope(request: Request) -> tuple[list[str], int, int | None]:
    """Data sets, seeds, and rounds where they are not the usual."""
    return requested(request, "datasets", ["compas"], fedfair.DATASETS), *request.amount(fedfair.SEEDS, None)


def table(model: str, request: Request, watch: Watch) -> Iterator[Part]:
    datasets, seeds, rounds = _scope(request)
    select = request.select or "test"
    check_names("selection", [select], ("test", "train"))
    cells: list[FedFairCell] = []
    for dataset in datasets:
        arms = arms_named(fedfair.arms(dataset, rounds, model), request.methods)
        feds = {inputs: fedfair.federations(dataset, seeds, inputs) for inputs in {arm.inputs for arm in arms}}
        for arm in arms:
            sim = fedfair.simulation(arm, feds[arm.inputs])
            last = carry_out(sim, f"{dataset} {arm.label}", watch)
            row = fedfair.cells(dataset, arm, sim, last, select)
            cells += row
            yield Part(row, [row_line(row, dataset)], results=[sim.result()], page=(dataset,))
    compared = [cell for cell in cells if cell.metric == "HM" and cell.within is not None]
    yield Part(
        shown=[
            *(
                table_of_cells(
                    f"{dataset}: ours (published)",
                    [cell for cell in cells if cell.dataset == dataset],
                    opt=_choice,
                    stopped=lambda cell: "" if cell.opt is None else f"{cell.stopped} of {seeds}",
                )
                for dataset in datasets
            ),
            "Ours (published), mean±std; = within noise, ≠ not: |difference| > 2 sqrt(s1²/n+s2²/5). "
            f"HM: {sum(bool(cell.within) for cell in compared)} of {len(compared)} within noise. "
            f"opt: the epsilon or tau with the best HM on {select} rows.",
            "* constant for more than 99 % of a group in some model.",
            "\nAbout the published table:",
            *(f"- {line}" for line in fedfair.KNOWN_ERRORS),
        ],
        record={"known_errors": fedfair.KNOWN_ERRORS},
    )


def _choice(cell: FedFairCell) -> str:
    ours = "" if cell.opt is None else f"{cell.opt:g}"
    return ours + ("" if cell.published_opt is None else f" ({cell.published_opt:g})")


def figure1(request: Request, watch: Watch) -> Iterator[Part]:
    """The five settings of every method with the largest harmonic means on test rows, with both kinds of models."""
    datasets, seeds, rounds = _scope(request)
    columns = ("method", "epsilon or tau", "accuracy", "fairness", "harmonic mean")
    for dataset, model in product(datasets, fedfair.MODELS):
        lines = []
        arms = arms_named(fedfair.arms(dataset, rounds, model), request.methods)
        feds = {inputs: fedfair.federations(dataset, seeds, inputs) for inputs in {arm.inputs for arm in arms}}
        for arm in arms:
            sim = fedfair.simulation(arm, feds[arm.inputs])
            last = carry_out(sim, f"{dataset} {arm.label}, {model}", watch)
            measured = fedfair.measured(sim, last)
            points = []
            for setting in fedfair.ranked_settings(sim, last, "test")[:5]:
                runs = fedfair.runs_of(sim, setting)
                means = {metric: moments(measured[metric][runs].ravel()).mean for metric in fedfair.MEASURES}
                where = {"dataset": dataset, "model": model, "method": arm.label}
                points.append({**where, "opt": next(iter(setting.values()), None), **means})
                opt = points[-1]["opt"]
                lines.append(
                    [arm.label, "" if opt is None else f"{opt:g}", *(f"{mean:.3f}" for mean in means.values())]
                )
            yield Part(points, results=[sim.result()], page=(dataset, model))
        yield Part(shown=[Table(f"{dataset}, {model}: the best settings, mean of {seeds} seeds", columns, lines)])


def over_epsilon(model: str, request: Request, watch: Watch) -> Iterator[Part]:
    """For each epsilon, FedFair's |federated estimate| (AFE) on training rows, and DGEO, fairness and accuracy on
    test rows."""
    datasets, seeds, rounds = _scope(request)
    columns = ("epsilon", "|federated estimate|", "DGEO, test", "fairness", "accuracy", "rounds", "feasible")
    digits = {"afe": 4, "dgeo": 4, "fairness": 3, "accuracy": 3}
    for dataset in datasets:
        (arm,) = arms_named(fedfair.arms(dataset, rounds, model), ["FedFair"])
        sim = fedfair.simulation(arm, fedfair.federations(dataset, seeds))
        values = fedfair.measured(sim, carry_out(sim, f"{dataset} FedFair over epsilon", watch))
        result, run = sim.result(), ["epsilon", "seed"]
        ends = result.log.groupby(run, sort=False).tail(1).rename(columns={"constraint": "afe"})
        frame = result.final()[[*run, "dgeo"]].merge(ends[[*run, "afe", "feasible", "round"]], on=run)
        frame["fairness"], frame["accuracy"] = values["FR"][:, 0], values["AC"][:, 0]
        wide = moments_wide(frame, ["epsilon"])
        means, deviations = (wide.xs(name, axis=1, level=1).reset_index() for name in ("mean", "std"))
        points = means.to_dict("records")
        rows = [
            [
                f"{mean['epsilon']:g}",
                *(plus_minus(mean[name], std[name], places) for name, places in digits.items()),
                f"{mean['round']:.0f}",
                f"{mean['feasible']:.0%}",
            ]
            for mean, std in zip(points, deviations.to_dict("records"), strict=True)
        ]
        table = Table(f"{dataset}, {model}: FedFair over epsilon, {seeds} seeds", columns, rows, left=())
        points = [{"dataset": dataset, "model": model, **point} for point in points]
        yield Part(points, shown=[table], results=[result], page=(dataset, "epsilon"))
    yield Part(
        shown=[
            "The federated estimate lies on training rows, where the constraint holds; DGEO is the gap on test rows."
        ]
    )


def figure4(request: Request, watch: Watch) -> Iterator[Part]:
    """FedFair and LCO with clients dropping out, with both kinds of models."""
    datasets, seeds, rounds = _scope(request)
    columns = ("method", *(f"{rate:g}" for rate in fedfair.DROP_RATES))
    for dataset, model in product(datasets, fedfair.MODELS):
        feds = fedfair.federations(dataset, seeds)
        rows: dict[str, list[str]] = {}
        arms = arms_named(fedfair.arms(dataset, rounds, model), ["LCO", "FedFair"])
        for arm, rate in product(arms, fedfair.DROP_RATES):
            sim = fedfair.simulation(arm, feds, dropout=rate)
            title = f"{dataset} {arm.label}, {model}, drop rate {rate:g}"
            last = carry_out(sim, title, watch)
            best = fedfair.best_setting(sim, last, "test")
            mean, std, _ = moments(fedfair.measured(sim, last)["HM"][fedfair.runs_of(sim, best), 0])
            hm = plus_minus(mean, std, 3)
            rows.setdefault(arm.label, [arm.label]).append(hm)
            where = {"dataset": dataset, "model": model, "method": arm.label, "drop_rate": rate}
            line = f"{title}: HM {hm} (epsilon {best['epsilon']:g})"
            yield Part(
                [{**where, **best, "hm": mean, "hm_std": std}], [line], results=[sim.result()],
                page=(dataset, model, arm.label),
            )  # fmt: skip
        yield Part(
            shown=[Table(f"{dataset}, {model}: HM at each drop rate, {seeds} seeds", columns, list(rows.values()))]
        )


_DATASETS = [Request(datasets=[dataset]) for dataset in fedfair.DATASETS]

EXPERIMENTS = {
    "table1": Experiment(partial(table, "logistic"), "cells", kept=FedFairCell, jobs=_DATASETS),
    "table2": Experiment(partial(table, "network"), "cells", kept=FedFairCell, jobs=_DATASETS),
    "figure1": Experiment(figure1, jobs=_DATASETS),
    "figure2": Experiment(partial(over_epsilon, "logistic"), jobs=_DATASETS),
    "figure3": Experiment(partial(over_epsilon, "network"), jobs=_DATASETS),
    "figure4": Experiment(figure4, jobs=_DATASETS),
}
