"""Hyperparameters: dataclass fields with an allowed range and a docstring under them."""

from __future__ import annotations

import dataclasses
from typing import Any

from equifed.errors import ConfigError, check_number, unknown_name
from equifed.options import Option, options_of
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
    """Declare a hyperparameter with its allowed values.

    It is checked before a run, not inside the method, where it may be a sweep of values. `several` allows a tuple of
    choices. `vanishes` marks the weight that, at 0, turns the method into its parent.
    """
    metadata = {"low": low, "high": high, "choices": choices, "several": several, "vanishes": vanishes}
    return dataclasses.field(default=default, metadata=metadata)


def options(of: Method | type) -> dict[str, Option]:
    """Return the options of a dataclass by name; for a method, the hyperparameters of all its parts."""
    kinds = [type(part) for part in of.parts] if isinstance(of, Method) else [of]
    return {option.name: option for kind in kinds for option in options_of(kind)}


def check(method: Method) -> None:
    """Raise a ConfigError for hyperparameters outside their declared range."""
    for name, value in method.hyper.items():
        check_value(method, name, value)


def check_value(method: Method, name: str, value: Any) -> None:
    """Raise a ConfigError for an unknown hyperparameter or a value outside its declared range. Without a range, a
    number must be finite and small enough for training."""
    known = options(method)
    if name not in known:
        raise unknown_name(f"hyperparameter of {method.name}", name, known, key=name)
    option = known[name]
    chosen = value if option.several and isinstance(value, tuple) and value else (value,)
    if option.choices is not None and any(choice not in option.choices for choice in chosen):
        or_several = ", or several of them" if option.several else ""
        allowed = ", ".join(map(repr, option.choices))
        raise ConfigError(f"must be one of {allowed}{or_several}, got {value!r}.", key=name, value=value)
    if option.choices is None and not (value is None and option.optional):
        kind = option.number
        if option.several_numbers and not isinstance(value, tuple):
            raise ConfigError(f"must be a list of numbers, got {value!r}.", key=name, value=value)
        entries = value if option.several_numbers else (value,)
        for entry in entries if kind is not None else ():
            check_number(name, entry, low=option.low, high=option.high, whole=kind is int)
