"""A job: everything that a simulation computes, resolved and checked. Several runs (seeds, sweep values) share it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equifed import methods, models, randomness, tree
from equifed.channel import CHANNEL_OPTIONS, Channel
from equifed.dropout import has_dropout
from equifed.errors import ConfigError, blaming, check_number
from equifed.federation import Federation
from equifed.methods.hyper import check, check_value
from equifed.metrics.catalogue import Metric, from_outside, measured
from equifed.modules import ends_in_probabilities, frozen, prepared, trained
from equifed.protocol import STAGES, Method, Phase, Stage, Task
from equifed.secure import FEWEST
from equifed.settings import RunSettings
from equifed.simulator.threads import usable_cores
from equifed.target import parse_targets
from equifed.task import num_outputs
from equifed.tree import Tree

FEW_NUMBERS = 8
"""Numbers kept by a client up to which clients are compared, to predict once for those that keep the same."""
MOST_MODELS = 10_000
"""Models of clients' own that are measured, each on all test rows, where the clients' rows stay in a file."""
MOST_STATES = 2**30
"""Bytes of what clients keep between rounds, where their rows stay in a file because memory is short."""


@dataclass(frozen=True)
class Run:
    """One seed with one federation and one setting of the swept hyper-parameters."""

    seed: int
    federation: Federation
    hyper: Mapping[str, float]
    """Swept hyper-parameters of this run (empty without a sweep)."""
    given: Federation
    """The federation as it was given: another than `federation` for a reference that pools the rows."""
    plain: bool = False
    """It repeats another run with the plain mean in place of the robust rule, to show what the rule does."""


@dataclass(frozen=True, eq=False)
class Job:
    method: Method
    runs: tuple[Run, ...]
    task: Task
    initial: tuple[Tree, ...]
    """Initial parameters of each run."""
    model: Any
    """The model as it was given: a specification, a module, or a function that makes one."""
    settings: RunSettings
    """Resolved: with the seeds, the number of clients per round and the device that are used."""

    @property
    def rounds(self) -> int:
        return self.settings.rounds

    @property
    def wanted(self) -> tuple[Run, ...]:
        """The runs that were asked for: all but the last, which are there to compare a robust rule with."""
        return tuple(run for run in self.runs if not run.plain)

    @property
    def federation(self) -> Federation:
        """That of the first run, with the clients, client groups, classes and shapes of all."""
        return self.runs[0].federation

    @cached_property
    def hyper(self) -> dict[str, Tensor]:
        """Swept hyper-parameters of every run [R]."""
        names = self.runs[0].hyper
        return {name: torch.tensor([run.hyper[name] for run in self.runs], device=self.device) for name in names}

    @cached_property
    def device(self) -> torch.device:
        return torch.device(self.settings.device)

    @cached_property
    def threads(self) -> int:
        """How many threads share the clients' work."""
        return self.settings.threads or usable_cores()

    @property
    def labels(self) -> list[dict[str, Any]]:
        """What tells the runs apart in a table: method, swept hyper-parameters, seed."""
        return [{"method": self.method.name, **run.hyper, "seed": run.seed} for run in self.runs]

    @cached_property
    def outside_metrics(self) -> tuple[Metric, ...]:
        """Metrics besides those of the catalogue. A silo, which measures nothing but counts, need not have them."""
        with blaming(section="run", key="metrics"):
            return from_outside(self.settings.metrics)

    @property
    def metrics(self) -> list[Metric]:
        """What is measured."""
        return measured(self.federation, self.outside_metrics)

    def row_bytes(self, models: int = 1) -> int:
        """Memory that one row takes in the forward pass of so many models, its features and all activations: what
        bounds how many are taken at once."""
        return 4 * (math.prod(self.federation.shape) + models * self._forward[0])

    @property
    def row_products(self) -> int:
        """Multiplications of one row's forward pass, as far as linear layers and convolutions do them."""
        return self._forward[1]

    @cached_property
    def _forward(self) -> tuple[int, int]:
        """Numbers that one row's forward pass makes, and the multiplications it takes."""
        sizes: list[int] = []
        products: list[int] = []

        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            sizes.extend(leaf.numel() for leaf in tree.leaves(output) if isinstance(leaf, Tensor))
            if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
                # all weights of an output, or at a transposed convolution of an input, for each place
                placed = inputs[0] if getattr(module, "transposed", False) else output
                products.append(module.weight.numel() * placed.numel() // module.weight.shape[0])

        first = next(self.task.module.parameters())
        hooks = [module.register_forward_hook(note) for module in self.task.module.modules()]
        try:
            with torch.no_grad():
                self.task.module(torch.zeros(1, *self.federation.shape, device=first.device))
        finally:
            for hook in hooks:
                hook.remove()
        return sum(sizes), sum(products)

    @cached_property
    def has_dropout(self) -> bool:
        """Whether the model drops units in steps of local training."""
        return has_dropout(self.task.module)

    @cached_property
    def channel(self) -> Channel:
        """What the clients' replies go through."""
        settings = self.settings
        return Channel(settings.clip, settings.max_update, settings.secure, settings.robust, settings.liars)

    def method_of(self, run: int) -> Method:
        """The method with the run's own hyper-parameters."""
        return self.configured(self.runs[run].hyper)[0]

    def configured(self, hyper: Mapping[str, Any]) -> tuple[Method, Channel]:
        """The method and the channel with these values of theirs."""
        channel = {name: value for name, value in hyper.items() if name in CHANNEL_OPTIONS}
        own = {name: value for name, value in hyper.items() if name not in channel}
        return self.method.with_hyper(**own), dataclasses.replace(self.channel, **channel)

    def phases(self, stage: Stage, hyper: Mapping[str, Any] | None = None) -> tuple[Phase, ...]:
        """The phases of a stage with these hyper-parameters, or with those of the first run; their replies go through
        the channel."""
        method, channel = self.configured(self.runs[0].hyper if hyper is None else hyper)
        return tuple(channel.through(phase) for phase in getattr(method, stage))

    def client_keys(self, clients: np.ndarray) -> np.ndarray:
        """The random keys of these clients, uint64; made when a client is first asked for, since of a million few ever
        are."""
        keys, known = self._client_keys
        for k in clients[~known[clients]].tolist():
            keys[k], known[k] = randomness.key(self.federation.ids[k]), True
        return keys[clients]

    @cached_property
    def _client_keys(self) -> tuple[np.ndarray, np.ndarray]:
        many = self.federation.num_clients
        return np.zeros(many, np.uint64), np.zeros(many, dtype=bool)

    @cached_property
    def _order(self) -> np.ndarray:
        return self.federation.by_name()

    def everyone(self) -> np.ndarray:
        """All clients of every run [R, N]: the cohort of setup and final phases."""
        return np.tile(self._order, (len(self.runs), 1))

    @property
    def cohort_size(self) -> int:
        """Clients sampled in each round (K)."""
        count = self.settings.clients_per_round
        assert isinstance(count, int)
        return count

    def asked(self, stage: str) -> int:
        """How many clients an exchange of the stage asks."""
        return self.cohort_size if stage == "round" else self.task.num_clients

    def cohorts(self, round: int) -> np.ndarray:
        """The clients sampled in this round, for every run [R, K]."""
        return np.stack([randomness.cohort(run.seed, round, self._order, self.cohort_size) for run in self.runs])

    def present(self, round: int, cohorts: np.ndarray) -> np.ndarray:
        """Which of them do not drop out [R, K]."""
        return np.stack(
            [
                randomness.present(run.seed, round, self.client_keys(cohort).tolist(), self.settings.dropout)
                for run, cohort in zip(self.runs, cohorts, strict=True)
            ]
        )

    def late(self, stage: Stage, round: int, step: int, cohorts: np.ndarray) -> np.ndarray:
        """Which of them are gone after they have sent a masked reply in exchange `step` of the stage [R, K]: in rounds
        only, since nobody drops out of the other stages by plan."""
        chance = self.settings.dropout_late
        if not chance or stage != "round":
            return np.zeros(cohorts.shape, dtype=bool)
        return np.stack(
            [
                randomness.late(run.seed, round, step, self.client_keys(cohort).tolist(), chance)
                for run, cohort in zip(self.runs, cohorts, strict=True)
            ]
        )


def make_job(
    method: Method,
    federations: Federation | Sequence[Federation],
    model: Any,
    settings: RunSettings,
    *,
    over: Mapping[str, Sequence[float]] | None = None,
    initial_parameters: Any = None,
    one_place: bool = False,
) -> Job:
    """Check and resolve the arguments of `simulate` and `sweep`; tables and engine are made when the job starts.

    one_place: the federation is a real one as one place in it sees it, without the rows that are elsewhere.
    """
    if not isinstance(method, Method):
        raise ConfigError(
            f"method must be a method such as equifed.methods.FedAvg(), got {method!r}. "
            "A class needs parentheses; a name needs equifed.methods.make(name)."
        )
    feds = [federations] if isinstance(federations, Federation) else list(federations)
    if not feds or not all(isinstance(fed, Federation) for fed in feds):
        raise ConfigError("federations must be a Federation or a list of them.")
    seed_list = _seeds(feds, settings.seed_list)
    if len(feds) == 1:
        feds = feds * len(seed_list)
    for fed in feds:
        _check_same(feds[0], fed)
    with blaming(section="method"):
        check(method)
        for fed in feds:
            _check_fit(method, fed, one_place)
    with blaming(section="sweep"):
        grid = _grid(method, over)
        if settings.robust is None and "liars" in (over or {}):
            raise ConfigError("does nothing without a robust rule: set robust too.", key="liars")
    runs = tuple(Run(seed, fed, hyper, fed) for hyper in grid for seed, fed in zip(seed_list, feds, strict=True))
    if method.pooled:  # one place holds everything, and is always there
        together = {id(fed): fed.pooled() for fed in feds}
        runs = tuple(dataclasses.replace(run, federation=together[id(run.federation)]) for run in runs)
        alone: dict[str, Any] = {"clients_per_round": "all", "dropout": 0.0, "robust": None}
        settings = dataclasses.replace(settings, **alone, secure=False, dropout_late=0.0)
    if settings.robust is not None and not one_place:  # last, so that the positions of the others are the same
        runs += tuple(dataclasses.replace(run, plain=True) for run in runs)
    settings = _resolved(settings, runs[0].federation, seed_list)
    if settings.secure:
        method = _summed(method, settings, runs[0].federation)
    task = _task(feds[0], model, settings)
    starts = {seed: _start(model, task.module, method, seed, initial_parameters) for seed in seed_list}
    job = Job(method, runs, task, tuple(starts[run.seed] for run in runs), model, settings)
    if not one_place:
        _check_targets(job)
    if job.federation.mapped is not None:
        _check_states(job)
    for run in runs:
        if run.seed == seed_list[0]:
            configured, channel = job.configured(run.hyper)
            with blaming(section="method"):
                configured.check(task)
            with blaming(section="run"):
                channel.check(configured)
                channel.check_cohort(job.cohort_size)
    return job


def _summed(method: Method, settings: RunSettings, fed: Federation) -> Method:
    """The method as it runs with secure sums; a ConfigError where it cannot, or where sums would be of too few."""
    with blaming(section="run"):
        found = method.summed
        if found is None:
            working = methods.summing()
            so_set = " with these hyper-parameters" * (method.name in working)
            raise ConfigError(
                f"hides each client's reply, which {method.name} needs{so_set}. Methods that work with it: "
                f"{', '.join(working)}.",
                key="secure",
            )
        for phase in (*found.setup, *found.round, *found.final):
            if phase.up and phase.gather != "sum":
                raise ConfigError(
                    f"hides each client's reply, but phase {phase.name!r} of {found.name} gathers them singly. Correct "
                    "its `summed`.",
                    key="secure",
                )
        channel = Channel(secure=True)
        hidden = {stage: any(map(channel.hides, getattr(found, stage))) for stage in STAGES}
        if fed.num_clients < FEWEST and any(hidden.values()):
            raise ConfigError(
                f"needs at least {FEWEST} clients, and this federation has {fed.num_clients}: from a sum of two, each "
                "knows the other's reply.",
                key="secure",
            )
        count = settings.clients_per_round
        assert isinstance(count, int), "resolved"
        if count < FEWEST and hidden["round"]:
            text = f"must be at least {FEWEST} for secure sums, got {count}: from a sum of two, each knows the other's."
            raise ConfigError(text, key="clients_per_round", value=count)
    return found


def _check_targets(job: Job) -> None:
    """Refuse metrics that are unknown, and targets that no result could be held to, before anything is trained."""
    measured = [metric for metric in job.metrics if metric.overall or metric.over_clients]
    with blaming(section="run"):
        for target in parse_targets(job.settings.target):
            target.require(measured)


def _seeds(feds: list[Federation], given: list[int]) -> list[int]:
    seeds = given or [fed.seed if fed.seed is not None else i for i, fed in enumerate(feds)]
    if len(set(seeds)) != len(seeds):
        raise ConfigError(f"must differ, but the federations have {seeds}. Give seeds=[...].", key="seeds")
    if len(feds) not in (1, len(seeds)):
        raise ConfigError(
            f"{len(feds)} federations but {len(seeds)} seeds: give one federation for all seeds or one for each.",
            key="seeds",
        )
    return seeds


def _resolved(settings: RunSettings, fed: Federation, seeds: list[int]) -> RunSettings:
    """The settings with what the data and the machine decide."""
    count = settings.clients_per_round
    if isinstance(count, int):
        check_number("clients_per_round", count, whole=True, low=1, high=fed.num_clients)
    else:
        count = fed.num_clients if count == "all" else fed.sampled
    plain = {field.name: getattr(settings, field.name) for field in dataclasses.fields(RunSettings)}
    local, device = settings.local.for_task(fed.task), _device(settings.device)
    if settings.kernel == "clients" and device != "cpu":
        text = f"'clients' is a way of the CPU, and this runs on {device!r}, which needs the work of many at once."
        raise ConfigError(text, key="kernel", value="clients")
    return RunSettings(**plain | {"seeds": seeds, "clients_per_round": count, "device": device, "local": local})


def _check_fit(method: Method, fed: Federation, one_place: bool) -> None:
    kinds = " and ".join(method.label_kinds)
    if fed.label_kind not in method.label_kinds:
        raise ConfigError(f"{method.name} is for {kinds} labels; those of this federation are {fed.label_kind}.")
    if method.pooled and fed.mapped is not None:
        raise ConfigError(
            f"{method.name} trains on the rows of all clients in one place, but those of this federation stay in a "
            "file. Where they fit into memory, give it federation.in_memory()."
        )
    if method.needs_validation and not len(fed.validation) and not one_place:
        raise ConfigError(
            f"{method.name} measures fairness on a validation set held by the server, but this federation has "
            "none. Give one (validation=...), or a share of the rows (Holdout(validation=0.2))."
        )
    if method.needs_client_groups and fed.client_groups is None:
        raise ConfigError(
            f"{method.name} needs to know each client's group, but this federation has no client groups. "
            "Give them (from_arrays: client_groups=...), or a partition that makes them (RotationGroups)."
        )


def _check_states(job: Job) -> None:
    """Refuse, for clients whose rows stay in a file, what would need as much memory again, or take for ever."""
    method, clients = job.method, job.task.num_clients
    kept = sum(leaf.numel() for leaf in tree.leaves(method.init_client(job.task, job.initial[0])))
    size, most = 4 * kept * clients * len(job.runs), MOST_STATES
    with blaming(section="method"):
        if size > most:
            raise ConfigError(
                f"With {method.name} every client keeps {kept:,} numbers between rounds: for {clients:,} clients and "
                f"{len(job.runs)} runs that is {size / 2**30:.1f} GiB, above {most / 2**30:.0f} GiB. Take a method "
                "without such states, a smaller model or fewer seeds at once."
            )
        if method.personal and kept > FEW_NUMBERS and clients > MOST_MODELS:
            raise ConfigError(
                f"With {method.name} every client has a model of its own, and each would be measured on all test rows: "
                f"{clients:,} models, above {MOST_MODELS:,}. Take a method with one model for all."
            )


def _check_same(first: Federation, fed: Federation) -> None:
    if (first.mapped is None) != (fed.mapped is None):
        raise ConfigError("Federations that run together must all have their rows in memory, or all in files.")
    for what in ("task", "classes", "groups", "shape", "sensitive_size", "num_clients"):
        a, b = getattr(first, what), getattr(fed, what)
        if a != b:
            raise ConfigError(f"Federations that run together must agree in {what}; one has {a}, another {b}.")
    if first.ids != fed.ids:
        a, b = next(pair for pair in zip(first.ids, fed.ids, strict=True) if pair[0] != pair[1])
        raise ConfigError(f"Federations that run together must have the same clients, but {a!r} is {b!r}.")
    if not np.array_equal(np.asarray(first.client_groups), np.asarray(fed.client_groups)):
        raise ConfigError("Federations that run together must have the same client groups.")


def _grid(method: Method, over: Mapping[str, Sequence[float]] | None) -> list[dict[str, float]]:
    over = over or {}
    for name, values in over.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise ConfigError(f"The sweep over {name} needs a list of values, got {values!r}.", key=name, value=values)
        if not len(values):
            raise ConfigError(f"The sweep over {name} has no values.", key=name)
        check_swept(method, name, values)
        if len(set(values)) != len(values):
            raise ConfigError(f"The sweep over {name} names a value twice: {list(values)}.", key=name, value=values)
    return [dict(zip(over, map(float, point), strict=True)) for point in itertools.product(*over.values())]


def check_swept(method: Method, name: str, values: Sequence[float]) -> None:
    """Raise a ConfigError for what cannot be swept: of the method, or of the channel."""
    if name in CHANNEL_OPTIONS:
        if name in method.hyper:
            text = f"cannot be swept: runs have a setting of the name that {method.name} has for a hyper-parameter."
            raise ConfigError(text, key=name)
        for value in values:
            dataclasses.replace(RunSettings(), **{name: value})  # type: ignore[arg-type]
        return
    for value in values:
        check_value(method, name, value)
        check_number(name, value)
    if isinstance(method.hyper[name], bool):
        raise ConfigError("is true or false and cannot be swept in one call; simulate both.", key=name)
    if isinstance(method.hyper[name], int):
        raise ConfigError("is a size, and runs of different sizes cannot share one call; simulate each.", key=name)


def _task(fed: Federation, model: Any, settings: RunSettings) -> Task:
    with blaming(section="model"):
        module = prepared(models.build(model, fed.shape, num_outputs(fed.task, len(fed.classes))))
        binary = _is_binary(module, fed)
        if frozen(module):
            module = module.to(settings.device)
    return Task(
        module=module,
        kind=fed.task,
        num_classes=len(fed.classes),
        num_groups=len(fed.groups),
        num_clients=fed.num_clients,
        rounds=settings.rounds,
        local=settings.local,
        sensitive_size=fed.sensitive_size,
        num_client_groups=0 if fed.client_groups is None else int(fed.client_groups.max()) + 1,
        binary=binary,
    )


def _is_binary(module: nn.Module, fed: Federation) -> bool:
    """Whether the model has one output; also the check that its output fits the data."""
    before = torch.get_rng_state()
    try:
        with torch.enable_grad():  # which remembers the last step
            out = module(torch.from_numpy(fed.first_rows().astype(np.float32)))
    except Exception as error:  # whatever the user's own module raises
        raise ConfigError(
            f"The model does not take this data's rows of shape {list(fed.shape)}: "
            f"{next(iter(str(error).splitlines()), type(error).__name__)}"
        ) from error
    if not torch.equal(before, torch.get_rng_state()):
        raise ConfigError(
            "The model draws random numbers of its own: a run could not be repeated exactly. For dropout, use layers "
            "such as nn.Dropout, whose masks are made from the seed."
        )
    width = 1 if out.dim() == 1 else out.shape[1] if out.dim() == 2 else -1
    allowed = {1} if fed.task == "regression" else {1, 2} if len(fed.classes) == 2 else {len(fed.classes)}
    if width not in allowed:
        wanted = " or ".join(str(n) for n in sorted(allowed))
        raise ConfigError(
            f"The model's output for two rows has shape {list(out.shape)}; this task needs [rows, {wanted}]."
        )
    if fed.task == "classification" and (last := ends_in_probabilities(out)):
        raise ConfigError(
            f"The model ends in a {last}, but equifed applies it itself: applied twice, nothing near 0 or 1 can be "
            "predicted. Remove it, so that the model's outputs are logits."
        )
    return fed.task == "classification" and width == 1


def _start(model: Any, module: nn.Module, method: Method, seed: int, given: Any) -> Tree:
    """Initial parameters of one seed, with a leading axis where the method wants several models."""
    count = method.num_models
    if given is not None:
        if not isinstance(given, Mapping):
            raise ConfigError("initial_parameters must be {name: array}, or {seed: {name: array}}.")
        if given and all(isinstance(key, int) for key in given) and seed not in given:
            raise ConfigError(f"initial_parameters has no entry for seed {seed}.")
        return _fit_given(given.get(seed, given), module, count)
    if count is not None and count > 1 and isinstance(model, models.Logistic) and model.init == "zeros":
        model = dataclasses.replace(model, init="torch")  # several models must start apart
    made = [_initial(model, module, seed, index) for index in range(count or 1)]
    return tree.stack(made) if count is not None else made[0]


def _initial(model: Any, module: nn.Module, seed: int, index: int) -> dict[str, Tensor]:
    rng = randomness.initial(seed, index)
    if isinstance(model, models.Model):
        return model.initialise(module, rng)
    if not isinstance(model, nn.Module):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**62)))
            module = model()
    return {name: value.detach().clone().float().cpu() for name, value in trained(module).items()}


def _fit_given(given: Mapping[str, Any], module: nn.Module, count: int | None) -> Tree:
    values = {name: torch.as_tensor(np.asarray(value), dtype=torch.float32) for name, value in given.items()}
    expected = {name: tuple(parameter.shape) for name, parameter in trained(module).items()}
    if set(values) != set(expected):
        raise ConfigError(
            f"initial_parameters must have the model's parameters {', '.join(expected)}; got {', '.join(values)}."
        )
    for name, shape in expected.items():
        got = tuple(values[name].shape)
        if not torch.isfinite(values[name]).all():
            raise ConfigError(f"initial_parameters[{name!r}] has NaN or infinite values.")
        if got != shape and (count is None or got != (count, *shape)):
            raise ConfigError(f"initial_parameters[{name!r}] must have shape {list(shape)}, got {list(got)}.")
    if count is None:
        return values
    return {name: value.expand(count, *expected[name]).clone() for name, value in values.items()}


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {name!r}.", key="device")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"is {name!r}, but torch sees no CUDA device here. Use 'auto' or 'cpu'.", key="device")
    return name
