"""The verdict: what the numbers say, in sentences that claim no more than they do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from equifed.metrics.catalogue import describe
from equifed.metrics.disparities import OVER_CLASSES
from equifed.metrics.fronts import dominated
from equifed.metrics.local import SIGNED
from equifed.metrics.seeds import MAX_SEEDS, MIN_SEEDS, ROUNDING, paired, seeds_needed
from equifed.report import wording
from equifed.report.comparison import Comparison, Variant, against, more_of
from equifed.report.groups import SMALL_GROUP, Pair, widest_class
from equifed.report.local import Local
from equifed.report.silos import Silos, other_notes
from equifed.settings import MARGIN

if TYPE_CHECKING:
    from equifed.results.outcome import Answer, Confidence
    from equifed.results.result import Result


@dataclass(frozen=True)
class Verdict:
    """The report's first lines."""

    chosen: str | None
    """The label of the method to take; None when no predictor is usable, the evidence is too thin to say, or test rows
    contradict what validation rows chose."""
    sentences: list[str]
    """A few plain sentences: what to take and why, between which groups it is least fair, what is missing."""
    rule: str
    """By which rule it was chosen; "" where there is nothing to choose from."""
    caveats: list[str]
    """What is not certain, and what went wrong."""


def verdict(
    results: Sequence[Result],
    *,
    disparity: str | None = None,
    margin: float = MARGIN,
    target: Any = None,
    confidence: Confidence | None = None,
) -> Verdict:
    """Which method to take, and how sure that is. With a target, given here or by the results: the answer to it, see
    `equifed.answer`. Without one:

    It is the fairest, by the mean of the disparity, of those that are shown to be no worse than the best by more than
    the margin: the 95 % paired interval of what they lose in quality ends within it. The margin is absolute for a
    share, such as accuracy (0.01 is one point), and relative to the best mean for other numbers, such as an RMSE.
    Predictors that are degenerate, references on pooled rows and dominated settings are never taken. The settings of a
    sweep are chosen on validation rows, where there are such, and told with what the test rows say; where these
    contradict the choice, nothing is taken.
    """
    return verdict_of(Comparison.of(results, disparity, None, margin, target, confidence))


def verdict_of(comparison: Comparison) -> Verdict:
    caveats = [caveat for about in _CAVEATS for caveat in about(comparison)]
    if comparison.answer is not None:
        return _answered(comparison, comparison.answer, caveats)
    if len(comparison.variants) == 1:
        (variant,) = comparison.variants
        sentences = [_single(variant, comparison.judged), *_groups(comparison, variant)]
        return Verdict(variant.label, sentences, "", caveats)
    choice = choose(comparison.for_choosing)
    if choice is None:
        return Verdict(None, [_unusable(comparison.for_choosing)], _rule(comparison), caveats)
    contradiction = _contradiction(comparison, choice) if choice.taken else ""
    pick, _ = _told(comparison, choice)
    if not choice.taken:
        sentences = _too_thin(comparison, choice)
    elif contradiction:
        lead = f"{wording.plain(pick.label)} was chosen on validation rows, but the test rows contradict it: "
        sentences = [f"{lead}{contradiction}. So none is taken.", _numbers(comparison, choice)]
    else:
        sentences = _advice(comparison, choice)
    sentences[2:2] = _groups(comparison, pick)
    return Verdict(pick.label if choice.taken and not contradiction else None, sentences, _rule(comparison), caveats)


def _answered(comparison: Comparison, answer: Answer, caveats: list[str]) -> Verdict:
    """The answer to a target takes the first place; between which groups it is least fair follows."""
    # a method's or a setting's name may be anything; spaces that must not break stay
    sentences = ["\u00a0".join(wording.plain(part, 1000) for part in s.split("\u00a0")) for s in answer.sentences]
    named = [variant for variant in comparison.variants if answer.chosen and variant.label == answer.chosen.label]
    sentences[2:2] = [line for variant in named for line in _groups(comparison, variant)]
    return Verdict(named[0].label if named else None, sentences, answer.rule, caveats)


def ranked(variants: list[Variant], metric: str) -> list[Variant]:
    """Best mean first; variants that are degenerate in a seed, pooled references, and undefined ones are left out."""
    usable = [variant for variant in variants if variant.eligible and np.isfinite(variant.cost(metric))]
    return sorted(usable, key=lambda variant: variant.cost(metric))


