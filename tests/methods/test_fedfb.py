"""FedFB against the paper's shares lambda in plain NumPy: the method keeps them as weights of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import equifed as ef
from equifed.errors import ConfigError
from equifed.methods import FedFB
from equifed.methods.fedfb import Server
from methods.plain import LOGISTIC, averaged, client, cohorts, log_loss, parameters, trained

D, GROUPS, ALPHA, RATE, STEPS, ROUNDS = 3, 3, 0.4, 0.5, 2, 5
THETA = parameters(LOGISTIC)
OPTIONS: dict[str, Any] = {
    "model": ef.models.Logistic(),
    "rounds": ROUNDS,
    "local": ef.Local(epochs=STEPS, batch_size=None, learning_rate=RATE),
    "seeds": (3,),
}


def federation(groups: int = GROUPS) -> ef.Federation:
    """Unequal clients, one without rows; one row in six is of unknown group."""
    rng = np.random.default_rng(0)

    def part(n: int) -> tuple[np.ndarray, ...]:
        x, s = rng.normal(size=(n, D)), rng.integers(0, groups, n)
        y = (x[:, 0] + 0.8 * s + rng.normal(size=n) > 0.8).astype(int)
        return x, y, np.where(rng.random(n) < 1 / 6, -1, s)

    return ef.Federation.from_arrays([part(n) for n in (40, 25, 0, 60, 33)], test=part(50))


def server(counts: Any, t: float = 1.0) -> Server:
    zero, m = torch.zeros((), dtype=torch.double), torch.tensor(counts, dtype=torch.double)
    return Server({}, m, torch.ones_like(m), zero + t, zero, zero, zero, zero + 1)


def moved(method: FedFB, counts: Any, losses: Any, t: float = 1.0) -> np.ndarray:
    """w(s, y) after one step from 1."""
    start = server(counts, t)
    replies = {"losses": torch.tensor(losses, dtype=torch.double), "counts": start.counts}
    return method.move(start, replies, None).weight.numpy()


# -- one step by hand --------------------------------------------------------------------------------------------------

COUNTS, LOSSES = [[2, 2], [3, 1]], [[0.8, 1.0], [0.6, 0.9]]  # [group, label]


@pytest.mark.parametrize("reference", ["mean", "first"])
def test_a_step_by_hand(reference: Any) -> None:
    """mu_1 = -.275, lambda_01 = .4175 and lambda_00 = .5825 of 1 each: group 1 is selected less, its positives gain."""
    weight = moved(FedFB(alpha=0.3, reference=reference), COUNTS, LOSSES)
    np.testing.assert_allclose(weight, [[1.165, 0.835], [0.835, 1.165]], rtol=1e-12)


def test_steps_become_shorter_and_begin_after_the_first_training() -> None:
    first, fourth = (moved(FedFB(alpha=0.3), COUNTS, LOSSES, t) - 1 for t in (1.0, 4.0))
    np.testing.assert_allclose(fourth, first / 2, rtol=1e-12)
    assert (moved(FedFB(alpha=0.3), COUNTS, LOSSES, t=0.0) == 1).all()


def test_a_normalised_step_has_length_alpha() -> None:
    """With two groups of 4 rows of 8, sign(mu) / sqrt 2 times n / m_s = 2."""
    weight = moved(FedFB(alpha=0.1, normalise=True), COUNTS, LOSSES)
    np.testing.assert_allclose(weight[:, 0] - 1, [0.2 / np.sqrt(2), -0.2 / np.sqrt(2)], rtol=1e-6)
    equal = moved(FedFB(alpha=0.1, normalise=True), [[2, 2], [2, 2]], [[1, 1], [1, 1]])
    assert (equal == 1).all()


def test_the_reference_with_three_groups() -> None:
    """q = .3, .1, .2 with mu = q - mean of the others, or q - q_0 and minus their sum for group 0."""
    counts, losses = [[5, 5]] * 3, [[8.0, 0.0], [6.0, 0.0], [7.0, 0.0]]  # q_s = (S_0 - 5) / 10
    for reference, mu in (("mean", [0.15, -0.15, 0.0]), ("first", [0.3, -0.2, -0.1])):
        weight = moved(FedFB(alpha=0.1, reference=reference), counts, losses)  # type: ignore[arg-type]
        np.testing.assert_allclose(weight[:, 0], 1 + 0.1 * 3 * np.array(mu), rtol=1e-12)
        np.testing.assert_allclose(weight.sum(1), 2.0)


def test_weights_stay_within_0_and_2() -> None:
    np.testing.assert_allclose(moved(FedFB(alpha=50.0), COUNTS, LOSSES), [[2, 0], [0, 2]])


def test_equal_opportunity_by_hand() -> None:
    """Mean losses of positives .5 and .9; shares 2/8 and 1/8 of 3/8 move by -.1 * .4 and .1 * .4."""
    weight = moved(FedFB("equal_opportunity_difference", alpha=0.1), COUNTS, LOSSES)
    np.testing.assert_allclose(weight, [[1, 0.21 * 8 / 2], [1, 0.165 * 8 / 1]], rtol=1e-12)
    # beyond 0 a share is cut, and the rest rescaled to 3/8
    cut = moved(FedFB("equal_opportunity_difference", alpha=5.0), COUNTS, LOSSES)
    np.testing.assert_allclose(cut, [[1, 0], [1, 3]], rtol=1e-12)


def test_equalised_odds_moves_both_labels() -> None:
    weight = moved(FedFB("equalized_odds_difference", alpha=0.1), COUNTS, LOSSES)
    # mean losses of negatives .4 and .2: shares 2/8 + .02 and 3/8 - .02
    np.testing.assert_allclose(weight, [[0.27 * 4, 0.21 * 4], [0.355 * 8 / 3, 0.165 * 8]], rtol=1e-12)


@pytest.mark.parametrize("fairness", ["demographic_parity_difference", "equalized_odds_difference"])
@pytest.mark.parametrize("reference", ["mean", "first"])
def test_groups_and_cells_without_rows_stay(fairness: str, reference: Any) -> None:
    counts, losses = [[2, 2], [0, 0], [3, 0]], [[0.8, 1.0], [0, 0], [0.6, 0]]
    method = FedFB(fairness, alpha=0.1, reference=reference)
    weight = moved(method, counts, losses)
    assert (weight[1] == 1).all()
    np.testing.assert_allclose(weight[[0, 2]], moved(method, [counts[0], counts[2]], [losses[0], losses[2]]))
    alone = moved(method, [[0, 0], [0, 0], [3, 2]], [[0, 0], [0, 0], [0.6, 1]])
    assert (alone == 1).all()


# -- rounds ------------------------------------------------------------------------------------------------------------


def tables(fed: ef.Federation, clients: Any, values: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """Sum of values(x, y) over the rows of each label and group [2, G]."""
    table = np.zeros((2, GROUPS))
    for k in clients:
        x, y, s = client(fed, k)
        np.add.at(table, (y[s >= 0], s[s >= 0]), values(x, y)[s >= 0])
    return table


def demographic(lam: np.ndarray, S: np.ndarray, m: np.ndarray, M: np.ndarray, a: float) -> np.ndarray:
    """lambda [2, G] after the paper's step, each group against the mean of the others."""
    there, n = m.sum(0) > 0, M.sum()
    rate = np.array([(S[0, s] - S[1, s]) / m[:, s].sum() + m[1, s] / m[:, s].sum() for s in np.flatnonzero(there)])
    mu = np.zeros(GROUPS)
    mu[there] = [r - np.delete(rate, i).mean() for i, r in enumerate(rate)]
    lower = np.clip(lam[0] + a * mu, 0, 2 * M.sum(0) / n)
    return np.stack([lower, 2 * M.sum(0) / n - lower])


