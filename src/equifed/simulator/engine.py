"""What the round loop needs of an engine, and what the engines share."""

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
"""How replies are gathered where nobody sees a single one (`Message.gather`), and the exchange that follows."""
KEY = 32
"""Bytes of a client's public key, of which each is told those of all others."""


class State(NamedTuple):
    """All that changes during a job; what a checkpoint holds."""

    server: Tree
    """The servers' states, leaves [R, ...]."""
    clients: Tree
    """The clients' states, leaves [R, N, ...]; () on a real federation, where they stay with the clients."""
    last_reply: Tree = ()
    """On a real federation: the number of the exchange of each client's last reply that was used [R, N], from whose
    state the client goes on."""


class Rejection(NamedTuple):
    run: int
    client: str
    phase: str
    reason: str
    answered: bool = True
    """False: nothing came back from it."""


@dataclass(frozen=True)
class Exchange:
    """One phase, done for all runs."""

    state: State
    present: np.ndarray
    """Whose reply was used [R, K]."""
    rejections: list[Rejection]
    obstacles: Mapping[int, Note] = field(default_factory=dict)
    """The runs in which the whole round is to have no effect, and why."""
    clipped: np.ndarray | None = None
    """How many of these replies were clipped [R]; None where the phase has nothing to clip."""
    cut: np.ndarray | None = None
    """How much of each client's update a robust rule cut, from 0 to 1 [R, K]; NaN where it had none to look at. None
    where no rule looked."""
    late: np.ndarray | None = None
    """How many of these clients were gone before the sum was unmasked [R]; None where nothing is masked."""


class Message(NamedTuple):
    """What one phase sends, per client and round."""

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
    """How often, in a stage."""


class Engine(Protocol):
    """Carries out exchanges. The round loop (loop.py) is the only one there is, whatever the engine."""

    messages: dict[tuple[str, int], Message]
    """Filled as phases are carried out."""
    notes: list[Note]
    """What the user should know about how it ran."""

    def start(self) -> State: ...

    def exchange(
        self, state: State, stage: Stage, position: int, step: int, round: int, cohorts: np.ndarray, present: np.ndarray
    ) -> Exchange:
        """One exchange of all runs: phase `position` of the stage. `step` counts the stage's exchanges, in which a
        phase may come several times."""
        ...


class LocalEngine:
    """What the engines share whose clients are all here."""

    def __init__(self, job: Job, tables: Tables) -> None:
        self.job, self.tables = job, tables
        self.messages: dict[tuple[str, int], Message] = {}
        self.notes = [Note("secure-simulated")] if job.settings.secure else []
        self._bounds: dict[tuple[str, int], Bounds] = {}

    def bounds(self, stage: Stage, position: int) -> Bounds:
        """What replies to a phase can be, in all runs."""
        if (stage, position) not in self._bounds:
            self._bounds[stage, position] = bounds_of(self.job, stage, position)
        return self._bounds[stage, position]

    def unsummed(
        self, phase: Phase, late: np.ndarray, asked: np.ndarray, came: np.ndarray
    ) -> tuple[dict[int, Note], np.ndarray | None]:
        """The runs that have no secure sum, and why; how many clients were gone before it was unmasked [R].

        late, asked, came: who is gone by then, who was there before the exchange, whose reply is used [R, K].
        """
        if not self.job.channel.is_hidden(phase):
            return {}, None
        masked, told = came.sum(1), (came & ~late).sum(1)
        obstacles = {}
        for run in map(int, np.flatnonzero(asked.any(1))):
            obstacle = find_obstacle(asked.shape[1], int(masked[run]), int(told[run]))
            if obstacle is not None:
                obstacles[run] = obstacle
        return obstacles, masked - told

    @cached_property
    def validation(self) -> Tree:
        return validation_data(self.job, self.tables)

    def start(self) -> State:
        return initial_state(self.job)


def bounds_of(job: Job, stage: Stage, position: int) -> Bounds:
    """The bounds of a phase's replies; runs that differ in hyper-parameters may differ in them."""
    settings = [run.hyper for run in job.runs]
    if all(hyper == settings[0] for hyper in settings):
        settings = settings[:1]
    phases = [(job.phases(stage, hyper)[position], job.configured(hyper)[1]) for hyper in settings]
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


def over_runs(function: Callable[..., Tree], values: tuple[Tree, ...], count: int) -> Tree:
    """The function of every run's values, leaves [R, ...]. One run alone is spared vmap, which costs more than what
    servers compute."""
    if count > 1:
        return tree.vmap_over(function, *values)
    return tree.map(lambda leaf: leaf.unsqueeze(0), function(*tree.take(values, 0)))


def validation_data(job: Job, tables: Tables) -> Tree:
    """(x, y, s, mask) of the runs' validation sets [R, ...], padded to the longest; () where the method needs none."""
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
            f"{sorted(phase.up)}. Nothing undeclared may leave a client: correct `up` or the reply."
        )


def record_message(job: Job, stage: str, phase: Phase, down: Record, reply: Record, leading: int = 0) -> Message:
    """Sizes of one client's messages, from values with so many leading axes for clients."""
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


def unmasking(job: Job, message: Message) -> Message:
    """The message that follows a secure sum's, where nobody is gone."""
    down, up = unmask_bytes(job.asked(message.stage), gone=0)
    sizes = {"shares": down}, {"shares": up}
    name = f"unmask {message.phase}"
    return Message(message.stage, name, ("shares",), ("shares",), UNMASK, down, up, *sizes, message.times)


def _numbers(value: Tree, leading: int) -> int:
    return sum(math.prod(leaf.shape[leading:]) for leaf in tree.leaves(value))


def field_bytes(phase: Phase, name: str, value: Tree, leading: int = 0) -> int:
    """What a field costs on the wire: its values as they are written, nothing for names and structure."""
    codec = phase.codecs.get(name)
    shapes = [(leaf.shape[leading:], leaf.element_size()) for leaf in tree.leaves(value)]
    return sum(CODECS[codec].size(shape) if codec else math.prod(shape) * size for shape, size in shapes)


def too_few_for(channel: Channel, asked: int) -> Note:
    """Why a robust rule cannot do what it promises, where too few of the clients that were asked sent an update."""
    assert channel.robust is not None
    f = count_malicious(channel.liars, asked)
    needed = int(min_updates(channel.robust, f))
    return Note("too-few-for-rule", {"rule": channel.robust, "needed": needed, "liars": int(f)})


def data_of(validation: Tree, job: Job) -> Data | None:
    """The validation set of one run."""
    if not validation:
        return None
    return Data.of(validation, job.task)


def sent(method: Method, server: Tree, validation: Tree, names: tuple[str, ...]) -> Record:
    """What a phase sends down."""
    fields = method.sent(server, tuple(name for name in names if name != VALIDATION))
    return {**fields, VALIDATION: validation} if VALIDATION in names else fields