def unclear(order: list[Variant], metric: str) -> list[Variant]:
    """Who cannot be told apart from the first of the order; without a test, nobody is claimed to be as good."""
    tests = against(order, order[0], metric) if order else []
    return [variant for variant, test in zip(order, tests, strict=True) if test is not None and not test.clear]


# -- the choice --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """Whom the rule takes, or who leads where it takes nobody yet."""

    best: Variant
    """Of the best mean quality."""
    pick: Variant
    """The one to take, or the fairest that may be within the margin."""
    taken: bool
    """False where the evidence is too thin."""
    unsettled: list[Variant]
    """Fairer than the pick, fairest first, and shown neither to be within the margin nor beyond it."""
    on: Comparison
    """The numbers by which it was chosen, which are those of all the variants here."""


def choose(comparison: Comparison) -> Choice | None:
    """The rule of `verdict`; None when no predictor is usable.

    Noise earns nothing. Who is not the best must be shown to be within the margin, which a larger deviation makes
    harder; and the best is only taken where the mean of nobody fairer is within it: as long as somebody's is and the
    seeds do not show it, nobody is. Somebody fairer whose mean is beyond the margin stands in nobody's way, but stays
    unsettled until the seeds show that, too.
    """
    quality, disparity = comparison.quality, comparison.disparity
    usable = ranked(comparison.variants, quality)
    if not usable:
        return None
    gap = {variant: variant.cost(disparity) if disparity else math.inf for variant in usable}
    gap = {variant: math.inf if math.isnan(cost) else cost for variant, cost in gap.items()}
    best = min(usable, key=lambda variant: (variant.cost(quality), gap[variant], variant.label))
    allowed = _allowed(comparison, best)
    beaten = comparison.dominated(disparity) if disparity else [False] * len(comparison.variants)
    kept = {variant for variant, is_beaten in zip(comparison.variants, beaten, strict=True) if not is_beaten}
    # none that is as fair as the best is in reach: by the first key the best comes before it, or it is dominated
    fairer = [
        variant
        for variant in sorted(usable, key=lambda variant: (gap[variant], variant.cost(quality), variant.label))
        if variant in kept and gap[variant] < gap[best]
    ]
    tests = {variant: paired(more_of(variant, best, quality)) for variant in fairer}
    within = [variant for variant in fairer if _lost(comparison, variant, best) <= allowed]
    shown = [variant for variant in within if (test := tests[variant]) is not None and test.high <= allowed]
    if best.over_seeds(quality).n < MIN_SEEDS or (within and not shown):
        return Choice(best, within[0] if within else best, False, [], comparison)
    pick = shown[0] if shown else best
    ahead = fairer[: fairer.index(pick)] if shown else fairer
    unsettled = [variant for variant in ahead if (test := tests[variant]) is None or test.low <= allowed]
    return Choice(best, pick, True, unsettled, comparison)


def _allowed(comparison: Comparison, best: Variant) -> float:
    """The margin in units of the quality: of a share as it is, otherwise relative to the best mean."""
    return comparison.margin * _whole(comparison, best)


def _whole(comparison: Comparison, best: Variant) -> float:
    """What the margin is a share of."""
    return 1.0 if _is_share(comparison.quality) else abs(best.over_seeds(comparison.quality).mean)


def _is_share(metric: str) -> bool:
    return describe(metric).range == (0.0, 1.0)


def _lost(comparison: Comparison, variant: Variant, best: Variant) -> float:
    """Of the mean quality, over the seeds that both have where they have some."""
    lost = more_of(variant, best, comparison.quality)
    return float(lost.mean()) if len(lost) else variant.cost(comparison.quality) - best.cost(comparison.quality)


def _told(comparison: Comparison, choice: Choice) -> tuple[Variant, Variant]:
    """The pick and the best with the numbers that are told: those of test rows, where others chose."""
    by_label = {variant.label: variant for variant in comparison.variants}
    return by_label[choice.pick.label], by_label[choice.best.label]


