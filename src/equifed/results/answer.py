"""The answer to a target: which method and setting meets it, how sure that is, and at what cost.

Choosing is done on validation rows alone. A candidate meets a target there if the conservative end of its interval does
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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from equifed.errors import ConfigError
from equifed.metrics import catalogue, evidence
from equifed.metrics.catalogue import describe
from equifed.metrics.evidence import Estimate
from equifed.metrics.seeds import mean_interval, moments, paired
from equifed.results.candidates import DATA, Candidate, candidates_of, data_of, differing_names, having, is_pooled
from equifed.results.candidates import needs_validation as learns_from_validation
from equifed.results.counts import SPLITS, of_kind, setting_tables
from equifed.results.outcome import Answer, Confidence, Finding, Floor, Split, Status, level_of, listed
from equifed.target import Target, check_confidence, parse_targets

if TYPE_CHECKING:
    from equifed.results.result import Result


@dataclass(frozen=True, eq=False)
class Judged:
    """A candidate on one set of rows."""

    candidate: Candidate
    estimates: tuple[Estimate, ...]
    """Of every target's metric."""
    quality: np.ndarray
    """The main quality, of every seed."""
    degenerate: bool
    """Whether some group gets one constant prediction in some seed."""
    met: bool
    """Whether it meets every target, with the confidence asked for."""
    excess: float
    """How far it misses the target that it misses most, as a share of what the metric can be (of the bound, where that
    has no end); at most 0 where it meets all, infinite where that cannot be said."""


def answer(
    results: Result | Sequence[Result],
    target: Any = None,
    confidence: Confidence | None = None,
) -> Answer:
    """Which of the methods and settings in the results meets the target, or comes nearest.

    target: a text such as "demographic_parity_difference <= 0.05", or several; confidence: between 0.5 and 1, or
    "mean". Left out: those that the results were made with.
    """
    from equifed.results.result import Result

    given = [results] if isinstance(results, Result) else list(results)
    targets, level = _asked(given, target, confidence)
    return _Answering(given, targets, level).answer()


def answer_if_asked(
    results: Sequence[Result], target: Any = None, confidence: Confidence | None = None
) -> Answer | None:
    """`answer`, or None where nobody gave a target."""
    asked = target or any(result.settings.target for result in results)
    return answer(results, target or None, confidence) if asked else None


def judge(
    result: Result, targets: Sequence[Target], confidence: Confidence, split: Split = "validation"
) -> list[Judged]:
    """How every setting of a result stands to the targets on these rows, in the order of its settings."""
    asked = _Answering([result], tuple(targets), confidence)
    return [asked.judged(candidate, split) for candidate in asked.candidates]


def _asked(results: Sequence[Result], target: Any, confidence: Any) -> tuple[tuple[Target, ...], Confidence]:
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
        measured = result.metrics[result.metrics["scope"] == "global"]["metric"].unique()
        for each in targets if len(measured) else ():
            each.require(describe(str(name)) for name in measured)
    return targets, confidence


