"""The papers' experiments, with their published figures beside ours; carried out by `equifed reproduce`.

Cheap to import, since the command line's help lists what is here. An experiment paper/name is an entry of EXPERIMENTS
and a generator of that name in the paper's `show` module; its methods, data and measurements are in `settings`, and why
some numbers are not the published ones is in `reasons`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Request:
    """Which part of an experiment, and how much of it; None leaves it to the experiment."""

    datasets: list[str] | None = None
    """Data sets of the experiment. (default: its own, or the quickest)"""
    sigma: list[str] | None = None
    """FAIR-FATE: how unlike the clients are: 0.5 (very) and 1.0, a Dirichlet parameter; RND: equal random parts.
    (default: all)"""
    skew: list[str] | None = field(default=None, metadata={"metavar": "A,B"})
    """KFFL's figures: iid, non-iid (90 % of one group). (default: non-iid)"""
    alpha: list[str] | None = None
    """SFFL, E2FL's table4: how alike the clients are, a Dirichlet parameter: 0.1 (unlike) to 5000. (default: the
    paper's)"""
    methods: list[str] | None = None
    """Rows of a table by their name there, 'FAIR-FATE (SP)', or by method: fair-fate. (default: all)"""
    seeds: int | None = field(default=None, metadata={"low": 1})
    """Runs. (default: the paper's)"""
    rounds: int | None = field(default=None, metadata={"low": 1})
    """Rounds; FedFair's: an upper limit, for ST, LCO and FedFair only. (default: the paper's)"""
    reading: str | None = field(default=None, metadata={"metavar": "KIND"})
    """FAIR-FATE's tables: as-published (what the authors' code does and measures, to compare with their figures),
    algorithm-1 (the paper's text, with correct metrics), or both. (default: both)"""
    select: str | None = field(default=None, metadata={"metavar": "KIND"})
    """FAIR-FATE's tables: validation chooses its hyperparameters on validation data, the fairest within 2 points of
    FedAvg's accuracy (default: the authors' choice). FedFair's tables: train chooses on training rows (default: test,
    as the paper). E2FL's table4: validation chooses each method's learning rate anew."""
    quick: bool = False
    """At most 2 seeds and 2 rounds: a look, not a test."""

    @property
    def given(self) -> list[str]:
        """The options that were given and not every experiment has."""
        return [
            name
            for name in (field.name for field in fields(self))
            if name != "quick" and getattr(self, name) is not None
        ]

    def amount(self, seeds: int, rounds: int | None) -> tuple[int, Any]:
        """Seeds and rounds: those asked for, or else the experiment's, which are given; few of both with --quick."""
        seeds, rounds = self.seeds or seeds, self.rounds or rounds
        if self.quick:
            return min(seeds, QUICK_SEEDS), min(rounds or QUICK_ROUNDS, QUICK_ROUNDS)
        return seeds, rounds


QUICK_SEEDS, QUICK_ROUNDS = 2, 2


class Numbers(NamedTuple):
    """Published numbers, by patterns as in file names; * is any."""

    experiment: str = "*"
    """Without the paper: "table1"."""
    dataset: str = "*"
    place: str = "*"
    """What else there is to say where they stand, as `Cell.place` gives it: "sigma 0.5"."""
    method: str = "*"
    metric: str = "*"

    def have(self, *number: str) -> bool:
        """Whether a number, by its experiment, data set, place, method and metric, is one of them."""
        return all(fnmatchcase(name, pattern) for name, pattern in zip(number, self, strict=True))


class Reason(NamedTuple):
    """Why some of our numbers are not the published ones. A paper's are in its module `reasons`, the first that fits a
    number is its own."""

    key: str
    """One word."""
    text: str
    """In a sentence or two."""
    of: tuple[Numbers, ...]
    when: Callable[[Any], bool] = lambda row: True
    """What else must hold of a number's `record.Row`."""


class About(NamedTuple):
    """What an experiment shows, and the fields of `Request` that it takes."""

    shows: str
    options: tuple[str, ...]
    among: str = ""
    """The experiment that has all its numbers."""


_AMOUNT = ("seeds", "rounds")
_FAIR_FATE = ("datasets", "sigma", "methods", "seeds", "reading", "select")
_TABLE = ("datasets", "methods", *_AMOUNT)
_SFFL = ("datasets", "alpha", "methods", *_AMOUNT)

