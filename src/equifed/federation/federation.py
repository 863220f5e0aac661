"""A federation: rows held once, and for each client, the server and the test the positions of their rows."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from equifed.errors import ConfigError, DataError, EquifedWarning, unknown_name
from equifed.groups import as_numbers
from equifed.task import Kind

if TYPE_CHECKING:
    import pandas as pd


class Rows(NamedTuple):
    """All rows of one or several federations."""

    x: np.ndarray
    """Features, float32 [n, ...]."""
    y: np.ndarray
    """Class codes, int64 [n], or float32 values for regression."""
    s: np.ndarray
    """Group codes, int64 [n]."""
    attribute: np.ndarray | None = None
    """The sensitive attribute as numbers, float32 [n, d], where it says more than the group: a continuous one, or
    several columns. Only methods that measure dependence (KFFL) look at it."""


@dataclass(frozen=True)
class Sets:
    """Row positions of many clients in one array; clients may share a range (a common test set)."""

    index: np.ndarray
    """Positions in `Rows`, int64."""
    start: np.ndarray
    """Where client k's positions start in `index`."""
    stop: np.ndarray
    """Where they end."""

    @classmethod
    def of(cls, parts: Sequence[np.ndarray]) -> Sets:
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        stop = np.cumsum(sizes)
        index = np.concatenate([*parts, np.empty(0, np.int64)]).astype(np.int64)
        return cls(index, stop - sizes, stop)

    @property
    def sizes(self) -> np.ndarray:
        return self.stop - self.start

    def __len__(self) -> int:
        return len(self.start)

    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """(client, row position) of every row that a client holds."""
        sizes = self.sizes
        owner = np.repeat(np.arange(len(self)), sizes)
        within = np.arange(len(owner)) - (np.cumsum(sizes) - sizes)[owner]
        return owner, self.index[self.start[owner] + within]

    def __getitem__(self, client: int) -> np.ndarray:
        return self.index[self.start[client] : self.stop[client]]


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients with their own rows, a validation set at the server, a global test set.

    Make one with `from_arrays`, `from_frame`, `from_files` or `equifed.load`.
    """

    rows: Rows
    """Shared storage; federations over the same data (one per seed) share it."""
    train: Sets
    """Training rows of each client."""
    validation: np.ndarray
    """Rows of the server's validation set (may be empty)."""
    test: np.ndarray
    """Rows of the global test set (may be empty)."""
    client_test: Sets | None
    """Test rows of each client, if any."""
    ids: tuple[str, ...]
    """Client names."""
    kind: Kind = "classification"
    """Classification or regression."""
    classes: tuple[str, ...] = ()
    """Class names by code (empty for regression)."""
    groups: tuple[str, ...] = ()
    """Group names by code."""
    features: tuple[str, ...] = ()
    """Names of the model's inputs."""
    client_groups: np.ndarray | None = None
    """Known group of each client, if any (int64)."""
    scaling: tuple[np.ndarray, np.ndarray] | None = None
    """(shift, factor) of each feature: the model sees (x - shift) * factor. Kept apart because it is fitted on the
    training rows, which differ from seed to seed while the rows are held once."""
    name: str = ""
    """The data set's name."""
    seed: int | None = None
    """The seed of split and partition, where there was one."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Where the data came from: preset, partition, file hashes."""

    # -- making one ----------------------------------------------------------------------------------------------------

    @classmethod
    def from_arrays(
        cls,
        clients: Sequence[tuple[Any, ...]],
        *,
        validation: tuple[Any, ...] | None = None,
        test: tuple[Any, ...] | None = None,
        client_tests: Sequence[tuple[Any, ...]] | None = None,
        task: Kind = "classification",
        ids: Sequence[str] | None = None,
        client_groups: Sequence[Any] | None = None,
        features: Sequence[str] | None = None,
        name: str = "",
    ) -> Federation:
        """From one (x, y, s) per client, NumPy or torch; s is the group of each row, or several columns of groups.

        (x, y, s, a) gives the sensitive attribute as numbers too, [n] or [n, d]: an age, say, where s is the age group.
        Methods that measure dependence (KFFL) take a in place of s; it should be scaled to a deviation of about 1.
        """
        if task not in get_args(Kind):
            raise ConfigError(unknown_name("task", task, get_args(Kind)))
        if len(clients) == 0:
            raise DataError("A federation needs at least one client, got none.")
        ids = _check_ids(ids, len(clients))
        if client_tests is not None and len(client_tests) != len(clients):
            raise DataError(f"client_tests has {len(client_tests)} entries for {len(clients)} clients.")
        named = [(f"client {i!r}", part) for i, part in zip(ids, clients, strict=True)]
        named += [("validation", validation)] if validation is not None else []
        named += [("test", test)] if test is not None else []
        if client_tests is not None:
            named += [(f"test rows of client {i!r}", part) for i, part in zip(ids, client_tests, strict=True)]
        parts = [_check_part(label, part, task) for label, part in named]
        labels = [label for label, _ in named]
        _check_dimensions({label: np.ndim(_numpy(part[2])) for label, part in named if len(part[1])})
        shapes = {part[0].shape[1:] for part in parts}
        if len(shapes) > 1:
            at = next(i for i, part in enumerate(parts) if part[0].shape[1:] != parts[0][0].shape[1:])
            raise DataError(
                f"All parts need the same features, but {named[0][0]} has rows of shape {list(parts[0][0].shape[1:])} "
                f"and {named[at][0]} of {list(parts[at][0].shape[1:])}."
            )
        x = np.concatenate([part[0] for part in parts])
        classes: tuple[str, ...] = ()
        if task == "classification":
            classes, y = _coded("labels", labels, [part[1] for part in parts])
        else:
            y = np.concatenate([part[1] for part in parts])
        names, codes = _coded("groups", labels, [part[2] for part in parts])
        inputs = int(np.prod(x.shape[1:]))
        if features is not None and (isinstance(features, str) or len(features) != inputs):
            raise ConfigError(f"features must list the names of the {inputs} inputs, got {features!r}.")
        stops = np.cumsum([len(part[1]) for part in parts])
        starts = stops - [len(part[1]) for part in parts]
        ranges = [np.arange(a, b) for a, b in zip(starts, stops, strict=True)]
        k = len(clients)
        v = 1 if validation is not None else 0
        t = 1 if test is not None else 0
        group_codes = None
        if client_groups is not None:
            if len(client_groups) != k:
                raise DataError(f"client_groups has {len(client_groups)} entries for {k} clients.")
            group_codes = _client_group_codes(client_groups, ids)
        return cls(
            rows=Rows(x, y, codes, _attribute(named)),
            train=Sets.of(ranges[:k]),
            validation=ranges[k] if v else np.empty(0, np.int64),
            test=ranges[k + v] if t else np.empty(0, np.int64),
            client_test=Sets.of(ranges[k + v + t :]) if client_tests is not None else None,
            ids=ids,
            kind=task,
            classes=classes,
            groups=names,
            features=tuple(map(str, features)) if features is not None else tuple(f"x{i}" for i in range(inputs)),
            client_groups=group_codes,
            name=name,
        )._checked()

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, **options: Any) -> Federation:
        """From a data frame: encoded, split by `seed`, and dealt to clients by a partitioner.

        label, sensitive: column names; several sensitive columns make their intersections the groups.
        partition: one of `equifed.partition`. seed: of the split and the partition.
        features: input columns (default: all but the label, the sensitive ones and the column of a natural partition);
        sensitive_as_input=True adds the sensitive ones.
        positive: the label value that is class 1. task: "classification" or "regression".
        validation, test: shares of the rows for the server (default 0.2 each); client_test: share of each client's
        rows kept for its own test (default 0).
        encoding: "onehot" or "ordinal"; scaling: "standard" (fitted on training rows), "minmax" or "none".
        """
        from equifed.federation.tables import from_frame

        return from_frame(frame, **options)

    @classmethod
    def from_files(cls, files: Mapping[str, str | Path] | Sequence[str | Path], **options: Any) -> Federation:
        """From one CSV or Parquet file per silo; clients are named after the files, or by the mapping's keys.

        schema: a shared schema (a file, or `equifed.data.Schema`) that every file must fit; or label, sensitive and
        positive, from which it is read off all files together.
        test, validation: shares of each silo's rows, drawn by `seed`; each silo is tested on its own test rows, and
        the global test set is all of them. validation_file: the server's own validation rows, in place of a share.
        client_groups: {silo: group}, for methods that need to know each client's group.
        """
        from equifed.federation.tables import from_files

        return from_files(files, **options)

    def _checked(self) -> Federation:
        """Refuse, before any training, what no run could make sense of."""
        if 0 in self.shape:
            raise DataError(f"Rows of shape {list(self.shape)} have no inputs, so there is nothing to learn from.")
        _, rows = self.train.flat()
        held = self.rows.y[rows]
        if not len(held):
            raise DataError("No client has a training row.")
        if self.kind == "classification":
            present = np.unique(held)
            if len(present) < 2:
                raise DataError(
                    f"The training rows have only one class ({self.classes[present[0]]!r}), so there is nothing to "
                    "learn. Check the label column and which value is positive."
                )
        unseen = np.setdiff1d(np.unique(self.rows.s[np.concatenate([self.test, self.validation])]), self.rows.s[rows])
        if len(unseen):
            warnings.warn(
                f"Group {self.groups[unseen[0]]!r} is in the test or validation rows but no client has training rows "
                "of it: its rates are measured, but nothing was learned from it.",
                EquifedWarning,
                stacklevel=3,
            )
        return self

    def pooled(self) -> Federation:
        """All training rows with the first client by name, none with the others: data in one place, for reference.

        Test rows, also the clients' own, stay as they are.
        """
        order = np.argsort(np.asarray(self.ids, dtype=str), kind="stable")
        held = [np.empty(0, np.int64)] * self.num_clients
        held[order[0]] = np.concatenate([self.train[k] for k in order])
        return replace(self, train=Sets.of(held))

    # -- looking at it -------------------------------------------------------------------------------------------------

    @property
    def num_clients(self) -> int:
        return len(self.ids)

    @property
    def task(self) -> str:
        """What is learned: "binary", "multiclass" or "regression"."""
        if self.kind == "regression":
            return "regression"
        return "binary" if len(self.classes) == 2 else "multiclass"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row's features."""
        return self.rows.x.shape[1:]

    @property
    def sensitive_size(self) -> int:
        """How many numbers describe a row's sensitive attribute."""
        if self.rows.attribute is not None:
            return int(self.rows.attribute.shape[1])
        return 1 if len(self.groups) <= 2 else len(self.groups)

    def cells(self) -> np.ndarray:
        """Training rows per client, group and label [clients, groups, classes] (one label column for regression)."""
        g, c = len(self.groups), max(len(self.classes), 1)
        owner, rows = self.train.flat()
        y = self.rows.y[rows] if self.kind == "classification" else 0
        flat = (owner * g + self.rows.s[rows]) * c + y
        return np.bincount(flat, minlength=self.num_clients * g * c).reshape(self.num_clients, g, c)

    def describe(self) -> Description:
        """Rows per client, group and label, as a table and a picture."""
        return Description(self)

    def __repr__(self) -> str:
        sizes = self.train.sizes
        return (
            f"Federation({self.name or 'unnamed'}: {self.num_clients} clients with {sizes.min()} to {sizes.max()} "
            f"rows, {len(self.validation)} validation, {len(self.test)} test; groups {', '.join(self.groups)})"
        )


