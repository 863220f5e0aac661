"""Disparities: by hand, against fairlearn and scipy, undefined groups, signs, FAIR-FATE's published form."""

from __future__ import annotations

import math
import pickle
from itertools import combinations

import fairlearn.metrics as fl
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp
from sklearn.metrics import root_mean_squared_error

from equifed import metrics
from equifed.errors import ConfigError, DataError
from equifed.metrics.disparities import difference, ratio
from equifed.metrics.seeds import moments

Y = [1, 1, 0, 0, 1, 1, 0]
P = [1, 0, 1, 0, 1, 1, 0]
S = list("aaaabbb")

FAIRLEARN = [
    "demographic_parity_difference",
    "demographic_parity_ratio",
    "equal_opportunity_difference",
    "equal_opportunity_ratio",
    "equalized_odds_difference",
    "equalized_odds_ratio",
]


def draw(seed: int, groups: int, n: int = 80) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2, n), (rng.random(n) < rng.random()).astype(int), rng.integers(0, groups, n)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), groups=st.integers(2, 4))
def test_equal_to_fairlearn_wherever_it_is_defined(seed, groups):
    y, p, s = draw(seed, groups)
    assume(metrics.counts(y, p, sensitive_features=s).sum(-1).all())  # an empty denominator is 0 in fairlearn
    for name in FAIRLEARN:
        theirs = getattr(fl, name)(y, p, sensitive_features=s)
        if not math.isnan(theirs):
            assert getattr(metrics, name)(y, p, sensitive_features=s) == pytest.approx(theirs), name
    theirs = fl.equalized_odds_ratio(y, p, sensitive_features=s, agg="mean")
    assert metrics.average_odds_ratio(y, p, sensitive_features=s) == pytest.approx(theirs, nan_ok=True)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), groups=st.integers(2, 4))
def test_are_pairwise_extremes_over_defined_groups(seed, groups):
    y, p, s = draw(seed, groups, n=12)  # so few rows that groups lack positives or negatives
    table = metrics.counts(y, p, sensitive_features=s, num_groups=groups)
    rate, found = metrics.rates(table), metrics.disparities(table)
    for name, key in [("demographic_parity", "selection_rate"), ("equal_opportunity", "true_positive_rate")]:
        pairs = list(combinations(rate[key][~np.isnan(rate[key])], 2))
        gap = max((abs(a - b) for a, b in pairs), default=math.nan)
        assert found[f"{name}_difference"] == pytest.approx(gap, nan_ok=True)
        ratios = [min(a, b) / max(a, b) for a, b in pairs if max(a, b) > 0]
        assert found[f"{name}_ratio"] == pytest.approx(min(ratios, default=math.nan), nan_ok=True)


def test_by_hand():
    expected = {
        "demographic_parity_difference": 1 / 6,
        "demographic_parity_ratio": 0.75,
        "equal_opportunity_difference": 0.5,
        "equal_opportunity_ratio": 0.5,
        "equalized_odds_difference": 0.5,
        "equalized_odds_ratio": 0.0,
        "average_odds_ratio": 0.25,
        "discrimination_index": 0.5,
        "accuracy_difference": 0.5,
    }
    found = metrics.disparities(metrics.counts(Y, P, sensitive_features=S))
    assert found.keys() >= expected.keys()
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(value), name
        assert getattr(metrics, name)(Y, P, sensitive_features=S) == pytest.approx(value), name
    assert isinstance(metrics.demographic_parity_ratio(Y, P, sensitive_features=S), float)


def test_zero_over_zero():
    nobody = [0, 0, 0, 0]
    assert metrics.demographic_parity_difference([0, 1, 0, 1], nobody, sensitive_features=[0, 0, 1, 1]) == 0
    for name in FAIRLEARN[1::2]:
        assert math.isnan(getattr(fl, name)([0, 1, 0, 1], nobody, sensitive_features=[0, 0, 1, 1]))
        assert math.isnan(getattr(metrics, name)([0, 1, 0, 1], nobody, sensitive_features=[0, 0, 1, 1]))
    perfect = [0, 1, 0, 1]
    assert metrics.equalized_odds_ratio(perfect, perfect, sensitive_features=[0, 0, 1, 1]) == 1
    assert metrics.average_odds_ratio(perfect, perfect, sensitive_features=[0, 0, 1, 1]) == 1


def test_undefined_groups_are_left_out():
    # group 1 has no positive row, group 2 none at all
    table = np.array([[[3, 1], [1, 3]], [[2, 2], [0, 0]], [[0, 0], [0, 0]], [[1, 1], [0, 4]]])
    found = metrics.disparities(table)
    assert found["equal_opportunity_difference"] == pytest.approx(0.25)
    assert found["demographic_parity_difference"] == pytest.approx(5 / 6 - 0.5)
    alone = metrics.disparities(table[1:3])
    assert all(math.isnan(value) for value in alone.values())
    # equalized odds needs both of its rates
    pair = metrics.disparities(table[:2])
    assert pair["demographic_parity_difference"] == 0
    for name in ("equalized_odds_difference", "equalized_odds_ratio", "average_odds_ratio"):
        assert math.isnan(pair[name])
    assert math.isnan(metrics.demographic_parity_difference([], [], sensitive_features=[]))


