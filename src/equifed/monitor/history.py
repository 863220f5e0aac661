"""All hand-ins together: counts by period, silo, group, label and decision, nan for what is not known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from equifed.errors import DataError
from equifed.monitor.handin import Counts, HandIn
from equifed.monitor.periods import Kind, following
from equifed.words import quoted

MOST_CELLS = 20_000_000
"""Numbers that are held of all hand-ins together."""
MOST_GROUPS = 100
MOST_PERIODS = 2000


@dataclass(frozen=True, eq=False)
class History:
    kind: Kind
    periods: tuple[str, ...]
    """From the first to the last that somebody handed in, in order, with those that nobody did."""
    silos: tuple[str, ...]
    groups: tuple[str, ...]
    classes: tuple[str, ...]
    bins: Mapping[str, tuple[str, ...]]
    decided: np.ndarray
    """Rows [period, silo, group, decision]."""
    labelled: np.ndarray
    """Rows [period, silo, group, label, decision]."""
    counts: Mapping[tuple[int, int], Counts]
    """What was handed in, by (period, silo)."""
    revisions: Mapping[tuple[int, int], int]

    @classmethod
    def of(cls, hand_ins: Iterable[HandIn]) -> History:
        """What silos handed in; a higher revision takes the place of a lower one, period by period."""
        newest: dict[tuple[str, str], HandIn] = {}
        given = sorted(hand_ins, key=lambda each: (each.silo, each.revision))
        if not given:
            raise DataError("There are no hand-ins.")
        bins: dict[str, tuple[str, ...]] = {}
        for each in given:
            _agree(each, given[0], bins)
            for period, counts in each.periods.items():
                before = newest.get((period, each.silo))
                if before and before.revision == each.revision and before.periods[period] != counts:
                    raise DataError(
                        f"{quoted(each.silo)} handed in different counts of {period} as revision {each.revision}. Keep "
                        "one file, or count again with --revises."
                    )
                newest[period, each.silo] = each
        if not newest:
            raise DataError("The hand-ins have no periods.")
        periods = _all_between({period for period, _ in newest}, given[0].period)
        silos = sorted({silo for _, silo in newest})
        groups = tuple(dict.fromkeys(group for each in given for group in each.groups))
        classes = given[0].classes
        shape = len(periods), len(silos), len(groups), len(classes)
        if len(groups) > MOST_GROUPS or np.prod([*shape, len(classes) + 1], dtype=float) > MOST_CELLS:
            raise DataError("The hand-ins are too many to be shown together. Name fewer of them, or longer periods.")
        decided, labelled = np.full(shape, np.nan), np.full((*shape, len(classes)), np.nan)
        found, revisions = {}, {}
        for (period, silo), each in newest.items():
            at = periods.index(period), silos.index(silo)
            decided[at], labelled[at] = each.decided(period, groups), each.labelled(period, groups)
            found[at], revisions[at] = each.periods[period], each.revision
        return cls(
            given[0].period, tuple(periods), tuple(silos), groups, classes, bins, decided, labelled, found, revisions
        )

    @property
    def with_labels(self) -> np.ndarray:
        """Whether a silo knows labels of the period, shown or not [period, silo]."""
        known = np.zeros((len(self.periods), len(self.silos)), dtype=bool)
        for at, counts in self.counts.items():
            known[at] = counts.labels is not None
        return known

    def withheld(self, period: int, silo: int) -> list[str]:
        """The groups whose decisions the silo keeps to itself; all where it has too few rows."""
        counts = self.counts[period, silo]
        return [group for group, decided in counts.decisions.items() if decided is None]


def _agree(each: HandIn, first: HandIn, bins: dict[str, tuple[str, ...]]) -> None:
    """Refuse a hand-in that cannot be added to the others."""
    for what, own, others in (("periods", each.period, first.period), ("classes", each.classes, first.classes)):
        if own != others:
            text = f"{quoted(each.silo)} counts by other {what} ({quoted(own)}) than {quoted(first.silo)}"
            raise DataError(f"{text} ({quoted(others)}). Count again with the same.")
    for column, names in each.bins.items():
        if bins.setdefault(column, names) != names:
            text = f"{quoted(each.silo)} counts the input {quoted(column)} in other bins than the silos before."
            raise DataError(f"{text} Count again with the schema that all share.")


def _all_between(named: set[str], kind: Kind) -> list[str]:
    periods = [min(named)]
    while periods[-1] < max(named):
        if len(periods) == MOST_PERIODS:
            text = f"The hand-ins reach from {min(named)} to {max(named)}: more than {MOST_PERIODS} periods."
            raise DataError(f"{text} Leave out the file whose dates are wrong, or count by longer periods.")
        periods.append(following(periods[-1], kind))
    return periods


def total(parts: np.ndarray, axis: int) -> np.ndarray:
    """Sums of what is shown; nan where nothing is."""
    hidden = np.isnan(parts).all(axis)
    return np.where(hidden, np.nan, np.nansum(parts, axis))
