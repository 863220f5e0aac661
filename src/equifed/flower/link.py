"""The silos behind Flower's grid: membership, requests and answers."""

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
"""Seconds between two polls for replies."""
MOST_ROWS = 2**40
"""Largest number of rows that a silo may declare."""
ROOM = 1 + 1e-6
"""Tolerance for rounding in 64-bit sums: a billion numbers added one by one are off by less."""
MOST_KEY = 2**16
"""Largest size of a public key's file, in bytes."""
MOST_SIGNATURE = 256
"""Largest size of a signature, in bytes."""
NOT_COUNTED = "was not present when the silos' rows were summed, and is excluded from this run"
FAR = 1e4
"""Factor over the median silo's magnitude of a column above which a silo is refused. Populations do not differ by
this much: it is another unit or a malicious value, and would make all silos' standardised inputs nearly constant."""


class NoAnswer(BadMessage):
    """Raised if a silo sent no answer at all."""


class SiloRequest(NamedTuple):
    """A message to one silo."""

    kind: str
    """Flower's message type."""
    content: RecordDict


@dataclass(frozen=True)
class Member:
    """What a silo disclosed when it joined: with secure sums its key and nothing about its rows."""

    rows: int | None
    """Training rows."""
    test_rows: int | None
    sums: tuple[np.ndarray, np.ndarray] | None
    """Sums and sums of squares of the inputs to be standardised."""
    key: str = ""
    """Fingerprint of its node's public key, to which the silo's name is bound once it has joined."""
    public: bytes = b""
    """Public key for agreeing on masks in this run, with secure sums."""
    signature: bytes = b""
    """Signature of that key by its node's key; empty if the node does not sign."""
    roster: bool = False
    """True if it checks the other silos' signatures against its own roster."""
    min_count: int = 0
    """Counts below this number are to be withheld, on this silo's demand."""


class Totals(NamedTuple):
    """Row totals over the silos of a run."""

    rows: int
    """Training rows."""
    test_rows: int


