"""At the server: gaps over time with their intervals, and an alarm when one has changed.

A monitored series is a signed gap: a group's rate minus that of all other groups. A period is compared with all rows
before it, silo by silo and group by group; the deviations are weighted by the period's rows. With n rows now and N
before, of which a share p has the decision, a deviation has the variance p (1 - p) (1/n + 1/N). As each period joins
the rows that the next one is compared with, the standardised deviations are independent as long as nothing changes, for
any number of rows in the reference; `cusum` sums them. So more or fewer rows from one silo do not sound an alarm, and
neither does a new silo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from equifed.errors import ConfigError, check_number
from equifed.metrics.catalogue import describe
from equifed.metrics.evidence import Evidence
from equifed.metrics.seeds import LEVEL, holm
from equifed.monitor import cusum
from equifed.monitor.drift import Drift, find_drifts
from equifed.monitor.history import History, total
from equifed.verdict.groups import SMALL_GROUP

METRICS = ("demographic_parity_difference", "equal_opportunity_difference")
FALSE_ALARM_EVERY = 100
"""Default average number of periods until a false alarm, over all gaps together."""
TWO_SIDED = 1.959964
"""Half width of a 95 % interval in standard errors."""

State = Literal["alarm", "unknown", "waiting", "quiet"]
NO_LABELS, WITHHELD, FEW, NO_COUNTS = "no labels", "withheld", "not enough rows", "no counts handed in"
FIRST = "no comparison yet"


class PeriodGap(NamedTuple):
    """The largest gap between groups in one period."""

    value: float
    low: float
    high: float
    unknown: str
    """Reason why it is unknown; "" if it is known."""
    rows: tuple[float, ...]
    """Number of rows of each group's rate; nan if withheld."""


class Moved(NamedTuple):
    """One silo's part in a change; nan if its counts do not disclose it."""

    silo: str
    change: float
    """Change of its signed gap."""
    low: float
    high: float
    """Ends of the interval of that change."""
    holm: float
    """p-value of that change, corrected for all silos (Holm)."""
    contribution: float
    """Contribution to the change over all silos; contributions add up to it."""


class Change(NamedTuple):
    """A change of a gap that sounded an alarm."""

    since: int
    noticed: int
    before: float
    """Signed gap over all silos before the change."""
    after: float
    """Signed gap over all silos from the change until the alarm."""
    silos: tuple[Moved, ...]
    """All silos, the one with the clearest change in the alarm's direction first."""

    @property
    def clear(self) -> Moved | None:
        """The silo that changed significantly in the direction of the whole, if there is one."""
        first = self.silos[0]
        same = (first.change > 0) == (self.after > self.before)
        return first if first.holm < LEVEL and same else None


class Lost(NamedTuple):
    """A group that a silo withholds in the last period, but disclosed before."""

    silo: str
    group: str
    period: str


@dataclass(frozen=True, eq=False)
class Series:
    """A monitored signed gap."""

    metric: str
    about: str
    """The class, if there are more than two."""
    group: str
    others: tuple[str, ...]
    gaps: np.ndarray
    """PeriodGap over all silos, by period; nan if unknown."""
    deviations: np.ndarray
    """Standardised deviation by period; nan if there is none."""
    unknown: tuple[str, ...]
    """By period, the reason why there is no deviation, or ""."""
    path: cusum.Path
    lost: tuple[Lost, ...]
    """Groups that silos withhold in the last period but mostly disclosed before. A large change can be the reason, so
    the state is unknown."""
    state: State
    change: Change | None

    @property
    def title(self) -> str:
        rate = describe(describe(self.metric).compares[0]).title
        other = self.others[0] if len(self.others) == 1 else "all other groups"
        return f"{rate}{f' ({self.about})' if self.about else ''}, {self.group} minus {other}"


class RunCounts(NamedTuple):
    """The counts of a run's model on its test rows, as a reference."""

    name: str
    groups: tuple[str, ...]
    classes: tuple[str, ...]
    decided: np.ndarray
    """Number of rows by group and decision [G, C]."""
    labelled: np.ndarray
    """Number of rows by group, label and decision [G, C, C]."""


