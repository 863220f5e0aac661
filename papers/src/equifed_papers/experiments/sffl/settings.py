"""The SFFL paper's Table 1 and figures: accuracy and equal opportunity of every client, ACS data by state.

SFFL: Self-aware fairness federated learning. Published figures: published.csv, from the paper's Table 1 (whose last
three rows per data set are all labelled alpha = 1000; by its figures they are 1, 10 and 1000; of ACSHealthInsurance
only four rows are legible, taken for the first four) and from its text about Figure 4 (10 and 50 clients; it names no
data set, and only ACSIncome's 20 clients of Table 1 lie between).

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
from equifed.federation import Federation, load
from equifed.methods import FCFL, SFFL, FairFed, FedAvg, FedEM
from equifed.models import Logistic
from equifed.protocol import Method
from equifed.results import Result
from equifed.settings import Local, RunSettings
from equifed.simulation import Simulation
from equifed.simulator import make_job
from equifed_papers.experiments.base import NAN, Arm, Cell, arms_named, of_setting, published

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
METRICS = ("accuracy", EOP)
NO_CLIP = 1e9
"""A weight_clip that never binds."""


@dataclass(frozen=True)
class SharingArm(Arm):
    """One method, or several settings of one that share a computation."""

    labels: tuple[str, ...] = ()
    """The name of each setting, where a hyperparameter is swept."""

    @property
    def settings(self) -> dict[str, dict[str, float]]:
        """{row of the table: its setting}."""
        if not self.labels:
            return {self.label: {}}
        ((name, values),) = self.over.items()
        return {label: {name: value} for label, value in zip(self.labels, values, strict=True)}


def arms(components: int = 3) -> list[SharingArm]:
    """The paper's methods; with weights held at n_k / n, SFFL is its ablation "Fair-EM only"."""
    clips = {"Fair-EM only": 1.0, "SFFL": 5.0, "SFFL, no clip": NO_CLIP}
    return [
        SharingArm("FedAvg", FedAvg()),
        SharingArm("FedEM", FedEM(components)),
        SharingArm("FCFL", FCFL(step_size=0.3), round_factor=8 / 3),  # its rounds are single gradients
        SharingArm("FairFed", FairFed(debias="reweighing")),
        SharingArm("SFFL", SFFL(components), {"weight_clip": list(clips.values())}, tuple(clips)),
    ]


@dataclass(frozen=True, kw_only=True)
class ClientCell(Cell):
    """One number of one method on one partition: the mean over clients, then over seeds (x 1, not percent)."""

    alpha: float
    clients: int
    components: int
    worst: float
    """Of the worst client, mean over seeds."""
    best: float
    pooled: float
    """Of all clients' test rows together."""
    floor: float
    """The mean |TPR gap| that sampling alone gives a model with these true positive rates but no gap."""
    seconds: float
    """Wall time of the call, shared by the settings that ran in it."""

    @property
    def place(self) -> str:
        return f"alpha {self.alpha:g}, {self.clients} clients"


def federations(dataset: str, alpha: float, seeds: Sequence[int], clients: int = CLIENTS) -> list[Federation]:
    dealt = partition.DirichletPerClient(alpha=alpha, natural="STATE", num_partitions=clients)
    return load(dataset, preset="sffl", partition=dealt, seeds=seeds)


def simulation(
    method: Method, feds: Sequence[Federation], rounds: int, over: Mapping[str, Sequence[float]] = {}, every: int = 0
) -> Simulation:
    """every: rounds between evaluations; 0 for the last round only."""
    settings = RunSettings(rounds, "all", eval_every=every or rounds, local=LOCAL)
    return Simulation(make_job(method, feds, Logistic(), settings, over=over))


def cells(alpha: float, arm: SharingArm, sim: Simulation, result: Result) -> list[list[ClientCell]]:
    """Accuracy and EOP of an arm that was carried out, for each of its settings."""
    dataset, clients = sim.job.federation.name, sim.job.federation.num_clients
    components = getattr(arm.method, "components", 1)
    comparable = components in (1, 3)  # the published figures are of these
    theirs = published_figures() if comparable else {}
    made = []
    for label, setting in arm.settings.items():
        final, floor = of_setting(result, setting), mean_floor(sim, setting)
        row = []
        for metric in METRICS:
            own = f"client_{metric}"
            row += ClientCell.row(
                {metric: final[f"{own}.mean"]},
                {metric: theirs.get((dataset, alpha, clients, label, metric))},
                their_runs=SEEDS,
                dataset=dataset,
                method=label,
                alpha=alpha,
                clients=clients,
                components=components,
                worst=float(final[f"{own}.worst"].mean()),
                best=float(final[f"{own}.best"].mean()),
                pooled=float(final[metric].mean()),
                floor=floor if metric == EOP else NAN,
                seconds=result.timings["seconds"],
            )
        made.append(row)
    return made


def mean_floor(sim: Simulation, setting: Mapping[str, float]) -> float:
    """The noise floor of one setting, mean over its seeds."""
    runs = [r for r, run in enumerate(sim.job.runs) if all(np.isclose(run.hyper[n], v) for n, v in setting.items())]
    floors = [
        noise_floor(scores["clients"].counts)
        for number, r, scores in sim.collector.scores
        if number == sim.job.rounds and r in runs
    ]
    return float(np.mean(floors))


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


def chosen(arms: Sequence[SharingArm], labels: Sequence[str] | None) -> list[SharingArm]:
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


def verdicts(cells: Sequence[ClientCell], label: str = "SFFL") -> list[Claims]:
    """Whether SFFL has the smallest gap, and its accuracy against FedEM's, wherever both were run."""
    made = []
    for where in dict.fromkeys((cell.dataset, cell.alpha) for cell in cells):
        there = [cell for cell in cells if (cell.dataset, cell.alpha) == where]
        accuracy, eop = ({cell.method: cell.mean for cell in there if cell.metric == metric} for metric in METRICS)
        if label in eop and "FedEM" in eop:
            others = [name for name in BASELINES if name in eop and eop[name] <= eop[label]]
            made.append(Claims(*where, others, accuracy["FedEM"] - accuracy[label]))
    return made


def published_figures() -> dict[tuple[str, float, int, str, str], tuple[float, float]]:
    """{(data set, alpha, clients, method, metric): mean and std}, as shares; a std that was not published is nan."""
    key = ("dataset", "alpha", "clients", "method", "metric")
    percent = published("sffl", key, ("mean", "std"))
    return {
        (dataset, float(alpha), int(clients), method, metric): (mean / 100, std / 100)
        for (dataset, alpha, clients, method, metric), (mean, std) in percent.items()
    }


STEP_SIZES = [0.05, 0.1, 0.3, 0.5]
"""Step sizes of the multipliers in figure 6."""


def agreement(aggregation: np.ndarray, mixture: np.ndarray) -> float:
    """Correlation over clients of both weights [client, component], mean over components; figure 7."""
    pairs = [pair for pair in zip(aggregation.T, mixture.T, strict=True) if min(map(np.std, pair)) > 1e-12]
    return float(np.mean([np.corrcoef(np.stack(pair, -1).T)[0, 1] for pair in pairs])) if pairs else NAN
