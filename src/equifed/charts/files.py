"""Charts as files for a paper: SVG, PNG or PDF, by vl-convert, which needs no browser. It is an optional extra."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equifed.charts.look import on_paper
from equifed.charts.spec import Spec, as_wide_as
from equifed.errors import ConfigError, unknown_name
from equifed.files import write_atomic

FORMATS = ("svg", "png", "pdf")
VEGA_LITE = "6.4"
WIDTH = 560
"""Pixels of a file, 96 to an inch: a page's text width."""
SCALE = 3
"""Pixels of a PNG for each of these."""


def check_formats(formats: Sequence[str]) -> None:
    """Refuse unknown formats, and a missing vl-convert, before anything is written."""
    for name in formats:
        if name not in FORMATS:
            raise unknown_name("figure format", name, FORMATS)
    try:
        import vl_convert  # noqa: F401
    except ImportError:
        raise ConfigError(
            "Figures need vl-convert, which is not installed. Install it: pip install 'equifed[figures]'"
        ) from None


def draw(spec: Spec, kind: str) -> bytes:
    """Return the chart as a file of this format. The same chart gives the same bytes."""
    check_formats([kind])
    import vl_convert

    sized = as_wide_as(spec, WIDTH)
    options: dict[str, Any] = {
        "vl_version": VEGA_LITE,
        "config": {**on_paper(), "background": "#ffffff", "font": "sans-serif"},
    }
    if kind == "svg":
        text: str = vl_convert.vegalite_to_svg(sized, **options)
        return _numbered(text).encode("utf-8", "replace")
    if kind == "png":
        return bytes(vl_convert.vegalite_to_png(sized, scale=SCALE, **options))
    return _ENTRIES.sub(_in_order, bytes(vl_convert.vegalite_to_pdf(sized, **options)))


def _numbered(svg: str) -> str:
    """Return the SVG with its gradients numbered from 0, whatever was drawn before it."""
    found = list(dict.fromkeys(re.findall(r'<linearGradient id="(gradient_\d+)"', svg)))
    new = {old: f"gradient_{i}" for i, old in enumerate(found)}
    return re.sub(
        r'(?<=url\(#)gradient_\d+(?=\))|(?<=<linearGradient id=")gradient_\d+', lambda each: new[each[0]], svg
    )


_ENTRIES = re.compile(rb"(?<=<<\n)(?: */[A-Za-z]+\d+ \d+ 0 R\n){2,}(?= *>>)")
"""The resources of a PDF's page by name. Their order means nothing, and differs from file to file."""


def _in_order(entries: re.Match[bytes]) -> bytes:
    return b"".join(sorted(entries[0].splitlines(keepends=True)))


def write_chart(spec: Spec, path: Path) -> Path:
    """Write the chart in the format that the file's name ends in."""
    write_atomic(path, draw(spec, path.suffix[1:]))
    return path
