"""The answer to a target: chosen on validation rows, confirmed on test rows, and never more than they show."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import equifed as ef
from equifed.files import plain
from equifed.metrics import evidence
from equifed.verdict import Aim
from verdict.made import GAP, RATIO, ROWS, SWEEP, flagged, result


@pytest.fixture(autouse=True)
def fewer_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested here does not need fine intervals."""
    monkeypatch.setattr(evidence, "TABLES", 400)


def weight(answer: ef.Answer) -> float:
    assert answer.chosen is not None
    return answer.chosen.setting["fairness_weight"]


def test_the_best_of_those_that_meet_it_with_confidence() -> None:
    """0.04 meets 0.05 in the mean, but its interval does not."""
    swept = result(SWEEP)
    sure, mean = swept.answer(f"{GAP} <= 0.05"), swept.answer(f"{GAP} <= 0.05", "mean")
    tables = swept.count_tables("validation", labels=False)
    counts = {value: np.stack([tables[value, seed] for seed in range(4)]) for value in SWEEP}
    ends = {value: evidence.estimate(GAP, counts[value], confidence=0.95, shared_rows=1.0) for value in SWEEP}
    assert [value for value, each in ends.items() if each.upper_end <= 0.05] == [3.0]
    assert [value for value, each in ends.items() if each.mean <= 0.05] == [2.0, 3.0]
    assert weight(sure) == 3
    assert sure.met
    assert weight(mean) == 2
    assert weight(swept.answer(f"{GAP} <= 0.15")) == 1  # 2 and 3 meet it as well, and are less accurate
    assert weight(swept.answer(f"{GAP} <= 0.4")) == 0
    (finding,) = sure.findings
    assert finding.validation == ends[3.0]


def test_test_rows_choose_nothing() -> None:
    """Whatever they are, the choice and the best without the target stay the same."""
    rng = np.random.default_rng(0)
    for target in (f"{GAP} <= 0.05", f"{GAP} <= 0.001"):
        for confidence in (0.95, "mean"):
            usual = result(SWEEP).answer(target, confidence)  # type: ignore[arg-type]
            other = {
                value: {**splits, "test": (rng.uniform(0.02, 0.25), rng.uniform(0.7, 0.85))}
                for value, splits in SWEEP.items()
            }
            found = result(other).answer(target, confidence)  # type: ignore[arg-type]
            for chosen in ("chosen", "best_without_target"):
                assert found.to_dict()[chosen] == usual.to_dict()[chosen]


@pytest.mark.parametrize(
    ("test", "status"),
    [((0.02, 0.81), "met"), ((0.045, 0.81), "met in the mean"), ((0.08, 0.81), "not met")],
)
def test_test_rows_confirm(test: Any, status: str) -> None:
    found = result(SWEEP | {3.0: {"validation": (0.02, 0.81), "test": test}}).answer(f"{GAP} <= 0.05")
    assert found.status == status
    assert found.met == (status == "met")
    assert weight(found) == 3
    assert found.chosen_meets
    assert ("the test rows do not confirm it" in str(found)) == (status != "met")


def test_what_comes_nearest() -> None:
    found = result(SWEEP).answer(f"{GAP} <= 0.01", "mean")
    assert found.status == "not met"
    assert weight(found) == 3
    assert "The nearest is kffl (fairness_weight=3): demographic parity difference 0.02" in str(found)
    assert "none of which meets the target there" in str(found)
    # a little more fairness and a little less accuracy than asked: what misses its target by less
    both = result(SWEEP).answer([f"{GAP} <= 0.03", "accuracy >= 0.83"], "mean")
    assert weight(both) == 2
    assert both.status == "not met"


def test_all_targets_must_be_met() -> None:
    assert weight(result(SWEEP).answer([f"{GAP} <= 0.15", "accuracy >= 0.8"])) == 1
    found = result(SWEEP).answer([f"{GAP} <= 0.05", "accuracy >= 0.9"])
    assert found.status == "not met"
    assert not found.chosen_meets
    assert [finding.target.metric for finding in found.findings] == [GAP, "accuracy"]
    ratio = result(SWEEP).answer(f"{RATIO} >= 0.85")
    assert weight(ratio) == 2  # its ratio is 0.92, that of weight 1 is 0.83
    assert "(at least 0." in str(ratio)


