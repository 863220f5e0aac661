"""The verdict: what the numbers say, in sentences that claim no more than they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from equifed.metrics.catalogue import describe
from equifed.metrics.seeds import MIN_SEEDS, Paired, mean_interval
from equifed.report import wording
from equifed.report.comparison import Arm, Comparison, against
from equifed.report.silos import Silos, other_notes

if TYPE_CHECKING:
    from equifed.results.result import Result

SMALL_GROUP = 50
"""Test rows below which a group's rates are mostly noise."""


@dataclass(frozen=True)
class Verdict:
    """The report's first lines."""

    chosen: str | None
    """The label of the method to look at first; None when no predictor is usable."""
    sentences: list[str]
    """One or two plain sentences."""
    caveats: list[str]
    """What is not certain, and what went wrong."""


def verdict(results: Sequence[Result], *, disparity: str | None = None) -> Verdict:
    """Which method does best on quality and on the chosen disparity, and how sure that is."""
    return verdict_of(Comparison.of(results, disparity))


def verdict_of(about: Comparison) -> Verdict:
    found, quality, disparity = about.arms, about.quality, about.disparity
    caveats = _caveats(found, about.results, quality, disparity)
    if len(found) == 1:
        return Verdict(found[0].label, _single(found[0], quality, disparity), caveats)
    chosen, sentences = _compare(found, quality, disparity)
    return Verdict(chosen.label if chosen else None, sentences, caveats)


def ranked(found: list[Arm], metric: str) -> list[Arm]:
    """Best mean first; arms that are degenerate in a seed, pooled references, and undefined ones are left out."""
    scored = [(arm.cost(metric), arm) for arm in found]
    usable = [(bad, arm) for bad, arm in scored if np.isfinite(bad) and arm.eligible]
    return [arm for _, arm in sorted(usable, key=lambda pair: pair[0])]


def tested(order: list[Arm], metric: str) -> dict[str, Paired]:
    """The first of the order against each of the others that can be paired with it, corrected together; by label."""
    tests = against(order, order[0], metric) if order else []
    return {arm.label: test for arm, test in zip(order, tests, strict=True) if test is not None}


def unclear(order: list[Arm], metric: str) -> list[Arm]:
    """Who cannot be told apart from the first of the order; without a test, nobody is claimed to be as good."""
    tests = tested(order, metric)
    return [arm for arm in order[1:] if arm.label in tests and not tests[arm.label].clear]


def _value(arm: Arm, metric: str) -> str:
    """`mean ± std [low, high]`."""
    text = wording.spread(*arm.over_seeds(metric), arm.seeds)
    bounds = mean_interval(arm.values(metric))
    return text if bounds is None else f"{text} [{wording.number(bounds[0])}, {wording.number(bounds[1])}]"


def _over(found: list[Arm]) -> str:
    """What the numbers of a sentence are."""
    counts = sorted({arm.seeds for arm in found})
    if counts == [1]:
        return "one seed"
    brackets = "; in brackets the mean's 95\u00a0% interval" if counts[-1] >= MIN_SEEDS else ""
    return f"mean ± sample std over {' or '.join(map(str, counts))} seeds{brackets}"


def _single(arm: Arm, quality: str, disparity: str | None) -> list[str]:
    wanted = [quality, *([disparity] if disparity else [])]
    withheld = [metric for metric in wanted if arm.withholds(metric)]
    reached = "" if quality in withheld else f" reached {describe(quality).title} {_value(arm, quality)}"
    if disparity and disparity not in withheld:
        reached += (
            f"{' with' if reached else ' has'} {wording.a(describe(disparity).title)} of {_value(arm, disparity)}"
        )
    said = f"{wording.plain(arm.label)}{reached} after round {arm.last} ({_over([arm])})." if reached else ""
    if withheld:
        what = wording.listing([describe(metric).title for metric in withheld])
        whose = "Its" if said else f"Of {wording.plain(arm.label)},"
        said += (
            f"{' ' * bool(said)}{whose} {what} {'is' if len(withheld) == 1 else 'are'} not known: the silos withhold "
            "counts that are too small to be disclosed."
        )
    return [f"{said} There is nothing else in this report to compare it with."]


