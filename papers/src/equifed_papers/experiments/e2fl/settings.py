"""E2FL's experiments on FairMNISTRotate: digits turned by an angle that depends on the client's group. Those on Adult
and FEMNIST are in `adult` and `femnist`.

table1:  equality between clients, equity between groups and bytes, of E2FL and its baselines with known groups.
table5:  how well clustering the clients' first rankings finds their groups, by the layers it looks at.
figure4: how often clients find their group among the groups' masks, over the rounds.

The paper's federation has 1,000 clients in 10 groups and a LeNet, and takes a GPU; the small one, 100 clients in 4
groups and a few strided convolutions, runs on a CPU. How many images a client has the paper does not say;
docs/methods/e2fl.md has the reasons for ours. Published figures: published.csv.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.func import vmap

from equifed import partition, tree
from equifed.data.sets.mnist import FAIR_MNIST_ROTATE
from equifed.federation import Federation, RowSets, load
from equifed.methods import E2FL, FRL, IFCA, QFFL, FedAvg, LocalOnly
from equifed.methods.e2fl import rank_clusters, ranking_and_rows
from equifed.methods.frl import Server as RankServer
from equifed.methods.frl import start
from equifed.metrics.frame import metrics_frame
from equifed.metrics.seeds import moments
from equifed.models import LeNet
from equifed.protocol import Data, LocalTraining, Method, Phase, Record, Task
from equifed.results import Result
from equifed.settings import KernelName, Local, RunSettings
from equifed.simulation import Simulation
from equifed.simulator import Evaluator, Job, Step, make_job, make_tables
from equifed.tree import Tree
from equifed_papers.experiments.base import NAN, Arm, Cell, Watch, arms_named, carry_out, published, unwatched

DATASET = "fair-mnist-rotate"
ROUNDS = 3000
SEEDS = 5
GROUPS, CLIENTS = (
    tuple(f"{what}.{part}" for part in ("mean", "worst10", "best10", "variance"))
    for what in ("group_equity", "client_equality")
)
SUMMARIES = (*GROUPS, *CLIENTS)
CLUSTERING_SEEDS = 10
"""Of table 5."""


@dataclass(frozen=True)
class Size:
    """One federation with its network."""

    partition: partition.RotationGroups
    model: Any
    layers: tuple[str, ...]
    """Names of the layers, in order."""
    kernel: KernelName = "auto"

    @property
    def groups(self) -> int:
        return len(self.partition.clients_per_group)


@dataclass(frozen=True)
class SmallConv(LeNet):
    """Two 3x3 convolutions of stride 2 and a linear layer, without biases: 20,432 edges for 28x28 images."""

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(shape[0], 16, 3, stride=2, padding=1, bias=False),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 7 * 7, outputs, bias=False),
        )


SIZES = {
    # quicker on a GPU: docs/simulator.md
    "full": Size(FAIR_MNIST_ROTATE, LeNet(), ("Conv1", "Conv2", "FC1", "FC2"), "compiled"),
    "small": Size(partition.RotationGroups((6, 14, 55, 25)), SmallConv(), ("Conv1", "Conv2", "FC")),
}
"""By the name that --datasets takes."""
PER_ROUND = 25
SCORES = Local(epochs=2, batch_size=8, learning_rate=0.1, momentum=0.9, weight_decay=1e-4)
"""Of methods that train scores."""
WEIGHTS = dataclasses.replace(SCORES, learning_rate=0.01)
"""Of methods that train weights."""


def federations(size: Size, seeds: Sequence[int]) -> list[Federation]:
    """Clients are scored on their group's turned test images; a common test set would say nothing more."""
    feds = load("mnist", preset="e2fl", partition=size.partition, seeds=seeds)
    return [dataclasses.replace(fed, test=fed.test[:0]) for fed in feds]


