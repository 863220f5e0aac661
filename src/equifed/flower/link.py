"""The silos behind Flower's grid: who is there, and asking them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import torch
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from equifed.data.encode import MAX_STANDARDISED
from equifed.errors import RunError
from equifed.files import read_regular
from equifed.flower.records import ABOUT, FIELDS, BadMessage, about, distrusting, read_about, unpack
from equifed.secure import Refused, is_usable_key, verify
from equifed.words import clean, quoted

POLL = 0.5
"""Seconds between two looks for replies."""
MOST_ROWS = 2**40
"""That a silo may say it has."""
ROOM = 1 + 1e-6
"""For sums in 64 bits: even added one by one, a billion numbers are off by less."""
MOST_KEY = 2**16
"""Bytes of a file with a public key."""
MOST_SIGNATURE = 256
"""Bytes."""
NOT_COUNTED = "was not there when the silos' rows were summed, and takes no part in this run"
FAR = 1e4
"""So many times the size that a column has at the silo in the middle is no other population but another unit, or a
lie, which would make everybody's inputs one and the same number."""


class NoAnswer(BadMessage):
    """Nothing came from a silo at all."""


class Request(NamedTuple):
    kind: str
    """Flower's message type."""
    content: RecordDict


@dataclass(frozen=True)
class Member:
    """What a silo declared when it joined. Where sums are secure that is nothing of its rows, but its key."""

    rows: int | None
    """Training rows."""
    test_rows: int | None
    sums: tuple[np.ndarray, np.ndarray] | None
    """Sums and sums of squares of the inputs to be standardised."""
    key: str = ""
    """The fingerprint of its node's public key, to which the silo's name belongs from its first joining on."""
    public: bytes = b""
    """The public key that its masks are agreed with in this run, where sums are secure."""
    signature: bytes = b""
    """Of that key, by its node's; empty where the node does not sign."""
    roster: bool = False
    """It checks the others' signatures by a roster of its own."""
    min_count: int = 0
    """Below which it wants counts to be withheld."""


class Totals(NamedTuple):
    """What the silos of a run have together."""

    rows: int
    """Training rows."""
    test_rows: int


