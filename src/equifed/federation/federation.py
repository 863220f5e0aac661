"""A federation: rows held once, and for each client, the server and the test the positions of their rows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from equifed import randomness
from equifed.data.columns import Columns, Holdout
from equifed.errors import ConfigError, DataError, EquifedWarning, check_number, unknown_name
from equifed.federation import arrays
from equifed.federation.arrays import Rows
from equifed.federation.describe import Description
from equifed.federation.mapped import Mapped, MappedSets, Names, cell_counts
from equifed.federation.rowsets import RowSets
from equifed.federation.split import AnyPartitioner, Holdings, check_partition, deal, fit_scaling, split_silos
from equifed.partition import describe
from equifed.partition.base import UNKNOWN
from equifed.task import LabelKind, TaskKind, label_kind

if TYPE_CHECKING:
    from equifed.data import Encoded, Schema


MAPPED_SAMPLED = 100
"""Clients per round of a mapped federation whose run does not say how many: all may be millions."""
UNKNOWN_NAME = "unknown"
"""What the rows of unknown group are called in tables."""


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients with their own rows, a validation set at the server, a global test set.

    Make one with `from_tables`, `from_arrays`, `from_xy` or `equifed.load`.
    """

    rows: Rows
    """Shared storage; federations over the same data (one per seed) share it. Of a mapped federation, only the rows
    for test and validation: its training rows stay in their file."""
    train: RowSets
    """Training rows of each client; `MappedSets` where they stay in a file."""
    validation: np.ndarray
    """Rows of the server's validation set (may be empty)."""
    test: np.ndarray
    """Rows of the global test set (may be empty)."""
    client_test: RowSets | None
    """Test rows of each client, if any."""
    ids: Sequence[str]
    """Client names."""
    task: TaskKind = "classification"
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
    clients_per_round: int | None = None
    """Clients sampled in each round of a run that does not say how many: the preset's number. None: all."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Where the data came from: preset, partition, file hashes."""
    schema: Schema | None = None
    """How a table became these rows, where they came from one."""
    client_validation: RowSets | None = None
    """Of the server's validation rows, those that were each client's: to choose by how every client is served."""

    # -- making one ----------------------------------------------------------------------------------------------------

    @classmethod
    def from_arrays(
        cls,
        clients: Sequence[tuple[Any, ...]],
        *,
        validation: tuple[Any, ...] | None = None,
        test: tuple[Any, ...] | None = None,
        client_tests: Sequence[tuple[Any, ...]] | None = None,
        task: TaskKind = "classification",
        ids: Sequence[str] | None = None,
        client_groups: Sequence[Any] | None = None,
        features: Sequence[str] | None = None,
        name: str = "",
    ) -> Federation:
        """From one (x, y, s) per client, NumPy or torch; s is the group of each row, or several columns of groups. A
        row whose group is unknown has -1, None or nan: it takes part in training, but in nothing said of groups.

        (x, y, s, a) gives the sensitive attribute as numbers too, [n] or [n, d]: an age, say, where s is the age group.
        Methods that measure dependence (KFFL) take a in place of s; it should be scaled to a deviation of about 1.
        """
        if task not in get_args(TaskKind):
            raise unknown_name("task", task, get_args(TaskKind), key="task")
        if len(clients) == 0:
            raise DataError("A federation needs at least one client, got none.")
        ids = arrays.check_ids(ids, len(clients))
        if client_tests is not None and len(client_tests) != len(clients):
            raise DataError(f"client_tests has {len(client_tests)} entries for {len(clients)} clients.")
        named = [(f"client {i!r}", part) for i, part in zip(ids, clients, strict=True)]
        named += [("validation", validation)] if validation is not None else []
        named += [("test", test)] if test is not None else []
        if client_tests is not None:
            named += [(f"test rows of client {i!r}", part) for i, part in zip(ids, client_tests, strict=True)]
        joined = arrays.join(named, task)
        inputs = int(np.prod(joined.rows.x.shape[1:]))
        if features is not None and (isinstance(features, str) or len(features) != inputs):
            text = f"must list the names of the {inputs} inputs, got {features!r}."
            raise ConfigError(text, key="features", value=features)
        remaining = iter(joined.ranges)
        nothing = np.empty(0, np.int64)
        return cls(
            rows=joined.rows,
            train=RowSets.of([next(remaining) for _ in clients]),
            validation=nothing if validation is None else next(remaining),
            test=nothing if test is None else next(remaining),
            client_test=None if client_tests is None else RowSets.of(list(remaining)),
            ids=ids,
            task=task,
            classes=joined.classes,
            groups=joined.groups,
            features=tuple(map(str, features)) if features is not None else tuple(f"x{i}" for i in range(inputs)),
            client_groups=None if client_groups is None else arrays.client_group_codes(client_groups, ids),
            name=name,
        ).checked()

    @classmethod
    def from_tables(
        cls,
        tables: Any,
        columns: Columns | Schema | str | Path,
        *,
        holdout: Holdout | None = None,
        partition: AnyPartitioner | None = None,
        client_groups: Mapping[str, str] | None = None,
        seed: int = 0,
        name: str = "",
    ) -> Federation:
        """Make a federation of tables, whose rows are encoded, and split by `seed` for training, validation and test.

        tables: what holds the rows. A table is a data frame, a `pyarrow.Table` or a Hugging Face `datasets.Dataset`; a
        file is CSV, Parquet or Arrow.
          - One table or file, which a `partition` deals to clients.
          - A table or file per client, {"north": table, ...}; a list of files, or a folder of them, whose clients are
            named after the files.
          - `equifed.Mapped`: files larger than memory, of which a column says which client holds a row.
        columns: what the columns mean, or a schema (an `equifed.data.Schema`, or its file) that says so. Without one,
        the schema of several tables is the one that the silos would agree on from summaries of their tables
        (`equifed.data.summarise`); that of mapped files is read off a sample of the rows: what kind each column is,
        what stands in for missing numbers. Labels, groups and categories are those of all rows.
        `fed.schema.left_out` lists the columns that are not inputs.
        holdout: which rows are held out of training. With a table per client, each client is tested on its own test
        rows, and the global test set is all of them.
        partition: one of `equifed.partition`. seed: of the split and the partition.
        client_groups: {client: group} of a table per client, for methods that need to know each client's group.
        """
        check_seed(seed)
        from equifed.federation import tables as reading  # late: it waits for pandas

        held = Holdout() if holdout is None else holdout
        named = None if isinstance(tables, Mapped) else reading.named_tables(tables)
        if partition is not None and (named is not None or isinstance(tables, Mapped)):
            several = "mapped files" if named is None else f"several ({', '.join(map(repr, [*named][:5]))})"
            text = f"is for one table, not for {several}, which say whose rows they are. Leave it out, or choose one."
            raise ConfigError(text, key="partition")
        if client_groups is not None and named is None:
            raise ConfigError("belongs to a table per client.", key="client_groups")
        if isinstance(tables, Mapped):
            return cls._from_mapped(tables, columns, held.fill("mapped files"), seed, name)
        meaning = reading.columns_given(columns)
        if named is None:
            held = held.fill("one table")
            check_partition(partition)
            assert partition is not None
            encoded = reading.encode_table(tables, partition, meaning)
            (holdings,) = deal(encoded, partition, [seed], held.split, client_test=held.client_test)
            provenance: dict[str, Any] = {"partition": describe(partition)}
        else:
            held = held.fill("table per client")
            silos, server = reading.encode_silos(named, meaning, held.validation_file)
            groups = reading.known_groups(client_groups, list(named))
            encoded, holdings = split_silos(silos, server, groups, seed=seed, split=held.split)
            files = {silo: table.name for silo, table in named.items() if isinstance(table, Path)}
            provenance = {"silos": files} if files else {}
        return cls.of(encoded, holdings, seed=seed, name=name, provenance=provenance).checked()

    @classmethod
    def _from_mapped(
        cls, mapped: Mapped, columns: Columns | Schema | str | Path, holdout: Holdout, seed: int, name: str
    ) -> Federation:
        """Make one of files that are larger than memory, of which the rows that are held out are read into memory."""
        from equifed.federation import prepare, tables

        source = prepare.Source.of(mapped, columns)
        rows = prepare.prepared(source, source.default_cache if mapped.cache is None else Path(mapped.cache))
        found = rows.schema
        _, validation, test = holdout.split
        held = _drawn(len(rows), {"test": test, "validation": validation}, seed)
        files = {"test": holdout.test_file, "validation": holdout.validation_file}
        given = {part: tables.encode_file(found, file, named=f"{part}_file") for part, file in files.items()}
        taken = {part: rows.take(positions) for part, positions in held.items()}
        parts = [taken[part] if len(held[part]) else given[part] for part in held]
        sizes = [len(part.y) for part in parts]
        attribute = None if rows.about["attributes"] == 0 else np.concatenate([part.attribute for part in parts])
        x, y, s = (np.concatenate([getattr(part, name) for part in parts]) for name in ("x", "y", "s"))
        away = np.concatenate([each.x for each in taken.values()])
        return cls(
            rows=Rows(np.ascontiguousarray(x), y, s, attribute),
            train=MappedSets.of_file(rows, held),
            test=np.arange(sizes[0]),
            validation=sizes[0] + np.arange(sizes[1]),
            client_test=None,
            ids=rows.names,
            task=rows.about["task"],
            classes=tuple(rows.about["classes"]),
            groups=tuple(rows.about["groups"]),
            features=tuple(rows.about["features"]),
            scaling=prepare.scaling_without(rows, away),
            name=name or source.place.name.split(".")[0],
            seed=seed,
            clients_per_round=MAPPED_SAMPLED,
            provenance={
                "files": [path.name for path in source.files],
                **({"merged_groups": rows.about["merged"]} if rows.about["merged"] else {}),
                **({"dropped_rows": rows.about["dropped"]} if rows.about["dropped"] else {}),
            },
            schema=found,
        ).checked()

    @classmethod
    def from_frame(cls, frame: Any, **options: Any) -> Federation:
        """Deprecated: `from_tables(frame, columns, partition=...)`, which holds out no validation rows by itself."""
        return cls.from_tables(frame, **_in_values("from_frame", {"validation": 0.2, **options}))

    @classmethod
    def from_files(cls, files: Any, **options: Any) -> Federation:
        """Deprecated: `from_tables(files, columns)`."""
        return cls.from_tables(files, **_in_values("from_files", options))

    @classmethod
    def from_frames(cls, frames: Mapping[str, Any], **options: Any) -> Federation:
        """Deprecated: `from_tables(frames, columns)`."""
        return cls.from_tables(frames, **_in_values("from_frames", options))

    @classmethod
    def from_mapped(cls, files: Any, *, client: str, cache: str | Path | None = None, **options: Any) -> Federation:
        """Deprecated: `from_tables(equifed.Mapped(files, client, cache), columns)`."""
        return cls.from_tables(Mapped(files, client, cache), **_in_values("from_mapped", options))

    @classmethod
    def from_xy(
        cls,
        X: Any,
        y: Any,
        *,
        sensitive_features: Any,
        partition: AnyPartitioner,
        seed: int = 0,
        features: Sequence[str] | None = None,
        task: TaskKind = "classification",
        validation: float = 0.2,
        test: float = 0.2,
        client_test: float = 0.0,
        scaling: Literal["standard", "none"] = "standard",
        name: str = "",
    ) -> Federation:
        """From arrays of all rows, as scikit-learn and fairlearn take them: split by `seed`, and dealt to clients by a
        partitioner.

        X: numbers [n, d], an array or a data frame. y: labels. sensitive_features: groups [n], or [n, k] for the
        intersections of k columns; None, nan or -1: unknown. partition: one of `equifed.partition` that needs no column
        of a table. features: names of the inputs (default: a data frame's own). scaling: "standard" (fitted on the
        training rows) or "none". validation, test, client_test: shares, as in `equifed.Holdout`.
        """
        check_partition(partition)
        check_seed(seed)
        held = Holdout(test, validation, client_test)
        if scaling not in ("standard", "none"):
            raise unknown_name("scaling", scaling, ("standard", "none"), key="scaling")
        if features is None and hasattr(X, "columns"):
            features = [str(column) for column in X.columns]
        # the rows are checked as those of a federation whose one client has them all
        pooled = cls.from_arrays([(X, y, sensitive_features)], ids=["all rows"], task=task, features=features)
        encoded = arrays.encoded(pooled.rows, pooled.features, pooled.classes, pooled.groups, task, scaling)
        (holdings,) = deal(encoded, partition, [seed], held.split, client_test=client_test)
        provenance = {"partition": describe(partition)}
        return cls.of(encoded, holdings, seed=seed, name=name, provenance=provenance).checked()

    @classmethod
    def of(
        cls,
        encoded: Encoded,
        holdings: Holdings,
        *,
        seed: int,
        name: str = "",
        provenance: Mapping[str, Any] | None = None,
        standardise: bool = True,
    ) -> Federation:
        """From a table of numbers and the rows of it that everybody holds, unchecked."""
        if holdings.angles is not None:
            raise ConfigError("Only the images of a named data set, such as mnist, can be turned by groups.")
        train = RowSets.of(holdings.train)
        return cls(
            rows=Rows(encoded.x, encoded.y, encoded.s, encoded.attribute),
            train=train,
            validation=holdings.validation,
            test=holdings.test,
            client_test=None if holdings.client_test is None else RowSets.of(holdings.client_test),
            ids=holdings.ids,
            task=encoded.task,
            classes=encoded.class_names,
            groups=encoded.group_names,
            features=encoded.feature_names,
            client_groups=holdings.client_groups,
            scaling=fit_scaling(encoded.x, train.index, encoded.scale_columns) if standardise else None,
            name=name,
            seed=seed,
            provenance={
                **(provenance or {}),
                **({"merged_groups": encoded.merged} if encoded.merged else {}),
                **({"dropped_rows": encoded.dropped} if encoded.dropped else {}),
            },
            schema=encoded.schema,
            client_validation=(
                None
                if holdings.client_test is None or holdings.client_validation is None
                else RowSets.of(holdings.client_validation)
            ),
        )

    def checked(self) -> Federation:
        """Refuse, before any training, what no run could make sense of."""
        if 0 in self.shape:
            raise DataError(f"Rows of shape {list(self.shape)} have no inputs, so there is nothing to learn from.")
        cells = self.total_cells()
        if not cells.sum():
            raise DataError("No client has a training row.")
        if self.task == "classification":
            present = np.flatnonzero(cells.any(0))
            if len(present) < 2:
                raise DataError(
                    f"The training rows have only one class ({self.classes[present[0]]!r}), so there is nothing to "
                    "learn. Check the label column and which value is positive."
                )
        looked_at = np.unique(self.rows.s[np.concatenate([self.test, self.validation])])
        unseen = np.setdiff1d(looked_at[looked_at != UNKNOWN], np.flatnonzero(cells[:-1].any(1)))
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
        order = self.by_name()
        held = [np.empty(0, np.int64)] * self.num_clients
        held[order[0]] = np.concatenate([self.train[k] for k in order])
        return replace(self, train=RowSets.of(held))

    def in_memory(self) -> Federation:
        """The same federation with its training rows in memory; itself, if they are there already."""
        if self.mapped is None:
            return self
        rows = self.mapped.take(np.arange(self.num_clients))
        x, y, s = (np.concatenate([old, new]) for old, new in zip(self.rows[:3], rows[:3], strict=True))
        old, new = self.rows.attribute, rows.attribute
        attribute = None if old is None or new is None else np.concatenate([old, new])
        stop = len(self.rows.y) + np.cumsum(self.mapped.sizes)
        sets = RowSets(np.arange(stop[-1]), stop - self.mapped.sizes, stop)
        return replace(self, rows=Rows(x, y, s, attribute), train=sets, ids=tuple(self.ids))

    # -- looking at it -------------------------------------------------------------------------------------------------

    @property
    def sampled(self) -> int:
        """Clients per round of a run that does not say how many."""
        return min(self.clients_per_round or self.num_clients, self.num_clients)

    @property
    def num_clients(self) -> int:
        return len(self.ids)

    @property
    def mapped(self) -> MappedSets | None:
        """The training rows, where they stay in a file; None where they are in memory."""
        return self.train if isinstance(self.train, MappedSets) else None

    def by_name(self) -> np.ndarray:
        """Positions of the clients in the order of their names."""
        return np.arange(len(self.ids)) if isinstance(self.ids, Names) else randomness.client_order(self.ids)

    def first_rows(self) -> np.ndarray:
        """Features of two rows, to try a model on."""
        return self.rows.x[:2] if self.mapped is None else self.mapped.file.take(np.arange(2)).x

    @property
    def label_kind(self) -> LabelKind:
        """What the labels are: "binary", "multiclass" or "regression"."""
        return label_kind(self.task, len(self.classes))

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

    @property
    def row_counts(self) -> dict[str, int]:
        """Rows for training, validation and test; where there is no common test set, the clients' own test rows."""
        held = {part: len(rows) for part, rows in self._held_back().items()}
        return {"train": int(self.train.sizes.sum()), **held}

    @property
    def unknown_groups(self) -> dict[str, int]:
        """How many of those have an unknown group."""
        held = {part: int((self.rows.s[rows] == UNKNOWN).sum()) for part, rows in self._held_back().items()}
        return {"train": int(self.total_cells()[-1].sum()), **held}

    def _held_back(self) -> dict[str, np.ndarray]:
        test = self.test if len(self.test) or self.client_test is None else np.unique(self.client_test.index)
        return {"validation": self.validation, "test": test}

    def cells(self) -> np.ndarray:
        """Training rows per client, group and label [clients, groups, classes] (one label column for regression)."""
        return self._cells()[:, :-1]

    def unknown_cells(self) -> np.ndarray:
        """Training rows of unknown group per client and label [clients, classes]."""
        return self._cells()[:, -1]

    def _cells(self) -> np.ndarray:
        """Both, the rows of unknown group after the last group."""
        if self.mapped is not None:
            return self.mapped.cells()
        g, c = self._sizes[0] + 1, self._sizes[1]
        owner, rows = self.train.flat()
        y = self.rows.y[rows] if self.task == "classification" else 0
        s = self.rows.s[rows]
        flat = (owner * g + np.where(s == UNKNOWN, g - 1, s)) * c + y
        return np.bincount(flat, minlength=self.num_clients * g * c).reshape(self.num_clients, g, c)

    @property
    def _sizes(self) -> tuple[int, int]:
        """How many groups there are, and how many labels are told apart."""
        return len(self.groups), max(len(self.classes), 1)

    def total_cells(self) -> np.ndarray:
        """Training rows of all clients by group, those of unknown group last, and label [groups + 1, classes]."""
        if self.mapped is not None:
            return self.mapped.total_cells
        rows = self.train.flat()[1]
        return cell_counts(self.rows.y[rows], self.rows.s[rows], *self._sizes)

    def describe(self) -> Description:
        """Rows per client, group and label, as a table and a picture; rows of unknown group, if any, come last."""
        groups, cells = self.groups, self._cells()
        shown = (*groups, UNKNOWN_NAME) if cells[:, -1].any() else groups
        return Description(repr(self), self.ids, shown, self.classes or ("rows",), cells[:, : len(shown)])

    def __repr__(self) -> str:
        sizes = self.train.sizes
        return (
            f"Federation({self.name or 'unnamed'}: {self.num_clients} clients with {sizes.min()} to {sizes.max()} "
            f"rows, {len(self.validation)} validation, {len(self.test)} test; groups {', '.join(self.groups)}"
            + (f", unknown in {unknown} rows)" if (unknown := sum(self.unknown_groups.values())) else ")")
        )


