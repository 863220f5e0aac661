"""Partitioners: who holds which rows. `from_config` makes one from its command-line name."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from equifed.errors import ConfigError, unknown_name
from equifed.partition.base import Partition, Partitioner, Rows
from equifed.partition.partitioners import IID, Dirichlet, DirichletPerClient, Natural, RotationGroups, Skewed

REGISTRY: dict[str, type] = {
    "iid": IID,
    "dirichlet": Dirichlet,
    "dirichlet-per-client": DirichletPerClient,
    "skewed": Skewed,
    "natural": Natural,
    "rotation-groups": RotationGroups,
}


def from_config(name: str, **options: Any) -> Partitioner:
    """The partitioner `name`; options are spelt as in a config file (num-partitions) or as in Python."""
    if name not in REGISTRY:
        raise ConfigError(unknown_name("partition", name, REGISTRY))
    known = {field.name: field for field in fields(REGISTRY[name])}
    given = {}
    for key, value in options.items():
        if key.replace("-", "_") not in known:
            raise ConfigError(unknown_name(f"option of partition {name!r}", key, known))
        given[key.replace("-", "_")] = tuple(value) if isinstance(value, list) else value
    missing = [key for key, field in known.items() if field.default is MISSING and key not in given]
    if missing:
        raise ConfigError(f"Partition {name!r} needs a value for {', '.join(missing)}.")
    return REGISTRY[name](**given)


__all__ = [
    "IID",
    "REGISTRY",
    "Dirichlet",
    "DirichletPerClient",
    "Natural",
    "Partition",
    "Partitioner",
    "RotationGroups",
    "Rows",
    "Skewed",
    "from_config",
]
