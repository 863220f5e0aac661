"""Arrays of clients, the server and the test, checked and joined into one table of rows."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from equifed.errors import DataError
from equifed.partition.base import UNKNOWN, as_numbers, as_text, is_missing
from equifed.task import TaskKind

if TYPE_CHECKING:
    from equifed.data import Encoded


class Rows(NamedTuple):
    """All rows of one or several federations."""

    x: np.ndarray
    """Features, float32 [n, ...]."""
    y: np.ndarray
    """Class codes, int64 [n], or float32 values for regression."""
    s: np.ndarray
    """Group codes, int64 [n]; -1 where the group is unknown."""
    attribute: np.ndarray | None = None
    """The sensitive attribute as numbers, float32 [n, d], where it says more than the group: a continuous one, or
    several columns. Only methods that measure dependence (KFFL) look at it."""


class Joined(NamedTuple):
    """The rows of all parts in one table."""

    rows: Rows
    classes: tuple[str, ...]
    groups: tuple[str, ...]
    ranges: list[np.ndarray]
    """The positions of each part's rows."""


def join(named: Sequence[tuple[str, Any]], task: TaskKind) -> Joined:
    """The parts (x, y, s) or (x, y, s, a), each with its name in error messages, as one table."""
    parts = [_check_part(label, part, task) for label, part in named]
    labels = [label for label, _ in named]
    dimensions = {np.ndim(_numpy(part[2])): label for label, part in named if len(part[1])}
    if len(dimensions) > 1:
        raise DataError(
            f"All parts need the same columns of groups, but {dimensions[1]} has one array of them and {dimensions[2]} "
            "a table."
        )
    shapes = [part[0].shape[1:] for part in parts]
    for label, shape in zip(labels, shapes, strict=True):
        if shape != shapes[0]:
            raise DataError(
                f"All parts need the same features, but {labels[0]} has rows of shape {list(shapes[0])} "
                f"and {label} of {list(shape)}."
            )
    classes: tuple[str, ...] = ()
    if task == "classification":
        classes, y = _coded("labels", labels, [part[1] for part in parts])
    else:
        y = np.concatenate([part[1] for part in parts])
    groups, s = _group_codes(labels, [part[2] for part in parts])
    stops = np.cumsum([len(part[1]) for part in parts])
    ranges = [np.arange(stop - len(part[1]), stop) for part, stop in zip(parts, stops, strict=True)]
    rows = Rows(np.concatenate([part[0] for part in parts]), y, s, _attribute(named))
    return Joined(rows, classes, groups, ranges)


def encoded(
    rows: Rows,
    features: tuple[str, ...],
    classes: tuple[str, ...],
    groups: tuple[str, ...],
    task: TaskKind,
    scaling: Literal["standard", "none"],
) -> Encoded:
    """Rows of numbers as those of a table."""
    from equifed.data import Encoded

    scaled = np.full(len(features), scaling == "standard") if rows.x.ndim == 2 else np.zeros(len(features), dtype=bool)
    return Encoded(rows.x, rows.y, rows.s, features, classes, groups, scaled, task, rows.attribute)


def check_ids(ids: Sequence[str] | None, count: int) -> tuple[str, ...]:
    """The clients' names: those given, which must differ, or "0", "1", ..."""
    names = tuple(str(i) for i in ids) if ids is not None else tuple(str(i) for i in range(count))
    if len(names) != count:
        raise DataError(f"{len(names)} client ids for {count} clients.")
    if len(set(names)) != count:
        double = next(name for name in names if names.count(name) > 1)
        raise DataError(f"Client ids must differ; {double!r} occurs more than once.")
    return names


