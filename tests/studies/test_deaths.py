"""Workers, nodes and drivers that die: the numbers are those of one process that nobody disturbs.

The nodes are those of Ray's own test cluster, processes of this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from store.silos import config as silo_config

from equifed.config import parse_config
from equifed.results.merge import merged
from equifed.settings import Cluster
from equifed.store import RunFolder, Store
from equifed.studies import Study, blocks
from equifed.studies.runs import rounds_done
from studies.conftest import WAIT, descendants, is_alive, nodes, until
from studies.followed import SLOWLY, attempts

pytest.importorskip("ray")
pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]  # Ray's own

ROUNDS, SEEDS = 15, 4
FRAMES = ("metrics", "counts", "log", "messages", "rejections")


def study_of(place: Path, runs: str, workers: int, address: str | None = None, track: tuple[str, ...] = ()) -> Study:
    raw = silo_config(run={"rounds": ROUNDS, "seeds": SEEDS, "track": list(track)}, method={"name": "fedmom"})
    raw["cluster"] = {"seeds-per-job": 1}
    config = parse_config(raw, folder=place)
    return Study(blocks(config), Store(place / runs), Cluster(workers=workers, address=address))


def numbers(study: Study, watch: Callable[..., None] = lambda states: None) -> dict[str, Any]:
    """Everything that a study computes."""
    ended = sorted(study.carry_out(watch), key=lambda each: each.position)
    assert [each.error for each in ended] == [""] * SEEDS
    return everything([each.folder for each in ended])


def everything(folders: list[RunFolder]) -> dict[str, Any]:
    result = merged([folder.result() for folder in folders])
    models = b"".join((folder.path / "final.safetensors").read_bytes() for folder in folders)
    return {name: getattr(result, name) for name in FRAMES} | {"models": models}


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["models"] == other["models"]
    for name in FRAMES:
        pd.testing.assert_frame_equal(one[name], other[name], check_exact=True)


def test_a_worker_is_killed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two nodes share the jobs; one worker is killed in mid-run, and its job goes on from its checkpoint."""
    alone = numbers(study_of(place, "alone", 1))
    killed: list[Any] = []

    def kill(states: Any) -> None:
        """The process of the first job that has completed two rounds."""
        for attempt in [] if killed else attempts(place / "shared"):
            if 2 <= rounds_done(RunFolder(place / "shared" / attempt.run)) < ROUNDS - 5:
                os.kill(attempt.pid, signal.SIGKILL)
                killed.append(attempt)
                return

    with nodes({"num_cpus": 1}, {"num_cpus": 1}) as cluster:
        shared = numbers(study_of(place, "shared", 2, cluster.address, track=(SLOWLY,)), kill)
    assert_same(alone, shared)
    assert capsys.readouterr().out == ""  # Ray has nothing to say where data go
    tries = attempts(place / "shared")
    assert len({attempt.node for attempt in tries}) == 2
    assert len(tries) == SEEDS + 1
    (first, again) = (attempt for attempt in tries if attempt.run == killed[0].run)
    assert first == killed[0]
    assert again.pid != first.pid
    assert (first.done, again.done >= 2) == (0, True)


def test_a_node_is_lost(place: Path) -> None:
    alone = numbers(study_of(place, "alone", 1))
    with nodes({"num_cpus": 1}, {"num_cpus": 1}) as cluster:
        (lost,) = cluster.worker_nodes
        removed: list[str] = []

        def remove(states: Any) -> None:
            for attempt in [] if removed else attempts(place / "shared"):
                far = 2 <= rounds_done(RunFolder(place / "shared" / attempt.run)) < ROUNDS - 5
                if attempt.node == lost.node_id and far:
                    removed.append(attempt.run)
                    cluster.remove_node(lost, allow_graceful=False)
                    return

        shared = numbers(study_of(place, "shared", 2, cluster.address, track=(SLOWLY,)), remove)
    assert_same(alone, shared)
    there = [attempt for attempt in attempts(place / "shared") if attempt.run == removed[0]]
    assert there[0].node == lost.node_id
    assert all(attempt.node != lost.node_id and attempt.done >= 2 for attempt in there[1:])
    assert len(there) > 1


