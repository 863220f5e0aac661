"""Partitioners: who holds which rows."""

from __future__ import annotations

import dataclasses
from typing import Any

from equifed.partition.base import Partition, Partitioner, Rows
from equifed.partition.partitioners import IID, Dirichlet, DirichletPerClient, Natural, RotationGroups, Skewed
from equifed.registry import Registry

REGISTRY: Registry[Any] = Registry(
    "partition",
    "equifed.partitioners",
    {
        "iid": IID,
        "dirichlet": Dirichlet,
        "dirichlet-per-client": DirichletPerClient,
        "skewed": Skewed,
        "natural": Natural,
        "rotation-groups": RotationGroups,
    },
    fits=lambda thing: callable(thing) and (not isinstance(thing, type) or dataclasses.is_dataclass(thing)),
    must_be="a dataclass whose instances are called with (rows, rng), or a function of these",
)
"""By the name that a configuration uses."""

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
]
