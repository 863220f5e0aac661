"""Post-processing to a stated gap against closed forms, exhaustive search, other linear programmes and fairlearn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

import equifed as ef
from equifed import metrics, tree
from equifed.federation import Federation
from equifed.methods._parity import (
    NOTIONS,
    Rates,
    RuleMixture,
    calibrate,
    confusion_of,
    constant_rules,
    fit_thresholds,
    own_decisions,
    per_lane,
    rates_of,
)
from equifed.methods.fair import OBSERVED, Fair, move_scores
from equifed.protocol import Data

every_notion = pytest.mark.parametrize("notion", NOTIONS)
every_notion_in_full = pytest.mark.parametrize(
    "notion", [NOTIONS[0], *(pytest.param(notion, marks=pytest.mark.full) for notion in NOTIONS[1:])]
)
"""For tests that take long."""


def accuracy(confusion: np.ndarray) -> float:
    return float(np.trace(confusion.sum(0)) / confusion.sum())


def right(mass: np.ndarray) -> np.ndarray:
    """The weights of accuracy."""
    return np.broadcast_to(np.eye(2) / mass.sum(), (len(mass), 2, 2))


def compared(notion: str, mass: np.ndarray) -> list[np.ndarray]:
    """The mass that each of the notion's rates looks at [G, B], of mass by group, label and bin."""
    return {
        "demographic_parity": [mass.sum(1)],
        "equal_opportunity": [mass[:, 1]],
        "equalized_odds": [mass[:, 0], mass[:, 1]],
    }[notion]


def shares_of(notion: str, mass: np.ndarray) -> list[np.ndarray]:
    """What a bin adds to each of the notion's rates of its group [G, B]."""
    return [part / part.sum(1, keepdims=True) for part in compared(notion, mass)]


# -- the example of two groups with four scores ------------------------------------------------------------------------

ETA = np.array([[0.2, 0.6, 0.7, 0.9], [0.1, 0.3, 0.4, 0.8]])
EXAMPLE = np.stack([1 - ETA, ETA], 1)


def H(lam: float) -> float:
    """The dual: sum_a (1/m_a) sum_i [p_a (2 eta_i - 1) - sigma_a lambda]_+ with p_a = 1/2 and m_a = 4."""
    return sum(np.maximum((2 * ETA[a] - 1) / 2 - sigma * lam, 0).mean() for a, sigma in ((0, 1), (1, -1)))


def test_the_example_by_hand() -> None:
    assert [H(lam) for lam in (0, 0.05, 0.1, 0.15, 0.2, 0.25)] == pytest.approx([0.25, 0.225, 0.2, 0.2, 0.2, 0.225])
    rates = rates_of("demographic_parity", EXAMPLE.sum(-1))
    plain = confusion_of(own_decisions(2, 4)[:, [0, 2, 3, 3]], EXAMPLE)  # .6 lies above one half, .4 below
    plain[1] = confusion_of((ETA > 0.5).astype(float), EXAMPLE)[1]
    assert (accuracy(plain), rates.gap(plain)) == (pytest.approx(0.75), pytest.approx(0.5))

    equal = fit_thresholds(EXAMPLE, right(EXAMPLE), rates, 0.0)
    # 1/2 +- lambda / (2 p_a) with lambda = .15: thresholds .65 and .35
    np.testing.assert_allclose(equal.accept, (ETA > [[0.65], [0.35]]).astype(float))
    assert rates.of(confusion_of(equal.accept, EXAMPLE))[0] == pytest.approx([0.5, 0.5])
    assert equal.value == pytest.approx(0.70)
    assert equal.value == pytest.approx((1 - ETA).mean() + H(0.15))
    assert 0.1 - 1e-9 <= equal.prices[0, 0] == -equal.prices[0, 1] <= 0.2 + 1e-9

    nearer = fit_thresholds(EXAMPLE, right(EXAMPLE), rates, 0.25)
    assert nearer.value == pytest.approx(0.725)
    assert rates.gap(confusion_of(nearer.accept, EXAMPLE)) == pytest.approx(0.25)
    assert nearer.prices[0] == pytest.approx([0.1, -0.1])
    assert nearer.value == pytest.approx((1 - ETA).mean() + H(0.1) + 0.25 * 0.1)


# -- random data -------------------------------------------------------------------------------------------------------


def histogram(rng: np.random.Generator, groups: int, bins: int, rows: int = 4) -> np.ndarray:
    """Counts by group, label and bin, with scores that mean something else in every group, and empty bins."""
    counts = np.zeros((groups, 2, bins))
    for g in range(groups):
        number = rng.integers(0, rows + 1, bins)
        chance = np.clip(np.linspace(0, 1, bins) ** rng.uniform(0.4, 2.5) + rng.normal(0, 0.15, bins), 0, 1)
        counts[g, 1] = rng.binomial(number, chance)
        counts[g, 0] = number - counts[g, 1]
        counts[g, :, rng.integers(bins)] += 1
    return counts


def free_programme(mass: np.ndarray, notion: str, gap: float) -> float:
    """The best expected accuracy of any acceptance by group and bin, monotone or not, with a bound for every pair."""
    G, _, B = mass.shape
    above = []
    for share in shares_of(notion, mass):
        for a, b in itertools.permutations(range(G), 2):
            line = np.zeros((G, B))
            line[a], line[b] = share[a], -share[b]
            above.append(line.ravel())
    gain = (mass[:, 1] - mass[:, 0]).ravel()
    found = linprog(-gain, A_ub=np.array(above), b_ub=np.full(len(above), gap), bounds=(0, 1), method="highs")
    assert found.success
    return float((mass[:, 0].sum() - found.fun) / mass.sum())


