"""Federations: who holds which rows, made from arrays, tables, files or named data sets."""

from equifed.federation.datasets import load
from equifed.federation.federation import Federation, Rows, RowSets
from equifed.federation.images import load_femnist

__all__ = ["Federation", "RowSets", "Rows", "load", "load_femnist"]