def _contradiction(comparison: Comparison, choice: Choice) -> str:
    """What the test rows say against a choice on validation rows; "" for nothing."""
    (pick, best), metrics = _told(comparison, choice), comparison.judged
    if choice.on is comparison:
        return ""
    if not pick.eligible:
        return f"on them it is degenerate in {int(pick.degenerate.sum())} of {pick.seeds} seeds"
    if comparison.disparity is None:
        return ""
    if pick is not best and not pick.cost(comparison.disparity) < best.cost(comparison.disparity):
        gap, means = describe(comparison.disparity).title, _means(comparison.disparity, pick, best)
        return f"on them its {gap} is no better than that of {wording.plain(best.label)}, {means}"
    own = [pick.cost(metric) for metric in metrics]
    for other, when_chosen in zip(comparison.variants, choice.on.variants, strict=True):
        theirs = [other.cost(metric) for metric in metrics]
        if other.eligible and when_chosen.eligible and dominated([own, theirs])[0]:
            said = [f"{describe(metric).title} {_means(metric, other, pick)}" for metric in metrics]
            return f"on them {wording.plain(other.label)} beats it, with {wording.listing(said)}"
    return ""


# -- its words ---------------------------------------------------------------------------------------------------------


def _means(metric: str, *variants: Variant) -> str:
    """`0.1 against 0.2`."""
    return " against ".join(wording.number(variant.over_seeds(metric).mean) for variant in variants)


def _value(variant: Variant, metric: str) -> str:
    """`mean [low, high]`, or `mean ± std` where there is no interval."""
    bounds = variant.interval(metric)
    if bounds is None:
        return wording.spread(*variant.over_seeds(metric), variant.seeds)
    mean, _, n = variant.over_seeds(metric)
    return (
        f"{wording.spread(mean, math.nan, n, variant.seeds)} [{wording.number(bounds[0])}, {wording.number(bounds[1])}]"
    )


def _over(variants: list[Variant], metrics: list[str]) -> str:
    """What the numbers of a sentence are."""
    counts = sorted({variant.seeds for variant in variants})
    bounded = [metric for metric in metrics if any(variant.interval(metric) for variant in variants)]
    by_rows = [metric for metric in bounded if all(variant.shows(metric) for variant in variants)]
    also = f", of {wording.listing([describe(metric).title for metric in by_rows])} also by rows" if by_rows else ""
    by = "rows" if counts == [1] else "rows and seeds" if by_rows == bounded else f"seeds{also}"
    brackets = f", in brackets 95\u00a0% intervals by {by}" if bounded else ""
    if counts == [1]:
        return f"one seed{brackets}"
    seeds = f"{' or '.join(map(str, counts))} seeds"
    return f"means over {seeds}{brackets}" if bounded else f"mean ± sample std over {seeds}"


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
    sentences = (
        [f"{name} {' '.join(reached)} after round {variant.last} ({_over([variant], metrics)})."] if reached else []
    )
    if withheld:
        sentences.append(
            f"{'Its' if reached else f'Of {name},'} {wording.listing(withheld)} "
            f"{'is' if len(withheld) == 1 else 'are'} not known: the silos withhold counts that are too small to be "
            "disclosed."
        )
    return " ".join([*sentences, "There is nothing else here to compare it with."])


def _unusable(comparison: Comparison) -> str:
    quality = comparison.quality
    withheld = "withheld by the silos, " if any(variant.withholds(quality) for variant in comparison.variants) else ""
    return (
        f"None of these predictors is usable: in each, {describe(quality).title} is {withheld}undefined or some "
        "group gets (almost) one and the same prediction in at least one seed."
    )


