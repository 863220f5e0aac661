"""Three silos with COMPAS rows as real programs over TLS; minutes, so only in `make test-full`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import equifed as ef
from equifed.config import build, load_config
from equifed.flower.deployment.folder import create
from equifed.flower.deployment.programs import LocalFederation
from equifed.store import RunFolder
from flower.test_deploy import left_behind, log, rounds, status, wait_for
from flower.test_inprocess import assert_measured_the_same

pytestmark = pytest.mark.full

LIE = """

def lying(handle):
    def answer(message, context):
        reply = handle(message, context)
        asked = message.content.config_records["about"]
        if context.node_config["client-id"] == "hospital-b" and asked["round"] >= 2:
            fields = reply.content["fields"]
            for name in fields:
                fields[name] = Array(np.asarray(fields[name].numpy() * np.nan))
        return reply

    return answer


import numpy as np
from flwr.app import Array

handlers = client.whole._registered_funcs
handlers["train.train"] = lying(handlers["train.train"])
"""
"""What one silo's app does besides."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, needs) -> Iterator[LocalFederation]:
    """The programs are started once; each test starts a run of its own."""
    needs("compas")
    folder = create(tmp_path_factory.mktemp("deployed") / "fed", method="fair-fate", rounds=2)
    with LocalFederation(folder) as programs:
        programs.start_all()
        yield programs
    assert left_behind(folder.path) == []


def configure(federation: LocalFederation, method: str, **changes: str) -> None:
    """What the next run does; an app is shipped anew with every run."""
    folder = federation.folder
    text = folder.federation.read_text()
    start = text.index("[method]")
    stop = text.find("\n[", start)
    text = text[:start] + f'[method]\nname = "{method}"\n' + text[stop:]
    for key, value in {"rounds": "2", "min-count": "0", **changes}.items():
        before = next(line for line in text.splitlines() if line.startswith(f"{key} ="))
        text = text.replace(before, f"{key} = {value}")
    folder.federation.write_text(text)


def carry_out(federation: LocalFederation, run: str) -> ef.Result:
    federation.run(run)
    wait_for(lambda: federation.ended(run) is not None, lambda: federation.tail(run))
    assert status(federation.folder, run) == "finished", federation.tail(run)
    return RunFolder(federation.folder.runs / run).result()


def simulated(federation: LocalFederation) -> ef.Result:
    simulation = build(load_config(federation.folder.federation))
    for _ in simulation.rounds():
        pass
    return simulation.result()


@pytest.mark.parametrize("method", ["fedavg", "kffl", "sffl", "fair-fate"])
def test_real_silos_equal_the_simulator(federation: LocalFederation, method: str) -> None:
    configure(federation, method)
    found, expected = carry_out(federation, method), simulated(federation)
    assert rounds(federation.folder, method) == [f"Round {number} of 2: 3 of 3 replied" for number in (1, 2)]
    assert found.parameters[0].keys() == expected.parameters[0].keys()
    for name, value in expected.parameters[0].items():
        np.testing.assert_allclose(found.parameters[0][name], value, rtol=1e-5, atol=1e-5)
    assert_measured_the_same(found, expected, personal=method == "sffl")


def test_a_silo_that_sends_nan_is_refused_by_name(federation: LocalFederation) -> None:
    configure(federation, "fedavg")
    app = federation.folder.app / "app.py"
    honest = app.read_text()
    app.write_text(honest + LIE)
    try:
        found = carry_out(federation, "nan")
    finally:
        app.write_text(honest)
    assert found.rejections[["round", "client", "answered"]].to_numpy().tolist() == [[2, "hospital-b", True]]
    assert "has NaN or Inf in" in found.rejections["reason"].iloc[0]
    assert found.log["replied"].tolist() == [3, 2]
    assert all(np.isfinite(value).all() for value in found.parameters[0].values())
    assert "without hospital-b in train (has NaN or Inf in" in log(federation.folder, "nan")


def test_a_silo_that_dies_is_missed_and_the_run_finishes(federation: LocalFederation) -> None:
    configure(federation, "fedavg", rounds="3")
    federation.run("missing")
    wait_for(lambda: rounds(federation.folder, "missing"), lambda: federation.tail("missing"))
    federation.kill("hospital-c")
    wait_for(lambda: federation.ended("missing") is not None, lambda: federation.tail("missing"))
    found = RunFolder(federation.folder.runs / "missing").result()
    assert found.log["round"].tolist() == [1, 2, 3]
    assert found.log["applied"].all()
    assert found.log["replied"].iloc[-1] == 2
    gone = found.rejections[~found.rejections["answered"].astype(bool)]
    assert set(gone["client"]) == {"hospital-c"}
    assert gone["round"].iloc[-1] == 3
    assert any(str(note).startswith("hospital-c did not answer in round") for note in found.notes)
    assert any(str(note).startswith("hospital-c did not evaluate round 3") for note in found.notes)
