"""The settings of a run: one value with one set of defaults, for Python, configuration files, the command line, Flower
and results."""

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
"""Smallest step size. Smaller 32-bit numbers lose precision and then become 0."""
RULES: tuple[RuleName, ...] = get_args(RuleName)
"""Robust rules, see `equifed.robust`."""

SEEDS = 5
"""Default number of seeds of a run that loads its data itself, from a configuration or the command line."""
MOST_SEEDS = 10**6
"""Largest number of seeds of one computation, far more than fit into memory."""
MARGIN = 0.01
"""Default quality that a verdict gives up for fairness: one point of accuracy, or 1 % of the RMSE."""


@dataclass(frozen=True)
class Local:
    """The settings of each client's local training. The optimiser starts afresh every round."""

    epochs: int = field(default=2, metadata={"key": "local_epochs"})
    """Passes over the client's rows per round, each in a new order."""
    batch_size: int | None = 32
    """Rows per step; the last batch of an epoch may be shorter. None: all rows in one step."""
    learning_rate: float | None = None
    """Step size of the first round. Default: 0.1, and 0.005 for regression, where gradients are unbounded."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """The update rule."""
    momentum: float = 0.0
    """Heavy-ball momentum of SGD."""
    weight_decay: float = 0.0
    """L2 penalty added to the gradient, as in torch's SGD and Adam."""
    learning_rate_decay: float = 1.0
    """The step size is multiplied by this after every round; with schedule "step", after every schedule_rounds."""
    schedule: Schedule = "constant"
    """Schedule of the step size: "constant" (except for learning_rate_decay), "step" (learning_rate_decay every
    schedule_rounds), or "cosine" (half a cosine wave over all rounds, down to nearly 0 in the last)."""
    schedule_rounds: int | None = None
    """Rounds between two decays of the step size, with schedule "step"."""
    warm_up: int = 0
    """Rounds at the start in which the step size grows linearly to the learning rate. The schedule begins after
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
            text = "applies to SGD only: Adam has its own. Leave it at 0 with Adam."
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
            text = "is 'step', which needs a learning rate decay other than 1 and the schedule rounds between decays."
            raise ConfigError(text, key="schedule", value="step")
        if self.schedule != "step" and self.schedule_rounds is not None:
            text = f"applies to schedule 'step' only, and the schedule is {self.schedule!r}. Leave it out."
            raise ConfigError(text, key="schedule_rounds", value=self.schedule_rounds)
        if self.schedule == "cosine" and self.learning_rate_decay != 1:
            text = "applies to schedules 'constant' and 'step' only: 'cosine' decays by itself. Leave it at 1."
            raise ConfigError(text, key="learning_rate_decay", value=self.learning_rate_decay)

    def for_task(self, task: str) -> Local:
        """Return the settings with a learning rate: the given one, or the default for this kind of task."""
        if self.learning_rate is not None:
            return self
        return dataclasses.replace(self, learning_rate=0.005 if task == "regression" else 0.1)

    def rate(self, round: int, rounds: int) -> float:
        """Return the step size of round 1, 2, ... of `rounds`; never 0.

        With W rounds of warm-up it is learning_rate r / (W + 1) in round r <= W. After them, with t = 0, 1, ..., it is
        learning_rate times decay^t (constant), decay^floor(t / schedule_rounds) (step) or, with T rounds left,
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
        """Return the smallest step size in a run of `rounds` rounds."""
        return min(self._turning_rates(rounds))

    def largest_rate(self, rounds: int) -> float:
        """Return the largest step size in a run of `rounds` rounds."""
        return max(self._turning_rates(rounds))

    def _turning_rates(self, rounds: int) -> list[float]:
        """Return step sizes that include the smallest and the largest: the step size rises during the warm-up, and
        later only falls or only rises."""
        rounds = max(rounds, 1)
        return [self.rate(round, rounds) for round in (1, min(self.warm_up + 1, rounds), rounds)]


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run: its rounds, clients, seeds, evaluation, aggregation and machine."""

    rounds: int = field(default=40, metadata={"low": 1})
    """Rounds of training."""
    clients_per_round: int | Literal["all"] | None = None
    """Clients sampled in each round, or "all". Default: the preset's number, or all clients without a preset."""
    seeds: Sequence[int] | int | None = None
    """List of seeds, or their number (0, 1, ...), all run in one computation. Each has its own initial model and
    batches, and its own split and partition if the run loads the data. Default: the federations' seeds, or 5 if the run
    loads the data (1 for Flower)."""
    eval_every: int = field(default=1, metadata={"low": 1})
    """Rounds between two evaluations; the last round is always evaluated."""
    dropout: float = field(default=0.0, metadata={"low": 0})
    """Probability that a sampled client does not reply."""
    secure: bool = False
    """Secure aggregation: only exact sums (in fixed point) over enough clients are revealed, never a single reply. For
    methods that need only sums."""
    dropout_late: float = field(default=0.0, metadata={"low": 0})
    """Probability, in a simulation of secure aggregation, that a client drops out after it has sent its masked reply,
    before the sum is unmasked."""
    engine: EngineName = "lanes"
    """"lanes" (all clients at once, fast) or "reference" (one client at a time, for checking and debugging)."""
    device: str = "auto"
    """Device: "auto", "cpu", "cuda" or "cuda:N"."""
    kernel: KernelName = "auto"
    """Implementation of local training: "fused" (a client's steps in one compiled loop; for linear models and fully
    connected networks, and losses of the usual form), "clients" (one client after another by torch's own operations,
    for large models), "traced" (all clients at once, for any model and loss) or "compiled" (the same, compiled by
    torch). "auto" takes the fastest."""
    threads: int | None = None
    """CPU threads. Default: OMP_NUM_THREADS, else all cores that the process may use."""
    clip: float | None = None
    """Largest L2 norm of a client's model update; longer updates are scaled down to it. Default: no clipping."""
    max_update: float = 1e6
    """L2 norm above which a client's model update, and its reply, is refused. An update far longer than the others of
    its round is refused, too."""
    robust: RuleName | None = None
    """Aggregation rule that tolerates some malicious clients: "median", "trimmed-mean", "krum", "multi-krum" or
    "clipped-mean". A simulation then also trains with the plain mean, to show the rule's effect on accuracy and
    gaps. Default: the weighted mean."""
    liars: float = 0.2
    """Share of a round's clients that may be malicious and that the robust rule tolerates; below 0.5."""
    metrics: Sequence[Any] | str = ()
    """Additional metrics, a list or A,B,...: "module:Name", the name of an installed one, or in Python the
    `equifed.metrics.Metric` itself."""
    target: Sequence[Any] | str = field(default=(), metadata={"repeated": True, "metavar": "'METRIC OP NUMBER'"})
    """Target for the model, e.g. "demographic_parity_difference <= 0.05"; with several targets it must meet all. The
    training does not change: the answer names the methods and settings that meet them, and their cost."""
    confidence: float | Literal["mean"] = 0.95
    """Confidence with which a target must be met, between 0.5 and 1: the end of the confidence interval must meet it.
    "mean": the mean over seeds is enough."""
    local: Local = field(default=Local(), metadata={"hyper": False})
    """Local training of each client in a round."""

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
        self._check_protection()
        self._check_means()
        if self.seeds is not None:
            object.__setattr__(self, "seeds", _check_seeds(self.seeds))
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

    def _check_protection(self) -> None:
        """Check secure sums and robust rules, and that they go together."""
        if not isinstance(self.secure, bool):
            raise ConfigError(f"must be true or false, got {self.secure!r}.", key="secure", value=self.secure)
        if self.dropout_late and not self.secure:
            text = "applies to secure sums only: set secure = true too, or leave it out."
            raise ConfigError(text, key="dropout_late", value=self.dropout_late)
        if self.robust is not None and self.robust not in RULES:
            raise unknown_name("robust rule", self.robust, RULES, key="robust")
        check_number("liars", self.liars, low=0)
        if self.liars >= 0.5:
            text = f"must be below 0.5, got {self.liars}: no rule tolerates a malicious half."
            raise ConfigError(text, key="liars", value=self.liars)
        if self.robust is not None and self.secure:
            text = "compares the updates of single clients, which secure = true hides. Use one of the two."
            raise ConfigError(text, key="robust", value=self.robust)

    def _check_means(self) -> None:
        """Check who takes part in a round and what computes it."""
        count = self.clients_per_round
        if count not in (None, "all") and (not isinstance(count, numbers.Integral) or count < 1):
            text = f"must be a whole number of at least 1, or 'all', got {count!r}."
            raise ConfigError(text, key="clients_per_round")
        if self.engine not in ("lanes", "reference"):
            raise unknown_name("engine", self.engine, ("lanes", "reference"), key="engine")
        if not isinstance(self.device, str):
            raise ConfigError(f"must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {self.device!r}.", key="device")
        if self.kernel not in get_args(KernelName):
            raise unknown_name("kernel", self.kernel, get_args(KernelName), key="kernel")
        if self.threads is not None:
            check_number("threads", self.threads, whole=True, low=1)

    @property
    def seed_list(self) -> list[int]:
        """The seeds; empty if the federations have them."""
        return [] if self.seeds is None or isinstance(self.seeds, int) else list(self.seeds)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON, with metrics by name; `from_dict` restores the settings."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        metrics = [getattr(metric, "name", metric) for metric in self.metrics]
        seeds = None if self.seeds is None else self.seed_list
        lists = {"seeds": seeds, "metrics": metrics, "target": list(self.target)}
        return values | lists | {"local": dataclasses.asdict(self.local)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunSettings:
        """Restore the settings from the values of `to_dict`."""
        return cls(**{**values, "local": Local(**values["local"])})


@dataclass(frozen=True)
class SeekSettings:
    """The settings of a search for a target: several values of a method's fairness weight are tried in each step."""

    steps: int = field(default=3, metadata={"low": 1})
    """Largest number of steps: the first over the whole range, each later one where the best setting must lie."""
    at_once: int = field(default=4, metadata={"low": 2})
    """Settings tried in each step, all trained together."""

    def __post_init__(self) -> None:
        for each in fields(self):
            check_number(each.name, getattr(self, each.name), whole=True, low=each.metadata["low"])


@dataclass(frozen=True)
class Cluster:
    """The distribution of a study's jobs over processes and machines. A job is a block of seeds and settings of one
    method. Blocks do not depend on the number of workers, so neither do the results."""

    workers: int = field(default=1, metadata={"low": 1})
    """Jobs that run at the same time. More than one are distributed by Ray (the extra `cluster`), on this machine or on
    the cluster at `address`."""
    address: str | None = None
    """Address of the Ray cluster, e.g. "auto" or "ray-head:6379"; its nodes must share the folder of the runs. Default:
    this machine, or $RAY_ADDRESS if it is set and there are several workers."""
    cpus_per_job: float = 1.0
    """Cores reserved for a job."""
    gpus_per_job: float = 0.0
    """GPUs reserved for a job; a fraction shares one GPU."""
    seeds_per_job: int | None = field(default=None, metadata={"low": 1})
    """Seeds computed together, in one job. Default: all."""
    settings_per_job: int | None = field(default=None, metadata={"low": 1})
    """Settings of a sweep computed together, in one job. Default: all."""

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


def _check_seeds(given: Any) -> tuple[int, ...]:
    """Return the seeds as a tuple, or raise a ConfigError."""
    if isinstance(given, numbers.Integral):
        check_number("seeds", given, whole=True, low=1, high=MOST_SEEDS)
        return tuple(range(int(given)))
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(
            f"must be a list of whole numbers, or their number, got {quoted(given)}.", key="seeds", value=given
        )
    seeds = tuple(given)
    if not seeds:
        raise ConfigError("must name at least one seed.", key="seeds")
    for seed in seeds:
        check_number("seeds", seed, whole=True, low=0, what="A seed")
    if len(set(seeds)) != len(seeds):
        raise ConfigError(f"must differ, got {quoted(list(seeds))}.", key="seeds", value=given)
    return tuple(int(seed) for seed in seeds)
