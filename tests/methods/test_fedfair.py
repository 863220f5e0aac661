"""FedFair, LCO and separate training against plain NumPy, SciPy's constrained optimum and the paper's Lemma 1."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import NonlinearConstraint, minimize

import equifed as ef
from equifed import randomness
from equifed.federation import Federation
from equifed.methods import LCO, FedFair, SeparateTraining
from equifed.methods._constrained import DECAY_EVERY
from equifed.protocol import CONSTRAINT_TOLERANCE
from equifed.simulation import Simulation
from equifed.simulator import make_job
from methods.plain import sigmoid

EPSILON, ALPHA, BETA, GAMMA = 0.02, 0.3, 0.7, 0.01
HYPER = {"epsilon": EPSILON, "step_size": ALPHA, "dual_step_size": BETA, "dual_decay": GAMMA, "tolerance": 0.0}


def rows(rng: np.random.Generator, n: int, groups: int = 2) -> tuple[np.ndarray, ...]:
    """Labels that depend on the features and, unfairly, on the group."""
    x = rng.normal(size=(n, 4)).astype(np.float32)
    s = rng.integers(0, groups, n)
    return x, (x[:, 0] - x[:, 1] + 0.8 * s + 0.5 * rng.normal(size=n) > 0.4).astype(int), s


def loss_and_gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log loss of each row and its gradient in (bias, weights), by hand."""
    z = w[0] + x @ w[1:]
    return np.logaddexp(0, z) - y * z, (sigmoid(z) - y)[:, None] * np.c_[np.ones(len(y)), x]


def client_terms(
    w: np.ndarray, data: tuple[np.ndarray, ...], c: int = 1, groups: tuple[int, ...] = (0, 1)
) -> tuple[int, np.ndarray, list[tuple[float, np.ndarray] | None]]:
    """(m_i, m_i grad L_i, (D_i, grad D_i) of each pair or None where the client lacks a cell)."""
    x, y, s = data
    loss, gradient = loss_and_gradient(w, x, y)
    gaps: list[tuple[float, np.ndarray] | None] = []
    for a, b in combinations(groups, 2):
        in_a, in_b = (s == a) & (y == c), (s == b) & (y == c)
        if in_a.any() and in_b.any():
            gaps.append((loss[in_a].mean() - loss[in_b].mean(), gradient[in_a].mean(0) - gradient[in_b].mean(0)))
        else:
            gaps.append(None)
    return len(y), gradient.sum(0), gaps


def held(fed: Federation, k: int) -> tuple[np.ndarray, ...]:
    part = fed.train[k]
    return fed.rows.x[part].astype(float), fed.rows.y[part], fed.rows.s[part]


def dual(l: float, excess: float) -> float:
    return max((1 - GAMMA * BETA) * l + BETA * (excess - EPSILON), 0)


