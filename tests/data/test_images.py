"""Rotation: identity at 0, exact quarter turns, and a bilinear turn by another way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

from equifed.data import images as rotate
from equifed.data import rotate_images
from equifed.errors import DataError


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(0).random((3, 1, 28, 28), dtype=np.float32)


@pytest.mark.parametrize("degrees", [0, 360, -720])
def test_whole_turns_are_the_identity_bit_by_bit(images, degrees):
    turned = rotate_images(images, degrees)
    assert turned.dtype == np.float32
    assert turned is not images
    np.testing.assert_array_equal(turned, images)


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_quarter_turns_are_counter_clockwise(images, quarters):
    expected = np.rot90(images, quarters, axes=(2, 3))
    np.testing.assert_allclose(rotate_images(images, 90 * quarters), expected, atol=2e-5)


def test_it_agrees_with_scipy_inside_the_image(images):
    turned = rotate_images(images, 36)[0, 0]
    expected = ndimage.rotate(images[0, 0], 36, reshape=False, order=1, mode="constant")
    np.testing.assert_allclose(turned[8:20, 8:20], expected[8:20, 8:20], atol=1e-4)


def test_outside_is_zero():
    turned = rotate_images(np.ones((1, 1, 28, 28), dtype=np.float32), 45)
    assert turned[0, 0, 0, 0] == 0
    assert turned[0, 0, 14, 14] == 1


def test_other_shapes_are_refused(images):
    with pytest.raises(DataError, match="float32"):
        rotate_images(images.astype(np.float64), 10)
    with pytest.raises(DataError, match="channels"):
        rotate_images(images[:, 0], 10)


def test_no_images_give_no_images(images):
    assert rotate_images(images[:0], 10).shape == (0, 1, 28, 28)


def test_turned_images_are_kept_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).random((5, 1, 8, 8)).astype(np.float32)
    first = rotate.rotate_cached(images, 36.0, tmp_path / "mnist")
    np.testing.assert_array_equal(first, rotate.rotate_images(images, 36.0))
    monkeypatch.setattr(rotate, "rotate_images", lambda images, degrees: pytest.fail("turned again"))
    np.testing.assert_array_equal(rotate.rotate_cached(images, 36.0, tmp_path / "mnist"), first)
    monkeypatch.undo()
    (file,) = (tmp_path / "mnist").glob("rotated-36-*.npy")
    for kept in (100, 0):  # cut short: turned again, and mended
        file.write_bytes(file.read_bytes()[:kept])
        np.testing.assert_array_equal(rotate.rotate_cached(images, 36.0, tmp_path / "mnist"), first)
        np.testing.assert_array_equal(np.load(file), first)
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    np.testing.assert_array_equal(rotate.rotate_cached(images, 36.0, blocked), first)
