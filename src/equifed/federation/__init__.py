"""Federations: who holds which rows, made from arrays, tables, files or named data sets."""

from equifed.federation.arrays import Rows
from equifed.federation.datasets import load
from equifed.federation.federation import Federation, RowSets
from equifed.federation.images import load_femnist

__all__ = ["Federation", "RowSets", "Rows", "load", "load_femnist"]