def lagrangian(mass: np.ndarray, notion: str, prices: np.ndarray, gap: float) -> float:
    """mean(1 - eta) + H: what no decisions within the gap exceed, whatever the multipliers."""
    gain = (mass[:, 1] - mass[:, 0]) / mass.sum()
    for share, price in zip(shares_of(notion, mass), prices, strict=True):
        gain = gain - price[:, None] * share
    return float(mass[:, 0].sum() / mass.sum() + np.maximum(gain, 0).sum() + gap * np.maximum(prices, 0).sum())


@every_notion
@pytest.mark.parametrize("calibration", ["isotonic", "none"])
def test_accuracy_is_the_lagrangian_bound_and_that_of_a_free_programme(notion: str, calibration: str) -> None:
    rng = np.random.default_rng(3)
    for trial, gap in itertools.product(range(4), (0.0, 0.03, 0.2)):
        counts = histogram(rng, 2 + trial % 3, 40)
        mass = calibrate(counts, calibration)
        rates = rates_of(notion, mass.sum(-1))
        found = fit_thresholds(mass, right(mass), rates, gap)
        confusion = confusion_of(found.accept, mass)
        assert (np.diff(found.accept) >= 0).all()
        assert rates.gap(confusion) <= gap + 1e-9
        assert accuracy(confusion) == pytest.approx(found.value, abs=1e-10)
        assert found.value == pytest.approx(lagrangian(mass, notion, found.prices, gap), abs=1e-8)
        assert found.value == pytest.approx(free_programme(mass, notion, gap), abs=1e-8)
        if calibration == "isotonic":  # what it promises is so, by the labels themselves
            actual = confusion_of(found.accept, counts)
            assert accuracy(actual) == pytest.approx(found.value, abs=1e-9)
            assert rates.gap(actual) <= gap + 1e-9


def mixed_thresholds(counts: np.ndarray, notion: str, gap: float) -> float:
    """The best actual accuracy of any mixture of thresholds on the raw scores, whatever their labels."""
    G, _, B = counts.shape
    above = np.concatenate([counts[..., ::-1].cumsum(-1)[..., ::-1], np.zeros((G, 2, 1))], -1)  # accepted from bin t on
    limits = []
    for part in compared(notion, above):
        share = part / part[:, :1]
        for a, b in itertools.permutations(range(G), 2):
            line = np.zeros((G, B + 1))
            line[a], line[b] = share[a], -share[b]
            limits.append(line.ravel())
    gain = (above[:, 1] - above[:, 0]).ravel()
    whole = np.kron(np.eye(G), np.ones(B + 1))
    found = linprog(
        -gain, A_ub=np.array(limits), b_ub=np.full(len(limits), gap), A_eq=whole, b_eq=np.ones(G), method="highs"
    )
    assert found.success
    return float((counts[:, 0].sum() - found.fun) / counts.sum())


@every_notion
def test_isotonic_calibration_is_the_best_mixture_of_thresholds_by_actual_labels(notion: str) -> None:
    rng = np.random.default_rng(4)
    for groups, gap in itertools.product((2, 3), (0.0, 0.05)):
        counts = histogram(rng, groups, 30)
        mass = calibrate(counts, "isotonic")
        found = fit_thresholds(mass, right(mass), rates_of(notion, mass.sum(-1)), gap)
        assert found.value == pytest.approx(mixed_thresholds(counts, notion, gap), abs=1e-8)


@every_notion
@pytest.mark.parametrize("groups", [2, 3])
def test_it_is_the_best_of_all_thresholds_and_shares(notion: str, groups: int) -> None:
    """Every pair of thresholds in every group, and every share of them in twelfths: groups of four rows, two of them
    positive, and gaps in quarters have their optimum there. That of equalized odds may mix three thresholds."""
    rng = np.random.default_rng(5)
    thresholds = (np.arange(4) >= np.arange(5)[:, None]).astype(float)
    mixed = [
        (share * low + (12 - share) * high) / 12
        for low, high in itertools.combinations(thresholds, 2)
        for share in range(13)
    ]
    choices = np.unique(np.round(mixed, 12), axis=0)
    for gap in (0.0, 0.5):
        counts = np.stack([np.eye(2)[rng.permutation([0, 0, 1, 1])].T for _ in range(groups)])
        rate = [choices @ part.T for part in shares_of(notion, counts)]  # [choice, group]
        gain = choices @ (counts[:, 1] - counts[:, 0]).T
        best = -np.inf
        for combination in itertools.product(range(len(choices)), repeat=groups - 1):
            place = (list(combination), range(groups - 1))
            fits = np.ones(len(choices), dtype=bool)
            for part in rate:
                others, last = part[place], part[:, -1]
                fits &= np.maximum(others.max(), last) - np.minimum(others.min(), last) <= gap + 1e-12
            if fits.any():
                best = max(best, gain[place].sum() + gain[fits, -1].max())
        exhaustive = (counts[:, 0].sum() + best) / counts.sum()
        mass = calibrate(counts, "isotonic")
        found = fit_thresholds(mass, right(mass), rates_of(notion, mass.sum(-1)), gap).value
        assert found >= exhaustive - 1e-9
        assert found == pytest.approx(exhaustive, abs=0.02 if notion == "equalized_odds" else 1e-9)


