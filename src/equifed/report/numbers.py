"""The report's numbers: as they are embedded in the page, and as records for other programs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from equifed.metrics import catalogue
from equifed.metrics.catalogue import Metric, describe
from equifed.metrics.local import SIGNED
from equifed.metrics.seeds import Paired, moments_by
from equifed.report.calibration import calibration_data
from equifed.verdict.choose import against, ranked, unclear
from equifed.verdict.comparison import Comparison
from equifed.verdict.groups import rate_intervals
from equifed.verdict.local import Local, local_data
from equifed.verdict.silos import Secure
from equifed.verdict.variants import LOG, Variant, is_pooled

if TYPE_CHECKING:
    from equifed.results.result import Result

MAX_POINTS = 120_000
"""Numbers embedded for the curves over rounds; beyond it rounds are thinned, so that the page stays small."""
MAX_CLIENT_POINTS = 20_000
"""Clients drawn one by one, over all variants and metrics; beyond it only the boxes are."""
MAX_BASELINES = 20
"""Arms up to which each can be chosen as the baseline in the page; their tests grow with the square."""
LOGGED = "Logged by the method itself."
COSTS = ("bytes_up", "bytes_down", "seconds")
"""Columns of the comparison after its metrics."""


def page_data(comparison: Comparison) -> dict[str, Any]:
    """All numbers of the page. nan is null; the values of the last round are exact, the curves have six digits."""
    variants, names = comparison.variants, comparison.measured
    groups, marginals, clients = (_scopes(variants, kind) for kind in ("groups", "marginals", "clients"))
    logged = list(dict.fromkeys(name for variant in variants for name in variant.observed["metric"]))
    summary = summary_data(comparison)
    summary["metrics"] |= _described([*groups["metrics"], *clients["metrics"], *logged])
    return {
        **summary,
        "quality": comparison.quality,
        "disparity": comparison.disparity,
        "tests": _tests(comparison),
        "floors": _floors(variants, names),
        "pareto": {name: comparison.dominated(name) for name in names if describe(name).disparity},
        "rounds": _curves(variants, names, logged),
        "groups": groups,
        "marginals": marginals,
        "clients": _clients(clients, len(variants)),
        "calibration": calibration_data(variants),
        "local": local_data([variant.local_gaps for variant in variants], MAX_CLIENT_POINTS),
        "partitions": _partitions(comparison.results),
    }


def summary_data(comparison: Comparison) -> dict[str, Any]:
    """The comparison table alone, and what its columns mean."""
    names = comparison.measured
    return {
        "metrics": _described([*names, *COSTS]),
        "variants": [
            _variant(variant, comparison.results.index(variant.result), names) for variant in comparison.variants
        ],
        "table": _table(comparison),
    }


def _described(names: list[str]) -> dict[str, dict[str, str]]:
    described = {}
    for name in dict.fromkeys(names):
        metric = Metric(name=name.removeprefix(LOG), help=LOGGED) if name.startswith(LOG) else describe(name)
        described[name] = {"title": metric.title, "help": metric.help, "better": metric.direction}
    return described


def _finite(values: Any) -> Any:
    """As JSON has it: a number or lists of numbers, None for what is not finite."""
    array = np.array(values, dtype=object)
    array[~np.isfinite(array.astype(np.float64))] = None
    return array.tolist()


def _variant(variant: Variant, result: int, names: list[str]) -> dict[str, Any]:
    return {
        "label": variant.label,
        "method": variant.method,
        "result": result,
        "hyper": {str(name): str(value) for name, value in variant.hyper.items()},
        "seeds": [str(seed) for seed in variant.final.index],
        "last": variant.last,
        "models": variant.models,
        "degenerate": int(variant.degenerate.sum()),
        "pooled": variant.pooled,
        "final": {name: _final(variant, name) for name in names},
    }


def _floors(variants: list[Variant], names: list[str]) -> dict[str, float]:
    """The noise floor of each disparity that has one: that of the variant in the middle, as they hardly differ."""
    found = {name: [variant.noise_floor(name) for variant in variants] for name in names if describe(name).disparity}
    known = {name: [floor for floor in floors if math.isfinite(floor)] for name, floors in found.items()}
    return {name: float(np.median(floors)) for name, floors in known.items() if floors}


def _final(variant: Variant, metric: str) -> dict[str, Any]:
    values = variant.values(metric)
    mean, std, n = variant.over_seeds(metric)
    numbers = _finite([mean, std, *(variant.interval(metric) or (math.nan, math.nan))])
    floor = {"noise_floor": _finite(variant.noise_floor(metric))} if describe(metric).disparity else {}
    return {
        **dict(zip(("mean", "std", "low", "high"), numbers, strict=True)),
        "n": n,
        "values": _finite(values),
        **floor,
    }


# -- the comparison ----------------------------------------------------------------------------------------------------


def _table(comparison: Comparison) -> dict[str, Any]:
    frame = comparison.to_frame()
    marks = {name: marks_of(comparison, name) for name in comparison.metrics}
    columns = [*comparison.metrics, *COSTS]
    rows: list[list[dict[str, Any]]] = [[] for _ in comparison.variants]
    for i, variant in enumerate(comparison.variants):
        for name in columns:
            over_seeds = {"std": math.nan, "n": variant.seeds, **frame[name].iloc[i]}  # costs have a mean only
            rows[i].append(
                {
                    "mean": _finite(over_seeds["mean"]),
                    "std": _finite(over_seeds["std"]),
                    "n": int(over_seeds["n"]),
                    "mark": marks[name][i] if name in marks else "",
                    "absent": variant.absent(name),
                }
            )
    return {"columns": columns, "rows": rows}


def marks_of(comparison: Comparison, metric: str) -> list[str]:
    """For each variant: "best" mean, "near" when the corrected test cannot tell it from the best, or nothing."""
    variants = comparison.variants
    order = ranked(variants, metric)
    if len(order) < 2 or not describe(metric).better:
        return [""] * len(variants)
    lowest = order[0].cost(metric)
    marks = dict.fromkeys(unclear(order, metric), "near")
    marks |= {variant: "best" for variant in order if variant.cost(metric) == lowest}
    all_best = list(marks.values()).count("best") == len(variants)
    return ["" if all_best else marks.get(variant, "") for variant in variants]


def _tests(comparison: Comparison) -> dict[str, Any]:
    """[baseline][variant][metric]: the paired test of variant minus baseline, or None."""
    variants, metrics = comparison.variants, comparison.metrics
    baselines = variants if len(variants) <= MAX_BASELINES else [comparison.baseline]
    cells = {}
    for other in baselines:
        tests = {metric: against(variants, other, metric) for metric in metrics}
        cells[str(variants.index(other))] = [
            [_test(tests[metric][i], variant, other, metric) for metric in metrics]
            for i, variant in enumerate(variants)
        ]
    return {"baseline": variants.index(comparison.baseline), "columns": metrics, "cells": cells}


def _test(test: Paired | None, variant: Variant, other: Variant, metric: str) -> dict[str, Any] | None:
    if test is None:
        return None
    says = ""
    if test.clear and describe(metric).better:
        says = "better" if variant.cost(metric) < other.cost(metric) else "worse"
    return {**vars(test), "says": says}


# -- rounds, groups, clients -------------------------------------------------------------------------------------------


def _curves(variants: list[Variant], names: list[str], logged: list[str]) -> dict[str, Any]:
    """Mean and sample std over seeds of every metric in every round (or every k-th, and the last)."""
    total = sum(variant.rounds["round"].nunique() for variant in variants) * (len(names) + len(logged)) * 2
    every = max(1, math.ceil(total / MAX_POINTS))
    series = []
    for variant in variants:
        numbers = np.sort(variant.rounds["round"].unique())
        kept = numbers[np.unique(np.append(np.arange(0, len(numbers), every), len(numbers) - 1))]
        rows = pd.concat([variant.rounds, variant.observed])
        over_seeds = moments_by(rows[rows["round"].isin(kept)], ["metric", "round"])
        curves: dict[str, Any] = {"round": kept.tolist(), "mean": {}, "std": {}}
        for name, block in over_seeds.groupby(level="metric", sort=False):
            by_round = block.droplevel("metric").reindex(kept)
            for what in ("mean", "std"):
                curves[what][name] = _finite([float(f"{value:.6g}") for value in by_round[what]])
        series.append(curves)
    drawn = set().union(*(curves["mean"] for curves in series))
    measured, observed = ([name for name in listed if name in drawn] for listed in (names, logged))
    return {"metrics": measured, "logged": observed, "series": series, "every": every}


def _scope_moments(variant: Variant, kind: str) -> pd.DataFrame:
    """Of every group, marginal or client (name) and metric: mean, std and n over seeds, and the interval [low, high] of
    a group's rate."""
    frame = getattr(variant, kind)
    over_seeds = moments_by(frame, ["name", "metric"])
    if kind == "clients":
        return over_seeds.assign(low=np.nan, high=np.nan)
    return over_seeds.join(rate_intervals(frame, variant.models))


