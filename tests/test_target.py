"""Targets: how they are written, what they refuse, and when a value meets them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import equifed as ef
from equifed.config import parse_config
from equifed.federation import Federation
from equifed.metrics.catalogue import CATALOGUE
from equifed.settings import RunSettings
from equifed.simulator import make_job
from equifed.target import Condition, parse_targets

GAP = "demographic_parity_difference"


def test_a_target_reads_as_it_is_written() -> None:
    target = ef.Target.parse(f" {GAP}<=0.05 ")
    assert target == ef.Target(GAP, "<=", 0.05)
    assert ef.Target.parse(str(target)) == target
    assert str(ef.Target.parse("client_accuracy.worst > 1")) == "client_accuracy.worst > 1"
    assert parse_targets(f"{GAP} <= 0.05") == (target,)
    assert parse_targets([target, "accuracy >= 0.8", str(target)]) == (target, ef.Target("accuracy", ">=", 0.8))


@pytest.mark.parametrize(
    "text", ["", GAP, f"{GAP} = 0.05", f"{GAP} == 0.05", f"{GAP} <= small", f"{GAP} <= nan", "0.05 >= accuracy", 3]
)
def test_what_is_no_target(text: Any) -> None:
    with pytest.raises(ef.ConfigError, match="is no target") as caught:
        ef.Target.parse(text)
    assert caught.value.key == "target"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("acuracy >= 0.8", "Unknown metric 'acuracy'. Did you mean 'accuracy'?"),
        ("accuracy <= 0.8", "wrong way round: of accuracy, more is better. Write 'accuracy >= 0.8'."),
        (f"{GAP} > 0.05", f"less is better, and 0 is fair. Write '{GAP} < 0.05'."),
        ("demographic_parity_ratio <= 0.8", "more is better, and 1 is fair. Write 'demographic_parity_ratio >= 0.8'."),
        (
            "accuracy >= 85",
            "cannot be met: accuracy lies between 0 and 1. Write a number in that range, e.g. 'accuracy >= 0.85'.",
        ),
        (
            "accuracy >= 1.5",
            "cannot be met: accuracy lies between 0 and 1. Write a number in that range, e.g. 'accuracy >= 0.8'.",
        ),
        ("accuracy > 1", "cannot be met"),
        ("accuracy >= -1", "is always met"),
        (
            f"{GAP} < 0",
            f"cannot be met: demographic parity difference lies between 0 and 1. Write a number in that "
            f"range, e.g. '{GAP} < 0.05'.",
        ),
        (f"{GAP} <= 1.5", "is always met"),
        ("loss <= -3", "cannot be met: loss lies at 0 or above"),
        ("rows >= 5", "'rows' says neither how good the model is nor how fair"),
        ("count >= 5", "is no target"),
        ("degenerate <= 0.5", "what is degenerate is never taken anyway"),
    ],
)
def test_a_target_that_no_run_could_be_held_to(text: str, words: str) -> None:
    with pytest.raises(ef.ConfigError) as caught:
        ef.Target.parse(text).require(CATALOGUE.values())
    assert words in str(caught.value)


@pytest.mark.parametrize("text", [f"{GAP} <= 0", "accuracy >= 1", "loss <= 3", "selection_rate > 0.1"])
def test_bounds_at_the_ends_are_targets(text: str) -> None:
    ef.Target.parse(text).require(CATALOGUE.values())


def test_targets_that_contradict_each_other() -> None:
    for low, high in ((">= 0.9", "<= 0.1"), ("> 0.5", "<= 0.5"), (">= 0.5", "< 0.5")):
        with pytest.raises(ef.ConfigError, match="contradict each other") as caught:
            parse_targets([f"selection_rate {high}", "accuracy >= 0.8", f"selection_rate {low}"])
        assert caught.value.key == "target"
    for low, high in ((">= 0.1", "<= 0.9"), (">= 0.5", "<= 0.5")):
        assert len(parse_targets([f"selection_rate {low}", f"selection_rate {high}"])) == 2
    assert len(parse_targets([f"{GAP} <= 0.05", f"{GAP} <= 0.01"])) == 2


def test_every_metric_can_be_asked_for_the_way_that_is_better() -> None:
    for metric in CATALOGUE.values():
        signs = {"lower": ["<="], "higher": [">="], "": ["<=", ">="]}[metric.direction]
        if metric.name in ("rows", "count", "disclosed", "positives", "degenerate"):
            signs = []  # says nothing about how good or fair a model is
        taken = []
        for sign in ("<=", ">="):
            try:
                ef.Target.parse(f"{metric.name} {sign} 0.5").require([metric])
                taken.append(sign)
            except ef.ConfigError:
                pass
        assert taken == signs, metric.name


def test_met_and_excess() -> None:
    above, below = ef.Target.parse(f"{GAP} <= 0.05"), ef.Target.parse("accuracy >= 0.8")
    assert above.met(0.05)
    assert not ef.Target.parse(f"{GAP} < 0.05").met(0.05)
    assert below.met(0.8)
    assert not above.met(math.nan)
    assert not below.met(math.nan)
    np.testing.assert_allclose([above.excess(0.07), below.excess(0.83), above.excess(math.nan)], [0.02, -0.03, np.inf])


def test_a_condition_is_read_in_one_place() -> None:
    assert Condition.read("a.b!=1e-3") == ("a.b", "!=", 0.001)
    assert Condition.read("a <= b") is None
    assert Condition.read("a ~ 3") is None


def test_settings_hold_targets_as_texts() -> None:
    settings = RunSettings(target=[ef.Target(GAP, "<=", 0.05), "accuracy>=0.8"], confidence="mean")
    assert settings.target == (f"{GAP} <= 0.05", "accuracy >= 0.8")
    assert RunSettings.from_dict(settings.to_dict()) == settings
    assert settings.to_dict()["target"] == list(settings.target)
    assert RunSettings(target="accuracy >= 0.8").target == ("accuracy >= 0.8",)
    for confidence in (1, 0.5, 95, True, "median"):
        with pytest.raises(ef.ConfigError, match="confidence must be a number between"):
            RunSettings(confidence=confidence)  # type: ignore[arg-type]
    with pytest.raises(ef.ConfigError, match="target must be a text"):
        RunSettings(target=3)  # type: ignore[arg-type]


def test_a_run_is_refused_before_it_trains(uneven: Federation) -> None:
    for text, words in (("equal_oportunity_difference <= 0.1", "Did you mean"), ("rmse <= 3", "Unknown metric")):
        with pytest.raises(ef.ConfigError, match=words) as caught:
            make_job(ef.methods.FedAvg(), uneven, ef.models.Logistic(), RunSettings(target=text))
        assert caught.value.where == "run.target"


def test_in_a_configuration() -> None:
    raw = {
        "data": {"name": "compas"},
        "method": {"name": "fedavg"},
        "run": {"target": [f"{GAP} <= 0.05"], "confidence": 0.9},
    }
    config = parse_config(raw)
    assert config.run.target == (f"{GAP} <= 0.05",)
    assert parse_config(config.resolved()).run == config.run
    assert parse_config(raw, ["run.confidence=mean"]).run.confidence == "mean"
    assert parse_config(raw, ["run.target=accuracy >= 0.8"]).run.target == ("accuracy >= 0.8",)
    with pytest.raises(ef.ConfigError, match=r"run\.target: 'accuracy' is no target"):
        parse_config(raw, ["run.target=accuracy"])
