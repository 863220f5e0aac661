"""The silos behind Flower's grid: who is there, and asking them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from equifed.data.encode import MAX_FLOAT32
from equifed.errors import RunError
from equifed.flower.records import ABOUT, FIELDS, BadMessage, about, read_about, unpack

POLL = 0.5
"""Seconds between two looks for replies."""


class Request(NamedTuple):
    kind: str
    """Flower's message type."""
    content: RecordDict


@dataclass(frozen=True)
class Member:
    """What a silo declared when it joined."""

    rows: int
    """Training rows."""
    test_rows: int
    sums: tuple[np.ndarray, np.ndarray] | None
    """Sums and sums of squares of the inputs to be standardised."""


@dataclass(eq=False)
class Link:
    """Asks silos by name. Node ids are Flower's own and change; a silo is who its node's configuration says."""

    grid: Grid
    silos: Sequence[str]
    app: str
    """The digest of the server's configuration, which the silos' must equal."""
    run: str
    """The run's id."""
    scaled: int
    """How many inputs are standardised."""
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

    def why_not(self, silo: str) -> str:
        return self.refused.get(silo, "not connected")

    def welcome(self, patience: float) -> None:
        """Ask new nodes who they are, and read the answers of those asked before; nobody is waited for."""
        connected = set(self.grid.get_node_ids())
        self._seen &= connected  # who has left is asked again when it comes back
        new = sorted(connected - self._seen)
        content = RecordDict({ABOUT: about({"app": self.app, "run": self.run})})
        self._joining |= self._send({node: Request("query.join", content) for node in new}, patience)
        self._seen.update(new)
        for node, answer in self._collect(self._joining):
            if not isinstance(answer, str):
                self._admit(node, answer, connected)
            elif node in connected:
                self._seen.discard(node)  # it failed before it could answer, and is asked again

    def _admit(self, node: int, answer: RecordDict, connected: set[int]) -> None:
        try:
            name = str(read_about(answer).get("client", ""))
        except BadMessage:
            name = ""
        there = self._nodes.get(name)
        if name not in self.silos or (there is not None and there != node and there in connected):
            self.strangers.append(f"a node that calls itself {name!r}")
            return
        try:
            self.members[name] = _introduced(answer, self.scaled)
        except BadMessage as error:
            self.refused[name] = str(error)
        else:
            self._nodes[name] = node
            self.refused.pop(name, None)

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
        replies = self.grid.pull_messages(list(waiting)) if waiting else []
        answers = [(waiting.pop(reply.metadata.reply_to_message_id, None), _content(reply)) for reply in replies]
        return [(node, answer) for node, answer in answers if node is not None]


def _content(reply: Message) -> RecordDict | str:
    if reply.has_error():
        return " ".join(f"Flower reports: {reply.error.reason}".split())[:300]
    return reply.content


def _introduced(content: RecordDict, scaled: int) -> Member:
    about = read_about(content)
    if "refused" in about:
        raise BadMessage(str(about["refused"]))
    try:
        rows, tests = int(about["rows"]), int(about["test-rows"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadMessage(f"does not introduce itself properly ({error})") from None
    if rows < 0 or tests < 0:
        raise BadMessage("declares a negative number of rows")
    if FIELDS not in content:
        return Member(rows, tests, None)
    like = {name: torch.zeros(scaled, dtype=torch.float64) for name in ("sum", "squares")}
    sums = unpack(content, FIELDS, like)
    total, squares = (sums[name].numpy() for name in like)
    # |x| fits 32 bits, and by Cauchy and Schwarz (sum x)^2 <= n sum x^2
    far = (np.abs(total) > rows * MAX_FLOAT32).any() or (squares < 0).any() or (squares > rows * MAX_FLOAT32**2).any()
    if far or (total**2 > rows * squares * (1 + 1e-6)).any():
        raise BadMessage("introduces itself with sums that no rows have")
    return Member(rows, tests, (total, squares))
