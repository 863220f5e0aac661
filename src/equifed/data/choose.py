"""Choose the columns of a table that can be inputs: not those that identify a person, nor free text, dates or
constants. Recognised by their values, and by their names where values alone do not tell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from equifed.data.dates import formats_of
from equifed.data.encode import holds_numbers, row_error
from equifed.data.missing import advice, usual_cells
from equifed.errors import DataError, RowError
from equifed.words import listed, shortened

Kind = Literal["numeric", "categorical", "date"]
Role = Literal["input", "identifier", "free text", "many values", "constant", "empty"]
Distinct = Literal["one", "few", "many", "nearly all"]

ENOUGH_ROWS = 20
"""With fewer, that all values differ says nothing."""
NEARLY_ALL = 0.95
"""So large a share of different values is that of an identifier,"""
OFTEN = 0.5
"""and this one, where the column's name says that it is one, or where its values are text."""
MANY = 50
"""Different texts that are too many for categories, where most rows have one of their own."""
LONG_TEXT, MANY_WORDS = 40, 4
"""Characters and words of the average free text."""
LONG_NUMBER = 7
"""Numbers of at least this many digits, all distinct and of equal length, are treated as identifiers."""
ID_WORDS = frozenset(
    ("id", "ids", "key", "nr", "no", "number", "mrn", "ssn", "nhs", "pid", "uuid", "guid", "passport", "barcode")
)
"""Last words of the names of identifiers."""
PERSON_NAMES = frozenset(
    (
        "name",
        "names",
        "fullname",
        "surname",
        "firstname",
        "lastname",
        "forename",
        "familyname",
        "givenname",
        "patientname",
        "maidenname",
        "email",
        "mail",
        "phone",
        "telephone",
        "mobile",
        "address",
        "street",
    )
)
"""Names of columns that identify a person, whatever their values."""

REASONS: dict[str, str] = {
    "identifier": "an identifier: nearly every row has a value of its own, or the name says whose row it is",
    "free text": "free text",
    "many values": "text with too many different values for categories",
    "date": "dates or times: name the parts that are to be inputs",
    "constant": "the same value in every row",
    "empty": "no value at all",
    "rare": "no value is frequent enough to be told",
    "dropped": "left out by choice",
    "not everywhere": "not in every table",
}
"""Why a column is no input, in words that hold for any table."""


class Look(NamedTuple):
    """What a column of one table looks like."""

    kind: Kind
    role: Role
    distinct: Distinct = "few"
    formats: tuple[str, ...] = ()
    """Of dates: how they may be written."""


def look(series: pd.Series[Any], *, is_code: bool = False) -> Look:
    """What a column holds. is_code: its numbers are said to be codes of categories."""
    present = series.dropna()
    if not len(present):
        return Look("categorical", "empty", "one")
    name = str(series.name)
    formats = None if is_code or pd.api.types.is_float_dtype(series) else formats_of(series)
    if formats is None and not is_code:
        _check_words_among_dates(series)
    if formats is not None and (len(present) >= ENOUGH_ROWS or not pd.api.types.is_integer_dtype(series)):
        return Look("date", "input", _distinct(present), formats)
    try:
        numeric = not is_code and holds_numbers(series)
    except RowError:
        if not _named_id(name):
            raise
        return Look("categorical", "identifier", _distinct(present))
    kind: Kind = "numeric" if numeric else "categorical"
    distinct = _distinct(present)
    if distinct == "one" and len(present) == len(series):
        return Look(kind, "constant", distinct)
    if is_code:
        return Look(kind, "input", distinct)
    role = _role_of_numbers(series, present, name) if numeric else _role_of_text(present, name)
    return Look(kind, role, distinct)


def _check_words_among_dates(series: pd.Series[Any]) -> None:
    """Refuse words that often stand for missing values in a column that without them is one of dates."""
    usual = usual_cells(series)
    if usual.any() and formats_of(series[~usual]) is not None:
        words = {str(value).strip() for value in series[usual].unique()}
        text = f"{usual.sum():,} cells {listed(sorted(words))} stand among dates. {advice(words)}"
        raise row_error(series, int(np.argmax(usual)), text)


def _distinct(present: pd.Series[Any]) -> Distinct:
    different = present.nunique()
    if different <= 1:
        return "one"
    share = different / len(present)
    return "nearly all" if share >= NEARLY_ALL else "many" if share > OFTEN and different > MANY else "few"