EXPERIMENTS = {
    "fair-fate/table1": About(
        "accuracy and fairness of eleven methods at three levels of heterogeneity (COMPAS, Adult)",
        _FAIR_FATE,
    ),
    "fair-fate/table2": About("the same on Law School and Dutch", _FAIR_FATE),
    "fair-fate/figure1": About("FAIR-FATE's clients: their shares of each group and label", ("datasets",)),
    "fair-fate/figure2": About(
        "accuracy and fairness of all methods over the rounds (Adult)", ("datasets", "sigma", "methods", "seeds")
    ),
    "fair-fate/figure3": About(
        "FAIR-FATE's trade-off between accuracy and fairness over MAX", ("datasets", "sigma", "seeds")
    ),
    "fedfair/table1": About(
        "accuracy and fairness of FedFair and six baselines (COMPAS, DRUG, Adult)", (*_TABLE, "select")
    ),
    "fedfair/table2": About("the same with neural networks, without AF", (*_TABLE, "select")),
    "fedfair/figure1": About("accuracy and fairness of every method's five best settings", _TABLE),
    "fedfair/figure2": About("what FedFair's epsilon does on training and test rows", ("datasets", *_AMOUNT)),
    "fedfair/figure3": About("the same with neural networks", ("datasets", *_AMOUNT)),
    "fedfair/figure4": About("FedFair and LCO when clients drop out", ("datasets", *_AMOUNT)),
    "kffl/table2": About("exchanges per round of KFFL, KFFL-TD, FairFed and FedAvg, from recorded messages", ()),
    "kffl/table3": About("their bytes per client and round, in those of FedAvg", ()),
    "kffl/table6": About(
        "accuracy and fairness of KFFL and its baselines on COMPAS, Bank, ACS and German", _TABLE, among="kffl/table7"
    ),
    "kffl/table7": About("the same with Adult", _TABLE),
    "kffl/table8": About("the same with neural networks", _TABLE),
    "kffl/figure3": About(
        "trade-offs of KFFL, its baselines and pooled training on COMPAS", ("skew", "methods", *_AMOUNT)
    ),
    "kffl/figure4": About("the same on Adult", ("skew", "methods", *_AMOUNT)),
    "kffl/table4": About("KFFL's regression on Communities and Crime, IID", _AMOUNT),
    "kffl/table5": About("KFFL's regression on Law School, non-IID", _AMOUNT),
    "kffl/table9": About("KFFL-TD's regression on Communities and Crime, IID", _AMOUNT),
    "kffl/table10": About("KFFL's regression on Communities and Crime, non-IID", _AMOUNT),
    "kffl/table11": About("KFFL-TD's regression on Law School, IID", _AMOUNT),
    "kffl/table12": About("KFFL's regression on Law School, IID", _AMOUNT),
    "kffl/table13": About("KFFL-TD's regression on Adult, IID", _AMOUNT),
    "kffl/table14": About("KFFL's regression on Adult, non-IID", _AMOUNT),
    "kffl/table15": About("KFFL's regression on Adult, IID", _AMOUNT),
    "sffl/table1": About(
        "accuracy and equal opportunity of SFFL and its baselines, ACS by state, five partitions", _SFFL
    ),
    "sffl/figure2": About(
        "SFFL's clients: rows by sex and label at each level of heterogeneity", ("datasets", "alpha")
    ),
    "sffl/figure3": About("SFFL and FedEM over the number of components", _SFFL),
    "sffl/figure4": About("SFFL and its baselines with 10 to 50 clients", _SFFL),
    "sffl/figure5": About("SFFL's ablation: FedEM, Fair-EM only, SFFL", _SFFL),
    "sffl/figure6": About(
        "SFFL's equal opportunity over rounds, by the step size of its multipliers", ("datasets", "alpha", *_AMOUNT)
    ),
    "sffl/figure7": About(
        "SFFL's aggregation weights beside its mixture weights over rounds", ("datasets", "alpha", "rounds")
    ),
    "e2fl/table1": About("equality, equity and bytes of E2FL and its baselines on FairMNISTRotate", _TABLE),
    "e2fl/table2": About(
        "equality and bytes of E2FL, with inferred groups, and its baselines on FEMNIST's files", _TABLE
    ),
    "e2fl/table3": About("Adult's training and test rows by sex and label", ("seeds",)),
    "e2fl/table4": About(
        "accuracy and gaps between the sexes of E2FL, FedAvg and FairFed on Adult", (*_TABLE, "alpha", "select")
    ),
    "e2fl/table5": About("how well clustering rankings finds the clients' groups, by layer", ("datasets", "seeds")),
    "e2fl/table6": About(
        "equality and equity of E2FL on FEMNIST's files, by the number of clusters", ("datasets", *_AMOUNT)
    ),
    "e2fl/figure4": About(
        "how often clients find their group among the groups' masks, over the rounds", ("datasets", *_AMOUNT)
    ),
}
