"""A federation's rows per client, group and label, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Description:
    """The make-up of a federation: how many rows of each group and label every client trains on."""

    title: str
    ids: Sequence[str]
    """Client names."""
    groups: tuple[str, ...]
    labels: tuple[str, ...]
    """Class names; "rows" for regression."""
    cells: np.ndarray
    """Training rows [clients, groups, labels]."""

    @property
    def table(self) -> pd.DataFrame:
        """One row per client, one column per (group, label) cell, and the total."""
        import pandas as pd

        columns = pd.MultiIndex.from_product([self.groups, self.labels], names=["group", "label"])
        cells = self.cells.reshape(len(self.ids), -1)
        frame = pd.DataFrame(cells, index=pd.Index(self.ids, name="client"), columns=columns)
        frame[("total", "")] = cells.sum(1)
        return frame

    @property
    def figure(self) -> Any:
        """One stacked bar per client, as a plotly figure."""
        import plotly.graph_objects as go

        bars = [
            go.Bar(name=f"{group}, {label}", y=list(self.ids), x=self.cells[:, g, c].tolist(), orientation="h")
            for g, group in enumerate(self.groups)
            for c, label in enumerate(self.labels)
        ]
        figure = go.Figure(bars)
        figure.update_layout(
            barmode="stack",
            xaxis_title="training rows",
            yaxis={"title": "client", "type": "category", "autorange": "reversed"},
            legend_title="group, label",
            template="plotly_white",
            height=max(260, 22 * len(self.ids) + 120),
            margin={"l": 70, "r": 20, "t": 20, "b": 50},
        )
        return figure

    def __str__(self) -> str:
        return f"{self.title}\n{self.table.to_string()}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return str(self.table.to_html()) + str(self.figure.to_html(full_html=False, include_plotlyjs=True))
