"""The SFFL paper's Table 1 and figures: accuracy and equal opportunity of every client, ACS data by state.

SFFL: Self-aware fairness federated learning. Published figures: published.csv, from the paper's Table 1 (whose last
three rows per data set are all labelled alpha = 1000; by its figures they are 1, 10 and 1000).

A client is a state, or a part of a large one where clients outnumber the states at hand. It wants 4,000 rows, with
shares of the four (label, sex) cells drawn from a Dirichlet distribution; 60 % are for training, 40 % for its own test.
Metrics are of each client on its own test rows, averaged over clients. Beside them stands the noise floor: the mean gap
that sampling alone gives on those rows to a model with the same true positive rates but no gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from equifed import partition
from equifed.experiments.base import NAN, Arm, arms_named, of_setting, published
from equifed.federation import Federation, load
from equifed.methods import FCFL, SFFL, FairFed, FedAvg, FedEM
from equifed.metrics.seeds import moments
from equifed.models import Logistic
from equifed.protocol import Method
from equifed.results import Result
from equifed.settings import Local, RunSettings
from equifed.simulation import Simulation
from equifed.simulator import make_job

LOCAL = Local(epochs=2, batch_size=128, learning_rate=0.01)
CLIENTS, ROUNDS, SEEDS = 20, 150, 5
ALPHAS = (0.1, 0.5, 1.0, 10.0, 1000.0)
DATASETS = {
    "acs_income": "the 20 largest of 46 states (all but CA, FL, NY and TX), one client each",
    "acs_employment": "14 small states, the largest of them split for 20 clients",
    "acs_health_insurance": "14 small states, the largest of them split for 20 clients",
}
"""Name -> whose rows."""
EOP = "equal_opportunity_difference"
NO_CLIP = 1e9
"""A weight_clip that never binds."""


@dataclass(frozen=True)
class TableArm(Arm):
    """One method, or several settings of one that share a computation."""

    labels: tuple[str, ...] = ()
    """The name of each setting, where a hyper-parameter is swept."""
    round_factor: float = 1.0
    """Rounds, as a multiple of the others': FCFL's are single gradients."""

    @property
    def settings(self) -> dict[str, dict[str, float]]:
        """{row of the table: its setting}."""
        if not self.labels:
            return {self.label: {}}
        ((name, values),) = self.over.items()
        return {label: {name: value} for label, value in zip(self.labels, values, strict=True)}


def arms(components: int = 3) -> list[TableArm]:
    """The paper's methods; with weights held at n_k / n, SFFL is its ablation "Fair-EM only"."""
    clips = {"Fair-EM only": 1.0, "SFFL": 5.0, "SFFL, no clip": NO_CLIP}
    return [
        TableArm("FedAvg", FedAvg()),
        TableArm("FedEM", FedEM(components)),
        TableArm("FCFL", FCFL(step_size=0.3), round_factor=8 / 3),
        TableArm("FairFed", FairFed(debias="reweighing")),
        TableArm("SFFL", SFFL(components), {"weight_clip": list(clips.values())}, tuple(clips)),
    ]


@dataclass(frozen=True)
class Row:
    """One method on one partition: means over seeds (x 1, not percent); ..._std are over seeds."""

    dataset: str
    alpha: float
    clients: int
    components: int
    method: str
    accuracy: float
    accuracy_std: float
    accuracy_worst: float
    """Of the worst client."""
    accuracy_best: float
    eop: float
    """Mean over clients of |TPR gap|."""
    eop_std: float
    eop_worst: float
    eop_best: float
    floor: float
    """The mean |TPR gap| that sampling alone gives a model with these true positive rates but no gap."""
    global_accuracy: float
    global_eop: float
    """Of all clients' test rows together."""
    published_accuracy: float
    published_accuracy_std: float
    published_eop: float
    published_eop_std: float
    seconds: float
    """Wall time of the call, shared by the settings that ran in it."""


def federations(dataset: str, alpha: float, seeds: Sequence[int], clients: int = CLIENTS) -> list[Federation]:
    dealt = partition.DirichletPerClient(alpha=alpha, natural="STATE", num_partitions=clients)
    return load(dataset, preset="sffl", partition=dealt, seeds=seeds)


def simulation(
    method: Method, feds: Sequence[Federation], rounds: int, over: Mapping[str, Sequence[float]] = {}, every: int = 0
) -> Simulation:
    """every: rounds between evaluations; 0 for the last round only."""
    settings = RunSettings(rounds, "all", eval_every=every or rounds, local=LOCAL)
    return Simulation(make_job(method, feds, Logistic(), settings, over=over))


