"""The files by which a system or a container engine keeps server and nodes running: that they are understood, start the
commands of the READMEs, and let them do no more than they need."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from equifed import Columns
from equifed.data import Schema
from equifed.flower.deployment.bundle import write_bundle
from equifed.flower.deployment.folder import Folder, create
from flower.archives import unpack
from flower.test_folder import table

ANALYZE, DOCKER = shutil.which("systemd-analyze"), shutil.which("docker")
SILOS = ["north", "South_2"]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """In a folder whose name every format has to quote in its own way."""
    schema = Schema.infer(table(), Columns(label="cured", sensitive="sex", positive="yes"))
    path = tmp_path_factory.mktemp("services") / "100 %h of $HOME"
    return create(path, silos=SILOS, schema=schema, address="federation.example.org", port=8443)


@pytest.fixture(scope="module")
def bundled(federation: Folder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every silo's folder, on its own machine."""
    there = tmp_path_factory.mktemp("silos")
    for silo in SILOS:
        write_bundle(federation, silo, there / f"{silo}.tar.gz")
    return {silo: unpack(there / f"{silo}.tar.gz", there / f"at {silo}") for silo in SILOS}


def superlink_command(federation: Folder) -> list[str]:
    """As somebody would type it, by the README."""
    text = (federation.path / "README.md").read_text().replace("\\\n", " ")
    (line,) = re.findall(r"^flower-superlink .*$", text, re.MULTILINE)
    return shlex.split(line)


# -- services of the system --------------------------------------------------------------------------------------------


def units(federation: Folder, bundled: dict[str, Path]) -> list[Path]:
    server = federation.deploy / "server" / "equifed-superlink.service"
    return [server, *(own / f"equifed-{silo}.service" for silo, own in bundled.items())]


def read_unit(path: Path) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None, strict=True, delimiters=("=",))
    unit.optionxform = str  # systemd's keys are written as they are
    unit.read_string(path.read_text())
    return unit


def words(value: str) -> list[str]:
    """As systemd reads them: %% and $$ are single ones."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(value)]


def test_units_restart_what_they_keep_running_and_let_it_do_little(federation: Folder, bundled: dict[str, Path]):
    for path in units(federation, bundled):
        unit = read_unit(path)
        assert unit.sections() == ["Unit", "Service", "Install"]
        service = unit["Service"]
        assert (service["Restart"], service["RestartSec"], unit["Unit"]["StartLimitIntervalSec"]) == (
            "always",
            "10",
            "0",
        )
        assert service["UMask"] == "0077"
        for key in ("NoNewPrivileges", "PrivateTmp", "RestrictSUIDSGID", "ProtectKernelModules"):
            assert service[key] == "yes"
        assert (service["ProtectSystem"], service["ProtectHome"]) == ("strict", "read-only")
        assert service["CapabilityBoundingSet"] == ""
        assert "MemoryDenyWriteExecute" not in service  # compiled training would be killed by it
        assert unit["Install"]["WantedBy"] == "multi-user.target"


def test_the_servers_unit_starts_the_readmes_command(federation: Folder):
    unit = read_unit(federation.deploy / "server" / "equifed-superlink.service")["Service"]
    assert words(unit["ExecStart"]) == ["/bin/sh", str(federation.superlink_script)]
    assert words(unit["ReadWritePaths"]) == [str(federation.path)]
    assert unit["WorkingDirectory"].replace("%%", "%") == str(federation.path)
    assert "$$" not in unit["WorkingDirectory"]  # nothing is replaced there
    script = federation.superlink_script.read_text().replace("\\\n", " ")
    (line,) = re.findall(r"^exec (.*)$", script, re.MULTILINE)
    assert shlex.split(line) == superlink_command(federation)
    assert "\numask 077 " in script
    assert f"EQUIFED_FEDERATION={shlex.quote(str(federation.path))}\n" in script


def test_a_silos_unit_starts_its_node_wherever_the_bundle_lies(bundled: dict[str, Path]):
    for silo, own in bundled.items():
        text = (own / "README.md").read_text()
        (replace,) = re.findall(r"^(sed .*) \| sudo tee /etc/systemd/system/(.*)$", text, re.MULTILINE)
        assert replace[1] == f"equifed-{silo}.service"
        placed = subprocess.run(["sh", "-c", replace[0]], cwd=own, capture_output=True, text=True, check=True).stdout
        unit = configparser.ConfigParser(interpolation=None, delimiters=("=",))
        unit.read_string(placed)
        assert words(unit["Service"]["ExecStart"]) == ["/bin/sh", str(own / "node.sh")]
        assert words(unit["Service"]["ReadWritePaths"]) == [str(own / "state")]
        assert unit["Service"]["User"] == "equifed"


@pytest.mark.skipif(ANALYZE is None, reason="needs systemd")
def test_systemd_finds_nothing_wrong(federation: Folder, bundled: dict[str, Path], tmp_path: Path):
    files = units(federation, bundled)
    misspelt = tmp_path / "equifed-misspelt.service"
    misspelt.write_text(files[1].read_text().replace("RestartSec=", "RestartSecs="))
    for path in (*files, misspelt):
        done = subprocess.run([str(ANALYZE), "verify", path], capture_output=True, text=True, timeout=600)
        complaints = [
            line for line in done.stderr.splitlines() if path.name in line
        ]  # of the system's own, it tells too
        assert (done.returncode, bool(complaints)) == (0, path == misspelt), done.stderr


# -- containers --------------------------------------------------------------------------------------------------------


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """The Dockerfile as its engine reads it: no comments, continued lines as one."""
    text = re.sub(r"^\s*#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in text.splitlines() if line.strip()]


def test_the_image_is_built_by_the_readmes_steps(federation: Folder, bundled: dict[str, Path]):
    dockerfile = federation.deploy / "Dockerfile"
    steps = instructions(dockerfile)
    assert [name for name, _ in steps] == ["FROM", "COPY", "ENV", "RUN", "ENV", "USER"]
    (run,) = (value for name, value in steps if name == "RUN")
    for readme in (federation.path / "README.md", *(own / "README.md" for own in bundled.values())):
        (install,) = re.findall(r"^pip install .*$", readme.read_text(), re.MULTILINE)
        assert run == install
    from importlib.metadata import version

    assert shlex.split(run) == ["pip", "install", f"equifed[flower]=={version('equifed')}"]
    variables = dict(word.split("=", 1) for name, value in steps if name == "ENV" for word in shlex.split(value))
    assert variables["FLWR_TELEMETRY_ENABLED"] == "0"
    assert variables["PIP_FIND_LINKS"] == dict(steps)["COPY"].split()[1]
    assert dict(steps)["USER"] == "1000:1000"
    (base,) = (value for name, value in steps if name == "FROM")
    assert re.fullmatch(r"python:3\.1[1-3]-slim", base)
    for context in (federation.deploy, *bundled.values()):
        assert (context / "Dockerfile").read_bytes() == dockerfile.read_bytes()
        assert (context / dict(steps)["COPY"].split()[0]).is_dir()
        # nothing else reaches the engine that builds it, keys and rows least of all
        assert [line for line in (context / ".dockerignore").read_text().splitlines() if line[0] != "#"] == [
            "*",
            "!wheels",
        ]


class Unique(yaml.SafeLoader):
    """YAML in which a key that is there twice is an error."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), keys
        return super().construct_mapping(node, deep)


