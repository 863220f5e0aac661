"""The report's charts as files for a paper: SVG, PNG or PDF."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from equifed.charts import check_formats, write_chart
from equifed.charts.spec import Spec
from equifed.metrics import catalogue
from equifed.metrics.catalogue import describe
from equifed.report import charts
from equifed.report.numbers import page_data
from equifed.verdict.comparison import Comparison

MAX_CURVES = 12
"""Methods and settings with a figure of their calibration: the first ones."""


def write_figures(comparison: Comparison, folder: str | Path, formats: Sequence[str] = ("svg", "png")) -> list[Path]:
    """Write trade-off, main metrics over rounds, groups, calibration, clients and partition; return the files."""
    check_formats(formats)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = figures(comparison.metrics, page_data(comparison))
    return [write_chart(spec, folder / f"{name}.{kind}") for name, spec in drawn for kind in formats]


def figures(main: Sequence[str], data: dict[str, Any]) -> Iterator[tuple[str, Spec]]:
    """Yield (file name, chart). main: the metrics of the comparison."""
    if len(data["variants"]) > 1:
        for metric in [name for name in main if name in data["pareto"]]:
            yield f"trade-off-{_file(metric)}", charts.pareto(data, metric)
    curves = [each["mean"] for each in data["rounds"]["series"]]
    for metric in [name for name in main if any(charts.is_known(each.get(name, ())) for each in curves)]:
        yield f"rounds-{_file(metric)}", charts.rounds(data, metric)
    for kind in ("groups", "marginals"):
        values = data[kind]["values"]
        rates = [name for name in catalogue.ordered(values) if describe(name).in_groups == "rate"]
        for metric in [name for name in rates if any(map(charts.is_known, values[name]["mean"]))]:
            yield f"{kind}-{_file(metric)}", charts.groups(data, kind, metric)
    for i, of in enumerate(data["calibration"][:MAX_CURVES]):
        if any(group["curve"] for group in of["groups"]):
            yield f"calibration-{i + 1}-{_file(of['label'])[:40]}", charts.calibration(data, i)
    boxes = data["clients"]["boxes"]
    for metric in [name for name in data["clients"]["metrics"] if name != "loss" and charts.is_known(boxes[name])]:
        yield f"clients-{_file(metric)}", charts.clients(data, metric)
    for i, part in enumerate(data["partitions"], 1):
        if part["cells"] is not None:
            yield "partition" if i == 1 else f"partition-{i}", charts.partition(data, part)


def _file(metric: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", metric.lower()).strip("-")
