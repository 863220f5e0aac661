"""Clients' gaps between the two groups that are farthest apart over all clients, with their sign.

A model that is fair over all rows may favour one group at some clients and the other one elsewhere, and a gap over all
rows may be the reverse of a client's own. A gap is the higher group's rate minus the lower one's, where higher and
lower are the extremes over the rows of all clients together: a negative one has the opposite sign. Of two classes the
rate is that of the positive one, of more that of the class in which two groups are farthest apart.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equifed.metrics.rates import divide
from equifed.metrics.seeds import LEVEL, wilson

SIGNED = ("demographic_parity_difference", "equal_opportunity_difference")
"""The gaps that are one difference of two rates."""


class LocalGaps(NamedTuple):
    """Of K clients, with any leading axes."""

    pair: np.ndarray
    """Codes of the groups with the highest and with the lowest rate over all clients' rows [..., 2]."""
    overall: np.ndarray
    """How far apart those are [...]; nan where fewer than two groups have a rate."""
    rates: np.ndarray
    """Of the two groups at each client [..., K, 2]; nan without such rows."""
    rows: np.ndarray
    """What they rest on [..., K, 2]."""
    about: np.ndarray
    """Code of the class that the rates are about [...]."""

    @property
    def gaps(self) -> np.ndarray:
        """Each client's own [..., K], negative where it has the opposite sign."""
        gaps: np.ndarray = self.rates[..., 0] - self.rates[..., 1]
        return gaps

    @property
    def opposite(self) -> np.ndarray:
        """Share of the clients with a gap whose gap has the opposite sign [...]."""
        return divide((self.gaps < 0).sum(-1), (~np.isnan(self.gaps)).sum(-1))


def local_gaps(hits: np.ndarray, rows: np.ndarray) -> LocalGaps:
    """hits: of each client's rows of each group, those that the rate of each class counts [..., K, G, C]; nan where
    withheld."""
    first = 1 if hits.shape[-1] == 2 else 0
    by_class = _of_one_class(*(np.moveaxis(values[..., first:], -1, -3) for values in (hits, rows)))
    about = np.where(np.isnan(by_class.overall), -1.0, by_class.overall).argmax(-1)

    def widest(values: np.ndarray) -> np.ndarray:
        """[..., C, (more axes)] of the class that it is about."""
        axis = about.ndim
        place = about.reshape(*about.shape, *[1] * (values.ndim - axis))
        return np.take_along_axis(values, place, axis).squeeze(axis)

    pair, overall, rates, of_pair = map(widest, by_class[:4])
    return LocalGaps(pair, overall, rates, of_pair, about + first)


def _of_one_class(hits: np.ndarray, rows: np.ndarray) -> LocalGaps:
    """Of hits and rows [..., K, G]."""
    everyone = divide(np.nansum(hits, -2), np.nansum(rows, -2))
    known = ~np.isnan(everyone)
    pair = np.stack(
        [np.where(known, everyone, -np.inf).argmax(-1), np.where(known, everyone, np.inf).argmin(-1)], axis=-1
    )
    high, low = np.moveaxis(np.take_along_axis(everyone, pair, -1), -1, 0)
    overall = np.where(known.sum(-1) > 1, high - low, np.nan)
    of_pair = [np.take_along_axis(values, pair[..., None, :], -1) for values in (hits, rows)]
    rates = np.where(np.isnan(overall)[..., None, None], np.nan, divide(*of_pair))
    return LocalGaps(pair, overall, rates, of_pair[1], np.zeros(overall.shape, dtype=np.int64))


def gap_interval(rates: np.ndarray, rows: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Interval, 95 % or 1 - level, of the difference of two independent rates [..., 2] that rest on so many rows:
    Newcombe's, from Wilson's intervals of both (Statistics in Medicine 1998, method 10). nan where a rate is."""
    low, high = wilson(rates, rows, level)
    gap = rates[..., 0] - rates[..., 1]
    below = np.hypot(rates[..., 0] - low[..., 0], high[..., 1] - rates[..., 1])
    above = np.hypot(high[..., 0] - rates[..., 0], rates[..., 1] - low[..., 1])
    return gap - below, gap + above
