"""What one silo gets: all that it needs, and nothing of anybody else's."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from equifed import Columns
from equifed.cli.app import app
from equifed.data import Schema
from equifed.errors import ConfigError
from equifed.flower.agreement import Setting
from equifed.flower.deployment.bundle import write_bundle
from equifed.flower.deployment.credentials import write_key_pair
from equifed.flower.deployment.folder import Folder, create, node_config
from flower.archives import everything, unpack
from flower.test_folder import table

SILOS = ["north", "south", "west"]


@pytest.fixture
def schema() -> Schema:
    return Schema.infer(table(), Columns(label="cured", sensitive="sex", positive="yes"))


@pytest.fixture(params=[False, True], ids=["plain", "secure"])
def federation(request: pytest.FixtureRequest, tmp_path: Path, schema: Schema) -> Folder:
    secure = request.param
    return create(tmp_path / "fed", silos=SILOS, schema=schema, address="federation.example.org", secure=secure)


def invoke(*args: object):
    return CliRunner().invoke(app, ["flower", *map(str, args)], env={"COLUMNS": "160", "NO_COLOR": "1"})


def secrets_of(folder: Folder) -> dict[str, bytes]:
    """The folder's private keys: what stands between their first and last line, in lines."""
    files = [*(file for file in (folder.path / "keys").iterdir() if not file.suffix), *folder.path.rglob("*.key")]
    keys = {file.name: b"".join(file.read_bytes().splitlines()[1:-1]) for file in files}
    assert set(keys) == {*SILOS, "ca.key", "server.key"}
    return keys


# -- what is in it -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("silo", SILOS)
def test_nothing_of_anybody_else_is_in_it_and_no_path_of_this_machine(federation: Folder, tmp_path: Path, silo: str):
    done = invoke("bundle", federation.path, silo, "--out", tmp_path / "own.tar.gz")
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(tmp_path / "own.tar.gz")
    assert f"It contains the private key of {silo}" in done.stderr
    assert stat.S_IMODE((tmp_path / "own.tar.gz").stat().st_mode) == 0o600
    found = everything(tmp_path / "own.tar.gz")
    whole = b"\0".join([name.encode() + b"\0" + content for name, content in found.items()])
    lines = b"".join(whole.splitlines())
    assert {name for name, key in secrets_of(federation).items() if key in lines} == {silo}
    for other in set(SILOS) - {silo}:
        assert federation.public_key(other).read_bytes().split()[1] not in whole
    assert (federation.certificates / "server.crt").read_bytes() not in whole
    for place in (federation.path, tmp_path, Path.home(), Path(sys.executable).parent, Path.cwd()):
        assert place == Path("/") or str(place).encode() not in whole, place
    assert found[f"{silo}/keys/{silo}"] == federation.key(silo).read_bytes()
    assert found[f"{silo}/ca.crt"] == (federation.certificates / "ca.crt").read_bytes()
    assert {name.partition("/")[0] for name in found} == {silo}


