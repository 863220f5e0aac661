"""The data sets: tables from `sets.toml` (see `tables.py`), and one module for each that is read in its own way."""

from __future__ import annotations

from equifed.data.dataset import Dataset
from equifed.data.sets.acs import ACS_EMPLOYMENT, ACS_HEALTH_INSURANCE, ACS_INCOME
from equifed.data.sets.mnist import MNIST
from equifed.data.sets.tables import read_sets
from equifed.registry import Registry, allow

_OWN_WAY = (ACS_INCOME, ACS_EMPLOYMENT, ACS_HEALTH_INSURANCE, MNIST)
DATASETS: Registry[Dataset] = Registry(
    "data set",
    "equifed.datasets",
    {**read_sets(), **{dataset.name: dataset for dataset in _OWN_WAY}},
    fits=lambda thing: isinstance(thing, Dataset),
    must_be="an equifed.data.Dataset",
)
"""By name; data sets of other packages are found by entry point or as "module:NAME"."""


def get_dataset(name: str) -> Dataset:
    """Return a data set by a name that the user has typed; `bank-additional` is as good as `bank_additional`."""
    allow(name)
    return recorded_dataset(name)


def recorded_dataset(name: str) -> Dataset:
    """`get_dataset` for a name that was read from a file: see `equifed.registry`."""
    spelled = name.replace("-", "_")
    return DATASETS[spelled if spelled in DATASETS else name]
