"""Words that come from elsewhere: a silo's reason, a node's name, a field of a message, a cell of a file.

They are cut and cleaned here, before they reach a terminal, a log, a file or a page: nobody else may fill a disk with
them, forge a line, or send a command to somebody's terminal.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

MOST = 300
"""Characters that are shown of what somebody else wrote."""
SHORT = 100
"""The same of a single value."""
FORMULA = ("=", "+", "-", "@", "\t", "\n")
"""What a text begins with that a spreadsheet may carry out."""


def clean(text: object, most: int = MOST, length: int | None = None) -> str:
    """The text in at most so many characters, in which everything that is not printable is shown as an escape. length:
    how long it is, where it has been cut already."""
    whole = str(text)
    parts = [_shown(character) for character in islice(whole, most + 1)]
    if sum(map(len, parts)) <= most:
        return "".join(parts)
    ending = f"... ({length or len(whole):,} characters)"
    room = most - len(ending)
    kept = 0
    while kept < len(parts) and room >= len(parts[kept]):
        room -= len(parts[kept])
        kept += 1
    return "".join(parts[:kept]) + ending


def quoted(value: object, most: int = SHORT) -> str:
    """A value as Python writes it, cut."""
    if not isinstance(value, str | bytes):
        return clean(repr(value), most)
    return clean(repr(value[: most + 1]), most, len(value))  # the escapes need not be made for all of it


def shortened(names: Iterable[str]) -> str:
    """The first of many names."""
    return _first([clean(name, SHORT) for name in names])


def listed(names: Iterable[str]) -> str:
    """The first of many names, each as Python writes it."""
    return _first([quoted(name) for name in names])


def _first(shown: list[str], most: int = 20) -> str:
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")


def encodable(text: str, encoding: str | None) -> str:
    """The text in characters that a stream of this encoding takes; others are shown as escapes."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def csv_cell(value: object) -> object:
    """A cell of a CSV file that no spreadsheet takes for a formula: text that begins like one gets an apostrophe before
    it. Numbers, also those that are text, and a sign alone stay. A carriage return, which would begin a new row,
    becomes a line feed."""
    if not isinstance(value, str):
        return value
    text = value.replace("\r\n", "\n").replace("\r", "\n")
    if not text.startswith(FORMULA) or text in ("+", "-"):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def csv_of(frame: pd.DataFrame, **options: Any) -> str:
    """A table as CSV, with the names of its columns, each cell through `csv_cell`."""
    guarded = frame.copy(deep=False)
    for position, kind in enumerate(frame.dtypes):
        if kind.kind not in "biufcmM":
            cells = frame.iloc[:, position].astype(object).map(csv_cell, na_action="ignore")
            guarded.isetitem(position, cells.to_numpy(dtype=object))
    return guarded.set_axis([csv_cell(name) for name in frame.columns], axis=1).to_csv(index=False, **options)


def traceback_of(error: BaseException) -> str:
    """Where an error came from, as Python prints it, with the words of each error cut and cleaned."""
    lines = []
    cause: BaseException | None = error
    while cause is not None:
        lines.append("".join(traceback.format_tb(cause.__traceback__)) + clean(f"{type(cause).__name__}: {cause}"))
        cause = cause.__cause__
    return "\n\nbecause of\n".join(lines)


def _shown(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
