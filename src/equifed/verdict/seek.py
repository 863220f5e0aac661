"""Target-seeking training: a method's knob is turned until a target is met, at the least loss, in few runs.

Step 1 puts a few values over the range of the knob, all in one computation. More of the knob means fairer and, in
tendency, less accurate, so the best setting lies between the least fair one that meets the target and its neighbour
that misses it, or, where none meets it, around what comes nearest: there go the values of each further step. Noise may
bend the tendency: a fairer setting that comes out best gets up to half of them, no setting is forgotten, and the answer
is chosen from all. Settings are judged on validation rows; test rows only confirm the one that is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equifed.errors import ConfigError
from equifed.federation import Federation
from equifed.methods import REGISTRY, Method, make, options
from equifed.metrics import catalogue
from equifed.metrics.catalogue import describe
from equifed.protocol import Knob
from equifed.results.result import Result
from equifed.settings import RunSettings, SeekSettings
from equifed.target import Target, parse_targets
from equifed.verdict.answering import answer
from equifed.verdict.choose import Aim
from equifed.verdict.outcome import Answer
from equifed.verdict.variants import Variant

if TYPE_CHECKING:
    import pandas as pd

DIGITS = 3
"""Significant digits of the values that are tried: people read them and type them again."""
STRETCH = 0.5
"""The part of its width by which the range is extended where its end is not far enough; once on each side."""


# -- where to look -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """A value of the knob, and how it came out on validation rows: all that a search knows of a variant."""

    value: float
    met: bool
    """Whether it is as fair as asked for, with the confidence asked for."""
    excess: float
    """How far it is from that; infinite where it cannot be said."""
    costs: tuple[float, ...]
    """The main quality of each seed, turned so that less is better."""
    rows: float = math.inf
    """The validation rows that the quality is a share of; infinite where it is no share of rows."""

    @property
    def cost(self) -> float:
        return float(np.mean(self.costs))


def _noise(one: Point, other: Point) -> float:
    """The standard error of the difference between their mean costs: by seeds, and at least by rows. Settings whose
    accuracies differ by d are right about different rows in a share of d at least, which gives d an error of at least
    sqrt(d / rows), as in McNemar's test: a difference of one row is nothing."""
    if not math.isfinite(one.cost + other.cost):
        return 0.0
    gaps = np.subtract(one.costs, other.costs)
    by_seeds = float(gaps.std(ddof=1)) / math.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
    return max(by_seeds, math.sqrt(abs(float(gaps.mean())) / min(one.rows, other.rows)))