def rows(alpha: float, arm: TableArm, sim: Simulation, result: Result) -> list[Row]:
    """The rows of an arm that was carried out, one for each of its settings."""
    dataset, clients = sim.job.federation.name, sim.job.federation.num_clients
    components = getattr(arm.method, "components", 1)
    comparable = clients == CLIENTS and components in (1, 3)  # the published figures are of these
    theirs = published_figures() if comparable else {}
    names = ("published_accuracy", "published_accuracy_std", "published_eop", "published_eop_std")
    return [
        Row(
            dataset, alpha, clients, components, label, **measured(sim, result, setting),
            **dict(zip(names, theirs.get((dataset, alpha, label), (NAN,) * 4), strict=True)),
            seconds=result.timings["seconds"],
        )
        for label, setting in arm.settings.items()
    ]  # fmt: skip


def measured(sim: Simulation, result: Result, setting: Mapping[str, float]) -> dict[str, float]:
    """What a Row says of one setting, means over its seeds."""
    final = of_setting(result, setting)
    values: dict[str, float] = {}
    for name, metric in (("accuracy", "accuracy"), ("eop", EOP)):
        values[name], values[f"{name}_std"], _ = moments(final[f"client_{metric}.mean"])
        values |= {f"{name}_{which}": float(final[f"client_{metric}.{which}"].mean()) for which in ("worst", "best")}
        values[f"global_{name}"] = float(final[metric].mean())
    runs = [r for r, run in enumerate(sim.job.runs) if all(np.isclose(run.hyper[n], v) for n, v in setting.items())]
    floors = [
        noise_floor(scores["clients"].counts)
        for number, r, scores in sim.collector.scores
        if number == sim.job.rounds and r in runs
    ]
    return values | {"floor": float(np.mean(floors))}


def noise_floor(counts: np.ndarray) -> float:
    """Mean over clients of the |TPR gap| that is left when the sexes of their positive rows are dealt out at random.

    counts are by client, sex, label and prediction. Of n_0 + n_1 positive rows T are predicted so; how many of those
    fall to the first sex is hypergeometric.
    """
    from scipy.stats import hypergeom

    gaps = []
    positives, predicted = counts[:, :, 1].sum(-1).astype(int), counts[:, :, 1, 1].sum(1).astype(int)
    for (n_0, n_1), right in zip(positives, predicted, strict=True):
        if n_0 and n_1:
            first = np.arange(max(0, right - n_1), min(n_0, right) + 1)
            chance = hypergeom.pmf(first, n_0 + n_1, right, n_0)
            gaps.append(chance @ np.abs(first / n_0 - (right - first) / n_1))
    return float(np.mean(gaps))


def chosen(arms: Sequence[TableArm], labels: Sequence[str] | None) -> list[TableArm]:
    """Arms by their name, or that of one of their settings."""
    return arms_named(arms, labels, {arm.label: arm.labels for arm in arms})


@dataclass(frozen=True)
class Claims:
    """The paper's claims on one partition."""

    dataset: str
    alpha: float
    not_below: list[str]
    """Baselines whose gap is not above SFFL's."""
    accuracy_lost: float
    """FedEM's accuracy less SFFL's."""


BASELINES = ("FedAvg", "FedEM", "FCFL", "FairFed")


def verdicts(rows: Sequence[Row], label: str = "SFFL") -> list[Claims]:
    """Whether SFFL has the smallest gap, and its accuracy against FedEM's, wherever both were run."""
    made = []
    for where in dict.fromkeys((row.dataset, row.alpha) for row in rows):
        by_method = {row.method: row for row in rows if (row.dataset, row.alpha) == where}
        if label in by_method and "FedEM" in by_method:
            gap = by_method[label].eop
            others = [name for name in BASELINES if name in by_method and by_method[name].eop <= gap]
            made.append(Claims(*where, others, by_method["FedEM"].accuracy - by_method[label].accuracy))
    return made


def published_figures() -> dict[tuple[str, float, str], tuple[float, ...]]:
    """{(data set, alpha, method): accuracy, its std, EOP, its std}, as shares."""
    percent = published("sffl", ("dataset", "alpha", "method"), ("accuracy", "accuracy_std", "eop", "eop_std"))
    return {
        (dataset, float(alpha), method): tuple(figure / 100 for figure in figures)
        for (dataset, alpha, method), figures in percent.items()
    }


STEP_SIZES = [0.05, 0.1, 0.3, 0.5]
"""Step sizes of the multipliers in figure 6."""


def agreement(aggregation: np.ndarray, mixture: np.ndarray) -> float:
    """Correlation over clients of both weights [client, component], mean over components; figure 7."""
    pairs = [pair for pair in zip(aggregation.T, mixture.T, strict=True) if min(map(np.std, pair)) > 1e-12]
    return float(np.mean([np.corrcoef(np.stack(pair, -1).T)[0, 1] for pair in pairs])) if pairs else NAN
