"""Command lines that nobody types on purpose: a usage error, an error of ours or a result, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from equifed.cli.app import app
from fuzz.mutations import fuzzed

COMMANDS = [
    *(["methods"], ["show"], ["list"], ["report"], ["compare"], ["run"], ["resume"], ["check"]),
    *(["data", "list"], ["data", "info"], ["flower", "init"], ["flower", "run"], ["flower", "resume"], ["nothing"]),
]
OPTIONS = ["--json", "--runs", "--output", "--method", "--silos", "--table", "--label", "--rounds", "--set", "--port"]
WORDS = st.one_of(
    st.sampled_from([*OPTIONS, "fedavg", "latest", "compas", "-1", "1e308", "/dev/zero", "/dev/null", "..", "~"]),
    st.sampled_from(["\udcff", "\x1b[31m", "a\nb", "x" * 10_000, "run.rounds=9" + "9" * 5000, "{}", "--", "-"]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=()), max_size=20),  # the system takes no zero
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("here")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("EQUIFED_DATA", str(folder / "data"))  # nothing is computed, and nothing fetched
    monkeypatch.setattr("equifed.data.download.fetch_files", _nothing)
    return folder


def _nothing(*args: object, **more: object) -> None:
    from equifed.errors import DataError

    raise DataError("No data in this test.")


@fuzzed
@given(st.sampled_from(COMMANDS), st.lists(WORDS, max_size=5))
def test_no_traceback(command: list[str], words: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert "EQUIFED_DEBUG" not in result.output  # the words of an error that is none of ours
    assert result.exit_code in (0, 1, 2, 3, 4)
