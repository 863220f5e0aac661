"""What counts can show: intervals of every metric that follows from counts, and the noise floor of its gaps.

Counts [S, G, C, C] by seed, group, label and prediction (`tables_for` says which) are all that is needed, so that a
server can do this with what its clients have summed. Nothing is assumed about the metric: it is computed on tables that
might have been.

* Rows are a sample. The tables that these counts leave possible are drawn from the Dirichlet posterior of each group,
  with one row's weight (Jeffreys' half and half) for each label, so that an empty cell is not a certain one.
* A gap is the largest of several, and never below 0: in a sample it is too large rather than too small. Upwards, the
  quantile of what is possible errs on the careful side. Downwards, the interval goes as far as the fairest tables, on
  the way from the pooled rates to the observed ones, under which a gap like this would not be surprising: down to 0
  where it is within the noise floor.
* Seeds are another source of noise. Seeds that are tested on the same rows share the rows' noise, which then does not
  average out; `shared_rows` is the share of its rows that a seed has in common with another one.

Random numbers are fixed: the same counts have the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, cached_property, wraps
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from equifed.errors import ConfigError
from equifed.metrics.calibration import BINS
from equifed.metrics.catalogue import Evaluation, Metric, describe
from equifed.metrics.rates import check_counts, divide
from equifed.metrics.scored import Scored

TABLES = 4000
"""Tables drawn for all seeds together."""
CELLS = 4_000_000
"""Numbers drawn at once, where tables are large."""
TYPICAL = 25
"""Samples of which the middle one is taken for typical."""
CAREFUL = 0.8
"""Part of the allowed error that one-sided bounds use: counts are whole numbers, and with all of it they would be wrong
up to 6.5 % of the time where 5 % are allowed (two groups of 100 rows, rates of 2 and 22 %)."""
ROUNDING = 1e-9
"""Gaps up to here are none."""
REMEMBERED = 10_000
"""Estimates and noise floors that are kept, of all counts."""
_KNOWN: dict[tuple[Any, ...], Any] = {}
"""Those, by what they are of."""
STEPS = (0.5, 1.0)
"""On the way from the pooled rates (0) to the observed ones (1)."""

T = TypeVar("T")
Pooled = Literal["tables", "predictions"]
"""What groups have in common in a fair world: everything, or only what is predicted given the label."""


class Estimate(NamedTuple):
    """A metric over seeds, and what its rows and seeds leave possible; all nan where it is undefined."""

    mean: float
    low: float
    """[low, high]: the two-sided interval."""
    high: float
    lower_end: float
    """One-sided: the metric is above it."""
    upper_end: float
    """One-sided: the metric is below it."""


NOTHING = Estimate(*[math.nan] * 5)


def from_counts(metric: str | Metric) -> bool:
    """Whether the metric is a share, a gap or a ratio that follows from counts alone. Losses, distances between
    distributions and calibration do not, nor does what is said of single clients."""
    return _follows(_facts(metric))


def tables_for(metric: str | Metric) -> dict[str, bool]:
    """Which counts the metric takes, as arguments of `Result.count_tables`: with labels, unless it follows from
    predictions alone, and with rows of unknown group, unless it is about groups."""
    needs = _facts(metric).needs
    return {"labels": "labels" in needs, "unknown": "groups" not in needs}


@cache
def _follows(facts: Metric) -> bool:
    if facts.overall is None or facts.in_groups in ("count", "flag") or not np.isfinite(facts.range).all():
        return False
    if not set(facts.kinds) & {"binary", "multiclass"}:
        return False
    classes = 2 if "binary" in facts.kinds else 3
    return bool(np.isfinite(_value(facts, np.full((2, classes, classes), 7.0))))


def estimate(
    metric: str | Metric, counts: Any, *, confidence: float = 0.95, shared_rows: float | bool = True
) -> Estimate:
    """The mean over seeds of a metric of `counts` [S, G, C, C], with its interval and its one-sided bounds.

    shared_rows: the share of its rows that a seed has in common with another one, see `Result.info`; True: all.
    """
    return Evidence(counts, confidence, shared_rows).estimate(metric)


def noise_floor(
    metric: str | Metric, counts: Any, confidence: float = 0.95, *, shared_rows: float | bool = True
) -> float:
    """What a perfectly fair model might show on so many rows: the gap (or ratio) that it keeps within in `confidence`
    of all samples. nan for what is no disparity or does not follow from counts."""
    return Evidence(counts, confidence, shared_rows).noise_floor(metric)


def rows_needed(
    metric: str | Metric,
    counts: Any,
    bound: float,
    confidence: float = 0.95,
    *,
    shared_rows: float | bool = True,
) -> float:
    """How many rows, with the same shares of groups and labels, it takes to show that a perfectly fair model keeps the
    bound: with so many its one-sided bound does so in half of all samples. inf where no number would do; nan as in
    `noise_floor`."""
    return Evidence(counts, confidence, shared_rows).rows_needed(metric, bound)


def _remembered(compute: Callable[[Evidence, Metric], T]) -> Callable[[Evidence, str | Metric], T]:
    """The same, computed once for all evidence from the same counts: an answer, a record and a page ask in turn. Only
    the number is kept, not the tables that were drawn for it."""

    @wraps(compute)
    def recalled(evidence: Evidence, metric: str | Metric) -> T:
        facts = _facts(metric)
        key = compute, facts, *evidence._identity
        if key not in _KNOWN:
            if len(_KNOWN) >= REMEMBERED:
                _KNOWN.pop(next(iter(_KNOWN)))  # the oldest
            _KNOWN[key] = compute(evidence, facts)
        known: T = _KNOWN[key]
        return known

    return recalled


class Evidence:
    """What counts [S, G, C, C] show, whatever the metric."""

    def __init__(self, counts: Any, confidence: float = 0.95, shared_rows: float | bool = True) -> None:
        if not 0 < confidence < 1:
            raise ConfigError(f"must lie between 0 and 1, got {confidence}.", key="confidence", value=confidence)
        counts = check_counts(np.asarray(counts, dtype=np.float64))
        self.counts = counts[None] if counts.ndim == 3 else counts
        self.error, self.shared = 1 - confidence, float(shared_rows)
        self._fair: dict[tuple[Pooled, float], tuple[Evaluation, Evaluation]] = {}

    @cached_property
    def _identity(self) -> tuple[Any, ...]:
        """Equal where the same is shown."""
        digest = blake2b(self.counts.tobytes()).digest()
        return digest, self.counts.shape, self.error, self.shared, self._draws

    @_remembered
    def estimate(self, facts: Metric) -> Estimate:
        """See `estimate`."""
        values = self._observed(facts)
        if values is None:
            return NOTHING
        mean = float(values.mean())
        low, high = (self._end(facts, values, side, self.error / 2) for side in (-1, 1))
        lower, upper = (self._end(facts, values, side, CAREFUL * self.error) for side in (-1, 1))
        if facts.disparity:
            low, lower = (self._fairest(facts, values, error) for error in (self.error / 2, self.error))
        found = [mean, low, high, lower, upper]
        if facts.better == "one":  # so far as distances from 1
            mean, high, low, upper, lower = (1 - value for value in found)
            found = [mean, low, high, lower, upper]
        return Estimate(found[0], *(float(np.clip(end, *facts.range)) for end in found[1:]))

    @_remembered
    def noise_floor(self, facts: Metric) -> float:
        """See `noise_floor`."""
        if not facts.disparity or self._observed(facts) is None:
            return math.nan
        floor = self._floor(facts)
        return float(np.clip(1 - floor if facts.better == "one" else floor, *facts.range))

    def rows_needed(self, metric: str | Metric, bound: float) -> float:
        """See `rows_needed`."""
        facts = _facts(metric)
        if not facts.disparity or self._observed(facts) is None:
            return math.nan
        allowed, rows = float(facts.cost(bound)), float(np.nansum(self.counts) / len(self.counts))
        if not allowed > 0:
            return math.inf
        averaged = self.shared + (1 - self.shared) / len(self.counts)
        needed = rows
        for _ in range(4):  # noise shrinks with the root of the rows, up to how small counts round
            needed *= averaged * (self._typical_bound(facts, needed / rows) / allowed) ** 2
        return float(math.ceil(needed))

    # -- the observed tables, and those that are possible --------------------------------------------------------------

    def _observed(self, facts: Metric) -> np.ndarray | None:
        """The metric of every seed [S] where it is defined, as a cost where it is a disparity."""
        kind = "binary" if self.counts.shape[-1] == 2 else "multiclass"
        if not from_counts(facts) or kind not in facts.kinds or self._withheld(facts):
            return None
        values = _of(facts, self._as_shown)
        return values if np.isfinite(values).all() else None

    def _withheld(self, facts: Metric) -> bool:
        return "groups" in facts.needs and bool(np.isnan(self.counts).any())

    @cached_property
    def _shown(self) -> np.ndarray:
        return np.nan_to_num(self.counts)

    @cached_property
    def _as_shown(self) -> Evaluation:
        return _evaluation(self._shown)

    @cached_property
    def _as_smoothed(self) -> Evaluation:
        return _evaluation(self._smoothed)

    @cached_property
    def _draws(self) -> int:
        seeds, cells = len(self.counts), self.counts[0].size
        fine = math.ceil(2 / self.error)  # else the quantile of a small error would be the largest that was drawn
        return max(200, fine, min(TABLES // seeds, CELLS // (seeds * cells)))

    @cached_property
    def _smoothed(self) -> np.ndarray:
        """With one row's weight for each label that a group has."""
        return self._shown + (self._shown.sum(-1, keepdims=True) > 0) / self._shown.shape[-1]

    @cached_property
    def _possible(self) -> Evaluation:
        """Tables that might be behind the observed ones [draws, S, ...]."""
        rng = np.random.default_rng(0)
        drawn = rng.standard_gamma(self._smoothed, size=(self._draws, *self._smoothed.shape))
        return _evaluation(drawn)

    def _end(self, facts: Metric, values: np.ndarray, side: int, error: float) -> float:
        """Where the mean of the values ends above (side 1) or below (side -1), but for this error."""
        return float(values.mean() + side * self._together(self._reach(facts, values, side, error), values, error))

    def _reach(self, facts: Metric, values: np.ndarray, side: int, error: float) -> np.ndarray:
        """How far above or below its value the rows of each seed leave the metric possible [S]."""
        drawn = _of(facts, self._possible)
        level = 1 - error if side > 0 else error
        # smoothing moves rates towards the middle: that must not move an end inwards
        moved = np.maximum(0, side * (values - _of(facts, self._as_smoothed)))
        reach = side * (_quantile(drawn, level) - values) + moved
        if "groups" in facts.needs and not facts.disparity:
            # the worst of several is worse in a sample than in truth, the more so the more alike they are
            true, samples = self._sampled(facts, 0.0)
            reach = np.maximum(reach, side * (true - _quantile(samples, 1 - level)))
        return np.maximum(reach, 0)

    def _together(self, reach: np.ndarray, values: np.ndarray, error: float) -> float:
        """How far the mean over seeds may be off, from how far each seed's rows may put it off [S], and from how the
        seeds differ."""
        seeds, rows = len(values), float(np.mean(reach**2))
        if seeds == 1:
            return math.sqrt(rows)
        from scipy.special import stdtrit  # the quantiles of Student's t; scipy.stats takes long to import

        between = float(stdtrit(seeds - 1, 1 - error)) ** 2 * float(values.var(ddof=1))
        return math.sqrt(self.shared * rows + max(between, (1 - self.shared) * rows) / seeds)

    # -- fair tables ---------------------------------------------------------------------------------------------------

    def _towards(self, step: float, pooled: Pooled) -> np.ndarray:
        """The observed shares [S, G, C, C] moved towards the pooled ones: all the way for step 0."""
        table = self._smoothed
        everyone = table.sum(-3, keepdims=True)
        if pooled == "tables":
            fair = everyone / everyone.sum((-2, -1), keepdims=True)
            own = divide(table, table.sum((-2, -1), keepdims=True))
        else:
            labels = divide(table.sum(-1, keepdims=True), table.sum((-2, -1), keepdims=True))
            fair = labels * np.nan_to_num(divide(everyone, everyone.sum(-1, keepdims=True)))
            own = divide(table, table.sum((-2, -1), keepdims=True))
        return np.where(np.isnan(own), 0.0, (1 - step) * fair + step * own)

    @cached_property
    def _alike(self) -> Evaluation:
        """Groups that are alike in what is predicted given the label."""
        return _evaluation(self._towards(0.0, "predictions"))

    def _pooled(self, facts: Metric) -> Pooled:
        """A gap in error rates is 0 where predictions are alike given the label, however many of each label a group
        has; others need groups that are alike in everything."""
        gaps = _of(facts, self._alike)
        return "predictions" if np.nan_to_num(gaps).max() < ROUNDING else "tables"

    def _sampled(self, facts: Metric, step: float) -> tuple[np.ndarray, np.ndarray]:
        """(the metric of tables at this step [S], the metric of samples from them [draws, S]), as costs."""
        pooled = self._pooled(facts)
        if (pooled, step) not in self._fair:
            shares = self._towards(step, pooled)
            rows = np.rint(self._shown.sum((-2, -1))).astype(np.int64)
            self._fair[pooled, step] = _evaluation(shares), _evaluation(_multinomial(rows, shares, self._draws))
        true, samples = self._fair[pooled, step]
        return _of(facts, true), _of(facts, samples)

    def _floor(self, facts: Metric) -> float:
        """As a cost."""
        return self._surprising(self._sampled(facts, 0.0)[1], self.error, np.zeros(len(self.counts)))

    def _surprising(self, samples: np.ndarray, error: float, values: np.ndarray) -> float:
        """What the mean over seeds [S] of such samples [draws, S] stays within, but for this error."""
        centre = np.nanmean(samples, axis=0)
        reach = _quantile(samples, 1 - error) - centre
        return float(centre.mean()) + self._together(np.maximum(reach, 0), values, error)

    def _fairest(self, facts: Metric, values: np.ndarray, error: float) -> float:
        """The smallest mean cost under which that of the values would not be surprising, but for this error."""
        observed, floor = float(values.mean()), self._floor(facts)
        before = 0.0, floor
        if observed <= floor:
            return 0.0
        for step in STEPS:
            true, samples = self._sampled(facts, step)
            here = float(np.nanmean(true)), self._surprising(samples, error, values)
            if observed <= here[1]:
                part = (observed - before[1]) / (here[1] - before[1])
                return before[0] + part * (here[0] - before[0])
            before = here
        return min(before[0], observed)

    def _typical_bound(self, facts: Metric, times: float) -> float:
        """The one-sided bound, as a cost, that a fair model has in half of all samples of so many times the rows."""
        shares = self._towards(0.0, self._pooled(facts)).mean(0)
        rows = np.rint(np.maximum(self._shown.sum((-2, -1)).mean(0) * times, 1)).astype(np.int64)
        fair = Evidence(_multinomial(rows, shares, TYPICAL), 1 - self.error)
        values = _value(facts, fair.counts)
        return float(np.nanmedian(values + fair._reach(facts, values, 1, CAREFUL * self.error)))