def _advice(comparison: Comparison, choice: Choice) -> list[str]:
    """Whom to take and why; the numbers; who may be fairer still; who is fairest at what loss."""
    disparity, (pick, best) = comparison.disparity, _told(comparison, choice)
    name, where = wording.plain(pick.label), _where(comparison, choice)
    numbers = _numbers(comparison, choice)
    highest = f"the {_best_word(comparison.quality)} mean {describe(comparison.quality).title}"
    order = ranked(choice.on.variants, disparity) if disparity else []
    if disparity is None or not order:
        return [f"Take {name}: it has {highest}{where}.", numbers]
    gap, own = describe(disparity).title, choice.pick.cost(disparity)
    fairest = next((variant for variant in order if math.isnan(own) or variant.cost(disparity) < own), choice.pick)
    if pick is not best:
        chosen = f", chosen{where}: on test rows," if where else ":"
        lead = f"Take {name}{chosen} {_instead(pick, best, disparity)}, at {_change(comparison, pick, best)} against "
        lead += f"the best{where}, {wording.plain(best.label)}.{_doubt(pick, best, disparity)}"
    elif fairest is choice.pick:
        lead = f"Take {name}: it has both {highest} and the fairest mean {gap}{where}{_shared(choice)}."
    elif choice.unsettled:
        lead = f"Take {name} for now: it has {highest}{where}, and nobody fairer is shown to lose at most "
        lead += f"{_margin(comparison)}, nor are all shown to lose more."
    else:
        lead = f"Take {name}: it has {highest}{where}, and all that are fairer, and not dominated, are shown to lose "
        lead += f"more than {_margin(comparison)}."
    sentences = [lead, numbers]
    for variant in choice.unsettled[:_NAMED]:
        fairer = f"{wording.plain(variant.label)} has a {'still ' * (pick is not best)}fairer mean{where}"
        sentences.append(f"{fairer}, {_value(variant, disparity)}, but {_missing_seeds(comparison, choice, variant)}")
    if rest := choice.unsettled[_NAMED:]:
        sentences.append(f"The same is open of {wording.listing([variant.label for variant in rest])}.")
    if fairest not in (choice.pick, *choice.unsettled):
        sentences.append(
            f"The fairest mean {gap} of all{where} is that of {wording.plain(fairest.label)}, "
            f"{_value(fairest, disparity)}, at {_change(choice.on, fairest, choice.best)}."
        )
    return sentences


_NAMED = 3
"""Of those that are unsettled, how many are told with their numbers."""


def _where(comparison: Comparison, choice: Choice) -> str:
    """The rows of the choice, where they are not those of the numbers."""
    return "" if choice.on is comparison else " on validation rows"


def _shared(choice: Choice) -> str:
    """Who has the very numbers of the pick."""
    alike = [
        variant.label
        for variant in choice.on.variants
        if variant is not choice.pick
        and variant.eligible
        and all(math.isclose(variant.cost(m), choice.pick.cost(m), abs_tol=ROUNDING) for m in choice.on.judged)
    ]
    return f", both shared with {wording.listing(alike)}" if alike else ""


def _too_thin(comparison: Comparison, choice: Choice) -> list[str]:
    """Who leads, and what is missing to take it; the numbers."""
    pick, best = choice.pick, choice.best
    leads = f"The evidence is too thin to take one: {wording.plain(pick.label)} leads{_where(comparison, choice)}"
    if pick is not best and comparison.disparity is not None:
        leads += f" with {_instead(pick, best, comparison.disparity)}, but {_missing_seeds(comparison, choice, pick)}"
    else:
        seeds = best.over_seeds(comparison.quality).n
        leads += f", but {'one seed' if seeds == 1 else f'{seeds} seeds'} cannot show a difference. {_AT_LEAST}"
    return [leads, _numbers(comparison, choice)]


def _instead(pick: Variant, best: Variant, disparity: str) -> str:
    """What is gained, in the means."""
    ours, theirs = (wording.number(each.over_seeds(disparity).mean) for each in (pick, best))
    return f"{wording.a(describe(disparity).title)} of {ours} in place of {theirs}"


def _change(comparison: Comparison, variant: Variant, best: Variant) -> str:
    """`a loss of 1.4 points of accuracy [−0.8, 3.5]`, with the paired interval where there is one."""
    lost, test = _lost(comparison, variant, best), paired(more_of(variant, best, comparison.quality))
    sign = 1 if lost >= 0 else -1
    said = f"a {'loss' if lost >= 0 else 'gain'} of {_amount(comparison, abs(lost), best)}"
    if test is None:
        return said
    low, high = sorted((sign * test.low, sign * test.high))
    return f"{said} [{_percent(comparison, low, best)}, {_percent(comparison, high, best)}]"


def _numbers(comparison: Comparison, choice: Choice) -> str:
    """The pick's quality and disparity, beside those of the best where it is another."""
    pick, best = _told(comparison, choice)
    shown = [pick] if pick is best else [pick, best]
    values = [
        f"{describe(metric).title} {' against '.join(_value(variant, metric) for variant in shown)}"
        for metric in comparison.judged
    ]
    said = f"{wording.listing(values, longest=200)} ({_over(shown, comparison.judged)})."
    if choice.on is not comparison:
        return f"On test rows, {said}{_confirmation(comparison, choice)}"
    return said[:1].upper() + said[1:]


