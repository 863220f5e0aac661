"""`RunSettings`: the one place of a run's settings and their defaults."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, get_type_hints

import numpy as np
import pytest

import equifed as ef
from equifed.federation import Federation
from equifed.settings import RunOptions, RunSettings
from equifed.simulator import make_job

FIELDS = [field.name for field in dataclasses.fields(RunSettings)]


@pytest.mark.parametrize("function", [ef.simulate, ef.sweep])
def test_simulate_and_sweep_take_every_setting_by_name(function: Any) -> None:
    """The keyword arguments, their types and their defaults are the dataclass's own."""
    parameters = inspect.signature(function).parameters
    assert {name: parameters[name].default for name in FIELDS} == dict(vars(RunSettings()))
    assert get_type_hints(RunOptions) == get_type_hints(RunSettings)
    with pytest.raises(TypeError, match="round"):
        function(ef.methods.FedAvg(), [], model=None, over={}, round=3)


def test_one_value_or_field_by_field(uneven: Federation) -> None:
    settings = RunSettings(rounds=3, clients_per_round=4, dropout=0.1, seeds=2, eval_every=2)
    method, model = ef.methods.FedAvg(), ef.models.Logistic()
    whole = ef.simulate(method, uneven, model=model, settings=settings)
    named = {name: getattr(settings, name) for name in FIELDS}
    parts = ef.simulate(method, uneven, model=model, **named)  # type: ignore[arg-type]
    for seed in (0, 1):
        for name, value in whole.parameters[seed].items():
            np.testing.assert_array_equal(value, parts.parameters[seed][name])
    # what is given by name wins over the value
    other = ef.simulate(method, uneven, model=model, settings=settings, rounds=1)
    assert other.info["rounds"] == 1
    assert other.info["dropout"] == 0.1


def test_a_job_says_what_was_used(uneven: Federation) -> None:
    seeded = dataclasses.replace(uneven, seed=7)
    job = make_job(ef.methods.FedAvg(), seeded, ef.models.Logistic(), RunSettings(device="cpu"))
    local = ef.Local(learning_rate=0.1)
    assert job.settings == RunSettings(seeds=[7], clients_per_round=uneven.num_clients, device="cpu", local=local)


def test_seeds_as_a_list_or_a_number() -> None:
    assert RunSettings(seeds=3) == RunSettings(seeds=range(3)) == RunSettings(seeds=np.arange(3).tolist())
    assert RunSettings(seeds=3).seed_list == [0, 1, 2]
    assert RunSettings().seed_list == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"rounds": 0}, "rounds must be a whole number of at least 1, got 0"),
        ({"rounds": 2.5}, "rounds must be a whole number"),
        ({"eval_every": 0}, "eval_every must be a whole number of at least 1"),
        ({"clients_per_round": 0}, "clients_per_round .* at least 1"),
        ({"clients_per_round": "some"}, "clients_per_round"),
        ({"dropout": -0.1}, "dropout"),
        ({"dropout": 1}, "dropout .* below 1"),
        ({"seeds": 0}, "seeds.* at least 1"),
        ({"seeds": []}, "at least one seed"),
        ({"seeds": [1, 1]}, "seeds must differ"),
        ({"seeds": [-1]}, "seed"),
        ({"seeds": "many"}, "seeds must be a list"),
        ({"engine": "lane"}, "Did you mean 'lanes'"),
        ({"device": 0}, "device"),
        ({"compile": "yes"}, "compile"),
        ({"local": None}, "local must be equifed.Local"),
    ],
)
def test_wrong_settings_are_refused_by_name(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ef.ConfigError, match=words):
        RunSettings(**wrong)
