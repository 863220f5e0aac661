"""E2FL's experiments on FairMNISTRotate: digits turned by an angle that depends on the client's group.

table1:  equality between clients, equity between groups and bytes, of E2FL and its baselines with known groups.
table5:  how well clustering the clients' first rankings finds their groups, by the layers it looks at.
figure4: how often clients find their group among the groups' masks, over the rounds.

The paper's federation has 1,000 clients in 10 groups and a LeNet, and takes a GPU; the small one, 100 clients in 4
groups and a few strided convolutions, runs on a CPU. Published figures: e2fl_tables.csv.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from equifed import partition, tree
from equifed.errors import ConfigError, unknown_name
from equifed.experiments.running import Watch, carry_out
from equifed.federation import Federation, RowSets, load
from equifed.methods import E2FL, FRL, IFCA, QFFL, FedAvg, LocalTraining
from equifed.methods.e2fl import BY_CLIENT, infer, rank_clusters, ranking_and_rows
from equifed.methods.frl import Server as RankServer
from equifed.methods.frl import start
from equifed.metrics.frame import metrics_frame
from equifed.models import LeNet
from equifed.protocol import Data, Method, Phase, Record, Task
from equifed.protocol import LocalTraining as Train
from equifed.settings import Local, RunSettings
from equifed.simulator import Result, Simulation, Step, make_job
from equifed.simulator.evaluate import Evaluator
from equifed.simulator.job import Job
from equifed.simulator.tables import make_tables
from equifed.tree import Tree

ROUNDS = 3000
SEEDS = 5
SUMMARIES = tuple(f"{what}.{part}" for what in ("group_equity", "client_equality")
                  for part in ("mean", "worst10", "best10", "variance"))  # fmt: skip


@dataclass(frozen=True)
class Size:
    """One federation with its network."""

    clients_per_group: tuple[int, ...]
    model: Any
    layers: tuple[str, ...]
    """Names of the layers, in order."""
    rank_rate: float
    """Learning rate of methods that train scores."""
    rate: float
    """Learning rate of methods that train weights."""


@dataclass(frozen=True)
class SmallConv:
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

    def initialise(self, module: nn.Module, rng: np.random.Generator) -> dict[str, Tensor]:
        return LeNet().initialise(module, rng)


SIZES = {
    "full": Size(
        partition.RotationGroups().clients_per_group,
        LeNet(),
        ("Conv1", "Conv2", "FC1", "FC2"),
        rank_rate=0.1,
        rate=0.01,
    ),
    "small": Size((6, 14, 55, 25), SmallConv(), ("Conv1", "Conv2", "FC"), rank_rate=0.1, rate=0.01),
}
"""By the name that --datasets takes."""
PER_ROUND = 25


def size_of(name: str) -> Size:
    if name not in SIZES:
        raise ConfigError(unknown_name("size of FairMNISTRotate", name, SIZES))
    return SIZES[name]


def local(rate: float) -> Local:
    return Local(epochs=2, batch_size=8, learning_rate=rate, momentum=0.9, weight_decay=1e-4)


def federations(size: Size, seeds: Sequence[int]) -> list[Federation]:
    """Clients are scored on their group's turned test images; a common test set would say nothing more."""
    dealt = partition.RotationGroups(size.clients_per_group)
    feds = load("mnist", preset="e2fl", partition=dealt, seeds=seeds)
    return [dataclasses.replace(fed, test=fed.test[:0]) for fed in feds]


def simulation(method: Method, feds: list[Federation], size: Size, rounds: int, eval_every: int) -> Simulation:
    ranks = isinstance(method, FRL | E2FL)
    training = local(size.rank_rate if ranks else size.rate)
    settings = RunSettings(rounds, min(PER_ROUND, feds[0].num_clients), eval_every=eval_every, local=training)
    return Simulation(make_job(method, feds, size.model, settings))


# -- table 1 -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arm:
    label: str
    """As in the paper, where it is there."""
    method: Method
    factor: int = 1
    """Rounds, as a multiple of the others': the paper gives q-FFL twice as many."""


class Row(NamedTuple):
    """One method of the table: mean and sample deviation over seeds, in percent (variances in its square)."""

    method: str
    rounds: int
    means: dict[str, float]
    deviations: dict[str, float]
    published: dict[str, float]
    mib_up: float
    mib_down: float
    found: float
    """Share of clients that are with their own group, after matching inferred groups to true ones; nan where known."""
    seconds_per_round: float


