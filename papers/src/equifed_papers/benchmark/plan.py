"""What the benchmark runs: tiers, data sets, partitions, and the budget of settings that every method has.

A trial is one method on one federation with one step size: it sweeps the method's own values over all seeds in one
computation. All trials of a data set and a partition share rows, clients, initial models and batches, seed by seed.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np

from equifed.config import Config, parse_config
from equifed.errors import ConfigError, unknown_name
from equifed.methods import REGISTRY, make
from equifed.protocol import Method
from equifed.settings import Local

Kind = Literal["binary", "regression", "images"]

# -- budgets -----------------------------------------------------------------------------------------------------------

GAP, EQUAL_OPPORTUNITY = "demographic_parity_difference", "equal_opportunity_difference"
WORST_CLIENT, WORST_GROUP = "client_accuracy.worst", "worst_group_accuracy"
ODDS = "equalized_odds_difference"
RATES = (0.03, 0.1, 0.3)
MANY_RATES = tuple(float(f"{rate:.2g}") for rate in np.geomspace(0.01, 1.5, 12))
"""For methods that have nothing else to choose."""
USUAL = Local().for_task("classification").learning_rate or 0
GENTLE = Local().for_task("regression").learning_rate or 0
"""Learning rates of training where none is given; where the label is a number, all others are smaller by as much."""
SETTINGS = 12
"""Of a whole budget: three step sizes times four values of the method's own, or twelve step sizes."""


@dataclass(frozen=True)
class Budget:
    """The settings of a method: step sizes times values of its own."""

    over: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Values of its own; none: those of its knob."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """What it is told that has nothing to do with the choice: the notion of fairness, sizes."""
    aim: str = ""
    """What it is for; none: what its knob aims at, else the accuracy."""
    step_size: str = ""
    """The hyperparameter that is its step size, where that is not the learning rate of local training."""
    rates: Sequence[float] = ()
    """Step sizes; none: RATES, or MANY_RATES where there is nothing else to choose."""
    slower: int = 1
    """So many times the rounds: for methods that take one step with all rows in a round."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """[model] of a configuration; none: the data set's."""
    regression: Mapping[str, Any] = field(default_factory=dict)
    """What it is told besides where the label is a number."""


ONE_STEP: dict[str, Any] = {"step_size": "step_size", "slower": 10}
NETWORK = {"kind": "mlp", "hidden": [16]}
EDGES = {"kind": "mlp", "hidden": [64], "bias": False}
SMALL_STEP = Budget(regression={"step_size": 0.1})
"""KFFL's alpha for predictions that move without bound."""
BUDGETS: dict[str, Budget] = {
    "fedprox": Budget({"mu": [0.001, 0.01, 0.1, 1]}),
    "fedmom": Budget({"beta": [0.3, 0.5, 0.7, 0.9]}),
    "feddemon": Budget({"beta0": [0.3, 0.5, 0.7, 0.9]}),
    "fedavg-lr": Budget(aim=GAP),
    "fedavg-gr": Budget(aim=GAP),
    "fedval": Budget(aim=GAP),
    "fedfair": Budget(aim=EQUAL_OPPORTUNITY, **ONE_STEP),
    "lco": Budget(aim=EQUAL_OPPORTUNITY, **ONE_STEP),
    "separate-training": Budget(aim=EQUAL_OPPORTUNITY, **ONE_STEP),
    "agnostic-fair": Budget(step_size="step_size"),
    "fcfl": Budget(**ONE_STEP),
    "kffl": SMALL_STEP,
    "kffl-td": SMALL_STEP,
    "fedem": Budget(fixed={"components": 2}),
    "ifca": Budget(fixed={"num_groups": 2}),
    "frl": Budget({"keep": [0.3, 0.5, 0.7, 0.9]}, model=EDGES),
    "e2fl": Budget({"keep": [0.3, 0.5, 0.7, 0.9]}, {"groups": "lowest-loss", "num_groups": 2}, model=EDGES),
    "fedmgda+": Budget({"epsilon": [0, 0.1, 0.5, 1]}, aim=WORST_CLIENT, step_size="step_size", rates=(0.3, 1, 3)),
    "cvar": Budget({"rho": [0.05, 0.1, 0.3, 0.5]}, aim=WORST_GROUP),
    "scaffold": Budget(),
    "fednova": Budget(),
    "feddyn": Budget({"alpha": [0.01, 0.03, 0.1, 0.3]}),
    "ditto": Budget({"proximity": [0.01, 0.1, 1, 3]}, aim=WORST_CLIENT),
    "fedper": Budget(aim=WORST_CLIENT, model=NETWORK),
    "fedrep": Budget(aim=WORST_CLIENT, model=NETWORK),
    "apfl": Budget(aim=WORST_CLIENT),
    "fedavg@momentum": Budget({"beta1": [0.3, 0.5, 0.7, 0.9]}),
    **dict.fromkeys(
        ("fedavg@adagrad", "fedavg@adam", "fedavg@yogi"), Budget({"server_learning_rate": [0.03, 0.1, 0.3, 1]})
    ),
    "fedavg+eo": Budget(aim=ODDS),
    "fedavg+ceo": Budget(aim=EQUAL_OPPORTUNITY),
}
"""Methods whose settings do not follow from their knob alone; of one with `Budget()` only the step size is chosen."""
EXTRA = ("fedavg@momentum", "fedavg@adagrad", "fedavg@adam", "fedavg@yogi", "fedavg+eo", "fedavg+ceo", "fedavg+fair")
"""Wrappers, around FedAvg."""


