"""Whether Flower is here. It is an extra, so every command that needs it asks first."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from equifed.errors import ConfigError

MISSING = "Flower is not installed here. Install it with: pip install 'equifed[flower]'"


def require_flower() -> None:
    if find_spec("flwr") is None:
        raise ConfigError(MISSING)


def programs() -> Path:
    """The folder of Flower's programs: they belong to the interpreter that runs this, whatever PATH says."""
    require_flower()
    folder = Path(sys.executable).parent
    if not (folder / "flower-superlink").is_file():
        raise ConfigError(
            f"Flower's programs (flower-superlink, flower-supernode, flwr) are not in {folder}, beside this Python. "
            "Install Flower into this environment: pip install 'equifed[flower]'"
        )
    return folder
