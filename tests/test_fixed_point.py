"""Fixed point against Python's integers and fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import vmap

from equifed import fixed_point
from equifed.fixed_point import OutOfRange, decode, decode_wide, encode, encode_wide, largest


def exact(value: float, places: int) -> int:
    """rint(value 2^places), halves to even: what Python's round of a fraction does."""
    return round(Fraction(value) * Fraction(2) ** places)


@given(
    st.lists(st.floats(-1e9, 1e9), min_size=3, max_size=40),
    st.sampled_from([30, 20, 8, 0, -4]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_a_sum_is_that_of_pythons_integers(values: list[float], places: int, dtype: torch.dtype) -> None:
    n = len(values)
    made = torch.tensor(values, dtype=torch.float64)
    made = made.clamp(-largest(n, places), largest(n, places)).to(dtype)
    made = torch.where(made.double().abs() > largest(n, places), made * 0.5, made)  # 32 bits may round out of range
    integers = [encode(value, n, places) for value in made]
    assert [int(each) for each in integers] == [exact(float(value), places) for value in made]
    total = sum(exact(float(value), places) for value in made)
    assert abs(total) < 2**63
    found = decode(torch.stack(integers).sum(0), torch.float64, places)
    assert float(found) == float(Fraction(total) / Fraction(2) ** places)
    # at most half of the last place for each client, and what a float64 of this size rounds
    true = sum((Fraction(float(value)) for value in made), Fraction(0))
    off = abs(Fraction(total) / Fraction(2) ** places - true)
    assert off <= n * Fraction(1, 2) / Fraction(2) ** places
    assert torch.equal(fixed_point.sum_exactly(made, 0, places), found.to(dtype))


def test_order_is_without_effect_where_floats_differ() -> None:
    rng = np.random.default_rng(0)
    values = torch.tensor(rng.normal(size=(50, 400)) * 10.0 ** rng.integers(-4, 4, size=(50, 1)), dtype=torch.float32)
    orders = [torch.from_numpy(rng.permutation(50)) for _ in range(5)]
    assert any(not torch.equal(values.sum(0), values[order].sum(0)) for order in orders)
    for order in orders:
        assert torch.equal(fixed_point.sum_exactly(values, 0), fixed_point.sum_exactly(values[order], 0))


def test_many_sums_at_once() -> None:
    values = torch.randn(7, 5, 4, generator=torch.Generator().manual_seed(1))
    each = torch.stack([fixed_point.sum_exactly(run, 0) for run in values])
    assert torch.equal(fixed_point.sum_exactly(values, 1), each)
    assert torch.equal(vmap(lambda run: fixed_point.sum_exactly(run, 0))(values), each)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_whole_numbers_stay_whole(dtype: torch.dtype) -> None:
    values = torch.tensor([[0, 1, 1], [1, 1, 0], [1, 0, 1]]).to(dtype) * torch.tensor(1, dtype=dtype)
    total = torch.stack([encode(value, 3) for value in values]).sum(0)
    assert decode(total, torch.int64).tolist() == [2, 2, 2]
    large = torch.tensor([8_000_000], dtype=torch.int64)
    assert decode(encode(large, 500) * 500, torch.int64).tolist() == [4_000_000_000]


def test_what_is_out_of_range_is_refused() -> None:
    assert largest(500) == 2**32 / 500
    most = torch.tensor([largest(500), -largest(500)], dtype=torch.float64)
    assert encode(most, 500).tolist() == [exact(largest(500), 30), -exact(largest(500), 30)]
    assert abs(500 * exact(largest(500), 30)) < 2**63
    for wrong in (largest(500) * (1 + 1e-15), -1e7, np.nan, np.inf, -np.inf, 1e300):
        with pytest.raises(OutOfRange, match=r"beyond 8.6e\+06, the most that a secure sum of 500 clients holds"):
            encode(torch.tensor([0.0, wrong], dtype=torch.float64), 500)
    with pytest.raises(OutOfRange):
        encode(torch.tensor([2**63 - 1]), 3)
    assert encode(torch.tensor(1e10), 500, places=10) == 10**10 * 2**10
    assert encode(torch.zeros(0), 3).shape == (0,)


# -- wide --------------------------------------------------------------------------------------------------------------

WIDE = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e31, max_value=1e31)


@given(st.lists(WIDE, min_size=1, max_size=30))
def test_wide_sums_lose_nothing(values: list[float]) -> None:
    integers = [encode_wide(np.array([value]), len(values)) for value in values]
    for value, parts in zip(values, integers, strict=True):
        written = sum(Fraction(int(part)) * 2 ** (40 * i) for i, part in enumerate(parts[0])) / 2**160
        assert written == round(Fraction(value) * 2**160) / Fraction(2**160)
        assert written == Fraction(value) or abs(value) < 1e-32
        assert np.abs(parts).max() < 2**40
        assert decode_wide(parts)[0] == value or abs(value) < 1e-32
    total = sum(Fraction(round(Fraction(value) * 2**160), 2**160) for value in values)
    assert decode_wide(np.sum(integers, axis=0))[0] == float(total)  # Python's own rounding to the nearest


def test_wide_sums_of_raw_columns() -> None:
    """Sums and squares up to 1e30, whose 53 bits a float's own sum would not keep."""
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(20, 6)) * 10.0 ** np.array([-8, -3, 0, 6, 12, 15])
    values = np.stack([columns, columns**2])
    integers = np.stack([encode_wide(values[:, k], 20) for k in range(20)])
    assert integers.shape == (20, 2, 6, fixed_point.LIMBS)
    expected = [[float(sum(Fraction(float(v)) for v in values[i, :, j])) for j in range(6)] for i in range(2)]
    np.testing.assert_array_equal(decode_wide(integers.sum(0)), expected)
    # also in the ring of 64 bits, where masks are
    ring = integers.view(np.uint64).sum(0, dtype=np.uint64).view(np.int64)
    np.testing.assert_array_equal(decode_wide(ring), expected)


def test_wide_numbers_have_an_end() -> None:
    for wrong in (np.nan, np.inf, 2.0**160, -1e300):
        with pytest.raises(OutOfRange, match=r"beyond 1.5e\+48"):
            encode_wide(np.array([1.0, wrong]), 3)
    with pytest.raises(OutOfRange, match="4,194,304 clients"):
        encode_wide(np.array([1.0]), 2**22 + 1)
    # as many as there may be, all limbs full
    most = encode_wide(np.array([2.0**159 - 2.0**106]), 2**22)
    assert int(np.abs(most).max()) * 2**22 < 2**62
