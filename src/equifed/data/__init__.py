"""Data sets: loaders with fairlearn's conventions, presets after the papers, encoding by a shared schema.

Names are imported when they are first used: `Columns` and `Holdout` must not wait for pandas.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from equifed.data.columns import Columns, Holdout

if TYPE_CHECKING:
    from equifed.data.agreement import agree
    from equifed.data.columns import Missing
    from equifed.data.dataset import Bunch, Dataset, Preset
    from equifed.data.download import data_home
    from equifed.data.images import rotate_images
    from equifed.data.schema import Column, Encoded, LeftOut, Schema, Sensitive
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

_HOMES = {
    "agree": "agreement",
    "Missing": "columns",
    **dict.fromkeys(("Bunch", "Dataset", "Preset"), "dataset"),
    "data_home": "download",
    "rotate_images": "images",
    **dict.fromkeys(("Column", "Encoded", "LeftOut", "Schema", "Sensitive"), "schema"),
    **dict.fromkeys(("DATASETS", "get_dataset"), "sets"),
    **dict.fromkeys(("Summary", "summarise"), "summary"),
}

__all__ = ["Columns", "Holdout", *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"equifed.data.{_HOMES[name]}"), name)
    if name.startswith("fetch_"):
        known = import_module("equifed.data.sets").DATASETS
        if name.removeprefix("fetch_") in known:
            return known[name.removeprefix("fetch_")].fetch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
