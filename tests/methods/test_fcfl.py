"""FCFL against plain NumPy: the gradients, both linear programmes, the smooth maxima, and the point of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import equifed as ef
from equifed import tree
from equifed.federation import Federation
from equifed.methods import FCFL, fcfl
from equifed.methods.fcfl import first_direction, second_direction
from equifed.simulation import Simulation
from equifed.simulator import make_job
from methods.plain import sigmoid

MODEL = ef.models.Logistic()


def client(fed: Federation, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = fed.train[k]
    return np.c_[np.ones(len(rows)), fed.rows.x[rows].astype(float)], fed.rows.y[rows], fed.rows.s[rows]


def weights(theta: Any) -> np.ndarray:
    return np.r_[np.asarray(theta["0.bias"], float).ravel(), np.asarray(theta["0.weight"], float).ravel()]


def loss(w: np.ndarray, fed: Federation, k: int) -> float:
    x, y, _ = client(fed, k)
    return float(np.mean(np.log1p(np.exp(x @ w)) - y * (x @ w)))


def disparity(w: np.ndarray, fed: Federation, k: int) -> float:
    """|d_k| on the rows with y = 1; nan where a group has none."""
    x, y, s = client(fed, k)
    cells = [(s == g) & (y == 1) for g in (0, 1)]
    if not all(c.any() for c in cells):
        return np.nan
    return float(abs(np.subtract(*(sigmoid(10 * x[c] @ w).mean() for c in cells))))


def slope(function: Any, w: np.ndarray, *rest: Any) -> np.ndarray:
    eye = 1e-6 * np.eye(len(w))
    return np.array([(function(w + e, *rest) - function(w - e, *rest)) / 2e-6 for e in eye])


def simulation(method: FCFL, fed: Federation, rounds: int, **changes: Any) -> Simulation:
    model, initial = changes.pop("model", MODEL), changes.pop("initial_parameters", None)
    settings = ef.RunSettings(**({"rounds": rounds, "eval_every": rounds, "seeds": [0]} | changes))
    return Simulation(make_job(method, fed, model, settings, initial_parameters=initial))


def corners(values: np.ndarray, limits: np.ndarray | None, steps: int = 60) -> float:
    """The best value of values.a over a fine grid of the simplex where limits a >= 0; -inf where none is allowed."""
    size = len(values)
    grid = np.stack(np.meshgrid(*[np.linspace(0, 1, steps + 1)] * (size - 1), indexing="ij"), -1).reshape(-1, size - 1)
    grid = grid[grid.sum(1) <= 1 + 1e-12]
    points = np.c_[grid, 1 - grid.sum(1)]
    allowed = np.ones(len(points), bool) if limits is None else (points @ limits.T >= -1e-12).all(1)
    return float((points @ values)[allowed].max(initial=-np.inf))


@pytest.mark.parametrize("scale", [1.0, 1e-5])
@pytest.mark.parametrize("seed", range(6))
def test_both_programmes_against_a_grid(seed: int, scale: float) -> None:
    """Also with gradients so small that their products are below a solver's tolerance."""
    rng = np.random.default_rng(seed)
    g_l, g_g = rng.normal(size=(2, 4))
    G = np.stack([g_l, g_g])
    for violated in (False, True):
        got = first_direction(scale * g_l, scale * g_g, violated) / scale
        aim = g_g if violated else g_l
        best = corners(G @ aim, (G @ G.T)[:1] if violated else None, 4000)
        assert got @ aim == pytest.approx(best, abs=2e-3 * np.abs(G @ G.T).max())
        if violated:
            assert got @ g_l >= -1e-6
    of_loss = rng.normal(size=(3, 4)) + 0.5
    found = second_direction(scale * of_loss, scale * g_g)
    assert found is not None
    G = np.r_[of_loss, g_g[None]]
    assert (G @ found / scale).min() >= -1e-6
    best = corners(G @ of_loss.mean(0), G @ G.T)
    assert found @ of_loss.mean(0) / scale >= best - 1e-6


