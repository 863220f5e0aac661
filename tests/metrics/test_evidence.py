"""Intervals and the noise floor from counts: against closed forms, scipy, and repeated samples of a known truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, bootstrap, norm, t

from equifed.errors import ConfigError
from equifed.metrics import Metric, disparities, evidence
from equifed.metrics.catalogue import CATALOGUE

DP, EO = "demographic_parity_difference", "equal_opportunity_difference"
FROM_COUNTS = {
    *("accuracy", "worst_group_accuracy", "selection_rate", "accuracy_difference", "discrimination_index"),
    *(f"{name}_{kind}" for name in ("demographic_parity", "equal_opportunity") for kind in ("difference", "ratio")),
    *("equalized_odds_difference", "equalized_odds_ratio", "average_odds_ratio"),
    *(f"{which}_{label}_rate" for which in ("true", "false") for label in ("positive", "negative")),
    "f1",
}


def table(rows: int, positive: float, selected: float) -> np.ndarray:
    """Expected counts [2, 2] of a group whose predictions do not depend on the label."""
    return rows * np.outer([1 - positive, positive], [1 - selected, selected])


def sample(rng: np.random.Generator, tables: list[np.ndarray]) -> np.ndarray:
    """One sample of as many rows from each group [G, C, C]."""
    return np.stack(
        [rng.multinomial(round(each.sum()), (each / each.sum()).ravel()).reshape(each.shape) for each in tables]
    )


def rate_error(counts: np.ndarray) -> float:
    """Standard error of the difference of two groups' selection rates."""
    rows = counts.sum((-2, -1))
    rate = counts[..., 1].sum(-1) / rows
    return math.sqrt((rate * (1 - rate) / rows).sum())


@pytest.fixture(autouse=True)
def as_users_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "TABLES", 4000)


TWO = np.array([[[3000, 1000], [1000, 1400]], [[2600, 600], [700, 900]]])


def test_which_metrics_follow_from_counts() -> None:
    assert {name for name in CATALOGUE if evidence.from_counts(name)} == FROM_COUNTS
    for name in (
        "dgeo",
        "loss",
        "ks_distance",
        "rmse",
        "calibration_difference",
        "client_accuracy.worst",
        "unheard_of",
    ):
        assert all(np.isnan(evidence.estimate(name, TWO)))
        assert np.isnan(evidence.noise_floor(name, TWO))
        assert np.isnan(evidence.rows_needed(name, TWO, 0.05))


def test_the_same_counts_are_drawn_from_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "_KNOWN", {})
    counts = np.stack([TWO, TWO[:, ::-1]])
    before = evidence.estimate(DP, counts), evidence.noise_floor(DP, counts)
    others = (
        lambda: evidence.estimate(EO, counts),
        lambda: evidence.estimate(DP, counts + 1),
        lambda: evidence.estimate(DP, counts[:, ::-1]),
        lambda: evidence.estimate(DP, counts, confidence=0.9),
        lambda: evidence.estimate(DP, counts, shared_rows=0.5),
        lambda: evidence.noise_floor(DP, counts, confidence=0.9),
    )
    values = [other() for other in others]
    with monkeypatch.context() as drawing:
        drawing.setattr(evidence, "_evaluation", lambda counts: pytest.fail("computed again"))
        assert (evidence.estimate(DP, counts), evidence.noise_floor(DP, counts)) == before
        assert [other() for other in others] == values
    assert len(set(map(str, (*before, *values)))) == len(values) + 2  # none was taken for another
    monkeypatch.setattr(evidence, "REMEMBERED", 3)
    monkeypatch.setattr(evidence, "_KNOWN", {})
    assert [other() for other in others] == values
    assert len(evidence._KNOWN) == 3


def test_two_groups_with_many_rows_are_as_in_the_normal_approximation() -> None:
    found, error = evidence.estimate(DP, TWO), rate_error(TWO)
    gap = disparities(TWO)[DP]
    z = norm.ppf(0.975)
    np.testing.assert_allclose(found[:3], [gap, gap - z * error, gap + z * error], atol=0.1 * error)
    one_sided = norm.ppf(1 - 0.8 * 0.05)  # a little careful
    assert found.upper_end == pytest.approx(gap + one_sided * error, abs=0.1 * error)
    assert found.lower_end == pytest.approx(gap - norm.ppf(0.95) * error, abs=0.1 * error)