class Description:
    """The make-up of a federation: how many rows of each group and label every client trains on."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation

    @property
    def table(self) -> pd.DataFrame:
        """One row per client, one column per (group, label) cell, and the total."""
        import pandas as pd

        fed = self._federation
        labels = fed.classes or ("rows",)
        columns = pd.MultiIndex.from_product([fed.groups, labels], names=["group", "label"])
        cells = fed.cells().reshape(fed.num_clients, -1)
        frame = pd.DataFrame(cells, index=pd.Index(fed.ids, name="client"), columns=columns)
        frame[("total", "")] = cells.sum(1)
        return frame

    @property
    def figure(self) -> Any:
        """Stacked bars, a client each, as a plotly figure."""
        import plotly.graph_objects as go

        fed = self._federation
        cells = fed.cells()
        labels = fed.classes or ("rows",)
        bars = [
            go.Bar(name=f"{group}, {label}", y=list(fed.ids), x=cells[:, g, c].tolist(), orientation="h")
            for g, group in enumerate(fed.groups)
            for c, label in enumerate(labels)
        ]
        figure = go.Figure(bars)
        figure.update_layout(
            barmode="stack",
            xaxis_title="training rows",
            yaxis={"title": "client", "type": "category", "autorange": "reversed"},
            legend_title="group, label",
            template="plotly_white",
            height=max(260, 22 * fed.num_clients + 120),
            margin={"l": 70, "r": 20, "t": 20, "b": 50},
        )
        return figure

    def __str__(self) -> str:
        return f"{self._federation!r}\n{self.table.to_string()}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return str(self.table.to_html()) + str(self.figure.to_html(full_html=False, include_plotlyjs=True))


def _plain(value: Any) -> str:
    """A readable name for a class or group value: 1 rather than 1.0."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _check_ids(ids: Sequence[str] | None, count: int) -> tuple[str, ...]:
    names = tuple(str(i) for i in ids) if ids is not None else tuple(str(i) for i in range(count))
    if len(names) != count:
        raise DataError(f"{len(names)} client ids for {count} clients.")
    if len(set(names)) != count:
        double = next(name for name in names if names.count(name) > 1)
        raise DataError(f"Client ids must differ; {double!r} occurs more than once.")
    return names


