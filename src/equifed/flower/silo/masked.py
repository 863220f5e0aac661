"""Answers of which the server learns only a sum over the silos: masked integers; the silos help to unmask the sum
(`apps.unmask`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from flwr.app import RecordDict

from equifed.fixed_point import OutOfRange
from equifed.flower import evaluation, joining
from equifed.flower.masks import joined, put_masked, secrets_of
from equifed.flower.records import ABOUT, BadMessage, about
from equifed.flower.silo.checks import Masking, Request, roster_of
from equifed.flower.vectors import Vector
from equifed.metrics.scored import Scored
from equifed.protocol import Record
from equifed.secure import sign


def show_key(request: Request) -> RecordDict:
    """Return the silo's key for this run and its signature, and nothing about its rows."""
    silo, secrets = request.silo, secrets_of(request.context, request.run)
    file, public = request.context.node_config.get("key"), secrets.public
    said: dict[str, str | int | bytes] = {
        "client": silo.name,
        "public": public,
        "signature": sign(Path(str(file)), secrets.run, silo.setting.digest, public) if file else b"",
        # a roster that was added later has not confirmed any key
        "roster": int(roster_of(request.context) is not None if secrets.vouched is None else secrets.vouched),
        "min-count": silo.min_count,
    }
    return RecordDict({ABOUT: about(said)})


def introduce(request: Request, masking: Masking) -> RecordDict:
    """Return the silo's numbers of rows and the sums for standardisation, masked."""
    silo = request.silo
    content = RecordDict({ABOUT: about({"client": silo.name, "exchange": str(joining.JOINING)})})
    with _in_range("its rows"):
        numbers = joining.integers(*silo.sizes, silo.sums(), len(masking.exchange.names))
    _put_masked(content, masking, joining.layout_of(int(silo.setting.scaled.sum())), numbers)
    return content


def put_reply(
    content: RecordDict, request: Request, masking: Masking, reply: Record | None, scored: Scored | None
) -> None:
    """Put a phase's reply and an evaluation, if present, into the answer as one masked vector."""
    job, layouts, vectors = request.silo.job, [], []
    if reply is not None and request.phase is not None:
        vector = Vector(request.message.metadata.message_type, reply, request.phase.places)
        layouts.append(vector.layout)
        vectors.append(vector.encode(job.asked(request.stage)))
    if scored is not None:
        request.silo.log(scored)
        layouts.append(evaluation.layout_of(job.task))
        with _in_range("its evaluation"):
            vectors.append(evaluation.integers(scored, job.task, job.task.num_clients))
    _put_masked(content, masking, joined(layouts), np.concatenate(vectors))


def _put_masked(content: RecordDict, masking: Masking, layout: bytes, numbers: np.ndarray) -> None:
    put_masked(content, masking.secrets.mask(masking.exchange, layout, masking.sent, numbers))


@contextmanager
def _in_range(what: str) -> Iterator[None]:
    try:
        yield
    except OutOfRange as error:
        raise BadMessage(f"has {what} {error}") from error
