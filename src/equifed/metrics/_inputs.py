"""Turn what users hold (lists, numpy, pandas, torch) into checked arrays; errors name the values."""

from __future__ import annotations

from typing import Any

import numpy as np

from equifed.errors import ConfigError, DataError


def column(values: Any, name: str) -> np.ndarray:
    """One-dimensional array of `values` without missing entries; `name` is what the errors call it."""
    if hasattr(values, "detach"):  # a torch tensor, possibly on a device or with a gradient
        values = values.detach().cpu()
    array = np.asarray(values)
    if array.dtype.kind == "U" and not isinstance(values, np.ndarray):
        array = np.asarray(values, dtype=object)  # numpy writes a missing entry among strings as the text "nan"
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"{name} must have one value per row, but its shape is {array.shape}.")
    missing = _missing(array)
    if missing.any():
        raise DataError(
            f"{name} has {missing.sum()} missing values, the first in row {missing.argmax()}. "
            "Drop these rows or give them a value of their own."
        )
    if array.dtype == object and len(array):
        kinds = set(map(type, array.tolist()))
        if len(kinds) > 1 and str in kinds:
            raise DataError(f"{name} mixes text with {sorted(k.__name__ for k in kinds - {str})}; use one type.")
        array = np.array(array.tolist())
    return array


def _missing(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "f":
        return np.isnan(array)
    if array.dtype == object:
        import pandas as pd  # only here: None, nan, NA and NaT are all missing

        return np.asarray(pd.isna(array))
    return np.zeros(len(array), dtype=bool)


def numbers(values: Any, name: str) -> np.ndarray:
    """A column of floats (losses, scores, regression targets)."""
    array = column(values, name)
    if len(array) and array.dtype.kind not in "biuf":
        raise DataError(f"{name} must be numbers, but holds values such as {array[0]!r}.")
    return array.astype(np.float64)


def same_length(**arrays: np.ndarray) -> None:
    """Every array must describe the same rows."""
    if len({len(array) for array in arrays.values()}) > 1:
        lengths = ", ".join(f"{name} has {len(array)}" for name, array in arrays.items())
        raise DataError(f"Arrays of one row per person must be equally long, but {lengths} rows.")


def labels(values: Any, name: str) -> np.ndarray:
    """A column of class labels. Scores are refused: a score is not a class, and 0.7 is not a label."""
    array = column(values, name)
    if array.dtype.kind == "b":
        return array.astype(np.int64)
    if array.dtype.kind == "f":
        fractional = array != np.floor(array)
        if fractional.any():
            row = fractional.argmax()
            raise DataError(
                f"{name} must hold class labels, but row {row} is {array[row]}. "
                "Apply a threshold (or argmax) to scores first."
            )
    return array


def label_pair(y_true: Any, y_pred: Any) -> tuple[np.ndarray, np.ndarray]:
    """Labels and predictions, of one length and one kind (text never equals a number)."""
    true, pred = labels(y_true, "y_true"), labels(y_pred, "y_pred")
    same_length(y_true=true, y_pred=pred)
    if len(true) and (true.dtype.kind in "US") != (pred.dtype.kind in "US"):
        raise DataError(f"y_true has labels such as {true[0]!r}, y_pred such as {pred[0]!r}; use the same labels.")
    return true, pred


def binary(y_true: Any, y_pred: Any, pos_label: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Both columns as 0/1, 1 being `pos_label`; without it, as in fairlearn, labels are {0, 1} or {-1, 1}."""
    true, pred = label_pair(y_true, y_pred)
    values = list(dict.fromkeys(np.unique(true).tolist() + np.unique(pred).tolist()))
    if len(values) > 2:
        shown = ", ".join(map(repr, values[:6])) + (", ..." if len(values) > 6 else "")
        raise DataError(
            f"This metric needs two classes, but the labels take {len(values)} values: {shown}. "
            "Compare one class with the rest, e.g. y_true == c and y_pred == c."
        )
    if pos_label is None:
        if not (set(values) <= {0, 1} or set(values) <= {-1, 1}):
            raise DataError(f"The labels are {values}, not 0 and 1: say which is positive with pos_label=.")
        pos_label = 1
    elif len(values) == 2 and pos_label not in values:
        raise ConfigError(f"pos_label={pos_label!r} is none of the labels {values}.")
    return (true == pos_label).astype(np.int64), (pred == pos_label).astype(np.int64)


def class_codes(y_true: Any, y_pred: Any, pos_label: Any = None) -> tuple[np.ndarray, np.ndarray, int]:
    """Both columns as codes in sorted order of the labels, and how many classes there are; two as in `binary`."""
    true, pred = label_pair(y_true, y_pred)
    values, codes = np.unique(np.concatenate([true, pred]), return_inverse=True)
    if pos_label is None and len(values) > 2:
        return codes[: len(true)], codes[len(true) :], len(values)
    return *binary(true, pred, pos_label), 2


def groups(sensitive_features: Any) -> tuple[np.ndarray, list[Any]]:
    """Group code of each row and the groups' names in sorted order.

    Several columns (a DataFrame or a 2-D array) give the intersections that occur, named by tuples.
    """
    parts = [sensitive_features]
    if getattr(sensitive_features, "ndim", 1) == 2:
        table = getattr(sensitive_features, "iloc", sensitive_features)
        parts = [table[:, j] for j in range(sensitive_features.shape[1])]
    columns = [column(part, "sensitive_features") for part in parts]
    if not columns:
        raise DataError("sensitive_features has no column.")
    levels, codes = zip(*(np.unique(part, return_inverse=True) for part in columns), strict=True)
    if len(columns) == 1:
        return codes[0], levels[0].tolist()
    cell = np.ravel_multi_index(codes, [max(len(level), 1) for level in levels])
    cells, code = np.unique(cell, return_inverse=True)
    index = np.unravel_index(cells, [max(len(level), 1) for level in levels])
    names = list(zip(*(level[i].tolist() for level, i in zip(levels, index, strict=True)), strict=True))
    return code, names


def reference_index(names: list[Any], signed: bool, reference_group: Any) -> int | None:
    """Position of the reference group when the gap is signed, else None."""
    if not signed:
        if reference_group is not None:
            raise ConfigError("reference_group only has a meaning with signed=True.")
        return None
    if reference_group not in names:
        raise ConfigError(f"signed=True needs reference_group, one of {names}; got {reference_group!r}.")
    return names.index(reference_group)
