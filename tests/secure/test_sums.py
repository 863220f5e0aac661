"""Masked sums are unmasked sums, bit for bit, for whoever may be gone; whenever more are gone there is none."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from equifed.secure import NotSummed, threshold, unsummed
from secure.sums import Federation


@pytest.mark.parametrize("count", [3, 4, 5])
def test_every_pattern_of_who_is_gone_when(tmp_path: Path, count: int) -> None:
    """Each silo masks and tells, only masks, or does nothing."""
    federation = Federation.of(tmp_path, count)
    summed = 0
    for number, pattern in enumerate(product(("there", "late", "gone"), repeat=count)):
        did = dict(zip(federation.names, pattern, strict=True))
        gone, late = ([name for name, when in did.items() if when == what] for what in ("gone", "late"))
        needed = 2 * count // 3 + 1
        allowed = count - len(gone) >= needed and (not late if gone else count - len(late) >= needed)
        exchange = federation.exchange(number)
        if allowed:
            there = [name for name in federation.names if name not in gone]
            result = federation.sum(exchange, gone, late)
            np.testing.assert_array_equal(result.numbers, federation.plain(there))
            assert result.liars == ()
            summed += 1
        else:
            with pytest.raises(Exception) as caught:  # noqa: PT011
                federation.sum(exchange, gone, late)
            assert type(caught.value).__name__ in ("NotSummed", "Refused")
        assert (unsummed(count, count - len(gone), count - len(gone) - len(late)) is None) == allowed
    assert summed == {3: 1, 4: 9, 5: 11}[count]


def test_thresholds() -> None:
    assert {n: threshold(n) for n in (3, 4, 5, 6, 8, 10, 50, 500)} == {
        **{3: 3, 4: 3, 5: 4, 6: 5, 8: 6, 10: 7, 50: 34, 500: 334}
    }
    assert NotSummed
