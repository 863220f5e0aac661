"""Data sets: loaders with fairlearn's conventions, presets after the papers, encoding by a shared schema."""

from equifed.data.download import data_home
from equifed.data.encoding import Column, Encoded, Schema, Sensitive, encode
from equifed.data.preset import Bunch, Dataset, Preset
from equifed.data.registry import DATASETS, available, describe, get_dataset, load_encoded
from equifed.data.rotate import rotate_images
from equifed.data.sets.acs import fetch_acs_employment, fetch_acs_health_insurance, fetch_acs_income
from equifed.data.sets.adult import fetch_adult
from equifed.data.sets.bank import fetch_bank, fetch_bank_additional
from equifed.data.sets.communities import fetch_communities
from equifed.data.sets.compas import fetch_compas
from equifed.data.sets.drug import fetch_drug
from equifed.data.sets.dutch import fetch_dutch
from equifed.data.sets.german import fetch_german
from equifed.data.sets.law import fetch_law
from equifed.data.sets.mnist import fetch_mnist

__all__ = [
    "DATASETS",
    "Bunch",
    "Column",
    "Dataset",
    "Encoded",
    "Preset",
    "Schema",
    "Sensitive",
    "available",
    "data_home",
    "describe",
    "encode",
    "fetch_acs_employment",
    "fetch_acs_health_insurance",
    "fetch_acs_income",
    "fetch_adult",
    "fetch_bank",
    "fetch_bank_additional",
    "fetch_communities",
    "fetch_compas",
    "fetch_drug",
    "fetch_dutch",
    "fetch_german",
    "fetch_law",
    "fetch_mnist",
    "get_dataset",
    "load_encoded",
    "rotate_images",
]