def odds(labels: list[int], lam: np.ndarray, S: np.ndarray, m: np.ndarray, M: np.ndarray, a: float) -> np.ndarray:
    lam = lam.copy()
    for y in labels:
        there = m[y] > 0
        loss = S[y, there] / m[y, there]
        lam[y, there] += a * np.array([q - np.delete(loss, i).mean() for i, q in enumerate(loss)])
        lam[y] = np.maximum(lam[y], 0)
        lam[y] *= M[y].sum() / M.sum() / lam[y].sum()
    return lam


RULES: dict[str, Any] = {
    "demographic_parity_difference": (demographic, lambda M: np.stack([M.sum(0)] * 2)),
    "equal_opportunity_difference": (lambda *given: odds([1], *given), lambda M: M),
    "equalized_odds_difference": (lambda *given: odds([0, 1], *given), lambda M: M),
}
"""How lambda moves, and the rows that its entries are shares of."""


@pytest.mark.parametrize("fairness", RULES)
@pytest.mark.parametrize(
    "setting",
    [{}, {"clients_per_round": 3}, {"average_by": "row-weights", "clients_per_round": 4}],
    ids=["all", "some", "by weights"],
)
def test_rounds_are_the_papers(fairness: str, setting: dict[str, Any]) -> None:
    fed, (step, of) = federation(), RULES[fairness]
    average_by = setting.get("average_by", "rows")
    method = FedFB(fairness, alpha=ALPHA, average_by=average_by)
    options = OPTIONS | {name: value for name, value in setting.items() if name != "average_by"}
    result = ef.simulate(method, fed, initial_parameters=LOGISTIC, **options)
    M = tables(fed, range(5), lambda x, y: np.ones(len(y)))
    theta, lam = THETA, of(M) / M.sum()
    for t, present in enumerate(cohorts(fed, method, **options)):
        if t:  # after t rounds of training; lambda moves by what the round's clients measure
            losses = tables(fed, present, lambda x, y, theta=theta: log_loss(theta, x, y))  # type: ignore[misc]
            lam = step(lam, losses, tables(fed, present, lambda x, y: np.ones(len(y))), M, ALPHA / np.sqrt(t))
        models, weights = [], []
        for k in present:
            x, y, s = client(fed, k)
            w = np.where(s >= 0, (M.sum() * lam / np.maximum(of(M), 1))[y, s], 1.0)
            models.append(trained(theta, x, y, w, rate=RATE, steps=STEPS))
            weights.append(len(y) if average_by == "rows" else w.sum())
        theta = averaged(theta, models, weights)
    assert np.abs(M.sum() * lam / of(M) - 1).max() > 0.1  # the weights have moved
    np.testing.assert_allclose(parameters(result.parameters[3]), theta, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("alpha", [0.02, 4.0])
@pytest.mark.parametrize("per_round", ["all", 3])
def test_client_parity_is_that_of_a_server_which_knows_every_client(alpha: float, per_round: Any) -> None:
    """lambda_k, cut at 0 and rescaled to a sum of 1 at once; the method's clients rescale by what the server sends."""
    fed = federation()
    method, options = FedFB("client_parity", alpha=alpha), OPTIONS | {"clients_per_round": per_round}
    result = ef.simulate(method, fed, initial_parameters=LOGISTIC, **options)
    n = np.array([len(fed.train[k]) for k in range(5)])
    theta, lam, cut = THETA, n / n.sum(), False
    for t, present in enumerate(cohorts(fed, method, **options)):
        holders = [k for k in present if n[k]]
        if t:
            q = np.array([log_loss(theta, *client(fed, k)[:2]).mean() for k in holders])
            for i, k in enumerate(holders):
                lam[k] += alpha / np.sqrt(t) * (q[i] - np.delete(q, i).mean())
            cut |= bool((lam < 0).any())
            lam = np.maximum(lam, 0) / np.maximum(lam, 0).sum()
        models = [trained(theta, *client(fed, k)[:2], n.sum() * lam[k] / n[k], rate=RATE, steps=STEPS) for k in holders]
        theta = averaged(theta, models, list(n[holders]))
    assert cut == (alpha == 4.0)  # so that rescaling is part of one case
    np.testing.assert_allclose(parameters(result.parameters[3]), theta, rtol=2e-5, atol=2e-6)


def test_client_parity_brings_losses_together() -> None:
    rng = np.random.default_rng(1)
    clients = []
    for n, slope in ((300, 1.0), (300, 1.0), (60, -1.0)):  # the small client's labels go the other way
        x = rng.normal(size=(n, D))
        clients.append((x, (slope * x[:, 0] + 0.5 * rng.normal(size=n) > 0).astype(int), np.zeros(n, int)))
    fed = ef.Federation.from_arrays(clients, test=clients[0])
    options = OPTIONS | {"rounds": 30, "eval_every": 30}
    gaps = []
    for alpha in (0.0, 0.05):
        result = ef.simulate(FedFB("client_parity", alpha=alpha), fed, **options)
        theta = parameters(result.parameters[3])
        gaps.append(np.ptp([log_loss(theta, x, y).mean() for x, y, _ in clients]))
    assert gaps[1] < 0.5 * gaps[0]


@pytest.mark.parametrize("fairness", [*RULES, "client_parity"])
@pytest.mark.parametrize("average_by", ["rows", "row-weights"])
def test_alpha_0_is_fedavg_bit_by_bit(fairness: str, average_by: Any) -> None:
    fed = federation()
    fedavg = ef.simulate(ef.methods.FedAvg(), fed, **OPTIONS)
    found = ef.simulate(FedFB(fairness, alpha=0.0, average_by=average_by), fed, **OPTIONS)
    for name, value in found.parameters[3].items():
        if average_by == "rows":  # the same sums; else in weights that add up to the rows
            assert value.tobytes() == fedavg.parameters[3][name].tobytes()
        np.testing.assert_allclose(value, fedavg.parameters[3][name], rtol=1e-6, atol=1e-7)


def test_more_classes_and_numbers() -> None:
    """Equalised odds of three classes; client parity of a regression."""
    rng = np.random.default_rng(2)
    x, s = rng.normal(size=(90, D)), rng.integers(0, 2, 90)
    clients = [slice(0, 40), slice(40, 90)]
    classes = [(x[k], rng.integers(0, 3, 90)[k], s[k]) for k in clients]
    fed = ef.Federation.from_arrays(classes, test=classes[0])
    for method in (FedFB("equalized_odds_difference"), FedFB("equal_opportunity_difference")):
        log = ef.simulate(method, fed, **OPTIONS).log
        assert log["largest_weight"].iloc[-1] > 1
    numbers = [(x[k], (x @ [1.0, 0.5, 0.0] + s)[k], s[k]) for k in clients]
    fed = ef.Federation.from_arrays(numbers, test=numbers[0], task="regression")
    options = OPTIONS | {"model": ef.models.Linear(), "local": ef.Local(epochs=1, batch_size=None, learning_rate=0.05)}
    log = ef.simulate(FedFB("client_parity"), fed, **options).log
    assert log["mean_client_loss"].iloc[-1] < log["mean_client_loss"].iloc[0]
    with pytest.raises(ConfigError, match="needs classes; take 'client_parity'"):
        ef.simulate(FedFB(), fed, **options)


@pytest.mark.parametrize("setting", [{"reference": "first"}, {"normalise": True}])
def test_what_client_parity_cannot_do(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(setting))} applies to groups only"):
        ef.simulate(FedFB("client_parity", **setting), federation(), **OPTIONS)


def test_demographic_parity_is_of_two_classes() -> None:
    rng = np.random.default_rng(2)
    part = (rng.normal(size=(60, D)), rng.integers(0, 3, 60), rng.integers(0, 2, 60))
    with pytest.raises(ConfigError, match="FedFB defines for two classes"):
        ef.simulate(FedFB(), ef.Federation.from_arrays([part], test=part), **OPTIONS)


def test_what_sums_tell_depends_on_what_is_weighed() -> None:
    assert "by group and label" in FedFB().reveals
    assert "by group" not in FedFB(fairness="client_parity").reveals
