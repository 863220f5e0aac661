"""AgnosticFair's exchanges against plain NumPy on the pooled rows, and its programme's special cases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

import equifed as ef
from equifed import randomness
from equifed.federation import Federation
from equifed.methods import AgnosticFair

from .test_fedfair import rows, sigmoid, weights


def pooled(fed: Federation) -> tuple[np.ndarray, ...]:
    parts = [fed.train[k] for k in range(fed.num_clients)]
    held = np.concatenate(parts)
    return fed.rows.x[held].astype(float), fed.rows.y[held], fed.rows.s[held]


@pytest.mark.parametrize("tau", [0.03, 0.5])
def test_rounds_against_numpy(uneven: Federation, tau: float) -> None:
    method = AgnosticFair(tau=tau, references=7, steps=3, step_size=0.2)
    w = np.array([0.1, 0.3, -0.2, 0.1, -0.3])  # at 0 all rows have one loss, and the programme many solutions
    start = {"0.weight": w[None, 1:], "0.bias": w[:1]}
    result = ef.simulate(method, uneven, model=ef.models.Logistic(), rounds=3, seeds=[6], initial_parameters=start)
    x, y, s = pooled(uneven)
    sbar = s.mean()
    z = randomness.generator(6, "draw:references", 0).normal(size=(7, 4)).astype(np.float32)
    points = x.mean(0) + x.std(0) * z
    k = np.exp(-((x[:, None] - points) ** 2).sum(-1) / (2 * 2.0**2))
    design = np.c_[np.ones(len(y)), x]
    for _ in range(3):
        d = design @ w
        loss = np.logaddexp(0, d) - y * d
        cov = (k * ((s - sbar) * d)[:, None]).mean(0)
        found = linprog(
            -(k * loss[:, None]).mean(0), A_ub=np.stack([cov, -cov]), b_ub=[tau, tau], A_eq=k.mean(0)[None], b_eq=[1],
            bounds=(0, 5),
        )  # fmt: skip
        assert found.success
        row = k @ found.x
        assert row.mean() == pytest.approx(1)
        for _ in range(3):
            d = design @ w
            slope = row * (sigmoid(d) - y) + 2 * 2 * (row * s - sbar) ** 2 * d
            w = w - 0.2 * design.T @ slope / len(y)
    np.testing.assert_allclose(weights(result.parameters[6]), w, rtol=2e-3, atol=1e-5)
    assert (result.log["unfairness"] <= tau + 1e-6).all()
    assert not result.log[["relaxed", "uniform_weights"]].to_numpy().any()
    assert set(result.messages["gather"]) == {"sum"}


def test_a_programme_without_solution() -> None:
    rng = np.random.default_rng(0)
    fed = ef.Federation.from_arrays([rows(rng, 30), rows(rng, 40)], test=rows(rng, 10))
    settings = {"model": ef.models.Logistic(), "rounds": 2, "seeds": [0]}
    # points so far from the rows that B cannot bring the weights up to 1: all rows weigh the same
    far = ef.simulate(AgnosticFair(bound=0.001), fed, **settings)  # type: ignore[arg-type]
    assert (far.log["uniform_weights"] == 1).all()
    assert np.isfinite(weights(far.parameters[0])).all()
    # a constraint that the adversary cannot keep is left out, and counted
    start = {"0.weight": np.full((1, 4), 3.0), "0.bias": np.array([9.0])}
    tight = ef.simulate(AgnosticFair(tau=0.0, references=1), fed, initial_parameters=start, **settings)  # type: ignore[arg-type]
    assert tight.log["relaxed"].iloc[0] == 1
    assert tight.log["uniform_weights"].iloc[0] == 0


def test_what_it_cannot_do() -> None:
    rng = np.random.default_rng(0)
    fed = ef.Federation.from_arrays([rows(rng, 30, groups=3)], test=rows(rng, 10, groups=3))
    with pytest.raises(ef.ConfigError, match="compares two groups; this data has 3"):
        ef.simulate(AgnosticFair(), fed, model=ef.models.Logistic(), rounds=1)


def test_a_model_of_two_outputs_is_that_of_their_difference(uneven: Federation) -> None:
    """The logit is z1 - z0: twice the step of one output, since both move; here with the step halved."""
    from torch import nn

    w, b = np.array([[0.3, -0.2, 0.1, -0.3]]), np.array([0.1])
    settings = {"rounds": 2, "seeds": [6]}
    one = ef.simulate(
        AgnosticFair(step_size=0.2),
        uneven,
        model=nn.Linear(4, 1),
        initial_parameters={"weight": w, "bias": b},
        **settings,
    )  # type: ignore[arg-type]
    start = {"weight": np.concatenate([-w / 2, w / 2]), "bias": np.concatenate([-b / 2, b / 2])}
    two = ef.simulate(AgnosticFair(step_size=0.1), uneven, model=nn.Linear(4, 2), initial_parameters=start, **settings)  # type: ignore[arg-type]
    got = two.parameters[6]["weight"]
    np.testing.assert_allclose(got[1:] - got[:1], one.parameters[6]["weight"], rtol=1e-4, atol=1e-5)
