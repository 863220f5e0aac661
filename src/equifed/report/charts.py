"""The report's charts: each is defined here once, for the page and for figures.

A function takes the page's numbers and gives a Vega-Lite specification with its rows in it. Methods and groups look the
same in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from equifed.charts import partition_chart
from equifed.charts.look import CROSSED, INK, colour, dash, shape
from equifed.charts.spec import (
    Spec,
    around,
    between,
    by,
    chart,
    distinct,
    layer,
    message,
    names_axis,
    number_axis,
    short,
    tooltip,
)
from equifed.metrics.catalogue import describe
from equifed.verdict.wording import number, signed

Data = dict[str, Any]
"""The page's numbers: see `numbers.page_data`."""

STATES = {"degenerate": ("degenerate", CROSSED), "reference": ("pooled", "circle")}
"""What is drawn over a method's point: the fact that it shows, and its symbol."""
MANY = 20
"""Names of a legend, beyond which there is none: hovering tells."""
FEW_BANDS = 4
"""Methods up to which bands are drawn to begin with: more hide each other."""
MARKED = 8
"""Points of a curve that carry its symbol."""
LABELLED = 60
"""Clients up to which each has its name beside its gap."""
POINT = {"type": "point", "strokeWidth": 2, "opacity": 1}
NOTHING = "Nothing is known of this: see the tables."
GOLDEN = 0.6180339887


class Option(NamedTuple):
    value: str
    title: str
    help: str = ""
    heading: str = ""
    first: bool = False


class Control(NamedTuple):
    """A choice of what a chart shows."""

    id: str
    of: str
    """The chart's name."""
    label: str
    options: tuple[Option, ...]

    @property
    def grouped(self) -> list[tuple[str, list[Option]]]:
        """The options by their headings."""
        return [(heading, list(each)) for heading, each in groupby(self.options, lambda option: option.heading)]

    @property
    def help(self) -> str:
        """That of the first choice."""
        return next(
            (option.help for option in self.options if option.first), self.options[0].help if self.options else ""
        )


class Charts(NamedTuple):
    """All charts of a page, and what chooses among them."""

    specs: dict[str, Any]
    """By name, and by choices where there are any."""
    controls: dict[str, tuple[Control, ...]]


def charts_of(data: Data, chosen: str | None = None) -> Charts:
    """Return every chart of the page. chosen: the method that charts of one method begin with."""
    specs: dict[str, Any] = {}
    controls: dict[str, tuple[Control, ...]] = {}

    def add(name: str, draw: Callable[..., Spec], **choices: tuple[str, Sequence[Option]]) -> None:
        specs[name] = _nested(draw, [options for _, options in choices.values()])
        controls[name] = tuple(
            Control(f"{name}-{what}", name, label, tuple(options)) for what, (label, options) in choices.items()
        )

    def metrics(names: Sequence[str], first: str | None, heading: str = "") -> list[Option]:
        facts = data["metrics"]
        return [Option(name, facts[name]["title"], facts[name]["help"], heading, name == first) for name in names]

    labels = [variant["label"] for variant in data["variants"]]
    if data["pareto"] and len(labels) > 1:
        add(
            "pareto",
            lambda metric: pareto(data, metric),
            metric=("Disparity", metrics([*data["pareto"]], data["disparity"])),
        )
    measured, logged = data["rounds"]["metrics"], data["rounds"]["logged"]
    drawn = [name for name in measured if any(is_known(one["mean"].get(name, ())) for one in data["rounds"]["series"])]
    first = _first(drawn, [data["quality"], data["disparity"]])
    curves = metrics(measured, first, "measured" if logged else "") + metrics(logged, first, "logged by the methods")
    add("rounds", lambda metric: rounds(data, metric), metric=("Metric", curves))
    kinds = [Option("groups", "intersections", first=True)]
    if data["marginals"]["names"]:
        kinds.append(Option("marginals", "one column at a time"))
    if data["groups"]["names"]:
        rates = data["groups"]["drawn"]
        counted = [name for name in rates if any(map(is_known, data["groups"]["values"][name]["mean"]))]
        first = _first(counted, ["selection_rate", "accuracy", "rmse"])
        add(
            "groups",
            lambda metric, kind: groups(data, kind, metric),
            metric=("Rate", metrics(rates, first)),
            kind=("of", kinds),
        )
    of_methods = [Option(str(i), label[:80], first=label == chosen) for i, label in enumerate(labels)]
    if data["calibration"]:
        add("calibration", lambda i: calibration(data, int(i)), variant=("Method", of_methods))
    if data["clients"]["count"]:
        names, boxes = data["clients"]["metrics"], data["clients"]["boxes"]
        first = _first([name for name in names if is_known(boxes[name])], [data["quality"]])
        add("clients", lambda metric: clients(data, metric), metric=("Metric", metrics(names, first)))
        if data["local"]:
            gaps = metrics([*data["local"]], data["disparity"])
            add(
                "local",
                lambda metric, i: local(data, metric, int(i)),
                metric=("Gap", gaps),
                variant=("Method", of_methods),
            )
    for i, part in enumerate(data["partitions"]):
        if part["cells"] is not None:
            specs[f"partition-{i}"] = partition(data, part)
    return Charts(specs, controls)


