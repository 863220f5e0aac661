"""A federation's run in the terminal: its silos, what is withheld, and no false alarm."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from report.federated import troubled, untroubled

from equifed.cli.options import Output
from equifed.cli.runs import print_result
from equifed.store import Store


@pytest.fixture
def shown(place: Path, invoke: Callable[..., Any]) -> str:
    troubled(place, place / "runs")
    outcome = invoke("show", "troubled")
    assert outcome.exit_code == 0, outcome.stderr
    return str(outcome.stdout)


def test_show_has_a_line_for_each_silo(shown: str, invoke: Callable[..., Any]) -> None:
    lines = [re.sub(r"\s+", " ", line).strip() for line in shown.splitlines()]
    assert "north 1,200 300 - train in round 5: has NaN or Inf in -" in lines
    assert "south 720 180 in round 5: no reply within 0 s - -" in lines
    assert any(line.startswith("east 480 120 the last evaluation: no reply") for line in lines)
    assert "rim unknown unknown never joined: not connected - -" in lines
    assert "1 of 7 rounds was not applied (round 5): fewer than 3 usable replies came (min-replies)." in lines
    text = " ".join(lines)
    assert "Accuracy and error rates rest on the 480 of 624 test rows whose counts are disclosed." in text
    assert "No secure aggregation: the server receives every silo's reply by itself" in text
    assert "Note:" not in text  # all of it is in the table
    assert "disclosed 235 245" in lines
    found = json.loads(invoke("show", "troubled", "--json").stdout)
    silos = {silo["silo"]: silo for silo in found["federation"]["silos"]}
    assert found["federation"]["rounds_not_applied"] == [5]
    assert silos["west"]["withheld"] == {"counts": ["f", "m"], "predicted": ["m"]}
    assert silos["west"]["did_not_answer"] == [{"reason": "not connected", "rounds": [3, 4]}]
    assert silos["east"]["did_not_evaluate"] == "no reply within 0 s"
    assert silos["north"]["refused"][0]["phase"] == "train"
    assert len(found["notes"]) == 9


@pytest.mark.full
def test_report_for_other_programs(shown: str, invoke: Callable[..., Any]) -> None:
    found = json.loads(invoke("report", "troubled", "--json").stdout)
    (about,) = found["federations"]
    assert (about["method"], about["min_count"], about["rows_disclosed"]) == ("fedavg-gr", 5, {"f": 235, "m": 245})
    table = pd.read_csv(io.StringIO(invoke("report", "troubled", "--csv").stdout)).set_index(["scope", "metric"])
    assert table.loc[("client:west", "missed_rounds"), "mean"] == 2
    invoke("report", "troubled", "-o", "page.html")
    page = Path("page.html").read_text()
    assert "fingerprint of the server&#39;s rows" in page


@pytest.mark.full  # drawing takes seconds, and knows a federation from a simulation only by what is withheld (below)
def test_figures_of_a_federation(shown: str, invoke: Callable[..., Any]) -> None:
    outcome = invoke("report", "troubled", "--figures", "figures", "--formats", "svg")
    assert outcome.exit_code == 0, outcome.stderr
    assert list(Path("figures").iterdir())


def test_a_withheld_group_passes_no_check(place: Path, invoke: Callable[..., Any]) -> None:
    """Nobody shows how right the predictions for men are: neither the worst group nor any gap is known."""
    result = untroubled(place, place / "runs", flower={"min-count": 3})
    assert result.info["federation"]["disclosed"]["m"] == 0 < result.info["federation"]["disclosed"]["f"]
    for check in ("worst_group_accuracy < 0.01", "accuracy_difference > 0.99", "client_accuracy.worst < 0.01"):
        outcome = invoke("show", "untroubled", "--fail-if", check)
        assert outcome.exit_code == 1, check
    shown = invoke("show", "untroubled").stdout
    assert re.search(r"worst.group.accuracy +withheld", shown)
    assert re.search(r"accuracy +0\.7", shown)  # of the rows that are disclosed, as it says
    tables = result.count_tables()[3]
    assert np.isnan(tables[1]).all()
    assert result.count_tables(labels=False)[3].sum() == 130  # what is predicted is known of all
    again = Store(place / "runs").find("untroubled").result()
    pd.testing.assert_frame_equal(again.counts, result.counts)


def test_what_is_withheld_is_no_divergence(place: Path, invoke: Callable[..., Any], capsys: Any) -> None:
    result = untroubled(place, place / "runs", flower={"min-count": 100})
    capsys.readouterr()
    outcome = invoke("show", "untroubled")
    assert re.search(r"loss +withheld", outcome.stdout)
    assert re.search(r"positives +withheld +withheld", outcome.stdout)
    assert "undefined" not in outcome.stdout
    assert "Diverged" not in outcome.stdout
    found = json.loads(invoke("show", "untroubled", "--json").stdout)
    expected = {"mean": None, "std": None, "defined": 0, "withheld": True}
    assert found["metrics"]["loss"] | expected == found["metrics"]["loss"]
    invoke("report", "untroubled", "--figures", "figures", "--formats", "svg")
    assert list(Path("figures").iterdir()) == []  # there is nothing to draw
    print_result([Store(place / "runs").find("untroubled")], result, Output(place / "runs"), ())
    said = capsys.readouterr().out
    assert "withheld" in said
    assert "Silos" in said
    assert "Lower the learning rate" not in said
