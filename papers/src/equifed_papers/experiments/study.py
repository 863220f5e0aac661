"""The papers' experiments as a study: each in the parts that depend on no other, recorded as they end."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

import equifed
from equifed.errors import ConfigError, DataError, RunError, unknown_name
from equifed.files import checksum, plain, refuse_link, to_json, write_atomic
from equifed.settings import Cluster
from equifed.store.environment import revision, versions
from equifed.store.locks import lock_at, take
from equifed.studies.jobs import Job, Watch, carry_out
from equifed.studies.runs import GONE, on_shared_folder
from equifed_papers import HOME
from equifed_papers.experiments import EXPERIMENTS, Request
from equifed_papers.experiments.base import Cell, find
from equifed_papers.experiments.kept import Kept, rounds_kept
from equifed_papers.experiments.record import NO_DATA, NO_GPU, NOT_RUN, Row

FILTERS = ("datasets", "sigma", "skew", "alpha")
"""Options that choose among an experiment's parts."""
AMOUNTS = ("seeds", "rounds")


def names(given: str) -> list[str]:
    """Experiments by "all", a paper, or their own name, several with commas."""
    chosen: list[str] = []
    for word in given.split(","):
        found = [name for name in EXPERIMENTS if word in ("all", name, name.partition("/")[0])]
        if not found:
            papers = dict.fromkeys(name.partition("/")[0] for name in EXPERIMENTS)
            raise unknown_name("experiment", word, ["all", *papers, *EXPERIMENTS])
        chosen += found
    return [name for name in EXPERIMENTS if name in chosen]


class Piece(NamedTuple):
    """One part of an experiment."""

    experiment: str
    request: Request
    needs_gpu: bool = False

    @property
    def part(self) -> str:
        """What tells it from the experiment's other parts."""
        return " ".join(",".join(value) for name in FILTERS if (value := getattr(self.request, name)))

    @property
    def amount(self) -> str:
        """Seeds and rounds that were asked for."""
        return " ".join(f"{name}={value}" for name in AMOUNTS if (value := getattr(self.request, name)))

    @property
    def title(self) -> str:
        return f"{self.experiment} {self.part}".strip()

    def folder(self, root: Path) -> Path:
        """Where it is kept until it has ended, among the runs. Another version's is another."""
        what = [self.experiment, dataclasses.asdict(self.request), version(), versions()]
        return root / f"reproduce-{checksum(json.dumps(plain(what)).encode())[:16]}"


def pieces(experiments: Sequence[str], request: Request) -> list[Piece]:
    """The parts of these experiments that a request asks for; the first of each with --quick."""
    for option in request.given:
        if option not in (*FILTERS, *AMOUNTS):
            raise ConfigError(f"Only one experiment at a time, without --record, takes --{option}.", key=f"--{option}")
    found = []
    for name in experiments:
        experiment, options = find(name), EXPERIMENTS[name].options
        amount = {option: getattr(request, option) for option in AMOUNTS if option in options}
        own = [Piece(name, job) for job in experiment.jobs] + [Piece(name, job, True) for job in experiment.gpu_jobs]
        own = [piece for piece in own if all(_fits(piece, option, request) for option in FILTERS)]
        own = [piece._replace(request=dataclasses.replace(piece.request, **amount)) for piece in own]
        if request.quick:
            own = [piece._replace(request=dataclasses.replace(piece.request, quick=True)) for piece in own[:1]]
        found += own
    for option in FILTERS:
        known = {value for piece in found for value in getattr(piece.request, option) or ()}
        for value in getattr(request, option) or ():
            if value not in known:
                raise unknown_name(f"value of --{option} for these experiments", value, sorted(known))
    return found


def _fits(piece: Piece, option: str, request: Request) -> bool:
    asked, have = getattr(request, option), getattr(piece.request, option)
    return asked is None or bool(set(asked) & set(have or ()))


class Ended(NamedTuple):
    """A part that was carried out, or was not."""

    piece: Piece
    rows: Sequence[Row]
    text: str = ""
    """Why not; of one that failed, without rows, what went wrong."""


