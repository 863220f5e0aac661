"""Sudden deaths and faults of the disk, brought upon run folders. `test_faults.py` checks a share of them,
`benchmarks/reliability.py` counts what comes of all of them.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from safetensors.numpy import load_file

from equifed.config import Config, load_config
from equifed.config.build import job_of, load_federations
from equifed.errors import EquifedError, EquifedWarning
from equifed.results import Result
from equifed.simulation import Simulation
from equifed.store import RunFolder, Store, load_result, save_result
from equifed.store import folder as folders
from store.silos import write_config, write_silos

ID = "20260101-000000-fedavg-0000"
FRAMES = ("metrics", "counts", "calibration", "local_gaps", "log", "messages", "rejections")
FEW = {"run": {"rounds": 3, "seeds": [0], "checkpoint-every": 2}}
"""Of a run in which every step of the store occurs: a round with a checkpoint, one without, the last."""


class Fake:
    """The module os, but for some functions."""

    def __init__(self, **functions: Callable[..., Any]) -> None:
        self.__dict__.update(functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class Death(BaseException):
    """The process ends here: nothing that it does afterwards reaches the disk."""


class Disk(Fake):
    """What `equifed.files` sees as os, until the process dies at step `at`.

    manner: "kill": the step has no effect. "torn": a write has written half. "power": besides, what was written but not
    flushed is lost.
    """

    def __init__(self, at: int | None = None, manner: str = "kill") -> None:
        self.at, self.manner = at, manner
        self.steps: list[str] = []
        self._paths: dict[int, Path] = {}
        self._flushed: dict[Path, int] = {}
        """Bytes that a loss of power would leave of files that were written to since."""
        super().__init__(
            **{name: self._step(name) for name in ("open", "write", "fsync", "replace", "unlink")}, close=self._close
        )

    def _step(self, name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if self.at is not None and len(self.steps) >= self.at:
                self._die(name, *args)
            self.steps.append(name)
            result = getattr(os, name)(*args)
            self._follow(name, args, result)
            return result

        return call

    def _die(self, name: str, *args: Any) -> None:
        if len(self.steps) == self.at:  # afterwards it is dead already
            self.steps.append(f"dead at {name}")
            if self.manner != "kill" and name == "write":
                half = args[1][: len(args[1]) // 2]
                os.write(args[0], half)
                self._follow(name, (args[0], half), None)
            if self.manner == "power":
                for path, size in self._flushed.items():
                    if path.exists():
                        os.truncate(path, size)
        raise Death

    def _follow(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        if name == "open":
            self._paths[result] = Path(args[0])
        elif name == "write":
            path = self._paths[args[0]]
            self._flushed.setdefault(path, max(0, path.stat().st_size - len(args[1])))
        elif name == "fsync":
            self._flushed.pop(self._paths[args[0]], None)
        elif name == "replace" and Path(args[0]) in self._flushed:
            self._flushed[Path(args[1])] = self._flushed.pop(Path(args[0]))

    def _close(self, handle: int) -> None:
        os.close(handle)


class Case:
    """A small run, and what a faulty one is to be compared with."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.config: Config = load_config(file)
        self.job = job_of(self.config, load_federations(self.config))
        self.root = file.parent / "faulty"
        """For the runs that are not to be whole; the whole one lies as deep, so that its configuration is the same."""

    @classmethod
    def new(cls, place: Path, **sections: Any) -> Case:
        place.mkdir(exist_ok=True)
        write_silos(place)
        return cls(write_config(place, **sections))

    @cached_property
    def whole(self) -> Path:
        """Without faults."""
        return self.carry_out(self.file.parent / "whole")

    def carry_out(self, root: Path, after: int | None = None) -> Path:
        """Start the run, or go on with it, to its end; after: only to the end of this round."""
        store, path = Store(root), root / ID
        if (path / "status.json").is_file():
            if RunFolder(path).is_finished():
                return path
            recording = store.resume(str(path), make=lambda config: Simulation(self.job))
        else:
            recording = store.start(self.config, Simulation(self.job), ID)
        with suppress(KeyboardInterrupt), recording:
            for step in recording.rounds():
                if step.round == after:
                    raise KeyboardInterrupt
            recording.finish()
        return path

    def differences(self, path: Path) -> list[str]:
        """What the finished run has other than the whole one: rounds, bits, names of files."""
        found = []
        lines, expected = (
            [json.loads(line) | {"seconds": 0} for line in (each / "rounds.jsonl").read_text().splitlines()]
            for each in (path, self.whole)
        )
        if lines != expected:
            found.append(f"rounds.jsonl has the rounds {[line['round'] for line in lines]}")
        names, whole = ({str(file.relative_to(each)) for file in each.rglob("*")} for each in (path, self.whole))
        found += [f"{name} is only in one" for name in sorted(names ^ whole)]
        same = [name for name in whole if name.startswith("scores/")]
        same += ["final.safetensors", "config.toml", "data.json"]
        found += [name for name in same if (path / name).read_bytes() != (self.whole / name).read_bytes()]
        for name, values in load_file(self.whole / "checkpoint.safetensors").items():
            if load_file(path / "checkpoint.safetensors")[name].tobytes() != values.tobytes():
                found.append(f"checkpoint: {name}")
        found += differences(load_result(path), load_result(self.whole))
        if [(entry.id, entry.status) for entry in Store(path.parent).entries()] != [(ID, "finished")]:
            found.append("the list of runs")
        beside = {file.name for file in path.parent.iterdir()} - {ID, "index.lock"}
        return found + sorted(beside)


