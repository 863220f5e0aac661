"""Options that several commands share, each written once as the field of a dataclass."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from equifed.experiments import Option


@dataclass(frozen=True)
class Output:
    """Where runs lie and how to print."""

    runs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the runs. (default: $EQUIFED_RUNS, else runs)", show_default=False),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")] = False


@dataclass(frozen=True)
class Settings:
    """The settings of `compare` and `sweep`: a configuration without a file."""

    preset: Annotated[str | None, typer.Option(help="How to read the data: a preset of `equifed data describe`.")] = (
        None
    )
    rounds: Annotated[int, typer.Option(help="Rounds of training.")] = 40
    seeds: Annotated[int, typer.Option(metavar="N", help="Seeds 0 to N-1, each with its own split and partition.")] = 5
    num_partitions: Annotated[
        int | None, typer.Option(metavar="N", help="Clients. (default: the preset's)", show_default=False)
    ] = None
    clients_per_round: Annotated[
        int | None,
        typer.Option(metavar="N", help="Sampled in each round. (default: the preset's)", show_default=False),
    ] = None
    partition: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Who holds which rows: iid, dirichlet, skewed, natural, ... (default: dirichlet)",
            show_default=False,
        ),
    ] = None
    alpha: Annotated[
        float | None,
        typer.Option(help="Dirichlet concentration; small is heterogeneous. (default: 0.5)", show_default=False),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="logistic, linear, mlp or lenet. (default: by the data)", show_default=False),
    ] = None
    local_epochs: Annotated[int, typer.Option(metavar="N", help="Passes over a client's rows per round.")] = 2
    batch_size: Annotated[int, typer.Option(metavar="N", help="Rows per step of local training.")] = 32
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Step size of local training. (default: 0.1, for regression 0.005)", show_default=False),
    ] = None
    clip: Annotated[
        float | None,
        typer.Option(
            help="Scale every client's model update down to this L2 norm. (default: not at all)", show_default=False
        ),
    ] = None
    eval_every: Annotated[int, typer.Option(metavar="N", help="Evaluate every N rounds.")] = 1
    set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Any other setting, e.g. --set run.dropout=0.1, or a method's hyper-parameter: --set fedprox.mu=0.1. "
            "May be repeated.",
        ),
    ] = None

    def config(self, data: str, method: str) -> dict[str, Any]:
        """The raw configuration for one method; what was not given is left to the preset."""
        from equifed.data import get_dataset

        steep = get_dataset(data).preset(self.preset).task == "regression"  # squared error has no bounded gradient
        sections: dict[str, dict[str, Any]] = {
            "run": {
                "rounds": self.rounds,
                "seeds": self.seeds,
                "clients-per-round": self.clients_per_round,
                "eval-every": self.eval_every,
                "clip": self.clip,
            },
            "data": {"name": data, "preset": self.preset},
            "partition": {"kind": self.partition, "num-partitions": self.num_partitions, "alpha": self.alpha},
            "model": {"kind": self.model},
            "local": {
                "local-epochs": self.local_epochs,
                "batch-size": self.batch_size,
                "learning-rate": (0.005 if steep else 0.1) if self.learning_rate is None else self.learning_rate,
            },
            "method": {"name": method},
        }
        return {
            name: {key: value for key, value in section.items() if value is not None}
            for name, section in sections.items()
        }

    def overrides(self, method: str, others: Collection[str] = ()) -> list[str]:
        """What --set says for this method: METHOD.NAME=VALUE is for that method alone."""
        from equifed.config import SECTIONS
        from equifed.errors import ConfigError, unknown_name
        from equifed.methods import REGISTRY

        kept = []
        for text in self.set or ():
            path, _, value = text.partition("=")
            head, _, rest = path.strip().partition(".")
            if head in SECTIONS or not rest:  # a section wins over a method of the same name, which is only "local"
                if head == "method" and others:
                    raise ConfigError(f"--set {text}: say which method, e.g. --set fedprox.mu=0.1.")
                kept.append(text)
            elif head.partition("+")[0] not in REGISTRY:
                raise ConfigError(f"--set {text}: {unknown_name('section or method', head, {*SECTIONS, *REGISTRY})}")
            elif head == method:
                kept.append(f"method.{rest}={value}")
            elif head not in others:
                raise ConfigError(f"--set {text}: {head} is not among the methods of this command.")
        return kept


FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        metavar="'METRIC OP NUMBER'",
        help="Exit with 1 if it holds for the mean over seeds of the final test metric, or if the metric is undefined "
        "for a seed; e.g. --fail-if 'accuracy < 0.6'. May be repeated.",
    ),
]


def split_names(text: str, option: str) -> list[str]:
    """The names in "A,B,..."; none, or only commas, is a mistake."""
    from equifed.errors import ConfigError

    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"{option} {text!r} names nothing; write {option} A,B,...")
    return names


def expand(function: Callable[..., None]) -> Callable[..., None]:
    """Let typer see every field of a dataclass parameter as an option of its own.

    A dataclass that knows no typer describes its options by `equifed.experiments.Option`; lists come as A,B,...
    """
    signature = inspect.signature(function, eval_str=True)
    bundles: dict[str, Any] = {}
    lists: set[str] = set()
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if not dataclasses.is_dataclass(parameter.annotation):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        bundles[name] = parameter.annotation
        hints = get_type_hints(parameter.annotation, include_extras=True)
        for field in dataclasses.fields(parameter.annotation):
            hint = hints[field.name]
            described = next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Option)), None)
            if described is not None:
                kind = get_args(hint)[0]
                if kind == list[str] | None:
                    lists.add(field.name)
                    kind = str | None
                hint = Annotated[kind, typer.Option(f"--{field.name}", **described._asdict())]
            parameters.append(
                inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hint)
            )

    @functools.wraps(function)
    def call(**values: Any) -> None:
        for name in lists:
            values[name] = split_names(values[name], f"--{name}") if values[name] is not None else None
        made = {
            name: kind(**{field.name: values.pop(field.name) for field in dataclasses.fields(kind)})
            for name, kind in bundles.items()
        }
        function(**values, **made)

    del call.__wrapped__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call
