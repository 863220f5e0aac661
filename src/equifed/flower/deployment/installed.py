"""Check that Flower, an optional extra, is installed. Every command that needs it calls this first."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from equifed.errors import ConfigError

MISSING = "Flower is not installed. Install it with: pip install 'equifed[flower]'"


def require_flower() -> None:
    if find_spec("flwr") is None:
        raise ConfigError(MISSING)


def programs() -> Path:
    """Return the folder of Flower's programs: that of the running interpreter, regardless of PATH."""
    require_flower()
    folder = Path(sys.executable).parent
    if not (folder / "flower-superlink").is_file():
        raise ConfigError(
            f"Flower's programs (flower-superlink, flower-supernode, flwr) are not in this Python's {folder}. "
            "Install Flower into this environment: pip install 'equifed[flower]'"
        )
    return folder
