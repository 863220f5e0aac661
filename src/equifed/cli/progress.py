"""Where a run stands: a bar on a terminal, some twenty plain lines elsewhere. Always on stderr."""

from __future__ import annotations

import time
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from equifed.cli.tables import short
from equifed.cli.talk import err, say
from equifed.simulator import Simulation, Step
from equifed.simulator.result import metrics_frame

LINES = 20
"""Plain lines per run."""
PAUSE = 0.25
"""Seconds between two updates of the figures beside the bar."""
DISPARITIES = ("demographic_parity_difference", "ks_distance", "accuracy_difference", "mean_difference")


class Watch:
    """Shows each finished round: loss, accuracy or RMSE, a disparity, time left."""

    def __init__(self, title: str, simulation: Simulation, done: int = 0) -> None:
        self.title, self.job = title, simulation.job
        self._seconds: list[float] = []
        self._done, self._last, self._figures = done, 0.0, ""
        self._next = 0.0
        console = err()
        self._bar = (
            Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=12),
                MofNCompleteColumn(),
                TextColumn("{task.fields[figures]}", markup=False),
                TimeRemainingColumn(compact=True),
                console=console,
                transient=True,
            )
            if console.is_terminal
            else None
        )

    def __enter__(self) -> Watch:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self.title, total=self.job.rounds, completed=self._done, figures="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, step: Step) -> None:
        self._seconds.append(step.seconds)
        if self._bar is not None:
            now = time.monotonic()
            if step.scores is not None and now - self._last > PAUSE:
                self._last, self._figures = now, self._measured(step)
            self._bar.update(self._task, completed=step.round, figures=self._figures)
        elif step.scores is not None and (step.round >= self._next or step.last):
            self._next = step.round + self.job.rounds / LINES
            say(f"{self.title}: round {step.round}/{self.job.rounds}, {self._measured(step)}{self._left(step)}")

    def _measured(self, step: Step) -> str:
        frame = metrics_frame(self.job, [(step.round, run, scored) for run, scored in enumerate(step.scores or [])])
        frame = frame[(frame["scope"] == "global") & (frame["split"] == "test")]
        values = frame.groupby("metric", observed=True)["value"].mean()
        own = getattr(self.job.method, "fairness", ())  # one metric or several
        wanted = (own,) if isinstance(own, str) else tuple(own)
        disparity = next((name for name in (*wanted, *DISPARITIES) if name in values), "")
        shown = [name for name in ("loss", "accuracy", "rmse", disparity) if name in values]
        return ", ".join(f"{short(name) if self._bar else name} {values[name]:.3f}" for name in shown)

    def _left(self, step: Step) -> str:
        todo = 0 if step.last else self.job.rounds - step.round
        left = todo * sum(self._seconds[-10:]) / len(self._seconds[-10:])
        return f", {left:.0f} s left" if todo else ""