def test_the_cost_is_that_of_pairs_of_seeds_on_test_rows() -> None:
    swept = result(SWEEP, spread=0.02)
    found = swept.answer(f"{GAP} <= 0.05", "mean")
    assert found.best is not None
    assert found.best.setting == {"fairness_weight": 0.0}
    accuracy = swept.final("test").set_index(["fairness_weight", "seed"])["accuracy"]
    lost = accuracy[0.0].to_numpy() - accuracy[weight(found)].to_numpy()
    interval = stats.ttest_1samp(lost, 0).confidence_interval(0.95)
    np.testing.assert_allclose(found.cost, lost.mean())
    np.testing.assert_allclose(found.cost_interval, interval)
    np.testing.assert_allclose(found.reached, accuracy[weight(found)].mean())
    low, high = (100 * end for end in interval)
    text = f"; {100 * lost.mean():.1f} points less accuracy [{low:.1f}, {high:.1f}] than kffl (fairness_weight=0), "
    assert text in str(found)


def test_methods_are_chosen_from_too() -> None:
    target = f"{GAP} <= 0.15"
    plainly = result({None: SWEEP[0.0]}, "fedavg", target=target)
    fairer = result({None: SWEEP[1.0]}, "fedprox", target=target)
    pooled = result({None: {"validation": (0.0, 0.9), "test": (0.0, 0.9)}}, "centralized-kernel", target=target)
    found = ef.answer([plainly, pooled, fairer])
    assert found.chosen is not None
    assert found.best is not None
    assert (found.chosen.label, found.best.label, found.candidates) == ("fedprox", "fedavg", 2)
    assert found.to_dict()["chosen"]["method"] == "fedprox"
    # the same method twice: what differs tells them apart
    again = ef.answer([plainly, replace(plainly, info={**plainly.info, "hyper_parameters": {"mu": 3}})])
    assert again.chosen is not None
    assert again.chosen.label == "fedavg (mu=None)"


def test_degenerate_ones_are_never_taken() -> None:
    """One that predicts the same for everybody is fair and useless."""
    flat = {"validation": (0.0, 0.5), "test": (0.0, 0.5)}
    swept = result(SWEEP | {9.0: flat})
    metrics = swept.metrics
    worst = (metrics["fairness_weight"] == 9.0) & (metrics["metric"] == "degenerate")
    metrics.loc[worst & (metrics["seed"] == 2), "value"] = 1.0
    found = swept.answer(f"{GAP} <= 0.001", "mean")
    assert weight(found) == 3
    assert found.candidates == 4


def test_one_setting_is_answered_by_its_test_rows() -> None:
    found = result({None: {"test": (0.02, 0.81)}}, target=f"{GAP} <= 0.05").answer()
    assert found.met
    assert found.findings[0].validation is None
    assert "Take kffl: demographic parity difference 0.02" in str(found)
    assert "There was nothing to choose from: the test rows answer." in str(found)
    assert result({None: {"test": (0.1, 0.81)}}).answer(f"{GAP} <= 0.05").status == "not met"
    # a reference on pooled rows is no second candidate
    alone, pooled = result({None: {"test": (0.02, 0.81)}}), result({None: {"test": (0.02, 0.81)}}, "centralized-kernel")
    assert ef.answer([alone, pooled], f"{GAP} <= 0.05").met


def test_without_validation_rows_nothing_is_chosen() -> None:
    bare = {value: {"test": splits["test"]} for value, splits in SWEEP.items()}
    found = result(bare).answer(f"{GAP} <= 0.05")
    assert found.status == "not chosen"
    assert found.chosen is None
    assert not found.met
    assert "no validation rows to choose on" in str(found)
    assert "--validation 0.1" in str(found)
    assert "equifed.load(..., validation=0.1)" in str(found)


def test_a_metric_of_test_rows_only_cannot_choose() -> None:
    swept = result(SWEEP)
    tests = swept.metrics[(swept.metrics["split"] == "test") & (swept.metrics["metric"] == "accuracy")]
    swept.metrics = pd.concat([swept.metrics, tests.assign(metric="client_accuracy.worst")])
    found = swept.answer("client_accuracy.worst >= 0.5")
    assert found.status == "not chosen"
    assert "client_accuracy.worst is measured on test rows only" in str(found)


def test_a_target_below_the_noise_floor_cannot_be_shown() -> None:
    few = {value: {"validation": (*s["validation"], 300), "test": s["test"]} for value, s in SWEEP.items()}
    found = result(few).answer(f"{GAP} <= 0.03")
    assert found.status == "cannot be shown"
    (finding,) = found.findings
    assert finding.floor is not None
    assert (finding.floor.split, finding.floor.rows) == ("validation", 300)
    assert finding.floor.value > 0.03
    assert finding.floor.needed > 300
    assert f"On 300 validation rows even a perfectly fair model may show {GAP.replace('_', ' ')} 0." in str(found)
    assert f"it would take about {finding.floor.needed:,.0f} of them" in str(found)
    # what is far beyond the target is not met, however few the rows
    unfair = {value: {"validation": (0.3, 0.8, 300), "test": (0.3, 0.8)} for value in SWEEP}
    assert result(unfair).answer(f"{GAP} <= 0.03").status == "not met"
    # nor does the floor matter to the mean
    assert result(few).answer(f"{GAP} <= 0.03", "mean").met


