"""Blocks of seeds and settings, and runs that several processes share."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest
from store.silos import config as silo_config
from store.silos import write_silos

from equifed.config import Config, build, load_federations, parse_config
from equifed.errors import DataError, RunError
from equifed.results.merge import merged
from equifed.settings import Cluster
from equifed.store import Store
from equifed.studies import Job, State, Study, blocks, carry_out, data_key
from equifed.studies.runs import opened, train
from equifed.tracking import Callback, Round

OWN = """
from dataclasses import dataclass

from torch import nn

from equifed.methods import FedAvg
from equifed.metrics import Metric


@dataclass(frozen=True)
class Mine(FedAvg):
    'Mine.'


def net():
    return nn.Linear(3, 1)


share = Metric(name="own_share", help="Share.", kinds=("binary",), needs=(), overall=lambda found: found["accuracy"])
"""
seen: list[tuple[str, int]] = []


class Old(Callback):
    def round_finished(self, round: Round) -> None:
        seen.append((type(self).__name__, round.number))


class New(Old):
    pass


def _config(**cluster: int):
    raw = {
        "data": {"name": "compas"},
        "method": {"name": "fedprox"},
        "run": {"rounds": 2, "seeds": 3},
        "sweep": {"mu": [0, 0.1, 1]},
        "cluster": {name.replace("_", "-"): value for name, value in cluster.items()},
    }
    return parse_config(raw)


@pytest.mark.parametrize(("seeds", "settings"), [(1, 1), (2, 2), (3, 3), (7, 9)])
def test_blocks_hold_every_seed_and_setting_once(seeds, settings):
    cut = blocks(_config(seeds_per_job=seeds, settings_per_job=settings))
    found = [pair for block in cut for pair in itertools.product(block.run.seed_list, block.sweep["mu"])]
    assert sorted(found) == sorted(itertools.product(range(3), [0, 0.1, 1]))
    assert all(len(block.run.seed_list) <= seeds and len(block.sweep["mu"]) <= settings for block in cut)
    workers = [blocks(_config(seeds_per_job=seeds, settings_per_job=settings, workers=many)) for many in (1, 5)]
    assert [[(b.run.seeds, b.sweep) for b in each] for each in workers] == [[(b.run.seeds, b.sweep) for b in cut]] * 2


def _carried_out(folder, workers: int) -> pd.DataFrame:
    config = _config(seeds_per_job=2, settings_per_job=2)
    study = Study(blocks(config), Store(folder), Cluster(workers=workers))
    ended = sorted(study.carry_out(), key=lambda each: each.position)
    assert not any(each.error for each in ended)
    assert not list(folder.glob("study-*"))
    result = merged([each.folder.result() for each in ended])
    assert result.settings.seed_list == [0, 1, 2]
    assert len(result.parameters) == len(result.final_states) == 9
    return result.metrics


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_two_processes_give_the_numbers_of_one(tmp_path, needs):
    needs("compas")
    pytest.importorskip("ray")
    alone, shared = _carried_out(tmp_path / "alone", 1), _carried_out(tmp_path / "shared", 2)
    pd.testing.assert_frame_equal(alone, shared, check_exact=True)


# -- without Ray -------------------------------------------------------------------------------------------------------


@pytest.fixture
def study(tmp_path: Path) -> Callable[..., Study]:
    """study(seeds) has a job for each, on silo files."""
    write_silos(tmp_path)

    def make(seeds: int = 3, workers: int = 1) -> Study:
        raw = silo_config(run={"rounds": 2, "seeds": seeds}) | {"cluster": {"seeds-per-job": 1}}
        config = parse_config(raw, folder=tmp_path)
        feds = load_federations(config)
        return Study(blocks(config), Store(tmp_path / "runs"), Cluster(workers=workers), {data_key(config): feds})

    return make


def test_several_workers_need_ray(study: Callable[..., Study], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # importing it fails
    with pytest.raises(RunError, match=r"pip install 'equifed\[cluster\]'"):
        next(study(workers=2).carry_out())
    assert len(list(study().carry_out())) == 3  # one needs none


def test_one_study_is_carried_out_once_at_a_time(study: Callable[..., Study]) -> None:
    first = study().carry_out()
    next(first)
    with pytest.raises(RunError, match="Another process is carrying out the same study"):
        next(study().carry_out())
    assert len(list(study(seeds=2).carry_out())) == 2  # another study may
    assert len(list(first)) == 2


def test_only_what_failed_is_tried_again(study: Callable[..., Study], tmp_path: Path) -> None:
    """And once all has succeeded the same study is a new one."""
    calls: list[str] = []

    def fails_once(federations: object, config: Config, root: Path, id: str) -> None:
        calls.append(id)
        if config.run.seed_list == [1] and len(calls) == 2:
            raise RunError("no memory")
        train(federations, config, root, id)

    first = {each.position: each for each in study().carry_out(train=fails_once)}
    assert [first[number].error for number in range(3)] == ["", "no memory", ""]
    assert study().before == 2
    changed = [path.stat().st_mtime_ns for path in sorted((tmp_path / "runs").glob("*/checkpoint.safetensors"))]
    second = {each.position: each for each in study().carry_out()}
    assert not any(each.error for each in second.values())
    assert [second[number].folder.path for number in (0, 2)] == [first[number].folder.path for number in (0, 2)]
    now = {path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/checkpoint.safetensors")}
    assert now > set(changed)  # those that were there are as they were
    assert study().before == 0
    third = [each.folder.path for each in study().carry_out()]
    assert not set(third) & {each.folder.path for each in second.values()}


def test_other_rows_are_another_study(study: Callable[..., Study], tmp_path: Path) -> None:
    interrupted = study().carry_out()
    next(interrupted)
    interrupted.close()
    assert study().before == 1
    rows = pd.read_csv(tmp_path / "silo-0.csv")
    rows["a"] += 1
    rows.to_csv(tmp_path / "silo-0.csv", index=False)
    assert study().before == 0


@pytest.mark.parametrize("section", ["method", "model", "run"])
def test_changed_code_of_ones_own_is_another_study(
    study: Callable[..., Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str
) -> None:
    """Named or not: what an older method, model or metric had computed is not gone on with."""
    module = tmp_path / "zz_own.py"
    module.write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("equifed.registry._allowed", set())
    own = {"method": {"name": "zz_own:Mine"}, "model": {"kind": "zz_own:net"}, "run": {"metrics": ["zz_own:share"]}}
    raw = silo_config(run={"rounds": 1, "seeds": 2} | (own["run"] if section == "run" else {}))
    config = parse_config(raw | ({section: own[section]} if section != "run" else {}), folder=tmp_path)
    for name in ("", "named"):

        def make(name: str = name) -> Study:
            return Study([config], Store(tmp_path / f"runs{name}"), Cluster(), name=name)

        make().store.prepare()
        (id,) = make()._ids()
        assert [id] == make()._ids()
        before = module.read_text()
        module.write_text(before + "# changed\n")
        assert make()._ids() != [id]
        module.write_text(before)
    training = build(config)  # one that a target is searched with is found again by its store
    store = Store(tmp_path / "single")
    with contextlib.suppress(KeyboardInterrupt), store.start(config, training) as recording:
        for _ in recording.rounds():
            raise KeyboardInterrupt
    assert store.same(config, training.job) is not None
    module.write_text(before + "# changed\n")
    assert store.same(config, training.job) is None
    sys.modules.pop("zz_own")


def test_a_run_that_goes_on_is_followed_by_the_trackers_of_the_new_command(tmp_path: Path) -> None:
    write_silos(tmp_path)

    def begun(track: list[str]) -> Config:
        return parse_config(silo_config(run={"rounds": 2, "seeds": [0], "track": track}), folder=tmp_path)

    store, old, new = Store(tmp_path / "runs"), begun([f"{__name__}:Old"]), begun([f"{__name__}:New"])
    seen.clear()
    for config in (old, new):
        recording = opened(store, config, "run", build)
        assert recording is not None
        with contextlib.suppress(KeyboardInterrupt), recording:
            for _ in recording.rounds():
                if config is old:
                    raise KeyboardInterrupt
            recording.finish()
    assert seen == [("Old", 1), ("New", 2)]
    seen.clear()
    for config in (old, begun(["none"])):
        recording = opened(store, config, "another", build)
        assert recording is not None
        with contextlib.suppress(KeyboardInterrupt), recording:
            for _ in recording.rounds():
                if config is old:
                    raise KeyboardInterrupt
            recording.finish()
    assert seen == [("Old", 1)]


def test_a_study_that_goes_on_says_how_to_begin_anew(study: Callable[..., Study], tmp_path: Path) -> None:
    interrupted = study().carry_out()
    next(interrupted)
    interrupted.close()
    (record,) = (tmp_path / "runs").glob("study-*.json")
    assert study().going_on().endswith(f"(To begin anew, remove {record}.)")
    record.unlink()
    assert study().before == 0


def test_a_machine_that_does_not_see_the_runs(study: Callable[..., Study], monkeypatch: pytest.MonkeyPatch) -> None:
    """Or has another folder of that name: the study's own record is what must be there."""
    monkeypatch.setattr("equifed.studies.runs.write_atomic", lambda path, content: None)
    errors = [each.error for each in study().carry_out()]
    assert all("Name one with --runs that all nodes of the cluster share" in error for error in errors)
    assert len(errors) == 3


