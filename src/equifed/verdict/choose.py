"""Choosing one of several variants: by a margin of quality for the fairest, or by targets for the best.

Both choose only among what is eligible, and trust no mean that an interval does not show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from equifed.metrics.catalogue import describe
from equifed.metrics.evidence import Estimate
from equifed.metrics.seeds import LEVEL, MIN_SEEDS, Paired, corrected, paired
from equifed.results.counts import Split
from equifed.target import Confidence, Target
from equifed.verdict.variants import DATA, Variant, differing_names
from equifed.verdict.wording import listed

if TYPE_CHECKING:
    from equifed.verdict.comparison import Comparison


# -- pairs and orders --------------------------------------------------------------------------------------------------


def against(variants: Sequence[Variant], other: Variant, metric: str) -> list[Paired | None]:
    """Every variant minus `other` in one metric over the seeds they share, corrected together; None for itself, and
    where seeds are too few or the data differ."""
    comparable = [variant for variant in variants if variant is not other and variant.data == other.data]
    tests = {variant: paired(variant.values(metric) - other.values(metric)) for variant in comparable}
    return corrected([tests.get(variant) for variant in variants])


def more_of(variant: Variant, other: Variant, metric: str) -> pd.Series:
    """By seed, how much worse `variant` is than `other`, of the seeds that both have; none where their data differ."""
    if variant.data != other.data:
        return pd.Series(dtype=float)
    return (variant.costs(metric) - other.costs(metric)).dropna()


def ranked(variants: list[Variant], metric: str) -> list[Variant]:
    """Best mean first; variants that are degenerate in a seed, pooled references, and undefined ones are left out."""
    usable = [variant for variant in variants if variant.eligible and np.isfinite(variant.cost(metric))]
    return sorted(usable, key=lambda variant: variant.cost(metric))


def unclear(order: list[Variant], metric: str) -> list[Variant]:
    """Return those not distinguishable from the first of the order; without a test, none is claimed to be as good."""
    tests = against(order, order[0], metric) if order else []
    return [variant for variant, test in zip(order, tests, strict=True) if test is not None and not test.clear]


# -- by a margin -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """The chosen variant, or the current leader if the evidence does not allow a choice."""

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
    """Apply the rule of `verdict`; return None when no predictor is usable.

    A variant that is not the best is chosen only if it is shown to lie within the margin, which a larger deviation
    makes harder. The best is chosen only if the mean of no fairer variant lies within the margin: while one does and
    the seeds do not show it, none is chosen. A fairer variant with a mean beyond the margin does not prevent a choice,
    but stays unsettled until the seeds show that, too.
    """
    quality, disparity = comparison.quality, comparison.disparity
    usable = ranked(comparison.variants, quality)
    if not usable:
        return None
    gap = {variant: variant.cost(disparity) if disparity else math.inf for variant in usable}
    gap = {variant: math.inf if math.isnan(cost) else cost for variant, cost in gap.items()}
    best = min(usable, key=lambda variant: (variant.cost(quality), gap[variant], variant.label))
    allowed = margin_of(comparison, best)
    beaten = comparison.dominated(disparity) if disparity else [False] * len(comparison.variants)
    kept = {variant for variant, is_beaten in zip(comparison.variants, beaten, strict=True) if not is_beaten}
    # none that is as fair as the best is in reach: by the first key the best comes before it, or it is dominated
    fairer = [
        variant
        for variant in sorted(usable, key=lambda variant: (gap[variant], variant.cost(quality), variant.label))
        if variant in kept and gap[variant] < gap[best]
    ]
    tests = {variant: paired(more_of(variant, best, quality)) for variant in fairer}
    within = [variant for variant in fairer if loss_of(comparison, variant, best) <= allowed]
    shown = [variant for variant in within if (test := tests[variant]) is not None and test.high <= allowed]
    if best.over_seeds(quality).n < MIN_SEEDS or (within and not shown):
        return Choice(best, within[0] if within else best, False, [], comparison)
    pick = shown[0] if shown else best
    ahead = fairer[: fairer.index(pick)] if shown else fairer
    unsettled = [variant for variant in ahead if (test := tests[variant]) is None or test.low <= allowed]
    return Choice(best, pick, True, unsettled, comparison)


def margin_of(comparison: Comparison, best: Variant) -> float:
    """The margin in units of the quality: of a share as it is, otherwise relative to the best mean."""
    return comparison.margin * whole_of(comparison, best)


def whole_of(comparison: Comparison, best: Variant) -> float:
    """What the margin is a share of."""
    return 1.0 if is_share(comparison.quality) else abs(best.over_seeds(comparison.quality).mean)


def is_share(metric: str) -> bool:
    return describe(metric).range == (0.0, 1.0)


def loss_of(comparison: Comparison, variant: Variant, best: Variant) -> float:
    """Of the mean quality, over the seeds that both have where they have some."""
    lost = more_of(variant, best, comparison.quality)
    return float(lost.mean()) if len(lost) else variant.cost(comparison.quality) - best.cost(comparison.quality)


# -- by a target -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Aim:
    """Targets, and how sure it is to be that they are met."""

    targets: tuple[Target, ...]
    confidence: Confidence

    @property
    def level(self) -> float:
        """The confidence of intervals; also where they do not decide."""
        return level_of(self.confidence)

    def estimates(self, variant: Variant, level: float | None = None) -> list[Estimate]:
        """Of every target's metric, on the rows of the variant."""
        return [variant.estimate(target.metric, level or self.level) for target in self.targets]

    def decisive(self, target: Target, estimate: Estimate) -> float:
        """What must keep the bound."""
        return estimate.mean if self.confidence == "mean" else target.conservative(estimate)

    def met(self, variant: Variant, level: float | None = None) -> bool:
        """Whether it meets every target, with the confidence asked for."""
        pairs = zip(self.targets, self.estimates(variant, level), strict=True)
        return all(target.met(self.decisive(target, estimate)) for target, estimate in pairs)

    def excess(self, variant: Variant) -> float:
        """How far it misses the target that it misses most, as a share of what the metric can be (of the bound, where
        that has no end); at most 0 where it meets all, infinite where that cannot be said."""
        pairs = zip(self.targets, self.estimates(variant), strict=True)
        return max(target.excess(self.decisive(target, estimate)) / _scale(target) for target, estimate in pairs)

    def missed(self, target: Target, estimate: Estimate) -> bool:
        """Whether a target is missed beyond doubt."""
        end = estimate.lower_end if target.upper else estimate.upper_end
        value = estimate.mean if self.confidence == "mean" else end
        return not math.isnan(value) and not target.met(value)

    def open(self, variant: Variant) -> bool:
        """Whether the two-sided intervals leave it open that all targets are met."""
        pairs = [
            (target, (each.low, each.high) if target.upper else (each.high, each.low))
            for target, each in zip(self.targets, self.estimates(variant), strict=True)
        ]
        may, must = (all(target.met(ends[i]) for target, ends in pairs) for i in (0, 1))
        return may and not must

    def stricter(self, compared: int) -> float:
        """The confidence of each of so many claims that are all to hold with the one asked for."""
        return 1 - (1 - self.level) / compared