def differences(one: Result, other: Result) -> list[str]:
    """Where two results are not the same bits, but for the time they took."""
    found = [name for name in FRAMES if not getattr(one, name).equals(getattr(other, name))]
    found += [name for name in ("info", "notes", "settings") if getattr(one, name) != getattr(other, name)]
    x = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)
    for run, parameters in other.parameters.items():
        if one.predict(x, run=run).tobytes() != other.predict(x, run=run).tobytes():
            found.append(f"predictions of {run}")
        found += [name for name in parameters if one.parameters[run][name].tobytes() != parameters[name].tobytes()]
    return found


# -- deaths ------------------------------------------------------------------------------------------------------------


def count_steps(case: Case) -> int:
    """Return the steps of the store in a run without faults."""
    assert case.whole  # a first run may besides keep compiled code, which later ones find
    disk = Disk()
    with mock.patch("equifed.files.os", disk):
        case.carry_out(case.root)
    shutil.rmtree(case.root)
    return len(disk.steps)


def die_once(case: Case, at: int, manner: str) -> bool:
    """Carry out the run and die at this step; whether it came that far."""
    disk = Disk(at, manner)
    try:
        with mock.patch("equifed.files.os", disk):
            case.carry_out(case.root)
    except Death:
        gc.collect()  # with the process its locks would end
        return True
    return False


Tried = Iterator[tuple[str, list[str]]]
"""What was done, and what is wrong afterwards."""


def finished(case: Case) -> list[str]:
    """Go on to the end; what is wrong then."""
    try:
        return case.differences(case.carry_out(case.root))
    except Exception as error:
        return [repr(error)]


def deaths(case: Case, steps: Iterable[int], rng: np.random.Generator) -> Tried:
    """Die at each of the steps in every manner, and half of the times once more while going on; then finish."""
    for at in steps:
        for manner in ("kill", "torn", "power"):
            assert die_once(case, at, manner)
            what = f"{manner} at step {at}"
            if rng.random() < 0.5:
                again = int(rng.integers(0, 40))
                what += f", then at step {again}" if die_once(case, again, manner) else ""
            yield what, finished(case)
            shutil.rmtree(case.root)


def _child(file: Path, root: Path) -> None:
    Case(file).carry_out(root)


