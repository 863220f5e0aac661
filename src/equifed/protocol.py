"""The protocol: what a method is. This is the one file to read before writing one.

A method is a frozen dataclass of hyperparameters and three tuples of phases: `setup` (once, before round 1), `round`
(every round) and `final` (once, after the last round). A phase is one exchange: the server sends the fields named in
`down`, each client answers with the fields named in `up`, the server combines the answers. Everything is a pure
function of tensors: state goes in and comes out, and random numbers arrive as data. That is why one method object
runs for one client at a time, for thousands at once, for ten seeds and twenty settings in one call, and unchanged on
a real federation.

Rules for client and server functions:

- no Python branch on a tensor's value (use `torch.where`) and no torch random operation;
- rows beyond a client's own are padding with `mask` 0: reduce with `data.sum` and `data.mean`, never with `x.mean()`;
- replies hold sums and counts, finite for every client, including one without rows: NaN or Inf is refused;
- with `gather="stack"` a client that did not reply has `present` 0 and zeros everywhere: weight by `present`.
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
"""Name in `down` that sends the server's validation rows to the clients; see `Data.of`."""
ROWS = -1
"""Upper limit that stands for the client's number of training rows."""
Limit = float | Tensor | Callable[[Task], float]
"""A number, or a function that computes it from the task."""


@dataclass(frozen=True)
class OfRows:
    """A limit computed from the client's number of rows."""

    most: Callable[[Task, np.ndarray], np.ndarray]
    """(task, rows) -> limit."""


WRONG = -math.log(LEAST_PROBABILITY)
"""Log loss, 16, of a row whose label has the least probability: the mean loss of a client with only such rows."""


def worst_loss(task: Task) -> float:
    """Return a loss that no row reaches: log loss of a logit of 10,000, or squared error of 1,000,000."""
    return 1e12 if task.kind == "regression" else 1e4


@dataclass(frozen=True)
class Bound:
    """The limits of a reply field for an honest client, whatever its rows are. They hold for real numbers; received
    values are rounded, so the check allows for the rounding errors that their kind and number of terms can cause: see
    `equifed.bounds.room`."""

    low: Limit = -np.inf
    """Smallest value of any entry."""
    high: Limit = np.inf
    """Largest value of any entry; ROWS: the client's number of rows."""
    per_row: Limit | OfRows | None = None
    """Largest L2 norm of one row's term, where the field is a sum over rows."""
    norm: Limit | None = None
    """Largest L2 norm of the whole field."""
    whole: bool = False
    """True if all entries are whole numbers."""
    adds_up: bool = False
    """True if the sum of all entries is at most the client's number of rows."""
    alike: Limit | None = None
    """Largest norm (per row if the field is a sum over rows) that is not compared with the other clients. A larger
    norm may be at most 100 times the median client's."""

    def __post_init__(self) -> None:
        assert self.alike is None or self.norm is not None or self.per_row is not None, "`alike` compares norms"


COUNT = Bound(0, ROWS, whole=True)
"""Bound of a number of rows."""
TABLE = Bound(0, ROWS, whole=True, adds_up=True)
"""Bound of a contingency table of rows, each in at most one cell."""
YES_OR_NO = Bound(0, 1, whole=True)
"""Bound of an indicator."""
BOUNDS: Mapping[str, Bound] = {
    **dict.fromkeys(("rows", "known", "n", "gradient_rows"), COUNT),
    **dict.fromkeys(("counts", "decisions", "histogram"), TABLE),
    **dict.fromkeys(("holders", "clients", "defined"), YES_OR_NO),
}
"""Bounds of the fields that mean the same in all methods. A phase declares the others."""


CONSTRAINT_TOLERANCE = 1e-3
"""Largest excess over a constraint's bound at which the constraint counts as met."""


class ClientWork(Protocol):
    """A client's work in a phase: any function of this signature, or a `LocalTraining`."""

    def __call__(self, down: Record, state: Tree, data: Data) -> tuple[Record, Tree]: ...