@dataclass(eq=False)
class Link:
    """The connection to the silos, addressed by name. Flower's node ids change, so a silo is identified by the name in
    its node's configuration and the key with which it joined the run."""

    grid: Grid
    silos: Sequence[str]
    app: str
    """The digest of the server's configuration, which the silos' must equal."""
    run: str
    """The run's id."""
    scaled: int
    """Number of standardised inputs."""
    keys: Mapping[str, bytes] = field(default_factory=dict)
    """Public keys of the silos' nodes in OpenSSH's form, as far as the server has them; any other silo's name is bound
    to the key of the node that first joined the run with it."""
    secure: bool = False
    """True if silos join with a key for secure sums and disclose nothing about their rows."""
    summed: Totals | None = None
    """Row totals from a secure sum, once computed."""
    closed: bool = False
    """True once no new silo can join, because the set of silos that mask together is fixed."""
    members: dict[str, Member] = field(default_factory=dict)
    """All silos that have ever joined this run."""
    refused: dict[str, str] = field(default_factory=dict)
    """By silo that could not join, the reason."""
    strangers: list[str] = field(default_factory=list)
    """Nodes that were refused: not a silo of this federation, or a silo that is connected already."""
    _nodes: dict[str, int] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)
    """Ids of nodes that were asked to join."""
    _joining: dict[str, int] = field(default_factory=dict)
    """Ids of nodes with a pending answer, by the message that asked them."""

    def gather(self, deadline: float, enough: int) -> None:
        """Wait until all silos have joined or the deadline has passed; raise `RunError` if fewer than `enough` have."""
        end = time.monotonic() + deadline
        while True:
            self.welcome(deadline)
            everyone = all(silo in self._nodes or silo in self.refused for silo in self.silos)
            if everyone or time.monotonic() >= end:
                break
            time.sleep(POLL)
        self._refuse_outliers()
        if len(self._nodes) < enough:
            raise RunError(
                f"Only {len(self._nodes)} of {len(self.silos)} silos joined and at least {enough} are needed. "
                + " ".join(f"{silo}: {self.why_not(silo)}." for silo in self.silos if silo not in self._nodes)
                + (f" Also connected: {', '.join(dict.fromkeys(self.strangers))}." if self.strangers else "")
            )

    @property
    def here(self) -> list[str]:
        """Names of the silos that are connected, in order."""
        return [silo for silo in self.silos if silo in self._nodes]

    def at_most(self, silo: str) -> Totals:
        """Return an upper bound of a silo's rows: its declared rows, or else the totals of all silos."""
        member = self.members[silo]
        return self.totals if member.rows is None or member.test_rows is None else Totals(member.rows, member.test_rows)

    def signatures(self) -> ConfigRecord:
        """Return the signatures of the silos' keys in this run, by silo."""
        return ConfigRecord({silo: member.signature for silo, member in self.members.items()})

    @property
    def totals(self) -> Totals:
        """Row totals of all silos that have joined."""
        members = self.members.values()
        return self.summed or Totals(
            sum(member.rows or 0 for member in members), sum(member.test_rows or 0 for member in members)
        )

    def close(self, silos: Collection[str]) -> None:
        """Exclude all other silos from the run, and accept no new ones."""
        self.closed = True
        for silo in [each for each in self.members if each not in silos]:
            del self.members[silo]
            self._nodes.pop(silo, None)
            self.refused.setdefault(silo, NOT_COUNTED)

    def why_not(self, silo: str) -> str:
        return self.refused.get(silo, "not connected")

    def welcome(self, patience: float) -> None:
        """Ask new nodes to join, and read the answers that have arrived, without waiting."""
        keys = {node.node_id: _fingerprint(node.public_key) for node in self.grid.get_nodes()}
        connected = set(keys)
        self._seen &= connected  # a node that left is asked again when it returns
        self._joining = {number: node for number, node in self._joining.items() if node in self._seen}
        for silo, node in list(self._nodes.items()):
            if node in keys and keys[node] != self.members[silo].key:  # another node has taken over a known id
                del self._nodes[silo]
        new = sorted(connected - self._seen)
        content = RecordDict({ABOUT: about({"app": self.app, "run": self.run})})
        self._joining |= self._send({node: SiloRequest("query.join", content) for node in new}, patience)
        self._seen.update(new)
        for node, answer in self._collect(self._joining):
            if not isinstance(answer, str):
                self._admit(node, answer, keys)
            elif node in connected:
                self._seen.discard(node)  # failed before answering: ask again

    def _admit(self, node: int, answer: RecordDict, keys: Mapping[int, str]) -> None:
        """Admit a node as the silo it claims to be, if its key and answer allow. keys: those of the connected nodes."""
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
        if key != (_fingerprint_openssh(self.keys[name]) if name in self.keys else key if known is None else known.key):
            self.strangers.append(f"a node that calls itself {quoted(name)} and does not have the key of {name}")
            return
        try:
            with distrusting():
                member = self._read_keyed_member(name, answer) if self.secure else _read_member(answer, self.scaled)
            if known is not None and (known.rows, known.test_rows) != (member.rows, member.test_rows):
                raise BadMessage(
                    "has another number of rows than when it first joined this run. Restore its original file"
                )
            if known is not None and known.public != member.public:
                raise BadMessage(
                    "has another key than when it first joined this run. Start its node with the original state "
                    "folder; without it, the silo can take part in the next run"
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

    def _read_keyed_member(self, name: str, content: RecordDict) -> Member:
        """Read the answer of a silo that joins with its key for this run."""
        about = read_about(content)
        if "refused" in about:
            raise BadMessage(about["refused"])
        public, signature = (about.get(part) for part in ("public", "signature"))
        if type(public) is not bytes or not is_usable_key(public):
            raise BadMessage("joined without a valid key for this run")
        if type(signature) is not bytes or len(signature) > MOST_SIGNATURE:
            raise BadMessage("joined with an invalid signature")
        owner = next((silo for silo, member in self.members.items() if member.public == public and silo != name), None)
        if owner is not None:
            raise BadMessage(f"joined with the key of {owner}")
        if name in self.keys:
            try:
                verify(self.keys[name], self.run, self.app, public, signature)
            except Refused:
                raise BadMessage("joined with a key for this run that its node has not signed") from None
        return Member(
            None, None, None, "", public, signature, about.get("roster") == 1, _read_count(about, "min-count")
        )

    def _refuse_outliers(self) -> None:
        """Refuse silos with inputs of another magnitude than the median silo's. With two silos, the wrong one cannot be
        identified."""
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
                    f"has an input that is on average more than {FAR:,.0f} times as large as at the other silos: check "
                    "its unit, and look for wrong numbers"
                )
                del self.members[silo]
                self._nodes.pop(silo, None)

    def ask(self, requests: Mapping[str, SiloRequest], deadline: float) -> dict[str, RecordDict | str]:
        """Return each silo's reply, or why there is none. Replies after the deadline are not read."""
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

    def _send(self, requests: Mapping[int, SiloRequest], patience: float) -> dict[str, int]:
        """Send requests; return the nodes by the messages sent to them."""
        messages = [
            Message(asked.content, node, asked.kind, ttl=max(patience, 1.0)) for node, asked in requests.items()
        ]
        sent = self.grid.push_messages(messages) if messages else []
        return {number: node for number, node in zip(sent, requests, strict=False) if number is not None}

    def _collect(self, waiting: dict[str, int]) -> list[tuple[int, RecordDict | str]]:
        """Return the answers that have arrived, and remove their messages from `waiting`."""
        answers = [(number, answer) for number in list(waiting) for answer in self._pull(number)]
        return [(waiting.pop(number), answer) for number, answer in answers]

    def _pull(self, number: str) -> list[RecordDict | str]:
        """Return the answer to a message, if it has arrived. Each is fetched alone, because Flower fails on a request
        if it cannot reassemble one of the answers, and the others would be lost."""
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