def kills(case: Case, count: int, rng: np.random.Generator) -> Tried:
    """kill -9 of real processes at random moments, up to four for a run before it may finish."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["equifed.store", "equifed.config", "equifed.simulation"])

    def process() -> Any:
        child = context.Process(target=_child, args=(case.file, case.root))
        child.start()
        return child

    usual = np.inf
    for _ in range(3):  # the first one also starts the server
        begun = time.monotonic()
        child = process()
        child.join()
        usual = min(usual, time.monotonic() - begun)
        assert child.exitcode == 0
        shutil.rmtree(case.root)
    done = 0
    while done < count:
        moments = []
        for _ in range(min(4, count - done)):
            child = process()
            moments.append(rng.uniform(0, usual))
            child.join(moments[-1])
            child.kill()
            child.join()
            done += child.exitcode != 0
            if child.exitcode == 0:
                break
        yield f"killed after {np.round(moments, 3)} s", finished(case)
        shutil.rmtree(case.root)


# -- corruptions -------------------------------------------------------------------------------------------------------

Use = Callable[[Path], list[str]]
"""Uses a folder as one does: which numbers are wrong."""
KINDS = ("bit", "bytes", "cut", "zeros", "more", "swap", "delete", "empty", "stale")


def corrupt(folder: Path, rng: np.random.Generator, old: dict[str, bytes]) -> tuple[str, list[str]]:
    """Change a file of the folder at random: how, and which files. old: their content at an earlier time."""
    files = sorted(contents(folder).keys() - {"lock"})
    while True:
        kind, name = str(rng.choice(KINDS)), str(rng.choice(files))
        path, names = folder / name, [name]
        before = path.read_bytes()
        after: bytes | None = before
        where = int(rng.integers(0, max(1, len(before))))
        if kind == "bit" and before:
            after = before[:where] + bytes([before[where] ^ 1 << int(rng.integers(8))]) + before[where + 1 :]
        elif kind == "bytes" and before:
            noise = rng.bytes(int(rng.integers(1, 17)))
            after = (before[:where] + noise + before[where + len(noise) :])[: len(before)]
        elif kind == "cut":
            after = before[:where]
        elif kind == "zeros":
            size = int(rng.choice([1, 16, 512, 4096]))
            after = (before[:where] + bytes(size) + before[where + size :])[: len(before)]
        elif kind == "more":
            after = before + rng.bytes(int(rng.integers(1, 100)))
        elif kind == "swap":
            other = str(rng.choice(files))
            after = (folder / other).read_bytes()
            if after != before:
                (folder / other).write_bytes(before)
                names.append(other)
        elif kind == "delete":
            after = None
        elif kind == "empty":
            after = b""
        elif kind == "stale":
            after = old.get(name, before)
        if after != before:
            path.unlink() if after is None else path.write_bytes(after)
            return kind, names


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def put_back(folder: Path, before: dict[str, bytes]) -> None:
    for name in contents(folder).keys() - before.keys():
        (folder / name).unlink()
    for name, content in before.items():
        if not (folder / name).is_file() or (folder / name).read_bytes() != content:
            (folder / name).write_bytes(content)


def corruptions(
    folder: Path,
    count: int,
    rng: np.random.Generator,
    use: Use,
    old: dict[str, bytes] | None = None,
) -> Iterator[tuple[str, str, str]]:
    """Corrupt the folder this many times and use it: file, kind, and what came of it."""
    before = contents(folder)
    for _ in range(count):
        kind, names = corrupt(folder, rng, old or {})
        yield names[0], kind, outcome(folder, names, use)
        put_back(folder, before)


def outcome(folder: Path, names: list[str], use: Use) -> str:
    """refused: an error of equifed names the file. warned: a warning does, and all numbers are right. unaffected: all
    numbers are right. SILENT: some are not. UNCLEAN: another error, or one that names no file."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            wrong = use(folder)
        except EquifedError as error:
            # an older status.json is a good one: that of a run which was interrupted, and can be resumed
            named = any(name in str(error) for name in names) or f"`equifed resume {folder}`" in str(error)
            return "refused" if named else f"UNCLEAN {error}"
        except Exception as error:
            return f"UNCLEAN {error!r}"
    if wrong:
        return f"SILENT {wrong}"
    said = " ".join(str(each.message) for each in told if issubclass(each.category, EquifedWarning))
    return "warned" if any(name in said for name in names) else "unaffected"


def use_finished(case: Case) -> Use:
    """Everything that is read of a finished run, compared with what it was."""
    whole = RunFolder(case.whole)
    expected, result = _records(whole), whole.result()

    def use(path: Path) -> list[str]:
        folder = RunFolder(path)
        found = differences(folder.result(), result)
        return found + (["records"] if _records(folder) != expected else [])

    return use


