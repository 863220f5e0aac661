"""A federation of real programs on this machine; minutes, so only in `make test-full`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from equifed import Columns
from equifed.config import build, load_config
from equifed.data import Schema
from equifed.errors import RunError
from equifed.flower.deployment.bundle import write_bundle
from equifed.flower.deployment.folder import NAME, QUIET, Folder, create
from equifed.flower.deployment.processes import Processes
from equifed.flower.deployment.programs import LocalFederation, free_ports
from equifed.store import RunFolder
from flower.archives import unpack
from flower.test_inprocess import assert_measured_the_same

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs a system that shows who was left behind"),
]

SILOS = ["north", "south"]
LONG = 12
WAIT = 600.0
ACTIVATED = '"POST /v1/fleet/activate-node HTTP/1.1" 200'


@pytest.fixture
def folder(tmp_path) -> Iterator[Folder]:
    """A federation of two small silos; nothing of it may run on afterwards."""
    yield make(tmp_path / "fed")
    assert left_behind(tmp_path) == []


@pytest.fixture
def long(tmp_path) -> Iterator[Folder]:
    """Rounds enough to be stopped in the middle, however late a busy machine lets the test notice that it began."""
    yield make(tmp_path / "fed", rounds=LONG)
    assert left_behind(tmp_path) == []


@pytest.fixture
def command(start) -> Callable[..., subprocess.Popen[str]]:
    """`equifed flower ...` in a process of its own, which is killed if the test leaves it running."""
    return lambda *words: start("from equifed.cli import main; main()", "flower", *words)


def make(path: Path, address: str = "127.0.0.1", rounds: int = 3) -> Folder:
    """With a method whose clients remember something."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"age": rng.integers(20, 90, 200), "sex": rng.choice(["f", "m"], 200)})
    rows["cured"] = np.where(rows["age"] + 20 * (rows["sex"] == "m") + rng.normal(0, 20, 200) > 60, "no", "yes")
    schema = Schema.infer(rows, Columns(label="cured", sensitive="sex", positive="yes", meaning="the patient is cured"))
    (port,) = free_ports(1)
    made = create(path, silos=SILOS, method="lco", rounds=rounds, schema=schema, address=address, port=port)
    made.federation.write_text(made.federation.read_text().replace("min-count = 10", "min-count = 0"))
    for silo, own in zip(SILOS, (rows[:100], rows[100:]), strict=True):
        own.to_parquet(made.data(silo))
    return made