# -- tables and their metrics ------------------------------------------------------------------------------------------


def _multinomial(rows: np.ndarray, shares: np.ndarray, draws: int) -> np.ndarray:
    """Samples [draws, ..., C, C] of so many rows [...] from these shares [..., C, C]; of no rows from a group without
    any."""
    flat = shares.reshape(*rows.shape, -1)
    total = flat.sum(-1, keepdims=True)
    flat = np.where(total > 0, flat / np.where(total > 0, total, 1), 1 / flat.shape[-1])
    known = np.where(total[..., 0] > 0, rows, 0)
    return np.random.default_rng(1).multinomial(known, flat, size=(draws, *rows.shape)).reshape(draws, *shares.shape)


def _quantile(drawn: np.ndarray, level: float) -> np.ndarray:
    """Over the draws [draws, S] in which it is defined."""
    if np.isnan(drawn).any():
        return np.asarray(np.nanquantile(drawn, level, axis=0))
    return np.asarray(np.quantile(drawn, level, axis=0))  # the same, several times faster


def _facts(metric: str | Metric) -> Metric:
    return describe(metric) if isinstance(metric, str) else metric


def _evaluation(counts: np.ndarray) -> Evaluation:
    """Of counts, or shares of rows, of known groups alone: what else an evaluation has is not known."""
    lead, (groups, classes) = counts.shape[:-3], counts.shape[-3:-1]
    shapes = {"loss": (groups, classes), "ks": (), "mean": (groups,), "calibration": (groups, BINS, 3)}
    shapes |= {"unknown_loss": (classes,), "unknown_calibration": (BINS, 3)}
    nothing = {name: np.broadcast_to(np.nan, (*lead, *shape)) for name, shape in shapes.items()}
    unknown = np.broadcast_to(0.0, (*lead, classes, classes))
    return Evaluation(Scored(counts=counts, predicted=counts.sum(-2), unknown=unknown, **nothing))


def _of(facts: Metric, evaluation: Evaluation) -> np.ndarray:
    """The metric, as a cost where it is a disparity."""
    assert facts.overall is not None
    values = np.asarray(facts.overall(evaluation), dtype=np.float64)
    return np.asarray(facts.cost(values)) if facts.disparity else values


def _value(facts: Metric, counts: np.ndarray) -> np.ndarray:
    return _of(facts, _evaluation(counts))
