"""Every error a user can cause. Each says what is wrong, why, and what to do about it."""

from __future__ import annotations

import difflib
import math
import numbers
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


class RowError(DataError):
    """A row that does not fit: `place` says which column and row without telling the value."""

    def __init__(self, place: str, why: str) -> None:
        super().__init__(f"{place}: {why}")
        self.place = place

    def __reduce__(self) -> tuple[type[RowError], tuple[str, str]]:
        return type(self), (self.place, str(self).removeprefix(f"{self.place}: "))


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
    return f"Unknown {kind} {name!r}.{hint} " + (f"Known: {', '.join(names)}." if names else "There is none.")


def check_number(
    name: str,
    value: object,
    *,
    whole: bool = False,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
) -> None:
    """Refuse what is not a finite (whole) number of at least `low`, at most `high`, above `above`."""
    kind = numbers.Integral if whole else numbers.Real
    fits = isinstance(value, kind) and not isinstance(value, bool)
    if fits:
        number = float(value)  # type: ignore[arg-type]
        fits = (
            math.isfinite(number)
            and (low is None or number >= low)
            and (high is None or number <= high)
            and (above is None or number > above)
        )
    if not fits:
        limits = [
            f"{word} {bound:g}"
            for word, bound in (("at least", low), ("above", above), ("at most", high))
            if bound is not None
        ]
        what = "a whole number" if whole else "a number"
        link = "" if not limits else " " if limits[0].startswith("above") else " of "
        raise ConfigError(f"{name} must be {what}{link}{' and '.join(limits)}, got {value!r}.")
