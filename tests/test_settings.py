"""`RunSettings`: the one place of a run's settings and their defaults."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

import equifed as ef
from equifed.cli.options import Settings
from equifed.config import job_of, load_federations, parse_config
from equifed.federation import Federation
from equifed.settings import RunOptions, RunSettings
from equifed.simulator import make_job
from equifed.store.results import load_result, save_result

FIELDS = [field.name for field in dataclasses.fields(RunSettings)]


@pytest.mark.parametrize("function", [ef.simulate, ef.compare, ef.sweep, ef.seek])
def test_simulate_and_sweep_take_every_setting_by_name(function: Any) -> None:
    """The keyword arguments, their types and their defaults are the dataclass's own."""
    parameters = inspect.signature(function).parameters
    assert {name: parameters[name].default for name in FIELDS} == dict(vars(RunSettings()))
    assert get_type_hints(RunOptions) == get_type_hints(RunSettings)
    method: Any = ef.methods.FedAvg()
    given = ([], [method]) if function is ef.compare else ([], method) if function is ef.sweep else (method, [])
    more = {"over": {}} if function is ef.sweep else {}
    with pytest.raises(TypeError, match="'round'"):
        function(*given, model=None, round=3, **more)


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
    assert other.settings.rounds == 1
    assert other.settings.dropout == 0.1


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
        ({"secure": "yes"}, "secure must be true or false, got 'yes'"),
        ({"secure": 1}, "secure must be true or false"),
        ({"secure": True, "dropout_late": 1.0}, "dropout_late .* below 1"),
        ({"secure": True, "dropout_late": -0.1}, "dropout_late"),
        ({"dropout_late": 0.1}, "dropout_late .* set secure = true too"),
        ({"seeds": 0}, "seeds.* at least 1"),
        ({"seeds": []}, "at least one seed"),
        ({"seeds": [1, 1]}, "seeds must differ"),
        ({"seeds": [-1]}, "seed"),
        ({"seeds": "many"}, "seeds must be a list"),
        ({"engine": "lane"}, "Did you mean 'lanes'"),
        ({"device": 0}, "device"),
        ({"kernel": "yes"}, "kernel"),
        ({"threads": 0}, "threads"),
        ({"local": None}, "local must be equifed.Local"),
    ],
)
def test_wrong_settings_are_refused_by_name(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ef.ConfigError, match=words):
        RunSettings(**wrong)


DATA = ("compas", "german", "communities")


@pytest.mark.parametrize("name", DATA)
def test_python_files_and_command_line_have_the_same_defaults(name: str, needs: Callable[[str], Path]) -> None:
    """The same partition, clients per round and local training, whoever leaves them out."""
    needs(name)
    method = ef.methods.FedAvg()
    config = parse_config({"data": {"name": name}, "method": {"name": "fedavg"}})
    (said,) = load_federations(dataclasses.replace(config, run=dataclasses.replace(config.run, seeds=1)))
    fed = ef.load(name)
    assert fed.ids == said.ids
    for k in range(fed.num_clients):
        np.testing.assert_array_equal(fed.train[k], said.train[k])
    model = config.model
    job = make_job(method, fed, model, RunSettings())
    assert dataclasses.replace(job.settings, seeds=5) == job_of(config, ef.load(name, seeds=range(5))).settings
    typed = parse_config({"data": {"name": name}, "method": {"name": "fedavg"}}, Settings().overrides("fedavg"))
    assert typed.run == config.run
    assert typed.partition == config.partition
    assert job.settings.local == ef.Local(learning_rate=0.005 if name == "communities" else 0.1)


def test_the_presets_number_of_clients_is_taken_unless_another_is_given(needs: Callable[[str], Path]) -> None:
    needs("compas")
    fed = ef.load("compas", preset="fair-fate")
    counts = {given: _clients(fed, given) for given in (None, "all", 7)}
    assert counts == {None: 3, "all": 10, 7: 7}
    few = ef.load("compas", preset="fair-fate", partition=ef.partition.IID(2))
    assert _clients(few, None) == 2
    with pytest.raises(ef.ConfigError, match="at most 2, got 3"):
        _clients(few, 3)


def _clients(fed: Federation, given: Any) -> Any:
    settings = RunSettings(clients_per_round=given)
    return make_job(ef.methods.FedAvg(), fed, ef.models.Logistic(), settings).settings.clients_per_round


def test_settings_survive_a_folder(uneven: Federation, tmp_path: Path) -> None:
    settings = RunSettings(rounds=1, seeds=[3, 4], clip=0.5, dropout=0.25, local=ef.Local(batch_size=None))
    result = ef.simulate(ef.methods.FedAvg(), uneven, model=ef.models.Logistic(), settings=settings)
    save_result(tmp_path, result)
    again = load_result(tmp_path)
    assert again.settings == result.settings
    assert again.settings.local == ef.Local(batch_size=None, learning_rate=0.1)
    assert RunSettings.from_dict(RunSettings().to_dict()) == RunSettings()


def test_a_yes_or_no_is_a_flag_of_the_command_line() -> None:
    given = {"data": {"name": "compas"}, "method": {"name": "fedavg"}}
    typed = parse_config(given, Settings(secure=True, dropout_late="0.1").overrides("fedavg")).run
    written = parse_config({**given, "run": {"secure": True, "dropout-late": 0.1}}).run
    assert typed == written
    assert (typed.secure, typed.dropout_late) == (True, 0.1)
    with pytest.raises(ef.ConfigError, match=r"run.secure: must be true or false"):
        parse_config({**given, "run": {"secure": "yes"}})
