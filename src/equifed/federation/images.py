"""Federations of images: MNIST turned by group (E2FL's FairMNISTRotate), and FEMNIST by writer."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from equifed.data import Encoded, rotate_images
from equifed.data.images import rotate_cached
from equifed.data.sets.femnist import find_femnist, read_femnist
from equifed.errors import ConfigError
from equifed.federation.arrays import Rows
from equifed.federation.federation import Federation, RowSets
from equifed.federation.split import Holdings


def load_femnist(
    train: str | Path | None = None, test: str | Path | None = None, *, home: str | os.PathLike[str] | None = None
) -> Federation:
    """FEMNIST as a federation with one client per writer, from LEAF's JSON files (or folders of them) or TensorFlow
    Federated's HDF5 files; every writer is tested on its own test rows. There is one group of rows, and no group of
    writers is known. A writer of the test file who has no training rows is left out. Without paths, the files are
    those in the folder femnist of the data home.
    """
    if (train is None) != (test is None):
        raise ConfigError(
            "FEMNIST needs both its training and its test file, or neither to take those of the data home."
        )
    if train is None or test is None:
        train, test = find_femnist(home)
    train_rows, test_rows = read_femnist(train), read_femnist(test)
    none = (np.zeros((0, 1, 28, 28), np.float32), np.zeros(0, np.int64))

    def with_group(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return x, y, np.zeros(len(y), np.int64)

    fed = Federation.from_arrays(
        [with_group(*rows) for rows in train_rows.values()],
        client_tests=[with_group(*test_rows.get(writer, none)) for writer in train_rows],
        ids=list(train_rows),
        name="femnist",
    )
    return dataclasses.replace(fed, groups=("all",))


def turned(encoded: Encoded, dealt: Sequence[Holdings], seeds: Sequence[int], folder: Path) -> list[Federation]:
    """E2FL's FairMNISTRotate: each client's images turned by its group's angle; tested on the test images so turned.

    All seeds share one table: for every group the training images that some seed deals to it, then the test images,
    which are the same for every partition and so kept, turned, in `folder`.
    """
    angles, client_groups, test = dealt[0].angles, dealt[0].client_groups, dealt[0].test  # the same for every seed
    assert angles is not None and client_groups is not None  # noqa: PT018 - the caller has checked
    if encoded.x.ndim != 4 or "split" not in encoded.columns:
        text = "Groups turned by an angle need images with a given test set, such as mnist."
        raise ConfigError(text, section="partition", key="kind")
    count = len(angles)
    needed = [
        np.unique(np.concatenate([test[:0], *(rows[k] for h in dealt for rows in _owned(h) for k in members)]))
        for members in (np.flatnonzero(client_groups == g).tolist() for g in range(count))
    ]
    blocks = [*needed, *[test] * count]
    stop = np.cumsum([len(block) for block in blocks])
    start = stop - [len(block) for block in blocks]
    images = np.empty((int(stop[-1]), *encoded.x.shape[1:]), np.float32)
    for b, rows in enumerate(blocks):
        upright, angle = encoded.x[rows], angles[b % count]
        images[start[b] : stop[b]] = (
            rotate_images(upright, angle) if b < count else rotate_cached(upright, angle, folder)
        )
    shared = Rows(
        images,
        encoded.y[np.concatenate(blocks)],
        np.repeat(np.arange(2 * count) % count, [len(block) for block in blocks]),
    )
    held = np.arange(start[count], stop[-1])

    def placed(owned: Sequence[np.ndarray]) -> RowSets:
        """Where the clients' images are in the table."""
        return RowSets.of(
            [start[g] + np.searchsorted(needed[g], rows) for g, rows in zip(client_groups, owned, strict=True)]
        )

    taken = [None if h.client_validation is None else placed(h.client_validation) for h in dealt]
    return [
        Federation(
            rows=shared,
            train=placed(holdings.train),
            validation=held[:0] if validation is None else validation.index,
            test=held,
            client_test=RowSets(held, client_groups * len(test), (client_groups + 1) * len(test)),
            ids=holdings.ids,
            classes=encoded.class_names,
            groups=tuple(f"{angle:g} degrees" for angle in angles),
            features=encoded.feature_names,
            client_groups=client_groups,
            seed=seed,
            client_validation=validation,
        )
        for seed, holdings, validation in zip(seeds, dealt, taken, strict=True)
    ]


def _owned(holdings: Holdings) -> list[Sequence[np.ndarray]]:
    """The images of each client: those it trains on, and those that the server took from it."""
    return [holdings.train, *([] if holdings.client_validation is None else [holdings.client_validation])]
