"""E2FL's Tables 3 and 4: Adult, where every client has rows of both sexes, and sends a ranking for each.

table3: how many are men (A = 1), and how many of either sex earn more than 50,000 dollars (Y = 1).
table4: accuracy and signed gaps, women less men, of one model on common test rows; five clients, alike (alpha 5000) or
        not (alpha 1).

The paper's network has two hidden layers of 1,024 units and takes a GPU; the small one has 256. The paper has a
learning rate of 2 for all methods and does not say how large its batches are. Weights do not learn at that rate with
batches of 512, so theirs is the best on validation rows, an eighth of the paper's training rows (--select validation).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from equifed import partition
from equifed.data import get_dataset
from equifed.federation import Federation, load
from equifed.methods import E2FL, FairFed, FedAvg
from equifed.models import MLP
from equifed.protocol import Method
from equifed.results import Result
from equifed.settings import Local, RunSettings
from equifed.simulation import Simulation
from equifed.simulator import make_job
from equifed_papers.experiments.base import NAN, Arm, Cell
from equifed_papers.experiments.e2fl.settings import SEEDS, published_figures

DATASET = "adult"
ALPHAS = ("5000", "1")
CLIENTS, ROUNDS = 5, 20
SPLIT = (0.7, 0.1, 0.2)
WIDTHS = {"small": 256, "full": 1024}
"""Of the hidden layers, by the name that --datasets takes."""
QUICK_WIDTH = 64
LOCAL = Local(epochs=5, batch_size=512, momentum=0.9, weight_decay=1e-4)
RATES = (2.0, 0.2, 0.05, 0.02)
"""Learning rates to choose from."""


@dataclass(frozen=True)
class AdultArm(Arm):
    rate: float = 2.0
    """The paper's for scores. For weights one with which FedAvg was among the most accurate on validation rows: small
    network, alpha 1, seed 100, 8 rounds."""


ARMS = (
    AdultArm("FedAvg", FedAvg(), rate=0.05),
    AdultArm("FairFed", FairFed(), rate=0.05),
    AdultArm("E2FL", E2FL(groups="sensitive")),
)


class Difference(nn.Module):
    """The log-odds of the second of two classes, by the two outputs of a network."""

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs[..., 1:] - outputs[..., :1]


@dataclass(frozen=True)
class TwoOutputs(MLP):
    """A network without biases and with an output for each of two classes; a method that knows two classes has one."""

    bias: bool = False

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(super().build(shape, 2), Difference())


@dataclass(frozen=True, kw_only=True)
class AdultCell(Cell):
    """Accuracy in percent, or a signed gap between the sexes."""

    alpha: str
    width: int
    """Units of each hidden layer."""
    rate: float
    """Learning rate."""

    @property
    def place(self) -> str:
        return f"alpha {self.alpha}" + ("" if self.width == WIDTHS["full"] else f", {self.width} units")


def federations(alpha: str, seeds: Sequence[int]) -> list[Federation]:
    preset = dataclasses.replace(get_dataset(DATASET).presets["e2fl"], split=SPLIT)
    return load(DATASET, preset=preset, partition=partition.Dirichlet(CLIENTS, float(alpha)), seeds=seeds)


def simulation(method: Method, rate: float, feds: list[Federation], width: int, rounds: int) -> Simulation:
    local = dataclasses.replace(LOCAL, learning_rate=rate)
    settings = RunSettings(rounds, "all", eval_every=rounds, local=local)
    return Simulation(make_job(method, feds, TwoOutputs((width, width)), settings))


def validation_accuracy(result: Result) -> float:
    return float(result.final("validation")["accuracy"].mean())


def cells(alpha: str, width: int, label: str, result: Result) -> list[AdultCell]:
    theirs = published_figures(4, f"alpha {alpha}")
    return AdultCell.row(
        measured(result),
        {metric: (value, NAN) for (row, metric), value in theirs.items() if row == label},
        their_runs=SEEDS,
        dataset=DATASET,
        method=label,
        alpha=alpha,
        width=width,
        rate=result.settings.local.learning_rate,
        degenerate=int(result.final()["degenerate"].sum()),
    )


def measured(result: Result) -> dict[str, np.ndarray]:
    """Accuracy in percent, EOD = TPR_f - TPR_m and DI = F1_f - F1_m on test rows, of each seed."""
    frame = result.metrics[(result.metrics["split"] == "test") & (result.metrics["round"] == result.settings.rounds)]
    frame = frame.astype({"scope": str, "metric": str})

    def of(scope: str, metric: str) -> Any:
        chosen = frame[(frame["scope"] == scope) & (frame["metric"] == metric)]
        return chosen.sort_values("seed")["value"].to_numpy()

    gap = {m: of("group:Female", m) - of("group:Male", m) for m in ("true_positive_rate", "f1")}
    return {"accuracy": 100 * of("global", "accuracy"), "EOD": gap["true_positive_rate"], "DI": gap["f1"]}


# -- table 3 -----------------------------------------------------------------------------------------------------------


def shares(fed: Federation) -> dict[str, dict[str, float]]:
    """In percent, of the paper's training rows, which are ours with the validation rows, and of the test rows."""
    parts = {"train data": np.concatenate([fed.train.index, fed.validation]), "test data": fed.test}
    made = {}
    for name, rows in parts.items():
        man, rich = fed.rows.s[rows] == fed.groups.index("Male"), fed.rows.y[rows] == 1
        made[name] = {
            "Pr[A = 1]": 100 * man.mean(),
            "Pr[A = 0]": 100 * (~man).mean(),
            "Pr[Y = 1 | A = 1]": 100 * rich[man].mean(),
            "Pr[Y = 1 | A = 0]": 100 * rich[~man].mean(),
        }
    return made


def share_cells(feds: Sequence[Federation]) -> list[Cell]:
    """The published shares are those of one split."""
    found, theirs = [shares(fed) for fed in feds], published_figures(3)
    return [
        cell
        for part, metrics in found[0].items()
        for cell in Cell.row(
            {metric: [one[part][metric] for one in found] for metric in metrics},
            {metric: (theirs[part, metric], NAN) for metric in metrics},
            their_runs=1,
            dataset=DATASET,
            method=part,
        )
    ]
