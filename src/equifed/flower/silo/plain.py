"""Answers that the server reads: a silo's unmasked numbers, with small counts withheld."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, RecordDict

from equifed.flower import evaluation
from equifed.flower.agreement import codecs
from equifed.flower.records import ABOUT, EVALUATION, FIELDS, about, pack
from equifed.flower.silo.rows import OpenSilo
from equifed.metrics.scored import Scored
from equifed.protocol import Record


def introduce(silo: OpenSilo) -> RecordDict:
    """Return the silo's numbers of rows, and the sums for standardisation unless it has too few rows."""
    rows, tests = silo.sizes
    content = RecordDict({ABOUT: about({"client": silo.name, "rows": rows, "test-rows": tests})})
    if silo.setting.scaled.any() and rows >= silo.min_count:
        total, squares = silo.sums()
        content[FIELDS] = ArrayRecord({"sum": Array(total), "squares": Array(squares)})
    return content


def put_reply(content: RecordDict, silo: OpenSilo, reply: Record | None, scored: Scored | None) -> None:
    """Put a phase's reply and an evaluation, if present, into the answer."""
    if reply is not None:
        content[FIELDS] = pack(reply, codecs(silo.job.method))
    if scored is not None:
        content[EVALUATION] = evaluation.withheld(scored, silo.min_count)