def _check_part(label: str, part: Any, task: Kind) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
        missing = _missing(s).any(1)
        if missing.any():
            raise DataError(f"{label}: groups have a missing value at row {int(missing.argmax())}.")
        s = np.array([" & ".join(_plain(v) for v in row) for row in s], dtype=object).astype(str)
    for what, values in (("labels", y), ("groups", s)):
        if values.ndim != 1 or len(values) != len(x):
            raise DataError(f"{label}: {len(x)} rows of features but {what} of shape {list(values.shape)}.")
        missing = _missing(values)
        if missing.any():
            raise DataError(f"{label}: {what} have a missing value at row {int(missing.argmax())}.")
    if y.dtype == object and _value_kinds(y) == ["numbers"]:
        y = np.array(y.tolist())
    if x.dtype.kind not in "biuf":
        raise DataError(
            f"{label}: features must be numbers, got {x.dtype}. Encode text columns first (from_frame does)."
        )
    x = _as_float32(x)
    bad = ~np.isfinite(x)
    if bad.any():
        row, *place = (int(i) for i in np.argwhere(bad)[0])
        column = place[0] if len(place) == 1 else place
        raise DataError(
            f"{label}: feature {column} of row {row} is NaN or infinite, or too large for a 32-bit number. "
            "Drop the row or impute it."
        )
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
        columns = zip(*(table.astype(str).T for table in tables if table.ndim == 2), strict=True)
        codes = [np.unique(np.concatenate(column), return_inverse=True)[1] for column in columns]
        return np.concatenate([as_numbers(code, int(code.max(initial=0)) + 1) for code in codes], axis=1)
    parts = []
    for label, part in named:
        values = np.asarray(_numpy(part[3]))
        if (
            values.dtype.kind not in "biuf"
            or values.ndim not in (1, 2)
            or values.shape[1:] == (0,)
            or len(values) != len(part[1])
        ):
            raise DataError(f"{label}: the attribute a must be numbers [{len(part[1])}] or [{len(part[1])}, d].")
        values = _as_float32(values.reshape(len(values), -1) if values.ndim == 1 else values)
        if not np.isfinite(values).all():
            raise DataError(f"{label}: the attribute a has a missing or infinite value.")
        parts.append(values)
    if len({part.shape[1] for part in parts}) > 1:
        raise DataError("All parts need an attribute a with the same number of columns.")
    return np.concatenate(parts)


