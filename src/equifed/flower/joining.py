"""Joining with secure sums: the silos' totals, without disclosing any single silo's numbers.

Silos join with name and key. One secure sum over all that joined then gives the totals of their rows, and the sums by
which inputs are standardised. A silo that is not in this sum is excluded from the run.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from flwr.app import RecordDict

from equifed.errors import RunError
from equifed.fixed_point import LIMBS, decode_wide, encode_wide
from equifed.flower.journal import Journal
from equifed.flower.link import MOST_ROWS, Link, Totals, is_possible_sum
from equifed.flower.masks import SIGNATURES, layout
from equifed.flower.records import about
from equifed.flower.sums import Question, Refusal, sum_replies
from equifed.protocol import Phase, Record

JOINING = 0
"""Number of the exchange, which precedes all others."""
INTRODUCE = "query.introduce"


class JoiningTotals(NamedTuple):
    """The totals over all silos."""

    totals: Totals
    sums: np.ndarray
    """Sums and sums of squares over the training rows of the inputs to be standardised [2, d]."""


def integers(rows: int, test_rows: int, sums: np.ndarray, silos: int) -> np.ndarray:
    """Encode one silo's numbers for an exact sum over `silos` silos, int64 [n]; sums: as in `JoiningTotals`. Raises
    `OutOfRange`."""
    return np.concatenate([[rows, test_rows], encode_wide(sums, silos).ravel()]).astype(np.int64)


def layout_of(scaled: int) -> bytes:
    """Return the layout of these integers."""
    return layout(INTRODUCE, [("rows", "int64", (2,), 0), ("sums", "wide", (2, scaled, LIMBS), 0)])


def introduction(scaled: int) -> tuple[Phase, Record, Record]:
    """Return the exchange as a phase that belongs to no method, and the records sent down and up."""
    reply = {"rows": torch.zeros(2), "sums": torch.zeros(2, scaled, LIMBS)}
    return Phase("introduce", (), tuple(reply), None, None, "sum"), {}, reply  # type: ignore[arg-type]


def add_up(link: Link, journal: Journal, deadline: float) -> JoiningTotals:
    """Sum the silos' numbers securely. A silo that does not take part in the sum is excluded from the run."""
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
    found = sum_replies(link, journal, question, deadline, again=True)
    if found.total is None:
        raise RunError(
            f"The silos' row totals could not be computed, so the run cannot begin: {found.obstacle}."
            + "".join(f" {silo}: {why.reason}." for silo, why in {**found.refused, **found.late}.items())
            + " Nothing has been trained yet: start a new run."
        )
    joined = _read(found.total, link.scaled)
    link.summed = joined.totals
    link.refused |= {silo: why.reason for silo, why in found.refused.items()}
    link.close(found.used)
    return joined


def _read(numbers: np.ndarray, scaled: int) -> JoiningTotals:
    """Decode the totals from the sum of the silos' integers; raise `RunError` if they are impossible."""
    rows, test_rows = (int(number) for number in numbers[:2])
    sums = decode_wide(numbers[2:].reshape(2, scaled, LIMBS))
    total, squares = sums
    possible = 0 <= rows <= MOST_ROWS and 0 <= test_rows <= MOST_ROWS
    if not possible or not is_possible_sum(rows, total, squares):
        raise RunError(
            "The joining totals are impossible. Because only the sum is visible, the faulty silo cannot be identified: "
            "have each silo check its file and its installation, and start a new run."
        )
    return JoiningTotals(Totals(rows, test_rows), sums)