def _scopes(variants: list[Variant], kind: str) -> dict[str, Any]:
    """{metric: {mean | std | low | high: [variant][name]}} over seeds, for groups, marginals or clients."""
    frames = [_scope_moments(variant, kind) for variant in variants]
    names, metrics = (
        list(dict.fromkeys(key for frame in frames for key in frame.index.get_level_values(level)))
        for level in ("name", "metric")
    )
    cells = pd.MultiIndex.from_product([metrics, names], names=["metric", "name"])
    blocks = [frame.swaplevel().reindex(cells) for frame in frames]
    values: dict[str, dict[str, Any]] = {metric: {} for metric in metrics}
    for what in ("mean", "std", "low", "high"):
        block = np.reshape([block[what] for block in blocks], (len(frames), len(metrics), len(names)))
        for i, metric in enumerate(metrics):
            values[metric][what] = _finite(block[:, i])
    drawn = [name for name in catalogue.ordered(metrics) if describe(name).in_groups not in ("count", "flag")]
    return {"names": names, "metrics": metrics, "drawn": drawn, "values": values}


def _clients(clients: dict[str, Any], count: int) -> dict[str, Any]:
    """Values per client while they are few; boxes (five numbers) always."""
    boxes = {
        metric: [_box([value for value in of_clients if value is not None]) for of_clients in over_seeds["mean"]]
        for metric, over_seeds in clients["values"].items()
    }
    many = len(clients["names"]) * count * len(clients["metrics"]) > MAX_CLIENT_POINTS
    return {
        "names": [] if many else clients["names"],
        "count": len(clients["names"]),
        "metrics": [name for name in clients["metrics"] if name != "rows"],
        "mean": {} if many else {name: over_seeds["mean"] for name, over_seeds in clients["values"].items()},
        "boxes": boxes,
    }