def left_behind(path: Path) -> list[str]:
    """Programs that know of this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if entry.name != str(os.getpid()) and f"{path}/".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def wait_for(what: Callable[[], object], why: Callable[[], str] = lambda: "") -> None:
    end = time.monotonic() + WAIT
    while not what():
        assert time.monotonic() < end, f"it did not come about in {WAIT:.0f} s\n{why()}"
        time.sleep(0.1)


def log(folder: Folder, name: str) -> str:
    file = folder.logs / f"{name}.log"
    return file.read_text(errors="replace") if file.exists() else ""


def rounds(folder: Folder, run: str) -> list[str]:
    return re.findall(r"^Round .* replied", log(folder, run), re.MULTILINE)


def status(folder: Folder, run: str) -> str:
    return RunFolder(folder.runs / run).status()["status"]


def assert_as_simulated(folder: Folder, run: str) -> None:
    simulation = build(load_config(folder.federation))
    for _ in simulation.rounds():
        pass
    simulated = simulation.result()
    found = RunFolder(folder.runs / run).result()
    assert_measured_the_same(found, simulated, personal=False)
    (parameters,) = found.parameters.values()
    for name, value in simulated.parameters[0].items():
        np.testing.assert_allclose(parameters[name], value, rtol=1e-5, atol=1e-5)


def test_a_silo_that_was_killed_comes_back_and_all_take_part(folder):
    with LocalFederation(folder) as federation:
        federation.start_all()
        wait_for(lambda: log(folder, "superlink").count(ACTIVATED) == 2, lambda: federation.tail("south"))
        federation.kill("south")
        assert not federation.alive("south")
        assert federation.alive("north")
        federation.start_silo("south")
        # Flower takes the dead node for alive, and refuses its successor so long
        wait_for(lambda: "Failed to activate" in log(folder, "south"), lambda: federation.tail("south"))
        wait_for(lambda: log(folder, "superlink").count(ACTIVATED) == 3, lambda: federation.tail("south"))
        federation.run("one")
        wait_for(lambda: federation.ended("one") is not None, lambda: federation.tail("one"))
        assert status(folder, "one") == "finished"
        assert rounds(folder, "one") == [f"Round {number} of 3: 2 of 2 replied" for number in (1, 2, 3)]
        assert_as_simulated(folder, "one")
    assert left_behind(folder.path) == []


def test_a_superlink_that_dies_is_started_again_and_the_run_goes_on(long):
    folder = long
    with LocalFederation(folder) as federation:
        federation.start_all()
        federation.run("one")
        wait_for(lambda: rounds(folder, "one"), lambda: federation.tail("one"))
        federation.kill("superlink")
        wait_for(lambda: federation.ended("one") is not None)
        assert status(folder, "one") == "interrupted"
        done = RunFolder(folder.runs / "one").rounds_done()
        assert 1 <= done < LONG
        federation.start_superlink()  # on the same port, with the keys that it knew
        federation.run("one")
        wait_for(lambda: federation.ended("one") is not None, lambda: federation.tail("one"))
        assert status(folder, "one") == "finished"
        assert_as_simulated(folder, "one")


def test_strangers_are_refused(folder, tmp_path):
    other = make(tmp_path / "other")
    with LocalFederation(folder) as federation:
        federation.start_superlink()
        shutil.copy(other.certificates / "ca.crt", folder.certificates / "ca.crt")
        federation.start_silo("north")
        wait_for(lambda: "CERTIFICATE_VERIFY_FAILED" in log(folder, "north"), lambda: federation.tail("north"))
        federation.kill("north")
        assert "POST /v1/fleet" not in log(folder, "superlink")
    folder = make(tmp_path / "third")
    with LocalFederation(folder) as federation:
        federation.start_superlink()
        federation.start_silo("south")  # nobody has registered its key
        wait_for(lambda: "Exit Code: 305" in log(folder, "south"), lambda: federation.tail("south"))
        assert "POST /v1/fleet/activate-node" in log(folder, "superlink")
        assert "Receiving:" not in log(folder, "south")


def test_ctrl_c_stops_everything_and_resume_finishes_the_run(long, command):
    folder = long
    process = command("demo", "--folder", str(folder.path))
    wait_for(lambda: list(folder.runs.glob("*/rounds.jsonl")), lambda: log(folder, "superlink"))
    assert len(left_behind(folder.path)) >= 6  # a server and two silos, each of several programs
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=WAIT)
    assert process.returncode == 130, said
    assert "all programs are stopped" in said
    assert left_behind(folder.path) == []
    (run,) = (path.name for path in folder.runs.glob("*/"))
    assert status(folder, run) == "interrupted"
    again = command("resume", str(folder.path), "--local")
    out, said = again.communicate(timeout=WAIT)
    assert again.returncode == 0, said
    assert f"Run {run} continues after round" in said
    assert "lco" in out
    assert_as_simulated(folder, run)
    page = folder.runs / run / "report.html"
    assert f"Report: {page}" in said
    assert "<html" in page.read_text(encoding="utf-8")


def test_one_command_carries_out_a_run_of_ones_own_federation(folder, command):
    process = command("run", str(folder.path), "--local", "--json")
    out, said = process.communicate(timeout=WAIT)
    assert process.returncode == 0, said
    assert left_behind(folder.path) == []
    run = json.loads(out)["run"]
    assert status(folder, run) == "finished"
    assert "Round 3 of 3" in said
    assert f"Report: {folder.runs / run / 'report.html'}" in said
    assert_as_simulated(folder, run)


def test_bundles_and_the_servers_script_make_a_federation(folder, command, tmp_path):
    """As on machines of their own: each node has its bundle, its file, and nothing of the folder."""
    own = {}
    for silo in SILOS:
        write_bundle(folder, silo, tmp_path / f"{silo}.tar.gz")
        own[silo] = unpack(tmp_path / f"{silo}.tar.gz", tmp_path / f"at-{silo}")
        folder.data(silo).rename(own[silo] / "data" / f"{silo}.parquet")
        folder.key(silo).unlink()
    env = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with Processes(folder.logs) as programs:
        programs.start("superlink", ["sh", folder.superlink_script], env, tmp_path)
        wait_for(lambda: "running on" in log(folder, "superlink"), lambda: programs.tail("superlink"))
        for silo in SILOS:
            register = [Path(sys.executable).parent / "flwr", "supernode", "register", folder.public_key(silo), NAME]
            programs.start("register", register, env | QUIET | {"FLWR_HOME": str(folder.home)}, tmp_path)
            assert programs.wait("register", WAIT) == 0, programs.tail("register")
            script = own[silo] / "node.sh"
            script.write_text(re.sub(r"--port \d+ ", f"--port {free_ports(1)[0]} ", script.read_text()))
            programs.start(silo, ["sh", script], env, tmp_path)
        process = command("run", str(folder.path), "--json")
        out, said = process.communicate(timeout=WAIT)
        assert process.returncode == 0, said
    assert left_behind(tmp_path) == []
    run = json.loads(out)["run"]
    assert rounds(folder, run) == [f"Round {number} of 3: 2 of 2 replied" for number in (1, 2, 3)]
    for silo in SILOS:
        assert list((own[silo] / "state" / "memory").iterdir())  # the method remembers something
        (own[silo] / "data" / f"{silo}.parquet").rename(folder.data(silo))
    assert_as_simulated(folder, run)


def test_what_a_killed_command_leaves_is_cleared_away_by_the_next(folder, command):
    process = command("demo", "--folder", str(folder.path))
    wait_for(lambda: ACTIVATED in log(folder, "superlink"), lambda: log(folder, "superlink"))
    process.kill()
    process.communicate(timeout=WAIT)
    assert left_behind(folder.path)
    with LocalFederation(folder):
        assert left_behind(folder.path) == []
        with pytest.raises(RunError, match="already running on this machine"), LocalFederation(folder):
            pass


def test_a_run_that_fails_says_why(folder, command):
    (folder.app / "app.py").write_text("raise RuntimeError('no such luck')\nserver = client = None\n")
    process = command("demo", "--folder", str(folder.path))
    _, said = process.communicate(timeout=WAIT)
    assert process.returncode == 4
    assert "did not start" in said
    assert "no such luck" in said


def test_the_commands_of_the_readme_make_a_federation(folder, command):
    """As somebody with several shells would type them."""
    with Processes(folder.logs) as shells:
        type_the_readme(folder, shells, command)


NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")


@pytest.mark.skipif(NGINX is None, reason="needs nginx")
def test_behind_the_readmes_proxy_silos_see_the_nodes_api_only(tmp_path, command):
    """127.0.0.2 plays the network's interface. The run is a whole one, through the proxy."""
    folder = make(tmp_path / "fed", address="127.0.0.2")
    (server,) = re.findall(r"```nginx\n(.*?)```", (folder.path / "README.md").read_text(), re.DOTALL)
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; pid {tmp_path}/nginx.pid; events {{}}\nhttp {{ access_log {tmp_path}/access.log;\n{server}}}\n"
    )
    proxy = [str(NGINX), "-p", tmp_path, "-e", tmp_path / "errors.log", "-c", tmp_path / "nginx.conf"]
    with Processes(folder.logs) as shells:
        shells.start("proxy", proxy, {}, tmp_path)
        type_the_readme(folder, shells, command)
        trusted = ssl.create_default_context(cafile=str(folder.certificates / "ca.crt"))
        _, port = folder.superlink()
        inside, outside = (status_of(f"https://{host}:{port}", trusted) for host in ("127.0.0.1", "127.0.0.2"))
        assert inside["/v1/control/list-runs"] != 404  # commands, without any key
        assert outside == {"/v1/control/list-runs": 404, "/v1/runtime/get-nodes": 404, "/health": 404}
    seen = (tmp_path / "access.log").read_text()
    assert "/v1/fleet/" in seen  # the silos came this way
    assert left_behind(tmp_path) == []


