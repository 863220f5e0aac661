"""The findings of a watch, in sentences and as plain values for other programs."""

from __future__ import annotations

from typing import Any

import numpy as np

from equifed.metrics.catalogue import describe
from equifed.monitor import cusum
from equifed.monitor.watch import Series, Watch
from equifed.verdict.wording import listing, number, p_value, plain, signed


def sentences(watch: Watch) -> list[str]:
    """Return the findings, the most important first."""
    found = [_describe_alarm(watch, each) for each in watch.alarms]
    unknown: dict[str, list[str]] = {}
    for each in watch.series:
        if each.state == "unknown":
            unknown.setdefault(_explain_unknown(watch, each), []).append(_title(each))
    found += [f"Unknown: {listing(titles, most=3)}. {why}" for why, titles in unknown.items()]
    quiet = [each for each in watch.series if each.state == "quiet"]
    waiting = [each for each in watch.series if each.state == "waiting"]
    if quiet:
        all_of = (
            "No alarm"
            if len(quiet) == len(watch.series)
            else f"No alarm in {listing([_title(each) for each in quiet], most=3)}"
        )
        found.append(f"{all_of}: no change since the reference ({watch.reference}) beyond what chance explains.")
    if waiting:
        titles = listing([_title(each) for each in waiting])
        found.append(f"No period to compare with the reference ({watch.reference}) yet in {titles}.")
    drifted = [each for each in watch.drifts if each.shown]
    if drifted:
        places = listing([f"{plain(each.column)} at {plain(each.silo)} ({each.size})" for each in drifted])
        found.append(f"Inputs have drifted: {places}.")
    return found


def rule(watch: Watch) -> str:
    """Return the rule of the alarm and its false alarm rate."""
    kind, gaps = watch.history.kind, len(watch.series)
    own = f", once in {gaps * watch.every:,.0f} {kind}s for each of the {gaps} gaps" if gaps > 1 else ""
    return (
        f"Every {kind} is compared with all earlier rows, {'silo by silo' if watch.by_silo else 'all silos combined'}. "
        f"The deviation of a gap, in standard errors minus an allowance of {cusum.ALLOWANCE:g}, is summed in "
        f"either direction, never below 0 (CUSUM). An alarm sounds when a sum exceeds {watch.limit:.2f}. Without a "
        f"change this happens at most once in {watch.every:,.0f} {kind}s on average, over all gaps together{own}."
    )


def caveats(watch: Watch) -> list[str]:
    """Return the limitations of the findings."""
    history, found = watch.history, []
    last = len(history.periods) - 1
    missing = [silo for k, silo in enumerate(history.silos) if (last, k) not in history.counts]
    if missing:
        found.append(f"No counts were handed in for {history.periods[last]} by {listing(missing)}.")
    for k, silo in enumerate(history.silos):
        if (last, k) in history.counts and (groups := history.withheld(last, k)):
            found.append(
                f"{plain(silo)} withholds {listing(groups)} in {history.periods[last]} because of few rows. The "
                "numbers are those of the other silos."
            )
    if watch.alarms:
        found.append(
            "The silo that changed is searched after the alarm, in the rows that sounded it: the p-values are too "
            "small rather than too large. Silos that withhold a group cannot be assessed."
        )
    if watch.by_silo:
        found.append(
            "A gap that changes only because a silo hands in more or fewer rows than before shows in the chart but "
            "does not sound an alarm."
        )
    else:
        found.append(
            "The run does not record the silos of its test rows: a silo that hands in more rows can sound the alarm."
        )
    found.append("A slow change becomes part of the data it is compared with, so it is detected late.")
    return found


def _explain_unknown(watch: Watch, series: Series) -> str:
    if series.lost:
        places = listing([f"{plain(each.group)} at {plain(each.silo)}" for each in series.lost])
        return f"Withheld in {series.lost[0].period}, but disclosed before: {places}. A large change can be the reason."
    last = max(t for t, why in enumerate(series.unknown) if why)
    return f"{watch.history.periods[last]}: {series.unknown[last]}."


