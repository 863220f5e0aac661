"""Independent jobs, carried out one after another or shared out by Ray."""

from __future__ import annotations

import contextlib
import os
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from equifed.errors import EquifedError, RunError
from equifed.settings import Cluster

Load = Callable[[Any], Any]
"""What jobs with this key work on."""
PAUSE = 0.5
"""Seconds between two looks at where the jobs stand."""


class Job(NamedTuple):
    """One piece of work that depends on no other."""

    title: str
    """What it is called where the work is watched."""
    work: Callable[..., Any]
    """A function of a module, where other processes find it: (data, *arguments) -> anything small."""
    arguments: tuple[Any, ...]
    data: Hashable = None
    """The key of what it works on. Jobs with one key share it, and it is sent once to each machine."""
    rounds: int = 0
    """How many it has, where that is known."""
    done: Callable[[], int] = int
    """How many of them are completed and will not be lost."""


class Outcome(NamedTuple):
    """A job that has ended."""

    position: int
    """Which of the jobs."""
    value: Any = None
    """What its work returned."""
    error: str = ""
    """What went wrong; empty where nothing did."""


class State(NamedTuple):
    """Where a job stands."""

    job: Job
    state: Literal["waiting", "running", "done", "failed"]
    done: int = 0
    """Rounds that are completed."""
    deaths: int = 0
    """Processes that died while they worked on it."""


Watch = Callable[[Sequence[State]], None]
"""Told now and then where all jobs stand."""


def carry_out(
    jobs: Sequence[Job], load: Load, cluster: Cluster, watch: Watch = lambda states: None
) -> Iterator[Outcome]:
    """Every job, each as it ends. What one of them fails by, or its data, is its outcome, and costs no other."""
    if cluster.workers > 1 or cluster.address is not None:
        from equifed.studies.on_ray import share_out

        return share_out(jobs, load, cluster, watch)
    return in_turn(jobs, load, watch)


def in_turn(jobs: Sequence[Job], load: Load, watch: Watch = lambda states: None) -> Iterator[Outcome]:
    data = Shared(jobs, load)
    states = [State(job, "waiting") for job in jobs]
    for position, job in enumerate(jobs):
        with _watched(states, position, watch):
            loaded, error = attempt(data.of, job)
            value, error = (None, error) if error else attempt(job.work, loaded, *job.arguments)
        data.finished(job)
        states[position] = State(job, "failed" if error else "done", job.done())
        watch(states)
        yield Outcome(position, value, error)


@contextlib.contextmanager
def _watched(states: list[State], position: int, watch: Watch) -> Iterator[None]:
    """While a job is worked on in this thread, another looks how far it is."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(PAUSE):
            states[position] = states[position]._replace(done=states[position].job.done())
            watch(states)

    states[position] = State(states[position].job, "running")
    watch(states)
    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        ended.set()
        looking.join()


def attempt(work: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    """What the work returns, and what it fails by."""
    try:
        return work(*arguments), ""
    except EquifedError as error:
        return None, str(error)
    except Exception as error:
        if os.environ.get("EQUIFED_DEBUG"):
            traceback.print_exc()
        return None, f"{type(error).__name__}: {error}"


class Shared:
    """What jobs work on, made when the first of them needs it and let go after the last."""

    def __init__(self, jobs: Sequence[Job], load: Load, keep: Callable[[Any], Any] = lambda data: data) -> None:
        self._load, self._keep = load, keep
        self._left = Counter(job.data for job in jobs)
        self._made: dict[Hashable, Any] = {}

    def of(self, job: Job) -> Any:
        if job.data not in self._made:
            self._made[job.data] = self._keep(self._load(job.data))
        return self._made[job.data]

    def finished(self, job: Job) -> None:
        self._left[job.data] -= 1
        if not self._left[job.data]:
            self._made.pop(job.data, None)


def no_ray() -> RunError:
    return RunError(
        "Several workers, and clusters, need Ray, which is not installed: pip install 'equifed[cluster]'. "
        "Without it, leave out --workers and --ray-address."
    )
