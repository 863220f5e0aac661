"""Flower = simulator, for every method: in one process, with the real apps and messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch
from contract.sketches import SKETCHES
from contract.test_contract import AS_SUMS, METHODS, VARIANTS
from flwr.app import Array, ArrayRecord, Message
from support.samples import sampled_methods

import equifed as ef
from equifed import methods, tree
from equifed.flower.agreement import Setting
from equifed.flower.link import Link
from equifed.flower.silo import load_app
from equifed.protocol import Method
from flower.inprocess import Nodes, be_the_server, federate, memory_of, nodes, setting, simulate

OPTIONS = [method for method in (*VARIANTS, *AS_SUMS, *SKETCHES) if "+" not in method.name]
WRAPPED = [method for method in VARIANTS if "+" in method.name]
KINDS = {(type(method), method.hyper.get("fit"), method.hyper.get("level")): method for method in reversed(WRAPPED)}
"""The first of each wrapper, wherever it is fitted and at whatever level."""
FEDERATED = [
    *sampled_methods((method for method in METHODS if not method.pooled), 6),
    *(pytest.param(method, marks=() if method in KINDS.values() else pytest.mark.full) for method in WRAPPED),
    *(pytest.param(method, marks=pytest.mark.full) for method in OPTIONS),
]
"""Some methods, those that have changed, and every kind of wrapper always; the others, and what options and sketches
add, in `make test-full`."""
METRICS = ["round", "split", "scope", "metric"]


@pytest.mark.parametrize("method", FEDERATED, ids=repr)
def test_a_federation_equals_the_simulator(method: Method, silos: Path, tmp_path: Path) -> None:
    """Parameters, what clients remember, and everything measured; with some of the clients in each round."""
    made = setting(silos, method, model={"bias": method.name not in ("frl", "e2fl")})
    grid = nodes(made)
    found, expected = federate(made, grid, tmp_path), simulate(made)
    assert not len(found.rejections), found.rejections
    assert found.log["applied"].all()
    assert found.log["replied"].tolist() == [4, 4, 4]
    if found.parameters[3]:
        assert found.parameters[3].keys() == expected.parameters[3].keys()
        for name, value in expected.parameters[3].items():
            np.testing.assert_allclose(found.parameters[3][name], value, rtol=1e-5, atol=1e-5)
    else:
        assert method.personal  # all models are the clients' own
    remembers = bool(tree.leaves(expected.final_states[3].clients))
    asked = {silo for silo, kind in grid.sent if kind.startswith("train.")}
    for k, silo in enumerate(made.silos):
        assert bool(memory_of(grid, silo)) == (remembers and silo in asked)
        for name, value in memory_of(grid, silo).items():
            there = tree.to_named(tree.take(expected.final_states[3].clients, k))[name]
            torch.testing.assert_close(value, there, rtol=1e-5, atol=1e-5)
    assert_measured_the_same(found, expected, method.personal)


@pytest.mark.parametrize("method", [methods.FedAvg(), methods.FedVal(), methods.LCO(), methods.QFFL()], ids=repr)
@pytest.mark.sample(1)
def test_clipped_at_the_silos_as_in_the_simulator(method: Method, silos: Path, tmp_path: Path) -> None:
    made = setting(silos, method, run={"clip": 0.05, "rounds": 2})
    found, expected = federate(made, nodes(made), tmp_path), simulate(made)
    assert not len(found.rejections)
    assert found.log["clipped"].tolist() == expected.log["clipped"].tolist()
    assert found.log["clipped"].gt(0).all()
    for name, value in expected.parameters[3].items():
        np.testing.assert_allclose(found.parameters[3][name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", [methods.FedAvg(), methods.FairFate(), methods.FedFair()], ids=repr)
@pytest.mark.parametrize("rule", [pytest.param("trimmed-mean", marks=pytest.mark.full), "multi-krum"])
@pytest.mark.sample(1)
def test_a_robust_rule_at_the_server_as_in_the_simulator(
    rule: str, method: Method, silos: Path, tmp_path: Path
) -> None:
    run = {"robust": rule, "liars": 0.2, "rounds": 3, "clients-per-round": "all"}
    made = setting(silos, method, run=run)
    found, expected = federate(made, nodes(made), tmp_path), simulate(made)
    assert found.log["applied"].tolist() == expected.log["applied"].tolist()
    for name, value in expected.parameters[3].items():
        np.testing.assert_allclose(found.parameters[3][name], value, rtol=1e-4, atol=1e-6)
    assert found.cuts["client"].tolist() == expected.cuts["client"].tolist()
    np.testing.assert_allclose(found.cuts["cut"], expected.cuts["cut"], atol=1e-6)
    assert found.plain_mean.empty  # it trains once
    assert not expected.plain_mean.empty
    loaded = ef.load_result(tmp_path / "run")
    assert loaded.cuts.equals(found.cuts)
    note = next(str(note) for note in loaded.notes if note.kind == "robust")
    assert "compare with a run or simulation without it" in note


def test_a_round_with_too_few_silos_for_the_rule_is_not_applied(silos: Path, tmp_path: Path) -> None:
    run = {"robust": "krum", "liars": 0.2, "rounds": 2, "clients-per-round": "all"}
    made = setting(silos, run=run, flower={"join-deadline": 0.05})
    grid = nodes(made)
    grid.gone = {"a", "b"}  # e has no rows, so that three updates are left of the five that krum needs
    found = federate(made, grid, tmp_path)
    assert not found.log["applied"].any()
    (note,) = (note for note in found.notes if note.kind == "rounds-not-applied")
    assert "krum needs 5 updates to tolerate 1 malicious client, and fewer came" in str(note)
    assert not len(found.cuts)


def test_validation_rows_that_do_not_fit_the_silo_are_refused_by_it(silos: Path, tmp_path: Path) -> None:
    """However many they are and whatever a message says they are: each silo gets its own wrong ones."""
    summed = methods.FedVal().summed
    assert summed is not None
    made = setting(silos, summed, run={"clients-per-round": "all", "rounds": 1})
    rows, inputs = 60, len(made.scaled)
    right = np.zeros((rows, inputs), np.float32)
    huge = Array(right)
    huge.shape = (10**12, inputs)
    wrong = {
        "a": Array(np.zeros((rows, inputs + 1), np.float32)),
        "b": Array(np.zeros((rows - 1, inputs), np.float32)),
        "c": Array(right.astype(np.float64)),
        "d": Array(np.full_like(right, np.nan)),
        "e": huge,
    }

    class Lying(Nodes):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            for message in messages:
                silo, content = self.silo(message.metadata.dst_node_id), message.content
                if message.metadata.message_type == "train.train" and silo in wrong:
                    fields = dict(content["fields"])
                    fields["validation.0"] = wrong[silo]
                    content["fields"] = ArrayRecord(fields)
            return super().push_messages(messages)

    honest = nodes(made)
    found = federate(made, Lying(honest.app, [c.node_config for c in honest.contexts.values()]), tmp_path)
    said = found.rejections.set_index("client")["reason"]
    assert said.keys().tolist() == list(wrong)
    assert "validation.0 of shape [60, " in said["a"]
    assert "has validation.1 of shape [60]; expected [59]" in said["b"]
    assert "validation.0 of type float64" in said["c"]
    assert "NaN or Inf in validation.0" in said["d"]
    assert "expected [1000000000000, " in said["e"]


OUTSIDE = """
from dataclasses import dataclass, replace
from typing import ClassVar
from equifed import tree
from equifed.methods import FedAvg
from equifed.methods.hyper import hyper