def test_accuracy_is_as_scipys_bootstrap_and_the_exact_interval() -> None:
    right = np.repeat([1, 0], [TWO[:, [0, 1], [0, 1]].sum(), TWO[:, [0, 1], [1, 0]].sum()])
    found = evidence.estimate("accuracy", TWO)
    drawn = bootstrap([right], np.mean, n_resamples=1000, method="percentile", rng=np.random.default_rng(0))
    np.testing.assert_allclose([found.low, found.high], drawn.confidence_interval, atol=6e-4)
    exact = [binom.ppf(tail, len(right), right.mean()) / len(right) for tail in (0.025, 0.975)]
    np.testing.assert_allclose([found.low, found.high], exact, atol=6e-4)


def test_several_classes() -> None:
    """The gap in accuracy of two groups is the difference of two shares, however many classes there are."""
    rng = np.random.default_rng(0)
    counts = np.stack([rng.multinomial(2000, (np.eye(4) * hit + 1).ravel() / (4 * hit + 16)) for hit in (12, 6)])
    counts = counts.reshape(2, 4, 4)
    share = np.trace(counts, axis1=1, axis2=2) / 2000
    error = math.sqrt((share * (1 - share) / 2000).sum())
    found = evidence.estimate("accuracy_difference", counts)
    gap, reach = share[0] - share[1], norm.ppf(0.975) * error
    np.testing.assert_allclose(found[:3], [gap, gap - reach, gap + reach], atol=0.1 * error)
    assert np.isnan(evidence.estimate("discrimination_index", counts).mean)  # of two classes


def test_noise_floor_of_two_groups() -> None:
    """|difference of two means of the pooled rate| stays within 1.96 standard errors, whatever gap was observed."""
    rows = TWO.sum((-2, -1))
    pooled = TWO[..., 1].sum() / rows.sum()
    error = math.sqrt(pooled * (1 - pooled) * (1 / rows).sum())
    assert evidence.noise_floor(DP, TWO) == pytest.approx(norm.ppf(0.975) * error, rel=0.05)
    assert evidence.noise_floor(DP, TWO, 0.8) == pytest.approx(norm.ppf(0.9) * error, rel=0.05)
    # a fair model has the same true positive rate in both groups, not as many positives
    positives = TWO[:, 1].sum(-1)
    rate = TWO[:, 1, 1].sum() / positives.sum()
    error = math.sqrt(rate * (1 - rate) * (1 / positives).sum())
    assert evidence.noise_floor(EO, TWO) == pytest.approx(norm.ppf(0.975) * error, rel=0.05)


def test_noise_floor_of_six_groups_is_that_of_samples() -> None:
    rng = np.random.default_rng(5)
    rows = np.array([30, 60, 100, 200, 400, 800])
    samples = rng.binomial(rows, 0.2, size=(20000, 6)) / rows
    gap = np.quantile(samples.max(-1) - samples.min(-1), 0.95)
    counts = np.stack([table(n, 0.4, 0.2) for n in rows])
    assert evidence.noise_floor(DP, counts) == pytest.approx(gap, rel=0.07)
    ratio = np.quantile(samples.min(-1) / samples.max(-1), 0.05)
    assert evidence.noise_floor("demographic_parity_ratio", counts) == pytest.approx(ratio, abs=0.02)


def test_within_the_floor_the_interval_reaches_0() -> None:
    for gap in (0.0, 0.02, 0.035, 0.05, 0.08):
        counts = np.stack([table(1000, 0.5, 0.3), table(1000, 0.5, 0.3 + gap)])
        found, floor = evidence.estimate(DP, counts), evidence.noise_floor(DP, counts)
        assert (found.low == 0) == (found.lower_end == 0) == (gap <= floor)
        assert found.low <= gap <= found.upper_end < found.high <= 1


