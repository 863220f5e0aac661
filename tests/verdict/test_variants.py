"""Intervals by rows and the noise floor, wherever a report and the terminal show a disparity."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report.runs import federation, run

import equifed as ef
from equifed.cli.tables import metrics_table, record
from equifed.metrics import evidence
from equifed.report.numbers import page_data, records
from equifed.store import RunFolder
from equifed.verdict.comparison import Comparison
from equifed.verdict.sentences import verdict
from equifed.verdict.variants import variants_of

DP = "demographic_parity_difference"


@pytest.fixture(scope="module")
def result() -> ef.Result:
    """On 160 test rows, so that small gaps are noise; one seed, which used to have no interval."""
    return run(ef.methods.FedAvg(), federation(), seeds=[0])


def test_the_page_has_one_interval_and_the_floor(result: ef.Result) -> None:
    (table,) = result.count_tables(labels=False).values()  # demographic parity needs none
    expected, floor = evidence.estimate(DP, table), evidence.noise_floor(DP, table)
    comparison = Comparison.of([result])
    data = page_data(comparison)
    final = data["variants"][0]["final"]
    shown = [final[DP][name] for name in ("mean", "low", "high", "noise_floor")]
    assert shown == pytest.approx([*expected[:3], floor])
    assert data["floors"][DP] == floor
    assert "noise_floor" not in final["accuracy"]
    assert final["accuracy"]["low"] == evidence.estimate("accuracy", result.count_tables()[0]).low
    assert final["loss"]["low"] is None  # it does not follow from counts, and one seed has no deviation
    lines = records(comparison).query("scope == 'global'").set_index("metric")
    assert lines.loc[DP, ["low", "high", "interval", "noise_floor"]].tolist() == [*expected[1:3], "counts", floor]
    assert lines.loc["loss", "interval"] == ""


def test_what_is_within_the_floor_is_said(result: ef.Result) -> None:
    (variant,) = variants_of([result])
    gap, floor = variant.over_seeds(DP).mean, variant.noise_floor(DP)
    said = [caveat for caveat in verdict([result]).caveats if caveat.startswith("Noise floor")]
    assert len(said) == (gap <= floor) == variant.within_floor(DP)
    other = result.counts.assign(rows=np.arange(len(result.counts)))
    (far,) = variants_of([replace(result, counts=other)])
    assert math.isnan(far.noise_floor(DP))  # counts that do not give the value show nothing about it


def test_seeds_on_the_same_rows_do_not_narrow_it() -> None:
    """Ten seeds whose models agree know no more about the rows than one."""
    fed = federation()
    one = variants_of([run(ef.methods.FedAvg(), fed, seeds=[0])])[0]
    many = variants_of([run(ef.methods.FedAvg(), fed, seeds=range(5))])[0]
    low, high = many.interval(DP)
    assert high - low > 0.5 * (one.interval(DP)[1] - one.interval(DP)[0])


def test_show_has_it(result: ef.Result, tmp_path: Path) -> None:
    found = record(RunFolder(tmp_path), result)
    value = found["metrics"][DP]
    (variant,) = variants_of([result])
    assert (value["low"], value["high"]) == variant.interval(DP)
    assert value["noise_floor"] == variant.noise_floor(DP)
    assert "low" not in found["metrics"]["loss"]
    table = metrics_table(found)
    assert [column.header for column in table.columns][2:4] == ["95 % interval", "noise floor"]
    swept = ef.simulate(
        ef.methods.FedProx(), federation(), over={"mu": [0.0, 1.0]}, model=ef.models.Logistic(), rounds=1, seeds=[0]
    )
    assert "low" not in record(RunFolder(tmp_path), swept)["metrics"][DP]  # of several settings
