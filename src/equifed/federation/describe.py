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
    def chart(self) -> dict[str, Any]:
        """Return one stacked bar per client, as a Vega-Lite specification."""
        from equifed.charts import partition_chart

        return partition_chart(self.ids, self.groups, self.labels, self.cells)

    def __str__(self) -> str:
        return f"{self.title}\n{self.table.to_string()}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from equifed.charts import embedded

        return str(self.table.to_html()) + embedded("partition", self.chart)
