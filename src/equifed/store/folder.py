"""One run's folder, while it runs and after.

    config.toml             resolved: `equifed run` on it repeats the run
    environment.json        versions; data.json: names, hashes, fingerprint
    SUMS.json               checksums of these, and once the run has finished of all files but status.json
    status.json             running | finished | interrupted | failed; it makes the folder a run, and seals itself
    rounds.jsonl            a line per round: logs, rejections, seconds, new messages and notes, checksums of scores
    scores/00012.safetensors  what evaluation counted in round 12
    checkpoint.safetensors  all state after the last committed round, the checksum of the lines up to it, and its own
    sums/                   of a federation with secure sums: every exchange since the checkpoint (flower/journal.py)
    result.json             once it has finished, with metrics.parquet and the other files of `results.write_result`
    model/                  the model package (package.py), which can be used without the rest

A round counts once the checkpoint has replaced the one before; its scores and its line are written first. So whatever
moment the process dies at, the folder holds a consistent prefix of the run, and perhaps a tail that resuming discards:
lines and scores that the checkpoint does not vouch for, and files that were not yet in their place.
"""

from __future__ import annotations

import contextlib
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

import numpy as np
import tomli_w
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from equifed import tree
from equifed.config import MOST_BYTES, Config, load_config
from equifed.errors import DiskError, EquifedError, RunError
from equifed.files import (
    TEMPORARY,
    append,
    blake2,
    checksum,
    clear_temporaries,
    open_regular,
    plain,
    read_regular,
    read_sealed,
    refuse_link,
    sync,
    to_json,
    write,
    write_atomic,
    write_sealed,
)
from equifed.metrics.scored import Scored
from equifed.notes import Note
from equifed.results import Result
from equifed.signals import Stopped
from equifed.simulation import Training
from equifed.simulator import Message, Rejection, RoundLog, State, Step
from equifed.store.environment import data_record, environment
from equifed.store.locks import is_held, lock_at, take
from equifed.store.package import MODEL
from equifed.store.results import (
    CHECKPOINT,
    CONFIG,
    COPY,
    FEDERATION,
    JOURNAL,
    RESULT,
    check_result,
    load_result,
    remedy,
    resuming,
    write_result,
)
from equifed.store.sums import SUMS, Sums
from equifed.tracking import Callbacks, Round, Run
from equifed.words import clean

FORMAT = "equifed-checkpoint-4"
STATUS, LINES, SCORES, LOCK = "status.json", "rounds.jsonl", "scores", "lock"
INSIDE = (SCORES, MODEL, JOURNAL)
"""Folders of a run's folder."""
SCORED = re.compile(r"\d{5,}\.safetensors")
"""Names of the files of scores."""
BEFORE = (CONFIG, "environment.json", "data.json")
"""Files that a folder has before its run begins."""
OWN = (SUMS, STATUS, LINES, RESULT, *(name for name in BEFORE if name != CONFIG))
"""Files that tell the configuration of a run's folder, even of a part of one, from the user's own."""
Status = Literal["running", "finished", "interrupted", "failed"]


class Entry(NamedTuple):
    """A run in the list of runs."""

    id: str
    created: str
    name: str
    method: str
    data: str
    status: str
    rounds: int
    seeds: int
    metrics: dict[str, Any]
    """Headline metrics, means over seeds; empty until it has finished."""
    folder: str
    """The folder's name under the store's root."""