def check_answer(answer: RecordDict | str, silo: str, number: int) -> RecordDict:
    """Return the answer if it is this silo's to this exchange, or raise `BadMessage`. A text says why none arrived."""
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
    """Read the silos' registered public keys from their OpenSSH files, as far as these exist."""
    return {silo: read_regular(file(silo), MOST_KEY) for silo in silos if file(silo).is_file()}


def _fingerprint_openssh(key: bytes) -> str:
    """Return Flower's fingerprint of a public key in OpenSSH's form."""
    return _fingerprint(load_ssh_public_key(key).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def _fingerprint(key: bytes) -> str:
    """Return the fingerprint of a public key in Flower's form."""
    return hashlib.sha256(key).hexdigest() if key else ""


def _read_count(about: Mapping[str, Any], name: str) -> int:
    number = about.get(name)
    if type(number) is not int or not 0 <= number <= MOST_ROWS:
        raise BadMessage(f"declares {quoted(number)} as its {name}: expected a whole number from 0 to {MOST_ROWS:,}")
    return number


def _read_member(content: RecordDict, scaled: int) -> Member:
    about = read_about(content)
    if "refused" in about:
        raise BadMessage(about["refused"])
    rows, tests = _read_count(about, "rows"), _read_count(about, "test-rows")
    if FIELDS not in content:
        return Member(rows, tests, None)
    like = {name: torch.zeros(scaled, dtype=torch.float64) for name in ("sum", "squares")}
    sums = unpack(content, FIELDS, like)
    total, squares = (sums[name].numpy() for name in like)
    if not is_possible_sum(rows, total, squares):
        raise BadMessage("joined with sums that its rows cannot have")
    return Member(rows, tests, (total, squares))


def is_possible_sum(rows: int, total: np.ndarray, squares: np.ndarray) -> bool:
    """Return True if columns of `rows` rows can have these sums and sums of squares [d], up to rounding in 64 bits."""
    most = rows * MAX_STANDARDISED * ROOM
    sizes = (np.abs(total) <= most) & (squares >= 0) & (squares <= most * MAX_STANDARDISED)
    # Cauchy-Schwarz: (sum x)^2 <= n sum x^2
    return bool((sizes & (total**2 <= rows * squares * ROOM)).all())
