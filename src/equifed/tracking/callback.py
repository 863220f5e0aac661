"""The callback interface, its events, and a dispatcher."""

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
    """A description of the computation that starts."""

    name: str
    """Name given by the user; empty if none."""
    id: str
    """Name of its folder, which identifies a resumed run; empty without a folder."""
    folder: Path | None
    """Folder in which it is recorded, None if it is not recorded."""
    method: str
    hyper_parameters: Mapping[str, Any]
    over: tuple[Mapping[str, float], ...]
    """The settings of a sweep, each trained with every seed; a single empty one without a sweep."""
    settings: RunSettings
    """Settings with resolved seeds, clients per round and device."""
    federation: str
    clients: int
    groups: tuple[str, ...]
    model: str
    done: int
    """Number of rounds recorded earlier; 0 unless resumed."""

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
        """Return all parameters by flat names, with the values of one setting of a sweep. Swept hyperparameters that
        `setting` does not have are omitted."""
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
    """A finished round of all seeds and settings. Frames are made on first use."""

    job: Job
    step: Step

    @property
    def number(self) -> int:
        return self.step.round

    @property
    def seconds(self) -> float:
        """Wall time of the round including evaluation."""
        return self.step.seconds

    @property
    def last(self) -> bool:
        return self.step.last

    @property
    def evaluated(self) -> bool:
        """True if the round has scores: its own, or on Flower those of an earlier round."""
        return bool(self.step.scores)

    @property
    def logs(self) -> list[RoundLog]:
        """Log entry of each requested run."""
        return [log for log in self.step.logs if log.run < len(self.job.wanted)]

    @cached_property
    def log(self) -> pd.DataFrame:
        """The same as rows of `Result.log`, one per seed and setting: replies, and the method's observations."""
        return log_frame(self.job, self.logs)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Metrics as rows of `Result.metrics`: over all rows, by group and by client, for each seed and setting; empty
        if the round was not evaluated."""
        wanted = len(self.job.wanted)
        scores = [
            (number, run, scored)
            for number, runs in self.step.scores.items()
            for run, scored in enumerate(runs[:wanted])
        ]
        return metrics_frame(scores, self.job.federation, self.job.labels, self.job.outside_metrics)

    def overall(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Return these metrics of the latest evaluation over all test rows, for each seed and setting; faster than
        `metrics`."""
        if not self.evaluated:
            return {}
        _, scores = max(self.step.scores.items())
        return overall(scores[: len(self.job.wanted)], names)


class Callback:
    """A base class for objects that follow a run. Override the methods you need.

    An error raised in one of them does not end the run: it is shown once, as a warning, and the callback is disabled.
    Problems that exist from the start, such as a missing package, should be raised by the constructor.
    """

    def __str__(self) -> str:
        """Return the callback's name for messages."""
        return type(self).__name__

    def run_started(self, run: Run) -> None:
        """Called before the first round, or a resumed run's next round."""

    def round_finished(self, round: Round) -> None:
        """Called after a round, which is recorded if the run has a folder. A resumed run may repeat a round."""

    def run_finished(self, result: Result, folder: Path | None) -> None:
        """Called at the end. folder: the run's folder, if it has one."""

    def run_stopped(self, error: BaseException) -> None:
        """Called if the run was interrupted or failed, so without a result; a run with a folder can be resumed."""


def remove_user(text: str) -> str:
    """Remove user and password from addresses in the text."""
    return re.sub(r"//[^/@\s]*@", "//", text)


class Callbacks:
    """A dispatcher to several callbacks. One that fails is disabled."""

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
    def follow(self, run: Run) -> Iterator[None]:
        """Notify callbacks that the run starts, and if the body raises an error, that it stopped."""
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
                    f"{callback} is disabled, and the run continues without it: {what} failed with "
                    f"{type(error).__name__}: {remove_user(clean(error))}",
                    EquifedWarning,
                    stacklevel=3,
                )
