"""Targets: what a model is to reach, such as "demographic_parity_difference <= 0.05"."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from equifed.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from equifed.metrics.catalogue import Metric

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_FORM = re.compile(r"\s*([\w.]+)\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*")

Sign = Literal["<=", ">=", "<", ">"]
Confidence = float | Literal["mean"]
SIGNS: dict[str, Sign] = {"<=": "<=", ">=": ">=", "<": "<", ">": ">"}
_TURNED: dict[Sign, Sign] = {"<=": ">=", ">=": "<=", "<": ">", ">": "<"}


class Condition(NamedTuple):
    """METRIC OP NUMBER, as targets and the checks of the command line are written."""

    metric: str
    sign: str
    bound: float

    @classmethod
    def read(cls, text: str) -> Condition | None:
        """None where the text has another form; the number may be infinite or nan."""
        form = _FORM.fullmatch(text)
        try:
            return None if form is None else cls(form[1], form[2], float(form[3]))
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.metric} {self.sign} {str(self.bound).removesuffix('.0')}"


@dataclass(frozen=True)
class Target:
    """A metric and the bound that its mean over seeds is to keep."""

    metric: str
    sign: Sign
    bound: float

    @classmethod
    def parse(cls, text: str | Target) -> Target:
        """From "METRIC OP NUMBER"; whether a run has the metric is for `require` to say."""
        if isinstance(text, Target):
            return text
        condition = Condition.read(text) if isinstance(text, str) else None
        if condition is None or condition.sign not in SIGNS or not math.isfinite(condition.bound):
            raise ConfigError(
                f"{text!r} is no target. Write 'METRIC OP NUMBER', e.g. 'demographic_parity_difference <= 0.05'; OP is "
                "one of <= >= < >.",
                key="target",
                value=text,
            )
        return cls(condition.metric, SIGNS[condition.sign], condition.bound)

    def __str__(self) -> str:
        return str(Condition(self.metric, self.sign, self.bound))

    @property
    def upper(self) -> bool:
        """Whether the bound is from above."""
        return self.sign in ("<=", "<")

    def met(self, value: float) -> bool:
        """By this value; what is undefined meets nothing."""
        return OPERATORS[self.sign](value, self.bound)

    def excess(self, value: float) -> float:
        """How far the value lies beyond the bound; negative where it keeps it, infinite where it is undefined."""
        if math.isnan(value):
            return math.inf
        return value - self.bound if self.upper else self.bound - value

    def conservative(self, estimate: Any) -> float:
        """The end of an interval that must keep the bound too: see `equifed.metrics.evidence.Estimate`."""
        return float(estimate.upper_end if self.upper else estimate.lower_end)

    def require(self, measured: Iterable[Metric]) -> None:
        """Refuse a metric that is not measured or says nothing about the model, one asked for the wrong way round, and
        a bound that decides nothing."""
        known = {metric.name: metric for metric in measured}
        if self.metric not in known:
            raise unknown_name("metric", self.metric, known, key="target")
        metric = known[self.metric]
        if metric.name == "rows" or metric.in_groups in ("count", "flag"):
            raise ConfigError(
                f"'{self}' is no target: '{metric.name}' says neither how good the model is nor how fair. Ask for a "
                "quality or a disparity, e.g. 'accuracy >= 0.8'; what is degenerate is never taken anyway.",
                key="target",
                value=str(self),
            )
        if metric.direction and (metric.direction == "lower") != self.upper:
            turned = Target(self.metric, _TURNED[self.sign], self.bound)
            more = "less" if metric.direction == "lower" else "more"
            fair = {"zero": ", and 0 is fair", "one": ", and 1 is fair"}.get(metric.better, "")
            raise ConfigError(
                f"'{self}' is the wrong way round: of {metric.title}, {more} is better{fair}. Write '{turned}'.",
                key="target",
                value=str(self),
            )
        low, high = metric.range
        # the best value that there is, and the worst: if the one misses the bound nothing meets it, if the other is
        # beyond it everything does
        if not self.met(low if self.upper else high):
            what = "cannot be met"
        elif not low <= self.bound <= high:
            what = "is always met"
        else:
            return
        limits = f"between {low:g} and {high:g}" if math.isfinite(high) else f"at {low:g} or above"
        percent = 2 <= self.bound < 100 * high <= 100
        example = self.bound / 100 if percent else 0.05 if self.upper else 0.8
        raise ConfigError(
            f"'{self}' {what}: {metric.title} lies {limits}. Write a number in that range, e.g. "
            f"'{Target(self.metric, self.sign, example)}'.",
            key="target",
            value=str(self),
        )


def parse_targets(given: Any) -> tuple[Target, ...]:
    """One target or several, each a text or a `Target`; one that is given twice counts once, and two that contradict
    each other are refused."""
    if isinstance(given, str | Target):
        given = (given,)
    elif not isinstance(given, Iterable):
        raise ConfigError(
            f"must be a text such as 'accuracy >= 0.8', or a list of them, got {given!r}.", key="target", value=given
        )
    targets = tuple(dict.fromkeys(Target.parse(text) for text in given))
    for floor, ceiling in product(targets, targets):
        both = floor.metric == ceiling.metric and not floor.upper and ceiling.upper
        if both and not (floor.met(ceiling.bound) and ceiling.met(floor.bound)):
            raise ConfigError(
                f"'{floor}' and '{ceiling}' contradict each other: nothing can meet both. Leave one of them out.",
                key="target",
                value=[str(floor), str(ceiling)],
            )
    return targets


def check_confidence(confidence: Any) -> None:
    """Refuse what is neither a probability between 0.5 and 1 nor "mean"."""
    number = isinstance(confidence, int | float) and not isinstance(confidence, bool)
    if confidence != "mean" and not (number and 0.5 < confidence < 1):
        raise ConfigError(
            f"must be a number between 0.5 and 1, such as 0.95 for 95 %, or 'mean', got {confidence!r}.",
            key="confidence",
            value=confidence,
        )