def _confirmation(comparison: Comparison, choice: Choice) -> str:
    """What the test rows do not confirm of a choice on validation rows."""
    pick, best = _told(comparison, choice)
    test = paired(more_of(pick, best, comparison.quality))
    if not choice.taken or pick is best or test is None or test.high <= _allowed(comparison, best):
        return ""
    return f" They do not confirm the margin: it may lose up to {_amount(comparison, test.high, best)} on them."


_AT_LEAST = "Run at least 3, better 10."


def _missing_seeds(comparison: Comparison, choice: Choice, variant: Variant) -> str:
    """Why it is shown neither to be within the margin nor beyond it, and how many seeds would show which."""
    on, best = choice.on, choice.best
    lost, allowed = more_of(variant, best, on.quality), _allowed(on, best)
    if variant.data != best.data:
        return "it ran on other data or another partition, so that the two cannot be compared seed by seed."
    beyond = bool(len(lost)) and lost.mean() > allowed
    test, needed = paired(lost), seeds_needed(-lost, -allowed) if beyond else seeds_needed(lost, allowed)
    if math.isnan(needed):
        known = "they share no seed" if not len(lost) else "one shared seed shows nothing"
        return f"{known}, and how many it takes cannot be estimated. {_AT_LEAST}"
    where = f",{_where(comparison, choice)}" * (choice.on is not comparison)
    if test is None:
        why = f"{len(lost)} seeds are too few for an interval:"
    elif beyond:
        why = f"at {_change(on, variant, best)} over {len(lost)} seeds{where}, which excludes neither that it stays "
        why += "within the margin nor the contrary:"
    else:
        why = f"over {len(lost)} seeds{where}{',' * bool(where)} it may lose up to {_amount(on, test.high, best)}:"
    what = "to settle it" if beyond else "to show that it stays within the margin"
    if math.isinf(needed):
        return f"{why} it would take more than {MAX_SEEDS:,} seeds {what}."
    return f"{why} about {needed:.0f} seeds would be needed {what}."


def _doubt(pick: Variant, best: Variant, disparity: str) -> str:
    """That the gain in fairness may be noise, where it may."""
    test, gap = paired(more_of(pick, best, disparity)), describe(disparity).title
    if test is None:
        return f" Whether its {gap} is really smaller cannot be tested: too few seeds have it."
    if test.high < 0:
        return ""
    bounds = f"{wording.signed(test.difference)} [{wording.signed(test.low)}, {wording.signed(test.high)}]"
    from_fair = "distance from 1 of its " if describe(disparity).better == "one" else ""
    return f" That gain may be noise: the {from_fair}{gap} changes by {bounds}."


def _best_word(metric: str) -> str:
    return "lowest" if describe(metric).better == "lower" else "highest"


def _margin(comparison: Comparison) -> str:
    """`1 point of accuracy`, `1 % of RMSE`."""
    title, percent = describe(comparison.quality).title, f"{100 * comparison.margin:g}"
    if not _is_share(comparison.quality):
        return f"{percent}\u00a0% of {title}"
    return f"{percent} point{'' if percent == '1' else 's'} of {title}"


def _amount(comparison: Comparison, lost: float, best: Variant) -> str:
    """A loss of quality in the units of the margin."""
    unit = " points" if _is_share(comparison.quality) else "\u00a0%"
    return f"{_percent(comparison, lost, best)}{unit} of {describe(comparison.quality).title}"


def _percent(comparison: Comparison, lost: float, best: Variant) -> str:
    """The same as a number alone."""
    whole = _whole(comparison, best)
    return wording.percent(lost / whole if whole else math.inf)


def _rule(comparison: Comparison) -> str:
    out = "degenerate predictors and references on pooled rows"
    if comparison.disparity is None:
        return f"Rule: the {_best_word(comparison.quality)} mean {describe(comparison.quality).title}; {out} are out."
    where = "" if comparison.for_choosing is comparison else ", on validation rows"
    return (
        f"Rule{where}: the fairest mean {describe(comparison.disparity).title} of those that lose at most "
        f"{_margin(comparison)} against the best (upper end of the 95\u00a0% paired interval over seeds); {out} are "
        "out, and so are settings that another beats in both means."
    )


# -- groups ------------------------------------------------------------------------------------------------------------


def _groups(comparison: Comparison, variant: Variant) -> list[str]:
    """Between which groups it is least fair, and which class is positive."""
    info = comparison.results[variant.result].info
    said = " ".join(filter(None, [_widest(comparison, variant, info), wording.outcome(info)]))
    return [said] if said else []