def wrap_work(
    work: ClientWork,
    after: Callable[[Record, Any, Record, Tree], tuple[Record, Tree]],
    inside: Callable[[Any], Tree] = lambda state: state,
) -> ClientWork:
    """Wrap a client's work: it runs on the part of the state that `inside` returns; then `after`, (down, state, reply,
    the part's new value) -> (reply, state), makes the final reply and state."""

    if isinstance(work, LocalTraining):

        def prepare(down: Record, state: Tree, data: Data) -> Start:
            return work.prepare(down, inside(state), data)

        def finish(parameters: Tree, down: Record, state: Tree, data: Data, context: Tree) -> tuple[Record, Tree]:
            return after(down, state, *work.finish(parameters, down, inside(state), data, context))

        return replace(work, prepare=prepare, finish=finish)
    return lambda down, state, data: after(down, state, *work(down, inside(state), data))


ServerStep = Callable[[Any, Record, "Data | None"], Any]
"""(server, replies, validation) -> server. `replies` holds the fields of `up`, summed or stacked [K, ...], and
`present`: the number of replies (sum), or 1.0/0.0 per client [K] (stack, with `client` [K], the clients' positions).
"""


def ignore_replies(server: Any, replies: Record, validation: Data | None) -> Any:
    """Return the server's state unchanged: the step of a phase from which the server learns nothing."""
    return server


def store_replies(server: Any, replies: Record, validation: Data | None) -> Any:
    """Store the replies in the server's fields of the same names: a server step."""
    return server._replace(**{name: value for name, value in replies.items() if name in server._fields})


class Server(NamedTuple):
    """The server's state of a method that needs only the model."""

    theta: Tree
    """theta, the global model."""


@dataclass(frozen=True)
class Draw:
    """Random numbers drawn on the host from (seed, round, name): equal for all clients and phases that name them."""

    make: Callable[[np.random.Generator, Task], np.ndarray]
    """(generator, task) -> array."""
    per: Literal["round", "run"] = "round"
    """"round": new numbers every round. "run": the same numbers for the whole run."""


@dataclass(frozen=True)
class Update:
    """The composition of a reply field that moves the model: the update itself, times a weight or added to a model.

    Clipping limits the update's norm, a reply with too large a norm is refused, and robust rules compare the updates
    of the clients. See `equifed.channel`.
    """

    weight: str | None = None
    """Reply field that the update is multiplied by (the server divides by its sum). None: no weight."""
    around: str | None = None
    """Field of `down` that was added to the update: the client replies with its own model."""
    among: str | None = None
    """Reply field with the index of the model that the update belongs to. None: all clients train the same model."""


def once(task: Task) -> int:
    """Return 1: the default of `Phase.repeat`."""
    return 1


@dataclass(frozen=True)
class Phase:
    """One exchange between the server and the clients."""

    name: str
    """Identifier, part of the Flower message type "train.<name>". Batches are drawn by (seed, round, client, phase
    name): call the phase that trains the model "train", so that all methods get the same batches for the same seed."""
    down: tuple[str, ...]
    """Server fields sent to the clients, and `VALIDATION` to send the validation rows. Only these are sent."""
    up: tuple[str, ...]
    """Fields of the reply. Only these leave a client."""
    client: ClientWork
    """(down, client state, data) -> (reply, client state)."""
    server: ServerStep
    """(server, replies, validation) -> server."""
    gather: Literal["sum", "stack"] = "stack"
    """"sum": the server sees only the sum of the replies. "stack": it sees each reply."""
    draws: Mapping[str, Draw] = field(default_factory=dict)
    """Random numbers that the clients' work needs, by name."""
    codecs: Mapping[str, CodecName] = field(default_factory=dict)
    """Codecs of the fields of `down` and `up` that are sent in fewer bits than their tensors have."""
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    """Bounds of the fields of `up` that `BOUNDS` does not list. Every field needs a bound, unless it is an update (its
    norm is bounded) or has a codec (which limits its values)."""
    initial: bool = False
    """True if the clients' work needs the model's initial parameters, `data.initial`."""
    updates: Mapping[str, Update] = field(default_factory=dict)
    """Fields of `up` that move the model; rankings, counts and other statistics are not updates."""
    repeat: Callable[[Task], int] = once
    """Number of times that the exchange takes place, each with the server's state after the last one, such as for a
    search at the server. 0: the exchange is skipped for this task."""
    places: Mapping[str, int] = field(default_factory=dict)
    """Binary places of fields in a secure sum. Default: 30; large numbers need fewer."""

    def rate(self, task: Task, round: int) -> float:
        """Return the step size of local training in this round."""
        if isinstance(self.client, LocalTraining) and not self.client.scheduled:
            assert task.local.learning_rate is not None, "resolved"
            return task.local.learning_rate
        return task.rate(round)