def test_signed():
    gap = metrics.equal_opportunity_difference
    assert gap(Y, P, sensitive_features=S, signed=True, reference_group="a") == 0.5
    assert gap(Y, P, sensitive_features=S, signed=True, reference_group="b") == -0.5
    # the false positive gap (-0.5) does not exceed the true positive gap (+0.5)
    assert metrics.equalized_odds_difference(Y, P, sensitive_features=S, signed=True, reference_group="a") == 0.5
    assert metrics.accuracy_difference(Y, P, sensitive_features=S, signed=True, reference_group="b") == -0.5
    with pytest.raises(ConfigError, match=r"one of \['a', 'b'\]; got None"):
        gap(Y, P, sensitive_features=S, signed=True)
    with pytest.raises(ConfigError, match="signed=True"):
        gap(Y, P, sensitive_features=S, reference_group="a")


def test_signed_with_many_groups_and_leading_axes():
    # selection rates 0.5, 0.6, 0.1, undefined
    group = [[[5, 5], [0, 0]], [[4, 6], [0, 0]], [[9, 1], [0, 0]], [[0, 0], [0, 0]]]
    table = np.array([group, group[::-1]])
    for reference, expected in [(0, [-0.4, math.nan]), (1, [-0.5, 0.5]), (2, [0.5, -0.5])]:
        found = metrics.disparities(table, reference=reference)
        np.testing.assert_allclose(found["demographic_parity_difference"], expected)
        np.testing.assert_allclose(found["demographic_parity_ratio"], 1 / 6)


def plain_fair_fate(table: np.ndarray) -> dict[str, float]:
    """FAIR-FATE's figures in plain Python, for two groups."""

    def ratio(pairs):
        if any(0 in pair for pair in pairs):
            return 0.0
        (a, b), (c, d) = pairs
        first, second = a / (a + b), c / (c + d)
        return round(min(first / second, second / first), 2)

    cells = [[int(v) for v in group.ravel()] for group in table]  # TN, FP, FN, TP
    tpr = ratio([(tp, fn) for tn, fp, fn, tp in cells])
    fpr = ratio([(fp, tn) for tn, fp, fn, tp in cells])
    return {
        "demographic_parity_ratio": ratio([(tp + fp, tn + fp + fn + tp) for tn, fp, fn, tp in cells]),
        "equal_opportunity_ratio": tpr,
        "average_odds_ratio": round((tpr + fpr) / 2, 2),
    }


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32 - 1))
def test_paper_compat_fair_fate(seed):
    tables = np.random.default_rng(seed).integers(0, 60, (5, 2, 2, 2)) * (np.arange(5) > 0)[:, None, None, None]
    tables[1, 0, 1, 0] = 0  # a perfect TPR scores 0 there
    found = metrics.disparities(tables, paper_compat="fair-fate")
    for i, table in enumerate(tables):
        for name, value in plain_fair_fate(table).items():
            assert found[name][i] == value, name
    np.testing.assert_array_equal(found["equalized_odds_ratio"], metrics.disparities(tables)["equalized_odds_ratio"])


def test_paper_compat_by_hand():
    # selection rates 1/2 and 2/3 count as 1/3 and 2/5; group b misses nobody, so its TPR ratio is 0
    compat = {"sensitive_features": S, "paper_compat": "fair-fate"}
    assert metrics.demographic_parity_ratio(Y, P, **compat) == 0.83
    assert metrics.equal_opportunity_ratio(Y, P, **compat) == 0
    assert metrics.average_odds_ratio(Y, P, **compat) == 0
    with pytest.raises(ConfigError, match=r"Unknown paper_compat 'fairfate'. Did you mean 'fair-fate'\?"):
        metrics.average_odds_ratio(Y, P, sensitive_features=S, paper_compat="fairfate")


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), groups=st.integers(2, 4))
def test_ks_distance_is_scipys(seed, groups):
    rng = np.random.default_rng(seed)
    s = np.concatenate([np.arange(groups), rng.integers(0, groups, 60)])
    values = np.round(rng.normal(s * rng.random(), 1), 1)  # with ties
    expected = max(ks_2samp(values[s == a], values[s == b]).statistic for a, b in combinations(range(groups), 2))
    assert metrics.ks_distance(values, sensitive_features=s) == pytest.approx(expected)


def test_regression():
    y, p, s = np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 3.5]), ["a", "a", "b"]
    assert metrics.rmse(y, p) == pytest.approx(root_mean_squared_error(y, p))
    assert metrics.rmse_by_group(y, p, sensitive_features=s) == pytest.approx({"a": math.sqrt(2), "b": 0.5})
    assert metrics.mean_difference(p, sensitive_features=s) == 1.0
    assert metrics.mean_difference(p, sensitive_features=s, signed=True, reference_group="b") == -1.0
    assert math.isnan(metrics.rmse([], []))
    assert math.isnan(metrics.ks_distance(p, sensitive_features=["a"] * 3))


