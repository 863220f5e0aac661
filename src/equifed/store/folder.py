"""One run's folder, while it runs and after.

    config.toml             resolved: `equifed run` on it repeats the run
    environment.json        versions; data.json: names, hashes, fingerprint
    status.json             running | finished | interrupted | failed
    rounds.jsonl            a line per round: logs, rejections, seconds, new messages and notes
    scores/00012.safetensors  what evaluation counted in round 12
    checkpoint.safetensors  all state after the last committed round
    result.json             once it has finished, with metrics.parquet and the other files of `results.save_result`

A round counts once the checkpoint has replaced the one before; its scores and its line are written first. So whatever
moment the process dies at, the folder holds a consistent prefix of the run, and perhaps a tail that resuming discards.
"""

from __future__ import annotations

import hashlib
import json
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
from safetensors.numpy import load_file, save

from equifed import tree
from equifed.config import Config, load_config
from equifed.errors import RunError
from equifed.files import plain, sync, write_atomic, write_json
from equifed.metrics.scored import Scored
from equifed.notes import Note
from equifed.results import Result
from equifed.simulation import Training
from equifed.simulator import Message, Rejection, RoundLog, State, Step
from equifed.store.environment import data_record, environment, federations_of
from equifed.store.locks import is_held, lock_at, take
from equifed.store.results import CHECKPOINT, load_result, write_result

