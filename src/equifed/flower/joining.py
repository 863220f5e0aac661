"""Joining where sums are secure: what all silos have together, without anyone telling what it has alone.

Silos introduce themselves by name and key. One summed exchange of all who have then gives the totals of their rows, and
the sums by which inputs are standardised. Who is not in it takes no part in the run.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from flwr.app import RecordDict

from equifed.errors import RunError
from equifed.fixed_point import LIMBS, decode_wide, encode_wide
from equifed.flower.journal import Journal
from equifed.flower.link import MOST_ROWS, Link, Totals, possible_sums
from equifed.flower.masks import SIGNATURES, layout
from equifed.flower.records import about
from equifed.flower.sums import Question, Refusal, summed
from equifed.protocol import Phase, Record

JOINING = 0
"""The number of the exchange: before all others."""
INTRODUCE = "query.introduce"


class Joined(NamedTuple):
    """What the silos have together."""

    totals: Totals
    sums: np.ndarray
    """Sums and sums of squares over the training rows of the inputs to be standardised [2, d]."""


def integers(rows: int, test_rows: int, sums: np.ndarray, silos: int) -> np.ndarray:
    """What one silo has, int64 [n], to be summed over so many; sums: see `Joined`, exactly. Raises `OutOfRange`."""
    return np.concatenate([[rows, test_rows], encode_wide(sums, silos).ravel()]).astype(np.int64)


def layout_of(scaled: int) -> bytes:
    """What the integers are."""
    return layout(INTRODUCE, [("rows", "int64", (2,), 0), ("sums", "wide", (2, scaled, LIMBS), 0)])


def introduction(scaled: int) -> tuple[Phase, Record, Record]:
    """The exchange as a phase, which is no method's, and what goes either way."""
    reply = {"rows": torch.zeros(2), "sums": torch.zeros(2, scaled, LIMBS)}
    return Phase("introduce", (), tuple(reply), None, None, "sum"), {}, reply  # type: ignore[arg-type]


def add_up(link: Link, journal: Journal, deadline: float) -> Joined:
    """Have the run's silos summed up. Those who do not help are out of the run."""
    here = link.here
    question = Question(
        number=JOINING,
        kind=INTRODUCE,
        alike=RecordDict({SIGNATURES: link.signatures()}),
        cohort=tuple(sorted(link.members)),
        planned=len(link.silos),
        asked=dict.fromkeys(here, about({"run": link.run, "exchange": str(JOINING)})),
        layout=layout_of(link.scaled),
        values=2 + 2 * link.scaled * LIMBS,
        absent={silo: Refusal(link.why_not(silo), answered=False) for silo in link.members if silo not in here},
    )
    found = summed(link, journal, question, deadline, again=True)
    if found.total is None:
        raise RunError(
            f"The silos' rows could not be summed, without which no run begins: {found.obstacle}."
            + "".join(f" {silo}: {why.reason}." for silo, why in {**found.refused, **found.late}.items())
            + " Nothing has been trained yet: start a new run."
        )
    joined = _read(found.total, link.scaled)
    link.summed = joined.totals
    link.refused |= {silo: why.reason for silo, why in found.refused.items()}
    link.close(found.used)
    return joined


def _read(numbers: np.ndarray, scaled: int) -> Joined:
    """What the silos have together from the sum of their integers; an error for what no rows have."""
    rows, test_rows = (int(number) for number in numbers[:2])
    sums = decode_wide(numbers[2:].reshape(2, scaled, LIMBS))
    total, squares = sums
    possible = 0 <= rows <= MOST_ROWS and 0 <= test_rows <= MOST_ROWS
    if not possible or not possible_sums(rows, total, squares):
        raise RunError(
            "One of the silos introduces itself with sums that no rows have. Nobody sees a single silo's, so it cannot "
            "be told which: let each look at its file and its program, and start a new run."
        )
    return Joined(Totals(rows, test_rows), sums)