def _drawn(rows: int, shares: Mapping[str, float], seed: int) -> dict[str, np.ndarray]:
    """Positions, in order, that are held back of so many rows, by what for."""
    counts = [round(share * rows) for share in shares.values()]
    if sum(counts) >= rows:
        raise ConfigError("The shares of rows for test and validation leave none to train on.", key="test")
    drawn = randomness.generator(seed, "split").choice(rows, size=sum(counts), replace=False)
    ends = np.cumsum(counts)
    return {part: np.sort(drawn[end - n : end]) for part, n, end in zip(shares, counts, ends, strict=True)}


def _in_values(old: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a deprecated constructor as those of `from_tables`."""
    from equifed.federation.tables import beside_schema

    warnings.warn(
        f"Federation.{old} is deprecated: use Federation.from_tables, with equifed.Columns and equifed.Holdout.",
        DeprecationWarning,
        stacklevel=3,
    )
    rest = dict(options)
    schema = rest.pop("schema", None)
    meant, held = (
        {each.name: rest.pop(each.name) for each in fields(kind) if each.name in rest} for kind in (Columns, Holdout)
    )
    return {"columns": beside_schema(schema, Columns(**meant)), "holdout": Holdout(**held), **rest}


def check_seed(seed: object) -> int:
    check_number("seed", seed, whole=True, low=0, held=2**63 - 1)
    return int(seed)  # type: ignore[call-overload]