def test_only_the_owner_reads_the_key(federation: Folder, tmp_path: Path):
    write_bundle(federation, "north", tmp_path / "north.tar.gz")
    own = unpack(tmp_path / "north.tar.gz", tmp_path / "there")
    assert stat.S_IMODE((own / "keys" / "north").stat().st_mode) == 0o600
    for folder in (own, own / "keys", own / "data", own / "state"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not list((own / "data").iterdir())


def test_the_same_folder_makes_the_same_bytes(federation: Folder, tmp_path: Path):
    one, two = tmp_path / "one.tar.gz", tmp_path / "two.tar.gz"
    write_bundle(federation, "north", one)
    for file in federation.path.rglob("*"):
        os.utime(file, (1e9, 1e9))
    write_bundle(federation, "north", two)
    assert one.read_bytes() == two.read_bytes()
    with tarfile.open(one) as packed:
        entries = packed.getmembers()
    assert [entry.name for entry in entries] == sorted(entry.name for entry in entries)
    assert {(entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname) for entry in entries} == {
        (315532800, 0, 0, "", "")
    }


def test_a_silo_with_a_key_of_its_own(federation: Folder, tmp_path: Path):
    done = invoke("bundle", federation.path, "north", "--out", tmp_path / "own.tar.gz", "--no-key", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["silo"], said["key"], said["bundle"]) == ("north", False, str(tmp_path / "own.tar.gz"))
    found = everything(tmp_path / "own.tar.gz")
    assert {f"north/{name}" for name in said["files"]} == {name for name, content in found.items() if content}
    assert not [name for name in found if name.startswith("north/keys/")]
    assert not any(b"PRIVATE KEY" in content for content in found.values())
    # and where the folder's key was removed, as its README asks for, none is needed
    federation.key("south").unlink()
    done = invoke("bundle", federation.path, "south", "--out", tmp_path / "south.tar.gz")
    assert done.exit_code == 0, done.output
    assert "Without a private key: south makes its own" in done.stderr


def test_a_wheel_and_a_roster_travel_along(tmp_path: Path, needs):
    needs("compas")
    trial = create(tmp_path / "trial", method="fedavg", rounds=1, secure=True)
    (trial.wheels / "equifed-9.9-py3-none-any.whl").write_bytes(b"a wheel")
    bundle = write_bundle(trial, "hospital-b", tmp_path / "b.tar.gz")
    assert {"roster.json", "wheels/equifed-9.9-py3-none-any.whl"} <= set(bundle.files)
    found = everything(tmp_path / "b.tar.gz")
    assert found["hospital-b/roster.json"] == trial.roster.read_bytes()
    assert not [name for name in found if name.endswith((".parquet", ".db"))]


# -- that it works -----------------------------------------------------------------------------------------------------


def place_programs(own: Path) -> None:
    """In the silo's virtual environment: an equifed that compares no clocks, a Flower that only says how it was started
    and a pause in which the silo's operator ends the script."""
    programs = own / "venv" / "bin"
    programs.mkdir(parents=True)
    say = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['FLWR_HOME'], os.umask(0)]))"
    equifed = "import sys; from equifed.cli import main; 'clock' in sys.argv or main()"
    for name, code in {"flower-supernode": say, "equifed": equifed}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(code)} "$@"\n')
        (programs / name).chmod(0o755)
    (programs / "sleep").write_text("#!/bin/sh\nkill $PPID\n")
    (programs / "sleep").chmod(0o755)


def start(own: Path) -> subprocess.CompletedProcess[str]:
    """From another folder, as a service would."""
    return subprocess.run(["sh", own / "node.sh"], cwd="/", capture_output=True, text=True, timeout=600)


@pytest.mark.sample(1)
def test_the_node_starts_from_its_bundle_alone(federation: Folder, tmp_path: Path):
    from flwr.common.config import parse_config_args
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    write_bundle(federation, "south", tmp_path / "south.tar.gz")
    own = unpack(tmp_path / "south.tar.gz", tmp_path / "at the silo")
    place_programs(own)
    secure = federation.config().run.secure
    missing = [(own / "data" / "south.parquet", "Put the silo's file there")]
    missing += [(own / "roster.json", "README.md describes how the silo makes it")] if secure else []
    for file, says in missing:
        done = start(own)
        assert done.returncode == 1
        assert file.name in done.stderr
        assert says in done.stderr
        file.touch()
    done = start(own)
    assert done.returncode == 143, done.stderr
    words, home, mask = json.loads(done.stdout)
    assert home == str(own / "state" / "flwr")
    assert mask == 0o077
    given = _parse_args_run_supernode().parse_args(words)
    assert given.superlink == "federation.example.org:8000"
    assert (given.host, given.port) == ("127.0.0.1", 9095)
    assert Path(given.root_certificates).read_bytes() == (federation.certificates / "ca.crt").read_bytes()
    assert Path(given.auth_supernode_private_key) == own / "keys" / "south"
    config = parse_config_args([given.node_config])
    plain = {"client-id": "south", "data": str(own / "data" / "south.parquet"), "state": str(own / "state" / "memory")}
    if secure:
        # what the silo has seen, not what the server says later
        digest = Setting.load(own / "app" / "federation.toml").digest
        plain |= {"key": str(own / "keys" / "south"), "roster": str(own / "roster.json"), "app": digest, "secure": True}
        assert digest == Setting.load(federation.federation).digest
    assert config == plain


