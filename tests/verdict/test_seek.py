"""Seeking a target: where the search looks, on curves that are known in closed form, and what it trains."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import equifed as ef
from equifed import methods
from equifed.errors import ConfigError
from equifed.protocol import Knob
from equifed.settings import SeekSettings
from equifed.simulation import train
from equifed.simulator import Job
from equifed.studies import api
from equifed.target import Target
from equifed.verdict.seek import Point, Search, aimed
from verdict.made import BIAS, Shift, evenly, weight_at

Curve = Callable[[float], float]
WEIGHT = Knob("weight", 1.0, 1000.0, {}, neutral=0.0)
BOUND = Knob("epsilon", 1e-3, 0.3, {}, fairer="less", neutral=1.0)
SHARE = Knob("share", 0.0, 1.0, {}, scale="linear", neutral=0.0)
NO_NOISE = (0.0, 0.0, 0.0)


def searched(
    knob: Knob,
    gap: Curve,
    cost: Curve,
    bound: float,
    *,
    steps: int = 3,
    at_once: int = 4,
    noise: tuple[float, ...] = NO_NOISE,
    allowed: tuple[float | None, float | None] = (0.0, None),
) -> Search:
    """The search on curves over the knob's values; `noise`, by seed, is the same for all values."""
    search = Search(knob, SeekSettings(steps, at_once), allowed)
    while values := search.values():
        assert len(values) <= at_once
        assert not set(values) & set(search.tried)
        search.add(
            Point(value, gap(value) <= bound, gap(value) - bound, tuple(cost(value) + each for each in noise))
            for value in values
        )
        assert search.steps <= steps
    assert search.ended
    return search


def falling(weight: float) -> float:
    """A gap that falls with the weight: 0.15 without it, 0.05 at 40."""
    return 0.15 / (1 + weight / 20)


def rising(weight: float) -> float:
    """A cost that rises with it."""
    return 0.15 + 0.01 * math.log1p(weight)


def test_it_finds_the_least_weight_that_meets_the_target() -> None:
    search = searched(WEIGHT, falling, rising, 0.05)
    assert (search.steps, len(search.tried)) == (3, 12)
    assert search.best.met
    assert 40 <= search.best.value < 40 * 1.15  # the optimum, by a grid of 76 settings at this resolution
    assert search.grid > 6 * len(search.tried)


def test_the_first_step_spans_the_range_and_asks_for_nothing_once() -> None:
    assert Search(WEIGHT, SeekSettings(), (0, None)).values() == [0.0, 1.0, 31.6, 1000.0]
    assert Search(BOUND, SeekSettings(), (0, None)).values() == [1.0, 0.3, 0.0173, 0.001]
    assert Search(SHARE, SeekSettings(at_once=5), (0, 1)).values() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert Search(WEIGHT, SeekSettings(at_once=2), (0, None)).values() == [0.0, 1000.0]


@pytest.mark.parametrize("at_once", [2, 3, 5, 8])
def test_more_values_at_once_come_closer(at_once: int) -> None:
    search = searched(WEIGHT, falling, rising, 0.05, at_once=at_once, steps=4)
    least, largest = 40, max(value for value, tried in search.tried.items() if tried.met)
    assert least <= search.best.value <= largest
    # each step narrows the bracket by a factor of at_once + 1
    within = (math.log(1000) if at_once < 4 else math.log(1000) / (at_once - 2)) / (at_once + 1) ** 3
    assert math.log(search.best.value / least) <= within + 0.01


def test_a_bound_is_searched_downwards() -> None:
    search = searched(BOUND, lambda epsilon: min(epsilon, 0.2), lambda epsilon: 0.2 - min(epsilon, 0.2) / 10, 0.05)
    assert 0.04 < search.best.value <= 0.05


def test_what_is_met_without_a_weight_is_not_searched_further() -> None:
    search = searched(WEIGHT, falling, rising, 0.2)
    assert (search.best.value, search.steps) == (0.0, 1)
    assert "without" in search.ended


