"""How a run is made: one value with one set of defaults, for Python, configuration files, the command line, Flower and
results."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypedDict, get_args

from equifed.errors import MAX_FLOAT32, ConfigError, check_number, unknown_name
from equifed.target import check_confidence, parse_targets
from equifed.words import quoted

EngineName = Literal["lanes", "reference"]
KernelName = Literal["auto", "fused", "clients", "traced", "compiled"]
RuleName = Literal["median", "trimmed-mean", "krum", "multi-krum", "clipped-mean"]
Schedule = Literal["constant", "step", "cosine"]
LEAST_RATE = 2.0**-126
"""The smallest step size that there is: numbers of 32 bits below it lose their precision, and then are 0."""
RULES: tuple[RuleName, ...] = get_args(RuleName)
"""Robust rules, see `equifed.robust`."""

SEEDS = 5
"""How many seeds a run has that loads its data itself, from a configuration or the command line."""
MOST_SEEDS = 10**6
"""Of one computation: far beyond what any memory holds."""
MARGIN = 0.01
"""How much quality a verdict gives up for fairness where nobody says: of accuracy one point, of an RMSE 1 %."""


@dataclass(frozen=True)
class Local:
    """How each client trains between two exchanges. The optimiser starts afresh every round."""

    epochs: int = field(default=2, metadata={"key": "local_epochs"})
    """Passes over the client's rows per round, each in a new order."""
    batch_size: int | None = 32
    """Rows per step; the last batch of an epoch may be shorter. None: all rows in one step."""
    learning_rate: float | None = None
    """Step size of the first round. Left out: 0.1, and 0.005 for regression, whose gradients have no bound."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """The update rule."""
    momentum: float = 0.0
    """Heavy-ball momentum of SGD."""
    weight_decay: float = 0.0
    """L2 penalty added to the gradient, as in torch's SGD and Adam."""
    learning_rate_decay: float = 1.0
    """The step size is multiplied by this after every round; with schedule "step", after every schedule_rounds."""
    schedule: Schedule = "constant"
    """How the step size goes on: "constant" (but for learning_rate_decay), "step" (learning_rate_decay every
    schedule_rounds), or "cosine" (half a cosine wave over all rounds, down to nearly 0 in the last)."""
    schedule_rounds: int | None = None
    """Rounds from one fall of the step size to the next, with schedule "step"."""
    warm_up: int = 0
    """Rounds at the beginning in which the step size grows linearly to the learning rate; the schedule begins after
    them."""

    def __post_init__(self) -> None:
        check_number("epochs", self.epochs, whole=True, low=1)
        if self.batch_size is not None:
            check_number("batch_size", self.batch_size, whole=True, low=1)
        if self.optimizer not in ("sgd", "adam"):
            raise unknown_name("optimizer", self.optimizer, ("adam", "sgd"), key="optimizer")
        check_number("momentum", self.momentum, low=0)
        if self.momentum >= 1:
            raise ConfigError(f"must be below 1, got {self.momentum}.", key="momentum", value=self.momentum)
        if self.optimizer == "adam" and self.momentum:
            text = "belongs to SGD; Adam has its own. Leave it at 0 with Adam."
            raise ConfigError(text, key="momentum", value=self.momentum)
        if self.learning_rate is not None:
            check_number("learning_rate", self.learning_rate, above=0)
        check_number("learning_rate_decay", self.learning_rate_decay, above=0)
        check_number("weight_decay", self.weight_decay, low=0)
        check_number("warm_up", self.warm_up, whole=True, low=0)
        if self.schedule not in get_args(Schedule):
            raise unknown_name("schedule", self.schedule, get_args(Schedule), key="schedule")
        if self.schedule_rounds is not None:
            check_number("schedule_rounds", self.schedule_rounds, whole=True, low=1)
        if self.schedule == "step" and (self.schedule_rounds is None or self.learning_rate_decay == 1):
            text = "is 'step': give a learning rate decay, by which the rate falls, and the schedule rounds between."
            raise ConfigError(text, key="schedule", value="step")
        if self.schedule != "step" and self.schedule_rounds is not None:
            text = f"belongs to schedule 'step', and this one is {self.schedule!r}. Leave it out."
            raise ConfigError(text, key="schedule_rounds", value=self.schedule_rounds)
        if self.schedule == "cosine" and self.learning_rate_decay != 1:
            text = "belongs to schedules 'constant' and 'step'; 'cosine' falls by itself. Leave it at 1."
            raise ConfigError(text, key="learning_rate_decay", value=self.learning_rate_decay)

    def for_task(self, task: str) -> Local:
        """With the learning rate of this kind of task where none is given."""
        if self.learning_rate is not None:
            return self
        return dataclasses.replace(self, learning_rate=0.005 if task == "regression" else 0.1)

    def rate(self, round: int, rounds: int) -> float:
        """The step size of round 1, 2, ... of so many; never 0.

        With W rounds of warm-up it is learning_rate r / (W + 1) in round r <= W. After them, with t = 0, 1, ..., it is
        learning_rate times decay^t (constant), decay^floor(t / schedule_rounds) (step) or, of T rounds that are left,
        (1 + cos(pi t / T)) / 2 (cosine), which is sin^2(pi / 2T) in the last.
        """
        assert self.learning_rate is not None, "not resolved by for_task"
        after = round - 1 - self.warm_up
        if after < 0:
            factor = round / (self.warm_up + 1)
        elif self.schedule == "cosine":
            factor = (1 + math.cos(math.pi * after / max(rounds - self.warm_up, after + 1))) / 2
        else:
            try:
                factor = self.learning_rate_decay ** (after // (self.schedule_rounds or 1))
            except OverflowError:  # a decay above 1, after many rounds
                return MAX_FLOAT32
        return max(min(self.learning_rate * factor, MAX_FLOAT32), LEAST_RATE)

    def least_rate(self, rounds: int) -> float:
        """The smallest step size of so many rounds."""
        return min(self._turns(rounds))

    def largest_rate(self, rounds: int) -> float:
        """The largest step size of so many rounds."""
        return max(self._turns(rounds))

    def _turns(self, rounds: int) -> list[float]:
        """Step sizes among which are the smallest and the largest: they rise in the warm-up, and later only fall or
        only rise."""
        rounds = max(rounds, 1)
        return [self.rate(round, rounds) for round in (1, min(self.warm_up + 1, rounds), rounds)]


@dataclass(frozen=True)
class RunSettings:
    """How long a run is, who takes part, how often it is measured, and on which machine."""

    rounds: int = field(default=40, metadata={"low": 1})
    """Rounds of training."""
    clients_per_round: int | Literal["all"] | None = None
    """Clients sampled in each round, or "all". Left out: the preset's number, or all clients where there is none."""
    seeds: Sequence[int] | int | None = None
    """A list of seeds, or how many (0, 1, ...), all in one computation. Each has its own initial model and batches, and
    its own split and partition where the run loads the data. Left out: those of the federations, or 5 where the run
    loads the data (1 for Flower)."""
    eval_every: int = field(default=1, metadata={"low": 1})
    """Evaluate after every so many rounds; the last round is always evaluated."""
    dropout: float = field(default=0.0, metadata={"low": 0})
    """Probability that a sampled client does not answer."""
    secure: bool = False
    """Replies are summed so that nobody sees a single one: in fixed point, exactly, by enough clients or not at all.
    For methods that need no more than sums."""
    dropout_late: float = field(default=0.0, metadata={"low": 0})
    """In a simulation with secure sums: probability that a client is gone after it has sent its masked reply, before
    the sum is unmasked."""
    engine: EngineName = "lanes"
    """"lanes" (all clients at once, fast) or "reference" (one client at a time, for checking and debugging)."""
    device: str = "auto"
    """"auto", "cpu", "cuda" or "cuda:N"."""
    kernel: KernelName = "auto"
    """How local training is carried out: "fused" (a client's steps in one compiled loop; for linear models and fully
    connected networks, and losses of the usual form), "clients" (one client after another by torch's own operations,
    for large models), "traced" (all clients at once, for any model and loss) or "compiled" (the same, compiled by
    torch). "auto" takes what is fastest."""
    threads: int | None = None
    """Threads of the CPU. Left out: OMP_NUM_THREADS, else all cores that the process may use."""
    clip: float | None = None
    """The largest L2 norm that a client's model update may have; longer ones are scaled down to it. Left out: any."""
    max_update: float = 1e6
    """The L2 norm that a client's model update never has: a reply with a longer one is refused, as is one that is far
    longer than the others' of its round."""
    robust: RuleName | None = None
    """What takes the place of the mean of the clients' model updates, so that some clients may lie: "median",
    "trimmed-mean", "krum", "multi-krum" or "clipped-mean". A simulation then also trains with the plain mean, to show
    what the rule does to accuracy and gaps. Left out: the plain mean."""
    liars: float = 0.2
    """The share of a round's clients that may lie, which the robust rule is to withstand; below 0.5."""
    metrics: Sequence[Any] | str = ()
    """Metrics besides those of the catalogue, a list or A,B,...: "module:Name", the name of an installed one, or in
    Python the `equifed.metrics.Metric` itself."""
    target: Sequence[Any] | str = field(default=(), metadata={"repeated": True, "metavar": "'METRIC OP NUMBER'"})
    """What the model is to reach, e.g. "demographic_parity_difference <= 0.05"; one target or several, all of which it
    must meet. It does not change the training: the answer says which method and setting meet it, and at what cost."""
    confidence: float | Literal["mean"] = 0.95
    """How sure it must be that a target is met: the end of the interval at this confidence must meet it, between 0.5
    and 1. "mean": the mean over seeds is enough."""
    local: Local = field(default=Local(), metadata={"hyper": False})
    """How each client trains in a round."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if "low" in each.metadata:
                whole = type(each.default) is int
                check_number(each.name, getattr(self, each.name), whole=whole, low=each.metadata["low"])
        if self.clip not in (None, math.inf):
            check_number("clip", self.clip, above=0)
        if self.max_update != math.inf:
            check_number("max_update", self.max_update, above=0)
        for name in ("dropout", "dropout_late"):
            chance = getattr(self, name)
            if chance >= 1:
                raise ConfigError(f"must be a probability below 1, got {chance}.", key=name, value=chance)
        if not isinstance(self.secure, bool):
            raise ConfigError(f"must be true or false, got {self.secure!r}.", key="secure", value=self.secure)
        if self.dropout_late and not self.secure:
            text = "is about the unmasking of secure sums: set secure = true too, or leave it out."
            raise ConfigError(text, key="dropout_late", value=self.dropout_late)
        if self.robust is not None and self.robust not in RULES:
            raise unknown_name("robust rule", self.robust, RULES, key="robust")
        check_number("liars", self.liars, low=0)
        if self.liars >= 0.5:
            text = f"must be below 0.5, got {self.liars}: no rule can tell which half lies."
            raise ConfigError(text, key="liars", value=self.liars)
        if self.robust is not None and self.secure:
            text = "compares the updates of single clients, which secure = true hides. Leave out one of them."
            raise ConfigError(text, key="robust", value=self.robust)
        count = self.clients_per_round
        if count not in (None, "all") and (not isinstance(count, numbers.Integral) or count < 1):
            text = f"must be a whole number of at least 1, or 'all', got {count!r}."
            raise ConfigError(text, key="clients_per_round")
        if self.seeds is not None:
            object.__setattr__(self, "seeds", _checked_seeds(self.seeds))
        if self.engine not in ("lanes", "reference"):
            raise unknown_name("engine", self.engine, ("lanes", "reference"), key="engine")
        if not isinstance(self.device, str):
            raise ConfigError(f"must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {self.device!r}.", key="device")
        if self.kernel not in get_args(KernelName):
            raise unknown_name("kernel", self.kernel, get_args(KernelName), key="kernel")
        if self.threads is not None:
            check_number("threads", self.threads, whole=True, low=1)
        if not isinstance(self.metrics, Iterable):
            raise ConfigError(f"must be a list of metrics, got {self.metrics!r}.", key="metrics", value=self.metrics)
        metrics = self.metrics.split(",") if isinstance(self.metrics, str) else self.metrics
        object.__setattr__(self, "metrics", tuple(metrics))
        object.__setattr__(self, "target", tuple(map(str, parse_targets(self.target))))
        check_confidence(self.confidence)
        if not isinstance(self.local, Local):
            raise ConfigError(f"must be equifed.Local(...), got {self.local!r}.", key="local")
        if self.local.warm_up >= self.rounds:
            text = f"must be below the rounds of the run, {self.rounds}, got {self.local.warm_up}."
            raise ConfigError(text, section="local", key="warm_up", value=self.local.warm_up)

    @property
    def seed_list(self) -> list[int]:
        """The seeds, none where they are left to the federations."""
        return [] if self.seeds is None or isinstance(self.seeds, int) else list(self.seeds)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values, ready for JSON; `from_dict` makes the settings again, with metrics by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        metrics = [getattr(metric, "name", metric) for metric in self.metrics]
        seeds = None if self.seeds is None else self.seed_list
        lists = {"seeds": seeds, "metrics": metrics, "target": list(self.target)}
        return values | lists | {"local": dataclasses.asdict(self.local)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunSettings:
        return cls(**{**values, "local": Local(**values["local"])})


@dataclass(frozen=True)
class SeekSettings:
    """How a target is sought: a method's fairness weight is tried in a few steps, several values in each."""

    steps: int = field(default=3, metadata={"low": 1})
    """Computations at most: one over the whole range, then one after another where the best setting must lie."""
    at_once: int = field(default=4, metadata={"low": 2})
    """Settings in each of them, all trained together."""

    def __post_init__(self) -> None:
        for each in fields(self):
            check_number(each.name, getattr(self, each.name), whole=True, low=each.metadata["low"])


@dataclass(frozen=True)
class Cluster:
    """How the jobs of a study, each a block of seeds and settings of one method, are shared among processes and
    machines. Blocks do not depend on how many work on them, so neither do the numbers."""

    workers: int = field(default=1, metadata={"low": 1})
    """Jobs at a time. More than one are shared out by Ray (the extra `cluster`), on this machine or on the cluster that
    `address` names."""
    address: str | None = None
    """The Ray cluster whose nodes share the work, e.g. "auto" or "ray-head:6379"; they must see the folder of the runs.
    Left out: this machine; with several workers $RAY_ADDRESS, where that is set."""
    cpus_per_job: float = 1.0
    """Cores that a job declares as its need."""
    gpus_per_job: float = 0.0
    """GPUs that a job declares as its need; a part of one is shared."""
    seeds_per_job: int | None = field(default=None, metadata={"low": 1})
    """Seeds that are computed together, in one job. Left out: all of them."""
    settings_per_job: int | None = field(default=None, metadata={"low": 1})
    """Settings of a sweep that are computed together, in one job. Left out: all of them."""

    def __post_init__(self) -> None:
        check_number("workers", self.workers, whole=True, low=1)
        for name in ("seeds_per_job", "settings_per_job"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), whole=True, low=1)
        check_number("cpus_per_job", self.cpus_per_job, above=0)
        check_number("gpus_per_job", self.gpus_per_job, low=0)
        if self.address is not None and (not isinstance(self.address, str) or not self.address.strip()):
            raise ConfigError(f"must be text such as 'auto', got {quoted(self.address)}.", key="address")


