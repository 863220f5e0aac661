"""The verdict: what the numbers say, in sentences that claim no more than they do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from equifed.metrics.catalogue import describe
from equifed.metrics.disparities import OVER_CLASSES
from equifed.metrics.fronts import dominated
from equifed.metrics.seeds import MAX_SEEDS, ROUNDING, paired, seeds_needed
from equifed.settings import MARGIN
from equifed.verdict import wording
from equifed.verdict.caveats import AT_LEAST, CAVEATS
from equifed.verdict.choose import Choice, choose, is_share, loss_of, margin_of, more_of, ranked, whole_of
from equifed.verdict.comparison import Comparison
from equifed.verdict.groups import Pair, widest_class
from equifed.verdict.variants import Variant

if TYPE_CHECKING:
    from equifed.results.result import Result
    from equifed.target import Confidence
    from equifed.verdict.outcome import Answer


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
    caveats = [caveat for about in CAVEATS for caveat in about(comparison)]
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
    pick = choice.pick.shown
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
    if answer.chosen is None:
        return Verdict(None, sentences, answer.rule, caveats)
    sentences[2:2] = _groups(comparison, answer.chosen)
    return Verdict(answer.chosen.label, sentences, answer.rule, caveats)


def _contradiction(comparison: Comparison, choice: Choice) -> str:
    """What the test rows say against a choice on validation rows; "" for nothing."""
    pick, best, metrics = choice.pick.shown, choice.best.shown, comparison.judged
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
    disparity, pick, best = comparison.disparity, choice.pick.shown, choice.best.shown
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
        lead = f"Take {name} for now: it has {highest}{where}, and no fairer one is shown to lose at most "
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
        leads += f", but {'one seed' if seeds == 1 else f'{seeds} seeds'} cannot show a difference. {AT_LEAST}"
    return [leads, _numbers(comparison, choice)]


def _instead(pick: Variant, best: Variant, disparity: str) -> str:
    """What is gained, in the means."""
    ours, theirs = (wording.number(each.over_seeds(disparity).mean) for each in (pick, best))
    return f"{wording.a(describe(disparity).title)} of {ours} in place of {theirs}"


def _change(comparison: Comparison, variant: Variant, best: Variant) -> str:
    """`a loss of 1.4 points of accuracy [−0.8, 3.5]`, with the paired interval where there is one."""
    lost, test = loss_of(comparison, variant, best), paired(more_of(variant, best, comparison.quality))
    sign = 1 if lost >= 0 else -1
    said = f"a {'loss' if lost >= 0 else 'gain'} of {_amount(comparison, abs(lost), best)}"
    if test is None:
        return said
    low, high = sorted((sign * test.low, sign * test.high))
    return f"{said} [{_percent(comparison, low, best)}, {_percent(comparison, high, best)}]"


def _numbers(comparison: Comparison, choice: Choice) -> str:
    """The pick's quality and disparity, beside those of the best where it is another."""
    pick, best = choice.pick.shown, choice.best.shown
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
    pick, best = choice.pick.shown, choice.best.shown
    test = paired(more_of(pick, best, comparison.quality))
    if not choice.taken or pick is best or test is None or test.high <= margin_of(comparison, best):
        return ""
    return f" They do not confirm the margin: it may lose up to {_amount(comparison, test.high, best)} on them."


def _missing_seeds(comparison: Comparison, choice: Choice, variant: Variant) -> str:
    """Why it is shown neither to be within the margin nor beyond it, and how many seeds would show which."""
    on, best = choice.on, choice.best
    lost, allowed = more_of(variant, best, on.quality), margin_of(on, best)
    if variant.data != best.data:
        return "it ran on other data or another partition, so that the two cannot be compared seed by seed."
    beyond = bool(len(lost)) and lost.mean() > allowed
    test, needed = paired(lost), seeds_needed(-lost, -allowed) if beyond else seeds_needed(lost, allowed)
    if math.isnan(needed):
        known = "they share no seed" if not len(lost) else "one shared seed shows nothing"
        return f"{known}, and how many it takes cannot be estimated. {AT_LEAST}"
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
    if not is_share(comparison.quality):
        return f"{percent}\u00a0% of {title}"
    return f"{percent} point{'' if percent == '1' else 's'} of {title}"


def _amount(comparison: Comparison, lost: float, best: Variant) -> str:
    """A loss of quality in the units of the margin."""
    unit = " points" if is_share(comparison.quality) else "\u00a0%"
    return f"{_percent(comparison, lost, best)}{unit} of {describe(comparison.quality).title}"


def _percent(comparison: Comparison, lost: float, best: Variant) -> str:
    """The same as a number alone."""
    whole = whole_of(comparison, best)
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
    info = variant.result.info
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
