"""The server's side of a summed exchange: masked replies come in, only their sum is unmasked.

A silo of the cohort that does not answer, or sends an invalid masked reply, is excluded; the others are asked to
unmask. Everything is in the run's journal before the next message is sent, so that a run that is killed and resumed
has each sum once, over one cohort.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from equifed import secure
from equifed.errors import RunError
from equifed.flower.journal import Journal, JournalEntry
from equifed.flower.link import Link, NoAnswer, SiloRequest, check_answer
from equifed.flower.masks import SECURE, digest, pack_exchange, pack_unmasking, read_answer, read_masked
from equifed.flower.records import ABOUT, BadMessage, about, distrusting
from equifed.notes import Note
from equifed.secure import Exchange, Masked, NotSummed, UnmaskReply


class Refusal(NamedTuple):
    """The reason for which a silo's reply is not used."""

    reason: str
    answered: bool
    """False if the silo sent no answer."""


class Question(NamedTuple):
    """A request for a secure sum."""

    number: int
    """Number of the exchange, larger than that of every earlier one."""
    kind: str
    """Flower's message type."""
    alike: RecordDict
    """Content that is sent to all silos."""
    cohort: tuple[str, ...]
    """Names of all silos of the exchange, sorted."""
    planned: int
    """Number of silos of the exchange if all had joined the run; see `Exchange`."""
    asked: Mapping[str, ConfigRecord]
    """The record `about` for each silo that is asked; the cohort's other silos are absent already."""
    layout: bytes
    """See `masks.layout`."""
    values: int
    """Number of integers of a reply."""
    absent: Mapping[str, Refusal]
    """By silo that was planned for the exchange but is absent, the reason."""


class Sum(NamedTuple):
    """The outcome of a summed exchange."""

    total: np.ndarray | None
    """Sum of the integers [m] of the silos in `used`; None if there is no sum."""
    used: tuple[str, ...]
    """Names of the silos with a usable masked reply."""
    refused: dict[str, Refusal]
    """By silo without a usable reply, the reason."""
    late: dict[str, Refusal]
    """By used silo that did not help to unmask, the reason."""
    obstacle: Note | None = None
    """Reason why there is no sum."""
    liars: tuple[str, ...] = ()
    """Names of silos that sent false shares, as far as they can be identified."""


def sum_replies(
    link: Link,
    journal: Journal,
    question: Question,
    deadline: float,
    enough: int = 0,
    again: bool = False,
) -> Sum:
    """Carry out the exchange, or its remaining steps after the server was killed.

    enough: smallest number of masked replies to unmask, if the protocol would allow fewer.
    again: do not record an obstacle, because it ends the run and a resumed run tries again, as far as silos may help.
    """
    number, cohort, sent = question.number, question.cohort, digest(question.alike)
    entry = journal.read(number)
    if entry is not None and entry.stage != "asked" and entry.facts["sent"] != sent.hex():
        raise RunError(
            f"{journal.folder} has exchange {number} with another model than the run has now: its files or those of "
            "the run have changed. Restore a copy, or start a new run."
        )
    if entry is not None and entry.stage == "done":
        return _read_done(entry)
    if entry is not None and entry.stage == "masked":
        facts = {name: entry.facts[name] for name in ("attempt", "sent")}
        exchange, masked, refused = _read_masked(entry, link.run, number)
        transcript = exchange.transcript(question.layout, bytes.fromhex(facts["sent"]))
        done = _unmask(link, exchange, transcript, masked, refused, deadline)
    else:
        facts = {"attempt": 1 if entry is None else entry.facts["attempt"] + 1, "sent": sent.hex()}
        exchange = Exchange(
            run=link.run,
            number=number,
            attempt=facts["attempt"],
            names=cohort,
            keys=tuple(link.members[silo].public for silo in cohort),
            planned=question.planned,
        )
        masked, refused = {}, dict(question.absent)
        if len(question.asked) >= secure.FEWEST:
            journal.write(number, "asked", facts, {})
            masked, more = _ask(link, exchange, question, deadline)
            refused |= more
        obstacle = secure.find_obstacle(len(cohort), len(masked), len(masked), question.planned)
        if obstacle is None and len(masked) < enough:
            obstacle = Note("too-few-replies")
        if obstacle is None:
            values = {_PREFIX + silo: reply.values for silo, reply in masked.items()}
            journal.write(number, "masked", facts | _facts_of(exchange, masked, refused), values)
            done = _unmask(link, exchange, exchange.transcript(question.layout, sent), masked, refused, deadline)
        else:
            done = Sum(None, tuple(masked), refused, {}, obstacle)
    if done.obstacle is None or not again:
        journal.write(number, "done", facts | _facts_of_done(done), {} if done.total is None else {"sum": done.total})
    return done


