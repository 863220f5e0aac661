"""At the server: gaps over time with their intervals, and an alarm when one has changed.

What is watched is a signed gap: a group's rate minus that of the other groups together. A period is compared with all
rows before it, silo by silo and group by group; the deviations are weighted by the period's rows. With n rows now and N
before, of which a share p has the decision, a deviation has the variance p (1 - p) (1/n + 1/N). As each period joins
what the next one is compared with, the standardised deviations are independent as long as nothing changes, however few
rows the reference has; `cusum` adds them up. So more or fewer rows from one silo are no alarm, and a new silo joins
without one.
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
from equifed.monitor.drift import Drift, drifts
from equifed.monitor.history import History, total
from equifed.verdict.groups import SMALL_GROUP

METRICS = ("demographic_parity_difference", "equal_opportunity_difference")
FALSE_ALARM_EVERY = 100
"""Periods, on average, over all gaps together."""
TWO_SIDED = 1.959964
"""Standard errors on either side of a 95 % interval."""

State = Literal["alarm", "unknown", "waiting", "quiet"]
NO_LABELS, WITHHELD, FEW, NOBODY = "no labels", "withheld", "not enough rows", "nothing handed in"
FIRST = "nothing to compare with yet"


class Gap(NamedTuple):
    """The largest gap between groups in one period."""

    value: float
    low: float
    high: float
    unknown: str
    """Why it is not known; "" where it is."""
    rows: tuple[float, ...]
    """That each group's rate rests on; nan where they are withheld."""


class Moved(NamedTuple):
    """What one silo has to do with a change; nan where its counts do not say."""

    silo: str
    change: float
    """Of its own signed gap,"""
    low: float
    high: float
    """with its interval."""
    holm: float
    """p-value that it is chance, corrected for all silos."""
    contribution: float
    """To the change over all silos: these add up."""


class Change(NamedTuple):
    since: int
    noticed: int
    before: float
    """The signed gap of all silos together before the change,"""
    after: float
    """and from then on until it was noticed."""
    silos: tuple[Moved, ...]
    """That with the clearest change in the alarm's direction first."""

    @property
    def clear(self) -> Moved | None:
        """The silo that moved, where one did beyond chance, in the direction of the whole."""
        first = self.silos[0]
        same = (first.change > 0) == (self.after > self.before)
        return first if first.holm < LEVEL and same else None


class Lost(NamedTuple):
    silo: str
    group: str
    period: str


@dataclass(frozen=True, eq=False)
class Series:
    """A signed gap that is watched."""

    metric: str
    about: str
    """The class, where there are more than two."""
    group: str
    others: tuple[str, ...]
    gaps: np.ndarray
    """Of all silos together, by period; nan where it is not known."""
    deviations: np.ndarray
    """Standardised, by period; nan where there is none,"""
    unknown: tuple[str, ...]
    """and why there is none."""
    path: cusum.Path
    lost: tuple[Lost, ...]
    """What silos withhold in the last period and mostly showed before: a large change can be the reason, so that
    nothing is known of it."""
    state: State
    change: Change | None

    @property
    def title(self) -> str:
        rate = describe(describe(self.metric).compares[0]).title
        other = self.others[0] if len(self.others) == 1 else "all other groups"
        return f"{rate}{f' ({self.about})' if self.about else ''}, {self.group} minus {other}"


class RunCounts(NamedTuple):
    """What a run's model did on its test rows, as a reference."""

    name: str
    groups: tuple[str, ...]
    classes: tuple[str, ...]
    decided: np.ndarray
    """Rows [G, C],"""
    labelled: np.ndarray
    """[G, label, decision]."""