def test_what_does_not_follow_from_counts_has_the_interval_of_its_seeds() -> None:
    swept = result(SWEEP, spread=0.01)
    found = swept.answer("loss <= 0.2", 0.9)
    values = swept.final("test").query(f"fairness_weight == {weight(found)}")["loss"]
    (finding,) = found.findings
    assert finding.test is not None
    bound = stats.t(3, values.mean(), stats.sem(values)).ppf([0.05, 0.95, 0.1, 0.9])
    np.testing.assert_allclose(finding.test, [values.mean(), *bound])
    assert not finding.row_noise
    assert "The interval of loss covers how seeds differ, not which rows were drawn." in str(found)
    few = result(SWEEP, seeds=2).answer("loss <= 0.2")
    assert few.status == "met in the mean"
    assert "too few seeds for an interval" in str(few)


def test_nothing_is_shown_where_a_seed_is_undefined() -> None:
    swept = result(SWEEP)
    metrics = swept.metrics
    lost = (metrics["fairness_weight"] == 3.0) & (metrics["metric"] == GAP) & (metrics["seed"] == 1)
    metrics.loc[lost & (metrics["split"] == "validation"), "value"] = np.nan
    found = swept.answer(f"{GAP} <= 0.05")
    assert weight(found) == 2  # the nearest of those that are known
    assert not found.chosen_meets
    alone = result({None: {"test": (0.02, 0.81)}})
    alone.metrics.loc[(alone.metrics["metric"] == GAP) & (alone.metrics["seed"] == 0), "value"] = np.nan
    unknown = alone.answer(f"{GAP} <= 0.05")
    assert unknown.status == "not known"
    assert str(unknown).startswith("Not known whether it is met: ")
    assert "demographic parity difference is not known" in str(unknown)


def test_targets_are_those_of_the_run_or_what_is_asked() -> None:
    swept = result(SWEEP, target=f"{GAP} <= 0.15", confidence=0.8)
    assert str(swept.answer().targets[0]) == f"{GAP} <= 0.15"
    assert swept.answer().confidence == 0.8
    assert swept.answer(confidence="mean").confidence == "mean"
    with pytest.raises(ef.ConfigError, match="There is no target"):
        result(SWEEP).answer()
    with pytest.raises(ef.ConfigError, match="Did you mean 'accuracy'"):
        swept.answer("acuracy >= 0.8")
    with pytest.raises(ef.ConfigError, match="wrong way round"):
        swept.answer("accuracy <= 0.8")
    with pytest.raises(ef.ConfigError, match="confidence must be a number between"):
        swept.answer(confidence=95)
    with pytest.raises(ef.ConfigError, match="made with different ones"):
        ef.answer([swept, result(SWEEP, target=f"{GAP} <= 0.15")])
    assert ef.answer([swept, result(SWEEP)]).confidence == 0.8  # the other one asks nothing
    with pytest.raises(ef.ConfigError, match="at least one result"):
        ef.answer([])


def test_results_on_other_data_are_not_chosen_from() -> None:
    elsewhere = result(SWEEP)
    elsewhere.info["data"] = "other"
    found = ef.answer([result(SWEEP), elsewhere], f"{GAP} <= 0.05")
    assert found.status == "not chosen"
    assert "different data, made and other" in str(found)


def test_judging_every_setting() -> None:
    """What a search for the target goes by."""
    aim = Aim((ef.Target(GAP, "<=", 0.15),), 0.95)
    variants = [variant.on("validation") for variant in result(SWEEP).variants]
    assert [each.setting["fairness_weight"] for each in variants] == [0, 1, 2, 3]
    assert [aim.met(each) for each in variants] == [False, True, True, True]
    assert [aim.excess(each) > 0 for each in variants] == [True, False, False, False]
    ends = [aim.estimates(each)[0].upper_end - 0.15 for each in variants]
    np.testing.assert_allclose([aim.excess(each) for each in variants], ends)
    assert all(each.values("accuracy").shape == (4,) for each in variants)


