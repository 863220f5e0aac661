"""Targets on the command line, and the examples of docs/targets.md."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store.silos import write_config

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "targets.md").read_text(encoding="utf-8")
GAP = "demographic_parity_difference"
SMALL = ("--rounds", "2", "--seeds", "3")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.S)


def read(outcome: Any) -> Any:
    return json.loads(outcome.stdout)


@pytest.mark.full
def test_sweep_show_and_report(place: Path, invoke: Any, tiny: str) -> None:
    sweep = ("sweep", tiny, "--method", "kffl", "--over", "fairness_weight=0,50", *SMALL)
    done = invoke(*sweep, "--target", f"{GAP} <= 1", "--fail-if", "target missed")
    assert done.exit_code == 0, done.stderr
    assert f"Met with 95\u00a0% confidence: {GAP.replace('_', ' ')} at most 1." in done.stdout
    assert "Chosen on 60 validation rows from 2 settings" in done.stdout
    assert "held back" not in done.stderr  # the preset has validation rows
    shown = invoke("show", "latest")
    assert "Met with 95" in shown.stdout
    other = invoke("show", "latest", "--target", "accuracy >= 0.999", "--fail-if", "target missed")
    assert other.exit_code == 1
    assert "Check failed: target missed: Not met" in other.stderr
    assert "accuracy at least 0.999." in other.stderr
    found = read(invoke("show", "latest", "--json", "--target", "accuracy >= 0.1", "--confidence", "mean"))["answer"]
    assert found["status"] == "met"
    assert found["confidence"] == "mean"
    report = read(invoke("report", "latest", "--json", "--target", "accuracy >= 0.2", "--output", "page.html"))
    assert report["answer"]["targets"] == ["accuracy >= 0.2"]
    assert report["verdict"]["sentences"][0] == report["answer"]["sentences"][0]
    assert "Met with 95\u00a0% confidence: accuracy at least 0.2." in (place / "page.html").read_text()
    wrong = invoke("report", "latest", "--target", "acuracy >= 0.2")
    assert wrong.exit_code == 2
    assert "Did you mean 'accuracy'" in wrong.stderr


def test_compare_holds_validation_rows_back(place: Path, invoke: Any, tiny: str) -> None:
    words = ("compare", tiny, "--preset", "bare", "--methods", "fedavg,fedprox", *SMALL, "--report", "page.html")
    done = invoke(*words, "--target", f"{GAP} <= 1", "--target", "accuracy >= 0.1", "--json")
    assert done.exit_code == 0, done.stderr
    assert "Note: 10% of the rows are held back from training" in done.stderr
    found = read(done)
    assert found["answer"]["rows"] == {"validation": 30, "test": 60}
    assert found["answer"]["met"]
    assert found["settings"]["run"]["target"] == [f"{GAP} <= 1", "accuracy >= 0.1"]
    assert "held back" in PAGE


def test_what_is_sent_once_stands_below_the_comparison(place: Path, invoke: Any, tiny: str) -> None:
    words = ("compare", tiny, "--methods", "fedavg,fedavg+fair", "--set", "fedavg+fair.bins=10", *SMALL)
    plain, fair = read(invoke(*words, "--json"))["methods"]
    assert (plain["once_bytes_up"], plain["once_bytes_down"]) == (0, 0)
    groups = 2
    assert fair["once_bytes_up"] == groups * 2 * 10 * 8  # a histogram of float64
    assert fair["once_bytes_down"] == fair["bytes_down"]  # the model
    said = " ".join(invoke(*words).stdout.split())
    assert "before the first round or after the last, bytes per client: fedavg+fair 320 B + " in said


def test_several_settings_and_no_validation_rows_are_refused_before_training(
    place: Path, invoke: Any, tiny: str
) -> None:
    more = ("--preset", "bare", *SMALL, "--target", f"{GAP} <= 1", "--validation", "0")
    for words in (
        ("compare", tiny, "--methods", "fedavg,fedprox"),
        ("sweep", tiny, "--method", "kffl", "--over", "fairness_weight=0,50"),
        ("sweep", tiny, "--method", "kffl"),
    ):
        refused = invoke(*words, *more)
        assert refused.exit_code == 2
        assert "Hold some back: --validation 0.1" in refused.stderr
    assert not list((place / "runs").glob("*/status.json"))
    alone = invoke("compare", tiny, "--methods", "fedavg", *more)  # nothing to choose
    assert alone.exit_code == 0, alone.stderr


def test_run_and_resume(place: Path, invoke: Any) -> None:
    path = str(write_config(place, run={"target": [f"{GAP} <= 0.9"], "confidence": 0.8}))
    done = invoke("run", path, "--fail-if", "target missed")
    assert done.exit_code == 0, done.stderr
    assert "Met with 80\u00a0% confidence" in done.stdout
    assert "There was nothing to choose from: the test rows answer." in done.stdout
    again = invoke("resume", "latest", "--fail-if", "target  missed", "--json")
    assert read(again)["answer"]["met"]
    missed = invoke("run", path, "--target", "accuracy >= 1", "--confidence", "mean", "--fail-if", "target missed")
    assert missed.exit_code == 1
    assert "Not met: accuracy at least 1." in missed.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--target", "accuracy <= 0.5"), "wrong way round"),
        (("--target", "acuracy >= 0.5"), "Did you mean 'accuracy'"),
        (("--target", "accuracy"), "is no target"),
        (("--confidence", "95"), "must be a number between 0.5 and 1"),
        (("--fail-if", "target missed"), "there is no target"),
    ],
)
def test_refused_before_anything_is_trained(place: Path, invoke: Any, words: tuple[str, ...], said: str) -> None:
    outcome = invoke("run", str(write_config(place)), *words)
    assert outcome.exit_code == 2
    assert said in outcome.stderr
    assert not list(place.glob("runs/*/status.json"))


def test_the_commands_of_the_page(place: Path, invoke: Any, needs: Callable[[str], Path]) -> None:
    needs("german")
    (lines,) = blocks("sh")
    for line in lines.splitlines():
        done = invoke(*shlex.split(line)[1:])
        assert done.exit_code == 0, done.stderr
        assert re.search(r"\b(Met|Not met|Cannot be shown)\b", done.stdout + done.stderr), line


def test_the_python_and_the_configuration_of_the_page(
    place: Path, invoke: Any, capsys: pytest.CaptureFixture[str], needs: Callable[[str], Path]
) -> None:
    needs("german")
    (python,), (toml,) = blocks("python"), blocks("toml")
    exec(python, {})
    assert re.search(r"^(Met|Not met|Cannot be shown)\b.*\n(True|False) \{'fairness_weight': ", capsys.readouterr().out)
    (place / "targets.toml").write_text(toml)
    done = invoke("run", "targets.toml")
    assert done.exit_code == 0, done.stderr
    assert "demographic parity difference at most 0.15 and accuracy at least 0.6" in done.stdout
