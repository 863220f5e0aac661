"""Run folders and model packages of another person: looking at one runs no code and touches nothing outside of it."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
import typer
from store.silos import write_config, write_silos
from typer.testing import CliRunner

import equifed as ef
from equifed import registry
from equifed.cli.app import app
from equifed.cli.console import guarded
from equifed.config import load_config
from equifed.data import DATASETS
from equifed.errors import UntrustedName
from equifed.files import checksum
from equifed.metrics.catalogue import METRICS
from equifed.store import RunFolder, Store
from equifed.store.sums import SUMS, Sums
from equifed.tracking.names import REGISTRY as TRACKERS

PAYLOAD = """
from pathlib import Path

Path({mark!r}).touch()


def net():
    raise SystemExit("a function of the payload was called")
"""
NAME = "zz_payload:net"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run and one that was interrupted after its second round."""
    place = tmp_path_factory.mktemp("made")
    write_silos(place)
    config = load_config(write_config(place, run={"rounds": 3, "seeds": [0]}))
    store = Store(place / "runs")
    with store.start(config, id="finished") as recording:
        for _ in recording.rounds():
            pass
        recording.finish()
    with suppress(KeyboardInterrupt), store.start(config, id="interrupted") as recording:
        for step in recording.rounds():
            if step.round == 2:
                raise KeyboardInterrupt
    return place