def _nested(draw: Callable[..., Spec], choices: Sequence[Sequence[Option]]) -> Any:
    """Return a chart, or charts by the value of each choice; of one thing there is none to choose."""
    if not choices:
        return draw()
    options, *rest = choices
    parts = {option.value: _nested(partial(draw, option.value), rest) for option in options}
    return parts if len(parts) > 1 else next(iter(parts.values()))


def _first(names: Sequence[str], wanted: Sequence[str | None]) -> str | None:
    return next((name for name in wanted if name in names), next(iter(names), None))


def is_known(values: Sequence[Any] | None) -> bool:
    """Whether there is anything to draw."""
    return any(value is not None for value in values or ())


# -- what they share ---------------------------------------------------------------------------------------------------


class _Signs(NamedTuple):
    """How the methods are shown, the same in all charts."""

    names: list[str]
    colours: list[str]
    shapes: list[str]
    dashes: list[list[int]]
    families: list[int]
    """Each one's method, where several methods have several settings; or its own place."""


def _signs(data: Data) -> _Signs:
    """A colour, a symbol and a dash for each method. With several sweeps in one report the settings of a method share
    colour and symbol, and differ by dash."""
    variants = data["variants"]
    results = list(dict.fromkeys(variant["result"] for variant in variants))
    families = list(range(len(variants)))
    dashes = families
    if _has_families(data):
        families = [results.index(variant["result"]) for variant in variants]
        dashes = [family + families[:i].count(family) for i, family in enumerate(families)]
    names = distinct([variant["label"] for variant in variants])
    return _Signs(names, [*map(colour, families)], [*map(shape, families)], [*map(dash, dashes)], families)


def _has_families(data: Data) -> bool:
    results = {variant["result"] for variant in data["variants"]}
    return 1 < len(results) < len(data["variants"])


def _axis(metric: str, data: Data) -> list[str]:
    """The lines of an axis' title."""
    title, better = data["metrics"][metric]["title"], data["metrics"][metric]["better"]
    return [short(title, 80), f"({better} is better)" if better else ""]


def _about(heading: str, data: Data, across: Sequence[str] | str, upwards: Sequence[str] | str = "") -> str:
    """What a chart shows, in words."""
    count = len(data["variants"])
    axes = [
        f"{way} {' '.join(filter(None, [title] if isinstance(title, str) else title))}"
        for way, title in (("across", across), ("upwards", upwards))
        if title
    ]
    return f"Chart, {heading}: {', '.join(axes)}; {count} {'methods or settings' if count > 1 else 'method'}"


def _spread(mean: float | None, std: float | None) -> str:
    return number(mean) + ("" if std is None else f" ± {number(std)}")


def _within(low: float | None, high: float | None) -> str:
    return "" if low is None else f" [{number(low)}, {number(high)}]"


