"""Step sizes by round: closed forms, and the rounds that are trained with them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import equifed as ef
from equifed.errors import ConfigError
from equifed.federation import Federation
from equifed.methods import qffl
from equifed.settings import RunSettings
from equifed.simulation import Simulation
from equifed.simulator import make_job
from simulator.test_fedavg import as_vector, held, step

ROUNDS = 6
SCHEDULES: list[tuple[dict[str, Any], list[float]]] = [
    ({}, [1, 1, 1, 1, 1, 1]),
    ({"learning_rate_decay": 0.5}, [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32]),
    ({"schedule": "step", "schedule_rounds": 2, "learning_rate_decay": 0.1}, [1, 1, 0.1, 0.1, 0.01, 0.01]),
    ({"schedule": "cosine"}, [1, 0.5 + math.sqrt(3) / 4, 0.75, 0.5, 0.25, 0.5 - math.sqrt(3) / 4]),
    ({"warm_up": 3}, [1 / 4, 1 / 2, 3 / 4, 1, 1, 1]),
    ({"warm_up": 1, "learning_rate_decay": 0.5}, [1 / 2, 1, 1 / 2, 1 / 4, 1 / 8, 1 / 16]),
    ({"warm_up": 2, "schedule": "cosine"}, [1 / 3, 2 / 3, 1, 0.5 + math.sqrt(2) / 4, 0.5, 0.5 - math.sqrt(2) / 4]),
    (
        {"warm_up": 1, "schedule": "step", "schedule_rounds": 3, "learning_rate_decay": 2.0},
        [1 / 2, 1, 1, 1, 2, 2],
    ),
]


@pytest.mark.parametrize(("given", "expected"), SCHEDULES)
def test_closed_forms(given: dict[str, Any], expected: list[float]) -> None:
    local = ef.Local(learning_rate=0.4, **given)
    rates = [local.rate(number, ROUNDS) for number in range(1, ROUNDS + 1)]
    np.testing.assert_allclose(rates, 0.4 * np.array(expected), rtol=1e-12)
    assert local.least_rate(ROUNDS) == min(rates)
    assert local.largest_rate(ROUNDS) == max(rates)


@pytest.mark.parametrize("rounds", [1, 2, 7, 1000, 100_000])
def test_a_rate_is_never_0(rounds: int) -> None:
    last = ef.Local(learning_rate=0.1, schedule="cosine").rate(rounds, rounds)
    assert last == pytest.approx(0.1 * math.sin(math.pi / 2 / rounds) ** 2, rel=1e-6)
    decayed = ef.Local(learning_rate=0.1, learning_rate_decay=1e-3).rate(rounds, rounds)
    assert np.float32(decayed) > 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"schedule": "linear"}, "constant, cosine, step"),
        ({"schedule": "step"}, "needs a learning rate decay other than 1 and the schedule rounds between decays"),
        ({"schedule": "step", "schedule_rounds": 5}, "needs a learning rate decay"),
        ({"schedule_rounds": 5}, "applies to schedule 'step' only, and the schedule is 'constant'"),
        ({"schedule": "step", "schedule_rounds": 0, "learning_rate_decay": 0.5}, "schedule_rounds.*at least 1"),
        ({"schedule": "cosine", "learning_rate_decay": 0.9}, "'cosine' decays by itself"),
        ({"warm_up": -1}, "warm_up.*at least 0"),
    ],
)
def test_settings_that_do_not_go_together(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ef.Local(**given)


def test_a_warm_up_is_shorter_than_the_run() -> None:
    with pytest.raises(ConfigError, match="warm_up must be below the rounds of the run, 5"):
        RunSettings(rounds=5, local=ef.Local(warm_up=5))


@pytest.mark.parametrize("kernel", ["auto", "traced", "clients", None])
@pytest.mark.parametrize(("given", "expected"), [SCHEDULES[2], SCHEDULES[6]])
def test_rounds_against_numpy(
    given: dict[str, Any], expected: list[float], kernel: str | None, uneven: Federation
) -> None:
    how: dict[str, Any] = {"engine": "reference"} if kernel is None else {"kernel": kernel}
    local = ef.Local(epochs=2, batch_size=None, learning_rate=0.5, **given)
    result = ef.simulate(
        ef.methods.FedAvg(), uneven, model=ef.models.Logistic(), rounds=ROUNDS, local=local, seeds=[3], **how
    )
    w = np.zeros(5)
    for factor in expected:
        models, sizes = [], []
        for k in range(uneven.num_clients):
            x, y = held(uneven, k)
            own = w
            for _ in range(2):
                own = step(own, x, y, 0.5 * factor) if len(y) else own
            models.append(own)
            sizes.append(len(y))
        w = np.average(models, axis=0, weights=sizes)
    np.testing.assert_allclose(as_vector(result.parameters[3]), w, rtol=1e-5, atol=1e-6)


def test_a_resumed_run_has_the_same_bits(uneven: Federation) -> None:
    local = ef.Local(warm_up=2, schedule="cosine")
    job = make_job(ef.methods.FedAvg(), uneven, ef.models.Logistic(), RunSettings(rounds=5, local=local, seeds=2))
    whole = list(Simulation(job).rounds())[-1].state
    half = next(each for each in Simulation(job).rounds() if each.round == 3)
    rest = list(Simulation(job).rounds((3, half.state)))[-1].state
    for name, value in whole.server.theta.items():
        np.testing.assert_array_equal(value.numpy(), rest.server.theta[name].numpy())


def test_q_ffl_bounds_the_steepest_round(uneven: Federation) -> None:
    """With a warm-up the smallest step size is neither the first of the decay nor the last."""
    local = ef.Local(learning_rate=0.5, warm_up=4, learning_rate_decay=1.5)
    job = make_job(ef.methods.QFFL(), uneven, ef.models.Logistic(), RunSettings(rounds=8, local=local))
    assert qffl.steepness(job.task) == pytest.approx(5 / 0.5)
    result = ef.simulate(ef.methods.QFFL(), uneven, model=ef.models.Logistic(), rounds=8, local=local)
    assert not len(result.rejections)