def _role_of_numbers(series: pd.Series[Any], present: pd.Series[Any], name: str) -> Role:
    """Whole numbers that are different in nearly every row, and more than that: in order, without gaps, long and of one
    length, or called an id. Measurements differ too."""
    if len(present) < ENOUGH_ROWS or pd.api.types.is_bool_dtype(series):
        return "input"
    values = pd.to_numeric(present, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    if not np.isfinite(values).all() or (values % 1 != 0).any():
        return "input"
    if pd.api.types.is_float_dtype(series) and len(present) == len(series) and not _named_id(name):
        return "input"  # whole numbers that were meant to have fractions; gaps are what makes numbers of ids so
    share = len(np.unique(values)) / len(values)
    if _named_id(name) and share > OFTEN:
        return "identifier"
    if share < NEARLY_ALL:
        return "input"
    steps = np.diff(values)
    ordered = bool((steps >= 0).all() or (steps <= 0).all())
    dense = share == 1 and np.ptp(values) < 2 * len(values)
    digits = np.floor(np.log10(np.maximum(np.abs(values), 1))) + 1
    long = share == 1 and digits.min() == digits.max() >= LONG_NUMBER
    return "identifier" if ordered or dense or long else "input"


def _role_of_text(present: pd.Series[Any], name: str) -> Role:
    if _names_people(name):
        return "identifier"
    if len(present) < ENOUGH_ROWS:
        return "input"
    counts = present.value_counts()
    counts = counts[counts > 0]  # a category dtype lists others too
    share = len(counts) / len(present)
    texts = pd.Series(counts.index[:1000].astype(str)).str.slice(stop=1000)
    length, words = texts.str.len().mean(), (texts.str.count(r"\s+") + 1).mean()
    if len(counts) > ENOUGH_ROWS and share > 0.1 and (length > LONG_TEXT or words > MANY_WORDS):
        return "free text"
    if share >= NEARLY_ALL or (_named_id(name) and share > OFTEN):
        return "identifier"
    return "many values" if len(counts) > MANY and share > OFTEN else "input"


def _words(name: str) -> list[str]:
    """The words of a column's name: patient_id, PatientID and patient-id are two each."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return re.findall(r"[a-z0-9]+", apart.lower())


def _named_id(name: str) -> bool:
    words = _words(name)
    return bool(words) and (words[-1] in ID_WORDS or words[0] == "id")


def _names_people(name: str) -> bool:
    return "".join(_words(name)) in PERSON_NAMES


# -- columns that are not there ----------------------------------------------------------------------------------------


def alike(one: str, other: str) -> bool:
    """Whether two names of columns may mean the same: but for spelling, or one the initials of the other."""
    from difflib import SequenceMatcher

    a, b = "".join(_words(one)), "".join(_words(other))
    if not a or not b:
        return False
    if a == b or (min(len(a), len(b)) >= 3 and (a in b or b in a)):
        return True
    initials = ("".join(word[0] for word in _words(name)) for name in (one, other))
    if any(len(short) > 1 and short in (a, b) for short in initials):
        return True
    return SequenceMatcher(None, a, b).ratio() >= 0.75


def require_columns(frame: pd.DataFrame, names: Sequence[str]) -> None:
    """Refuse a table that lacks columns, with all of them and what they may be called there."""
    there = [str(name) for name in frame.columns]
    absent = [name for name in dict.fromkeys(names) if name not in frame.columns]
    if not absent:
        return
    text = "the column is missing." if len(absent) == 1 else f"The columns {listed(absent)} are missing."
    spare = [name for name in there if name not in names]
    hints = [f"{name!r} is there: is it {other!r}?" for other in absent for name in spare if alike(name, other)]
    separator = _separator(there)
    if separator:
        text += f" The whole table is one column: its values are separated by {separator}, not by commas."
    elif hints:
        text += " " + " ".join(hints)
    has = f" The table has: {shortened(there)}." if there else " The table has no columns."
    raise DataError(text + has, column=absent[0] if len(absent) == 1 else "")


def _separator(names: Sequence[str]) -> str:
    """What the values of a file seem to be separated by, where the reader found one column only."""
    found = {";": "semicolons", "\t": "tabs", "|": "bars"}
    return next((word for mark, word in found.items() if len(names) == 1 and mark in names[0]), "")
