"""From a checked configuration to its federations and its simulation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from equifed.config.sections import Config, DataSection, kebab
from equifed.errors import EquifedError, blaming
from equifed.federation import Federation, Mapped, load
from equifed.federation.reading import read_table
from equifed.federation.tables import beside_schema, columns_given, na_values_of
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
    return [replace(fed, rows=first.rows) for fed in made] if same else made


def _own(config: Config) -> list[Federation]:
    """Of the configuration's own files. Where no mapped rows are held out, one federation serves all seeds."""
    data, seeds = config.data, config.run.seed_list
    columns = beside_schema(None if data.schema_ is None else config.folder / data.schema_, data.columns)
    tables: Any = config.paths()
    if data.table is not None:
        columns = columns_given(columns)
        with blaming(key="table"):
            tables = read_table(config.folder / data.table, na_values_of(columns))
    elif data.mapped is not None:
        assert data.client is not None
        cache = None if data.cache is None else config.folder / data.cache
        tables = Mapped(config.folder / data.mapped, data.client, cache)
        seeds = seeds if data.test or data.validation else seeds[:1]
    with _naming(data):
        made = [
            Federation.from_tables(
                tables,
                columns,
                holdout=data.holdout(config.folder),
                partition=config.partition,
                client_groups=data.client_groups,
                seed=seed,
                name=data.title,
            )
            for seed in seeds
        ]
    return made if len(made) == len(config.run.seed_list) else [replace(made[0], seed=s) for s in config.run.seed_list]


@contextmanager
def _naming(data: DataSection) -> Iterator[None]:
    """Errors raised inside name the key that says where the rows are, and the schema's file."""
    try:
        yield
    except EquifedError as error:
        named = {"tables": "mapped" if data.mapped else "table" if data.table else "files", "columns": "schema"}
        if not error.section:
            error.key = named.get(error.key, error.key) or ("mapped" if data.mapped else "")
        raise


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
