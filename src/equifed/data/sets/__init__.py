"""One module per data set: its files, how they are read, and the papers' presets."""

from __future__ import annotations

from equifed.data.dataset import Dataset
from equifed.data.sets.acs import ACS_EMPLOYMENT, ACS_HEALTH_INSURANCE, ACS_INCOME
from equifed.data.sets.adult import ADULT
from equifed.data.sets.bank import BANK, BANK_ADDITIONAL
from equifed.data.sets.communities import COMMUNITIES
from equifed.data.sets.compas import COMPAS
from equifed.data.sets.drug import DRUG
from equifed.data.sets.dutch import DUTCH
from equifed.data.sets.german import GERMAN
from equifed.data.sets.law import LAW
from equifed.data.sets.mnist import MNIST
from equifed.registry import Registry, allow

_BUILT_IN = (
    *(ADULT, COMPAS, GERMAN, LAW, DUTCH, DRUG, BANK, BANK_ADDITIONAL, COMMUNITIES),
    *(ACS_INCOME, ACS_EMPLOYMENT, ACS_HEALTH_INSURANCE, MNIST),
)
DATASETS: Registry[Dataset] = Registry(
    "data set",
    "equifed.datasets",
    {dataset.name: dataset for dataset in _BUILT_IN},
    fits=lambda thing: isinstance(thing, Dataset),
    must_be="an equifed.data.Dataset",
)
"""By name; data sets of other packages are found by entry point or as "module:NAME"."""


def get_dataset(name: str) -> Dataset:
    """A data set by a name that the user has typed; `bank-additional` is as good as `bank_additional`."""
    allow(name)
    return recorded_dataset(name)


def recorded_dataset(name: str) -> Dataset:
    """`get_dataset` for a name that was read from a file: see `equifed.registry`."""
    spelled = name.replace("-", "_")
    return DATASETS[spelled if spelled in DATASETS else name]
