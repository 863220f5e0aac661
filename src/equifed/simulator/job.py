"""A job: a simulation's complete computation, resolved and checked, for several runs (seeds, sweep values)."""

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
from equifed.modules import ends_in_probabilities, frozen_values, prepare_module, trained_parameters
from equifed.protocol import STAGES, Method, Phase, Stage, Task
from equifed.secure import FEWEST
from equifed.settings import RunSettings
from equifed.simulator.threads import count_usable_cores
from equifed.target import parse_targets
from equifed.task import num_outputs
from equifed.tree import Tree

FEW_NUMBERS = 8
"""Largest number of state numbers per client for which clients with equal states are predicted once."""
MOST_MODELS = 10_000
"""Largest number of personal models evaluated on all test rows, if the clients' rows stay in a file."""
MOST_STATES = 2**30
"""Largest size of all clients' states in bytes, if their rows stay in a file to save memory."""


@dataclass(frozen=True)
class JobRun:
    """A seed with a federation and a setting of the swept hyperparameters."""

    seed: int
    federation: Federation
    hyper: Mapping[str, float]
    """Swept hyperparameters of this run (empty without a sweep)."""
    given: Federation
    """The federation as given; differs from `federation` for a reference method that pools the rows."""
    plain: bool = False
    """True if it repeats another run with the plain mean instead of the robust rule, to show the rule's effect."""


