"""Ranks over data sets, and what may be concluded from them.

Partitions of a data set are not independent, so a data set counts once, by the mean over its partitions. With some
fifty methods and ten data sets Nemenyi's critical difference spans half of all ranks: it is drawn, to show how little
average ranks tell apart. What is concluded rests on the Bayesian signed-rank test against FedAvg (Benavoli et al.,
2017), which asks how probable it is that a method is better by more than a difference that matters, and needs no
correction for the number of methods that are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from equifed_papers.benchmark.plan import KINDS
from equifed_papers.benchmark.scores import SCORES

BASELINE = "fedavg"
SAMPLES = 20_000
PRIOR = 0.5
"""The weight of the prior, one observation of no difference, against 1 for every data set."""


@dataclass(frozen=True)
class Ranking:
    score: str
    table: pd.DataFrame
    """By method, best first: rank (mean over data sets), better, same, worse (probabilities against FedAvg)."""
    datasets: tuple[str, ...]
    partial: tuple[str, ...]
    """Methods that lack a federation and so have no rank."""
    statistic: float
    p: float
    """Friedman's test that all methods rank alike."""
    critical: float
    """Nemenyi's critical difference at 5 %."""


def ranking(scores: pd.DataFrame, score: str) -> Ranking | None:
    """Over the data sets of two classes; None where there are fewer than three methods or two data sets, or where all
    methods are alike on each."""
    by_data = by_dataset(scores[scores["data"].map(KINDS) == "binary"], score)
    whole = by_data.dropna(axis=1)
    if whole.shape[0] < 2 or whole.shape[1] < 3:
        return None
    higher = SCORES[score].higher
    ranks = whole.rank(axis=1, ascending=not higher)
    if (ranks == ranks.iloc[0, 0]).all(axis=None):
        return None
    statistic, p = stats.friedmanchisquare(*(whole[name] for name in whole))
    table = pd.DataFrame({"rank": ranks.mean()})
    if BASELINE in whole and score not in ("bytes", "seconds"):
        turn = 1 if higher else -1
        chances = {
            name: signed_ranks(turn * (whole[name] - whole[BASELINE]).to_numpy(), SCORES[score].rope)
            for name in whole
            if name != BASELINE
        }
        table = table.join(pd.DataFrame(chances, index=["worse", "same", "better"]).T)
    else:
        table[["worse", "same", "better"]] = np.nan
    partial = tuple(by_data.columns.difference(whole.columns))
    return Ranking(
        score, table.sort_values("rank", kind="stable"), tuple(whole.index), partial, float(statistic), float(p),
        critical_difference(whole.shape[1], whole.shape[0]),
    )  # fmt: skip


def by_dataset(scores: pd.DataFrame, score: str) -> pd.DataFrame:
    """Means over the partitions: a row for each data set, a column for each method. A method that lacks a partition
    which others have has none: the means would not be of the same federations."""
    wide = scores[scores["score"] == score].pivot_table(index=["data", "partition"], columns="method", values="value")
    by_data = wide.groupby(level="data")
    return by_data.mean().where(by_data.count().eq(by_data.size(), axis=0))


def critical_difference(methods: int, datasets: int, level: float = 0.05) -> float:
    """Nemenyi's: two average ranks that are farther apart differ."""
    q = float(stats.studentized_range.ppf(1 - level, methods, np.inf)) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * datasets)))


def signed_ranks(differences: np.ndarray, rope: float, samples: int = SAMPLES) -> tuple[float, float, float]:
    """Probabilities that the method is worse, practically the same, and better (Benavoli et al., 2017).

    Dirichlet weights w over the differences z and a prior observation z_0 = 0 give the shares of pairs whose mean is
    below, within and above the rope, sum_ij w_i w_j [(z_i + z_j) / 2 ...]; a probability is that of the largest share.
    """
    z = np.concatenate([[0.0], differences])
    middle = (z[:, None] + z[None]) / 2
    weights = np.random.default_rng(0).dirichlet([PRIOR, *np.ones(len(differences))], size=samples)
    shares = [
        np.einsum("si,ij,sj->s", weights, where.astype(float), weights, optimize=True)
        for where in (middle < -rope, np.abs(middle) <= rope, middle > rope)
    ]
    largest = np.argmax(shares, axis=0)
    worse, same, better = (float(np.mean(largest == k)) for k in range(3))
    return worse, same, better
