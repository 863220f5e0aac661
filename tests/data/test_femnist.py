"""FEMNIST's per-writer files, on small ones of the same format."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import equifed as ef
from equifed.data.sets.femnist import read_femnist

RNG = np.random.default_rng(0)
ROWS = {f"f{k:04d}_{k:02d}": (RNG.random((n, 784)).round(4), RNG.integers(0, 62, n)) for k, n in enumerate([5, 3, 7])}


def write(path: Path, writers: list[str], keep: slice) -> Path:
    data = {w: {"x": ROWS[w][0][keep].tolist(), "y": ROWS[w][1][keep].tolist()} for w in writers}
    sizes = [len(rows["y"]) for rows in data.values()]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"users": writers, "num_samples": sizes, "user_data": data}))
    return path


def test_a_federation_of_writers(tmp_path: Path) -> None:
    names = list(ROWS)
    write(tmp_path / "train" / "all_data_0_niid_0_keep_0_train_9.json", names[:2], slice(1, None))
    write(tmp_path / "train" / "all_data_1_niid_0_keep_0_train_9.json", names[2:], slice(1, None))
    test = write(tmp_path / "test.json", names, slice(0, 1))
    fed = ef.load_femnist(tmp_path / "train", test)
    assert fed.ids == tuple(names)
    assert fed.shape == (1, 28, 28)
    assert fed.groups == ("all",)
    assert fed.client_test is not None
    for k, name in enumerate(names):
        x, y = ROWS[name]
        np.testing.assert_array_equal(fed.rows.x[fed.train[k]].reshape(-1, 784), x[1:].astype(np.float32))
        assert [fed.classes[c] for c in fed.rows.y[fed.train[k]]] == [str(label) for label in y[1:]]
        assert [fed.classes[c] for c in fed.rows.y[fed.client_test[k]]] == [str(y[0])]
    result = ef.simulate(
        ef.methods.E2FL(groups="lowest-loss", num_groups=2), fed, model=ef.models.MLP(hidden=(4,), bias=False), rounds=1
    )
    assert {"client_equality.mean", "client_equality.variance"} <= set(result.final())


def test_the_hdf5_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout of TensorFlow Federated's files, read through h5py's interface."""
    file = {"examples": {w: {"pixels": x.reshape(-1, 28, 28), "label": y} for w, (x, y) in ROWS.items()}}

    class File(dict):  # type: ignore[type-arg]
        def __init__(self, path: Path, mode: str) -> None:
            assert mode == "r"
            super().__init__(file)

        def __enter__(self) -> File:
            return self

        def __exit__(self, *error: object) -> None:
            pass

    module = types.ModuleType("h5py")
    module.File = File  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "h5py", module)
    path = tmp_path / "fed_emnist_train.h5"
    path.write_bytes(b"")
    for name, (x, y) in read_femnist(path).items():
        np.testing.assert_array_equal(x.reshape(-1, 784), ROWS[name][0].astype(np.float32))
        assert y.tolist() == ROWS[name][1].tolist()
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ef.DataError, match="h5py"):
        read_femnist(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[1, 2", "not one of LEAF's files"),
        ('{"users": []}', "not one of LEAF's files"),
        ('{"user_data": {"w": {"x": [[0, 1]], "y": [3]}}}', "'w' has images that are not 28 x 28"),
        (json.dumps({"user_data": {"w": {"x": [[0] * 784], "y": [3, 4]}}}), "1 images but 2 labels"),
        (json.dumps({"user_data": {"w": {"x": [[0] * 784], "y": [62]}}}), "labels outside"),
        (json.dumps({"user_data": {"w": {"x": [[9] * 784], "y": [6]}}}), "pixels outside"),
    ],
)
def test_files_that_are_something_else(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(content)
    with pytest.raises(ef.DataError, match=words):
        read_femnist(path)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ef.DataError, match=r"preprocess\.sh"):
        read_femnist(tmp_path / "nothing.json")
    with pytest.raises(ef.DataError, match=r"no \.json file"):
        read_femnist(tmp_path)
    for name in ("a.json", "b.json"):
        write(tmp_path / "twice" / name, list(ROWS), slice(None))
    with pytest.raises(ef.DataError, match="in another file"):
        read_femnist(tmp_path / "twice")
