"""`equifed reproduce` in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from equifed.cli.app import app
from equifed.simulation import Simulation
from equifed.simulator import Step
from equifed_papers.experiments.base import Watch


def run(*arguments: str, folder: Path, code: int = 0) -> Any:
    """folder: of the runs, where there are any."""
    env = {"COLUMNS": "160", "NO_COLOR": "1", "EQUIFED_RUNS": str(folder)}
    done = CliRunner().invoke(app, ["reproduce", *arguments], env=env)
    assert done.exit_code == code, done.output
    return done


def record(*arguments: str, folder: Path) -> Any:
    """What --quick --json prints."""
    return json.loads(run(*arguments, "--quick", "--json", folder=folder).stdout)


def noting(steps: list[Step]) -> Watch:
    """Every round is put into the list."""

    def watch(title: str, simulation: Simulation, whole: bool = False) -> Iterator[Step]:
        for step in simulation.rounds():
            steps.append(step)
            yield step

    return watch