def status_of(server: str, trusted: ssl.SSLContext) -> dict[str, int]:
    found = {}
    for path in ("/v1/control/list-runs", "/v1/runtime/get-nodes", "/health"):
        try:
            request = urllib.request.Request(server + path, method="POST", data=b"")
            found[path] = (
                urllib.request.build_opener(
                    urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted)
                )
                .open(request, timeout=WAIT)
                .status
            )
        except urllib.error.HTTPError as error:
            with error:
                found[path] = error.code
    return found


def type_the_readme(folder: Folder, shells: Processes, command: Callable[..., subprocess.Popen[str]]) -> None:
    """Server, keys and nodes in a shell each, and a run that finishes."""
    text = (folder.path / "README.md").read_text()
    for port in ("9094", "9095"):
        text = text.replace(f"--port {port}", f"--port {free_ports(1)[0]}")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    (superlink,) = (block for block in blocks if "flower-superlink" in block)
    (register,) = (block for block in blocks if "register" in block)
    nodes = [block for block in blocks if "flower-supernode" in block]
    assert len(nodes) == 2
    env = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    shells.start("superlink", ["sh", "-c", superlink], env, folder.path)
    wait_for(lambda: "running on" in log(folder, "superlink"), lambda: shells.tail("superlink"))
    shells.start("register", ["sh", "-ec", register], env, folder.path)
    assert shells.wait("register", WAIT) == 0, shells.tail("register")
    for number, node in enumerate(nodes):
        shells.start(f"node-{number}", ["sh", "-c", node], env, folder.path)
    process = command("run", str(folder.path))
    out, said = process.communicate(timeout=WAIT)
    assert process.returncode == 0, said
    assert "Round 3 of 3" in said
    assert "lco" in out
