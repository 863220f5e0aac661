"""The monitor's charts: gaps over time, and the sums that sound an alarm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from equifed.charts.look import colour, dash, shape
from equifed.charts.spec import Spec, between, by, chart, distinct, layer, names_axis, number_axis, tooltip
from equifed.monitor.watch import Watch
from equifed.verdict.wording import number, signed

HEIGHT = 240
POINT = {"type": "point", "size": 70, "strokeWidth": 1}


def gaps_chart(watch: Watch, metric: str, title: str) -> Spec:
    """Return a gap over time, with its intervals; a question mark where it is not known."""
    gaps, periods = watch.gaps[metric], watch.history.periods
    sign = list(watch.gaps).index(metric)
    rows: list[dict[str, Any]] = []
    for period, gap in zip(periods, gaps, strict=True):
        if gap.unknown:
            rows.append({"period": period, "unknown": "?", "about": f"{period}: {gap.unknown}"})
            continue
        about = f"{period}: {number(gap.value)} [{number(gap.low)}, {number(gap.high)}]"
        rows.append({"period": period, "value": gap.value, "low": gap.low, "high": gap.high, "about": about})
    top = max([gap.high for gap in gaps if not gap.unknown], default=0.1)
    x, y = _across(periods), number_axis("value", title, upwards=True, domain=[0, max(1.12 * top, 0.02)], nice=False)
    looks = {"stroke": {"value": colour(sign)}, "fill": {"value": colour(sign)}}
    line = {"strokeWidth": 2, "strokeDash": dash(sign), "invalid": "break-paths-show-path-domains"}
    layers = [
        *_past(watch, x),
        layer("line", line, x=x, y=y, stroke=looks["stroke"]),
        between({"strokeWidth": 2, "opacity": 0.55}, False, "low", "high", {"x": x, "y": y, "stroke": looks["stroke"]}),
        {
            "mark": {**POINT, "shape": shape(sign), "opacity": 1},
            "encoding": {"x": x, "y": y, **looks, "tooltip": tooltip()},
        },
        {
            "transform": [{"filter": "isValid(datum.unknown)"}],
            "mark": {"type": "text", "style": "unknown", "fontSize": 15, "baseline": "bottom", "dy": -4},
            "encoding": {"x": x, "y": {"value": HEIGHT}, "text": {"field": "unknown"}, "tooltip": tooltip()},
        },
        *_alarms(watch, x, {each.change.noticed for each in watch.alarms if each.change and each.metric == metric}),
    ]
    about = f"{title} by {watch.history.kind}; the table below has the numbers"
    return chart(about, layers, HEIGHT, data={"values": rows})


def sums_chart(watch: Watch) -> Spec:
    """Return both sums of every gap that is watched, that downwards below 0, and the limits."""
    periods, limit = watch.history.periods, watch.limit
    names = distinct([series.title for series in watch.series], 80)
    rows: list[dict[str, Any]] = []
    for name, series in zip(names, watch.series, strict=True):
        for side, sums in (("up", series.path.up), ("down", -series.path.down)):
            for period, value in zip(periods, map(float, sums), strict=True):
                known = {} if np.isnan(value) else {"value": value, "about": f"{period}: {name}: {signed(value)}"}
                rows.append({"period": period, "name": name, "side": f"{name} {side}", **known})
    reach = 1.12 * max([limit, *(abs(row["value"]) for row in rows if "value" in row)])
    x, y = _across(periods), number_axis("value", "summed deviations", upwards=True, domain=[-reach, reach], nice=False)
    signs = range(len(names))
    coloured = by("name", names, [colour(i) for i in signs])
    dashes = by("name", names, [dash(i) for i in signs], legend=False)
    limits = [
        {"value": each, "text": f"alarm {'above' if each > 0 else 'below'} {signed(each)}", "above": each > 0}
        for each in (limit, -limit)
    ]
    words = {"type": "text", "align": "right", "dx": -4}
    layers = [
        *_past(watch, x),
        layer("rule", {"style": "soft"}, [{"value": 0}], y=y),
        layer("rule", {"style": "bad", "strokeDash": [6, 4], "strokeWidth": 1.5}, limits, y=y),
        *(
            {
                "data": {"values": [each]},
                "mark": {**words, "baseline": "bottom" if each["above"] else "top", "dy": -4 if each["above"] else 4},
                "encoding": {"x": {"value": {"expr": "width"}}, "y": y, "text": {"field": "text"}},
            }
            for each in limits
        ),
        {
            "mark": {"type": "line", "strokeWidth": 2, "invalid": "break-paths-show-path-domains"},
            "encoding": {"x": x, "y": y, "detail": {"field": "side"}, "stroke": coloured, "strokeDash": dashes},
        },
        {
            "transform": [{"filter": "isValid(datum.value) && datum.value != 0"}],
            "mark": {**POINT, "opacity": 1},
            "encoding": {
                "x": x,
                "y": y,
                "stroke": coloured,
                "fill": coloured,
                "shape": by("name", names, [shape(i) for i in signs]),
                "tooltip": tooltip(),
            },
        },
        *_alarms(watch, x, {each.change.noticed for each in watch.alarms if each.change}),
    ]
    about = "Summed deviations by period, and the limits at which an alarm sounds"
    return chart(about, layers, HEIGHT + 40, data={"values": rows})


def _across(periods: Sequence[str]) -> dict[str, Any]:
    x = names_axis("period", periods, "x", type="band", padding=0)
    x["axis"] |= {"labelAngle": 0, "labelOverlap": "greedy", "labelSeparation": 8}
    return x


def _past(watch: Watch, x: dict[str, Any]) -> list[dict[str, Any]]:
    """The shade over the periods that are not watched, but compared with."""
    past = [{"period": period} for period in watch.history.periods[: watch.first]]
    if not past:
        return []
    return [
        layer("rect", {"style": "shade"}, past, x=x),
        layer(
            "text",
            {"align": "left", "baseline": "top", "dy": 4},
            [{**past[0], "text": "reference"}],
            x={**x, "bandPosition": 0.1},
            y={"value": 0},
            text={"field": "text"},
        ),
    ]


def _alarms(watch: Watch, x: dict[str, Any], noticed: Iterable[int]) -> list[dict[str, Any]]:
    """A line at each period in which a change was noticed, with a word above it."""
    layers = []
    for t in sorted(noticed):
        rows = [{"period": watch.history.periods[t], "text": "▲ alarm"}]
        left = t > len(watch.history.periods) / 2
        text = {"style": "alarm", "baseline": "bottom", "align": "right" if left else "left", "dy": -3}
        layers += [
            layer("rule", {"style": "bad", "strokeDash": [2, 3], "strokeWidth": 1.5}, rows, x=x),
            layer("text", text, rows, x=x, y={"value": 0}, text={"field": "text"}),
        ]
    return layers