def test_data_that_cannot_be_loaded_cost_no_other_job() -> None:
    def load(key: int) -> int:
        if key == 1:
            raise DataError("There is no such file.")
        return 10 // key

    seen: list[list[str]] = []
    jobs = [Job(str(key), lambda data: data, (), key) for key in (1, 2, 0, 5)]
    found = list(carry_out(jobs, load, Cluster(), lambda states: seen.append([each.state for each in states])))
    assert [each.value for each in found] == [None, 5, None, 2]
    assert [each.error for each in found] == [
        "There is no such file.", "", "ZeroDivisionError: integer division or modulo by zero", "",
    ]  # fmt: skip
    assert seen[-1] == ["failed", "done", "failed", "done"]


def test_one_worker_asks_for_no_cluster_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # nobody answers there
    monkeypatch.setitem(sys.modules, "ray", None)
    assert [each.value for each in carry_out([Job("a", lambda data: 7, ())], lambda key: None, Cluster())] == [7]


def test_changes_that_are_not_committed_are_another_study(
    study: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = study().carry_out()
    next(interrupted)
    interrupted.close()
    assert study().before == 1
    environment = import_module("equifed.store.environment")  # the package has a function of this name
    monkeypatch.setattr(environment, "revision", lambda: "0123+4567")
    assert study().before == 0


def test_how_far_jobs_are_is_looked_at_while_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equifed.studies.jobs.PAUSE", 0.01)
    seen: list[tuple[str, int]] = []
    reached = threading.Event()

    def watch(states: Sequence[State]) -> None:
        seen.append((states[0].state, states[0].done))
        if states[0].done == 7:
            reached.set()

    job = Job("a", lambda data: reached.wait(600), (), rounds=10, done=lambda: 7)
    assert [each.value for each in carry_out([job], lambda key: None, Cluster(), watch)] == [True]
    assert seen[0] == ("running", 0)
    assert ("running", 7) in seen
    assert seen[-1] == ("done", 7)
