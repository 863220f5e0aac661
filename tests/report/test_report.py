"""The report: its numbers are the results' numbers, its words claim no more, and no name can break the page."""

from __future__ import annotations

import base64
import gzip
import hashlib
import itertools
import json
import math
import re
import statistics
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from support.samples import sampled

import equifed as ef
from equifed.methods import REGISTRY, citation
from equifed.metrics.seeds import holm, wilson
from equifed.notes import Note
from equifed.report import summary_table, verdict, write_report
from equifed.report.numbers import records
from equifed.verdict.choose import against
from equifed.verdict.comparison import Comparison
from equifed.verdict.groups import marginals, parts, worst_pair
from equifed.verdict.variants import variants_of
from report.runs import HOSTILE, federation, hostile_result, rows, run


@pytest.fixture(scope="module")
def pair() -> list[ef.Result]:
    fed = federation()
    return [run(ef.methods.FedAvg(), fed), run(ef.methods.FedProx(mu=5.0), fed)]


class Page(HTMLParser):
    """The page as a browser's parser would take it apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.text = ""
        self._script: str | None = None
        self.feed(text)
        self.data = json.loads(gzip.decompress(base64.b64decode(self.scripts["numbers"])))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self._script = dict(attrs).get("id") or dict(attrs).get("class") or "code"

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._script = None

    def handle_data(self, data: str) -> None:
        if self._script:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data
        else:
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def page_of(results: list[ef.Result], folder: Any, **more: Any) -> Page:
    path = write_report(results, folder / "report.html", **more)
    assert path.stat().st_size < 6_000_000
    assert [each.name for each in folder.iterdir()] == ["report.html"]
    return Page(path.read_text(encoding="utf-8"))


def last_values(result: ef.Result, metric: str, scope: str = "global") -> list[float]:
    frame = result.metrics
    keep = (frame["metric"] == metric) & (frame["scope"] == scope) & (frame["split"] == "test")
    frame = frame[keep]
    return frame[frame["round"] == frame["round"].max()].sort_values("seed")["value"].tolist()


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_embedded_numbers_are_the_metrics(pair, tmp_path):
    data = page_of(pair, tmp_path).data
    assert [variant["label"] for variant in data["variants"]] == ["fedavg", "fedprox"]
    for i, (variant, result) in enumerate(zip(data["variants"], pair, strict=True)):
        names = result.metrics.loc[result.metrics["scope"] == "global", "metric"].astype(str).unique()
        assert set(variant["final"]) == set(names)
        for name in names:
            values = last_values(result, name)
            assert variant["final"][name]["values"] == [None if math.isnan(v) else v for v in values]
            known = [v for v in values if not math.isnan(v)]
            assert variant["final"][name]["n"] == len(known)
            if known:
                assert variant["final"][name]["mean"] == pytest.approx(statistics.fmean(known))
                assert variant["final"][name]["std"] == pytest.approx(statistics.stdev(known), abs=1e-15)
        for g, group in enumerate(data["groups"]["names"]):
            for metric in ("count", "selection_rate", "true_positive_rate"):
                expected = statistics.fmean(last_values(result, metric, f"group:{group}"))
                assert data["groups"]["values"][metric]["mean"][i][g] == pytest.approx(expected)
        for k, client in enumerate(data["clients"]["names"]):
            expected = statistics.fmean(last_values(result, "accuracy", f"client:{client}"))
            assert data["clients"]["mean"]["accuracy"][i][k] == pytest.approx(expected)
        frame = result.metrics
        frame = frame[(frame["scope"] == "global") & (frame["metric"] == "accuracy")]
        curve = data["rounds"]["series"][i]
        assert curve["round"] == [1, 2, 3]
        for k, number in enumerate(curve["round"]):
            values = frame.loc[frame["round"] == number, "value"].tolist()
            assert curve["mean"]["accuracy"][k] == pytest.approx(statistics.fmean(values), rel=1e-5)
            assert curve["std"]["accuracy"][k] == pytest.approx(statistics.stdev(values), rel=1e-4)


def test_table_page_and_result_agree(pair, tmp_path):
    table = summary_table(pair)
    data = page_of(pair, tmp_path).data
    for i, (label, result) in enumerate(zip(table.index, pair, strict=True)):
        own = result.summary().iloc[0]
        for k, column in enumerate(data["table"]["columns"]):
            cell = data["table"]["rows"][i][k]
            assert cell["mean"] == table.loc[label, (column, "mean")]
            if column in own.index.get_level_values(0):
                assert cell["mean"] == pytest.approx(own[column, "mean"])
                assert cell["std"] == pytest.approx(own[column, "std"])
        sent = result.messages["bytes_up"].sum()
        assert table.loc[label, ("bytes_up", "mean")] == pytest.approx(sent)
        assert table.loc[label, ("seeds", "n")] == 3
        assert table.loc[label, ("seconds", "mean")] == pytest.approx(result.timings["seconds"] / 3)


# -- how sure they are -------------------------------------------------------------------------------------------------


def shaken(result: ef.Result, seed: int) -> ef.Result:
    """Its metrics with noise: in so small runs some are equal in all seeds, and scipy warns of those."""
    noise = np.random.default_rng(seed).normal(0.3 * seed, 0.1, len(result.metrics))
    return replace(result, metrics=result.metrics.assign(value=result.metrics["value"] + noise))


def test_paired_tests_are_those_of_scipy(pair, tmp_path):
    pair = [shaken(result, i) for i, result in enumerate(pair)]
    a, b = variants_of(pair)
    for metric in ("loss", "accuracy", "demographic_parity_difference"):
        own, other = (np.array(last_values(result, metric)) for result in pair)
        expected = stats.ttest_rel(own, other)
        found = against([a, b], b, metric)[0]
        assert found.difference == pytest.approx((own - other).mean())
        assert found.p == pytest.approx(expected.pvalue)
        assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
        bounds = stats.t.interval(0.95, 2, own.mean(), stats.sem(own))
        final = page_of(pair, tmp_path).data["variants"][0]["final"][metric]
        assert (final["low"], final["high"]) == pytest.approx(bounds)
    (elsewhere,) = replace(pair[1], info={**pair[1].info, "data": "other"}).variants
    assert against([a], elsewhere, "loss") == [None]
    (shorter,) = replace(pair[1], metrics=pair[1].metrics.query("seed < 2")).variants
    assert against([a], shorter, "loss") == [None]
    assert against([replace(a)], a, "loss")[0].p == 1


def test_the_table_against_a_baseline(pair, tmp_path):
    fed = federation()
    results = [*pair, run(ef.methods.FedMom(), fed), run(ef.methods.FedAvgLR(), fed)]
    results = [shaken(result, i) for i, result in enumerate(results)]
    data = page_of(results, tmp_path, baseline="fedprox").data
    tests = data["tests"]
    assert tests["baseline"] == 1
    assert set(tests["cells"]) == {"0", "1", "2", "3"}
    for k, metric in enumerate(tests["columns"]):
        for base in range(4):
            theirs = np.array(last_values(results[base], metric))
            p = [stats.ttest_rel(last_values(results[i], metric), theirs).pvalue for i in range(4) if i != base]
            cells = [tests["cells"][str(base)][i][k] for i in range(4)]
            assert cells.pop(base) is None
            assert [cell["holm"] for cell in cells] == pytest.approx(holm(p))
            for cell in cells:
                assert bool(cell["says"]) == (cell["holm"] < 0.05)
    assert page_of(results, tmp_path).data["tests"]["baseline"] == 0
    with pytest.raises(ef.ConfigError, match="Did you mean 'fedprox'"):
        write_report(results, tmp_path / "x.html", baseline="fedprx")


def test_intervals_of_rates_are_those_of_scipy(tmp_path):
    result = run(ef.methods.FedAvg(), federation(), seeds=[4])
    values = page_of([result], tmp_path).data["groups"]["values"]
    for g, group in enumerate(("a", "b")):
        (count,), (positives,) = (last_values(result, name, f"group:{group}") for name in ("count", "positives"))
        for metric, n in (
            ("accuracy", count),
            ("selection_rate", count),
            ("true_positive_rate", positives),
            ("false_positive_rate", count - positives),
        ):
            (rate,) = last_values(result, metric, f"group:{group}")
            expected = stats.binomtest(round(rate * n), int(n)).proportion_ci(0.95, method="wilson")
            assert values[metric]["low"][0][g] == pytest.approx(expected.low, abs=1e-12)
            assert values[metric]["high"][0][g] == pytest.approx(expected.high, abs=1e-12)
        assert values["f1"]["low"][0][g] is None


def test_models_of_clients_do_not_make_the_test_set_larger(tmp_path):
    fed = federation(clients=False)
    values = page_of([run(ef.methods.LocalOnly(), fed, seeds=[0])], tmp_path).data["groups"]["values"]
    rate, count = values["accuracy"]["mean"][0][0], values["count"]["mean"][0][0]
    assert sum(values["count"]["mean"][0]) == 4 * 160
    assert values["accuracy"]["low"][0][0] == pytest.approx(wilson(rate, count / 4)[0])


def test_marginals_are_what_the_pooled_rows_give(tmp_path):
    rng = np.random.default_rng(5)

    def both(n: int) -> tuple[Any, Any, Any]:
        x, y, _ = rows(rng, n, ["a"])
        return x, y, np.stack([rng.choice(["f", "m"], n), rng.choice(["old", "mid", "young"], n)], 1)

    test = both(300)
    fed = ef.Federation.from_arrays([both(40) for _ in range(3)], test=test)
    result = run(ef.methods.FedAvg(), fed, seeds=[0])
    (model,) = result.parameters.values()
    weight, bias = (next(v for k, v in model.items() if k.endswith(end)) for end in ("weight", "bias"))
    chosen = (test[0] @ weight.reshape(-1) + bias.reshape(-1)) > 0
    data = page_of([result], tmp_path).data["marginals"]
    assert "Demographic parity difference by attribute" in (tmp_path / "report.html").read_text()
    assert data["names"] == ["f", "m", "mid", "old", "young"]
    for g, name in enumerate(data["names"]):
        mine = (test[2] == name).any(1)
        y, d = test[1][mine] == 1, chosen[mine]
        expected = {
            "count": mine.sum(),
            "positives": y.sum(),
            "accuracy": (y == d).mean(),
            "selection_rate": d.mean(),
            "true_positive_rate": d[y].mean(),
            "false_positive_rate": d[~y].mean(),
            "f1": 2 * (y & d).sum() / (2 * (y & d).sum() + (y != d).sum()),
        }
        for metric, value in expected.items():
            assert data["values"][metric]["mean"][0][g] == pytest.approx(value), (name, metric)
    assert parts(["a", "b"]) == {}
    assert parts(["a & x", "b & y"]) == {}
    assert parts(["yes & yes", "yes & no", "no & yes", "no & no"]) == {
        "yes": ["yes & yes", "yes & no"],
        "no": ["no & yes", "no & no"],
        "yes (2)": ["yes & yes", "no & yes"],
        "no (2)": ["yes & no", "no & no"],
    }
    assert marginals(variants_of([result])[0].groups.iloc[:0], []).empty


def test_the_worst_pair_is_the_widest_of_all_pairs_in_the_mean_over_seeds():
    """Against all pairs of groups, in predictions that this test makes itself."""
    rng = np.random.default_rng(8)
    names, lines, table = ["a", "b", "c", "d"], [], {}
    for seed in range(3):
        y, d, s = rng.random(400) < 0.4, rng.random(400), rng.integers(0, 4, 400)
        chosen = d < 0.3 + 0.1 * s + 0.2 * y * (s == 2)
        for g, name in enumerate(names):
            p, m = chosen[(s == g) & y], chosen[(s == g) & ~y]
            rates = {
                "count": len(p) + len(m),
                "positives": len(p),
                "selection_rate": chosen[s == g].mean(),
                "true_positive_rate": p.mean(),
                "false_positive_rate": m.mean(),
                "accuracy": np.concatenate([p, ~m]).mean(),
            }
            lines += [(seed, name, metric, value) for metric, value in rates.items()]
            table[seed, name] = rates
    frame = pd.DataFrame(lines, columns=["seed", "name", "metric", "value"])

    def mean(metric: str, name: str) -> float:
        return float(np.mean([table[seed, name][metric] for seed in range(3)]))

    both = ("true_positive_rate", "false_positive_rate")
    looked_at = {
        "demographic_parity_difference": ("selection_rate",),
        "equal_opportunity_difference": ("true_positive_rate",),
        "equalized_odds_difference": both,
        "accuracy_difference": ("accuracy",),
    }
    for disparity, rates in looked_at.items():
        widest = max(
            (mean(rate, high) - mean(rate, low), rate, low, high)
            for rate, low, high in itertools.product(rates, names, names)
        )
        pair = worst_pair(frame, disparity)
        assert pair is not None
        assert (pair.difference, pair.rate, pair.low, pair.high) == (pytest.approx(widest[0]), *widest[1:])
    smallest = min(
        (mean(r, low) / mean(r, high), r, low, high) for r, low, high in itertools.product(both, names, names)
    )
    pair = worst_pair(frame, "equalized_odds_ratio")
    assert pair is not None
    assert (pair.rate, pair.low, pair.high) == smallest[1:]
    # the rows that the rate rests on, and half of them where each was given to two models
    rows = {
        "true_positive_rate": lambda name: mean("positives", name),
        "false_positive_rate": lambda name: mean("count", name) - mean("positives", name),
    }[pair.rate]
    assert (pair.low_rows, pair.high_rows) == pytest.approx((rows(pair.low), rows(pair.high)))
    assert worst_pair(frame, "equalized_odds_ratio", models=2).low_rows == pytest.approx(pair.low_rows / 2)
    # no gap between the groups' rates; one group only; all alike
    assert worst_pair(frame, "dgeo") is None
    assert worst_pair(frame[frame["name"] == "a"], "accuracy_difference") is None
    alike = worst_pair(frame.assign(value=0.5), "accuracy_difference")
    assert alike is not None
    assert (alike.low, alike.high, alike.difference) == ("a", "b", 0.0)


def test_what_rests_on_few_rows_is_known_to_be_noise():
    """Between groups by the rows of the smallest; of the worst client by its own, whoever that is."""
    rng = np.random.default_rng(9)
    tests = [rows(rng, n, ["a", "b"]) for n in (15, 400)]
    fed = ef.Federation.from_arrays(
        [rows(rng, 30, ["a", "b"]) for _ in tests], test=rows(rng, 240, ["a", "b"]), client_tests=tests
    )
    result = run(ef.methods.FedAvg(), fed, seeds=[0, 1])
    found = variants_of([result])[0].noisy

    def of(scope: str, metric: str) -> np.ndarray:
        return np.array(last_values(result, metric, scope))

    fewest = {"demographic_parity_difference": min(of(f"group:{g}", "count").mean() for g in "ab")}
    positives, counts = ([of(f"group:{g}", what) for g in "ab"] for what in ("positives", "count"))
    fewest["equal_opportunity_difference"] = min(each.mean() for each in positives)
    negatives = [(count - own).mean() for own, count in zip(positives, counts, strict=True)]
    fewest["equalized_odds_difference"] = min(fewest["equal_opportunity_difference"], *negatives)
    for which, worst in (("worst", np.argmax), ("best", np.argmin)):
        gaps = np.stack([of(f"client:{k}", "demographic_parity_difference") for k in range(2)])
        fewest[f"client_demographic_parity_difference.{which}"] = min(np.array([15, 400])[worst(gaps, 0)]) / 2
        right = np.stack([of(f"client:{k}", "accuracy") for k in range(2)])
        fewest[f"client_accuracy.{which}"] = min(np.array([15, 400])[worst(-right, 0)])
    assert {name: name in found for name in fewest} == {name: few < 50 for name, few in fewest.items()}
    assert set(fewest) & found
    assert set(fewest) - found
    assert not {"accuracy", "loss", "client_accuracy.mean"} & found


def test_marginals_of_a_regression():
    rng = np.random.default_rng(6)

    def both(n: int) -> tuple[Any, Any, Any]:
        x, y, _ = rows(rng, n, ["a"], "regression")
        return x, y, np.stack([rng.choice(["f", "m"], n), rng.choice(["old", "young"], n)], 1)

    test = both(200)
    result = run(ef.methods.FedAvg(), ef.Federation.from_arrays([both(40)], test=test, task="regression"), seeds=[0])
    (model,) = result.parameters.values()
    weight, bias = (next(v for k, v in model.items() if k.endswith(end)) for end in ("weight", "bias"))
    predicted = test[0] @ weight.reshape(-1) + bias.reshape(-1)
    found = variants_of([result])[0].marginals.set_index(["name", "metric"])["value"]
    for name in ("f", "m", "old", "young"):
        mine = (test[2] == name).any(1)
        assert found[name, "rmse"] == pytest.approx(np.sqrt(((predicted - test[1])[mine] ** 2).mean()), rel=1e-5)
        assert found[name, "mean_prediction"] == pytest.approx(predicted[mine].mean(), rel=1e-4)


def test_records_hold_every_number(pair):
    frame = records(Comparison.of(pair, baseline="fedavg"))
    for label, result in zip(("fedavg", "fedprox"), pair, strict=True):
        last = result.metrics[result.metrics["round"] == 3]
        means = last.groupby(["scope", "metric"], observed=True)["value"].mean()
        mine = frame[frame["method"] == label].set_index(["scope", "metric"])
        signed = {key for key in mine.index if key[1].startswith("signed_")}
        assert set(mine.index) == set(means.index) | signed
        gaps = result.local_gaps.groupby(["client", "metric"])["value"].mean().dropna()
        assert {(f"client:{client}", f"signed_{metric}") for client, metric in gaps.index} == signed
        for client, metric in gaps.index:
            line = mine.loc[f"client:{client}", f"signed_{metric}"]
            assert line["mean"] == pytest.approx(gaps[client, metric])
            assert line["low"] < line["mean"] < line["high"]
            assert line["interval"] == "newcombe"
        for key, value in means.items():
            assert mine.loc[key, "mean"] == pytest.approx(value, nan_ok=True)
    line = frame.set_index(["method", "scope", "metric"]).loc["fedprox", "global", "loss"]
    test = stats.ttest_rel(last_values(pair[1], "loss"), last_values(pair[0], "loss"))
    assert line["p"] == line["p_holm"] == pytest.approx(test.pvalue)
    assert line["interval"] == "t"
    assert set(frame.loc[frame["scope"] == "group:a", "interval"]) == {"wilson", ""}


def test_what_a_method_logs_is_drawn(tmp_path):
    result = run(ef.methods.FedMom(), federation())
    data = page_of([result], tmp_path).data["rounds"]
    assert data["logged"] == ["log:momentum_norm"]
    expected = result.log.groupby("round")["momentum_norm"].mean().tolist()
    assert data["series"][0]["mean"]["log:momentum_norm"] == pytest.approx(expected, rel=1e-5)


def test_citations(pair, tmp_path):
    assert "McMahan et al." in page_of(pair, tmp_path).text
    for name, kind in REGISTRY.items():
        cited = citation(kind())
        assert not (name == "local" and cited.plain)
        if cited.bibtex:
            assert cited.plain, name
            assert re.fullmatch(r"@\w+\{[\w:-]+,\n.*\n\}", cited.bibtex, re.DOTALL)
            assert cited.bibtex.count("{") == cited.bibtex.count("}")
            assert "methods" not in cited.bibtex
    assert "Salazar" in citation(ef.methods.FairFate()).bibtex
    assert citation(ef.methods.FedAvgGR()) == citation(ef.methods.FedAvgLR())
    composed = run(ef.postprocess.CalibratedEqualizedOdds(ef.methods.FedAvg()), federation())
    text = page_of([composed], tmp_path).text
    assert "McMahan et al." in text
    assert "On Fairness and Calibration" in text


def test_a_notebook_shows_a_result(pair):
    text = pair[0]._repr_html_()
    assert "<table" in text
    assert "<script" not in text
    for metric in ("accuracy", "demographic_parity_difference"):
        mean = statistics.fmean(last_values(pair[0], metric))
        assert f"{mean:.3f} ± " in text
    assert replace(pair[0], metrics=pair[0].metrics.iloc[:0])._repr_html_() is None
    with pytest.raises(ef.ConfigError, match="no measurements"):
        replace(pair[0], metrics=pair[0].metrics.iloc[:0]).to_html("none.html")


def test_sweep(tmp_path):
    fed = federation()
    result = ef.simulate(
        ef.methods.FedProx(), fed, over={"mu": [0.0, 1.0, 20.0]}, model=ef.models.Logistic(), rounds=3, seeds=[0, 1, 2]
    )
    data = page_of([result], tmp_path).data
    assert [variant["label"] for variant in data["variants"]] == ["fedprox (mu=0)", "fedprox (mu=1)", "fedprox (mu=20)"]
    assert [variant["hyper"]["mu"] for variant in data["variants"]] == ["0.0", "1.0", "20.0"]
    points = result.pareto()
    for variant, accuracy in zip(data["variants"], points["accuracy"], strict=True):
        assert variant["final"]["accuracy"]["mean"] == pytest.approx(accuracy)
    if not any(variant["degenerate"] for variant in data["variants"]):
        assert data["pareto"]["demographic_parity_difference"] == points["dominated"].tolist()


def test_one_seed_and_no_clients(tmp_path):
    result = run(ef.methods.FedAvg(), federation(clients=False), seeds=[7])
    page = page_of([result], tmp_path)
    assert page.data["clients"]["count"] == 0
    assert page.data["variants"][0]["final"]["accuracy"]["std"] is None
    assert "One seed only" in page.text
    assert "±" not in verdict([result]).sentences[0]


def test_regression(tmp_path):
    fed = federation(task="regression")
    results = [run(ef.methods.FedAvg(), fed), run(ef.methods.FedProx(mu=5.0), fed)]
    data = page_of(results, tmp_path).data
    assert (data["quality"], data["disparity"]) == ("rmse", "ks_distance")
    worst = [max(last_values(results[0], "rmse", f"client:{k}")[seed] for k in range(4)) for seed in range(3)]
    assert summary_table(results).loc["fedavg", ("worst_clients_rmse", "mean")] == pytest.approx(np.mean(worst))
    with pytest.raises(ef.ConfigError, match="cannot compare"):
        write_report([*results, run(ef.methods.FedAvg(), federation(), rounds=1)], tmp_path / "mixed.html")


def changed(result: ef.Result, metric: str, value: float, scope: str = "global", seed: int | None = None) -> ef.Result:
    frame = result.metrics.copy()
    keep = (frame["metric"] == metric) & (frame["scope"] == scope)
    frame.loc[keep & (frame["seed"] == seed) if seed is not None else keep, "value"] = value
    return replace(result, metrics=frame)


def test_undefined_is_never_zero(pair, tmp_path):
    gone = changed(pair[1], "demographic_parity_difference", math.nan)
    gone = changed(gone, "true_positive_rate", math.nan, "group:a")
    once = changed(pair[0], "demographic_parity_difference", math.nan, seed=1)
    page = page_of([once, gone], tmp_path)
    final = page.data["variants"][1]["final"]["demographic_parity_difference"]
    assert final == {"mean": None, "std": None, "low": None, "high": None, "n": 0, "values": [None] * 3} | {
        "noise_floor": None
    }
    assert "(2 of 3 seeds)" in page.text
    assert "undefined in some or all seeds of fedavg and fedprox" in page.text
    place = page.data["groups"]["names"].index("a")
    assert page.data["groups"]["values"]["true_positive_rate"]["mean"][1][place] is None
    alone = changed(changed(pair[0], "demographic_parity_difference", math.nan), "accuracy", math.inf)
    page_of([alone], tmp_path)
    assert "of undefined" in verdict([alone]).sentences[0]


# -- words -------------------------------------------------------------------------------------------------------------


def with_values(result: ef.Result, **metrics: list[float]) -> ef.Result:
    frame = result.metrics.copy()
    for metric, values in metrics.items():
        for seed, value in enumerate(values):
            keep = (frame["metric"] == metric) & (frame["scope"] == "global") & (frame["seed"] == seed)
            frame.loc[keep, "value"] = value
    return replace(result, metrics=frame)


def test_degenerate_predictors_are_named_and_left_out(pair, tmp_path):
    bad = with_values(pair[0], accuracy=[0.99] * 3, degenerate=[0, 1, 0], demographic_parity_difference=[0.0] * 3)
    said = verdict([bad, pair[1]])
    assert said.chosen == "fedprox"
    assert any(caveat.startswith("Degenerate: fedavg") and "1 of 3 seeds" in caveat for caveat in said.caveats)
    data = page_of([bad, pair[1]], tmp_path).data
    assert data["table"]["rows"][0][0]["mark"] == ""
    assert data["pareto"]["demographic_parity_difference"] == [False, False]
    both = [bad, with_values(pair[1], degenerate=[1, 1, 1])]
    assert verdict(both).chosen is None


def test_a_reference_on_pooled_rows_is_shown_and_never_taken(pair, tmp_path):
    pooled = run(ef.methods.CentralizedKernel(), federation())
    best = with_values(pooled, accuracy=[0.99, 0.98, 0.99], demographic_parity_difference=[0.0, 0.01, 0.0])
    best = with_values(best, degenerate=[0, 0, 0])
    said = verdict([*pair, best])
    assert said.chosen in ("fedavg", "fedprox")
    assert any(caveat.startswith("Reference: centralized-kernel") for caveat in said.caveats)
    assert not any("differ in more than the method" in caveat for caveat in said.caveats)
    page = page_of([*pair, best], tmp_path)
    assert [variant["pooled"] for variant in page.data["variants"]] == [False, False, True]
    assert all(cell["mark"] == "" for cell in page.data["table"]["rows"][2])
    assert sum(page.data["pareto"]["demographic_parity_difference"][:2]) <= 1  # it beats nobody
    assert len(page.data["partitions"]) == 1
    assert "all rows no federation" in page.text


def test_caveats_from_notes_and_rejections(pair):
    refused = pd.DataFrame([[0, 1, "train", "2", "update is not finite", True]], columns=pair[0].rejections.columns)
    few = Note("too-few-replies").to_json()
    lost = Note("rounds-not-applied", {"obstacle": few, "count": 1, "of": 9, "rounds": [1], "seed": 0})
    notes = [lost, Note("replies-rejected", {"count": 1}), Note("no-compiler")]
    small = changed(pair[0], "count", 12.0, "group:a")
    caveats = verdict([replace(small, rejections=refused, notes=notes)]).caveats
    assert f"fedavg: {lost}" in caveats
    assert str(lost) == (
        "1 of 9 rounds left the model as it was: too few usable replies came (first: seed 0, round 1)."
    )
    assert "fedavg: 1 rejected reply, from client 2 (first reason: update is not finite)." in caveats
    assert f"fedavg: {notes[2]}" in caveats
    assert sum("repl" in caveat for caveat in caveats) == 2  # the count of rejected ones is not said twice
    assert any("group a (12)" in caveat for caveat in caveats)


def test_unlike_results_are_said_to_be(pair):
    other = run(ef.methods.FedAvg(), federation(name="other"), rounds=2)
    caveats = verdict([pair[0], other]).caveats
    assert any("data, rounds" in caveat for caveat in caveats)
    assert [variant.label for variant in variants_of([pair[0], other])] == [
        "fedavg (data=toy, rounds=3)",
        "fedavg (data=other, rounds=2)",
    ]
    assert [variant.label for variant in variants_of([pair[0], pair[0]])] == ["fedavg", "fedavg #2"]


def test_refusals(pair, tmp_path):
    with pytest.raises(ef.ConfigError, match="at least one result"):
        write_report([], tmp_path / "none.html")
    with pytest.raises(ef.ConfigError, match="Did you mean 'demographic_parity_ratio'"):
        write_report(pair, tmp_path / "x.html", disparity="demographic_parity_rato")


# -- the page ----------------------------------------------------------------------------------------------------------


def test_loads_nothing_from_elsewhere(pair, tmp_path):
    path = write_report(pair, tmp_path / "deep" / "report.html", title="Mine")
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in ("iframe", "object", "embed", "img", "base")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith(("#", "data:"))
    assert not re.search(r"https?://", text)
    assert not re.search(r"@import|url\(", text)
    (policy,) = [a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    inline = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    assert len(inline) == 2
    vega = gzip.decompress(base64.b64decode(page.scripts["vega"])).decode()
    allowed = [base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in [*inline, vega]]
    assert rules["script-src"] == " ".join(f"'sha256-{each}'" for each in allowed)  # these and no other, and no eval
    assert "<title>Mine · equifed report</title>" in text


@pytest.fixture(scope="module")
def tame(tmp_path_factory) -> tuple[Page, str]:
    """The page, and what a notebook shows, of a result with harmless names."""
    result = hostile_result("tame")
    return page_of([result], tmp_path_factory.mktemp("tame"), title="tame"), result._repr_html_()


@pytest.mark.parametrize("text", sampled(HOSTILE, 3))
@pytest.mark.sample(4)
def test_names_cannot_break_the_page(text, tame, tmp_path):
    plain, plainly_shown = tame
    result = hostile_result(text)
    page = page_of([result], tmp_path, title=text)
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert [set(attributes) for _, attributes in page.tags] == [set(attributes) for _, attributes in plain.tags]
    assert page.scripts["code"] == plain.scripts["code"]
    assert page.scripts["vega"] == plain.scripts["vega"]
    assert page.data["variants"][0]["method"] == text
    assert page.data["partitions"][0]["clients"] == [text + "x", "1", text + "y"]
    assert text in page.text
    assert re.findall(r"<(/?\w+)", result._repr_html_()) == re.findall(r"<(/?\w+)", plainly_shown)


@pytest.mark.full
def test_long_runs_stay_small(tmp_path):
    """10 methods x 10 seeds x 100 rounds and 300 clients; made up, as only the size matters."""
    small = run(ef.methods.FedAvg(), federation(), rounds=1, seeds=[0])
    rng = np.random.default_rng(0)
    whole = small.metrics[small.metrics["scope"] == "global"]
    many = pd.concat([whole.assign(seed=seed, round=number) for seed in range(10) for number in range(1, 101)])
    base = small.metrics[small.metrics["scope"].astype(str).str.startswith("client:0")]
    clients = pd.concat([base.assign(scope=f"client:{k}", round=100) for k in range(300)])
    frame = pd.concat([many, clients], ignore_index=True)
    info = {**small.info, "clients": [str(k) for k in range(1500)], "num_clients": 1500, "cells": None}
    results = [replace(small, info=info, metrics=frame.assign(value=rng.random(len(frame)))) for _ in range(10)]
    page = page_of(results, tmp_path)
    data = page.data
    assert "1,500 clients: too many to draw" in page.text
    assert len(data["variants"]) == 10
    assert all(series["round"][-1] == 100 for series in data["rounds"]["series"])