def test_the_answer_in_words_and_as_json() -> None:
    found = result(SWEEP, target=f"{GAP} <= 0.05").answer()
    end = found.findings[0].test
    assert end is not None
    assert found.sentences == [
        "Met with 95\u00a0% confidence: demographic parity difference at most 0.05.",
        f"Take kffl (fairness_weight=3): demographic parity difference {end.mean:.3f} (at most {end.upper_end:.3f} "
        f"with 95\u00a0% confidence) and accuracy {found.reached:.3f} on 10,000 test rows (mean of 4 seeds); "
        f"{100 * found.cost:.1f} points less accuracy [{100 * found.cost_interval[0]:.1f}, "  # type: ignore[index]
        f"{100 * found.cost_interval[1]:.1f}] than kffl (fairness_weight=0), which the validation rows choose without "
        "the target.",  # type: ignore[index]
        "Chosen on 10,000 validation rows from 4 settings; the test rows only confirm.",
    ]
    read = json.loads(json.dumps(found.to_dict(), default=plain))
    assert read["status"] == "met"
    assert read["chosen"]["setting"] == {"fairness_weight": 3.0}
    assert read["findings"][0]["test"]["upper_end"] == end.upper_end
    assert read["sentences"] == found.sentences


# -- words for what is easily said wrongly -----------------------------------------------------------------------------


def several(**methods: Any) -> ef.Answer:
    """method = ((gap, accuracy) on validation rows, the same on test rows)"""
    splits = {name: {"validation": val, "test": test} for name, (val, test) in methods.items()}
    return ef.answer([result({None: both}, name) for name, both in splits.items()], f"{GAP} <= 0.05")


def test_a_cost_that_only_test_rows_show_is_said() -> None:
    found = several(fedavg=((0.2, 0.83), (0.2, 0.835)), fedprox=((0.02, 0.84), (0.02, 0.819)))
    assert found.chosen == found.best
    assert found.ahead is not None
    assert found.ahead.label == "fedavg"
    np.testing.assert_allclose(found.ahead_by, 0.016, atol=2e-4)
    assert "the validation rows choose it too; on test rows fedavg has 1.6 points more accuracy." in str(found)
    # what is better than the best of validation rows may still cost something
    found = several(
        fedavg=((0.2, 0.85), (0.2, 0.75)), fedprox=((0.02, 0.84), (0.02, 0.8)), scaffold=((0.2, 0.83), (0.2, 0.83))
    )
    assert "5.0 points more accuracy" in str(found)
    assert "than fedavg, which the validation rows choose without the target; on test rows scaffold has 3" in str(found)
    best = several(fedavg=((0.2, 0.83), (0.2, 0.8)), fedprox=((0.02, 0.84), (0.02, 0.819)))
    assert best.ahead is None
    assert "(mean of 4 seeds); without the target the validation rows choose it too. Chosen" in str(best)


def test_degenerate_on_test_rows_is_the_reason() -> None:
    alone = flagged(result({None: {"test": (0.02, 0.81)}}), "test").answer(f"{GAP} <= 0.05")
    swept = flagged(result(SWEEP), "test").answer(f"{GAP} <= 0.05")
    for found in (alone, swept):
        assert found.status == "degenerate"
        assert not found.met
        assert found.sentences[0].startswith("Not met, because the model is degenerate")
    assert "The choice is kffl (fairness_weight=3)" in str(swept)  # which is nearest to nothing: it met the target


def test_what_only_test_rows_show_is_not_met() -> None:
    for confidence, level in ((0.95, "with 95\u00a0% confidence"), ("mean", "in the mean")):
        swept = result({1.0: {"validation": (0.07, 0.8), "test": (0.02, 0.8)}, 2.0: SWEEP[0.0]})
        found = swept.answer(f"{GAP} <= 0.05", confidence)  # type: ignore[arg-type]
        assert found.status == "met on test rows alone"
        assert not found.met
        assert found.sentences[0].startswith(f"Met {level} on test rows, but not on the validation rows, which choose:")


def test_a_bound_inside_the_interval_is_neither_met_nor_missed() -> None:
    alone = result({None: {"test": (0.0504, 0.8)}}, spread=0.0)
    found = alone.answer(f"{GAP} <= 0.0502")
    assert found.status == "not shown"
    assert found.sentences[0].startswith("Not met in the mean, but not ruled out with 95\u00a0% confidence either: ")
    assert "demographic parity difference 0.0504 (" in str(found)  # 0.050 would seem to meet it
    assert alone.answer(f"{GAP} <= 0.0502", "mean").status == "not met"
    assert alone.answer(f"{GAP} <= 0.0504", "mean").met


