"""Figures for a paper: drawn from the page's numbers, whatever things are called."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import vl_convert

import equifed as ef
from equifed.charts import draw, look
from equifed.charts.files import VEGA_LITE
from equifed.report import figures
from equifed.report.charts import pareto, partition, rounds
from equifed.report.numbers import page_data
from equifed.verdict.comparison import Comparison
from report.runs import HOSTILE, federation, hostile_result, run


def test_points_are_the_means_and_bars_the_intervals():
    fed = federation()
    about = Comparison.of([run(ef.methods.FedAvg(), fed), run(ef.methods.FedProx(mu=5.0), fed)])
    data = page_data(about)
    charts = dict(figures.figures(about.metrics, data))
    chart = charts["trade-off-demographic-parity-difference"]
    for variant, row in zip(data["variants"], chart["data"]["values"], strict=True):
        x, y = (variant["final"][name] for name in ("demographic_parity_difference", "accuracy"))
        assert (row["x"], row["y"]) == (x["mean"], y["mean"])
        assert (row["left"], row["right"]) == (x["low"], x["high"])
        assert (row["low"], row["high"]) == (y["low"], y["high"])
    rows = charts["rounds-accuracy"]["data"]["values"]
    for variant, series in zip(data["variants"], data["rounds"]["series"], strict=True):
        drawn = [row for row in rows if row["name"] == variant["label"]]
        assert [row["round"] for row in drawn] == series["round"]
        assert [row["mean"] for row in drawn] == series["mean"]["accuracy"]
        assert [row["std"] for row in drawn] == series["std"]["accuracy"]
    rows = charts["groups-selection-rate"]["data"]["values"]
    rates = data["groups"]["values"]["selection_rate"]
    for what, row_has in (("mean", "value"), ("low", "low"), ("high", "high")):
        assert [row[row_has] for row in rows] == [value for of_method in rates[what] for value in of_method]
    curves = [point for group in data["calibration"][1]["groups"] for point in group["curve"]]
    rows = charts["calibration-2-fedprox"]["data"]["values"]
    assert [{name: row[name] for name in ("score", "rate", "low", "high", "rows")} for row in rows] == curves
    box, points = (charts["clients-accuracy"], charts["clients-accuracy"]["layer"][-1])
    for i, row in enumerate(box["data"]["values"]):
        own = data["clients"]["mean"]["accuracy"][i]
        assert [row[end] for end in ("min", "max", "middle")] == [min(own), max(own), pytest.approx(np.median(own))]
        assert [p["value"] for p in points["data"]["values"] if p["method"] == row["method"]] == own
    cells = np.array(data["partitions"][0]["cells"])
    rows = charts["partition"]["data"]["values"]
    assert sum(row["rows"] for row in rows) == cells.sum()
    of_first = [row["rows"] for row in rows if row["client"] == data["partitions"][0]["clients"][0]]
    assert of_first == [n for n in cells[0].ravel() if n]


def test_signs_over_points_the_front_and_the_floor():
    fed = federation()
    result = run(ef.methods.FedAvg(), fed)
    about = Comparison.of([result, run(ef.methods.FedProx(mu=5.0), fed), run(ef.methods.CentralizedKernel(), fed)])
    data = page_data(about)
    data["variants"][1]["degenerate"] = 2
    data["pareto"]["demographic_parity_difference"] = [False, False, False]
    chart = pareto(data, "demographic_parity_difference")
    over = chart["layer"][-1]["data"]["values"]
    assert [(row["name"], row["x"]) for row in over] == [
        ("degenerate", data["variants"][1]["final"]["demographic_parity_difference"]["mean"]),
        ("reference", data["variants"][2]["final"]["demographic_parity_difference"]["mean"]),
    ]
    assert [row["front"] for row in chart["data"]["values"]] == [True, False, False]  # neither dominates another
    assert "degenerate in 2 of 3 seeds" in chart["data"]["values"][1]["about"]
    floor = data["floors"]["demographic_parity_difference"]
    [band] = chart["layer"][0]["data"]["values"]
    assert (band["fair"], band["end"]) == (0.0, floor)


def test_settings_of_a_method_share_its_colour_and_differ_by_dash():
    fed = federation()
    settings = {"model": ef.models.Logistic(), "rounds": 2, "seeds": [0]}
    sweeps = [
        ef.simulate(ef.methods.FedProx(), fed, over={"mu": [0.0, 1.0]}, **settings),
        ef.simulate(ef.methods.FedMom(), fed, over={"beta": [0.1, 0.5, 0.9]}, **settings),
    ]
    data = page_data(Comparison.of(sweeps))
    found = {}
    for layer in rounds(data, "accuracy")["layer"]:
        for channel in ("stroke", "shape", "strokeDash"):
            if channel in layer["encoding"]:
                found[channel] = layer["encoding"][channel]["scale"]["range"][:5]
    blue, orange, *_ = look.COLOURS
    assert found["stroke"] == [blue, blue, orange, orange, orange]
    assert found["shape"] == ["circle", "circle", "square", "square", "square"]
    dashes = [tuple(each) for each in found["strokeDash"]]
    assert len(set(dashes[:2])) == 2
    assert len(set(dashes[2:])) == 3
    [legend] = vl_convert.vegalite_to_vega(rounds(data, "accuracy"), vl_version=VEGA_LITE)["legends"]
    assert legend["strokeDash"] == "strokeDash"  # so it shows lines,
    assert "shape" not in legend
    assert legend["encode"]["labels"]["interactive"] is True  # which can be clicked
    fronts = pareto(data, "demographic_parity_difference")
    assert {row["name"] for row in fronts["data"]["values"]} == {"fedprox", "fedmom"}


KINDS = ("trade-off", "rounds", "groups", "clients", "partition")
SHOWN = ("accuracy", "demographic_parity_difference", "selection_rate", "count", "positives", "degenerate", "rows")


@pytest.mark.parametrize(
    ("every", "metrics"), [(8, SHOWN), pytest.param(1, None, marks=pytest.mark.full)], ids=["some", "all"]
)
def test_hostile_names_are_only_names(every, metrics, tmp_path):
    """All names at once are many curves, and drawing all metrics takes seconds: only in `make test-full`."""
    results = [hostile_result(text) for text in HOSTILE[::-every]]
    if metrics is not None:
        results = [replace(each, metrics=each.metrics[each.metrics["metric"].isin(metrics)]) for each in results]
    about = Comparison.of(results)
    written = figures.write_figures(about, tmp_path, ["svg"])
    assert {path.parent for path in written} == {tmp_path}
    assert all(any(path.stem.startswith(kind) for path in written) for kind in KINDS)
    for path in written:
        tags = {element.tag.rpartition("}")[2] for element in ElementTree.parse(path).iter()}
        assert not tags & {"script", "image", "a", "iframe", "foreignObject"}


def test_regression(tmp_path):
    result = run(ef.methods.FedAvg(), federation(task="regression"), seeds=[0])
    names = {path.name for path in figures.write_figures(Comparison.of([result]), tmp_path, ["png"])}
    assert names >= {"rounds-rmse.png", "groups-rmse.png", "clients-rmse.png", "partition.png"}


def test_the_same_numbers_give_the_same_file():
    """Nothing of the time or by chance, in every format: fills of a partition are numbered in an SVG, resources in a
    PDF."""
    data = page_data(Comparison.of([run(ef.methods.FedAvg(), federation())]))
    for spec in (rounds(data, "accuracy"), partition(data, data["partitions"][0])):
        for kind, start in (("svg", b"<svg"), ("png", b"\x89PNG\r\n"), ("pdf", b"%PDF")):
            files = {draw(spec, kind) for _ in range(4)}
            assert len(files) == 1, kind
            assert next(iter(files)).startswith(start)
