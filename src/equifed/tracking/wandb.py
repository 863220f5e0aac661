"""Weights & Biases: a W&B run for each run. Nothing is sent unless WANDB_MODE says so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from equifed.results import Result
from equifed.tracking.callback import Callback, Round, Run
from equifed.tracking.series import artifacts, extra, named, values_of

PROJECT = "equifed"


class WandB(Callback):
    """Config, values by round and group, and at the end the report and the model package as an artifact.

    The values of a sweep's settings have the setting in front of their names.
    """

    def __init__(self, project: str = "") -> None:
        """project: left out: what WANDB_PROJECT says, or "equifed"."""
        self._wandb = extra("wandb", "wandb", "Weights & Biases")
        self.project = project or os.environ.get("WANDB_PROJECT") or PROJECT
        self.mode = os.environ.get("WANDB_MODE") or "offline"
        self._run: Any = None

    def __str__(self) -> str:
        return f"Weights & Biases ({self.mode}), project {self.project!r}"

    def run_started(self, run: Run) -> None:
        again = {"id": run.id, "resume": "allow"} if run.id else {}
        config = run.parameters({}) | ({"over": [dict(each) for each in run.over]} if run.over != ({},) else {})
        self._run = self._wandb.init(project=self.project, name=run.title, config=config, mode=self.mode, **again)
        # a round's figures may come with a later one, and a resumed run repeats some: W&B's own count only goes up
        self._run.define_metric("*", step_metric="round")

    def round_finished(self, round: Round) -> None:
        for setting, number, values in values_of(round):
            before = f"{named(setting)}/" if setting else ""
            self._run.log({"round": number} | {f"{before}{name}": value for name, value in values.items()})

    def run_finished(self, result: Result, folder: Path | None) -> None:
        with artifacts(result, folder) as paths:
            kept = self._wandb.Artifact(f"run-{self._run.id}", type="run")
            for path in paths:
                kept.add_dir(str(path), name=path.name) if path.is_dir() else kept.add_file(str(path))
            self._run.log_artifact(kept)
            self._run.finish()

    def run_stopped(self, error: BaseException) -> None:
        if self._run is not None:
            self._run.finish(exit_code=1)
