"""Calibration: against scikit-learn and plain NumPy on rows, and what the simulator counts against what it predicts."""

from __future__ import annotations

import numpy as np
import pytest
from report.runs import federation, rows, run
from scipy.stats import binom
from sklearn.calibration import calibration_curve

import equifed as ef
from equifed.errors import DataError
from equifed.metrics.calibration import (
    BINS,
    calibration_error,
    calibration_gap,
    error_by_chance,
    expected_calibration_error,
    histograms,
)


def plain_error(true: np.ndarray, score: np.ndarray) -> float:
    """The definition, bin by bin: (low, high], and 0 in the first."""
    error = 0.0
    for b in range(BINS):
        inside = (score > b / BINS) & (score <= (b + 1) / BINS) | ((b == 0) & (score == 0))
        if inside.any():
            error += inside.mean() * abs(true[inside].mean() - score[inside].mean())
    return error


@pytest.fixture
def drawn() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    score = np.round(rng.beta(1, 2, 3000), 3)  # some of them lie on edges
    return (rng.random(3000) < score**1.5).astype(int), score, rng.choice(["a", "b", "c"], 3000, p=[0.6, 0.3, 0.1])


def test_curves_and_errors_are_those_of_the_rows(drawn):
    y, score, s = drawn
    assert np.isin(score, np.arange(BINS + 1) / BINS).sum() > 10
    found = histograms(y, score, sensitive_features=s)
    for g, name in enumerate("abc"):
        rate, mean = calibration_curve(y[s == name], score[s == name], n_bins=BINS)
        n, true, total = found[g][found[g, :, 0] > 0].T
        np.testing.assert_allclose(true / n, rate)
        np.testing.assert_allclose(total / n, mean)
    by_group = expected_calibration_error(y, score, sensitive_features=s)
    assert by_group == pytest.approx({name: plain_error(y[s == name], score[s == name]) for name in "abc"})
    assert expected_calibration_error(y, score) == pytest.approx(plain_error(y, score))
    assert calibration_error(found.sum(0)) == pytest.approx(plain_error(y, score))  # groups add up


def test_the_gap_between_curves_is_that_of_the_farthest_pair_and_small_bins_weigh_little(drawn):
    y, score, s = drawn
    place = np.searchsorted(np.arange(1, BINS) / BINS, score)
    distances = []
    for one, other in ("ab", "ac", "bc"):
        total = weights = 0.0
        for b in range(BINS):
            parts = [(s == name) & (place == b) for name in (one, other)]
            if all(part.any() for part in parts):
                weight = 1 / sum(1 / part.sum() for part in parts)
                total += weight * abs(np.subtract(*((y - score)[part].mean() for part in parts)))
                weights += weight
        distances.append(total / weights)
    found = histograms(y, score, sensitive_features=s)
    assert calibration_gap(found) == pytest.approx(max(distances))
    one_more = found.copy()
    one_more[0, -1] += [1, 0, 1.0]  # a single row with a wrong score of 1
    assert abs(calibration_gap(one_more) - calibration_gap(found)) < 0.01
    assert np.isnan(calibration_gap(found[:1]))
    assert np.isnan(calibration_gap(np.zeros((4, 0, BINS, 3)))).all()


def test_a_calibrated_model_shows_chance_and_less_of_it_with_more_rows():
    rng = np.random.default_rng(1)
    errors = {}
    for n in (300, 30_000):
        score = rng.random((200, n)).astype(np.float32)
        made = [histograms(rng.random(n) < p, p, sensitive_features=np.zeros(n)) for p in score]
        errors[n] = calibration_error(np.stack(made)).mean()
        assert errors[n] == pytest.approx(error_by_chance(np.stack(made)).mean(), rel=0.05)
    assert errors[30_000] < 0.012 < 0.05 < errors[300]
    exact = np.zeros((BINS, 3))
    exact[8] = [20, 10, 10.0]  # what the scores promise
    assert calibration_error(exact) == 0


def test_chance_is_the_mean_over_all_outcomes():
    bins = np.zeros((BINS, 3))
    bins[3], bins[10], bins[15] = [7, 0, 1.5], [12, 0, 8.0], [4, 0, 4.0]
    expected = sum(
        (binom.pmf(np.arange(n + 1), n, total / n) * abs(np.arange(n + 1) - total)).sum()
        for n, _, total in bins[[3, 10, 15]]
    )
    assert error_by_chance(bins) == pytest.approx(expected / 23)


def test_scores_that_are_none_are_refused():
    with pytest.raises(DataError, match="within 0 to 1"):
        expected_calibration_error([0, 1], [0.2, 1.2])
    with pytest.raises(DataError, match="must be 0 or 1"):
        expected_calibration_error([0, 2], [0.2, 0.3])


def measured(result: ef.Result, scope: str, metric: str, split: str = "test") -> float:
    frame = result.metrics
    frame = frame[(frame["round"] == frame["round"].max()) & (frame["split"] == split) & (frame["scope"] == scope)]
    return frame.loc[frame["metric"] == metric, "value"].item()


@pytest.mark.parametrize("method", [ef.methods.FedAvg(), ef.methods.make("fedavg+eo")], ids=lambda method: method.name)
def test_a_run_measures_what_its_model_predicts(method):
    fed = federation()
    result = run(method, fed, seeds=[0])
    x, y, s = (part[fed.test] for part in (fed.rows.x, fed.rows.y, fed.rows.s))
    if method.name == "fedavg":
        score = result.predict(x)
        for g, name in enumerate(fed.groups):
            error = plain_error(y[s == g], score[s == g].astype(float))
            assert measured(result, f"group:{name}", "expected_calibration_error") == pytest.approx(error, rel=1e-5)
        assert measured(result, "global", "expected_calibration_error") == pytest.approx(plain_error(y, score))
    else:  # decisions are scores of 0 and 1, so that every error counts, less those that cancel out in a bin
        error = measured(result, "global", "expected_calibration_error")
        assert 0 < error <= 1 - measured(result, "global", "accuracy")
    groups = [measured(result, f"group:{name}", "expected_calibration_error") for name in fed.groups]
    assert measured(result, "global", "calibration_difference") == pytest.approx(abs(np.subtract(*groups)))


def test_with_more_classes_it_is_about_the_predicted_one():
    rng = np.random.default_rng(5)
    made = [rows(rng, 90, ["a", "b"]) for _ in range(4)]
    many = [(x, (x[:, 0] > 0).astype(int) + (x[:, 1] > 0) * (y == 1), s) for x, y, s in made]
    fed = ef.Federation.from_arrays(many[:3], test=many[3])
    result = ef.simulate(ef.methods.FedAvg(), fed, model=ef.models.Logistic(), rounds=3, seeds=[0])
    x, y, s = (part[fed.test] for part in (fed.rows.x, fed.rows.y, fed.rows.s))
    score = result.predict(x)
    assert score.shape == (90, 3)
    right = (score.argmax(1) == y).astype(int)
    for g, name in enumerate(fed.groups):
        error = plain_error(right[s == g], score.max(1)[s == g].astype(float))
        assert measured(result, f"group:{name}", "expected_calibration_error") == pytest.approx(error, rel=1e-5)


def test_a_regression_has_none():
    found = run(ef.methods.FedAvg(), federation(task="regression"), seeds=[0]).metrics["metric"].astype(str)
    assert not found.str.contains("calibration").any()
