"""The verdict: what the numbers say, in sentences that claim no more than they do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from equifed.metrics.catalogue import describe
from equifed.metrics.seeds import MIN_SEEDS, mean_interval
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
    variants = comparison.variants
    caveats = [caveat for about in _CAVEATS for caveat in about(comparison)]
    if len(variants) == 1:
        return Verdict(variants[0].label, [_single(variants[0], comparison.judged)], caveats)
    chosen, sentences = _compare(variants, comparison.quality, comparison.disparity)
    return Verdict(chosen.label if chosen else None, sentences, caveats)


def ranked(variants: list[Variant], metric: str) -> list[Variant]:
    """Best mean first; variants that are degenerate in a seed, pooled references, and undefined ones are left out."""
    usable = [variant for variant in variants if variant.eligible and np.isfinite(variant.cost(metric))]
    return sorted(usable, key=lambda variant: variant.cost(metric))


def unclear(order: list[Variant], metric: str) -> list[Variant]:
    """Who cannot be told apart from the first of the order; without a test, nobody is claimed to be as good."""
    tests = against(order, order[0], metric) if order else []
    return [variant for variant, test in zip(order, tests, strict=True) if test is not None and not test.clear]


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


def _single(variant: Variant, metrics: list[str]) -> str:
    name = wording.plain(variant.label)
    withheld, reached = [], []
    for metric in metrics:
        title, value = describe(metric).title, _value(variant, metric)
        if variant.withholds(metric):
            withheld.append(title)
        elif metric == metrics[0]:
            reached.append(f"reached {title} {value}")
        else:
            reached.append(f"{'with' if reached else 'has'} {wording.a(title)} of {value}")
    sentences = [f"{name} {' '.join(reached)} after round {variant.last} ({_over([variant])})."] if reached else []
    if withheld:
        sentences.append(
            f"{'Its' if reached else f'Of {name},'} {wording.listing(withheld)} "
            f"{'is' if len(withheld) == 1 else 'are'} not known: the silos withhold counts that are too small to be "
            "disclosed."
        )
    return " ".join([*sentences, "There is nothing else in this report to compare it with."])


def _compare(variants: list[Variant], quality: str, disparity: str | None) -> tuple[Variant | None, list[str]]:
    by_quality = ranked(variants, quality)
    if not by_quality:
        withheld = "withheld by the silos, " if any(variant.withholds(quality) for variant in variants) else ""
        return None, [
            f"None of these predictors is usable: in each, {describe(quality).title} is {withheld}undefined or some "
            "group gets (almost) one and the same prediction in at least one seed."
        ]
    best = by_quality[0]
    title, gap = describe(quality).title, describe(disparity).title if disparity else ""
    highest = f"{'lowest' if describe(quality).better == 'lower' else 'highest'} mean {title}"
    pick = fairest = best
    if disparity:
        pick = next(iter(ranked([best, *unclear(by_quality, quality)], disparity)), best)
        fairest = next(iter(ranked(variants, disparity)), pick)
    reached, gap_reached = _value(pick, quality), _value(pick, disparity) if disparity else ""
    if pick is not best:
        reason = (
            f"the fairest mean {gap}, {gap_reached}, among the methods whose {title} cannot be told apart from the "
            f"best: {reached}, against {_value(best, quality)} of {wording.plain(best.label)}"
        )
    elif not disparity:
        reason = f"the {highest}, {reached}"
    elif fairest is pick and ranked([pick], disparity):
        reason = f"both the {highest}, {reached}, and the fairest mean {gap}, {gap_reached}"
    else:
        reason = f"the {highest}, {reached}, with {wording.a(gap)} of {gap_reached}"
    sentences = [f"Take {wording.plain(pick.label)}: it has {reason} ({_over(variants)})."]
    if disparity and fairest is not pick:
        sentences.append(
            f"The fairest mean {gap} of all is that of {wording.plain(fairest.label)}, {_value(fairest, disparity)}, "
            f"at {title} {_value(fairest, quality)}."
        )
    return pick, sentences


# -- caveats -----------------------------------------------------------------------------------------------------------


def _degenerate(comparison: Comparison) -> Iterator[str]:
    flat = []
    for variant in comparison.variants:
        if seeds := int(variant.degenerate.sum()):
            flagged = variant.groups[(variant.groups["metric"] == "degenerate") & (variant.groups["value"] > 0)]
            groups = list(dict.fromkeys(flagged["name"]))
            where = f"group {wording.listing(groups)}, " if groups else ""
            flat.append(f"{wording.plain(variant.label)} ({where}{seeds} of {variant.seeds} seeds)")
    if flat:
        left_out = "" if len(comparison.variants) == 1 else " Left out of the verdict."
        yield (
            f"Degenerate: {wording.listing(flat, most=8, longest=200)}. There more than 99\u00a0% of a group's rows "
            f"get the same prediction; such a predictor can look fair and be useless.{left_out}"
        )


def _references(comparison: Comparison) -> Iterator[str]:
    if pooled := [variant.label for variant in comparison.variants if variant.pooled]:
        left_out = "" if len(comparison.variants) == 1 else ", and is left out of the verdict"
        yield (
            f"Reference: {wording.listing(pooled)} trains on all clients' rows in one place. It shows what pooling the "
            f"data would give{left_out}."
        )


def _certainty(comparison: Comparison) -> Iterator[str]:
    variants = comparison.variants
    fewest = min(variant.seeds for variant in variants)
    if fewest == 1:
        more = "" if all(variant.silos for variant in variants) else " Run at least 3, better 10."
        yield f"One seed only: nothing here says how much another seed would change.{more}"
    elif fewest < MIN_SEEDS:
        yield f"Only {fewest} seeds: too few for an interval, so differences are differences of means only."
    if len(variants) == 1:
        return
    for metric in comparison.judged:
        order = ranked(variants, metric)
        if close := unclear(order, metric):
            yield (
                f"{describe(metric).heading}: {wording.plain(order[0].label)} has the best mean, but cannot be told "
                f"apart from {wording.listing([variant.label for variant in close])} "
                "(paired t-test over seeds, Holm-corrected, 5\u00a0%)."
            )
    if fewest >= MIN_SEEDS:
        yield "Intervals and tests cover how runs differ from seed to seed on these data; other data may say otherwise."


def _missing(comparison: Comparison) -> Iterator[str]:
    """What is undefined in some seeds, and what is withheld."""
    for metric in comparison.judged:
        partial = [variant for variant in comparison.variants if variant.over_seeds(metric).n < variant.seeds]
        if undefined := [variant.label for variant in partial if not variant.withholds(metric)]:
            yield (
                f"{describe(metric).heading} is undefined in some or all seeds of {wording.listing(undefined)}; "
                "means are over the seeds where it is defined."
            )
    for variant in comparison.variants:
        if variant.silos is not None and (who := variant.silos.withholding):
            yield (
                f"{wording.plain(variant.label)}: {wording.listing(who)} withhold{'s' * (len(who) == 1)} counts of "
                f"test rows that are too small to be disclosed. {variant.silos.basis()}"
            )


def _small_groups(comparison: Comparison) -> Iterator[str]:
    groups = pd.concat([variant.groups for variant in comparison.variants])
    smallest = groups[groups["metric"] == "count"].dropna().groupby("name", sort=False)["value"].min()
    if few := [f"{wording.plain(str(name))} ({rows:.0f})" for name, rows in smallest.items() if rows < SMALL_GROUP]:
        yield (
            f"Fewer than {SMALL_GROUP} test rows in group {wording.listing(few)}: these groups' rates, and every "
            "disparity that rests on them, are mostly noise."
        )


_ALIKE = ("data", "rounds", "clients_per_round", "dropout", "clip", "local", "model", "seeds")


def _unlike(comparison: Comparison) -> Iterator[str]:
    # a reference on pooled rows has one client, which another caveat mentions
    variants = [variant for variant in comparison.variants if not variant.pooled] or comparison.variants
    results = [comparison.results[i] for i in dict.fromkeys(variant.result for variant in variants)]
    known = [{**result.info, **result.settings.to_dict()} for result in results]
    differing = [name for name in _ALIKE if len({repr(facts.get(name)) for facts in known}) > 1]
    if "data" not in differing and len({variant.data for variant in variants}) > 1:
        differing.insert(0, "partition")
    if differing:
        yield (
            f"The results differ in more than the method: {', '.join(differing).replace('_', ' ')}. "
            "Part of what is seen may come from that."
        )
    if any(variant.split != "test" for variant in variants):
        yield "No test set: the numbers are from the server's validation rows, which training may have used."


def _incidents(comparison: Comparison) -> Iterator[str]:
    notes: dict[str, list[str]] = {}
    for result in comparison.results:
        method = str(result.info["method"])
        name = wording.plain(method)
        if silos := Silos.of(result):
            yield from (f"{name}: {sentence}" for sentence in silos.lost_rounds())
            if absent := [f"{wording.plain(silo.name)} ({silo.absence})" for silo in silos.members if silo.absence]:
                yield f"{name}: some silos did not answer: {wording.listing(absent, longest=300)}."
        refused = result.rejections[result.rejections["answered"].astype(bool)]
        if len(refused):
            who = refused["client"].astype(str).value_counts()
            yield (
                f"{name}: {len(refused)} rejected repl{'y' if len(refused) == 1 else 'ies'}, from client "
                f"{wording.listing(list(who.index))} "
                f"(first reason: {wording.plain(str(refused['reason'].iloc[0]), 200)})."
            )
        for note in other_notes(result):
            if note.kind != "replies-rejected":  # counted above, with clients and reasons
                notes.setdefault(str(note), []).append(method)
    for text, methods in notes.items():
        yield f"{wording.listing(list(dict.fromkeys(methods)))}: {wording.plain(text, 400)}"


_CAVEATS = (_degenerate, _references, _certainty, _missing, _small_groups, _unlike, _incidents)
"""In the order in which they are shown."""
