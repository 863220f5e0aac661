"""Data sets: loaders with fairlearn's conventions, presets after the papers, encoding by a shared schema."""

from equifed.data.dataset import Bunch, Dataset, Preset
from equifed.data.download import data_home
from equifed.data.images import rotate_images
from equifed.data.schema import Column, Encoded, Schema, Sensitive
from equifed.data.sets import DATASETS, get_dataset
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
    "data_home",
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
    "rotate_images",
]
