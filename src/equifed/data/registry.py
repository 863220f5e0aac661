"""The data sets by name, and what the rest of equifed asks of them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from equifed.data.download import where
from equifed.data.encoding import Encoded
from equifed.data.preset import Bunch, Dataset, Preset
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
from equifed.errors import ConfigError, unknown_name

DATASETS: dict[str, Dataset] = {
    "adult": ADULT,
    "compas": COMPAS,
    "german": GERMAN,
    "law": LAW,
    "dutch": DUTCH,
    "drug": DRUG,
    "bank": BANK,
    "bank_additional": BANK_ADDITIONAL,
    "communities": COMMUNITIES,
    "acs_income": ACS_INCOME,
    "acs_employment": ACS_EMPLOYMENT,
    "acs_health_insurance": ACS_HEALTH_INSURANCE,
    "mnist": MNIST,
}


def get_dataset(name: str) -> Dataset:
    """A data set by name; `bank-additional` is as good as `bank_additional`."""
    known = DATASETS.get(name.replace("-", "_"))
    if known is None:
        raise ConfigError(unknown_name("data set", name, DATASETS))
    return known


def load_encoded(
    name: str,
    preset: str | Preset | None = None,
    home: str | os.PathLike[str] | None = None,
    columns: Sequence[str] = (),
) -> tuple[Encoded, Preset, Bunch]:
    """A data set as numbers, by one of its presets (or a changed copy of one); `columns` are carried along too."""
    dataset = get_dataset(name)
    chosen = dataset.preset(preset)
    bunch = dataset.fetch(chosen, home)
    pixels = set(chosen.features) if chosen.image else set()
    known = [column for column in bunch.frame.columns if column not in pixels]
    for column in columns:
        if column not in known:
            raise ConfigError(unknown_name(f"column of {dataset.name}", column, known))
    carried = dict.fromkeys(column for column in (chosen.natural, chosen.split_column, *columns) if column)
    encoded = chosen.schema(bunch.frame).encode(bunch.frame, columns=list(carried))
    if chosen.image:
        pixels = bunch.data.to_numpy().astype(np.float32).reshape(-1, *chosen.image)
        pixels /= 255
        unscaled = np.zeros(len(chosen.features), dtype=np.bool_)
        encoded = dataclasses.replace(
            encoded, x=pixels, feature_names=chosen.features, scale_columns=unscaled, schema=None
        )
    return encoded, chosen, bunch


def available() -> list[str]:
    """The names of all data sets."""
    return list(DATASETS)


def describe(name: str, home: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """What a data set is, its presets, and where its files lie ("not here" when they must be fetched)."""
    dataset = get_dataset(name)
    return {
        "name": dataset.name,
        "title": dataset.title,
        "description": dataset.description,
        "citation": dataset.citation,
        "license": dataset.license,
        "presets": {preset.name: _describe_preset(preset) for preset in dataset.presets.values()},
        "files": {file.name: str(where(file, home) or "not here") for file in dataset.files},
    }


def _describe_preset(preset: Preset) -> dict[str, Any]:
    return {
        "description": preset.description,
        "task": preset.task,
        "rows": preset.rows,
        "columns": len(preset.features),
        "inputs": preset.inputs,
        "label": preset.label,
        "positive": preset.positive,
        "sensitive": [rule.column for rule in preset.sensitive],
        "sensitive_as_input": preset.sensitive_as_input,
        "groups": list(preset.groups),
        "privileged": preset.privileged,
        "encoding": preset.encoding,
        "scaling": preset.scaling,
        "split": list(preset.split),
        "clients": preset.num_partitions,
        "clients_per_round": preset.clients_per_round,
        "natural": preset.natural,
    }
