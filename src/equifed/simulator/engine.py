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
from equifed.protocol import Data, Method, Phase, Record, Stage
from equifed.robust import fewest, liars_among
from equifed.simulator.job import Job
from equifed.simulator.tables import Tables
from equifed.tree import Tree


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
    """Why the whole round is to have no effect in a run, by run."""
    clipped: np.ndarray | None = None
    """How many of these replies were clipped [R]; None where the phase has nothing to clip."""
    cut: np.ndarray | None = None
    """How much of each client's update a robust rule cut, from 0 to 1 [R, K]; NaN where it had none to look at. None
    where no rule looked."""


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
        self.notes: list[Note] = []
        self._bounds: dict[tuple[str, int], Bounds] = {}

    def bounds(self, stage: Stage, position: int) -> Bounds:
        """What replies to a phase can be, in all runs."""
        if (stage, position) not in self._bounds:
            self._bounds[stage, position] = bounds_of(self.job, stage, position)
        return self._bounds[stage, position]

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
        return tree.vectorised(function, *values)
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


def record_message(stage: str, phase: Phase, down: Record, reply: Record, leading: int, times: int) -> Message:
    """Sizes of one client's messages, which come so many times, from values with so many leading axes for clients."""
    sizes_down = {name: field_bytes(phase, name, down[name], leading) for name in phase.down}
    sizes_up = {name: field_bytes(phase, name, reply[name], leading) for name in phase.up}
    totals = sum(sizes_down.values()), sum(sizes_up.values())
    return Message(stage, phase.name, phase.down, phase.up, phase.gather, *totals, sizes_down, sizes_up, times)


def field_bytes(phase: Phase, name: str, value: Tree, leading: int = 0) -> int:
    """What a field costs on the wire: its values as they are written, nothing for names and structure."""
    codec = phase.codecs.get(name)
    shapes = [(leaf.shape[leading:], leaf.element_size()) for leaf in tree.leaves(value)]
    return sum(CODECS[codec].size(shape) if codec else math.prod(shape) * size for shape, size in shapes)


def too_few_for(channel: Channel, asked: int) -> Note:
    """Why a robust rule cannot do what it promises, where too few of the clients that were asked sent an update."""
    assert channel.robust is not None
    f = liars_among(channel.liars, asked)
    needed = int(fewest(channel.robust, f))
    return Note("too-few-for-rule", {"rule": channel.robust, "needed": needed, "liars": int(f)})


def data_of(validation: Tree, job: Job) -> Data | None:
    """The validation set of one run."""
    if not validation:
        return None
    x, y, s, mask = validation
    return Data(x, y, s, mask, job.task)
