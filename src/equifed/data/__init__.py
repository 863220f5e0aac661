"""Data sets: loaders with fairlearn's conventions, presets after the papers, encoding by a shared schema."""

from equifed.data.agreement import agree
from equifed.data.dataset import Bunch, Dataset, Preset
from equifed.data.download import data_home
from equifed.data.images import rotate_images
from equifed.data.schema import Column, Encoded, LeftOut, Missing, Schema, Sensitive
from equifed.data.sets import DATASETS, get_dataset
from equifed.data.summary import Summary, summarise

fetch_acs_income = DATASETS["acs_income"].fetch
fetch_acs_employment = DATASETS["acs_employment"].fetch
fetch_acs_health_insurance = DATASETS["acs_health_insurance"].fetch
fetch_adult = DATASETS["adult"].fetch
fetch_bank = DATASETS["bank"].fetch
fetch_bank_additional = DATASETS["bank_additional"].fetch
fetch_communities = DATASETS["communities"].fetch
fetch_compas = DATASETS["compas"].fetch
fetch_drug = DATASETS["drug"].fetch
fetch_dutch = DATASETS["dutch"].fetch
fetch_german = DATASETS["german"].fetch
fetch_law = DATASETS["law"].fetch
fetch_mnist = DATASETS["mnist"].fetch
