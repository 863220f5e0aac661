"""FEMNIST: handwritten digits and letters by writer (Caldas et al., LEAF, 2018), from its usual files.

LEAF's JSON: {"users": [...], "num_samples": [...], "user_data": {writer: {"x": [[784 numbers], ...], "y": [...]}}}, one
file or a folder of them for training rows and one for test rows, as its `preprocess.sh -s niid --sf 1.0 -k 0 -t sample`
writes them. HDF5 (fed_emnist_train.h5, fed_emnist_test.h5 of TensorFlow Federated): examples/WRITER/pixels [n, 28, 28]
and examples/WRITER/label [n]; reading it needs the package h5py. Pixels lie in 0..1, paper being 1.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from equifed.data.download import data_home
from equifed.errors import DataError

SIDE = 28
CLASSES = 62

Writers = dict[str, tuple[np.ndarray, np.ndarray]]
"""Images [n, 1, 28, 28] and labels [n] of each writer."""

FILES = (("train", "test"), ("train.json", "test.json"), ("fed_emnist_train.h5", "fed_emnist_test.h5"))
"""What the training and the test rows are called in the data home: LEAF's folders, one JSON file each, or HDF5."""
WHERE_FROM = (
    "FEMNIST's files are made by LEAF (github.com/TalwalkarLab/leaf, data/femnist: "
    "./preprocess.sh -s niid --sf 1.0 -k 0 -t sample), or come with TensorFlow Federated as fed_emnist_*.h5."
)


def find_femnist(home: str | os.PathLike[str] | None = None) -> tuple[Path, Path]:
    """Training and test files in the folder femnist of the data home."""
    folder = data_home(home) / "femnist"
    for names in FILES:
        train, test = (folder / name for name in names)
        if train.exists() and test.exists():
            return train, test
    kinds = ", or ".join(" and ".join(names) for names in FILES)
    raise DataError(
        f"FEMNIST is not in {folder}. {WHERE_FROM} Put them there as {kinds}; EQUIFED_DATA names another data home."
    )


def read_femnist(path: str | Path) -> Writers:
    """The writers of a JSON or HDF5 file, or of all JSON files of a folder."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path.name} is not there. {WHERE_FROM}")
    if path.is_dir():
        parts = sorted(path.glob("*.json"))
        if not parts:
            raise DataError(f"The folder {path.name} has no .json file.")
    else:
        parts = [path]
    writers: Writers = {}
    for part in parts:
        rows = _from_hdf5(part) if part.suffix in (".h5", ".hdf5") else _from_json(part)
        for writer, (x, y) in rows.items():
            if writer in writers:
                raise DataError(f"{part.name}: writer {writer!r} is in another file of {path.name} too.")
            writers[writer] = _checked(part, writer, x, y)
    return writers


def _from_json(path: Path) -> dict[str, tuple[Any, Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {writer: (rows["x"], rows["y"]) for writer, rows in content["user_data"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path.name} is not one of LEAF's files: it must have user_data with x and y of every writer."
        ) from error


def _from_hdf5(path: Path) -> dict[str, tuple[Any, Any]]:
    try:
        import h5py
    except ImportError:
        raise DataError(
            f"Reading {path.name} needs the package h5py: pip install h5py. JSON files need none."
        ) from None
    with h5py.File(path, "r") as file:
        if "examples" not in file:
            raise DataError(f"{path.name} has no group 'examples' with the writers.")
        return {
            writer: (np.asarray(rows["pixels"]), np.asarray(rows["label"])) for writer, rows in file["examples"].items()
        }


def _checked(path: Path, writer: str, x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    try:
        images = np.asarray(x, dtype=np.float32).reshape(-1, 1, SIDE, SIDE)
        labels = np.asarray(y, dtype=np.int64).reshape(-1)
    except ValueError as error:
        raise DataError(f"{path.name}: writer {writer!r} has images that are not {SIDE} x {SIDE} numbers.") from error
    if len(images) != len(labels):
        raise DataError(f"{path.name}: writer {writer!r} has {len(images)} images but {len(labels)} labels.")
    if len(labels) and not (labels.min() >= 0 and labels.max() < CLASSES):
        raise DataError(f"{path.name}: writer {writer!r} has labels outside 0..{CLASSES - 1}.")
    if len(images) and not (images.min() >= 0 and images.max() <= 1):
        raise DataError(f"{path.name}: writer {writer!r} has pixels outside 0..1.")
    return images, labels