def test_rows_needed() -> None:
    """Gap of a fair model in the middle of all samples, 0.67 standard errors, and 1.75 on top of it: below the bound
    with so many rows, and no sooner."""
    fair = np.stack([table(600, 0.5, 0.3), table(1800, 0.5, 0.3)])
    for bound in (0.02, 0.05, 0.2):
        needed = evidence.rows_needed(DP, fair, bound)
        error = math.sqrt(0.3 * 0.7 * (4 / needed + 4 / (3 * needed)))
        reach = norm.ppf(0.75) + norm.ppf(1 - 0.8 * 0.05)
        assert reach * error == pytest.approx(bound, rel=0.1)
    times = evidence.rows_needed(DP, fair, 0.02) / 2400
    rng = np.random.default_rng(0)
    kept = [evidence.estimate(DP, sample(rng, list(fair * times))).upper_end <= 0.02 for _ in range(40)]
    assert 8 <= sum(kept) <= 32  # half of them: outside with a chance of 1 in 5,000
    assert evidence.rows_needed(DP, fair, 0.0) == math.inf
    assert evidence.rows_needed("demographic_parity_ratio", fair, 0.9) > evidence.rows_needed(DP, fair, 0.1)


@pytest.mark.parametrize("metric", [DP, EO, "accuracy", "demographic_parity_ratio"])
def test_seeds(metric: str) -> None:
    """Equal seeds on the same rows show no more than one; on rows of their own their noise averages out; in between,
    in between. Seeds that differ widen all of them."""

    def reach(found: evidence.Estimate) -> float:  # on the side of what is worse
        return found.mean - found.lower_end if metric.endswith("ratio") else found.upper_end - found.mean

    one = evidence.estimate(metric, TWO)
    five = np.stack([TWO] * 5)
    for shared in (1.0, 0.2, 0.0):
        found = evidence.estimate(metric, five, shared_rows=shared)
        assert found.mean == pytest.approx(one.mean)
        assert reach(found) == pytest.approx(reach(one) * math.sqrt(shared + (1 - shared) / 5), rel=0.1)
    apart = np.stack([np.roll(TWO[0], i, axis=-1) * [[1, 0], [0, 1]] + TWO for i in range(5)])
    values = [evidence.estimate(metric, each).mean for each in apart]
    between = t.ppf(1 - 0.04, 4) * np.std(values, ddof=1) / math.sqrt(5)
    for shared in (1.0, 0.0):
        found = evidence.estimate(metric, apart, shared_rows=shared)
        assert reach(found) >= 0.99 * between


def test_a_metric_from_outside() -> None:
    """Any function of the counts: here the gap in precision, from its own standard error."""
    precision = Metric(
        *("precision_gap", "Gap between groups in precision."), better="zero", needs=("labels", "groups"),
        overall=lambda e: np.abs(np.subtract(*np.moveaxis(e.counts[..., 1, 1] / e.counts[..., 1].sum(-1), -1, 0))),
    )  # fmt: skip
    chosen = TWO[..., 1].sum(-1)
    share = TWO[:, 1, 1] / chosen
    error = math.sqrt((share * (1 - share) / chosen).sum())
    found = evidence.estimate(precision, TWO)
    assert found.mean == pytest.approx(abs(share[0] - share[1]))
    assert found.high - found.mean == pytest.approx(1.96 * error, rel=0.1)
    assert evidence.noise_floor(precision, TWO) == pytest.approx(1.96 * error, rel=0.15)


def test_limiting_cases() -> None:
    nobody = np.array([[[30, 0], [20, 0]], [[25, 0], [15, 0]]])  # nobody is selected: equal, but how sure?
    found = evidence.estimate(DP, nobody)
    assert found.mean == found.low == 0
    assert 0.02 < found.upper_end < 0.12
    assert evidence.noise_floor(DP, nobody) > 0
    assert np.isnan(evidence.estimate("demographic_parity_ratio", nobody).mean)  # 0 / 0
    empty = np.concatenate([TWO, np.zeros((1, 2, 2))])
    np.testing.assert_allclose(evidence.estimate(DP, empty), evidence.estimate(DP, TWO), atol=2e-3)
    assert np.isnan(evidence.estimate(DP, empty[1:]).mean)  # one group alone has no gap
    hidden = np.concatenate([TWO, np.full((1, 2, 2), np.nan)])
    for metric in (DP, EO, "worst_group_accuracy", "accuracy_difference"):
        assert all(np.isnan(evidence.estimate(metric, hidden)))  # a group that is withheld may be any
        assert np.isnan(evidence.noise_floor(metric, hidden))
    assert evidence.estimate(DP, TWO) == evidence.estimate(DP, TWO)
    assert evidence.estimate(DP, TWO / 7).high > evidence.estimate(DP, TWO).high  # fewer rows, in no whole number
    with pytest.raises(ConfigError, match="confidence"):
        evidence.estimate(DP, TWO, confidence=95)