def level_of(confidence: Confidence) -> float:
    """The confidence of intervals; also where they do not decide."""
    return 1 - LEVEL if confidence == "mean" else float(confidence)


def _scale(target: Target) -> float:
    """What an excess is measured by."""
    low, high = describe(target.metric).range
    return high - low if math.isfinite(high - low) else abs(target.bound) or 1.0


@dataclass(frozen=True)
class Choosing:
    """What the choice by targets came to."""

    able: list[Variant]
    """Those that may be chosen, on the rows that choose."""
    left_out: dict[str, str]
    """What could not be chosen, by label, and why."""
    chosen: Variant
    """What to take; where nothing meets the targets, what comes nearest."""
    best: Variant
    """Of the best quality among all."""
    compared: int
    """How many settings the claim about the chosen one must hold for at once, itself included."""


@dataclass(frozen=True)
class NotChosen:
    """Why there is no choice by targets."""

    reason: str
    usable: int = 0
    """How many there were, where none of them was looked at."""
    left_out: dict[str, str] = field(default_factory=dict)
    """What could not be chosen, by label, and why."""


def choose_by_target(variants: Sequence[Variant], aim: Aim, quality: str) -> Choosing | NotChosen:
    """Of those that meet every target, the one with the best quality; or why nothing can be chosen.

    Choosing is done on validation rows alone. A single one is answered by its test rows, where there are some.
    """
    usable = [variant for variant in variants if not variant.pooled]
    alone = len(usable) == 1
    if obstacle := _obstacle(usable, aim.targets):
        return NotChosen(obstacle, len(usable))
    split: Split = "test" if alone and usable[0].on("test").measured else "validation"
    able, left_out = [], {}
    for variant in (each.on(split) for each in usable):
        if reason := "" if alone else _unable(variant, quality):
            left_out[variant.label] = reason
        else:
            able.append(variant)
    if not able:
        reasons = " or ".join(dict.fromkeys(left_out.values()))
        return NotChosen(f"no setting can be taken, because {reasons}.", left_out=left_out)

    def cost(variant: Variant) -> float:
        return float(describe(quality).cost(variant.values(quality).to_numpy(np.float64).mean()))

    met = [each for each in able if aim.met(each)]
    # one that the stricter level of the test rows leaves in, where there is one
    met = [each for each in met if (n := _compared(each, able, aim)) == 1 or aim.met(each, aim.stricter(n))] or met
    chosen = min(met, key=cost) if met else min(able, key=lambda each: (aim.excess(each), cost(each)))
    return Choosing(able, left_out, chosen, min(able, key=cost), _compared(chosen, able, aim))


