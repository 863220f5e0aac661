"""The benchmark shared out: its rows are those of one process, also after the driver was killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from studies.conftest import WAIT, kill_with_workers, until
from studies.followed import PLACE, SLOWLY, attempts

from equifed_papers.benchmark import records
from equifed_papers.benchmark.records import ROWS

pytest.importorskip("ray")

COMMAND = (
    *("benchmark", "--tier", "quick", "--datasets", "german", "--partitions", "dirichlet"),
    *("--methods", "fedavg,fedprox,fedavg+fair", "--output"),
)


def rows(folder: Path) -> pd.DataFrame:
    found = records.read(folder / ROWS)
    assert (found["seconds"] > 0).all()
    return found.drop(columns=["seconds"])


@pytest.mark.full
def test_the_driver_of_a_benchmark_is_killed_and_resumed(
    place: Path, spawn: Any, monkeypatch: Any, needs: Callable[[str], Path]
) -> None:
    needs("german")
    process = spawn(*COMMAND, "alone")
    _, err = process.communicate(timeout=WAIT)
    assert process.returncode == 0, err
    whole = rows(place / "alone")
    assert len(whole) > 10

    monkeypatch.setenv("EQUIFED_TRACK", SLOWLY)
    monkeypatch.setenv(PLACE, str(place))
    process = spawn(*COMMAND, "shared", "--workers", "2")
    until(lambda: len(attempts(place)) > 3, process)  # so one or two are finished, and two are not
    kill_with_workers(process)
    before = attempts(place)
    process = spawn(*COMMAND, "shared", "--workers", "2")
    _, err = process.communicate(timeout=WAIT)
    assert process.returncode == 0, err
    assert "which were begun before." in err
    pd.testing.assert_frame_equal(rows(place / "shared"), whole, check_exact=True)
    assert not list((place / "shared").glob("runs-*"))
    again = [attempt.run for attempt in attempts(place)[len(before) :]]
    assert len(again) == len(set(again))
    begun = {attempt.run for attempt in before}
    assert begun - set(again)  # what was finished is not run again, though its rows were not written yet
    assert begun & set(again)  # and what was not finished goes on in its own folder
