"""The folder of a federation with secure sums, and the roster by which silos know each other's keys."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from equifed import Columns
from equifed.cli.app import app
from equifed.cli.flower_runs import _local_command
from equifed.config import load_config
from equifed.data import Schema
from equifed.errors import ConfigError
from equifed.flower.agreement import Setting
from equifed.flower.deployment.credentials import write_key_pair
from equifed.flower.deployment.folder import Folder, create
from equifed.methods import summable_names
from equifed.secure import Refused, Roster, sign
from flower.test_folder import table

SILOS = {"south": 0, "north": 1, "west": 2}


@pytest.fixture
def schema() -> Schema:
    return Schema.infer(table(), Columns(label="cured", sensitive="sex", positive="yes"))


@pytest.fixture
def keys(tmp_path: Path) -> list[Path]:
    for silo in SILOS:
        write_key_pair(tmp_path / "keys", silo)
    return [tmp_path / "keys" / f"{silo}.pub" for silo in SILOS]


def invoke(*args: object):
    return CliRunner().invoke(app, ["flower", *map(str, args)], env={"COLUMNS": "160", "NO_COLOR": "1"})


@pytest.mark.parametrize(
    ("silos", "says"),
    [
        ("a,b,c", "Secure sums: every silo must answer, or the round is not applied."),
        ("a,b,c,d,e", "Secure sums: at least 4 of the 5 silos must answer, or the round is not applied."),
    ],
)
def test_init_says_how_many_must_answer(tmp_path: Path, schema: Schema, silos: str, says: str) -> None:
    (tmp_path / "schema.json").write_text(schema.to_json())
    done = invoke("init", tmp_path / "fed", "--silos", silos, "--schema", tmp_path / "schema.json", "--secure")
    assert done.exit_code == 0, done.output
    assert says in done.stderr
    made = Folder(tmp_path / "fed")
    assert load_config(made.federation).run.secure
    assert made.roster is None  # silos make it themselves
    guide = (made.path / "README.md").read_text()
    assert ("**every one must answer, or the round is not applied**" in guide) == (silos == "a,b,c")
    assert ("at least 4 must answer, or the round is not applied" in guide) == (silos != "a,b,c")
    assert f"equifed flower roster roster.json {' '.join(f'{silo}.pub' for silo in silos.split(','))}\n" in guide
    for silo in silos.split(","):
        (line,) = (each for each in guide.splitlines() if f'client-id="{silo}"' in each and "--node-config" in each)
        said = shlex.split(line)[1]
        assert f'key="{made.key(silo)}" roster="{made.path / "roster.json"}"' in said
        assert said.endswith(f'app="{Setting.load(made.federation).digest}" secure=true')
    printed = invoke("digest", made.federation)
    assert printed.stdout.strip() == Setting.load(made.federation).digest
    assert ", secure sums, silos " in printed.stderr
    made.federation.write_text(made.federation.read_text().replace("secure = true", "secure = false"))
    other = invoke("digest", made.federation)
    assert ", NO secure sums, " in other.stderr
    assert other.stdout != printed.stdout


def test_without_secure_nothing_is_said_of_it(tmp_path: Path, schema: Schema) -> None:
    made = create(tmp_path / "fed", schema=schema)
    assert not load_config(made.federation).run.secure
    for file in (made.path / "README.md", made.federation):
        assert "secure" not in file.read_text().replace(str(tmp_path), "").lower()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"silos": ["a", "b"]}, "secure sums need at least 3 silos, got 2"),
        ({"method": "fcfl"}, f"which fcfl needs. Methods that work with secure sums: {', '.join(summable_names())}."),
    ],
)
def test_what_cannot_be_summed_is_refused(tmp_path: Path, schema: Schema, options: dict, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        create(tmp_path / "fed", schema=schema, secure=True, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_trial_has_a_roster(tmp_path: Path, needs) -> None:
    needs("compas")
    made = create(tmp_path / "fed", method="fedavg", rounds=1, secure=True)
    assert made.roster is not None
    listed = Roster.read(made.roster)
    assert listed == Roster.collect(made.public_key(silo) for silo in made.silos())
    private, public = made.key("hospital-a"), b"x" * 32
    listed.check("hospital-a", "run", "app", public, sign(private, "run", "app", public))
    with pytest.raises(Refused, match="'hospital-b' is not signed by the node that the roster has for it"):
        listed.check("hospital-b", "run", "app", public, sign(private, "run", "app", public))


def test_the_roster_command(tmp_path: Path, keys: list[Path]) -> None:
    """Fingerprints are those of OpenSSH: the SHA-256 of the key's own bytes."""
    done = invoke("roster", tmp_path / "roster.json", *keys)
    assert done.exit_code == 0, done.output
    lines = dict(line.split() for line in done.stdout.strip().splitlines())
    for file in keys:
        digest = hashlib.sha256(base64.b64decode(file.read_text().split()[1])).digest()
        assert lines[file.stem] == "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
    listed = json.loads((tmp_path / "roster.json").read_text())
    assert listed == {file.stem: file.read_text().strip() for file in keys}
    again = invoke("roster", tmp_path / "roster.json", *keys)
    assert again.exit_code == 2
    assert "exists and is not overwritten" in again.stderr


@pytest.mark.parametrize("wrong", ["twice", "private", "missing", "one key", "no name"])
def test_mistakes_of_the_roster_command(tmp_path: Path, keys: list[Path], wrong: str) -> None:
    files = {
        "twice": [*keys, keys[0]],
        "private": [keys[0].with_suffix("")],
        "missing": [tmp_path / "east.pub"],
        "one key": [*keys, tmp_path / "east.pub"],
        "no name": [tmp_path / "bad.pub"],
    }
    if wrong == "one key":
        (tmp_path / "east.pub").write_bytes(keys[0].read_bytes())
    (tmp_path / "bad.pub").write_text("ssh-rsa nothing")
    says = {
        "twice": "one for each silo",
        "private": "one for each silo",
        "missing": "cannot be read",
        "one key": "has one key for 'south' and 'east'",
        "no name": "'bad' is not a public key on an elliptic curve",
    }
    done = invoke("roster", tmp_path / "roster.json", *files[wrong])
    assert done.exit_code == 2, done.output
    assert says[wrong] in done.stderr
    assert not (tmp_path / "roster.json").exists()


def test_a_run_that_was_ended_while_silos_joined_is_started_anew(tmp_path: Path) -> None:
    """Its folder is there, because secure sums keep a journal, but it is no run that could be resumed."""
    folder = Folder(tmp_path)
    (folder.runs / "run" / "sums").mkdir(parents=True)
    assert _local_command(folder, "run") == f"run {tmp_path} --local"
    (folder.runs / "run" / "status.json").touch()
    assert _local_command(folder, "run").startswith("resume")