class _Answering:
    """The results taken apart for one question."""

    def __init__(self, results: Sequence[Result], targets: tuple[Target, ...], confidence: Confidence) -> None:
        self.results, self.targets, self.confidence = results, targets, confidence
        self.candidates = candidates_of(results)
        measured = dict.fromkeys(
            str(name)
            for result in results
            for name in result.metrics.loc[result.metrics["scope"] == "global", "metric"]
        )
        self.quality = catalogue.main_pair(measured)[0]
        self._final: dict[tuple[int, str], Any] = {}
        self._tables: dict[tuple[str, str], np.ndarray | None] = {}

    # -- numbers of one candidate --------------------------------------------------------------------------------------

    def final(self, candidate: Candidate, split: Split) -> Any:
        """Its metrics, a row per seed; None where it was not measured on such rows."""
        key = candidate.result, split
        if key not in self._final:
            result = self.results[candidate.result]
            known = (result.metrics["split"] == split) & (result.metrics["scope"] == "global")
            self._final[key] = result.final(split) if known.any() else None
        frame = self._final[key]
        if frame is None:
            return None
        return having(frame, candidate.setting).set_index("seed")

    def values(self, candidate: Candidate, split: Split, metric: str) -> Any:
        """By seed; nan where it is not measured."""
        import pandas as pd

        frame = self.final(candidate, split)
        if frame is None:
            return pd.Series(dtype=float)
        return frame.get(metric, pd.Series(np.nan, index=frame.index))

    def counts(self, candidate: Candidate, split: Split, metric: str) -> np.ndarray | None:
        """[seeds, groups, labels, predictions], with rows of unknown group where the metric is about all rows; None for
        what does not follow from counts."""
        if not evidence.from_counts(metric):
            return None
        result, key = self.results[candidate.result], (candidate.label, split)
        if key not in self._tables:
            self._tables[key] = setting_tables(result, candidate.setting, split)
        tables = self._tables[key]
        return None if tables is None else of_kind(tables, result.info, **evidence.tables_for(metric))

    def estimate(self, candidate: Candidate, split: Split, metric: str, level: float) -> Estimate:
        """With row and seed noise where the metric follows from counts, else with seed noise; nan where it is undefined
        in some seed, about which nothing is shown then."""
        values = self.values(candidate, split, metric).to_numpy(np.float64)
        if not len(values) or not np.isfinite(values).all():
            return Estimate(*[math.nan] * 5)
        counts = self.counts(candidate, split, metric)
        if counts is None:
            return _over_seeds(values, level)
        shared = self.results[candidate.result].info["shared_rows"][split]
        return evidence.estimate(metric, counts, confidence=level, shared_rows=shared)

    def judged(self, candidate: Candidate, split: Split, level: float | None = None) -> Judged:
        """level: the confidence of its intervals, where it is not the one asked for."""
        level = level_of(self.confidence) if level is None else level
        estimates = tuple(self.estimate(candidate, split, target.metric, level) for target in self.targets)
        excess = max(
            target.excess(self._decisive(target, estimate)) / _scale(target)
            for target, estimate in zip(self.targets, estimates, strict=True)
        )
        return Judged(
            candidate,
            estimates,
            quality=self.values(candidate, split, self.quality).to_numpy(np.float64),
            degenerate=bool((self.values(candidate, split, "degenerate") > 0).any()),
            met=self._meets(estimates),
            excess=excess,
        )

    def _decisive(self, target: Target, estimate: Estimate) -> float:
        return estimate.mean if self.confidence == "mean" else target.conservative(estimate)

    def _meets(self, estimates: Sequence[Estimate | None]) -> bool:
        return all(
            estimate is not None and target.met(self._decisive(target, estimate))
            for target, estimate in zip(self.targets, estimates, strict=True)
        )

    # -- choosing ------------------------------------------------------------------------------------------------------

    def answer(self) -> Answer:
        usable = [candidate for candidate in self.candidates if not is_pooled(candidate.method)]
        alone = len(usable) == 1
        reason = self._obstacle(usable, alone)
        if reason:
            return Answer("not chosen", self.targets, self.confidence, reason=reason, candidates=len(usable))
        split: Split = "test" if alone and self.final(usable[0], "test") is not None else "validation"
        able, left_out = [], {}
        for candidate in usable:
            judged = self.judged(candidate, split) if self.final(candidate, split) is not None else None
            reason = "" if alone else self._unable(candidate, judged)
            if judged is None or reason:
                left_out[candidate.label] = reason
            else:
                able.append(judged)
        if not able:
            reason = f"no setting can be taken, because {' or '.join(dict.fromkeys(left_out.values()))}."
            return Answer("not chosen", self.targets, self.confidence, reason=reason, left_out=left_out)
        best = min(able, key=self._cost)
        met = [each for each in able if each.met]
        # one that the stricter level of the test rows leaves in, where there is one
        met = [each for each in met if self._sure(each, able, split)] or met
        chosen = min(met, key=self._cost) if met else min(able, key=lambda each: (each.excess, self._cost(each)))
        return self._confirmed(chosen, best, able, left_out)

    def _sure(self, judged: Judged, able: Sequence[Judged], split: Split) -> bool:
        """Whether it meets the targets at the level to which the test rows will hold it, too."""
        compared = self._compared(judged, able)
        return compared == 1 or self.judged(judged.candidate, split, self._level(compared)).met

    def _level(self, compared: int) -> float:
        """The confidence of each of so many claims that are all to hold with the one asked for."""
        return 1 - (1 - level_of(self.confidence)) / compared

    def _unable(self, candidate: Candidate, judged: Judged | None) -> str:
        """Why it cannot be chosen from several; "" where it can."""
        if learns_from_validation(candidate.method):
            return "it trains on the validation rows"
        if judged is None:
            return "nothing was measured on validation rows"
        if judged.degenerate:
            return "some group gets the same prediction for more than 99\u00a0% of its rows"
        if not np.isfinite(judged.quality).all():
            return f"the {describe(self.quality).title} is not known in every seed"
        return ""

    def _cost(self, judged: Judged) -> float:
        """The mean quality, turned so that less is better."""
        return float(describe(self.quality).cost(judged.quality.mean()))

    def _obstacle(self, usable: Sequence[Candidate], alone: bool) -> str:
        """Why nothing can be chosen; "" where it can."""
        if not usable:
            return "the results have only references that train on pooled rows, which a federation cannot."
        about = [self.results[i].info for i in dict.fromkeys(each.result for each in usable)]
        data = list(dict.fromkeys(str(info["data"]) for info in about))
        if len(data) > 1:
            return f"the results are about different data, {listed(data)}. Ask about those on the same data."
        # one without validation rows has other numbers of rows, and is left out by name
        facts = [{name: info.get(name) for name in DATA if name != "rows"} for info in about]
        if differing := differing_names(facts):
            what = listed([DATA[name] for name in differing])
            return f"the results are about {data[0]}, but differ in {what}. Ask about those with the same."
        if all(self.final(each, "test") is None and self.final(each, "validation") is None for each in usable):
            return "nothing was measured, because there are no test rows. Keep some: data.test above 0."
        if alone:
            return ""
        measured = [frame for each in usable if (frame := self.final(each, "validation")) is not None]
        if not measured:
            return (
                f"there are {len(usable)} settings to choose from but no validation rows to choose on, and to choose "
                "on test rows would make chance look like success. Hold some back and run again: --validation 0.1, "
                "validation = 0.1 in [data], or equifed.load(..., validation=0.1)."
            )
        absent = [target.metric for target in self.targets if target.metric not in measured[0]]
        if absent:
            return (
                f"{listed(absent)} is measured on test rows only, and settings are chosen on validation rows. Ask for "
                "another metric, or about one setting alone."
            )
        return ""

    def _compared(self, chosen: Judged, able: Sequence[Judged]) -> int:
        """How many settings the claim about the chosen one must hold for at once, itself included.

        Where seeds have their own splits these are all that luck might have chosen wrongly: their validation rows leave
        open whether they meet the targets. The others clearly do or clearly do not.
        """
        shared = self.results[chosen.candidate.result].info["shared_rows"]
        if self.confidence == "mean" or max(shared["validation"], shared["test"]) >= 1:
            return 1  # test rows that are nobody's validation rows
        return 1 + sum(each is not chosen and self._open(each) for each in able)

    def _open(self, judged: Judged) -> bool:
        """Whether the two-sided intervals leave it open that all targets are met."""
        pairs = [
            (target, (each.low, each.high) if target.upper else (each.high, each.low))
            for target, each in zip(self.targets, judged.estimates, strict=True)
        ]
        may, must = (all(target.met(ends[i]) for target, ends in pairs) for i in (0, 1))
        return may and not must

    def _confirmed(self, chosen: Judged, best: Judged, able: Sequence[Judged], left_out: dict[str, str]) -> Answer:
        """What the test rows say about the choice."""
        candidate, info = chosen.candidate, self.results[chosen.candidate.result].info
        alone = len(able) + len(left_out) == 1
        compared = self._compared(chosen, able)
        level = self._level(compared)
        tested = self.judged(candidate, "test", level) if self.final(candidate, "test") is not None else None
        split: Split = "validation" if tested is None else "test"
        met = chosen.met and tested is not None and tested.met and not tested.degenerate
        findings = tuple(
            Finding(
                target,
                None if alone and tested is not None else chosen.estimates[i],
                None if tested is None else tested.estimates[i],
                None if met else self._floor(candidate, target, alone, level),
                evidence.from_counts(target.metric),
            )
            for i, target in enumerate(self.targets)
        )
        cost = describe(self.quality).cost
        reached, without = (self.values(each.candidate, split, self.quality) for each in (chosen, best))
        same = data_of(info) == data_of(self.results[best.candidate.result].info)
        test = paired(cost(reached) - cost(without)) if same and best is not chosen else None
        ahead, ahead_by = self._ahead(chosen, able)
        covered = self.confidence == "mean" or all(finding.row_noise for finding in findings)
        rows: dict[str, int] = {each: self._rows(candidate, each) for each in SPLITS}
        return Answer(
            ("met" if covered else "met over seeds") if met else self._missed(chosen, tested, findings),
            self.targets,
            self.confidence,
            chosen=candidate,
            chosen_meets=chosen.met,
            findings=findings,
            quality=self.quality,
            reached=moments(reached).mean,
            best=best.candidate,
            cost=cost(moments(reached).mean) - cost(moments(without).mean),
            cost_interval=None if test is None else (float(test.low), float(test.high)),
            ahead=ahead,
            ahead_by=ahead_by,
            seeds=len(self.final(candidate, split)),
            rows=rows,
            withheld={each: max(0, int(info["rows"].get(each, 0)) - rows[each]) for each in SPLITS},
            candidates=len(able),
            compared=compared,
            level=level,
            left_out=left_out,
        )

    def _ahead(self, chosen: Judged, able: Sequence[Judged]) -> tuple[Candidate | None, float]:
        """What has the best quality on test rows, and by how much it is better than what was chosen."""
        cost = describe(self.quality).cost
        costs = {
            i: float(cost(moments(self.values(each.candidate, "test", self.quality)).mean))
            for i, each in enumerate(able)
            if each is chosen or not (self.values(each.candidate, "test", "degenerate") > 0).any()
        }
        own = costs[next(i for i, each in enumerate(able) if each is chosen)]
        first = min(costs, key=lambda i: costs[i] if math.isfinite(costs[i]) else math.inf)
        return (able[first].candidate, own - costs[first]) if costs[first] < own else (None, 0.0)

    def _missed(self, chosen: Judged, tested: Judged | None, findings: Sequence[Finding]) -> Status:
        """What can be said where the target is not met with the confidence asked for."""
        shown = tested or chosen
        pairs = list(zip(self.targets, shown.estimates, strict=True))
        if any(self._misses(target, each) for target, each in pairs):
            return "not met"
        if any(math.isnan(each.mean) for _, each in pairs):
            return "not known"
        in_mean = all(target.met(each.mean) for target, each in pairs)
        if in_mean and shown.degenerate:
            return "degenerate"
        if shown.met:
            return "not confirmed" if tested is None else "met on test rows alone"
        if any(finding.floor and finding.floor.below for finding in findings):
            return "cannot be shown"
        return "met in the mean" if in_mean else "not shown"

    def _misses(self, target: Target, estimate: Estimate) -> bool:
        """Whether a target is missed beyond doubt."""
        end = estimate.lower_end if target.upper else estimate.upper_end
        value = estimate.mean if self.confidence == "mean" else end
        return not math.isnan(value) and not target.met(value)

    def _floor(self, candidate: Candidate, target: Target, alone: bool, level: float) -> Floor | None:
        """Of the split on which it is the hardest to show; level: the confidence on test rows."""
        if self.confidence == "mean" or not describe(target.metric).disparity:
            return None
        floors = []
        for split in ("test",) if alone else SPLITS:
            counts = self.counts(candidate, split, target.metric)
            if counts is None:
                continue
            info = self.results[candidate.result].info
            sure = level if split == "test" else level_of(self.confidence)
            known = evidence.Evidence(counts, sure, info["shared_rows"][split])
            rows = self._rows(candidate, split) - (info.get("unknown_groups", {}).get(split) or 0)
            value = known.noise_floor(target.metric)
            needed = known.rows_needed(target.metric, target.bound)
            if needed > rows:
                floors.append(Floor(split, rows, value, not target.met(value), needed))
        return min(floors, key=lambda floor: (floor.rows / floor.needed, floor.rows), default=None)

    def _rows(self, candidate: Candidate, split: Split) -> int:
        """That the targets rest on, of one seed."""
        result = self.results[candidate.result]
        if "federation" in result.info and split == "test":  # silos may withhold labels, or all of a group
            labels = any("labels" in describe(target.metric).needs for target in self.targets)
            tables = result.count_tables(split, labels=labels, unknown=True).values()
            if tables:
                return round(float(np.mean([np.nansum(table) for table in tables])))
        if common := result.info["rows"].get(split):
            return int(common)  # each once, also where every client's model was given all of them
        rows = self.values(candidate, split, "rows")
        return int(rows.mean()) if len(rows) and np.isfinite(rows).all() else 0


def _over_seeds(values: np.ndarray, confidence: float) -> Estimate:
    """t-intervals of the mean over seeds; without ends for too few of them."""
    unknown, error = (math.nan, math.nan), 1 - confidence
    # a one-sided end is that of a two-sided interval with twice the error
    low, high, lower_end, upper_end = (
        end for level in (error, 2 * error) for end in mean_interval(values, level) or unknown
    )
    return Estimate(float(values.mean()), low, high, lower_end, upper_end)


def _scale(target: Target) -> float:
    """What an excess is measured by."""
    low, high = describe(target.metric).range
    return high - low if math.isfinite(high - low) else abs(target.bound) or 1.0
