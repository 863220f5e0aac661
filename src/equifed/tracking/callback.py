"""What a callback is, what it is told, and telling several of them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equifed.errors import EquifedWarning
from equifed.metrics.frame import metrics_frame, overall
from equifed.results import Result
from equifed.results.collect import log_frame
from equifed.settings import RunSettings
from equifed.simulator import Job, RoundLog, Step
from equifed.words import clean

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Run:
    """What is going to be computed."""

    name: str
    """What its user calls it; empty where it has no name."""
    id: str
    """The name of its folder, by which a resumed run is known again; empty where there is none."""
    folder: Path | None
    """Where it is recorded."""
    method: str
    hyper_parameters: Mapping[str, Any]
    over: tuple[Mapping[str, float], ...]
    """The settings of a sweep, each of which is trained with every seed; one that is empty where nothing is swept."""
    settings: RunSettings
    """With the seeds, the clients per round and the device that are used."""
    federation: str
    clients: int
    groups: tuple[str, ...]
    model: str
    done: int
    """Rounds that were recorded before; 0 unless it is resumed."""

    @classmethod
    def of(cls, job: Job, name: str = "", folder: Path | None = None, done: int = 0) -> Run:
        over = tuple(dict(pairs) for pairs in dict.fromkeys(tuple(run.hyper.items()) for run in job.wanted))
        return cls(
            name,
            "" if folder is None else folder.name,
            folder,
            job.method.name,
            job.method.hyper,
            over,
            job.settings,
            job.federation.name,
            job.federation.num_clients,
            tuple(job.federation.groups),
            str(job.task.module),
            done,
        )

    @property
    def title(self) -> str:
        return self.name or self.id or f"{self.method} on {self.federation}"

    @property
    def seeds(self) -> list[int]:
        return self.settings.seed_list

    def parameters(self, setting: Mapping[str, float]) -> dict[str, Any]:
        """Everything that was set, by flat names; of a sweep, with the values of one of its settings, and without those
        that are swept where none is given."""
        settings = self.settings.to_dict()
        local = settings.pop("local")
        swept = {name for each in self.over for name in each}
        fixed = {name: value for name, value in self.hyper_parameters.items() if name not in swept}
        return {
            "method": self.method,
            **{f"method.{name}": value for name, value in {**fixed, **setting}.items()},
            "data": self.federation,
            "clients": self.clients,
            "groups": list(self.groups),
            "model": self.model,
            **settings,
            **{f"local.{name}": value for name, value in local.items()},
        }


@dataclass(frozen=True, eq=False)
class Round:
    """A finished round of all seeds and settings. Frames are made when they are first asked for."""

    job: Job
    step: Step

    @property
    def number(self) -> int:
        return self.step.round

    @property
    def seconds(self) -> float:
        """Wall time of the round, evaluation included."""
        return self.step.seconds

    @property
    def last(self) -> bool:
        return self.step.last

    @property
    def evaluated(self) -> bool:
        """Whether it brought figures: its own, or on Flower those of the round before it."""
        return bool(self.step.scores)

    @property
    def logs(self) -> list[RoundLog]:
        """What happened in each run that was asked for."""
        return [log for log in self.step.logs if log.run < len(self.job.wanted)]

    @cached_property
    def log(self) -> pd.DataFrame:
        """The same as lines of `Result.log`, one for each seed and setting: who replied, what the method observes."""
        return log_frame(self.job, self.logs)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """What was measured, as lines of `Result.metrics`: over all rows, by group and by client, for each seed and
        setting; none where the round was not evaluated."""
        wanted = len(self.job.wanted)
        scores = [
            (number, run, scored)
            for number, runs in self.step.scores.items()
            for run, scored in enumerate(runs[:wanted])
        ]
        return metrics_frame(scores, self.job.federation, self.job.labels, self.job.outside_metrics)

    def overall(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """These metrics of the latest evaluation over all test rows, for each seed and setting; quicker than
        `metrics`."""
        if not self.evaluated:
            return {}
        _, scores = max(self.step.scores.items())
        return overall(scores[: len(self.job.wanted)], names)


class Callback:
    """Told how a run goes; derive from it, and write those of these functions that are of use.

    What is raised in one of them does not end the run: it is shown once, as a warning, and nothing more is told. What
    cannot work from the start, such as a package that is missing, is raised by the constructor, before the run starts.
    """

    def __str__(self) -> str:
        """What it is called in messages."""
        return type(self).__name__

    def run_started(self, run: Run) -> None:
        """Before the first round, or the first after those that a resumed run has done."""

    def round_finished(self, round: Round) -> None:
        """A round is done, and recorded where the run has a folder. A resumed run may tell a round again."""

    def run_finished(self, result: Result, folder: Path | None) -> None:
        """All is done. folder: of the run, where it has one."""

    def run_stopped(self, error: BaseException) -> None:
        """It was interrupted or failed, and has no result; a run with a folder may be resumed."""


def without_user(text: str) -> str:
    """Addresses in the text without the user and the password before the host."""
    return re.sub(r"//[^/@\s]*@", "//", text)


class Callbacks:
    """Several callbacks. One that fails is told nothing more."""

    def __init__(self, given: Iterable[Callback] = ()) -> None:
        self._on = list(given)

    def __iter__(self) -> Iterator[Callback]:
        return iter(self._on)

    def add(self, callback: Callback) -> None:
        self._on.append(callback)

    def run_started(self, run: Run) -> None:
        self._tell("run_started", run)

    def round_finished(self, round: Round) -> None:
        self._tell("round_finished", round)

    def run_finished(self, result: Result, folder: Path | None) -> None:
        self._tell("run_finished", result, folder)

    def run_stopped(self, error: BaseException) -> None:
        self._tell("run_stopped", error)

    @contextmanager
    def following(self, run: Run) -> Iterator[None]:
        """Tell that the run starts, and if what is done inside ends with an error, that it stopped."""
        self.run_started(run)
        try:
            yield
        except BaseException as error:
            self.run_stopped(error)
            raise

    def _tell(self, what: str, *facts: Any) -> None:
        for callback in [*self._on]:
            try:
                getattr(callback, what)(*facts)
            except Exception as error:
                self._on.remove(callback)
                warnings.warn(
                    f"{callback} is switched off, and the run goes on without it: {what} failed with "
                    f"{type(error).__name__}: {without_user(clean(error))}",
                    EquifedWarning,
                    stacklevel=3,
                )