def test_demographic_parity_without_a_gap_is_fairlearns() -> None:
    postprocessing = pytest.importorskip("fairlearn.postprocessing")
    rng = np.random.default_rng(6)
    bins = 20
    counts = histogram(rng, 2, bins, rows=30)
    g, y, b = (np.repeat(index, counts.ravel().astype(int)) for index in np.indices(counts.shape).reshape(3, -1))

    class Score(pytest.importorskip("sklearn.base").BaseEstimator):  # type: ignore[misc]
        def fit(self, *_: Any) -> Any:
            self.fitted_ = True
            return self

        def predict(self, x: np.ndarray) -> np.ndarray:
            return x[:, 0]

    x = (b[:, None] + 0.5) / bins
    theirs = postprocessing.ThresholdOptimizer(
        estimator=Score().fit(),
        constraints="demographic_parity",
        prefit=True,
        predict_method="predict",
        grid_size=20_000,
    ).fit(x, y, sensitive_features=g)
    chance = theirs._pmf_predict(x, sensitive_features=g)[:, 1]
    best = np.where(y == 1, chance, 1 - chance).mean()
    mass = calibrate(counts, "isotonic")
    found = fit_thresholds(mass, right(mass), rates_of("demographic_parity", mass.sum(-1)), 0.0)
    assert found.value == pytest.approx(best, abs=2e-4)  # their grid
    assert found.value >= best - 1e-9


# -- clients with bounds of their own, more than two classes -----------------------------------------------------------


def searched(method: Fair, clients: list[Any], groups: int, classes: int) -> tuple[dict[str, Any], list[Any]]:
    """The exchanges of the search, with these clients' rows; what is observed, and the rule that each client keeps."""
    T, gap = method.exchanges, np.float64(method.gap)
    weights = np.concatenate([np.zeros((T, groups, classes, classes)), constant_rules(groups, classes)])
    state = (np.zeros((T, 2, groups, classes, classes)), np.float64(0), np.float64(1), np.float64(0))
    asked, own_gap = weights[0], float(method.own_gap)
    for _ in range(T):
        confusion = sum(held.confusion(held.best(asked, own_gap)) for held in clients)
        weights, shares, asked, *rest = method.search_step(confusion, gap, weights, *state)
        state, observed = tuple(rest[:4]), dict(zip(OBSERVED, rest[4:], strict=True))
    used = shares > 0
    rules = [held.mix([held.best(each, own_gap) for each in weights[used]], shares[used]) for held in clients]
    return observed, rules


def two_level_programme(masses: list[np.ndarray], notion: str, gap: float, local_gap: float) -> float:
    """The best expected accuracy of any acceptances by client, group and bin, within both gaps."""
    K, (G, _, B) = len(masses), masses[0].shape
    above, limit = [], []
    total = sum(np.stack([part.sum(1) for part in compared(notion, mass)]) for mass in masses)  # [Q, G]
    for q in range(len(total)):
        parts = [compared(notion, mass)[q] for mass in masses]
        for a, b in itertools.permutations(range(G), 2):
            line = np.zeros((K, G, B))
            for k, part in enumerate(parts):
                line[k, a], line[k, b] = part[a] / total[q, a], -part[b] / total[q, b]
                if part[a].sum() and part[b].sum():
                    own = np.zeros((K, G, B))
                    own[k, a], own[k, b] = part[a] / part[a].sum(), -part[b] / part[b].sum()
                    above, limit = [*above, own.ravel()], [*limit, local_gap]
            above, limit = [*above, line.ravel()], [*limit, gap]
    gain = np.stack([mass[:, 1] - mass[:, 0] for mass in masses]).ravel()
    found = linprog(-gain, A_ub=np.array(above), b_ub=limit, bounds=(0, 1), method="highs")
    assert found.success
    return float((sum(mass[:, 0].sum() for mass in masses) - found.fun) / sum(mass.sum() for mass in masses))


@every_notion
@pytest.mark.parametrize("calibration", ["isotonic", "none"])
def test_both_gaps_are_kept_at_the_accuracy_of_one_programme_for_all_clients(notion: str, calibration: str) -> None:
    rng = np.random.default_rng(21)
    counts = [histogram(rng, 2, 12) for _ in range(4)]
    counts[1][1] = 0  # a client without a group
    counts[2] = 3 * counts[2]
    for each in counts:
        each[0, :, 8:] *= 3  # group 0 has the higher scores, at every client
    method = Fair(
        ef.methods.FedAvg(),
        notion=notion,
        level="both",
        gap=0.01,
        local_gap=0.1,
        calibration=calibration,
        bins=12,
        exchanges=25,
    )
    clients = [method.rows_of(2, each) for each in counts]
    observed, rules = searched(method, clients, 2, 2)
    judged = [confusion_of(accept, held.judged) for (accept,), held in zip(rules, clients, strict=True)]
    for confusion in judged:
        assert rates_of(notion, confusion.sum(-1)).gap(confusion) <= 0.1 + 1e-8
    total = np.sum(judged, axis=0)
    assert rates_of(notion, total.sum(-1)).gap(total) <= 0.01 + 1e-8
    assert observed["multiplier"] > 0
    actual = sum(confusion_of(accept, each) for (accept,), each in zip(rules, counts, strict=True))
    reached = rates_of(notion, actual.sum(-1)).gap(actual)
    assert observed["training_gap"] == pytest.approx(reached, abs=1e-8)
    assert observed["feasible"] == (reached <= 0.01 + 1e-8)  # by actual labels, whatever the scores expect
    assert observed["feasible"] == 1 or calibration == "none"
    assert observed["slack"] < 1e-8  # the Lagrangian bound is reached
    best = two_level_programme([held.mass for held in clients], notion, 0.01, 0.1)
    assert accuracy(total) == pytest.approx(best, abs=1e-7)


