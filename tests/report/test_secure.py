"""The report on a federation with secure sums: what is promised, who vouches for keys, who was missing, and in place of
single silos' figures why nobody has them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import equifed as ef
from equifed.cli.app import app
from equifed.report import verdict
from equifed.verdict.silos import NOT_AVAILABLE, Silos
from report.federated import secured
from report.runs import federation, run
from report.test_report import page_of
from report.test_silos import section


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secured")


@pytest.fixture(scope="module")
def secure(folder: Path) -> ef.Result:
    return secured(folder, folder / "runs", folder / "keys")


PROMISED = (
    "Secure sums: an operator of the server who reads everything it receives, and who ships equifed's own code, learns "
    "sums over at least 4 silos and who took part, but no single silo's reply, rows or metrics; keys vouched for by "
    "the silos' own roster at north and east, by the server at south, west and rim."
)
MISSING = (
    "In the rounds' exchanges, silos were missing twice before their masked reply, and twice between that and the "
    "unmasking of the sum."
)


def test_what_is_promised_and_who_was_missing(secure: ef.Result, tmp_path: Path) -> None:
    page = page_of([secure], tmp_path)
    text = section(page, "Silos", "As the server saw it.")
    assert PROMISED in text
    assert MISSING in text
    assert "1 of 5 rounds was not applied (round 4): " in text
    table = re.findall(r"<tr>(.*?)</tr>", (tmp_path / "report.html").read_text().split('id="silos"')[1], re.DOTALL)
    shown = [" ".join(re.findall(r">([^<>]+)<", line)) for line in table]
    assert shown[1] == "north not disclosed not disclosed none none none"
    assert shown[2] == "south not disclosed not disclosed in rounds 2, 4: no reply within 0 s none none"
    assert shown[3] == "west not disclosed not disclosed unmasking in rounds 3 to 4: no reply within 0 s none none"
    caveats = " ".join(verdict([secure]).caveats)
    assert "fedavg: 1 of 5 rounds was not applied (round 4)" in caveats
    assert "south (in rounds 2, 4: no reply within 0 s) and west (unmasking in rounds 3 to 4: no reply" in caveats


def test_what_nobody_knows_is_said(secure: ef.Result, tmp_path: Path) -> None:
    page = page_of([secure], tmp_path)
    assert NOT_AVAILABLE in section(page, "Clients", "Who holds which rows")
    assert page.data["clients"]["count"] == 0
    assert not any(name.startswith("client_") for name in page.data["metrics"])
    partition = section(page, "Who holds which rows", "What left each client")
    assert "Only the silos know this. Of all of them together the server knows the numbers" in partition
    groups = section(page, "Groups", "Calibration")
    assert "withheld" not in groups
    assert "undefined" not in groups


def test_what_the_server_gets(secure: ef.Result, tmp_path: Path) -> None:
    text = section(page_of([secure], tmp_path), "What left each client", "Provenance")
    assert "Secure sums. The server receives masked numbers" in text
    assert "no cryptographer from outside has reviewed it yet" in text
    assert "No secure aggregation" not in text
    assert "sees each" not in text
    assert text.count("gets only the sum") == 3  # joining, training, evaluation
    assert text.count("takes the masks off the sum") == 3


def test_beside_a_simulation_each_is_said_of_its_own(secure: ef.Result, tmp_path: Path) -> None:
    page = page_of([secure, run(ef.methods.FedProx(), federation(), rounds=1, seeds=[0])], tmp_path)
    text = re.sub(r"\s+", " ", page.text)
    assert "Of fedavg the server receives masked numbers" in text
    assert f"fedavg: {NOT_AVAILABLE}" in text
    assert "Each client on its own test rows" in text


@pytest.mark.full
def test_totals_that_are_withheld(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    own = tmp_path_factory.mktemp("hidden")
    hidden = secured(own, own / "runs", own / "keys", flower={"min-count": 100})
    page = page_of([hidden], tmp_path)
    text = section(page, "Silos", "As the server saw it.")
    assert (
        "Counts of all silos' test rows together are withheld below 100 (min-count, the highest that a silo asks for)."
    ) in text
    assert "withheld" in section(page, "Groups", "Calibration")
    silos = Silos.of(hidden)
    assert silos is not None
    assert silos.hides("accuracy", groups=["f"])
    assert "the silos withhold counts" in verdict([hidden]).sentences[0]
    assert np.isnan(hidden.final()["accuracy"]).all()


def test_the_command_line_says_it(secure: ef.Result, folder: Path) -> None:
    shown = CliRunner().invoke(app, ["show", str(folder / "runs" / "secured")], env={"COLUMNS": "400", "NO_COLOR": "1"})
    assert shown.exit_code == 0, shown.output
    for words in (PROMISED, MISSING, NOT_AVAILABLE, "not disclosed"):
        assert words in shown.stdout
    assert "No secure aggregation" not in shown.stdout
    told = CliRunner().invoke(app, ["show", str(folder / "runs" / "secured"), "--json"])
    facts = json.loads(told.stdout)["federation"]
    assert facts["secure"] == {
        "least": 4,
        "roster": ["north", "east"],
        "before": 2,
        "late": 2,
        "counts": [],
        "predicted": [],
    }
    assert facts["silos"][0]["train_rows"] is None
