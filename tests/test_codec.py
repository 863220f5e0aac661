"""Packed rankings and masks: lossless, exactly as long as counted, fast."""

from __future__ import annotations

import time

import numpy as np
import pytest

import equifed as ef
from equifed.codec import CODECS, pack, packed_size, unpack

LENET = (288, 18_432, 1_605_632, 1_280)
"""Edges of E2FL's LeNet by layer."""


def bits_by_hand(values: list[int], bits: int) -> bytes:
    """One big number with value i at bit i * bits."""
    number = sum(value << (i * bits) for i, value in enumerate(values))
    return number.to_bytes(-(-len(values) * bits // 8), "little")


@pytest.mark.parametrize("bits", range(1, 25))
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 100])
def test_packing_against_one_big_number(bits: int, count: int) -> None:
    values = np.random.default_rng(count).integers(0, 1 << bits, count)
    content = pack(values, bits)
    assert content == bits_by_hand(values.tolist(), bits)
    assert len(content) == packed_size(count, bits)
    assert unpack(content, bits, count).tolist() == values.tolist()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 255, 256, 257, 1280, 18_432])
@pytest.mark.parametrize("lead", [(), (3,)])
def test_rankings_come_back(n: int, lead: tuple[int, ...]) -> None:
    rng = np.random.default_rng(n)
    order = np.argsort(rng.random((*lead, n)), -1).astype(np.int32)
    codec = CODECS["ranking"]
    content = codec.encode(order)
    assert len(content) == codec.size(order.shape) == -(-order.size * max(int(np.ceil(np.log2(n))), 1) // 8)
    back = codec.decode(content, order.shape)
    assert back.dtype == np.int32
    np.testing.assert_array_equal(back, order)


def test_masks_come_back() -> None:
    mask = np.random.default_rng(0).random((3, 5, 7)) < 0.5
    codec = CODECS["mask"]
    content = codec.encode(mask)
    assert len(content) == codec.size(mask.shape) == 14
    back = codec.decode(content, mask.shape)
    assert back.dtype == np.bool_
    np.testing.assert_array_equal(back, mask)


def test_lenet_costs_what_the_paper_says() -> None:
    """Upload 4.05 MB, download 5.99 MB with the ten groups' masks."""
    up = sum(CODECS["ranking"].size((n,)) for n in LENET)
    masks = sum(CODECS["mask"].size((10, n)) for n in LENET)
    assert up == (288 * 9 + 18_432 * 15 + 1_605_632 * 21 + 1_280 * 11) / 8
    assert f"{up / 2**20:.2f}" == "4.05"
    assert f"{(up + masks) / 2**20:.2f}" == "5.99"
    assert f"{4 * sum(LENET) / 2**20:.2f}" == "6.20"


def test_a_large_layer_is_quick() -> None:
    order = np.random.default_rng(0).permutation(1_605_632).astype(np.int32)
    codec = CODECS["ranking"]
    spent = []
    for _ in range(5):
        begin = time.thread_time()
        content = codec.encode(order)
        middle = time.thread_time()
        back = codec.decode(content, order.shape)
        spent.append((middle - begin, time.thread_time() - middle))
    np.testing.assert_array_equal(back, order)
    # the best of five, and CPU time: others use this machine too. A loop over the numbers takes above a second.
    assert np.min(spent, axis=0).max() < 0.3, spent


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ef.DataError, match="do not fit into 3 bits"):
        pack(np.array([8]), 3)
    with pytest.raises(ef.DataError, match="do not fit"):
        pack(np.array([-1]), 3)
    with pytest.raises(ef.DataError, match="1 to 24"):
        pack(np.array([1]), 25)
    with pytest.raises(ef.DataError, match="3 bytes instead of 4"):
        CODECS["mask"].decode(b"abc", (32,))