def row_programme(eta: np.ndarray, s: np.ndarray, terms: list[tuple[int | None, int]], gap: float) -> float:
    """The best expected accuracy of any random decisions of rows, by probabilities of every class [n, C]."""
    n, C = eta.shape
    above = []
    for y, j in terms:
        weight = np.ones(n) if y is None else eta[:, y]
        for a, b in itertools.permutations(range(s.max() + 1), 2):
            line = np.zeros((n, C))
            line[:, j] = weight * ((s == a) / weight[s == a].sum() - (s == b) / weight[s == b].sum())
            above.append(line.ravel())
    found = linprog(
        -eta.ravel() / n,
        A_ub=np.array(above),
        b_ub=np.full(len(above), gap),
        A_eq=np.kron(np.eye(n), np.ones(C)),
        b_eq=np.ones(n),
        method="highs",
    )
    assert found.success
    return -float(found.fun)


def three_classes(rng: np.random.Generator, n: int, groups: int = 2) -> tuple[np.ndarray, ...]:
    """Probabilities of rows, their one-hot labels, and groups with different classes."""
    s = rng.integers(0, groups, n)
    eta = np.stack([rng.dirichlet([1.5, 1.0 + 0.8 * g, 0.6 + 0.5 * (1 - g)]) for g in s])
    return eta, np.eye(3)[[rng.choice(3, p=each) for each in eta]], s


@every_notion
@pytest.mark.parametrize("groups", [2, pytest.param(3, marks=pytest.mark.full)])
def test_three_classes_reach_the_bound_and_the_accuracy_of_a_programme_over_rows(notion: str, groups: int) -> None:
    rng = np.random.default_rng(22)
    parts = [three_classes(rng, 60, groups) for _ in range(2)]
    method = Fair(ef.methods.FedAvg(), notion=notion, gap=0.03, calibration="none", exchanges=100)
    clients = [method.rows_of(groups, *part) for part in parts]
    observed, rules = searched(method, clients, groups, 3)
    total = sum(
        held.confusion(RuleMixture(weights[share > 0], share[share > 0]))[0]
        for (weights, share), held in zip(rules, clients, strict=True)
    )
    terms: list[tuple[int | None, int]] = {
        "demographic_parity": [(None, j) for j in range(3)],
        "equal_opportunity": [(y, y) for y in range(3)],
        "equalized_odds": [(y, j) for y in range(3) for j in range(3)],
    }[notion]
    eta, s = (np.concatenate([part[i] for part in parts]) for i in (0, 2))
    best = row_programme(eta, s, terms, 0.03)
    assert rates_of(notion, total.sum(-1)).gap(total) <= 0.03 + 1e-7
    assert observed["slack"] < 2e-4
    assert best - 2e-4 <= accuracy(total) <= best + 1e-7
    plain = np.mean(eta.max(1))
    assert accuracy(total) < plain - 1e-3  # it had to give something up


@every_notion
@pytest.mark.parametrize("calibration", ["isotonic", pytest.param("none", marks=pytest.mark.full)])
def test_three_classes_within_both_gaps(notion: str, calibration: str) -> None:
    rng = np.random.default_rng(23)
    parts = [three_classes(rng, 30) for _ in range(2)]
    method = Fair(
        ef.methods.FedAvg(),
        notion=notion,
        level="both",
        gap=0.02,
        local_gap=0.05,
        calibration=calibration,
        exchanges=8,
    )
    clients = [method.rows_of(2, *part) for part in parts]
    observed, rules = searched(method, clients, 2, 3)
    total = np.zeros((2, 3, 3))
    for (weights, share), held in zip(rules, clients, strict=True):
        assert len(share) == 2 * 9 + 1
        own = held.confusion(RuleMixture(weights, share))[0]
        assert rates_of(notion, own.sum(-1)).gap(own) <= 0.05 + 1e-6
        total += own
    assert rates_of(notion, total.sum(-1)).gap(total) <= 0.02 + 1e-6
    assert observed["feasible"] == (observed["training_gap"] <= 0.02 + 1e-6)
    assert observed["feasible"] == 1 or calibration == "none"


# -- edges -------------------------------------------------------------------------------------------------------------


def solved(counts: np.ndarray, **hyper: Any) -> dict[str, Any]:
    method = Fair(ef.methods.FedAvg(), bins=counts.shape[-1], **hyper)
    accept, *observed = method.solve(counts, np.float64(method.gap))
    return {"accept": accept, **dict(zip(OBSERVED, observed, strict=True))}


@every_notion
def test_absent_groups_stay_as_they_are_and_bound_nothing(notion: str) -> None:
    rng = np.random.default_rng(7)
    counts = histogram(rng, 2, 20)
    with_absent = np.concatenate([counts[:1], np.zeros((1, 2, 20)), counts[1:]])
    pair, three = solved(counts, notion=notion), solved(with_absent, notion=notion)
    np.testing.assert_allclose(three["accept"][[0, 2]], pair["accept"], atol=1e-9)
    np.testing.assert_array_equal(three["accept"][1], own_decisions(1, 20)[0])
    alone = np.concatenate([counts[:1], np.zeros((1, 2, 20))])
    for nothing_to_compare in (alone, np.zeros((2, 2, 20))):
        found = solved(nothing_to_compare, notion=notion, gap=0.0)
        np.testing.assert_array_equal(found["accept"], own_decisions(2, 20))
        assert (found["multiplier"], found["training_gap"], found["feasible"]) == (0, 0, 1)