def _room(rows: Sequence[Data], *fields: str) -> dict[str, Any]:
    return around(row.get(field) for row in rows for field in fields)


# -- the charts --------------------------------------------------------------------------------------------------------


def pareto(data: Data, metric: str) -> Spec:
    """Return the trade-off of the quality against a disparity."""
    signs, variants, quality = _signs(data), data["variants"], data["quality"]
    families = _has_families(data)
    shown = list(dict.fromkeys(signs.families))
    names = distinct([variants[signs.families.index(f)]["method"] for f in shown]) if families else signs.names
    states = [state for state, (of, _) in STATES.items() if any(variant[of] for variant in variants)]
    rows = []
    for i, (variant, beaten) in enumerate(zip(variants, data["pareto"][metric], strict=True)):
        x, y = variant["final"][metric], variant["final"][quality]
        if x["mean"] is None or y["mean"] is None:
            continue
        seeds = len(variant["seeds"])
        lines = [
            short(variant["label"], 60),
            f"{data['metrics'][quality]['title']} {_spread(y['mean'], y['std'])}{_within(y['low'], y['high'])}",
            f"{data['metrics'][metric]['title']} {_spread(x['mean'], x['std'])}{_within(x['low'], x['high'])}",
            f"{seeds} seed{'s' if seeds > 1 else ''}",
            *(f"{short(name)} = {short(value)}" for name, value in variant["hyper"].items()),
            *([f"degenerate in {variant['degenerate']} of {seeds} seeds"] if variant["degenerate"] else []),
            *(["dominated"] if beaten else []),
        ]
        rows.append(
            {
                "name": names[signs.families[i]],
                "x": x["mean"],
                "y": y["mean"],
                **({} if x["low"] is None else {"left": x["low"], "right": x["high"]}),
                **({} if y["low"] is None else {"low": y["low"], "high": y["high"]}),
                "dominated": beaten,
                "front": not (beaten or variant["degenerate"] or variant["pooled"]),
                "states": [state for state, (of, _) in STATES.items() if variant[of]],
                "about": "\n".join(lines),
            }
        )
    if not rows:
        return message(NOTHING)
    firsts = [signs.families.index(family) for family in shown]
    colours = [signs.colours[i] for i in firsts]
    shapes = [signs.shapes[i] for i in firsts] + [STATES[state][1] for state in states]
    keys = [*names, *states]
    legend = 1 < len(keys) <= MANY
    x = number_axis("x", *_axis(metric, data), **_room(rows, "x", "left", "right"))
    y = number_axis("y", *_axis(quality, data), upwards=True, **_room(rows, "y", "low", "high"))
    coloured = by("name", keys, [*colours, *[INK] * len(states)], legend=legend)
    lines_of = {"x": x, "y": y, "order": {"field": "x", "type": "quantitative"}}
    bars = {"x": x, "y": y, "stroke": coloured}
    is_open = {"test": {"field": "dominated", "equal": True}, "value": "transparent"}
    point = {
        "x": x,
        "y": y,
        "stroke": coloured,
        "fill": {
            "condition": is_open,
            **by("name", keys, [*colours, *["transparent"] * len(states)], legend=legend),
        },
        "shape": by("name", keys, shapes, legend=legend),
        "tooltip": tooltip(),
    }
    over = [{"x": row["x"], "y": row["y"], "name": state} for row in rows for state in row["states"]]
    layers = [
        *_floor(data, metric),
        *(
            [{"mark": {"type": "line", "strokeWidth": 1.2}, "encoding": {**lines_of, "stroke": coloured}}]
            if families
            else []
        ),
        {
            "transform": [{"filter": {"field": "front", "equal": True}}],
            "mark": {"type": "line", "style": "soft", "strokeWidth": 1.2, "strokeDash": [2, 3]},
            "encoding": lines_of,
        },
        between({}, True, "left", "right", bars),
        between({}, False, "low", "high", bars),
        {"mark": {**POINT, "size": 110}, "encoding": point},
    ]
    if over:
        layers.append(
            {
                "data": {"values": over},
                "mark": {**POINT, "size": 380, "strokeWidth": 1.5},
                "encoding": {name: point[name] for name in ("x", "y", "stroke", "fill", "shape")},
            }
        )
    return chart(
        _about("Trade-off", data, _axis(metric, data), _axis(quality, data)), layers, 360, data={"values": rows}
    )


