"""Options that several commands share, each written once as the field of a dataclass."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from equifed.errors import ConfigError, EquifedError, unknown_name
from equifed.experiments import Option
from equifed.options import options_of
from equifed.settings import Local, RunSettings


@dataclass(frozen=True)
class Output:
    """Where runs are kept and how to print."""

    runs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the runs. (default: $EQUIFED_RUNS, else runs)", show_default=False),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")] = False


_OWN = {
    "preset": (
        "data.preset",
        "NAME",
        "How to read the data: a preset of `equifed data describe`. (default: its first)",
    ),
    "partition": (
        "partition.kind",
        "KIND",
        "Who holds which rows: iid, dirichlet, skewed, natural, ... (default: the preset's own clients, or dirichlet)",
    ),
    "num_partitions": ("partition.num-partitions", "N", "Clients. (default: the preset's)"),
    "alpha": ("partition.alpha", "X", "Dirichlet concentration; small is heterogeneous. (default: 0.5)"),
    "model": ("model.kind", "KIND", "logistic, linear, mlp or lenet. (default: by the data)"),
}
"""Options of other sections than [run] and [local]: the key, the metavar and the help."""
_RENAMED = {"epochs": "local_epochs"}


def _generated() -> dict[str, tuple[str, str, str]]:
    """Options of `compare` and `sweep` with their key in a configuration, their metavar and their help."""
    options = dict(_OWN)
    for section, kind in (("run", RunSettings), ("local", Local)):
        for option in options_of(kind):
            name = _RENAMED.get(option.name, option.name)
            metavar = {int: "N", float: "X", str: "NAME"}.get(type(option.default), "VALUE")
            default = "" if option.default in (None, ()) else f" (default: {str(option.default).lower()})"
            key = f"{section}.{name.replace('_', '-')}"
            options[name] = (key, metavar, option.description.replace("\n", " ") + default)
    return options


@dataclass(frozen=True)
class Settings:
    """The settings of `compare` and `sweep`: a configuration without a file."""

    given: dict[str, str | None] = field(metadata={"options": _generated()})
    """The options by name, as they were typed; None where they were not."""
    set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Any other setting, e.g. --set model.hidden=[10], or a hyper-parameter of a method: "
            "--set fedprox.mu=0.1. May be repeated.",
        ),
    ] = None

    def overrides(self, method: str, others: Collection[str] = ()) -> list[str]:
        """All settings as "section.key=value"; from --set, METHOD.NAME=VALUE is for that method alone."""
        from equifed.config import SECTIONS
        from equifed.methods import REGISTRY

        generated = _generated()
        kept = [f"{generated[name][0]}={value}" for name, value in self.given.items() if value is not None]
        for text in self.set or ():
            path, _, value = text.partition("=")
            # a module's name may have dots, a key has none
            head, _, rest = path.strip().rpartition(".") if ":" in path else path.strip().partition(".")
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


@contextmanager
def naming_options() -> Iterator[None]:
    """Errors about a setting name the option that gives it, --rounds, not the key of a configuration file."""
    try:
        yield
    except EquifedError as error:
        for name, (key, _, _) in _generated().items():
            if key == f"{error.section}.{error.key}":
                error.section, error.key = "", f"--{name.replace('_', '-')}"
                break
        raise


FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        metavar="'METRIC OP NUMBER'",
        help="Exit with 1 if this holds for the mean over seeds of the final test metric, or if that is undefined for "
        "a seed, e.g. --fail-if 'accuracy < 0.6'. May be repeated.",
    ),
]


def split_names(text: str, option: str) -> list[str]:
    """The names in "A,B,..."; none, or only commas, is a mistake."""
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

    def add(name: str, default: Any, annotation: Any) -> None:
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )

    for name, parameter in signature.parameters.items():
        if not dataclasses.is_dataclass(parameter.annotation):
            add(name, parameter.default, parameter.annotation)
            continue
        bundles[name] = parameter.annotation
        hints = get_type_hints(parameter.annotation, include_extras=True)
        for each in fields(parameter.annotation):
            for option, (_, metavar, text) in each.metadata.get("options", {}).items():
                info = typer.Option(metavar=metavar, help=text, show_default=False)
                add(option, None, Annotated[str | None, info])
            if "options" in each.metadata:
                continue
            hint = hints[each.name]
            described = next((part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Option)), None)
            if described is not None:
                kind = get_args(hint)[0]
                if kind == list[str] | None:
                    lists.add(each.name)
                    kind = str | None
                hint = Annotated[kind, typer.Option(f"--{each.name}", **described._asdict())]
            add(each.name, each.default, hint)

    @functools.wraps(function)
    def call(**values: Any) -> None:
        for name in lists:
            values[name] = split_names(values[name], f"--{name}") if values[name] is not None else None
        made = {
            name: kind(**{each.name: _taken(each, values) for each in fields(kind)}) for name, kind in bundles.items()
        }
        function(**values, **made)

    del call.__wrapped__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _taken(each: dataclasses.Field[Any], values: dict[str, Any]) -> Any:
    """The value of a bundle's field, taken out of the values of all options."""
    if "options" in each.metadata:
        return {name: values.pop(name) for name in each.metadata["options"]}
    return values.pop(each.name)