def _box(values: list[float]) -> list[float] | None:
    return [float(value) for value in np.quantile(values, [0, 0.25, 0.5, 0.75, 1])] if values else None


def _partitions(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Rows per client, group and label, once for all results that share them."""
    shown: dict[str, dict[str, Any]] = {}
    for result in results:
        info = result.info
        count = info.get("num_clients", len(info.get("clients", ())))
        if not count or is_pooled(str(info["method"])):
            continue
        groups, cells = [str(name) for name in info.get("groups", [])], info.get("cells") or None
        if cells and "unknown_cells" in info:
            groups.append("unknown")
            cells = [[*client, unknown] for client, unknown in zip(cells, info["unknown_cells"], strict=True)]
        one = {
            "clients": [str(name) for name in info["clients"]] if cells is not None else [],
            "count": count,
            "groups": groups,
            "classes": [str(name) for name in info.get("classes", [])] or ["rows"],
            "cells": cells,
            "federation": "federation" in info,
            "secure": Secure.of(info) is not None,
            "data": str(info.get("data") or ""),
        }
        entry = shown.setdefault(json.dumps(one), {**one, "methods": []})
        entry["methods"].append(str(result.info["method"]))
    return list(shown.values())


# -- for other programs ------------------------------------------------------------------------------------------------

_ESTIMATE = ("mean", "std", "n", "low", "high", "interval", "noise_floor")
_PAIR = ("lowest", "highest")
_TEST = ("difference", "difference_low", "difference_high", "p", "p_holm")


def records(comparison: Comparison) -> pd.DataFrame:
    """Every number of the last round, one a line: method, scope, metric, mean, std, n, interval, test.

    scope is global, group:NAME, marginal:NAME (all groups with this value of one sensitive column), attribute:NAME (a
    disparity within one sensitive column, or between the intersections of all, and the groups that are lowest and
    highest, where there are more than two groups; its interval, counts, is of rows and seeds) or client:NAME. n
    counts the seeds where the metric is defined. interval says what [low, high] is: counts (of the mean over seeds, by
    rows and seeds: see `metrics.evidence`), t (of the mean over seeds, where counts do not show the metric), wilson (of
    a group's rate, by its rows) or newcombe (of a client's gap, by its rows). noise_floor is what a perfectly fair
    model might show on so many rows. A client's signed_ gap is that of the two groups that are farthest apart over all
    clients, negative where it is the reverse. Differences are to the baseline, tested over the seeds that both have;
    p_holm is corrected for all methods that are compared in this metric. The silos of a real federation have some
    metrics more: their rows, the rounds they missed, replies that were refused, groups that they withhold.
    """
    lines: list[dict[Any, Any]] = []
    tests = {metric: against(comparison.variants, comparison.baseline, metric) for metric in comparison.measured}
    for i, variant in enumerate(comparison.variants):
        for metric in comparison.measured:
            final, test = _final(variant, metric), tests[metric][i]
            line = {"method": variant.label, "scope": "global", "metric": metric, **final}
            line["interval"] = "" if final["low"] is None else "counts" if variant.shows(metric) else "t"
            if test is not None:
                line |= zip(_TEST, (test.difference, test.low, test.high, test.p, test.holm), strict=True)
            lines.append(line)
        for kind in ("group", "marginal", "client"):
            block = _scope_moments(variant, f"{kind}s").reset_index()
            block["interval"] = np.where(block["low"].isna(), "", "wilson")
            lines += block.assign(method=variant.label, scope=f"{kind}:" + block["name"]).to_dict("records")
        lines += _local_records(variant)
        lines += _gap_records(variant, comparison.metrics)
        for silo in variant.silos.members if variant.silos else ():
            for metric, value in silo.numbers().items():
                lines.append(
                    {"method": variant.label, "scope": f"client:{silo.name}", "metric": metric, "mean": value, "n": 1}
                )
    return pd.DataFrame(lines, columns=["method", "scope", "metric", *_ESTIMATE, *_TEST, *_PAIR])


def _gap_records(variant: Variant, metrics: Sequence[str]) -> list[dict[Any, Any]]:
    lines = []
    for metric in (metric for metric in metrics if describe(metric).between):
        for gap in variant.gaps(metric):
            estimate = (gap.mean, np.nan, variant.over_seeds(metric).n, gap.low, gap.high, "counts", np.nan)
            about = {"method": variant.label, "scope": f"attribute:{gap.attribute}", "metric": metric}
            pair = {"lowest": gap.pair.low, "highest": gap.pair.high}
            lines.append({**about, **dict(zip(_ESTIMATE, estimate, strict=True)), **pair})
    return lines


def _local_records(variant: Variant) -> list[dict[Any, Any]]:
    lines = []
    for metric in SIGNED:
        local = Local.of(variant.local_gaps, metric)
        for client in local.clients if local else ():
            estimate = (client.gap, np.nan, client.seeds, client.low, client.high, "newcombe", np.nan)
            about = {"method": variant.label, "scope": f"client:{client.name}", "metric": f"signed_{metric}"}
            lines.append({**about, **dict(zip(_ESTIMATE, estimate, strict=True))})
    return lines
