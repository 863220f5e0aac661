"""A method, model, partitioner, data set and metric from outside the package: those of the page on them."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from flower.inprocess import federate, nodes, setting, simulate, write_files
from typer.testing import CliRunner

import equifed as ef
from equifed import methods, models, partition
from equifed.cli.app import app
from equifed.config import load_config, parse_config
from equifed.data import DATASETS
from equifed.flower.agreement import Setting
from equifed.metrics import catalogue

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "plugins.md").read_text(encoding="utf-8")
MODULE = PAGE.split("```python\n")[1].split("```")[0]
CONFIG = tomllib.loads(PAGE.split("```toml\n")[1].split("```")[0])
REGISTRIES = (methods.REGISTRY, models.REGISTRY, partition.REGISTRY, DATASETS, catalogue.METRICS)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder in which commands are started; what the test imports from it is forgotten."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EQUIFED_RUNS", raising=False)
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "_imported", {})
    yield tmp_path
    for name in ("mine", "ours.deep.mine", "ours.deep", "ours"):
        sys.modules.pop(name, None)


@pytest.fixture
def neighbour(place):
    """The module is a file in this folder."""
    (place / "mine.py").write_text(MODULE)


@pytest.fixture
def installed(place):
    """The module is in an installed package, which has given its things names."""
    site = place / "site"
    info = site / "mine-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "mine.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[equifed.methods]\ncautious = mine:Cautious\n[equifed.models]\nnarrow = mine:Narrow\n"
        "[equifed.partitioners]\nby-town = mine:ByTown\n[equifed.datasets]\nloans = mine:LOANS\n"
        "[equifed.metrics]\napproval = mine:APPROVED\n"
    )
    sys.path.append(str(site))


def invoke(*args: str) -> str:
    outcome = CliRunner().invoke(app, list(args), env={"COLUMNS": "160", "NO_COLOR": "1"})
    assert outcome.exit_code == 0, outcome.stderr
    return outcome.stdout


def compare(data: str, method: str, division: str, model: str, metric: str) -> None:
    """With eta = 1 the method from outside is FedAvg; it is in the table and in the report."""
    printed = invoke(
        *("compare", data, "--methods", f"fedavg,{method},{method}+eo", "--partition", division, "--model", model),
        *(
            "--metrics",
            metric,
            "--set",
            f"{method}.eta=1",
            "--rounds",
            "2",
            "--seeds",
            "1",
            "--json",
            "--report",
            "page.html",
        ),
    )
    whole = json.loads(printed)
    records = {record["method"]: record for record in whole["methods"]}
    assert list(records) == ["fedavg", method, f"{method}+eo"]
    assert records[method]["metrics"] == records["fedavg"]["metrics"]
    assert whole["settings"]["partition"] == {"kind": division, "column": "town"}
    assert whole["settings"]["model"] == {"kind": model, "width": 2}
    page = Path("page.html").read_text(encoding="utf-8")
    approved = records["fedavg"]["metrics"]
    assert approved["approved"] == approved["selection_rate"]
    for name in (method, f"{method}+eo", data, "approved", "Share of test rows that are predicted positive"):
        assert name in page


def test_things_from_a_neighbouring_file_on_the_command_line(neighbour):
    shown = invoke("methods", "mine:Cautious")
    assert "FedAvg that goes a part of the way" in shown
    assert "The part of the mean update that is applied" in shown
    assert "Made up." in invoke("data", "describe", "mine:LOANS")
    compare("mine:LOANS", "mine:Cautious", "mine:ByTown", "mine:Narrow", "mine:APPROVED")


def test_a_module_in_a_package_on_the_command_line(place):
    (place / "ours" / "deep").mkdir(parents=True)
    (place / "ours" / "deep" / "mine.py").write_text(MODULE)
    name = "ours.deep.mine:Cautious"
    settings = ("--set", f"{name}.eta=0.25", "--rounds", "1", "--seeds", "1", "--json")
    record = json.loads(invoke("compare", "ours.deep.mine:LOANS", "--methods", name, *settings))["methods"][0]
    assert (record["method"], record["hyper_parameters"]["eta"]) == (name, 0.25)


def test_things_of_an_installed_package_on_the_command_line(installed):
    listed = {each["name"]: each for each in json.loads(invoke("methods", "--json"))}
    assert [*listed][-1] == "cautious"
    assert listed["cautious"]["hyper_parameters"][0]["range"] == "0 to 1"
    assert "loans" in invoke("data", "list")
    compare("loans", "cautious", "by-town", "narrow", "approval")
    misspelt = CliRunner().invoke(app, ["compare", "loans", "--methods", "cautios"])
    assert misspelt.exit_code == 2
    assert "Did you mean 'cautious'?" in misspelt.stderr


def test_things_from_outside_in_a_configuration(place, neighbour):
    made = parse_config(CONFIG)
    assert (made.method.eta, made.model.width, made.partition.column) == (0.3, 3, "town")
    assert {key: made.resolved()[key] for key in ("method", "model", "partition")} == {
        key: CONFIG[key] for key in ("method", "model", "partition")
    }
    (place / "mine.toml").write_text(tomli_w.dumps(CONFIG | {"run": CONFIG["run"] | {"rounds": 2, "seeds": 1}}))
    found = json.loads(invoke("run", "mine.toml", "--json"))
    assert (found["status"], found["method"]) == ("finished", "mine:Cautious")
    (folder,) = (place / "runs").glob("*/")
    again = load_config(folder / "config.toml")
    assert (again.method, again.model, again.partition) == (made.method, made.model, made.partition)
    assert again.run.metrics == ("mine:APPROVED",)
    assert found["metrics"]["approved"] == found["metrics"]["selection_rate"]
    shown = invoke("show", "latest")
    assert "mine:Cautious" in shown
    assert "approved" in shown
    invoke("report", "latest", "-o", "page.html")
    assert "mine:Cautious" in Path("page.html").read_text(encoding="utf-8")
    rows = ef.load("mine:LOANS").rows.x
    assert ef.load_result(folder).predict(rows).shape[-1:] == rows.shape[:1]


def test_a_method_from_outside_on_flower(place, neighbour):
    write_files(place)
    usual = setting(place, run={"rounds": 2})
    names = {"method": {"name": "mine:Cautious", "eta": 0.3}, "model": {"kind": "mine:Narrow"}}
    sections = usual.config.resolved()
    sections["run"]["metrics"] = ["mine:APPROVED"]
    made = Setting(parse_config(sections | names, folder=place), usual.schema)
    found, expected = federate(made, nodes(made), place / "runs"), simulate(made)
    assert not len(found.rejections)
    assert found.info["method"] == "mine:Cautious"
    assert found.final()["approved"].tolist() == pytest.approx(expected.final()["approved"].tolist())
    for name, value in expected.parameters[3].items():
        np.testing.assert_allclose(found.parameters[3][name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("section", "name", "text"),
    [
        ("method", "mine:Narrow", "method.name: The method 'mine:Narrow' is not a method: it must be a subclass of"),
        ("method", "mine:Nothing", "method.name: The method 'mine:Nothing' cannot be found"),
        ("model", "mine:read2", "model.kind: The model 'mine:read2' cannot be found"),
        ("partition", "mine:LOANS", "partition.kind: The partition 'mine:LOANS' is not a partition"),
        ("data", "mine:Cautious", "data.name: The data set 'mine:Cautious' is not a data set"),
        (
            "method",
            "theirs:Bold",
            "method.name: The method 'theirs:Bold' cannot be imported: there is no module theirs",
        ),
    ],
)
def test_what_is_wrong_with_things_from_outside(neighbour, section, name, text):
    selector = {"method": "name", "data": "name"}.get(section, "kind")
    with pytest.raises(ef.ConfigError) as caught:
        parse_config(CONFIG | {section: {selector: name}})
    assert f"configuration: {text}" in str(caught.value)