def arms(size: Size) -> list[Arm]:
    groups = len(size.clients_per_group)
    return [
        Arm("Local training", LocalTraining()),
        Arm("FedAvg", FedAvg()),
        Arm("IFCA", IFCA(groups, known=True)),
        Arm("q-FFL", QFFL(0.1), factor=2),
        Arm("FRL", FRL()),
        Arm("E2FL", E2FL()),
        Arm("E2FL (lowest loss)", E2FL(groups="lowest-loss", num_groups=groups)),
        Arm("E2FL (rank clustering)", E2FL(groups="rank-clustering", num_groups=groups)),
    ]


DEFAULT = ("Local training", "FedAvg", "IFCA", "q-FFL", "E2FL")
"""The paper's rows."""


def chosen(size: Size, labels: Sequence[str] | None) -> list[Arm]:
    """Arms by their name in the table or in the registry."""
    rows = {arm.label.lower(): arm for arm in arms(size)}
    names = {arm.method.name: label for label, arm in reversed(rows.items())}
    for label in labels or ():
        if label.lower() not in {*rows, *names}:
            raise ConfigError(unknown_name("method of the table", label, [*rows, *names]))
    wanted = {names.get(label.lower(), label.lower()) for label in (labels or DEFAULT)}
    return [arm for label, arm in rows.items() if label in wanted]


def table1(
    name: str, labels: Sequence[str] | None, seeds: int, rounds: int, watch: Watch, eval_every: int | None = None
) -> Iterator[tuple[list[Row], Result]]:
    """Every method in turn; E2FL gives two rows, with the groups' rankings and with the global one (GM)."""
    size = size_of(name)
    theirs = published(1)
    feds = federations(size, range(seeds))
    for arm in chosen(size, labels):
        sim = simulation(arm.method, feds, size, rounds * arm.factor, eval_every or rounds * arm.factor)
        step = carry_out(sim, watch(f"FairMNISTRotate ({name}) {arm.label}", sim))
        result = sim.result()
        found = np.nan
        if isinstance(arm.method, E2FL) and arm.method.groups != "known":
            found = float(np.mean([matched_accuracy(*_groups(sim, step, run)) for run in range(len(feds))]))
        rows = [row(arm.label, result.final(), result, theirs, found)]
        if arm.label == "E2FL":
            rows.append(row("E2FL (GM)", _final_with_global_ranking(sim, step), result, theirs, np.nan))
        yield rows, result


def row(label: str, final: Any, result: Result, theirs: dict[tuple[str, str], float], found: float) -> Row:
    scale = {name: 1e4 if name.endswith("variance") else 100.0 for name in SUMMARIES}
    values = {name: final[name].to_numpy() * scale[name] for name in SUMMARIES}
    per_round = result.messages[result.messages["stage"] == "round"]
    return Row(
        label,
        int(result.info["rounds"]),
        {name: float(value.mean()) for name, value in values.items()},
        {name: float(value.std(ddof=1)) if len(value) > 1 else np.nan for name, value in values.items()},
        {name: theirs[label, name] for name in SUMMARIES if (label, name) in theirs},
        per_round["bytes_up"].sum() / 2**20,
        per_round["bytes_down"].sum() / 2**20,
        found,
        float(result.timings["seconds_per_round"]),
    )


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


def matched_accuracy(found: np.ndarray, truth: np.ndarray) -> float:
    """Share of clients in the right group, inferred groups being named after true ones so that it is largest."""
    table = np.zeros((max(found.max(), 0) + 1, truth.max() + 1), dtype=int)
    np.add.at(table, (found[found >= 0], truth[found >= 0]), 1)

    @cache
    def best(row: int, taken: int) -> int:
        """The most clients that the inferred groups from `row` on can get right with the true groups not taken."""
        if row == len(table):
            return 0
        free = [column for column in range(table.shape[1]) if not taken >> column & 1]
        named = [int(table[row, column]) + best(row + 1, taken | 1 << column) for column in free]
        return max([best(row + 1, taken), *named])  # an inferred group may be nobody's

    return best(0, 0) / len(truth)


def published(table: int) -> dict[tuple[str, str], float]:
    """{(row, figure): value} of one of the paper's tables."""
    text = files("equifed.experiments.e2fl").joinpath("published.csv").read_text(encoding="utf-8")
    return {
        (line["row"], line["figure"]): float(line["value"])
        for line in csv.DictReader(text.splitlines())
        if line["table"] == str(table)
    }


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
                lambda all_of, some: all_of.index_put((replies["client"],), some), server.rankings, replies["ranking"]
            )
            return server._replace(rankings=put)

        train = Train(ranking_and_rows, FRL().loss, start)
        return (Phase("rank", ("R",), ("ranking", "rows"), train, keep, initial=True),)

    def init(self, task: Task, parameters: Tree) -> Collected:
        network = FRL().init(task, parameters)
        many = task.num_clients
        return Collected(network, network.R, tree.map(lambda order: order.new_zeros(many, len(order)), network.R))

    def predict(self, task: Task, server: Collected, client: Tree, x: Tensor) -> Tensor:
        return task.predict(server.network.theta, x)


