"""Links in folders of runs: nothing outside of a run's folder is written or removed."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import equifed as ef
from equifed.config import Config, load_config
from equifed.errors import EquifedError, RunError
from equifed.flower.journal import Journal
from equifed.settings import Cluster
from equifed.store import RunFolder, Store, load_result, save_result
from equifed.store.folder import INSIDE
from equifed.studies import Study
from equifed.studies.runs import data_key
from store.silos import write_config, write_silos


@pytest.fixture
def config(tmp_path: Path) -> Config:
    write_silos(tmp_path)
    return load_config(write_config(tmp_path, run={"rounds": 3, "seeds": [0]}))


@pytest.fixture
def precious(tmp_path: Path) -> dict[Path, bytes]:
    """Files of a home folder, some by names such as the store gives."""
    home = tmp_path / "home"
    home.mkdir()
    names = (".bashrc", "letter.txt", "00001.safetensors", ".x.0123456789ab", "SUMS.json", "0000000001.sum")
    for name in names:
        (home / name).write_text(f"the content of {name}")
    return {path: path.read_bytes() for path in home.iterdir()}


def unharmed(files: dict[Path, bytes]) -> bool:
    (home,) = {path.parent for path in files}
    return {path: path.read_bytes() for path in home.iterdir()} == files


def stopped(store: Store, config: Config, after: int) -> RunFolder:
    recording = store.start(config)
    with suppress(KeyboardInterrupt), recording:
        if not after:
            raise KeyboardInterrupt
        for step in recording.rounds():
            if step.round == after:
                raise KeyboardInterrupt
    return recording.folder


def resume(store: Store, folder: RunFolder) -> None:
    with store.resume(str(folder.path)) as recording:
        for _ in recording.rounds():
            pass
        recording.finish()


def lead_to(path: Path, target: Path) -> None:
    """Put a link where the file or the folder was."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("name", INSIDE)
def test_a_run_with_a_linked_folder_is_not_resumed(
    name: str, after: int, config: Config, precious: dict[Path, bytes], tmp_path: Path
) -> None:
    store = Store(tmp_path / "runs")
    folder = stopped(store, config, after)
    lead_to(folder.path / name, tmp_path / "home")
    with pytest.raises(RunError, match=rf"{name} is a link, to .*home"):
        resume(store, folder)
    assert unharmed(precious)
    assert RunFolder(folder.path).status()["status"] == "interrupted"
    (folder.path / name).unlink()
    if name == "scores":
        (folder.path / name).mkdir()
    if name != "scores" or not after:
        resume(store, folder)  # the lock was let go of


@pytest.mark.parametrize(
    "name",
    ["rounds.jsonl", "scores/00003.safetensors", "scores/00002.safetensors", "checkpoint.safetensors", "status.json",
     "lock", "result.json", "metrics.parquet", "SUMS.json", "config.toml", "data.json"],
)  # fmt: skip
@pytest.mark.sample(4)
def test_no_file_is_written_through_a_link(
    name: str, config: Config, precious: dict[Path, bytes], tmp_path: Path
) -> None:
    """The link is refused, or replaced by a file; what it leads to stays as it is, even where it has the content that
    belongs there."""
    store = Store(tmp_path / "runs")
    folder = stopped(store, config, 2)
    path, target = folder.path / name, tmp_path / "home" / "letter.txt"
    if path.is_file():
        target.write_bytes(path.read_bytes())
    precious[target] = target.read_bytes()
    lead_to(path, target)
    with suppress(EquifedError):
        resume(store, folder)
    with suppress(EquifedError):
        folder.status()
    assert unharmed(precious)


def test_a_finished_run_with_a_linked_model_is_not_written_to(
    config: Config, precious: dict[Path, bytes], tmp_path: Path
) -> None:
    """Its result would be made again, with the model."""
    store = Store(tmp_path / "runs")
    folder = stopped(store, config, 2)
    resume(store, folder)
    lead_to(folder.path / "model", tmp_path / "home")
    with pytest.raises(RunError, match="model is a link"):
        resume(store, folder)
    assert unharmed(precious)