@dataclass(frozen=True, eq=False)
class Job:
    """A method on its runs, with task, model and settings."""

    method: Method
    runs: tuple[JobRun, ...]
    task: Task
    initial: tuple[Tree, ...]
    """Initial parameters of each run."""
    model: Any
    """The model as given: a specification, a module, or a function that makes one."""
    settings: RunSettings
    """Settings with resolved seeds, number of clients per round and device."""

    @property
    def rounds(self) -> int:
        return self.settings.rounds

    @property
    def wanted(self) -> tuple[JobRun, ...]:
        """The requested runs: all but those added for comparison with a robust rule."""
        return tuple(run for run in self.runs if not run.plain)

    @property
    def federation(self) -> Federation:
        """The first run's federation, which has the clients, client groups, classes and shapes of all runs."""
        return self.runs[0].federation

    @cached_property
    def hyper(self) -> dict[str, Tensor]:
        """Swept hyperparameters of every run [R]."""
        names = self.runs[0].hyper
        return {name: torch.tensor([run.hyper[name] for run in self.runs], device=self.device) for name in names}

    @cached_property
    def device(self) -> torch.device:
        return torch.device(self.settings.device)

    @cached_property
    def threads(self) -> int:
        """Number of threads for the clients' work."""
        return self.settings.threads or count_usable_cores()

    @property
    def labels(self) -> list[dict[str, Any]]:
        """Labels that identify the runs in a table: method, swept hyperparameters, seed."""
        return [{"method": self.method.name, **run.hyper, "seed": run.seed} for run in self.runs]

    @cached_property
    def outside_metrics(self) -> tuple[Metric, ...]:
        """Metrics that are not in the catalogue. A silo does not need them, because it only counts."""
        with blaming(section="run", key="metrics"):
            return from_outside(self.settings.metrics)

    @property
    def metrics(self) -> list[Metric]:
        """All metrics that are computed."""
        return measured(self.federation, self.outside_metrics)

    def row_bytes(self, models: int = 1) -> int:
        """Return the bytes of one row in the forward pass of `models` models, features and activations, which limit the
        number of rows processed at once."""
        return 4 * (math.prod(self.federation.shape) + models * self._forward[0])

    @property
    def row_products(self) -> int:
        """Multiplications of one row's forward pass in linear layers and convolutions."""
        return self._forward[1]

    @cached_property
    def _forward(self) -> tuple[int, int]:
        """Number of activations and of multiplications of one row's forward pass."""
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
        """True if the model drops units in steps of local training."""
        return has_dropout(self.task.module)

    @cached_property
    def channel(self) -> Channel:
        """The channel that the clients' replies pass through."""
        settings = self.settings
        return Channel(settings.clip, settings.max_update, settings.secure, settings.robust, settings.liars)

    def method_of(self, run: int) -> Method:
        """Return the method with this run's hyperparameters."""
        return self.configure(self.runs[run].hyper)[0]

    def configure(self, hyper: Mapping[str, Any]) -> tuple[Method, Channel]:
        """Return the method and the channel with these hyperparameters."""
        channel = {name: value for name, value in hyper.items() if name in CHANNEL_OPTIONS}
        own = {name: value for name, value in hyper.items() if name not in channel}
        return self.method.with_hyper(**own), dataclasses.replace(self.channel, **channel)

    def phases(self, stage: Stage, hyper: Mapping[str, Any] | None = None) -> tuple[Phase, ...]:
        """Return the phases of a stage with these hyperparameters (default: the first run's); their replies pass the
        channel."""
        method, channel = self.configure(self.runs[0].hyper if hyper is None else hyper)
        return tuple(channel.apply(phase) for phase in getattr(method, stage))

    def client_keys(self, clients: np.ndarray) -> np.ndarray:
        """Return the random keys of these clients, uint64; made on first use, because few of a million clients are ever
        sampled."""
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
        """Return all clients of every run [R, N], the cohort of setup and final phases."""
        return np.tile(self._order, (len(self.runs), 1))

    @property
    def cohort_size(self) -> int:
        """Clients sampled in each round (K)."""
        count = self.settings.clients_per_round
        assert isinstance(count, int)
        return count

    def asked(self, stage: str) -> int:
        """Return the number of clients that an exchange of the stage asks."""
        return self.cohort_size if stage == "round" else self.task.num_clients

    def cohorts(self, round: int) -> np.ndarray:
        """Return the clients sampled in this round, for every run [R, K]."""
        return np.stack([randomness.draw_cohort(run.seed, round, self._order, self.cohort_size) for run in self.runs])

    def present(self, round: int, cohorts: np.ndarray) -> np.ndarray:
        """Return True for clients of the cohorts that do not drop out [R, K]."""
        return np.stack(
            [
                randomness.draw_present(run.seed, round, self.client_keys(cohort).tolist(), self.settings.dropout)
                for run, cohort in zip(self.runs, cohorts, strict=True)
            ]
        )

    def late(self, stage: Stage, round: int, step: int, cohorts: np.ndarray) -> np.ndarray:
        """Return True for clients that drop out after sending a masked reply in exchange `step` of the stage [R, K].
        Planned dropout affects rounds only."""
        chance = self.settings.dropout_late
        if not chance or stage != "round":
            return np.zeros(cohorts.shape, dtype=bool)
        return np.stack(
            [
                randomness.draw_late(run.seed, round, step, self.client_keys(cohort).tolist(), chance)
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

    one_place: the federation is a real one as seen by the server or one silo, without the other parties' rows.
    """
    if not isinstance(method, Method):
        raise ConfigError(
            f"method must be a method such as equifed.methods.FedAvg(), got {method!r}. "
            "A class needs parentheses; a name needs equifed.methods.make(name)."
        )
    feds = [federations] if isinstance(federations, Federation) else list(federations)
    if not feds or not all(isinstance(fed, Federation) for fed in feds):
        raise ConfigError("federations must be a Federation or a list of them.")
    seed_list = _choose_seeds(feds, settings.seed_list)
    if len(feds) == 1:
        feds = feds * len(seed_list)
    for fed in feds:
        _check_same(feds[0], fed)
    with blaming(section="method"):
        check(method)
        for fed in feds:
            _check_fit(method, fed, one_place)
    with blaming(section="sweep"):
        grid = _make_grid(method, over)
        if settings.robust is None and "liars" in (over or {}):
            raise ConfigError("has no effect without a robust rule: set robust, too.", key="liars")
    runs = tuple(JobRun(seed, fed, hyper, fed) for hyper in grid for seed, fed in zip(seed_list, feds, strict=True))
    if method.pooled:  # one client holds all rows and never drops out
        together = {id(fed): fed.pooled() for fed in feds}
        runs = tuple(dataclasses.replace(run, federation=together[id(run.federation)]) for run in runs)
        alone: dict[str, Any] = {"clients_per_round": "all", "dropout": 0.0, "robust": None}
        settings = dataclasses.replace(settings, **alone, secure=False, dropout_late=0.0)
    if settings.robust is not None and not one_place:  # appended, so that the other runs keep their positions
        runs += tuple(dataclasses.replace(run, plain=True) for run in runs)
    settings = _resolve(settings, runs[0].federation, seed_list)
    if settings.secure:
        method = _make_summed(method, settings, runs[0].federation)
    task = _make_task(feds[0], model, settings)
    starts = {seed: _make_start(model, task.module, method, seed, initial_parameters) for seed in seed_list}
    job = Job(method, runs, task, tuple(starts[run.seed] for run in runs), model, settings)
    if not one_place:
        _check_targets(job)
    if job.federation.mapped is not None:
        _check_states(job)
    for run in runs:
        if run.seed == seed_list[0]:
            configured, channel = job.configure(run.hyper)
            with blaming(section="method"):
                configured.check(task)
            with blaming(section="run"):
                channel.check(configured)
                channel.check_cohort(job.cohort_size)
    return job


def _make_summed(method: Method, settings: RunSettings, fed: Federation) -> Method:
    """Return the method's variant for secure sums; raise `ConfigError` if it has none or sums would be too small."""
    with blaming(section="run"):
        found = method.summed
        if found is None:
            working = methods.summable_names()
            so_set = " with these hyperparameters" * (method.name in working)
            raise ConfigError(
                f"hides each client's reply, which {method.name} needs{so_set}. Methods that work with secure sums: "
                f"{', '.join(working)}.",
                key="secure",
            )
        for phase in (*found.setup, *found.round, *found.final):
            if phase.up and phase.gather != "sum":
                raise ConfigError(
                    f"hides each client's reply, but phase {phase.name!r} of {found.name} needs single replies. "
                    "Correct its `summed`.",
                    key="secure",
                )
        channel = Channel(secure=True)
        hidden = {stage: any(map(channel.is_hidden, getattr(found, stage))) for stage in STAGES}
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
    """Refuse unknown metrics and impossible targets before training."""
    measured = [metric for metric in job.metrics if metric.overall or metric.over_clients]
    with blaming(section="run"):
        for target in parse_targets(job.settings.target):
            target.require(measured)


def _choose_seeds(feds: list[Federation], given: list[int]) -> list[int]:
    seeds = given or [fed.seed if fed.seed is not None else i for i, fed in enumerate(feds)]
    if len(set(seeds)) != len(seeds):
        raise ConfigError(f"must differ, but the federations have {seeds}. Give seeds=[...].", key="seeds")
    if len(feds) not in (1, len(seeds)):
        raise ConfigError(
            f"{len(feds)} federations but {len(seeds)} seeds: give one federation for all seeds or one per seed.",
            key="seeds",
        )
    return seeds


def _resolve(settings: RunSettings, fed: Federation, seeds: list[int]) -> RunSettings:
    """Return the settings with the values that data and machine decide."""
    count = settings.clients_per_round
    if isinstance(count, int):
        check_number("clients_per_round", count, whole=True, low=1, high=fed.num_clients)
    else:
        count = fed.num_clients if count == "all" else fed.sampled
    plain = {field.name: getattr(settings, field.name) for field in dataclasses.fields(RunSettings)}
    local, device = settings.local.for_task(fed.task), _resolve_device(settings.device)
    if settings.kernel == "clients" and device != "cpu":
        text = f"'clients' runs on the CPU only, but the device is {device!r}. Use kernel 'auto', or device 'cpu'."
        raise ConfigError(text, key="kernel", value="clients")
    return RunSettings(**plain | {"seeds": seeds, "clients_per_round": count, "device": device, "local": local})


def _check_fit(method: Method, fed: Federation, one_place: bool) -> None:
    kinds = " and ".join(method.label_kinds)
    if fed.label_kind not in method.label_kinds:
        raise ConfigError(
            f"{method.name} is for {kinds} labels; the labels of this federation are {fed.label_kind}. "
            "Choose another method."
        )
    if method.pooled and fed.mapped is not None:
        raise ConfigError(
            f"{method.name} trains on the rows of all clients in one place, but this federation's rows stay in a file. "
            "If they fit into memory, use federation.in_memory()."
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
    """Refuse client states that would take too much memory or time, for federations with rows in a file."""
    method, clients = job.method, job.task.num_clients
    kept = sum(leaf.numel() for leaf in tree.leaves(method.init_client(job.task, job.initial[0])))
    size, most = 4 * kept * clients * len(job.runs), MOST_STATES
    with blaming(section="method"):
        if size > most:
            raise ConfigError(
                f"With {method.name} every client keeps {kept:,} numbers between rounds: for {clients:,} clients and "
                f"{len(job.runs)} runs that is {size / 2**30:.1f} GiB, above {most / 2**30:.0f} GiB. Use a method "
                "without client states, a smaller model or fewer seeds at once."
            )
        if method.personal and kept > FEW_NUMBERS and clients > MOST_MODELS:
            raise ConfigError(
                f"With {method.name} every client has a personal model, and each would be evaluated on all test rows: "
                f"{clients:,} models, above {MOST_MODELS:,}. Use a method with one model for all."
            )


def _check_same(first: Federation, fed: Federation) -> None:
    if (first.mapped is None) != (fed.mapped is None):
        raise ConfigError("Federations that run together must all have their rows in memory or all in files.")
    for what in ("task", "classes", "groups", "shape", "sensitive_size", "num_clients"):
        a, b = getattr(first, what), getattr(fed, what)
        if a != b:
            raise ConfigError(f"Federations that run together must agree in {what}; one has {a}, another {b}.")
    if first.ids != fed.ids:
        a, b = next(pair for pair in zip(first.ids, fed.ids, strict=True) if pair[0] != pair[1])
        raise ConfigError(f"Federations that run together must have the same clients, but {a!r} is {b!r}.")
    if not np.array_equal(np.asarray(first.client_groups), np.asarray(fed.client_groups)):
        raise ConfigError("Federations that run together must have the same client groups.")


def _make_grid(method: Method, over: Mapping[str, Sequence[float]] | None) -> list[dict[str, float]]:
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
    """Raise `ConfigError` if an option of the method or the channel cannot be swept over these values."""
    if name in CHANNEL_OPTIONS:
        if name in method.hyper:
            text = f"cannot be swept: it is both a setting of runs and a hyperparameter of {method.name}."
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


def _make_task(fed: Federation, model: Any, settings: RunSettings) -> Task:
    with blaming(section="model"):
        module = prepare_module(models.build(model, fed.shape, num_outputs(fed.task, len(fed.classes))))
        binary = _is_binary(module, fed)
        if frozen_values(module):
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
    """Check that the model's output fits the data; return True if it has a single output."""
    before = torch.get_rng_state()
    try:
        with torch.enable_grad():  # records the output's last operation
            out = module(torch.from_numpy(fed.first_rows().astype(np.float32)))
    except Exception as error:  # the user's module may raise anything
        raise ConfigError(
            f"The model does not accept this data's rows of shape {list(fed.shape)}: "
            f"{next(iter(str(error).splitlines()), type(error).__name__)}"
        ) from error
    if not torch.equal(before, torch.get_rng_state()):
        raise ConfigError(
            "The model draws random numbers itself, so a run could not be reproduced. For dropout, use layers such as "
            "nn.Dropout, for which equifed makes masks from the seed."
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
            f"The model ends in a {last}, which equifed applies itself. Applied twice, no prediction could be "
            "near 0 or 1. Remove it, so that the model's outputs are logits."
        )
    return fed.task == "classification" and width == 1


def _make_start(model: Any, module: nn.Module, method: Method, seed: int, given: Any) -> Tree:
    """Return the initial parameters of one seed, with a leading axis if the method has several models."""
    count = method.num_models
    if given is not None:
        if not isinstance(given, Mapping):
            raise ConfigError("initial_parameters must be {name: array}, or {seed: {name: array}}.")
        if given and all(isinstance(key, int) for key in given) and seed not in given:
            raise ConfigError(f"initial_parameters has no entry for seed {seed}.")
        return _fit_given(given.get(seed, given), module, count)
    if count is not None and count > 1 and isinstance(model, models.Logistic) and model.init == "zeros":
        model = dataclasses.replace(model, init="torch")  # several models must start at different points
    made = [_make_initial(model, module, seed, index) for index in range(count or 1)]
    return tree.stack(made) if count is not None else made[0]


def _make_initial(model: Any, module: nn.Module, seed: int, index: int) -> dict[str, Tensor]:
    rng = randomness.initial_generator(seed, index)
    if isinstance(model, models.Model):
        return model.initialise(module, rng)
    if not isinstance(model, nn.Module):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**62)))
            module = model()
    return {name: value.detach().clone().float().cpu() for name, value in trained_parameters(module).items()}


def _fit_given(given: Mapping[str, Any], module: nn.Module, count: int | None) -> Tree:
    values = {name: torch.as_tensor(np.asarray(value), dtype=torch.float32) for name, value in given.items()}
    expected = {name: tuple(parameter.shape) for name, parameter in trained_parameters(module).items()}
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


def _resolve_device(name: str) -> str:
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
