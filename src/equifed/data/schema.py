"""From a table to numbers, by a schema that every silo can share.

The schema says which columns there are, which values each may take and in which order they become numbers, so
that silos that never see each other's rows build the same inputs. What does not fit is an error that names
its column and row.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from equifed.data.encode import (
    MAX_STANDARDISED,
    check_size,
    codes_of,
    column_of,
    far_from_zero,
    holds_numbers,
    numbers_of,
    row_error,
    shortened,
    sorted_texts,
)
from equifed.errors import (
    MAX_FLOAT32,
    ConfigError,
    DataError,
    EquifedWarning,
    RowError,
    blaming,
    check_number,
    unknown_name,
)
from equifed.partition.base import UNKNOWN, as_numbers, as_text, check_column
from equifed.words import clean, quoted

Encoding = Literal["ordinal", "onehot"]
Scaling = Literal["minmax", "standard", "none"]
TaskKind = Literal["classification", "regression"]

MISSING = "(missing)"
MERGED = "other (merged)"
"""The group of the rows whose own groups were too small to stand alone."""
MAX_GROUPS = 20
MANY_CATEGORIES = 50
FAR_DEVIATIONS = 1000.0  # this many deviations from 0, float32 loses digits that standardising needs


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Column(_Strict):
    """One input column: `categories` in code order; min-max scaling maps `low`..`high` to 0..1."""

    name: str
    kind: Literal["numeric", "categorical"]
    categories: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    offset: float = 0.0
    """Taken off the values of a standardised column before they are rounded to float32 (time stamps)."""


class Sensitive(_Strict):
    """A sensitive column and how its values become groups: by name, one against the rest, or a threshold. Where the
    column has no value, the group is unknown."""

    column: str
    groups: dict[str, str] = {}
    """Value -> group name. Empty: inference fills it with every value of the column."""
    other: str | None = None
    """The group of all values that `groups` does not list."""
    threshold: float | None = None
    below: str | None = None
    at_least: str | None = None
    """With a threshold: the groups of the values below it, and of those equal or above."""
    continuous: bool = False
    """With a threshold: methods that measure dependence (KFFL) take the number itself; groups are for the report."""
    mean: float | None = None
    deviation: float | None = None
    """Of a continuous column, by which it is standardised. Empty: inference fills them."""

    @model_validator(mode="after")
    def _one_rule(self) -> Sensitive:
        if len({value is None for value in (self.threshold, self.below, self.at_least)}) > 1:
            raise ValueError("threshold, below and at_least go together")
        if self.threshold is not None and (self.groups or self.other):
            raise ValueError("give a threshold or groups, not both")
        if self.continuous and self.threshold is None:
            raise ValueError("a continuous column needs a threshold, which makes the groups that are reported")
        if self.deviation is not None and not self.deviation > 0:
            raise ValueError("the deviation must be positive")
        return self

    def infer(self, frame: pd.DataFrame) -> Sensitive:
        """The same rule with every value of the frame named, where it named none."""
        if self.continuous and (self.mean is None or self.deviation is None):
            number = numbers_of(column_of(frame, self.column).dropna())
            if not len(number):
                raise DataError("the column has no value at all, so that no group is known.", column=self.column)
            return self.model_copy(update={"mean": float(number.mean()), "deviation": float(number.std()) or 1.0})
        if self.threshold is not None or self.groups:
            return self
        series = column_of(frame, self.column)
        values = sorted_texts(series)
        if not values:
            raise DataError("the column has no value at all, so that no group is known.", column=self.column)
        if pd.api.types.is_numeric_dtype(series) and len(values) > MAX_GROUPS:
            raise DataError(
                f"{len(values)} different numbers are too many for groups. Give a threshold (in Python, an "
                "equifed.data.Sensitive), or a column that names the groups.",
                column=self.column,
            )
        return self.model_copy(update={"groups": {value: value for value in values}})

    def names(self, frame: pd.DataFrame) -> tuple[NDArray[np.int64], list[str]]:
        """Per row the index into the list of this column's group names; -1 where the column has no value."""
        whole = column_of(frame, self.column)
        series = whole.dropna()
        codes = np.full(len(whole), UNKNOWN, dtype=np.int64)
        known = whole.notna().to_numpy()
        if self.threshold is not None:
            codes[known] = numbers_of(series) >= self.threshold
            return codes, [str(self.below), str(self.at_least)]
        names = list(dict.fromkeys([*self.groups.values(), *([self.other] if self.other else [])]))
        position = {name: i for i, name in enumerate(names)}
        codes[known] = codes_of(
            series,
            {value: position[name] for value, name in self.groups.items()},
            noun="group",
            fallback=position[self.other] if self.other else None,
        )
        return codes, names

    def numbers(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        """The column as numbers without a false order [n, d]: see `Data.sensitive`."""
        if self.continuous:
            series = column_of(frame, self.column)
            assert self.mean is not None and self.deviation is not None  # noqa: PT018 - filled by `infer`
            values = np.zeros(len(series))
            values[series.notna()] = (numbers_of(series.dropna()) - self.mean) / self.deviation
            return values.astype(np.float32)[:, None]
        codes, names = self.names(frame)
        return as_numbers(codes, len(names))


@dataclass(frozen=True, eq=False)
class Encoded:
    """A table as numbers."""

    x: NDArray[np.float32]
    """[n, d] inputs; images [n, channels, height, width]."""
    y: NDArray[np.int64] | NDArray[np.float32]
    """[n] class codes (int64), or values (float32) for regression."""
    s: NDArray[np.int64]
    """[n] group codes; -1 where the group is unknown."""
    feature_names: tuple[str, ...]
    class_names: tuple[str, ...]
    """Empty for regression."""
    group_names: tuple[str, ...]
    scale_columns: NDArray[np.bool_]
    """[d] the inputs that the caller standardises with the mean and deviation of its training rows."""
    task: TaskKind
    attribute: NDArray[np.float32] | None = None
    """[n, d] the sensitive attribute as numbers, where it says more than the group: continuous, or several columns."""
    merged: dict[str, int] = field(default_factory=dict)
    """Rows of every group that is now a part of `MERGED`, by its name."""
    columns: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Further columns as they are, row by row (STATE, split), for partitions and given splits."""
    schema: Schema | None = None
    """None for images, whose pixels are the inputs."""


class Schema(_Strict):
    """What every silo must agree on to turn its table into the same numbers. JSON in and out."""

    columns: tuple[Column, ...]
    label: str
    task: TaskKind = "classification"
    classes: tuple[str, ...] = ()
    """Label values in code order; class 1 of two is the positive one. Empty: the label is a number."""
    meaning: str = ""
    """What the positive class says of a row, or what the number to be predicted is, in a few words."""
    label_range: tuple[float, float] | None = None
    """Regression: the label values that become 0 and 1."""
    sensitive: tuple[Sensitive, ...] = ()
    groups: tuple[str, ...] = ("all",)
    """Group names in code order, the privileged one last. Several sensitive columns: "a & b". Where `MERGED` is among
    them, it is the group of all rows whose own is not listed."""
    min_group: int = 0
    """Groups with fewer rows than this, in the table that the schema was read off, became part of `MERGED`."""
    encoding: Encoding = "onehot"
    scaling: Scaling = "standard"

    @model_validator(mode="after")
    def _consistent(self) -> Schema:
        names = [column.name for column in self.columns]
        for kind, values in (("column", names), ("class", self.classes), ("group", self.groups)):
            twice = sorted({value for value in values if list(values).count(value) > 1})
            if twice:
                raise ValueError(f"{kind} {twice[0]!r} is listed twice")
        if self.label in names:
            raise ValueError(f"the label {self.label!r} is also an input column")
        if self.task == "classification" and len(self.classes) < 2:
            raise ValueError("classification needs at least two classes")
        if not self.groups:
            raise ValueError("at least one group is needed")
        for rule in self.sensitive:
            if rule.continuous and (rule.mean is None or rule.deviation is None):
                raise ValueError(f"the continuous sensitive column {rule.column!r} needs its mean and deviation")
        if self.label_range and not self.label_range[0] < self.label_range[1]:
            raise ValueError("label_range must be (low, high) with low < high")
        for column in self.columns:
            if column.kind == "categorical" and not column.categories:
                raise ValueError(f"categorical column {column.name!r} lists no categories")
            if column.kind == "numeric" and self.scaling == "minmax" and None in (column.low, column.high):
                raise ValueError(f"min-max scaling needs low and high of column {column.name!r}")
        return self

    @classmethod
    def infer(
        cls,
        frame: pd.DataFrame,
        *,
        label: str,
        sensitive: str | Sensitive | Sequence[str | Sensitive] = (),
        features: Sequence[str] | None = None,
        positive: object = None,
        meaning: str = "",
        privileged: str | None = None,
        min_group: int = 0,
        categorical: Sequence[str] = (),
        encoding: Encoding = "onehot",
        scaling: Scaling = "standard",
        task: TaskKind = "classification",
        label_range: tuple[float, float] | None = None,
        sensitive_as_input: bool = False,
        exclude: Sequence[str] = (),
    ) -> Schema:
        """Read the schema off a table.

        Without `features` every column but the label and those to `exclude` is an input, and the sensitive ones only
        with `sensitive_as_input`. `categorical` names number columns whose numbers are codes. Groups with fewer than
        `min_group` rows become one.
        """
        if task not in get_args(TaskKind):
            raise unknown_name("task", task, get_args(TaskKind), key="task")
        if len(frame) == 0:
            raise DataError("The table has no rows.")
        if isinstance(features, str):
            text = f"must be a list of column names, got {features!r}. Write [{features!r}]."
            raise ConfigError(text, key="features", value=features)
        label = check_column("label", label)
        given = sensitive if isinstance(sensitive, Sequence) and not isinstance(sensitive, str) else [sensitive]
        named = [
            rule if isinstance(rule, Sensitive) else Sensitive(column=check_column("sensitive", rule)) for rule in given
        ]
        twice = [rule.column for i, rule in enumerate(named) if rule.column in (other.column for other in named[:i])]
        if twice:
            raise ConfigError(f"names the column {twice[0]!r} twice.", key="sensitive", value=twice[0])
        check_number("min_group", min_group, whole=True, low=0)
        with blaming(key="sensitive"):
            rules = tuple(rule.infer(frame) for rule in named)
        if features is None:
            hidden = {label, *exclude} | (set() if sensitive_as_input else {rule.column for rule in rules})
            features = [name for name in frame.columns if name not in hidden]
        for name in categorical:
            column_of(frame, name)
        columns = tuple(_infer_column(frame, name, name in categorical, scaling) for name in map(str, features))
        with blaming(key="label"):
            classes = _infer_classes(frame, label, positive, task)
        values = {
            "columns": columns,
            "label": label,
            "task": task,
            "classes": classes,
            "meaning": meaning,
            "label_range": label_range,
            "sensitive": rules,
            "groups": _infer_groups(frame, rules, privileged, min_group),
            "min_group": min_group,
            "encoding": encoding,
            "scaling": scaling,
        }
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(f"The table gives no valid schema: {_first_message(error)}.") from error

    @property
    def column_names(self) -> tuple[str, ...]:
        """All columns that a table needs: inputs, label and sensitive ones."""
        names = [*(column.name for column in self.columns), self.label, *(rule.column for rule in self.sensitive)]
        return tuple(dict.fromkeys(names))

    @property
    def merged(self) -> str | None:
        """The group of all rows whose own is not listed; None: there is none, and such a row is refused."""
        return MERGED if MERGED in self.groups else None

    def encode(self, frame: pd.DataFrame, *, columns: Sequence[str] = ()) -> Encoded:
        """The numbers of a table; `columns` are kept as they are beside them."""
        x, names, scale = self._inputs(frame)
        s, merged = _group_codes(frame, self.sensitive, self.groups)
        return Encoded(
            x=x,
            y=self._labels(frame),
            s=s,
            feature_names=names,
            class_names=self.classes if self.task == "classification" else (),
            group_names=self.groups,
            scale_columns=scale,
            task=self.task,
            attribute=self._attribute(frame),
            merged=merged,
            columns={name: column_of(frame, name).to_numpy() for name in columns},
            schema=self,
        )

    def inputs(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        """The model's inputs [n, d] of a table that may lack label and sensitive columns, as new rows do."""
        return self._inputs(frame)[0]

    def group_codes(self, frame: pd.DataFrame) -> NDArray[np.int64]:
        """The code of each row's group [n]; -1 where it is unknown."""
        return _group_codes(frame, self.sensitive, self.groups)[0]

    def _attribute(self, frame: pd.DataFrame) -> NDArray[np.float32] | None:
        if len(self.sensitive) < 2 and not any(rule.continuous for rule in self.sensitive):
            return None
        return np.concatenate([rule.numbers(frame) for rule in self.sensitive], axis=1)

    def to_json(self) -> str:
        return self.model_dump_json(indent=2, exclude_defaults=True) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Schema:
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ConfigError(f"Not a valid schema: {_first_message(error)}.") from error

    def _inputs(self, frame: pd.DataFrame) -> tuple[NDArray[np.float32], tuple[str, ...], NDArray[np.bool_]]:
        wide = self.encoding == "onehot"
        width = sum(len(c.categories) if wide and c.kind == "categorical" else 1 for c in self.columns)
        x = np.zeros((len(frame), width), dtype=np.float32)
        names: list[str] = []
        scale = np.zeros(width, dtype=np.bool_)
        for column in self.columns:
            start = len(names)
            series = column_of(frame, column.name)
            if column.kind == "numeric":
                values = numbers_of(series)
                low, high = column.low, column.high
            else:
                position = {value: i for i, value in enumerate(column.categories)}
                codes = codes_of(series, position, noun="category", missing=position.get(MISSING))
                if wide:
                    x[np.arange(len(frame)), start + codes] = 1
                    names += [f"{column.name}={value}" for value in column.categories]
                    continue
                values, low, high = codes.astype(np.float64), 0.0, len(column.categories) - 1.0
            if self.scaling == "minmax" and low is not None and high is not None:
                values = (values - low) / (high - low) if high > low else values - low
            elif self.scaling == "standard" and column.offset:
                values = values - column.offset
            elif self.scaling == "standard" and far_from_zero(values, 100 * FAR_DEVIATIONS):
                warnings.warn(
                    f"Column {column.name!r} has values around {values.mean():.6g} that differ by {values.std():.3g} "
                    "only: as 32-bit numbers many become the same. Subtract a constant first, or give the column of "
                    "the schema an offset.",
                    EquifedWarning,
                    stacklevel=4,
                )
            scale[start] = self.scaling == "standard"
            check_size(values, series, MAX_STANDARDISED if scale[start] else MAX_FLOAT32)
            x[:, start] = values
            names.append(column.name)
        return x, tuple(names), scale

    def _labels(self, frame: pd.DataFrame) -> NDArray[np.int64] | NDArray[np.float32]:
        series = column_of(frame, self.label)
        if self.classes:
            codes = codes_of(series, {v: i for i, v in enumerate(self.classes)}, noun="class")
            return codes if self.task == "classification" else codes.astype(np.float32)
        values = numbers_of(series)
        if self.label_range:
            low, high = self.label_range
            values = (values - low) / (high - low)
            check_size(values, series)
        return values.astype(np.float32)


def _infer_column(frame: pd.DataFrame, name: str, is_code: bool, scaling: Scaling) -> Column:
    series = column_of(frame, name)
    if is_code or not holds_numbers(series):
        missing = [MISSING] if series.isna().any() else []
        values = [value for value in sorted_texts(series) if value != MISSING]
        if len(values) > MANY_CATEGORIES and 2 * len(values) > len(series):
            warnings.warn(
                f"Column {name!r} has {len(values)} categories in {len(series)} rows, like an id or a date, and is "
                "a model input. Leave it out by naming the others in features=..., or turn it into a number first.",
                EquifedWarning,
                stacklevel=4,
            )
        return Column(name=name, kind="categorical", categories=(*missing, *values))
    if scaling == "none":
        return Column(name=name, kind="numeric")
    numbers = numbers_of(series)
    if scaling == "minmax":
        return Column(name=name, kind="numeric", low=float(numbers.min()), high=float(numbers.max()))
    offset = float(numbers.mean()) if far_from_zero(numbers, FAR_DEVIATIONS) else 0.0
    return Column(name=name, kind="numeric", offset=offset)


def _infer_classes(frame: pd.DataFrame, label: str, positive: object, task: TaskKind) -> tuple[str, ...]:
    series = column_of(frame, label)
    if task == "regression" and positive is None:
        return ()
    if holds_numbers(series):
        numbers = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        fraction = np.isfinite(numbers) & (numbers % 1 != 0)
        if fraction.any():
            row = int(np.argmax(fraction))
            raise row_error(
                series,
                row,
                f"{numbers[row]:g} is not the number of a class. Did you mean task='regression'? Otherwise name the "
                "classes.",
            )
    values = sorted_texts(series)
    if len(values) < 2:
        only = f"has only one class, {quoted(values[0])}" if values else "has no value at all"
        raise DataError(f"The label {only}: nothing can be learnt. Check the rows and the column.", column=label)
    if positive is None:
        return tuple(values)
    one = as_text(positive)
    if one not in values:
        text = f"The label has no value {one!r} to be class 1. It has: {shortened(values)}."
        raise DataError(text, key="positive", value=positive, column=label)
    if len(values) > 2:
        raise DataError(
            f"The label has {len(values)} values ({shortened(values)}), so no single one is the positive class. Leave "
            "`positive` out, or make a column with two values.",
            key="positive",
            value=positive,
            column=label,
        )
    return (*(value for value in values if value != one), one)


def _infer_groups(
    frame: pd.DataFrame, rules: Sequence[Sensitive], privileged: str | None, min_group: int
) -> tuple[str, ...]:
    codes, names = _intersections(frame, rules)
    rows = _rows_by_name(codes, names)
    present = [name for name in names if rows[name]]
    large = [name for name in present if rows[name] >= min_group]
    if not present:
        raise DataError("No row has a value in all sensitive columns, so that no group is known.", key="sensitive")
    if not large:
        raise DataError(
            f"no group has {min_group} rows, the largest {max(rows.values())}. Give a smaller number.",
            key="min_group",
            value=min_group,
        )
    if privileged is not None and privileged not in present:
        raise DataError(f"No row belongs to the privileged group {privileged!r}. Groups: {', '.join(present)}.")
    if len(present) - len(large) > 1:  # one small group by itself has nothing to be merged with
        present = [MERGED, *large]
    if privileged is None or privileged not in present:
        return tuple(present)
    return (*(name for name in present if name != privileged), privileged)


def _intersections(frame: pd.DataFrame, rules: Sequence[Sensitive]) -> tuple[NDArray[np.int64], list[str]]:
    """Per row the code of its group in the product of all sensitive columns, -1 where one has no value; the names of
    all products."""
    codes, names = np.zeros(len(frame), dtype=np.int64), ["all"]
    for number, rule in enumerate(rules):
        more, more_names = rule.names(frame)
        codes = np.where((codes == UNKNOWN) | (more == UNKNOWN), UNKNOWN, codes * len(more_names) + more)
        names = [f"{a} & {b}" for a in names for b in more_names] if number else more_names
    return codes, names


def _group_codes(
    frame: pd.DataFrame, rules: Sequence[Sensitive], groups: Sequence[str]
) -> tuple[NDArray[np.int64], dict[str, int]]:
    """Per row the code of its group; and the rows of each group that is merged with others."""
    codes, names = _intersections(frame, rules)
    position = {name: i for i, name in enumerate(groups)}
    lookup = np.array([position.get(name, position.get(MERGED, UNKNOWN)) for name in names], dtype=np.int64)
    s = np.where(codes == UNKNOWN, UNKNOWN, lookup[codes])
    unlisted = (s == UNKNOWN) & (codes != UNKNOWN)
    if unlisted.any():
        row = int(np.argmax(unlisted))
        columns = " & ".join(rule.column for rule in rules)
        text = f"group {quoted(names[codes[row]])} is not in the schema. Known groups: {', '.join(groups)}."
        raise RowError(text, column=columns, row=frame.index[row])
    rows = _rows_by_name(codes, names)
    return s, {name: count for name, count in rows.items() if count and name not in position}


def _rows_by_name(codes: NDArray[np.int64], names: Sequence[str]) -> dict[str, int]:
    counts = np.bincount(codes[codes != UNKNOWN], minlength=len(names))
    return dict(zip(names, counts.tolist(), strict=True))


def _first_message(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    return clean(f"{place}: {first['msg']}" if place else first["msg"])
