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
from equifed.report.comparison import Arm, Comparison, against, is_pooled, measured_metrics, summary_of
from equifed.report.groups import rate_interval
from equifed.report.verdict import ranked, unclear

if TYPE_CHECKING:
    from equifed.results.result import Result

MOST_POINTS = 120_000
"""Numbers embedded for the curves over rounds; beyond it rounds are thinned, so that the page stays small."""
MOST_CLIENT_POINTS = 20_000
"""Clients drawn one by one, over all arms and metrics; beyond it only the boxes are."""
MOST_BASELINES = 20
"""Arms up to which each can be chosen as the baseline in the page; their tests grow with the square."""
LOG = "log:"
"""Begins the name of a curve that a method logs about itself."""
LOGGED = "Logged by the method itself."
COSTS = ("bytes_up", "bytes_down", "seconds")
"""Columns of the comparison after its metrics."""


def page_data(about: Comparison) -> dict[str, Any]:
    """All numbers of the page. nan is null; the values of the last round are exact, the curves have six digits."""
    found, names = about.arms, measured_metrics(about.arms)
    groups, marginals, clients = (_scopes(found, kind) for kind in ("groups", "marginals", "clients"))
    logged = list(dict.fromkeys(f"{LOG}{name}" for arm in found for name in arm.observed["name"].unique()))
    summary = summary_data(about)
    summary["metrics"] |= _described([*groups["metrics"], *clients["metrics"], *logged])
    return {
        **summary,
        "task": about.task,
        "quality": about.quality,
        "disparity": about.disparity,
        "tests": _tests(about),
        "pareto": {name: dominated(about, name) for name in names if describe(name).disparity},
        "rounds": _curves(found, names, logged),
        "groups": groups,
        "marginals": marginals,
        "clients": _clients(clients, len(found)),
        "partitions": _partitions(about.results),
    }


def summary_data(about: Comparison) -> dict[str, Any]:
    """The comparison table alone, and what its columns mean."""
    names = measured_metrics(about.arms)
    return {
        "metrics": _described([*names, *COSTS]),
        "arms": [_arm(arm, names) for arm in about.arms],
        "table": _table(about),
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


def _arm(arm: Arm, names: list[str]) -> dict[str, Any]:
    return {
        "label": arm.label,
        "method": arm.method,
        "result": arm.result,
        "hyper": {str(name): str(value) for name, value in arm.hyper.items()},
        "seeds": [str(seed) for seed in arm.final.index],
        "last": arm.last,
        "models": arm.models,
        "degenerate": int(arm.degenerate.sum()),
        "pooled": arm.pooled,
        "final": {name: _final(arm, name) for name in names},
    }


def _final(arm: Arm, metric: str) -> dict[str, Any]:
    values = arm.values(metric)
    mean, std, n = arm.over_seeds(metric)
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


def _table(about: Comparison) -> dict[str, Any]:
    metrics = about.metrics
    frame = summary_of(about.arms, about.results, metrics)
    columns = [*metrics, *COSTS]
    marks = {name: _marks(about, name) for name in metrics}
    rows = []
    for i, arm in enumerate(about.arms):
        cells: list[dict[str, Any]] = []
        for name in columns:
            each = {what: frame[name, what].iloc[i] for what in frame[name].columns}
            cells.append(
                {
                    "mean": _finite(each["mean"]),
                    "std": _finite(each.get("std", math.nan)),
                    "n": int(each.get("n", arm.seeds)),
                    "mark": marks[name][i] if name in marks else "",
                    "absent": arm.absent(name),
                }
            )
        rows.append(cells)
    return {"columns": columns, "rows": rows}


def _marks(about: Comparison, metric: str) -> list[str]:
    """For each arm: "best" mean, "near" when the corrected test cannot tell it from the best, or nothing."""
    found = about.arms
    order = ranked(found, metric)
    if len(order) < 2 or not describe(metric).better:
        return [""] * len(found)
    lowest = order[0].cost(metric)
    close = unclear(order, metric)

    def mark(arm: Arm) -> str:
        if arm not in order:
            return ""
        if arm.cost(metric) == lowest:
            return "best"
        return "near" if arm in close else ""

    marks = [mark(arm) for arm in found]
    return [""] * len(found) if marks.count("best") == len(found) else marks


def _tests(about: Comparison) -> dict[str, Any]:
    """[baseline][arm][metric]: the paired test of arm minus baseline, or None."""
    found = about.arms
    wanted = found if len(found) <= MOST_BASELINES else [about.baseline]
    cells = {}
    for other in wanted:
        by_metric = [against(found, other, metric) for metric in about.metrics]
        cells[str(found.index(other))] = [
            [_test(tests[i], arm, other, metric) for metric, tests in zip(about.metrics, by_metric, strict=True)]
            for i, arm in enumerate(found)
        ]
    return {"baseline": found.index(about.baseline), "columns": about.metrics, "cells": cells}


def _test(test: Paired | None, arm: Arm, other: Arm, metric: str) -> dict[str, Any] | None:
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
            ("better" if arm.cost(metric) < other.cost(metric) else "worse")
            if test.clear and describe(metric).better
            else ""
        ),
    }