def simulation(method: Method, feds: list[Federation], size: Size, rounds: int, eval_every: int) -> Simulation:
    training = SCORES if isinstance(method, FRL | E2FL) else WEIGHTS
    clients = min(PER_ROUND, feds[0].num_clients)
    settings = RunSettings(rounds, clients, eval_every=eval_every, local=training, kernel=size.kernel)
    return Simulation(make_job(method, feds, size.model, settings))


# -- table 1 -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One method of the table: mean and sample deviation over seeds, in percent (variances in its square)."""

    method: str
    rounds: int
    means: dict[str, float]
    deviations: dict[str, float]
    published: dict[str, float]
    mib_up: float
    mib_down: float
    group_accuracy: float
    """Share of clients that are with their own group, after matching inferred groups to true ones; nan where known."""
    seconds_per_round: float
    values: dict[str, list[float]]
    """Of every seed."""

    @property
    def cells(self) -> list[Cell]:
        """Beside the published numbers, which have no deviations."""
        theirs = {name: (value, NAN) for name, value in self.published.items()}
        return Cell.row(self.values, theirs, their_runs=SEEDS, dataset=DATASET, method=self.method)


def arms(size: Size) -> list[Arm]:
    groups = size.groups
    return [
        Arm("Local training", LocalOnly()),
        Arm("FedAvg", FedAvg()),
        Arm("IFCA", IFCA(groups, known=True)),
        Arm("q-FFL", QFFL(0.1), round_factor=2),  # as the paper
        Arm("FRL", FRL()),
        Arm("E2FL", E2FL()),
        Arm("E2FL (lowest loss)", E2FL(groups="lowest-loss", num_groups=groups)),
        Arm("E2FL (rank clustering)", E2FL(groups="rank-clustering", num_groups=groups)),
    ]


PAPER_ROWS = ("Local training", "FedAvg", "IFCA", "q-FFL", "E2FL")


def chosen(size: Size, labels: Sequence[str] | None) -> list[Arm]:
    """The paper's rows, or those that are named; E2FL with inferred groups only by the row's own name."""
    names = labels or PAPER_ROWS
    inferred = {arm.label for arm in arms(size) if arm.label.startswith("E2FL (")}
    lower = {name.lower() for name in names}
    return [arm for arm in arms_named(arms(size), names) if arm.label not in inferred or arm.label.lower() in lower]


def rows(arm: Arm, sim: Simulation, step: Step, result: Result) -> list[Row]:
    """One row, but two of E2FL: with the groups' rankings and with the global one (GM)."""
    shares = [NAN]
    if isinstance(arm.method, E2FL) and arm.method.groups != "known":
        shares = [matched_accuracy(*_groups(sim, step, run)) for run in range(len(sim.job.runs))]
    made = [row(arm.label, result.final(), result, float(np.mean(shares)))]
    if arm.label == "E2FL":
        made.append(row("E2FL (GM)", _final_with_global_ranking(sim, step), result, NAN))
    return made


def row(label: str, final: Any, result: Result, group_accuracy: float) -> Row:
    by_seed = scaled(final, SUMMARIES)
    values = {name: moments(sample) for name, sample in by_seed.items()}
    return Row(
        label,
        result.settings.rounds,
        {name: value.mean for name, value in values.items()},
        {name: value.std for name, value in values.items()},
        {figure: value for (row, figure), value in published_figures(1).items() if row == label},
        **mib(result),
        group_accuracy=group_accuracy,
        seconds_per_round=float(result.timings["seconds_per_round"]),
        values=by_seed,
    )


def scaled(final: Any, summaries: Sequence[str]) -> dict[str, list[float]]:
    """Final metrics of every seed in percent, variances in its square."""
    return {name: (final[name].to_numpy() * (1e4 if name.endswith("variance") else 100)).tolist() for name in summaries}


