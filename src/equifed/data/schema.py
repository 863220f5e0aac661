"""From a table to numbers, by a schema that every silo can share.

The schema says which columns there are, which values each may take and in which order they become numbers, so
that silos that never see each other's rows build the same inputs. What does not fit is an error that names
its column and row.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from equifed.data.choose import require_columns
from equifed.data.columns import Columns, Encoding, Scaling, TaskKind
from equifed.data.dates import ISO, DatePart, parts_of
from equifed.data.encode import (
    MAX_STANDARDISED,
    check_size,
    check_words_among_numbers,
    codes_of,
    column_of,
    far_from_zero,
    numbers_of,
    row_error,
    sorted_texts,
)
from equifed.data.missing import BEFORE, check_na_values, is_missing_text, with_missing
from equifed.errors import MAX_FLOAT32, ConfigError, DataError, EquifedWarning, RowError
from equifed.partition.base import UNKNOWN, as_numbers
from equifed.words import clean, listed, quoted

MISSING = "(missing)"
"""The category of no value."""
OTHER = "(other)"
"""The category of all values that the schema does not list."""
MERGED = "other (merged)"
"""The group of the rows whose own groups were too small to stand alone."""
MAX_GROUPS = 20
FAR_DEVIATIONS = 1000.0  # this many deviations from 0, float32 loses digits that standardising needs


NO_VALUE = (
    "the value is missing (NaN). Drop such rows or impute them first, or make a schema whose rule for missing values "
    "takes them."
)


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Document(Strict):
    """What silos hand to one another, as JSON."""

    def to_json(self) -> str:
        return self.model_dump_json(indent=2, exclude_defaults=True) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ConfigError(f"Not a valid {cls.__name__.lower()}: {first_message(error)}.") from error


class Column(Strict):
    """One input column, or one part of a column of dates. `categories` are in code order; min-max scaling maps
    `low`..`high` to 0..1."""

    name: str
    kind: Literal["numeric", "categorical", "date"]
    categories: tuple[str, ...] = ()
    part: DatePart | None = None
    """Of a date: what becomes the number."""
    format: str = ISO
    """Of a date: how it is written, where it is text."""
    low: float | None = None
    high: float | None = None
    offset: float = 0.0
    """Taken off the values of a standardised column before they are rounded to float32 (time stamps)."""
    missing: Literal["refuse", "drop", "category", "mean", "median"] = "refuse"
    """What is done about a missing value; `(missing)` among the categories takes it under any rule."""
    fill: float | None = None
    """The mean or median that takes its place, by the rule."""
    indicator: bool = False
    """Whether a further input is 1 where the value was missing."""

    @property
    def title(self) -> str:
        """The name of its number among the inputs."""
        return f"{self.name} ({self.part})" if self.part else self.name

    def inputs(self, encoding: Encoding) -> tuple[str, ...]:
        """The names of the inputs that the column becomes."""
        if self.kind == "categorical" and encoding == "onehot":
            return tuple(f"{self.name}={value}" for value in self.categories)
        return (self.title, f"{self.name} {MISSING}") if self.indicator else (self.title,)

    def numbers(self, series: pd.Series[Any]) -> NDArray[np.float64]:
        """The column's numbers, before scaling."""
        known = series.notna().to_numpy(dtype=bool)
        if self.fill is None and not known.all():
            raise row_error(series, int(np.argmin(known)), NO_VALUE)
        values = np.full(len(series), np.nan if self.fill is None else self.fill)
        present = series[known]
        values[known] = numbers_of(present) if self.part is None else parts_of(present, self.part, self.format)
        return values


class LeftOut(Strict):
    """A column of the table that is no input."""

    column: str
    reason: str
    """In words without values."""