class RunOptions(TypedDict, total=False):
    """The fields of `RunSettings` as keyword arguments."""

    rounds: int
    clients_per_round: int | Literal["all"] | None
    seeds: Sequence[int] | int | None
    eval_every: int
    dropout: float
    secure: bool
    dropout_late: float
    engine: EngineName
    device: str
    kernel: KernelName
    threads: int | None
    clip: float | None
    max_update: float
    robust: RuleName | None
    liars: float
    metrics: Sequence[Any] | str
    target: Sequence[Any] | str
    confidence: float | Literal["mean"]
    local: Local


def _checked_seeds(given: Any) -> tuple[int, ...]:
    if isinstance(given, numbers.Integral):
        check_number("seeds", given, whole=True, low=1, high=MOST_SEEDS)
        return tuple(range(int(given)))
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(
            f"must be a list of whole numbers, or how many, got {quoted(given)}.", key="seeds", value=given
        )
    seeds = tuple(given)
    if not seeds:
        raise ConfigError("must name at least one seed.", key="seeds")
    for seed in seeds:
        check_number("seeds", seed, whole=True, low=0, what="A seed")
    if len(set(seeds)) != len(seeds):
        raise ConfigError(f"must differ, got {quoted(list(seeds))}.", key="seeds", value=given)
    return tuple(int(seed) for seed in seeds)