def aim_of(method: Method, budget: Budget) -> str:
    """What a method is for."""
    if budget.aim or method.knob is None:
        return budget.aim or "accuracy"
    known = [metric for metric in (GAP, EQUAL_OPPORTUNITY) if metric in method.knob.aims]
    return known[0] if known else next(iter(method.knob.aims))


def budget_of(name: str) -> Budget:
    return BUDGETS.get(name, Budget())


def aimed(name: str) -> Method:
    """The method with what it is told: its sizes, and the notion of fairness that it is for."""
    budget = budget_of(name)
    method = make(name, **budget.fixed)
    aim, knob = aim_of(method, budget), method.knob
    return method.with_hyper(**knob.aims[aim]) if knob is not None and aim in knob.aims else method


def own_values(name: str, count: int = 4) -> dict[str, list[float]]:
    """So many values of the method's own hyperparameter, over its range; none where it has nothing to choose."""
    budget, knob = budget_of(name), make(name).knob
    if budget.over:
        return {key: picked(values, count) for key, values in budget.over.items()}
    if knob is None:
        return {}
    ends = (max(knob.low, 1e-12), knob.high)
    spread = np.geomspace(*ends, count) if knob.scale == "log" else np.linspace(knob.low, knob.high, count)
    return {knob.name: [float(f"{value:.3g}") for value in spread]}


def step_sizes(name: str, settings: int = SETTINGS) -> list[float]:
    """As many as make so many settings, with the method's own values."""
    own = own_values(name, values_of(settings))
    count = settings // values_of(settings) if own else settings
    return picked(budget_of(name).rates or (RATES if count <= len(RATES) else MANY_RATES), count)


def values_of(settings: int) -> int:
    """How many of so many settings are values of the method's own: the step sizes are the rest."""
    return 4 if settings >= SETTINGS else 3


