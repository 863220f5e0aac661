"""All hand-ins combined: counts by period, silo, group, label and decision, nan if unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from equifed.errors import DataError
from equifed.monitor.handin import HandIn, PeriodCounts
from equifed.monitor.periods import Kind, next_period
from equifed.words import quoted

MOST_CELLS = 20_000_000
"""Largest number of cells over all hand-ins."""
MOST_GROUPS = 100
MOST_PERIODS = 2000


@dataclass(frozen=True, eq=False)
class History:
    """The counts of all silos and periods."""

    kind: Kind
    periods: tuple[str, ...]
    """All periods from the first to the last reported one, gaps included."""
    silos: tuple[str, ...]
    groups: tuple[str, ...]
    classes: tuple[str, ...]
    bins: Mapping[str, tuple[str, ...]]
    decided: np.ndarray
    """Number of rows [period, silo, group, decision]."""
    labelled: np.ndarray
    """Number of rows [period, silo, group, label, decision]."""
    counts: Mapping[tuple[int, int], PeriodCounts]
    """PeriodCounts as handed in, by (period, silo)."""
    revisions: Mapping[tuple[int, int], int]

    @classmethod
    def of(cls, hand_ins: Iterable[HandIn]) -> History:
        """Combine hand-ins; a higher revision replaces a lower one, period by period."""
        newest: dict[tuple[str, str], HandIn] = {}
        given = sorted(hand_ins, key=lambda each: (each.silo, each.revision))
        if not given:
            raise DataError("No hand-ins were given.")
        bins: dict[str, tuple[str, ...]] = {}
        for each in given:
            _check_agreement(each, given[0], bins)
            for period, counts in each.periods.items():
                before = newest.get((period, each.silo))
                if before and before.revision == each.revision and before.periods[period] != counts:
                    raise DataError(
                        f"{quoted(each.silo)} handed in different counts of {period} as revision {each.revision}. Keep "
                        "one of the files, or count again with --revises."
                    )
                newest[period, each.silo] = each
        if not newest:
            raise DataError("The hand-ins have no periods.")
        periods = _list_periods({period for period, _ in newest}, given[0].period)
        silos = sorted({silo for _, silo in newest})
        groups = tuple(dict.fromkeys(group for each in given for group in each.groups))
        classes = given[0].classes
        shape = len(periods), len(silos), len(groups), len(classes)
        if len(groups) > MOST_GROUPS or np.prod([*shape, len(classes) + 1], dtype=float) > MOST_CELLS:
            raise DataError("The hand-ins are too large to be combined. Name fewer files, or count by longer periods.")
        decided, labelled = np.full(shape, np.nan), np.full((*shape, len(classes)), np.nan)
        found, revisions = {}, {}
        for (period, silo), each in newest.items():
            at = periods.index(period), silos.index(silo)
            decided[at], labelled[at] = each.count_decisions(period, groups), each.count_labels(period, groups)
            found[at], revisions[at] = each.periods[period], each.revision
        return cls(
            given[0].period, tuple(periods), tuple(silos), groups, classes, bins, decided, labelled, found, revisions
        )

    @property
    def with_labels(self) -> np.ndarray:
        """True if a silo knows labels of the period, disclosed or not [period, silo]."""
        known = np.zeros((len(self.periods), len(self.silos)), dtype=bool)
        for at, counts in self.counts.items():
            known[at] = counts.labels is not None
        return known

    def withheld(self, period: int, silo: int) -> list[str]:
        """Return the groups with withheld decisions; all groups if the silo has too few rows."""
        counts = self.counts[period, silo]
        return [group for group, decided in counts.decisions.items() if decided is None]


def _check_agreement(each: HandIn, first: HandIn, bins: dict[str, tuple[str, ...]]) -> None:
    """Raise `DataError` if a hand-in cannot be combined with the others."""
    for what, own, others in (("periods", each.period, first.period), ("classes", each.classes, first.classes)):
        if own != others:
            text = f"{quoted(each.silo)} counts by other {what} ({quoted(own)}) than {quoted(first.silo)}"
            raise DataError(f"{text} ({quoted(others)}). Count again with the same {what}.")
    for column, names in each.bins.items():
        if bins.setdefault(column, names) != names:
            text = f"{quoted(each.silo)} counts the input {quoted(column)} in other bins than earlier silos."
            raise DataError(f"{text} Count again with the shared schema.")


def _list_periods(named: set[str], kind: Kind) -> list[str]:
    periods = [min(named)]
    while periods[-1] < max(named):
        if len(periods) == MOST_PERIODS:
            text = f"The hand-ins reach from {min(named)} to {max(named)}: more than {MOST_PERIODS} periods."
            raise DataError(f"{text} Remove the file with wrong dates, or count by longer periods.")
        periods.append(next_period(periods[-1], kind))
    return periods


def total(parts: np.ndarray, axis: int) -> np.ndarray:
    """Sum disclosed counts; nan if none are disclosed."""
    hidden = np.isnan(parts).all(axis)
    return np.where(hidden, np.nan, np.nansum(parts, axis))