@dataclass(frozen=True)
class Half(FedAvg):
    name: ClassVar[str] = "half"
    share: float = hyper(0.5, low=0)
    "How far the model moves."

    @property
    def round(self):
        (phase,) = super().round
        return (replace(phase, server=self.move),)

    def move(self, server, replies, validation):
        mean = tree.scale(replies["update"], self.share / replies["rows"].clamp_min(1))
        return server._replace(theta=tree.add(server.theta, mean))
"""


def test_a_method_from_outside_needs_its_module_at_the_silos(
    silos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By `module:Name` in the configuration; a silo without the module is named with the reason, and left out."""
    (tmp_path / "halves.py").write_text(OUTSIDE)
    raw = setting(silos).config.resolved(silos) | {"method": {"name": "halves:Half", "share": 0.25}}
    raw["run"] |= {"clients-per-round": "all", "rounds": 2}
    file = silos / "outside.toml"
    file.write_text(tomli_w.dumps(raw))
    monkeypatch.chdir(silos)
    without = load_app(file)  # as where the module is not installed
    monkeypatch.syspath_prepend(str(tmp_path))
    made = Setting.load(file)
    configs = [{"client-id": silo, "data": str(silos / f"{silo}.parquet")} for silo in made.silos]
    found, expected = federate(made, Nodes(load_app(file), configs), tmp_path / "all"), simulate(made)
    for name, value in expected.parameters[3].items():
        np.testing.assert_allclose(found.parameters[3][name], value, rtol=1e-5, atol=1e-5)
    assert found.info["method"] == "halves:Half"

    grid = Nodes(load_app(file), configs, apps={"a": without})
    missing = federate(made, grid, tmp_path / "but-one")
    assert missing.log["replied"].tolist() == [5, 5]
    (reason,) = set(missing.rejections["reason"])
    assert set(missing.rejections["client"]) == {"a"}
    assert reason == (
        "its app cannot be loaded: method.name: 'halves:Half' needs the module halves, "
        "which is not installed at the silo"
    )
    assert f"no module halves among the installed ones nor in {silos}" in caplog.text  # the silo's own log