def test_what_is_left_out_is_named() -> None:
    target = f"{GAP} <= 0.05"
    good = result({None: {"validation": (0.02, 0.84), "test": (0.02, 0.84)}}, "fedavg")
    bare = result({None: {"test": (0.02, 0.9)}}, "fedprox")
    flat = flagged(result({None: {"validation": (0.02, 0.84), "test": (0.02, 0.84)}}, "scaffold"), "validation")
    found = ef.answer([bare, good, flat], target)
    assert found.met
    assert "Chosen on 10,000 validation rows as the only one of 3 settings that can be;" in str(found)
    assert "Left out, because nothing was measured on validation rows: fedprox." in str(found)
    assert "% of its rows: scaffold." in str(found)
    assert "nothing to choose from" not in str(found)
    assert found.to_dict()["left_out"].keys() == {"fedprox", "scaffold"}
    none = ef.answer([bare, flat], target)
    assert none.status == "not chosen"
    assert "because nothing was measured on validation rows or some group gets the same prediction" in str(none)


def test_without_test_rows_nothing_is_confirmed() -> None:
    target = f"{GAP} <= 0.05"
    results = [result({None: {"validation": (0.02, accuracy)}}, name) for name, accuracy in (("a", 0.8), ("b", 0.84))]
    for found in (ef.answer(results, target), ef.answer(results[1], target)):
        assert found.status == "not confirmed"
        assert not found.met
        assert "on validation rows, but there are no test rows to confirm it" in found.sentences[0]
        assert "and accuracy 0.84" in str(found)
        assert "on 10,000 validation rows (mean of 4 seeds)" in str(found)
    assert "the validation rows answer" in str(ef.answer(results[1], target))


def test_no_number_of_rows_shows_a_gap_of_zero() -> None:
    found = result({None: {"test": (0.0, 0.8)}}, spread=0.0).answer(f"{GAP} <= 0")
    assert found.status == "cannot be shown"
    assert str(found).endswith("no number of rows would do.")


def test_a_metric_with_two_targets_is_said_once() -> None:
    found = result(SWEEP).answer([f"{GAP} <= 0.05", f"{GAP} <= 0.3"])
    assert "demographic parity difference at most 0.05 and at most 0.3." in found.sentences[0]
    assert found.sentences[1].count("demographic parity difference") == 1


def test_a_choice_among_seeds_with_their_own_splits_is_held_to_a_stricter_level() -> None:
    swept = result(SWEEP)
    assert (swept.answer(f"{GAP} <= 0.05").compared, swept.answer(f"{GAP} <= 0.05").level) == (1, 0.95)
    swept.info = {**swept.info, "shared_rows": {"test": 0.2, "validation": 0.2}}
    aim = Aim((ef.Target(GAP, "<=", 0.045),), 0.95)
    ends = [aim.estimates(variant.on("validation"))[0] for variant in swept.variants]
    found = swept.answer(f"{GAP} <= 0.045")
    assert found.compared == 1 + sum(end.low <= 0.045 < end.high for end in ends[:3]) == 2
    assert found.level == pytest.approx(0.975)
    assert "one's validation rows are another's test rows" in str(found)
    assert swept.answer(f"{GAP} <= 0.045", "mean").compared == 1


def test_methods_that_train_on_validation_rows_are_not_chosen() -> None:
    learning, other = result({None: SWEEP[3.0]}, "fair-fate"), result(SWEEP)
    found = ef.answer([learning, other], f"{GAP} <= 0.4")
    assert (list(found.left_out), found.candidates) == (["fair-fate"], 4)
    assert "Left out, because it trains on the validation rows: fair-fate." in str(found)
    assert learning.answer(f"{GAP} <= 0.05").met
    assert result(SWEEP, "fair-fate").answer(f"{GAP} <= 0.05").status == "not chosen"


def test_without_row_noise_nothing_is_claimed_about_new_rows() -> None:
    found = result(SWEEP).answer("loss <= 0.3")
    assert (found.status, found.met) == ("met over seeds", False)
    assert result(SWEEP).answer("loss <= 0.3", "mean").met


def test_other_groups_of_the_same_data_are_not_chosen_from() -> None:
    other = result(SWEEP)
    other.info["groups"] = ["b", "a"]
    found = ef.answer([result(SWEEP), other], f"{GAP} <= 0.05")
    assert found.status == "not chosen"
    assert "differ in groups" in str(found)


def test_rows_that_silos_withhold_are_not_counted() -> None:
    alone = result({None: {"test": (0.02, 0.81)}})
    alone.info |= {"federation": {}, "rows": {"test": ROWS + 70}}
    found = alone.answer(f"{GAP} <= 0.05")
    assert found.rows["test"] == pytest.approx(ROWS, abs=2)
    assert found.withheld["test"] == ROWS + 70 - found.rows["test"]