def picked(values: Sequence[float], count: int) -> list[float]:
    """So many of them from end to end; one: that in the middle."""
    at = [len(values) // 2] if count == 1 else np.linspace(0, len(values) - 1, min(count, len(values))).round()
    return [values[int(i)] for i in at]


# -- tiers -------------------------------------------------------------------------------------------------------------

CLIENTS = 6
PARTITIONS: dict[str, dict[str, Any]] = {
    "iid": {"kind": "iid", "num-partitions": CLIENTS},
    "dirichlet": {"kind": "dirichlet", "num-partitions": CLIENTS, "alpha": 0.5, "min-rows": 40},
    "group-skew": {"kind": "skewed", "num-partitions": CLIENTS, "majority": 0.9, "of": "group"},
    "state": {"kind": "natural", "column": "STATE"},
    "rotation": {"kind": "rotation-groups", "clients-per-group": [2, 4, 4, 2], "rows-per-client": 150},
}
"""Equal random shares; Dirichlet(0.5) shares of every label and group; nine tenths of each group with half of the
clients; a state is a client; images turned by 0, 90, 180 or 270 degrees."""
DEALT = ("iid", "dirichlet", "group-skew")
TABLES = {
    **dict.fromkeys(("adult", "compas", "german", "law", "dutch", "bank", "drug"), DEALT),
    **dict.fromkeys(("acs_income", "acs_employment", "acs_health_insurance"), (*DEALT, "state")),
}
DATASETS: dict[str, tuple[str, ...]] = {**TABLES, "communities": DEALT, "mnist": ("rotation",)}
"""The partitions of every data set."""
KINDS: dict[str, Kind] = {**dict.fromkeys(TABLES, "binary"), "communities": "regression", "mnist": "images"}
VALIDATION, CLIENT_TEST = 0.15, 0.2
"""Shares: of all rows, to choose on; of each client's, for its own test. A fifth of all rows is the common test."""
IMAGES: dict[str, Any] = {"model": {"kind": "mlp", "hidden": [32]}, "rows": 4000}
"""Of turned images: a network that a CPU trains, and rows that fill 12 clients and leave some 570 to test on."""


@dataclass(frozen=True)
class Tier:
    """How much of it is run."""

    name: str
    settings: int
    """Of each method."""
    seeds: int
    rounds: int
    rows: int | None
    """Rows of a data set at most, drawn once; None: all."""
    datasets: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: DATASETS)


TIERS = {
    tier.name: tier
    for tier in (
        Tier("quick", 3, 3, 10, 2000, {"german": ("dirichlet",), "compas": ("dirichlet",), "drug": ("dirichlet",)}),
        Tier("standard", 6, 10, 20, 8000),
        Tier("full", 12, 10, 20, None),
    )
}


def tier_of(name: str) -> Tier:
    if name not in TIERS:
        raise unknown_name("tier", name, TIERS, key="tier")
    return TIERS[name]


def known_methods() -> list[str]:
    """All of the registry, and wrappers around FedAvg."""
    return [*REGISTRY.usable(), *EXTRA]


@dataclass(frozen=True)
class Trial:
    """One method on one federation with one step size."""

    tier: str
    data: str
    partition: str
    method: str
    step: tuple[str, float]
    """The hyperparameter that is its step size, and its value."""
    config: Config

    @property
    def place(self) -> tuple[str, str, str]:
        return self.data, self.partition, self.method

    @cached_property
    def settings(self) -> list[str]:
        """Every combination of the step size and the method's own values, in the words of the records."""
        return [setting_text(self.step, values) for values in combinations(self.config.sweep)]

    @cached_property
    def plan(self) -> str:
        """A hash of all that the rows follow from but the seeds and the values that are swept: the configuration, and
        the source of a method that is not equifed's, which changes while the configuration stays."""
        sections = self.config.resolved() | source_of(self.method)
        sections["run"] = {key: value for key, value in sections["run"].items() if key not in ("seeds", "track")}
        sections.pop("sweep", None)
        return hashlib.blake2b(json.dumps(sections, sort_keys=True).encode(), digest_size=8).hexdigest()


@cache
def source_of(name: str) -> dict[str, str]:
    """Hashes of the files of a method that are not equifed's own, by module."""
    method: Any = make(name)
    found = {}
    while method is not None:
        module = type(method).__module__
        if not module.startswith("equifed."):
            content = inspect.getsource(sys.modules[module]).encode()
            found[module] = hashlib.blake2b(content, digest_size=8).hexdigest()
        method = getattr(method, "inner", None)
    return found


