"""The protocol: what a method is. This is the one file to read before writing one.

A method is a frozen dataclass of hyper-parameters and three tuples of phases: `setup` (once, before round 1), `round`
(every round) and `final` (once, after the last round). A phase is one exchange: the server sends the fields named in
`down`, each client answers with the fields named in `up`, the server combines the answers. Everything is a pure
function of tensors: state goes in and comes out, and random numbers arrive as data. That is why one method object
runs for one client at a time, for thousands at once, for ten seeds and twenty settings in one call, and unchanged on
a real federation.

Rules for client and server functions:

- no Python branch on a tensor's value (use `torch.where`) and no torch random operation;
- rows beyond a client's own are padding with `mask` 0: reduce with `data.sum` and `data.mean`, never with `x.mean()`;
- replies hold sums and counts, finite for any client, also one without rows: a reply with NaN or Inf is refused;
- with `gather="stack"` a client that did not answer has `present` 0 and zeros everywhere: weigh by `present`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, get_args

import numpy as np
import torch
from torch import Tensor

from equifed.codec import CodecName
from equifed.errors import ConfigError
from equifed.task import LEAST_PROBABILITY
from equifed.task import Data as Data
from equifed.task import Record as Record
from equifed.task import Task as Task
from equifed.training import EmpiricalRisk as EmpiricalRisk
from equifed.training import LocalTraining as LocalTraining
from equifed.training import Start as Start
from equifed.tree import Tree

VALIDATION = "validation"
"""As a field of `down`: the server's validation rows, which clients then see; see `Data.of`."""
ROWS = -1
"""As an upper end: the number of training rows that the client has."""
Limit = float | Tensor | Callable[[Task], float]
"""A number, or what it is for a task."""


@dataclass(frozen=True)
class OfRows:
    """A limit that follows from how many rows a client has."""

    most: Callable[[Task, np.ndarray], np.ndarray]
    """(task, rows) -> limit."""


WRONG = -math.log(LEAST_PROBABILITY)
"""The log loss of a row whose label is held for all but impossible, 16: what a client of such rows alone has."""


def worst_loss(task: Task) -> float:
    """More than the loss of a row ever is: log loss of a logit of 10,000, squared error of 1,000,000."""
    return 1e12 if task.kind == "regression" else 1e4


@dataclass(frozen=True)
class Bound:
    """What a field of one client's reply can be, whatever its rows are: a promise about real numbers. What is received
    was computed in floating point and is compared with room for that, which follows from the kind of the number and
    from how many of them were added up: see `equifed.bounds.room`."""

    low: Limit = -np.inf
    """No number in it is below this."""
    high: Limit = np.inf
    """No number in it is above this; ROWS: above the client's rows."""
    per_row: Limit | OfRows | None = None
    """It is a sum over rows, and a row's part of it has at most this L2 norm."""
    norm: Limit | None = None
    """The whole field has at most this L2 norm."""
    whole: bool = False
    """Its numbers are whole."""
    adds_up: bool = False
    """All its numbers together are at most the client's rows."""
    alike: Limit | None = None
    """Its norm, per row where it is a sum over rows, is at most this, or 100 times that of the client in the middle."""

    def __post_init__(self) -> None:
        assert self.alike is None or self.norm is not None or self.per_row is not None, "norms are what is compared"


COUNT = Bound(0, ROWS, whole=True)
"""A number of rows."""
TABLE = Bound(0, ROWS, whole=True, adds_up=True)
"""Rows by what they are, each in one cell at most."""
YES_OR_NO = Bound(0, 1, whole=True)
BOUNDS: Mapping[str, Bound] = {
    **dict.fromkeys(("rows", "known", "n", "gradient_rows"), COUNT),
    **dict.fromkeys(("counts", "decisions", "histogram"), TABLE),
    **dict.fromkeys(("holders", "clients", "defined"), YES_OR_NO),
}
"""What fields of these names are in every method. A phase declares the others."""


CONSTRAINT_TOLERANCE = 1e-3
"""How far a method's constraint may lie beyond its bound and still count as met."""


class ClientWork(Protocol):
    """What a client does in a phase: any function of this shape, or a `LocalTraining`."""

    def __call__(self, down: Record, state: Tree, data: Data) -> tuple[Record, Tree]: ...


