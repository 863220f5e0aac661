"""The parts that charts share: names, axes, legends, and the frame around layers."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Spec = dict[str, Any]

NARROW = 500
"""Pixels of a chart, below which names beside an axis are cut more."""
_SHORTER = (
    f"space < {NARROW} && length(datum.label) > 17"
    " ? slice(datum.label, 0, 8) + '…' + slice(datum.label, -8) : datum.label"
)
UPWARDS = 46
"""Letters that fit along an upright axis."""
LETTER = 7
"""Pixels of a letter, about."""
_SIGN = 44
"""Pixels of a legend's symbol and the space around a name."""
_LINE = 35
"""Pixels of a line in a legend."""
_PROPERTIES = frozenset(
    [
        "constructor",
        "hasOwnProperty",
        "isPrototypeOf",
        "propertyIsEnumerable",
        "toLocaleString",
        "toString",
        "valueOf",
        "__proto__",
        "__defineGetter__",
        "__defineSetter__",
        "__lookupGetter__",
        "__lookupSetter__",
    ]
)
"""Names that every object of JavaScript has: Vega takes them for its own. A space without width tells them apart."""
_RIGHT_TO_LEFT = ("R", "AL", "RLE", "RLO", "RLI", "LRO", "FSI")


def short(text: object, most: int = 40) -> str:
    """Return a name in one line without control characters, cut before its end: there settings differ."""
    shown = " ".join("".join(c if c.isprintable() else " " for c in str(text)[:4000]).split())
    if len(shown) > most:
        shown = f"{shown[: most - 9]}…{shown[-8:]}"
    if shown in _PROPERTIES:
        return f"{shown}\u200b"
    if any(unicodedata.bidirectional(c) in _RIGHT_TO_LEFT for c in shown):
        return f"\u2068{shown}\u2069"
    return shown or "–"


def distinct(names: Sequence[object], most: int = 40) -> list[str]:
    """Return the names cut, and numbered where they would be the same."""
    shown: dict[str, None] = {}
    for name in names:
        first = own = short(name, most)
        number = 1
        while own in shown:
            number += 1
            own = f"{first} #{number}"
        shown[own] = None
    return list(shown)


def chart(
    about: str,
    layers: Sequence[Mapping[str, Any]],
    height: float,
    params: Sequence[Mapping[str, Any]] = (),
    **more: Any,
) -> Spec:
    """Return a chart as wide as its place, of the layers that have rows. about: what it shows, for those who cannot see
    it."""
    rows = more.get("data", {}).get("values", ())
    return {
        "description": about,
        "width": 640,
        "height": height,
        "params": [{"name": "space", "value": 640}, *params],
        "autosize": {"type": "fit-x", "contains": "padding"},
        "padding": {"left": 4, "right": 12, "top": 4, "bottom": 4},
        "layer": [layer for layer in layers if _has_rows(layer, rows)],
        **more,
    }


def _has_rows(layer: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the layer's own filter leaves any."""
    for filtered in (each.get("filter") for each in layer.get("transform", ())):
        if isinstance(filtered, Mapping):
            values = [row.get(filtered["field"]) for row in rows]
            if not any(value == filtered["equal"] if "equal" in filtered else value is not None for value in values):
                return False
    return True


def as_wide_as(spec: Spec, width: int) -> Spec:
    """Return the chart in a place of this width; as it is, if its width is its own."""
    if "width" not in spec:
        return spec
    params = [{**each, "value": width} if each["name"] == "space" else each for each in spec["params"]]
    return {**spec, "width": width, "params": params}


def message(text: str) -> Spec:
    """Return a chart that says why there is none."""
    mark = {"type": "text", "fontSize": 13, "limit": {"expr": "space"}}
    return chart(
        text, [{"data": {"values": [{"text": text}]}, "mark": mark, "encoding": {"text": {"field": "text"}}}], 60
    )


def by(
    field: str, names: Sequence[str], values: Sequence[Any], *, legend: bool = True, lines: bool = False
) -> dict[str, Any]:
    """Return the encoding of a name by one of these values. lines: the legend shows lines, not symbols."""
    if not legend:  # scales with equal domains would share the legend of another one
        names, values = [*names, ""], [*values, *values[:1]]
    scale = {"domain": list(names), "range": list(values)}
    return {"field": field, "type": "nominal", "scale": scale, "legend": _legend(names, lines) if legend else None}


def _legend(names: Sequence[str], lines: bool) -> dict[str, Any]:
    sign = _SIGN + lines * _LINE
    longest = sign + LETTER * max(map(len, names), default=0)
    columns = {"expr": f"max(1, floor((space - {_SIGN}) / {longest}))"}
    look = {"symbolType": "stroke", "symbolSize": _LINE**2} if lines else {}
    return {"title": None, "columns": columns, "labelLimit": {"expr": f"space - {_SIGN + sign}"}, **look}


def names_axis(field: str, names: Sequence[str], channel: str = "y", **scale: Any) -> dict[str, Any]:
    """Return the encoding of a row for each name, in this order."""
    axis: dict[str, Any] = {"title": None, "labelExpr": _SHORTER, "labelPadding": 8}
    axis |= {"ticks": False, "domain": False, "grid": False}
    if channel == "y":
        axis["labelLimit"] = {"expr": f"space < {NARROW} ? 130 : 300"}
    return {"field": field, "type": "nominal", "scale": {"domain": list(names), **scale}, "axis": axis}


def number_axis(field: str, *title: str, zero: bool = False, upwards: bool = False, **scale: Any) -> dict[str, Any]:
    """Return the encoding of a number. Each part of the title is a line; upwards it is one, where that is short."""
    lines = [line for line in title if line]
    if upwards and len(whole := " ".join(lines)) <= UPWARDS:
        lines = [whole]
    axis: dict[str, Any] = {"title": lines}
    axis |= {"titlePadding": 8 + 14 * (len(lines) - 1)} if upwards else {"tickCount": {"expr": "ceil(width / 70)"}}
    return {"field": field, "type": "quantitative", "scale": {"zero": zero, **scale}, "axis": axis}


def around(values: Iterable[float | None]) -> dict[str, Any]:
    """Return room for an axis' scale where all values are one: without it, its labels would be of other numbers."""
    known = {value for value in values if value is not None}
    if len(known) != 1:
        return {}
    (value,) = known
    room = 0.1 * abs(value) or 1.0
    return {"domain": [value - room, value + room]}


def tooltip() -> dict[str, Any]:
    """Return the encoding of a tooltip: a text of its own for each row."""
    return {"field": "about", "type": "nominal"}


def layer(
    kind: str, look: Mapping[str, Any], rows: Sequence[Any] | None = None, /, **encoding: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a layer of marks of this kind; of rows of its own, where they are given."""
    data = {} if rows is None else {"data": {"values": rows}}
    return {**data, "mark": {"type": kind, **look}, "encoding": encoding}


def between(mark: Mapping[str, Any], across: bool, low: str, high: str, encoding: Mapping[str, Any]) -> dict[str, Any]:
    """Return the layer of the intervals from low to high, where they are known."""
    one, two = ("x", "x2") if across else ("y", "y2")
    return {
        "transform": [{"filter": {"field": low, "valid": True}}],
        "mark": {"type": "rule", **mark},
        "encoding": {**encoding, one: {**encoding[one], "field": low}, two: {"field": high}},
    }