def _title(series: Series) -> str:
    return plain(series.title, 160)


def _describe_alarm(watch: Watch, series: Series) -> str:
    change, periods = series.change, watch.history.periods
    assert change is not None
    way = "wider" if abs(change.after) > abs(change.before) else "narrower"
    text = (
        f"Alarm: {_title(series)}, went from {signed(change.before)} to {signed(change.after)} ({way}), since "
        f"{periods[change.since]}, detected in {periods[change.noticed]}."
    )
    first = change.silos[0]
    if np.isnan(first.change):
        return f"{text} The silo that changed is unknown: none discloses both sides before and after."
    clear = change.clear
    within = f"{signed(first.change)} [{signed(first.low)}, {signed(first.high)}], {p_value(first.holm)}"
    if len(watch.history.silos) == 1:
        return text
    if clear is None:
        return f"{text} No single silo stands out; {plain(first.silo)} changed most ({within})."
    return f"{text} {plain(first.silo)} moved: its own gap changed by {within}."


def to_dict(watch: Watch) -> dict[str, Any]:
    """All that the page shows, for other programs."""
    history = watch.history
    periods = history.periods
    return {
        "state": watch.state,
        "sentences": sentences(watch),
        "rule": rule(watch),
        "caveats": caveats(watch),
        "reference": watch.reference,
        "limit": watch.limit,
        "allowance": cusum.ALLOWANCE,
        "false_alarm_every": watch.every,
        "period": history.kind,
        "silos": list(history.silos),
        "groups": list(history.groups),
        "classes": list(history.classes),
        "gaps": [
            {"metric": metric, "period": period, "value": gap.value, "low": gap.low, "high": gap.high}
            | {"unknown": gap.unknown or None}
            for metric, gaps in watch.gaps.items()
            for period, gap in zip(periods, gaps, strict=True)
        ],
        "watched": [_series_to_dict(each, periods) for each in watch.series],
        "drift": [each._asdict() | {"size": each.size} for each in watch.drifts],
    }


def _series_to_dict(series: Series, periods: tuple[str, ...]) -> dict[str, Any]:
    change = series.change
    alarm = None
    if change is not None:
        alarm = {
            "since": periods[change.since],
            "noticed": periods[change.noticed],
            "before": change.before,
            "after": change.after,
            "moved": change.clear.silo if change.clear else None,
            "silos": [each._asdict() for each in change.silos],
        }
    return {
        "title": series.title,
        "metric": series.metric,
        "state": series.state,
        "alarm": alarm,
        "deviations": dict(zip(periods, series.deviations.tolist(), strict=True)),
        "lost": [each._asdict() for each in series.lost],
        "unknown": {period: why for period, why in zip(periods, series.unknown, strict=True) if why},
    }


def failures(watch: Watch, checks: list[Any]) -> list[str]:
    """Return the failures of checks: "alarm", "drift", or a condition on the last period's gap. Unknown values fail."""
    lines = []
    for check in checks:
        if check == "alarm":
            lines += [text for text in sentences(watch) if text.startswith(("Alarm:", "Unknown:"))]
        elif check == "drift":
            lines += [
                f"Drift of {plain(each.column)} at {plain(each.silo)}: {each.size}"
                for each in watch.drifts
                if each.shown or each.size == "unknown"
            ]
        else:
            lines += _check_level(watch, check)
    return lines


def _check_level(watch: Watch, check: Any) -> list[str]:
    from equifed.target import OPERATORS

    gaps = watch.gaps.get(check.metric)
    title = describe(check.metric).title
    if gaps is None:
        return [f"{title} is unknown (no labels), so {check} cannot be ruled out"]
    gap, period = gaps[-1], watch.history.periods[-1]
    if gap.unknown:
        return [f"{title} of {period} is unknown ({gap.unknown}), so {check} cannot be ruled out"]
    holds = OPERATORS[check.sign](gap.value, check.bound)
    return [f"{title} of {period} is {number(gap.value)}, and the check fails if {check}"] if holds else []
