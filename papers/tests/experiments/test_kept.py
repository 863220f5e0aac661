"""Parts of papers' experiments whose process dies: the numbers are those of one that nobody disturbs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from studies.conftest import WAIT, kill_with_workers, until

from equifed.errors import EquifedWarning
from equifed.simulation import Simulation
from equifed.simulator import Step
from equifed_papers.experiments import Request, kept
from equifed_papers.experiments.kept import rounds_kept
from equifed_papers.experiments.record import Row, read
from equifed_papers.experiments.study import Piece, discard, work
from experiments.command import run

ROUNDS, METHODS = 3, 11
PIECE = Piece(
    "fair-fate/table1",
    Request(datasets=["compas"], sigma=["0.5"], seeds=2, rounds=ROUNDS, reading="as-published"),
)


@pytest.fixture(autouse=True)
def kept_often(monkeypatch: pytest.MonkeyPatch, needs: Callable[[str], Path]) -> None:
    """A checkpoint after every round."""
    needs("compas")
    monkeypatch.setattr(kept, "PAUSE", 0.0)


class Counted:
    """Counts the rounds that are computed; after `most` of them the process is as if it had been killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.computed, self.most = 0, 10**9
        rounds = Simulation.rounds

        def counted(simulation: Simulation, *resume: Any) -> Iterator[Step]:
            for step in rounds(simulation, *resume):
                if self.computed == self.most:
                    raise KeyboardInterrupt
                self.computed += 1
                yield step

        monkeypatch.setattr(Simulation, "rounds", counted)


def timeless(rows: list[Row]) -> str:
    return repr([replace(row, seconds=0.0) for row in rows])


@pytest.mark.full
def test_a_part_goes_on_where_its_process_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    counted = Counted(monkeypatch)
    whole, lacking = work(None, PIECE, tmp_path / "whole")
    assert (len(whole), lacking, counted.computed) == (4 * METHODS, "", ROUNDS * METHODS)
    counted.computed, counted.most = 0, 4  # in the second round of the second method
    with pytest.raises(KeyboardInterrupt):
        work(None, PIECE, tmp_path / "killed")
    assert rounds_kept(tmp_path / "killed") == 4
    counted.computed, counted.most = 0, 10**9
    again, _ = work(None, PIECE, tmp_path / "killed")
    assert counted.computed == ROUNDS * METHODS - 4
    assert timeless(again) == timeless(whole)
    counted.computed = 0
    assert timeless(work(None, PIECE, tmp_path / "killed")[0]) == timeless(whole)
    assert counted.computed == 0


def test_what_cannot_be_used_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged checkpoint, damaged scores, which are read after much else, and another simulation's folder."""
    counted = Counted(monkeypatch)
    whole, _ = work(None, PIECE, tmp_path)
    first, second, third, fourth = (tmp_path / f"{number:03d}" for number in range(4))
    checkpoint = first / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-8] + b"damaged!")
    scores = sorted((second / "scores").iterdir())[-1]
    scores.write_bytes(scores.read_bytes()[:-8] + b"damaged!")
    third.rename(tmp_path / "other")
    fourth.rename(third)
    (tmp_path / "other").rename(fourth)
    counted.computed = 0
    with pytest.warns(EquifedWarning, match="computed again") as said:
        assert timeless(work(None, PIECE, tmp_path)[0]) == timeless(whole)
    assert counted.computed == 4 * ROUNDS
    assert len(said) == 4


@pytest.mark.full
def test_the_command_goes_on_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("fair-fate/table1", "--datasets", "compas", "--sigma", "0.5", "--seeds", "2", "--record")
    monkeypatch.setattr("equifed_papers.experiments.fair_fate.settings.ROUNDS", ROUNDS)
    counted = Counted(monkeypatch)
    run(*words, str(tmp_path / "whole.csv"), folder=tmp_path)
    assert not list(tmp_path.glob("reproduce-*"))
    counted.computed, counted.most = 0, 5
    run(*words, str(tmp_path / "killed.csv"), folder=tmp_path, code=130)
    assert len(list(tmp_path.glob("reproduce-*"))) == 1
    counted.computed, counted.most = 0, 10**9
    said = run(*words, str(tmp_path / "killed.csv"), folder=tmp_path).stderr
    assert "Going on with 1 of 1 parts, which were begun before." in said
    assert counted.computed == ROUNDS * METHODS - 5
    assert timeless(read(tmp_path / "killed.csv")) == timeless(read(tmp_path / "whole.csv"))
    assert not list(tmp_path.glob("reproduce-*"))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_the_driver_of_reproductions_is_killed_and_resumed(
    place: Path, spawn: Any, needs: Callable[[str], Path]
) -> None:
    pytest.importorskip("ray")
    words = ("reproduce", "fair-fate/table1", "--datasets", "compas", "--seeds", "2", "--record")
    process = spawn(*words, "alone.csv")
    _, err = process.communicate(timeout=WAIT)
    assert process.returncode == 0, err
    process = spawn(*words, "shared.csv", "--workers", "2")
    until(lambda: len(list(place.glob("runs/reproduce-*/*/checkpoint.safetensors"))) > 2, process)
    kill_with_workers(process)
    process = spawn(*words, "shared.csv", "--workers", "2")
    _, err = process.communicate(timeout=WAIT)
    assert process.returncode == 0, err
    assert "which were begun before." in err
    assert timeless(read(place / "shared.csv")) == timeless(read(place / "alone.csv"))
    assert not list(place.glob("runs/reproduce-*"))


def test_what_another_process_works_on_stays(tmp_path: Path) -> None:
    free, busy = tmp_path / "free", tmp_path / "busy"
    for folder in (free, busy):
        (folder / "000").mkdir(parents=True)
    script = "import sys, filelock; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print(flush=True); input()"
    command = [sys.executable, "-c", script, str(busy / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        for folder in (free, busy, tmp_path / "never there"):
            discard(folder)
        assert (busy / "000").exists()
        other.communicate(b"\n", timeout=WAIT)
    discard(busy)
    assert not list(tmp_path.iterdir())
