"""Counts and rates: by hand, against fairlearn and scikit-learn, with any leading axes and any input type."""

from __future__ import annotations

import math

import fairlearn.metrics as fl
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from equifed import metrics
from equifed.errors import ConfigError, DataError
from equifed.metrics.catalogue import CATALOGUE

# group a: TP 1, FN 1, FP 1, TN 1; group b: TP 2, FN 0, FP 0, TN 1
Y = [1, 1, 0, 0, 1, 1, 0]
P = [1, 0, 1, 0, 1, 1, 0]
S = list("aaaabbb")

RATES = [
    "selection_rate",
    "true_positive_rate",
    "false_positive_rate",
    "true_negative_rate",
    "false_negative_rate",
]


def draw(seed: int, n: int = 60, groups: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2, n), (rng.random(n) < rng.random()).astype(int), rng.integers(0, groups, n)


def test_counts_by_hand():
    table = metrics.counts(Y, P, sensitive_features=S)
    assert table.tolist() == [[[1, 1], [1, 1]], [[1, 0], [0, 2]]]
    padded = metrics.counts([0, 2], [1, 2], sensitive_features=[0, 2], num_groups=4, num_classes=3)
    assert padded.shape == (4, 3, 3)
    assert padded[0, 0, 1] == padded[2, 2, 2] == 1
    assert padded.sum() == 2
    assert metrics.counts([], [], sensitive_features=[], num_groups=2).shape == (2, 2, 2)


def test_rates_by_hand():
    rate = metrics.rates(metrics.counts(Y, P, sensitive_features=S))
    expected = {
        "count": [4, 3],
        "positives": [2, 2],
        "selection_rate": [0.5, 2 / 3],
        "true_positive_rate": [0.5, 1],
        "false_positive_rate": [0.5, 0],
        "true_negative_rate": [0.5, 1],
        "false_negative_rate": [0.5, 0],
        "accuracy": [0.5, 1],
        "f1": [0.5, 1],
    }
    assert set(rate) == {"count", "positives", *(name for name, metric in CATALOGUE.items() if metric.share)}
    for name, values in expected.items():
        assert rate[name].tolist() == pytest.approx(values), name
    assert metrics.f1(Y, P, sensitive_features=S) == {"a": 0.5, "b": 1.0}
    assert metrics.accuracy(Y, P, sensitive_features=S) == {"a": 0.5, "b": 1.0}
    assert metrics.selection_rate(Y, P) == 4 / 7
    assert metrics.selection_rate.__name__ == "selection_rate"


def test_empty_denominators_are_nan():
    assert math.isnan(metrics.true_positive_rate([0, 0], [0, 1]))
    assert math.isnan(metrics.f1([0, 0], [0, 0]))
    assert math.isnan(metrics.selection_rate([], []))
    assert math.isnan(metrics.accuracy([], []))
    rate = metrics.rates(np.zeros((3, 2, 2), dtype=int))
    assert rate["count"].tolist() == [0, 0, 0]
    assert np.isnan(rate["accuracy"]).all()


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), groups=st.integers(2, 4))
def test_equal_to_fairlearn_and_sklearn(seed, groups):
    y, p, s = draw(seed, groups=groups)
    frame = fl.MetricFrame(
        metrics={name: getattr(fl, name) for name in RATES}, y_true=y, y_pred=p, sensitive_features=s
    )
    for name in RATES:
        ours = getattr(metrics, name)
        assert ours(y, p) == pytest.approx(getattr(fl, name)(y, p))
        for group, value in ours(y, p, sensitive_features=s).items():
            if not math.isnan(value):
                assert value == pytest.approx(frame.by_group.loc[group, name])
    for group, value in metrics.f1(y, p, sensitive_features=s).items():
        if not math.isnan(value):
            assert value == pytest.approx(f1_score(y[s == group], p[s == group]))


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), classes=st.integers(2, 4))
def test_leading_axes_equal_the_loop(seed, classes):
    table = np.random.default_rng(seed).integers(0, 4, (2, 3, 4, classes, classes))
    together = metrics.rates(table, positive=1) | metrics.disparities(table, positive=1)
    for i, j in np.ndindex(2, 3):
        alone = metrics.rates(table[i, j], positive=1) | metrics.disparities(table[i, j], positive=1)
        for name, value in alone.items():
            np.testing.assert_array_equal(together[name][i, j], value, err_msg=name)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_row_order_and_clients_do_not_matter(seed):
    y, p, s = draw(seed)
    pooled = metrics.counts(y, p, sensitive_features=s, num_groups=3)
    order = np.random.default_rng(seed).permutation(len(y))
    assert (metrics.counts(y[order], p[order], sensitive_features=s[order], num_groups=3) == pooled).all()
    clients = [
        metrics.counts(y[part], p[part], sensitive_features=s[part], num_groups=3) for part in np.array_split(order, 7)
    ]
    assert (np.sum(clients, axis=0) == pooled).all()


