"""A real federation on Flower: the same methods, the same configuration, the same numbers as in the simulator.

This package is the only importer of flwr, which the extra `flower` installs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equifed.flower.apps import client_app, server_app

__all__ = ["client_app", "server_app"]


def __getattr__(name: str) -> Any:
    """Import the apps on first use, because flwr may not be installed."""
    if name in __all__:
        return getattr(import_module("equifed.flower.apps"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