def adjust_predictions(
    method: Method, task: Task, server: Any, client: Any, prediction: Tensor, s: Tensor, u: Tensor
) -> Tensor:
    """Return the predictions after `method.adjust`; those for rows of unknown group are left unchanged."""
    changed = method.adjust(task, server, client, prediction, s.clamp_min(0), u)
    return torch.where((s >= 0).reshape(-1, *(1,) * (prediction.dim() - 1)), changed, prediction)


Stage = Literal["setup", "round", "final"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""Stages of a run, in order."""


@dataclass(frozen=True)
class Knob:
    """The one hyperparameter by which a method trades accuracy for fairness. `equifed.seek` searches its values."""

    name: str
    """Name of the hyperparameter, a number."""
    low: float
    """Lower end of the range worth searching."""
    high: float
    """Upper end of the range worth searching."""
    aims: Mapping[str, Mapping[str, Any]]
    """Metrics that it changes, each with the hyperparameters that make the method aim at it: see `notions`."""
    fairer: Literal["more", "less"] = "more"
    """Direction in which the model becomes fairer."""
    scale: Literal["log", "linear"] = "log"
    """Spacing of the values to try: "log" for equal ratios, "linear" for equal differences."""
    neutral: float | None = None
    """Value that has no effect on fairness, if there is one: a method with a parent then equals its parent."""

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the range, the least fair one first."""
        return (self.low, self.high) if self.fairer == "more" else (self.high, self.low)


def notions(**settings: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return a knob's `aims`, the difference and ratio metrics of each notion of fairness, from the hyperparameters
    for each notion, as in `notions(demographic_parity={}, equal_opportunity={"condition_on": "label"})`."""
    aims = {f"{notion}_{kind}": given for notion, given in settings.items() for kind in ("difference", "ratio")}
    return aims | ({"average_odds_ratio": settings["equalized_odds"]} if "equalized_odds" in settings else {})


@dataclass(frozen=True)
class Method:
    """The base class of all methods, with defaults for optional parts.

    Subclasses are frozen dataclasses with the hyperparameters as fields, each with a default and a docstring; `round`
    is required. The server's state is a NamedTuple; its field `theta` is the global model.
    """

    name: ClassVar[str] = ""
    """Name in the registry."""
    parent: ClassVar[str] = ""
    """Name of the method that it equals when its fairness weight is 0, if any."""
    knob: ClassVar[Knob | None] = None
    """The hyperparameter that trades accuracy for fairness, if there is one."""
    label_kinds: ClassVar[tuple[str, ...]] = ("binary", "multiclass", "regression")
    """Kinds of labels that it can learn: two classes, more classes, or a number."""
    needs_validation: ClassVar[bool] = False
    """True if the server needs its own validation set."""
    needs_client_groups: ClassVar[bool] = False
    """True if each client must belong to a known group of clients."""
    personal: ClassVar[bool] = False
    """True if clients end up with their own models: predictions depend on the client's state."""
    predicts_with: ClassVar[tuple[str, ...]] = ("theta",)
    """Server fields that `predict` uses. A client needs them to apply the model."""
    adjusts: ClassVar[bool] = False
    """True if `adjust` changes predictions, which needs the rows' groups."""
    keeps_gap: ClassVar[Literal["", "global", "local"]] = ""
    """Training rows on which the method fits the groups' decisions to a stated gap, if it does: those of all clients
    together or of each client. A result notes groups with few such rows."""
    pooled: ClassVar[bool] = False
    """True for a reference method that is not federated: it trains on the rows of all clients in one place."""
    reveals: ClassVar[str] = ""
    """Information that the sums alone disclose to the server (`secure`), as one line for docs/privacy.md; empty if it
    has not been analysed."""
    sweepable: ClassVar[bool] = True
    """True if runs (seeds, sweep values) can share one vectorised call; False: they run one after another."""

    @property
    def parts(self) -> tuple[Method, ...]:
        """The method itself; for a wrapper, the parts of the wrapped method, then the wrapper."""
        return (self,)

    @property
    def hyper(self) -> dict[str, Any]:
        """The hyperparameters by name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.metadata.get("hyper", True)}

    def with_hyper(self, **values: Any) -> Method:
        """Return the method with other hyperparameters."""
        return replace(self, **values)

    @property
    def remembers(self) -> bool:
        """True if clients keep state between exchanges."""
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
        """The method to run if the server sees only sums of replies (`secure`): itself if all its phases sum, or a
        variant of it that does. None: it needs each reply."""
        phases = (*self.setup, *self.round, *self.final)
        return self if all(phase.gather == "sum" or not phase.up for phase in phases) else None

    @property
    def num_models(self) -> int | None:
        """Number of differently initialised models that `init` gets, as a leading axis; None: one, without the axis."""
        return None

    def init(self, task: Task, parameters: Tree) -> Any:
        """Return the server's state before round 1: a NamedTuple of tensors and trees."""
        return Server(parameters)

    def init_client(self, task: Task, parameters: Tree) -> Tree:
        """Return the state that a client keeps between rounds, before round 1; () for none."""
        return ()

    def sent(self, server: Any, names: tuple[str, ...]) -> Record:
        """Return the server's fields of these names, as they are sent to a client."""
        return {name: getattr(server, name) for name in names}

    def received(self, fields: Record) -> Any:
        """Return the server's state as a client knows it from these fields; `predict` takes it as the state."""
        return SimpleNamespace(**fields)

    def model_of(self, server: Any, clients: Any) -> Tree:
        """Return the trained model: the server's `theta`, else the client's or, along a leading axis, all clients'; {}
        if there is neither. `clients` is () if their states are not available."""
        return server.theta if hasattr(server, "theta") else getattr(clients, "theta", {})

    def predict(self, task: Task, server: Any, client: Tree, x: Tensor) -> Tensor:
        """Return probabilities (classification) or values (regression) for the rows x; see `Task.predict`."""
        return task.predict(self.model_of(server, client), x)

    def adjust(self, task: Task, server: Any, client: Tree, prediction: Tensor, s: Tensor, u: Tensor) -> Tensor:
        """Return post-processed predictions: s are the rows' groups, u a random number in 0..1 for each row."""
        return prediction

    def draws(self, task: Task, server: Any, client: Tree) -> bool:
        """Return True if decisions depend on the random numbers passed to `adjust`."""
        return self.adjusts

    def adapt(self, task: Task, server: Any, data: Data, steps: int) -> Tree:
        """Return the state of a client that was not in the training, from its rows and the final models."""
        raise ConfigError(
            f"{self.name} has nothing to adapt to a new client: "
            + ("its clients' models come from training alone." if self.personal else "one model serves all clients.")
        )

    def check(self, task: Task) -> None:
        """Raise a ConfigError if the method cannot run this task with its hyperparameters."""

    def observe(self, server: Any) -> dict[str, Tensor]:
        """Return scalars to log every round: schedules, multipliers. Three names are special. `feasible` (1 or 0): a
        run that ends with 0 has not met its constraint, and its result reports it; `excess`: the distance beyond the
        constraint's bound. `fewest_clients`: the smallest number of clients in any sum of the round that is not over
        all clients (0: no such sum); a result with secure sums reports sums over too few clients."""
        return {}

    def remedy(self, converged: bool) -> str:
        """Return what may help if a run ends without meeting its constraint: "rounds", a hyperparameter, or "" if
        nothing is known. converged: the run stopped by itself, so more rounds would not change it."""
        return "" if converged else "rounds"

    @property
    def may_converge(self) -> bool:
        """True if a run may stop before its last round."""
        return type(self).converged is not Method.converged

    def converged(self, server: Any) -> Tensor:
        """Return a boolean tensor: True if the run may stop. Called after every round; True is final."""
        return torch.tensor(False)
