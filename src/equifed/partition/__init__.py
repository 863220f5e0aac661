"""Partitioners: who holds which rows."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from equifed.partition import partitioners
from equifed.partition.base import Partition, Partitioner, PartitionFunction, Table
from equifed.partition.partitioners import IID, Dirichlet, DirichletPerClient, Natural, RotationGroups, Skewed
from equifed.registry import Registry

REGISTRY: Registry[Any] = Registry(
    "partition",
    "equifed.partitioners",
    {
        re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower(): kind
        for name, kind in vars(partitioners).items()
        if dataclasses.is_dataclass(kind) and kind.__module__ == partitioners.__name__
    },
    fits=lambda thing: callable(thing) and (not isinstance(thing, type) or dataclasses.is_dataclass(thing)),
    must_be="a dataclass whose instances are called with (table, rng), or a function of these",
)
"""By the name that a configuration uses: every partitioner of `partitioners.py`, `RotationGroups` as
"rotation-groups"."""


def describe(partition: Partitioner | PartitionFunction) -> dict[str, Any]:
    """A partitioner as its registry name and options."""
    if isinstance(partition, type) or not dataclasses.is_dataclass(partition):
        return {"kind": REGISTRY.name_of(partition)}
    return {"kind": REGISTRY.name_of(type(partition)), **dataclasses.asdict(partition)}
