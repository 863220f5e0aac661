"""The verdict: what the numbers say, in sentences that claim no more than they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equifed.metrics.catalogue import describe
from equifed.metrics.seeds import MIN_SEEDS, Paired, mean_interval
from equifed.report import wording
from equifed.report.comparison import Comparison, Variant, against
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


def verdict_of(comparison: Comparison) -> Verdict:
    variants, quality, disparity = comparison.variants, comparison.quality, comparison.disparity
    caveats = _caveats(variants, comparison.results, quality, disparity)
    if len(variants) == 1:
        return Verdict(variants[0].label, _single(variants[0], quality, disparity), caveats)
    chosen, sentences = _compare(variants, quality, disparity)
    return Verdict(chosen.label if chosen else None, sentences, caveats)


def ranked(variants: list[Variant], metric: str) -> list[Variant]:
    """Best mean first; variants that are degenerate in a seed, pooled references, and undefined ones are left out."""
    scored = [(variant.cost(metric), variant) for variant in variants]
    usable = [(bad, variant) for bad, variant in scored if np.isfinite(bad) and variant.eligible]
    return [variant for _, variant in sorted(usable, key=lambda pair: pair[0])]


def tested(order: list[Variant], metric: str) -> dict[str, Paired]:
    """The first of the order against each of the others that can be paired with it, corrected together; by label."""
    tests = against(order, order[0], metric) if order else []
    return {variant.label: test for variant, test in zip(order, tests, strict=True) if test is not None}


def unclear(order: list[Variant], metric: str) -> list[Variant]:
    """Who cannot be told apart from the first of the order; without a test, nobody is claimed to be as good."""
    tests = tested(order, metric)
    return [variant for variant in order[1:] if variant.label in tests and not tests[variant.label].clear]


def _value(variant: Variant, metric: str) -> str:
    """`mean ± std [low, high]`."""
    text = wording.spread(*variant.over_seeds(metric), variant.seeds)
    bounds = mean_interval(variant.values(metric))
    return text if bounds is None else f"{text} [{wording.number(bounds[0])}, {wording.number(bounds[1])}]"


def _over(variants: list[Variant]) -> str:
    """What the numbers of a sentence are."""
    counts = sorted({variant.seeds for variant in variants})
    if counts == [1]:
        return "one seed"
    brackets = "; in brackets the mean's 95\u00a0% interval" if counts[-1] >= MIN_SEEDS else ""
    return f"mean ± sample std over {' or '.join(map(str, counts))} seeds{brackets}"


def _single(variant: Variant, quality: str, disparity: str | None) -> list[str]:
    metrics = [quality, *([disparity] if disparity else [])]
    withheld = [metric for metric in metrics if variant.withholds(metric)]
    reached = "" if quality in withheld else f" reached {describe(quality).title} {_value(variant, quality)}"
    if disparity and disparity not in withheld:
        reached += (
            f"{' with' if reached else ' has'} {wording.a(describe(disparity).title)} of {_value(variant, disparity)}"
        )
    text = (
        f"{wording.plain(variant.label)}{reached} after round {variant.last} ({_over([variant])})." if reached else ""
    )
    if withheld:
        what = wording.listing([describe(metric).title for metric in withheld])
        whose = "Its" if text else f"Of {wording.plain(variant.label)},"
        text += (
            f"{' ' * bool(text)}{whose} {what} {'is' if len(withheld) == 1 else 'are'} not known: the silos withhold "
            "counts that are too small to be disclosed."
        )
    return [f"{text} There is nothing else in this report to compare it with."]


def _compare(variants: list[Variant], quality: str, disparity: str | None) -> tuple[Variant | None, list[str]]:
    by_quality = ranked(variants, quality)
    if not by_quality:
        withheld = "withheld by the silos, " if any(variant.withholds(quality) for variant in variants) else ""
        return None, [
            f"None of these predictors is usable: in each, {describe(quality).title} is {withheld}undefined or some "
            "group gets (almost) one and the same prediction in at least one seed."
        ]
    best = by_quality[0]
    quality_word = f"{'lowest' if describe(quality).better == 'lower' else 'highest'} mean {describe(quality).title}"
    over = _over(variants)
    by_gap = ranked([best, *unclear(by_quality, quality)], disparity) if disparity else []
    pick = by_gap[0] if by_gap else best
    fairest = ranked(variants, disparity)[:1] if disparity else []
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


def _caveats(variants: list[Variant], results: Sequence[Result], quality: str, disparity: str | None) -> list[str]:
    return [
        *_degenerate(variants),
        *_references(variants),
        *_certainty(variants, quality, disparity),
        *_undefined(variants, quality, disparity),
        *_withheld(variants),
        *_small_groups(variants),
        *_unlike(results, variants),
        *_incidents(results),
    ]


def _degenerate(variants: list[Variant]) -> list[str]:
    flat = []
    for variant in variants:
        bad = variant.degenerate
        if not bad.any():
            continue
        flagged = variant.groups[(variant.groups["metric"] == "degenerate") & (variant.groups["value"] > 0)]
        groups = list(dict.fromkeys(flagged["name"]))
        where = f"group {wording.listing(groups)}, " if groups else ""
        flat.append(f"{wording.plain(variant.label)} ({where}{int(bad.sum())} of {variant.seeds} seeds)")
    if not flat:
        return []
    left_out = "" if len(variants) == 1 else " Left out of the verdict."
    return [
        f"Degenerate: {wording.listing(flat, most=8, longest=200)}. There more than 99\u00a0% of a group's rows get "
        f"the same prediction; such a predictor can look fair and be useless.{left_out}"
    ]


def _references(variants: list[Variant]) -> list[str]:
    pooled = [variant.label for variant in variants if variant.pooled]
    if not pooled:
        return []
    left_out = "" if len(variants) == 1 else ", and is left out of the verdict"
    return [
        f"Reference: {wording.listing(pooled)} trains on all clients' rows in one place. It shows what pooling the "
        f"data would give{left_out}."
    ]


def _certainty(variants: list[Variant], quality: str, disparity: str | None) -> list[str]:
    caveats = []
    fewest = min(variant.seeds for variant in variants)
    if fewest == 1:
        more = "" if all(variant.silos for variant in variants) else " Run at least 3, better 10."
        caveats.append(f"One seed only: nothing here says how much another seed would change.{more}")
    elif fewest < MIN_SEEDS:
        caveats.append(f"Only {fewest} seeds: too few for an interval, so differences are differences of means only.")
    if len(variants) == 1:
        return caveats
    for metric in (quality, disparity):
        order = ranked(variants, metric) if metric else []
        close = unclear(order, metric) if metric else []
        if close and metric:
            caveats.append(
                f"{describe(metric).heading}: {wording.plain(order[0].label)} has the best mean, but cannot be told "
                f"apart from {wording.listing([variant.label for variant in close])} "
                "(paired t-test over seeds, Holm-corrected, 5\u00a0%)."
            )
    if fewest >= MIN_SEEDS:
        caveats.append(
            "Intervals and tests cover how runs differ from seed to seed on these data; other data may say otherwise."
        )
    return caveats


def _undefined(variants: list[Variant], quality: str, disparity: str | None) -> list[str]:
    caveats = []
    for metric in (quality, disparity):
        missing = [
            variant.label
            for variant in variants
            if metric and variant.over_seeds(metric).n < variant.seeds and not variant.withholds(metric)
        ]
        if missing and metric:
            caveats.append(
                f"{describe(metric).heading} is undefined in some or all seeds of {wording.listing(missing)}; "
                "means are over the seeds where it is defined."
            )
    return caveats


def _withheld(variants: list[Variant]) -> list[str]:
    return [
        f"{wording.plain(variant.label)}: {wording.listing(variant.silos.withholding)} "
        f"withhold{'s' * (len(variant.silos.withholding) == 1)} counts of test rows that are too small to be "
        f"disclosed. {variant.silos.basis()}"
        for variant in variants
        if variant.silos is not None and variant.silos.withholding
    ]


def _small_groups(variants: list[Variant]) -> list[str]:
    smallest: dict[str, float] = {}
    for variant in variants:
        counts = variant.groups[variant.groups["metric"] == "count"].dropna()
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


def _unlike(results: Sequence[Result], variants: list[Variant]) -> list[str]:
    caveats = []
    # a reference on pooled rows has one client, which another caveat mentions
    variants = [variant for variant in variants if not variant.pooled] or variants
    results = [results[i] for i in dict.fromkeys(variant.result for variant in variants)]
    known = [{**result.info, **result.settings.to_dict()} for result in results]
    differing = [name for name in _ALIKE if len({repr(facts.get(name)) for facts in known}) > 1]
    if "data" not in differing and len({variant.data for variant in variants}) > 1:
        differing.insert(0, "partition")
    if differing:
        caveats.append(
            f"The results differ in more than the method: {', '.join(differing).replace('_', ' ')}. "
            "Part of what is seen may come from that."
        )
    if any(variant.split != "test" for variant in variants):
        caveats.append("No test set: the numbers are from the server's validation rows, which training may have used.")
    return caveats


def _incidents(results: Sequence[Result]) -> list[str]:
    caveats = []
    notes: dict[str, list[str]] = {}
    for result in results:
        method = str(result.info["method"])
        name = wording.plain(method)
        silos = Silos.of(result)
        caveats += [f"{name}: {sentence}" for sentence in silos.lost_rounds()] if silos else []
        missing = [silo for silo in silos.members if silo.absence] if silos else []
        if missing:
            absent = wording.listing([f"{wording.plain(silo.name)} ({silo.absence})" for silo in missing], longest=300)
            caveats.append(f"{name}: some silos did not answer: {absent}.")
        refused = result.rejections[result.rejections["answered"].astype(bool)]
        if len(refused):
            who = refused["client"].astype(str).value_counts()
            caveats.append(
                f"{name}: {len(refused)} rejected repl{'y' if len(refused) == 1 else 'ies'}, from client "
                f"{wording.listing([str(client) for client in who.index])} "
                f"(first reason: {wording.plain(str(refused['reason'].iloc[0]), 200)})."
            )
        for note in other_notes(result):
            if note.kind != "replies-rejected":  # counted above, with clients and reasons
                notes.setdefault(str(note), []).append(method)
    return caveats + [
        f"{wording.listing(list(dict.fromkeys(methods)))}: {wording.plain(note, 400)}"
        for note, methods in notes.items()
    ]
