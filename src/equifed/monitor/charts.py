"""Charts as inline SVG: they need no script, follow the page's colours, and print."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup, escape

from equifed.monitor.watch import Watch
from equifed.report import looks
from equifed.verdict.wording import number, signed

WIDTH, HEIGHT = 1120, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 20, 44
TICKS = 14
"""Names of periods that fit below a chart."""
SHAPES = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "M-3.6 -3.6h7.2v7.2h-7.2z",
    "M0 -5L5 0L0 5L-5 0z",
    "M0 -4.6L4.6 3.6H-4.6z",
    "M-1.6 -4.8h3.2v3.2h3.2v3.2h-3.2v3.2h-3.2v-3.2h-3.2v-3.2h3.2z",
    "M0 4.6L4.6 -3.6H-4.6z",
)


class _Canvas:
    """A plane with periods across and numbers upwards."""

    def __init__(self, periods: Sequence[str], low: float, high: float, about: str) -> None:
        self.periods, self.low, self.high, self.about = periods, low, high, about
        self.parts: list[Markup] = []

    def x(self, t: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (t + 0.5) / len(self.periods)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(max(share, 0), 1)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str, more: str = "") -> None:
        place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self.parts.append(Markup(f'<line {place} class="{kind}" {more}/>'))

    def text(self, x: float, y: float, words: str, kind: str = "tick", anchor: str = "middle", title: str = "") -> None:
        told = Markup("<title>{}</title>").format(title) if title else Markup()
        tag = Markup(f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">')
        self.parts.append(tag + escape(words) + told + Markup("</text>"))

    def point(self, t: int, value: float, sign: int, title: str) -> None:
        shape, colour = SHAPES[sign % len(SHAPES)], looks.colour(sign)
        place = f"translate({self.x(t):.1f} {self.y(value):.1f})"
        tag = Markup(f'<path d="{shape}" transform="{place}" fill="{colour}" class="point">')
        self.parts.append(tag + Markup("<title>{}</title></path>").format(title))

    def curve(self, values: Sequence[float], sign: int) -> None:
        """Through the values that are known, with a gap where one is not."""
        steps, there = [], False
        for t, value in enumerate(values):
            if math.isnan(value):
                there = False
                continue
            steps.append(f"{'L' if there else 'M'}{self.x(t):.1f} {self.y(value):.1f}")
            there = True
        dashes = ",".join(map(str, looks.DASHES[sign % len(looks.DASHES)]))
        style = f'stroke="{looks.colour(sign)}" stroke-dasharray="{dashes or "none"}"'
        self.parts.append(Markup(f'<path d="{" ".join(steps) or "M0 0"}" class="curve" {style}/>'))

    def frame(self, first: int) -> None:
        """Grid, names of periods, and what is reference."""
        if first > 0:
            end = LEFT + (WIDTH - LEFT - RIGHT) * min(first, len(self.periods)) / len(self.periods)
            box = f'x="{LEFT}" y="{TOP}" width="{end - LEFT:.1f}" height="{HEIGHT - TOP - BOTTOM}"'
            self.parts.append(Markup(f'<rect {box} class="past"/>'))
            self.text(LEFT + 4, TOP + 12, "reference", anchor="start")
        step = _step(self.high - self.low)
        for i in range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1):
            self.line(LEFT, self.y(i * step), WIDTH - RIGHT, self.y(i * step), "zero" if i == 0 else "grid")
            self.text(LEFT - 7, self.y(i * step) + 4, f"{i * step:g}".replace("-", "−"), anchor="end")
        every = math.ceil(len(self.periods) / TICKS)
        for t in range(0, len(self.periods), every):
            self.text(self.x(t), HEIGHT - BOTTOM + 20, self.periods[t])

    def mark(self, t: int, words: str) -> None:
        """A line at a period, with words above it."""
        self.line(self.x(t), TOP, self.x(t), HEIGHT - BOTTOM, "alarm")
        left = t > len(self.periods) / 2
        self.text(self.x(t) + (-6 if left else 6), TOP - 6, words, "alarmed", "end" if left else "start")

    def svg(self) -> Markup:
        tag = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            WIDTH, HEIGHT, self.about
        )
        return tag + Markup("").join(self.parts) + Markup("</svg>")


def _step(span: float) -> float:
    """A round distance between lines of a grid, of which about five fit."""
    rough = span / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)


def gaps_chart(watch: Watch, metric: str, title: str) -> Markup:
    """A gap over time, with its intervals; a question mark where it is not known."""
    gaps, periods = watch.gaps[metric], watch.history.periods
    top = max([gap.high for gap in gaps if not gap.unknown], default=0.1)
    canvas = _Canvas(
        periods, 0.0, max(1.12 * top, 0.02), f"{title} by {watch.history.kind}; the table below has the numbers"
    )
    canvas.frame(watch.first)
    sign = list(watch.gaps).index(metric)
    canvas.curve([gap.value for gap in gaps], sign)
    for t, gap in enumerate(gaps):
        if gap.unknown:
            canvas.text(canvas.x(t), HEIGHT - BOTTOM - 6, "?", "unknown", title=f"{periods[t]}: {gap.unknown}")
            continue
        canvas.line(
            canvas.x(t), canvas.y(gap.low), canvas.x(t), canvas.y(gap.high), "bar", f'stroke="{looks.colour(sign)}"'
        )
        told = f"{periods[t]}: {number(gap.value)} [{number(gap.low)}, {number(gap.high)}]"
        canvas.point(t, gap.value, sign, told)
    for alarm in {each.change.noticed for each in watch.alarms if each.change and each.metric == metric}:
        canvas.mark(alarm, "▲ alarm")
    return canvas.svg()


def sums_chart(watch: Watch) -> Markup:
    """Both sums of every gap that is watched, that downwards below 0, and the limits."""
    periods, limit = watch.history.periods, watch.limit
    sums = [np.stack([each.path.up, -each.path.down]) for each in watch.series]
    reach = 1.12 * max(limit, *(float(np.nanmax(np.abs(each), initial=0)) for each in sums))
    canvas = _Canvas(periods, -reach, reach, "Summed deviations by period, and the limits at which an alarm sounds")
    canvas.frame(watch.first)
    for side, words in ((limit, "alarm above"), (-limit, "alarm below")):
        canvas.line(LEFT, canvas.y(side), WIDTH - RIGHT, canvas.y(side), "limit")
        canvas.text(WIDTH - RIGHT, canvas.y(side) + (-5 if side > 0 else 14), f"{words} {signed(side)}", anchor="end")
    for sign, (series, both) in enumerate(zip(watch.series, sums, strict=True)):
        for sum in both:
            canvas.curve(sum.tolist(), sign)
            for t in np.flatnonzero(~np.isnan(sum) & (sum != 0)).tolist():
                canvas.point(t, float(sum[t]), sign, f"{periods[t]}: {series.title}: {signed(float(sum[t]))}")
    for noticed in sorted({each.change.noticed for each in watch.alarms if each.change}):
        canvas.mark(noticed, "▲ alarm")
    return canvas.svg()


def key(sign: int) -> Markup:
    """The symbol and dash of a series, for the legend."""
    dashes = ",".join(map(str, looks.DASHES[sign % len(looks.DASHES)])) or "none"
    colour = looks.colour(sign)
    return Markup(
        '<svg class="key" viewBox="0 0 44 12" width="44" height="12" aria-hidden="true"><path d="M0 6H44" '
        f'class="curve" stroke="{colour}" stroke-dasharray="{dashes}"/>'
        f'<path d="{SHAPES[sign % len(SHAPES)]}" fill="{colour}" transform="translate(22 6)"/></svg>'
    )
