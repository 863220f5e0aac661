"""The report's charts as files for a paper: SVG, PNG or PDF, by matplotlib.

The page's own charts would need a browser to become files; matplotlib needs nothing but itself and sets text and sizes
as papers want them. It is an optional extra.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from equifed.errors import ConfigError, unknown_name
from equifed.metrics import catalogue
from equifed.metrics.catalogue import describe
from equifed.report import looks
from equifed.report.numbers import page_data
from equifed.verdict import wording
from equifed.verdict.comparison import Comparison

FORMATS = ("svg", "png", "pdf")
BARS: dict[str, Any] = {"elinewidth": 0.8, "capsize": 1.5}
DATELESS = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""The same numbers give the same file."""
MAX_CURVES = 12
"""Methods and settings whose calibration is drawn: the first so many."""
WIDTH = 5.2
"""Inches: a page's text width; charts scale down to a column."""
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "lines.linewidth": 1.4,
    "savefig.dpi": 300,
    "savefig.bbox": "tight",
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "equifed",  # or its ids differ from file to file
    "text.parse_math": False,  # a $ in a name is a $
    "axes.unicode_minus": True,
}

Draw = Callable[[Any, Any], None]
"""(figure, axes) -> None."""


def check_formats(formats: Sequence[str]) -> None:
    """Refuse unknown formats, and a missing matplotlib, before anything is written."""
    for name in formats:
        if name not in FORMATS:
            raise unknown_name("figure format", name, FORMATS)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError(
            "Figures need matplotlib, which is not installed. Install it: pip install 'equifed[figures]'"
        ) from None


def write_figures(comparison: Comparison, folder: str | Path, formats: Sequence[str] = ("svg", "png")) -> list[Path]:
    """Trade-off, main metrics over rounds, groups, calibration, clients and partition; the files written."""
    check_formats(formats)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, height, draw in _charts(comparison, page_data(comparison)):
        with _canvas(height) as (figure, axes):
            draw(figure, axes)
            for kind in formats:
                written.append(folder / f"{name}.{kind}")
                figure.savefig(written[-1], metadata=DATELESS.get(kind))
    return written


@contextmanager
def _canvas(height: float) -> Iterator[tuple[Any, Any]]:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE), warnings.catch_warnings():
        # a name in a script that the font lacks is drawn as boxes; that must not end the report
        warnings.filterwarnings("ignore", message=".*[Gg]lyph", category=UserWarning)
        figure = Figure(figsize=(WIDTH, height), layout="constrained")  # no display, no global state
        yield figure, figure.add_subplot()


def _charts(comparison: Comparison, data: dict[str, Any]) -> Iterator[tuple[str, float, Draw]]:
    """(file name, height in inches, how to draw it)."""
    count, main = len(data["variants"]), comparison.metrics
    room = 0.16 * math.ceil(count / 4)
    if count > 1:
        for metric in [name for name in main if name in data["pareto"]]:
            yield f"trade-off-{_file(metric)}", 3.2 + room, partial(_pareto, data=data, metric=metric)
    curves = [each["mean"] for each in data["rounds"]["series"]]
    for metric in [name for name in main if any(_known(each.get(name, ())) for each in curves)]:
        yield f"rounds-{_file(metric)}", 2.6 + room, partial(_rounds, data=data, metric=metric)
    for kind in ("groups", "marginals"):
        height = 0.9 + count * (0.16 + 0.06 * len(data[kind]["names"]))
        values = data[kind]["values"]
        drawn = [name for name in catalogue.ordered(values) if describe(name).in_groups == "rate"]
        for metric in [name for name in drawn if any(map(_known, values[name]["mean"]))]:
            yield f"{kind}-{_file(metric)}", height, partial(_groups, data=data, kind=kind, metric=metric)
    for i, of in enumerate(data["calibration"][:MAX_CURVES], 1):
        if any(group["curve"] for group in of["groups"]):
            yield f"calibration-{i}-{_file(of['label'])[:40]}", 3.4, partial(_calibration, of=of)
    boxes = data["clients"]["boxes"]
    for metric in [name for name in data["clients"]["metrics"] if name != "loss" and _known(boxes[name])]:
        yield f"clients-{_file(metric)}", 0.8 + 0.34 * count, partial(_clients, data=data, metric=metric)
    for i, part in enumerate(data["partitions"], 1):
        if part["cells"] is not None:
            height = min(9.0, 1.2 + 0.17 * len(part["clients"]))
            yield "partition" if i == 1 else f"partition-{i}", height, partial(_partition, part=part)