def dominated(about: Comparison, disparity: str) -> list[bool]:
    """Whether another arm is at least as good in both means and better in one; who is not eligible beats nobody."""
    costs = [[arm.cost(name) for name in (about.quality, disparity)] for arm in about.arms]
    return list(M.dominated(costs, by=[arm.eligible for arm in about.arms]).tolist())


# -- rounds, groups, clients -------------------------------------------------------------------------------------------


def _curves(found: list[Arm], names: list[str], logged: list[str]) -> dict[str, Any]:
    """Mean and sample std over seeds of every metric in every round (or every k-th, and the last)."""
    total = sum(arm.rounds["round"].nunique() for arm in found) * (len(names) + len(logged)) * 2
    every = max(1, math.ceil(total / MOST_POINTS))
    series = []
    for arm in found:
        numbers = np.sort(arm.rounds["round"].unique())
        kept = numbers[np.unique(np.append(np.arange(0, len(numbers), every), len(numbers) - 1))]
        own = arm.observed.assign(metric=LOG + arm.observed["name"].astype(str)).drop(columns="name")
        rows = pd.concat([arm.rounds.assign(metric=arm.rounds["metric"].astype(str)), own])
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
        [name for name in some if any(name in each["mean"] for each in series)] for some in (names, logged)
    )
    return {"metrics": measured, "logged": own_names, "series": series, "every": every}


def _scopes(found: list[Arm], kind: str) -> dict[str, Any]:
    """Mean and std over seeds per metric: [arm][name], for groups or clients; None where there is no value.

    For groups also low and high, the intervals of their rates.
    """
    frames: list[pd.DataFrame] = [getattr(arm, kind) for arm in found]
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
        _add_intervals(values, [arm.models for arm in found], len(names))
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
        boxes[metric] = [_box([value for value in arm if value is not None]) for arm in both["mean"]]
    many = len(clients["names"]) * count * len(clients["metrics"]) > MOST_CLIENT_POINTS
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


def records(about: Comparison) -> pd.DataFrame:
    """Every number of the last round, one a line: method, scope, metric, mean, std, n, interval, test.

    scope is global, group:NAME, marginal:NAME (all groups with this value of one sensitive column) or client:NAME. n
    counts the seeds where the metric is defined. interval says what [low, high] is: t (of the mean over seeds) or
    wilson (of a group's rate, by its rows). Differences are to the baseline, tested over the seeds that both have;
    p_holm is corrected for all methods that are compared in this metric. The silos of a real federation have some
    metrics more: their rows, the rounds they missed, replies that were refused, groups that they withhold.
    """
    lines: list[dict[str, Any]] = []
    metrics = measured_metrics(about.arms)
    tests = {metric: against(about.arms, about.baseline, metric) for metric in metrics}
    for i, arm in enumerate(about.arms):
        for metric in metrics:
            final, test = _final(arm, metric), tests[metric][i]
            line: dict[str, Any] = {name: final[name] for name in ("mean", "std", "n", "low", "high")}
            line |= {"method": arm.label, "scope": "global", "metric": metric}
            line["interval"] = "" if final["low"] is None else "t"
            if test is not None:
                line |= {"difference": test.difference, "difference_low": test.low, "difference_high": test.high}
                line |= {"p": test.p, "p_holm": test.holm}
            lines.append(line)
        for kind in ("group", "marginal", "client"):
            lines += _scope_lines(arm, kind)
        for silo in arm.silos.members if arm.silos else ():
            for metric, value in silo.numbers().items():
                lines.append(
                    {"method": arm.label, "scope": f"client:{silo.name}", "metric": metric, "mean": value, "n": 1}
                )
    return pd.DataFrame(lines, columns=list(COLUMNS))


def _scope_lines(arm: Arm, kind: str) -> list[dict[str, Any]]:
    frame: pd.DataFrame = getattr(arm, f"{kind}s")
    block = moments_by(frame, ["name", "metric"])
    keys = [(str(name), str(metric)) for name, metric in block.index]
    means: dict[str, dict[str, float]] = {}
    for (name, metric), mean in zip(keys, block["mean"], strict=True):
        means.setdefault(name, {})[metric] = float(mean)
    lines = []
    for (name, metric), std, n in zip(keys, block["std"], block["n"], strict=True):
        low, high = (math.nan, math.nan) if kind == "client" else rate_interval(metric, means[name], arm.models)
        line = {"method": arm.label, "scope": f"{kind}:{name}", "metric": metric, "mean": means[name][metric]}
        line |= {"std": std, "n": n, "low": low, "high": high, "interval": "" if math.isnan(low) else "wilson"}
        lines.append(line)
    return lines