@pytest.fixture
def received(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of it as working folder, with a module that leaves a mark where it is imported; nothing is trusted."""
    place = tmp_path / "received"
    shutil.copytree(made, place)
    (place / "zz_payload.py").write_text(PAYLOAD.format(mark=str(tmp_path / "mark")))
    monkeypatch.chdir(place)
    monkeypatch.delenv("EQUIFED_RUNS", raising=False)
    monkeypatch.syspath_prepend(str(place))  # as with `python -m equifed`
    monkeypatch.setattr(registry, "_allowed", set())
    for known in (ef.methods.REGISTRY, ef.models.REGISTRY, ef.partition.REGISTRY, DATASETS, METRICS, TRACKERS):
        monkeypatch.setattr(known, "_imported", {})
    yield place
    sys.modules.pop("zz_payload", None)


def forge(folder: Path, file: str, change: Callable[[Any], None]) -> None:
    """Change a file of a run's folder, with all checksums made to fit."""
    text = (folder / file).read_text()
    content = tomllib.loads(text) if file.endswith(".toml") else json.loads(text)
    change(content)
    (folder / file).write_text(tomli_w.dumps(content) if file.endswith(".toml") else json.dumps(content))
    resign(folder, file)


def resign(folder: Path, file: str) -> None:
    inside, _, name = file.rpartition("/")
    for place, key in ((folder / inside, name), (folder, file), (folder, f"{inside}/{SUMS}")):
        if (place / key).is_file() and (place / SUMS).is_file() and key != SUMS:
            sums = Sums.load(place, "")
            sums[key] = checksum((place / key).read_bytes())
            sums.save()


def put(*path: str) -> Callable[[Any], None]:
    """Write the name at this path of a file."""

    def change(content: Any) -> None:
        *above, last = path
        for key in above:
            content = content.setdefault(key, {})
        content[last] = [NAME] if last in ("metrics", "track") else NAME

    return change


PLACES: dict[str, tuple[str, tuple[str, ...]]] = {
    "the result's method": ("result.json", ("info", "method")),
    "the result's data set": ("result.json", ("info", "provenance", "data")),
    "the result's partition": ("result.json", ("info", "provenance", "partition", "kind")),
    "the result's metrics": ("result.json", ("settings", "metrics")),
    "the package's method": ("model/model.json", ("method",)),
    "the state's method": ("model/model.json", ("final_states", "method")),
    "the state's model": ("model/model.json", ("final_states", "model", "kind")),
    "the configured method": ("config.toml", ("method", "name")),
    "the configured model": ("config.toml", ("model", "kind")),
    "the configured partition": ("config.toml", ("partition", "kind")),
    "the configured data set": ("config.toml", ("data", "name")),
    "the configured metrics": ("config.toml", ("run", "metrics")),
    "the configured trackers": ("config.toml", ("run", "track")),
}
COMMANDS: dict[str, tuple[str, ...]] = {
    "list": ("list",),
    "show": ("show", "{run}", "--json"),
    "report": ("report", "{run}"),
    "predict with the run": ("predict", "{run}", "silo-0.csv"),
    "predict with the package": ("predict", "{run}/model", "silo-0.csv"),
    "export": ("export", "{run}", "--torch", "model.pt2"),
    "resume": ("resume", "{run}"),
    "run the stored configuration": ("run", "{run}/config.toml"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.sample(4)
def test_no_command_imports_a_module_that_only_a_file_names(place: str, received: Path, tmp_path: Path) -> None:
    file, path = PLACES[place]
    folders = [received / "runs" / name for name in ("finished", "interrupted")]
    for folder in folders:
        if (folder / file).is_file():
            forge(folder, file, put(*path))
            if path[0] == "data":
                forge(folder, file, lambda content: content.update(data={"name": NAME}))
    for command in COMMANDS.values():
        for folder in folders:
            if folder.name == "interrupted" and command[0] in ("report", "predict", "export"):
                continue
            outcome = CliRunner().invoke(app, [word.format(run=folder) for word in command])
            assert outcome.exit_code in (0, 2, 3, 4), outcome.output
            assert not outcome.exception or isinstance(outcome.exception, SystemExit), outcome.exception
            assert not (tmp_path / "mark").exists(), (command, folder.name)
    assert "zz_payload" not in sys.modules


@pytest.mark.parametrize(
    ("place", "command", "run"),
    [
        ("the state's model", ("predict", "{run}", "silo-0.csv"), "finished"),
        ("the state's method", ("export", "{run}/model", "--torch", "model.pt2"), "finished"),
        ("the configured method", ("resume", "{run}"), "interrupted"),
        ("the configured trackers", ("resume", "{run}"), "interrupted"),
        ("the configured model", ("run", "{run}/config.toml"), "interrupted"),
    ],
)
def test_the_refusal_names_the_module_and_the_command_that_trusts_it(
    place: str, command: tuple[str, ...], run: str, received: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, path = PLACES[place]
    forge(received / "runs" / run, file, put(*path))
    words = [word.format(run=f"runs/{run}") for word in command]
    monkeypatch.setattr(sys, "argv", ["equifed", *words])
    outcome = CliRunner().invoke(app, words)
    assert outcome.exit_code == 2, outcome.output
    said = " ".join(outcome.stderr.split())
    assert "'zz_payload:net'" in said
    assert "imported from the module 'zz_payload'" in said
    assert f"equifed {' '.join(words)} --trust=zz_payload" in said
    trusting = CliRunner().invoke(app, [*words, "--trust", "zz_payload"])
    assert trusting.exit_code != 0  # what the payload holds is neither a method nor a model
    assert (tmp_path / "mark").exists()


def test_a_run_of_a_method_of_ones_own_is_resumed_where_its_module_is_trusted(
    received: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (received / "half.py").write_text(
        "from dataclasses import dataclass\nfrom equifed.methods import FedAvg\n\n\n"
        '@dataclass(frozen=True)\nclass Half(FedAvg):\n    """Half."""\n\n    part: float = 0.5\n    """Part."""\n'
    )
    config = load_config(write_config(received, method={"name": "half:Half"}))
    with suppress(KeyboardInterrupt), Store().start(config, id="half") as recording:
        for _ in recording.rounds():
            raise KeyboardInterrupt
    monkeypatch.setattr(registry, "_allowed", set())  # another process
    monkeypatch.setattr(ef.methods.REGISTRY, "_imported", {})
    refused = CliRunner().invoke(app, ["resume", "half"])
    assert refused.exit_code == 2
    assert RunFolder(received / "runs" / "half").status()["status"] == "interrupted"
    done = CliRunner().invoke(app, ["resume", "half", "--trust", "half"])
    assert done.exit_code == 0, done.output
    sys.modules.pop("half")


def test_python_trusts_a_module_by_name_and_takes_what_it_has_made_itself(
    received: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (received / "small.py").write_text("from torch import nn\n\n\ndef net():\n    return nn.Linear(3, 1)\n")
    monkeypatch.syspath_prepend(str(received))
    import small  # type: ignore[import-not-found]

    frame = pd.read_csv("silo-0.csv")
    x, y, s = frame[["a", "b", "c"]].to_numpy(np.float32), frame["label"].to_numpy(), (frame["sex"] == "f").to_numpy()
    fed = ef.Federation.from_arrays(clients=[(x, y, s.astype(int))] * 3, test=(x, y, s.astype(int)))
    result = ef.simulate(ef.methods.FedAvg(), fed, model=small.net, rounds=1, seeds=1)
    ef.save_result("saved", result)
    expected = result.predict(x)
    np.testing.assert_array_equal(ef.load_result("saved").predict(x), expected)  # in the process that made it
    monkeypatch.setattr(registry, "_allowed", set())  # another process
    monkeypatch.setattr(ef.models.REGISTRY, "_imported", {})
    for read in (ef.load_model, lambda path: ef.load_result(path).predict(x)):
        with pytest.raises(UntrustedName, match="trust="):
            read("saved")
    assert ef.load_model("saved", model=small.net).scores(x) == pytest.approx(expected)
    np.testing.assert_array_equal(ef.load_result("saved", trust=["small"]).predict(x), expected)
    sys.modules.pop("small")


def test_code_that_reads_files_looks_names_up_as_received() -> None:
    """`make` and `get_dataset` are for names that the user has typed."""
    source = Path(ef.__file__).parent
    for package in ("config", "report", "results", "store", "studies"):
        # the names that studies/api.py is given are arguments of a call in Python, typed by the user
        for path in {*(source / package).rglob("*.py")} - {source / "studies" / "api.py"}:
            for name in re.findall(r"methods\.make\b|methods import [^\n]*\bmake\b|\bget_dataset\b", path.read_text()):
                pytest.fail(f"{path}: {name}")


def test_what_is_trusted_is_a_module_and_what_lies_in_it() -> None:
    for wrong in ("", "a-b", "../a", "a b:Name"):
        with pytest.raises(ef.ConfigError, match="must be the name of a module"):
            registry.trust(wrong)


def test_a_trusted_package_trusts_its_modules_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_allowed", set())
    registry.trust("ours")
    registry.allow("theirs.deep:Name")
    known = {name: registry._is_trusted(name) for name in ("ours:X", "ours.deep:X", "oursx:X", "theirs.deep:Name")}
    assert known == {"ours:X": True, "ours.deep:X": True, "oursx:X": False, "theirs.deep:Name": True}
    assert not registry._is_trusted("theirs.deep:Other")
    registry.allow("mlflow", "logistic")  # names of built-in things, no modules
    assert not registry._is_trusted("mlflow:Anything")
    assert not registry._is_trusted("theirs:Name")


@pytest.mark.parametrize(
    "section",
    [
        {"method": {"name": NAME}},
        {"method": {"name": f"{NAME}+fair"}},
        {"model": {"kind": NAME}},
    ],
)
def test_a_silo_that_looks_at_a_federations_configuration_imports_nothing_of_it(
    section: dict[str, Any], received: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = pd.read_csv("silo-0.csv")
    (received / "schema.json").write_text(
        ef.data.Schema.infer(columns, ef.Columns(label="label", sensitive="sex")).model_dump_json()
    )
    raw: dict[str, Any] = {
        "data": {"files": {name: f"{name}.csv" for name in "abc"}, "schema": "schema.json"},
        "method": {"name": "fedavg"},
        "run": {"rounds": 1, "seeds": [0]},
    }
    file = received / "federation.toml"
    file.write_text(tomli_w.dumps(raw))
    words = ["flower", "digest", "federation.toml"]
    plain = CliRunner().invoke(app, words)
    assert plain.exit_code == 0, plain.output
    for name, values in section.items():
        raw[name] = raw.get(name, {}) | values
    file.write_text(tomli_w.dumps(raw))
    monkeypatch.setattr(sys, "argv", ["equifed", *words])
    outcome = CliRunner().invoke(app, words)
    assert outcome.exit_code == 2, outcome.output
    assert f"equifed {' '.join(words)} --trust=zz_payload" in " ".join(outcome.stderr.split())
    assert not (tmp_path / "mark").exists()
    CliRunner().invoke(app, [*words, "--trust", "zz_payload"])
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize("kept", ["SUMS.json", "environment.json", "data.json", "rounds.jsonl", "result.json"])
def test_a_runs_configuration_is_received_without_its_status_too(kept: str, received: Path, tmp_path: Path) -> None:
    part = received / "part"
    part.mkdir()
    for file in ("config.toml", kept):
        shutil.copy(received / "runs" / "finished" / file, part)
    forge(part, "config.toml", put("method", "name"))
    (received / "link.toml").symlink_to(part / "config.toml")
    for file in ("part/config.toml", "link.toml"):
        assert CliRunner().invoke(app, ["run", file]).exit_code == 2
        assert not (tmp_path / "mark").exists()
    (part / kept).unlink()  # a file by itself is the user's own
    CliRunner().invoke(app, ["run", "part/config.toml"])
    assert (tmp_path / "mark").exists()


def test_trusting_is_advised_where_the_command_takes_it_and_among_its_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        registry.Registry[int]("number", "test.numbers", {}, lambda thing: True, "")["zz_payload:net"]

    def with_option(trust: list[str] | None = None) -> None:
        refuse()

    monkeypatch.setattr(registry, "_allowed", set())
    monkeypatch.setattr(sys, "argv", ["equifed", "show", "--json", "--", "-odd"])
    for command, advised in ((refuse, False), (with_option, True)):
        with pytest.raises(typer.Exit):
            guarded(command)()
        said = " ".join(capsys.readouterr().err.split())
        assert ("--trust" in said) == advised
        assert ("equifed show --json --trust=zz_payload -- -odd" in said) == advised