def version() -> str:
    """The commit of both packages and what changed since; their version where they are not under git."""
    return revision(HOME) or f"equifed {equifed.__version__}"


def missing(wanted: Sequence[Piece], recorded: Sequence[Row]) -> list[Piece]:
    """Those that this version has not recorded in full and in this amount."""
    now = version()
    known = [(row.reason in NOT_RUN, (row.experiment, row.part, row.amount)) for row in recorded if row.commit == now]
    done = {part for _, part in known} - {part for unfinished, part in known if unfinished}
    return [piece for piece in wanted if (piece.experiment, piece.part, piece.amount) not in done]


def carried_out(
    todo: Sequence[Piece], root: Path, cluster: Cluster, watch: Watch = lambda states: None
) -> Iterator[Ended]:
    """Each part as it ends; what one of them fails by costs no other. root: under which all workers find the parts'
    folders."""
    left_out = [piece for piece in todo if piece.needs_gpu and not (torch.cuda.is_available() or cluster.gpus_per_job)]
    for piece in left_out:
        yield Ended(piece, [_empty(piece, NO_GPU)], NOT_RUN[NO_GPU])
    todo = [piece for piece in todo if piece not in left_out]
    jobs = []
    for piece in todo:
        folder = piece.folder(root)
        refuse_link(folder)
        folder.mkdir(exist_ok=True)
        about = folder / "part.json"
        write_atomic(about, to_json({"part": piece.title, "version": version()}))
        jobs.append(Job(piece.title, on_shared_folder, (about, work, piece, folder), done=partial(rounds_kept, folder)))
    for outcome in carry_out(jobs, lambda key: None, cluster, watch):
        piece = todo[outcome.position]
        if outcome.error:
            yield Ended(piece, [], outcome.error)
        else:
            yield Ended(piece, *outcome.value)


def work(data: Any, piece: Piece, folder: Path) -> tuple[list[Row], str]:
    """All of one part, or what is left of it: its rows, and what is wrong where its data cannot be had."""
    with _held(folder):
        return _carried_out(piece, Kept(folder))


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """The part's folder, which one process at a time works in."""
    lock, until = lock_at(folder / "lock"), time.monotonic() + GONE
    while not take(lock):  # by a process that is about to die
        if time.monotonic() > until:
            raise RunError("Another process is carrying out the same part. Wait for it.")
        time.sleep(0.2)
    try:
        yield
    finally:
        lock.release()


def discard(folder: Path) -> None:
    """Removes what was kept of a part that has ended, unless another process is carrying out the same part."""
    lock = lock_at(folder / "lock")
    if folder.exists() and take(lock):
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def _carried_out(piece: Piece, kept: Kept) -> tuple[list[Row], str]:
    experiment = find(piece.experiment)
    began = time.monotonic()
    cells: list[Cell] = []
    lacking = ""
    try:
        for part in experiment.parts(piece.request, kept):
            cells += [cell for cell in part.numbers if experiment.own(cell)]
    except DataError as error:
        lacking = str(error)
    common = dataclasses.replace(_empty(piece), seconds=kept.seconds + time.monotonic() - began)
    rows = [
        dataclasses.replace(
            common,
            dataset=cell.dataset,
            place=cell.place,
            method=cell.method,
            metric=cell.metric,
            published=cell.published_mean,
            published_std=cell.published_std,
            ours=cell.mean,
            std=cell.std,
            runs=cell.runs,
            low=cell.low,
            high=cell.high,
            within=cell.within,
            degenerate=cell.degenerate,
        )
        for cell in cells
    ]
    if lacking:
        rows.append(_empty(piece, NO_DATA))
    return rows or [common], lacking


def _empty(piece: Piece, reason: str = "") -> Row:
    return Row(
        experiment=piece.experiment,
        part=piece.part,
        amount=piece.amount,
        reason=reason,
        commit=version(),
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
    )
