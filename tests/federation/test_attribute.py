"""The sensitive attribute as numbers: from groups, several columns, and continuous columns, up to a method's data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import equifed as ef
from equifed.data import Schema, Sensitive
from equifed.protocol import Data, Task
from equifed.simulation import Simulation
from equifed.simulator import make_job


def table(n: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.normal(40, 12, n).round(1)
    return pd.DataFrame(
        {
            "x": rng.normal(size=n),
            "age": age,
            "race": rng.choice(["a", "b", "c"], n),
            "sex": rng.choice(["f", "m"], n),
            "y": (rng.normal(size=n) + (age > 40) > 0.3).astype(int),
        }
    )


AGE = Sensitive(column="age", threshold=40, below="young", at_least="old", continuous=True)


def test_groups_as_numbers() -> None:
    def data(s: list[int], groups: int) -> torch.Tensor:
        task = Task(nn.Linear(1, 1), "classification", 2, groups, 1, 1, ef.Local())
        return Data(torch.zeros(len(s), 1), torch.zeros(len(s)), torch.tensor(s), torch.ones(len(s)), task).sensitive

    assert data([0, 1, 1], 2).tolist() == [[0], [1], [1]]
    assert data([0, 2, 1], 3).tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_a_continuous_column_is_standardised_and_still_grouped() -> None:
    frame = table()
    fed = ef.Federation.from_tables(
        frame,
        ef.Columns(label="y", sensitive=AGE, features=["x"], min_count=0),
        holdout=ef.Holdout(validation=0.2),
        partition=ef.partition.IID(3),
        seed=0,
    )
    assert set(fed.groups) == {"young", "old"}
    age = frame["age"].to_numpy()
    assert fed.rows.attribute is not None
    np.testing.assert_allclose(fed.rows.attribute[:, 0], (age - age.mean()) / age.std(), rtol=1e-5)
    assert (fed.rows.s == (age >= 40)).all() or (fed.rows.s == (age < 40)).all()


def test_several_columns_are_coded_one_by_one() -> None:
    frame = table(600)
    fed = ef.Federation.from_tables(
        frame,
        ef.Columns(label="y", sensitive=["sex", "race", AGE], features=["x"]),
        holdout=ef.Holdout(validation=0.2),
        partition=ef.partition.IID(3),
        seed=0,
    )
    clipped = frame["age"].clip(*np.sort(frame["age"])[[9, -10]])  # no single value makes the mean of a schema
    age = (frame["age"] - clipped.mean()) / clipped.std(ddof=0)
    expected = np.column_stack([frame["sex"] == "m", *(frame["race"] == r for r in "abc"), age])
    assert fed.sensitive_size == 5
    np.testing.assert_allclose(fed.rows.attribute, expected.astype(float), rtol=1e-3, atol=1e-3)  # type: ignore[arg-type]
    assert len(fed.groups) > 6  # the report's groups are the intersections


@pytest.mark.parametrize("engine", ["lanes", "reference"])
def test_methods_see_the_numbers(engine: str) -> None:
    """KFFL's statistics come from the attribute, in both engines and for federations with rows of their own."""
    rng = np.random.default_rng(1)

    def rows(n: int) -> tuple[np.ndarray, ...]:
        a = rng.normal(size=n)
        x = rng.normal(size=(n, 2)) + a[:, None]
        return x, (x[:, 0] + rng.normal(size=n) > 0).astype(int), (a > 0).astype(int), a

    feds = [ef.Federation.from_arrays([rows(30), rows(12)], test=rows(20)) for _ in range(2)]
    method = ef.methods.KFFL(50.0, features=4)
    job = make_job(method, feds, ef.models.Logistic(), ef.RunSettings(rounds=1, seeds=2, engine=engine))
    simulation = Simulation(job)
    state = next(iter(simulation.rounds())).state
    from equifed import randomness

    for run, fed in enumerate(feds):
        draw = randomness.make_draws(run, 1, method.round[0].draws, job.task)["phi_s"].astype(float)
        a = fed.rows.attribute[np.r_[fed.train[0], fed.train[1]]].astype(float)  # type: ignore[index]
        expected = np.sqrt(2 / 4) * np.cos(a @ draw[:-1] + draw[-1])
        np.testing.assert_allclose(state.server.mu_s[run], expected.mean(0), rtol=1e-4, atol=1e-5)


def test_a_shared_schema_carries_mean_and_deviation(tmp_path: Path) -> None:
    frame = table()
    schema = Schema.infer(frame, ef.Columns(label="y", sensitive=AGE, features=["x"]))
    again = Schema.from_json(schema.to_json())
    np.testing.assert_allclose(again.encode(frame[:7]).attribute, schema.encode(frame).attribute[:7])  # type: ignore[index,arg-type]
    for part, rows in (("a", frame[:30]), ("b", frame[30:])):
        rows.to_csv(tmp_path / f"{part}.csv", index=False)
    fed = ef.Federation.from_tables([tmp_path / "a.csv", tmp_path / "b.csv"], schema)
    np.testing.assert_allclose(fed.rows.attribute, schema.encode(frame).attribute, rtol=1e-6)  # type: ignore[arg-type]
    broken = schema.to_json().replace('"deviation"', '"threshold"')
    with pytest.raises(ef.ConfigError, match="needs its mean and deviation"):
        Schema.from_json(broken)


def test_clear_errors() -> None:
    x, y, s = np.zeros((4, 1)), np.array([0, 1, 0, 1]), np.array([0, 1, 0, 1])
    with pytest.raises(ef.DataError, match=r"Some parts are \(x, y, s, a\) and test is"):
        ef.Federation.from_arrays([(x, y, s, s)], test=(x, y, s))
    with pytest.raises(ef.DataError, match=r"must be numbers \[4\] or \[4, d\]"):
        ef.Federation.from_arrays([(x, y, s, ["a"] * 4)])
    with pytest.raises(ef.DataError, match="missing or infinite"):
        ef.Federation.from_arrays([(x, y, s, [0, 1, np.nan, 1])])
    with pytest.raises(ef.DataError, match="same number of columns"):
        ef.Federation.from_arrays([(x, y, s, s)], test=(x, y, s, np.zeros((4, 2))))
    with pytest.raises(ValueError, match="needs a threshold"):
        Sensitive(column="age", continuous=True)