@dataclass(frozen=True, eq=False)
class Watch:
    """The result of monitoring: gaps, alarms and drifts."""

    history: History
    reference: str
    """Description of the reference."""
    by_silo: bool
    """True if each silo is compared with itself; False if the reference does not record the rows' silos."""
    first: int
    """Position of the first monitored period."""
    series: tuple[Series, ...]
    drifts: list[Drift]
    every: float
    """Average number of periods until a false alarm."""
    limit: float

    @cached_property
    def gaps(self) -> dict[str, list[PeriodGap]]:
        """PeriodGap of every period, by metric."""
        metrics = dict.fromkeys(each.metric for each in self.series)
        return {
            metric: [gap_of(self.history, metric, t) for t in range(len(self.history.periods))] for metric in metrics
        }

    @cached_property
    def alarms(self) -> list[Series]:
        """Series with an alarm, the largest change first."""
        found = [(each.change, each) for each in self.series if each.change is not None]
        return [each for _, each in sorted(found, key=lambda pair: -abs(pair[0].after - pair[0].before))]

    @cached_property
    def state(self) -> State:
        order: tuple[State, ...] = ("alarm", "unknown", "waiting", "quiet")
        return min((each.state for each in self.series), key=order.index)


def watch(
    history: History,
    reference: str | RunCounts | None = None,
    *,
    every: float = FALSE_ALARM_EVERY,
) -> Watch:
    """Compare the periods with those before them.

    reference: a period, or two with a colon ("2026-01:2026-03"), or the counts of a run's model on its test rows.
    Default: the first period. Periods before the reference are shown but not monitored. every: average number of
    periods until a false alarm, over all gaps together.
    """
    check_number("every", every, low=2, high=10_000)
    if len(history.groups) < 2:
        raise ConfigError("The hand-ins have a single group, so there is no gap. Count by the groups to be compared.")
    run = reference if isinstance(reference, RunCounts) else None
    before = [] if run else reference_periods(history, reference if isinstance(reference, str) else None)
    watched = list(range(before[-1] + 1 if before else 0, len(history.periods)))
    wanted = [(metric, c, side) for metric in METRICS if _is_applicable(history, metric) for c, side in _sides(history)]
    limit = cusum.limit_for(every * len(wanted))
    return Watch(
        history=history,
        reference=f"run {run.name}" if run else _span([history.periods[t] for t in before]),
        by_silo=run is None,
        first=watched[0] if watched else len(history.periods),
        series=tuple(_make_series(history, metric, c, side, before, watched, run, limit) for metric, c, side in wanted),
        drifts=find_drifts(history, before),
        every=every,
        limit=limit,
    )


def reference_periods(history: History, text: str | None) -> list[int]:
    """Return the positions of the periods from A to B, given as A:B."""
    if text is None:
        return [0]
    first, _, last = text.partition(":")
    found = [t for t, period in enumerate(history.periods) if first <= period <= (last or first)]
    if not found:
        known = _span(history.periods)
        raise ConfigError(f"is not a {history.kind} of the hand-ins: {text}. They have {known}.", key="reference")
    return found


def _span(periods: Sequence[str]) -> str:
    return periods[0] if len(periods) == 1 else f"{periods[0]} to {periods[-1]}"


# -- gaps --------------------------------------------------------------------------------------------------------------


def _is_applicable(history: History, metric: str) -> bool:
    return "labels" not in describe(metric).needs or bool(history.with_labels.any())


def gap_of(history: History, metric: str, t: int) -> PeriodGap:
    """Return the gap over all silos in a period, from disclosed counts."""
    labelled = "labels" in describe(metric).needs
    if labelled:
        counts = total(history.labelled[t], 0)
        rows = counts.sum(-1)[:, 1 if len(history.classes) == 2 else 0 :].min(-1)  # of the rarest relevant label
    else:
        decided = total(history.decided[t], 0)
        counts, rows = np.zeros((*decided.shape, decided.shape[-1])), decided.sum(-1)
        counts[:, 0] = decided
    why = _find_reason(history, t, rows, labelled)
    if why:
        return PeriodGap(np.nan, np.nan, np.nan, why, tuple(rows))
    found = Evidence(counts).estimate(metric)
    return PeriodGap(found.mean, found.low, found.high, "", tuple(rows))


def _find_reason(history: History, t: int, rows: np.ndarray, labelled: bool) -> str:
    """Return why the gap of a period is unknown, given the groups' numbers of rows; "" if it is known."""
    if not any(period == t for period, _ in history.counts):
        return NO_COUNTS
    if labelled and not history.with_labels[t].any():
        return NO_LABELS
    if np.isnan(rows).any():
        return WITHHELD
    return FEW if (rows < SMALL_GROUP).any() else ""


# -- what is watched ---------------------------------------------------------------------------------------------------


