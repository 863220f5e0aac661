"""Configurations and command lines that nobody writes on purpose, tried on the real commands. `test_usage.py` tries a
few, `benchmarks/reliability.py` 2,000 of each, counted by exit code.
"""

from __future__ import annotations

import contextlib
import copy
import os
import resource
import signal
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import click
import numpy as np
import tomli_w
import typer
from store.silos import config, write_silos
from typer.testing import CliRunner

from equifed.cli.app import app
from equifed.errors import DataError, RunError
from equifed.methods import REGISTRY

SECONDS = 5
"""Of the CPU that one command may take: a billion rounds are no mistake, and then it is interrupted as if by Ctrl-C."""
MEMORY = 6 * 2**30
"""Bytes that the process may take, for a model of a billion numbers."""
BASE = config(
    run={"rounds": 2, "seeds": [0], "clients-per-round": 2, "eval-every": 1, "name": "x", "engine": "reference"},
    model={"kind": "mlp", "hidden": [3]},
    method={"name": "fedprox", "mu": 0.1},
    data={"test": 0.25, "validation": 0.1},
)
NUMBERS = [
    0,
    1,
    -1,
    3,
    2**31,
    2**63 - 1,
    2**63,
    -(2**63),
    10**30,
    0.0,
    -0.5,
    0.5,
    1e-300,
    1e308,
    float("inf"),
    -float("inf"),
]
TEXTS = [
    *(
        "",
        " ",
        "all",
        "auto",
        "fedavg",
        "x" * 10_000,
        "\x1b[31m",
        "a\nb",
        "\u202egnp",
        "\ufeff",
        "{x}",
        "%s",
        "..",
        "~",
    ),
    *("/dev/zero", "/dev/null", "/proc/self/mem", "silo-0.csv", "silo-9.csv", "os:system", "json:JSONDecoder", "../x"),
    *(
        "label",
        "sex",
        "1e999",
        "nan",
        "NaN",
        "true",
        "None",
        "-1",
        "٣",
        "1_000",
        "0x10",
        "<script>",
        "=",
        "a=b",
        "a.b=1",
    ),
]
OTHER = [True, False, float("nan"), [], [[]], {}, {"a": {"b": {}}}, [0, 0], [1, "a"], ["silo-0.csv"] * 2, [None], [-1]]
RUNS = ["latest", "x", "2", ".", "..", "runs", "runs/none", "/", "x" * 300, "\x00", "\udcff", "*", "index.sqlite"]


def odd(rng: np.random.Generator) -> Any:
    kinds = [NUMBERS, TEXTS, OTHER]
    kind = kinds[rng.choice(3, p=[0.4, 0.4, 0.2])]
    return copy.deepcopy(kind[rng.integers(len(kind))])


# -- configurations ----------------------------------------------------------------------------------------------------

KEYS = {
    "run": ["rounds", "seeds", "clients-per-round", "eval-every", "engine", "device", "target", "confidence", "clip"],
    "data": ["name", "preset", "files", "schema", "label", "sensitive", "min-group", "positive", "meaning", "test"],
    "partition": ["kind", "alpha", "num-partitions", "by"],
    "model": ["kind", "hidden", "activation", "bias"],
    "local": ["local-epochs", "batch-size", "learning-rate", "momentum", "weight-decay", "decay", "steps"],
    "method": ["name", "mu", "q", "fairness-weight", "beta", "gap", "notion", "num-groups", "components"],
    "sweep": ["mu", "q", "learning-rate", "rounds", "seeds"],
    "seek": ["steps", "at-once"],
    "flower": ["min-replies", "deadline", "join-deadline", "min-count"],
}


def configuration(rng: np.random.Generator) -> bytes:
    """A configuration that works, with one to three things wrong, or with bytes of it changed."""
    made = copy.deepcopy(BASE)
    if rng.random() < 0.5:
        made["method"] = {"name": str(rng.choice([*REGISTRY]))}
    for _ in range(rng.integers(0, 4)):
        section = str(rng.choice([*KEYS]))
        there = made.setdefault(section, {})
        how = rng.random()
        if how < 0.1:
            made[section] = odd(rng)
        elif how < 0.2 and isinstance(there, dict) and there:
            del there[str(rng.choice([*there]))]
        elif isinstance(there, dict):
            key = str(rng.choice(KEYS[section])) if how < 0.95 else str(odd(rng))
            there[key] = odd(rng)
    with contextlib.suppress(TypeError, ValueError, UnicodeError):  # no TOML has it
        content = bytearray(tomli_w.dumps(made).encode())
        for _ in range(rng.integers(1, 4) if rng.random() < 0.3 else 0):
            at = int(rng.integers(len(content)))
            content[at : at + int(rng.integers(0, 4))] = rng.bytes(int(rng.integers(0, 4)))
        return bytes(content)
    return configuration(rng)


