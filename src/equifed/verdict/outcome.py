"""What came of a target, as a value and in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from equifed.metrics.catalogue import describe
from equifed.metrics.evidence import Estimate
from equifed.metrics.seeds import MIN_SEEDS
from equifed.results.counts import Split
from equifed.target import Confidence, Target
from equifed.verdict.choose import level_of
from equifed.verdict.variants import Variant
from equifed.verdict.wording import listed

if TYPE_CHECKING:
    from equifed.results.result import Result

Status = Literal[
    "met",
    "met over seeds",  # on the rows at hand: the intervals do not cover which rows were drawn
    "met in the mean",
    "met on test rows alone",  # validation rows, which choose, do not show it
    "not confirmed",  # for want of test rows
    "not shown",
    "not met",
    "degenerate",
    "not known",
    "cannot be shown",
    "not chosen",
]
WORDS = {"<=": "at most", ">=": "at least", "<": "below", ">": "above"}


@dataclass(frozen=True)
class Floor:
    """A target that so few rows can hardly show to be met, even by a perfectly fair model."""

    split: Split
    rows: int
    """That there are."""
    value: float
    """What a perfectly fair model may show on them."""
    below: bool
    """Whether the target is stricter than that, so that it cannot be shown at all."""
    needed: float
    """Rows on which it would be shown of a perfectly fair model in half of all cases; infinite where no number would
    do."""


@dataclass(frozen=True)
class Finding:
    """How what was chosen stands to one target."""

    target: Target
    validation: Estimate | None
    """None where nothing had to be chosen and there are test rows."""
    test: Estimate | None
    """None where there are no test rows."""
    floor: Floor | None
    """None where the target is met, or there are rows enough to show it."""
    row_noise: bool
    """Whether the intervals cover which rows were drawn, besides how seeds differ."""

    def to_dict(self) -> dict[str, Any]:
        estimates = {"validation": self.validation, "test": self.test}
        named = {split: None if estimate is None else estimate._asdict() for split, estimate in estimates.items()}
        floor = None if self.floor is None else asdict(self.floor)
        return {"target": str(self.target), **named, "noise_floor": floor, "row_noise": self.row_noise}


@dataclass(frozen=True, eq=False)
class Answer:
    """What came of a target. `str(answer)` says it in sentences."""

    status: Status
    targets: tuple[Target, ...]
    confidence: Confidence
    chosen: Variant | None = None
    """What to take; where nothing meets the targets, what comes nearest. None where nothing could be chosen."""
    chosen_meets: bool = False
    """Whether it meets all targets on the rows on which it was chosen."""
    findings: tuple[Finding, ...] = ()
    """How it stands to each target."""
    quality: str = ""
    """The main quality: accuracy, or RMSE."""
    reached: float = math.nan
    """Its mean over seeds, on test rows; on validation rows where there are none."""
    best: Variant | None = None
    """What would be taken without the targets, chosen on validation rows too."""
    cost: float = math.nan
    """How much worse the quality of `chosen` is than that of `best`, on the same rows; negative where it is better."""
    cost_interval: tuple[float, float] | None = None
    """95 %, paired over seeds; None for too few of them."""
    ahead: Variant | None = None
    """What has the best quality on test rows, where that is better than that of `chosen`. It is said, never taken."""
    ahead_by: float = 0.0
    """How much better it is there."""
    seeds: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    """Validation and test rows, of one seed."""
    withheld: dict[str, int] = field(default_factory=dict)
    """How many more there are in a real federation, of which silos do not say enough."""
    candidates: int = 0
    """Among how many was chosen."""
    left_out: dict[str, str] = field(default_factory=dict)
    """What could not be chosen, by label, and why."""
    compared: int = 1
    """How many of the candidates luck might have chosen, where every seed has its own split and one seed's validation
    rows are another's test rows: the claim is made for all of these at once. 1: nothing is to be corrected."""
    level: float = math.nan
    """The confidence of the test rows' intervals, each: the one asked for, corrected for `compared`."""
    reason: str = ""
    """Why nothing could be chosen."""
    results: Sequence[Result] = field(default=(), repr=False)
    """Those that were asked about."""

    @property
    def met(self) -> bool:
        """With the confidence asked for, which covers the rows drawn: not "met over seeds", of the rows at hand."""
        return self.status == "met"

    @property
    def _holds(self) -> bool:
        return self.status in ("met", "met over seeds")

    @property
    def sentences(self) -> list[str]:
        """The answer in words."""
        wanted = listed([self._wanted(metric) for metric in self._metrics])
        if self.chosen is None:
            return [f"No answer to the target {wanted}: {self.reason}"]
        level = self._level
        begin = {
            "met": f"Met {level}",
            "met over seeds": f"Met on these rows, over seeds {level}",
            "met in the mean": f"Met in the mean, but not {level}",
            "met on test rows alone": f"Met {level} on test rows, but not on the validation rows, which choose",
            "not confirmed": f"Met {level} on validation rows, but there are no test rows to confirm it",
            "not shown": f"Not met in the mean, but not ruled out {level} either",
            "not met": "Not met",
            "degenerate": "Not met, because the model is degenerate (some group gets the same prediction for more than "
            "99\u00a0% of its rows)",
            "not known": "Not known whether it is met",
            "cannot be shown": f"Cannot be shown {level}",
        }[self.status]
        return [
            f"{begin}: {wanted}.",
            self._choice(),
            self._basis(),
            *self._omissions(),
            *self._floors(),
            *self._limits(),
        ]

    @property
    def rule(self) -> str:
        """By which rule it was chosen; "" where there was nothing to choose."""
        if self._alone or self.chosen is None:
            return ""
        return (
            f"Rule: the best {describe(self.quality).title} of those that meet the target {self._level} on validation "
            "rows, or else what comes nearest; test rows only confirm."
        )

    def __str__(self) -> str:
        return " ".join(self.sentences)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "status": self.status,
            "met": self.met,
            "targets": [str(target) for target in self.targets],
            "confidence": self.confidence,
            "chosen": self._named(self.chosen),
            "findings": [finding.to_dict() for finding in self.findings],
            "quality": self.quality,
            "reached": self.reached,
            "best_without_target": self._named(self.best),
            "cost": self.cost,
            "cost_interval": self.cost_interval,
            "ahead_on_test_rows": self._named(self.ahead),
            "ahead_by": self.ahead_by,
            "seeds": self.seeds,
            "rows": self.rows,
            "withheld": self.withheld,
            "candidates": self.candidates,
            "compared": self.compared,
            "level": self.level,
            "left_out": self.left_out,
            "sentences": self.sentences,
            "rule": self.rule,
        }

    def _named(self, variant: Variant | None) -> dict[str, Any] | None:
        if variant is None:
            return None
        about = {"label": variant.label, "method": variant.method, "result": self.results.index(variant.result)}
        return {**about, "setting": variant.setting, "hyper": variant.hyper}

    @property
    def _sure(self) -> str:
        return f"{100 * level_of(self.confidence):g}\u00a0% confidence"

    @property
    def _level(self) -> str:
        return "in the mean" if self.confidence == "mean" else f"with {self._sure}"

    @property
    def _alone(self) -> bool:
        """Whether there was nothing to choose from."""
        return self.candidates + len(self.left_out) == 1

    @property
    def _metrics(self) -> list[str]:
        """Each once, also where it has two targets."""
        return list(dict.fromkeys(target.metric for target in self.targets))

    def _wanted(self, metric: str) -> str:
        bounds = [f"{WORDS[target.sign]} {target.bound:g}" for target in self.targets if target.metric == metric]
        return f"{describe(metric).title} {listed(bounds)}"

    def _choice(self) -> str:
        """What to take, or what comes nearest; what it reaches, and at what cost."""
        assert self.chosen is not None
        if self._holds:
            lead = "Take"
        elif self._alone:
            lead = "The only setting is"
        else:
            lead = "The choice is" if self.chosen_meets else "The nearest is"
        parts = [self._reached(metric) for metric in self._metrics]
        if self.quality not in self._metrics:
            parts.append(f"{describe(self.quality).title} {_number(self.reached)}")
        split = "test" if self.rows["test"] else "validation"
        seeds = "one seed" if self.seeds == 1 else f"mean of {self.seeds} seeds"
        where = f"on {self.rows[split]:,} {split} rows ({seeds})"
        return f"{lead} {self.chosen.label}: {listed(parts)} {where}{self._costs()}."

    def _reached(self, metric: str) -> str:
        findings = [finding for finding in self.findings if finding.target.metric == metric]
        title, estimate = describe(metric).title, findings[0].test or findings[0].validation
        if estimate is None or math.isnan(estimate.mean):
            return f"{title} is not known"
        targets = [finding.target for finding in findings]
        text = f"{title} {_number(estimate.mean, targets)}"
        if self.confidence == "mean":
            return text
        ends = {"at most" if each.upper else "at least": each.conservative(estimate) for each in targets}
        if any(map(math.isnan, ends.values())):
            return f"{text} (too few seeds for an interval)"
        return f"{text} ({listed([f'{word} {_number(end, targets)}' for word, end in ends.items()])} with {self._sure})"

    def _costs(self) -> str:
        """Against what validation rows choose without the target, and what test rows show against it."""
        if self._alone or self.best is None or math.isnan(self.cost):
            return ""
        title = describe(self.quality).title
        without = f"{self.best.label}, which the validation rows choose without the target"
        amount, more = self._difference(self.cost)
        if self.best is self.chosen:
            text = "; without the target the validation rows choose it too"
        elif not amount:
            text = f"; the same {title} as {without}"
        else:
            text = f"; {amount} {more} {title}{self._interval()} than {without}"
        behind, better = self._difference(-self.ahead_by)
        if self.ahead is None or not behind or (amount and self.cost > 0):  # which says already that it costs something
            return text
        return f"{text}; on test rows {self.ahead.label} has {behind} {better} {title}"

    @property
    def _points(self) -> bool:
        return math.isfinite(describe(self.quality).range[1])

    def _difference(self, cost: float) -> tuple[str, str]:
        """How much ("" for nothing that would be seen) and whether it is more or less of the quality."""
        more = "more" if (cost > 0) == (describe(self.quality).direction == "lower") else "less"
        amount = _amount(abs(cost), self._points)
        return ("" if not float(amount) else f"{amount} points" if self._points else amount), more

    def _interval(self) -> str:
        if self.cost_interval is None:
            return ""
        sign = 1 if self.cost > 0 else -1
        low, high = sorted(sign * end for end in self.cost_interval)
        return f" [{_amount(low, self._points)}, {_amount(high, self._points)}]"

    def _basis(self) -> str:
        """Which rows chose, and whether the others confirm it."""
        if self._alone:
            return f"There was nothing to choose from: the {'test' if self.rows['test'] else 'validation'} rows answer."
        text = f"Chosen on {self.rows['validation']:,} validation rows"
        if self.candidates == 1:
            text += f" as the only one of {1 + len(self.left_out)} settings that can be"
            text += "" if self.chosen_meets else "; it does not meet the target there"
        else:
            text += f" from {self.candidates} settings"
            text += "" if self.chosen_meets else ", none of which meets the target there"
        if not self.chosen_meets or not self.rows["test"]:
            return f"{text}."
        return f"{text}; the test rows {'only confirm' if self._holds else 'do not confirm it'}."

    def _omissions(self) -> list[str]:
        """What could not be chosen, a sentence for each reason."""
        lines = []
        for reason in dict.fromkeys(self.left_out.values()):
            names = [label for label, why in self.left_out.items() if why == reason]
            lines.append(f"Left out, because {reason}: {listed(shortened(names))}.")
        return lines

    def _floors(self) -> list[str]:
        lines = []
        for target, floor in ((finding.target, finding.floor) for finding in self.findings):
            if floor is not None and not self._holds:
                bound, title = f"{WORDS[target.sign]} {target.bound:g}", describe(target.metric).title
                finite = math.isfinite(floor.needed)
                needed = f"it would take about {floor.needed:,.0f} of them" if finite else "no number of rows would do"
                here = f"{floor.rows:,} {floor.split} rows"
                lines.append(
                    f"On {here} even a perfectly fair model may show {title} {_number(floor.value)}, so that {bound} "
                    f"cannot be shown with {self._sure}; {needed}."
                    if floor.below
                    else f"{here} are few for {title} {bound}: they would rarely show it with {self._sure} even of a "
                    f"perfectly fair model; {needed}."
                )
        return lines

    def _limits(self) -> list[str]:
        """Which rows are missing, what the claim allows for, and what an interval does not cover."""
        return [*self._undisclosed(), *self._correction(), *self._uncovered()]

    def _undisclosed(self) -> list[str]:
        hidden = self.withheld.get("test")
        return [f"Of {hidden:,} more test rows silos do not disclose enough."] if hidden else []

    def _correction(self) -> list[str]:
        if self.compared == 1:
            return []
        return [
            f"Every seed has its own split, where one's validation rows are another's test rows: so that none of the "
            f"{self.compared} settings that might meet the target passes by luck, test rows were held to "
            f"{100 * self.level:.4g}\u00a0% each."
        ]

    def _uncovered(self) -> list[str]:
        names = [describe(finding.target.metric).title for finding in self.findings if not finding.row_noise]
        if not names or self.confidence == "mean" or self.seeds < MIN_SEEDS:
            return []
        return [f"The interval of {listed(names)} covers how seeds differ, not which rows were drawn."]


# -- words -------------------------------------------------------------------------------------------------------------


def shortened(names: Sequence[str], most: int = 3) -> list[str]:
    """The first of them, and how many more there are."""
    return [*names] if len(names) <= most else [*names[:most], f"{len(names) - most} more"]


def _number(value: float, targets: Sequence[Target] = ()) -> str:
    """With as many digits as it takes to see on which side of the targets it lies."""
    if math.isnan(value):
        return "unknown"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = 3
    while digits < 6 and any(target.met(round(value, digits)) != target.met(value) for target in targets):
        digits += 1
    return f"{value:.{digits}f}"


def _amount(value: float, points: bool) -> str:
    return f"{100 * value:.1f}" if points else f"{value:.3f}"