def _compare(found: list[Arm], quality: str, disparity: str | None) -> tuple[Arm | None, list[str]]:
    by_quality = ranked(found, quality)
    if not by_quality:
        return None, [
            f"None of these predictors is usable: in each, {describe(quality).title} is "
            f"{'withheld by the silos, ' if any(arm.withholds(quality) for arm in found) else ''}undefined or some "
            "group gets (almost) one and the same prediction in at least one seed."
        ]
    best = by_quality[0]
    quality_word = f"{'lowest' if describe(quality).better == 'lower' else 'highest'} mean {describe(quality).title}"
    over = _over(found)
    by_gap = ranked([best, *unclear(by_quality, quality)], disparity) if disparity else []
    pick = by_gap[0] if by_gap else best
    fairest = ranked(found, disparity)[:1] if disparity else []
    name, gap = wording.plain(pick.label), describe(disparity).title if disparity else ""
    if pick is best and disparity and fairest and fairest[0] is pick:
        first = (
            f"Take {name}: it has both the {quality_word}, {_value(pick, quality)}, and the fairest mean {gap}, "
            f"{_value(pick, disparity)} ({over})."
        )
    elif pick is best:
        first = f"Take {name}: it has the {quality_word}, {_value(pick, quality)}"
        first += f", with {wording.a(gap)} of {_value(pick, disparity)} ({over})." if disparity else f" ({over})."
    else:
        first = (
            f"Take {name}: it has the fairest mean {gap}, {_value(pick, disparity or '')}, among the methods whose "
            f"{describe(quality).title} cannot be told apart from the best: {_value(pick, quality)}, against "
            f"{_value(best, quality)} of {wording.plain(best.label)} ({over})."
        )
    second = ""
    if fairest and fairest[0] is not pick and disparity:
        low = fairest[0]
        second = (
            f"The fairest mean {gap} of all is that of {wording.plain(low.label)}, {_value(low, disparity)}, "
            f"at {describe(quality).title} {_value(low, quality)}."
        )
    return pick, [sentence for sentence in (first, second) if sentence]


# -- caveats -----------------------------------------------------------------------------------------------------------


def _caveats(found: list[Arm], results: Sequence[Result], quality: str, disparity: str | None) -> list[str]:
    return [
        *_degenerate(found),
        *_references(found),
        *_certainty(found, quality, disparity),
        *_undefined(found, quality, disparity),
        *_withheld(found),
        *_small_groups(found),
        *_unlike(results, found),
        *_incidents(results),
    ]


def _degenerate(found: list[Arm]) -> list[str]:
    said = []
    for arm in found:
        bad = arm.degenerate
        if not bad.any():
            continue
        flagged = arm.groups[(arm.groups["metric"] == "degenerate") & (arm.groups["value"] > 0)]
        groups = list(dict.fromkeys(flagged["name"]))
        where = f"group {wording.listing(groups)}, " if groups else ""
        said.append(f"{wording.plain(arm.label)} ({where}{int(bad.sum())} of {arm.seeds} seeds)")
    if not said:
        return []
    left_out = "" if len(found) == 1 else " Left out of the verdict."
    return [
        f"Degenerate: {wording.listing(said, most=8, longest=200)}. There more than 99\u00a0% of a group's rows get "
        f"the same prediction; such a predictor can look fair and be useless.{left_out}"
    ]


def _references(found: list[Arm]) -> list[str]:
    pooled = [arm.label for arm in found if arm.pooled]
    if not pooled:
        return []
    left_out = "" if len(found) == 1 else ", and is left out of the verdict"
    return [
        f"Reference: {wording.listing(pooled)} trains on all clients' rows in one place. It shows what pooling the "
        f"data would give{left_out}."
    ]


def _certainty(found: list[Arm], quality: str, disparity: str | None) -> list[str]:
    said = []
    fewest = min(arm.seeds for arm in found)
    if fewest == 1:
        more = "" if all(arm.silos for arm in found) else " Run at least 3, better 10."
        said.append(f"One seed only: nothing here says how much another seed would change.{more}")
    elif fewest < MIN_SEEDS:
        said.append(f"Only {fewest} seeds: too few for an interval, so differences are differences of means only.")
    if len(found) == 1:
        return said
    for metric in (quality, disparity):
        order = ranked(found, metric) if metric else []
        close = unclear(order, metric) if metric else []
        if close and metric:
            said.append(
                f"{describe(metric).heading}: {wording.plain(order[0].label)} has the best mean, but cannot be told "
                f"apart from {wording.listing([arm.label for arm in close])} "
                "(paired t-test over seeds, Holm-corrected, 5\u00a0%)."
            )
    if fewest >= MIN_SEEDS:
        said.append(
            "Intervals and tests cover how runs differ from seed to seed on these data; other data may say otherwise."
        )
    return said


