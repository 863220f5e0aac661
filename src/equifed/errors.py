"""Every error a user can cause. Each says what is wrong, why, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EquifedError(Exception):
    """Base of all errors that equifed raises on purpose; `exit_code` is what the command line returns."""

    exit_code = 4


class ConfigError(EquifedError, ValueError):
    """A wrong argument, option or configuration value."""

    exit_code = 2


class DataError(EquifedError, ValueError):
    """Data that cannot be used: missing, corrupt, or not fit for the task."""

    exit_code = 3


class RunError(EquifedError, RuntimeError):
    """A run that could not go on."""

    exit_code = 4


class EquifedWarning(UserWarning):
    """Something that works but is probably not what was meant."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> str:
    """The message for a name that does not exist: the closest one and all known ones."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"Unknown {kind} {name!r}.{hint} Known: {', '.join(names)}."
