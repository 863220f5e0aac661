"""The errors that a user can cause: they state the problem, the reason and the remedy, and have the cause as fields.

A raise site gives a sentence and the fields it knows; the text is made when the error is shown. In Python that is the
sentence with the name of the argument. Callers fill in more fields on the way up: reading a file adds the file, reading
a configuration the section and the key as it is written there.
"""

from __future__ import annotations

import difflib
import math
import numbers
import operator
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from equifed.words import SHORT, clean, quoted

MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
"""Largest number that training can use."""
MAX_WHOLE = 2**53
"""Default upper limit of whole numbers: up to it, each one is also a floating-point number."""


class EquifedError(Exception):
    """The base class of all errors that equifed raises on purpose; the command line returns `exit_code`.

    A text that begins in lower case continues a sentence with the subject `key`:
    `ConfigError("must be at least 1, got 0.", key="rounds")` reads "rounds must be at least 1, got 0.". Any other text
    is a full sentence, and `key` names its topic.
    """

    exit_code = 4

    def __init__(
        self,
        text: object = "",
        *,
        source: str = "",
        section: str = "",
        key: str = "",
        value: object = None,
        allowed: Iterable[str] = (),
        file: object = "",
        column: str = "",
        row: object = "",
        problems: tuple[EquifedError, ...] = (),
    ) -> None:
        super().__init__(text)
        self.text = str(text)
        self._subject = key if self.text[:1].islower() else ""
        self.source = source
        """The configuration file or command that was read; empty for an argument in Python."""
        self.section = section
        """The section of the configuration."""
        self.key = key
        """The wrong argument, option or key."""
        self.value = value
        self.allowed = tuple(allowed)
        """The possible values, if they can be listed."""
        self.file = str(file)
        """The data file or schema with the error."""
        self.column = column
        self.row = str(row)
        self.problems = problems
        """The single errors, if several were found at once; the text lists them all."""

    @property
    def where(self) -> str:
        """Section and key, as in a configuration: "run.rounds"."""
        return clean(".".join(filter(None, (self.section, self.key))), SHORT)

    @property
    def place(self) -> str:
        """Column and row, without the value there."""
        column = f"Column {quoted(self.column)}" if self.column else ""
        return ", ".join(filter(None, (column, f"row {clean(self.row)}" if self.row else "")))

    @property
    def sentence(self) -> str:
        """The text with its subject."""
        return f"{self._subject} {self.text}".lstrip()

    def __str__(self) -> str:
        if self.source:
            return ": ".join(filter(None, (clean(self.source), self.where, clean(self.file), self.place, self.text)))
        return ": ".join(filter(None, (clean(self.file), self.place, self.sentence)))


class ConfigError(EquifedError, ValueError):
    """A wrong argument, option or configuration value."""

    exit_code = 2


class UnknownName(ConfigError, KeyError):
    """An unknown name; a KeyError too, so that a registry is a mapping like any other."""


class UntrustedName(ConfigError):
    """A name `module:Name` (in `value`) that a file asks for and that the user has neither typed nor trusted."""


class DataError(EquifedError, ValueError):
    """Unusable data: missing, corrupt, or unfit for the task."""

    exit_code = 3


class RowError(DataError):
    """A value that does not fit its column: `place` has column and row, `text` may quote the value."""


class RunError(EquifedError, RuntimeError):
    """A run that could not continue."""

    exit_code = 4


class DiskError(RunError, OSError):
    """A file that could not be written, with the reason; also an OSError."""


class EquifedWarning(UserWarning):
    """A warning about something that works but is probably not intended."""


@contextmanager
def blaming(**fields: str) -> Iterator[None]:
    """Add these fields to errors raised inside that do not have them: blaming(section="partition")."""
    try:
        yield
    except EquifedError as error:
        for name, value in fields.items():
            setattr(error, name, getattr(error, name) or value)
        raise


def unknown_name(kind: str, name: object, known: Iterable[str], key: str = "", of: str = "") -> UnknownName:
    """Return the error for a name that does not exist, with the closest one and all known ones. of: where it would
    belong, such as "the partition iid"."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name)[:SHORT], names, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    place = f" of {of}" if of else ""
    text = f"Unknown {kind} {quoted(name)}{place}.{hint} "
    text += f"Known: {', '.join(names)}." if names else "There are none."
    return UnknownName(text, key=key, value=name, allowed=names)


def check_number(
    key: str,
    value: object,
    *,
    whole: bool = False,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    held: int = MAX_WHOLE,
    what: str = "",
) -> None:
    """Raise a ConfigError unless the value is a finite (whole) number of at least `low`, at most `high` and above
    `above`. Fractions must fit the 32 bits that training uses; whole numbers must be at most `held`.

    what: subject of the message in place of the key, if the number is a part of it, such as an entry of a list.
    """
    # the limits of the number's type are named only if the value is beyond them
    if isinstance(value, numbers.Real):
        most = held if whole or isinstance(value, numbers.Integral) else MAX_FLOAT32
        number: Any = value
        if high is None and number > most:
            high = most
        if low is None and above is None and number < -most:
            low = -most
    bounds = [("at least", low, operator.ge), ("above", above, operator.gt), ("at most", high, operator.le)]
    fits = (
        isinstance(value, numbers.Integral if whole else numbers.Real)
        and not isinstance(value, bool)
        and all(bound is None or holds(value, bound) for _, bound, holds in bounds)
        and math.isfinite(value)
    )
    if not fits:
        limits = [f"{word} {bound:g}" for word, bound, _ in bounds if bound is not None]
        noun = "a whole number" if whole else "a number"
        link = "" if not limits else " " if limits[0].startswith("above") else " of "
        must = f"must be {noun}{link}{' and '.join(limits)}, got {quoted(value)}."
        raise ConfigError(f"{what} {must}" if what else must, key=key, value=value)
