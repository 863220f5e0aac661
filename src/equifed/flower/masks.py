"""The messages of a summed exchange: the server's request, a silo's masked reply, and its answer for unmasking.

A request contains the method's fields and the record `secure` with all that a silo needs to know about the others. The
transcript, which everything is bound to, contains the digest of what the silo received: masks of silos that were sent
different models do not cancel. This module does without torch, which would take an unmasking silo too long to import.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict

from equifed.errors import ConfigError
from equifed.flower.records import FIELDS, SCALING, BadMessage, check_run, read_array
from equifed.secure import Exchange, Masked, Silo, UnmaskReply
from equifed.secure.rules import DIGEST, SEALED

SIGNATURES = "signatures"
"""Name of the record with the signatures of the silos' keys, by silo, sent with a run's first summed exchange."""
STATES = "states"
"""Name of the record with the number of the exchange from whose state each silo continues, by silo."""
SECURE = "secure"
"""Name of the record with the parameters of a summed exchange."""
MASKED = "masked"
"""Name of the only array of a masked reply."""


def layout(kind: str, parts: Sequence[tuple[str, str, Sequence[int], int]]) -> bytes:
    """Return the meaning of a vector's integers, as bytes that are equal at all silos: Flower's message type, and
    (name, type, shape, binary places) of each part in order."""
    return json.dumps([kind, [[*part[:2], list(part[2]), part[3]] for part in parts]]).encode()


def joined(layouts: Iterable[bytes]) -> bytes:
    """Return the layout of several concatenated vectors."""
    return b"\n".join(layouts)


def read_signatures(content: RecordDict) -> dict[str, bytes]:
    record = content.get(SIGNATURES)
    if not isinstance(record, ConfigRecord) or not all(type(value) is bytes for value in record.values()):
        raise BadMessage("has no signatures of the silos' keys")
    return {name: bytes(value) for name, value in record.items() if isinstance(value, bytes)}


def read_states(content: RecordDict) -> dict[str, int]:
    record = content.get(STATES)
    if not isinstance(record, ConfigRecord) or not all(type(value) is int for value in record.values()):
        raise BadMessage("does not name the exchange from which every silo continues")
    return {name: value for name, value in record.items() if isinstance(value, int)}


def digest(content: RecordDict) -> bytes:
    """Return the SHA-256 of the records that are the same for all silos."""
    found = hashlib.sha256()

    def add(part: bytes) -> None:
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)

    for record in (FIELDS, SCALING):
        arrays = content.get(record)
        if arrays is None:
            continue
        if not isinstance(arrays, ArrayRecord):
            raise BadMessage(f"has a record {record!r} without arrays")
        add(record.encode())
        for name in sorted(arrays):
            array = arrays[name]
            add(name.encode())
            add(json.dumps([array.stype, array.dtype, list(array.shape)]).encode())
            add(array.data)
    if STATES in content:
        add(STATES.encode())
        add(json.dumps(sorted(read_states(content).items())).encode())
    return found.digest()


# -- the request, and the masked reply ---------------------------------------------------------------------------------


def pack_exchange(exchange: Exchange) -> ConfigRecord:
    return ConfigRecord(
        {
            "attempt": exchange.attempt,
            "cohort": list(exchange.names),
            "keys": list(exchange.keys),
        }
    )


def read_asking(content: RecordDict, run: str, number: int, planned: int) -> Exchange:
    """Return the exchange that a silo is asked to take part in. planned: the number of silos it is planned for."""
    record = _record(content)
    attempt = record.get("attempt")
    if type(attempt) is not int:
        raise BadMessage("does not state the number of its attempt")
    names, keys = tuple(_list(record, "cohort", str)), tuple(_list(record, "keys", bytes))
    return Exchange(run, number, attempt, names, keys, planned)


def put_masked(content: RecordDict, masked: Masked) -> None:
    """Write a masked vector into a silo's reply."""
    content[FIELDS] = ArrayRecord({MASKED: Array(masked.values)})
    content[SECURE] = ConfigRecord(
        {"commitment": masked.commitment, "for": list(masked.shares), "shares": list(masked.shares.values())}
    )


