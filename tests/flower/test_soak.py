"""A federation goes on for as long as it is asked to, whatever its silos do: what it computes is what the simulator
computes of the replies that were good and in time, and nothing grows but the record. All of `soak.py` in the full
suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower.soak import METHODS, soak

RECORD = 12_000
"""Bytes of memory that the record of a round takes at most: its scores by silo and group, and reasons."""


@pytest.mark.parametrize(
    ("method", "rounds"), [("fedavg", 15), *(pytest.param(name, 200, marks=pytest.mark.full) for name in METHODS)]
)
@pytest.mark.full
def test_silos_that_come_go_lie_and_stall(method: str, rounds: int, silos: Path) -> None:
    came = soak(method, rounds, silos)
    assert came.unlike == 0
    assert came.difference == 0
    assert came.told > rounds
    assert {"answers", "late", "silent", "stalls", "lies", "joining: stalls", "joining: lies"} <= set(came.done)
    assert came.after.files == came.before.files
    if rounds >= 100:  # of fewer, most is what is made once
        assert (came.after.python - came.before.python) / came.between < RECORD