def weights(parameters: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([parameters["0.bias"].ravel(), parameters["0.weight"].ravel()])


def run(method: ef.methods.Method, fed: Federation, rounds: int, **more: object) -> ef.Result:
    return ef.simulate(method, fed, model=ef.models.Logistic(), rounds=rounds, seeds=[3], **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("protected_class", [0, 1])
def test_fedfair_against_numpy(uneven: Federation, dropout: float, protected_class: int) -> None:
    """Several rounds, with sampled clients of whom some drop out: averages are over those who answer."""
    method = FedFair(**HYPER, protected_class=protected_class)  # type: ignore[arg-type]
    result = run(method, uneven, 5, clients_per_round=8, dropout=dropout)
    w, la, lb = np.zeros(5), 0.0, 0.0
    log = result.log.set_index("round")
    for t in range(1, 6):
        cohort = randomness.draw_cohort(3, t, randomness.client_order(uneven.ids), 8)
        here = randomness.draw_present(3, t, [randomness.key(uneven.ids[k]) for k in cohort], dropout)
        terms = [client_terms(w, held(uneven, k), protected_class) for k in cohort[here]]
        m = sum(each[0] for each in terms)
        gaps = [each[2][0] for each in terms if each[2][0] is not None]
        gradient = sum(each[1] for each in terms) / m + (la - lb) * np.mean([gap[1] for gap in gaps], axis=0)
        D = np.mean([gap[0] for gap in gaps])
        w, la, lb = w - ALPHA * gradient, dual(la, D), dual(lb, -D)
        assert log.loc[t, "lambda_a"] == pytest.approx(la, abs=1e-6)
        assert log.loc[t, "lambda_b"] == pytest.approx(lb, abs=1e-6)
        if t < 5:
            assert log.loc[t, "constraint"] == pytest.approx(abs(D), abs=1e-6)
            assert log.loc[t, "feasible"] == (abs(D) - GAMMA * (la if D > 0 else lb) <= EPSILON + CONSTRAINT_TOLERANCE)
    np.testing.assert_allclose(weights(result.parameters[3]), w, rtol=1e-4, atol=1e-6)
    # the last line of the log is about the final model and all clients
    everyone = [client_terms(w, held(uneven, k), protected_class)[2][0] for k in range(uneven.num_clients)]
    final = np.mean([gap[0] for gap in everyone if gap is not None])
    assert log.loc[5, "constraint"] == pytest.approx(abs(final), abs=1e-6)
    assert set(result.messages["gather"]) == {"sum"}
    assert (result.messages["stage"] == "round").sum() == 1


@pytest.mark.parametrize("groups", [None, (2, 0)])
def test_a_pair_of_multipliers_for_each_pair_of_groups(groups: tuple[int, int] | None) -> None:
    rng = np.random.default_rng(0)
    clients = [rows(rng, n, groups=3) for n in (40, 30, 50)]
    clients.append(tuple(part[clients[0][2] < 2] for part in clients[0]))  # never saw the third group
    fed = ef.Federation.from_arrays(clients, test=rows(rng, 30, groups=3))
    result = run(FedFair(**HYPER, groups=groups), fed, 3)  # type: ignore[arg-type]
    used = (0, 1, 2) if groups is None else groups
    pairs = len(list(combinations(used, 2)))
    w, la, lb = np.zeros(5), np.zeros(pairs), np.zeros(pairs)
    for _ in range(3):
        terms = [client_terms(w, held(fed, k), groups=used) for k in range(4)]
        gradient = sum(each[1] for each in terms) / sum(each[0] for each in terms)
        new_a, new_b = la.copy(), lb.copy()
        for p in range(pairs):
            gaps = [each[2][p] for each in terms if each[2][p] is not None]
            gradient = gradient + (la[p] - lb[p]) * np.mean([gap[1] for gap in gaps], axis=0)
            D = np.mean([gap[0] for gap in gaps])
            new_a[p], new_b[p] = dual(la[p], D), dual(lb[p], -D)
        w, la, lb = w - ALPHA * gradient, new_a, new_b
    np.testing.assert_allclose(weights(result.parameters[3]), w, rtol=1e-4, atol=1e-6)
    names = ["lambda_a"] if pairs == 1 else [f"lambda_a_{p}" for p in range(pairs)]
    np.testing.assert_allclose(result.log.iloc[-1][names].to_numpy(float), la, atol=1e-6)


def test_lco_against_numpy(uneven: Federation) -> None:
    result = run(LCO(**HYPER), uneven, 5)  # type: ignore[arg-type]
    K = uneven.num_clients
    w, la, lb = np.zeros(5), np.zeros(K), np.zeros(K)
    for _ in range(5):
        terms = [client_terms(w, held(uneven, k)) for k in range(K)]
        gradient = sum(each[1] for each in terms) / sum(each[0] for each in terms)
        for k, (_, _, (gap,)) in enumerate(terms):
            if gap is not None:
                gradient = gradient + (la[k] - lb[k]) * gap[1]
                la[k], lb[k] = dual(la[k], gap[0]), dual(lb[k], -gap[0])
        w = w - ALPHA * gradient
    np.testing.assert_allclose(weights(result.parameters[3]), w, rtol=1e-4, atol=1e-6)
    gaps = [client_terms(w, held(uneven, k))[2][0] for k in range(K)]
    last = result.log.iloc[-1]
    assert last["constraints"] == sum(gap is not None for gap in gaps) == 6
    bound = [EPSILON + GAMMA * (a if gap and gap[0] > 0 else b) for gap, a, b in zip(gaps, la, lb, strict=True)]
    far = [abs(gap[0]) if gap is not None else 0.0 for gap in gaps]
    assert last["violated"] == sum(np.array(far) > np.array(bound) + CONSTRAINT_TOLERANCE) > 0
    assert last["excess"] == pytest.approx(np.clip(np.array(far) - EPSILON, 0, None).sum() / 6, abs=1e-6)
    note = str(result.notes[0])
    assert f"by {last['excess']:.3g} there; see `log`. More rounds may help." in note
    assert last["feasible"] == (last["violated"] == 0)
    assert not [name for name in result.messages["up"].str.cat(sep=", ").split(", ") if "lambda" in name]


def test_separate_training_is_fedfair_of_one_client(uneven: Federation) -> None:
    result = run(SeparateTraining(EPSILON, ALPHA, BETA, GAMMA), uneven, 4)
    own = result.parameters[3]
    for k in range(uneven.num_clients):
        x, y, s = held(uneven, k)
        w, la, lb = np.zeros(5), 0.0, 0.0
        for _ in range(4 if len(y) else 0):
            m, gradient, (gap,) = client_terms(w, (x, y, s))
            gradient = gradient / m
            if gap is not None:
                gradient = gradient + (la - lb) * gap[1]
                la, lb = dual(la, gap[0]), dual(lb, -gap[0])
            w = w - ALPHA * gradient
        got = np.concatenate([own["0.bias"][k].ravel(), own["0.weight"][k].ravel()])
        np.testing.assert_allclose(got, w, rtol=1e-4, atol=1e-6)
    messages = result.messages.set_index("phase")
    assert messages["bytes_down"].sum() == messages.loc["alone", "bytes_up"] == 0
    # only at the end: how many clients have met their own constraint
    assert (messages.loc["measure", "up"], messages.loc["measure", "gather"]) == (
        "constraints, violated, excess",
        "sum",
    )
    assert result.log["feasible"].isna().tolist() == [True] * 3 + [False]
    assert result.log["constraints"].iloc[-1] == 6
    assert result.log["violated"].iloc[-1] > 0
    assert any("constraint is not met at the end of the run" in str(note) for note in result.notes)
    loose = run(SeparateTraining(epsilon=5.0), uneven, 2)
    assert (loose.log["violated"].iloc[-1], loose.log["feasible"].iloc[-1]) == (0, 1)


def test_the_step_shrinks_after_many_rounds() -> None:
    import torch

    method = FedFair(step_size=0.5)
    assert method.rate(torch.tensor(DECAY_EVERY - 1.0)).item() == pytest.approx(0.5)
    assert method.rate(torch.tensor(2.0 * DECAY_EVERY)).item() == pytest.approx(0.005)


# -- the optimum -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def federation() -> Federation:
    rng = np.random.default_rng(11)
    return ef.Federation.from_arrays([rows(rng, n) for n in (120, 80, 150, 60)], test=rows(rng, 50))


def objective(w: np.ndarray, fed: Federation) -> tuple[float, np.ndarray]:
    """Federated loss and its gradient, on the pooled rows."""
    pooled = tuple(np.concatenate([held(fed, k)[i] for k in range(fed.num_clients)]) for i in range(3))
    loss, gradient = loss_and_gradient(w, pooled[0], pooled[1])
    return loss.mean(), gradient.mean(0)


def estimates(w: np.ndarray, fed: Federation) -> tuple[np.ndarray, np.ndarray]:
    gaps = [client_terms(w, held(fed, k))[2][0] for k in range(fed.num_clients)]
    return np.array([gap[0] for gap in gaps if gap]), np.stack([gap[1] for gap in gaps if gap])


@pytest.mark.full
def test_fedfair_finds_the_constrained_optimum(federation: Federation) -> None:
    """Against SciPy's SLSQP on the pooled rows: objective and constraint to 1e-3, active or not."""
    method = FedFair(step_size=1.0, dual_step_size=1.0, dual_decay=0.0)
    grid = [0.05, 0.1, 0.5]
    result = run(method, federation, 5_000, eval_every=5_000, over={"epsilon": grid})
    ends = result.log.groupby("epsilon").tail(1).set_index("epsilon")
    for epsilon in grid:
        constraint = {
            "type": "ineq",
            "fun": lambda w, epsilon=epsilon: epsilon - np.array([1, -1]) * estimates(w, federation)[0].mean(),
            "jac": lambda w: -np.array([[1], [-1]]) * estimates(w, federation)[1].mean(0),
        }
        best = minimize(
            objective, np.zeros(5), (federation,), "SLSQP", jac=True, constraints=[constraint], options={"ftol": 1e-10}
        )
        assert best.success
        w = weights(result.parameters[(epsilon, 3)]).astype(float)
        gap = abs(estimates(w, federation)[0].mean())
        assert objective(w, federation)[0] == pytest.approx(best.fun, abs=1e-3)
        assert gap == pytest.approx(abs(estimates(best.x, federation)[0].mean()), abs=1e-3)
        assert ends.loc[epsilon, "constraint"] == pytest.approx(gap, abs=1e-5)
        assert ends.loc[epsilon, "feasible"] == 1
    assert ends["stopped"].all()  # each when it had converged, and the result says when
    assert (ends["round"] < 5_000).all()
    assert ends["round"].nunique() == 3
    note = str(result.notes[0])
    assert f"3 of 3 runs converged and stopped at rounds {ends['round'].min()} to {ends['round'].max()} of" in note
    # gamma leaves an active constraint at epsilon + gamma lambda
    decayed = run(FedFair(0.05, 1.0, 1.0, dual_decay=0.01), federation, 5_000, eval_every=5_000)
    last = decayed.log.iloc[-1]
    assert last["constraint"] == pytest.approx(0.05 + 0.01 * (last["lambda_a"] + last["lambda_b"]), abs=2e-4)
    assert last["feasible"] == 1  # as near as gamma lets it come, and the notes say so
    assert last["excess"] == pytest.approx(last["constraint"] - 0.05, abs=1e-6)
    assert last["excess"] > CONSTRAINT_TOLERANCE
    assert decayed.summary()[("constraint_met", "mean")].item() == 1
    assert (result.summary()[("constraint_met", "mean")] == 1).all()
    stopped, near = map(str, decayed.notes)
    assert "converged and stopped" in stopped
    assert f"The run ended {last['excess']:.3g} above the constraint's bound, within the tolerance" in near
    assert "the decay of its multipliers" in near
    assert near.endswith("A smaller dual_decay brings it closer.")
    assert "ore rounds" not in near


@pytest.mark.full
def test_lco_finds_its_constrained_optimum(federation: Federation) -> None:
    """Every client's own constraint, against SciPy's trust-constr."""
    epsilon = 0.12
    constraint = NonlinearConstraint(
        lambda w: estimates(w, federation)[0], -epsilon, epsilon, jac=lambda w: estimates(w, federation)[1]
    )
    best = minimize(
        objective, np.zeros(5), (federation,), "trust-constr", jac=True, constraints=[constraint],
        options={"gtol": 1e-8, "maxiter": 3000},
    )  # fmt: skip
    result = run(LCO(epsilon, 0.5, 0.5, dual_decay=0.0), federation, 5_000, eval_every=5_000)
    w = weights(result.parameters[3]).astype(float)
    assert objective(w, federation)[0] == pytest.approx(best.fun, abs=1e-3)
    assert np.abs(estimates(w, federation)[0]).max() == pytest.approx(epsilon, abs=1e-3)
    assert result.log["stopped"].iloc[-1]


def test_variance_of_the_federated_estimate_falls_as_one_over_n() -> None:
    """Lemma 1, measured: over many federations drawn from one population, var(Dbar) = mean var(D_i) / N."""
    rng = np.random.default_rng(0)
    draws, sizes = 400, (1, 4, 16)
    start = {"0.weight": np.array([[0.8, -0.5, 0.1, 0.0]]), "0.bias": np.array([0.2])}
    variance = {}
    for N in sizes:
        values = []
        feds = [ef.Federation.from_arrays([rows(rng, 60) for _ in range(N)], test=rows(rng, 2)) for _ in range(draws)]
        for begin in range(0, draws, 100):
            some = feds[begin : begin + 100]
            settings = ef.RunSettings(rounds=2, eval_every=2, seeds=100)
            job = make_job(FedFair(), some, ef.models.Logistic(), settings, initial_parameters=start)
            step = next(iter(Simulation(job).rounds()))
            values += step.state.server.gap[:, 0].tolist()
        variance[N] = np.var(values, ddof=1)
    # a variance from 400 draws has a relative standard error of about sqrt(2/400) = 0.07
    for N in sizes[1:]:
        assert variance[N] * N / variance[1] == pytest.approx(1, abs=0.25)


# -- what cannot be ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FedFair, LCO, SeparateTraining])
def test_groups_and_classes_that_the_data_lacks(kind: type[FedFair], uneven: Federation) -> None:
    with pytest.raises(ef.ConfigError, match="protected_class is 2, but the classes of this data"):
        run(kind(protected_class=2), uneven, 1)
    for groups in ((0,), (0, 0), (0, 5)):
        with pytest.raises(ef.ConfigError, match="groups must name at least two different groups for"):
            run(kind(groups=groups), uneven, 1)
    with pytest.raises(ef.ConfigError, match="epsilon must be a number of at least 0, got -1"):
        run(kind(epsilon=-1), uneven, 1)


def test_nobody_can_compare_the_groups() -> None:
    """No client holds both groups: the constraint says nothing, and FedFair is plain gradient descent."""
    rng = np.random.default_rng(0)
    x, y, s = rows(rng, 40)
    fed = ef.Federation.from_arrays([(x[s == g], y[s == g], s[s == g]) for g in (0, 1)], test=rows(rng, 9))
    result = run(FedFair(**HYPER), fed, 3)  # type: ignore[arg-type]
    w = np.zeros(5)
    for _ in range(3):
        w = w - ALPHA * loss_and_gradient(w, x.astype(float), y)[1].mean(0)
    np.testing.assert_allclose(weights(result.parameters[3]), w, rtol=1e-4, atol=1e-6)
    assert (result.log["lambda_a"] == 0).all()


@pytest.mark.parametrize("kind", [FedFair, LCO])
def test_a_round_with_a_client_without_rows_says_nothing_about_convergence(kind: type[FedFair]) -> None:
    rng = np.random.default_rng(0)
    fed = ef.Federation.from_arrays([rows(rng, n) for n in (60, 30, 50, 0)], test=rows(rng, 20))
    result = ef.simulate(
        kind(epsilon=0.01),
        fed,
        model=ef.models.Logistic(),
        rounds=50,
        clients_per_round=1,
        seeds=range(6),
        eval_every=50,
    )
    assert not result.log["stopped"].any()
    empty = result.log[np.isinf(result.log["primal_residual"])]
    assert (empty["round"] == 1).any()  # it was the first to be sampled in some run
    assert np.isinf(empty["dual_residual"]).all()


@pytest.mark.parametrize("kind", [FedFair, LCO])
def test_without_a_gap_the_multipliers_residual_stays(kind: type[FedFair]) -> None:
    rng = np.random.default_rng(0)
    x, y, s = rows(rng, 60)
    fed = ef.Federation.from_arrays([(x, y, s), (x, y, np.zeros_like(s))], test=rows(rng, 9))
    log = run(kind(epsilon=0.0, tolerance=0.0, step_size=0.5), fed, 12, clients_per_round=1).log["dual_residual"]
    order = randomness.client_order(fed.ids)
    silent = np.array(
        [randomness.draw_cohort(3, t, order, 1)[0] == 1 for t in range(1, 13)]
    )  # sampled who lacks a group
    assert silent[3:].any()
    before = np.concatenate([[np.inf], log[:-1]])
    np.testing.assert_array_equal(log[silent], before[silent])
    assert (log[~silent] != before[~silent]).all()
