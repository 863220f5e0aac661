"""Data sets: loaders with fairlearn's conventions, presets after the papers, encoding by a shared schema."""

from equifed.data.acs import fetch_acs_employment, fetch_acs_health_insurance, fetch_acs_income
from equifed.data.adult import fetch_adult
from equifed.data.bank import fetch_bank, fetch_bank_additional
from equifed.data.communities import fetch_communities
from equifed.data.compas import fetch_compas
from equifed.data.drug import fetch_drug
from equifed.data.dutch import fetch_dutch
from equifed.data.encoding import Column, Encoded, Schema, Sensitive, encode
from equifed.data.german import fetch_german
from equifed.data.home import data_home
from equifed.data.law import fetch_law
from equifed.data.mnist import fetch_mnist
from equifed.data.preset import Bunch, Dataset, Preset
from equifed.data.registry import DATASETS, available, describe, get_dataset, load_encoded
from equifed.data.rotate import rotate_images

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