def test_multi_class_is_one_against_the_rest():
    rng = np.random.default_rng(0)
    y, p, s = rng.integers(0, 4, 300), rng.integers(0, 4, 300), rng.integers(0, 3, 300)
    table = metrics.counts(y, p, sensitive_features=s)
    assert list(metrics.rates(table)) == ["count", "accuracy"]
    gaps = ("demographic_parity_difference", "demographic_parity_ratio", "equal_opportunity_difference")
    several = {*gaps, "equal_opportunity_ratio", "equalized_odds_difference", "accuracy_difference"}
    assert set(metrics.disparities(table)) == several
    one = metrics.counts(y == 2, p == 2, sensitive_features=s)
    for name, value in metrics.rates(table, positive=2).items():
        if name != "accuracy":
            np.testing.assert_allclose(value, metrics.rates(one)[name], err_msg=name)
    assert metrics.accuracy_difference(y, p, sensitive_features=s) == metrics.disparities(table)["accuracy_difference"]
    with pytest.raises(ConfigError, match="positive=4 is not one of the 4 classes"):
        metrics.rates(table, positive=4)


def test_degenerate():
    table = np.array([[[995, 0], [5, 0]], [[989, 5], [0, 6]], [[0, 0], [0, 0]], [[0, 1], [0, 0]]])
    assert metrics.degenerate(table).tolist() == [True, False, False, True]
    assert metrics.degenerate(np.stack([table, table]), threshold=0.98)[1].tolist() == [
        True,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    "convert",
    [
        list,
        np.array,
        pd.Series,
        lambda v: pd.Series(v, dtype="category"),
        lambda v: pd.Series(v).astype(object),
        lambda v: np.array(v)[:, None],
    ],
)
def test_input_types(convert):
    value = metrics.demographic_parity_difference(convert(Y), convert(P), sensitive_features=convert(S))
    assert value == pytest.approx(1 / 6)


def test_torch_and_bool_and_nullable_inputs():
    y, p = torch.tensor(Y, dtype=torch.float32, requires_grad=True), torch.tensor(P).bool()
    assert metrics.selection_rate(y, p, sensitive_features=pd.Series([0, 0, 0, 0, 1, 1, 1], dtype="Int64")) == {
        0: 0.5,
        1: pytest.approx(2 / 3),
    }


def test_intersections():
    frame = pd.DataFrame({"sex": ["f", "f", "m", "m"], "old": [0, 1, 0, 0]})
    found = metrics.selection_rate([0, 1, 0, 1], [1, 0, 0, 1], sensitive_features=frame)
    assert found == {("f", 0): 1.0, ("f", 1): 0.0, ("m", 0): 0.5}
    by_array = metrics.selection_rate([0, 1], [1, 0], sensitive_features=np.array([[0, 1], [0, 2]]))
    assert by_array == {(0, 1): 1.0, (0, 2): 0.0}


def test_pos_label():
    y, p = ["yes", "no", "yes"], ["yes", "yes", "no"]
    assert metrics.true_positive_rate(y, p, pos_label="yes") == 0.5
    assert metrics.true_positive_rate(y, p, pos_label="no") == 0.0
    assert metrics.selection_rate([-1, 1], [1, 1]) == 1.0
    assert math.isnan(metrics.true_positive_rate(["no"], ["no"], pos_label="yes"))
    with pytest.raises(DataError, match=r"labels are \['no', 'yes'\].*pos_label"):
        metrics.true_positive_rate(y, p)
    with pytest.raises(ConfigError, match=r"pos_label='maybe' is none of the labels"):
        metrics.true_positive_rate(y, p, pos_label="maybe")


@pytest.mark.parametrize(
    ("y", "p", "s", "message"),
    [
        ([0, 1], [0, 1, 1], [0, 1], "y_true has 2, y_pred has 3 rows"),
        ([0, 1], [0, 1], [0, 1, 1], "y_true has 2, sensitive_features has 3 rows"),
        ([0, 1, np.nan], [0, 1, 1], [0, 1, 1], "y_true has 1 missing values, the first in row 2"),
        ([0, 1], [0, 1], ["a", None], "sensitive_features has 1 missing values, the first in row 1"),
        ([0, 1], [0, 1], ["a", float("nan")], "sensitive_features has 1 missing values, the first in row 1"),
        (
            [0, 1],
            [0, 1],
            pd.Series(["a", None]),
            "sensitive_features has 1 missing values, the first in row 1",
        ),
        ([0, 1], [0, 1], ["a", 1], r"mixes text with \['int'\]"),
        ([0, 1], [0, 0.7], [0, 1], r"row 1 is 0\.7\. Apply a threshold"),
        ([0, 1], ["no", "yes"], [0, 1], "use the same labels"),
        ([0, 2, 5], [0, 2, 5], [0, 1, 1], "take 3 values: 0, 2, 5"),
        ([0, 1], [[0, 1], [1, 0]], [0, 1], r"its shape is \(2, 2\)"),
    ],
)
def test_bad_input_says_what(y, p, s, message):
    with pytest.raises(DataError, match=message):
        metrics.discrimination_index(y, p, sensitive_features=s)


def test_counts_wants_codes():
    with pytest.raises(DataError, match=r"y_true must hold the codes 0, 1, \.\.\., but has values such as \[-1, 1\]"):
        metrics.counts([-1, 1], [0, 1], sensitive_features=[0, 1])
    with pytest.raises(DataError, match=r"sensitive_features must hold the codes 0\.\.1"):
        metrics.counts([0, 1], [0, 1], sensitive_features=[0, 2], num_groups=2)
    with pytest.raises(DataError, match=r"shape \[\.\.\., group, label, prediction\], but has \(2, 2\)"):
        metrics.rates(np.zeros((2, 2)))