def _floor(data: Data, metric: str) -> Iterator[dict[str, Any]]:
    """What a perfectly fair model might show by chance, between the fair value and the floor."""
    end = data["floors"].get(metric)
    if end is None:
        return
    fair = 1.0 if describe(metric).better == "one" else 0.0
    rows = [{"fair": fair, "end": end, "text": f"noise floor {number(end)}"}]
    x = {"field": "end", "type": "quantitative"}
    yield layer("rect", {"style": "shade"}, rows, x=x, x2={"field": "fair"})
    yield layer("rule", {"style": "soft", "strokeWidth": 1.2, "strokeDash": [6, 3, 1, 3]}, rows, x=x)
    side = {"align": "left", "dx": 4} if fair == 0 else {"align": "right", "dx": -4}
    yield layer("text", {"baseline": "top", "dy": 3, **side}, rows, x=x, y={"value": 0}, text={"field": "text"})


def rounds(data: Data, metric: str) -> Spec:
    """Return a metric over rounds, with a band of one standard deviation."""
    signs = _signs(data)
    rows = []
    for name, series in zip(signs.names, data["rounds"]["series"], strict=True):
        mean, std = series["mean"].get(metric), series["std"].get(metric)
        if mean is None:
            continue
        every = -(-len(mean) // MARKED)
        for k, (at, value, deviation) in enumerate(zip(series["round"], mean, std, strict=True)):
            row = {
                "name": name,
                "round": at,
                "mean": value,
                "about": f"{name}\nround {at}: {_spread(value, deviation)}",
            }
            rows.append(
                row | ({} if deviation is None else {"std": deviation}) | ({"marked": True} if k % every == 0 else {})
            )
    if not is_known([row["mean"] for row in rows]):
        return message(NOTHING)
    legend = len(signs.names) > 1
    x = number_axis("round", "round", **_room(rows, "round"))
    last = max(row["round"] for row in rows)
    x["axis"] |= {"values": list(range(0, last + 1, _step(last))), "format": "d", "grid": False}
    spreads = around(
        row["mean"] + sign * row.get("std", 0) for row in rows if row["mean"] is not None for sign in (-1, 1)
    )
    y = number_axis("mean", *_axis(metric, data), upwards=True, **spreads)
    lines = legend and _has_families(data)  # a symbol does not tell settings apart, so the legend shows lines
    coloured = by("name", signs.names, signs.colours, legend=legend, lines=lines)
    dashes = by("name", signs.names, signs.dashes, legend=lines, lines=lines)
    shapes, filled = (
        by("name", signs.names, looks, legend=legend and not lines) for looks in (signs.shapes, signs.colours)
    )
    choice = {"type": "point", "fields": ["name"], "toggle": "true"}
    shown = {"condition": {"param": "seen", "value": 1}, "value": 0.06}
    marks = {"x": x, "y": y, "opacity": shown}
    layers: list[dict[str, Any]] = [
        {
            "transform": [
                {"filter": {"field": "std", "valid": True}},
                {"calculate": "datum.mean - (bands ? datum.std : 0)", "as": "low"},
                {"calculate": "datum.mean + (bands ? datum.std : 0)", "as": "high"},
            ],
            "mark": {"type": "area", "fillOpacity": {"expr": "bands ? 0.15 : 0"}, "stroke": None},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "fill": filled, "opacity": shown},
        },
        {
            "mark": {"type": "line", "strokeWidth": 2},
            "encoding": {**marks, "stroke": coloured, "strokeDash": dashes},
        },
        {
            "transform": [{"filter": {"field": "marked", "equal": True}}],
            "mark": {**POINT, "size": 60},
            "encoding": {**marks, "stroke": coloured, "fill": filled, "shape": shapes},
        },
        {
            "mark": {"type": "point", "size": 120, "opacity": 0},
            "encoding": {"x": x, "y": y, "detail": {"field": "name"}, "tooltip": tooltip()},
        },
    ]
    layers = layers if any("std" in row for row in rows) else layers[1:]
    # a legend listens to the choice of the first layer that has it
    first = next(
        layer for layer in layers if any(each.get("legend") for each in layer["encoding"].values()) or not legend
    )
    first["params"] = [{"name": "seen", "select": choice, **({"bind": "legend"} if legend else {})}]
    bands = {"name": "bands", "value": len(signs.names) <= FEW_BANDS}
    about = _about("Over rounds", data, "round", _axis(metric, data))
    return chart(about, layers, 300, data={"values": rows}, params=[bands])


