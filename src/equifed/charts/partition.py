"""Who holds which rows: a stacked bar for each client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from equifed.charts.look import colour, fill
from equifed.charts.spec import Spec, by, chart, distinct, names_axis, number_axis, short, tooltip

LABELLED = 60
"""Clients up to which each has a bar with its name; beyond, bars stand upright and close together."""


def partition_chart(clients: Sequence[str], groups: Sequence[str], classes: Sequence[str], cells: Any) -> Spec:
    """Return the chart of training rows: a colour for each group, a fill for each group and class.

    cells: rows [clients, groups, classes].
    """
    upright = len(clients) > LABELLED
    kinds = [(g, c) for g in range(len(groups)) for c in range(len(classes))]
    names = distinct([f"{short(groups[g], 24)}, {short(classes[c], 24)}" for g, c in kinds], 50)
    places = list(map(str, range(len(clients)))) if upright else distinct(clients)
    rows = [
        {
            "client": place,
            "cell": name,
            "part": i,
            "rows": int(of_client[g][c]),
            "about": f"client {short(client)}\n{name}: {int(of_client[g][c]):,} rows",
        }
        for client, place, of_client in zip(clients, places, cells, strict=True)
        for i, ((g, c), name) in enumerate(zip(kinds, names, strict=True))
        if of_client[g][c]
    ]
    fills = [fill(g, i, upright) for i, (g, _) in enumerate(kinds)]
    size = {**number_axis("rows", "training rows", zero=True), "stack": "zero"}
    which = names_axis("client", places, "x" if upright else "y", padding=0 if upright else 0.25)
    if upright:
        which["axis"] |= {"labels": False, "title": "client"}
    mark = {"type": "bar", "strokeWidth": 0.3 if upright else 1}
    encoding = {
        **({"x": which, "y": size} if upright else {"x": size, "y": which}),
        "fill": by("cell", names, fills),
        "stroke": by("cell", names, [colour(g) for g, _ in kinds]),
        "order": {"field": "part", "type": "quantitative"},
        "tooltip": tooltip(),
    }
    about = f"Who holds which rows: training rows of {len(clients)} clients by {', '.join(names[:8])}"
    height = 340 if upright else max(60, 24 * len(clients))
    return chart(about, [{"mark": mark, "encoding": encoding}], height, data={"values": rows})
