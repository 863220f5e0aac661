"""SFFL's table and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from equifed import tree
from equifed.errors import ConfigError
from equifed.methods import SFFL
from equifed_papers.experiments import Request
from equifed_papers.experiments.base import Experiment, Part, Table, Watch, carry_out, plus_minus, requested
from equifed_papers.experiments.sffl import settings as sffl
from equifed_papers.experiments.sffl.settings import ClientCell, SharingArm

COMPONENTS, CLIENTS = (1, 2, 3, 4), (10, 20, 30, 40, 50)


def _scope(
    request: Request, datasets: Iterable[str] = sffl.DATASETS, alphas: Sequence[float] = (0.1,)
) -> tuple[list[tuple[str, float]], int, int]:
    """Data sets with alphas, seeds and rounds."""
    datasets = requested(request, "datasets", datasets, sffl.DATASETS)
    try:
        alphas = [float(text) for text in request.alpha or ()] or alphas
    except ValueError:
        texts = ",".join(request.alpha or ())
        raise ConfigError(f"--alpha takes numbers such as 0.1,1,1000, got {texts!r}.", key="--alpha") from None
    return list(product(datasets, alphas)), *request.amount(sffl.SEEDS, sffl.ROUNDS)


# -- table 1, figures 3, 4 and 5 ---------------------------------------------------------------------------------------


def grid(
    plans: Mapping[int, Sequence[SharingArm]],
    request: Request,
    watch: Watch,
    datasets: Iterable[str] = sffl.DATASETS,
    alphas: Sequence[float] = sffl.ALPHAS,
    verdicts: bool = False,
) -> Iterator[Part]:
    """Every arm on every partition, all seeds and settings in one computation each. plans: {clients: arms}."""
    places, seeds, rounds = _scope(request, datasets, alphas)
    chosen = {clients: sffl.chosen(arms, request.methods) for clients, arms in plans.items()}
    lines: list[list[ClientCell]] = []
    for (dataset, alpha), (clients, arms) in product(places, chosen.items()):
        feds = sffl.federations(dataset, alpha, range(seeds), clients)
        page = (dataset, f"alpha {alpha:g}", f"{clients} clients")
        for arm in arms:
            sim = sffl.simulation(arm.method, feds, round(rounds * arm.round_factor), arm.over)
            carry_out(sim, f"{dataset} alpha {alpha:g} {arm.label}", watch)
            result = sim.result()
            new = sffl.cells(alpha, arm, sim, result)
            lines += new
            cells = [cell for line in new for cell in line]
            yield Part(cells, [_text(line) for line in new], results=[result], page=page)
    judged = sffl.verdicts([cell for line in lines for cell in line]) if verdicts else []
    yield Part(
        shown=[
            *(_table([line for line in lines if (line[0].dataset, line[0].alpha) == place]) for place in places),
            f"Percent, ours (published), mean±std over {seeds} seeds of the mean over clients, each on its own test "
            "rows; [worst client .. best]. floor: the mean EOP that sampling alone gives on those rows to a model with "
            "the same true positive rates but no gap. global: of all clients' test rows together. "
            "= and ≠: whether both agree within noise.",
            *(f"{dataset}: {sffl.DATASETS[dataset]}." for dataset in dict.fromkeys(place[0] for place in places)),
            *map(_verdict, judged),
        ],
        record={"verdicts": [asdict(verdict) for verdict in judged]},
    )


def _text(line: Sequence[ClientCell]) -> str:
    first, (accuracy, eop) = line[0], (plus_minus(100 * cell.mean, 100 * cell.std) for cell in line)
    return f"{first.dataset} alpha {first.alpha:g} {_name(first)}: Acc. {accuracy}, EOP {eop} ({first.seconds:.0f} s)"


def _beside(cell: ClientCell) -> str:
    theirs = "" if np.isnan(cell.published_mean) else f" ({100 * cell.published_mean:.2f})"
    return plus_minus(100 * cell.mean, 100 * cell.std) + theirs + cell.mark


def _name(cell: ClientCell) -> str:
    mixture = cell.method not in ("FedAvg", "FCFL", "FairFed") and cell.components != 3
    clients = f", {cell.clients} clients" if cell.clients != sffl.CLIENTS else ""
    return cell.method + (f", M = {cell.components}" if mixture else "") + clients


def _table(lines: Sequence[Sequence[ClientCell]]) -> Table:
    first = lines[0][0]
    return Table(
        f"{first.dataset}, alpha {first.alpha:g}: ours (published)",
        ("method", "Acc.", "Acc. of clients", "EOP", "EOP of clients", "floor", "global Acc.", "global EOP"),
        [
            [
                _name(accuracy),
                *(
                    text
                    for cell in (accuracy, eop)
                    for text in (_beside(cell), f"{100 * cell.worst:.1f} .. {100 * cell.best:.1f}")
                ),
                *(f"{100 * value:.2f}" for value in (eop.floor, accuracy.pooled, eop.pooled)),
            ]
            for accuracy, eop in lines
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
    """Training rows of each client (seed 0) by sex and label."""
    for dataset, alpha in _scope(request, alphas=sffl.ALPHAS)[0]:
        (fed,) = sffl.federations(dataset, alpha, [0])
        clients = dict(zip(fed.ids, fed.cells().reshape(fed.num_clients, -1).tolist(), strict=True))
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
    """SFFL over the step size of its multipliers, measured along the rounds."""
    places, seeds, rounds = _scope(request)
    for dataset, alpha in places:
        feds = sffl.federations(dataset, alpha, range(seeds))
        sim = sffl.simulation(SFFL(), feds, rounds, {"fairness_step": sffl.STEP_SIZES}, max(1, rounds // 30))
        carry_out(sim, f"{dataset} alpha {alpha:g} step sizes", watch)
        result = sim.result()
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
    """Aggregation weights w beside mixture weights pi (seed 0), which only a simulation can see together.

    The table has, for each component, the client whose mixture weight ends highest.
    """
    places, _, rounds = _scope(request)
    for dataset, alpha in places:
        (fed,) = sffl.federations(dataset, alpha, [0])
        sim = sffl.simulation(SFFL(), [fed], rounds)
        weights: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # [client, component] by round
        for step in watch(f"{dataset} alpha {alpha:g} weights", sim, whole=True):
            if step.round == 1 or step.round % max(1, rounds // 30) == 0:
                w = fed.train.sizes[:, None] * tree.take(step.state.server, 0).ratio.double().cpu().numpy()
                weights[step.round] = w / w.sum(0), tree.take(step.state.clients, 0).pi.double().cpu().numpy()
        correlation = {number: sffl.agreement(w, pi) for number, (w, pi) in weights.items()}
        record = {
            "dataset": dataset,
            "alpha": alpha,
            "weights": [
                {"round": number, "client": fed.ids[k], "component": m, "aggregation": w[k, m], "mixture": pi[k, m]}
                for number, (w, pi) in weights.items()
                for k, m in np.ndindex(w.shape)
            ],
            "correlation": {str(number): value for number, value in correlation.items()},
        }
        tops = list(enumerate(weights[max(weights)][1].argmax(0)))
        table = Table(
            f"{dataset}, alpha {alpha:g}: aggregation weight w and mixture weight pi",
            ("round", *(f"{fed.ids[k]}, m = {m + 1}: w / pi" for m, k in tops), "correlation"),
            [
                [str(number), *(f"{w[k, m]:.3f} / {pi[k, m]:.3f}" for m, k in tops), f"{correlation[number]:.2f}"]
                for number, (w, pi) in weights.items()
            ],
            left=(),
        )
        yield Part([record], shown=[table])
    yield Part(shown=["Correlation over clients of w and pi, mean over components. Only a simulation sees pi."])


def _arms(*labels: str, components: int = 3) -> list[SharingArm]:
    return [arm for arm in sffl.arms(components) if arm.label in labels]


def _jobs(alphas: Sequence[float], datasets: Iterable[str] = sffl.DATASETS) -> list[Request]:
    return [Request(datasets=[dataset], alpha=[f"{alpha:g}"]) for dataset, alpha in product(datasets, alphas)]


def _grid(
    plans: Mapping[int, Sequence[SharingArm]],
    alphas: Sequence[float],
    own: Callable[[ClientCell], bool],
    **options: Any,
) -> Experiment:
    parts = partial(grid, plans, alphas=alphas, **options)
    return Experiment(parts, "cells", kept=ClientCell, jobs=_jobs(alphas), own=own)


def _nothing_new(cell: ClientCell) -> bool:
    """The published figures of these 20 clients are Table 1's."""
    return False


EXPERIMENTS = {
    "table1": _grid({sffl.CLIENTS: sffl.arms()}, sffl.ALPHAS, lambda cell: True, verdicts=True),
    "figure2": Experiment(figure2, "partitions"),
    "figure3": _grid(
        {sffl.CLIENTS: [arm for m in COMPONENTS for arm in _arms("FedEM", "SFFL", components=m)]},
        sffl.ALPHAS,
        _nothing_new,
    ),
    "figure4": _grid(
        dict.fromkeys(CLIENTS, _arms("FedEM", "FCFL", "FairFed", "SFFL")),
        sffl.ALPHAS,
        lambda cell: cell.clients != sffl.CLIENTS,
    ),
    "figure5": _grid({sffl.CLIENTS: _arms("FedEM", "SFFL")}, sffl.ALPHAS, _nothing_new),
    "figure6": Experiment(figure6, jobs=_jobs((0.1,))),
    "figure7": Experiment(figure7, "weights", jobs=_jobs((0.1,))),
}
