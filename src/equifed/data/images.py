"""Rotated images, for the rotation groups of FairMNISTRotate."""

from __future__ import annotations

import hashlib
import io
import math
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equifed.errors import DataError
from equifed.files import write_atomic

BATCH = 4096


def rotate_images(images: NDArray[np.float32], degrees: float) -> NDArray[np.float32]:
    """Turn [n, channels, height, width] images counter-clockwise about their centre: bilinear, zeros outside.

    At 0 degrees (or whole turns) they come back bit by bit, so that the unrotated group is the original data.
    """
    if images.ndim != 4 or images.dtype != np.float32:
        raise DataError(f"Images must be float32 [n, channels, height, width], not {images.dtype} {images.shape}.")
    if degrees % 360 == 0 or len(images) == 0:
        return images.copy()
    import torch  # late: reading data must not wait for torch
    from torch.nn.functional import affine_grid, grid_sample

    angle = math.radians(degrees)
    height, width = images.shape[2:]
    cos, sin, aspect = math.cos(angle), math.sin(angle), height / width
    # rows map an output pixel (x right, y down, both in -1..1) to the input pixel that it shows
    theta = torch.tensor([[cos, -sin * aspect, 0.0], [sin / aspect, cos, 0.0]])
    turned = np.empty_like(images)
    for start in range(0, len(images), BATCH):
        batch = torch.from_numpy(np.ascontiguousarray(images[start : start + BATCH]))
        grid = affine_grid(theta.expand(len(batch), 2, 3), list(batch.shape), align_corners=False)
        part = grid_sample(batch, grid, padding_mode="zeros", align_corners=False)
        turned[start : start + BATCH] = part.numpy()
    return turned


def rotate_cached(images: NDArray[np.float32], degrees: float, folder: Path) -> NDArray[np.float32]:
    """`rotate_images`, kept in a file of this folder, named after the images and the angle: reading it takes a
    twentieth of the time of turning. Where the folder cannot be written, nothing is kept."""
    if degrees % 360 == 0:
        return images.copy()
    digest = hashlib.blake2b(np.ascontiguousarray(images).data, digest_size=12).hexdigest()
    path = folder / f"rotated-{degrees:g}-{digest}.npy"
    try:
        kept: NDArray[np.float32] = np.load(path)
        if kept.shape == images.shape and kept.dtype == np.float32:
            return kept
    except (OSError, ValueError, EOFError):  # not there, or cut short
        pass
    turned = rotate_images(images, degrees)
    content = io.BytesIO()
    np.save(content, turned)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content.getvalue())
    return turned