def _step(last: int) -> int:
    """Return a round number of rounds, of which up to ten fit."""
    return next(step for power in range(12) for step in (10**power, 2 * 10**power, 5 * 10**power) if last <= 10 * step)


def groups(data: Data, kind: str, metric: str) -> Spec:
    """Return a row for each method and a point for each group: how far apart they are is the disparity."""
    signs, these = _signs(data), data[kind]
    values, rows_of = these["values"].get(metric), these["values"].get("count", {}).get("mean")
    if values is None:
        return message(NOTHING)
    shorts = distinct(these["names"])
    names, rows = [], []
    for g, group in enumerate(shorts):
        known = [
            each[g] / v["models"]
            for each, v in zip(rows_of or [], data["variants"], strict=False)
            if each[g] is not None
        ]
        names.append(f"{group} (n = {min(known):,.0f})" if known else group)
    has_intervals = any(map(is_known, values["low"]))
    for i, (method, variant) in enumerate(zip(signs.names, data["variants"], strict=True)):
        for g, name in enumerate(names):
            mean, std, low, high = (values[what][i][g] for what in ("mean", "std", "low", "high"))
            if mean is None:
                continue
            count = rows_of[i][g] if rows_of else None
            about = f"{method}\n{shorts[g]}: {_spread(mean, std)}{_within(low, high)}"
            about += "" if count is None else f"\n{count / variant['models']:,.0f} test rows"
            ends = (low, high) if has_intervals else (None, None) if std is None else (mean - std, mean + std)
            rows.append(
                {"method": method, "group": name, "value": mean, "about": about}
                | ({} if ends[0] is None else {"low": ends[0], "high": ends[1]})
            )
    if not rows:
        return message(NOTHING)
    encoding = {
        "x": number_axis("value", *_axis(metric, data), **_room(rows, "value", "low", "high")),
        "y": names_axis("method", signs.names, paddingInner=0.25, paddingOuter=0.15),
        "yOffset": {"field": "group", "type": "nominal", "scale": {"domain": names}},
        "stroke": by("group", names, [colour(g) for g in range(len(names))]),
    }
    point = {"fill": encoding["stroke"], "shape": by("group", names, [shape(g) for g in range(len(names))])}
    layers = [
        between({"strokeWidth": 1.2}, True, "low", "high", encoding),
        {"mark": {**POINT, "size": 70}, "encoding": {**encoding, **point, "tooltip": tooltip()}},
    ]
    height = max(60, min(1500, (26 + 7 * min(len(names), 12)) * len(signs.names)))
    return chart(_about("Groups", data, _axis(metric, data)), layers, height, data={"values": rows})


def _five(box: Sequence[float]) -> str:
    least, low, middle, high, most = map(number, box)
    return f"clients from {least} to {most}, half of them from {low} to {high}, median {middle}"


