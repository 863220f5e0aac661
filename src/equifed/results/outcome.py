"""What came of a target, as a value and in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from equifed.metrics.catalogue import describe
from equifed.metrics.evidence import Estimate
from equifed.metrics.seeds import LEVEL, MIN_SEEDS
from equifed.results.candidates import Candidate
from equifed.target import Target

Split = Literal["validation", "test"]
Confidence = float | Literal["mean"]
Status = Literal["met", "met in the mean", "not met", "cannot be shown", "not chosen"]
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
    """None where nothing had to be chosen."""
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


@dataclass(frozen=True)
class Answer:
    """What came of a target. `str(answer)` says it in sentences."""

    status: Status
    targets: tuple[Target, ...]
    confidence: Confidence
    chosen: Candidate | None = None
    """What to take; where nothing meets the targets, what comes nearest. None where nothing could be chosen."""
    chosen_meets: bool = False
    """Whether it meets all targets on the rows on which it was chosen."""
    findings: tuple[Finding, ...] = ()
    """How it stands to each target."""
    quality: str = ""
    """The main quality: accuracy, or RMSE."""
    reached: float = math.nan
    """Its mean over seeds, on test rows."""
    best: Candidate | None = None
    """What would be taken without the targets, chosen on validation rows too."""
    cost: float = math.nan
    """How much worse the quality of `chosen` is than that of `best`, on test rows; negative where it is better."""
    cost_interval: tuple[float, float] | None = None
    """95 %, paired over seeds; None for too few of them."""
    seeds: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    """Validation and test rows, of one seed."""
    candidates: int = 0
    """Among how many was chosen."""
    reason: str = ""
    """Why nothing could be chosen."""

    @property
    def met(self) -> bool:
        return self.status == "met"

    @property
    def sentences(self) -> list[str]:
        """The answer in words."""
        wanted = listed([f"{describe(t.metric).title} {WORDS[t.sign]} {t.bound:g}" for t in self.targets])
        mean = self.confidence == "mean"
        level = "in the mean" if mean else f"with {self._sure}"
        but = "on test rows, but not on the validation rows that choose" if mean else f"in the mean, but not {level}"
        begin = {
            "met": f"Met {level}: {wanted}.",
            "met in the mean": f"Met {but}: {wanted}.",
            "not met": f"Not met: {wanted}.",
            "cannot be shown": f"Cannot be shown {level}: {wanted}.",
            "not chosen": f"No answer to the target {wanted}: {self.reason}",
        }[self.status]
        if self.chosen is None:
            return [begin]
        return [begin, self._choice(), self._basis(), *self._floors(), *self._limits()]

    @property
    def rule(self) -> str:
        """By which rule it was chosen; "" where there was nothing to choose."""
        if self.candidates <= 1 or self.chosen is None:
            return ""
        how = "in the mean" if self.confidence == "mean" else f"with {self._sure}"
        return (
            f"Rule: the best {describe(self.quality).title} of those that meet the target {how} on validation rows, or "
            "else what comes nearest; test rows only confirm."
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
            "chosen": None if self.chosen is None else asdict(self.chosen),
            "findings": [finding.to_dict() for finding in self.findings],
            "quality": self.quality,
            "reached": self.reached,
            "best_without_target": None if self.best is None else asdict(self.best),
            "cost": self.cost,
            "cost_interval": self.cost_interval,
            "seeds": self.seeds,
            "rows": self.rows,
            "candidates": self.candidates,
            "sentences": self.sentences,
            "rule": self.rule,
        }

    @property
    def _sure(self) -> str:
        return f"{100 * level_of(self.confidence):g}\u00a0% confidence"

    def _choice(self) -> str:
        """What to take, or what comes nearest; what it reaches, and at what cost."""
        assert self.chosen is not None
        verb = "Take" if self.met else "Measured was" if self.candidates == 1 else "Nearest comes"
        parts = [self._reached(finding) for finding in self.findings]
        if self.quality not in {target.metric for target in self.targets}:
            parts.append(f"{describe(self.quality).title} {_number(self.reached)}")
        rows = f"on {self.rows['test']:,} test rows" if self.rows["test"] else "on validation rows"
        seeds = "one seed" if self.seeds == 1 else f"mean of {self.seeds} seeds"
        return f"{verb} {self.chosen.label}: {listed(parts)} {rows} ({seeds}){self._costs()}."

    def _reached(self, finding: Finding) -> str:
        title, estimate = describe(finding.target.metric).title, finding.test or finding.validation
        if estimate is None or math.isnan(estimate.mean):
            return f"{title} is not known"
        text, end = f"{title} {_number(estimate.mean)}", finding.target.conservative(estimate)
        if self.confidence == "mean":
            return text
        if math.isnan(end):
            return f"{text} (too few seeds for an interval)"
        return f"{text} ({'at most' if finding.target.upper else 'at least'} {_number(end)} with {self._sure})"

    def _costs(self) -> str:
        if self.candidates == 1 or self.best is None or math.isnan(self.cost):
            return ""
        if self.best == self.chosen:
            return "; it is also the best without the target"
        metric = describe(self.quality)
        points = math.isfinite(metric.range[1])
        more = "more" if (self.cost > 0) == (metric.direction == "lower") else "less"
        amount = _amount(abs(self.cost), points)
        if not float(amount):
            return f"; the same {metric.title} as {self.best.label}, the best without the target"
        text = f"; {amount}{' points' if points else ''} {more} {metric.title}"
        if self.cost_interval is not None:
            sign = 1 if self.cost > 0 else -1
            low, high = sorted(sign * end for end in self.cost_interval)
            text += f" [{_amount(low, points)}, {_amount(high, points)}]"
        return f"{text} than {self.best.label}, the best without the target"

    def _basis(self) -> str:
        """Which rows chose, and whether the others confirm it."""
        if not self.rows["test"]:
            return "There are no test rows to confirm it."
        if self.candidates == 1:
            return "There was nothing to choose from: the test rows answer."
        chosen = f"Chosen on {self.rows['validation']:,} validation rows from {self.candidates} settings"
        if not self.chosen_meets:
            return f"{chosen}, none of which meets the target there."
        return f"{chosen}; the test rows only confirm." if self.met else f"{chosen}; the test rows do not confirm it."

    def _floors(self) -> list[str]:
        lines = []
        for target, floor in ((finding.target, finding.floor) for finding in self.findings):
            if floor is not None and not self.met:
                bound, title = f"{WORDS[target.sign]} {target.bound:g}", describe(target.metric).title
                needed = f"about {floor.needed:,.0f} of them" if math.isfinite(floor.needed) else "more of them"
                here = f"{floor.rows:,} {floor.split} rows"
                lines.append(
                    f"On {here} even a perfectly fair model may show {title} {_number(floor.value)}, so that {bound} "
                    f"cannot be shown with {self._sure}; it would take {needed}."
                    if floor.below
                    else f"{here} are few for {title} {bound}: they would rarely show it with {self._sure} even of a "
                    f"perfectly fair model; it would take {needed}."
                )
        return lines

    def _limits(self) -> list[str]:
        """What an interval does not cover."""
        names = [describe(finding.target.metric).title for finding in self.findings if not finding.row_noise]
        if not names or self.confidence == "mean" or self.seeds < MIN_SEEDS:
            return []
        return [f"The interval of {listed(names)} covers how seeds differ, not which rows were drawn."]


def level_of(confidence: Confidence) -> float:
    """The confidence of intervals; also where they do not decide."""
    return 1 - LEVEL if confidence == "mean" else float(confidence)


# -- words -------------------------------------------------------------------------------------------------------------


def listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _number(value: float) -> str:
    if math.isnan(value):
        return "unknown"
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:,.0f}"


def _amount(value: float, points: bool) -> str:
    return f"{100 * value:.1f}" if points else f"{value:.3f}"