class RunFolder:
    """A run's folder: reads what is there, writes what is added."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = lock_at(path / LOCK)

    @staticmethod
    def is_one(path: Path) -> bool:
        """Whether the folder is a run's."""
        return (path / STATUS).is_file()

    @staticmethod
    def holds(file: Path) -> bool:
        """Whether the file is of a run's folder, or a configuration beside any of the files that such a folder has."""
        return any(
            RunFolder.is_one(each.parent)
            or (each.name.lower() == CONFIG and any((each.parent / name).is_file() for name in OWN))
            for each in (file, file.resolve())
        )

    @property
    def id(self) -> str:
        return self.path.name

    # -- reading -------------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """status.json; a run that says "running" without a living process was killed, which is an interruption."""
        recorded = self._status()
        if recorded["status"] == "running" and not is_held(self.lock):
            recorded |= {"status": "interrupted", "reason": "the process was killed"}
        return recorded

    @property
    def created(self) -> str:
        """When the run began, in ISO format."""
        return str(self._status()["created"])

    def _status(self) -> dict[str, Any]:
        try:
            return read_sealed(self.path / STATUS)
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path / STATUS} cannot be read: {error}. {self.remedy}") from None

    def config(self) -> Config:
        self.text(CONFIG)
        return load_config(self.path / CONFIG, received=True)

    def settings(self) -> dict[str, Any]:
        """config.toml as it is."""
        try:
            return tomllib.loads(self.text(CONFIG))
        except (ValueError, RecursionError) as error:
            raise RunError(f"{self.path / CONFIG} cannot be read as TOML: {clean(error)}. {COPY}") from None

    def record(self, name: str) -> Any:
        """What a JSON file of the folder holds."""
        return Sums.load(self.path, self.remedy).read_json(name)

    def text(self, name: str) -> str:
        """A file of the folder, which must be as it was written."""
        sums = Sums.load(self.path, self.remedy)
        if name == CONFIG:
            sums.remedy = COPY  # with a damaged one the run would not be the same
        return sums.read(name, MOST_BYTES).decode()

    @property
    def remedy(self) -> str:
        return remedy(self.path)

    def rounds_done(self) -> int:
        """The last committed round; 0 before the first."""
        if self._checkpoint.exists():
            sums = Sums.load(self.path, self.remedy)
            if CHECKPOINT in sums:  # the run has finished: an earlier one, which vouches for itself, is not its last
                sums.read(CHECKPOINT)
            return int(self._metadata()["round"])
        lines = self.path / LINES
        if lines.is_file() and lines.read_bytes().count(b"\n") > self.settings()["run"]["checkpoint-every"]:
            raise self.damaged("it is missing")
        return 0

    def entry(self) -> Entry:
        """Its line in the list of runs, read from the files."""
        config, status = self.settings(), self.status()
        finished = status["status"] == "finished"
        return Entry(
            self.id,
            status["created"],
            config["run"]["name"],
            config["method"]["name"],
            config["data"].get("name", "files"),
            status["status"],
            config["run"]["rounds"],
            len(config["run"]["seeds"]),
            self.record(RESULT)["headline"] if finished else {},
            self.path.name,
        )

    def result(self) -> Result:
        status = self.status()["status"]
        if status != "finished":
            where = f"after round {self.rounds_done()}" if status != "failed" else "with an error"
            todo = "Wait for it" if status == "running" else f"Continue it with `{self.resuming()}`"
            state = "is still running" if status == "running" else f"stopped {where}"
            raise RunError(f"Run {self.id} has no result: it {state}. {todo}.")
        return load_result(self.path)

    def facts(self) -> dict[str, Any]:
        """What the folder knows of the run beside its result: configuration, versions, data, time. By the names of
        `Result.info`."""
        data, status = self.record("data.json"), self.status()
        times = {"started": status["created"]}
        if status["status"] == "finished":
            times["finished"] = status["changed"]
        federated = (self.path / FEDERATION).is_file()
        whose = "server's rows" if federated else "rows"
        origins = {f"fingerprint of the {whose}": data["fingerprint"], "files of the silos": data["files"]}
        return {
            "run": {
                "id": self.id,
                **{what: f"{datetime.fromisoformat(time):%Y-%m-%d %H:%M:%S UTC}" for what, time in times.items()},
            },
            "provenance": {what: known for what, known in origins.items() if known},
            "versions": self.record("environment.json"),
            "config": self.text(CONFIG),
        }

    def is_finished(self) -> bool:
        """Whether nothing is left to be done: it has finished, and result and model are as they were written."""
        if self.status()["status"] != "finished":
            return False
        try:
            wrong = check_result(Sums.load(self.path, self.remedy))
        except RunError:
            return False
        return not any(name.startswith(f"{MODEL}/") for name in wrong)

    def resuming(self, name: str | None = None) -> str:
        """The command that goes on with it; `name`: what it may be called where the command is typed."""
        return resuming(self.path, name)

    @property
    def _checkpoint(self) -> Path:
        return self.path / CHECKPOINT

    def _metadata(self) -> dict[str, str]:
        try:
            open_regular(self._checkpoint).close()  # which a file of this format is
            with safe_open(self._checkpoint, framework="np") as file:
                metadata: dict[str, str] = file.metadata() or {}
        except (OSError, SafetensorError) as error:
            raise self.damaged(f"its header cannot be read: {error}") from None
        if metadata.get("format") != FORMAT:
            raise RunError(
                f"{self._checkpoint} has format {metadata.get('format')!r}, but this version of equifed "
                f"writes {FORMAT!r}: it is damaged, or another version made it. Use that version, put back a copy, or "
                f"start again: equifed run {self.path}/{CONFIG}"
            )
        if metadata.pop("seal", None) != _seal(metadata):
            raise self.damaged("its header does not fit its checksum")
        return metadata

    def damaged(self, what: str, name: str = CHECKPOINT) -> RunError:
        return RunError(f"{self.path / name} is damaged ({what}), so the run cannot go on. {self.remedy}")

    # -- writing -------------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: Path, config: Config, simulation: Training) -> RunFolder:
        """A new folder for the run; status.json is written last and makes it one."""
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        if not take(folder.lock):
            raise RunError(f"Run {folder.id} is being run by another process.")
        try:
            if not not_begun(path, JOURNAL, FEDERATION):  # a federation may have summed before its run begins
                raise RunError(
                    f"{path} cannot hold a new run: it has files of another. Go on with that one, whose {STATUS} must "
                    "be there, or choose another name."
                )
            folder.check_links()
            clear_temporaries(path)  # of a process that was killed here
            (path / SCORES).mkdir(exist_ok=True)
            data = data_record(config, simulation.job)
            contents = (tomli_w.dumps(config.resolved(path)).encode(), to_json(environment(simulation.job)))
            sums = Sums(path)
            for name, content in zip(BEFORE, (*contents, to_json(data)), strict=True):
                sums.write(name, content)
            sums.save()
            folder.set_status("running", created=datetime.now(UTC).isoformat(timespec="milliseconds"))
        except BaseException as error:
            folder.lock.release()
            if isinstance(error, DiskError):
                raise DiskError(f"{error} The run has not begun: start it again once that is put right.") from error
            raise
        return folder

    def check_links(self) -> None:
        """Refuse folders in it that are links, before anything is written or removed there."""
        for name in INSIDE:
            refuse_link(self.path / name)

    def set_status(self, status: Status, reason: str = "", **more: str) -> None:
        path = self.path / STATUS
        before = self._status() if path.exists() else {}
        now = datetime.now(UTC).isoformat(timespec="seconds")
        write_sealed(path, before | {"status": status, "reason": reason, "changed": now} | more)

    def write_scores(self, number: int, scores: list[dict[str, Scored]]) -> str:
        """Its checksum, by which the round's line vouches for it."""
        arrays = {
            f"run={run}/{split}/{name}": np.asarray(values, order="C")
            for run, scored in enumerate(scores)
            for split, counted in scored.items()
            for name, values in counted._asdict().items()
        }
        content = save(arrays)
        write(self.path / scores_name(number), content)
        return checksum(content)

    def write_checkpoint(self, number: int, state: State, config: str, lines: Lines) -> bytes:
        """Atomic; this is what commits the round. What the file holds."""
        arrays = {
            name: np.asarray(leaf.detach().cpu().numpy(), order="C") for name, leaf in tree.to_named(state).items()
        }
        metadata = {
            "format": FORMAT,
            "round": str(number),
            "config": config,
            "lines-size": str(lines.size),
            "lines-checksum": lines.checksum,
            "checksum": _digest(arrays),
        }
        content = save(arrays, metadata=metadata | {"seal": _seal(metadata)})
        write_atomic(self._checkpoint, content)
        return content

    def read_checkpoint(self, like: State, config: str) -> Checkpoint:
        """The last one; its state has the structure of `like`."""
        metadata = self._metadata()
        if metadata["config"] != config:
            raise RunError(
                f"The configuration of run {self.id} is not the one its checkpoint was made with: one of them is "
                f"another run's. {COPY}"
            )
        try:
            content = read_regular(self._checkpoint)
            arrays = load(content)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise self.damaged(str(error)) from None
        if _digest(arrays) != metadata["checksum"]:
            raise self.damaged("its content does not fit its checksum")
        expected = tree.to_named(like)
        for name, leaf in expected.items():
            if name not in arrays or tuple(arrays[name].shape) != tuple(leaf.shape):
                raise self.damaged(f"{name} is missing or has another shape than the method's state")
        values = {name: torch.from_numpy(arrays[name]).to(leaf.device) for name, leaf in expected.items()}
        lines = Lines(int(metadata["lines-size"]), metadata["lines-checksum"])
        return Checkpoint(int(metadata["round"]), tree.from_named(like, values), lines, checksum(content))

    # -- the line per round --------------------------------------------------------------------------------------------

    def read_lines(self, vouched: Lines) -> bytes:
        """The lines that a checkpoint vouches for; what comes after them, perhaps torn, is cut off the file."""
        path = self.path / LINES
        try:
            content = read_regular(path)
        except OSError as error:
            raise self.damaged(error.strerror or str(error), LINES) from None
        lines = content[: vouched.size]
        if checksum(lines) != vouched.checksum:
            raise self.damaged("the lines of rounds that were completed are not what was written", LINES)
        if len(content) > len(lines):
            write_atomic(path, lines)
        return lines