@dataclass(frozen=True, eq=False)
class Watch:
    history: History
    reference: str
    """What periods are compared with, in words."""
    by_silo: bool
    """Whether each silo is compared with itself; not where the reference does not say whose rows are whose."""
    first: int
    """The first period that is watched."""
    series: tuple[Series, ...]
    drifts: list[Drift]
    every: float
    """Periods until a false alarm, on average."""
    limit: float

    @cached_property
    def gaps(self) -> dict[str, list[Gap]]:
        """By metric, for every period."""
        metrics = dict.fromkeys(each.metric for each in self.series)
        return {
            metric: [gap_of(self.history, metric, t) for t in range(len(self.history.periods))] for metric in metrics
        }

    @cached_property
    def alarms(self) -> list[Series]:
        """The largest change first."""
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

    reference: where it begins: a period or two with a colon ("2026-01:2026-03"), or what a run's model did on its test
    rows. Left out: the first period. Periods before the reference are shown but not watched.
    every: periods until a false alarm, on average, over all gaps together.
    """
    check_number("every", every, low=2, high=10_000)
    if len(history.groups) < 2:
        raise ConfigError("There is one group only, and no gap to watch. Count by the groups that are to be compared.")
    run = reference if isinstance(reference, RunCounts) else None
    before = [] if run else reference_periods(history, reference if isinstance(reference, str) else None)
    watched = list(range(before[-1] + 1 if before else 0, len(history.periods)))
    wanted = [(metric, c, side) for metric in METRICS if _applies(history, metric) for c, side in _sides(history)]
    limit = cusum.limit_for(every * len(wanted))
    return Watch(
        history=history,
        reference=f"run {run.name}" if run else _span([history.periods[t] for t in before]),
        by_silo=run is None,
        first=watched[0] if watched else len(history.periods),
        series=tuple(_series(history, metric, c, side, before, watched, run, limit) for metric, c, side in wanted),
        drifts=drifts(history, before),
        every=every,
        limit=limit,
    )


def reference_periods(history: History, text: str | None) -> list[int]:
    """The positions of the periods from A to B that a text A:B names."""
    if text is None:
        return [0]
    first, _, last = text.partition(":")
    found = [t for t, period in enumerate(history.periods) if first <= period <= (last or first)]
    if not found:
        known = _span(history.periods)
        raise ConfigError(f"names no {history.kind} that was handed in: {text}. There are {known}.", key="reference")
    return found


def _span(periods: Sequence[str]) -> str:
    return periods[0] if len(periods) == 1 else f"{periods[0]} to {periods[-1]}"


# -- gaps --------------------------------------------------------------------------------------------------------------


def _applies(history: History, metric: str) -> bool:
    return "labels" not in describe(metric).needs or bool(history.with_labels.any())


def gap_of(history: History, metric: str, t: int) -> Gap:
    """The gap of all silos together in a period, from the counts that are shown."""
    labelled = "labels" in describe(metric).needs
    if labelled:
        counts = total(history.labelled[t], 0)
        rows = counts.sum(-1)[:, 1 if len(history.classes) == 2 else 0 :].min(-1)  # with the rarest label that counts
    else:
        decided = total(history.decided[t], 0)
        counts, rows = np.zeros((*decided.shape, decided.shape[-1])), decided.sum(-1)
        counts[:, 0] = decided
    why = _why(history, t, rows, labelled)
    if why:
        return Gap(np.nan, np.nan, np.nan, why, tuple(rows))
    found = Evidence(counts).estimate(metric)
    return Gap(found.mean, found.low, found.high, "", tuple(rows))


def _why(history: History, t: int, rows: np.ndarray, labelled: bool) -> str:
    """Why nothing is said of a period in which the groups have so many rows; "" if something is."""
    if not any(period == t for period, _ in history.counts):
        return NOBODY
    if labelled and not history.with_labels[t].any():
        return NO_LABELS
    if np.isnan(rows).any():
        return WITHHELD
    return FEW if (rows < SMALL_GROUP).any() else ""


# -- what is watched ---------------------------------------------------------------------------------------------------


def _sides(history: History) -> list[tuple[int, np.ndarray]]:
    """(class, the group that is compared with all others as bool [G]): of two classes the positive one, of two groups
    the first."""
    classes = [1] if len(history.classes) == 2 else range(len(history.classes))
    groups = np.eye(len(history.groups), dtype=bool)
    return [(c, side) for c in classes for side in (groups[:1] if len(groups) == 2 else groups)]


def _shares(decided: np.ndarray, labelled: np.ndarray, metric: str, c: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows with the decision, rows that might have had it), [..., G] each."""
    if "labels" in describe(metric).needs:
        return labelled[..., c, c], labelled[..., c, :].sum(-1)
    return decided[..., c], decided.sum(-1)


def _series(
    history: History,
    metric: str,
    c: int,
    side: np.ndarray,
    before: list[int],
    watched: list[int],
    run: RunCounts | None,
    limit: float,
) -> Series:
    own = np.stack(_shares(history.decided, history.labelled, metric, c), 1)  # [period, 2, silo, group]
    if run is None:
        parts, base = own, np.nansum(own[before], 0)
    else:  # which silo a test row is from is not known: all silos are one
        parts = total(own, 2)[:, :, None]
        base = np.nan_to_num(np.stack(_shares(*_aligned(run, history), metric, c)))[:, None]
    bases, deviations = {}, np.full(len(history.periods), np.nan)
    for t in watched:
        bases[t] = base
        deviations[t] = _deviation(np.nan_to_num(parts[t]), base, side)
        base = base + np.nan_to_num(parts[t])
    path = cusum.follow(deviations, limit)
    labelled, sums = "labels" in describe(metric).needs, total(own, 2)
    unknown = ["" if not np.isnan(deviations[t]) else _why_not(history, t, sums[t, 1], side, labelled) for t in watched]
    lost = _lost(history, own[:, 1], labelled)
    change = None
    if path.alarm is not None:
        sign, noticed = path.alarm
        since = _since(parts, bases, side, sign, noticed)
        past = [*before, *(t for t in watched if t < since)]
        spans = np.nansum(own[past], 0), np.nansum(own[since : noticed + 1], 0)
        moved = _moved(history.silos, *spans, side, sign)
        change = Change(since, noticed, _gap(bases[since].sum(1), side), _gap(spans[1].sum(1), side), moved)
    return Series(
        metric=metric,
        about="" if len(history.classes) == 2 else history.classes[c],
        group=history.groups[int(side.argmax())],
        others=tuple(group for group, mine in zip(history.groups, side, strict=True) if not mine),
        gaps=np.array([_gap(each, side) for each in sums]),
        deviations=deviations,
        unknown=tuple([""] * (len(history.periods) - len(watched)) + unknown),
        path=path,
        lost=lost,
        state=_state(path, unknown, bool(lost)),
        change=change,
    )


