"""Federations: who holds which rows, made from arrays, tables, files or named data sets."""

from equifed.federation.federation import Federation, Rows, Sets
from equifed.federation.tables import load, load_femnist

__all__ = ["Federation", "Rows", "Sets", "load", "load_femnist"]
