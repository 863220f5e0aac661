"""E2FL's Tables 2 and 6: FEMNIST, whose clients are writers, and where no group of writers is known.

table2: equality between writers and bytes of E2FL, which infers groups in three ways, and its baselines.
table6: equity between the groups that clustering rankings finds, and equality between writers, by the number of groups.

The files are not equifed's to give (see `equifed.load_femnist`); all but the bytes was tried on a stand-in of a few
writers in the files' format only. Sizes and their networks are those of FairMNISTRotate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from equifed import tree
from equifed.data.sets.femnist import CLASSES
from equifed.federation import Federation, load_femnist
from equifed.methods import E2FL, QFFL, FedAvg, LocalOnly
from equifed.metrics import client_equality, group_equity
from equifed.protocol import Method
from equifed.results import Result
from equifed.settings import Local, RunSettings
from equifed.simulation import Simulation
from equifed.simulator import Step, make_job
from equifed_papers.experiments.base import NAN, Arm, Cell
from equifed_papers.experiments.e2fl import settings as e2fl
from equifed_papers.experiments.e2fl.settings import CLIENTS, GROUPS

DATASET = "femnist"
LOCAL = Local(epochs=2, batch_size=10, learning_rate=0.05, momentum=0.9, weight_decay=1e-4)
"""Of all methods."""
CLUSTERS = (2, 3, 4, 5)
ARMS = (
    Arm("Local training", LocalOnly()),
    Arm("FedAvg", FedAvg()),
    Arm("q-FFL", QFFL(0.1), round_factor=2),
    Arm("E2FL (OneShot)", E2FL(groups="one-shot", num_groups=2)),
    Arm("E2FL (Rank Clustering)", E2FL(groups="rank-clustering", num_groups=5)),
    Arm("E2FL (Lowest Loss)", E2FL(groups="lowest-loss", num_groups=2)),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterCell(Cell):
    clusters: int

    @property
    def place(self) -> str:
        return f"{self.clusters} clusters"


def federations(seeds: Sequence[int]) -> list[Federation]:
    """The writers' rows are the same for every seed, which draws cohorts and initial networks."""
    fed = load_femnist()
    return [dataclasses.replace(fed, seed=seed) for seed in seeds]


def simulation(method: Method, feds: list[Federation], size: e2fl.Size, rounds: int) -> Simulation:
    per_round = min(e2fl.PER_ROUND, feds[0].num_clients)
    settings = RunSettings(rounds, per_round, eval_every=rounds, local=LOCAL)
    return Simulation(make_job(method, feds, size.model, settings))


def cells(label: str, result: Result, published: bool) -> list[Cell]:
    """Equality in percent of one row of table 2."""
    theirs = e2fl.published_figures(2) if published else {}
    return Cell.row(
        e2fl.scaled(result.final(), CLIENTS),
        {figure: (value, NAN) for (row, figure), value in theirs.items() if row == label},
        their_runs=e2fl.SEEDS,
        dataset=DATASET,
        method=label,
    )


def byte_cells(arm: Arm) -> list[Cell]:
    # once the server has clustered the rankings, which takes long, a round has the messages of known groups
    method = E2FL() if arm.label == "E2FL (Rank Clustering)" else arm.method
    return e2fl.byte_cells(arm.label, method, 2, DATASET, CLASSES, 1)


def cluster_cells(clusters: int, sim: Simulation, step: Step, result: Result, published: bool) -> list[ClusterCell]:
    """Equity and equality in percent of one row of table 6."""
    theirs = e2fl.published_figures(6, f"{clusters} clusters") if published else {}
    by_seed = [summaries(*writers(sim, step, result, run)) for run in range(len(sim.job.runs))]
    return ClusterCell.row(
        {name: [summary[name] for summary in by_seed] for name in by_seed[0]},
        {figure: (value, NAN) for (_, figure), value in theirs.items()},
        their_runs=e2fl.SEEDS,
        dataset=DATASET,
        method="E2FL",
        clusters=clusters,
    )


def writers(sim: Simulation, step: Step, result: Result, run: int) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy and group of each writer; nan for those without test rows."""
    fed = sim.job.runs[run].federation
    frame = result.metrics[(result.metrics["seed"] == fed.seed) & (result.metrics["round"] == step.round)]
    values = frame[(frame["split"] == "test") & (frame["metric"] == "accuracy")].set_index("scope")["value"]
    accuracy = values.reindex([f"client:{name}" for name in fed.ids]).to_numpy()
    return accuracy, tree.take(step.state.clients, run).group.cpu().numpy()


def summaries(accuracy: np.ndarray, groups: np.ndarray) -> dict[str, Any]:
    """Equity between groups and equality between clients, in percent; clients without a group are in no group."""
    member = groups >= 0
    found = {
        **{
            f"group_equity.{part}": value
            for part, value in group_equity(100 * accuracy[member], groups[member]).items()
        },
        **{f"client_equality.{part}": value for part, value in client_equality(100 * accuracy).items()},
    }
    return {name: found[name] for name in (*GROUPS, *CLIENTS)}