@pytest.mark.parametrize("calibration", ["isotonic", "none"])
@every_notion
def test_a_group_with_one_score_is_decided_by_a_coin(notion: str, calibration: str) -> None:
    rng = np.random.default_rng(8)
    counts = histogram(rng, 2, 20)
    counts[1] = 0
    counts[1, :, 4] = 6, 9
    found = solved(counts, notion=notion, gap=0.0, calibration=calibration)
    # equalized odds: a coin for everyone, whose best side may be one of the two
    assert 0 < found["accept"][1, 4] < 1 or notion == "equalized_odds"
    assert found["feasible"] == (found["training_gap"] < 1e-7)
    if calibration == "isotonic" or notion == "demographic_parity":
        assert found["training_gap"] == pytest.approx(0, abs=1e-9)


def test_a_gap_that_only_expected_labels_keep_is_not_called_kept() -> None:
    counts = np.zeros((2, 2, 4))
    counts[0, 1], counts[0, 0] = [0, 10, 20, 30], [30, 20, 10, 0]
    counts[1, 1], counts[1, 0] = [0, 40, 10, 0], [0, 40, 10, 0]  # scores say little of this group
    expected = solved(counts, notion="equal_opportunity", gap=0.005, calibration="none")
    actual = np.stack([counts.sum(-1) - (one := np.einsum("gb,gyb->gy", expected["accept"], counts)), one], -1)
    rates = actual[:, 1, 1] / actual[:, 1].sum(-1)
    assert abs(rates[0] - rates[1]) > 0.05
    assert expected["training_gap"] == pytest.approx(abs(rates[0] - rates[1]))
    assert expected["feasible"] == 0
    assert solved(counts, notion="equal_opportunity", gap=0.005)["feasible"] == 1
    # demographic parity needs no labels
    assert solved(counts, notion="demographic_parity", gap=0.005, calibration="none")["feasible"] == 1


@every_notion
@pytest.mark.parametrize("calibration", ["isotonic", "none"])
def test_a_gap_that_the_method_keeps_changes_nothing(notion: str, calibration: str) -> None:
    counts = histogram(np.random.default_rng(9), 3, 20)
    mass = counts if calibration == "isotonic" else calibrate(counts, "none")
    own = rates_of(notion, mass.sum(-1)).gap(confusion_of(own_decisions(3, 20), mass))
    assert own > 0.01
    kept = solved(counts, notion=notion, gap=own + 1e-6, calibration=calibration)
    np.testing.assert_array_equal(kept["accept"], own_decisions(3, 20))
    assert kept["multiplier"] == 0
    changed = solved(counts, notion=notion, gap=own - 1e-3, calibration=calibration)
    assert (changed["accept"] != own_decisions(3, 20)).any()


def test_rates_are_those_of_the_metrics() -> None:
    counts = np.random.default_rng(10).integers(1, 30, (3, 2, 2)).astype(float)
    found = ef.metrics.disparities(counts)
    for notion in NOTIONS:
        rates: Rates = rates_of(notion, counts.sum(-1))
        assert rates.gap(counts) == pytest.approx(float(found[f"{notion}_difference"]))


def test_work_per_lane_inside_nested_maps() -> None:
    def work(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
        return np.sort(a) * b, np.float64(a.sum())

    a, b = torch.rand(3, 2, 4, dtype=torch.float64), torch.rand(2, dtype=torch.float64)
    sorted_, total = torch.func.vmap(torch.func.vmap(lambda a, b: per_lane(work, a, b)), (0, None))(a, b)
    torch.testing.assert_close(sorted_, a.sort(-1).values * b[None, :, None])
    torch.testing.assert_close(total, a.sum(-1))


@pytest.mark.parametrize("classes", [2, 4])
def test_scores_stay_unless_the_decision_is_another(classes: int) -> None:
    rng = np.random.default_rng(11)
    prediction = torch.tensor(rng.dirichlet(np.ones(classes), 50), dtype=torch.float32)
    own, other = prediction.argmax(1), torch.tensor(rng.integers(0, classes, 50))
    new = move_scores(prediction, own, other)
    assert torch.equal(new.argmax(1), other)
    assert torch.equal(new[own == other], prediction[own == other])
    torch.testing.assert_close(new.sum(1), torch.ones(50))
    if classes == 2:
        score = move_scores(prediction[:, 1], own, other)
        assert torch.equal((score > 0.5).long(), other)
        torch.testing.assert_close(score, new[:, 1], atol=1e-6, rtol=0)


# -- runs --------------------------------------------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {
    "model": ef.models.Logistic(),
    "rounds": 2,
    "local": ef.Local(epochs=1, batch_size=16, learning_rate=0.3),
    "seeds": [4],
}


def unequal(rng: np.random.Generator, n: int, groups: int = 2, of: tuple[int, ...] | None = None) -> tuple[Any, ...]:
    x, s = rng.normal(size=(n, 3)).astype(np.float32), rng.choice(of or range(groups), n)
    x[:, 0] += 0.7 * s
    return x, (x[:, 0] + 0.8 * rng.normal(size=n) > 0.4).astype(int), s


