"""Hyper-parameters: dataclass fields that carry their allowed range and, by the docstring under them, their meaning."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
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


def check(method: Method) -> None:
    """Refuse hyper-parameters outside their declared range."""
    for field in dataclasses.fields(method):
        check_value(type(method), field.name, getattr(method, field.name))


def check_value(kind: type[Method], name: str, value: Any) -> None:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if name not in fields:
        raise ConfigError(unknown_name(f"hyper-parameter of {kind.name}", name, fields))
    metadata = fields[name].metadata
    low, high, choices = (metadata.get(key) for key in ("low", "high", "choices"))
    chosen = value if metadata.get("several") and isinstance(value, tuple) and value else (value,)
    if choices is not None and any(each not in choices for each in chosen):
        or_several = ", or several of them" if metadata.get("several") else ""
        known = ", ".join(map(repr, choices))
        raise ConfigError(f"{kind.name}: {name} must be one of {known}{or_several}, got {value!r}.")
    if low is not None or high is not None:
        whole = type(fields[name].default) is int
        check_number(f"{kind.name}: {name}", value, low=low, high=high, whole=whole)


@cache
def documentation(kind: type) -> dict[str, str]:
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
    return {field.name: docs.get(field.name, "") for field in dataclasses.fields(kind)}


def type_names(kind: type) -> dict[str, str]:
    """Each field's type as a reader would write it."""
    hints = get_type_hints(kind)
    return {
        field.name: getattr(hints[field.name], "__name__", str(hints[field.name]))
        if isinstance(hints[field.name], type)
        else str(hints[field.name]).replace("typing.", "")
        for field in dataclasses.fields(kind)
    }
