"""The report: its numbers are the results' numbers, its words claim no more, and no name can break the page."""

from __future__ import annotations

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

import equifed as ef
from equifed.report import summary_table, verdict, write_report
from equifed.report.table import arms
from equifed.report.verdict import interval

HOSTILE = [
    "<script>window.hacked=1</script>",
    "</script><script>window.hacked=1</script>",
    "<!--<script>",
    "\"'><img src=x onerror=window.hacked=1>",
    "{{7*7}}{% raw %}",
    "javascript:alert(1)",
    "<a href='https://evil.example'>here</a>",
    "x" * 3000,
    "שלום \u202eevil\u202c عالم",
    "a\x07b\tc\nd",
    "&lt;b&gt;&amp;",
    "%{x}${y}$e^x$",
]


def rows(rng: np.random.Generator, n: int, groups: list[str], task: str = "classification") -> tuple[Any, Any, Any]:
    x = rng.normal(size=(n, 3)).astype(np.float32)
    s = rng.integers(0, len(groups), n)
    y = x[:, 0] + 0.5 * s + rng.normal(size=n)
    return x, (y > 0).astype(int) if task == "classification" else y.astype(np.float32), np.array(groups)[s]


def federation(
    *,
    groups: tuple[str, ...] = ("a", "b"),
    task: Any = "classification",
    clients: bool = True,
    name: str = "toy",
    ids: list[str] | None = None,
) -> ef.Federation:
    rng = np.random.default_rng(3)
    many, kinds = len(ids) if ids else 4, list(groups)
    return ef.Federation.from_arrays(
        [rows(rng, 30, kinds, task) for _ in range(many)],
        test=rows(rng, 160, kinds, task),
        client_tests=[rows(rng, 15, kinds, task) for _ in range(many)] if clients else None,
        task=task,
        ids=ids,
        name=name,
    )


def run(method: ef.methods.FedAvg, fed: ef.Federation, **more: Any) -> ef.Result:
    model = ef.models.Linear() if fed.kind == "regression" else ef.models.Logistic()
    settings: dict[str, Any] = {"rounds": 3, "local": ef.Local(batch_size=10, learning_rate=0.1), "seeds": range(3)}
    return ef.simulate(method, fed, model=model, **{**settings, **more})


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
        self.data = json.loads(self.scripts["data"])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self._script = dict(attrs).get("id") or "code"

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
    assert [arm["label"] for arm in data["arms"]] == ["fedavg", "fedprox"]
    for i, (arm, result) in enumerate(zip(data["arms"], pair, strict=True)):
        names = result.metrics.loc[result.metrics["scope"] == "global", "metric"].astype(str).unique()
        assert set(arm["final"]) == set(names)
        for name in names:
            values = last_values(result, name)
            assert arm["final"][name]["values"] == [None if math.isnan(v) else v for v in values]
            known = [v for v in values if not math.isnan(v)]
            assert arm["final"][name]["n"] == len(known)
            if known:
                assert arm["final"][name]["mean"] == pytest.approx(statistics.fmean(known))
                assert arm["final"][name]["std"] == pytest.approx(statistics.stdev(known), abs=1e-15)
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
        sent = result.messages["bytes_up"].sum() / 1024
        assert table.loc[label, ("kib_up", "mean")] == pytest.approx(sent)
        assert table.loc[label, ("seeds", "n")] == 3
        assert table.loc[label, ("seconds", "mean")] == pytest.approx(result.timings["seconds"] / 3)


def test_intervals_are_paired_t_intervals(pair):
    a, b = arms(pair)
    gaps = np.array(last_values(pair[0], "loss")) - np.array(last_values(pair[1], "loss"))
    expected = stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
    assert interval(a, b, "loss") == pytest.approx((expected.low, expected.high))
    assert interval(a, replace(b, data="other"), "loss") is None


def test_sweep(tmp_path):
    fed = federation()
    result = ef.sweep(
        ef.methods.FedProx(), fed, over={"mu": [0.0, 1.0, 20.0]}, model=ef.models.Logistic(), rounds=3, seeds=[0, 1, 2]
    )
    data = page_of([result], tmp_path).data
    assert [arm["label"] for arm in data["arms"]] == ["fedprox (mu=0)", "fedprox (mu=1)", "fedprox (mu=20)"]
    assert [arm["hyper"]["mu"] for arm in data["arms"]] == ["0.0", "1.0", "20.0"]
    points = result.pareto()
    for arm, accuracy in zip(data["arms"], points["accuracy"], strict=True):
        assert arm["final"]["accuracy"]["mean"] == pytest.approx(accuracy)
    if not any(arm["degenerate"] for arm in data["arms"]):
        assert data["pareto"]["demographic_parity_difference"] == points["dominated"].tolist()


def test_one_seed_and_no_clients(tmp_path):
    result = run(ef.methods.FedAvg(), federation(clients=False), seeds=[7])
    page = page_of([result], tmp_path)
    assert page.data["clients"]["count"] == 0
    assert page.data["arms"][0]["final"]["accuracy"]["std"] is None
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
    final = page.data["arms"][1]["final"]["demographic_parity_difference"]
    assert final == {"mean": None, "std": None, "n": 0, "values": [None, None, None]}
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


