"""Several runs are scored at once: each on its own rows, by its own model and scaling, as if it were alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from own_data import federation_of

import equifed as ef
from equifed.federation import Federation
from equifed.methods import FedAvg, FedProx
from equifed.simulation import Simulation
from equifed.simulator import evaluate, make_job
from equifed.simulator.evaluate import Evaluator
from equifed.simulator.tables import make_tables


@pytest.fixture(scope="module")
def feds() -> list[Federation]:
    """One table of rows; splits and scalings of their own, and test sets of different lengths."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(3, 2, 200), "b": rng.normal(size=200), "g": rng.choice(["f", "m"], 200)})
    frame["y"] = (frame["a"] + rng.normal(0, 1, 200) > 3).map({True: "yes", False: "no"})
    make = {"label": "y", "sensitive": "g", "partition": ef.partition.IID(4), "positive": "yes"}
    made = [federation_of(frame, seed=seed, **make) for seed in (1, 2, 3)]
    return [
        dataclasses.replace(fed, rows=made[0].rows, test=fed.test[: len(fed.test) - 7 * k])
        for k, fed in enumerate(made)
    ]


@pytest.mark.parametrize("together", [1, 100, 2**14])
def test_every_run_is_scored_on_its_own_rows(
    feds: list[Federation], together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "TOGETHER", together)
    job = make_job(FedProx(), feds, ef.models.MLP(hidden=(3,)), ef.RunSettings(2), over={"mu": [0.0, 1.0]})
    sizes = [len(runs) for runs in Evaluator(job, make_tables(job))._group_runs("test")]
    assert sizes == {1: [1] * 6, 100: [2, 2, 2], 2**14: [6]}[together]
    last = list(Simulation(job).rounds())[-1]
    for run, scores in enumerate(last.scores[2]):
        fed = job.runs[run].federation
        assert fed.scaling is not None
        for name, rows in (("test", fed.test), ("validation", fed.validation)):
            x = (fed.rows.x[rows] - fed.scaling[0]) * fed.scaling[1]
            one = {key: leaf[run].double().numpy() for key, leaf in last.state.server.theta.items()}
            hidden = np.maximum(x @ one["0.weight"].T + one["0.bias"], 0)
            z = (hidden @ one["2.weight"].T + one["2.bias"])[:, 0]
            y, s = fed.rows.y[rows], fed.rows.s[rows]
            counts, losses, score = np.zeros((2, 2, 2)), np.zeros((2, 2)), np.zeros(2)
            np.add.at(counts, (s, y, (z > 0).astype(int)), 1)
            np.add.at(losses, (s, y), np.log1p(np.exp(z)) - y * z)
            np.add.at(score, s, 1 / (1 + np.exp(-z)))
            found = scores[name]
            assert np.array_equal(found.counts[0], counts)
            np.testing.assert_allclose(found.loss[0], losses, rtol=1e-5)
            np.testing.assert_allclose(found.calibration[0, ..., 2].sum(-1), score, rtol=1e-5)


def test_regression_and_the_reference_engine_agree(feds: list[Federation]) -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"a": rng.normal(size=120), "g": rng.choice(["f", "m"], 120)})
    frame["y"] = 2 * frame["a"] + rng.normal(size=120)
    make = {"label": "y", "sensitive": "g", "partition": ef.partition.IID(3), "task": "regression"}
    regression = [federation_of(frame, seed=seed, **make) for seed in (1, 2)]
    for federations in (feds, regression):
        found = []
        for engine in ("lanes", "reference"):
            job = make_job(FedAvg(), federations, ef.models.Linear(), ef.RunSettings(1, engine=engine))
            found.append(next(iter(Simulation(job).rounds())).scores[1])
        for ours, theirs in zip(*found, strict=True):
            assert ours.keys() == theirs.keys()
            for name in ours:
                for value, expected in zip(ours[name], theirs[name], strict=True):
                    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)
