"""A metric of the user's own in a configuration file, in checks, and in what reads the run without its module."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from store.silos import write_config

from equifed.metrics import catalogue
from equifed.metrics.catalogue import METRICS

MODULE = """
from equifed.metrics import Metric

above = Metric(
    name="gap_to_half", title="gap to one half", help="How far selection is from one half.", better="zero",
    kinds=("binary",), needs=(), overall=lambda e: abs(e["selection_rate"] - 0.5),
)
"""


@pytest.fixture
def own(place: Path, monkeypatch):
    (place / "my_metrics.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(METRICS, "_imported", {})
    monkeypatch.setattr(catalogue, "_OUTSIDE", {})
    yield "my_metrics:above"
    sys.modules.pop("my_metrics", None)


def test_in_a_file(place, invoke, own):
    file = str(write_config(place, run={"metrics": [own], "seeds": [3]}))
    done = invoke("run", file, "--json", "--fail-if", "gap_to_half > 5")
    assert done.exit_code == 0, done.stderr
    about = json.loads(done.stdout)
    gap = abs(about["metrics"]["selection_rate"]["mean"] - 0.5)
    assert about["metrics"]["gap_to_half"]["mean"] == pytest.approx(gap)
    assert invoke("run", file, "--fail-if", "gap_to_half >= 0").exit_code == 1
    # what reads the run needs no module
    catalogue._OUTSIDE.clear()
    assert "gap_to_half" in invoke("show", about["run"]).stdout
    assert invoke("report", about["run"], "-o", "page.html").exit_code == 0
    assert "gap to one half" in (place / "page.html").read_text()