def byte_cells(label: str, method: Method, table: int, dataset: str, classes: int, groups: int) -> list[Cell]:
    """What a client of the paper's network sends and receives in a round, which does not depend on its rows: recorded
    in a round of two clients with an image of each class. The paper prints three digits."""
    rng = np.random.default_rng(0)
    rows = [(rng.random((classes, 1, 28, 28), np.float32), np.arange(classes), np.zeros(classes, int)) for _ in "ab"]
    fed = Federation.from_arrays(rows, client_tests=rows, client_groups=[0, groups - 1])
    sim = Simulation(make_job(method, fed, LeNet(), RunSettings(1, "all", local=Local(batch_size=classes))))
    carry_out(sim, f"Bytes of {label}", unwatched)
    theirs = published_figures(table)
    return [
        Cell.counted(name, value, theirs[label, name], 2 if value < 10 else 1, dataset=dataset, method=label)
        for name, value in mib(sim.result()).items()
    ]


def mib(result: Result) -> dict[str, float]:
    """What a client sends and receives in a round, in MiB, which the paper calls MB."""
    per_round = result.messages[result.messages["stage"] == "round"]
    return {f"mib_{way}": float(per_round[f"bytes_{way}"].sum()) / 2**20 for way in ("up", "down")}


def with_global_ranking(job: Job) -> Job:
    """E2FL (GM): clients predict with the global ranking."""
    assert isinstance(job.method, E2FL)
    return dataclasses.replace(job, method=job.method.with_hyper(use="global"))


def _final_with_global_ranking(sim: Simulation, step: Step) -> Any:
    """The same state, scored with the global ranking: the final metrics, a row per seed."""
    job = with_global_ranking(sim.job)
    evaluator = Evaluator(job, make_tables(job))
    with torch.no_grad():
        scores = [(step.round, run, evaluator.score(step.state, run)) for run in range(len(job.runs))]
    frame = metrics_frame(scores, job.runs[0].federation, job.labels)
    wide = frame[frame["scope"] == "global"].astype({"metric": str})
    return wide.pivot(index="seed", columns="metric", values="value")


def _groups(sim: Simulation, step: Step, run: int) -> tuple[np.ndarray, np.ndarray]:
    """(found, true) group of each client."""
    truth = sim.job.runs[run].federation.client_groups
    assert truth is not None
    return tree.take(step.state.clients, run).group.cpu().numpy(), truth


def matched_accuracy(inferred_groups: np.ndarray, truth: np.ndarray) -> float:
    """Share of clients in the right group, inferred groups being named after true ones so that it is largest."""
    table = np.zeros((max(inferred_groups.max(), 0) + 1, truth.max() + 1), dtype=int)
    np.add.at(table, (inferred_groups[inferred_groups >= 0], truth[inferred_groups >= 0]), 1)
    rows, columns = linear_sum_assignment(table, maximize=True)  # an inferred group may be nobody's
    return float(table[rows, columns].sum()) / len(truth)


def published_figures(table: int, place: str = "") -> dict[tuple[str, ...], float]:
    """{(row, figure): value} of one of the paper's tables, or of one place in it, as `Cell.place` names it."""
    figures = published("e2fl", ("row", "figure"), ("value",), table=str(table), place=place)
    return {key: value for key, (value,) in figures.items()}


# -- table 5 -----------------------------------------------------------------------------------------------------------


class Collected(NamedTuple):
    network: RankServer
    R: Tree
    """R_g, with which all start."""
    rankings: Tree
    """The clients' rankings [N, n]."""


@dataclass(frozen=True)
class FirstRankings(Method):
    """Every client's ranking after training once from the start, as rank clustering collects them."""

    name: ClassVar[str] = "first-rankings"

    @property
    def round(self) -> tuple[Phase, ...]:
        def keep(server: Collected, replies: Record, validation: Data | None) -> Collected:
            put = tree.map(
                lambda rankings, replied: rankings.index_put((replies["client"],), replied),
                server.rankings,
                replies["ranking"],
            )
            return server._replace(rankings=put)

        train = LocalTraining(ranking_and_rows, FRL().loss, start)
        return (Phase("rank", ("R",), ("ranking", "rows"), train, keep, initial=True),)

    def init(self, task: Task, parameters: Tree) -> Collected:
        network = FRL().init(task, parameters)
        clients = task.num_clients
        return Collected(network, network.R, tree.map(lambda order: order.new_zeros(clients, len(order)), network.R))

    def predict(self, task: Task, server: Collected, client: Tree, x: Tensor) -> Tensor:
        return task.predict(server.network.theta, x)


