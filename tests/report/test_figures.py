"""Figures for a paper: drawn from the page's numbers, whatever things are called."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

import equifed as ef
from equifed.report.numbers import page_data
from equifed.verdict.comparison import Comparison
from report.runs import HOSTILE, federation, hostile_result, run

pytest.importorskip("matplotlib", reason="matplotlib is not installed (the extra `figures`)")
figures = pytest.importorskip("equifed.report.figures")


def test_points_are_the_means_and_bars_the_intervals():
    fed = federation()
    about = Comparison.of([run(ef.methods.FedAvg(), fed), run(ef.methods.FedProx(mu=5.0), fed)])
    data = page_data(about)
    charts = {name: (height, draw) for name, height, draw in figures._charts(about, data)}
    height, draw = charts["trade-off-demographic-parity-difference"]
    with figures._canvas(height) as (figure, axes):
        draw(figure, axes)
        for variant, drawn in zip(data["variants"], axes.containers, strict=True):
            x, y = (variant["final"][name] for name in ("demographic_parity_difference", "accuracy"))
            point, _, (across, upright) = drawn
            assert (point.get_xdata()[0], point.get_ydata()[0]) == (x["mean"], y["mean"])
            assert across.get_segments()[0][:, 0].tolist() == pytest.approx([x["low"], x["high"]])
            assert upright.get_segments()[0][:, 1].tolist() == pytest.approx([y["low"], y["high"]])
    height, draw = charts["rounds-accuracy"]
    with figures._canvas(height) as (figure, axes):
        draw(figure, axes)
        for series, drawn in zip(data["rounds"]["series"], axes.lines, strict=True):
            assert drawn.get_ydata().tolist() == series["mean"]["accuracy"]


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
    before = [path.read_bytes() for path in written]
    assert figures.write_figures(about, tmp_path, ["svg"]) == written
    assert [path.read_bytes() for path in written] == before  # nothing of the time or by chance


def test_regression(tmp_path):
    result = run(ef.methods.FedAvg(), federation(task="regression"), seeds=[0])
    names = {path.name for path in figures.write_figures(Comparison.of([result]), tmp_path, ["png"])}
    assert names >= {"rounds-rmse.png", "groups-rmse.png", "clients-rmse.png", "partition.png"}
