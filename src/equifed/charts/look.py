"""How charts look, wherever they are drawn: in a page, in a notebook, in a file.

Every method and group has a colour, a symbol and a dash, and every cell of a partition a fill, so that charts can be
read without colours. The colours have a contrast of 3 or more to white paper and to the page's dark background,
so that one list serves light, dark and print. The lists have different lengths: what shares a colour differs in symbol
and dash.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

COLOURS = ("#2f7bd9", "#c96a00", "#1a9060", "#d04a44", "#8f62d0", "#1593a5", "#c850a0", "#8a7a1c", "#a0694c", "#6f7b8c")
STAR = "M0-1L.26-.36L.95-.31L.42.14L.59.81L0 .44L-.59.81L-.42.14L-.95-.31L-.26-.36Z"
PENTAGON = "M0-1L.95-.31L.59.81L-.59.81L-.95-.31Z"
CROSSED = "M-1-1L1 1M-1 1L1-1"
SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down", STAR, PENTAGON, "triangle-left")
DASHES = ((1, 0), (7, 3), (2, 3), (8, 3, 2, 3), (12, 3), (12, 3, 2, 3, 2, 3), (4, 4), (16, 3, 6, 3))
"""Lengths drawn and omitted in turn."""
STRIPES = (
    (),
    ((0.35, 0.65),),
    ((0.2, 0.4), (0.6, 0.8)),
    ((0.15, 0.85),),
    ((0.0, 0.5),),
    ((0.5, 1.0),),
    ((0.12, 0.28), (0.42, 0.58), (0.72, 0.88)),
    ((0.0, 0.25), (0.75, 1.0)),
)
"""Light stripes along a bar, as shares of its thickness."""
INK = "currentColor"
"""The colour of the text around a chart in a page; black in a file."""
PAPER = {"--ink": "#000000", "--soft": "#444444", "--line": "#cccccc", "--bad": "#9b2226", "--flag": "#8a3b00"}
"""The colours by role in a file and in print. On a screen they are those of the page's style sheet."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def shape(i: int) -> str:
    return SHAPES[i % len(SHAPES)]


def dash(i: int) -> list[int]:
    return list(DASHES[i % len(DASHES)])


def fill(of: int, stripes: int, upright: bool = False) -> Any:
    """Return colour number `of`, with light stripes along a bar; an upright bar has them upwards."""
    strong = colour(of)
    light = STRIPES[stripes % len(STRIPES)]
    if not light:
        return strong
    stops: list[dict[str, Any]] = []
    ends = [0.0, *(end for stripe in light for end in stripe), 1.0]
    for i, (start, end) in enumerate(pairwise(ends)):
        if start < end:
            stops += [{"offset": at, "color": _tint(strong) if i % 2 else strong} for at in (start, end)]
    gradient = {"gradient": "linear", "x1": 0, "y1": 0, "x2": int(upright), "y2": int(not upright), "stops": stops}
    return {"expr": json.dumps(gradient)}  # a scale takes no other objects


def _tint(strong: str) -> str:
    parts = [int(strong[k : k + 2], 16) for k in (1, 3, 5)]
    return "#" + "".join(f"{round(255 - 0.18 * (255 - part)):02x}" for part in parts)


def config() -> dict[str, Any]:
    """Return Vega-Lite's configuration, with roles in place of colours: see `PAPER`."""
    ink, soft, line, bad = "--ink", "--soft", "--line", "--bad"
    return {
        "background": "transparent",
        "font": FONT,
        "aria": False,  # a chart is described as a whole, not point by point
        "view": {"stroke": None},
        "axis": {
            "labelColor": ink,
            "titleColor": ink,
            "gridColor": line,
            "domainColor": line,
            "tickColor": line,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "labelFlush": False,
            "labelLimit": 300,
            "titlePadding": 8,
        },
        "legend": {
            "orient": "top",
            "direction": "horizontal",
            "labelColor": ink,
            "labelFontSize": 12,
            "labelLimit": 360,
            "columnPadding": 18,
            "rowPadding": 4,
            "symbolSize": 90,
            "symbolStrokeWidth": 2,
        },
        "title": {"color": ink},
        "text": {"color": ink, "fontSize": 11},
        "style": {
            "soft": {"color": soft},
            "ink": {"color": ink},
            "bad": {"color": bad},
            "alarm": {"color": bad, "fontWeight": "bold"},
            "unknown": {"color": "--flag", "fontWeight": "bold"},
            "shade": {"color": soft, "fillOpacity": 0.15},
        },
    }


def on_paper() -> dict[str, Any]:
    """Return the configuration in the colours of a file."""
    return dict(_coloured(config()))


def _coloured(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _coloured(each) for name, each in value.items()}
    return PAPER.get(value, value) if isinstance(value, str) else value