def _widest(comparison: Comparison, variant: Variant, info: Mapping[str, Any]) -> str:
    """The two groups that are farthest apart, by their mean rates over seeds."""
    if comparison.disparity is None:
        return ""
    # distributions of numbers have no rate to compare, but a mean
    counts = variant.tables(comparison.disparity)
    if counts is not None and counts.shape[-1] > 2 and describe(comparison.disparity).compares in OVER_CLASSES:
        return _widest_class(comparison, variant, counts, info["classes"])
    pair = variant.worst_pair(comparison.disparity) or variant.worst_pair("mean_difference")
    if pair is None:
        return ""
    low, high = wording.group(pair.low), wording.group(pair.high)
    negative, positive = (f"'{wording.plain(str(name))}'" for name in (info.get("classes") or ["", ""])[:2])
    rate = describe(pair.rate)
    if not rate.less_often:
        much = f"{wording.number(pair.difference)} below that of {high}"
        said = f"the {rate.title} of {low} is {much}"
        rates = f"{wording.number(pair.low_rate)} against {wording.number(pair.high_rate)}"
    else:
        often = f"{100 * pair.difference:.1f} points less often than {high}"
        said = rate.less_often.format(low=low, negative=negative, positive=positive, often=often)
        rates = f"{100 * pair.low_rate:.1f}\u00a0% against {100 * pair.high_rate:.1f}\u00a0%"
    who = "" if len(comparison.variants) == 1 else f"With {wording.plain(variant.label)}, "
    said = f"{who}{said} ({rates}{_turned(variant, pair)}).{_by_seed(variant, comparison.disparity, pair)}"
    return said[:1].upper() + said[1:]


def _widest_class(comparison: Comparison, variant: Variant, counts: np.ndarray, classes: Sequence[Any]) -> str:
    """The same of more than two classes, with the class in which they are."""
    found = widest_class(counts, list(dict.fromkeys(variant.groups["name"])), str(comparison.disparity))
    if found is None:
        return ""
    label, predicted, low, high, rates = found
    names = [f"'{wording.plain(str(name))}'" for name in classes]
    of = "" if label is None else f"of those labelled {names[predicted if label == -1 else label]}, "
    less, more = 100 * rates.mean(0)
    who = "" if len(comparison.variants) == 1 else f"With {wording.plain(variant.label)}, "
    said = (
        f"{who}{of}{wording.group(low)} is predicted {names[predicted]} {more - less:.1f} points less often than "
        f"{wording.group(high)} ({less:.1f}\u00a0% against {more:.1f}\u00a0%)."
    )
    return said[:1].upper() + said[1:]


def _turned(variant: Variant, pair: Pair) -> str:
    """In how many seeds it is the other way round."""
    rates = variant.groups[variant.groups["metric"] == pair.rate].pivot_table(
        index="seed", columns="name", values="value"
    )
    seeds = int((rates[pair.low] > rates[pair.high]).sum())
    return f"; in {seeds} of {len(rates)} seeds the other way round" if seeds else ""


def _by_seed(variant: Variant, disparity: str, pair: Pair) -> str:
    """Why the mean disparity is larger than the difference of the mean rates, where more than rounding is between."""
    mean = variant.over_seeds(disparity).mean
    if pair.rate not in describe(disparity).between or describe(disparity).better != "zero":
        return ""
    if not mean - pair.difference > 0.0005 * max(1.0, mean):
        return ""
    return (
        f" The {describe(disparity).title} is larger, {wording.number(mean)}, because it is the mean of the widest gap "
        "of each seed, which is not always between these groups in this direction."
    )


# -- caveats -----------------------------------------------------------------------------------------------------------


