"""Charts in a page that needs nothing else: Vega, a script that draws, and the specifications, all inside it.

No chart needs `eval`: expressions are interpreted. The page allows these two scripts by their hashes and no other, so
that a name which found a way into the page would still not be executed.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any

from markupsafe import Markup

from equifed.charts.look import PAPER, config
from equifed.charts.spec import Spec


@dataclass(frozen=True, eq=False)
class Scripts:
    """The scripts of a page with charts. A place `<div class="chart" data-chart=NAME>` shows the chart of this name;
    where there are charts within charts, `<select data-of=NAME>` choose among them, in order."""

    charts: Mapping[str, Any]
    """Specifications by name, or by name and choices."""
    own: str = ""
    """The page's own script, if it has one."""
    numbers: Any = None
    """What it gets, in the detail of the event `numbers`."""

    @cached_property
    def html(self) -> Markup:
        """The script elements, for the end of the page's body."""
        given = {"config": config(), "paper": PAPER, "charts": self.charts}
        parts = [
            f'<script type="text/plain" class="vega">{_vega_packed()}</script>',
            f'<script type="text/plain" class="charts">{packed(given)}</script>',
            *([f'<script type="text/plain" class="numbers">{packed(self.numbers)}</script>'] if self.numbers else []),
            *(f"<script>\n{code}</script>" for code in self._inline),
        ]
        return Markup("\n".join(parts))

    @property
    def policy(self) -> Markup:
        """The page's Content-Security-Policy."""
        allowed = [_hash(f"\n{code}") for code in self._inline] + [_vega_hash()]
        scripts = " ".join(f"'sha256-{each}'" for each in allowed)
        return Markup(f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:")

    @property
    def _inline(self) -> list[str]:
        return [_asset("charts.js").decode(), *([self.own] if self.own else [])]


def packed(data: Any) -> str:
    """Return JSON, compressed, in letters that mean nothing to a browser."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode()


def embedded(name: str, spec: Spec) -> str:
    """Return a chart as part of another page, such as a notebook."""
    style = "background: #fff; color: #000; padding: 8px; max-width: 900px"
    return f'<div style="{style}"><div class="chart" data-chart="{name}"></div>{Scripts({name: spec}).html}</div>'


def _asset(name: str) -> bytes:
    return resources.files("equifed.charts").joinpath(name).read_bytes()


def _hash(code: str) -> str:
    return base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


@cache
def _vega_packed() -> str:
    return base64.b64encode(_asset("vega.js.gz")).decode()


@cache
def _vega_hash() -> str:
    return _hash(gzip.decompress(_asset("vega.js.gz")).decode())
