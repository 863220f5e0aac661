"""Seeking a target on the command line and from a file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import tomli_w

from equifed.cli.progress import Watch
from equifed.store import Store

SMALL = ("--rounds", "2", "--seeds", "2", "--confidence", "mean", "--at-once", "3", "--steps", "2")
TARGET = "demographic_parity_difference <= 0.05"


def test_a_sweep_without_values_seeks_the_target(invoke, tiny, place):
    outcome = invoke("sweep", tiny, "--method", "kffl", "--target", TARGET, *SMALL, "--report", "page.html")
    assert outcome.exit_code == 0, outcome.stderr
    runs = Store().entries()
    steps = re.findall(r"Step \d of at most 2: fairness-weight = (.*)", outcome.stderr)
    assert len(steps) == len(runs) <= 2
    assert steps[0] == "0, 1, 1000"
    assert "DP diff." in outcome.stdout
    assert "a grid as fine would have had" in outcome.stdout
    assert "demographic parity difference" in (place / "page.html").read_text()


def test_the_same_command_takes_what_was_done_before(invoke, tiny):
    command = ("sweep", tiny, "--method", "kffl", "--target", TARGET, *SMALL, "--json")
    first = invoke(*command)
    again = invoke(*command)
    assert json.loads(first.stdout) == json.loads(again.stdout)
    found = json.loads(again.stdout)
    assert len(Store().entries()) == len(found["runs"])
    assert again.stderr.count("has done this") == len(found["runs"])
    assert found["answer"]["targets"] == [TARGET]
    assert sum(each["chosen"] for each in found["tried"]) == 1
    # other settings are another search
    other = json.loads(invoke(*command, "--learning-rate", "0.2").stdout)
    assert not set(other["runs"]) & set(found["runs"])


@pytest.mark.full
def test_an_interrupted_search_goes_on_with_the_same_command(invoke, tiny, monkeypatch):
    command = ("sweep", tiny, "--method", "kffl", "--target", TARGET, *SMALL)
    whole = invoke(*command, "--json", "--runs", "elsewhere")
    shown = []

    def interrupted(self: Watch, round: object) -> None:
        shown.append(round)
        if len(shown) == 3:  # the first round of the second step
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Watch, "round_finished", interrupted)
        outcome = invoke(*command)
    assert outcome.exit_code == 130
    assert "Interrupted after round 1 of 2. Give the same command again" in outcome.stderr
    outcome = invoke(*command, "--json")
    assert "has done this" in outcome.stderr
    assert "continues after round 1 of 2" in outcome.stderr
    assert len(Store().entries()) == 2
    assert json.loads(outcome.stdout)["tried"] == json.loads(whole.stdout)["tried"]


def test_a_method_aims_at_the_target(invoke, tiny):
    target = "equal_opportunity_difference <= 0.1"
    outcome = invoke("sweep", tiny, "--method", "kffl", "--target", target, *SMALL, "--json")
    assert "kffl aims at it: condition-on = label" in outcome.stderr
    run = Store().find(json.loads(outcome.stdout)["runs"][0])
    assert run.settings()["method"]["condition-on"] == "label"
    assert run.settings()["run"]["target"] == [target]


def test_from_a_file(invoke, tiny, place):
    config = {
        "run": {"rounds": 1, "seeds": 1, "target": [TARGET], "confidence": "mean", "name": "mine"},
        "data": {"name": tiny, "preset": "bare"},
        "method": {"name": "kffl"},
        "seek": {"steps": 1, "at-once": 2},
    }
    (place / "seek.toml").write_text(tomli_w.dumps(config))
    outcome = invoke("run", "seek.toml", "--json", "--fail-if", "accuracy < 2")
    assert outcome.exit_code == 1  # the check of the chosen setting, and of it alone
    found = json.loads(outcome.stdout)
    tried = [each["fairness_weight"] for each in found["tried"]]
    assert len(tried) == 2
    assert len(found["failed_checks"]) == 1
    (run,) = Store().entries()
    assert run.name == "mine 1"
    settings = Store().find(run.id).settings()
    assert settings["sweep"] == {"fairness-weight": tried}
    assert "seek" not in settings  # it is a sweep like any other


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--method", "kffl"), "Give --over NAME=V1,V2,..., or a --target"),
        (("--method", "fedavg", "--target", TARGET), "These have one: fedavg+fair, fedfair"),
        (("--method", "kffl", "--target", "accuracy >= 0.5"), "--target: fairness_weight of kffl does not aim at"),
        (("--method", "kffl", "--target", TARGET, "--steps", "0"), "--steps"),
        (("--method", "kffl", "--target", TARGET, "--workers", "2"), "every step waits for the one before"),
        (("--method", "kffl", "--target", TARGET, "--validation", "0"), "validation rows"),
    ],
)
def test_what_cannot_be_sought(invoke, tiny, options: tuple[str, ...], words: str):
    outcome = invoke("sweep", tiny, *options)
    assert outcome.exit_code == 2
    assert words in " ".join(outcome.stderr.split())
    assert not Path("runs").exists() or not Store().entries()


def test_seeking_and_sweeping_exclude_each_other(invoke, tiny, place):
    config = {
        "run": {"target": TARGET},
        "data": {"name": tiny},
        "method": {"name": "kffl"},
        "sweep": {"fairness-weight": [1, 2]},
        "seek": {},
    }
    (place / "both.toml").write_text(tomli_w.dumps(config))
    outcome = invoke("run", "both.toml")
    assert outcome.exit_code == 2
    assert "There is a section [sweep] too" in outcome.stderr


ADULT = ("adult", "--preset", "kffl", "--partition", "skewed", "--seeds", "10", "--method", "fedavg+fair")


@pytest.mark.full  # 40 CPU seconds
def test_a_gap_of_two_points_on_adult(invoke, needs):
    """The command of docs/targets.md. KFFL reaches .030 at .831; thresholds on FedAvg's scores .004 at .8255."""
    needs("adult")
    target = "demographic_parity_difference <= 0.02"
    training = ("--rounds", "15", "--batch-size", "256", "--learning-rate", "0.5", "--eval-every", "15")
    outcome = invoke("sweep", *ADULT, "--target", target, *training, "--json")
    assert outcome.exit_code == 0, outcome.stderr
    found = json.loads(outcome.stdout)
    assert found["answer"]["met"]
    (chosen,) = (each for each in found["tried"] if each["chosen"])
    assert chosen["test_demographic_parity_difference"] <= 0.02
    assert chosen["test_accuracy"] >= 0.825
    assert len(found["tried"]) <= 12


@pytest.mark.full  # 70 CPU seconds
def test_equal_opportunity_on_adult(invoke, needs):
    """The first step of the other command there: too few rows to show it, but it is so in the mean of the test rows."""
    needs("adult")
    target = "equal_opportunity_difference <= 0.03"
    training = ("--model", "mlp", "--rounds", "30", "--batch-size", "256", "--optimizer", "adam", "--eval-every", "30")
    rate = ("--learning-rate", "0.01", "--learning-rate-decay", "0.9", "--steps", "1")
    found = json.loads(invoke("sweep", *ADULT, "--target", target, *training, *rate, "--json").stdout)
    assert found["answer"]["status"] == "cannot be shown"
    (chosen,) = (each for each in found["tried"] if each["chosen"])
    assert chosen["test_equal_opportunity_difference"] <= 0.03
    assert chosen["test_accuracy"] >= 0.844
