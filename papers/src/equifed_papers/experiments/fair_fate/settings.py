"""The FAIR-FATE paper's tables and figures: its methods, settings and published figures.

Salazar et al., FAIR-FATE: Fair Federated Learning with Momentum, ICCS 2023. Published figures: published.csv, from the
paper's Tables 1 and 2 and, where they were misprinted or have no such figure, its authors' result files (round 100).
Where the paper prints another mean than these files, column `printed` has it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np

from equifed import metrics as M
from equifed.data import get_dataset
from equifed.federation import Federation, Rows, RowSets
from equifed.methods import FairFate, FedAvg, FedAvgGR, FedAvgLR, FedDemon, FedMom, FedVal
from equifed.models import MLP
from equifed.protocol import Method
from equifed.settings import Local, RunSettings
from equifed.simulation import Simulation
from equifed.simulator import Job, Step, make_job
from equifed_papers.experiments.base import NAN, Arm, Cell, Watch, carry_out, choose, published, swept_settings

NAMES = {"SP": "demographic_parity_ratio", "EO": "equal_opportunity_ratio", "EQO": "average_odds_ratio"}
"""The paper's names of the metrics."""
MEASURES = ("ACC", *NAMES)
CLIENTS = {"compas": (10, 3), "adult": (15, 5), "law": (12, 4), "dutch": (20, 6)}
"""Clients, and clients per round."""
TABLES = {"table1": ("compas", "adult"), "table2": ("law", "dutch")}
SIGMAS = ("0.5", "1.0", "RND")
"""Heterogeneity: the Dirichlet parameter, or equal random chunks."""
ROUNDS, SEEDS = 100, 10

