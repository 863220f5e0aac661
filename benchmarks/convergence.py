"""Rounds that methods against client drift need for the training loss with which FedAvg ends.

    python benchmarks/convergence.py [--data adult] [--clients 10] [--alpha 0.1] [--epochs 5] [--rounds 50]
                                     [--seeds 5] [--per-round 10] [--draw docs/convergence.png]

The rows of the data set are dealt to the clients in Dirichlet shares of each label: with alpha 0.1 most clients have
hardly a row of one of the labels. Every method is tried with the same number of settings: those with one step size with
nine of it, those with a second one with three by three. The setting with the least loss on validation rows in the last
ten rounds, mean over seeds, is the method's. The loss on all training rows is then looked at after every round:

    first           the round in which a seed's loss is first at most the one with which FedAvg ended for this seed
    for good        the round from which on it is; of both the median, and the range
    loss            after the last round, mean over seeds

Ten minutes on a core; compas with ten seeds takes one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import equifed as ef
from equifed import methods
from equifed.federation import Federation

RATES = (0.0003, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3)
"""Local learning rates of methods that have no other step size."""
FEWER_RATES = (0.001, 0.01, 0.05)
"""Those of methods that have."""
SECOND: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "fedavg@momentum": ("server_learning_rate", (0.5, 1.0, 3.0)),
    "fedavg@adam": ("server_learning_rate", (0.03, 0.1, 0.3)),
    "feddyn": ("alpha", (0.01, 0.1, 1.0)),
}
NAMES = {
    "fedavg": "FedAvg",
    "fedavg@momentum": "FedAvgM",
    "fedavg@adam": "FedAdam",
    "scaffold": "SCAFFOLD",
    "fednova": "FedNova",
    "feddyn": "FedDyn",
}
COLOURS = ("#555555", "#aa7733", "#cc3311", "#0066bb", "#229966", "#884499")


@dataclass(frozen=True)
class Trial:
    """What became of a method with one setting."""

    setting: str
    training: np.ndarray
    """Loss on all training rows after every round [seeds, rounds]."""
    validation: float
    """Loss on validation rows in the last ten rounds, mean over seeds."""


def seen(fed: Federation) -> Federation:
    """The federation with all training rows in place of the test rows, so that the loss is measured on them."""
    rows = np.concatenate([fed.train[k] for k in range(fed.num_clients)])
    return replace(fed, test=rows, client_test=None)


def losses(metrics: pd.DataFrame, split: str) -> np.ndarray:
    """[seeds, rounds]; Inf where training has diverged."""
    own = metrics[(metrics["split"] == split) & (metrics["scope"] == "global") & (metrics["metric"] == "loss")]
    table = own[own["round"] > 0].pivot_table(index="seed", columns="round", values="value", dropna=False)
    return table.fillna(np.inf).to_numpy()


def trials(name: str, feds: Sequence[Federation], local: ef.Local, **options: Any) -> Iterator[Trial]:
    """The method with each of its settings."""
    method, model = methods.make(name), ef.models.Logistic()
    parameter, values = SECOND.get(name, ("", ()))
    for rate in FEWER_RATES if values else RATES:
        options["local"] = replace(local, learning_rate=rate)
        if not values:
            found = {"": ef.simulate(method, feds, model=model, **options).metrics}
        else:
            swept = ef.simulate(method, feds, model=model, over={parameter: values}, **options).metrics
            found = {f", {parameter} {value:g}": swept[swept[parameter] == value] for value in values}
        for rest, metrics in found.items():
            yield Trial(
                f"{rate:g}{rest}", losses(metrics, "test"), float(losses(metrics, "validation")[:, -10:].mean())
            )


def first(there: np.ndarray) -> np.ndarray:
    """The first round in which each seed is there [seeds, rounds]; Inf where it never is."""
    return np.where(there.any(1), there.argmax(1) + 1.0, np.inf)


def for_good(there: np.ndarray) -> np.ndarray:
    """The round from which on it is; Inf where it is not there at the end."""
    away = ~there
    last = np.where(away.any(1), there.shape[1] - away[:, ::-1].argmax(1), 0)  # the last round in which it is not
    return np.where(there[:, -1], last + 1.0, np.inf)


def span(needed: np.ndarray, rounds: int) -> str:
    """Median and range, of rounds that may be Inf."""
    middle, *ends = (
        f"{number:g}" if np.isfinite(number) else f"> {rounds}"
        for number in (np.median(needed), needed.min(), needed.max())
    )
    return f"{middle} ({' to '.join(ends)})"


def draw(best: Mapping[str, Trial], file: Path, title: str) -> None:
    from matplotlib import pyplot as plt

    plt.rcParams |= {"svg.hashsalt": "equifed", "font.size": 10}
    figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    for (name, trial), colour in zip(best.items(), COLOURS, strict=False):
        mean = trial.training.mean(0)
        axes.plot(np.arange(1, len(mean) + 1), mean, color=colour, label=NAMES[name], linewidth=1.6)
    axes.axhline(best["fedavg"].training[:, -1].mean(), color=COLOURS[0], linestyle=":", linewidth=1)
    axes.set(xlabel="round", ylabel="loss on all training rows, mean over seeds", title=title, yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="adult")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--per-round", type=int)
    parser.add_argument("--draw", type=Path)
    given = parser.parse_args()
    partition = ef.partition.Dirichlet(given.clients, given.alpha, partition_by=("label",))
    feds = [seen(fed) for fed in ef.load(given.data, partition=partition, seeds=range(given.seeds))]
    local = ef.Local(epochs=given.epochs)
    options = {"rounds": given.rounds, "seeds": range(given.seeds), "clients_per_round": given.per_round or "all"}
    best = dict[str, Trial]()
    print("| method | step sizes | first | for good | loss |\n|---|---|---|---|---|")
    for name, title in NAMES.items():
        best[name] = found = min(trials(name, feds, local, **options), key=lambda trial: trial.validation)
        there = found.training <= best["fedavg"].training[:, -1:]
        parts = [found.setting, *(span(needed(there), given.rounds) for needed in (first, for_good))]
        print(f"| {title} | {' | '.join(parts)} | {found.training[:, -1].mean():.4f} |", flush=True)
    if given.draw is not None:
        draw(best, given.draw, f"{given.data}, {given.clients} clients, Dirichlet {given.alpha:g} over the label")


if __name__ == "__main__":
    main()
