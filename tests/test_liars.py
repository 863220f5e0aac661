"""Robust rules against clients that lie, on real data: near the clean run where the plain mean breaks. The attacks, and
the table of the documentation, are those of `benchmarks/robust.py`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import equifed as ef
from equifed.federation import Federation
from equifed.settings import RULES

NEAR = 0.03
"""How far accuracy may be from the clean run's: 3 points."""
OPTIONS = {"model": ef.models.Logistic(), "rounds": 12}


@cache
def bench() -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "benchmarks" / "robust.py"
    spec = importlib.util.spec_from_file_location("bench_robust", path)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    sys.modules["bench_robust"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def feds(needs: Callable[[str], Path]) -> list[Federation]:
    needs("adult")
    return ef.load("adult", partition=ef.partition.IID(10), seeds=[0])  # type: ignore[return-value]


@pytest.fixture(scope="module")
def clean(feds: list[Federation]) -> float:
    return float(ef.simulate(ef.methods.FedAvg(), feds, **OPTIONS).final()["accuracy"].mean())  # type: ignore[arg-type]


def accuracies(feds: list[Federation], attack: str, share: float, rule: str) -> tuple[float, float]:
    """With the rule and with the plain mean."""
    result = bench().attacked(feds, attack, share, robust=rule, liars=share, **OPTIONS)
    return tuple(bench().measured(frame, "accuracy") for frame in (result.metrics, result.plain_mean))  # type: ignore[return-value]


GRID = [(attack, share) for attack in ("sign flip", "scaling", "scaled sign flip", "label flip", "scaled label flip")
        for share in (0.1, 0.2, 0.3)]  # fmt: skip
BREAKING = {("scaled sign flip", share) for share in (0.1, 0.2, 0.3)} | {
    ("scaled label flip", 0.2),
    ("scaled label flip", 0.3),
}
"""Where the plain mean breaks for certain; elsewhere it may or may not."""
QUICK = [("scaled sign flip", 0.3)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("attack", "share"), [*QUICK, *(pytest.param(*each, marks=pytest.mark.full) for each in GRID if each not in QUICK)]
)
def test_near_the_clean_run_where_the_plain_mean_breaks(
    rule: str, attack: str, share: float, feds: list[Federation], clean: float
) -> None:
    robust, plain = accuracies(feds, attack, share, rule)
    assert abs(robust - clean) < NEAR
    if (attack, share) in BREAKING:
        assert clean - plain > NEAR


@pytest.fixture(scope="module")
def skewed(needs: Callable[[str], Path]) -> list[Federation]:
    needs("adult")
    return ef.load("adult", partition=ef.partition.Dirichlet(20, 1.0), seeds=range(3))  # type: ignore[return-value]


@pytest.mark.full
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("attack", ["sign flip", "label flip"])
def test_where_clients_differ_a_flip_alone_breaks_the_plain_mean(
    rule: str, attack: str, skewed: list[Federation]
) -> None:
    options = {**OPTIONS, "rounds": 30}
    clean = float(ef.simulate(ef.methods.FedAvg(), skewed, **options).final()["accuracy"].mean())  # type: ignore[arg-type]
    result = bench().attacked(skewed, attack, 0.3, robust=rule, liars=0.3, **options)
    robust, plain = (bench().measured(frame, "accuracy") for frame in (result.metrics, result.plain_mean))
    assert clean - plain > NEAR
    assert clean - robust < NEAR


def test_those_who_lie_are_those_who_are_cut(feds: list[Federation]) -> None:
    for rule, attack in (("multi-krum", "scaled label flip"), ("clipped-mean", "scaling")):
        result = bench().attacked(feds, attack, 0.2, robust=rule, liars=0.2, **OPTIONS)
        cut = result.cuts.set_index("client")["cut"]
        liars = list(feds[0].ids[:2])
        assert cut[liars].min() > 0.9
        assert cut.drop(liars).mean() < 0.5


def test_a_rule_can_cut_a_minority_and_widen_the_gap(feds: list[Federation]) -> None:
    """Nobody lies, and all women are at two of ten clients: the report says whom the rule cuts, and what it does."""
    apart = [bench().apart(fed, 0) for fed in feds]
    result = bench().attacked(apart, "", 0.0, robust="multi-krum", liars=0.2, **OPTIONS)
    gap = "equal_opportunity_difference"
    assert bench().measured(result.metrics, gap) > bench().measured(result.plain_mean, gap) + 0.05
    few = result.cuts["client"].isin(feds[0].ids[:2])
    assert result.cuts.loc[few, "cut"].mean() > 0.9
    assert result.cuts.loc[~few, "cut"].mean() < 0.1


def test_the_attacks_are_what_they_are_called(feds: list[Federation]) -> None:
    """After one round from zeros, the model is the mean of updates of which one was multiplied."""
    rounds = {"model": ef.models.Logistic(), "rounds": 1, "clients_per_round": "all"}
    honest = ef.simulate(ef.methods.FedAvg(), feds, **rounds).parameters[0]  # type: ignore[arg-type]
    found = [
        ef.simulate(bench().Lying(liars=(0,), factor=factor), feds, **rounds).parameters[0]  # type: ignore[arg-type]
        for factor in (2.0, -1.0)
    ]
    for name, value in honest.items():
        own = found[0][name] - value  # one client's share of the mean
        assert np.abs(own).max() > 0
        np.testing.assert_allclose(found[1][name], value - 2 * own, atol=1e-5)
    flipped = bench().flipped(feds[0], [3])
    # two federations with the same features and other labels, in one computation: each has its own
    both = ef.simulate(ef.methods.FedAvg(), [flipped, feds[0]], seeds=[1, 0], **rounds).parameters[0]  # type: ignore[arg-type]
    for name, value in honest.items():
        np.testing.assert_allclose(both[name], value, atol=1e-6)
    changed = np.flatnonzero(flipped.rows.y != feds[0].rows.y)
    assert sorted(changed.tolist()) == sorted(feds[0].train[3].tolist())