@dataclass(frozen=True)
class Talkative(methods.FedAvg):
    """Sends a number of which nobody knows what it can be."""

    @property
    def round(self):  # type: ignore[no-untyped-def]
        (phase,) = super().round

        def client(down, state, data):  # type: ignore[no-untyped-def]
            reply, state = phase.client(down, state, data)
            return reply | {"mood": data.n * 0}, state

        return (replace(phase, up=(*phase.up, "mood"), client=client),)


def test_fields_without_a_bound_are_named_before_round_1(
    silos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = setting(silos, Talkative())
    result = federate(made, nodes(made), tmp_path)
    (note,) = (str(note) for note in result.notes if note.kind == "unbounded")
    assert note.startswith("The method declares no bounds for mood in train:")
    said = capsys.readouterr().out
    assert said.index(note) < said.index("Round 1 of 3")


BROKEN = {
    "import nowhere.at_all": "needs the module nowhere, which is not installed at the silo",
    "raise OSError('/home/jane/secrets cannot be read')": "cannot be used at the silo (see the silo's log)",
}


@pytest.mark.parametrize("line", BROKEN)
def test_why_an_app_cannot_be_loaded_names_no_path_to_the_server(
    line: str, silos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the module raises, and wherever it lies."""
    name = f"broken{list(BROKEN).index(line)}"
    (tmp_path / f"{name}.py").write_text(line)
    raw = setting(silos).config.resolved(tmp_path) | {"method": {"name": f"{name}:Half"}}
    (tmp_path / "federation.toml").write_text(tomli_w.dumps(raw))
    monkeypatch.syspath_prepend(str(tmp_path))
    grid = Nodes(load_app(tmp_path / "federation.toml"), [{"client-id": "a"}])
    be_the_server()
    link = Link(grid, ["a", "b"], "digest", "run", scaled=4)
    link.welcome(1.0)
    reason = link.why_not("a")
    assert reason.startswith("its app cannot be loaded: method.name: ")
    assert reason.endswith(BROKEN[line])
    assert "/" not in reason
    assert str(tmp_path / f"{name}.py") in caplog.text


def test_a_job_that_cannot_be_made_at_a_silo_names_no_path(tmp_path: Path, silos: Path) -> None:
    """Of the configuration it names the key, not the file, which lies in the silo's own folder."""
    raw = setting(silos).config.resolved(tmp_path) | {"method": {"name": "e2fl"}}  # which cannot train a bias
    (tmp_path / "federation.toml").write_text(tomli_w.dumps(raw))
    made = Setting.load(tmp_path / "federation.toml")
    be_the_server()
    grid = Nodes(load_app(tmp_path / "federation.toml"), [{"client-id": "a", "data": str(silos / "a.parquet")}])
    link = Link(grid, made.silos, made.digest, "run", scaled=4)
    link.welcome(1.0)
    assert "bias" in link.why_not("a")
    assert "/" not in link.why_not("a")


def assert_measured_the_same(found: ef.Result, expected: ef.Result, personal: bool) -> None:
    """All metrics; where clients have models of their own, those of the clients: the simulator tries every model on all
    test rows, which in a federation nobody has."""
    frames = []
    for result in (found, expected):
        frame = result.metrics.astype({"split": str, "scope": str, "metric": str})
        frame = frame[frame["scope"].str.startswith("client:")] if personal else frame
        frames.append(frame.sort_values(METRICS).reset_index(drop=True))
    there, simulated = frames
    assert there[METRICS].to_numpy().tolist() == simulated[METRICS].to_numpy().tolist()
    np.testing.assert_allclose(there["value"], simulated["value"], rtol=1e-4, atol=1e-5)
    for key in ("positive", "meaning"):
        assert found.info[key] == expected.info[key] != ""


@pytest.mark.parametrize(
    "method", [methods.FedAvgGR(), methods.make("fedavg+eo", fit="global"), methods.FedEM()], ids=repr
)
def test_the_servers_folder_predicts_where_the_server_can(method: Method, silos: Path, tmp_path: Path) -> None:
    """What clients keep stays with them, so nobody predicts with it here."""
    made = setting(silos, method, run={"rounds": 1})
    live, expected = federate(made, nodes(made), tmp_path), simulate(made)
    (folder,) = (path.parent for path in tmp_path.glob("*/result.json"))
    loaded = ef.load_result(folder)
    assert loaded.schema == made.schema
    rows = expected.schema.encode(pd.read_parquet(silos / "a.parquet"))
    if method.personal:
        for result in (live, loaded):
            with pytest.raises(ef.ConfigError, match="the silos have models of their own, which stay with them"):
                result.predict(rows.x, client="a")
        new = loaded.adapt((rows.x, rows.y)).predict(rows.x)[3]
        np.testing.assert_array_equal(new, live.adapt((rows.x, rows.y)).predict(rows.x)[3])
        return
    found = loaded.predict(rows.x, s=rows.s)
    np.testing.assert_array_equal(found, live.predict(rows.x, s=rows.s))
    np.testing.assert_allclose(found, expected.predict(rows.x, s=rows.s), rtol=1e-4, atol=1e-5)