def _aligned(run: RunCounts, history: History) -> tuple[np.ndarray, np.ndarray]:
    """The run's counts in the order of the history's groups; none of a group that it does not know."""
    if run.classes != history.classes:
        text = f"decides between {', '.join(run.classes)}, the hand-ins between {', '.join(history.classes)}."
        raise ConfigError(f"{text} Name the run whose model is in use.", key="reference")
    order = [run.groups.index(group) if group in run.groups else len(run.groups) for group in history.groups]
    return tuple(np.append(part, np.zeros_like(part[:1]), 0)[order] for part in (run.decided, run.labelled))  # type: ignore[return-value]


def _deviation(now: np.ndarray, base: np.ndarray, side: np.ndarray) -> float:
    """How far the signed gap of a period [2, silo, group] is from what was before it, in standard errors; nan where
    there are too few rows."""
    (hits, rows), (hits_before, rows_before) = now, base
    both = (rows > 0) & (rows_before > 0)
    gap, variance = 0.0, 0.0
    for sign, here in ((1, both & side), (-1, both & ~side)):
        n, past = rows[here], rows_before[here]
        if min(n.sum(), past.sum()) < SMALL_GROUP:
            return float("nan")
        weight = n / n.sum()
        # as if nothing had changed; half a row of each kind more, because a share of 0 is not a certain one
        p = (hits[here] + hits_before[here] + 0.5) / (n + past + 1)
        gap += sign * float(weight @ (hits[here] / n - hits_before[here] / past))
        variance += float(weight**2 @ (p * (1 - p) * (1 / n + 1 / past)))
    return gap / float(np.sqrt(variance))


def _since(parts: np.ndarray, bases: dict[int, np.ndarray], side: np.ndarray, sign: int, noticed: int) -> int:
    """The period from which on, up to the alarm, the gap differs most clearly from all before it."""
    clear = {
        t: sign * _deviation(np.nansum(parts[t : noticed + 1], 0), base, side)
        for t, base in bases.items()
        if t <= noticed
    }
    return max((t for t in clear if not np.isnan(clear[t])), key=clear.__getitem__)


def _gap(sums: np.ndarray, side: np.ndarray) -> float:
    """The signed gap of counts [2, group]; nan where a side has none."""
    rates = [np.nansum(sums[0, here]) / max(np.nansum(sums[1, here]), 1e-9) for here in (side, ~side)]
    shown = all(np.nansum(sums[1, here]) > 0 for here in (side, ~side))
    return float(rates[0] - rates[1]) if shown else float("nan")


def _why_not(history: History, t: int, rows: np.ndarray, side: np.ndarray, labelled: bool) -> str:
    """Why a period has no deviation; rows [group] are those of all silos."""
    sides = np.array([total(rows[here], 0) for here in (side, ~side)])
    return _why(history, t, sides, labelled) or FIRST


def _lost(history: History, rows: np.ndarray, labelled: bool) -> tuple[Lost, ...]:
    """What silos showed in most periods before, and withhold in the last one that counts; rows [period, silo, group]
    are nan where they are withheld."""
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


def _state(path: cusum.Path, unknown: Sequence[str], lost: bool) -> State:
    """What holds at the end: labels may come later than decisions, so periods without any are not waited for."""
    if path.alarm is not None:
        return "alarm"
    judged = [why for why in unknown if why not in (NO_LABELS, NOBODY)]
    if not judged or judged[-1] == FIRST:
        return "waiting"
    return "unknown" if judged[-1] or lost else "quiet"


def _moved(
    silos: Sequence[str], before: np.ndarray, after: np.ndarray, side: np.ndarray, direction: int
) -> tuple[Moved, ...]:
    """What each silo has to do with a change, from its counts [2, silo, group] before and after."""
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