class Lines(NamedTuple):
    """The beginning of rounds.jsonl."""

    size: int
    """In bytes."""
    checksum: str


class Checkpoint(NamedTuple):
    round: int
    state: State
    lines: Lines
    """Of the rounds up to this one."""
    checksum: str
    """Of the file."""


class Recorder:
    """The rounds of a training, recorded in a folder from which another process can go on: `restore`, then iterate over
    `rounds`."""

    def __init__(self, folder: RunFolder, simulation: Training, identity: str, due: Callable[[Step], bool]) -> None:
        """identity: what tells this training from others. due: whether a round is worth a checkpoint; the last is."""
        self.folder, self.simulation = folder, simulation
        self._identity, self._due = identity, due
        self.recorded: list[Step] = []
        """The rounds that were recorded before, each with the state after the last of them."""
        self._resume: tuple[int, State] | None = None
        self._pending: list[Path] = []
        """Files to flush to the disk before the next checkpoint."""
        self._sums = Sums(folder.path)
        """Of all that was written, and of what was read and found as it was written."""
        self._lines, self._size = blake2(), 0
        """rounds.jsonl so far."""

    @property
    def done(self) -> int:
        """Rounds that were recorded before."""
        return self._resume[0] if self._resume else 0

    def restore(self) -> None:
        """Take up the last checkpoint, if there is one, and all that was recorded up to it."""
        self.folder.check_links()
        clear_temporaries(self.folder.path)
        if self.folder.rounds_done():
            like = self.simulation.engine.start()
            checkpoint = self.folder.read_checkpoint(like, self._identity)
            lines = self.folder.read_lines(checkpoint.lines)
            try:
                self._replay(checkpoint, lines)
            except (KeyError, TypeError, ValueError, SafetensorError) as error:
                raise self.folder.damaged(f"this version of equifed cannot read it: {error!r}", LINES) from error
            self._lines, self._size = blake2(lines), len(lines)
            self._sums |= {CHECKPOINT: checkpoint.checksum, LINES: checkpoint.lines.checksum}
            self._resume = checkpoint.round, checkpoint.state
        else:
            (self.folder.path / LINES).unlink(missing_ok=True)
        for path in (self.folder.path / SCORES).iterdir():
            again = f"{SCORES}/{path.name}" not in self._sums  # of a round that is computed again
            if again and SCORED.fullmatch(path.name) and not path.is_dir():
                path.unlink()

    def _replay(self, checkpoint: Checkpoint, lines: bytes) -> None:
        """Give the collector and the engine what they had when the checkpoint was made; nothing where something of it
        cannot be read."""
        runs = len(self.simulation.job.runs)
        messages: dict[tuple[str, int], Message] = {}
        notes: list[Note] = []
        recorded = Sums(self.folder.path, self.folder.remedy)
        for line in map(json.loads, lines.splitlines()):
            scores = {}
            for number, digest in line["evaluated"].items():
                name = scores_name(int(number))
                recorded[name] = digest
                scores[int(number)] = _read_scores(recorded.read(name), runs)
            self.recorded.append(_step(line, checkpoint.state, scores))
            for position, fields in line["messages"]:
                message = Message(**fields | {"down": tuple(fields["down"]), "up": tuple(fields["up"])})
                messages.setdefault((message.stage, position), message)
            notes += map(Note.from_json, line["notes"])
        engine = self.simulation.engine
        for step in self.recorded:
            self.simulation.collector.add(step)
        for key, message in messages.items():
            engine.messages.setdefault(key, message)
        for note in notes:
            if note not in engine.notes:
                engine.notes.append(note)
        self._sums |= recorded

    def rounds(self) -> Iterator[Step]:
        """Every round that is left, recorded before it is handed out."""
        engine = self.simulation.engine
        messages, notes = len(engine.messages), len(engine.notes)
        for step in self.simulation.rounds(self._resume):
            with self._resumable():
                self._write(step, list(engine.messages.items())[messages:], engine.notes[notes:])
            messages, notes = len(engine.messages), len(engine.notes)
            yield step

    def _write(self, step: Step, messages: list[tuple[tuple[str, int], Message]], notes: list[Note]) -> None:
        logs = [log._asdict() | {"obstacle": log.obstacle and log.obstacle.to_json()} for log in step.logs]
        scores = {number: self.folder.write_scores(number, counted) for number, counted in step.scores.items()}
        names = {scores_name(number): digest for number, digest in scores.items()}
        line = {
            "round": step.round,
            "seconds": step.seconds,
            "evaluated": scores,
            "logs": logs,
            "rejections": [[number, *rejection] for number, rejection in step.rejections],
            "messages": [[position, message._asdict()] for (_, position), message in messages],
            "notes": [note.to_json() for note in notes],
        }
        content = json.dumps(plain(line)).encode() + b"\n"
        append(self.folder.path / LINES, content)
        self._lines.update(content)
        self._size += len(content)
        self._sums |= names
        self._pending += [self.folder.path / name for name in (*names, LINES)]
        if step.last or self._due(step):
            for path in dict.fromkeys(self._pending):
                sync(path)
            self._pending.clear()
            lines = Lines(self._size, self._lines.hexdigest())
            written = self.folder.write_checkpoint(step.round, step.state, self._identity, lines)
            if step.last:
                self._sums |= {CHECKPOINT: checksum(written), LINES: lines.checksum}

    @contextlib.contextmanager
    def _resumable(self) -> Iterator[None]:
        """A disk that is full or read-only says that nothing is lost."""
        try:
            yield
        except DiskError as error:
            raise DiskError(
                f"{error} All rounds that were completed are kept: once that is put right, {self._going_on}."
            ) from error

    @property
    def _going_on(self) -> str:
        """What to do for the rest of the rounds."""
        return "give the same command again"