@dataclass(eq=False)
class Link:
    """Asks silos by name. Node ids are Flower's own and change; a silo is who its node's configuration says, and
    who has the key that it joined the run with."""

    grid: Grid
    silos: Sequence[str]
    app: str
    """The digest of the server's configuration, which the silos' must equal."""
    run: str
    """The run's id."""
    scaled: int
    """How many inputs are standardised."""
    keys: Mapping[str, bytes] = field(default_factory=dict)
    """Public keys of silos' nodes, as OpenSSH writes them, where the server has them; the name of any other silo
    belongs to the key of the node that first joined the run with it."""
    secure: bool = False
    """Silos introduce themselves by a key for secure sums, and say nothing of their rows."""
    summed: Totals | None = None
    """What they have together, where that is a secure sum."""
    closed: bool = False
    """Nobody can join any more who has not: it is settled whom the silos mask with."""
    members: dict[str, Member] = field(default_factory=dict)
    """Everyone who has ever joined this run."""
    refused: dict[str, str] = field(default_factory=dict)
    """Why a silo could not join."""
    strangers: list[str] = field(default_factory=list)
    """Nodes that were sent away: no silo of this federation, or one that is here already."""
    _nodes: dict[str, int] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)
    """Nodes that were asked to join."""
    _joining: dict[str, int] = field(default_factory=dict)
    """Nodes whose answer is awaited, by the message they were asked with."""

    def gather(self, deadline: float, enough: int) -> None:
        """Wait until all silos have joined; when time is up, go on with those there are if they are enough."""
        end = time.monotonic() + deadline
        while True:
            self.welcome(deadline)
            everyone = all(silo in self._nodes or silo in self.refused for silo in self.silos)
            if everyone or time.monotonic() >= end:
                break
            time.sleep(POLL)
        self._compare()
        if len(self._nodes) < enough:
            raise RunError(
                f"Only {len(self._nodes)} of {len(self.silos)} silos joined and at least {enough} are needed. "
                + " ".join(f"{silo}: {self.why_not(silo)}." for silo in self.silos if silo not in self._nodes)
                + (f" Also here: {', '.join(dict.fromkeys(self.strangers))}." if self.strangers else "")
            )

    @property
    def here(self) -> list[str]:
        """The silos that have joined."""
        return [silo for silo in self.silos if silo in self._nodes]

    def at_most(self, silo: str) -> Totals:
        """What a silo has at most: what it declared, or what all have together."""
        member = self.members[silo]
        return self.totals if member.rows is None or member.test_rows is None else Totals(member.rows, member.test_rows)

    def signatures(self) -> ConfigRecord:
        """The signatures of the silos' keys in this run, by silo."""
        return ConfigRecord({silo: member.signature for silo, member in self.members.items()})

    @property
    def totals(self) -> Totals:
        """What all who have joined have together."""
        members = self.members.values()
        return self.summed or Totals(
            sum(member.rows or 0 for member in members), sum(member.test_rows or 0 for member in members)
        )

    def close(self, silos: Collection[str]) -> None:
        """Leave only these in the run, and let nobody else in."""
        self.closed = True
        for silo in [each for each in self.members if each not in silos]:
            del self.members[silo]
            self._nodes.pop(silo, None)
            self.refused.setdefault(silo, NOT_COUNTED)

    def why_not(self, silo: str) -> str:
        return self.refused.get(silo, "not connected")

    def welcome(self, patience: float) -> None:
        """Ask new nodes who they are, and read the answers of those asked before; nobody is waited for."""
        keys = {node.node_id: _fingerprint(node.public_key) for node in self.grid.get_nodes()}
        connected = set(keys)
        self._seen &= connected  # who has left is asked again when it comes back
        self._joining = {number: node for number, node in self._joining.items() if node in self._seen}
        for silo, node in list(self._nodes.items()):
            if node in keys and keys[node] != self.members[silo].key:  # another's, under a number that is known
                del self._nodes[silo]
        new = sorted(connected - self._seen)
        content = RecordDict({ABOUT: about({"app": self.app, "run": self.run})})
        self._joining |= self._send({node: Request("query.join", content) for node in new}, patience)
        self._seen.update(new)
        for node, answer in self._collect(self._joining):
            if not isinstance(answer, str):
                self._admit(node, answer, keys)
            elif node in connected:
                self._seen.discard(node)  # it failed before it could answer, and is asked again

    def _admit(self, node: int, answer: RecordDict, keys: Mapping[int, str]) -> None:
        """Let the silo in that a node says it is. keys: of the nodes that are connected."""
        try:
            with distrusting():
                name = str(read_about(answer).get("client", ""))
        except BadMessage:
            name = ""
        there, known = self._nodes.get(name), self.members.get(name)
        if name not in self.silos or (there is not None and there != node and there in keys):
            self.strangers.append(f"a node that calls itself {quoted(name)}")
            return
        key = keys.get(node, "")
        if key != (_as_flower(self.keys[name]) if name in self.keys else key if known is None else known.key):
            self.strangers.append(f"a node that calls itself {quoted(name)} and does not have the key of {name}")
            return
        try:
            with distrusting():
                member = self._keyed(name, answer) if self.secure else _introduced(answer, self.scaled)
            if known is not None and (known.rows, known.test_rows) != (member.rows, member.test_rows):
                raise BadMessage("has another number of rows than when it first joined this run. Put its file back")
            if known is not None and known.public != member.public:
                raise BadMessage(
                    "has another key than when it first joined this run. Start its node with the state folder it had; "
                    "without, it can take part in the next run"
                )
            if known is None and self.closed:
                raise BadMessage(NOT_COUNTED)
        except BadMessage as error:
            self.refused[name] = str(error)
            self._nodes.pop(name, None)
        else:
            self.members[name] = replace(member, key=key)
            self._nodes[name] = node
            self.refused.pop(name, None)

    def _keyed(self, name: str, content: RecordDict) -> Member:
        """A silo that introduces itself by its key of this run."""
        about = read_about(content)
        if "refused" in about:
            raise BadMessage(about["refused"])
        public, signature = (about.get(part) for part in ("public", "signature"))
        if type(public) is not bytes or not is_usable_key(public):
            raise BadMessage("introduces itself without a key of this run, or with one that hides nothing")
        if type(signature) is not bytes or len(signature) > MOST_SIGNATURE:
            raise BadMessage("introduces itself with something else than a signature")
        owner = next((silo for silo, member in self.members.items() if member.public == public and silo != name), None)
        if owner is not None:
            raise BadMessage(f"introduces itself with the key of {owner}")
        if name in self.keys:
            try:
                verify(self.keys[name], self.run, self.app, public, signature)
            except Refused:
                raise BadMessage("introduces itself with a key of this run that its node has not signed") from None
        return Member(None, None, None, "", public, signature, about.get("roster") == 1, _rows(about, "min-count"))

    def _compare(self) -> None:
        """Send silos away whose inputs are of quite another size than those of the silo in the middle. Two cannot be
        told apart."""
        sizes = {
            silo: np.sqrt(member.sums[1] / member.rows)
            for silo, member in self.members.items()
            if member.sums is not None and member.rows
        }
        if len(sizes) < 3:
            return
        middle = np.median(list(sizes.values()), axis=0)
        for silo, size in sizes.items():
            if ((middle > 0) & (size > FAR * middle)).any():
                self.refused[silo] = (
                    f"has an input that is on average more than {FAR:,.0f} times as large as at the other silos: look "
                    "for another unit, or a wrong number"
                )
                del self.members[silo]
                self._nodes.pop(silo, None)

    def ask(self, requests: Mapping[str, Request], deadline: float) -> dict[str, RecordDict | str]:
        """Each silo's reply, or why there is none. What comes later than the deadline is never read."""
        connected = set(self.grid.get_node_ids())
        silos = {self._nodes[silo]: silo for silo in requests if self._nodes.get(silo) in connected}
        waiting = self._send({node: requests[silo] for node, silo in silos.items()}, deadline)
        answers: dict[str, RecordDict | str] = {silo: self.why_not(silo) for silo in requests}
        answers |= dict.fromkeys(silos.values(), "Flower could not send the message")
        answers |= {silos[node]: f"no reply within {deadline:.0f} s" for node in waiting.values()}
        end = time.monotonic() + deadline
        while waiting:
            answers |= {silos[node]: answer for node, answer in self._collect(waiting)}
            if not waiting or time.monotonic() >= end:
                break
            time.sleep(POLL)
        return answers

    def _send(self, requests: Mapping[int, Request], patience: float) -> dict[str, int]:
        """Nodes by the messages that were sent to them."""
        messages = [
            Message(asked.content, node, asked.kind, ttl=max(patience, 1.0)) for node, asked in requests.items()
        ]
        sent = self.grid.push_messages(messages) if messages else []
        return {number: node for number, node in zip(sent, requests, strict=False) if number is not None}

    def _collect(self, waiting: dict[str, int]) -> list[tuple[int, RecordDict | str]]:
        """The answers that have come to these messages, which are taken off the list."""
        answers = [(number, answer) for number in list(waiting) for answer in self._pull(number)]
        return [(waiting.pop(number), answer) for number, answer in answers]

    def _pull(self, number: str) -> list[RecordDict | str]:
        """The answer to a message, if it has come. Each is fetched by itself: Flower fails on one that it cannot put
        together, and the others of the same request would be lost with it."""
        try:
            return [_content(reply) for reply in self.grid.pull_messages([number])][:1]
        except httpx.HTTPError:
            raise  # the SuperLink itself does not answer
        except Exception as error:
            return [clean(f"Flower could not read its reply ({type(error).__name__}: {error})")]