@pytest.fixture(scope="module")
def ten_clients() -> Federation:
    """Three groups; most clients lack one or two of them."""
    rng = np.random.default_rng(12)
    held = [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2), (2,), (0, 1), (1,)]
    clients = [unequal(rng, 40 + 10 * k, 3, of) for k, of in enumerate(held)]
    return Federation.from_arrays(clients, test=unequal(rng, 400, 3), validation=unequal(rng, 50, 3))


def chances(result: ef.Result, x: np.ndarray, s: np.ndarray, client: int | None = None) -> np.ndarray:
    """The share of random numbers with which each row is decided as each class [n, C]."""
    final = result.final_states[4]
    state = final.clients if client is None else tree.take(final.clients, client)
    score = final.method.predict(final.task, final.server, state, torch.tensor(x))
    decisions = []
    for i in range(200):
        u = torch.full((len(x),), (i + 0.5) / 200)
        adjusted = final.method.adjust(final.task, final.server, state, score, torch.tensor(s), u)
        decisions.append(final.task.decide(adjusted))
    return np.stack([torch.stack(decisions).eq(j).double().mean(0).numpy() for j in range(final.task.num_classes)], 1)


def gap_of(notion: str, chance: np.ndarray, y: np.ndarray, s: np.ndarray) -> float:
    """The largest difference between the groups' rates of rows that are decided with these chances [n, C]."""
    C = chance.shape[1]
    labels: list[int | None] = [None] if notion == "demographic_parity" else [*range(C)]
    pairs = [(y, j) for y in labels for j in range(C) if notion != "equal_opportunity" or y == j]
    gaps = [0.0]
    for label, j in pairs if C > 2 else [pair for pair in pairs if pair[1] == 1]:
        chosen = np.ones(len(y), dtype=bool) if label is None else y == label
        rates = [chance[chosen & (s == g), j].mean() for g in np.unique(s[chosen])]
        gaps.append(np.ptp(rates) if len(rates) > 1 else 0.0)
    return max(gaps)


def train_rows(fed: Federation, client: int | None = None) -> tuple[np.ndarray, ...]:
    which = range(fed.num_clients) if client is None else [client]
    rows = np.concatenate([fed.train[k] for k in which])
    return fed.rows.x[rows], fed.rows.y[rows], fed.rows.s[rows]


def own_chances(fed: Federation, result: ef.Result) -> np.ndarray:
    """Every client's rows with the client's rule."""
    parts = [train_rows(fed, k) for k in range(fed.num_clients)]
    return np.concatenate([chances(result, x, s, k) for k, (x, _, s) in enumerate(parts)])


@every_notion
def test_ten_clients_with_absent_groups_keep_the_gap_on_their_rows(ten_clients: Federation, notion: str) -> None:
    plain = ef.simulate(ef.methods.FedAvg(), ten_clients, **SETTINGS)
    result = ef.simulate(Fair(ef.methods.FedAvg(), notion=notion, gap=0.03), ten_clients, **SETTINGS)
    for name, value in plain.parameters[4].items():
        np.testing.assert_array_equal(value, result.parameters[4][name])
    x, y, s = train_rows(ten_clients)
    before = np.eye(2)[(plain.predict(x) > 0.5).astype(int)]
    assert gap_of(notion, before, y, s) > 0.1
    assert gap_of(notion, chances(result, x, s), y, s) == pytest.approx(0.03, abs=0.006)  # 200 random numbers for all
    last = result.log.iloc[-1]
    assert last["training_gap"] == pytest.approx(0.03, abs=1e-9)
    assert (last["feasible"], last["slack"]) == (1, 0)
    assert last["multiplier"] > 0
    messages = result.messages.set_index("phase")
    assert messages.loc["fit", ["up", "gather", "down", "times"]].tolist() == ["histogram", "sum", "theta", 1]
    assert list(messages.index) == ["train", "fit"]


@every_notion_in_full
@pytest.mark.parametrize("level", ["local", "both"])
def test_the_local_gap_is_kept_at_every_client(ten_clients: Federation, notion: str, level: str) -> None:
    method = Fair(ef.methods.FedAvg(), notion=notion, level=level, gap=0.05, local_gap=0.08, exchanges=12)
    plain = ef.simulate(ef.methods.FedAvg(), ten_clients, **SETTINGS)
    result = ef.simulate(method, ten_clients, **SETTINGS)
    worst = 0.0
    for k in range(ten_clients.num_clients):
        x, y, s = train_rows(ten_clients, k)
        before = np.eye(2)[(plain.predict(x) > 0.5).astype(int)]
        worst = max(worst, gap_of(notion, before, y, s))
        chance = chances(result, x, s, k)
        assert gap_of(notion, chance, y, s) <= 0.08 + 0.008
        if level == "local" and gap_of(notion, before, y, s) <= 0.08:  # nothing to mend there
            np.testing.assert_array_equal(chance, before)
    assert worst > 0.1
    messages = result.messages.set_index("phase")
    if level == "local":
        assert messages.loc["fit", "up"] == ""
        assert "training_gap" not in result.log
    else:
        _, y, s = train_rows(ten_clients)
        assert gap_of(notion, own_chances(ten_clients, result), y, s) <= 0.05 + 0.008
        assert messages.loc["ask", ["up", "gather", "times"]].tolist() == ["confusion", "sum", 12]
        assert result.log.iloc[-1]["training_gap"] == pytest.approx(0.05, abs=1e-8)
        assert result.log.iloc[-1]["feasible"] == 1