class Recording(Recorder):
    """A run in progress, recorded round by round: iterate over `rounds`, then `finish`. Use it in a `with`."""

    def __init__(
        self,
        folder: RunFolder,
        config: Config,
        simulation: Training,
        callbacks: Callbacks,
    ) -> None:
        every = config.run.checkpoint_every
        super().__init__(folder, simulation, config.fingerprint(folder.path), lambda step: step.round % every == 0)
        self.config = config
        self.callbacks = callbacks
        """Told what has been recorded."""
        self._finished = False
        before = Sums.load(folder.path, folder.remedy)
        self._sums.update({name: before[name] for name in BEFORE})

    @property
    def _going_on(self) -> str:
        return f"go on with `{self.folder.resuming()}`"

    def rounds(self) -> Iterator[Step]:
        """Every round, recorded before it is handed out."""
        job = self.simulation.job
        self.callbacks.run_started(Run.of(job, self.config.run.name, self.folder.path, self.done))
        for step in super().rounds():
            self.callbacks.round_finished(Round(job, step))
            yield step

    def finish(self) -> Result:
        result = self.simulation.result()
        with self._resumable():
            if (self.folder.path / FEDERATION).is_file():
                self._sums[FEDERATION] = checksum((self.folder.path / FEDERATION).read_bytes())
            write_result(self._sums, result, self.folder.facts())
            self.folder.set_status("finished")
        self._finished = True
        self.callbacks.run_finished(result, self.folder.path)
        return result

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # what went wrong must not be hidden by a disk that does not even take this: without it the run counts as killed
        with contextlib.suppress(*([] if error is None else [EquifedError])):
            if self._finished:  # whatever happened while it was told
                pass
            elif isinstance(error, Exception):
                self.folder.set_status("failed", f"{type(error).__name__}: {error}")
            elif error is not None:
                by_signal = isinstance(error, Stopped)
                self.folder.set_status("interrupted", str(error) if by_signal else "stopped by the user")
        self.folder.lock.release()
        if error is not None and not self._finished:
            self.callbacks.run_stopped(error)


