"""Which cells of a table are missing: the same ones in every format.

Null, NaN and an empty or blank cell are missing. So is a cell that holds one of the words that a schema lists
(`na_values`: NA, ?, -9), with or without blanks around it. A word that is a number or a truth value means it however it
is written (-9, -9.0, "-9.00"; True, "true"), as a number, a truth value or a text: a reader of text files decides which
of them a cell becomes.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from equifed.errors import ConfigError, EquifedWarning
from equifed.partition.base import as_text
from equifed.words import listed, quoted

BEFORE = (
    *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>"),
    *("N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
"""What was missing in CSV files before schemas had `na_values`: the words of `pandas.read_csv`. A schema that was
written then has no such list, and keeps these."""
USUAL = frozenset((*BEFORE, "?", "-", "--", "."))
"""What often stands for a missing value. Such a cell is never taken for missing unless it is listed, but it is
reported."""


def check_na_values(given: Iterable[object] | None) -> tuple[str, ...]:
    """Return the words without blanks around them, each once, in order."""
    if isinstance(given, str) or not isinstance(given, Iterable | None):
        text = f"must be a list of cells that mean a missing value, got {given!r}. Write [{given!r}]."
        raise ConfigError(text, key="na_values", value=given)
    for value in given or ():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ConfigError(f"must list texts or numbers, got {value!r}.", key="na_values", value=value)
    return tuple(sorted({text for value in given or () if (text := as_text(value).strip())}))


def is_missing_text(text: str, na_values: Iterable[str]) -> bool:
    """Whether a cell with this text is missing."""
    return not text.strip() or _meaning(text) in _meanings(frozenset(na_values))


def _meaning(text: str) -> str | float:
    """Return what a word means, however it is written: a number, "true" or "false", or itself."""
    text = text.strip()
    if text.lower() in ("true", "false"):
        return text.lower()
    try:
        number = math.nan if "_" in text else float(text)  # 1_0 is a number to Python only
    except ValueError:
        return text
    return text if math.isnan(number) else number


@lru_cache(maxsize=64)
def _meanings(words: frozenset[str]) -> frozenset[str | float]:
    return frozenset(map(_meaning, words))


def numbers_among(na_values: Iterable[str]) -> list[float]:
    """Return those words that are numbers."""
    return sorted(each for each in _meanings(frozenset(na_values)) if isinstance(each, float))


def spellings(na_values: Iterable[str]) -> list[str]:
    """Return the words, and how numbers and truth values among them are usually written: for what compares texts."""
    words = frozenset(na_values)
    numbers = [text for number in numbers_among(words) for text in (as_text(number), str(number))]
    truths = [truth for truth in ("true", "false") if truth in _meanings(words)]
    return sorted({*words, *numbers, *(text for truth in truths for text in (truth, truth.title(), truth.upper()))})


def with_missing(
    frame: pd.DataFrame, na_values: Sequence[str] = (), columns: Iterable[str] | None = None
) -> pd.DataFrame:
    """Return the table with null in every missing cell of these columns, or of all."""
    names = frame.columns if columns is None else [name for name in dict.fromkeys(columns) if name in frame.columns]
    words, made = frozenset(na_values), frame
    for name in names:
        series = frame[name]
        if isinstance(series, pd.DataFrame):  # a name that is there twice: refused where the column is needed
            continue
        cells = _missing_cells(series, words)
        if cells.any():
            made = frame.copy(deep=False) if made is frame else made
            made[name] = series.mask(cells)
    return made


def _missing_cells(series: pd.Series[Any], words: frozenset[str]) -> NDArray[np.bool_]:
    """Which cells hold a text or a number that means a missing value."""
    meanings, numbers = _meanings(words), numbers_among(words)
    if pd.api.types.is_datetime64_any_dtype(series):
        return np.zeros(len(series), dtype=bool)
    if pd.api.types.is_bool_dtype(series):
        truths = [truth for truth in (True, False) if str(truth).lower() in meanings]
        return series.isin(truths).to_numpy(dtype=bool)
    if pd.api.types.is_numeric_dtype(series):
        return series.isin(numbers).to_numpy(dtype=bool) if numbers else np.zeros(len(series), dtype=bool)

    def is_missing(value: object) -> bool:
        if isinstance(value, str):
            return is_missing_text(value, words)
        if isinstance(value, bool | np.bool_):
            return str(value).lower() in meanings
        return isinstance(value, int | float | np.number) and value in meanings

    return _cells_where(series, is_missing)


def _cells_where(series: pd.Series[Any], holds: Callable[[object], bool]) -> NDArray[np.bool_]:
    """Which cells hold a value for which `holds` is true; each different value is looked at once."""
    try:
        codes, values = pd.factorize(series)
    except TypeError:  # cells that hold lists: refused, with the row, where the column is needed
        return np.zeros(len(series), dtype=bool)
    found: NDArray[np.bool_] = np.array([*map(holds, values), False], dtype=bool)
    return found[codes]


def padded_words(frame: pd.DataFrame, na_values: Sequence[str]) -> list[str]:
    """Return the texts of the table that are missing but for the blanks around them, as they stand there."""
    found: set[str] = set()
    for position in range(frame.shape[1]):
        series = frame.iloc[:, position]
        if series.dtype == object or isinstance(series.dtype, pd.StringDtype):
            texts = (value for value in pd.unique(series) if isinstance(value, str))
            found.update(text for text in texts if is_missing_text(text, na_values))
    return sorted(found)


# -- what looks missing and is not listed ------------------------------------------------------------------------------


def usual_cells(series: pd.Series[Any]) -> NDArray[np.bool_]:
    """Which cells hold a word that often stands for a missing value."""
    if pd.api.types.is_numeric_dtype(series) or pd.api.types.is_datetime64_any_dtype(series):
        return np.zeros(len(series), dtype=bool)
    return _cells_where(series, _is_usual)


def _is_usual(value: object) -> bool:
    return isinstance(value, str) and value.strip() in USUAL


def advice(words: Iterable[str]) -> str:
    """Return what to do about words that stand for a missing value."""
    return (
        f"If that means that the value is missing, list it: na_values = [{listed(sorted(set(words)))}] (--na-values on "
        "the command line, na_values in a schema). Or leave such cells empty."
    )


def advice_on(value: object) -> str:
    """Return the same for one cell, with a blank before it; nothing where it is another text."""
    return f" {advice([str(value).strip()])}" if _is_usual(value) else ""


def warn_of_words(frame: pd.DataFrame, columns: Iterable[str]) -> None:
    """Warn of words in these columns that often stand for a missing value and now count as values of their own."""
    said: list[str] = []
    words: set[str] = set()
    for name in dict.fromkeys(columns):
        cells = usual_cells(frame[name])
        counts = Counter(str(value).strip() for value in frame[name][cells])
        words |= counts.keys()
        said += [f"{quoted(word)} in {quoted(name)} ({rows:,} rows)" for word, rows in sorted(counts.items())]
    if said:
        warnings.warn(
            f"Values like any other, though they may mean that a value is missing: {', '.join(said[:8])}"
            f"{f' and {len(said) - 8} more' if len(said) > 8 else ''}. {advice(words)} If they are values, an empty "
            "list says so: na_values = [].",
            EquifedWarning,
            stacklevel=4,
        )