def service(path: Path, name: str) -> dict[str, Any]:
    composed = yaml.load(path.read_text(), Unique)
    assert set(composed) == {"name", "services"}
    assert re.fullmatch(r"[a-z0-9][a-z0-9_-]*", composed["name"])  # or the engine refuses it
    assert list(composed["services"]) == [name]
    return composed["services"][name]


def mounts(found: dict[str, Any]) -> dict[str, bool]:
    """What is mounted, and whether it can be written."""
    for volume in found["volumes"]:
        assert volume["type"] == "bind"
        assert volume["bind"] == {"create_host_path": False}  # a missing file is said, not made as root's folder
    return {volume["source"].replace("$$", "$"): not volume.get("read_only", False) for volume in found["volumes"]}


def assert_confined(found: dict[str, Any]) -> None:
    assert found["user"] == "${EQUIFED_UID:-1000}:${EQUIFED_GID:-1000}"
    assert (found["read_only"], found["cap_drop"], found["tmpfs"]) == (True, ["ALL"], ["/tmp"])
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert (found["restart"], found["init"]) == ("always", True)
    assert "ports" not in found
    assert not found.get("privileged")


def test_the_servers_container_listens_on_loopback_only(federation: Folder):
    found = service(federation.deploy / "server" / "compose.yaml", "superlink")
    assert_confined(found)
    assert found["network_mode"] == "host"
    command = superlink_command(federation)
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert [word.replace("$$", "$") for word in found["command"]] == ["sh", str(federation.superlink_script)]
    assert mounts(found) == {str(federation.path): True}
    assert all(volume["source"] == volume["target"] for volume in found["volumes"])
    assert (federation.deploy / "server" / found["build"]).resolve() == federation.deploy


def test_a_silos_container_sees_its_rows_read_only_and_nothing_of_its_machine_else(bundled: dict[str, Path]):
    for own in bundled.values():
        found = service(own / "compose.yaml", "node")
        assert_confined(found)
        assert "network_mode" not in found  # it calls out, and needs no more
        assert found["command"] == ["sh", "/silo/node.sh"]
        read = {f"./{name}": False for name in ("node.sh", "ca.crt", "keys", "app", "data")}
        assert mounts(found) == read | {"./state": True}
        for volume in found["volumes"]:
            assert volume["target"] == "/silo/" + volume["source"].removeprefix("./")
            assert (own / volume["source"]).exists()


def test_a_trials_container_reaches_the_servers_loopback_and_secure_sums_have_a_roster(tmp_path: Path):
    schema = Schema.infer(table(), Columns(label="cured", sensitive="sex", positive="yes"))
    made = create(tmp_path / "fed", silos=["a", "b", "c"], schema=schema, secure=True)
    found = service(made.for_silo("a") / "compose.yaml", "node")
    assert found["network_mode"] == "host"
    assert mounts(found)["./roster.json"] is False


@pytest.mark.skipif(DOCKER is None, reason="needs the program docker; no engine")
def test_docker_understands_them(federation: Folder, bundled: dict[str, Path], tmp_path: Path):
    """By the parser of its stacks, whose schema lacks two keys of today's compose files."""
    for number, path in enumerate([federation.deploy / "server", *bundled.values()]):
        composed = yaml.safe_load((path / "compose.yaml").read_text())
        del composed["name"]
        for found in composed["services"].values():
            for volume in found["volumes"]:
                del volume["bind"]
        (tmp_path / "compose.yaml").write_text(yaml.safe_dump({"version": "3.13", **composed}))
        command = [str(DOCKER), "stack", "config", "--compose-file", tmp_path / "compose.yaml"]
        ids = {"EQUIFED_UID": "1234", "EQUIFED_GID": "99"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ | ids)
        assert done.returncode == 0, done.stderr
        (read,) = yaml.safe_load(done.stdout)["services"].values()
        assert read["user"] == "1234:99"
        if number == 0:
            assert read["command"] == ["sh", str(federation.superlink_script)]
            assert read["volumes"][0]["source"] == str(federation.path)
