"""Fields of dataclasses as options: one declaration, with default, limits and a docstring under it, from which Python,
configuration files, the command line and the documentation are made."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import inspect
import textwrap
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Option:
    """A setting of a run, a hyperparameter of a method, an option of a model or a partition."""

    owner: type
    """The dataclass."""
    name: str
    default: Any
    """Default value; `dataclasses.MISSING` if a value is required."""
    low: float | None = None
    high: float | None = None
    choices: tuple[Any, ...] | None = None
    several: bool = False
    vanishes: bool = False
    key: str = ""
    """Name in configurations and on the command line, with underscores. Default: the field's name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or self.name)

    @property
    def field(self) -> dataclasses.Field[Any]:
        return next(field for field in dataclasses.fields(self.owner) if field.name == self.name)

    @property
    def required(self) -> bool:
        return self.field.default is self.field.default_factory is dataclasses.MISSING

    @property
    def type(self) -> Any:
        return get_type_hints(self.owner)[self.name]

    @property
    def number(self) -> builtins.type[int] | builtins.type[float] | None:
        """`int` or `float`, the type of its values or of their entries; None if they are not numbers."""
        limited = self.low is not None or self.high is not None
        kinds = _kinds(self.type) | ({type(self.default)} if limited else set())
        return float if float in kinds else int if int in kinds else None

    @property
    def optional(self) -> bool:
        """True if None is a value."""
        return NoneType in _kinds(self.type)

    @property
    def several_numbers(self) -> bool:
        """True if a value is a tuple of numbers."""
        return tuple in _kinds(self.type)

    @property
    def type_name(self) -> str:
        """The type as a user would write it."""
        kind = type(get_args(self.type)[0]) if get_origin(self.type) is Literal else self.type  # its choices are listed
        return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")

    @property
    def description(self) -> str:
        return _descriptions(self.owner).get(self.name, "")


def _kinds(hint: Any) -> set[Any]:
    """Return the types in a type hint, including those of a tuple's entries."""
    if get_origin(hint) is Literal:
        return set()
    return {get_origin(hint) or hint}.union(*map(_kinds, get_args(hint)))


@cache
def options_of(kind: type) -> list[Option]:
    """Return the options of a dataclass, in the order of its fields."""
    limits = ("low", "high", "choices", "several", "vanishes", "key")
    return [
        Option(kind, field.name, field.default, **{key: field.metadata[key] for key in limits if key in field.metadata})
        for field in dataclasses.fields(kind)
        if field.metadata.get("hyper", True)
    ]


@cache
def _descriptions(kind: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass and its bases."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base) or not inspect.get_annotations(base):
            continue  # declares no fields
        try:
            source = inspect.getsource(base)
        except OSError:  # a class of another package may come without its source
            continue
        body = ast.parse(textwrap.dedent(source)).body[0]
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
