"""TensorBoard: event files in a folder, with a subfolder per run and setting of a sweep."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equifed.errors import ConfigError
from equifed.files import check_writable
from equifed.results import Result
from equifed.tracking.callback import Callback, Round, Run
from equifed.tracking.series import import_extra, name_setting, values_of


class TensorBoard(Callback):
    """A tracker for TensorBoard: scalars of every round. View them with `tensorboard --logdir FOLDER`."""

    def __init__(self, folder: str | os.PathLike[str] = "") -> None:
        if not str(folder):
            raise ConfigError("TensorBoard needs a folder: tensorboard:FOLDER.", key="track")
        import_extra("tensorboard", "tensorboard", "TensorBoard")
        self.folder = Path(folder).absolute()
        check_writable(self.folder, "Name another folder for TensorBoard.")
        self._writers: dict[str, Any] = {}

    def __str__(self) -> str:
        return f"TensorBoard in {self.folder}"

    def run_started(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        place = self._place(run)
        for setting in run.over:
            name = name_setting(setting)
            # rounds that a resumed run repeats are removed from the earlier events
            writer = SummaryWriter(str(place / _plain(name) if name else place), purge_step=run.done + 1)
            self._writers[name] = writer
            if not run.done:
                writer.add_text("settings", _table(run.parameters(setting)), 0)
            writer.flush()

    def round_finished(self, round: Round) -> None:
        for setting, number, values in values_of(round):
            for name, value in values.items():
                self._writers[name_setting(setting)].add_scalar(name, value, number)
        for writer in self._writers.values():
            writer.flush()

    def run_finished(self, result: Result, folder: Path | None) -> None:
        self._close()

    def run_stopped(self, error: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _place(self, run: Run) -> Path:
        """Return the run's folder: named by its id, or a new one if it has none."""
        if run.id:
            return self.folder / run.id
        number, place = 1, self.folder / _plain(run.title)
        while place.exists():
            number += 1
            place = self.folder / f"{_plain(run.title)}-{number}"
        return place


def _plain(name: str) -> str:
    return re.sub(r"[^\w.,=+-]+", "-", name)[:100].lstrip(".") or "run"


def _table(parameters: Mapping[str, Any]) -> str:
    lines = (f"| {name} | {str(value).replace('|', chr(92) + '|')} |" for name, value in parameters.items())
    return "\n".join(["| setting | value |", "|---|---|", *(line.replace("\n", " ") for line in lines)])
