"""One HTML page that needs nothing else: the numbers as JSON, the charts drawn from it, the tables as text."""

from __future__ import annotations

import base64
import gzip
import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from equifed.report import words
from equifed.report.table import (
    Arm,
    arms,
    check_results,
    chosen_disparity,
    main_metrics,
    measured_metrics,
    moments,
    summary_of,
)
from equifed.report.verdict import ENOUGH_SEEDS, SMALL_GROUP, interval, ranked, told_apart, verdict_of

if TYPE_CHECKING:
    from equifed.simulator.result import Result

MOST_POINTS = 120_000
"""Numbers embedded for the curves over rounds; beyond it rounds are thinned, so that the page stays small."""
MOST_CLIENT_POINTS = 20_000
"""Clients drawn one by one, over all arms and metrics; beyond it only the boxes are."""
WORST_CLIENTS = 5
"""Clients named per arm."""


def write_report(
    results: Sequence[Result], path: str | Path, *, title: str | None = None, disparity: str | None = None
) -> Path:
    """Write the report on one result, several methods or a sweep: one HTML file that loads nothing from elsewhere.

    disparity: the metric that the verdict is about; by default the first main one that was measured.
    """
    path = Path(path)
    text = render(results, title=title, disparity=disparity)
    path.parent.mkdir(parents=True, exist_ok=True)
    # beside the target, then renamed over it: nobody ever sees half a page
    temporary = path.with_name(f".{path.name[:60]}.{os.getpid()}.part")
    try:
        temporary.write_bytes(text.encode("utf-8", "replace"))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def render(results: Sequence[Result], *, title: str | None = None, disparity: str | None = None) -> str:
    """The page's text."""
    task = check_results(results)
    found = arms(results)
    disparity = chosen_disparity(found, task, disparity)
    data = page_data(found, results, task, disparity)
    templates = Environment(
        loader=PackageLoader("equifed.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template("page.html.j2").render(
        title=title or _title(results),
        heading=words.heading,
        verdict=verdict_of(found, results, task, disparity),
        data=data,
        seeds=found[0].seeds if len({arm.seeds for arm in found}) == 1 else None,
        number=words.number,
        group_table=_group_table(data),
        worst_clients=_worst_clients(found, data),
        messages=[_messages(result) for result in results],
        settings=_settings(results),
        configs=_configs(results),
        versions=_versions(results),
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        small_group=SMALL_GROUP,
        enough_seeds=ENOUGH_SEEDS,
        json=embedded(data),
        style=_asset("page.css"),
        script=_asset("page.js"),
        plotly=_plotly(),
    )


def embedded(data: Any) -> Markup:
    """JSON that cannot end its script element: every <, > and & is written as an escape."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


@cache
def _asset(name: str) -> Markup:
    return Markup(resources.files("equifed.report").joinpath(name).read_text(encoding="utf-8"))


@cache
def _plotly() -> Markup:
    """plotly.js, compressed: it is most of the page, and the browser unpacks it in a blink."""
    from plotly.offline import get_plotlyjs

    packed = gzip.compress(get_plotlyjs().encode(), compresslevel=9, mtime=0)
    return Markup(base64.b64encode(packed).decode())


def _title(results: Sequence[Result]) -> str:
    methods = list(dict.fromkeys(str(result.info["method"]) for result in results))
    data = list(dict.fromkeys(str(result.info["data"]) for result in results if result.info.get("data")))
    return words.listing(methods) + (f" on {words.listing(data)}" if data else "")


# -- the embedded data -------------------------------------------------------------------------------------------------


def page_data(found: list[Arm], results: Sequence[Result], task: str, disparity: str | None) -> dict[str, Any]:
    """All numbers of the page. nan is null; the values of the last round are exact, the curves have six digits."""
    names = measured_metrics(found)
    quality = "rmse" if task == "regression" else "accuracy"
    groups, clients = _scopes(found, "groups"), _scopes(found, "clients")
    shown = [*names, *groups["metrics"], *clients["metrics"], "kib_up", "kib_down", "seconds"]
    return {
        "task": task,
        "quality": quality,
        "disparity": disparity,
        "metrics": {
            name: {
                "title": words.title(name),
                "help": words.HELP.get(name, ""),
                "better": words.better(name, task),
            }
            for name in dict.fromkeys(shown)
        },
        "arms": [_arm(arm, results[arm.result], names) for arm in found],
        "table": _table(found, results, task, disparity),
        "pareto": {name: dominated(found, quality, name, task) for name in names if words.is_disparity(name)},
        "rounds": _curves(found, names),
        "groups": groups,
        "clients": _clients(clients, len(found)),
        "partitions": _partitions(results),
    }


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _arm(arm: Arm, result: Result, names: list[str]) -> dict[str, Any]:
    final = {}
    for name in names:
        mean, std, n = moments(arm.values(name))
        final[name] = {
            "mean": _finite(mean),
            "std": _finite(std),
            "n": n,
            "values": [_finite(value) for value in arm.values(name)],
        }
    return {
        "label": arm.label,
        "method": str(result.info["method"]),
        "hyper": {str(name): str(value) for name, value in arm.hyper.items()},
        "seeds": [str(seed) for seed in arm.final.index],
        "last": arm.last,
        "degenerate": int(arm.degenerate.sum()),
        "final": final,
    }


def _table(found: list[Arm], results: Sequence[Result], task: str, disparity: str | None) -> dict[str, Any]:
    metrics = main_metrics(found, task, disparity)
    frame = summary_of(found, results, metrics)
    columns = [*metrics, "kib_up", "kib_down", "seconds"]
    marks = {name: _marks(found, name, task) for name in metrics}
    rows = []
    for i, arm in enumerate(found):
        cells: list[dict[str, Any]] = []
        for name in columns:
            each = {what: frame[name, what].iloc[i] for what in frame[name].columns}
            cells.append(
                {
                    "mean": _finite(each["mean"]),
                    "std": _finite(each.get("std", math.nan)),
                    "n": int(each.get("n", arm.seeds)),
                    "mark": marks[name][i] if name in marks else "",
                }
            )
        rows.append(cells)
    return {"columns": columns, "rows": rows}


def _marks(found: list[Arm], metric: str, task: str) -> list[str]:
    """For each arm: "best" mean, "near" when the paired interval cannot tell it from the best, or nothing."""
    order = ranked(found, metric, task)
    if len(order) < 2 or not words.better(metric, task):
        return [""] * len(found)
    best = order[0]
    lowest = words.badness(metric, moments(best.values(metric))[0], task)
    marks = []
    for arm in found:
        if arm not in order:
            marks.append("")
        elif words.badness(metric, moments(arm.values(metric))[0], task) == lowest:
            marks.append("best")
        else:
            unclear = interval(best, arm, metric) is not None and not told_apart(best, arm, metric)
            marks.append("near" if unclear else "")
    return [""] * len(found) if marks.count("best") == len(found) else marks


def dominated(found: list[Arm], quality: str, disparity: str, task: str) -> list[bool]:
    """Whether another arm is at least as good in both means and better in one; degenerate ones beat nobody."""
    bad = np.array(
        [[words.badness(name, moments(arm.values(name))[0], task) for name in (quality, disparity)] for arm in found]
    )
    usable = np.array([not arm.degenerate.any() for arm in found])
    better = (bad[None] <= bad[:, None]).all(-1) & (bad[None] < bad[:, None]).any(-1) & usable[None]
    return list(np.asarray(better.any(1)).tolist())


def _curves(found: list[Arm], names: list[str]) -> dict[str, Any]:
    """Mean and sample std over seeds of every metric in every round (or every k-th, and the last)."""
    total = sum(arm.rounds["round"].nunique() for arm in found) * len(names) * 2
    every = max(1, math.ceil(total / MOST_POINTS))
    series = []
    for arm in found:
        numbers = np.sort(arm.rounds["round"].unique())
        kept = numbers[np.unique(np.append(np.arange(0, len(numbers), every), len(numbers) - 1))]
        rows = arm.rounds[arm.rounds["round"].isin(kept)]
        moments_by_round = rows.groupby(["metric", "round"], observed=True)["value"].agg(["mean", "std"])
        one: dict[str, Any] = {"round": [int(number) for number in kept], "mean": {}, "std": {}}
        present = set(moments_by_round.index.get_level_values(0))
        for name in names:
            if name in present:
                block = moments_by_round.loc[name].reindex(kept)
                one["mean"][name] = [_short(value) for value in block["mean"]]
                one["std"][name] = [_short(value) for value in block["std"]]
        series.append(one)
    drawn = [name for name in names if any(name in each["mean"] for each in series)]
    return {"metrics": drawn, "series": series, "every": every}


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _scopes(found: list[Arm], kind: str) -> dict[str, Any]:
    """Mean and std over seeds per metric: [arm][name], for groups or clients; None where there is no value."""
    frames: list[pd.DataFrame] = [getattr(arm, kind) for arm in found]
    names = list(dict.fromkeys(str(name) for frame in frames for name in frame["name"].unique()))
    metrics = list(dict.fromkeys(str(name) for frame in frames for name in frame["metric"].unique()))
    values: dict[str, dict[str, list[list[float | None]]]] = {name: {"mean": [], "std": []} for name in metrics}
    for frame in frames:
        block = frame.groupby(["metric", "name"], observed=True, sort=False)["value"].agg(["mean", "std"])
        present = set(block.index.get_level_values(0))
        for metric in metrics:
            rows = block.loc[metric] if metric in present else pd.DataFrame({"mean": [], "std": []})
            rows = rows.reindex(names)
            for what in ("mean", "std"):
                values[metric][what].append([_finite(value) for value in rows[what]])
    return {"names": names, "metrics": metrics, "values": values}


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
        if not info.get("clients"):
            continue
        one = {
            "clients": [str(name) for name in info["clients"]] if info.get("cells") is not None else [],
            "count": len(info["clients"]),
            "groups": [str(name) for name in info.get("groups", [])],
            "classes": [str(name) for name in info.get("classes", [])] or ["rows"],
            "cells": info.get("cells"),
            "data": str(info.get("data") or ""),
        }
        entry = shown.setdefault(json.dumps(one), {**one, "methods": []})
        entry["methods"].append(str(result.info["method"]))
    return list(shown.values())


# -- tables that are written as text -----------------------------------------------------------------------------------

_GROUP_COLUMNS = (
    "count",
    "positives",
    "accuracy",
    "selection_rate",
    "true_positive_rate",
    "false_positive_rate",
    "f1",
    "rmse",
    "mean_prediction",
)


def _group_table(data: dict[str, Any]) -> dict[str, Any]:
    groups = data["groups"]
    columns = [name for name in _GROUP_COLUMNS if name in groups["metrics"]]
    rows = []
    for i, arm in enumerate(data["arms"]):
        for g, name in enumerate(groups["names"]):
            both = [groups["values"][column] for column in columns]
            cells = [(each["mean"][i][g], each["std"][i][g]) for each in both]
            if all(mean is None for mean, _ in cells):
                continue  # a group of other data
            count = groups["values"]["count"]["mean"][i][g] if "count" in columns else None
            flag = groups["values"].get("degenerate", {"mean": [[0] * len(groups["names"])] * len(data["arms"])})
            rows.append(
                {
                    "arm": arm["label"],
                    "group": name,
                    "cells": cells,
                    "small": count is not None and count < SMALL_GROUP,
                    "degenerate": bool(flag["mean"][i][g]),
                }
            )
    return {"columns": columns, "rows": rows}


def _worst_clients(found: list[Arm], data: dict[str, Any]) -> list[dict[str, Any]]:
    """The clients served worst, by their mean over seeds, with how many test rows that rests on."""
    named = []
    for arm in found:
        frame = arm.clients
        values = frame[frame["metric"] == data["quality"]].groupby("name", sort=False)["value"].mean().dropna()
        rows = frame[frame["metric"] == "rows"].groupby("name", sort=False)["value"].mean()
        worst = values.sort_values(ascending=data["quality"] != "rmse").head(WORST_CLIENTS)
        clients = [
            {"name": str(name), "value": float(value), "rows": float(rows.get(name, math.nan))}
            for name, value in worst.items()
        ]
        if clients:
            named.append({"arm": arm.label, "clients": clients})
    return named


_STAGES = {"setup": "once, before round 1", "round": "every round", "final": "once, after the last round"}
_GATHER = {"sum": "only sums needed", "stack": "each client's reply is seen"}


def _messages(result: Result) -> dict[str, Any]:
    phases = [
        {
            "stage": _STAGES.get(row["stage"], row["stage"]),
            "phase": row["phase"],
            "down": row["down"] or "nothing",
            "up": row["up"] or "nothing",
            "gather": _GATHER.get(row["gather"], row["gather"]) if row["up"] else "nothing leaves the client",
            "kib_down": row["bytes_down"] / 1024,
            "kib_up": row["bytes_up"] / 1024,
        }
        for row in result.messages.to_dict("records")
    ]
    return {"method": str(result.info["method"]), "phases": phases}


_ELSEWHERE = ("method", "clients", "groups", "classes", "cells", "swept", "config", "command", "versions")
_TOGETHER = ("hyper_parameters", "local", "provenance", "rows")


def _settings(results: Sequence[Result]) -> dict[str, Any]:
    """(name, values): one value where all results agree, else one per result."""
    flat = [_flat(result) for result in results]
    names = list(dict.fromkeys(name for each in flat for name in each))
    rows = []
    for name in names:
        values = [each.get(name, "") for each in flat]
        rows.append((name, values[:1] if len(set(values)) == 1 else values))
    return {"methods": [str(result.info["method"]) for result in results], "rows": rows}


def _flat(result: Result) -> dict[str, str]:
    info = result.info
    flat = {
        "clients": f"{len(info.get('clients', [])):,}",
        "groups": ", ".join(map(str, info.get("groups", []))),
        "classes": ", ".join(map(str, info.get("classes", []))),
    }
    for key, value in info.items():
        if key in _ELSEWHERE:
            continue
        if key in _TOGETHER and isinstance(value, Mapping):
            for name, inner in value.items():
                flat[f"{key}: {name}".replace("_", " ")] = _text(inner)
        else:
            flat[key.replace("_", " ")] = _text(value)
    for name in result.swept:
        flat[f"hyper parameters: {name}".replace("_", " ")] = "swept"
    for key, value in result.timings.items():
        flat[key.replace("_", " ")] = f"{value:.4g}" if isinstance(value, float) else _text(value)
    return {key: value for key, value in flat.items() if value != ""}


def _text(value: Any) -> str:
    if isinstance(value, Mapping | list):
        return json.dumps(value, default=str, ensure_ascii=False, indent=1 if isinstance(value, Mapping) else None)
    return "" if value is None else str(value)


def _configs(results: Sequence[Result]) -> list[dict[str, str]]:
    """The resolved config and the command that made a result, where it knows them."""
    known = []
    for result in results:
        config, command = _text(result.info.get("config")), _text(result.info.get("command"))
        if config and not command:
            command = "equifed run config.toml   # with the configuration below saved as config.toml"
        if command:
            known.append({"method": str(result.info["method"]), "command": command, "config": config})
    return known


def _versions(results: Sequence[Result]) -> dict[str, str]:
    """Recorded versions of the runs, or else those that are writing the report."""
    for result in results:
        if result.info.get("versions"):
            return {str(name): str(version) for name, version in result.info["versions"].items()}
    own = {name: metadata.version(name) for name in ("equifed", "torch", "numpy", "plotly")}
    return {**own, "python": platform.python_version()}
