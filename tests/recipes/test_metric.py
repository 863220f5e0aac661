"""CONTRIBUTING, "Adding a metric": two entries are all that a rate and its gap need. Here they are precision and its
gap, in a module of their own, and everything is compared with scikit-learn or NumPy on the rows themselves."""

from __future__ import annotations

import itertools
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report.runs import rows, run
from scipy.stats import binomtest
from sklearn.metrics import f1_score, precision_score

import equifed as ef
from equifed.errors import ConfigError
from equifed.metrics import Metric, catalogue
from equifed.metrics.catalogue import METRICS, describe
from equifed.registry import trust
from equifed.report.numbers import records
from equifed.verdict.comparison import Comparison
from equifed.verdict.groups import rate_intervals, rows_of
from equifed.verdict.variants import Variant

ENTRIES = """
from equifed.metrics import Metric

precision = Metric.rate(
    "precision", "Of those predicted positive, the share with a positive label.", "TP", "TP + FP", better="higher"
)
parity = Metric.gap(
    "predictive_parity_difference", "Largest gap between groups in precision; 0 is fair.", "difference", precision
)
worst = Metric.gap("worst_precision", "Precision of the group served worst.", "worst", precision)
"""
GAP = "predictive_parity_difference"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "my_entries.py").write_text(ENTRIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(METRICS, "_imported", {})
    monkeypatch.setattr(catalogue, "_OUTSIDE", {})
    trust("my_entries")
    yield
    sys.modules.pop("my_entries", None)


@pytest.fixture
def measured(entries: None) -> tuple[ef.Result, np.ndarray, np.ndarray, np.ndarray]:
    """A run that asks for the gap and the worst, on two sensitive columns; and its test rows' labels, decisions and
    groups [n, 2]."""
    rng = np.random.default_rng(5)

    def both(n: int) -> tuple[Any, Any, Any]:
        x, y, _ = rows(rng, n, ["a"])
        return x, y, np.stack([rng.choice(["f", "m"], n), rng.choice(["old", "mid", "young"], n, p=[0.1, 0.3, 0.6])], 1)

    x, y, s = test = both(400)
    fed = ef.Federation.from_arrays([both(40) for _ in range(3)], test=test)
    result = run(ef.methods.FedAvg(), fed, seeds=[0], metrics=["my_entries:parity", "my_entries:worst"])
    (model,) = result.parameters.values()
    weight, bias = (next(v for k, v in model.items() if k.endswith(end)) for end in ("weight", "bias"))
    return result, y, ((x @ weight.reshape(-1) + bias.reshape(-1)) > 0).astype(int), s


def test_its_values_are_those_of_the_rows(measured: Any) -> None:
    result, y, d, s = measured
    frame = result.metrics[result.metrics["round"] == 3].astype({"scope": str, "metric": str})
    values = frame.set_index(["scope", "metric"])["value"]
    by_group = {
        f"{a} & {b}": precision_score(y[(s == [a, b]).all(1)], d[(s == [a, b]).all(1)])
        for a, b in itertools.product(("f", "m"), ("old", "mid", "young"))
    }
    for name, value in by_group.items():
        assert values[f"group:{name}", "precision"] == pytest.approx(value)
    assert values["global", "precision"] == pytest.approx(precision_score(y, d))
    assert values["global", GAP] == pytest.approx(max(by_group.values()) - min(by_group.values()))
    assert values["global", "worst_precision"] == pytest.approx(min(by_group.values()))
    assert (describe(GAP).better, describe(GAP).range, describe(GAP).needs) == (
        "zero",
        (0.0, 1.0),
        ("labels", "groups"),
    )
    assert (describe("worst_precision").better, describe("worst_precision").kinds) == ("higher", ("binary",))


def check_what_rests_on_rows(variant: Variant, y: np.ndarray, d: np.ndarray, s: np.ndarray) -> None:
    """Intervals and the rows that the rate rests on, of groups and of single columns."""
    values = variant.marginals.set_index(["name", "metric"])["value"]
    crossed, single = (rate_intervals(frame) for frame in (variant.groups, variant.marginals))
    on = rows_of(variant.groups, ["precision", "f1"])
    for a, b in itertools.product(("f", "m"), ("old", "mid", "young")):
        mine, name = (s == [a, b]).all(1), f"{a} & {b}"
        chosen, hits = int(d[mine].sum()), int((d & y)[mine].sum())
        expected = binomtest(hits, chosen).proportion_ci(method="wilson")
        assert crossed.loc[(name, "precision")].tolist() == pytest.approx([expected.low, expected.high])
        assert on.loc[name, "precision"] == pytest.approx(chosen)
        assert on.loc[name, "f1"] == pytest.approx(((d | y)[mine]).sum())  # true negatives do not count
    for name in ("f", "m", "old", "mid", "young"):
        mine = (s == name).any(1)
        assert values[name, "precision"] == pytest.approx(precision_score(y[mine], d[mine]))
        assert values[name, "f1"] == pytest.approx(f1_score(y[mine], d[mine]))
        expected = binomtest(int((d & y)[mine].sum()), int(d[mine].sum())).proportion_ci(method="wilson")
        assert single.loc[(name, "precision")].tolist() == pytest.approx([expected.low, expected.high])
    fewest = min(d[(s == [a, b]).all(1)].sum() for a, b in itertools.product(("f", "m"), ("old", "mid", "young")))
    assert (GAP in variant.noisy) == (fewest < 50)


def test_interval_pooling_and_few_rows_follow(measured: Any) -> None:
    result, y, d, s = measured
    (variant,) = result.variants
    check_what_rests_on_rows(variant, y, d, s)
    assert GAP in variant.noisy
    gaps = {gap.attribute: gap for gap in variant.gaps(GAP)}
    sex = gaps["column 1"]
    by_sex = {name: precision_score(y[s[:, 0] == name], d[s[:, 0] == name]) for name in ("f", "m")}
    assert sex.mean == pytest.approx(abs(by_sex["f"] - by_sex["m"]))
    assert 0 <= sex.low <= sex.mean <= sex.high <= 1
    assert sex.pair.high == max(by_sex, key=by_sex.get)  # type: ignore[arg-type]
    assert sex.pair.high_rows == pytest.approx(d[s[:, 0] == sex.pair.high].sum())


def test_the_same_follows_where_its_module_is_not(measured: Any) -> None:
    """A result keeps the facts; another process that reads it knows what the rate rests on."""
    result, y, d, s = measured
    facts = [metric.facts for metric in catalogue._OUTSIDE.values()]
    catalogue._OUTSIDE.clear()
    assert describe("precision").share is None
    catalogue.learn([{**each, "rests_on": "count"} for each in facts])  # a fact of an older version is left out
    (variant,) = result.variants
    check_what_rests_on_rows(variant, y, d, s)


def test_report_verdict_and_records_have_it(measured: Any, tmp_path: Path) -> None:
    result, *_ = measured
    comparison = Comparison.of([result], disparity=GAP)
    assert "the precision of " in " ".join(comparison.verdict.sentences).lower()
    page = ef.report.write_report([result], tmp_path / "page.html", disparity=GAP).read_text()
    assert "Predictive parity difference by attribute" in page
    found = records(comparison).set_index(["scope", "metric"])
    assert found.loc[("marginal:old", "precision"), "interval"] == "wilson"
    assert found.loc[("group:f & old", "precision"), "low"] >= 0
    made = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    assert made["metric_row"](describe("precision"))[:5] == [
        *("`precision`", "Of those predicted positive, the share with a positive label.", "↑", "0 to 1", "binary")
    ]


def test_an_entry_of_the_catalogue_needs_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the two stand in the catalogue itself, every run has them, and so have the functions of counts and rows."""
    precision = Metric.rate("precision", "Share of the positive predictions that are right.", "TP", "TP + FP")
    for metric in (precision, Metric.gap(GAP, "Largest gap between groups in precision.", "difference", precision)):
        monkeypatch.setitem(METRICS, metric.name, metric)
    rng = np.random.default_rng(2)
    y, d, s = rng.integers(0, 2, (3, 200))
    table = ef.metrics.counts(y, d, sensitive_features=s)
    expected = [precision_score(y[s == g], d[s == g]) for g in (0, 1)]
    assert ef.metrics.rates(table)["precision"].tolist() == pytest.approx(expected)
    assert float(ef.metrics.disparities(table)[GAP]) == pytest.approx(abs(expected[0] - expected[1]))
    signed = ef.metrics.disparities(table, reference=0)[GAP]
    assert float(signed) == pytest.approx(expected[1] - expected[0])
    of_rows = ef.metrics.functions.of_rows("precision")
    assert list(of_rows(y, d, sensitive_features=s).values()) == pytest.approx(expected)
    assert {"precision", GAP} <= set(ef.metrics.functions.names())
    result = run(ef.methods.FedAvg(), two_groups(), seeds=[0])
    assert {"precision", GAP} <= set(result.final().columns)


def two_groups() -> ef.Federation:
    rng = np.random.default_rng(1)
    return ef.Federation.from_arrays([rows(rng, 30, ["a", "b"]) for _ in range(3)], test=rows(rng, 90, ["a", "b"]))


@pytest.mark.parametrize(
    ("sum", "cells"),
    [("TP", {"TP": 1}), ("2 TP + FP + FN", {"TP": 2, "FP": 1, "FN": 1}), ("right+wrong", {"right": 1, "wrong": 1})],
)
def test_a_sum_of_counts_is_read(sum: str, cells: dict[str, int]) -> None:
    share = Metric.rate("mine", "A share.", sum, sum).share
    assert share is not None
    values = {name: np.array([10.0**i]) for i, name in enumerate(("TP", "FN", "FP", "TN", "right", "wrong"))}
    expected = np.sum([times * values[name] for name, times in cells.items()], axis=0)
    assert share.parts(values)[0].tolist() == expected.tolist()


@pytest.mark.parametrize("sum", ["", "TP - FP", "PPV", "TP + TP", "tp", "TP FP", "-1 TP"])
def test_what_is_no_sum_of_counts_is_refused_when_it_is_declared(sum: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a sum of counts\. Write such as 'TP'"):
        Metric.rate("mine", "A share.", sum, "TP + FP")


def test_a_gap_of_a_rate_that_is_not_there_is_refused_when_it_is_declared() -> None:
    with pytest.raises(ConfigError, match=r"Unknown rate of groups 'acuracy'\. Did you mean 'accuracy'"):
        Metric.gap("mine", "A gap.", "difference", "acuracy")
    with pytest.raises(ConfigError, match="cannot be the worst selection_rate: say of that what is better"):
        Metric.gap("mine", "The worst.", "worst", "selection_rate")


def test_what_follows_from_predictions_alone_needs_no_labels() -> None:
    spared = Metric.rate("spared", "Share predicted negative.", "TN + FN", "TP + FP + FN + TN")
    assert spared.needs == ()
    assert Metric.gap("gap", "Its gap.", "difference", spared).needs == ("groups",)
    assert Metric.rate("hits", "Share of hits.", "TP + TN", "TP + FP + FN + TN").needs == ("labels",)
    wrong = Metric.rate("error", "Share predicted wrongly.", "wrong", "right + wrong", better="lower")
    assert (wrong.kinds, wrong.needs) == (("binary", "multiclass"), ("labels",))
    assert Metric.gap("worst", "The worst.", "worst", wrong).better == "lower"