def _undefined(found: list[Arm], quality: str, disparity: str | None) -> list[str]:
    said = []
    for metric in (quality, disparity):
        missing = [
            arm.label for arm in found if metric and arm.over_seeds(metric).n < arm.seeds and not arm.withholds(metric)
        ]
        if missing and metric:
            said.append(
                f"{describe(metric).heading} is undefined in some or all seeds of {wording.listing(missing)}; "
                "means are over the seeds where it is defined."
            )
    return said


def _withheld(found: list[Arm]) -> list[str]:
    return [
        f"{wording.plain(arm.label)}: {wording.listing(arm.silos.withholding)} "
        f"withhold{'s' * (len(arm.silos.withholding) == 1)} counts of test rows that are too small to be disclosed. "
        f"{arm.silos.basis()}"
        for arm in found
        if arm.silos is not None and arm.silos.withholding
    ]


def _small_groups(found: list[Arm]) -> list[str]:
    smallest: dict[str, float] = {}
    for arm in found:
        counts = arm.groups[arm.groups["metric"] == "count"].dropna()
        for name, value in counts.groupby("name", sort=False)["value"].min().items():
            smallest[str(name)] = min(value, smallest.get(str(name), np.inf))
    few = [f"{wording.plain(name)} ({rows:.0f})" for name, rows in smallest.items() if rows < SMALL_GROUP]
    if not few:
        return []
    return [
        f"Fewer than {SMALL_GROUP} test rows in group {wording.listing(few)}: these groups' rates, and every disparity "
        "that rests on them, are mostly noise."
    ]


_ALIKE = ("data", "rounds", "clients_per_round", "dropout", "clip", "local", "model", "seeds")


def _unlike(results: Sequence[Result], found: list[Arm]) -> list[str]:
    said = []
    # a reference on pooled rows has one client, as was said
    found = [arm for arm in found if not arm.pooled] or found
    results = [results[i] for i in dict.fromkeys(arm.result for arm in found)]
    differing = [name for name in _ALIKE if len({repr(_plain_value(result.info.get(name))) for result in results}) > 1]
    if "data" not in differing and len({arm.data for arm in found}) > 1:
        differing.insert(0, "partition")
    if differing:
        said.append(
            f"The results differ in more than the method: {', '.join(differing).replace('_', ' ')}. "
            "Part of what is seen may come from that."
        )
    if any(arm.split != "test" for arm in found):
        said.append("No test set: the numbers are from the server's validation rows, which training may have used.")
    return said


def _plain_value(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | range) else value


def _incidents(results: Sequence[Result]) -> list[str]:
    said = []
    notes: dict[str, list[str]] = {}
    for result in results:
        method = str(result.info["method"])
        name = wording.plain(method)
        silos = Silos.of(result)
        said += [f"{name}: {sentence}" for sentence in silos.lost_rounds()] if silos else []
        missing = [silo for silo in silos.each if silo.absence] if silos else []
        if missing:
            absent = wording.listing([f"{wording.plain(silo.name)} ({silo.absence})" for silo in missing], longest=300)
            said.append(f"{name}: some silos did not answer: {absent}.")
        refused = result.rejections[result.rejections["answered"].astype(bool)]
        if len(refused):
            who = refused["client"].astype(str).value_counts()
            said.append(
                f"{name}: {len(refused)} rejected repl{'y' if len(refused) == 1 else 'ies'}, from client "
                f"{wording.listing([str(client) for client in who.index])} "
                f"(first reason: {wording.plain(str(refused['reason'].iloc[0]), 200)})."
            )
        for note in other_notes(result):
            if note.kind != "replies-rejected":  # said just above, with more
                notes.setdefault(str(note), []).append(method)
    return said + [
        f"{wording.listing(list(dict.fromkeys(methods)))}: {wording.plain(note, 400)}"
        for note, methods in notes.items()
    ]