def _sides(history: History) -> list[tuple[int, np.ndarray]]:
    """Return (class, mask [G] of the group compared with all others): the positive one of two classes, the first of two
    groups."""
    classes = [1] if len(history.classes) == 2 else range(len(history.classes))
    groups = np.eye(len(history.groups), dtype=bool)
    return [(c, side) for c in classes for side in (groups[:1] if len(groups) == 2 else groups)]


def _count_shares(decided: np.ndarray, labelled: np.ndarray, metric: str, c: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows with the decision, rows eligible for it), [..., G] each."""
    if "labels" in describe(metric).needs:
        return labelled[..., c, c], labelled[..., c, :].sum(-1)
    return decided[..., c], decided.sum(-1)


def _make_series(
    history: History,
    metric: str,
    c: int,
    side: np.ndarray,
    before: list[int],
    watched: list[int],
    run: RunCounts | None,
    limit: float,
) -> Series:
    own = np.stack(_count_shares(history.decided, history.labelled, metric, c), 1)  # [period, 2, silo, group]
    if run is None:
        parts, base = own, np.nansum(own[before], 0)
    else:  # the silos of the test rows are unknown: combine all silos
        parts = total(own, 2)[:, :, None]
        base = np.nan_to_num(np.stack(_count_shares(*_align(run, history), metric, c)))[:, None]
    bases, deviations = {}, np.full(len(history.periods), np.nan)
    for t in watched:
        bases[t] = base
        deviations[t] = _standardise(np.nan_to_num(parts[t]), base, side)
        base = base + np.nan_to_num(parts[t])
    path = cusum.follow(deviations, limit)
    labelled, sums = "labels" in describe(metric).needs, total(own, 2)
    unknown = [
        "" if not np.isnan(deviations[t]) else _find_missing_reason(history, t, sums[t, 1], side, labelled)
        for t in watched
    ]
    lost = _find_lost(history, own[:, 1], labelled)
    change = None
    if path.alarm is not None:
        sign, noticed = path.alarm
        since = _find_begin(parts, bases, side, sign, noticed)
        past = [*before, *(t for t in watched if t < since)]
        spans = np.nansum(own[past], 0), np.nansum(own[since : noticed + 1], 0)
        moved = _attribute_change(history.silos, *spans, side, sign)
        change = Change(
            since, noticed, _compute_gap(bases[since].sum(1), side), _compute_gap(spans[1].sum(1), side), moved
        )
    return Series(
        metric=metric,
        about="" if len(history.classes) == 2 else history.classes[c],
        group=history.groups[int(side.argmax())],
        others=tuple(group for group, mine in zip(history.groups, side, strict=True) if not mine),
        gaps=np.array([_compute_gap(each, side) for each in sums]),
        deviations=deviations,
        unknown=tuple([""] * (len(history.periods) - len(watched)) + unknown),
        path=path,
        lost=lost,
        state=_choose_state(path, unknown, bool(lost)),
        change=change,
    )


def _align(run: RunCounts, history: History) -> tuple[np.ndarray, np.ndarray]:
    """Return the run's counts in the order of the history's groups; zeros for groups it does not have."""
    if run.classes != history.classes:
        text = f"decides between {', '.join(run.classes)}, the hand-ins between {', '.join(history.classes)}."
        raise ConfigError(f"{text} Name the run of the model in use.", key="reference")
    order = [run.groups.index(group) if group in run.groups else len(run.groups) for group in history.groups]
    return tuple(np.append(part, np.zeros_like(part[:1]), 0)[order] for part in (run.decided, run.labelled))  # type: ignore[return-value]


def _standardise(now: np.ndarray, base: np.ndarray, side: np.ndarray) -> float:
    """Return the deviation of a period's signed gap [2, silo, group] from that of all earlier rows, in standard errors;
    nan if there are too few rows."""
    (hits, rows), (hits_before, rows_before) = now, base
    both = (rows > 0) & (rows_before > 0)
    gap, variance = 0.0, 0.0
    for sign, here in ((1, both & side), (-1, both & ~side)):
        n, past = rows[here], rows_before[here]
        if min(n.sum(), past.sum()) < SMALL_GROUP:
            return float("nan")
        weight = n / n.sum()
        # assumes no change; half a row of each kind is added, because an observed share of 0 is uncertain
        p = (hits[here] + hits_before[here] + 0.5) / (n + past + 1)
        gap += sign * float(weight @ (hits[here] / n - hits_before[here] / past))
        variance += float(weight**2 @ (p * (1 - p) * (1 / n + 1 / past)))
    return gap / float(np.sqrt(variance))


def _find_begin(parts: np.ndarray, bases: dict[int, np.ndarray], side: np.ndarray, sign: int, noticed: int) -> int:
    """Return the period from which to the alarm the gap differs most clearly from all earlier rows."""
    clear = {
        t: sign * _standardise(np.nansum(parts[t : noticed + 1], 0), base, side)
        for t, base in bases.items()
        if t <= noticed
    }
    return max((t for t in clear if not np.isnan(clear[t])), key=clear.__getitem__)


def _compute_gap(sums: np.ndarray, side: np.ndarray) -> float:
    """Return the signed gap of counts [2, group]; nan if a side has no rows."""
    rates = [np.nansum(sums[0, here]) / max(np.nansum(sums[1, here]), 1e-9) for here in (side, ~side)]
    shown = all(np.nansum(sums[1, here]) > 0 for here in (side, ~side))
    return float(rates[0] - rates[1]) if shown else float("nan")


def _find_missing_reason(history: History, t: int, rows: np.ndarray, side: np.ndarray, labelled: bool) -> str:
    """Return why a period has no deviation; rows [group] are those of all silos."""
    sides = np.array([total(rows[here], 0) for here in (side, ~side)])
    return _find_reason(history, t, sides, labelled) or FIRST


def _find_lost(history: History, rows: np.ndarray, labelled: bool) -> tuple[Lost, ...]:
    """Return the groups that silos withhold in the last relevant period but disclosed in most periods before; rows
    [period, silo, group] are nan if withheld."""
    handed = np.zeros(rows.shape[:2], dtype=bool)
    for at in history.counts:
        handed[at] = True
    handed &= history.with_labels if labelled else True
    if not handed.any():
        return ()
    last = int(np.flatnonzero(handed.any(1))[-1])
    before, shown = handed[:last].sum(0)[:, None], (~np.isnan(rows[:last])).sum(0)
    lost = handed[last][:, None] & np.isnan(rows[last]) & (shown > 0) & (2 * shown >= before)
    return tuple(Lost(history.silos[k], history.groups[g], history.periods[last]) for k, g in np.argwhere(lost))


def _choose_state(path: cusum.Path, unknown: Sequence[str], lost: bool) -> State:
    """Return the final state. Labels may arrive later than decisions, so periods without labels are ignored."""
    if path.alarm is not None:
        return "alarm"
    judged = [why for why in unknown if why not in (NO_LABELS, NO_COUNTS)]
    if not judged or judged[-1] == FIRST:
        return "waiting"
    return "unknown" if judged[-1] or lost else "quiet"


def _attribute_change(
    silos: Sequence[str], before: np.ndarray, after: np.ndarray, side: np.ndarray, direction: int
) -> tuple[Moved, ...]:
    """Return each silo's part in a change, from its counts [2, silo, group] before and after."""
    found, scores = [], []
    parts = [np.stack([each[:, :, here].sum(-1) for each in (before, after)]) for here in (side, ~side)]
    for k, silo in enumerate(silos):
        change, variance, contribution = 0.0, 0.0, 0.0
        for sign, ((h0, n0), (h1, n1)) in zip((1, -1), (part[:, :, k] for part in parts), strict=True):
            if not n0 or not n1:
                change = np.nan
                break
            rates = (h0 + 0.5) / (n0 + 1), (h1 + 0.5) / (n1 + 1)
            variance += sum(p * (1 - p) / n for p, n in zip(rates, (n0, n1), strict=True))
            change += sign * (h1 / n1 - h0 / n0)
            whole = parts[0 if sign > 0 else 1][1, 1].sum()
            contribution += sign * (h1 / n1 - h0 / n0) * n1 / whole
        error = float(np.sqrt(variance))
        known = not np.isnan(change)
        scores.append(direction * change / error if known else -np.inf)
        ends = (change - TWO_SIDED * error, change + TWO_SIDED * error) if known else (np.nan, np.nan)
        found.append(Moved(silo, change, *ends, np.nan, contribution if known else np.nan))
    from scipy.special import ndtr

    corrected = iter(holm([float(2 * ndtr(-abs(score))) for score in scores if np.isfinite(score)]))
    found = [
        each._replace(holm=next(corrected)) if np.isfinite(score) else each
        for each, score in zip(found, scores, strict=True)
    ]
    return tuple(found[k] for k in np.argsort(-np.array(scores), kind="stable"))
