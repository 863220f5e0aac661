"""The ranks as a chart, for the page and the README."""

from __future__ import annotations

from collections.abc import Mapping

from equifed.charts.look import colour, shape
from equifed.charts.spec import Spec, by, names_axis
from equifed_papers.benchmark.ranks import BASELINE, Ranking
from equifed_papers.benchmark.scores import SCORES

FAMILIES = ("group fairness", "worst-off", "personal models", "accuracy", "reference")
LINE, WIDTH, SIDE = 17, 520, 70


def rank_chart(found: Ranking, families: Mapping[str, str]) -> Spec:
    """Return a line for each method: its average rank, and how probable it is that it is better than FedAvg."""
    count = len(found.table)
    rows = [
        {"method": str(name), "rank": row["rank"], "first": 1, "family": families.get(str(name), "accuracy")}
        | ({} if row["better"] != row["better"] else {"better": row["better"], "whole": 1})
        for name, row in found.table.iterrows()
    ]
    title = f"Average rank over {len(found.datasets)} data sets: {SCORES[found.score].title}"
    y = names_axis("method", [row["method"] for row in rows])
    bold = {"condition": {"test": f"datum.value == '{BASELINE}'", "value": "bold"}, "value": "normal"}
    y["axis"] |= {"labelFontWeight": bold, "labelLimit": 160, "labelExpr": "datum.label"}
    ticks = [1, *range(step := 10 if count > 25 else 5, count + 1, step)]
    x = {
        "field": "rank",
        "type": "quantitative",
        "scale": {"domain": [1, max(count, 2)], "nice": False},
        "axis": {"values": ticks, "title": [f"average rank, best left; Friedman p = {found.p:.1g}"]},
    }
    coloured = by("family", FAMILIES, [colour(i) for i in range(len(FAMILIES))])
    critical = {
        "first": 1,
        "last": min(1 + found.critical, count),
        "text": f"critical difference {found.critical:.1f}",
    }
    bar = {"data": {"values": [critical]}}
    place = {"x": {**x, "field": "first"}, "y": {"value": -20}}
    ranks = [
        {
            **bar,
            "mark": {"type": "rule", "style": "ink", "strokeWidth": 3},
            "encoding": {**place, "x2": {"field": "last"}},
        },
        {
            **bar,
            "mark": {"type": "text", "align": "left", "baseline": "top", "dy": 4},
            "encoding": {**place, "text": {"field": "text"}},
        },
        {
            "mark": {"type": "rule", "strokeWidth": 0.7},
            "encoding": {"x": {**x, "field": "first"}, "x2": {"field": "rank"}, "y": y, "stroke": coloured},
        },
        {
            "mark": {"type": "point", "size": 70, "opacity": 1},
            "encoding": {
                "x": x,
                "y": y,
                "stroke": coloured,
                "fill": coloured,
                "shape": by("family", FAMILIES, [shape(i) for i in range(len(FAMILIES))]),
            },
        },
        {
            "mark": {"type": "text", "align": "left", "dx": 9},
            "encoding": {"x": x, "y": y, "text": {"field": "rank", "format": ".1f"}},
        },
    ]
    known = {"transform": [{"filter": {"field": "better", "valid": True}}]}
    share = {
        "field": "better",
        "type": "quantitative",
        "scale": {"domain": [0, 1]},
        "axis": {"title": ["P(better than FedAvg)"], "orient": "top", "values": [0, 1], "grid": False},
    }
    bare = {**y, "axis": None}
    better = [
        {
            **known,
            "mark": {"type": "bar", "height": 8, "style": "shade"},
            "encoding": {"x": {**share, "field": "whole"}, "y": bare},
        },
        {**known, "mark": {"type": "bar", "height": 8}, "encoding": {"x": share, "y": bare, "fill": coloured}},
        {
            **known,
            "mark": {"type": "text", "align": "left", "dx": 6},
            "encoding": {"x": {"value": SIDE}, "y": bare, "text": {"field": "better", "format": ".2f"}},
        },
    ]
    height = LINE * count
    return {
        "description": title,
        "title": {"text": title, "anchor": "start", "fontSize": 14, "offset": 14},
        "params": [{"name": "space", "value": 900}],
        "data": {"values": rows},
        "hconcat": [
            {"width": WIDTH, "height": height, "layer": ranks},
            {"width": SIDE, "height": height, "layer": better},
        ],
        "resolve": {"scale": {"y": "shared"}},
    }