def wrapped(
    work: ClientWork,
    after: Callable[[Record, Any, Record, Tree], tuple[Record, Tree]],
    inside: Callable[[Any], Tree] = lambda state: state,
) -> ClientWork:
    """The same work on what is `inside` a client's state; `after`, (down, state, reply, what is inside now) -> (reply,
    state), is its end."""

    if isinstance(work, LocalTraining):

        def prepare(down: Record, state: Tree, data: Data) -> Start:
            return work.prepare(down, inside(state), data)

        def finish(parameters: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
            return after(down, state, *work.finish(parameters, down, inside(state), data, context))

        return replace(work, prepare=prepare, finish=finish)
    return lambda down, state, data: after(down, state, *work(down, inside(state), data))


ServerStep = Callable[[Any, Record, "Data | None"], Any]
"""(server, replies, validation) -> server. `replies` holds the fields of `up`, summed or stacked [K, ...], and
`present`: the number of answers (sum), or 1.0/0.0 per client [K] (stack, with `client` [K], the clients' positions).
"""


def unchanged(server: Any, replies: Record, validation: Data | None) -> Any:
    """The server's step in a phase from which it learns nothing."""
    return server


def kept(server: Any, replies: Record, validation: Data | None) -> Any:
    """The server's step that keeps the replies in its fields of the same names."""
    return server._replace(**{name: value for name, value in replies.items() if name in server._fields})


class Server(NamedTuple):
    """The server's state of a method that needs nothing but the model."""

    theta: Tree
    """theta, the global model."""


@dataclass(frozen=True)
class Draw:
    """Random numbers made on the host from (seed, round, name): equal for all clients and phases that name them."""

    make: Callable[[np.random.Generator, Task], np.ndarray]
    """(generator, task) -> array."""
    per: Literal["round", "run"] = "round"
    """New numbers every round, or the same for the whole run."""


@dataclass(frozen=True)
class Update:
    """What a field of a reply that moves the model consists of: the update itself, times a weight or added to a model.

    Its norm is what clipping bounds, and what is refused when it is too large; robust rules compare it with those of
    the other clients. See `equifed.channel`.
    """

    weight: str | None = None
    """The field of the reply that the update is multiplied by, as the server divides by its sum; None: by nothing."""
    around: str | None = None
    """The field of `down` that was added to it: the client replies with a model of its own."""
    among: str | None = None
    """The field of the reply that says which of several models the update is of; None: all clients train the same."""


def once(task: Task) -> int:
    return 1


@dataclass(frozen=True)
class Phase:
    """One exchange between the server and the clients."""

    name: str
    """An identifier; becomes the Flower message type "train.<name>". Batches are drawn by (seed, round, client, phase
    name): calling the phase that trains the model "train" gives all methods the same batches for the same seed."""
    down: tuple[str, ...]
    """Server fields that travel to the clients, and `VALIDATION` where its validation rows do; nothing else does."""
    up: tuple[str, ...]
    """Fields of the reply; nothing else leaves a client."""
    client: ClientWork
    """(down, client state, data) -> (reply, client state)."""
    server: ServerStep
    """(server, replies, validation) -> server."""
    gather: Literal["sum", "stack"] = "stack"
    """"sum": the server only ever sees the sum of the replies."""
    draws: Mapping[str, Draw] = field(default_factory=dict)
    """Random numbers that the clients' work needs, by name."""
    codecs: Mapping[str, CodecName] = field(default_factory=dict)
    """Fields of `down` and `up` that are written in fewer bits than their tensors have, and how."""
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    """What fields of `up` can be, besides those in `BOUNDS`. Every field has a bound, is an update, whose norm is
    bounded, or has a codec, which writes nothing else."""
    initial: bool = False
    """The clients' work needs the model's initial parameters, `data.initial`."""
    updates: Mapping[str, Update] = field(default_factory=dict)
    """Fields of `up` that move the model; not rankings, counts and other statistics."""
    repeat: Callable[[Task], int] = once
    """How often the exchange takes place, each time with what the server made of the last: a search at the server. 0:
    this task does without it."""
    places: Mapping[str, int] = field(default_factory=dict)
    """Binary places of fields in a secure sum, where they are other than 30: fewer for numbers that are large."""

    def rate(self, task: Task, round: int) -> float:
        """The step size of its local training in this round."""
        if isinstance(self.client, LocalTraining) and not self.client.scheduled:
            assert task.local.learning_rate is not None, "resolved"
            return task.local.learning_rate
        return task.rate(round)


def adjusted(method: Method, task: Task, server: Any, client: Any, prediction: Tensor, s: Tensor, u: Tensor) -> Tensor:
    """Predictions as `method.adjust` changes them; as they are for rows of unknown group, which no rule is for."""
    changed = method.adjust(task, server, client, prediction, s.clamp_min(0), u)
    return torch.where((s >= 0).reshape(-1, *(1,) * (prediction.dim() - 1)), changed, prediction)


Stage = Literal["setup", "round", "final"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""When a phase takes place, in the order they come."""


@dataclass(frozen=True)
class Knob:
    """The one hyper-parameter by which a method trades accuracy for fairness: what `equifed.seek` turns."""

    name: str
    """The hyper-parameter, a number."""
    low: float
    """The range worth searching: its lower end,"""
    high: float
    """and its upper end."""
    aims: Mapping[str, Mapping[str, Any]]
    """The metrics that it moves, each with the hyper-parameters that make the method aim at it: see `notions`."""
    fairer: Literal["more", "less"] = "more"
    """Which way is fairer."""
    scale: Literal["log", "linear"] = "log"
    """Whether values differ by their ratio or by their difference."""
    neutral: float | None = None
    """Where it asks for nothing, if anywhere: for a method with a parent, the parent."""

    @property
    def ends(self) -> tuple[float, float]:
        """The range from its least fair to its fairest end."""
        return (self.low, self.high) if self.fairer == "more" else (self.high, self.low)


def notions(**settings: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What a knob aims at, from the hyper-parameters for each notion of fairness: those of its gap and of its ratio,
    as in `notions(demographic_parity={}, equal_opportunity={"condition_on": "label"})`."""
    aims = {f"{notion}_{kind}": given for notion, given in settings.items() for kind in ("difference", "ratio")}
    return aims | ({"average_odds_ratio": settings["equalized_odds"]} if "equalized_odds" in settings else {})


@dataclass(frozen=True)
class Method:
    """Base of all methods: defaults for what a method need not define.

    Subclasses are frozen dataclasses whose fields are the hyper-parameters, with a default and a docstring each;
    `round` is required. The server's state is a NamedTuple; its field `theta` is the global model.
    """

    name: ClassVar[str] = ""
    """Name in the registry."""
    parent: ClassVar[str] = ""
    """The method it equals when its fairness weight is 0, if any."""
    knob: ClassVar[Knob | None] = None
    """The hyper-parameter that trades accuracy for fairness, if there is one."""
    label_kinds: ClassVar[tuple[str, ...]] = ("binary", "multiclass", "regression")
    """What it can learn: two classes, more, or a number."""
    needs_validation: ClassVar[bool] = False
    """The server needs a validation set of its own."""
    needs_client_groups: ClassVar[bool] = False
    """Each client must belong to a known group of clients."""
    personal: ClassVar[bool] = False
    """Clients end up with models of their own: predictions depend on the client's state."""
    predicts_with: ClassVar[tuple[str, ...]] = ("theta",)
    """Server fields that `predict` uses: what a client needs to apply the model itself."""
    adjusts: ClassVar[bool] = False
    """`adjust` changes predictions, and needs the rows' groups for it."""
    keeps_gap: ClassVar[Literal["", "global", "local"]] = ""
    """Where it fits the groups' decisions to a stated gap, if it does: on the training rows of all clients together, or
    of each client. A result notes groups with few such rows."""
    pooled: ClassVar[bool] = False
    """No federated method but a reference: it trains on the rows of all clients in one place."""
    reveals: ClassVar[str] = ""
    """What the sums alone still tell a server that sees nothing else (`secure`), in a line of docs/privacy.md; empty
    where it is not known."""
    sweepable: ClassVar[bool] = True
    """Runs (seeds, sweep values) can share one vectorised call; False: they are looped over."""

    @property
    def parts(self) -> tuple[Method, ...]:
        """The method itself; of a method around another, that one's parts and then itself."""
        return (self,)

    @property
    def hyper(self) -> dict[str, Any]:
        """The hyper-parameters by name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.metadata.get("hyper", True)}

    def with_hyper(self, **values: Any) -> Method:
        """The same method with other hyper-parameters."""
        return replace(self, **values)

    @property
    def remembers(self) -> bool:
        """Whether clients keep something between exchanges."""
        return type(self).init_client is not Method.init_client

    @property
    def setup(self) -> tuple[Phase, ...]:
        """Exchanges before round 1, with every client."""
        return ()

    @property
    def round(self) -> tuple[Phase, ...]:
        """Exchanges of one round, all with the same cohort."""
        raise NotImplementedError

    @property
    def final(self) -> tuple[Phase, ...]:
        """Exchanges after the last round, with every client."""
        return ()

    @property
    def summed(self) -> Method | None:
        """The method as it runs where only sums of replies are seen (`secure`): itself, if it needs no more, or a
        variant of itself that does not. None: it needs each reply."""
        phases = (*self.setup, *self.round, *self.final)
        return self if all(phase.gather == "sum" or not phase.up for phase in phases) else None

    @property
    def num_models(self) -> int | None:
        """How many differently initialised models `init` gets, as a leading axis; None: one, without the axis."""
        return None

    def init(self, task: Task, parameters: Tree) -> Any:
        """The server's state before round 1: a NamedTuple of tensors and trees."""
        return Server(parameters)

    def init_client(self, task: Task, parameters: Tree) -> Tree:
        """What a client keeps between rounds; () when nothing."""
        return ()

    def sent(self, server: Any, names: tuple[str, ...]) -> Record:
        """The server's fields of these names, as a message to a client holds them."""
        return {name: getattr(server, name) for name in names}

    def received(self, fields: Record) -> Any:
        """What a client knows of the server's state from such fields: `predict` takes it for the state."""
        return SimpleNamespace(**fields)

    def model_of(self, server: Any, clients: Any) -> Tree:
        """The trained model: the server's `theta`, else that of a client or, along a leading axis, of all; {} for
        neither. `clients` is () where their states are elsewhere."""
        return server.theta if hasattr(server, "theta") else getattr(clients, "theta", {})

    def predict(self, task: Task, server: Any, client: Tree, x: Tensor) -> Tensor:
        """Probabilities (classification) or values (regression) for the rows x; see `Task.predict`."""
        return task.predict(self.model_of(server, client), x)

    def adjust(self, task: Task, server: Any, client: Tree, prediction: Tensor, s: Tensor, u: Tensor) -> Tensor:
        """What `predict` returned, post-processed: s are the rows' groups, u a random number in 0..1 for each row."""
        return prediction

    def draws(self, task: Task, server: Any, client: Tree) -> bool:
        """Whether decisions depend on the random numbers that `adjust` gets, with what was fitted."""
        return self.adjusts

    def adapt(self, task: Task, server: Any, data: Data, steps: int) -> Tree:
        """The state of a client that took no part in training, from its rows and the final models."""
        raise ConfigError(
            f"{self.name} has nothing to adapt to a new client: "
            + ("its clients' models come from training alone." if self.personal else "one model serves all clients.")
        )

    def check(self, task: Task) -> None:
        """Raise a ConfigError for what this setting of the method cannot do."""

    def observe(self, server: Any) -> dict[str, Tensor]:
        """Scalars worth logging every round: schedules, multipliers. `feasible` (1 or 0) is special: a run that ends
        with 0 has not met its constraint, and its result says so; `excess`: how far it lies beyond its bound. So is
        `fewest_clients`, the smallest number of clients that a sum of the round was over, where that is not everybody's
        sum (0: no such sum): a result with secure sums says where they are too few."""
        return {}

    def remedy(self, converged: bool) -> str:
        """What may help where a run ends beyond its constraint: "rounds", a hyper-parameter, or "" for nothing known.
        converged: the run has stopped by itself, so that more rounds would change nothing."""
        return "" if converged else "rounds"

    @property
    def may_converge(self) -> bool:
        """Whether a run may stop before its last round."""
        return type(self).converged is not Method.converged

    def converged(self, server: Any) -> Tensor:
        """Whether the run may stop, as a boolean tensor: looked at after every round; True is final."""
        return torch.tensor(False)
