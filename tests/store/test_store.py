"""Run folders: what they hold, that they can be read back, and that a resumed run has the bits of a whole one."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from filelock import FileLock
from safetensors.numpy import save

from equifed.config import load_config
from equifed.errors import ConfigError, DataError, DiskError, EquifedWarning, RunError
from equifed.files import write_sealed
from equifed.results import Result
from equifed.store import RunFolder, Store, load_model, load_result, save_result
from equifed.store.locks import lock_at, take
from store.faults import Fake
from store.silos import write_config, write_silos

FRAMES = ("metrics", "messages", "log", "rejections", "cuts", "plain_mean")


@pytest.fixture
def place(tmp_path) -> Path:
    write_silos(tmp_path)
    return tmp_path


def whole(store: Store, config) -> tuple[RunFolder, Result]:
    with store.start(config) as recording:
        for _ in recording.rounds():
            pass
        return recording.folder, recording.finish()


def stopped(store: Store, config, after: int) -> RunFolder:
    """A run that is interrupted when this round has been written."""
    recording = store.start(config)
    with contextlib.suppress(KeyboardInterrupt), recording:
        for step in recording.rounds():
            if step.round == after:
                raise KeyboardInterrupt
    return recording.folder


def resumed(store: Store, folder: RunFolder) -> Result:
    with store.resume(folder.id) as recording:
        for _ in recording.rounds():
            pass
        return recording.finish()


def assert_same(a: RunFolder, b: RunFolder) -> None:
    """Bit by bit, but for the time it took."""
    assert (a.path / "final.safetensors").read_bytes() == (b.path / "final.safetensors").read_bytes()
    one, other = load_result(a.path), load_result(b.path)
    for name in FRAMES:
        pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name), check_exact=True)
    assert one.info == other.info
    assert one.notes == other.notes


def test_a_finished_folder_holds_everything_and_reads_back_equal(place):
    store = Store(place / "runs")
    config = load_config(write_config(place, run={"name": "first", "eval-every": 4}))
    folder, result = whole(store, config)
    assert {path.name for path in folder.path.iterdir()} >= {
        *("config.toml", "environment.json", "data.json", "status.json", "rounds.jsonl", "checkpoint.safetensors"),
        *("metrics.parquet", "messages.json", "log.parquet", "rejections.json", "final.safetensors"),
        *("timings.json", "result.json"),
    }
    assert sorted(path.name for path in (folder.path / "scores").iterdir()) == [
        "00004.safetensors",
        "00006.safetensors",
    ]
    again = folder.result()
    for name in FRAMES:
        pd.testing.assert_frame_equal(getattr(again, name), getattr(result, name), check_exact=True)
    assert again.parameters.keys() == result.parameters.keys() == {0, 3}
    for seed, parameters in result.parameters.items():
        for name, value in parameters.items():
            assert (again.parameters[seed][name] == value).all()
    assert again.timings == result.timings
    pd.testing.assert_frame_equal(again.summary(), result.summary())
    assert set(json.loads((folder.path / "data.json").read_text())["files"]) == {f"silo-{k}" for k in range(4)}
    environment = json.loads((folder.path / "environment.json").read_text())
    assert {"equifed", "python", "torch", "numpy", "platform", "device", "threads", "commit"} == environment.keys()
    (entry,) = store.entries()
    assert (entry.id, entry.name, entry.status, entry.rounds, entry.seeds) == (folder.id, "first", "finished", 6, 2)
    assert entry.metrics["accuracy"] == pytest.approx(result.final()["accuracy"].mean())
    assert not any(b"pickle" in path.read_bytes() for path in folder.path.rglob("*") if path.is_file())


def test_running_the_resolved_file_repeats_the_run(place):
    store = Store(place / "runs")
    first, _ = whole(store, load_config(write_config(place)))
    second, _ = whole(store, load_config(first.path / "config.toml"))
    assert_same(first, second)
    assert (first.path / "config.toml").read_text() == (second.path / "config.toml").read_text()


CASES = {
    "plain": {},
    "memory": {"method": {"name": "local"}},
    "adam, dropout": {"run": {"dropout": 0.4}, "local": {"optimizer": "adam"}, "method": {"name": "fedprox"}},
    "seldom": {"run": {"checkpoint-every": 4, "eval-every": 5, "rounds": 9}},
    "reference": {"run": {"engine": "reference", "rounds": 4}},
    "sweep": {"method": {"name": "fedprox"}, "sweep": {"mu": [0.0, 0.5]}},
    "robust": {"run": {"robust": "trimmed-mean", "liars": 0.34, "dropout": 0.2}, "method": {"name": "fairfed"}},
    "rejections": {"local": {"learning-rate": 1e30}, "model": {"kind": "mlp", "hidden": [4]}},
}


@pytest.mark.parametrize("sections", CASES.values(), ids=CASES.keys())
@pytest.mark.sample(2)
def test_a_resumed_run_has_the_bits_of_a_whole_one(place, sections):
    store = Store(place / "runs")
    config = load_config(write_config(place, **sections))
    complete, result = whole(store, config)
    folder = stopped(store, config, after=2 if config.run.rounds < 9 else 7)
    assert folder.status()["status"] == "interrupted"
    with pytest.raises(RunError, match="equifed resume"):
        folder.result()
    again = resumed(store, folder)
    assert_same(complete, folder)
    assert len(again.rejections) == len(result.rejections)
    assert bool(len(result.rejections)) == (config.run.local.learning_rate > 1)
    assert store.entries()[0].status == "finished"


def test_killed_before_the_first_checkpoint(place):
    store = Store(place / "runs")
    config = load_config(write_config(place))
    complete, _ = whole(store, config)
    folder = stopped(store, config, after=1)
    (folder.path / "checkpoint.safetensors").unlink()
    resumed(store, folder)
    assert_same(complete, folder)


def test_killed_between_the_line_and_the_checkpoint(place):
    store = Store(place / "runs")
    config = load_config(write_config(place))
    complete, _ = whole(store, config)
    folder = stopped(store, config, after=3)
    # the next round's scores and line were written, the line only in part, the checkpoint not
    shutil.copy(complete.path / "scores" / "00004.safetensors", folder.path / "scores")
    lines = (complete.path / "rounds.jsonl").read_text().splitlines(keepends=True)
    with open(folder.path / "rounds.jsonl", "a") as file:
        file.write(lines[3])
        file.write(lines[4][:40])
    assert folder.rounds_done() == 3
    resumed(store, folder)
    assert_same(complete, folder)
    assert len((folder.path / "rounds.jsonl").read_text().splitlines()) == 6


def test_killed_after_the_last_round_before_the_result(place):
    store = Store(place / "runs")
    config = load_config(write_config(place))
    complete, _ = whole(store, config)
    folder = stopped(store, config, after=6)
    assert not (folder.path / "result.json").exists()
    resumed(store, folder)
    assert_same(complete, folder)


def test_a_finished_run_is_not_resumed(place):
    store = Store(place / "runs")
    folder, _ = whole(store, load_config(write_config(place)))
    with pytest.raises(RunError, match="already finished"):
        store.resume(folder.id)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda path: _flip(path / "checkpoint.safetensors"), "checksum"),
        (lambda path: (path / "checkpoint.safetensors").write_bytes(b"xx"), "header"),
        (lambda path: (path / "checkpoint.safetensors").write_bytes(save({}, {"format": "x"})), "has format 'x'"),
        (
            lambda path: (path / "checkpoint.safetensors").unlink(),
            r"checkpoint\.safetensors is damaged \(it is missing",
        ),
        (lambda path: (path / "rounds.jsonl").write_text("{}\n"), r"rounds\.jsonl is damaged"),
        (lambda path: (path / "rounds.jsonl").unlink(), r"rounds\.jsonl is damaged \(No such file"),
        (lambda path: (path / "scores" / "00001.safetensors").unlink(), r"scores/00001\.safetensors is missing"),
        (lambda path: _flip(path / "scores" / "00002.safetensors"), r"scores/00002\.safetensors is damaged"),
        (lambda path: _flip(path / "environment.json"), r"environment\.json is damaged"),
        (lambda path: (path / "data.json").write_bytes(b"\xff"), r"data\.json is damaged"),
        (lambda path: (path / "SUMS.json").write_bytes(b"["), r"SUMS\.json is damaged"),
        (lambda path: (path / "SUMS.json").unlink(), r"an older version of equifed"),
        (lambda path: _flip(path / "status.json"), r"status\.json cannot be read: it does not fit its checksum"),
    ],
)
@pytest.mark.sample(4)
def test_damage_is_refused_with_what_to_do(place, harm, said):
    store = Store(place / "runs")
    folder = stopped(store, load_config(write_config(place)), after=2)
    harm(folder.path)
    with pytest.raises(RunError, match=said) as error:
        store.resume(str(folder.path))
    assert f"equifed run {folder.path}/config.toml" in str(error.value)
    assert RunFolder(folder.path).lock.is_locked is False


def test_another_configuration_or_other_data_are_refused(place):
    store = Store(place / "runs")
    folder = stopped(store, load_config(write_config(place)), after=2)
    before = (folder.path / "config.toml").read_text()
    (folder.path / "config.toml").write_text(before.replace("learning-rate = 0.1", "learning-rate = 0.2"))
    with pytest.raises(RunError, match=r"config\.toml is damaged: its content is not what was written. Put back"):
        store.resume(folder.id)
    (folder.path / "config.toml").write_text(before)
    write_silos(place, seed=1)
    with pytest.raises(DataError, match="have changed"):
        store.resume(folder.id)
    write_silos(place)
    resumed(store, folder)


def test_another_environment_is_mentioned(place, monkeypatch):
    store = Store(place / "runs")
    folder = stopped(store, load_config(write_config(place)), after=2)
    now = folder.record("environment.json") | {"torch": "99.0"}
    monkeypatch.setattr("equifed.store.environment", lambda device: now)
    with pytest.warns(EquifedWarning, match=r"torch \S+ -> 99\.0"), store.resume(folder.id):
        pass


def test_one_run_is_carried_out_once(place):
    store = Store(place / "runs")
    recording = store.start(load_config(write_config(place)))
    assert recording.folder.status()["status"] == "running"
    with pytest.raises(RunError, match="another process"):
        store.resume(recording.folder.id)
    recording.folder.lock.release()
    assert RunFolder(recording.folder.path).status()["status"] == "interrupted"


def test_a_failure_is_recorded(place):
    store = Store(place / "runs")
    recording = store.start(load_config(write_config(place)))
    with pytest.raises(ZeroDivisionError), recording:
        raise ZeroDivisionError("why")
    assert recording.folder.status() | {"status": "failed", "reason": "ZeroDivisionError: why"} == (
        recording.folder.status()
    )


def test_runs_are_found_by_prefix_name_latest_and_path(place):
    store = Store(place / "runs")
    with pytest.raises(ConfigError, match="no runs"):
        store.find("latest")
    one, _ = whole(store, load_config(write_config(place, run={"rounds": 1, "name": "mine"})))
    two, _ = whole(store, load_config(write_config(place, run={"rounds": 1}, method={"name": "local"})))
    assert store.find("latest").id == two.id
    assert store.find("mine").id == store.find(one.id).id == store.find(str(one.path)).id == one.id
    assert store.find(two.id[:-1]).id == two.id
    with pytest.raises(ConfigError, match="2 runs are called '20"):
        store.find("20")
    with pytest.raises(ConfigError, match="no run 'xxx"):
        store.find("x" * 5000)
    with pytest.raises(RunError, match="There is no result in xxx"):
        load_result("x" * 5000)
    with pytest.raises(ConfigError, match=f"no run 'x'.*{two.id}"):
        store.find("x")
    for k in range(8):
        shutil.copytree(two.path, store.root / f"30-{k}")
    with pytest.raises(ConfigError, match=r"8 runs are called '30': 30-7, .*, 30-3 and 3 more \(equifed list\)\."):
        store.find("30")
    with pytest.raises(ConfigError, match=r"There is no run 'x'.*The latest: 30-7, .*30-3\.$"):
        store.find("x")


def test_a_name_is_not_taken_for_the_beginning_of_an_id(place):
    store = Store(place / "runs")
    whole(store, load_config(write_config(place, run={"rounds": 1})))
    named, _ = whole(store, load_config(write_config(place, run={"rounds": 1, "name": "2"})))
    third, _ = whole(store, load_config(write_config(place, run={"rounds": 1})))
    assert store.find("2").id == named.id
    (third.path / "config.toml").unlink()
    with pytest.warns(EquifedWarning, match=f"Run folder {third.id} cannot be read"):
        assert store.find("2").id == named.id


def test_no_file_is_read_to_find_a_run_by_its_id(place, monkeypatch):
    store = Store(place / "runs")
    config = load_config(write_config(place, run={"rounds": 1, "name": "mine"}))
    ids = [whole(store, config)[0].id for _ in range(2)]

    def refused(path):
        raise AssertionError(f"{path} is read")

    monkeypatch.setattr("equifed.files.open_regular", refused)
    assert [store.find(id).id for id in ids] == ids
    assert [store.find(id[:-1]).id for id in ids] == ids
    with pytest.raises(AssertionError, match="is read"):
        store.find("mine")


def test_runs_are_listed_by_the_time_they_began_whatever_they_are_called(place):
    store = Store(place / "runs")
    config = load_config(write_config(place, run={"rounds": 1}))
    names = ["99990101-000000-fedavg-0000", "b", "a", "00010101-000000-fedavg-0000"]
    for name in names:
        with store.start(config, id=name):
            pass
    assert [entry.id for entry in store.entries()] == [folder.id for folder in store.folders()] == names[::-1]
    assert store.find("latest").id == names[-1]


def test_runs_are_begun_one_at_a_time(place):
    """So that what one process clears away is not what another is just making."""
    store = Store(place / "runs")
    config = load_config(write_config(place, run={"rounds": 1}))
    store.prepare()
    begun = threading.Event()

    def begin() -> None:
        whole(store, config)
        begun.set()

    thread = threading.Thread(target=begin)
    with FileLock(store.root / "index.lock"):
        thread.start()
        assert not begun.wait(0.5)
        assert [path.name for path in store.root.iterdir()] == ["index.lock"]
    thread.join()
    assert len(store.entries()) == 1


def test_a_run_named_by_its_path_stays_where_it_is(place):
    store = Store(place / "runs")
    folder = stopped(store, load_config(write_config(place)), after=2)
    with Store(place / "other").resume(str(folder.path)) as recording:
        for _ in recording.rounds():
            pass
        recording.finish()
    assert store.entries()[0].status == "finished"
    assert Store(place / "other").entries() == []


def test_the_list_is_what_the_folders_hold(place):
    store = Store(place / "runs")
    folders = [whole(store, load_config(write_config(place, run={"rounds": 1})))[0] for _ in range(3)]
    assert [entry.id for entry in store.entries()] == [folder.id for folder in folders[::-1]]
    shutil.rmtree(folders[0].path)
    assert [entry.id for entry in store.entries()] == [folders[2].id, folders[1].id]
    (folders[1].path / "config.toml").unlink()
    with pytest.warns(EquifedWarning, match=rf"{folders[1].id} cannot be read.*config\.toml is missing"):
        assert [entry.id for entry in store.entries()] == [folders[2].id]
    shutil.rmtree(folders[1].path)
    _flip(folders[2].path / "status.json")
    with pytest.warns(EquifedWarning, match=rf"{folders[2].id} cannot be read.*status\.json"):
        assert store.entries() == []
    assert store.find(folders[2].id).path == folders[2].path  # so that using it says what is wrong


def test_an_index_of_an_older_version_is_left_alone(place):
    store = Store(place / "runs")
    folder, _ = whole(store, load_config(write_config(place, run={"rounds": 1})))
    entries = store.entries()
    (store.root / "index.sqlite").write_bytes(b"not a database")
    assert store.entries() == entries
    assert store.find("latest").id == folder.id
    whole(store, load_config(write_config(place, run={"rounds": 1})))
    assert (store.root / "index.sqlite").read_bytes() == b"not a database"


def test_the_place_of_the_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EQUIFED_RUNS", raising=False)
    assert Store().root == Path("runs")
    monkeypatch.setenv("EQUIFED_RUNS", str(tmp_path / "there"))
    assert Store().root == tmp_path / "there"
    assert Store("given").root == Path("given")


def test_a_folder_that_cannot_hold_runs_is_refused(place):
    config = load_config(write_config(place))
    for root in (place / "experiment.toml", Path("/proc/nothing")):
        with pytest.raises(ConfigError, match=r"Cannot write to the folder.*--runs"):
            Store(root).start(config)
    with pytest.raises(ConfigError, match=r"it is a file.*--runs"):
        Store(place / "experiment.toml").entries()


def test_looking_makes_nothing(place):
    store = Store(place / "none")
    assert store.entries() == []
    assert not store.root.exists()
    store.root.mkdir()
    assert store.entries() == []
    assert not list(store.root.iterdir())


def test_runs_can_be_looked_at_where_nothing_may_be_written(place, monkeypatch):
    store = Store(place / "runs")
    folder, _ = whole(store, load_config(write_config(place)))

    def refused(*args, **values):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("equifed.store.FileLock", refused)
    monkeypatch.setattr("filelock.FileLock.acquire", refused)
    monkeypatch.setattr("equifed.files.os", Fake(open=refused))
    assert [entry.id for entry in store.entries()] == [folder.id]
    assert store.find("latest").id == folder.id


@pytest.mark.parametrize("reference", ["", " "])
def test_a_reference_must_say_something(place, reference):
    store = Store(place / "runs")
    whole(store, load_config(write_config(place)))
    with pytest.raises(ConfigError, match="Which run"):
        store.find(reference)


def test_hyper_parameters_come_back_as_they_were(place):
    fairness = ["demographic_parity_ratio", "equal_opportunity_ratio"]
    method = {"name": "fair-fate", "fairness": fairness, "as-published": True}
    folder, result = whole(
        Store(place / "runs"), load_config(write_config(place, method=method, data={"validation": 0.2}))
    )
    again = folder.result()
    assert result.info["hyper_parameters"]["fairness"] == tuple(fairness)
    assert again.info["hyper_parameters"] == result.info["hyper_parameters"]


def test_a_damaged_result_is_made_again_from_the_checkpoint(place):
    store = Store(place / "runs")
    folder, result = whole(store, load_config(write_config(place)))
    for name in ("metrics.parquet", "result.json", "final.safetensors", "timings.json"):
        _flip(folder.path / name)
        with pytest.raises(RunError, match=rf"{name} is damaged.*`equifed resume {folder.path}` makes its"):
            load_result(folder.path)
        resumed(store, folder)
        pd.testing.assert_frame_equal(folder.result().metrics, result.metrics, check_exact=True)
    with pytest.raises(RunError, match="already finished"):
        store.resume(folder.id)


def test_what_the_result_does_not_need_is_warned_of(place):
    folder, result = whole(Store(place / "runs"), load_config(write_config(place)))
    _flip(folder.path / "scores" / "00001.safetensors")
    _flip(folder.path / "checkpoint.safetensors")
    with pytest.warns(EquifedWarning, match=r"checkpoint.safetensors is damaged.*scores/00001.safetensors is") as told:
        again = load_result(folder.path)
    assert len(told) == 1
    pd.testing.assert_frame_equal(again.metrics, result.metrics, check_exact=True)
    assert len(again.predict([[0.0, 0.0, 0.0]], run=0)) == 1  # the model package is as it was written
    _flip(folder.path / "model" / "model.safetensors")
    with pytest.raises(RunError, match=r"model\.safetensors is damaged"):
        load_model(folder.path)


def test_a_result_of_an_older_version_is_not_called_damaged(place):
    folder, _ = whole(Store(place / "runs"), load_config(write_config(place, run={"rounds": 1})))
    (folder.path / "SUMS.json").unlink()  # older versions did not write it
    with pytest.raises(RunError, match=r"no SUMS\.json.*older version of equifed made them.*config\.toml"):
        folder.result()


def test_a_damaged_configuration_is_told(place):
    folder, _ = whole(Store(place / "runs"), load_config(write_config(place)))
    (folder.path / "config.toml").write_bytes(b"\xff")
    with pytest.raises(RunError, match=r"config\.toml is damaged.*Put back a copy") as error:
        folder.settings()
    assert "equifed run" not in str(error.value)  # it would not be the same run


def test_saving_again_clears_what_a_killed_process_left_and_waits_for_nobody(place):
    _, result = whole(Store(place / "runs"), load_config(write_config(place, run={"rounds": 1})))
    folder = place / "saved"
    save_result(folder, result)
    (folder / ".metrics.parquet.0123456789ab").write_bytes(b"half")
    (folder / ".hidden").write_bytes(b"the user's")
    save_result(folder, result)
    assert not list(folder.glob(".metrics*"))
    assert (folder / ".hidden").exists()
    pd.testing.assert_frame_equal(load_result(folder).metrics, result.metrics, check_exact=True)
    lock = lock_at(folder / "lock")
    assert take(lock)
    with pytest.raises(RunError, match="Another process is saving"):
        save_result(folder, result)
    lock.release()
    write_sealed(folder / "SUMS.json", {"files": {}})
    with pytest.raises(RunError, match="was not written to its end"):
        load_result(folder)


def test_what_killed_processes_left_is_cleared_and_nothing_else(place):
    store = Store(place / "runs")
    config = load_config(write_config(place, run={"rounds": 2}))
    folder = stopped(store, config, after=1)
    (folder.path / ".checkpoint.safetensors.0123456789ab").write_bytes(b"half")
    (folder.path / "scores" / "00002.safetensors").write_bytes(b"half")
    (folder.path / ".notes").write_bytes(b"the user's")
    dead, other = store.root / "20260101-000000-fedavg-0a1b", store.root / "20260101-000000-fedavg-0a1c"
    for path in (dead, other, store.root / "mine"):
        path.mkdir()
        (path / "config.toml").touch()
    (dead / ".data.json.0123456789ab").touch()
    (other / "letter.txt").touch()
    whole(store, config)
    assert not dead.exists()
    assert other.exists()
    assert (store.root / "mine").exists()
    resumed(store, folder)
    assert {path.name for path in folder.path.iterdir() if path.name.startswith(".")} == {".notes"}
    live = store.start(config)
    (live.folder.path / ".status.json.0123456789ab").touch()
    with pytest.raises(RunError, match="another process"):
        store.resume(live.folder.id)
    assert (live.folder.path / ".status.json.0123456789ab").exists()
    live.folder.lock.release()


def test_a_number_that_changed_in_a_result_is_not_listed(place):
    store = Store(place / "runs")
    folder, _ = whole(store, load_config(write_config(place, run={"rounds": 1})))
    (entry,) = store.entries()
    path = folder.path / "result.json"
    shown = str(entry.metrics["accuracy"])
    assert shown in path.read_text()
    path.write_text(path.read_text().replace(shown, "0.999"))
    with pytest.warns(EquifedWarning, match=r"cannot be read.*result\.json is damaged"):
        assert store.entries() == []


def test_a_full_disk_says_where_how_much_and_that_the_run_goes_on(place, monkeypatch):
    store = Store(place / "runs")
    config = load_config(write_config(place))
    complete, _ = whole(store, config)
    real = os.write

    def full(handle: int, content: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, content)

    room, recording = [True], store.start(config)
    monkeypatch.setattr("equifed.files.os", Fake(write=full))
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10))

    def until_full() -> None:
        with recording:
            for step in recording.rounds():
                room[0] = step.round < 3

    with pytest.raises(DiskError) as error:
        until_full()
    path = recording.folder.path
    assert f"{path}/scores/00004.safetensors could not be written: the disk is full. " in str(error.value)
    assert re.search(r"[\d,]+ bytes are needed, 10 are free: [\d,]+ are missing\.", str(error.value))
    assert f"`equifed resume {path}`" in str(error.value)
    assert isinstance(error.value, RunError)
    assert recording.folder.status()["status"] == "interrupted"
    room[0] = True
    resumed(store, recording.folder)
    assert_same(complete, recording.folder)


def test_a_run_that_the_disk_does_not_let_begin_leaves_nothing(place, monkeypatch):
    store = Store(place / "runs")
    config = load_config(write_config(place, run={"rounds": 1}))

    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("equifed.files.os", Fake(write=full))
        with pytest.raises(DiskError, match=r"config\.toml could not.*has not begun: start it again"):
            store.start(config)
    folder, _ = whole(store, config)
    assert [path.name for path in store.root.iterdir() if path.is_dir()] == [folder.id]


def test_a_disk_that_becomes_read_only_is_told(place, monkeypatch):
    store = Store(place / "runs")
    recording = store.start(load_config(write_config(place)))

    def read_only(*args: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    def until_read_only() -> None:
        with recording:
            for _ in recording.rounds():
                monkeypatch.setattr("equifed.files.os", Fake(open=read_only))

    with pytest.raises(DiskError, match=r"could not be written: Read-only file system.*equifed resume"):
        until_read_only()
