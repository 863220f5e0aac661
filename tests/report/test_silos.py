"""A federation's report: that of a simulation, and besides who was missing when, what was refused and withheld."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flower.inprocess import federate, nodes, setting, simulate
from support.samples import sampled

import equifed as ef
from equifed.data import Schema
from equifed.metrics.seeds import wilson
from equifed.report import verdict
from equifed.report.numbers import page_data, records
from equifed.verdict.comparison import Comparison
from equifed.verdict.groups import marginals
from equifed.verdict.silos import Silos, as_disclosed, other_notes
from equifed.verdict.variants import variants_of
from report.federated import PLAIN, small, troubled, untroubled
from report.runs import HOSTILE, federation, run
from report.test_report import Page, page_of


@pytest.fixture(scope="module")
def trouble(tmp_path_factory: pytest.TempPathFactory) -> ef.Result:
    folder = tmp_path_factory.mktemp("troubled")
    return troubled(folder, folder / "runs")


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> ef.Result:
    """No count is disclosed at all."""
    folder = tmp_path_factory.mktemp("hidden")
    return untroubled(folder, folder / "runs", flower={"min-count": 100})


def section(page: Page, start: str, end: str) -> str:
    """The page's text from one heading to another."""
    text = re.sub(r"\s+", " ", page.text)
    return text[text.rindex(f" {start} ") : text.rindex(f" {end} ")]


