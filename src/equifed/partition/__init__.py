"""Partitioners: who holds which rows."""

from __future__ import annotations

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
