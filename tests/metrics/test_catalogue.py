"""The catalogue: its entries are whole, it computes what NumPy does from rows, and a new metric is found everywhere."""

from __future__ import annotations

import json
import pickle
import sys

import numpy as np
import pytest
from report.runs import federation, rows, run
from sklearn.metrics import root_mean_squared_error

import equifed as ef
from equifed.cli.checks import Check
from equifed.metrics import Metric, catalogue
from equifed.metrics.catalogue import CATALOGUE, METRICS, Evaluation, describe
from equifed.metrics.frame import metrics_frame, overall
from equifed.metrics.scored import Scored
from equifed.registry import trust

OWN = """
from equifed.metrics import Metric

above = Metric(
    name="majority_gap",
    help="How far selection is from one half.",
    title="gap to one half",
    better="zero",
    kinds=("binary",),
    needs=(),
    overall=lambda e: abs(e["selection_rate"] - 0.5),
    clients="each",
)
taken = Metric(name="accuracy", help="Another accuracy.")
short = Metric(name="short", help="Of the wrong shape.", overall=lambda e: 0.0)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's own in the current folder."""
    (tmp_path / "my_metrics.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(METRICS, "_imported", {})
    monkeypatch.setattr(catalogue, "_OUTSIDE", {})
    yield "my_metrics:above"
    sys.modules.pop("my_metrics", None)


def test_every_entry_is_whole():
    for name, metric in CATALOGUE.items():
        assert (metric.name, metric.help[-1]) == (name, "."), name
        assert metric.help[0].isupper(), name
        assert metric.title, name
        assert metric.short, name
        assert set(metric.kinds) <= {"binary", "multiclass", "regression"}, name
        assert metric.range[0] < metric.range[1], name
        assert not (metric.clients and metric.overall is None), name
        assert not (metric.over_clients and "clients" not in metric.needs), name
        assert not (metric.shown and not metric.better), name
    titles = [metric.title for metric in CATALOGUE.values() if "clients" not in metric.needs]
    assert len(set(titles)) == len(titles)


def test_values_of_a_run_lie_in_their_ranges_and_are_those_that_are_foreseen():
    result = run(ef.methods.FedAvg(), federation(), seeds=[0])
    frame = result.metrics.dropna()
    for name, values in frame.groupby(frame["metric"].astype(str))["value"]:
        low, high = CATALOGUE[name].range
        assert low <= values.min() <= values.max() <= high, name
    foreseen = {m.name for m in catalogue.measured(federation()) if m.overall or m.over_clients}
    assert foreseen == set(result.metrics.loc[result.metrics["scope"] == "global", "metric"].astype(str))


def test_costs_turn_every_direction():
    values = {
        "accuracy": (0.9, -0.9),
        "rmse": (0.4, 0.4),
        "mean_difference": (-0.2, 0.2),
        "average_odds_ratio": (0.8, 0.2),
    }
    for name, (value, cost) in values.items():
        assert describe(name).cost(value) == pytest.approx(cost)
        assert catalogue.costs([name], [[value]])[0, 0] == pytest.approx(cost)
    with pytest.raises(ef.ConfigError, match="Neither more nor less of selection_rate"):
        catalogue.costs(["selection_rate"], [0.5])


def test_what_is_shown_where():
    binary = [metric.name for metric in catalogue.measured(federation())]
    assert catalogue.main_pair(binary) == ("accuracy", "demographic_parity_difference")
    headline, table, page = (catalogue.shown(binary, place) for place in ("headline", "table", "page"))
    assert set(headline) < set(table) < set(page)
    assert page[-1] == "client_equality.worst10"
    # no main disparity was measured: the first there is follows the quality
    few = ["degenerate", "accuracy_difference", "accuracy"]
    assert catalogue.shown(few, "table") == ["accuracy", "accuracy_difference"]
    assert catalogue.main_pair(["rmse", "ks_distance"]) == ("rmse", "ks_distance")
    assert catalogue.main_pair([]) == ("", "")


def scored(rng: np.random.Generator, sets: int = 1) -> tuple[Scored, list[tuple[np.ndarray, ...]]]:
    """Rows (label, prediction, group), some of unknown group, and what an evaluation makes of them."""
    rows = [(*(rng.integers(0, 2, 60) for _ in range(2)), rng.integers(-1, 2, 60)) for _ in range(sets)]
    cells = np.zeros((sets, 3, 2, 2))
    for k, (y, predicted, s) in enumerate(rows):
        np.add.at(cells[k], (s, y, predicted), 1)
    counts, unknown = cells[:, :2], cells[:, 2]
    empty = np.full((sets, 2), np.nan)
    none = np.zeros((sets, 2, 0, 3))
    known = (counts, counts.sum(-1) * 0.5, np.full(sets, np.nan), empty, counts.sum(-2), none)
    return Scored(*known, unknown, unknown.sum(-1) * 0.5, none[:, 0]), rows


def test_metrics_are_those_of_the_rows():
    part, [(y, predicted, s)] = scored(np.random.default_rng(0))
    of_all = ["accuracy", "loss", "rows", "selection_rate"]
    values = overall([{"test": part}], [*of_all, "worst_group_accuracy", "demographic_parity_difference"])
    right = y == predicted
    by_group = [right[s == g].mean() for g in (0, 1)]
    selected = [predicted[s == g].mean() for g in (0, 1)]
    expected = [right.mean(), 0.5, 60, predicted.mean(), min(by_group), abs(selected[0] - selected[1])]
    assert [value.item() for value in values.values()] == pytest.approx(expected)
    assert overall([{"validation": part}], ["accuracy"]) == {}


def test_summaries_of_clients_are_those_of_their_rows():
    class Population:
        label_kind, groups, ids = "binary", ("a", "b"), tuple("uvwxyz")
        client_groups, client_test = np.array([0, 0, 1, 1, 2, 2]), True

    part, rows = scored(np.random.default_rng(1), 6)
    frame = metrics_frame([(1, 0, {"clients": part})], Population(), [{"method": "m", "seed": 0}])
    found = frame[frame["scope"] == "global"].set_index("metric")["value"]
    right = np.array([(y == predicted).mean() for y, predicted, _ in rows])
    gaps = [abs(np.subtract(*(predicted[s == g].mean() for g in (0, 1)))) for _, predicted, s in rows]
    assert found["client_accuracy.worst"] == found["client_equality.worst10"] == pytest.approx(right.min())
    assert found["client_equality.variance"] == pytest.approx(right.var())
    assert found["client_demographic_parity_difference.worst"] == pytest.approx(max(gaps))
    pairs = right.reshape(3, 2).mean(1)
    assert (found["group_equity.best10"], found["group_equity.variance"]) == pytest.approx((pairs.max(), pairs.var()))


def test_a_metric_added_to_the_catalogue_is_measured_shown_and_checked(monkeypatch, tmp_path):
    """One entry is all that a new metric needs."""
    metric = Metric(
        name="true_share",
        help="Share of true positives.",
        better="higher",
        shown="headline",
        kinds=("binary",),
        overall=lambda e: e.counts[..., 1, 1].sum(-1) / e.group_rows.sum(-1),
        clients="each",
    )
    monkeypatch.setitem(METRICS, "true_share", metric)
    result = run(ef.methods.FedAvg(), federation(), seeds=[0, 1, 2])
    frame = result.metrics.astype({"scope": str, "metric": str})
    last = frame[(frame["round"] == 3) & frame["scope"].str.startswith("group:")]
    wide = last.pivot(index=["seed", "scope"], columns="metric", values="value")
    hits = (wide["true_positive_rate"] * wide["positives"]).groupby("seed").sum()
    final = result.final().set_index("seed")
    assert final["true_share"].tolist() == pytest.approx((hits / final["rows"]).tolist())
    assert frame.loc[frame["metric"] == "true_share", "scope"].str.startswith("client:").sum() == 4 * 3 * 3
    assert Check.parse("true_share < 2").failures(result)
    page = result.to_html(tmp_path / "page.html").read_text()
    assert '<button type="button">true share <span class="way" aria-label="higher is better">' in page
    points = result.pareto("true_share", "demographic_parity_difference")
    assert not points["dominated"].any()


def test_a_metric_from_outside_in_python(own):
    trust("my_metrics")
    metric = METRICS[own]
    result = run(ef.methods.FedAvg(), federation(), seeds=[0, 1], metrics=[metric])
    final = result.final()
    assert final["majority_gap"].tolist() == pytest.approx((final["selection_rate"] - 0.5).abs().tolist())
    assert "majority_gap" not in run(ef.methods.FedAvg(), federation(), seeds=[0]).final()
    # another process that reads the result knows what it means without the module
    catalogue._OUTSIDE.clear()
    assert describe("majority_gap").title == "majority gap"
    pickle.loads(pickle.dumps(result))
    assert (describe("majority_gap").title, describe("majority_gap").better) == ("gap to one half", "zero")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("my_metrics:taken", "is called 'accuracy', as another one is"),
        ("my_metrics:Metric", "is not a metric: it must be an equifed.metrics.Metric"),
        ("my_metrics:below", "has no 'below'"),
        ("acuracy", "Did you mean 'accuracy'"),
    ],
)
def test_a_wrong_metric_is_refused_before_training(own, name, text):
    with pytest.raises(ef.ConfigError, match=text) as caught:
        run(ef.methods.FedAvg(), federation(), seeds=[0], metrics=[name])
    assert caught.value.key == "metrics"