def test_clients_with_bounds_of_their_own_are_the_same_on_both_engines(ten_clients: Federation) -> None:
    """With swept gaps, which share lanes."""
    method = Fair(ef.methods.FedAvg(), level="both", notion="equal_opportunity", exchanges=4)
    over = {"gap": [0.0, 0.1]}
    lanes, reference = (
        ef.simulate(method, ten_clients, over=over, engine=engine, **SETTINGS) for engine in ("lanes", "reference")
    )
    for key, state in lanes.final_states.items():
        torch.testing.assert_close(
            state.clients.own["rule"]["accept"],
            reference.final_states[key].clients.own["rule"]["accept"],
            atol=1e-5,
            rtol=0,
        )


def test_a_note_names_groups_that_are_fitted_on_few_rows() -> None:
    rng = np.random.default_rng(3)

    def rows(*groups: int) -> tuple[np.ndarray, ...]:
        """So many rows of each group."""
        s = np.repeat(range(len(groups)), groups)
        return rng.normal(size=(len(s), 2)).astype(np.float32), rng.integers(0, 2, len(s)), s

    def noted(level: str, *clients: tuple[int, ...]) -> list[str]:
        fed = Federation.from_arrays([rows(*each) for each in clients], test=rows(30, 30))
        method = Fair(ef.methods.FedAvg(), level=level, exchanges=2)
        result = ef.simulate(method, fed, **{**SETTINGS, "rounds": 1})
        return [str(note) for note in result.notes if note.kind == "few-fitted"]

    (few,) = noted("global", (40, 9), (40, 10))
    assert "fewer than 20 training rows: 1 (19)" in few
    assert noted("global", (40, 10), (40, 10)) == []
    (local,) = noted("local", (40, 0), (40, 10), (19, 12))
    assert "at 2 clients; the least: 0 (19), 1 (10)" in local
    assert noted("both", (40, 0), (40, 20)) == []


def neutral(ten: Federation, three: Federation) -> Iterator[Any]:
    for fed, level in itertools.product((ten, three), ("global", "local", "both")):
        yield fed, Fair(ef.methods.FedAvg(), level=level, gap=1.0, local_gap=1.0, exchanges=2)


def test_the_neutral_gaps_are_the_method_itself(ten_clients: Federation, in_three: Federation) -> None:
    for fed, method in neutral(ten_clients, in_three):
        plain = ef.simulate(ef.methods.FedAvg(), fed, **settings_of(fed))
        result = ef.simulate(method, fed, **settings_of(fed))
        x, s = fed.rows.x, fed.rows.s
        more = {"client": fed.ids[0]} if method.personal else {}
        if not method.personal:
            columns = ["round", "split", "scope", "metric", "value"]
            assert plain.metrics[columns].to_csv() == result.metrics[columns].to_csv()
        final, task = result.final_states[4], result.final_states[4].task
        state = tree.take(final.clients, 0) if method.personal else final.clients
        score = method.predict(task, final.server, state, torch.tensor(x))
        for u in (torch.zeros(len(x)), torch.ones(len(x)) - 1e-7):
            assert torch.equal(method.adjust(task, final.server, state, score, torch.tensor(s), u), score)
        assert np.array_equal(decided_as(plain.predict(x)), decided_as(result.predict(x, s=s, **more)))


def decided_as(prediction: np.ndarray) -> np.ndarray:
    return prediction.argmax(1) if prediction.ndim == 2 else prediction > 0.5


@pytest.fixture(scope="module")
def in_three() -> Federation:
    """Three classes, two groups, four clients."""
    rng = np.random.default_rng(13)

    def rows(n: int) -> tuple[np.ndarray, ...]:
        x, s = rng.normal(size=(n, 3)).astype(np.float32), rng.integers(0, 2, n)
        x[:, 0] += 0.9 * s
        return x, np.digitize(x[:, 0] + 0.6 * rng.normal(size=n), [0.0, 0.9]), s

    return Federation.from_arrays([rows(n) for n in (60, 90, 40, 1)], test=rows(200))


def settings_of(fed: Federation) -> dict[str, Any]:
    return SETTINGS if len(fed.classes) == 2 else {**SETTINGS, "model": ef.models.MLP(hidden=())}


@pytest.mark.parametrize("notion", NOTIONS)
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_what_is_bounded_is_what_is_measured(notion: str, classes: int) -> None:
    rng = np.random.default_rng(classes)
    for rows in (4, 40):
        counts = rng.multinomial(rows, np.full(classes**2, 1 / classes**2), size=3).reshape(3, classes, classes)
        gap = rates_of(notion, counts.sum(-1).astype(float)).gap(counts.astype(float))
        measured = metrics.disparities(counts)[f"{notion}_difference"]
        if classes > 2 or not np.isnan(measured):  # of two classes all labels must be there
            assert np.nan_to_num(measured) == pytest.approx(gap)


