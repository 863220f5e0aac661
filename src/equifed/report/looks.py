"""How methods and groups are drawn, in the page and in figures: each has a colour, a symbol and a dash of its own.

Nobody needs the colours to tell them apart. These have a contrast of 3 or more to white paper and to the page's dark
background alike, so that one list serves light, dark and print. The lists have different lengths: what shares a colour
differs in symbol and dash.
"""

from __future__ import annotations

from typing import Any

COLOURS = ("#2f7bd9", "#c96a00", "#1a9060", "#d04a44", "#8f62d0", "#1593a5", "#c850a0", "#8a7a1c", "#a0694c", "#6f7b8c")
SYMBOLS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "cross": "P",
    "triangle-down": "v",
    "star": "*",
    "pentagon": "p",
    "triangle-left": "<",
}
"""plotly's name: matplotlib's."""
DASHES = ((), (7, 3), (2, 3), (8, 3, 2, 3), (12, 3), (12, 3, 2, 3, 2, 3), (4, 4), (16, 3, 6, 3))
"""Lengths drawn and left out in turn; none is a whole line."""
PATTERNS = {"": "", "/": "///", ".": "...", "x": "xxx", "-": "---", "\\": "\\\\\\", "|": "|||", "+": "+++"}
"""What fills an area. plotly's name: matplotlib's."""


def colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def marker(i: int) -> str:
    """matplotlib's."""
    return [*SYMBOLS.values()][i % len(SYMBOLS)]


def dash(i: int) -> Any:
    """matplotlib's; in line widths, so shorter than in pixels."""
    lengths = DASHES[i % len(DASHES)]
    return (0, [length / 2 for length in lengths]) if lengths else "-"


def hatch(i: int) -> str:
    """matplotlib's."""
    return [*PATTERNS.values()][i % len(PATTERNS)]


def for_page() -> dict[str, list[str]]:
    """The same lists as the page's script takes them."""
    dashes = [",".join(f"{length}px" for length in lengths) or "solid" for lengths in DASHES]
    return {"colours": [*COLOURS], "symbols": [*SYMBOLS], "dashes": dashes, "patterns": [*PATTERNS]}
