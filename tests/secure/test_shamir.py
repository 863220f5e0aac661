"""Shamir's sharing against vectors worked out by hand and against interpolation in plain fractions."""

from __future__ import annotations

import itertools
import secrets
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from equifed.secure import shamir
from equifed.secure.shamir import PRIME, Interpolation, read, split


def by_fractions(points: list[int], values: list[int], at: int) -> Fraction:
    """The polynomial through small values, without any modulus."""
    total = Fraction(0)
    for i, value in zip(points, values, strict=True):
        term = Fraction(value)
        for j in points:
            term *= Fraction(at - j, i - j) if j != i else 1
        total += term
    return total


def test_a_vector_worked_out_by_hand(monkeypatch) -> None:
    """1234 + 166 x + 94 x^2 at 1, 2, ... 6."""
    coefficients = iter([166, 94])
    monkeypatch.setattr(secrets, "randbelow", lambda below: next(coefficients))
    shares = split((1234).to_bytes(16, "big"), 3, 6)
    assert [int.from_bytes(share, "big") for share in shares] == [1494, 1942, 2578, 3402, 4414, 5614]
    assert {len(share) for share in shares} == {17}
    for points in itertools.combinations(range(1, 7), 3):
        values = [[1494, 1942, 2578, 3402, 4414, 5614][point - 1] for point in points]
        assert Interpolation(points).value(values) == by_fractions(list(points), values, 0) == 1234
        others = set(range(1, 7)) - set(points)
        assert all(Interpolation(points).value(values, at) == by_fractions(list(points), values, at) for at in others)


def test_a_vector_that_wraps_around_the_prime(monkeypatch) -> None:
    """A secret of ones and a coefficient p - 1, that is -1: at x, the share is 2^128 - 1 - x."""
    monkeypatch.setattr(secrets, "randbelow", lambda below: below - 1)
    shares = split(b"\xff" * 16, 2, 3)
    assert [int.from_bytes(share, "big") for share in shares] == [2**128 - 2, 2**128 - 3, 2**128 - 4]
    monkeypatch.setattr(secrets, "randbelow", lambda below: below // 2)  # (p - 1) / 2: twice it is -1
    shares = split(bytes(16), 2, 3)
    assert [int.from_bytes(share, "big") for share in shares] == [2**129 - 3, PRIME - 1, 2**129 - 4]
    assert Interpolation([1, 3]).value([2**129 - 3, 2**129 - 4]) == 0


@given(st.binary(min_size=16, max_size=16), st.integers(1, 40), st.data())
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, count: int, data) -> None:
    threshold = data.draw(st.integers(1, count))
    shares = split(secret, threshold, count)
    chosen = data.draw(st.permutations(range(1, count + 1)))[:threshold]
    values = [read(shares[point - 1]) for point in chosen]
    assert Interpolation(chosen).value(values).to_bytes(16, "big") == secret


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16), st.integers(2, 12))
def test_one_share_less_fits_every_secret(secret: bytes, other: bytes, threshold: int) -> None:
    """For any other secret there is a polynomial that gives the same shares to all but one."""
    shares = split(secret, threshold, threshold)
    known = [read(share) for share in shares[:-1]]
    points = list(range(1, threshold))
    share = Interpolation([0, *points]).value([int.from_bytes(other, "big"), *known], threshold)
    assert Interpolation([*points, threshold]).value([*known, share]) == int.from_bytes(other, "big")


def test_shares_are_uniform() -> None:
    """Even of a secret of zeros: by their highest bits (17 bytes, of which 130 bits vary)."""
    drawn = [int.from_bytes(split(bytes(16), 3, 3)[2], "big") >> 126 for _ in range(4000)]
    counts = np.bincount(drawn, minlength=16)
    assert len(counts) == 16
    assert stats.chisquare(counts).pvalue > 1e-6
    assert len({split(bytes(16), 2, 2)[0] for _ in range(50)}) == 50


@pytest.mark.parametrize(("secret", "threshold", "count"), [(b"short", 2, 3), (bytes(16), 4, 3), (bytes(16), 0, 3)])
def test_what_cannot_be_shared(secret: bytes, threshold: int, count: int) -> None:
    with pytest.raises(ValueError, match="cannot be shared"):
        split(secret, threshold, count)


def test_what_cannot_be_a_share() -> None:
    assert read((PRIME - 1).to_bytes(17, "big")) == PRIME - 1
    assert read(PRIME.to_bytes(17, "big")) is None
    assert read(b"\xff" * 17) is None
    assert read(bytes(16)) is None
    assert read(b"") is None
    assert shamir.SECRET == 16
