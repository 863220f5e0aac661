"""The ranks as a picture: an SVG that a page shows, and a README."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from equifed.report.looks import COLOURS
from equifed_papers.benchmark.ranks import Ranking
from equifed_papers.benchmark.scores import SCORES

LINE, LEFT, RIGHT, TOP = 17, 170, 150, 82
WIDTH = 860
FAMILIES = ("group fairness", "worst-off", "personal models", "accuracy", "reference")


def rank_picture(found: Ranking, families: Mapping[str, str]) -> str:
    """A line for each method: its average rank, and how probable it is that it is better than FedAvg."""
    table, count = found.table, len(found.table)
    height = TOP + LINE * count + 46
    span = WIDTH - LEFT - RIGHT

    def x(rank: float) -> float:
        return LEFT + span * (rank - 1) / max(count - 1, 1)

    ink = 'fill="#5a6475"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f"<title>Average ranks: {escape(SCORES[found.score].title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="20" font-size="14" font-weight="600" fill="#1c2330">Average rank over {len(found.datasets)} '
        f"data sets: {escape(SCORES[found.score].title)}</text>",
    ]
    at = 12.0
    for i, family in enumerate(FAMILIES):
        parts.append(f'<circle cx="{at + 5}" cy="36" r="5" fill="{COLOURS[i]}"/>')
        parts.append(f'<text x="{at + 14}" y="40" {ink}>{family}</text>')
        at += 28 + 7 * len(family)
    cd = min(found.critical, count - 1)
    parts += [
        f'<line x1="{x(1)}" x2="{x(1 + cd):.1f}" y1="58" y2="58" stroke="#1c2330" stroke-width="3"/>',
        f'<text x="{x(1)}" y="71" {ink} font-size="11">critical difference {found.critical:.1f}</text>',
        f'<text x="{WIDTH - 10}" y="62" text-anchor="end" {ink}>P(better than FedAvg)</text>',
    ]
    step = 10 if count > 25 else 5
    for tick in [1, *range(step, count + 1, step)]:
        parts += [
            f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP - 6}" y2="{height - 40}" stroke="#dde2ea"/>',
            f'<text x="{x(tick):.1f}" y="{height - 24}" text-anchor="middle" {ink}>{tick}</text>',
        ]
    for i, (name, row) in enumerate(table.iterrows()):
        y = TOP + LINE * i + LINE / 2
        colour = COLOURS[FAMILIES.index(families.get(str(name), "accuracy"))]
        weight = ' font-weight="700"' if name == "fedavg" else ""
        parts += [
            f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end" fill="#1c2330"{weight}>{escape(str(name))}</text>',
            f'<line x1="{LEFT}" x2="{x(row["rank"]):.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-opacity=".35"/>',
            f'<circle cx="{x(row["rank"]):.1f}" cy="{y}" r="5" fill="{colour}"/>',
            f'<text x="{x(row["rank"]) + 9:.1f}" y="{y + 4}" {ink} font-size="11">{row["rank"]:.1f}</text>',
        ]
        if row["better"] == row["better"]:
            parts += [
                f'<rect x="{WIDTH - 110}" y="{y - 4}" width="60" height="8" fill="#eef3fd"/>',
                f'<rect x="{WIDTH - 110}" y="{y - 4}" width="{60 * row["better"]:.1f}" height="8" fill="{colour}"/>',
                f'<text x="{WIDTH - 10}" y="{y + 4}" text-anchor="end" {ink} font-size="11">{row["better"]:.2f}</text>',
            ]
    return "\n".join(
        [*parts, f'<text x="{LEFT}" y="{height - 8}" {ink}>best left; Friedman p = {found.p:.1g}</text>', "</svg>\n"]
    )
