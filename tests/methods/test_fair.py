"""Post-processing to a stated gap against closed forms, exhaustive search, other linear programmes and fairlearn."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

import equifed as ef
from equifed.federation import Federation
from equifed.methods._parity import (
    NOTIONS,
    Rates,
    calibrated,
    confusion_of,
    fit_thresholds,
    own_decisions,
    per_lane,
    rates_of,
)
from equifed.methods.fair import Fair, decided
from equifed.protocol import Data

every_notion = pytest.mark.parametrize("notion", NOTIONS)


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
        mass = calibrated(counts, calibration)
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
        mass = calibrated(counts, "isotonic")
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
        mass = calibrated(counts, "isotonic")
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
    mass = calibrated(counts, "isotonic")
    found = fit_thresholds(mass, right(mass), rates_of("demographic_parity", mass.sum(-1)), 0.0)
    assert found.value == pytest.approx(best, abs=2e-4)  # their grid
    assert found.value >= best - 1e-9


# -- edges -------------------------------------------------------------------------------------------------------------


def solved(counts: np.ndarray, **hyper: Any) -> dict[str, Any]:
    method = Fair(ef.methods.FedAvg(), bins=counts.shape[-1], **hyper)
    accept, *observed = method.solve(counts, np.float64(method.gap))
    return {"accept": accept, **dict(zip(("multiplier", "training_gap", "feasible"), observed, strict=True))}


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
    assert found["feasible"] == 1
    if calibration == "isotonic":
        assert found["training_gap"] == pytest.approx(0, abs=1e-9)


@every_notion
@pytest.mark.parametrize("calibration", ["isotonic", "none"])
def test_a_gap_that_the_method_keeps_changes_nothing(notion: str, calibration: str) -> None:
    counts = histogram(np.random.default_rng(9), 3, 20)
    mass = counts if calibration == "isotonic" else calibrated(counts, "none")
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
    new = decided(prediction, own, other)
    assert torch.equal(new.argmax(1), other)
    assert torch.equal(new[own == other], prediction[own == other])
    torch.testing.assert_close(new.sum(1), torch.ones(50))
    if classes == 2:
        score = decided(prediction[:, 1], own, other)
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


def chances(result: ef.Result, x: np.ndarray, s: np.ndarray) -> np.ndarray:
    """The share of random numbers with which each row is decided 1."""
    final = result.final_states[4]
    score = final.method.predict(final.task, final.server, final.clients, torch.tensor(x))
    decisions = [
        final.task.decide(
            final.method.adjust(
                final.task, final.server, final.clients, score, torch.tensor(s), torch.full((len(x),), (i + 0.5) / 400)
            )
        )
        for i in range(400)
    ]
    return torch.stack(decisions).double().mean(0).numpy()


@every_notion
def test_ten_clients_with_absent_groups_keep_the_gap_on_their_rows(ten_clients: Federation, notion: str) -> None:
    plain = ef.simulate(ef.methods.FedAvg(), ten_clients, **SETTINGS)
    result = ef.simulate(Fair(ef.methods.FedAvg(), notion=notion, gap=0.03), ten_clients, **SETTINGS)
    for name, value in plain.parameters[4].items():
        np.testing.assert_array_equal(value, result.parameters[4][name])
    train = np.concatenate([ten_clients.train[k] for k in range(10)])
    x, y, s = (part[train] for part in (ten_clients.rows.x, ten_clients.rows.y, ten_clients.rows.s))
    chance = chances(result, x, s)
    named = {"demographic_parity": [y >= 0], "equal_opportunity": [y == 1], "equalized_odds": [y == 1, y == 0]}[notion]
    gaps = [np.ptp([chance[rows & (s == g)].mean() for g in range(3)]) for rows in named]
    before = [np.ptp([(plain.predict(x) > 0.5)[rows & (s == g)].mean() for g in range(3)]) for rows in named]
    assert max(before) > 0.1
    assert max(gaps) == pytest.approx(0.03, abs=0.003)  # 400 random numbers stand for all
    last = result.log.iloc[-1]
    assert last["training_gap"] == pytest.approx(0.03, abs=1e-9)
    assert last["feasible"] == 1
    assert last["multiplier"] > 0
    messages = result.messages.set_index("phase")
    assert messages.loc["fit", ["up", "gather", "down"]].tolist() == ["histogram", "sum", "theta"]


def test_the_neutral_gap_is_the_method_itself(ten_clients: Federation) -> None:
    plain = ef.simulate(ef.methods.FedAvg(), ten_clients, **SETTINGS)
    result = ef.simulate(Fair(ef.methods.FedAvg(), gap=1.0), ten_clients, **SETTINGS)
    columns = ["round", "split", "scope", "metric", "value"]
    assert plain.metrics[columns].to_csv() == result.metrics[columns].to_csv()
    x, s = ten_clients.rows.x, ten_clients.rows.s
    np.testing.assert_array_equal(plain.predict(x) > 0.5, result.predict(x, s=s) > 0.5)


def test_a_sweep_over_the_gap_is_each_alone(ten_clients: Federation) -> None:
    swept = ef.sweep(Fair(ef.methods.FedAvg()), ten_clients, over={"gap": [0.0, 0.1, 1.0]}, **SETTINGS)
    for gap in (0.0, 0.1, 1.0):
        alone = ef.simulate(Fair(ef.methods.FedAvg(), gap=gap), ten_clients, **SETTINGS)
        np.testing.assert_allclose(
            swept.final_states[(gap, 4)].server.own["accept"], alone.final_states[4].server.own["accept"], atol=1e-6
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
    torch.testing.assert_close(fitted.own["accept"], server.own["accept"])


def test_names_and_errors(ten_clients: Federation) -> None:
    method = ef.methods.make("fedprox+fair", mu=0.1, gap=0.02, notion="equalized_odds")
    assert method == Fair(ef.methods.FedProx(mu=0.1), gap=0.02, notion="equalized_odds")
    assert method.name == "fedprox+fair"
    assert all(option.description for option in ef.methods.options(method).values())
    with pytest.raises(ef.ConfigError, match=r"gap must be a number of at least 0 and at most 1, got 2"):
        ef.methods.make("fedavg+fair", gap=2)
    with pytest.raises(ef.ConfigError, match=r"bins must be even, so that one half lies between two bins"):
        ef.simulate(Fair(ef.methods.FedAvg(), bins=7), ten_clients, **SETTINGS)
    with pytest.raises(ef.ConfigError, match="is post-processed already"):
        Fair(ef.postprocess.EqualizedOdds(ef.methods.FedAvg()))
    assert "LoGoFair" in ef.methods.citation(method).plain
    assert "@inproceedings" in ef.methods.citation(method).bibtex