def _check_part(label: str, part: Any, task: TaskKind) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if not isinstance(part, tuple | list) or len(part) not in (3, 4):
        raise DataError(
            f"{label}: expected a triple (x, y, s) of features, labels and groups, or (x, y, s, a) with the sensitive "
            "attribute as numbers."
        )
    try:
        x, y, s = (np.asarray(_numpy(value)) for value in part[:3])
    except ValueError as error:
        raise DataError(f"{label}: features, labels and groups must be arrays: {error}") from None
    if x.ndim < 2:
        raise DataError(f"{label}: features must have shape [rows, ...], got {list(x.shape)}.")
    if s.ndim == 2 and len(s) == len(x):
        crossed = [" & ".join(as_text(value) for value in row) for row in s]
        unknown, s = _unknown(s), np.array(crossed, dtype=object)
        s[unknown] = None
    for what, values in (("labels", y), ("groups", s)):
        if values.ndim != 1 or len(values) != len(x):
            raise DataError(f"{label}: {len(x)} rows of features but {what} of shape {list(values.shape)}.")
    missing = is_missing(y)
    if missing.any():
        raise DataError(f"{label}: labels have a missing value at row {int(missing.argmax())}.")
    if y.dtype == object and _value_kinds(y) == ["numbers"]:
        y = np.array(y.tolist())
    if x.dtype.kind not in "biuf":
        raise DataError(
            f"{label}: features must be numbers, got {x.dtype}. Encode text columns first, as from_tables does."
        )
    x = _as_float32(x)
    check_finite(x, f"{label}: ")
    if task == "regression":
        if y.dtype.kind not in "biuf":
            raise DataError(f"{label}: labels of a regression must be finite numbers.")
        y = _as_float32(y)
        if not np.isfinite(y).all():
            row = int(np.argmin(np.isfinite(y)))
            raise DataError(
                f"{label}: labels of a regression must be finite numbers of 32 bits; the one of row {row} is not."
            )
    elif y.dtype.kind == "f" and (y % 1 != 0).any():
        row = int(np.argmax(y % 1 != 0))
        raise DataError(
            f"{label}: the label {y[row]:g} of row {row} is not the number of a class. "
            "Did you mean task='regression'? Otherwise name the classes."
        )
    return x, y, s


def _attribute(named: Sequence[tuple[str, Any]]) -> np.ndarray | None:
    """The sensitive attribute of all parts as numbers: as given, or from several columns of groups; else None."""
    given = {len(part) == 4 for _, part in named}
    if given == {True, False}:
        without = next(label for label, part in named if len(part) == 3)
        raise DataError(
            f"Some parts are (x, y, s, a) and {without} is (x, y, s): give the attribute a for all or none."
        )
    if given == {False}:
        tables = [np.asarray(_numpy(part[2])) for _, part in named]
        if all(table.ndim == 1 for table in tables):
            return None
        tables = [table for table in tables if table.ndim == 2]
        unknown = np.concatenate([_unknown(table) for table in tables])
        columns = []
        for column in zip(*(table.astype(str).T for table in tables), strict=True):
            codes = np.full(len(unknown), UNKNOWN)
            values, codes[~unknown] = np.unique(np.concatenate(column)[~unknown], return_inverse=True)
            columns.append(as_numbers(codes, len(values)))
        return np.concatenate(columns, axis=1)
    parts = []
    for label, part in named:
        n, values = len(part[1]), np.asarray(_numpy(part[3]))
        if values.dtype.kind not in "biuf" or values.shape[:1] != (n,) or values.ndim > 2 or values.shape[1:] == (0,):
            raise DataError(f"{label}: the attribute a must be numbers [{n}] or [{n}, d].")
        values = _as_float32(values[:, None] if values.ndim == 1 else values)
        values = np.where(_unknown(np.asarray(_numpy(part[2])))[:, None], np.float32(0), values)
        if not np.isfinite(values).all():
            raise DataError(f"{label}: the attribute a has a missing or infinite value where the group is known.")
        parts.append(values)
    if len({part.shape[1] for part in parts}) > 1:
        raise DataError("All parts need an attribute a with the same number of columns.")
    return np.concatenate(parts)