def combinations(sweep: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """All combinations of the values, in no particular order."""
    found: list[dict[str, float]] = [{}]
    for name, values in sweep.items():
        found = [{**each, name: float(value)} for each in found for value in values]
    return found


def setting_text(step: tuple[str, float], values: Mapping[str, float]) -> str:
    """As it stands in the records: step-size=0.1, epsilon=0.05."""
    return ", ".join(f"{key.replace('_', '-')}={value:g}" for key, value in (step, *values.items()))


def trials(tier: Tier, datasets: Mapping[str, Sequence[str]], methods: Sequence[str], seeds: int) -> Iterator[Trial]:
    """All trials, the data sets one after another."""
    for data, partitions in datasets.items():
        for partition in partitions:
            for method in methods:
                for rate in step_sizes(method, tier.settings):
                    yield _trial(tier, data, partition, method, rate, seeds)


def _trial(tier: Tier, data: str, partition: str, method: str, rate: float, seeds: int) -> Trial:
    budget = budget_of(method)
    rounds = tier.rounds * budget.slower
    kind = KINDS[data]
    images = IMAGES if kind == "images" else {}
    rows = images.get("rows", tier.rows)
    model = budget.model or images.get("model")
    sweep = own_values(method, values_of(tier.settings))
    regression = kind == "regression"
    hyper = {**_aimed(method), **(budget.regression if regression else {})}
    learning_rate = GENTLE if regression else USUAL
    if budget.step_size:
        step = (budget.step_size, rate)
        hyper |= [step]
    else:
        learning_rate = float(f"{rate * learning_rate / USUAL:.3g}")
        step = ("learning_rate", learning_rate)
    raw: dict[str, Any] = {
        "run": {
            "rounds": rounds,
            "eval-every": rounds,
            "checkpoint-every": rounds,
            "clients-per-round": "all",
            "seeds": seeds,
        },
        "data": {
            "name": data,
            "validation": VALIDATION,
            **({} if images else {"client-test": CLIENT_TEST}),  # turned images have tests of their own
            **({"rows": rows} if rows else {}),
        },
        "partition": PARTITIONS[partition],
        "local": {"local-epochs": 1, "batch-size": 32, "learning-rate": learning_rate},
        "method": {"name": method, **{key.replace("_", "-"): value for key, value in hyper.items()}},
        **({"model": model} if model else {}),
        **({"sweep": {key.replace("_", "-"): values for key, values in sweep.items()}} if sweep else {}),
    }
    config = parse_config(raw, source=f"benchmark ({data}, {partition}, {method})")
    return Trial(tier.name, data, partition, method, step, config)


@cache
def _aimed(name: str) -> dict[str, Any]:
    """The hyperparameters by which `aimed` differs from the method's defaults."""
    plain, told = make(name).hyper, aimed(name).hyper
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in told.items() if value != plain[key]
    }


def asked(given: str | None, known: Sequence[str], what: str) -> list[str]:
    """Names A,B,... of an option, all known ones where it is not given."""
    if given is None:
        return list(known)
    names = list(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"names no {what}. Known: {', '.join(known)}.")
    for name in names:
        if name not in known:
            raise unknown_name(what, name, known)
    return names


Family = Literal["group fairness", "worst-off", "personal models", "accuracy", "reference"]


def family_of(name: str) -> Family:
    """What kind of method it is: for filters of the page."""
    method = aimed(name)
    aim = aim_of(method, budget_of(name))
    if method.pooled:
        return "reference"
    if aim in (GAP, EQUAL_OPPORTUNITY, ODDS):
        return "group fairness"
    if method.personal:
        return "personal models"
    return "accuracy" if aim == "accuracy" else "worst-off"
