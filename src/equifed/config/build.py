"""From a checked configuration to its federations and its simulation."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equifed.config.read import _spoken
from equifed.config.sections import Config, fields_of, kebab
from equifed.errors import ConfigError, DataError
from equifed.federation import Federation, load
from equifed.simulator import Simulation, make_job

if TYPE_CHECKING:
    from equifed.simulator.job import Job


def load_federations(config: Config) -> list[Federation]:
    """One federation per seed: its own split and partition, the rows held once."""
    try:
        return _load_federations(config)
    except UnicodeDecodeError:  # files with rows are read elsewhere
        raise DataError(f"{config.source}: data.schema: {config.data.schema_} is not a text file in UTF-8.") from None
    except (ConfigError, DataError) as error:
        raise type(error)(f"{config.source}: {_place_of(config, error)}: {error}") from error


def _load_federations(config: Config) -> list[Federation]:
    data, seeds = config.data, config.run.seed_list
    if data.name is not None:
        feds: list[Federation] = load(data.name, preset=data.preset, partition=config.partition, seeds=seeds)
        return feds
    made = [
        Federation.from_files(
            config.paths(),
            schema=None if data.schema_ is None else config.folder / data.schema_,
            label=data.label,
            sensitive=data.sensitive,
            positive=data.positive,
            test=data.test,
            validation=data.validation,
            validation_file=None if data.validation_file is None else config.folder / data.validation_file,
            client_groups=data.client_groups,
            seed=seed,
            name=data.title,
        )
        for seed in seeds
    ]
    first = made[0]
    same = all(np.array_equal(fed.rows.x, first.rows.x) for fed in made)
    return [dataclasses.replace(fed, rows=first.rows) for fed in made] if same else made


def _place_of(config: Config, error: Exception) -> str:
    """The section, and where it can be told the key, that an error of loading speaks of."""
    text = str(error)
    if isinstance(error, DataError) or config.partition is None:
        given = {kebab(key): value for key, value in config.data.model_dump().items() if value is not None}
        named = [key for key, value in given.items() if any(_quoted(each, text) for each in _parts(value))]
        return ".".join(["data", *named[:1]])
    options = fields_of(config.partition)
    named = [key for key in options if f"{key}=" in text]
    named += [key for key, value in options.items() if any(_quoted(each, text) for each in _parts(value))]
    named += _spoken(options, text)
    numbers = {key: value for key, value in options.items() if type(value) is int}
    named += [key for key, value in numbers.items() if re.search(rf"\b{value}\b", text)]
    return ".".join(["partition", *map(kebab, named[:1])])


def _parts(value: Any) -> list[Any]:
    return [*value.values()] if isinstance(value, dict) else [*value] if isinstance(value, list | tuple) else [value]


def _quoted(value: Any, text: str) -> bool:
    return (
        isinstance(value, str) and bool(value) and (repr(value) in text or ("." in value and Path(value).name in text))
    )


def build(config: Config, federations: Sequence[Federation] | None = None) -> Simulation:
    """The simulation that a configuration describes; `federations` where they are loaded already."""
    feds = load_federations(config) if federations is None else federations
    return Simulation(job_of(config, feds))


_FOR_THE_DATA = ("clients_per_round", "eval_every", "dropout", "device")
"""Keys of [run] that only the data, or the machine, can refuse."""


def job_of(config: Config, federations: Sequence[Federation], one_place: bool = False) -> Job:
    """What `build` will compute, checked, without the work of setting it up. one_place: see `make_job`."""
    try:
        return make_job(
            config.method, list(federations), config.model, config.settings, over=config.sweep, one_place=one_place
        )
    except ConfigError as error:
        key = [f"run.{kebab(name)}: " for name in _spoken(_FOR_THE_DATA, str(error))[:1]]
        raise ConfigError(f"{config.source}: {''.join(key)}{error}") from error