# -- command lines -----------------------------------------------------------------------------------------------------


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands there are, those of installed packages too, with the words that call them."""
    command = command or typer.main.get_command(app)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*path, name))
    if path:
        yield path, command


def command_line(rng: np.random.Generator) -> list[str]:
    """Words of a command with some of its own options, with values that fit now and then."""
    every = dict(commands())
    path = list(every)[rng.integers(len(every))]
    words = list(path)
    params = every[path].params
    for argument in (
        param for param in params if isinstance(param, click.Argument) or param.param_type_name == "argument"
    ):
        if argument.required or rng.random() < 0.5:
            words.append(_value(argument.name or "", rng))
    options = [param for param in params if param.param_type_name == "option"]
    for _ in range(rng.integers(0, 5)):
        if options and rng.random() < 0.9:
            option = options[rng.integers(len(options))]
            words.append(str(rng.choice([*option.opts, *option.secondary_opts])))
            if not getattr(option, "is_flag", False) or rng.random() < 0.1:
                words.append(_value(option.name or "", rng))
        else:
            words.append(_text(odd(rng)))
    if rng.random() < 0.2:
        words[rng.integers(len(words))] = _text(odd(rng))
    if rng.random() < 0.1:
        rng.shuffle(words)
    return [word.replace("\0", "") for word in words]  # the system takes no zero


FITTING = {
    "file": ["x.toml", "broken.toml", "silo-0.csv"],
    "reference": RUNS,
    "references": RUNS,
    "name": ["fedavg", "compas", "adult", "kffl/table1", "fedavg+fair", "none"],
    "data": ["compas", "adult", "none", "x.toml"],
    "method": ["fedavg", "kffl", "q-ffl", "fedavg+fair", "none"],
    "methods": ["fedavg", "fedavg,kffl", ",", "fedavg,fedavg"],
    "folder": ["new", "runs", ".", "x.toml", "/dev/null", "/proc/x"],
    "over": ["mu=0,1", "mu=", "=1", "mu=nan,inf", "q=1,1"],
    "set": ["run.rounds=1", "run.rounds=x", "method.name=q-ffl", "a.b.c=1", "=", "data.files=[]"],
    "target": ["accuracy >= 0.5", "accuracy", "x <= 1", "accuracy >= nan"],
    "fail_if": ["accuracy < 0", "accuracy > 2", "x", "global.accuracy<0.5"],
    "table": ["silo-0.csv", "latex", "markdown", "x.toml"],
    "runs": ["runs", "new", "x.toml", "/dev/null", "/proc/x"],
    "page": ["page.html", ".", "/dev/null", "no/such/folder/page.html"],
    "figures": ["figures", "x.toml"],
}


def _value(name: str, rng: np.random.Generator) -> str:
    fitting = FITTING.get(name, [])
    return str(rng.choice(fitting)) if fitting and rng.random() < 0.7 else _text(odd(rng))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


# -- trying them -------------------------------------------------------------------------------------------------------


class Came(NamedTuple):
    code: int
    wrong: str
    """What nobody should have to read; empty where the end was as it should be."""


def _refuse(*args: object, **more: object) -> None:
    raise DataError("No data in this test.")


def _start_nothing(*args: object, **more: object) -> None:
    raise RunError("No programs in this test.")


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A folder with silos' files, a configuration and a run, from which commands are given; nothing is fetched, and no
    program started."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as top, contextlib.ExitStack() as stack:
        folder = Path(top) / "deep" / "er"
        folder.mkdir(parents=True)
        write_silos(folder, rows=20)
        (folder / "x.toml").write_text(tomli_w.dumps(BASE))
        (folder / "broken.toml").write_text("[run\n")
        os.chdir(folder)
        stack.callback(os.chdir, here)
        stack.enter_context(mock.patch.dict(os.environ, {"EQUIFED_DATA": str(folder / "data"), "COLUMNS": "100"}))
        stack.enter_context(mock.patch("equifed.data.download.fetch_files", _refuse))
        stack.enter_context(mock.patch("equifed.flower.deployment.processes.Processes.start", _start_nothing))
        first = tried(["run", "x.toml"])
        assert first == Came(0, ""), first
        yield folder


def _interrupt(*args: object) -> None:
    raise KeyboardInterrupt


def tried(words: list[str]) -> Came:
    """What comes of a command line."""
    before = signal.signal(signal.SIGPROF, _interrupt)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = CliRunner().invoke(app, words)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    said = result.output
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return Came(result.exit_code, repr(result.exception))
    if "Traceback" in said or "EQUIFED_DEBUG" in said:  # the words of an error that is none of ours
        return Came(result.exit_code, said[-500:])
    if not said.lstrip().startswith("Usage:"):  # where click repeats what was typed
        if any(not line.isprintable() for line in said.replace("\t", " ").replace("\xa0", " ").splitlines()):
            return Came(result.exit_code, f"prints {said[-200:]!r}")
        if result.exit_code not in (0, 130) and len(said) > 5000:
            return Came(result.exit_code, f"says {len(said)} characters")
    known = result.exit_code in (0, 1, 2, 3, 4, 130)
    return Came(result.exit_code, "" if known else f"exit code {result.exit_code}")


def try_configurations(folder: Path, count: int, rng: np.random.Generator) -> Iterator[tuple[bytes, Came]]:
    for _ in range(count):
        content = configuration(rng)
        (folder / "odd.toml").write_bytes(content)
        yield content, tried(["run", "odd.toml"])


def try_command_lines(count: int, rng: np.random.Generator) -> Iterator[tuple[list[str], Came]]:
    for _ in range(count):
        words = command_line(rng)
        yield words, tried(words)


def count_outcomes(count: int = 2000, seed: int = 0) -> dict[str, dict[str, int]]:
    """Return, for configurations and command lines, how many ended with which exit code, and how many badly."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    rng = np.random.default_rng(seed)
    found = {}
    with place() as folder:
        for what, tries in {
            "configurations": try_configurations(folder, count, rng),
            "command_lines": try_command_lines(count, rng),
        }.items():
            codes = Counter({f"exit_{code}": 0 for code in (0, 1, 2, 3, 4, 130)})
            wrong = 0
            for tried_with, came in tries:
                codes[f"exit_{came.code}"] += 1
                if came.wrong:
                    wrong += 1
                    print(f"{tried_with!r}\n  {came.wrong}")
            found[what] = {"tried": count, "wrong": wrong, **codes}
    return found
