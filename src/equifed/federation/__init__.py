"""Federations: who holds which rows, made from arrays, tables, files or named data sets.

Tables and data sets are imported when they are first used: arrays and the simulator need only NumPy and torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from equifed.federation.arrays import Rows
from equifed.federation.federation import Federation
from equifed.federation.mapped import Mapped
from equifed.federation.rowsets import RowSets

if TYPE_CHECKING:
    from equifed.federation.datasets import load
    from equifed.federation.images import load_femnist

__all__ = ["Federation", "Mapped", "RowSets", "Rows", "load", "load_femnist"]


def __getattr__(name: str) -> Any:
    if name in ("load", "load_femnist"):
        return getattr(import_module(f"equifed.federation.{'datasets' if name == 'load' else 'images'}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
