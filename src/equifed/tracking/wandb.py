"""Weights & Biases: one W&B run per run. Data are sent only if WANDB_MODE is set to do so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from equifed.results import Result
from equifed.tracking.callback import Callback, Round, Run
from equifed.tracking.series import artifacts, import_extra, name_setting, values_of

PROJECT = "equifed"


class WandB(Callback):
    """A tracker for W&B: config, values by round and group, finally report and model package as an artifact.

    In a sweep, names of values begin with the setting.
    """

    def __init__(self, project: str = "") -> None:
        """project: its name. Default: WANDB_PROJECT, or "equifed"."""
        self._wandb = import_extra("wandb", "wandb", "Weights & Biases")
        self.project = project or os.environ.get("WANDB_PROJECT") or PROJECT
        self.mode = os.environ.get("WANDB_MODE") or "offline"
        self._run: Any = None

    def __str__(self) -> str:
        return f"Weights & Biases ({self.mode}), project {self.project!r}"

    def run_started(self, run: Run) -> None:
        again = {"id": run.id, "resume": "allow"} if run.id else {}
        config = run.parameters({}) | ({"over": [dict(each) for each in run.over]} if run.over != ({},) else {})
        self._run = self._wandb.init(project=self.project, name=run.title, config=config, mode=self.mode, **again)
        # a round's scores may arrive with a later one and a resumed run repeats some, but W&B's own step only increases
        self._run.define_metric("*", step_metric="round")

    def round_finished(self, round: Round) -> None:
        for setting, number, values in values_of(round):
            before = f"{name_setting(setting)}/" if setting else ""
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