def test_verdict_takes_the_fairest_within_noise(pair):
    gap = "demographic_parity_difference"
    best = with_values(pair[0], accuracy=[0.80, 0.82, 0.81], **{gap: [0.20, 0.21, 0.19]})
    near = with_values(pair[1], accuracy=[0.81, 0.81, 0.80], **{gap: [0.05, 0.06, 0.05]})
    said = verdict([best, near])
    assert said.chosen == "fedprox"
    assert "cannot be told apart" in said.sentences[0]
    assert "0.807 ± 0.006" in said.sentences[0]
    assert "3 seeds" in said.sentences[0]
    far = with_values(near, accuracy=[0.60, 0.61, 0.60])
    said = verdict([best, far])
    assert said.chosen == "fedavg"
    assert "fedprox" in said.sentences[1]
    assert not any("cannot be told apart" in caveat for caveat in said.caveats)


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


def test_caveats_from_the_log(pair):
    log = pair[0].log.copy()
    log.loc[0, "applied"] = False
    refused = pd.DataFrame([[0, 1, "train", "2", "update is not finite"]], columns=pair[0].rejections.columns)
    notes = ["1 of 9 rounds had no usable reply and left the model as it was (first: seed 0, round 1).", "Look out."]
    small = changed(pair[0], "count", 12.0, "group:a")
    caveats = verdict([replace(small, log=log, rejections=refused, notes=notes)]).caveats
    assert "fedavg: 1 of 9 rounds had no usable reply and left the model as it was." in caveats
    assert "fedavg: 1 rejected replies, from client 2 (first reason: update is not finite)." in caveats
    assert "fedavg: Look out." in caveats
    assert sum("no usable reply" in caveat for caveat in caveats) == 1
    assert any("group a (12)" in caveat for caveat in caveats)


def test_unlike_results_are_said_to_be(pair):
    other = run(ef.methods.FedAvg(), federation(name="other"), rounds=2)
    caveats = verdict([pair[0], other]).caveats
    assert any("data, rounds" in caveat for caveat in caveats)
    assert [arm.label for arm in arms([pair[0], other])] == [
        "fedavg (data=toy, rounds=3)",
        "fedavg (data=other, rounds=2)",
    ]
    assert [arm.label for arm in arms([pair[0], pair[0]])] == ["fedavg", "fedavg #2"]


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
    assert "default-src 'none'" in text
    assert "<title>Mine · equifed report</title>" in text


def hostile_result(text: str) -> ef.Result:
    fed = federation(groups=(text, text + "2"), ids=[text + "x", "1", text + "y"], name=text)
    result = run(ef.methods.FedAvg(), fed, rounds=1, seeds=[0])
    info = {**result.info, "method": text, "config": text, "command": text, "extra": {text: text}, text: text}
    info["hyper_parameters"] = {text: text}
    frame = result.metrics.assign(method=text)
    frame.loc[frame["scope"] == f"group:{fed.groups[0]}", "value"] = 1.0
    messages = result.messages.assign(phase=text, down=text, up=text, stage=text, gather=text)
    refused = pd.DataFrame([[0, 1, text, text, text]], columns=result.rejections.columns)
    return replace(result, metrics=frame, messages=messages, rejections=refused, info=info, notes=[text])


@pytest.fixture(scope="module")
def tame() -> ef.Result:
    return hostile_result("tame")


@pytest.mark.parametrize("text", HOSTILE)
def test_names_cannot_break_the_page(text, tame, tmp_path):
    plain = page_of([tame], tmp_path, title="tame")
    page = page_of([hostile_result(text)], tmp_path, title=text)
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert [set(attributes) for _, attributes in page.tags] == [set(attributes) for _, attributes in plain.tags]
    assert page.scripts["code"] == plain.scripts["code"]
    assert page.data["arms"][0]["method"] == text
    assert page.data["partitions"][0]["clients"] == [text + "x", "1", text + "y"]
    assert text in page.text


def test_long_runs_stay_small(tmp_path):
    """10 methods x 10 seeds x 100 rounds and 300 clients; made up, as only the size matters."""
    small = run(ef.methods.FedAvg(), federation(), rounds=1, seeds=[0])
    rng = np.random.default_rng(0)
    whole = small.metrics[small.metrics["scope"] == "global"]
    many = pd.concat([whole.assign(seed=seed, round=number) for seed in range(10) for number in range(1, 101)])
    base = small.metrics[small.metrics["scope"].astype(str).str.startswith("client:0")]
    clients = pd.concat([base.assign(scope=f"client:{k}", round=100) for k in range(300)])
    frame = pd.concat([many, clients], ignore_index=True)
    info = {**small.info, "clients": [str(k) for k in range(1500)], "cells": None}
    results = [replace(small, info=info, metrics=frame.assign(value=rng.random(len(frame)))) for _ in range(10)]
    page = page_of(results, tmp_path)
    data = page.data
    assert "1,500 clients: too many to draw" in page.text
    assert len(data["arms"]) == 10
    assert all(series["round"][-1] == 100 for series in data["rounds"]["series"])
