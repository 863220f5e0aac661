"""Cleaning of untrusted text: a silo's reason, a node's name, a field of a message, a cell of a file.

The text is cut and escaped here before it reaches a terminal, a log, a file or a page, so that its author cannot fill a
disk, forge a line or send a command to a terminal.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

MOST = 300
"""Largest number of characters shown of an untrusted text."""
SHORT = 100
"""Largest number of characters shown of a single value."""
FORMULA = ("=", "+", "-", "@", "\t", "\n")
"""First characters of a text that a spreadsheet may execute."""


def clean(text: object, most: int = MOST, length: int | None = None) -> str:
    """Return at most `most` characters of the text, with unprintable ones escaped. length: the full length, if the text
    has already been cut."""
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
    """Return the value's `repr`, cut."""
    if not isinstance(value, str | bytes):
        return clean(repr(value), most)
    return clean(repr(value[: most + 1]), most, len(value))  # escape only the part that is shown


def shortened(names: Iterable[str]) -> str:
    """Return the names, joined by commas; of many names, the first 20."""
    return _first([clean(name, SHORT) for name in names])


def listed(names: Iterable[str]) -> str:
    """Return the names as Python writes them, joined by commas; of many names, the first 20."""
    return _first([quoted(name) for name in names])


def _first(shown: list[str], most: int = 20) -> str:
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")


def encodable(text: str, encoding: str | None) -> str:
    """Return the text with characters that the encoding lacks as escapes."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def csv_cell(value: object) -> object:
    """Return a cell of a CSV file that a spreadsheet does not execute: text that begins like a formula gets an
    apostrophe. Numbers, also as text, and a single sign stay unchanged. A carriage return, which would begin a new row,
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
    """Return a table as CSV with its column names, each cell through `csv_cell`."""
    guarded = frame.copy(deep=False)
    for position, kind in enumerate(frame.dtypes):
        if kind.kind not in "biufcmM":
            cells = frame.iloc[:, position].astype(object).map(csv_cell, na_action="ignore")
            guarded.isetitem(position, cells.to_numpy(dtype=object))
    return guarded.set_axis([csv_cell(name) for name in frame.columns], axis=1).to_csv(index=False, **options)


def traceback_of(error: BaseException) -> str:
    """Return an error's traceback as Python prints it, with the text of each error cut and cleaned."""
    lines = []
    cause: BaseException | None = error
    while cause is not None:
        lines.append("".join(traceback.format_tb(cause.__traceback__)) + clean(f"{type(cause).__name__}: {cause}"))
        cause = cause.__cause__
    return "\n\nbecause of\n".join(lines)


def _shown(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
