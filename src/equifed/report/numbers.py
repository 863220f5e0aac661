"""The report's numbers: as they are embedded in the page, and as records for other programs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from equifed import metrics as M
from equifed.metrics import catalogue
from equifed.metrics.catalogue import Metric, describe
from equifed.metrics.seeds import Paired, mean_interval, moments_by
from equifed.report.comparison import Comparison, Variant, against, is_pooled, measured_metrics, summary_of
from equifed.report.groups import rate_interval
from equifed.report.verdict import ranked, unclear

if TYPE_CHECKING:
    from equifed.results.result import Result

MAX_POINTS = 120_000
"""Numbers embedded for the curves over rounds; beyond it rounds are thinned, so that the page stays small."""
MAX_CLIENT_POINTS = 20_000
"""Clients drawn one by one, over all variants and metrics; beyond it only the boxes are."""
MAX_BASELINES = 20
"""Arms up to which each can be chosen as the baseline in the page; their tests grow with the square."""
LOG = "log:"
"""Begins the name of a curve that a method logs about itself."""
LOGGED = "Logged by the method itself."
COSTS = ("bytes_up", "bytes_down", "seconds")
"""Columns of the comparison after its metrics."""


def page_data(comparison: Comparison) -> dict[str, Any]:
    """All numbers of the page. nan is null; the values of the last round are exact, the curves have six digits."""
    variants, names = comparison.variants, measured_metrics(comparison.variants)
    groups, marginals, clients = (_scopes(variants, kind) for kind in ("groups", "marginals", "clients"))
    logged = list(dict.fromkeys(f"{LOG}{name}" for variant in variants for name in variant.observed["name"].unique()))
    summary = summary_data(comparison)
    summary["metrics"] |= _described([*groups["metrics"], *clients["metrics"], *logged])
    return {
        **summary,
        "task": comparison.task,
        "quality": comparison.quality,
        "disparity": comparison.disparity,
        "tests": _tests(comparison),
        "pareto": {name: dominated(comparison, name) for name in names if describe(name).disparity},
        "rounds": _curves(variants, names, logged),
        "groups": groups,
        "marginals": marginals,
        "clients": _clients(clients, len(variants)),
        "partitions": _partitions(comparison.results),
    }


def summary_data(comparison: Comparison) -> dict[str, Any]:
    """The comparison table alone, and what its columns mean."""
    names = measured_metrics(comparison.variants)
    return {
        "metrics": _described([*names, *COSTS]),
        "variants": [_variant(variant, names) for variant in comparison.variants],
        "table": _table(comparison),
    }


def _described(names: list[str]) -> dict[str, dict[str, str]]:
    described = {}
    for name in dict.fromkeys(names):
        # what a method logs has nothing to do with a metric of the same name
        metric = Metric(name=name.removeprefix(LOG), help=LOGGED) if name.startswith(LOG) else describe(name)
        described[name] = {"title": metric.title, "help": metric.help, "better": metric.direction}
    return described


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _variant(variant: Variant, names: list[str]) -> dict[str, Any]:
    return {
        "label": variant.label,
        "method": variant.method,
        "result": variant.result,
        "hyper": {str(name): str(value) for name, value in variant.hyper.items()},
        "seeds": [str(seed) for seed in variant.final.index],
        "last": variant.last,
        "models": variant.models,
        "degenerate": int(variant.degenerate.sum()),
        "pooled": variant.pooled,
        "final": {name: _final(variant, name) for name in names},
    }


def _final(variant: Variant, metric: str) -> dict[str, Any]:
    values = variant.values(metric)
    mean, std, n = variant.over_seeds(metric)
    low, high = mean_interval(values) or (math.nan, math.nan)
    return {
        "mean": _finite(mean),
        "std": _finite(std),
        "low": _finite(low),
        "high": _finite(high),
        "n": n,
        "values": [_finite(value) for value in values],
    }


# -- the comparison ----------------------------------------------------------------------------------------------------


def _table(comparison: Comparison) -> dict[str, Any]:
    metrics = comparison.metrics
    frame = summary_of(comparison.variants, comparison.results, metrics)
    columns = [*metrics, *COSTS]
    marks = {name: _marks(comparison, name) for name in metrics}
    rows = []
    for i, variant in enumerate(comparison.variants):
        cells: list[dict[str, Any]] = []
        for name in columns:
            each = {what: frame[name, what].iloc[i] for what in frame[name].columns}
            cells.append(
                {
                    "mean": _finite(each["mean"]),
                    "std": _finite(each.get("std", math.nan)),
                    "n": int(each.get("n", variant.seeds)),
                    "mark": marks[name][i] if name in marks else "",
                    "absent": variant.absent(name),
                }
            )
        rows.append(cells)
    return {"columns": columns, "rows": rows}


def _marks(comparison: Comparison, metric: str) -> list[str]:
    """For each variant: "best" mean, "near" when the corrected test cannot tell it from the best, or nothing."""
    variants = comparison.variants
    order = ranked(variants, metric)
    if len(order) < 2 or not describe(metric).better:
        return [""] * len(variants)
    lowest = order[0].cost(metric)
    close = unclear(order, metric)

    def mark(variant: Variant) -> str:
        if variant not in order:
            return ""
        if variant.cost(metric) == lowest:
            return "best"
        return "near" if variant in close else ""

    marks = [mark(variant) for variant in variants]
    return [""] * len(variants) if marks.count("best") == len(variants) else marks


def _tests(comparison: Comparison) -> dict[str, Any]:
    """[baseline][variant][metric]: the paired test of variant minus baseline, or None."""
    variants = comparison.variants
    baselines = variants if len(variants) <= MAX_BASELINES else [comparison.baseline]
    cells = {}
    for other in baselines:
        by_metric = [against(variants, other, metric) for metric in comparison.metrics]
        cells[str(variants.index(other))] = [
            [
                _test(tests[i], variant, other, metric)
                for metric, tests in zip(comparison.metrics, by_metric, strict=True)
            ]
            for i, variant in enumerate(variants)
        ]
    return {"baseline": variants.index(comparison.baseline), "columns": comparison.metrics, "cells": cells}


def _test(test: Paired | None, variant: Variant, other: Variant, metric: str) -> dict[str, Any] | None:
    if test is None:
        return None
    return {
        "difference": test.difference,
        "low": test.low,
        "high": test.high,
        "p": test.p,
        "holm": test.holm,
        "n": test.n,
        "says": (
            ("better" if variant.cost(metric) < other.cost(metric) else "worse")
            if test.clear and describe(metric).better
            else ""
        ),
    }


def dominated(comparison: Comparison, disparity: str) -> list[bool]:
    """Whether another variant is at least as good in both means and better in one; who is not eligible beats nobody."""
    costs = [[variant.cost(name) for name in (comparison.quality, disparity)] for variant in comparison.variants]
    return list(M.dominated(costs, by=[variant.eligible for variant in comparison.variants]).tolist())


# -- rounds, groups, clients -------------------------------------------------------------------------------------------


def _curves(variants: list[Variant], names: list[str], logged: list[str]) -> dict[str, Any]:
    """Mean and sample std over seeds of every metric in every round (or every k-th, and the last)."""
    total = sum(variant.rounds["round"].nunique() for variant in variants) * (len(names) + len(logged)) * 2
    every = max(1, math.ceil(total / MAX_POINTS))
    series = []
    for variant in variants:
        numbers = np.sort(variant.rounds["round"].unique())
        kept = numbers[np.unique(np.append(np.arange(0, len(numbers), every), len(numbers) - 1))]
        own = variant.observed.assign(metric=LOG + variant.observed["name"].astype(str)).drop(columns="name")
        rows = pd.concat([variant.rounds.assign(metric=variant.rounds["metric"].astype(str)), own])
        rows = rows[rows["round"].isin(kept)]
        moments_by_round = moments_by(rows, ["metric", "round"])
        one: dict[str, Any] = {"round": [int(number) for number in kept], "mean": {}, "std": {}}
        present = set(moments_by_round.index.get_level_values(0))
        for name in (*names, *logged):
            if name in present:
                block = moments_by_round.loc[name].reindex(kept)
                one["mean"][name] = [_short(value) for value in block["mean"]]
                one["std"][name] = [_short(value) for value in block["std"]]
        series.append(one)
    measured, own_names = (
        [name for name in curves if any(name in one["mean"] for one in series)] for curves in (names, logged)
    )
    return {"metrics": measured, "logged": own_names, "series": series, "every": every}


def _scopes(variants: list[Variant], kind: str) -> dict[str, Any]:
    """Mean and std over seeds per metric: [variant][name], for groups or clients; None where there is no value.

    For groups also low and high, the intervals of their rates.
    """
    frames: list[pd.DataFrame] = [getattr(variant, kind) for variant in variants]
    names = list(dict.fromkeys(str(name) for frame in frames for name in frame["name"].unique()))
    metrics = list(dict.fromkeys(str(name) for frame in frames for name in frame["metric"].unique()))
    values: dict[str, dict[str, list[list[float | None]]]] = {name: {"mean": [], "std": []} for name in metrics}
    for frame in frames:
        block = moments_by(frame, ["metric", "name"])
        present = set(block.index.get_level_values(0))
        for metric in metrics:
            rows = block.loc[metric] if metric in present else pd.DataFrame({"mean": [], "std": []})
            rows = rows.reindex(names)
            for what in ("mean", "std"):
                values[metric][what].append([_finite(value) for value in rows[what]])
    if kind != "clients":
        _add_intervals(values, [variant.models for variant in variants], len(names))
    drawn = [name for name in catalogue.ordered(metrics) if describe(name).in_groups not in ("count", "flag")]
    return {"names": names, "metrics": metrics, "drawn": drawn, "values": values}


def _add_intervals(values: dict[str, dict[str, list[list[float | None]]]], models: list[int], groups: int) -> None:
    for metric, both in values.items():
        bounds = np.full((len(models), groups, 2), math.nan)
        for i, times in enumerate(models):
            for g in range(groups):
                known = {name: each["mean"][i][g] for name, each in values.items()}
                numbers = {name: math.nan if value is None else value for name, value in known.items()}
                bounds[i, g] = rate_interval(metric, numbers, times)
        both["low"], both["high"] = ([[_finite(v) for v in row] for row in bounds[..., k]] for k in range(2))


def _clients(clients: dict[str, Any], count: int) -> dict[str, Any]:
    """Values per client while they are few; boxes (five numbers) always."""
    boxes = {}
    for metric, both in clients["values"].items():
        boxes[metric] = [_box([value for value in variant if value is not None]) for variant in both["mean"]]
    many = len(clients["names"]) * count * len(clients["metrics"]) > MAX_CLIENT_POINTS
    return {
        "names": [] if many else clients["names"],
        "count": len(clients["names"]),
        "metrics": [name for name in clients["metrics"] if name != "rows"],
        "mean": {} if many else {name: both["mean"] for name, both in clients["values"].items()},
        "boxes": boxes,
    }


def _box(values: list[float]) -> list[float] | None:
    return [float(value) for value in np.quantile(values, [0, 0.25, 0.5, 0.75, 1])] if values else None


def _partitions(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Rows per client, group and label, once for all results that share them."""
    shown: dict[str, dict[str, Any]] = {}
    for result in results:
        info = result.info
        if not info.get("clients") or is_pooled(str(info["method"])):
            continue
        one = {
            "clients": [str(name) for name in info["clients"]] if info.get("cells") is not None else [],
            "count": len(info["clients"]),
            "groups": [str(name) for name in info.get("groups", [])],
            "classes": [str(name) for name in info.get("classes", [])] or ["rows"],
            "cells": info.get("cells"),
            "federation": "federation" in info,
            "data": str(info.get("data") or ""),
        }
        entry = shown.setdefault(json.dumps(one), {**one, "methods": []})
        entry["methods"].append(str(result.info["method"]))
    return list(shown.values())


