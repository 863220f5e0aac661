"""A federation: rows held once, and for each client, the server and the test the positions of their rows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from equifed import randomness
from equifed.errors import ConfigError, DataError, EquifedWarning, blaming, check_number, unknown_name
from equifed.federation import arrays
from equifed.federation.arrays import Rows
from equifed.federation.describe import Description
from equifed.federation.mapped import MappedSets, Names, cell_counts
from equifed.federation.rowsets import RowSets
from equifed.federation.split import AnyPartitioner, Holdings, check_partition, deal, fit_scaling, split_silos
from equifed.partition import describe
from equifed.partition.base import UNKNOWN
from equifed.task import LabelKind, TaskKind, label_kind

if TYPE_CHECKING:
    from equifed.data import Encoded, Missing, Schema, Sensitive
    from equifed.data.dates import DatePart


MAPPED_SAMPLED = 100
"""Clients per round of a mapped federation whose run does not say how many: all may be millions."""
UNKNOWN_NAME = "unknown"
"""What the rows of unknown group are called in tables."""


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients with their own rows, a validation set at the server, a global test set.

    Make one with `from_arrays`, `from_frame`, `from_files`, `from_mapped` or `equifed.load`.
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
    def from_frame(
        cls,
        frame: Any,
        *,
        label: str | None = None,
        sensitive: str | Sensitive | Sequence[str | Sensitive] | None = None,
        partition: AnyPartitioner,
        schema: str | Path | Schema | None = None,
        seed: int = 0,
        min_group: int = 0,
        features: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        dates: Mapping[str, Sequence[DatePart]] | None = None,
        missing: Missing | Mapping[str, Missing] | None = None,
        min_count: int | None = None,
        na_values: Sequence[str | float] | None = None,
        positive: object = None,
        meaning: str = "",
        task: TaskKind = "classification",
        validation: float = 0.2,
        test: float = 0.2,
        client_test: float = 0.0,
        encoding: Literal["ordinal", "onehot"] = "onehot",
        scaling: Literal["minmax", "standard", "none"] = "standard",
        sensitive_as_input: bool = False,
        name: str = "",
    ) -> Federation:
        """From one table: encoded, split by `seed`, and dealt to clients by a partitioner.

        frame: a data frame, a `pyarrow.Table` or a Hugging Face `datasets.Dataset`.
        label, sensitive: column names; several sensitive columns make their intersections the groups. min_group: groups
        with fewer rows than this become one, "other (merged)". Where a sensitive column is empty, the group is unknown:
        the row takes part in training, but in nothing said of groups.
        partition: one of `equifed.partition`. seed: of the split and the partition.
        features: input columns (default: all but the label, the sensitive ones, the column of a natural partition,
        those to `drop`, and what looks like an identifier, free text, a date or a constant: `fed.schema.left_out` lists
        them); sensitive_as_input=True adds the sensitive ones. dates: {"admitted": ["year", "weekday"]} makes inputs of
        dates.
        missing: "impute" (a category of its own; for numbers the median and an input that says so), "mean", "category",
        "drop" or "refuse", or {column: rule}. na_values: words that mean a missing value, as an empty cell does: "NA".
        min_count: categories and groups of fewer rows are not told apart.
        positive: the label value that is class 1; meaning: what it says of a row, in a few words for the report.
        task: "classification" or "regression".
        validation, test: shares of the rows for the server (default 0.2 each); client_test: share of each client's
        rows kept for its own test (default 0).
        encoding: "onehot" or "ordinal"; scaling: "standard" (fitted on training rows), "minmax" or "none".
        schema: a file or an `equifed.data.Schema` that says all this of the columns.
        """
        check_partition(partition)
        check_seed(seed)
        for option, share in (("validation", validation), ("test", test), ("client_test", client_test)):
            check_number(option, share, low=0, high=1)
        from equifed.federation import tables

        encoded = tables.encode_frame(
            frame,
            partition,
            schema,
            _settled(features, drop, dates, missing, min_count, min_group, na_values),
            label=label,
            sensitive=sensitive,
            sensitive_as_input=sensitive_as_input,
            positive=positive,
            meaning=meaning,
            encoding=encoding,
            scaling=scaling,
            task=task,
        )
        split = (1 - validation - test, validation, test)
        (holdings,) = deal(encoded, partition, [seed], split, client_test=client_test)
        provenance = {"partition": describe(partition)}
        return cls.of(encoded, holdings, seed=seed, name=name, provenance=provenance).checked()

    @classmethod
    def from_files(
        cls,
        files: Mapping[str, str | Path] | Sequence[str | Path],
        *,
        schema: str | Path | Schema | None = None,
        label: str | None = None,
        sensitive: str | Sensitive | Sequence[str | Sensitive] | None = None,
        min_group: int = 0,
        features: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        dates: Mapping[str, Sequence[DatePart]] | None = None,
        missing: Missing | Mapping[str, Missing] | None = None,
        min_count: int | None = None,
        na_values: Sequence[str | float] | None = None,
        positive: object = None,
        meaning: str = "",
        test: float = 0.2,
        validation: float = 0.0,
        validation_file: str | Path | None = None,
        client_groups: Mapping[str, str] | None = None,
        seed: int = 0,
        name: str = "",
    ) -> Federation:
        """From one CSV, Parquet or Arrow file per silo; clients are named after the files, or by the mapping's keys.

        schema: a shared schema (a file, or `equifed.data.Schema`) that every file must fit; or label, sensitive,
        min_group, positive and meaning (what the positive class says of a row), and features, drop, dates, missing,
        min_count and na_values as in `from_frame`. Then it is the one that the silos would agree on from summaries of
        their files (`equifed.data.summarise`): categories and groups are those that have `min_count` rows in some file.
        test, validation: shares of each silo's rows, drawn by `seed`; each silo is tested on its own test rows, and
        the global test set is all of them. validation_file: the server's own validation rows, in place of a share.
        client_groups: {silo: group}, for methods that need to know each client's group.
        """
        check_seed(seed)
        for option, share in (("validation", validation), ("test", test)):
            check_number(option, share, low=0, high=1)
        if validation and validation_file is not None:
            raise ConfigError(
                "Give the server's validation rows as a file or as a share of the clients' rows, not both.",
                key="validation_file",
            )
        from equifed.federation import tables

        paths = tables.named_paths(files)
        settled = _settled(features, drop, dates, missing, min_count, min_group, na_values)
        schema = tables.given_schema(schema)
        words = tables.na_values_of(schema, settled)
        with blaming(key="files"):
            frames = {silo: tables.read_table(path, words) for silo, path in paths.items()}
        named = tables.titles(paths)
        schema = tables.agreed_schema(
            schema,
            {named[silo]: frame for silo, frame in frames.items()},
            settled,
            label=label,
            sensitive=sensitive,
            positive=positive,
            meaning=meaning,
        )
        silos = {silo: tables.encode_file(schema, paths[silo], frame) for silo, frame in frames.items()}
        server = tables.encode_file(schema, validation_file, named="validation_file")
        groups = tables.known_groups(client_groups, list(paths))
        whole, holdings = split_silos(silos, server, groups, seed=seed, test=test, validation=validation)
        provenance = {"silos": {silo: path.name for silo, path in paths.items()}}
        return cls.of(whole, holdings, seed=seed, name=name, provenance=provenance).checked()

    @classmethod
    def from_frames(
        cls,
        frames: Mapping[str, Any],
        *,
        schema: str | Path | Schema | None = None,
        label: str | None = None,
        sensitive: str | Sensitive | Sequence[str | Sensitive] | None = None,
        min_group: int = 0,
        features: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        dates: Mapping[str, Sequence[DatePart]] | None = None,
        missing: Missing | Mapping[str, Missing] | None = None,
        min_count: int | None = None,
        na_values: Sequence[str | float] | None = None,
        positive: object = None,
        meaning: str = "",
        test: float = 0.2,
        validation: float = 0.0,
        client_groups: Mapping[str, str] | None = None,
        seed: int = 0,
        name: str = "",
    ) -> Federation:
        """From one table per silo, {"north": table, ...}: a data frame, a `pyarrow.Table` or a Hugging Face
        `datasets.Dataset`. All else is as in `from_files`.
        """
        check_seed(seed)
        for option, share in (("validation", validation), ("test", test)):
            check_number(option, share, low=0, high=1)
        if not isinstance(frames, Mapping):
            text = f"must be a table per silo by its name, {{'north': table, ...}}, got {type(frames).__name__}."
            raise ConfigError(text, key="frames")
        if not frames:
            raise DataError("No silo's table was given.", key="frames")
        from equifed.federation import tables

        made = {str(silo): tables.frame_of(table) for silo, table in frames.items()}
        schema = tables.agreed_schema(
            schema,
            made,
            _settled(features, drop, dates, missing, min_count, min_group, na_values),
            label=label,
            sensitive=sensitive,
            positive=positive,
            meaning=meaning,
        )
        silos: dict[str, Encoded] = {}
        for silo, frame in made.items():
            with blaming(file=silo):
                silos[silo] = schema.encode(frame)
        groups = tables.known_groups(client_groups, list(silos))
        server = tables.no_rows(schema)
        whole, holdings = split_silos(silos, server, groups, seed=seed, test=test, validation=validation)
        return cls.of(whole, holdings, seed=seed, name=name).checked()

    @classmethod
    def from_mapped(
        cls,
        files: str | Path | Sequence[str | Path],
        *,
        client: str,
        label: str | None = None,
        sensitive: str | Sensitive | Sequence[str | Sensitive] | None = None,
        cache: str | Path | None = None,
        schema: str | Path | Schema | None = None,
        features: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        dates: Mapping[str, Sequence[DatePart]] | None = None,
        missing: Missing | Mapping[str, Missing] | None = None,
        na_values: Sequence[str | float] | None = None,
        positive: object = None,
        meaning: str = "",
        task: TaskKind = "classification",
        encoding: Literal["ordinal", "onehot"] = "onehot",
        scaling: Literal["standard", "none"] = "standard",
        test: float | None = None,
        validation: float = 0.0,
        test_file: str | Path | None = None,
        validation_file: str | Path | None = None,
        seed: int = 0,
        name: str = "",
    ) -> Federation:
        """From files that are larger than memory: Parquet or Arrow, one file, a folder of them or a list, in which a
        column says which client holds a row. There may be millions of clients.

        The first call encodes the rows piece by piece into the folder `cache` (default: beside the files, named after
        them and a hash of what is asked for, with ".mapped"), sorted by client where a client's rows do not lie
        together. That takes as much space as the rows are in 32-bit numbers, twice that while they are sorted. Later
        calls take the folder as it is, unless the files or what is asked for have changed. In training, the rows of a
        round's clients are read from it.
        client: the column of clients. test, validation: shares of all rows, drawn by `seed`; these are held in memory.
        test_file, validation_file: files with such rows, in place of a share. Neither `test` nor a file: 0.01. A run
        that does not say how many clients there are in a round has 100.
        All else is as in `from_frame`. A schema that is not given is read off a sample of the rows: what kind each
        column is, what stands in for missing numbers. Labels, groups and categories are those of all rows.
        """
        check_seed(seed)
        if test is None:
            test = 0.01 if test_file is None else 0.0
        shares, files_of = {"test": test, "validation": validation}, {"test": test_file, "validation": validation_file}
        for part, share in shares.items():
            check_number(part, share, low=0, high=1)
            if files_of[part] is not None and share:
                text = f"Give the {part} rows as a file or as a share of the rows, not both."
                raise ConfigError(text, key=f"{part}_file")
        if schema is None and (label is None or sensitive is None):
            text = "Files need a schema, or the names of the label and the sensitive columns."
            raise ConfigError(text, key="schema")
        from equifed.federation import prepare, tables

        options: dict[str, Any] = {"label": label, "sensitive": sensitive, "positive": positive}
        if schema is None:
            options |= {"meaning": meaning, "task": task, "encoding": encoding, "scaling": scaling}
        settled = _settled(features, drop, dates, missing, None, 0, na_values)
        source = prepare.Source.of(files, client, schema, settled, options)
        rows = prepare.prepared(source, source.default_cache if cache is None else Path(cache))
        found = rows.schema
        held = _drawn(len(rows), shares, seed)
        given = {part: tables.encode_file(found, file, named=f"{part}_file") for part, file in files_of.items()}
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
        training rows) or "none". validation, test, client_test: shares, as in `from_frame`.
        """
        check_partition(partition)
        check_seed(seed)
        for option, share in (("validation", validation), ("test", test), ("client_test", client_test)):
            check_number(option, share, low=0, high=1)
        if scaling not in ("standard", "none"):
            raise unknown_name("scaling", scaling, ("standard", "none"), key="scaling")
        if features is None and hasattr(X, "columns"):
            features = [str(column) for column in X.columns]
        # the rows are checked as those of a federation whose one client has them all
        pooled = cls.from_arrays([(X, y, sensitive_features)], ids=["all rows"], task=task, features=features)
        encoded = arrays.encoded(pooled.rows, pooled.features, pooled.classes, pooled.groups, task, scaling)
        split = (1 - validation - test, validation, test)
        (holdings,) = deal(encoded, partition, [seed], split, client_test=client_test)
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


def _settled(
    features: Sequence[str] | None,
    drop: Sequence[str],
    dates: Mapping[str, Sequence[DatePart]] | None,
    missing: Missing | Mapping[str, Missing] | None,
    min_count: int | None,
    min_group: int,
    na_values: Sequence[str | float] | None,
) -> dict[str, Any]:
    """What a schema settles, by the arguments' names; None where it is not given."""
    return {
        "features": features,
        "drop": drop or None,
        "dates": dates or None,
        "missing": missing,
        "min_count": min_count,
        "min_group": min_group or None,
        "na_values": na_values,
    }


def check_seed(seed: object) -> int:
    check_number("seed", seed, whole=True, low=0, held=2**63 - 1)
    return int(seed)  # type: ignore[call-overload]
