"""The answer to a target: which method and setting meets it, how sure that is, and at what cost.

Choosing is done on validation rows alone. A setting meets a target there if the conservative end of its interval does
(or the mean, where that is all that is asked for); of those that meet every target, the one with the best quality is
chosen. The test rows only confirm: the target is met with confidence if the conservative end meets it there too.
Nothing is chosen on them. Yet where every seed splits the data anew, one seed's validation rows are another's test
rows, and luck in the choice shows there again: the claim is then made for all settings at once that luck might have
chosen (Bonferroni), and one that validation rows show at that level is preferred. Several targets need no correction:
all of them must be met, each with the confidence asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from equifed.errors import ConfigError
from equifed.metrics import catalogue, evidence
from equifed.metrics.catalogue import describe
from equifed.metrics.seeds import paired
from equifed.results.counts import SPLITS, Split
from equifed.target import Confidence, Target, check_confidence, parse_targets
from equifed.verdict.choose import Aim, Choosing, choose_by_target, more_of
from equifed.verdict.outcome import Answer, Finding, Floor, Status
from equifed.verdict.variants import Variant, variants_of

if TYPE_CHECKING:
    from equifed.results.result import Result


def answer(
    results: Result | Sequence[Result],
    target: Any = None,
    confidence: Confidence | None = None,
) -> Answer:
    """Which of the methods and settings in the results meets the target, or comes nearest.

    target: a text such as "demographic_parity_difference <= 0.05", or several; confidence: between 0.5 and 1, or
    "mean". Default: those that the results were made with.
    """
    from equifed.results.result import Result

    given = [results] if isinstance(results, Result) else list(results)
    return answer_of(given, variants_of(given), aim_of(given, target, confidence))


def aim_of(results: Sequence[Result], target: Any, confidence: Any) -> Aim:
    """What is given, or else what the results were made with; refused where they do not measure it."""
    if not results:
        raise ConfigError("An answer needs at least one result, got none.")
    stored = [text for result in results for text in result.settings.target]
    targets = parse_targets(stored if target is None else target)
    if not targets:
        raise ConfigError(
            "There is no target, and the results were made without one. Give one, e.g. "
            "'demographic_parity_difference <= 0.05'.",
            key="target",
        )
    if confidence is None:
        asking = [result for result in results if result.settings.target] or results
        levels = list(dict.fromkeys(result.settings.confidence for result in asking))
        if len(levels) > 1:
            shown = ", ".join(map(str, levels))
            raise ConfigError(f"The results were made with different ones, {shown}: give one.", key="confidence")
        confidence = levels[0]
    check_confidence(confidence)
    for result in results:
        measured = _measured(result)
        for each in targets if measured else ():
            each.require(map(describe, measured))
    return Aim(targets, confidence)


def _measured(result: Result) -> list[str]:
    """Its global metrics."""
    return [str(name) for name in result.metrics.loc[result.metrics["scope"] == "global", "metric"].unique()]


def answer_of(results: Sequence[Result], variants: Sequence[Variant], aim: Aim) -> Answer:
    """The answer from the variants of these results."""
    quality = catalogue.main_pair(dict.fromkeys(name for result in results for name in _measured(result)))[0]
    found = choose_by_target(variants, aim, quality)
    if isinstance(found, Choosing):
        return _confirmed(found, aim, quality, results)
    return Answer(
        "not chosen",
        aim.targets,
        aim.confidence,
        reason=found.reason,
        candidates=found.usable,
        left_out=found.left_out,
        results=results,
    )


def _confirmed(found: Choosing, aim: Aim, quality: str, results: Sequence[Result]) -> Answer:
    """What the test rows say about the choice."""
    chosen, best = found.chosen, found.best
    alone = len(found.able) + len(found.left_out) == 1
    level = aim.stricter(found.compared)
    tested = chosen.on("test") if chosen.on("test").measured else None
    meets = aim.met(chosen)
    met = meets and tested is not None and aim.met(tested, level) and not tested.degenerate.any()
    estimates, reached = aim.estimates(chosen), None if tested is None else aim.estimates(tested, level)
    findings = tuple(
        Finding(
            target,
            None if alone and reached is not None else estimates[i],
            None if reached is None else reached[i],
            None if met else _floor(chosen, target, alone, aim, level),
            evidence.from_counts(target.metric),
        )
        for i, target in enumerate(aim.targets)
    )
    shown = chosen if tested is None else tested
    without = best.on(shown.split)
    test = paired(more_of(shown, without, quality)) if best is not chosen else None
    ahead, ahead_by = _ahead(chosen, found.able, quality)
    covered = aim.confidence == "mean" or all(finding.row_noise for finding in findings)
    rows: dict[str, int] = {split: _rows(chosen.on(split), aim.targets) for split in SPLITS}
    declared = chosen.result.info["rows"]
    return Answer(
        ("met" if covered else "met over seeds") if met else _missed(shown, level, aim, findings),
        aim.targets,
        aim.confidence,
        chosen=chosen.shown,
        chosen_meets=meets,
        findings=findings,
        quality=quality,
        reached=shown.over_seeds(quality).mean,
        best=best.shown,
        cost=shown.cost(quality) - without.cost(quality),
        cost_interval=None if test is None else (float(test.low), float(test.high)),
        ahead=ahead,
        ahead_by=ahead_by,
        seeds=shown.seeds,
        rows=rows,
        withheld={split: max(0, int(declared.get(split, 0)) - rows[split]) for split in SPLITS},
        candidates=len(found.able),
        compared=found.compared,
        level=level,
        left_out=found.left_out,
        results=results,
    )


def _ahead(chosen: Variant, able: Sequence[Variant], quality: str) -> tuple[Variant | None, float]:
    """What has the best quality on test rows, and by how much it is better than what was chosen."""
    costs = {
        each: each.on("test").cost(quality) for each in able if each is chosen or not each.on("test").degenerate.any()
    }
    first = min(costs, key=lambda each: costs[each] if math.isfinite(costs[each]) else math.inf)
    return (first.shown, costs[chosen] - costs[first]) if costs[first] < costs[chosen] else (None, 0.0)


def _missed(shown: Variant, level: float, aim: Aim, findings: Sequence[Finding]) -> Status:
    """What can be said where the target is not met with the confidence asked for."""
    on_test = findings[0].test is not None
    level = level if on_test else aim.level
    pairs = list(zip(aim.targets, aim.estimates(shown, level), strict=True))
    if any(aim.missed(target, each) for target, each in pairs):
        return "not met"
    if any(math.isnan(each.mean) for _, each in pairs):
        return "not known"
    in_mean = all(target.met(each.mean) for target, each in pairs)
    if in_mean and shown.degenerate.any():
        return "degenerate"
    if aim.met(shown, level):
        return "met on test rows alone" if on_test else "not confirmed"
    if any(finding.floor and finding.floor.below for finding in findings):
        return "cannot be shown"
    return "met in the mean" if in_mean else "not shown"


def _floor(chosen: Variant, target: Target, alone: bool, aim: Aim, level: float) -> Floor | None:
    """Of the split on which it is the hardest to show; level: the confidence on test rows."""
    if aim.confidence == "mean" or not describe(target.metric).disparity:
        return None
    floors = []
    splits: tuple[Split, ...] = ("test",) if alone else SPLITS
    for variant in map(chosen.on, splits):
        known = variant.evidence(target.metric, level if variant.split == "test" else aim.level)
        if known is None:
            continue
        unknown = variant.result.info.get("unknown_groups", {}).get(variant.split) or 0
        rows = _rows(variant, aim.targets) - unknown
        value = known.noise_floor(target.metric)
        needed = known.rows_needed(target.metric, target.bound)
        if needed > rows:
            floors.append(Floor(variant.split, rows, value, not target.met(value), needed))
    return min(floors, key=lambda floor: (floor.rows / floor.needed, floor.rows), default=None)


def _rows(variant: Variant, targets: Sequence[Target]) -> int:
    """That the targets rest on, of one seed."""
    result, split = variant.result, variant.split
    if "federation" in result.info and split == "test":  # silos may withhold labels, or all of a group
        labels = any("labels" in describe(target.metric).needs for target in targets)
        tables = result.count_tables(split, labels=labels, unknown=True).values()
        if tables:
            return round(float(np.mean([np.nansum(table) for table in tables])))
    if common := result.info["rows"].get(split):
        return int(common)  # each once, also where every client's model was given all of them
    rows = variant.values("rows")
    return int(rows.mean()) if len(rows) and np.isfinite(rows).all() else 0
