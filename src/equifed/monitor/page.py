"""The monitoring page: one self-contained HTML file without scripts."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from importlib import metadata, resources
from pathlib import Path

from markupsafe import Markup

from equifed.files import write_atomic
from equifed.metrics.catalogue import describe
from equifed.monitor.charts import gaps_chart, key, sums_chart
from equifed.monitor.drift import LARGE, NOTICEABLE
from equifed.monitor.verdict import caveats, rule, sentences
from equifed.monitor.watch import State, Watch
from equifed.report.page import asset, templates

STATES: dict[State, str] = {
    "alarm": "▲ alarm",
    "unknown": "? unknown",
    "waiting": "… no comparison yet",
    "quiet": "✓ no alarm",
}


def write_monitor(watch: Watch, path: Path, title: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, render(watch, title).encode("utf-8", "replace"))


def render(watch: Watch, title: str | None = None) -> str:
    """Return the page as HTML."""
    own = resources.files("equifed.monitor").joinpath("monitor.css").read_text(encoding="utf-8")
    heading = {metric: describe(metric).heading for metric in watch.gaps}
    return (
        templates("equifed.monitor")
        .get_template("monitor.html.j2")
        .render(
            title=title or "A model in use",
            watch=watch,
            history=watch.history,
            states=STATES,
            sentences=sentences(watch),
            rule=rule(watch),
            caveats=caveats(watch),
            heading=heading.__getitem__,
            help=lambda metric: describe(metric).help,
            charts={metric: gaps_chart(watch, metric, heading[metric]) for metric in watch.gaps},
            sums=sums_chart(watch),
            key=key,
            drifts=sorted(watch.drifts, key=lambda each: (not each.shown, math.isnan(each.stability), -each.stability)),
            noticeable=NOTICEABLE,
            large=LARGE,
            style=asset("page.css") + Markup(own),
            written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            version=metadata.version("equifed"),
        )
    )
