"""The interface between round loop and engines, and the engines' shared code."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch

from equifed import tree
from equifed.bounds import Bounds
from equifed.channel import Channel
from equifed.codec import CODECS
from equifed.errors import RunError
from equifed.notes import Note
from equifed.protocol import VALIDATION, Data, Method, Phase, Record, Stage
from equifed.robust import count_malicious, min_updates
from equifed.secure import find_obstacle, masked_bytes, unmask_bytes
from equifed.simulator.job import Job
from equifed.simulator.tables import Tables
from equifed.tree import Tree

SECURE_SUM, UNMASK = "secure sum", "unmask"
"""Values of `Message.gather` for replies that are summed securely, and for the exchange that follows."""
KEY = 32
"""Bytes of a client's public key; every client receives those of all others."""


class State(NamedTuple):
    """All values that change during a job, as stored in a checkpoint."""

    server: Tree
    """The servers' states, leaves [R, ...]."""
    clients: Tree
    """The clients' states, leaves [R, N, ...]; () in a real federation, where they stay at the clients."""
    last_reply: Tree = ()
    """In a real federation, the exchange number of each client's last used reply [R, N], from whose state it
    continues."""


class Rejection(NamedTuple):
    """A client's reply that was not used, and why."""

    run: int
    client: str
    phase: str
    reason: str
    answered: bool = True
    """False if the client sent no answer."""


@dataclass(frozen=True)
class ExchangeResult:
    """The outcome of one phase for all runs."""

    state: State
    present: np.ndarray
    """True for clients with a used reply [R, K]."""
    rejections: list[Rejection]
    obstacles: Mapping[int, Note] = field(default_factory=dict)
    """By run in which the whole round is to have no effect, the reason."""
    clipped: np.ndarray | None = None
    """Number of clipped replies [R]; None if the phase sends no updates to clip."""
    cut: np.ndarray | None = None
    """Share of each client's update that a robust rule cut, from 0 to 1 [R, K]; NaN without an update. None without a
    rule."""
    late: np.ndarray | None = None
    """Number of clients that dropped out before the sum was unmasked [R]; None without masking."""


class Message(NamedTuple):
    """The content and size of one phase's messages, per client and round."""

    stage: str
    phase: str
    down: tuple[str, ...]
    up: tuple[str, ...]
    gather: str
    bytes_down: int
    bytes_up: int
    sizes_down: dict[str, int]
    """Bytes by field."""
    sizes_up: dict[str, int]
    times: int = 1
    """Number of these messages in a stage."""


class Engine(Protocol):
    """An engine, which carries out exchanges for the only round loop (loop.py)."""

    messages: dict[tuple[str, int], Message]
    """Message sizes by (stage, position), recorded as phases are carried out."""
    notes: list[Note]
    """Information for the user about how the job ran."""

    def start(self) -> State: ...

    def exchange(
        self, state: State, stage: Stage, position: int, step: int, round: int, cohorts: np.ndarray, present: np.ndarray
    ) -> ExchangeResult:
        """Carry out one exchange of all runs: phase `position` of the stage. `step` counts the stage's exchanges, since
        a phase may be repeated."""
        ...


class LocalEngine:
    """The shared part of the engines that simulate all clients in this process."""

    def __init__(self, job: Job, tables: Tables) -> None:
        self.job, self.tables = job, tables
        self.messages: dict[tuple[str, int], Message] = {}
        self.notes = [Note("secure-simulated")] if job.settings.secure else []
        self._bounds: dict[tuple[str, int], Bounds] = {}

    def bounds(self, stage: Stage, position: int) -> Bounds:
        """Return the bounds of a phase's replies, in all runs."""
        if (stage, position) not in self._bounds:
            self._bounds[stage, position] = bounds_of(self.job, stage, position)
        return self._bounds[stage, position]

    def check_sums(
        self, phase: Phase, late: np.ndarray, asked: np.ndarray, came: np.ndarray
    ) -> tuple[dict[int, Note], np.ndarray | None]:
        """Return the runs without a secure sum, with the reason, and the number of clients that dropped out late [R].

        late, asked, came: clients gone before unmasking, present before the exchange, with a used reply [R, K].
        """
        if not self.job.channel.is_hidden(phase):
            return {}, None
        masked, unmasked = came.sum(1), (came & ~late).sum(1)
        obstacles = {}
        for run in map(int, np.flatnonzero(asked.any(1))):
            obstacle = find_obstacle(asked.shape[1], int(masked[run]), int(unmasked[run]))
            if obstacle is not None:
                obstacles[run] = obstacle
        return obstacles, masked - unmasked

    @cached_property
    def validation(self) -> Tree:
        return validation_data(self.job, self.tables)

    def start(self) -> State:
        return initial_state(self.job)


def bounds_of(job: Job, stage: Stage, position: int) -> Bounds:
    """Return the bounds of a phase's replies, which may depend on a run's hyperparameters."""
    settings = [run.hyper for run in job.runs]
    if all(hyper == settings[0] for hyper in settings):
        settings = settings[:1]
    phases = [(job.phases(stage, hyper)[position], job.configure(hyper)[1]) for hyper in settings]
    return Bounds(phases, job.task, job.asked(stage))


