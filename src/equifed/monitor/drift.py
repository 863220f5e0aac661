"""Drift of inputs: changes in the distribution of a silo's rows over the schema's bins since the reference.

Two measures are used, because each alone misleads: the population stability index measures the size of a drift, but is
large by chance with few rows; the chi-square test of homogeneity rules out chance, but detects tiny drifts with many
rows. A drift is reported if both indicate it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equifed.metrics.seeds import LEVEL, holm
from equifed.monitor.history import History

NOTICEABLE, LARGE = 0.1, 0.25
"""Thresholds of the population stability index, as used in banking."""
LEAST_EXPECTED = 5
"""Smallest expected number of rows in a cell of the chi-square test; smaller cells are merged."""


class Drift(NamedTuple):
    """The drift of one input at one silo."""

    silo: str
    column: str
    period: str
    stability: float
    """Population stability index; nan if unknown."""
    p: float
    """p-value of the chi-square test."""
    holm: float
    """The p-value corrected for all columns and silos (Holm)."""
    bin: str
    """Bin with the largest change of its share."""
    before: float
    after: float
    """That bin's share of rows before and after."""

    @property
    def size(self) -> str:
        """Size of the drift in words."""
        if np.isnan(self.stability):
            return "unknown"
        if not (self.holm < LEVEL and self.stability >= NOTICEABLE):
            return "none shown"
        return "large" if self.stability >= LARGE else "noticeable"

    @property
    def shown(self) -> bool:
        return self.size in ("large", "noticeable")


def find_drifts(history: History, reference: list[int]) -> list[Drift]:
    """Compare, for every input at every silo, its last period with its reference periods, or with its first period if
    it has none of them."""
    found = []
    for k, silo in enumerate(history.silos):
        handed = sorted(t for t, j in history.counts if j == k and history.counts[t, k].rows is not None)
        before = [t for t in handed if t in reference] or handed[:1]
        if not handed or handed[-1] in before:
            continue
        last = handed[-1]
        for column in history.counts[last, k].inputs:
            past = [history.counts[t, k] for t in before if column in history.counts[t, k].inputs]
            now = history.counts[last, k]
            if past:
                bins = [np.array(each.inputs[column], dtype=float) for each in (*past, now)]
                rows = [float(each.rows or 0) for each in (*past, now)]
                found.append(Drift(silo, column, history.periods[last], *_compare(bins, rows, history.bins[column])))
    corrected = iter(holm([each.p for each in found if not np.isnan(each.p)]))
    return [each if np.isnan(each.p) else each._replace(holm=next(corrected)) for each in found]


def _compare(
    bins: list[np.ndarray], rows: list[float], names: tuple[str, ...]
) -> tuple[float, float, float, str, float, float]:
    """Return (index, p, p, bin, before, after) of the last bins against all before; bins withheld in any of them are
    merged."""
    shown = ~np.isnan(np.stack(bins)).any(0)
    table = np.stack([sum(bins[:-1])[shown], bins[-1][shown]])  # type: ignore[index]
    rest = np.array([sum(rows[:-1]), rows[-1]]) - table.sum(1)
    index, p = stability_index(*table, *rest), homogeneity(np.column_stack([table, rest]))
    if np.isnan(p):
        return np.nan, np.nan, np.nan, "", np.nan, np.nan
    shares = np.column_stack([table, rest]) / (table.sum(1) + rest)[:, None]
    most = int(np.abs(shares[1] - shares[0]).argmax())
    listed = [*(name for name, known in zip(names, shown, strict=True) if known), "all withheld bins together"]
    return index, p, p, listed[most], float(shares[0, most]), float(shares[1, most])


def stability_index(before: np.ndarray, after: np.ndarray, rest_before: float = 0.0, rest_after: float = 0.0) -> float:
    """Return the sum over bins of (q - p) log(q / p) for the shares before (p) and after (q), with half a row added to
    each bin."""
    counts = np.stack([np.append(before, rest_before), np.append(after, rest_after)])
    counts = counts[:, counts.sum(0) > 0] + 0.5
    p, q = counts / counts.sum(1, keepdims=True)
    return float(((q - p) * np.log(q / p)).sum())


def homogeneity(table: np.ndarray) -> float:
    """Return the p-value of the chi-square test that both rows of the table [2, n] have the same distribution; nan if
    fewer than two cells can be compared."""
    from scipy.special import chdtrc

    table = table[:, table.sum(0) > 0]
    whole = table.sum()
    if not whole or not table.sum(1).all():
        return float("nan")
    expected = np.outer(table.sum(1), table.sum(0)) / whole
    few = (expected < LEAST_EXPECTED).any(0)
    if few.any():
        table = np.column_stack([table[:, ~few], table[:, few].sum(1)])
        expected = np.outer(table.sum(1), table.sum(0)) / whole
    if table.shape[1] < 2:
        return float("nan")
    return float(chdtrc(table.shape[1] - 1, ((table - expected) ** 2 / expected).sum()))