def test_the_range_is_extended_once() -> None:
    search = searched(WEIGHT, falling, rising, 0.001)  # met from 2980 on
    assert 2980 <= search.best.value < 2980 * 1.2
    assert search.steps == 3
    hopeless = searched(WEIGHT, lambda weight: 0.1 + falling(weight), rising, 0.05, steps=5)
    assert hopeless.steps == 2
    assert not hopeless.best.met
    assert hopeless.best.value == max(hopeless.tried) > 1000
    assert "nothing meets" in hopeless.ended
    bounded = searched(SHARE, lambda share: 0.2 - 0.1 * share, lambda share: share, 0.05, allowed=(0.0, 1.0))
    assert (bounded.best.value, bounded.steps) == (1.0, 1)


def test_a_gap_that_rises_again_is_searched_around_its_lowest_point() -> None:
    """As KFFL's on Adult, which is least at 100 and larger at 10 and at 1000."""

    def valley(weight: float) -> float:
        return 0.03 + 0.02 * abs(math.log(max(weight, 0.01) / 100))

    search = searched(WEIGHT, valley, rising, 0.031)
    assert search.best.met
    assert 95 < search.best.value < 105
    assert search.tried.keys() >= {0.0, 1000.0}  # what was seen is kept


def test_the_best_that_was_seen_is_never_lost() -> None:
    """Whether a setting meets the target is a coin here: whatever the steps find, nothing seen before is better."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        search = Search(WEIGHT, SeekSettings(steps=5), (0.0, None))
        while values := search.values():
            search.add(
                Point(value, bool(rng.random() < 0.4), float(rng.normal()), tuple(rng.normal(rising(value), 0.01, 3)))
                for value in values
            )
        met = [tried for tried in search.tried.values() if tried.met]
        if met:
            lowest = min(met, key=lambda tried: tried.cost)
            gaps = np.subtract(search.best.costs, lowest.costs)
            assert search.best.met
            assert gaps.mean() <= 2 * gaps.std(ddof=1) / math.sqrt(3) + 1e-12
        else:
            assert search.best.excess == min(tried.excess for tried in search.tried.values())


def test_it_ends_where_nothing_can_be_gained_beyond_the_noise() -> None:
    flat = searched(WEIGHT, falling, lambda weight: 0.15, 0.05)
    assert flat.steps == 1
    assert flat.best.value == 1000.0  # the least weight of those seen that meets it
    assert "noise" in flat.ended


def test_one_validation_row_does_not_turn_the_search_away_from_the_target() -> None:
    """The gap is what it is bounded by; 0.001 is the more accurate by one row of 600, which is chance."""

    def cost(epsilon: float) -> float:
        return 0.35 - min(epsilon, 0.2) / 5 - (epsilon <= 0.001) * (1 / 600 + 0.0173 / 5)

    search = Search(BOUND, SeekSettings(), (0.0, 1.0))
    while values := search.values():
        if search.steps == 1:
            assert all(0.0173 < value < 0.3 for value in values)
        search.add(Point(value, value <= 0.1, value - 0.1, (cost(value),), rows=600) for value in values)
    assert max(value for value, tried in search.tried.items() if tried.met) > 0.08
    # a difference far beyond chance: still, half of the step goes where the target begins to be met
    surprising = Search(BOUND, SeekSettings(), (0.0, 1.0))
    outcome = {1.0: 0.25, 0.3: 0.25, 0.0173: 0.35, 0.001: 0.30}
    surprising.add(Point(value, value <= 0.1, value - 0.1, (one,), rows=600) for value, one in outcome.items())
    assert surprising.best.value == 0.001
    assert sum(0.0173 < value < 0.3 for value in surprising.values()) == 2
    # what lies there is better by one row at most
    even = Search(BOUND, SeekSettings(), (0.0, 1.0))
    even.add(Point(v, v <= 0.1, v - 0.1, (0.35 - (v > 0.1) / 600,), rows=600) for v in outcome)
    assert even.values() == []
    assert "within the noise" in even.ended


def test_a_degenerate_end_is_not_taken_for_the_nearest() -> None:
    def gap(weight: float) -> float:
        return math.inf if weight >= 300 else falling(weight)

    search = searched(WEIGHT, gap, rising, 0.02)  # met from 130 on
    assert 130 <= search.best.value < 200
    undefined = searched(WEIGHT, lambda weight: math.inf, rising, 0.02)
    assert (undefined.steps, undefined.best.met) == (1, False)


def test_what_a_method_aims_at() -> None:
    parity, opportunity = (
        Target.parse("demographic_parity_difference <= 0.05"),
        Target.parse("equal_opportunity_ratio >= 0.9"),
    )
    accuracy = Target.parse("accuracy >= 0.8")
    assert aimed(methods.KFFL(), [parity])[0] == methods.KFFL()
    assert aimed(methods.KFFL(), [accuracy, opportunity, parity])[0] == methods.KFFL(condition_on="label")
    assert aimed(methods.KFFL(condition_on="label"), [parity])[0] == methods.KFFL(condition_on="label")  # as it was set
    assert aimed(methods.FairFed(), [parity])[0].hyper["fairness"] == "demographic_parity_difference"
    method, knob = aimed(methods.make("kffl+eo"), [opportunity])
    assert (method.hyper["condition_on"], knob.name) == ("label", "fairness_weight")


@pytest.mark.parametrize(
    ("method", "targets", "words"),
    [
        (methods.FedAvg(), ["demographic_parity_difference <= 0.1"], "These have one: fedavg+fair, fedfair"),
        (methods.KFFL(), ["accuracy >= 0.8"], "does not aim at accuracy"),
        (
            methods.KFFL(),
            ["equalized_odds_difference <= 0.1"],
            "Methods that do: kffl+fair, fairfed, sffl",
        ),
        (methods.KFFL(), [], "is needed"),
    ],
)
def test_what_cannot_be_sought(method: methods.Method, targets: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        aimed(method, [Target.parse(text) for text in targets])
    assert words in str(refused.value)


# -- training ----------------------------------------------------------------------------------------------------------


def test_the_toy_is_what_it_says() -> None:
    swept = ef.simulate(Shift(on=True), evenly(), model=ef.models.Logistic(), over={"weight": [0.0, 20.0]}, rounds=1)
    final = swept.final().set_index("weight")
    np.testing.assert_allclose(final["demographic_parity_difference"], [BIAS, BIAS / 2], atol=1e-3)
    np.testing.assert_allclose(final["accuracy"], [1, 1 - BIAS / 4], atol=1e-3)


def sought(target: Any, method: methods.Method | None = None, **changes: Any) -> ef.Sought:
    settings = {"model": ef.models.Logistic(), "rounds": 1, "confidence": "mean", "seeds": 1, **changes}
    return ef.seek(method or Shift(), evenly(), target=target, **settings)


def test_seeking_lands_on_the_best_setting_in_three_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(job: Job, callbacks: Any = ()) -> ef.Result:
        calls.append({run.hyper["weight"] for run in job.runs})
        return train(job, callbacks)

    monkeypatch.setattr(api, "train", counted)
    found = sought("demographic_parity_difference <= 0.1")
    assert [len(values) for values in calls] == [4, 4, 4]
    assert found.method == Shift(on=True)  # it aims at what is asked for
    assert found.answer.status == "met"
    assert found.answer.chosen is not None
    weight, best = found.answer.chosen.setting["weight"], weight_at(0.1)  # 60
    assert best <= weight < best * 1.15
    assert found.answer.reached == pytest.approx(1 - (BIAS - BIAS / (1 + weight / 20)) / 2, abs=1e-3)
    assert len(found.results) == 3
    assert "12 settings in 3 steps; a grid as fine would have had" in repr(found)


def test_what_was_tried_is_a_frame_with_test_figures_of_the_chosen_setting_alone() -> None:
    found = sought(["demographic_parity_difference <= 0.1", "accuracy >= 0.7"])
    frame = found.tried
    assert frame["weight"].is_monotonic_increasing
    np.testing.assert_allclose(frame["demographic_parity_difference"], BIAS / (1 + frame["weight"] / 20), atol=2e-3)
    assert (frame["met"] == (frame["demographic_parity_difference"] <= 0.1)).all()
    assert frame["chosen"].sum() == 1
    assert frame.loc[frame["met"], "accuracy"].max() == frame.loc[frame["chosen"], "accuracy"].item()
    tested = frame.filter(like="test_")
    assert list(tested) == ["test_accuracy", "test_demographic_parity_difference"]
    assert (tested.notna().all(axis=1) == frame["chosen"]).all()
    assert tested.notna().any(axis=1).sum() == 1


def test_several_targets_must_all_be_met() -> None:
    # a gap of at most 0.1 needs a weight of 60, an accuracy of 0.84 allows 80 at most
    found = sought(["demographic_parity_difference <= 0.1", "accuracy >= 0.84"])
    assert found.answer.status == "met"
    assert found.answer.chosen is not None
    assert 60 <= found.answer.chosen.setting["weight"] <= 80
    # of a gap of 0.1 an accuracy of 0.85 is the most there is
    never = sought(["demographic_parity_difference <= 0.1", "accuracy >= 0.9"])
    assert never.answer.status == "not met"
    assert not never.tried["met"].any()


def test_what_nothing_meets_ends_with_the_nearest() -> None:
    found = sought("demographic_parity_difference <= 0.1", Shift(floor=0.2))
    assert found.answer.status == "not met"
    assert found.answer.chosen is not None
    chosen = found.tried[found.tried["chosen"]]
    assert chosen["weight"].item() > 1000
    assert chosen["demographic_parity_difference"].item() == found.tried["demographic_parity_difference"].min()
    assert "nothing meets the target" in found.ended


def test_the_end_of_the_interval_must_meet_the_target() -> None:
    mean = sought("demographic_parity_difference <= 0.1")
    sure = sought("demographic_parity_difference <= 0.1", confidence=0.95)
    assert mean.answer.chosen is not None
    assert sure.answer.chosen is not None
    assert sure.answer.chosen.setting["weight"] > mean.answer.chosen.setting["weight"]
    ends = sure.tried["demographic_parity_difference_end"]
    assert (ends > sure.tried["demographic_parity_difference"]).all()
    assert (sure.tried["met"] == (ends <= 0.1)).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": methods.FedAvg()}, "has no hyperparameter that trades accuracy for fairness"),
        ({"target": ()}, "is needed"),
        ({"target": "accuracy >= 0.8"}, "does not aim at accuracy"),
        ({"target": "client_accuracy.worst >= 0.8", "method": methods.QFFL()}, "cannot be sought"),
        ({"steps": 0}, "steps"),
        ({"at_once": 1}, "at_once"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_trained(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        sought(**{"target": "demographic_parity_difference <= 0.1", **changes})
    assert words in str(refused.value)


def test_without_validation_rows_nothing_is_sought() -> None:
    whole = evenly()
    bare = dataclasses.replace(whole, validation=whole.validation[:0])
    with pytest.raises(ConfigError, match="validation rows"):
        ef.seek(Shift(), bare, model=ef.models.Logistic(), target="demographic_parity_difference <= 0.1", rounds=1)


def test_a_method_that_trains_on_the_rows_that_judge_is_not_sought() -> None:
    with pytest.raises(ConfigError, match="trains on the validation rows"):
        ef.seek(methods.FairFate(), evenly(), model=ef.models.Logistic(), target="demographic_parity_difference <= 0.1")
