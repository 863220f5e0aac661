"""Numbers that cannot be: every numeric key of a configuration refuses them by its name, or computes with them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from store.silos import config, write_silos

import equifed as ef
from equifed import methods, models, partition
from equifed.config import build, parse_config
from equifed.config.sections import DataSection, FlowerSection, RunSection
from equifed.errors import MAX_FLOAT32, ConfigError, EquifedError
from equifed.methods import WRAPPERS, make, options
from equifed.options import options_of
from equifed.settings import Cluster, Local, SeekSettings

NEVER = (math.nan, math.inf, -math.inf, 1e308, -1e308)
"""No key takes one of these."""
MAY_BE_INFINITE = ("clip", "max-update")
"""Limits, of which infinity is none."""
ODD = (*NEVER, 1e-320, 10**30, 10**400, 1e30, -1, -1.0, 2**63, 4_000_000_000, 0)
NAMES = [*methods.REGISTRY, *(f"fedavg{suffix}" for suffix in WRAPPERS)]


def kinds(hint: Any) -> set[Any]:
    """The types in a hint, without those of choices."""
    if get_origin(hint) is Literal:
        return set()
    return {get_origin(hint) or hint}.union(*map(kinds, get_args(hint)))


def is_numeric(hint: Any) -> bool:
    return bool(kinds(hint) & {int, float})


def numeric_options(name: str) -> list[str]:
    return [key for key, option in options(make(name)).items() if option.choices is None and is_numeric(option.type)]


def written(name: str, key: str, value: Any) -> dict[str, Any]:
    """[method] with one value, as TOML has it."""
    listed = tuple in kinds(options(make(name))[key].type)
    return {"name": name, key.replace("_", "-"): [value] if listed else value}


def attempt(make: Callable[[], Any]) -> tuple[Any, EquifedError | None]:
    """What it gives, or the error that a user sees; any other is one of the program."""
    try:
        return make(), None
    except EquifedError as error:
        return None, error


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sample(15)
def test_every_hyper_parameter_refuses_what_is_no_number_by_its_key(name: str) -> None:
    for key in numeric_options(name):
        for value in ODD:
            raw = config(method=written(name, key, value))
            made, error = attempt(lambda raw=raw: parse_config(raw))
            if error is not None:
                assert error.where.startswith(f"method.{key.replace('_', '-')}"), (key, value, str(error))
                continue
            assert value not in NEVER, (key, value)
            taken = made.method.hyper[key]
            for number in taken if isinstance(taken, tuple) else (taken,):
                assert abs(number) <= (2**53 if isinstance(number, int) else MAX_FLOAT32), (key, value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sample(15)
def test_every_hyper_parameter_given_in_python_is_checked_when_a_job_is_made(name: str, tiny_federation: Any) -> None:
    for key in numeric_options(name):
        for value in NEVER:
            with suppress(AttributeError, TypeError):  # a field of another part of a composed method
                method = make(name).with_hyper(**{key: value})
                with pytest.raises(ConfigError) as caught:
                    ef.simulate(method, tiny_federation, model=ef.models.Logistic(), rounds=1, seeds=1)
                assert caught.value.key in (key, ""), (key, value, str(caught.value))


@pytest.fixture(scope="module")
def tiny_federation() -> ef.Federation:
    rng = np.random.default_rng(0)

    def rows(count: int) -> tuple[Any, Any, Any]:
        x, s = rng.normal(size=(count, 3)).astype(np.float32), rng.integers(0, 2, count)
        return x, (x[:, 0] + 0.5 * s > 0).astype(int), s

    return ef.Federation.from_arrays(clients=[rows(12) for _ in range(4)], validation=rows(20), test=rows(20))


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_what_a_hyper_parameter_takes_is_computed_with(name: str, tiny_federation: ef.Federation) -> None:
    for key in numeric_options(name):
        for value in ODD:
            with suppress(EquifedError), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                method = make(name, **{key: value})
                ef.simulate(method, tiny_federation, model=ef.models.Logistic(), rounds=1, seeds=1, engine="reference")


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        *(("term", "t", value) for value in (math.nan, math.inf, -math.inf)),
        *(("fed-fairgrad", "floor", value) for value in (math.nan, math.inf)),
        ("q-ffl", "q", 1e30),
        *((name, "features", value) for name in ("kffl", "kffl-td", "local-kernel") for value in (10**30, 4 * 10**9)),
        ("agnostic-fair", "references", 10**30),
        *((name, "min-clients", 10**30) for name in ("fair-fate", "ifca", "e2fl")),
        ("fedfair", "groups", [10**30]),
        ("e2fl", "num-groups", 10**30),
    ],
)
def test_a_hyper_parameter_is_refused_by_its_key(name: str, key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(config(method={"name": name, key: value}))
    assert caught.value.where.startswith(f"method.{key}")
    assert "must be" in str(caught.value)


def test_a_swept_value_is_checked_as_a_set_one() -> None:
    for name, key, value in (("q-ffl", "q", 1e30), ("kffl", "features", 4e9), ("term", "t", math.nan)):
        with pytest.raises(ConfigError) as caught:
            parse_config(config(method={"name": name}, sweep={key: [1, value]}))
        assert caught.value.where == f"sweep.{key}"


def test_the_outputs_of_a_network_for_images_are_a_number() -> None:
    for value in (0, -1, 10**30, 2.5, math.nan):
        with pytest.raises(ConfigError, match="classes must be a whole number"):
            models.LeNet(classes=value)


def sections() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Section, key, and what else a configuration needs for it."""
    sought = {"method": {"name": "kffl"}, "run": {"target": ["demographic_parity_difference <= 0.5"]}}
    for section, owner in (("run", RunSection), ("local", Local), ("cluster", Cluster), ("seek", SeekSettings)):
        for option in options_of(owner):
            if is_numeric(option.type):
                yield section, option.key.replace("_", "-"), sought if section == "seek" else {}
    for section, kind in (("data", DataSection), ("flower", FlowerSection)):
        for name, field in kind.model_fields.items():
            if is_numeric(field.annotation):
                yield section, name.replace("_", "-"), {}
    needed = {"num-partitions": 4, "alpha": 0.5, "size": 4, "column": "sex"}
    table = {"data": {"files": None, "table": "silo-0.csv"}}
    for name, kind in partition.REGISTRY._builtin.items():
        known = {option.key.replace("_", "-") for option in options_of(kind)}
        for option in options_of(kind):
            if is_numeric(option.type):
                given = {"kind": name} | {key: value for key, value in needed.items() if key in known}
                yield "partition", option.key.replace("_", "-"), {**table, "partition": given}
    for name, kind in models.REGISTRY._builtin.items():
        for option in options_of(kind):
            if is_numeric(option.type) and name != "lenet":  # which takes images
                yield "model", option.key.replace("_", "-"), {"model": {"kind": name}}


