"""What a part of a paper's experiment has computed, kept until the part has ended: another process can go on with it.

An experiment makes its federations and simulations itself, so they have no configuration and are no runs of the store.
They are recorded as runs are, round by round, in folders that are numbered in the order in which the part carries them
out, which is always the same.
"""

from __future__ import annotations

import json
import shutil
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from equifed.errors import DiskError, EquifedWarning, RunError
from equifed.files import checksum, plain, refuse_link
from equifed.simulation import Simulation
from equifed.simulator import Step
from equifed.store.environment import fingerprint
from equifed.store.folder import SCORES, Recorder, RunFolder
from equifed.store.results import CHECKPOINT
from equifed.store.sums import Sums

PAUSE = 20.0
"""Seconds between two checkpoints at least: a sweep's state may be large, and its rounds many and short."""


class Kept:
    """A `Watch` that keeps the simulations of one part in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self.seconds = 0.0
        """Of the rounds that processes before this one have computed."""

    def __call__(self, title: str, simulation: Simulation, whole: bool = False) -> Iterator[Step]:
        folder = RunFolder(self._folder / f"{self._count:03d}")
        self._count += 1
        if whole:
            yield from simulation.rounds()
            return
        recorder = _recorder(folder, simulation, identity(title, simulation))
        self.seconds += sum(step.seconds for step in recorder.recorded)
        step = None
        for step in recorder.rounds():
            yield step
        if step is None:
            yield replace(recorder.recorded[-1], last=True)


def _recorder(folder: RunFolder, simulation: Simulation, identity: str) -> Recorder:
    """It goes on where a process before this one stopped, or from the beginning where nothing can be used of that."""
    last = time.monotonic()

    def due(step: Step) -> bool:
        nonlocal last
        if time.monotonic() - last < PAUSE:
            return False
        last = time.monotonic()
        return True

    recorder = Recorder(folder, simulation, identity, due)
    if (folder.path / CHECKPOINT).exists():
        try:
            recorder.restore()
            return recorder
        except DiskError:
            raise
        except RunError as error:  # damaged, or another simulation's
            warnings.warn(f"A simulation of a part is computed again: {error}", EquifedWarning, stacklevel=3)
    refuse_link(folder.path)
    shutil.rmtree(folder.path, ignore_errors=True)
    (folder.path / SCORES).mkdir(parents=True, exist_ok=True)
    Sums(folder.path).save()
    return Recorder(folder, simulation, identity, due)


def identity(title: str, simulation: Simulation) -> str:
    """What tells a simulation from others: method, settings and rows."""
    job = simulation.job
    federations = {id(run.federation): run.federation for run in job.runs}
    return checksum(
        json.dumps(
            plain(
                [
                    title,
                    job.method.name,
                    job.method.hyper,
                    [run.hyper for run in job.runs],
                    job.settings.to_dict(),
                    str(job.task.module),
                    fingerprint(list(federations.values())),
                ]
            )
        ).encode()
    )


def rounds_kept(folder: Path) -> int:
    """How many rounds of a part will not be lost."""
    rounds = 0
    for path in folder.glob(f"*/{CHECKPOINT}"):
        try:
            rounds += RunFolder(path.parent).rounds_done()
        except (RunError, OSError):
            continue
    return rounds
