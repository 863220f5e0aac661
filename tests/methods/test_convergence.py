"""Where clients differ, SCAFFOLD and FedAdam need far fewer rounds for the training loss with which FedAvg ends."""

from __future__ import annotations

import numpy as np
import pytest

import equifed as ef
from equifed import methods
from equifed.federation import Federation

ROUNDS, SEEDS = 40, 3


def skewed(seed: int) -> Federation:
    """Eight clients of 60 rows, each from a place of its own, and six of them with nearly one label only. What is
    tested on are all training rows."""
    rng = np.random.default_rng(seed)
    clients = []
    for share in (0.02, 0.02, 0.05, 0.3, 0.7, 0.95, 0.98, 0.98):
        x = rng.normal(size=(4000, 6)) + rng.normal(size=6)
        y = (x @ [1, -1, 1, -1, 1, -1] + rng.normal(size=4000) > 0).astype(int)
        positive = round(60 * share)
        rows = np.r_[np.flatnonzero(y == 1)[:positive], np.flatnonzero(y == 0)[: 60 - positive]]
        clients.append((x[rows].astype(np.float32), y[rows], np.zeros(60, int)))
    everything = tuple(np.concatenate(part) for part in zip(*clients, strict=True))
    return ef.Federation.from_arrays(clients, test=everything)


@pytest.fixture(scope="module")
def federations() -> list[Federation]:
    return [skewed(seed) for seed in range(SEEDS)]


def losses(name: str, learning_rate: float, federations: list[Federation]) -> np.ndarray:
    """After every round [seeds, rounds]."""
    result = ef.simulate(
        methods.make(name),
        federations,
        model=ef.models.Logistic(),
        rounds=ROUNDS,
        local=ef.Local(epochs=5, batch_size=20, learning_rate=learning_rate),
        seeds=range(SEEDS),
    )
    own = result.metrics[(result.metrics["scope"] == "global") & (result.metrics["metric"] == "loss")]
    found: np.ndarray = own[own["round"] > 0].pivot_table(index="seed", columns="round", values="value").to_numpy()
    return found


def test_fewer_rounds_to_the_loss_with_which_fedavg_ends(federations: list[Federation]) -> None:
    """SCAFFOLD and FedAdam with the best of 0.01, 0.03, 0.1, 0.3 and 1; FedAvg with the best for every seed."""
    goal = np.min([losses("fedavg", rate, federations)[:, -1:] for rate in (0.1, 0.3, 1.0)], axis=0)
    for name, rate, rounds in (("scaffold", 1.0, 13), ("fedavg@adam", 0.01, 22)):
        there = losses(name, rate, federations) <= goal
        assert there[:, :rounds].any(1).all(), name
        assert there[:, -1].all(), name