def clients(data: Data, metric: str) -> Spec:
    """Return how a metric varies over clients: minimum, quartiles and maximum for each method, and while they are few,
    a point for each client."""
    signs, about = _signs(data), data["clients"]
    boxes = [
        {"method": name, **dict(zip(("min", "low", "middle", "high", "max"), box, strict=True))}
        | {"about": f"{name}\n{_five(box)}"}
        for name, box in zip(signs.names, about["boxes"][metric], strict=True)
        if box is not None
    ]
    points = [
        {"method": name, "value": value, "lift": (k * GOLDEN) % 1, "about": f"client {short(client)}: {number(value)}"}
        for name, of_clients in zip(signs.names, about["mean"].get(metric, []), strict=False)
        for k, (client, value) in enumerate(zip(about["names"], of_clients, strict=True))
        if value is not None
    ]
    if not boxes:
        return message(NOTHING)
    y = names_axis("method", signs.names, paddingInner=0.35, paddingOuter=0.2)
    x = number_axis("middle", *_axis(metric, data), **_room(boxes, "min", "max"))
    coloured = by("method", signs.names, signs.colours, legend=False)
    whisker = between({"strokeWidth": 1.3}, True, "min", "max", {"x": x, "y": y, "stroke": coloured})
    half = {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y, "stroke": coloured, "fill": coloured}
    lift = {"field": "lift", "type": "quantitative", "scale": {"domain": [-0.3, 1.3]}}
    own = {"x": {**x, "field": "value"}, "y": y, "yOffset": lift, "stroke": coloured, "fill": coloured}
    shapes = by("method", signs.names, signs.shapes, legend=False)
    layers = [
        whisker,
        layer("bar", {"fillOpacity": 0.18, "strokeWidth": 1.3}, **half, tooltip=tooltip()),
        layer("tick", {"thickness": 2}, x=x, y=y, color=coloured),
        layer("point", POINT | {"strokeWidth": 1, "size": 30}, points, **own, shape=shapes, tooltip=tooltip()),
    ]
    height = max(70, min(1300, 56 * len(signs.names)))
    return chart(
        _about("Clients", data, _axis(metric, data)),
        layers[: 3 + bool(points)],
        height,
        data={"values": boxes},
        resolve={"scale": {"yOffset": "independent"}},
    )


def calibration(data: Data, i: int) -> Spec:
    """Return a curve for each group; on the diagonal, scores come true as often as they say."""
    groups = data["calibration"][i]["groups"]
    most = max([1.0, *(point["rows"] for group in groups for point in group["curve"])])
    shorts = distinct([group["name"] for group in groups], 28)
    errors = [group["absent"] if group["error"] is None else number(group["error"]) for group in groups]
    names = [
        f"{name} (n = {group['rows']:,.0f}, ECE {error})"
        for name, group, error in zip(shorts, groups, errors, strict=True)
    ]
    rows = [
        {"group": name, **point}
        | {
            "about": f"{of}\nmean score {number(point['score'])}\ncame true {number(point['rate'])}"
            f"{_within(point['low'], point['high'])}\n{point['rows']:,.0f} rows"
        }
        for name, of, group in zip(names, shorts, groups, strict=True)
        for point in group["curve"]
    ]
    if not rows:
        return message(NOTHING)
    x = number_axis("score", "mean score of the bin", domain=[-0.02, 1.02], nice=False)
    y = number_axis("rate", "share that came true", upwards=True, domain=[-0.02, 1.02], nice=False)
    coloured = by("group", names, [colour(g) for g in range(len(names))])
    dashes = by("group", names, [dash(g) for g in range(len(names))], legend=False)
    shapes = by("group", names, [shape(g) for g in range(len(names))])
    diagonal = [{"score": 0, "rate": 0}, {"score": 1, "rate": 1}]
    point = POINT | {"strokeWidth": 1}
    size = {"field": "rows", "type": "quantitative", "scale": {"domain": [0, most], "range": [20, 260]}, "legend": None}
    layers = [
        layer("line", {"style": "soft", "strokeWidth": 1.2, "strokeDash": [6, 4]}, diagonal, x=x, y=y),
        between({}, False, "low", "high", {"x": x, "y": y, "stroke": coloured}),
        layer("line", {"strokeWidth": 1.5}, x=x, y=y, stroke=coloured, strokeDash=dashes),
        layer("point", point, x=x, y=y, size=size, stroke=coloured, fill=coloured, shape=shapes, tooltip=tooltip()),
    ]
    about = _about(
        f"Calibration of {short(data['calibration'][i]['label'])}",
        data,
        "mean score of the bin",
        "share that came true",
    )
    return chart(about, layers, 380, data={"values": rows})


