"""Statistics over seeds against scipy, numpy and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from equifed.metrics import seeds


def test_moments_leave_out_undefined_seeds():
    values = [0.5, math.nan, 0.7, 0.9]
    assert seeds.moments(values) == pytest.approx((0.7, 0.2, 3))
    assert seeds.moments(pd.Series(values)) == seeds.moments(values)
    mean, std, n = seeds.moments([math.nan, 0.25])
    assert (mean, n) == (0.25, 1)
    assert math.isnan(std)
    assert seeds.moments([]).n == seeds.moments([math.nan]).n == 0
    mean, std, n = seeds.moments([1.0, math.inf])  # a diverged run: no warning
    assert (mean, n) == (math.inf, 2)
    assert math.isnan(std)


def test_moments_of_a_tidy_frame_are_those_of_its_parts():
    rng = np.random.default_rng(1)
    names = pd.Categorical(["b", "a", "b", "a", "b"], categories=["unused", "a", "b"])
    frame = pd.DataFrame({"name": names, "value": rng.normal(size=5)})
    frame.loc[4, "value"] = math.nan
    found = seeds.moments_by(frame, ["name"])
    assert list(found.index) == ["b", "a"]
    for name, part in frame.groupby("name", observed=True):
        assert tuple(found.loc[name]) == pytest.approx(seeds.moments(part["value"]))


def test_means_over_an_axis_of_seeds():
    values = np.array([[[1.0, math.nan], [3.0, math.nan]], [[5.0, 2.0], [math.nan, 4.0]]])
    np.testing.assert_allclose(seeds.mean(values, -2), [[2.0, math.nan], [5.0, 3.0]])


def test_intervals_and_paired_tests_are_those_of_scipy():
    rng = np.random.default_rng(2)
    for n in (3, 5, 10):
        a, b = rng.normal(0.3, 1, n), rng.normal(0, 1, n)
        assert seeds.mean_interval(a) == pytest.approx(stats.t.interval(0.95, n - 1, a.mean(), stats.sem(a)))
        expected, test = stats.ttest_rel(a, b), seeds.paired(a - b)
        assert test.p == test.holm == pytest.approx(expected.pvalue)
        assert (test.low, test.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
        assert (test.difference, test.n) == pytest.approx(((a - b).mean(), n))
        undefined = seeds.paired(np.append(a - b, math.nan))
        assert undefined == test


def test_too_few_or_infinite_seeds_give_no_interval_and_no_test():
    for values in ([0.1, 0.2], [0.1, 0.2, math.nan], [0.1, 0.2, math.inf]):
        assert seeds.mean_interval(values) is None
        assert seeds.paired(values) is None


def test_equal_differences_are_beyond_doubt_and_rounding_is_none():
    assert seeds.paired([0.25, 0.25, 0.25]).p == 0
    assert seeds.paired([1e-17, -1e-17, 1e-16]).p == 1


def test_holm_is_the_step_down_of_bonferroni():
    rng = np.random.default_rng(0)
    for m in (1, 2, 5, 12):
        p = rng.random(m) ** 2
        corrected = np.array(seeds.holm(p))
        for level in (0.01, 0.05, 0.2, 0.7):
            # the definition: reject in order of p while p_(k) <= level / (m - k), then stop
            rejected = np.zeros(m, bool)
            for k, i in enumerate(np.argsort(p)):
                if p[i] > level / (m - k):
                    break
                rejected[i] = True
            assert (corrected <= level).tolist() == rejected.tolist()
    assert seeds.holm([]) == []
    assert seeds.holm([0.01, 0.01, 0.5]) == pytest.approx([0.03, 0.03, 0.5])


def test_a_family_is_corrected_together_whatever_has_no_test():
    tests = [seeds.paired([0.1, 0.2, 0.25]), None, seeds.paired([0.1, -0.2, 0.25]), seeds.paired([1.0, 1.1, 1.2])]
    corrected = seeds.corrected(tests)
    assert corrected[1] is None
    known = [i for i in range(4) if i != 1]
    assert [corrected[i].holm for i in known] == seeds.holm([tests[i].p for i in known])
    assert [corrected[i].clear for i in known] == [corrected[i].holm < 0.05 for i in known] == [False, False, True]


def test_wilson_intervals_are_those_of_scipy():
    for hits, n in ((0, 5), (3, 7), (50, 50), (217, 1000)):
        expected = stats.binomtest(hits, n).proportion_ci(0.95, method="wilson")
        assert seeds.wilson(hits / n, n) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert all(math.isnan(bound) for bound in seeds.wilson(math.nan, 0))


def test_a_bootstrap_draws_the_same_seeds_for_all_settings():
    values = np.stack([np.arange(6.0), 10 * np.arange(6.0)])[..., None].repeat(2, -1)  # [settings, seeds, metrics]
    resampled = seeds.resampled_means(values, -2)
    assert resampled.shape == (seeds.RESAMPLES, 2, 2)
    assert np.allclose(resampled[:, 1], 10 * resampled[:, 0])
    # a mean of n draws with replacement has the variance of the values by n
    assert resampled[:, 0, 0].mean() == pytest.approx(2.5, abs=0.1)
    assert resampled[:, 0, 0].var() == pytest.approx(np.arange(6).var() / 6, rel=0.15)
    low, high = seeds.percentile_interval(resampled)
    expected = stats.bootstrap((np.arange(6.0),), np.mean, method="percentile", random_state=1).confidence_interval
    assert (low[0, 0], high[0, 0]) == pytest.approx((expected.low, expected.high), abs=0.2)
    assert np.isnan(seeds.resampled_means(values[:, :1], -2)).all()


def test_moments_of_every_column() -> None:
    frame = pd.DataFrame({"method": ["a", "a", "b", "b"], "seed": [0, 1, 0, 1], "x": [1.0, 3.0, 5.0, np.nan]})
    found = seeds.moments_wide(frame, ["method"])
    assert found.loc["a", ("x", "mean")] == 2
    assert found.loc["a", ("x", "std")] == pytest.approx(np.sqrt(2))
    assert found.loc["b", ("x", "mean")] == 5
    assert np.isnan(found.loc["b", ("x", "std")])
    assert list(found.columns.get_level_values(0).unique()) == ["x"]