# -- for other programs ------------------------------------------------------------------------------------------------

COLUMNS = (
    "method",
    "scope",
    "metric",
    "mean",
    "std",
    "n",
    "low",
    "high",
    "interval",
    "difference",
    "difference_low",
    "difference_high",
    "p",
    "p_holm",
)


def records(comparison: Comparison) -> pd.DataFrame:
    """Every number of the last round, one a line: method, scope, metric, mean, std, n, interval, test.

    scope is global, group:NAME, marginal:NAME (all groups with this value of one sensitive column) or client:NAME. n
    counts the seeds where the metric is defined. interval says what [low, high] is: t (of the mean over seeds) or
    wilson (of a group's rate, by its rows). Differences are to the baseline, tested over the seeds that both have;
    p_holm is corrected for all methods that are compared in this metric. The silos of a real federation have some
    metrics more: their rows, the rounds they missed, replies that were refused, groups that they withhold.
    """
    lines: list[dict[str, Any]] = []
    metrics = measured_metrics(comparison.variants)
    tests = {metric: against(comparison.variants, comparison.baseline, metric) for metric in metrics}
    for i, variant in enumerate(comparison.variants):
        for metric in metrics:
            final, test = _final(variant, metric), tests[metric][i]
            line: dict[str, Any] = {name: final[name] for name in ("mean", "std", "n", "low", "high")}
            line |= {"method": variant.label, "scope": "global", "metric": metric}
            line["interval"] = "" if final["low"] is None else "t"
            if test is not None:
                line |= {"difference": test.difference, "difference_low": test.low, "difference_high": test.high}
                line |= {"p": test.p, "p_holm": test.holm}
            lines.append(line)
        for kind in ("group", "marginal", "client"):
            lines += _scope_lines(variant, kind)
        for silo in variant.silos.members if variant.silos else ():
            for metric, value in silo.numbers().items():
                lines.append(
                    {"method": variant.label, "scope": f"client:{silo.name}", "metric": metric, "mean": value, "n": 1}
                )
    return pd.DataFrame(lines, columns=list(COLUMNS))


def _scope_lines(variant: Variant, kind: str) -> list[dict[str, Any]]:
    frame: pd.DataFrame = getattr(variant, f"{kind}s")
    block = moments_by(frame, ["name", "metric"])
    keys = [(str(name), str(metric)) for name, metric in block.index]
    means: dict[str, dict[str, float]] = {}
    for (name, metric), mean in zip(keys, block["mean"], strict=True):
        means.setdefault(name, {})[metric] = float(mean)
    lines = []
    for (name, metric), std, n in zip(keys, block["std"], block["n"], strict=True):
        low, high = (math.nan, math.nan) if kind == "client" else rate_interval(metric, means[name], variant.models)
        line = {"method": variant.label, "scope": f"{kind}:{name}", "metric": metric, "mean": means[name][metric]}
        line |= {"std": std, "n": n, "low": low, "high": high, "interval": "" if math.isnan(low) else "wilson"}
        lines.append(line)
    return lines