def test_dgeo():
    losses, y, s = [1.0, 3.0, 9.0, 0.5, 7.0], [1, 1, 0, 1, 0], list("aaabb")
    assert metrics.dgeo(losses, y, sensitive_features=s) == 1.5
    assert metrics.dgeo(losses, y, sensitive_features=s, protected_class=0) == 2.0
    assert metrics.dgeo(losses, y, sensitive_features=s, signed=True, reference_group="a") == -1.5
    assert math.isnan(metrics.dgeo(losses, [1, 1, 1, 0, 0], sensitive_features=s))


def test_harmonic_mean():
    assert metrics.harmonic_mean(0.8, 0.4) == pytest.approx(2 * 0.8 * 0.6 / 1.4)
    assert metrics.harmonic_mean(0.0, 1.0) == 0
    np.testing.assert_allclose(metrics.harmonic_mean([1, 0.5, np.nan], [0, 0.5, 0]), [1, 0.5, np.nan])


def test_functions_can_be_pickled():
    functions = [value for value in vars(metrics).values() if callable(value)]
    assert metrics.demographic_parity_difference in functions
    for function in functions:
        assert pickle.loads(pickle.dumps(function)) is function
        assert function.__doc__


def by_loops(y, p, s, classes) -> dict[str, float]:
    """The disparities of several classes: every rate of every pair of groups that have it."""
    kinds = {
        "demographic_parity": [(None, j) for j in classes],
        "equal_opportunity": [(j, j) for j in classes],
        "equalized_odds": [(label, j) for label in classes for j in classes],
    }
    found = {}
    for name, terms in kinds.items():
        gaps, ratios = [], []
        for label, j in terms:
            rows = [(s == g) & ((y == label) | (label is None)) for g in np.unique(s)]
            for a, b in combinations([np.mean(p[kept] == j) for kept in rows if kept.any()], 2):
                gaps.append(abs(a - b))
                ratios += [min(a, b) / max(a, b)] if max(a, b) else []
        found[f"{name}_difference"] = max(gaps, default=math.nan)
        found[f"{name}_ratio"] = min(ratios, default=math.nan)
    del found["equalized_odds_ratio"]
    return found


@pytest.mark.parametrize(("groups", "rows"), [(2, 90), (3, 90), (4, 12), (1, 20)])
def test_of_several_classes_are_the_widest_over_classes_and_pairs_of_groups(groups, rows):
    rng = np.random.default_rng(groups)
    names = np.array(["high", "low", "mid"])
    y, p, s = names[rng.integers(0, 3, rows)], names[rng.integers(0, 3, rows)], rng.integers(0, groups, rows)
    expected = by_loops(y, p, s, names)
    codes = {name: i for i, name in enumerate(names)}
    table = metrics.counts([codes[v] for v in y], [codes[v] for v in p], sensitive_features=s)
    together = metrics.disparities(np.stack([table, table[::-1]]))
    for name, value in expected.items():
        assert getattr(metrics, name)(y, p, sensitive_features=s) == pytest.approx(value, nan_ok=True), name
        np.testing.assert_allclose(together[name], value, err_msg=name)
    if groups > 1:
        one_by_one = [fl.demographic_parity_difference(y == name, p == name, sensitive_features=s) for name in names]
        assert expected["demographic_parity_difference"] == pytest.approx(max(one_by_one))


def test_of_several_classes_has_a_sign_against_a_reference():
    y, s = [0, 1, 2] * 8, ["a"] * 12 + ["b"] * 12
    p = [0, 1, 2] * 4 + [0, 1, 1] * 4
    gap = metrics.demographic_parity_difference
    assert gap(y, p, sensitive_features=s) == pytest.approx(1 / 3)
    signed = metrics.equal_opportunity_difference(y, p, sensitive_features=s, signed=True, reference_group="a")
    assert signed == -1  # the label 2 is never predicted right in b
    with pytest.raises(DataError, match="needs two classes"):
        metrics.equalized_odds_ratio(y, p, sensitive_features=s)


def test_what_has_diverged_is_undefined_and_raises_no_flag_on_any_processor() -> None:
    """inf - inf, inf / inf and 0 times inf: some processors raise a flag, of which NumPy warns, and some do not."""
    diverged = np.array([[np.inf, np.inf], [1.0, np.inf], [-np.inf, np.inf], [np.nan, np.inf], [1.0, 3.0]])
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(difference(diverged), [np.nan] * 4 + [2])
        np.testing.assert_array_equal(difference(diverged, 0), [np.nan] * 4 + [2])
        np.testing.assert_array_equal(ratio(diverged), [np.nan] * 4 + [1 / 3])
        equality = metrics.client_equality(diverged[[0, 1, 3, 4]])
        np.testing.assert_array_equal(equality["variance"], [np.nan] * 3 + [1])
        assert metrics.group_equity([np.inf, 1.0, 2.0], ["a", "b", "b"])["best10"] == np.inf
        assert np.isnan(moments([np.inf, -np.inf]).mean)
        assert np.isnan(moments([np.inf, 1.0]).std)