FORMAT = "equifed-checkpoint-3"
FEDERATION = "federation.json"
"""Of a run whose clients were elsewhere: who took part, and how the inputs were standardised."""
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
        self.lock = lock_at(path / "lock")

    @property
    def id(self) -> str:
        return self.path.name

    # -- reading -------------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """status.json; a run that says "running" without a living process was killed, which is an interruption."""
        recorded = self._read("status.json", json.loads)
        if recorded.get("status") == "running" and not is_held(self.lock):
            recorded |= {"status": "interrupted", "reason": "the process was killed"}
        return recorded

    def config(self) -> Config:
        return load_config(self.path / "config.toml")

    def settings(self) -> dict[str, Any]:
        """config.toml as it is."""
        return self._read("config.toml", tomllib.loads)

    def _read(self, name: str, parse: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        try:
            return parse((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"Run {self.id}: {name} cannot be read ({error}); it is not a usable run.") from None

    def rounds_done(self) -> int:
        """The last committed round; 0 before the first."""
        return 0 if not self._checkpoint.exists() else int(self._metadata()["round"])

    def entry(self) -> Entry:
        """Its line in the index, read from the files."""
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
            json.loads((self.path / "result.json").read_text())["headline"] if finished else {},
            self.path.name,
        )

    def result(self) -> Result:
        status = self.status()["status"]
        if status != "finished":
            where = f"after round {self.rounds_done()}" if status != "failed" else "with an error"
            todo = "Wait for it" if status == "running" else f"Continue it with `{self.resuming()}`"
            state = "is still running" if status == "running" else f"stopped {where}"
            raise RunError(f"Run {self.id} has no result: it {state}. {todo}.")
        try:
            return load_result(self.path)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise RunError(
                f"The files of run {self.id} are damaged ({error}). Run it again: equifed run {self.path}/config.toml"
            ) from error

    def resuming(self, name: str | None = None) -> str:
        """The command that goes on with it; `name`: what it may be called where the command is typed."""
        if (self.path / FEDERATION).is_file():
            return f"equifed flower resume {self.path.parent.parent} {self.id}"
        return f"equifed resume {name or self.path}"

    @property
    def _checkpoint(self) -> Path:
        return self.path / CHECKPOINT

    def _metadata(self) -> dict[str, str]:
        try:
            with safe_open(self._checkpoint, framework="np") as file:
                metadata: dict[str, str] = file.metadata() or {}
        except (OSError, SafetensorError) as error:
            raise self.damaged(f"its header cannot be read: {error}") from None
        if metadata.get("format") != FORMAT:
            raise RunError(
                f"The checkpoint of run {self.id} has format {metadata.get('format')!r}, but this version of equifed "
                f"writes {FORMAT!r}. Use the version that made it, or start again: equifed run {self.path}/config.toml"
            )
        return metadata

    def damaged(self, what: str) -> RunError:
        return RunError(
            f"The checkpoint of run {self.id} is damaged ({what}), so the run cannot go on from it. "
            f"Start it again: equifed run {self.path}/config.toml"
        )

    # -- writing -------------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: Path, config: Config, simulation: Training) -> RunFolder:
        """A new folder for the run; status.json is written last and makes it one."""
        path.mkdir(parents=True)
        (path / "scores").mkdir()
        write_atomic(path / "config.toml", tomli_w.dumps(config.resolved(path)).encode())
        write_json(path / "environment.json", environment(simulation.job.device))
        write_json(path / "data.json", data_record(config, federations_of(config, simulation.job)))
        folder = cls(path)
        take(folder.lock)
        folder.set_status("running", created=datetime.now(UTC).isoformat(timespec="milliseconds"))
        return folder

    def set_status(self, status: Status, reason: str = "", **more: str) -> None:
        path = self.path / "status.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        now = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(path, before | {"status": status, "reason": reason, "changed": now} | more)

    def write_scores(self, number: int, scores: list[dict[str, Scored]]) -> Path:
        path = self._scores(number)
        arrays = {
            f"run={run}/{split}/{name}": np.asarray(values, order="C")
            for run, scored in enumerate(scores)
            for split, counted in scored.items()
            for name, values in counted._asdict().items()
        }
        path.write_bytes(save(arrays))
        return path

    def read_scores(self, number: int, runs: int) -> list[dict[str, Scored]]:
        try:
            arrays = load_file(self._scores(number))
        except (OSError, SafetensorError) as error:
            raise self.damaged(f"the scores of round {number} cannot be read: {error}") from None
        scores: list[dict[str, Scored]] = [{} for _ in range(runs)]
        splits = dict.fromkeys(tuple(name.split("/")[:2]) for name in arrays)
        for run, split in splits:
            parts = {field: arrays[f"{run}/{split}/{field}"] for field in Scored._fields}
            scores[int(run.removeprefix("run="))][split] = Scored(**parts)
        return scores

    def _scores(self, number: int) -> Path:
        return self.path / "scores" / f"{number:05d}.safetensors"

    def write_checkpoint(self, number: int, state: State, config: str) -> None:
        """Atomic; this is what commits the round."""
        arrays = {name: np.asarray(leaf.detach().cpu().numpy(), order="C") for name, leaf in tree.named(state).items()}
        metadata = {"format": FORMAT, "round": str(number), "config": config, "digest": _digest(arrays)}
        write_atomic(self._checkpoint, save(arrays, metadata=metadata))

    def read_checkpoint(self, like: State, config: str) -> tuple[int, State]:
        """(round, state) with the structure of `like`."""
        metadata = self._metadata()
        if metadata["config"] != config:
            raise RunError(
                f"The configuration of run {self.id} is not the one its checkpoint was made with: config.toml was "
                "changed. Put it back to continue, or use it for a new run: "
                f"equifed run {self.path}/config.toml"
            )
        try:
            arrays = load_file(self._checkpoint)
        except (OSError, SafetensorError) as error:
            raise self.damaged(str(error)) from None
        if _digest(arrays) != metadata["digest"]:
            raise self.damaged("its content does not fit its checksum")
        expected = tree.named(like)
        for name, leaf in expected.items():
            if name not in arrays or tuple(arrays[name].shape) != tuple(leaf.shape):
                raise self.damaged(f"{name} is missing or has another shape than the method's state")
        values = {name: torch.from_numpy(arrays[name]).to(leaf.device) for name, leaf in expected.items()}
        return int(metadata["round"]), tree.from_named(like, values)

    # -- the line per round --------------------------------------------------------------------------------------------

    def write_line(self, line: dict[str, Any]) -> Path:
        path = self.path / "rounds.jsonl"
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(plain(line)) + "\n")
        return path

    def read_lines(self, last: int) -> list[dict[str, Any]]:
        """The lines of rounds 1 to `last`; what comes after them, perhaps torn, is cut off the file."""
        path = self.path / "rounds.jsonl"
        raw = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        lines: list[dict[str, Any]] = []
        for number, text in enumerate(raw[:last], 1):
            try:
                lines.append(json.loads(text))
            except ValueError:
                raise self.damaged(f"line {number} of rounds.jsonl is not JSON") from None
        if [line.get("round") for line in lines] != list(range(1, last + 1)):
            raise self.damaged(f"rounds.jsonl lacks some of the rounds 1 to {last}")
        write_atomic(path, "".join(f"{text}\n" for text in raw[:last]).encode())
        return lines


