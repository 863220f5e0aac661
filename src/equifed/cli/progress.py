"""Where a run stands: a bar or a table on a terminal, plain lines elsewhere. Always on stderr."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Sequence

import pandas as pd
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from equifed.cli.console import err, refreshing, say
from equifed.cli.tables import plain_table
from equifed.metrics import catalogue
from equifed.metrics.catalogue import describe
from equifed.metrics.seeds import Moments, moments
from equifed.simulation import Training
from equifed.studies.jobs import State
from equifed.tracking import Callback, Round

LINES = 20
"""Plain lines per run."""
PAUSE = 0.25
"""Seconds between two updates of the figures beside the bar."""
ENDED = ("done", "failed")
"""States of jobs that have ended."""
MANY, EVERY = 100, 15.0
"""A study of more jobs than these does not have a plain line for each, but one every so many seconds."""
QUIET = 300.0
"""Seconds after which there is a plain line though no job has ended."""


class Watch(Callback):
    """Shows each finished round: loss, accuracy or RMSE, a disparity, time left.

    With `closely`, a table of the main metrics that is refreshed at every evaluation, or a plain line for each.
    """

    def __init__(self, title: str, simulation: Training, done: int = 0, closely: bool = False) -> None:
        self.title, self.job, self.closely = title, simulation.job, closely
        measured = [metric.name for metric in self.job.metrics if metric.overall]
        self._quality, disparity = catalogue.main_pair(measured)
        fairness = self.job.method.hyper.get("fairness", ())  # one metric or several
        targets = (fairness,) if isinstance(fairness, str) else tuple(fairness)
        self._disparity = next((name for name in targets if name in measured), disparity)
        self._shown = catalogue.shown(measured, "table")
        self._before: dict[str, Moments] = {}
        self._seconds: list[float] = []
        self._last, self._figures, self._next = 0.0, "", 0.0
        console = err()
        self._bar = self._live = None
        if console.is_terminal and closely:
            self._live = Live(console=console, auto_refresh=False)
        elif console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=12),
                MofNCompleteColumn(),
                TextColumn("{task.fields[figures]}", markup=False),
                TimeRemainingColumn(compact=True),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task(title, total=self.job.rounds, completed=done, figures="")

    def __str__(self) -> str:
        return "The display of progress"

    def __enter__(self) -> Watch:
        if display := self._live or self._bar:
            display.start()
        return self

    def __exit__(self, *error: object) -> None:
        if display := self._live or self._bar:
            with contextlib.suppress(OSError):  # of a terminal that was closed
                display.stop()

    def round_finished(self, round: Round) -> None:
        self._seconds.append(round.seconds)
        if self._bar is not None:
            now = time.monotonic()
            if round.evaluated and now - self._last > PAUSE:
                self._last, self._figures = now, self._measured(round)
            self._bar.update(self._task, completed=round.number, figures=self._figures)
        elif self._live is not None:
            if round.evaluated:
                self._live.update(self._table(round), refresh=True)
        elif round.evaluated and (self.closely or round.number >= self._next or round.last):
            self._next = round.number + self.job.rounds / LINES
            say(f"{self.title}: round {round.number}/{self.job.rounds}, {self._measured(round)}{self._left(round)}")

    def _values(self, round: Round, names: Sequence[str]) -> dict[str, Moments]:
        """Global test metrics over the runs."""
        return {name: moments(values) for name, values in round.overall(names).items()}

    def _measured(self, round: Round) -> str:
        values = self._values(round, [*filter(None, ("loss", self._quality, self._disparity))])
        return ", ".join(
            f"{describe(name).short if self._bar else name} {value.mean:.3f}" for name, value in values.items()
        )

    def _table(self, round: Round) -> Table:
        """The main metrics now, how they differ over the runs, and how they changed since the evaluation before."""
        values = self._values(round, ("loss", *self._shown))
        title = f"{self.title}: round {round.number} of {self.job.rounds}{self._left(round)}"
        table = plain_table("metric", "now", "± over runs", "change", numbers=[1, 2, 3], title=title)
        spread = "{:.3f}".format if len(self.job.wanted) > 1 else lambda std: ""
        for name, (mean, std, _) in values.items():
            change = f"{mean - self._before[name].mean:+.3f}" if name in self._before else ""
            table.add_row(name.replace("_", " "), f"{mean:.3f}", spread(std), change)
        for column, observed in pd.DataFrame([log.observed for log in round.logs]).items():
            mean, std, _ = moments(observed)
            table.add_row(f"{column} (of the method)", f"{mean:.3f}", spread(std), "")
        lost = sum(log.dropped + log.rejected for log in round.logs)
        sampled = sum(log.sampled for log in round.logs)
        table.add_row("replies", f"{sampled - lost} of {sampled}", "", "")
        self._before = values
        return table

    def _left(self, round: Round) -> str:
        todo = 0 if round.last else self.job.rounds - round.number
        left = todo * sum(self._seconds[-10:]) / len(self._seconds[-10:])
        return f", {left:.0f} s left" if todo else ""


class Board:
    """Where all jobs of a study stand: one table on a terminal, elsewhere a line for each that ends or dies."""

    def __init__(self) -> None:
        self._began = self._said = time.monotonic()
        self._before: Sequence[State] = ()
        self._live = (
            Live(console=console, auto_refresh=False, transient=True) if (console := err()).is_terminal else None
        )
        self._shown = contextlib.ExitStack()

    def __enter__(self) -> Board:
        if self._live:
            self._shown.enter_context(refreshing(self._live))
        return self

    def __exit__(self, *error: object) -> None:
        self._shown.close()

    def __call__(self, states: Sequence[State]) -> None:
        if self._live:
            self._live.update(self._table(states), refresh=True)
        for now, before in zip(states, self._before or [State(each.job, "waiting") for each in states], strict=True):
            if now.deaths > before.deaths and now.state == "running":
                say(f"{now.job.title}: its process died; it goes on after round {now.done} in another.")
            if self._live is None and now.state in ENDED and before.state not in ENDED and self._is_due(states, now):
                self._say(f"{now.job.title}: {now.state}; {self._summary(states)}")
        if self._live is None and time.monotonic() - self._said > QUIET:
            self._say(self._summary(states))
        self._before = list(states)

    def _is_due(self, states: Sequence[State], now: State) -> bool:
        """Whether a job that has ended gets a line."""
        few = len(states) <= MANY or time.monotonic() - self._said > EVERY
        return few or now.state == "failed" or all(each.state in ENDED for each in states)

    def _say(self, text: str) -> None:
        say(text)
        self._said = time.monotonic()

    def _summary(self, states: Sequence[State]) -> str:
        count = Counter(each.state for each in states)
        ended = count["done"] + count["failed"]
        seconds = time.monotonic() - self._began
        share = (ended + sum(_share(each) for each in states if each.state == "running")) / len(states)
        failed = f", {count['failed']} failed" if count["failed"] else ""
        left = f", about {_duration(seconds / share - seconds)} to go" if 0 < share < 1 else ""
        return f"{ended} of {len(states)} jobs have ended{failed} after {_duration(seconds)}{left}"

    def _table(self, states: Sequence[State]) -> Group:
        """All jobs, or where the terminal is too low for them those that are worked on; above them how many ended."""
        fits = len(states) + 4 <= err().height
        shown = [each for each in states if fits or each.state == "running"]
        died = any(each.deaths for each in shown)
        table = plain_table("job", "", "rounds", *(["deaths"] if died else []), numbers=[2, 3])
        for each in shown:
            known = each.job.rounds and each.state != "waiting"
            rounds = f"{each.done} of {each.job.rounds}" if known else ""
            table.add_row(each.job.title, each.state, rounds, *([str(each.deaths or "")] if died else []))
        return Group(self._summary(states), table)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _share(state: State) -> float:
    return state.done / state.job.rounds if state.job.rounds else 0.0
