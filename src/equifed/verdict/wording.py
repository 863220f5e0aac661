"""How numbers, sizes, names and lists are written in sentences and tables."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any


def listed(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def a(name: str) -> str:
    """The name with its article."""
    return f"{'an' if name[:1].lower() in 'aeio' or name[:4] == 'RMSE' else 'a'} {name}"


def number(value: float | None) -> str:
    """Three decimals, or two digits where those say nothing; "undefined" for nan. What only rounding left over is 0."""
    if value is None or math.isnan(value):
        return "undefined"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if abs(value) < 1e-12 or 0.001 <= abs(value) < 1000:
        return f"{value:.3f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2g}"


def rows(count: float, few: float) -> str:
    """Return "12 rows", and that these are few where they are fewer than `few`."""
    shown = f"{count:,.0f}"
    return f"{shown} row{'s' * (shown != '1')}{', few' * (count < few)}"


def spread(mean: float, std: float, n: int, seeds: int) -> str:
    """`mean ± std`, and over how many seeds where the metric was undefined in some of them."""
    if math.isnan(mean):
        return "undefined"
    text = number(mean) if math.isnan(std) else f"{number(mean)} ± {number(std)}"
    return text if n == seeds else f"{text} ({n} of {seeds} seeds)"


def plain(name: str, longest: int = 80) -> str:
    """A user's name fit for a sentence: one line, cut when very long, kept from turning the text's direction."""
    name = " ".join(name.split())
    if len(name) > longest:
        name = name[: longest - 1] + "…"
    if any(unicodedata.bidirectional(c) in ("R", "AL", "RLE", "RLO", "RLI", "LRO", "FSI") for c in name):
        return f"\u2068{name}\u2069"
    return name


def listing(names: list[str], most: int = 5, longest: int = 80) -> str:
    """`a, b and c`, or the first few and how many more."""
    shown = [plain(name, longest) for name in names]
    if len(shown) > most:
        shown = [*shown[: most - 1], f"{len(names) - most + 1} more"]
    return listed(shown)


def group(name: str) -> str:
    """A group's name in a sentence: by itself where it is a word, otherwise with its noun."""
    shown = plain(name)
    return shown if len(name) > 1 and name[0].isalpha() else f"group {shown}"


def outcome(info: Mapping[str, Any]) -> str:
    """What is predicted, from what a result knows: the positive class and its meaning, or what the number is; "" where
    nothing is known of it."""
    meaning = plain(str(info.get("meaning") or ""), 200)
    if info.get("positive") is not None and info.get("task") != "regression":
        return f"Positive: '{plain(str(info['positive']))}'{', ' if meaning else ''}{meaning}."
    return f"Predicted: {meaning}." if meaning else ""


def signed(value: float) -> str:
    """A difference, with its sign; small ones, which are common, with a fourth decimal."""
    text = f"{value:.4f}" if 0.00005 <= abs(value) < 0.001 else number(value)
    return f"+{text}" if value > 0 else text.replace("-", "−")


def percent(share: float) -> str:
    """A share in points or percent, one decimal; never -0.0."""
    text = f"{100 * share:.1f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


def p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def size(number: float) -> str:
    """A number of bytes in the decimal unit that suits it: 950 B, 1.2 kB, 3.4 MB."""
    if number < 1000:
        return f"{number:.0f} B"
    for unit in ("kB", "MB", "GB"):
        number /= 1000
        if number < 999.95 or unit == "GB":
            break
    return f"{number:.1f} {unit}"