def initial_state(job: Job) -> State:
    servers, clients = [], []
    for run in range(len(job.runs)):
        method, parameters = job.method_of(run), tree.map(lambda leaf: leaf.to(job.device), job.initial[run])
        servers.append(method.init(job.task, parameters))
        clients.append(method.init_client(job.task, parameters))
    many = job.task.num_clients
    return State(
        tree.stack(servers),
        tree.map(lambda leaf: leaf.unsqueeze(1).expand(-1, many, *leaf.shape[1:]).clone(), tree.stack(clients)),
    )


def map_over_runs(function: Callable[..., Tree], values: tuple[Tree, ...], count: int) -> Tree:
    """Apply the function to every run's values, leaves [R, ...]. A single run is not vmapped, because that would take
    longer than a server's computation."""
    if count > 1:
        return tree.vmap_over(function, *values)
    return tree.map(lambda leaf: leaf.unsqueeze(0), function(*tree.take(values, 0)))


def validation_data(job: Job, tables: Tables) -> Tree:
    """Return (x, y, s, mask) of the runs' validation sets [R, ...], padded; () if the method needs none."""
    if not job.method.needs_validation:
        return ()
    longest = max(len(run.federation.validation) for run in job.runs)
    sets = []
    for r, run in enumerate(job.runs):
        positions = run.federation.validation
        rows = tables.rows_of(np.concatenate([positions, np.full(longest - len(positions), positions[0])]), r)
        mask = (torch.arange(longest, device=job.device) < len(positions)).to(torch.float32)
        sets.append((tables.features(rows, r), tables.y[rows], tables.s[rows], mask))
    return tree.stack(sets)


def check_reply(method: Method, phase: Phase, reply: Record) -> None:
    if set(reply) != set(phase.up):
        raise RunError(
            f"{method.name}, phase {phase.name!r}: the reply has the fields {sorted(reply)}, but the phase declares "
            f"{sorted(phase.up)}. Only declared fields may leave a client: correct `up` or the reply."
        )


def record_message(job: Job, stage: str, phase: Phase, down: Record, reply: Record, leading: int = 0) -> Message:
    """Return the sizes of one client's messages, from values with `leading` axes for clients."""
    sizes_down = {name: field_bytes(phase, name, down[name], leading) for name in phase.down}
    sizes_up = {name: field_bytes(phase, name, reply[name], leading) for name in phase.up}
    gather: str = phase.gather
    if job.channel.is_hidden(phase):
        silos, gather = job.asked(stage), SECURE_SUM
        sizes_down["keys"] = KEY * silos
        sizes_up = {name: 8 * _numbers(reply[name], leading) for name in phase.up}
        masked = masked_bytes(sum(sizes_up.values()) // 8, silos)
        sizes_up["shares"] = masked - sum(sizes_up.values())
    totals = sum(sizes_down.values()), sum(sizes_up.values())
    times = phase.repeat(job.task)
    return Message(stage, phase.name, phase.down, phase.up, gather, *totals, sizes_down, sizes_up, times)


def unmask_message(job: Job, message: Message) -> Message:
    """Return the unmask_message message after a secure sum without dropouts."""
    down, up = unmask_bytes(job.asked(message.stage), gone=0)
    sizes = {"shares": down}, {"shares": up}
    name = f"unmask {message.phase}"
    return Message(message.stage, name, ("shares",), ("shares",), UNMASK, down, up, *sizes, message.times)


def _numbers(value: Tree, leading: int) -> int:
    return sum(math.prod(leaf.shape[leading:]) for leaf in tree.leaves(value))


def field_bytes(phase: Phase, name: str, value: Tree, leading: int = 0) -> int:
    """Return a field's bytes on the wire: its encoded values, without names and structure."""
    codec = phase.codecs.get(name)
    shapes = [(leaf.shape[leading:], leaf.element_size()) for leaf in tree.leaves(value)]
    return sum(CODECS[codec].size(shape) if codec else math.prod(shape) * size for shape, size in shapes)


def note_too_few(channel: Channel, asked: int) -> Note:
    """Return the note that a robust rule's guarantee does not hold because too few of the asked clients replied."""
    assert channel.robust is not None
    f = count_malicious(channel.liars, asked)
    needed = int(min_updates(channel.robust, f))
    return Note("too-few-for-rule", {"rule": channel.robust, "needed": needed, "liars": int(f)})


def data_of(validation: Tree, job: Job) -> Data | None:
    """Return the validation set of one run, None if there is none."""
    if not validation:
        return None
    return Data.of(validation, job.task)


def sent(method: Method, server: Tree, validation: Tree, names: tuple[str, ...]) -> Record:
    """Return the fields that a phase sends to clients."""
    fields = method.sent(server, tuple(name for name in names if name != VALIDATION))
    return {**fields, VALIDATION: validation} if VALIDATION in names else fields