@every_notion_in_full
@pytest.mark.parametrize("level", ["global", "local", "both"])
def test_three_classes_in_a_run(in_three: Federation, notion: str, level: str) -> None:
    method = Fair(ef.methods.FedAvg(), notion=notion, level=level, gap=0.04, local_gap=0.1, exchanges=6)
    settings = settings_of(in_three)
    result = ef.simulate(method, in_three, **settings)
    plain = ef.simulate(ef.methods.FedAvg(), in_three, **settings)
    x, y, s = train_rows(in_three)
    before = np.eye(3)[plain.predict(x).argmax(1)]
    assert gap_of(notion, before, y, s) > 0.06  # more than is allowed below
    chance = chances(result, x, s) if level == "global" else own_chances(in_three, result)
    if level != "local":
        assert gap_of(notion, chance, y, s) <= 0.04 + 0.008
        logged = result.log.iloc[-1]["training_gap"]
        assert logged <= 0.04 + 1e-8
        counts = np.stack([[chance[(s == g) & (y == label)].sum(0) for label in range(3)] for g in range(2)])
        assert metrics.disparities(counts)[f"{notion}_difference"] == pytest.approx(logged, abs=0.008)
        assert result.log.iloc[-1]["feasible"] == 1
        assert np.isnan(result.log.iloc[-1]["slack"])  # nobody knows the best decisions by actual labels
    if level != "global":
        for k in range(3):
            x, y, s = train_rows(in_three, k)
            assert gap_of(notion, chances(result, x, s, k), y, s) <= 0.1 + 0.008
    if notion == "demographic_parity":
        other = ef.simulate(method, in_three, engine="reference", **settings)
        np.testing.assert_allclose(result.metrics["value"], other.metrics["value"], rtol=1e-4, atol=1e-5)


def test_a_sweep_over_the_gap_is_each_alone(ten_clients: Federation) -> None:
    swept = ef.simulate(Fair(ef.methods.FedAvg()), ten_clients, over={"gap": [0.0, 0.1, 1.0]}, **SETTINGS)
    for gap in (0.0, 0.1, 1.0):
        alone = ef.simulate(Fair(ef.methods.FedAvg(), gap=gap), ten_clients, **SETTINGS)
        np.testing.assert_allclose(
            swept.final_states[(gap, 4)].server.own["rule"]["accept"],
            alone.final_states[4].server.own["rule"]["accept"],
            atol=1e-6,
        )
        frame = swept.final()
        assert frame.loc[frame["gap"] == gap, "accuracy"].item() == alone.final()["accuracy"].item()


def test_rows_of_an_unknown_group_are_counted_nowhere_and_stay_as_they_are(ten_clients: Federation) -> None:
    result = ef.simulate(Fair(ef.methods.FedAvg(), gap=0.0), ten_clients, **SETTINGS)
    final = result.final_states[4]
    method, task = final.method, final.task
    x, y = torch.tensor(ten_clients.rows.x[:60]), torch.tensor(ten_clients.rows.y[:60])
    score = method.predict(task, final.server, final.clients, x)
    nobody = torch.full((60,), -1)
    for u in (torch.zeros(60), torch.ones(60) - 1e-7):
        assert torch.equal(method.adjust(task, final.server, final.clients, score, nobody, u), score)
    client = method.init_client(task, final.server.inner.theta)
    down = method.inner.sent(final.server.inner, method.inner.predicts_with)
    s = torch.arange(60) % 4 - 1
    reply, _ = method.count(down, client, Data(x, y, s, torch.ones(60), task))
    assert reply["histogram"].sum() == 45
    known, _ = method.count(down, client, Data(x[s >= 0], y[s >= 0], s[s >= 0], torch.ones(45), task))
    assert torch.equal(reply["histogram"], known["histogram"])


def test_pre_summed_replies_are_the_replies_of_all_rows(ten_clients: Federation) -> None:
    """One client with everyone's rows says what the server gets from ten."""
    result = ef.simulate(Fair(ef.methods.FedAvg()), ten_clients, **SETTINGS)
    final = result.final_states[4]
    method, task, server = final.method, final.task, final.server
    client = method.init_client(task, server.inner.theta)
    down = method.inner.sent(server.inner, method.inner.predicts_with)
    x, y, s, _ = ten_clients.rows

    def reply(rows: np.ndarray) -> dict[str, torch.Tensor]:
        data = Data(*(torch.tensor(part[rows]) for part in (x, y, s)), torch.ones(len(rows)), task)
        return method.count(down, client, data)[0]

    own = [reply(ten_clients.train[k]) for k in range(10)]
    summed = {"histogram": torch.stack([each["histogram"] for each in own]).sum(0)}
    together = reply(np.concatenate([ten_clients.train[k] for k in range(10)]))
    assert torch.equal(summed["histogram"], together["histogram"])
    fitted = method.fit(server, {**summed, "present": torch.tensor(10.0)}, None)
    torch.testing.assert_close(fitted.own["rule"]["accept"], server.own["rule"]["accept"])


def test_names_and_errors(ten_clients: Federation) -> None:
    method = ef.methods.make("fedprox+fair", mu=0.1, gap=0.02, notion="equalized_odds")
    assert method == Fair(ef.methods.FedProx(mu=0.1), gap=0.02, notion="equalized_odds")
    assert method.name == "fedprox+fair"
    assert all(option.description for option in ef.methods.options(method).values())
    with pytest.raises(ef.ConfigError, match=r"gap must be a number of at least 0 and at most 1, got 2"):
        ef.methods.make("fedavg+fair", gap=2)
    with pytest.raises(ef.ConfigError, match=r"bins must be even, so that 0.5 is an edge between two bins"):
        ef.simulate(Fair(ef.methods.FedAvg(), bins=7), ten_clients, **SETTINGS)
    with pytest.raises(ef.ConfigError, match="is already post-processed"):
        Fair(ef.postprocess.EqualizedOdds(ef.methods.FedAvg()))
    assert "LoGoFair" in ef.methods.citation(method).plain
    assert "@inproceedings" in ef.methods.citation(method).bibtex