SECTIONS = list(sections())


@pytest.mark.parametrize(
    ("section", "key", "more"), SECTIONS, ids=[f"{s}-{k}-{i}" for i, (s, k, _) in enumerate(SECTIONS)]
)
@pytest.mark.sample(20)
def test_every_numeric_key_refuses_what_cannot_be_by_its_name(
    section: str, key: str, more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers that are refused later, by what the data are, name the key as well."""
    monkeypatch.chdir(tmp_path)
    write_silos(tmp_path)
    for value in ODD:
        given = {name: dict(values) for name, values in more.items()}
        given.setdefault(section, {})[key] = [value] if (section, key) == ("model", "hidden") else value
        given["run"] = {"rounds": 1, "seeds": [0], "clients-per-round": "all"} | given.get("run", {})
        raw = config(**given)
        raw["data"] = {name: values for name, values in raw["data"].items() if values is not None}
        made, error = attempt(lambda raw=raw: parse_config(raw, folder=tmp_path))
        if error is None and section in ("data", "partition", "model"):
            _, error = attempt(lambda made=made: build(made))
        if error is not None:
            uneven = "only one class" in str(error)  # of a partition that is as uneven as can be
            assert uneven or key in str(error) or key.replace("-", "_") in str(error), (value, str(error))
            continue
        assert value not in NEVER or (key in MAY_BE_INFINITE and value == math.inf), value