def _obstacle(usable: Sequence[Variant], targets: Sequence[Target]) -> str:
    """Why nothing can be chosen; "" where it can."""
    if not usable:
        return "the results have only references that train on pooled rows, which a federation cannot."
    about = [*{id(each.result): each.result.info for each in usable}.values()]
    data = list(dict.fromkeys(str(info["data"]) for info in about))
    if len(data) > 1:
        return f"the results are about different data, {listed(data)}. Ask about those on the same data."
    # one without validation rows has other numbers of rows, and is left out by name
    facts = [{name: info.get(name) for name in DATA if name != "rows"} for info in about]
    if differing := differing_names(facts):
        what = listed([DATA[name] for name in differing])
        return f"the results are about {data[0]}, but differ in {what}. Ask about those with the same."
    validated = [variant for each in usable if (variant := each.on("validation")).measured]
    if not validated and not any(each.on("test").measured for each in usable):
        return "nothing was measured, because there are no test rows. Keep some: data.test above 0."
    if len(usable) == 1:
        return ""
    if not validated:
        return (
            f"there are {len(usable)} settings to choose from but no validation rows to choose on, and to choose "
            "on test rows would make chance look like success. Hold some back and run again: --validation 0.1, "
            "validation = 0.1 in [data], or equifed.load(..., validation=0.1)."
        )
    absent = [target.metric for target in targets if target.metric not in validated[0].final]
    if absent:
        return (
            f"{listed(absent)} is measured on test rows only, and settings are chosen on validation rows. Ask for "
            "another metric, or about one setting alone."
        )
    return ""


def _unable(variant: Variant, quality: str) -> str:
    """Why it cannot be chosen from several; "" where it can."""
    if variant.needs_validation:
        return "it trains on the validation rows"
    if not variant.measured:
        return "nothing was measured on validation rows"
    if variant.degenerate.any():
        return "some group gets the same prediction for more than 99\u00a0% of its rows"
    if not np.isfinite(variant.values(quality)).all():
        return f"the {describe(quality).title} is not known in every seed"
    return ""


def _compared(chosen: Variant, able: Sequence[Variant], aim: Aim) -> int:
    """How many settings the claim about the chosen one must hold for at once, itself included.

    Where seeds have their own splits these are all that luck might have chosen wrongly: their validation rows leave
    open whether they meet the targets. The others clearly do or clearly do not.
    """
    shared = chosen.on("validation").shared_rows, chosen.on("test").shared_rows
    if aim.confidence == "mean" or max(shared) >= 1:
        return 1  # test rows that are no seed's validation rows
    return 1 + sum(each is not chosen and aim.open(each) for each in able)
