"""Hyper-parameters: dataclass fields that carry their allowed range and, by the docstring under them, their meaning."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

from equifed.errors import ConfigError, check_number, unknown_name
from equifed.protocol import Method


def hyper(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[Any, ...] | None = None,
    several: bool = False,
    vanishes: bool = False,
) -> Any:
    """A hyper-parameter with its allowed values.

    Checked before a run, not inside the method, where it may be a whole sweep of values. `several` allows a tuple of
    choices. `vanishes` marks the weight that, at 0, turns the method into its parent.
    """
    metadata = {"low": low, "high": high, "choices": choices, "several": several, "vanishes": vanishes}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Option:
    """A field of a dataclass as users set it: a hyper-parameter of a method, an option of a model or a partition."""

    owner: type
    """The dataclass."""
    name: str
    default: Any
    """`dataclasses.MISSING` where a value must be given."""
    low: float | None = None
    high: float | None = None
    choices: tuple[Any, ...] | None = None
    several: bool = False
    vanishes: bool = False

    @property
    def required(self) -> bool:
        field = next(field for field in dataclasses.fields(self.owner) if field.name == self.name)
        return field.default is field.default_factory is dataclasses.MISSING

    @property
    def type(self) -> Any:
        return get_type_hints(self.owner)[self.name]

    @property
    def type_name(self) -> str:
        """The type as a reader would write it."""
        return self.type.__name__ if isinstance(self.type, type) else str(self.type).replace("typing.", "")

    @property
    def description(self) -> str:
        return _descriptions(self.owner).get(self.name, "")


def options(of: Method | type) -> dict[str, Option]:
    """The fields of a dataclass by name; a method's hyper-parameters, those of all parts that it is composed of."""
    kinds = [type(part) for part in of.parts] if isinstance(of, Method) else [of]
    return {option.name: option for kind in kinds for option in _options(kind)}


@cache
def _options(kind: type) -> list[Option]:
    limits = ("low", "high", "choices", "several", "vanishes")
    return [
        Option(kind, field.name, field.default, **{key: field.metadata[key] for key in limits if key in field.metadata})
        for field in dataclasses.fields(kind)
        if field.metadata.get("hyper", True)
    ]


@cache
def _descriptions(kind: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, its bases' included."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base) or not inspect.get_annotations(base):
            continue  # without fields of its own
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, after in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                docs[statement.target.id] = inspect.cleandoc(after.value.value)
    return docs


def check(method: Method) -> None:
    """Refuse hyper-parameters outside their declared range."""
    for name, value in method.hyper.items():
        check_value(method, name, value)


def check_value(method: Method, name: str, value: Any) -> None:
    """Refuse a hyper-parameter that the method does not have, or a value outside its declared range."""
    known = options(method)
    if name not in known:
        raise unknown_name(f"hyper-parameter of {method.name}", name, known, key=name)
    option = known[name]
    chosen = value if option.several and isinstance(value, tuple) and value else (value,)
    if option.choices is not None and any(each not in option.choices for each in chosen):
        or_several = ", or several of them" if option.several else ""
        allowed = ", ".join(map(repr, option.choices))
        raise ConfigError(f"must be one of {allowed}{or_several}, got {value!r}.", key=name, value=value)
    if option.low is not None or option.high is not None:
        whole = type(option.default) is int
        check_number(name, value, low=option.low, high=option.high, whole=whole)