class Recording:
    """A run in progress, recorded round by round: iterate over `rounds`, then `finish`. Use it in a `with`."""

    def __init__(
        self, folder: RunFolder, config: Config, simulation: Training, put_in_index: Callable[[Entry], None]
    ) -> None:
        self.folder, self.config, self.simulation, self._put_in_index = folder, config, simulation, put_in_index
        self._fingerprint = config.fingerprint(folder.path)
        self._resume: tuple[int, State] | None = None
        self._pending: list[Path] = []
        """Files to flush to the disk before the next checkpoint."""

    @property
    def done(self) -> int:
        """Rounds that were recorded before."""
        return self._resume[0] if self._resume else 0

    def restore(self) -> None:
        """Take up the last checkpoint, if there is one, and all that was recorded up to it."""
        if not self.folder.rounds_done():
            self.folder.read_lines(0)
            return
        state = self.folder.read_checkpoint(self.simulation.engine.start(), self._fingerprint)
        runs = len(self.simulation.job.runs)
        engine, collector = self.simulation.engine, self.simulation.collector
        for line in self.folder.read_lines(state[0]):
            scores = {number: self.folder.read_scores(number, runs) for number in line["evaluated"]}
            collector.add(_step(line, state[1], scores))
            for position, fields in line["messages"]:
                message = Message(**fields | {"down": tuple(fields["down"]), "up": tuple(fields["up"])})
                engine.messages.setdefault((message.stage, position), message)
            engine.notes += [note for note in map(Note.from_json, line["notes"]) if note not in engine.notes]
        self._resume = state

    def rounds(self) -> Iterator[Step]:
        """Every round, recorded before it is handed out."""
        engine = self.simulation.engine
        messages, notes = len(engine.messages), len(engine.notes)
        for step in self.simulation.rounds(self._resume):
            self._write(step, list(engine.messages.items())[messages:], engine.notes[notes:])
            messages, notes = len(engine.messages), len(engine.notes)
            yield step

    def _write(self, step: Step, messages: list[tuple[tuple[str, int], Message]], notes: list[Note]) -> None:
        logs = [log._asdict() | {"obstacle": log.obstacle and log.obstacle.to_json()} for log in step.logs]
        self._pending += [self.folder.write_scores(number, scores) for number, scores in step.scores.items()]
        self._pending.append(
            self.folder.write_line(
                {
                    "round": step.round,
                    "seconds": step.seconds,
                    "evaluated": list(step.scores),
                    "logs": logs,
                    "rejections": [[number, *rejection] for number, rejection in step.rejections],
                    "messages": [[position, message._asdict()] for (_, position), message in messages],
                    "notes": [note.to_json() for note in notes],
                }
            )
        )
        if step.round % self.config.run.checkpoint_every == 0 or step.last:
            for path in dict.fromkeys(self._pending):
                sync(path)
            self._pending.clear()
            self.folder.write_checkpoint(step.round, step.state, self._fingerprint)

    def finish(self) -> Result:
        result = self.simulation.result()
        write_result(self.folder.path, result)
        self.folder.set_status("finished")
        return result

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self.folder.set_status("failed", f"{type(error).__name__}: {error}")
        elif error is not None:
            self.folder.set_status("interrupted", "stopped by the user")
        self.folder.lock.release()
        self._put_in_index(self.folder.entry())


def _read_log(line: dict[str, Any]) -> RoundLog:
    observed = {name: float(value) for name, value in line["observed"].items()}
    obstacle = line["obstacle"] and Note.from_json(line["obstacle"])
    return RoundLog(**line | {"observed": observed, "obstacle": obstacle})


def _step(line: dict[str, Any], state: State, scores: dict[int, list[dict[str, Scored]]]) -> Step:
    logs = [_read_log(log) for log in line["logs"]]
    rejections = [(number, Rejection(*rest)) for number, *rest in line["rejections"]]
    return Step(line["round"], state, logs, rejections, scores, line["seconds"], last=False)


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].dtype}{arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()