def _records(folder: RunFolder) -> list[Any]:
    entry = folder.entry()._replace(created="", folder="", id="")
    records = [folder.record(name) for name in ("environment.json", "data.json")]
    return [entry, folder.settings(), folder.rounds_done(), *records]


def use_interrupted(case: Case) -> Use:
    """Go on with an interrupted run to its end, and compare it with the whole one."""

    def use(path: Path) -> list[str]:
        if RunFolder(path).rounds_done() == 0:
            return ["it has no rounds"]
        return case.differences(case.carry_out(path.parent))

    return use


def use_saved(result: Result) -> Use:
    return lambda path: differences(load_result(path), result)


@contextmanager
def folder_of(case: Case, kind: str) -> Iterator[tuple[Path, dict[str, bytes], Use]]:
    """A folder to corrupt, its content at an earlier time, and its use."""
    if kind == "interrupted":
        case.carry_out(case.root, after=2)
        old = contents(case.root / ID)
        path = case.carry_out(case.root, after=4)
        yield path, old, use_interrupted(case)
    elif kind == "finished":
        case.carry_out(case.root, after=3)
        old = contents(case.root / ID)
        yield case.carry_out(case.root), old, use_finished(case)
    else:
        result = RunFolder(case.whole).result()
        path = case.root / "saved"
        save_result(path, result)
        yield path, {}, use_saved(result)
    shutil.rmtree(case.root)


# -- cost --------------------------------------------------------------------------------------------------------------


def cost(case: Case) -> tuple[float, float]:
    """Milliseconds of the CPU in a round, and those of them that checksums take."""
    spent = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            begun = time.process_time()
            try:
                return function(*args)
            finally:
                spent.append(time.process_time() - begun)

        return call

    names = ("checksum", "_digest", "_seal")
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(folders, name, timed(getattr(folders, name))))
        recording = stack.enter_context(Store(case.root).start(case.config, Simulation(case.job)))
        begun = time.process_time()
        for _ in recording.rounds():
            pass
        total = time.process_time() - begun
    shutil.rmtree(case.root)
    return 1000 * total / case.config.run.rounds, 1000 * sum(spent) / case.config.run.rounds


# -- all of them, counted ---------------------------------------------------------------------------------------------


def count_deaths(place: Path, rng: np.random.Generator) -> dict[str, int]:
    case = Case.new(place, **FEW)
    steps = count_steps(case)
    return {"steps": steps, **_count(deaths(case, range(steps), rng))}


def count_kills(place: Path, rng: np.random.Generator, count: int = 100) -> dict[str, int]:
    return {"kills": count, **_count(kills(Case.new(place), count, rng))}


def _count(tried: Tried) -> dict[str, int]:
    """Return how many runs were finished, and how many of them have the bits of a whole one; print the others."""
    found = list(tried)
    wrong = [f"{how}: {problems}" for how, problems in found if problems]
    print("\n".join(wrong), end="\n" if wrong else "")
    return {"runs": len(found), "right": len(found) - len(wrong)}


def count_corruptions(place: Path, rng: np.random.Generator, count: int = 10_000) -> dict[str, int]:
    case = Case.new(place)
    verdicts = Counter({"refused": 0, "warned": 0, "unaffected": 0, "SILENT": 0, "UNCLEAN": 0})
    for kind, share in {"interrupted": 0.5, "finished": 0.4, "saved": 0.1}.items():
        with folder_of(case, kind) as (path, old, use):
            for name, how, came in corruptions(path, round(share * count), rng, use, old):
                verdicts[came.split()[0]] += 1
                if came.startswith(("SILENT", "UNCLEAN")):
                    print(f"{kind}: {name}: {how}: {came}")
    return {"tried": count, **{verdict.lower(): number for verdict, number in verdicts.items()}}


def measure_cost(place: Path, rng: np.random.Generator) -> dict[str, float]:
    """Return milliseconds of the CPU in a round of two small runs, and those of them that checksums take."""
    whole, part = min(cost(Case.new(place, run={"rounds": 60})) for _ in range(5))
    return {"round_ms": round(whole, 2), "checksums_ms": round(part, 3)}