def test_the_readme_is_about_files_of_the_bundle(federation: Folder, tmp_path: Path):
    bundle = write_bundle(federation, "south", tmp_path / "south.tar.gz")
    own = unpack(tmp_path / "south.tar.gz", tmp_path / "there")
    text = (own / "README.md").read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    present = {*bundle.files, "data/", "state/", "wheels/"} - {"README.md", ".dockerignore", "keys/south.pub"}
    assert listed == present | ({"roster.json"} if federation.config().run.secure else set())
    blocks = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    shell = subprocess.run(["sh", "-n"], input=blocks, capture_output=True, text=True)
    assert (shell.returncode, shell.stderr) == (0, "")
    commands = [shlex.split(line) for line in blocks.splitlines() if line.startswith("equifed ")]
    assert ["data", "check"] in [words[1:3] for words in commands]
    for words in commands:
        if words[1] == "flower":
            assert invoke(words[2], "--help").exit_code == 0
    assert ("## 4. Secure sums" in text) == federation.config().run.secure


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def plain(tmp_path: Path, schema: Schema) -> Folder:
    return create(tmp_path / "fed", silos=SILOS, schema=schema)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["fed", "nroth"], "Unknown silo 'nroth'. Did you mean 'north'? Known: north, south, west."),
        (["fed", "../fed"], "Unknown silo '../fed'"),
        (["elsewhere", "north"], "elsewhere is not the folder of a federation"),
        (["fed", "north", "--out", "taken"], "taken exists and is not overwritten"),
    ],
)
def test_mistakes_of_the_command(plain: Folder, tmp_path: Path, monkeypatch, words: list[str], says: str):
    monkeypatch.chdir(tmp_path)
    Path("taken").touch()
    done = invoke("bundle", *words)
    assert done.exit_code == 2, done.output
    assert says in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"fed", "taken"}


def test_by_default_it_is_named_after_the_silo(plain: Folder, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke("bundle", "fed", "north")
    assert (done.exit_code, done.stdout.strip()) == (0, "north.tar.gz")


def test_a_key_that_is_not_the_silos_any_more_is_not_sent(plain: Folder, tmp_path: Path):
    write_key_pair(tmp_path / "at north", "north")
    plain.public_key("north").write_bytes((tmp_path / "at north" / "north.pub").read_bytes())
    with pytest.raises(ConfigError, match=r"is not the private key of north\.pub in the same folder"):
        write_bundle(plain, "north", tmp_path / "north.tar.gz")
    plain.key("north").write_text("nonsense")
    with pytest.raises(ConfigError, match="is not a private key in OpenSSH's form"):
        write_bundle(plain, "north", tmp_path / "north.tar.gz")
    assert not write_bundle(plain, "north", tmp_path / "north.tar.gz", key=False).key


@pytest.mark.parametrize("where", ["data", "script"])
def test_a_path_of_this_machine_stops_it(plain: Folder, tmp_path: Path, where: str):
    named = "/srv/patients/south.parquet" if where == "data" else str(plain.path / "data")
    changed = plain.federation if where == "data" else plain.for_silo("north") / "node.sh"
    text = changed.read_text().replace("../data/south.parquet", named)
    changed.write_text(text if where == "data" else f"{text}# {named}\n")
    with pytest.raises(
        ConfigError, match=f"{changed.name} names {named if where == 'data' else plain.path}, a path of"
    ):
        write_bundle(plain, "north", tmp_path / "north.tar.gz")
    assert not (tmp_path / "north.tar.gz").exists()


def test_a_folder_of_an_earlier_version_says_what_it_lacks(plain: Folder, tmp_path: Path):
    (plain.for_silo("north") / "node.sh").unlink()
    with pytest.raises(ConfigError, match=r"The bundle of north needs .*node\.sh, which does not exist"):
        write_bundle(plain, "north", tmp_path / "north.tar.gz")


def test_the_readmes_node_is_the_bundles(plain: Folder):
    """One place for the options: they differ in paths only."""
    readme, script = (plain.path / "README.md").read_text(), (plain.for_silo("north") / "node.sh").read_text()
    options = [re.findall(r"--[a-z-]+", text[text.index("flower-supernode ") :])[:6] for text in (readme, script)]
    assert options[0] == options[1]
    assert len(set(options[0])) == 6
    assert node_config("north", "$data", "$here/state/memory").replace('"', '\\"') in script