Chosen = tuple[float, float, float, float]
"""(beta0, rho, lambda0, MAX)."""
CONFIGURATIONS: dict[tuple[str, str], tuple[Chosen, Chosen, Chosen]] = {
    ("compas", "0.5"): ((0.8, 0.04, 0.1, 0.9), (0.99, 0.05, 0.1, 0.9), (0.99, 0.04, 0.1, 0.9)),
    ("compas", "1.0"): ((0.8, 0.04, 0.5, 0.9), (0.8, 0.05, 0.5, 0.8), (0.99, 0.05, 0.5, 0.9)),
    ("compas", "RND"): ((0.9, 0.05, 0.1, 1.0), (0.9, 0.05, 0.1, 1.0), (0.9, 0.04, 0.1, 1.0)),
    ("adult", "0.5"): ((0.8, 0.05, 0.1, 0.8), (0.99, 0.04, 0.5, 0.8), (0.9, 0.05, 0.1, 0.9)),
    ("adult", "1.0"): ((0.99, 0.04, 0.1, 0.9), (0.8, 0.05, 0.1, 1.0), (0.99, 0.04, 0.1, 0.9)),
    ("adult", "RND"): ((0.99, 0.04, 0.1, 1.0), (0.99, 0.04, 0.1, 1.0), (0.9, 0.05, 0.5, 1.0)),
    ("law", "0.5"): ((0.99, 0.05, 0.5, 1.0), (0.9, 0.04, 0.5, 0.9), (0.99, 0.04, 0.1, 0.8)),
    ("law", "1.0"): ((0.8, 0.05, 0.1, 1.0), (0.9, 0.05, 0.5, 1.0), (0.9, 0.04, 0.5, 1.0)),
    ("law", "RND"): ((0.99, 0.05, 0.5, 1.0), (0.99, 0.05, 0.5, 0.9), (0.99, 0.05, 0.1, 1.0)),
    ("dutch", "0.5"): ((0.99, 0.04, 0.5, 0.8), (0.8, 0.04, 0.1, 0.8), (0.9, 0.04, 0.1, 0.9)),
    ("dutch", "1.0"): ((0.8, 0.04, 0.1, 0.8), (0.8, 0.05, 0.5, 1.0), (0.8, 0.04, 0.1, 1.0)),
    ("dutch", "RND"): ((0.99, 0.05, 0.1, 1.0), (0.99, 0.05, 0.5, 1.0), (0.99, 0.04, 0.1, 1.0)),
}
"""What the authors chose, on test results, for F = SP, EO, EQO."""
GRID = {"beta0": [0.8, 0.9, 0.99], "rho": [0.04, 0.05], "lambda0": [0.1, 0.5], "lambda_max": [0.8, 0.9, 1.0]}
"""The paper's grid, for choosing on validation."""
TRADE_OFF = [0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
"""Values of MAX in Figure 3."""
FEDMOM = {("compas", "1.0"): 0.99, ("adult", "1.0"): 0.99, ("adult", "RND"): 0.99, ("law", "RND"): 0.99}
FEDDEMON = {"law": 0.99, "dutch": 0.99}
"""beta and beta0 where they are not 0.8."""

KNOWN_ERRORS = (
    "The paper's FedDemon rows for sigma 0.5 and 1.0 repeat its RND column, and three more figures of Table 2 are "
    "misprinted; the figures compared with are those of the authors' files, the printed ones are in `printed`.",
    "The published SP is min/max of p/(1+p) instead of p, which looks fairer; any zero count makes a ratio 0; values "
    "are rounded per run. The reading as-published reproduces this, the reading algorithm-1 does not.",
    "The authors chose FAIR-FATE's hyperparameters on test results; --select validation chooses on validation data.",
    "Some published SP = 1.00 rows are near-constant predictors; such runs are counted as degenerate here.",
)

READINGS = ("as-published", "algorithm-1")


@dataclass(frozen=True, kw_only=True)
class FairFateCell(Cell):
    sigma: str
    reading: str
    printed: float = NAN
    """The mean that the paper prints, where its authors' files have another."""

    @property
    def place(self) -> str:
        return f"sigma {self.sigma}"


def arms(dataset: str, sigma: str, reading: str) -> list[Arm]:
    """The table's eleven rows."""
    as_published = reading == "as-published"
    chosen = CONFIGURATIONS[dataset, sigma]
    rows = [
        Arm("FedAvg", FedAvg()),
        Arm("FedMom", FedMom(FEDMOM.get((dataset, sigma), 0.8))),
        Arm("FedDemon", FedDemon(FEDDEMON.get(dataset, 0.8))),
        Arm("FedAvg+LR", FedAvgLR()),
        Arm("FedAvg+GR", FedAvgGR("round" if as_published else "all")),
    ]
    for short, name in NAMES.items():
        rows.append(Arm(f"FedVal ({short})", FedVal(name, as_published)))
    for i, (short, name) in enumerate(NAMES.items()):
        method = FairFate(name, *chosen[i], as_published=as_published)
        rows.append(Arm(f"FAIR-FATE ({short})", method))
    return rows


def federations(dataset: str, sigma: str, seeds: Sequence[int]) -> list[Federation]:
    """The authors' own splits and partitions, from their seeds: 10, 20, ..., the same for all methods.

    They draw with NumPy's legacy generator, so this does too: under heterogeneity the results of ten runs depend more
    on who holds what, and on who takes part in the last rounds, than on anything else.
    """
    encoded, preset, _, hashes = get_dataset(dataset).encode("fair-fate")
    count = CLIENTS[dataset][0]
    fixed: dict[str, Any] = {
        "rows": Rows(encoded.x, encoded.y, encoded.s),
        "client_test": None,
        "ids": tuple(f"{k:02d}" for k in range(count)),
        "classes": encoded.class_names,
        "groups": encoded.group_names,
        "features": encoded.feature_names,
        "name": dataset,
        "provenance": {
            "data": dataset,
            "preset": preset.name,
            "files": hashes,
            "partition": {"kind": "FAIR-FATE's own", "sigma": sigma},
        },
    }
    feds = []
    for seed in seeds:
        train, validation, test = _split(len(encoded.y), seed)
        if sigma == "RND":
            held = list(train[: len(train) // count * count].reshape(count, -1))
        else:
            held = _dirichlet(train, encoded.y, encoded.s, float(sigma), count, seed)
        feds.append(Federation(train=RowSets.of(held), validation=validation, test=test, seed=seed, **fixed))
    return feds


def _split(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """60/20/20: (train, validation, test), as two calls of scikit-learn's train_test_split with one seed."""

    def halves(n: int, share: float) -> tuple[np.ndarray, np.ndarray]:
        order = np.random.RandomState(seed).permutation(n)  # the authors' generator
        cut = int(np.ceil(share * n))
        return order[cut:], order[:cut]

    train, rest = halves(n, 0.4)
    test, validation = halves(len(rest), 0.5)
    return train, rest[validation], rest[test]


def _dirichlet(
    train: np.ndarray, y: np.ndarray, s: np.ndarray, sigma: float, count: int, seed: int
) -> list[np.ndarray]:
    """For the cells (1,1), (1,0), (0,1), (0,0) of (label, group): p ~ Dirichlet(sigma), client k gets round(size p_k)
    rows, the last client the rest."""
    if np.isinf(sigma):
        shares = np.full((4, count), 1 / count)
    else:
        shares = np.random.RandomState(seed).dirichlet(np.full(count, sigma), 4)  # the authors' generator
    parts = []
    for share, (label, group) in zip(shares, ((1, 1), (1, 0), (0, 1), (0, 0)), strict=True):
        cell = train[(y[train] == label) & (s[train] == group)]
        parts.append(np.split(cell, np.cumsum([round(len(cell) * p) for p in share[:-1]])))
    return [np.concatenate(held) for held in zip(*parts, strict=True)]


class AuthorsJob(Job):
    """A job whose cohorts are the authors': `random.randint` until enough different clients are found."""

    def cohorts(self, round: int) -> np.ndarray:
        return np.stack(
            [_cohorts(run.seed, self.rounds, *CLIENTS[run.federation.name])[round - 1] for run in self.runs]
        )


@cache
def _cohorts(seed: int, rounds: int, count: int, per_round: int) -> np.ndarray:
    generator = random.Random(seed)
    chosen = np.empty((rounds, per_round), dtype=np.int64)
    for row in chosen:
        cohort: list[int] = []
        while len(cohort) < per_round:
            client = generator.randint(0, count - 1)
            if client not in cohort:
                cohort.append(client)
        row[:] = sorted(cohort)
    return chosen


def simulation(
    method: Method, feds: list[Federation], rounds: int, over: Mapping[str, Any] | None = None
) -> Simulation:
    """The paper's setting: 10 tanh units, 10 local epochs, batch size 10, SGD with rate 0.01."""
    local = Local(epochs=10, batch_size=10, learning_rate=0.01)
    settings = RunSettings(rounds, CLIENTS[feds[0].name][1], eval_every=max(1, rounds // 20), local=local)
    job = make_job(method, feds, MLP(hidden=(10,), activation="tanh", init=0.05), settings, over=over)
    return Simulation(AuthorsJob(**{field.name: getattr(job, field.name) for field in fields(job)}))


def measured(step: Step, split: str, compat: bool) -> dict[str, np.ndarray]:
    """ACC, SP, EO, EQO of every run, and whether it is degenerate, from the counts of an evaluated round."""
    counts = np.stack([scored[split].counts[0] for scored in step.scores[step.round]])
    accuracy = np.trace(counts, axis1=-2, axis2=-1).sum(-1) / counts.sum((-3, -2, -1))
    disparities = M.disparities(counts, paper_compat="fair-fate" if compat else None)
    values = {"ACC": np.round(accuracy, 2) if compat else accuracy}
    values |= {short: disparities[name] for short, name in NAMES.items()}
    return values | {"degenerate": M.degenerate(counts).any(-1)}


def published_figures(dataset: str, sigma: str) -> dict[tuple[str, ...], tuple[float, ...]]:
    """{(method, fairness or "", metric): (mean, std)} of one data set and heterogeneity."""
    return published("fair_fate", ("method", "fairness", "metric"), ("mean", "std"), dataset=dataset, sigma=sigma)


def cells(dataset: str, sigma: str, arm: Arm, reading: str, last: Step) -> list[FairFateCell]:
    values = measured(last, "test", compat=reading == "as-published")
    theirs, short = published_figures(dataset, sigma), short_name(arm.method)
    key = ("method", "fairness", "metric")
    printed = published("fair_fate", key, ("printed",), dataset=dataset, sigma=sigma)
    row = FairFateCell.row(
        {metric: values[metric] for metric in MEASURES},
        {metric: theirs.get((arm.method.name, short, metric)) for metric in MEASURES},
        their_runs=SEEDS,
        dataset=dataset,
        sigma=sigma,
        method=arm.label,
        reading=reading,
        degenerate=int(values["degenerate"].sum()),
    )
    return [replace(cell, printed=printed.get((arm.method.name, short, cell.metric), (NAN,))[0]) for cell in row]


def short_name(method: Method) -> str:
    """The paper's name of the fairness that a method works on; "" where there is none."""
    return next((short for short, name in NAMES.items() if name == getattr(method, "fairness", "")), "")


# -- choosing hyperparameters on validation data ----------------------------------------------------------------------


def accuracy_floor(feds: list[Federation], rounds: int, watch: Watch) -> float:
    """FedAvg's validation accuracy less 2 points: what a fair setting may cost."""
    sim = simulation(FedAvg(), feds, rounds)
    last = carry_out(sim, "FedAvg, for the accuracy to keep", watch)
    return float(measured(last, "validation", compat=False)["ACC"].mean()) - 0.02


def select_on_validation(
    method: FairFate, feds: list[Federation], rounds: int, floor: float, watch: Watch, grid: Mapping[str, Any] = GRID
) -> FairFate:
    """The setting of the paper's grid with the best validation fairness whose validation accuracy is at least `floor`.

    The whole grid, for all seeds, is one computation. Where no setting keeps the accuracy, the most accurate is taken.
    """
    sim = simulation(method, feds, rounds, over=grid)
    last = carry_out(sim, "grid, chosen on validation", watch)
    values = measured(last, "validation", compat=method.as_published)
    settings = swept_settings(sim)
    accuracy = values["ACC"].reshape(len(settings), -1).mean(1)
    fairness = np.nan_to_num(values[short_name(method)]).reshape(len(settings), -1).mean(1)
    return replace(method, **settings[choose(accuracy, -fairness, floor)])