def test_an_infeasible_programme_has_no_solution() -> None:
    assert fcfl._mixture(np.ones(2), np.array([[-1.0, -1.0]])) is None


def test_rounds_against_numpy(uneven: Federation) -> None:
    """Stage 1 with every client, gradients by finite differences, until delta has shrunk."""
    run = simulation(FCFL(epsilon=0.05, step_size=0.3, first_stage=1.0, smoothness=0.05), uneven, 12)
    w, delta = weights(tree.take(run.engine.start().server.theta, 0)), np.full(2, 0.05)
    some = [k for k in range(uneven.num_clients) if len(uneven.train[k])]
    shrunk = False
    for step in run.rounds():
        losses = np.array([loss(w, uneven, k) for k in some])
        gaps = np.array([disparity(w, uneven, k) for k in some])
        known = ~np.isnan(gaps)
        a_l = np.exp((losses - losses.max()) / delta[0])
        a_g = np.where(known, np.exp((np.where(known, gaps, -np.inf) - np.nanmax(gaps)) / delta[1]), 0)
        g_l = a_l / a_l.sum() @ np.array([slope(loss, w, uneven, k) for k in some])
        slopes = [slope(disparity, w, uneven, k) if ok else np.zeros(5) for k, ok in zip(some, known, strict=True)]
        g_g = a_g / a_g.sum() @ np.array(slopes)
        # on the segment: u g_l + (1-u) g_g
        u = np.linspace(0, 1, 200_001)
        along = u[:, None] * [g_l @ g_l, g_l @ g_g] + (1 - u[:, None]) * [g_g @ g_l, g_g @ g_g]
        if np.nanmax(gaps) <= 0.05:
            best = u[along[:, 0].argmax()]
        else:
            best = u[np.where(along[:, 0] >= -1e-12, along[:, 1], -np.inf).argmax()]
        g = best * g_l + (1 - best) * g_g
        w = w - 0.3 * g
        shrunk |= bool((0.1 * np.linalg.norm(g) <= delta).any())
        delta = np.where(0.1 * np.linalg.norm(g) <= delta, np.maximum(0.01 * delta, 1e-4), delta)
        server = tree.take(step.state.server, 0)
        np.testing.assert_allclose(weights(server.theta), w, rtol=2e-3, atol=2e-4)
        np.testing.assert_allclose(server.delta, delta, rtol=1e-5)
        w = weights(server.theta)  # float32, so that a maximum over clients falls the same way
    assert shrunk


def test_stage_2_lowers_every_clients_loss() -> None:
    """A small step along its direction raises no client's loss, and lowers the mean."""
    rng = np.random.default_rng(0)
    clients = []
    for _ in range(4):
        x = rng.normal(size=(80, 4))
        s = rng.integers(0, 2, 80)
        clients.append((x, (x @ [1, -1, 0.5, 0] + 0.3 * rng.normal(size=80) > 0).astype(int), s))
    fed = Federation.from_arrays(clients, test=clients[0])
    run = simulation(FCFL(epsilon=1.0, step_size=0.05, first_stage=0.0), fed, 8)
    before = np.array([loss(np.zeros(5), fed, k) for k in range(4)])
    for step in run.rounds():
        after = np.array([loss(weights(tree.take(step.state.server.theta, 0)), fed, k) for k in range(4)])
        assert (after <= before + 1e-6).all()
        assert after.mean() < before.mean()
        before = after
    assert run.result().log["fallbacks"].iloc[-1] == 0