def _content(reply: Message) -> RecordDict | str:
    if reply.has_error():
        return clean(" ".join(f"Flower reports: {reply.error.reason}".split()))
    return reply.content


def opened(answer: RecordDict | str, silo: str, number: int) -> RecordDict:
    """An answer that can be read, because it is this silo's to this exchange. Text: why none came."""
    if isinstance(answer, str):
        raise NoAnswer(answer)
    about = read_about(answer)
    if "refused" in about:
        raise BadMessage(about["refused"])
    if about.get("client") != silo:
        raise BadMessage(f"is signed by {quoted(about.get('client'))}")
    if about.get("exchange") != str(number):
        raise BadMessage("belongs to another exchange")
    return answer


def registered(file: Callable[[str], Path], silos: Sequence[str]) -> dict[str, bytes]:
    """The silos' public keys, from the files (OpenSSH) by which they were registered, as far as there are any."""
    return {silo: read_regular(file(silo), MOST_KEY) for silo in silos if file(silo).is_file()}


def _as_flower(key: bytes) -> str:
    """The fingerprint of a key that OpenSSH has written."""
    return _fingerprint(load_ssh_public_key(key).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def _fingerprint(key: bytes) -> str:
    """What a public key is known by, as Flower writes it."""
    return hashlib.sha256(key).hexdigest() if key else ""


def _rows(about: Mapping[str, Any], name: str) -> int:
    number = about.get(name)
    if type(number) is not int or not 0 <= number <= MOST_ROWS:
        raise BadMessage(f"declares {quoted(number)} as its {name}, no whole number from 0 to {MOST_ROWS:,}")
    return number


def _introduced(content: RecordDict, scaled: int) -> Member:
    about = read_about(content)
    if "refused" in about:
        raise BadMessage(about["refused"])
    rows, tests = _rows(about, "rows"), _rows(about, "test-rows")
    if FIELDS not in content:
        return Member(rows, tests, None)
    like = {name: torch.zeros(scaled, dtype=torch.float64) for name in ("sum", "squares")}
    sums = unpack(content, FIELDS, like)
    total, squares = (sums[name].numpy() for name in like)
    if not possible_sums(rows, total, squares):
        raise BadMessage("introduces itself with sums that no rows have")
    return Member(rows, tests, (total, squares))


def possible_sums(rows: int, total: np.ndarray, squares: np.ndarray) -> bool:
    """Whether columns of so many rows have these sums, and sums of squares, up to their rounding in 64 bits [d]."""
    most = rows * MAX_STANDARDISED * ROOM
    sizes = (np.abs(total) <= most) & (squares >= 0) & (squares <= most * MAX_STANDARDISED)
    # by Cauchy and Schwarz (sum x)^2 <= n sum x^2
    return bool((sizes & (total**2 <= rows * squares * ROOM)).all())