class Search:
    """Which values of a knob to try next, by how those before came out. It knows nothing of training."""

    def __init__(self, knob: Knob, settings: SeekSettings, allowed: tuple[float | None, float | None]) -> None:
        """allowed: the least and the largest value that the hyperparameter may have at all."""
        self.knob, self.settings, self.allowed = knob, settings, allowed
        self.tried: dict[float, Point] = {}
        self.steps = 0
        self.ended = ""
        """Why the search has ended; "" until it has."""
        self._first, self._last = (self._place(value) for value in knob.ends)
        self._finest = self._last - self._first
        self._stretched: set[str] = set()

    # -- the knob's scale: places grow towards the fairer end ----------------------------------------------------------

    def _place(self, value: float) -> float:
        sign = 1 if self.knob.fairer == "more" else -1
        if self.knob.scale == "linear":
            return sign * value
        if value > 0:
            return sign * math.log(value)
        # 0 is infinitely far away: it lies as far outside the range as the first values lie apart
        low, high = math.log(self.knob.low), math.log(self.knob.high)
        return sign * (low - (high - low) / max(self.settings.at_once - 2, 1))

    def _value(self, place: float) -> float:
        sign = 1 if self.knob.fairer == "more" else -1
        value = sign * place if self.knob.scale == "linear" else math.exp(sign * place)
        low, high = self.allowed
        value = float(f"{value:.{DIGITS}g}")
        return min(max(value, -math.inf if low is None else low), math.inf if high is None else high)

    # -- steps ---------------------------------------------------------------------------------------------------------

    @property
    def order(self) -> list[Point]:
        """What was tried, from the least to the most that was done for fairness."""
        return sorted(self.tried.values(), key=lambda each: self._place(each.value))

    @property
    def best(self) -> Point:
        """Where to look closer: of those that meet the targets, the one that did least for fairness among all that
        cannot be told from the best (two standard errors); where none meets them, the nearest."""
        met = [each for each in self.order if each.met]
        if not met:
            return min(self.order, key=lambda each: each.excess)
        best = min(met, key=lambda each: each.cost)
        return next(each for each in met if each.cost - best.cost <= 2 * _noise(each, best))

    @property
    def grid(self) -> int:
        """How many settings a grid over the range searched, as fine as the finest step, would have."""
        places = [self._place(value) for value in self.tried]
        return round((max(places) - min(places)) / self._finest) + 1

    def add(self, tried: Iterable[Point]) -> None:
        """How the values of a step came out."""
        self.tried |= {each.value: each for each in tried}
        self.steps += 1

    def values(self) -> list[float]:
        """What to try in the next step; nothing when the search has ended."""
        if not self.tried:
            neutral = self.knob.neutral
            apart = neutral is not None and not self.knob.low <= neutral <= self.knob.high
            count = self.settings.at_once - apart
            self._finest = (self._last - self._first) / max(count - 1, 1)
            inside = [self.knob.ends[0], *self._between(self._first, self._last, count - 2), self.knob.ends[1]]
            return ([neutral] if apart and neutral is not None else []) + inside[-count:]
        if not self.ended and self.steps >= self.settings.steps:
            self.ended = "all steps are done" + ("" if self.best.met else ", and nothing meets the target")
        if self.ended:
            return []
        new = [value for value in dict.fromkeys(self._refined()) if value not in self.tried]
        if not new and not self.ended:
            self.ended = "there is no value between those that were tried"
        return new

    def _refined(self) -> list[float]:
        order, best = self.order, self.best
        at = order.index(best)
        before, after = (order[at - 1] if at else None), (order[at + 1] if at + 1 < len(order) else None)
        if not best.met:
            if math.isinf(best.excess):
                self.ended = "no setting has a value that could meet the target"
                return []
            if after is None:
                return self._beyond("fairer", "nothing meets the target, not even the fairest end of the range")
            return self._around(before, best, after, self.settings.at_once)
        edge = next(i for i, each in enumerate(order) if each.met)
        if 0 < edge < at and order[edge - 1].cost < best.cost - _noise(best, order[edge - 1]):
            # a fairer setting came out best, which is against the tendency and may be chance
            count = self.settings.at_once
            here = self._inside(order[edge - 1], order[edge], count - count // 2)
            return [*here, *self._around(before, best, after, count // 2)]
        if before is None:
            if best.value == self.knob.neutral:
                self.ended = "the target is met without any fairness weight"
                return []
            if after is not None and after.cost - best.cost <= _noise(after, best):
                self.ended = "what less fairness could gain is within the noise"
                return []
            return self._beyond("less fair", "the target is met at the least fair end of the range")
        if before.cost < best.cost:
            # the usual case: what is less fair is more accurate and misses the target
            if best.cost - before.cost <= _noise(best, before):
                self.ended = "what less fairness could gain is within the noise"
                return []
            return self._inside(before, best, self.settings.at_once)
        neighbours = [before] if after is None else [before, after]
        if all(each.cost - best.cost <= _noise(each, best) for each in neighbours):
            self.ended = "what the settings around the best could gain is within the noise"
            return []
        return self._around(before, best, after, self.settings.at_once)

    def _around(self, before: Point | None, best: Point, after: Point | None, count: int) -> list[float]:
        """Values on both sides of the best, more on the less fair one."""
        if before is None or after is None:
            return self._inside(before or best, after or best, count)
        return [*self._inside(before, best, count - count // 2), *self._inside(best, after, count // 2)]

    def _inside(self, one: Point, other: Point, count: int) -> list[float]:
        a, b = self._place(one.value), self._place(other.value)
        self._finest = min(self._finest, (b - a) / (count + 1))
        return self._between(a, b, count)

    def _between(self, a: float, b: float, count: int) -> list[float]:
        return [self._value(a + (b - a) * i / (count + 1)) for i in range(1, count + 1)]

    def _beyond(self, side: str, otherwise: str) -> list[float]:
        """Values outside the range; none where it was extended already, or may not be: then the search has ended."""
        order = self.order
        end, sign = (order[-1], 1) if side == "fairer" else (order[0], -1)
        start, width = self._place(end.value), STRETCH * (self._last - self._first)
        step, count = sign * width / self.settings.at_once, self.settings.at_once
        new = [self._value(start + step * i) for i in range(1, count + 1)]
        if side in self._stretched or all(value in self.tried for value in new):
            self.ended = otherwise
            return []
        self._stretched.add(side)
        self._finest = min(self._finest, abs(step))
        return new


# -- what a method is turned by ----------------------------------------------------------------------------------------


def aimed(method: Method, targets: Sequence[Target]) -> tuple[Method, Knob]:
    """The method as it aims at the targets, and its knob. The first target that the knob moves decides; what the method
    was given in place of a default stays."""
    knob = method.knob
    if not targets:
        raise ConfigError(
            "is needed: what is to be sought, e.g. 'demographic_parity_difference <= 0.05'.", key="target"
        )
    if knob is None:
        raise ConfigError(
            f"{method.name} has no hyperparameter that trades accuracy for fairness, so that nothing can be sought. "
            f"These have one: {', '.join(_turned(method))}. Or name the values to choose from, as a sweep."
        )
    moved = [target.metric for target in targets if target.metric in knob.aims]
    if not moved:
        named = " and ".join(dict.fromkeys(target.metric for target in targets))
        able = [name for name in _turned(method) if any(target.metric in _knob(name).aims for target in targets)]
        others = f" Methods that do: {', '.join(able)}." if able else ""
        raise ConfigError(
            f"{knob.name} of {method.name} does not aim at {named}, but at {', '.join(knob.aims)}.{others} "
            "Or name the values to choose from, as a sweep.",
            key="target",
        )
    usual = {name: option.default for name, option in options(method).items()}
    settings = {name: value for name, value in knob.aims[moved[0]].items() if method.hyper[name] == usual[name]}
    return method.with_hyper(**settings), knob


def _turned(method: Method) -> list[str]:
    """The methods whose knob can be sought: this one with its decisions adjusted, where that can be, and registered
    ones that do not train on the rows that judge."""
    names = list(REGISTRY.usable())
    adjusted = [f"{method.name}+fair"] if method.name in names and "binary" in method.label_kinds else []
    return [*adjusted, *(name for name in names if make(name).knob and not make(name).needs_validation)]


def _knob(name: str) -> Knob:
    knob = make(name).knob
    assert knob is not None
    return knob


def need_validation(federations: Sequence[Federation]) -> None:
    """Refuse to train what a target could not choose from afterwards."""
    if not all(len(fed.validation) for fed in federations):
        raise ConfigError(
            "Settings are judged on validation rows, and this federation has none: a target cannot choose between "
            "them. Hold some back: --validation 0.1, validation = 0.1 in [data], or equifed.load(..., validation=0.1).",
            key="target",
        )


# -- seeking -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sought:
    """What came of seeking a target."""

    answer: Answer
    """Which setting to take, chosen on validation rows among all that were tried, and what test rows say about it."""
    tried: pd.DataFrame
    """A row per setting: its step, the knob's value, what it reached on validation rows (`_end`: the end of the
    interval that must meet the target), whether that meets the targets. Test figures, `test_...`, of the chosen one
    only."""
    results: list[Result]
    """One for each step; `equifed.report.write_report` makes a page of them."""
    method: Method
    """The method, as it aims at the targets."""
    ended: str
    """Why the search ended."""
    grid: int
    """How many settings a grid over the same range, as fine as the finest step, would have had."""

    @property
    def effort(self) -> str:
        """What it took, in a sentence."""
        steps, settings = len(self.results), len(self.tried)
        return (
            f"{settings} settings in {steps} {'step' if steps == 1 else 'steps'}; a grid as fine would have had "
            f"{self.grid}. The search ended: {self.ended}."
        )

    def __repr__(self) -> str:
        return f"{self.answer} {self.effort}"


class Seeking:
    """A search and what it has found so far: train a sweep over each `over()`, and `add` its result."""

    def __init__(
        self, method: Method, federations: Sequence[Federation], settings: RunSettings, seek: SeekSettings
    ) -> None:
        self.aim = Aim(parse_targets(settings.target), settings.confidence)
        self.method, self.knob = aimed(method, self.aim.targets)
        self.aims = {name: value for name, value in self.method.hyper.items() if value != method.hyper[name]}
        """The hyperparameters that were set so that the method aims at the targets."""
        need_validation(federations)
        if self.method.needs_validation:
            raise ConfigError(
                f"{self.method.name} trains on the validation rows, on which settings are judged: its settings cannot "
                "be sought. Choose among values of your own on other rows, or take another method."
            )
        of_clients = [each.metric for each in self.aim.targets if describe(each.metric).over_clients]
        if of_clients:
            raise ConfigError(
                f"{of_clients[0]} is measured on the clients' own test rows only, and settings are judged on "
                "validation rows: it cannot be sought.",
                key="target",
            )
        allowed = options(self.method)[self.knob.name]
        self.search = Search(self.knob, seek, (allowed.low, allowed.high))
        self.results: list[Result] = []

    def over(self) -> dict[str, list[float]]:
        """The next step: the knob and its values; {} when the search has ended."""
        values = self.search.values()
        return {self.knob.name: values} if values else {}

    def add(self, result: Result) -> None:
        """How the sweep over what `over` said came out."""
        self.results.append(result)
        self.search.add(self._point(variant.on("validation")) for variant in result.variants)

    def _point(self, variant: Variant) -> Point:
        """By the targets of fairness alone: of the settings that meet them, the one of the best quality is most likely
        to meet the others too."""
        decisive = [
            (target, self.aim.decisive(target, estimate))
            for target, estimate in zip(self.aim.targets, self.aim.estimates(variant), strict=True)
            if target.metric in self.knob.aims or describe(target.metric).disparity
        ]
        degenerate = variant.degenerate.any()
        fair = all(target.met(value) for target, value in decisive) and not degenerate
        excess = math.inf if degenerate else max(target.excess(value) for target, value in decisive)
        costs = tuple(variant.costs(self._quality).tolist())
        return Point(variant.setting[self.knob.name], fair, excess, costs, self._rows(variant))

    def _rows(self, variant: Variant) -> float:
        """The validation rows that the mean quality over seeds rests on: seeds with rows of their own add theirs."""
        if not describe(self._quality).share:
            return math.inf
        shared = variant.shared_rows
        return float(variant.result.info["rows"]["validation"] / (shared + (1 - shared) / variant.seeds))

    @property
    def _quality(self) -> str:
        return catalogue.main_pair(self.results[0].variants[0].on("validation").final.columns)[0]

    def sought(self) -> Sought:
        """The answer from all that was tried."""
        found = answer(self.results, self.aim.targets, self.aim.confidence)
        search = self.search
        return Sought(found, self._frame(found), self.results, self.method, search.ended, search.grid)

    def _frame(self, found: Answer) -> pd.DataFrame:
        import pandas as pd

        rows = []
        tried = [(step, each.on("validation")) for step, of in enumerate(self.results, 1) for each in of.variants]
        for step, each in tried:
            value = each.setting[self.knob.name]
            chosen = found.chosen is not None and found.chosen.setting[self.knob.name] == value
            rows.append({"step": step, self.knob.name: value, self._quality: float(each.values(self._quality).mean())})
            for target, estimate in zip(self.aim.targets, self.aim.estimates(each), strict=True):
                ends = {target.metric: estimate.mean, f"{target.metric}_end": target.conservative(estimate)}
                rows[-1] |= {target.metric: estimate.mean} if self.aim.confidence == "mean" else ends
            rows[-1] |= {"met": self.aim.met(each), "degenerate": bool(each.degenerate.any()), "chosen": chosen}
            if chosen and found.rows["test"]:
                reached = {finding.target.metric: finding.test for finding in found.findings if finding.test}
                means = {self._quality: found.reached} | {name: each.mean for name, each in reached.items()}
                rows[-1] |= {f"test_{name}": value for name, value in means.items()}
        return pd.DataFrame(rows).sort_values(self.knob.name, ignore_index=True)
