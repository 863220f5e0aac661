"""Which results are of one thing, but for their seeds."""

from __future__ import annotations

import numpy as np
import pytest

import equifed as ef
from equifed.results import collect
from equifed.results.merge import gathered


def result(clients: int, seed: int) -> ef.Result:
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(20, 2)), rng.integers(0, 2, 20), rng.integers(0, 2, 20)) for _ in range(clients + 1)]
    fed = ef.Federation.from_arrays(parts[1:], test=parts[0])
    settings = {"rounds": 1, "clients_per_round": 2, "seeds": [seed]}
    return ef.simulate(ef.methods.FedAvg(), fed, model=ef.models.Logistic(), **settings)


def test_other_clients_are_no_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of federations that are too large for a list of their clients."""
    for listed in (10_000, 1):
        monkeypatch.setattr(collect, "LISTED", listed)
        first, second, other = result(3, seed=0), result(3, seed=1), result(4, seed=2)
        assert [len(each.info["clients"]) for each in (first, other)] == ([3, 4] if listed > 1 else [0, 0])
        assert [each.settings.seed_list for each in gathered([first, second, other])] == [[0, 1], [2]]
