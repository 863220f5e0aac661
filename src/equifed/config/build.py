"""From a checked configuration to its federations and its simulation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from equifed.config.sections import IN_SCHEMA, Config, kebab
from equifed.errors import EquifedError, blaming
from equifed.federation import Federation, load
from equifed.federation.reading import read_table
from equifed.federation.tables import given_schema, na_values_of
from equifed.simulation import Simulation
from equifed.simulator import make_job

if TYPE_CHECKING:
    from equifed.simulator import Job


def load_federations(config: Config) -> list[Federation]:
    """One federation per seed: its own split and partition, the rows held once."""
    data, seeds = config.data, config.run.seed_list
    with _placing(config), blaming(section="data"):
        if data.name is not None:
            feds: list[Federation] = load(
                data.name,
                preset=data.preset,
                sensitive=data.sensitive,
                min_group=data.min_group or 0,
                partition=config.partition,
                validation=data.validation,
                client_test=data.client_test,
                rows=data.rows,
                seeds=seeds,
            )
            return feds
        made = _own(config)
    first = made[0]
    same = all(np.array_equal(fed.rows.x, first.rows.x) for fed in made)
    return [dataclasses.replace(fed, rows=first.rows) for fed in made] if same else made


def _own(config: Config) -> list[Federation]:
    """Of the configuration's own files."""
    data = config.data
    options: dict[str, Any] = {
        key: value
        for key in ("label", "sensitive", "positive", *IN_SCHEMA)
        if (value := getattr(data, key)) is not None
    }
    options |= {
        "min_group": data.min_group or 0,
        "meaning": data.meaning,
        "schema": None if data.schema_ is None else config.folder / data.schema_,
        "test": data.test,
        "validation": data.validation or 0.0,
        "name": data.title,
    }
    if data.table is not None:
        options["schema"] = schema = given_schema(options["schema"])
        with blaming(key="table"):
            frame = read_table(config.folder / data.table, na_values_of(schema, options))
        assert config.partition is not None
        return [
            Federation.from_frame(frame, partition=config.partition, seed=seed, **options)
            for seed in config.run.seed_list
        ]
    if data.mapped is not None:
        return _mapped(config, {key: value for key, value in options.items() if key != "min_group"})
    return [
        Federation.from_files(
            config.paths(),
            validation_file=None if data.validation_file is None else config.folder / data.validation_file,
            client_groups=data.client_groups,
            seed=seed,
            **options,
        )
        for seed in config.run.seed_list
    ]


def _mapped(config: Config, options: dict[str, Any]) -> list[Federation]:
    """Of files that may be larger than memory; where no rows are held back, one federation serves all seeds."""
    data, seeds = config.data, config.run.seed_list
    assert data.mapped is not None
    assert data.client is not None
    named = {"cache": data.cache, "test_file": data.test_file, "validation_file": data.validation_file}
    options |= {key: config.folder / file for key, file in named.items() if file is not None}
    with blaming(key="mapped"):
        drawn = seeds if data.test or data.validation else seeds[:1]
        made = [
            Federation.from_mapped(config.folder / data.mapped, client=data.client, seed=s, **options) for s in drawn
        ]
    return made if len(made) == len(seeds) else [dataclasses.replace(made[0], seed=seed) for seed in seeds]


def build(config: Config, federations: Sequence[Federation] | None = None) -> Simulation:
    """The simulation that a configuration describes; `federations` where they are loaded already."""
    feds = load_federations(config) if federations is None else federations
    return Simulation(job_of(config, feds))


def job_of(config: Config, federations: Sequence[Federation], one_place: bool = False) -> Job:
    """What `build` will compute, checked, without the work of setting it up. one_place: see `make_job`."""
    with _placing(config):
        return make_job(
            config.method, list(federations), config.model, config.run, over=config.sweep, one_place=one_place
        )


@contextmanager
def _placing(config: Config) -> Iterator[None]:
    """Errors raised inside get the configuration's name, and the key at fault as it is written there."""
    try:
        yield
    except EquifedError as error:
        error.source = config.source
        error.section = error.section or ("run" if error.key else "")
        error.key = kebab(error.key)
        raise
