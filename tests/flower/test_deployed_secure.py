"""Secure sums between five silos as real programs over TLS, of which some are killed; minutes, so only in
`make test-full`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from equifed.flower.agreement import Setting
from equifed.flower.deployment.folder import create
from equifed.flower.deployment.programs import LocalFederation
from equifed.flower.journal import Journal
from equifed.flower.memory import exchange_number
from equifed.methods import make
from equifed.store import RunFolder
from flower.test_deploy import left_behind, status, wait_for
from flower.test_secure import simulate

pytestmark = pytest.mark.full

SILOS = ["a", "b", "c", "d", "e"]
STOP = """

import time

MARKS, STOPS = Path({marks!r}), {stops!r}


class Stopping(type(client)):
    def __call__(self, message, context):
        kind, said = message.metadata.message_type, message.content.config_records["about"]
        name = f"{{context.node_config['client-id']}} {{kind.split('.')[0]}} {{said.get('exchange')}}"
        if name in STOPS and not (MARKS / name).exists():
            (MARKS / name).touch()
            while not (MARKS / "go on").exists():
                time.sleep(0.05)
        return super().__call__(message, context)


client.__class__ = Stopping
"""
"""What the silos' app does besides: at these messages it stops for once, so that somebody can be killed."""


@pytest.fixture(params=["fedavg", "kffl", "fairfed"])
def federation(request: pytest.FixtureRequest, tmp_path: Path, needs) -> Iterator[LocalFederation]:
    needs("compas")
    folder = create(tmp_path / "fed", silos=SILOS, method=request.param, rounds=3, secure=True)
    with LocalFederation(folder) as programs:
        yield programs
    assert left_behind(folder.path) == []


def test_silos_and_server_are_killed_and_the_bits_are_the_simulators(
    federation: LocalFederation, tmp_path: Path
) -> None:
    """d before it masks, in round 2; the server while that round's sum is being unmasked; e between masking and
    unmasking, in the last exchange of round 3."""
    folder, marks = federation.folder, tmp_path / "marks"
    marks.mkdir()
    second = exchange_number(2, "round", 0)
    last = exchange_number(3, "round", len(make(Setting.load(folder.federation).method.name).round) - 1)
    before, between, after = f"d train {second}", f"a query {second}", f"e query {last}"
    app = folder.app / "app.py"
    app.write_text(app.read_text() + STOP.format(marks=str(marks), stops=[before, between, after]))

    def stopped(name: str) -> None:
        wait_for((marks / name).exists, lambda: federation.tail("run"))

    federation.start_all()
    federation.run("run")
    stopped(before)
    federation.kill("d")
    stopped(between)
    entry = Journal(folder.runs / "run" / "sums").read(second)
    assert entry is not None
    assert (entry.stage, sorted(entry.facts["commitments"])) == ("masked", ["a", "b", "c", "e"])
    federation.kill("superlink")
    wait_for(lambda: federation.ended("run") is not None)
    assert status(folder, "run") == "interrupted"
    (marks / "go on").touch()
    federation.start_silo("d")
    federation.start_superlink()
    (marks / "go on").unlink()
    federation.run("run")
    stopped(after)
    federation.kill("e")
    wait_for(lambda: federation.ended("run") is not None, lambda: federation.tail("run"))
    assert status(folder, "run") == "finished", federation.tail("run")

    found = RunFolder(folder.runs / "run").result()
    assert found.log["applied"].all()
    assert found.log["replied"].tolist() == [5, 4, 5]
    assert found.log["late"].tolist() == [0, 0, 1]
    assert found.rejections.query("phase != 'evaluation'")[["round", "client"]].to_numpy().tolist() == [[2, "d"]]
    expected = simulate(Setting.load(folder.federation), folder.runs, {2: {"d"}}, {3: {"e"}})
    assert found.parameters[0].keys() == expected.parameters[0].keys()  # a folder keeps no other state of the server
    for name, value in expected.parameters[0].items():
        assert found.parameters[0][name].tobytes() == value.tobytes(), name
    assert not (folder.runs / "run" / "sums").exists()
