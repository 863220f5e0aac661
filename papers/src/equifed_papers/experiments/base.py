"""What the experiments share: methods as rows, numbers beside published ones, choosing a setting, and what is shown."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.resources import files
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from equifed.errors import unknown_name
from equifed.metrics.seeds import ROUNDING, mean_interval, moments
from equifed.metrics.seeds import mean as mean_over
from equifed.protocol import Method
from equifed.results import Result
from equifed.simulation import Simulation
from equifed.simulator import Step
from equifed_papers.experiments import EXPERIMENTS, Request

NAN = float("nan")

# -- carrying out ------------------------------------------------------------------------------------------------------


class Watch(Protocol):
    """Gives the rounds of each simulation of an experiment; shows or keeps them on the way."""

    def __call__(self, title: str, simulation: Simulation, whole: bool = False) -> Iterator[Step]:
        """Those that are not done yet, or the last if all are. whole: all of them, since each is looked at."""


def unwatched(title: str, simulation: Simulation, whole: bool = False) -> Iterator[Step]:
    return simulation.rounds()


def carry_out(simulation: Simulation, title: str, watch: Watch) -> Step:
    """All rounds; the last of them."""
    (last,) = deque(watch(title, simulation), maxlen=1)
    return last


# -- the rows of a table -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arm:
    """One method of an experiment."""

    label: str
    """As in the paper."""
    method: Method
    over: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Values of hyperparameters that are swept."""
    round_factor: float = field(default=1.0, kw_only=True)
    """Rounds, as a multiple of the others'."""


AnyArm = TypeVar("AnyArm", bound=Arm)


def arms_named(
    arms: Iterable[AnyArm], names: Sequence[str] | None, more: Mapping[str, Sequence[str]] = {}
) -> list[AnyArm]:
    """Arms by their label, in any case, or by their method's name; None for all. more: other names of a label."""
    arms = list(arms)
    if names is None:
        return arms
    known = {arm.label: {arm.label.lower(), arm.method.name, *map(str.lower, more.get(arm.label, ()))} for arm in arms}
    check_names("method of the table", [name.lower() for name in names], set().union(*known.values()))
    return [arm for arm in arms if known[arm.label] & {name.lower() for name in names}]