def test_the_same_report_as_a_simulation(tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    made = small(tmp_path, {"north": 300, "south": 200, "west": 150})
    found, expected = federate(made, nodes(made), tmp_path / "runs"), simulate(made)
    real, simulated = (page_data(Comparison.of([result])) for result in (found, expected))
    for part in ("variants", "groups", "marginals", "clients", "rounds"):
        left, right = (json.loads(json.dumps(data[part])) for data in (real, simulated))
        assert_alike(left, right)
    page = page_of([found], tmp_path / "page")
    headings = re.findall(r"<h2>(.*?)</h2>", (tmp_path / "page" / "report.html").read_text())
    page_of([expected], tmp_path / "page")
    plain = re.findall(r"<h2>(.*?)</h2>", (tmp_path / "page" / "report.html").read_text())
    assert [each for each in headings if each != "Silos"] == plain
    assert "withheld" not in section(page, "Groups", "Silos")
    assert "All 3 rounds were applied: at least 1 usable reply came in each (min-replies)." in page.text
    assert "No count of test rows is withheld (min-count is 0)." in page.text


def assert_alike(left: Any, right: Any) -> None:
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_alike(left[key], right[key])
    elif isinstance(left, list):
        assert len(left) == len(right)
        for pair in zip(left, right, strict=True):
            assert_alike(*pair)
    elif isinstance(left, float):
        assert left == pytest.approx(right, rel=1e-4, abs=1e-5)
    else:
        assert left == right


def test_who_was_missing_when(trouble: ef.Result, tmp_path: Path) -> None:
    text = section(page_of([trouble], tmp_path), "Silos", "As the server saw it.")
    assert "1 of 7 rounds was not applied (round 5): fewer than 3 usable replies came (min-replies)." in text
    cells = (
        "north 1,200 300 none train in round 5: has NaN or Inf in update.0.bias none",
        "south 720 180 in round 5: no reply within 0 s none none",
        "west 96 24 in rounds 3 to 4: not connected none "
        "how right its predictions are for f and m; what they are for m",
        "east 480 120 the last evaluation: no reply within 0 s none none",
        "rim unknown unknown never joined: not connected none none",
    )
    lines = re.findall(r"<tr>(.*?)</tr>", (tmp_path / "report.html").read_text().split('id="silos"')[1], re.DOTALL)
    shown = [" ".join(re.findall(r">([^<>]+)<", line)) for line in lines]
    assert shown[1:6] == list(cells)
    caveats = verdict([trouble]).caveats
    assert (
        "fedavg-gr: some silos did not answer: south (in round 5: no reply within 0 s), west (in rounds 3 to 4: "
        "not connected), east (the last evaluation: no reply within 0 s) and rim (never joined: not connected)."
    ) in caveats
    assert sum("round 5" in caveat for caveat in caveats) == 2  # who was absent, and that it was not applied
    assert other_notes(trouble) == []


def test_setup_is_before_the_first_round(trouble: ef.Result) -> None:
    info = {**trouble.info, "federation": {**trouble.info["federation"], "unmeasured": {}}}
    info["federation"]["silos"] = {**info["federation"]["silos"], "rim": {"rows": 1, "test_rows": 1}}
    silos = Silos.of(replace(trouble, info=info))
    assert silos is not None
    assert silos.members[-1].absence == "before round 1 and in rounds 1 to 7: not connected"


def test_what_is_withheld_is_called_so(trouble: ef.Result, hidden: ef.Result, tmp_path: Path) -> None:
    basis = "Accuracy and error rates rest on the 480 of 624 test rows whose counts are disclosed."
    page = page_of([trouble], tmp_path)
    assert basis in section(page, "Silos", "Clients")
    assert f"fedavg-gr: west withholds counts of test rows that are too small to be disclosed. {basis}" in page.text
    assert "west withheld" in section(page, "Served worst", "Who holds which rows")
    assert verdict([trouble]).sentences[0].startswith("fedavg-gr reached accuracy 0.744 [")
    page = page_of([hidden], tmp_path)
    groups, curves = section(page, "Groups", "Calibration"), section(page, "Calibration", "Silos")
    assert curves.count("withheld") == 2
    assert not any(group["curve"] for group in page.data["calibration"][0]["groups"])
    assert groups.count("withheld") == 2 * 7  # all but the number of rows disclosed, for both groups
    assert "undefined" not in groups
    assert "The confusion counts of all 130 test rows are withheld" in page.text
    for cell in page.data["table"]["rows"][0][: len(page.data["tests"]["columns"])]:
        assert (cell["mean"], cell["absent"]) == (None, "withheld")
    said = verdict([hidden])
    assert said.sentences == [
        "Of fedavg, accuracy and demographic parity difference are not known: the silos withhold counts that are too "
        "small to be disclosed. There is nothing else here to compare it with.",
        "Positive: 'yes'.",
    ]
    assert not any("undefined" in caveat or "Fewer than 50" in caveat for caveat in said.caveats)
    assert "withheld" in (hidden._repr_html_() or "")


def test_only_what_is_withheld_is_called_so(trouble: ef.Result, hidden: ef.Result, tmp_path: Path) -> None:
    """West keeps back the predictions for m; what is undefined for f, or for another silo, is undefined."""
    silos = Silos.of(trouble)
    assert silos is not None
    assert silos.hides("selection_rate", groups=["m"])
    assert not silos.hides("selection_rate", groups=["f"])
    assert silos.hides("accuracy", groups=["f"])
    assert silos.hides("demographic_parity_difference", client="west")
    assert not silos.hides("accuracy", client="east")
    assert not silos.hides("ks_distance")
    (simulated,) = variants_of([run(ef.methods.FedAvg(), federation(), rounds=1, seeds=[0])])
    assert simulated.absent("accuracy") == "undefined"
    both = page_of([hidden, run(ef.methods.FedProx(), federation(), rounds=1, seeds=[0])], tmp_path)
    assert "fedavg ran on a real federation: the server receives every silo's reply" in re.sub(r"\s+", " ", both.text)
    assert "nothing else is sent" in both.text
    # what the federation withholds does not take the simulation's intervals away
    place = both.data["groups"]["names"].index("a")
    assert both.data["groups"]["values"]["accuracy"]["low"][1][place] is not None


def test_a_verdict_on_one_of_two_numbers(trouble: ef.Result) -> None:
    frame = trouble.metrics.copy()
    gone = frame["scope"] == "global"

    def without(metric: str) -> str:
        lost = frame.assign(value=frame["value"].mask(gone & (frame["metric"] == metric)))
        return verdict([replace(trouble, metrics=lost)]).sentences[0]

    assert without("accuracy").startswith(
        "fedavg-gr has a demographic parity difference of 0.008 [0.000, 0.099] after round 7 (one seed, in brackets "
        "95\u00a0% intervals by rows). Its accuracy is not known: "
    )
    assert without("demographic_parity_difference").startswith(
        "fedavg-gr reached accuracy 0.744 [0.703, 0.782] after round 7 (one seed, in brackets 95\u00a0% "
        "intervals by rows). Its demographic parity difference is not known: "
    )


def test_intervals_rest_on_the_rows_that_are_disclosed(trouble: ef.Result, tmp_path: Path) -> None:
    data = page_of([trouble], tmp_path).data["groups"]
    g, values = data["names"].index("f"), data["values"]
    mean = {metric: values[metric]["mean"][0][g] for metric in data["metrics"]}
    assert (mean["count"], mean["disclosed"]) == (249, 235)
    rows = {
        "accuracy": 235,
        "selection_rate": 249,
        "true_positive_rate": mean["positives"],
        "false_positive_rate": 235 - mean["positives"],
    }
    for metric, n in rows.items():
        bounds = values[metric]["low"][0][g], values[metric]["high"][0][g]
        assert bounds == pytest.approx(wilson(mean[metric], n)), metric


def test_marginals_rest_on_the_rows_that_are_disclosed(trouble: ef.Result) -> None:
    """Two groups make one marginal: one discloses half of its rows, the other only its predictions."""
    table = {
        "f & old": {"count": 200, "disclosed": 100, "positives": 40, "accuracy": 0.9, "selection_rate": 0.5},
        "f & young": {"count": 50, "disclosed": 0, "positives": 0, "accuracy": math.nan, "selection_rate": 0.1},
        "m & old": {"count": 10, "disclosed": 10, "positives": 5, "accuracy": 0.5, "selection_rate": 0.5},
    }
    lines = [(0, name, metric, value) for name, each in table.items() for metric, value in each.items()]
    frame = pd.DataFrame(lines, columns=["seed", "name", "metric", "value"])
    silos = replace(
        Silos.of(trouble),
        members=(replace(Silos.of(trouble).members[0], counts=("f & young",)),),
        disclosed={name: int(each["disclosed"]) for name, each in table.items()},
    )
    disclosed = as_disclosed(frame[frame["metric"] != "disclosed"], silos)
    found = disclosed.set_index(["name", "metric"])["value"]
    assert found["f & old", "disclosed"] == 100
    assert math.isnan(found["f & young", "positives"])
    pooled = marginals(disclosed, list(table)).set_index(["name", "metric"])["value"]
    assert pooled["f", "accuracy"] == pytest.approx(0.9)
    assert pooled["f", "selection_rate"] == pytest.approx((0.5 * 200 + 0.1 * 50) / 250)
    assert pooled["old", "accuracy"] == pytest.approx((0.9 * 100 + 0.5 * 10) / 110)
    assert (pooled["f", "count"], pooled["f", "disclosed"], pooled["f", "positives"]) == (250, 100, 40)


def test_what_the_server_sees(trouble: ef.Result, tmp_path: Path) -> None:
    page = page_of([trouble], tmp_path)
    text = section(page, "What left each client", "Provenance")
    assert "This was a real federation: the server receives every silo's reply by itself" in text
    assert "can hide a single" not in text
    assert "nothing else is sent" not in text
    for words in ("joinwhen a silo joins", "countsfor every evaluated round"):
        assert words in text
    assert text.count("needs only sums, but sees each reply") == 2  # count and train
    assert text.count("sees each client's reply") == 2  # join and evaluation
    assert "Only the silos know this." in section(page, "Who holds which rows", "What left each client")
    assert "too many to draw" not in page.text
    for raw in ("min_replies", "unmeasured", "'rows'"):
        assert raw not in page.text


def test_a_simulation_has_no_silos(tmp_path: Path) -> None:
    result = run(ef.methods.FedAvg(), federation(), rounds=1)
    assert Silos.of(result) is None
    page = page_of([result], tmp_path)
    for words in ("Silos", "withheld", "real federation"):
        assert words not in page.text
    assert page.text.count("needs only sums") == 1


def renamed(result: ef.Result, text: str) -> ef.Result:
    """West under another name, which also stands in what it says; and a group with it."""
    raw = json.dumps(result.info["federation"]).replace('"west"', json.dumps(text)).replace('"m"', json.dumps(text))
    clients = [text if name == "west" else name for name in result.info["clients"]]
    info = {**result.info, "clients": clients, "federation": json.loads(raw), "groups": ["f", text]}
    scopes = result.metrics["scope"].astype(str).replace({"client:west": f"client:{text}", "group:m": f"group:{text}"})
    lost = result.rejections.assign(reason=text, client=result.rejections["client"].replace("west", text), phase=text)
    return replace(result, info=info, metrics=result.metrics.assign(scope=scopes), rejections=lost)


@pytest.fixture(scope="module")
def tame(trouble: ef.Result, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The page with a name that breaks nothing."""
    return page_of([renamed(trouble, "tame")], tmp_path_factory.mktemp("tame"), title="tame")


@pytest.mark.parametrize("text", sampled(HOSTILE, 3))
@pytest.mark.sample(4)
def test_silos_names_cannot_break_the_page(text: str, tame: Any, trouble: ef.Result, tmp_path: Path) -> None:
    page = page_of([renamed(trouble, text)], tmp_path, title="tame")
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in tame.tags]
    assert [set(attributes) for _, attributes in page.tags] == [set(attributes) for _, attributes in tame.tags]
    assert page.scripts["code"] == tame.scripts["code"]
    assert text in page.text


def test_numbers_of_the_silos(trouble: ef.Result) -> None:
    lines = records(Comparison.of([trouble])).set_index(["scope", "metric"])["mean"]
    west = lines["client:west"]
    assert west[["train_rows", "test_rows", "missed_rounds", "refused_replies", "withheld_groups"]].tolist() == [
        96,
        24,
        2,
        0,
        2,
    ]
    assert lines["client:north", "refused_replies"] == 1
    assert np.isnan(lines["client:rim", "train_rows"])
    assert lines["group:f", "disclosed"] == 235
    assert lines["client:rim", "missed_rounds"] == 8  # once before the rounds


def test_a_regression_is_judged_by_what_can_be_known(tmp_path: Path) -> None:
    """Nobody has all predictions, so their KS distance is not known, and not what the verdict is about."""
    (tmp_path / "page").mkdir()
    small(tmp_path, {"a": 120, "b": 90})
    frames = {silo: pd.read_parquet(tmp_path / f"{silo}.parquet") for silo in ("a", "b")}
    for silo, frame in frames.items():
        frames[silo] = frame.assign(price=frame["w"] * 2 + frame["x"])
        frames[silo].to_parquet(tmp_path / f"{silo}.parquet")
    whole = pd.concat(frames.values()).drop(columns="bought")
    schema = Schema.infer(
        whole, ef.Columns(label="price", sensitive="sex", task="regression", features=["w", "x", "y", "z"])
    )
    (tmp_path / "schema.json").write_text(schema.to_json())
    made = setting(
        tmp_path,
        run={"clients-per-round": "all"},
        data={"files": {silo: f"{silo}.parquet" for silo in frames}, **PLAIN},
        model={"kind": "linear", "hidden": None, "activation": None},
    )
    result = federate(made, nodes(made), tmp_path / "runs")
    page = page_of([result], tmp_path / "page")
    assert page.data["disparity"] == "mean_difference"
    assert "ks_distance" not in page.data["table"]["columns"]
    assert "undefined" not in verdict([result]).sentences[0]
