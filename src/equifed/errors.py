"""Every error a user can cause: what is wrong, why, and what to do about it, with what is at fault as fields.

A raise site gives a sentence and the fields it knows; the text is made when somebody reads it. In Python that is the
sentence with the name of the argument. Whoever knows more fills in more fields on the way up: reading a file adds the
file, reading a configuration the section and the key as it is written there.
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
"""The largest number that training can compute with."""
MAX_WHOLE = 2**53
"""The largest whole number where no other limit is declared: up to it, every one is a floating-point number too."""


class EquifedError(Exception):
    """Base of all errors that equifed raises on purpose; `exit_code` is what the command line returns.

    A text that begins in lower case continues a sentence whose subject is `key`:
    `ConfigError("must be at least 1, got 0.", key="rounds")` reads "rounds must be at least 1, got 0.". Any other text
    is a sentence of its own, and `key` says what it is about.
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
        """The configuration file or the command that was being read; empty for an argument given in Python."""
        self.section = section
        """The section of the configuration."""
        self.key = key
        """The argument, option or key at fault."""
        self.value = value
        self.allowed = tuple(allowed)
        """The values that exist, where they can be listed."""
        self.file = str(file)
        """The file with rows, or the schema, at fault."""
        self.column = column
        self.row = str(row)
        self.problems = problems
        """Where several were found at once, each of them; the text lists them all."""

    @property
    def where(self) -> str:
        """Section and key, as one writes them: "run.rounds"."""
        return clean(".".join(filter(None, (self.section, self.key))), SHORT)

    @property
    def place(self) -> str:
        """Column and row, without the value there."""
        column = f"Column {quoted(self.column)}" if self.column else ""
        return ", ".join(filter(None, (column, f"row {clean(self.row)}" if self.row else "")))

    @property
    def sentence(self) -> str:
        """The text with its subject, wherever it was read."""
        return f"{self._subject} {self.text}".lstrip()

    def __str__(self) -> str:
        if self.source:
            return ": ".join(filter(None, (clean(self.source), self.where, clean(self.file), self.place, self.text)))
        return ": ".join(filter(None, (clean(self.file), self.place, self.sentence)))


class ConfigError(EquifedError, ValueError):
    """A wrong argument, option or configuration value."""

    exit_code = 2


class UnknownName(ConfigError, KeyError):
    """A name that does not exist; a KeyError too, so that a registry is a mapping like any other."""


class UntrustedName(ConfigError):
    """A name `module:Name`, its `value`, that a file asks for and the user has neither typed nor trusted."""


class DataError(EquifedError, ValueError):
    """Data that cannot be used: missing, corrupt, or not fit for the task."""

    exit_code = 3


class RowError(DataError):
    """A value that does not fit its column: `place` is where, `text` may quote it."""


class RunError(EquifedError, RuntimeError):
    """A run that could not go on."""

    exit_code = 4


class DiskError(RunError, OSError):
    """A file that could not be written, and why; an OSError like any other, too."""


class EquifedWarning(UserWarning):
    """Something that works but is probably not what was meant."""


@contextmanager
def blaming(**fields: str) -> Iterator[None]:
    """Errors raised inside get these fields, where they do not have them: blaming(section="partition")."""
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
    text += f"Known: {', '.join(names)}." if names else "There is none."
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
    """Refuse what is not a finite (whole) number of at least `low`, at most `high`, above `above`. Fractions must fit
    the 32 bits that training computes with; whole numbers are at most `held`, which is named where it is passed.

    what: said in place of the key where the number is a part of it, such as an entry of a list.
    """
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