MARKS = {
    "": ("not opposite", 0, "circle", True),
    "opposite by sign": ("opposite by sign", 1, "triangle-left", False),
    "opposite": ("opposite beyond chance", 1, "triangle-left", True),
}
"""A client's gap: words, colour, shape, and whether it is filled."""


def local(data: Data, metric: str, i: int) -> Spec:
    """Return a row for each client, sorted by its gap."""
    found = data["local"][metric][i]
    if not found or not found["listed"]:
        return message(
            "Too many clients to draw; see the table."
            if found
            else "No client of this method has both groups among its disclosed test rows."
        )
    members = found["clients"]
    labelled = len(members) <= LABELLED
    kinds = {mark: n for mark in MARKS if (n := sum(client["mark"] == mark for client in members))}
    names = [f"{MARKS[mark][0]} ({n})" for mark, n in kinds.items()]
    words = dict(zip(kinds, names, strict=True))
    places = distinct([short(client["name"], 30) + (" (few rows)" if client["few"] else "") for client in members], 44)
    if not labelled:
        places = list(map(str, range(len(members))))
    rows = [
        {
            "client": place,
            "gap": client["gap"],
            "low": client["low"],
            "high": client["high"],
            "kind": words[client["mark"]],
            "about": f"client {short(client['name'])}\n"
            f"{signed(client['gap'])} [{signed(client['low'])}, {signed(client['high'])}]"
            f"\n{number(client['rows'])} rows of the smaller group{': few' if client['few'] else ''}",
        }
        for client, place in zip(members, places, strict=True)
    ]
    pair = f"{short(found['pair'][0], 18)} minus {short(found['pair'][1], 18)}" if found["pair"] else ""
    x = number_axis("gap", data["metrics"][metric]["title"], pair)
    y = names_axis("client", places)
    if not labelled:
        y["axis"] |= {"labels": False, "title": "clients, sorted"}
    looks = [MARKS[mark] for mark in kinds]
    coloured = by("kind", names, [colour(at) for _, at, _, _ in looks])
    filled = by("kind", names, [colour(at) if full else "transparent" for _, at, _, full in looks])
    overall = [{"gap": found["overall"], "text": f"all clients {signed(found['overall'])}"}]
    shapes = by("kind", names, [kind for _, _, kind, _ in looks])
    point = POINT | {"size": 90 if labelled else 36}
    layers = [
        layer("rule", {"style": "soft", "strokeWidth": 1.3}, [{"gap": 0}], x=x),
        layer("rule", {"style": "ink", "strokeWidth": 1.3, "strokeDash": [6, 4]}, overall, x=x),
        layer("text", {"baseline": "bottom", "dy": -4}, overall, x=x, y={"value": 0}, text={"field": "text"}),
        between({}, True, "low", "high", {"x": x, "y": y, "stroke": coloured}),
        layer("point", point, x=x, y=y, stroke=coloured, fill=filled, shape=shapes, tooltip=tooltip()),
    ]
    height = max(60, 22 * len(rows)) if labelled else min(900, 4 * len(rows))
    about = _about("Local and global gaps", data, [data["metrics"][metric]["title"], pair])
    return chart(about, layers, height, data={"values": rows})


def partition(data: Data, part: Data) -> Spec:
    """Return who holds which rows."""
    about = _about("Who holds which rows", data, "training rows", "clients")
    clients = part["clients"] or [str(i) for i in range(len(part["cells"]))]  # results of many clients do not name them
    return partition_chart(clients, part["groups"], part["classes"], part["cells"]) | {"description": about}