def _ask(
    link: Link, exchange: Exchange, question: Question, deadline: float
) -> tuple[dict[str, Masked], dict[str, Refusal]]:
    """Ask for masked replies; return them, and refusals for the other silos."""
    requests = {
        silo: SiloRequest(question.kind, RecordDict({ABOUT: head, **question.alike, SECURE: pack_exchange(exchange)}))
        for silo, head in question.asked.items()
    }
    masked, refused = {}, {}
    answers = link.ask(requests, deadline)
    for silo in question.asked:
        try:
            with distrusting():
                reply = check_answer(answers[silo], silo, exchange.number)
                masked[silo] = read_masked(reply, silo, exchange, question.values)
        except BadMessage as error:
            refused[silo] = _refusal(error)
    return masked, refused


def _unmask(
    link: Link,
    exchange: Exchange,
    transcript: bytes,
    masked: Mapping[str, Masked],
    refused: dict[str, Refusal],
    deadline: float,
) -> Sum:
    """Ask the survivors to unmask the sum of their replies."""
    head = about({"run": link.run, "exchange": str(exchange.number)})
    requests = {}
    for silo in masked:
        sealed = {other: reply.shares[silo] for other, reply in masked.items() if other != silo}
        content = RecordDict({ABOUT: head, SECURE: pack_unmasking(transcript, tuple(masked), sealed)})
        requests[silo] = SiloRequest("query.unmask", content)
    answered: dict[str, UnmaskReply] = {}
    late = {}
    answers = link.ask(requests, deadline)
    for silo in masked:
        try:
            with distrusting():
                answered[silo] = read_answer(check_answer(answers[silo], silo, exchange.number))
        except BadMessage as error:
            late[silo] = _refusal(error)
    try:
        total = secure.total(exchange, transcript, masked, answered)
    except NotSummed as error:
        return Sum(None, tuple(masked), refused, late, error.note)
    return Sum(total.numbers.view(np.int64), tuple(masked), refused, late, None, total.faulty)


def _refusal(error: BadMessage) -> Refusal:
    return Refusal(str(error), not isinstance(error, NoAnswer))


# -- in the journal ----------------------------------------------------------------------------------------------------

_PREFIX = "masked/"


def _facts_of(exchange: Exchange, masked: Mapping[str, Masked], refused: Mapping[str, Refusal]) -> dict[str, Any]:
    return {
        "names": exchange.names,
        "planned": exchange.planned,
        "keys": [key.hex() for key in exchange.keys],
        "commitments": {silo: reply.commitment.hex() for silo, reply in masked.items()},
        "shares": {
            silo: {other: share.hex() for other, share in reply.shares.items()} for silo, reply in masked.items()
        },
        "refused": refused,
    }


def _read_masked(entry: JournalEntry, run: str, number: int) -> tuple[Exchange, dict[str, Masked], dict[str, Refusal]]:
    facts = entry.facts
    keys = tuple(map(bytes.fromhex, facts["keys"]))
    exchange = Exchange(run, number, facts["attempt"], tuple(facts["names"]), keys, facts["planned"])
    masked = {
        silo: Masked(
            entry.arrays[_PREFIX + silo],
            bytes.fromhex(commitment),
            {other: bytes.fromhex(share) for other, share in facts["shares"][silo].items()},
        )
        for silo, commitment in facts["commitments"].items()
    }
    return exchange, masked, {silo: Refusal(*why) for silo, why in facts["refused"].items()}


def _facts_of_done(done: Sum) -> dict[str, Any]:
    return done._asdict() | {"total": None, "obstacle": done.obstacle and done.obstacle.to_json()}


def _read_done(entry: JournalEntry) -> Sum:
    facts = entry.facts
    refused, late = ({silo: Refusal(*why) for silo, why in facts[name].items()} for name in ("refused", "late"))
    obstacle = facts["obstacle"] and Note.from_json(facts["obstacle"])
    return Sum(entry.arrays.get("sum"), tuple(facts["used"]), refused, late, obstacle, tuple(facts["liars"]))