def _as_float32(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # the caller checks for what overflows
        return values.astype(np.float32, copy=False)


def _coded(what: str, labels: Sequence[str], parts: Sequence[np.ndarray]) -> tuple[tuple[str, ...], np.ndarray]:
    """(names, int64 codes) of the labels or groups of all parts, which must be of one kind: text or numbers."""
    kinds: dict[str, str] = {}
    for label, values in zip(labels, parts, strict=True):
        for kind in _value_kinds(values):
            kinds.setdefault(kind, label)
    if len(kinds) > 1:
        (one, first), (another, second) = list(kinds.items())[:2]
        raise DataError(f"Mixed {what}: {one} in {first} and {another} in {second}. Use one kind for all.")
    try:
        values, codes = np.unique(np.concatenate([part for part in parts if len(part)] or parts), return_inverse=True)
    except TypeError:
        raise DataError(f"The {what} must be text or numbers, got {next(iter(kinds))}.") from None
    return tuple(as_text(value) for value in values), codes.astype(np.int64)


def _group_codes(labels: Sequence[str], parts: Sequence[np.ndarray]) -> tuple[tuple[str, ...], np.ndarray]:
    """(names, int64 codes) of the groups of all parts; -1 where a group is unknown."""
    unknown = [_unknown(part) for part in parts]
    names, codes = _coded("groups", labels, [part[~gone] for part, gone in zip(parts, unknown, strict=True)])
    hidden = np.concatenate(unknown)
    if hidden.any() and not len(names):
        raise DataError("No row has a known group.")
    if names == ("1",) and any((part == UNKNOWN).any() for part in parts):
        raise DataError(
            "The groups are -1 and 1, but -1 stands for an unknown group. Call two groups 0 and 1, or by their names."
        )
    s = np.full(len(hidden), UNKNOWN, dtype=np.int64)
    s[~hidden] = codes
    return names, s


def _unknown(groups: np.ndarray) -> np.ndarray:
    """Which rows' groups are unknown [n]: missing (None, nan), or the number -1, in any of their columns."""
    minus = np.zeros(groups.shape, dtype=bool)
    if groups.dtype.kind in "if":
        minus = groups == UNKNOWN
    elif groups.dtype == object:
        marks = [isinstance(value, numbers.Real) and value == UNKNOWN for value in groups.flat]
        minus = np.array(marks, dtype=bool).reshape(groups.shape)
    either = is_missing(groups) | minus
    return either if either.ndim == 1 else np.any(either, axis=tuple(range(1, either.ndim)))


def _value_kinds(values: np.ndarray) -> list[str]:
    """The kinds of values in an array: several only in one of objects."""
    if not len(values):
        return []
    if values.dtype.kind in "biuf":
        return ["numbers"]
    if values.dtype.kind in "US":
        return ["text"]
    types = dict.fromkeys(type(value) for value in values.tolist())
    return list(
        dict.fromkeys(
            "text" if issubclass(kind, str) else "numbers" if issubclass(kind, numbers.Real) else kind.__name__
            for kind in types
        )
    )


def client_group_codes(client_groups: Sequence[Any], ids: Sequence[str]) -> np.ndarray:
    """The known group of each client as a code."""
    if len(client_groups) != len(ids):
        raise DataError(f"client_groups has {len(client_groups)} entries for {len(ids)} clients.")
    given = np.array(list(client_groups), dtype=object)
    missing = is_missing(given)
    if given.ndim != 1 or missing.any():
        raise DataError(
            "client_groups needs one group for each client"
            + (f", but client {ids[int(missing.argmax())]!r} has none." if given.ndim == 1 else ".")
        )
    return _coded("client_groups", ["client_groups"], [given])[1]


def _numpy(value: Any) -> Any:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def check_finite(x: np.ndarray, where: str = "") -> None:
    """Refuse features that are not finite numbers; name the first one's row."""
    bad = ~np.isfinite(x)
    if bad.any():
        row, *place = (int(i) for i in np.argwhere(bad)[0])
        column = place[0] if len(place) == 1 else place
        raise DataError(
            f"{where}feature {column} of row {row} is NaN or infinite, or too large for a 32-bit number. "
            "Drop the row or impute it."
        )