def test_a_metric_of_the_wrong_shape_says_so(own):
    with pytest.raises(ef.ConfigError, match=r"short must have one value .* shape \[\d+\] here, and has \[\]"):
        run(ef.methods.FedAvg(), federation(), seeds=[0], metrics=["my_metrics:short"])


def test_an_evaluation_refuses_metrics_of_groups():
    with pytest.raises(ef.ConfigError, match="positives is not defined over all rows"):
        Evaluation(scored(np.random.default_rng(0))[0])["positives"]


def test_facts_survive_a_file():
    for metric in CATALOGUE.values():
        facts = json.loads(json.dumps(metric.facts).replace("Infinity", '"inf"').replace('-"inf"', '"-inf"'))
        assert Metric.from_facts(facts).range == metric.range


def test_the_gap_and_the_worst_of_errors_are_those_of_the_rows():
    """Of a regression, from the predictions of the model itself."""
    rng = np.random.default_rng(11)
    x, y, s = test = rows(rng, 150, ["a", "b", "c"], "regression")
    fed = ef.Federation.from_arrays([rows(rng, 40, ["a", "b", "c"], "regression")], test=test, task="regression")
    result = run(ef.methods.FedAvg(), fed, seeds=[0])
    (model,) = result.parameters.values()
    weight, bias = (next(v for k, v in model.items() if k.endswith(end)) for end in ("weight", "bias"))
    predicted = x @ weight.reshape(-1) + bias.reshape(-1)
    errors = [root_mean_squared_error(y[s == group], predicted[s == group]) for group in "abc"]
    means = [predicted[s == group].mean() for group in "abc"]
    final = result.final().iloc[0]
    assert final["worst_group_rmse"] == pytest.approx(max(errors), rel=1e-5)
    assert final["rmse_difference"] == pytest.approx(max(errors) - min(errors), rel=1e-4)
    assert final["mean_difference"] == pytest.approx(max(means) - min(means), rel=1e-4)