AT_ONCE = 100
"""Clients trained together for their first rankings: a thousand LeNets with all that training needs are too many."""


def first_rankings(fed: Federation, size: Size, watch: Watch) -> Tree:
    """Each layer's rankings [N, n], clients in the order of their names."""
    order = np.argsort(np.asarray(fed.ids, dtype=str), kind="stable")
    parts = []
    for begin in range(0, len(order), AT_ONCE):
        members = order[begin : begin + AT_ONCE]
        some = dataclasses.replace(
            fed,
            train=RowSets.of([fed.train[k] for k in members]),
            client_test=None,
            ids=tuple(fed.ids[k] for k in members),
            client_groups=None,
        )
        sim = Simulation(
            make_job(FirstRankings(), some, size.model, RunSettings(1, "all", local=local(size.rank_rate)))
        )
        step = carry_out(sim, watch(f"rankings of clients {begin + 1} to {begin + len(members)}", sim))
        parts.append(tree.map(lambda leaf: leaf[0].cpu(), step.state.server.rankings))
    return tree.map(lambda *leaves: torch.cat(leaves), *parts)


class LayerRow(NamedTuple):
    layer: str
    edges: int
    mean: float
    """Percent of clients in the right cluster, over seeds."""
    deviation: float
    published: float


def table5(name: str, seeds: int, watch: Watch) -> list[LayerRow]:
    """Clusters from one layer's rankings, and from all layers'."""
    size = size_of(name)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    theirs = published(5) if name == "full" else {}
    found: dict[str, list[float]] = {}
    edges: dict[str, int] = {}
    for fed in federations(size, range(seeds)):
        assert fed.client_groups is not None
        truth = fed.client_groups[np.argsort(np.asarray(fed.ids, dtype=str), kind="stable")]
        each = list(first_rankings(fed, size, watch).values())
        views = {**{layer: [leaf] for layer, leaf in zip(size.layers, each, strict=True)}, "ALL": each}
        for layer, leaves in views.items():
            there = torch.ones(len(truth), dtype=torch.bool, device=device)
            rankings = {str(i): leaf.to(device) for i, leaf in enumerate(leaves)}
            groups = rank_clusters(rankings, there, len(size.clients_per_group)).cpu().numpy()
            found.setdefault(layer, []).append(100 * matched_accuracy(groups, truth))
            edges[layer] = sum(leaf.shape[1] for leaf in leaves)
    return [
        LayerRow(
            layer, edges[layer], float(np.mean(values)), float(np.std(values, ddof=1)) if seeds > 1 else np.nan,
            theirs.get((layer, "accuracy"), np.nan),
        )
        for layer, values in found.items()
    ]  # fmt: skip


# -- figure 4 ----------------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    seed: int
    round: int
    how: str
    accuracy: float
    """Share of all clients that find their own group."""


def figure4(name: str, seeds: int, rounds: int, every: int, watch: Watch) -> Iterator[Point]:
    """The groups' masks are those of E2FL with known groups, so that there is a right answer; every client looks for
    its group among them in each way."""
    size = size_of(name)
    feds = federations(size, range(seeds))
    sim = simulation(E2FL(), feds, size, rounds, rounds)
    tell = watch(f"FairMNISTRotate ({name}) E2FL", sim)
    tables = make_tables(sim.job)
    for step in sim.rounds():
        tell(step)
        if step.round % every == 0 or step.round == rounds:
            for run, fed in enumerate(feds):
                assert fed.client_groups is not None
                server = tree.take(step.state.server, run)
                for how in BY_CLIENT:
                    found = inferred(how, server, fed, sim.job.task, tables, run)
                    yield Point(sim.job.runs[run].seed, step.round, how, float((found == fed.client_groups).mean()))


def inferred(how: str, server: Any, fed: Federation, task: Task, tables: Any, run: int) -> np.ndarray:
    """The group that each client finds by its training rows, all clients having equally many."""
    device = tables.x.device
    rows = tables.rows_of(np.stack([fed.train[k] for k in range(fed.num_clients)]), run)  # [N, n]

    def one(x: Tensor, y: Tensor, s: Tensor) -> Tensor:
        mask = torch.ones(x.shape[0], device=device)
        return infer(how, server.M_q, server.w, Data(x, y, s, mask, task))

    parts = []
    with torch.no_grad():
        for some in rows.split(20):
            x = tables.features(some.reshape(-1), run).reshape(*some.shape, *fed.shape)
            parts.append(vmap(one)(x, tables.y[some], tables.s[some]))
    return torch.cat(parts).cpu().numpy()