def read_masked(content: RecordDict, silo: str, exchange: Exchange, values: int) -> Masked:
    """Read a silo's masked reply of `values` values."""
    arrays, record = content.get(FIELDS), _record(content)
    if not isinstance(arrays, ArrayRecord) or set(arrays) != {MASKED}:
        raise BadMessage("is not masked")
    numbers = read_array(MASKED, arrays[MASKED], np.dtype(np.uint64), (values,))
    commitment, shares = record.get("commitment"), _named(record, "for", "shares")
    if type(commitment) is not bytes or len(commitment) != DIGEST:
        raise BadMessage("has no valid commitment to its mask")
    if set(shares) != set(exchange.names) - {silo} or {len(share) for share in shares.values()} != {SEALED}:
        raise BadMessage("does not have one share of its mask for every other silo")
    return Masked(numbers, commitment, shares)


MOST = 1024
"""Largest size of a sealed share, a share or a seed, in bytes; valid ones are smaller."""


# -- taking off the masks ----------------------------------------------------------------------------------------------


def pack_unmasking(transcript: bytes, survivors: Sequence[str], sealed: Mapping[str, bytes]) -> ConfigRecord:
    """Return the request to a survivor. sealed: the shares that the other silos made for it."""
    return ConfigRecord(
        {
            "transcript": transcript,
            "survivors": list(survivors),
            "from": list(sealed),
            "sealed": list(sealed.values()),
        }
    )


def read_unmasking(content: RecordDict) -> tuple[bytes, list[str], dict[str, bytes]]:
    record = _record(content)
    transcript = record.get("transcript")
    if type(transcript) is not bytes:
        raise BadMessage("does not name its exchange")
    return transcript, _list(record, "survivors", str), _named(record, "from", "sealed")


def pack_answer(answer: UnmaskReply) -> ConfigRecord:
    """Return a survivor's answer."""
    return ConfigRecord(
        {
            "shares-of": list(answer.shares),
            "shares": list(answer.shares.values()),
            "seeds-of": list(answer.seeds),
            "seeds": list(answer.seeds.values()),
            "openers-of": list(answer.openers),
            "openers": list(answer.openers.values()),
        }
    )


def read_answer(content: RecordDict) -> UnmaskReply:
    record = _record(content)
    parts = ("shares", "seeds", "openers")
    return UnmaskReply(*(_named(record, f"{part}-of", part) for part in parts))


# -- parts of a record -------------------------------------------------------------------------------------------------


def _record(content: RecordDict) -> ConfigRecord:
    record = content.get(SECURE)
    if not isinstance(record, ConfigRecord):
        raise BadMessage(f"has no record {SECURE!r}")
    return record


def _list(record: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    found = record.get(name)
    if not isinstance(found, list) or not all(type(entry) is kind for entry in found):
        raise BadMessage(f"has no list {name!r} in its record {SECURE!r}")
    return list(found)


def _named(record: Mapping[str, Any], names: str, values: str) -> dict[str, bytes]:
    who, what = _list(record, names, str), _list(record, values, bytes)
    if len(who) != len(what) or len({*who}) != len(who) or any(len(value) > MOST for value in what):
        raise BadMessage(f"has {values} that do not belong to {names!r} in its record {SECURE!r}")
    return dict(zip(who, what, strict=True))


# -- where a silo keeps its secrets ------------------------------------------------------------------------------------


def state_folder(context: Context, run: str) -> Path | None:
    """Return the folder with a silo's state for this run, if its node has a state folder."""
    folder, name = (str(context.node_config.get(key, "")) for key in ("state", "client-id"))
    return Path(folder) / check_run(run) / name if folder else None


def secrets_of(context: Context, run: str) -> Silo:
    """Return the secure-sum state of the silo that this node represents."""
    folder = state_folder(context, run)
    if folder is None:
        raise ConfigError(
            "the node has no state folder, which secure sums need: start it with --node-config 'state=\"...\"'."
        )
    return Silo(str(context.node_config.get("client-id", "")), run, folder)