def test_a_result_is_not_saved_into_a_linked_folder(
    config: Config, precious: dict[Path, bytes], tmp_path: Path
) -> None:
    store = Store(tmp_path / "runs")
    folder = stopped(store, config, 2)
    resume(store, folder)
    result = load_result(folder.path)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "model").symlink_to(tmp_path / "home")
    with pytest.raises(RunError, match="model is a link"):
        save_result(tmp_path / "saved", result)
    assert unharmed(precious)


def test_resuming_removes_only_files_that_the_store_writes(config: Config, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    folder = stopped(store, config, 0)
    scores = folder.path / "scores"
    for name in ("notes.txt", ".bashrc", "00009.safetensors", "final.safetensors"):
        (scores / name).write_text(name)
    resume(store, folder)
    kept = {path.name for path in scores.iterdir()}
    assert kept == {"notes.txt", ".bashrc", "final.safetensors", *(f"0000{k}.safetensors" for k in (1, 2, 3))}


def test_a_journal_removes_only_what_it_writes(precious: dict[Path, bytes], tmp_path: Path) -> None:
    (tmp_path / "sums").symlink_to(tmp_path / "home")
    with pytest.raises(RunError, match="is a link"):
        Journal(tmp_path / "sums")
    assert unharmed(precious)
    journal = Journal(tmp_path / "own")
    for number in (1, 2):
        journal.write(number, "done", {}, {"x": np.zeros(2, np.float32)})
    (tmp_path / "own" / "letter.txt").write_text("dear")
    journal.forget(before=2)
    assert {path.name for path in (tmp_path / "own").iterdir()} == {"0000000002.sum", "letter.txt"}
    journal.forget()
    assert {path.name for path in (tmp_path / "own").iterdir()} == {"letter.txt"}


def test_a_study_takes_no_folder_that_has_no_name_of_a_run(
    config: Config, precious: dict[Path, bytes], tmp_path: Path
) -> None:
    """Its file may come from elsewhere, with the folders of the runs."""
    store = Store(tmp_path / "runs")
    store.prepare()
    names = ["../home", str(tmp_path / "home"), "20260101-000000-fedavg-0000/../../home", "."]
    for name in names:
        study = Study([config], store, Cluster(), {data_key(config): []})
        study._record.write_text(json.dumps({"runs": {config.fingerprint(study.store.root): [name]}}))
        again = Study([config], store, Cluster(), {data_key(config): []})
        (id,) = again._ids()
        assert id.startswith("2"), id
        assert "/" not in id
    assert unharmed(precious)


@pytest.mark.parametrize("name", ["index.lock", "index.sqlite"])
def test_nothing_is_written_through_a_link_in_the_folder_of_the_runs(
    name: str, config: Config, precious: dict[Path, bytes], tmp_path: Path
) -> None:
    store = Store(tmp_path / "runs")
    folder = stopped(store, config, 1)
    lead_to(tmp_path / "runs" / name, tmp_path / "home" / "letter.txt")
    assert [entry.id for entry in store.entries()] == [folder.id]
    if name == "index.lock":
        with pytest.raises(RunError, match=r"index\.lock is a link"):
            stopped(store, config, 1)
    else:  # of an older version, which nothing looks at
        stopped(store, config, 1)
    assert unharmed(precious)


def test_the_runs_folder_itself_may_be_a_link(config: Config, tmp_path: Path) -> None:
    """To another disk, say: the user who names it knows where it leads."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    store = Store(tmp_path / "runs")
    folder = stopped(store, config, 1)
    resume(store, folder)
    assert isinstance(load_result(folder.path), ef.Result)
    assert os.path.isdir(tmp_path / "disk" / folder.id)