def _known(values: Sequence[Any]) -> bool:
    """Whether there is anything to draw."""
    return any(value is not None for value in values)


def _file(metric: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", metric.lower()).strip("-")


def _name(text: str) -> str:
    """Fit for a legend: one short line without control characters; a leading _ would hide it."""
    shown = "".join(c if c.isprintable() else " " for c in wording.plain(text, 36))
    return f" {shown}" if shown.startswith("_") else shown


def _flag(variant: dict[str, Any]) -> str:
    return " (reference)" if variant["pooled"] else " (degenerate)" if variant["degenerate"] else ""


def _axis(metric: str, data: dict[str, Any]) -> str:
    title, better = data["metrics"][metric]["title"], data["metrics"][metric]["better"]
    return f"{title} ({better} is better)" if better else str(title)


def _legend(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) > 1:
        columns = max(1, int(WIDTH * 17) // (max(map(len, labels)) + 6))  # so many characters fit on an inch
        figure.legend(handles, labels, loc="outside upper left", ncols=min(columns, 4))


def _methods(axes: Any, data: dict[str, Any], metric: str) -> None:
    """The metric across, a line for each method."""
    labels = [_name(variant["label"]) for variant in data["variants"]]
    axes.set(yticks=range(len(labels)), yticklabels=labels, ylim=(len(labels) - 0.5, -0.5), xlabel=_axis(metric, data))


def _pareto(figure: Any, axes: Any, data: dict[str, Any], metric: str) -> None:
    quality, front = data["quality"], []
    for i, (variant, beaten) in enumerate(zip(data["variants"], data["pareto"][metric], strict=True)):
        x, y = variant["final"][metric], variant["final"][quality]
        if x["mean"] is None or y["mean"] is None:
            continue
        bars = [None if v["low"] is None else [[v["mean"] - v["low"]], [v["high"] - v["mean"]]] for v in (x, y)]
        axes.errorbar(
            x["mean"],
            y["mean"],
            xerr=bars[0],
            yerr=bars[1],
            fmt=looks.marker(i),
            fillstyle="none" if beaten else "full",
            color=looks.colour(i),
            markersize=5,
            **BARS,
            label=_name(variant["label"]) + _flag(variant),
        )
        for state, over in (("degenerate", "x"), ("pooled", "o")):
            if variant[state]:
                axes.plot(x["mean"], y["mean"], over, color="black", fillstyle="none", markersize=9, zorder=3)
        if not beaten and not variant["degenerate"] and not variant["pooled"]:
            front.append((x["mean"], y["mean"]))
    axes.plot(*np.array(sorted(front)).reshape(-1, 2).T, ":", color="#777777", linewidth=0.9, zorder=0)
    if (floor := data["floors"].get(metric)) is not None:
        fair = 0.0 if describe(metric).better == "zero" else 1.0
        label = f"noise floor {wording.number(floor)}"
        axes.axvspan(fair, floor, color="#777777", alpha=0.15, linewidth=0, zorder=-1, label=label)
        axes.axvline(floor, color="#777777", linestyle="-.", linewidth=0.8, zorder=0)
    axes.set(xlabel=_axis(metric, data), ylabel=_axis(quality, data))
    _legend(figure, axes)


def _rounds(figure: Any, axes: Any, data: dict[str, Any], metric: str) -> None:
    for i, (variant, series) in enumerate(zip(data["variants"], data["rounds"]["series"], strict=True)):
        if metric not in series["mean"]:
            continue
        mean, std = (np.array(series[what][metric], dtype=float) for what in ("mean", "std"))
        axes.plot(
            series["round"],
            mean,
            linestyle=looks.dash(i),
            marker=looks.marker(i),
            markevery=max(1, len(mean) // 6),
            markersize=4,
            color=looks.colour(i),
            label=_name(variant["label"]),
        )
        if len(data["variants"]) <= 4:  # more bands than that hide each other
            axes.fill_between(series["round"], mean - std, mean + std, color=looks.colour(i), alpha=0.15, linewidth=0)
    axes.set(xlabel="round", ylabel=_axis(metric, data))
    _legend(figure, axes)


def _groups(figure: Any, axes: Any, data: dict[str, Any], kind: str, metric: str) -> None:
    values, names = data[kind]["values"][metric], data[kind]["names"]
    step = min(0.16, 0.6 / len(names))
    for g, name in enumerate(names):
        mean, low, high = (np.array([row[g] for row in values[what]], dtype=float) for what in ("mean", "low", "high"))
        bars = None if np.isnan(low).all() else np.nan_to_num([mean - low, high - mean])
        place = np.arange(len(mean)) + (g - (len(names) - 1) / 2) * step
        axes.errorbar(
            mean,
            place,
            xerr=bars,
            fmt=looks.marker(g),
            color=looks.colour(g),
            markersize=4,
            **BARS,
            label=_name(name),
        )
    _methods(axes, data, metric)
    _legend(figure, axes)


def _calibration(figure: Any, axes: Any, of: dict[str, Any]) -> None:
    most = max(point["rows"] for group in of["groups"] for point in group["curve"])
    for g, group in enumerate(of["groups"]):
        points = [[point[what] for point in group["curve"]] for what in ("score", "rate", "low", "high", "rows")]
        score, rate, low, high, rows = map(np.array, points)
        error = "" if group["error"] is None else f", ECE {wording.number(group['error'])}"
        bars = np.maximum([rate - low, high - rate], 0)  # rounding
        axes.errorbar(score, rate, yerr=bars, fmt="none", color=looks.colour(g), **BARS)
        axes.plot(score, rate, linestyle=looks.dash(g), linewidth=1.0, color=looks.colour(g))
        axes.scatter(
            score,
            rate,
            s=8 + 40 * rows / most,
            marker=looks.marker(g),
            color=looks.colour(g),
            zorder=3,
            label=f"{_name(group['name'])} (n = {group['rows']:,.0f}{error})",
        )
    axes.plot([0, 1], [0, 1], "--", color="#777777", linewidth=0.9, zorder=0)
    axes.set(xlabel="mean score of the bin", ylabel="share that came true", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axes.set_title(_name(of["label"]), fontsize=8)
    _legend(figure, axes)


def _clients(figure: Any, axes: Any, data: dict[str, Any], metric: str) -> None:
    boxes = [
        (i, dict(zip(("whislo", "q1", "med", "q3", "whishi"), box, strict=True)))
        for i, box in enumerate(data["clients"]["boxes"][metric])
        if box is not None
    ]
    axes.bxp(
        [box for _, box in boxes],
        positions=[i for i, _ in boxes],
        orientation="horizontal",
        showfliers=False,
        medianprops={"color": looks.colour(0)},
    )
    _methods(axes, data, metric)


def _partition(figure: Any, axes: Any, part: dict[str, Any]) -> None:
    cells = np.array(part["cells"], dtype=float)
    before = np.zeros(len(cells))
    for g, group in enumerate(part["groups"]):
        for c, label in enumerate(part["classes"]):
            hatch = looks.hatch(g * len(part["classes"]) + c)
            axes.barh(
                np.arange(len(cells)),
                cells[:, g, c],
                left=before,
                color="white" if hatch else looks.colour(g),
                edgecolor=looks.colour(g),
                hatch=hatch,
                label=_name(f"{group}, {label}"),
            )
            before += cells[:, g, c]
    axes.set(ylim=(len(cells) - 0.5, -0.5), xlabel="training rows", ylabel="client")
    if len(cells) <= 60:
        axes.set(yticks=range(len(cells)), yticklabels=[_name(name) for name in part["clients"]])
    _legend(figure, axes)