def test_no_interval_leaves_the_range_of_its_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "TABLES", 400)
    rng = np.random.default_rng(0)
    for _ in range(10):
        shown = evidence.Evidence(rng.integers(0, 6, size=(2, 3, 2, 2)), 0.95, 0.5)
        for metric in sorted(FROM_COUNTS):
            found = shown.estimate(metric)
            if not np.isnan(found.mean):
                assert 0 <= found.low <= found.mean <= found.high <= 1, (metric, found)
                assert 0 <= found.lower_end <= found.mean <= found.upper_end <= 1, (metric, found)


def missed(metric: str, truth: list[np.ndarray], gap: float, samples: int, **more: object) -> tuple[int, int, int]:
    """How often the two-sided interval, the upper and the lower end are wrong."""
    rng = np.random.default_rng(7)
    seeds = 1 if more.get("shared_rows", 1.0) == 1.0 else 4
    wrong = np.zeros(3, int)
    for _ in range(samples):
        found = evidence.estimate(metric, np.stack([sample(rng, truth) for _ in range(seeds)]), **more)
        wrong += [not found.low <= gap <= found.high, found.upper_end < gap, found.lower_end > gap]
    return tuple(wrong.tolist())


def allowed(samples: int, share: float = 0.05) -> int:
    """Of so many, what a chance of 5 % exceeds less than once in 1,000 times."""
    return int(binom.ppf(0.999, samples, share))


# rows of each group; rate of the others and the gap of one; labels
KNOWN = {
    "no gap": ([200, 200], 0.1, 0.0),
    "small": ([200, 200], 0.3, 0.05),
    "rare and few rows": ([100, 100], 0.02, 0.2),
    "three": ([60, 200, 1000], 0.1, 0.05),
    "six, no gap": ([100] * 6, 0.2, 0.0),
    "six": ([30, 1000] * 3, 0.02, 0.2),
}


def truth(rows: list[int], rate: float, gap: float) -> list[np.ndarray]:
    return [table(n, 0.4, rate + gap * (g == 0)) for g, n in enumerate(rows)]


@pytest.mark.parametrize("case", ["small", "six, no gap"])
def test_wrong_no_more_often_than_stated(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "TABLES", 400)
    wrong = missed(DP, truth(*KNOWN[case]), KNOWN[case][2], 80)
    assert max(wrong) <= allowed(80), wrong


@pytest.mark.full
@pytest.mark.parametrize("metric", [DP, EO])
@pytest.mark.parametrize("case", KNOWN)
def test_wrong_no_more_often_than_stated_in_many_samples(case: str, metric: str) -> None:
    wrong = missed(metric, truth(*KNOWN[case]), KNOWN[case][2], 500)
    assert max(wrong) <= allowed(500), wrong


@pytest.mark.full
def test_seeds_of_their_own_rows_are_wrong_no_more_often_than_stated() -> None:
    for case in ("no gap", "rare and few rows"):
        wrong = missed(DP, truth(*KNOWN[case]), KNOWN[case][2], 300, shared_rows=0.0)
        assert max(wrong) <= allowed(300), (case, wrong)


def test_the_worst_group_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that are equally accurate: the worst in the sample is worse than the worst in truth."""
    monkeypatch.setattr(evidence, "TABLES", 400)
    wrong = missed("worst_group_accuracy", [table(100, 0.3, 0.4)] * 6, 0.7 * 0.6 + 0.3 * 0.4, 80)
    assert max(wrong) <= allowed(80), wrong