class Sensitive(Strict):
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
        values = group_values(series)
        if not values:
            raise DataError("the column has no value at all, so that no group is known.", column=self.column)
        return self.model_copy(update={"groups": {value: value for value in values}})

    @property
    def group_names(self) -> list[str]:
        """In code order."""
        if self.threshold is not None:
            return [str(self.below), str(self.at_least)]
        return list(dict.fromkeys([*self.groups.values(), *([self.other] if self.other else [])]))

    def names(self, frame: pd.DataFrame) -> tuple[NDArray[np.int64], list[str]]:
        """Per row the index into the list of this column's group names; -1 where the column has no value."""
        whole = column_of(frame, self.column)
        series = whole.dropna()
        codes = np.full(len(whole), UNKNOWN, dtype=np.int64)
        known = whole.notna().to_numpy()
        if self.threshold is not None:
            codes[known] = numbers_of(series) >= self.threshold
            return codes, self.group_names
        names = self.group_names
        position = {name: i for i, name in enumerate(names)}
        codes[known] = codes_of(
            series,
            {value: position[name] for value, name in self.groups.items()},
            noun="group",
            fallback=position[self.other] if self.other else None,
        )
        return codes, names

    def numbers(self, frame: pd.DataFrame, merged: bool) -> NDArray[np.float32]:
        """The column as numbers without a false order [n, d]: see `Data.sensitive`. merged: whether rows of `MERGED`
        are a group; otherwise theirs is unknown."""
        if self.continuous:
            series = column_of(frame, self.column)
            assert self.mean is not None and self.deviation is not None  # noqa: PT018 - filled by `infer`
            values = np.zeros(len(series))
            values[series.notna()] = (numbers_of(series.dropna()) - self.mean) / self.deviation
            return values.astype(np.float32)[:, None]
        codes, names = self.names(frame)
        if not merged and MERGED in names:  # always the last
            codes, names = np.where(codes == names.index(MERGED), UNKNOWN, codes), names[:-1]
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
    dropped: int = 0
    """Rows that were left out because an input was missing."""
    columns: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Further columns as they are, row by row (STATE, split), for partitions and given splits."""
    schema: Schema | None = None
    """None for images, whose pixels are the inputs."""

    def taken(self, rows: NDArray[np.int64]) -> Encoded:
        """These rows of it."""
        return replace(
            self,
            x=self.x[rows],
            y=self.y[rows],
            s=self.s[rows],
            attribute=None if self.attribute is None else self.attribute[rows],
            columns={name: values[rows] for name, values in self.columns.items()},
        )


class Schema(Document):
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
    min_count: int = 0
    """What fewer rows of a table have in common is not in the schema: such a category is `OTHER`, such a group is
    `MERGED` or unknown, and so is one that was never seen. 0: everything is, and what is not listed is refused."""
    encoding: Encoding = "onehot"
    scaling: Scaling = "standard"
    na_values: tuple[str, ...] = BEFORE
    """Words that mean a missing value, as an empty cell does: NA, ?, -9. A schema that was written before there was
    this list has none, and reads tables by the words that were missing in CSV files then, but for those that it lists
    as values."""
    left_out: tuple[LeftOut, ...] = ()
    """The columns that were not chosen as inputs, and why."""

    @model_validator(mode="before")
    @classmethod
    def _before_na_values(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "na_values" in given:
            return given
        given = _without_blank_categories(given)
        values = [*_values_named(given)]
        blank = next((name for name, value in values if not value.strip()), None)
        if blank is not None:
            raise ValueError(
                f"column {blank!r} lists an empty text as a value, which was one when the schema was written. Now such "
                "cells are missing: make the schema and train again, or open it with the version that wrote it"
            )
        named = {value.strip() for _, value in values}
        return {**given, "na_values": tuple(word for word in BEFORE if word not in named)}

    @field_validator("na_values")
    @classmethod
    def _words(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        return check_na_values(given)

    @model_validator(mode="after")
    def _consistent(self) -> Schema:
        names = [column.name for column in self.columns]
        titles = [column.title for column in self.columns]
        for kind, values in (("column", titles), ("class", self.classes), ("group", self.groups)):
            twice = sorted({value for value in values if list(values).count(value) > 1})
            if twice:
                raise ValueError(f"{kind} {twice[0]!r} is listed twice")
        if self.label in names:
            raise ValueError(f"the label {self.label!r} is also an input column")
        for name, value in _values_named(dict(self)):
            if is_missing_text(value, self.na_values):
                why = "is one of na_values" if value.strip() else "is empty"
                text = f"the value {value!r} of column {name!r} {why}, so such cells are missing: make the schema again"
                raise ValueError(text)
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
            if (column.kind == "date") != (column.part is not None):
                raise ValueError(f"column {column.name!r} needs a part exactly if it is one of dates")
            if column.kind != "categorical" and self.scaling == "minmax" and None in (column.low, column.high):
                raise ValueError(f"min-max scaling needs low and high of column {column.title!r}")
            if column.missing in ("mean", "median") and (column.kind == "categorical" or column.fill is None):
                raise ValueError(f"column {column.name!r} needs numbers and a fill to have its missing values filled")
        return self

    @classmethod
    def infer(cls, frame: pd.DataFrame, columns: Columns, *, exclude: Sequence[str] = ()) -> Schema:
        """Read the schema off a table: what `equifed.data.agree` makes of its one summary.

        Without `columns.features` every column is an input but the label, those to drop or in `exclude`, the sensitive
        ones (unless `sensitive_as_input`), and those that look like identifiers, free text, dates or constants:
        `left_out` lists these.
        """
        from equifed.data.agreement import agree  # late: these two build schemas
        from equifed.data.summary import summarise

        return agree([summarise(frame, columns, exclude=exclude)], columns.agreed)

    @classmethod
    def checked(cls, values: Mapping[str, Any]) -> Schema:
        """A schema of these values, or an error that says what is wrong with the table that they come from."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(f"The table gives no valid schema: {first_message(error)}.") from error

    @property
    def column_names(self) -> tuple[str, ...]:
        """All columns that a table needs: inputs, label and sensitive ones."""
        names = [*(column.name for column in self.columns), self.label, *(rule.column for rule in self.sensitive)]
        return tuple(dict.fromkeys(names))

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the model's inputs, in order."""
        return tuple(name for column in self.columns for name in column.inputs(self.encoding))

    @property
    def merged(self) -> str | None:
        """The group of all rows whose own is not listed; None: there is none, and such a row is refused."""
        return MERGED if MERGED in self.groups else None

    def encode(self, frame: pd.DataFrame, *, columns: Sequence[str] = ()) -> Encoded:
        """The numbers of a table; `columns` are kept as they are beside them."""
        require_columns(frame, [*self.column_names, *columns])
        rows = len(frame)
        frame = self._complete(with_missing(frame, self.na_values, [*self.column_names, *columns]))
        x, scale = self._inputs(frame)
        s, merged = self._groups(frame)
        return Encoded(
            x=x,
            y=self._labels(frame),
            s=s,
            feature_names=self.input_names,
            class_names=self.classes if self.task == "classification" else (),
            group_names=self.groups,
            scale_columns=scale,
            task=self.task,
            attribute=self._attribute(frame),
            merged=merged,
            dropped=rows - len(frame),
            columns={name: column_of(frame, name).to_numpy() for name in columns},
            schema=self,
        )

    def _complete(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows that miss no input for which they are to be left out."""
        needed = list(dict.fromkeys(column.name for column in self.columns if column.missing == "drop"))
        if not needed:
            return frame
        there = [column_of(frame, name).notna().to_numpy(dtype=bool) for name in needed]
        keep = np.logical_and.reduce(there)
        return frame if keep.all() else frame[keep]

    def inputs(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        """The model's inputs [n, d] of a table that may lack label and sensitive columns, as new rows do. No row is
        left out: where the rule is "drop", a missing value is an error."""
        names = [column.name for column in self.columns]
        require_columns(frame, names)
        return self._inputs(with_missing(frame, self.na_values, names))[0]

    def group_codes(self, frame: pd.DataFrame) -> NDArray[np.int64]:
        """The code of each row's group [n]; -1 where it is unknown."""
        names = [rule.column for rule in self.sensitive]
        require_columns(frame, names)
        return self._groups(with_missing(frame, self.na_values, names))[0]

    def _attribute(self, frame: pd.DataFrame) -> NDArray[np.float32] | None:
        if len(self.sensitive) < 2 and not any(rule.continuous for rule in self.sensitive):
            return None
        return np.concatenate([rule.numbers(frame, MERGED in self.groups) for rule in self.sensitive], axis=1)

    def _inputs(self, frame: pd.DataFrame) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        width = len(self.input_names)
        x = np.zeros((len(frame), width), dtype=np.float32)
        scale = np.zeros(width, dtype=np.bool_)
        end = 0
        for column in self.columns:
            start, end = end, end + len(column.inputs(self.encoding))
            series = column_of(frame, column.name)
            if column.kind == "categorical":
                codes = self._codes(column, series)
                if self.encoding == "onehot":
                    x[np.arange(len(frame)), start + codes] = 1
                    continue
                values, low, high = codes.astype(np.float64), 0.0, len(column.categories) - 1.0
            else:
                values = column.numbers(series)
                low, high = column.low, column.high  # type: ignore[assignment]
            if self.scaling == "minmax" and low is not None and high is not None:
                if self.min_count:  # the range is not that of all rows, of which the first and last stay unknown
                    values = np.clip(values, low, high)
                values = (values - low) / (high - low) if high > low else values - low
            elif self.scaling == "standard" and column.offset:
                values = values - column.offset
            elif self.scaling == "standard" and far_from_zero(values, 100 * FAR_DEVIATIONS):
                warnings.warn(
                    f"Column {column.title!r} has values around {values.mean():.6g} that differ by {values.std():.3g} "
                    "only: as 32-bit numbers many become the same. Subtract a constant first, or give the column of "
                    "the schema an offset.",
                    EquifedWarning,
                    stacklevel=4,
                )
            scale[start] = self.scaling == "standard"
            check_size(values, series, MAX_STANDARDISED if scale[start] else MAX_FLOAT32)
            x[:, start] = values
            if column.indicator:
                x[:, start + 1] = series.isna()
        return x, scale

    def _codes(self, column: Column, series: pd.Series[Any]) -> NDArray[np.int64]:
        position = {value: i for i, value in enumerate(column.categories)}
        unlisted = position.get(OTHER) if self.min_count else None
        missing = position.get(MISSING, unlisted if column.missing == "category" else None)
        return codes_of(series, position, noun="category", missing=missing, fallback=unlisted)

    def _groups(self, frame: pd.DataFrame) -> tuple[NDArray[np.int64], dict[str, int]]:
        """Per row the code of its group; and the rows of each group that is merged with others."""
        codes, names = intersections(frame, self.sensitive)
        position = {name: i for i, name in enumerate(self.groups)}
        lookup = np.array([position.get(name, position.get(MERGED, UNKNOWN)) for name in names], dtype=np.int64)
        s = np.where(codes == UNKNOWN, UNKNOWN, lookup[codes])
        unlisted = (s == UNKNOWN) & (codes != UNKNOWN)
        if unlisted.any() and not self.min_count:
            row = int(np.argmax(unlisted))
            columns = " & ".join(rule.column for rule in self.sensitive)
            text = f"group {quoted(names[codes[row]])} is not in the schema. Known groups: {', '.join(self.groups)}."
            raise RowError(text, column=columns, row=frame.index[row])
        if unlisted.sum() >= max(self.min_count, 1):  # fewer are the rare ones that no schema lists
            warnings.warn(
                f"{unlisted.sum()} of {len(frame)} rows have a group that the schema does not list, so that their "
                f"group is unknown. Known groups: {', '.join(self.groups)}. Are the values spelt so?",
                EquifedWarning,
                stacklevel=4,
            )
        rows = rows_by_name(codes, names)
        return s, {name: count for name, count in rows.items() if count and name not in (*position, MERGED)}

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


def group_values(series: pd.Series[Any]) -> list[str]:
    """The values of a sensitive column, each of which is a group; so many numbers that none can be are refused."""
    check_words_among_numbers(series)
    values = sorted_texts(series)
    if pd.api.types.is_numeric_dtype(series) and len(values) > MAX_GROUPS:
        raise DataError(
            f"{len(values)} different numbers are too many for groups. Give a threshold (in Python, an "
            "equifed.data.Sensitive), or a column that names the groups.",
            column=str(series.name),
        )
    return values


def intersections(frame: pd.DataFrame, rules: Sequence[Sensitive]) -> tuple[NDArray[np.int64], list[str]]:
    """Per row the code of its group in the product of all sensitive columns, -1 where one has no value; the names of
    all products, `MERGED` for all in which a value has no name of its own."""
    codes, names = np.zeros(len(frame), dtype=np.int64), ["all"]
    for number, rule in enumerate(rules):
        more, more_names = rule.names(frame)
        codes = np.where((codes == UNKNOWN) | (more == UNKNOWN), UNKNOWN, codes * len(more_names) + more)
        names = crossed(names, more_names) if number else more_names
    return codes, names


def crossed(names: Sequence[str], more: Sequence[str]) -> list[str]:
    return [MERGED if MERGED in (a, b) else f"{a} & {b}" for a in names for b in more]


def rows_by_name(codes: NDArray[np.int64], names: Sequence[str]) -> dict[str, int]:
    """How many rows have each name."""
    counts = np.bincount(codes[codes != UNKNOWN], minlength=len(names))
    rows = dict.fromkeys(names, 0)
    for name, count in zip(names, counts.tolist(), strict=True):
        rows[name] += count
    return rows


def _without_blank_categories(given: dict[str, Any]) -> dict[str, Any]:
    """A schema from before `na_values`, in which the category of empty cells is `MISSING`, in its place: they are coded
    as they were. Two such categories of one column stay, as their cells cannot be told apart."""
    columns = given.get("columns")
    if not isinstance(columns, list | tuple):
        return given
    made, renamed = [], []
    for column in columns:
        given_values = column.get("categories") if isinstance(column, dict) else None
        values = given_values if isinstance(given_values, list | tuple) else ()
        texts = [value for value in values if isinstance(value, str)]
        if sum(not value.strip() or value == MISSING for value in texts) == 1 and MISSING not in texts:
            renamed.append(column.get("name"))
            categories = [MISSING if isinstance(value, str) and not value.strip() else value for value in values]
            column = {**column, "categories": categories}
        made.append(column)
    if not renamed:
        return given
    warnings.warn(
        "This schema is from before empty cells were missing, and has a category of them in "
        f"{listed(map(str, renamed))}. It is {MISSING!r} now: empty and blank cells count as those of training, and so "
        "does null, which was refused or another category. Where tables have null, train again, or use the version "
        "that wrote it.",
        EquifedWarning,
        stacklevel=2,
    )
    return {**given, "columns": made}


def _values_named(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every value that a schema, or what is to become one and need not be valid, lists: the column and the value."""

    def of(part: Any, name: str) -> Any:
        return part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)

    def several(values: Any) -> Iterable[Any]:
        return values if isinstance(values, list | tuple | Mapping) else ()

    lists = [
        (given.get("label"), given.get("classes")),
        *((of(column, "name"), of(column, "categories")) for column in several(given.get("columns"))),
        *((of(rule, "column"), of(rule, "groups")) for rule in several(given.get("sensitive"))),
    ]
    for column, values in lists:
        yield from ((str(column), value) for value in several(values) if isinstance(value, str))


def first_message(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    return clean(f"{place}: {first['msg']}" if place else first["msg"])