def check_names(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    for name in given:
        if name not in known:
            raise unknown_name(what, name, known)


def requested(request: Request, option: str, default: Iterable[str], known: Iterable[str]) -> list[str]:
    """The names that an option of the request lists, all of them known, or else the default."""
    names = getattr(request, option) or list(default)
    check_names("data set of this experiment" if option == "datasets" else option, names, known)
    return list(names)


# -- numbers, ours and theirs ------------------------------------------------------------------------------------------


def published(
    paper: str, key: Sequence[str], value: Sequence[str], **where: str
) -> dict[tuple[str, ...], tuple[float, ...]]:
    """{columns of `key`: columns of `value`} of those rows of a paper's published.csv that have these values."""
    text = files(f"equifed_papers.experiments.{paper}").joinpath("published.csv").read_text(encoding="utf-8")
    return {
        tuple(row[name] for name in key): tuple(float(row[name]) for name in value)
        for row in csv.DictReader(text.splitlines())
        if all(row[name] == expected for name, expected in where.items()) and all(row[name] for name in value)
    }


def within_noise(ours: Sequence[float], theirs: Sequence[float], runs: int, their_runs: int | None = None) -> bool:
    """|difference of means| <= 2 sqrt(s1^2/n1 + s2^2/n2), for (mean, deviation) over n runs each."""
    noise = 2 * np.sqrt(ours[1] ** 2 / runs + theirs[1] ** 2 / (their_runs or runs))
    return bool(abs(ours[0] - theirs[0]) <= noise)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of a table, ours and theirs."""

    dataset: str
    method: str
    """As in the paper."""
    metric: str
    mean: float
    std: float
    published_mean: float = NAN
    published_std: float = NAN
    within: bool | None = None
    """Whether both agree within noise; None where nothing was published, or one run has no deviation."""
    runs: int = 0
    """Runs of ours in which it is defined."""
    low: float = NAN
    high: float = NAN
    """The 95 % interval of our mean over runs; nan for fewer than three of them."""
    degenerate: int = 0
    """Runs whose predictor is constant for some group."""

    @property
    def place(self) -> str:
        """Where in the table it stands besides data set, method and metric, e.g. "sigma 0.5"."""
        return ""

    @classmethod
    def row(
        cls, values: Mapping[str, Any], theirs: Mapping[str, Sequence[float] | None], *, runs: int | None = None,
        their_runs: int | None = None, **others: Any,
    ) -> list[Self]:  # fmt: skip
        """A cell for each metric: mean and deviation of its values, beside (mean, deviation) as published.

        Values are one per run, or [run, model] where every client has a model, whose deviation is then over all models.
        They are judged by the noise of this many runs; None: as many as there are defined values. A deviation that was
        not published is taken to be ours.
        """
        cells = []
        for metric, sample in values.items():
            mean, std, defined = moments(sample)
            them = theirs.get(metric) or (NAN, NAN)
            count = defined if runs is None else runs
            their_std = std if np.isnan(them[1]) else them[1]
            judged = not np.isnan([std, them[0]]).any()
            within = within_noise((mean, std), (them[0], their_std), count, their_runs) if judged else None
            by_run = np.asarray(sample, dtype=float)
            low, high = mean_interval(by_run if by_run.ndim == 1 else mean_over(by_run)) or (NAN, NAN)
            figures: dict[str, Any] = {"mean": mean, "std": std, "published_mean": them[0], "published_std": them[1]}
            cells.append(cls(metric=metric, **figures, within=within, runs=count, low=low, high=high, **others))
        return cells

    @classmethod
    def counted(cls, metric: str, ours: float, theirs: float, digits: int, **others: Any) -> Self:
        """A number that no seed changes, such as bytes of a message, beside one that is printed to so many decimals."""
        within = None if np.isnan(theirs) else bool(abs(ours - theirs) <= 0.5 * 10.0**-digits + ROUNDING)
        return cls(
            metric=metric, mean=ours, std=0.0, published_mean=theirs, published_std=0.0, within=within, runs=1,
            low=ours, high=ours, **others,
        )  # fmt: skip

    @property
    def mark(self) -> str:
        return {True: " =", False: " ≠", None: ""}[self.within]

    @property
    def text(self) -> str:
        return plus_minus(self.mean, self.std) + self.mark

    @property
    def beside(self) -> str:
        """Ours (published), and whether they agree."""
        if np.isnan(self.published_mean):
            return self.text
        return f"{plus_minus(self.mean, self.std)} ({plus_minus(self.published_mean, self.published_std)}){self.mark}"


def plus_minus(mean: float, std: float, digits: int = 2) -> str:
    if np.isnan(mean):
        return "undefined"
    return f"{mean:.{digits}f}" + ("" if np.isnan(std) else f"±{std:.{digits}f}")


# -- choosing a setting ------------------------------------------------------------------------------------------------


def swept_settings(simulation: Simulation) -> list[dict[str, Any]]:
    """The settings of a sweep in the order of its runs; every seed of one comes before the next."""
    return [dict(setting) for setting in dict.fromkeys(tuple(run.hyper.items()) for run in simulation.job.runs)]


def of_setting(result: Result, setting: Mapping[str, float]) -> Any:
    """The final test metrics of one setting, a row per seed."""
    final = result.final()
    for name, value in setting.items():
        final = final[np.isclose(final[name], value)]
    return final


def choose(quality: Any, disparity: Any, floor: float) -> int:
    """The index of the smallest disparity among settings of at least this quality, else that of the best quality."""
    quality = np.nan_to_num(np.asarray(quality, dtype=float), nan=-np.inf)
    disparity = np.nan_to_num(np.asarray(disparity, dtype=float), nan=np.inf)
    allowed = quality >= floor
    return int(np.argmin(np.where(allowed, disparity, np.inf)) if allowed.any() else np.argmax(quality))


# -- what is shown -----------------------------------------------------------------------------------------------------


class Table(NamedTuple):
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[int] = (0,)
    """Columns of words; the others are of numbers."""


AnyCell = TypeVar("AnyCell", bound=Cell)


def row_line(row: Sequence[Cell], *where: str) -> str:
    """One method's cells as a line of text."""
    return f"{' '.join((*where, row[0].method))}: " + ", ".join(f"{cell.metric} {cell.text}" for cell in row)


def table_of_cells(
    title: str,
    cells: Iterable[AnyCell],
    text: Callable[[AnyCell], str] = lambda cell: cell.beside,
    **more: Callable[[AnyCell], str],
) -> Table:
    """A line for each method, marked with * where some predictor is degenerate; more: columns of its first cell."""
    lines: dict[str, list[AnyCell]] = {}
    for cell in cells:
        lines.setdefault(cell.method, []).append(cell)
    metrics = dict.fromkeys(cell.metric for line in lines.values() for cell in line)
    rows = [
        [method + ("*" if line[0].degenerate else ""), *map(text, line), *(show(line[0]) for show in more.values())]
        for method, line in lines.items()
    ]
    return Table(title, ("method", *metrics, *more), rows)


@dataclass(frozen=True)
class Part:
    """A finished part of an experiment, which is written, saved and shown before the next begins."""

    rows: Sequence[Any] = ()
    """Dataclasses: what --json lists."""
    lines: Sequence[str] = ()
    """What people read while the experiment goes on."""
    shown: Sequence[Table | str] = ()
    """What people read of it in the end."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """What --json has besides."""
    results: Sequence[Result] = ()
    page: tuple[str, ...] = ()
    """The page of which its results are a part is named so."""
    disparity: str | None = None
    """What the page's verdict is about, where it is not the usual."""
    cells: Sequence[Cell] = ()
    """Published numbers beside ours, where its rows are something else."""

    @property
    def numbers(self) -> list[Cell]:
        """All cells with a published number."""
        cells = [*(row for row in self.rows if isinstance(row, Cell)), *self.cells]
        return [cell for cell in cells if not np.isnan(cell.published_mean)]


@dataclass(frozen=True)
class Experiment:
    parts: Callable[[Request, Watch], Iterator[Part]]
    """Refuses what is wrong with a request before anything is computed."""
    rows: str = "points"
    """What --json calls its rows."""
    kept: type | None = None
    """The class of rows that are kept in a CSV file as they are made, where an experiment takes hours."""
    jobs: Sequence[Request] = (Request(),)
    """The whole experiment in parts that depend on no other, the quickest first; none where another experiment has all
    its numbers. What `equifed reproduce all` carries out."""
    gpu_jobs: Sequence[Request] = ()
    """Those that take days without a GPU."""
    own: Callable[[Any], bool] = lambda cell: True
    """Which cells are the experiment's own: the others repeat another table's published numbers."""


def find(name: str) -> Experiment:
    """An experiment by its name in EXPERIMENTS."""
    check_names("experiment", [name], EXPERIMENTS)
    paper, _, part = name.partition("/")
    module = import_module(f"equifed_papers.experiments.{paper.replace('-', '_')}.show")
    experiments: dict[str, Experiment] = module.EXPERIMENTS
    return experiments[part]