def edge_cells() -> list[Cell]:
    """How many edges each layer of the paper's network has, and all of them."""
    full, theirs = SIZES["full"], published_figures(5)
    edges = [parameter.numel() for parameter in full.model.build((1, 28, 28), 10).parameters()]
    return [
        Cell.counted("edges", count, theirs[layer, "edges"], 0, dataset=DATASET, method=layer)
        for layer, count in zip((*full.layers, "ALL"), (*edges, sum(edges)), strict=True)
    ]


AT_ONCE = 100
"""Clients trained together for their first rankings: a thousand LeNets with all that training needs are too many."""


def first_rankings(fed: Federation, size: Size, watch: Watch) -> Tree:
    """Each layer's rankings [N, n], clients in the order of their names."""
    order = np.argsort(np.asarray(fed.ids, dtype=str), kind="stable")
    parts = []
    for begin in range(0, len(order), AT_ONCE):
        members = order[begin : begin + AT_ONCE]
        batch = dataclasses.replace(
            fed,
            train=RowSets.of([fed.train[k] for k in members]),
            client_test=None,
            ids=tuple(fed.ids[k] for k in members),
            client_groups=None,
        )
        sim = Simulation(make_job(FirstRankings(), batch, size.model, RunSettings(1, "all", local=SCORES)))
        step = carry_out(sim, f"rankings of clients {begin + 1} to {begin + len(members)}", watch)
        parts.append(tree.map(lambda leaf: leaf[0].cpu(), step.state.server.rankings))
    return tree.map(lambda *leaves: torch.cat(leaves), *parts)


def clustered(fed: Federation, size: Size, watch: Watch) -> dict[str, tuple[int, float]]:
    """Edges, and percent of clients in the right cluster: of each layer's rankings, and of all layers'."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    assert fed.client_groups is not None
    truth = fed.client_groups[np.argsort(np.asarray(fed.ids, dtype=str), kind="stable")]
    rankings = {name: leaf.to(device) for name, leaf in first_rankings(fed, size, watch).items()}
    views = {layer: {name: leaf} for layer, (name, leaf) in zip(size.layers, rankings.items(), strict=True)}
    made = {}
    for layer, leaves in (views | {"ALL": rankings}).items():
        present = torch.ones(len(truth), dtype=torch.bool, device=device)
        groups = rank_clusters(leaves, present, size.groups).cpu().numpy()
        made[layer] = sum(leaf.shape[1] for leaf in leaves.values()), 100 * matched_accuracy(groups, truth)
    return made


# -- figure 4 ----------------------------------------------------------------------------------------------------------


def inferred(
    infer: Callable[..., Tensor], server: Any, fed: Federation, task: Task, tables: Any, run: int
) -> np.ndarray:
    """The group that each client finds by its training rows, all clients having equally many."""
    device = tables.x.device
    rows = tables.rows_of(np.stack([fed.train[k] for k in range(fed.num_clients)]), run)  # [N, n]

    def one(x: Tensor, y: Tensor, s: Tensor) -> Tensor:
        mask = torch.ones(x.shape[0], device=device)
        return infer(server.M_q, server.w, Data(x, y, s, mask, task))

    parts = []
    with torch.no_grad():
        for part in rows.split(20):
            x = tables.features(part.reshape(-1), run).reshape(*part.shape, *fed.shape)
            parts.append(vmap(one)(x, tables.y[part], tables.s[part]))
    return torch.cat(parts).cpu().numpy()