def _as_float32(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # what overflows is found afterwards
        return values.astype(np.float32, copy=False)


def _check_dimensions(dimensions: Mapping[str, int]) -> None:
    """One column of groups, or several: the same in all parts."""
    by = {dimension: label for label, dimension in dimensions.items()}
    if len(by) > 1:
        raise DataError(
            f"All parts need the same columns of groups, but {by[1]} has one array of them and {by[2]} a table."
        )


def _coded(what: str, labels: Sequence[str], parts: Sequence[np.ndarray]) -> tuple[tuple[str, ...], np.ndarray]:
    """(names, int64 codes) of the labels or groups of all parts, which must be of one kind: text or numbers."""
    kinds: dict[str, str] = {}
    for label, values in zip(labels, parts, strict=True):
        for kind in _value_kinds(values):
            kinds.setdefault(kind, label)
    if len(kinds) > 1:
        (one, here), (another, there) = list(kinds.items())[:2]
        raise DataError(f"Mixed {what}: {one} in {here} and {another} in {there}. Use one kind for all.")
    try:
        values, codes = np.unique(np.concatenate([part for part in parts if len(part)] or parts), return_inverse=True)
    except TypeError:
        raise DataError(f"The {what} must be text or numbers, got {next(iter(kinds))}.") from None
    return tuple(_plain(value) for value in values), codes.astype(np.int64)


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


def _client_group_codes(client_groups: Sequence[Any], ids: Sequence[str]) -> np.ndarray:
    given = np.array(list(client_groups), dtype=object)
    missing = _missing(given)
    if given.ndim != 1 or missing.any():
        raise DataError(
            "client_groups needs one group for each client"
            + (f", but client {ids[int(missing.argmax())]!r} has none." if given.ndim == 1 else ".")
        )
    return _coded("client_groups", ["client_groups"], [given])[1]


def _missing(values: np.ndarray) -> np.ndarray:
    if values.dtype == object:
        import pandas as pd

        return np.asarray(pd.isna(values), dtype=bool)
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, dtype=bool)


def _numpy(value: Any) -> Any:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value
