"""Jobs shared out by Ray, on this machine or on a cluster.

What jobs work on is put into Ray's object store when the first job needs it, so that it travels once to each node and
is read there in place. A job whose process or node dies is given out again, and its work goes on from what it had
saved; one that dies again and again without getting any further is given up.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from equifed.errors import RunError
from equifed.registry import allowed, trust
from equifed.settings import Cluster
from equifed.signals import set_handlers
from equifed.studies.jobs import PAUSE, Job, Load, Outcome, Shared, State, Watch, attempt, no_ray
from equifed.words import clean

DEATHS = 3
"""How often a job's process may die without completing another round before the job is given up."""
REACHABLE = 10.0
"""Seconds within which a cluster must take a connection."""
LOCAL = "local"


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise no_ray() from None
    return ray


def _perform(data: Any, work: Any, arguments: tuple[Any, ...], allowed: Sequence[str]) -> tuple[Any, str]:
    """In a worker's process. allowed: names of other packages that the user of this study has typed or trusts."""
    trust(*allowed)
    with warnings.catch_warnings():
        # the arrays are read in Ray's own memory, where nothing may be written, and nothing is
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return attempt(work, data, *arguments)


@contextlib.contextmanager
def connected(cluster: Cluster) -> Iterator[Any]:
    """Ray, as this process is connected to it already, or else for as long as the jobs take."""
    # Ray asks not to be told of GPUs that it would hide from jobs that declare no need of them
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with _own_sigterm():
        ray = _ray()
    if ray.is_initialized():
        yield ray
        return
    address = cluster.address or os.environ.get("RAY_ADDRESS")
    where = f"the Ray cluster at {address!r}" if address else "Ray on this machine"
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "include_dashboard": False}
    try:
        if address and address != LOCAL:
            _check_reachable(address)
            del options["include_dashboard"]
            with _own_sigterm():
                ray.init(address=address, **options)
        else:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else Ray would report its use to its makers
            with _own_sigterm():
                ray.init(address=LOCAL, num_cpus=math.ceil(cluster.workers * cluster.cpus_per_job), **options)
    except Exception as error:  # on a busy machine, where its parts start too slowly, Ray raises a bare one
        raise RunError(f"There is no connection to {where}: {clean(str(error).partition(chr(10))[0])}") from error
    # Ray prints deaths of processes on stdout, where data go; who watches the jobs is told of them anyway
    worker = ray._private.worker
    printing = getattr(worker, "_worker_logs_enabled", True)
    worker._worker_logs_enabled = False
    try:
        yield ray
    finally:
        ray.shutdown()
        worker._worker_logs_enabled = printing


def _own_sigterm() -> contextlib.AbstractContextManager[None]:
    """Keep this program's way to end on SIGTERM, which Ray replaces by one that does not say how to go on."""
    now = signal.getsignal(signal.SIGTERM)
    return set_handlers({} if now is None else {signal.SIGTERM: now})


def _check_reachable(address: str) -> None:
    """Fail at once if there is no answer: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), REACHABLE).close()


def _check_needs(ray: Any, cluster: Cluster) -> None:
    """Refuse what no node has: such a job would wait for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for name, need in (("CPU", cluster.cpus_per_job), ("GPU", cluster.gpus_per_job)):
        most = max((node.get(name, 0.0) for node in nodes), default=0.0)
        if need > most:
            option = f"--{name.lower()}s-per-job"
            raise RunError(
                f"{option} asks for {need:g} {name}s in one place, and no node of the cluster has more than {most:g}."
            )


def share_out(jobs: Sequence[Job], load: Load, cluster: Cluster, watch: Watch) -> Iterator[Outcome]:
    """At most `workers` jobs at a time, begun in their order; each as it ends."""
    with connected(cluster) as ray:
        _check_needs(ray, cluster)
        yield from _Sharing(ray, jobs, load, cluster, watch).outcomes()


class _Sharing:
    def __init__(self, ray: Any, jobs: Sequence[Job], load: Load, cluster: Cluster, watch: Watch) -> None:
        self.ray, self.jobs, self.cluster, self.watch = ray, jobs, cluster, watch
        self.data = Shared(jobs, load, keep=ray.put)
        # Ray's own retries would not count what a job has completed, and would hide that processes die
        needs = {"num_cpus": cluster.cpus_per_job, "num_gpus": cluster.gpus_per_job, "max_retries": 0}
        self.perform = ray.remote(**needs)(_perform)
        self.states = [State(job, "waiting") for job in jobs]
        self.running: dict[Any, int] = {}
        """Ray's promises of an outcome, with the positions of their jobs."""
        self.begun_at = [0] * len(jobs)
        """Rounds that each job had completed when it was given out last."""
        self.in_vain = [0] * len(jobs)
        """Processes in a row that died before they completed another round of it."""

    def outcomes(self) -> Iterator[Outcome]:
        todo = iter(range(len(self.jobs)))
        try:
            while True:
                ended: list[Outcome | None] = []
                while len(self.running) < self.cluster.workers and (position := next(todo, None)) is not None:
                    ended.append(self._give_out(position))
                if not self.running and not ended:
                    return
                if self.running:
                    ready, _ = self.ray.wait(list(self.running), timeout=PAUSE)
                    ended += map(self._ended, ready)
                self._look()
                yield from filter(None, ended)
        finally:
            for each in self.running:  # the reader has gone away, or was interrupted
                self.ray.cancel(each, force=True)

    def _give_out(self, position: int) -> Outcome | None:
        """None, and the job is worked on; its outcome where what it works on could not be loaded."""
        job = self.jobs[position]
        data, error = attempt(self.data.of, job)
        if error:
            return self._outcome(position, None, error)
        self.begun_at[position] = job.done()
        promised = self.perform.remote(data, job.work, job.arguments, allowed())
        self.running[promised] = position
        self._set(position, state="running", done=self.begun_at[position])
        return None

    def _ended(self, promised: Any) -> Outcome | None:
        """The job's outcome; None where its process has died and it was given out again."""
        position = self.running.pop(promised)
        job = self.jobs[position]
        try:
            value, error = self.ray.get(promised)
        except self.ray.exceptions.RayTaskError as wrong:  # such as equifed, or a method, not installed on a node
            value, error = None, f"a worker could not begin with it: {_last_line(wrong)}"
        except self.ray.exceptions.RayError as death:
            got_further = job.done() > self.begun_at[position]
            self.in_vain[position] = 1 if got_further else self.in_vain[position] + 1
            self._set(position, deaths=self.states[position].deaths + 1)
            if self.in_vain[position] < DEATHS:
                return self._give_out(position)
            value, error = None, f"its process died {DEATHS} times at the same place: {str(death).splitlines()[0]}"
        return self._outcome(position, value, error)

    def _outcome(self, position: int, value: Any, error: str) -> Outcome:
        job = self.jobs[position]
        self.data.finished(job)
        self._set(position, state="failed" if error else "done", done=job.done())
        return Outcome(position, value, error)

    def _look(self) -> None:
        for position in self.running.values():
            self._set(position, done=self.jobs[position].done())
        self.watch(self.states)

    def _set(self, position: int, **changes: Any) -> None:
        self.states[position] = self.states[position]._replace(**changes)


def _last_line(error: Exception) -> str:
    """What a traceback ends with."""
    return str(error).strip().splitlines()[-1]