COMPARE = (
    *("compare", "--data", "silo-0.csv,silo-1.csv,silo-2.csv,silo-3.csv", "--label", "label", "--sensitive", "sex"),
    *("--methods", "fedavg,fedprox,fedmom", "--rounds", str(ROUNDS), "--seeds", "2", "--batch-size", "16", "--json"),
)


def compared(out: str, runs: Path) -> dict[str, Any]:
    """Everything that a comparison has computed, by method."""
    return {each["method"]: everything([RunFolder(runs / each["run"])]) for each in json.loads(out)["methods"]}


@pytest.mark.parametrize("where", ["this machine", "a cluster"])
def test_the_driver_is_killed_and_resumed(place: Path, spawn: Any, monkeypatch: Any, where: str) -> None:
    """On a cluster, workers of the dead driver may still be alive when the next one begins."""
    with contextlib.ExitStack() as stack:
        if where == "a cluster":
            monkeypatch.setenv("RAY_ADDRESS", stack.enter_context(nodes({"num_cpus": 1}, {"num_cpus": 1})).address)
        command = (*COMPARE, "--runs", "shared", "--workers", "2", "--track", SLOWLY)
        process = spawn(*command)
        runs = place / "shared"

        def far() -> bool:
            """All three jobs were begun, one of them is done, and another has rounds that are not to be lost."""
            folders = [RunFolder(path.parent) for path in runs.glob("*/status.json")]
            done = [rounds_done(folder) for folder in folders]
            finished = [folder.path.joinpath("result.json").exists() for folder in folders]
            return len(attempts(runs)) == 3 and any(finished) and any(2 <= each < ROUNDS - 3 for each in done)

        until(far, process)
        below = descendants(process.pid)
        before = attempts(runs)
        process.send_signal(signal.SIGKILL)
        assert process.wait(WAIT) == -signal.SIGKILL

        process = spawn(*command)  # at once
        out, err = process.communicate(timeout=WAIT)
        assert process.returncode == 0, err
        assert "Going on with 3 of 3 jobs, which were begun before." in err
        until(lambda: not any(map(is_alive, below)))
    again = attempts(runs)[len(before) :]
    assert not list(runs.glob("study-*"))
    assert len(list(runs.glob("*/status.json"))) == 3
    finished = {attempt.run for attempt in before} - {attempt.run for attempt in again}
    assert finished  # what was done is not done again
    assert len(again) == 3 - len(finished)
    assert max(attempt.done for attempt in again) >= 2
    found = compared(out, runs)

    process = spawn(*COMPARE, "--runs", "alone")
    out, err = process.communicate(timeout=WAIT)
    assert process.returncode == 0, err
    alone = compared(out, place / "alone")
    assert found.keys() == alone.keys()
    for method in alone:
        assert_same(found[method], alone[method])


def test_ctrl_c_leaves_no_process_and_says_how_to_go_on(place: Path, spawn: Any) -> None:
    command = (*COMPARE, "--runs", "shared", "--workers", "2", "--track", SLOWLY)
    process = spawn(*command)
    until(lambda: any(rounds_done(RunFolder(path.parent)) >= 2 for path in place.glob("shared/*/status.json")), process)
    below = descendants(process.pid)
    assert len(below) > 2
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it: to everybody
    out, err = process.communicate(timeout=WAIT)
    assert process.returncode == 130, err
    assert out == ""
    assert "Interrupted. Give the same command again" in err
    assert "Traceback" not in err
    until(lambda: not any(map(is_alive, below)))
    assert {Store(place / "shared").entries()[0].status} <= {"interrupted"}

    process = spawn(*command)
    out, err = process.communicate(timeout=WAIT)
    assert process.returncode == 0, err
    assert "jobs, which were begun before." in err
    assert len(json.loads(out)["methods"]) == 3
    assert max(attempt.done for attempt in attempts(place / "shared")) >= 2
