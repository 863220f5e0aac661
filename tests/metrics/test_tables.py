"""Tables, bootstrap intervals, equality over clients and equity over groups of clients."""

from __future__ import annotations

import ast
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import bootstrap

from equifed import metrics, partition
from equifed.errors import ConfigError, DataError


def sample(n: int = 400) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    s = rng.integers(0, 2, n)
    y = rng.integers(0, 2, n)
    return y, (rng.random(n) < 0.3 + 0.3 * s).astype(int), s


def test_table_by_group():
    y, p, s = sample()
    names = np.array(["f", "m"])[s]
    table = metrics.table_by_group(y, p, sensitive_features=names)
    assert list(table.index) == ["f", "m", "overall"]
    assert table["count"].tolist() == [(s == 0).sum(), (s == 1).sum(), 400]
    assert table.loc["m", "selection_rate"] == p[s == 1].mean()
    assert table.loc["overall", "accuracy"] == (y == p).mean()
    intervals = metrics.table_by_group(y, p, sensitive_features=names, bootstrap=200)
    assert (intervals["f1_low"] < intervals["f1"]).all()
    assert (intervals["f1"] < intervals["f1_high"]).all()
    again = metrics.table_by_group(y, p, sensitive_features=names, bootstrap=200)
    assert intervals.equals(again)
    other = metrics.table_by_group(y, p, sensitive_features=names, bootstrap=200, seed=1)
    assert not intervals.equals(other)


def test_table_of_other_shapes():
    multi = metrics.table_by_group(list("abc"), list("abb"), sensitive_features=[0, 0, 1], bootstrap=10)
    assert list(multi.columns) == ["count", "accuracy", "accuracy_low", "accuracy_high"]
    assert multi["accuracy"].tolist() == [1, 0, 2 / 3]
    undefined = metrics.table_by_group([0, 0, 1], [0, 1, 1], sensitive_features=[0, 0, 1], bootstrap=20)
    assert math.isnan(undefined.loc[0, "true_positive_rate"])
    assert math.isnan(undefined.loc[0, "true_positive_rate_low"])
    assert undefined["positives"].tolist() == [0, 1, 1]
    pairs = metrics.table_by_group([0, 1], [0, 1], sensitive_features=np.array([[0, 1], [1, 1]]))
    assert list(pairs.index) == [(0, 1), (1, 1), "overall"]
    text = metrics.table_by_group(["n", "y"], ["y", "y"], sensitive_features=[0, 1], pos_label="y")
    assert text.loc["overall", "false_positive_rate"] == 1


def test_bootstrap_interval_is_close_to_scipys():
    y, p, s = sample()
    table = metrics.counts(y, p, sensitive_features=s)

    def gap(index: np.ndarray) -> float:
        return metrics.demographic_parity_difference(y[index], p[index], sensitive_features=s[index])

    theirs = bootstrap(
        (np.arange(len(y)),),
        gap,
        n_resamples=1500,
        method="percentile",
        vectorized=False,
        rng=np.random.default_rng(0),
    ).confidence_interval
    low, high = metrics.bootstrap_interval(table, "demographic_parity_difference", n=4000)
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.02)


def test_bootstrap_interval_of_any_statistic_and_shape():
    y, p, s = sample()
    table = metrics.counts(y, p, sensitive_features=s)
    low, high = metrics.bootstrap_interval(table, lambda c: metrics.rates(c)["accuracy"], n=300, confidence=0.5)
    wide_low, wide_high = metrics.bootstrap_interval(table, "accuracy", n=300, confidence=0.9)
    assert low.shape == (2,)
    assert (wide_low < low).all()
    assert (high < wide_high).all()
    low, high = metrics.bootstrap_interval(np.stack([table, table * 0, table * 100]), "accuracy_difference", n=100)
    assert low.shape == (3,)
    assert np.isnan(low[1])
    assert high[2] - low[2] < 0.2 * (high[0] - low[0])
    with pytest.raises(ConfigError, match="Did you mean 'accuracy'"):
        metrics.bootstrap_interval(table, "acuracy")
    with pytest.raises(ConfigError, match="confidence must lie between 0 and 1, not 95"):
        metrics.bootstrap_interval(table, "accuracy", confidence=95)
    with pytest.raises(ConfigError, match="at least one draw"):
        metrics.bootstrap_interval(table, "accuracy", n=0)


def test_client_equality():
    values = np.random.default_rng(0).random(37) * 100
    found = metrics.client_equality(values)
    ranked = np.sort(values)
    expected = {
        "mean": values.mean(),
        "worst10": ranked[:3].mean(),
        "best10": ranked[-3:].mean(),
        "variance": values.var(),
    }
    assert found == pytest.approx(expected)
    few = metrics.client_equality([1.0, math.nan, 3.0])
    assert few == {"mean": 2.0, "worst10": 1.0, "best10": 3.0, "variance": 1.0}
    both = metrics.client_equality(np.stack([values, np.full(37, np.nan)]))
    for name, value in expected.items():
        assert both[name][0] == pytest.approx(value)
        assert math.isnan(both[name][1])
    with pytest.raises(DataError, match="one number per client"):
        metrics.client_equality(3.0)


def test_group_equity():
    found = metrics.group_equity([10.0, 30.0, 50.0, math.nan, math.nan], list("aabbc"))
    assert found == {"mean": 35.0, "worst10": 20.0, "best10": 50.0, "variance": 225.0}
    lead = metrics.group_equity([[1.0, 3.0], [2.0, 2.0]], [0, 1])
    assert lead["variance"].tolist() == [1.0, 0.0]
    with pytest.raises(DataError, match="3 client groups"):
        metrics.group_equity([1.0, 2.0], [0, 1, 1])


@pytest.mark.parametrize("package", [metrics, partition])
def test_importing_needs_numpy_only(package):
    """Both run on a bare GPU machine; pandas is imported inside the functions that make tables."""
    for file in Path(package.__file__).parent.glob("*.py"):
        for node in ast.parse(file.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module]
            tops = {name.split(".")[0] for name in names}
            assert tops <= {"numpy", "equifed", *sys.stdlib_module_names}, file