def test_without_a_common_direction_it_takes_the_mean_gradient(
    uneven: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcfl, "second_direction", lambda of_loss, g_g: None)
    run = simulation(FCFL(step_size=0.2, first_stage=0.0), uneven, 3)
    w = np.zeros(5)
    some = [k for k in range(uneven.num_clients) if len(uneven.train[k])]
    for step in run.rounds():
        w = w - 0.2 * np.mean([slope(loss, w, uneven, k) for k in some], 0)
        np.testing.assert_allclose(weights(tree.take(step.state.server.theta, 0)), w, atol=1e-5)
    assert run.result().log["fallbacks"].tolist() == [1, 2, 3]


def test_stages_change_when_told(uneven: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """5 of 8 rounds in stage 1; stage 2 starts as smooth as stage 1 did."""
    seen: list[int] = []
    for number, name in enumerate(("first_direction", "second_direction"), 1):
        real = getattr(fcfl, name)

        def noted(*arguments: Any, number: int = number, real: Any = real) -> Any:
            seen.append(number)
            return real(*arguments)

        monkeypatch.setattr(fcfl, name, noted)
    run = simulation(FCFL(first_stage=0.6, smoothness=0.002), uneven, 8)
    deltas = [step.state.server.delta[0, 0].item() for step in run.rounds()]
    assert seen == [1] * 5 + [2] * 3
    assert min(deltas) >= 1e-4 - 1e-9


def test_a_round_without_rows_changes_nothing() -> None:
    nobody = np.zeros((0, 2)), np.zeros(0, int), np.zeros(0, int)
    someone = np.eye(2), np.array([0, 1]), np.array([0, 1])
    fed = Federation.from_arrays([nobody, someone], test=someone, ids=["a", "b"])
    start = {"0.bias": np.array([0.3]), "0.weight": np.array([[0.1, -0.2]])}
    run = simulation(FCFL(), fed, 6, clients_per_round=1, initial_parameters=start)
    for step in run.rounds():
        assert all(leaf.isfinite().all() for leaf in tree.leaves(step.state.server))


def biased(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    s = rng.integers(0, 2, n)
    x = rng.normal(size=(n, 3)) + np.c_[1.2 * s, np.zeros(n), np.zeros(n)]
    y = (x[:, 0] + x[:, 1] + 0.5 * rng.normal(size=n) > 1.0).astype(int)
    return np.c_[x[:, 1:], s[:, None]], y, s


@pytest.mark.full
def test_it_lowers_the_gap_of_the_worst_client() -> None:
    rng = np.random.default_rng(3)
    fed = Federation.from_arrays([biased(rng, 800), biased(rng, 600)], test=biased(rng, 3000))
    final = {}
    for epsilon in (0.02, 1.0):
        run = simulation(FCFL(epsilon=epsilon, step_size=0.5), fed, 200)
        for _ in run.rounds():
            pass
        final[epsilon] = run.result().final().iloc[0]
        assert any("constraint is not met" in str(note) for note in run.result().notes) == (
            run.result().log["feasible"].iloc[-1] == 0
        )
    assert run.result().log["feasible"].all()  # epsilon 1 asks for nothing
    gap = "equal_opportunity_difference"
    assert final[0.02][gap] < 0.4 * final[1.0][gap]
    assert final[0.02]["accuracy"] > 0.7


def test_a_model_with_two_outputs_has_the_same_logit() -> None:
    rng = np.random.default_rng(5)
    fed = Federation.from_arrays([biased(rng, 60)], test=biased(rng, 60))
    two = torch.nn.Linear(3, 2)
    with torch.no_grad():
        two.weight[0], two.bias[0] = 0, 0
    run = simulation(FCFL(epsilon=0.0, first_stage=1.0), fed, 1, model=two)
    task, theta = run.job.task, dict(two.named_parameters())
    x, y, s = (torch.tensor(part) for part in (fed.rows.x, fed.rows.y, fed.rows.s))
    data = ef.protocol.Data(x, y, s, torch.ones(len(y)), task)
    np.testing.assert_allclose(fcfl.logit(theta, data).detach(), (x @ two.weight[1] + two.bias[1]).detach(), rtol=1e-5)
