"""The package beside the library: its commands, its mistakes' exit codes, and what both distributions agree on."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from typer.testing import CliRunner

import equifed_papers
from equifed.cli.app import app


def test_the_commands_are_those_of_equifed() -> None:
    brought = {each.name for each in entry_points(group="equifed.commands") if each.value.startswith("equifed_papers.")}
    assert brought == {"reproduce", "benchmark"}
    listed = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "160", "NO_COLOR": "1"}).stdout
    assert "Repeat a paper's experiment" in listed
    assert "Every method on many data sets" in listed
    for command in brought:
        described = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "160", "NO_COLOR": "1"})
        assert described.exit_code == 0
        assert "--json" in described.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--methods", ","], "names nothing"),
        (["--pages", "/proc/x"], "--pages"),
        (["--runs", "experiment.toml"], "it is a file"),
    ],
)
def test_mistakes_have_their_code_and_no_traceback(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiment.toml").write_text("")
    outcome = CliRunner().invoke(app, ["reproduce", "fair-fate/table1", *words])
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert said in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_every_writer_of_csv_files_takes_the_guard_against_formulas() -> None:
    """As in the library, whether it writes by pandas or by Python's module."""
    writers = {
        path.relative_to(equifed_papers.HOME).as_posix(): text
        for path in equifed_papers.HOME.rglob("*.py")
        if re.search(r"\.to_csv\(|csv\.writer\(|csv\.DictWriter\(", text := path.read_text(encoding="utf-8"))
    }
    assert set(writers) == {"cli/reproduce.py", "experiments/record.py"}
    assert all("csv_cell(" in text for text in writers.values())