def not_begun(path: Path, *more: str) -> bool:
    """Whether the folder holds nothing but what a run writes before it begins, and what is named besides."""
    names = {inside.name for inside in path.iterdir() if not TEMPORARY.fullmatch(inside.name)}
    return names <= {*BEFORE, SUMS, SCORES, LOCK, *more}


def scores_name(number: int) -> str:
    return f"{SCORES}/{number:05d}.safetensors"


def _read_scores(content: bytes, runs: int) -> list[dict[str, Scored]]:
    arrays = load(content)
    scores: list[dict[str, Scored]] = [{} for _ in range(runs)]
    splits = dict.fromkeys(tuple(name.split("/")[:2]) for name in arrays)
    for run, split in splits:
        parts = {field: arrays[f"{run}/{split}/{field}"] for field in Scored._fields}
        scores[int(run.removeprefix("run="))][split] = Scored(**parts)
    return scores


def _read_log(line: dict[str, Any]) -> RoundLog:
    observed = {name: float(value) for name, value in line["observed"].items()}
    obstacle = line["obstacle"] and Note.from_json(line["obstacle"])
    return RoundLog(**line | {"observed": observed, "obstacle": obstacle})


def _step(line: dict[str, Any], state: State, scores: dict[int, list[dict[str, Scored]]]) -> Step:
    logs = [_read_log(log) for log in line["logs"]]
    rejections = [(number, Rejection(*rest)) for number, *rest in line["rejections"]]
    return Step(line["round"], state, logs, rejections, scores, line["seconds"], last=False)


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    digest = blake2()
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].dtype}{arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    found: str = digest.hexdigest()
    return found


def _seal(metadata: Mapping[str, str]) -> str:
    return checksum(json.dumps(metadata, sort_keys=True).encode())