def _degenerate(comparison: Comparison) -> Iterator[str]:
    """On the rows that choose, and on test rows where these only confirm."""
    on = comparison if comparison.answer is not None else comparison.for_choosing
    for rows in dict.fromkeys([on, comparison]):
        flat = []
        for variant in rows.variants:
            if seeds := int(variant.degenerate.sum()):
                flagged = variant.groups[(variant.groups["metric"] == "degenerate") & (variant.groups["value"] > 0)]
                groups = list(dict.fromkeys(flagged["name"]))
                where = f"group {wording.listing(groups)}, " if groups else ""
                flat.append(f"{wording.plain(variant.label)} ({where}{seeds} of {variant.seeds} seeds)")
        if flat:
            left_out = " Left out of the verdict." if rows is on else " It is not taken, whatever validation rows say."
            if len(comparison.variants) == 1:
                left_out = ""
            where = "" if on is comparison else f" on {rows.variants[0].split} rows"
            yield (
                f"Degenerate{where}: {wording.listing(flat, most=8, longest=200)}. There more than 99\u00a0% of a "
                f"group's rows get the same prediction; such a predictor can look fair and be useless.{left_out}"
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
        more = "" if all(variant.silos for variant in variants) or len(variants) > 1 else f" {_AT_LEAST}"
        yield f"One seed only: nothing here says how much another seed would change.{more}"
    elif fewest < MIN_SEEDS:
        yield f"Only {fewest} seeds: too few for an interval, so differences are differences of means only."
    if len(variants) == 1:
        return
    where = " on test rows" if comparison.answer is None and comparison.for_choosing is not comparison else ""
    for metric in comparison.judged:
        order = ranked(variants, metric)
        if close := unclear(order, metric):
            yield (
                f"{describe(metric).heading}: {wording.plain(order[0].label)} has the best mean{where}, but cannot be "
                f"told apart from {wording.listing([variant.label for variant in close])} "
                "(paired t-test over seeds, Holm-corrected, 5\u00a0%)."
            )
    if fewest >= MIN_SEEDS:
        yield (
            "Tests, and the intervals of a loss or a change, are paired over seeds: they cover how runs differ from "
            "seed to seed on these data. The intervals of a metric that follows from counts also cover the noise of so "
            "many test rows. Other data may say otherwise."
        )


def _noise(comparison: Comparison) -> Iterator[str]:
    """Whose disparity is within what a fair model would show."""
    disparity = comparison.disparity
    if disparity is None:
        return
    within = [variant for variant in comparison.variants if variant.eligible and variant.within_floor(disparity)]
    if within:
        metric = describe(disparity)
        floors = [wording.number(variant.noise_floor(disparity)) for variant in within]
        shows = floors[0] if len(set(floors)) == 1 else f"{min(floors)} to {max(floors)}"
        yield (
            f"Noise floor: the {metric.title} of {wording.listing([variant.label for variant in within])} cannot be "
            f"told from {'1' if metric.better == 'one' else '0'} on so many test rows: a perfectly fair model would "
            f"show {'down' if metric.better == 'one' else 'up'} to {shows} by chance (95\u00a0%)."
        )


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


def _local(comparison: Comparison) -> Iterator[str]:
    """Where clients' own gaps tell another story than the one over all of them."""
    metric = comparison.disparity if comparison.disparity in SIGNED else SIGNED[0]
    said = []
    for variant in comparison.variants:
        local = Local.of(variant.local_gaps, metric)
        if local is None or not variant.eligible:
            continue
        parts = {"the reverse": local.reversed, f"wider than all clients' {wording.number(local.overall)}": local.wider}
        if found := [f"{what} at {len(who)}" for what, who in parts.items() if who]:
            said.append(f"{wording.plain(variant.label)} {' and '.join(found)} of {len(local.clients)}")
    if said:
        yield (
            f"Some clients' own {describe(metric).title} is, beyond chance, the reverse of the one over all clients or "
            f"wider: {wording.listing(said, most=4, longest=200)}."
        )


_ALIKE = ("data", "rounds", "clients_per_round", "dropout", "clip", "robust", "liars", "local", "model", "seeds")


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
            if note.kind not in ("replies-rejected", "kernel"):  # counted above; no incident
                notes.setdefault(str(note), []).append(method)
    for text, methods in notes.items():
        yield f"{wording.listing(list(dict.fromkeys(methods)))}: {wording.plain(text, 400)}"


def _chosen_on_test(comparison: Comparison) -> Iterator[str]:
    chosen = comparison.answer is None and any(result.swept for result in comparison.results)
    if chosen and len(comparison.variants) > 1 and comparison.for_choosing is comparison:
        yield (
            "The setting is chosen by the rows that its numbers are from, so they look a little better than they are: "
            "there are no validation rows that no method trains on."
        )


_CAVEATS = (
    *(_degenerate, _references, _noise, _certainty, _chosen_on_test),
    *(_missing, _small_groups, _local, _unlike, _incidents),
)
"""In the order in which they are shown."""
