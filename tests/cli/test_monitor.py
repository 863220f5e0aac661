"""`equifed monitor`, from tables of decisions to the page and the checks."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from monitor.made import SCHEMA, decisions

ROOT = Path(__file__).resolve().parents[2]
COUNT = ("--schema", "schema.json", "--date", "when", "--decision", "decision", "--label", "outcome")


def counted(invoke: Callable[..., Any], place: Path, silo: str, frame: pd.DataFrame, *more: str) -> Any:
    frame.to_csv(place / f"{silo}.csv", index=False)
    (place / "schema.json").write_text(SCHEMA.to_json())
    (place / "counts").mkdir(exist_ok=True)
    done = invoke("monitor", "count", f"{silo}.csv", "--silo", silo, *COUNT, "--out", f"counts/{silo}.json", *more)
    assert done.exit_code == 0, done.output
    return done


def moved(frame: pd.DataFrame) -> pd.DataFrame:
    """The same decisions, but from May on women get nothing more often."""
    later = (frame["when"] >= "2024-05") & (frame["sex"] == "f") & (np.arange(len(frame)) % 5 > 1)
    return frame.assign(decision=frame["decision"].mask(later, "refused"))


def test_ranges_are_asked_for_where_a_column_has_none(invoke, place) -> None:
    frame, advice = decisions(900), "Give ranges that all silos use"
    lacks_column = counted(invoke, place, "north", frame)
    lacks_range = counted(invoke, place, "north", frame.assign(income=1.0))
    given = counted(invoke, place, "north", frame.assign(income=1.0), "--range", "income=0:9")
    assert [advice in done.stderr for done in (lacks_column, lacks_range, given)] == [False, True, False]


def test_from_decisions_to_an_alarm(invoke, place) -> None:
    for seed, silo in enumerate(("north", "south", "west")):
        frame = decisions(9000, seed, months=9)
        done = counted(invoke, place, silo, moved(frame) if silo == "south" else frame)
        assert done.stdout.strip() == f"counts/{silo}.json"
        assert "Not counted: income" in done.stderr
    done = invoke("monitor", "show", "counts", "--output", "m.html", "--fail-if", "alarm")
    assert done.exit_code == 1, done.output
    assert done.stdout.strip() == "m.html"
    assert "Check failed: Alarm: selection rate, women minus men" in done.stderr
    assert "since 2024-05" in done.stderr
    assert "south moved" in done.stderr
    page = (place / "m.html").read_text()
    for part in ("▲ alarm", "Which silo moved", "Drift of inputs", "once in 100 months"):
        assert part in page
    done = invoke("monitor", "show", "counts", "--json", "--fail-if", "demographic_parity_difference > 0.99")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["page"] is None
    assert told["watched"][0]["alarm"]["moved"] == "south"
    assert len(told["gaps"]) == 2 * len({gap["period"] for gap in told["gaps"]})
    # begun anew after the change, all is quiet
    done = invoke("monitor", "show", "counts", "--json", "--reference", "2024-06:2024-07", "--fail-if", "alarm")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["state"] == "quiet"


def test_a_run_as_reference(invoke, place, tiny) -> None:
    done = invoke("compare", tiny, "--methods", "fedavg", "--rounds", "2", "--seeds", "2", "--json")
    assert done.exit_code == 0, done.output
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"who": rng.choice(["f", "m"], 2000), "to": rng.choice(["no", "yes"], 2000), "day": "2024-02-02"}
    )
    frame.to_csv("d.csv", index=False)
    given = (
        "--silo",
        "a",
        "--date",
        "day",
        "--decision",
        "to",
        "--group",
        "who",
        "--classes",
        "no,yes",
        "--out",
        "a.json",
    )
    assert invoke("monitor", "count", "d.csv", *given).exit_code == 0
    done = invoke("monitor", "show", "a.json", "--json", "--reference", "latest")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["reference"].startswith("run ")
    assert told["watched"][0]["deviations"]["2024-02"] is None or abs(told["watched"][0]["deviations"]["2024-02"]) < 50
    assert [each["metric"] for each in told["watched"]] == ["demographic_parity_difference"]
    done = invoke("monitor", "show", "a.json", "--json", "--reference", "no-such-run")
    assert done.exit_code == 2


def test_revisions(invoke, place) -> None:
    frame = decisions()
    counted(invoke, place, "north", frame)
    done = counted(invoke, place, "north", frame.iloc[3:], "--revises", "counts/north.json")
    assert "Not revised" in done.stderr
    assert json.loads((place / "counts" / "north.json").read_text())["revision"] == 2


def test_mistakes(invoke, place) -> None:
    counted(invoke, place, "north", decisions())
    one = ("monitor", "count", "north.csv", "--silo", "n", *COUNT, "--out", "n.json")
    wrong = {
        (*one, "--range", "age=9"): (2, "COLUMN=LOW:HIGH"),
        (*one, "--period", "aeon"): (2, "Unknown period 'aeon'"),
        (*one, "--date-format", "%d.%m.%Y"): (3, "is not a date of the form"),
        ("monitor", "show", "nothing.json"): (3, "cannot be read"),
        ("monitor", "show", "schema.json"): (3, "not a hand-in"),
        ("monitor", "show", "counts", "--fail-if", "never"): (2, "neither 'alarm' nor 'drift'"),
        ("monitor", "show", "counts", "--fail-if", "accuracy > 1"): (2, "Unknown metric"),
        ("monitor", "show", "counts", "--reference", "2031-01"): (2, "is not a month of the hand-ins"),
        ("monitor", "show", "counts", "--false-alarm-every", "0"): (2, "at least 2"),
        ("monitor", "show", "counts", "--output", "counts"): (2, "is a folder"),
    }
    for words, (code, said) in wrong.items():
        done = invoke(*words)
        assert (done.exit_code, "Traceback" in done.output) == (code, False), (words, done.output)
        assert said in done.stderr.replace("\n", " "), (words, done.stderr)


def test_the_commands_and_the_python_of_the_page_run(invoke, place) -> None:
    """docs/monitoring.md, with last year's months in place of the ones it names: those may not have begun."""
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8").replace("2026-", "2024-")
    frame = decisions(6000).rename(columns={"when": "decided"})
    frame.to_csv(place / "decisions.csv", index=False)
    (place / "schema.json").write_text(SCHEMA.to_json())
    (place / "counts").mkdir()
    commands = [line for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    assert len(commands) == 3
    for line in commands:
        done = invoke(*shlex.split(line)[1:])
        assert done.exit_code == 0, done.output
        for made in place.glob("north-*.json"):
            made.rename(place / "counts" / made.name)
    assert (place / "monitor.html").stat().st_size > 10_000
    (python,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(python, {"frame": frame, "schema": SCHEMA})
    known = invoke("monitor", "count", "--help").output + invoke("monitor", "show", "--help").output
    for option in re.findall(r"`(--[a-z-]+)", page):
        assert option in known, option
