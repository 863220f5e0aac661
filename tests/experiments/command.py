"""`equifed reproduce` in this process; and watching nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from equifed.cli.app import app


def run(*arguments: str, folder: Path, code: int = 0) -> Any:
    """folder: of the runs, where there are any; of several experiments there are not, and --runs is refused."""
    env = {"COLUMNS": "160", "NO_COLOR": "1", "EQUIFED_RUNS": str(folder)}
    done = CliRunner().invoke(app, ["reproduce", *arguments], env=env)
    assert done.exit_code == code, done.output
    return done


def record(*arguments: str, folder: Path) -> Any:
    """What --quick --json prints."""
    return json.loads(run(*arguments, "--quick", "--json", folder=folder).stdout)


def silent(title: str, simulation: object) -> Callable[[object], None]:
    return lambda step: None
