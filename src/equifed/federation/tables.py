"""Federations from tables: a data frame, one file per silo, or a named data set, split and partitioned by a seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from equifed import partition as parts
from equifed import randomness
from equifed.errors import ConfigError, DataError, check_number, unknown_name
from equifed.federation.federation import Federation, Rows, Sets
from equifed.partition.base import sorted_values

if TYPE_CHECKING:
    import os

    import pandas as pd

    from equifed.data import Encoded, Preset, Schema

Split = tuple[float, float, float]
"""Train, validation, test: shares that add up to 1, or numbers of rows."""


@overload
def load(
    name: str,
    *,
    preset: str | Preset | None = ...,
    partition: parts.Partitioner | None = ...,
    seed: int = ...,
    home: str | os.PathLike[str] | None = ...,
) -> Federation: ...
@overload
def load(
    name: str,
    *,
    preset: str | Preset | None = ...,
    partition: parts.Partitioner | None = ...,
    seeds: Iterable[int],
    home: str | os.PathLike[str] | None = ...,
) -> list[Federation]: ...
def load(
    name: str,
    *,
    preset: str | Preset | None = None,
    partition: parts.Partitioner | None = None,
    seed: int = 0,
    seeds: Iterable[int] | None = None,
    home: str | os.PathLike[str] | None = None,
) -> Federation | list[Federation]:
    """A named data set as a federation; with `seeds`, one federation each, with a split and a partition of its own.

    Without a partition, clients are the preset's natural ones (states) or equal random chunks. The rows are held
    once however many seeds there are.
    """
    from equifed import data
    from equifed.data.download import data_home

    wanted = [_check_seed(each) for each in _seed_list(seed, seeds)]
    if partition is not None:
        _check_partition(partition)
    used = [] if partition is None else _columns_used(partition)
    encoded, chosen, bunch = data.load_encoded(name, preset, home, used)
    if partition is None:
        partition = parts.Natural(chosen.natural) if chosen.natural else parts.IID(chosen.num_partitions)
    provenance = {
        "data": name,
        "preset": chosen.name,
        "files": dict(bunch.source_hashes),
        "partition": _describe(partition),
    }
    _check_complete(bunch.frame, _columns_used(partition))
    if isinstance(partition, parts.RotationGroups):
        made = _rotated(encoded, partition, wanted, data_home(home) / name)
    else:
        made = _split_and_partition(encoded, partition, wanted, chosen.split, chosen.split_column, chosen.client_test)
    made = [dataclasses.replace(fed, name=name, provenance=provenance)._checked() for fed in made]
    return made if seeds is not None else made[0]


def from_frame(
    frame: pd.DataFrame,
    *,
    label: str,
    sensitive: Any,
    partition: parts.Partitioner,
    seed: int = 0,
    features: Sequence[str] | None = None,
    positive: object = None,
    task: Literal["classification", "regression"] = "classification",
    validation: float = 0.2,
    test: float = 0.2,
    client_test: float = 0.0,
    encoding: Literal["ordinal", "onehot"] = "onehot",
    scaling: Literal["minmax", "standard", "none"] = "standard",
    sensitive_as_input: bool = False,
    name: str = "",
) -> Federation:
    """See `Federation.from_frame`."""
    import pandas as pd

    from equifed.data import Schema
    from equifed.data.encoding import check_task

    if not isinstance(frame, pd.DataFrame):
        raise ConfigError(f"from_frame needs a pandas data frame, got {type(frame).__name__}.")
    _check_partition(partition)
    _check_seed(seed)
    check_task(task)
    for option, share in (("validation", validation), ("test", test), ("client_test", client_test)):
        check_number(option, share, low=0, high=1)
    frame = _with_text_names(frame)
    label, sensitive = _name("label", label), _sensitive(sensitive)
    used = _columns_used(partition)
    for column in used:
        if column not in frame.columns:
            raise ConfigError(unknown_name("column to partition by", column, ["label", "group", *frame.columns]))
    _check_complete(frame, used)
    if features is None:
        hidden = {label, *_natural_columns(partition)}
        hidden |= set() if sensitive_as_input else set(_sensitive_columns(sensitive))
        features = [column for column in frame.columns if column not in hidden]
    elif isinstance(features, str) or not len(features):
        raise ConfigError(f"features must be a list of column names with at least one, got {features!r}.")
    features = [str(column) for column in features]
    if not features:
        raise DataError("The table has no input column besides the label, the sensitive ones and the partition's.")
    schema = Schema.infer(
        frame,
        label=label,
        sensitive=sensitive,
        features=features,
        positive=positive,
        encoding=encoding,
        scaling=scaling,
        task=task,
    )
    encoded = schema.encode(frame, columns=used)
    split = (1 - validation - test, validation, test)
    (fed,) = _split_and_partition(encoded, partition, [seed], split, None, client_test)
    return dataclasses.replace(fed, name=name, provenance={"partition": _describe(partition)})._checked()


def from_files(
    files: Mapping[str, str | Path] | Sequence[str | Path],
    *,
    schema: str | Path | Schema | None = None,
    label: str | None = None,
    sensitive: Any = None,
    positive: object = None,
    test: float = 0.2,
    validation: float = 0.0,
    validation_file: str | Path | None = None,
    client_groups: Mapping[str, str] | None = None,
    seed: int = 0,
    name: str = "",
) -> Federation:
    """See `Federation.from_files`."""
    from equifed.data import Schema

    _check_seed(seed)
    for option, share in (("validation", validation), ("test", test)):
        check_number(option, share, low=0, high=1)
    if validation and validation_file is not None:
        raise ConfigError("Give the server's validation rows as a file or as a share of the clients' rows, not both.")
    paths = _named_paths(files)
    frames = {silo: read_table(path) for silo, path in paths.items()}
    if schema is None:
        if label is None or sensitive is None:
            raise ConfigError("from_files needs a schema file, or the names of the label and sensitive columns.")
        together = _joined({paths[silo].name: frame for silo, frame in frames.items()})
        schema = Schema.infer(together, label=_name("label", label), sensitive=_sensitive(sensitive), positive=positive)
    elif not isinstance(schema, Schema):
        schema = read_schema(schema)
    encoded = {silo: _encoded(schema, paths[silo], frame) for silo, frame in frames.items()}
    server = None if validation_file is None else _encoded(schema, Path(validation_file))
    fed = _of_silos(encoded, server, schema, test, validation, client_groups, seed)
    scale = next(iter(encoded.values())).scale_columns
    return dataclasses.replace(
        fed,
        scaling=_scaling(fed.rows.x, fed.train.index, scale),
        name=name,
        provenance={"silos": {silo: path.name for silo, path in paths.items()}},
    )._checked()


def from_one_place(
    silos: Sequence[str],
    schema: Schema,
    *,
    silo: str | None = None,
    file: str | Path | None = None,
    validation_file: str | Path | None = None,
    client_groups: Mapping[str, str] | None = None,
    test: float = 0.2,
    seed: int = 0,
    name: str = "",
) -> Federation:
    """A federation as one place in it sees it: all silos by name, but only its own rows, those in `file` of the silo
    `silo`, or the server's validation rows. Its inputs are standardised once the means are known.

    The rows and their split are those that `from_files` gives this silo.
    """
    nothing = no_rows(schema)
    own = None if file is None else _encoded(schema, Path(file))
    encoded = {each: own if each == silo and own is not None else nothing for each in silos}
    server = None if validation_file is None else _encoded(schema, Path(validation_file))
    fed = _of_silos(encoded, server, schema, test, 0.0, client_groups, seed)
    return dataclasses.replace(fed, name=name)


def no_rows(schema: Schema) -> Encoded:
    """What a table without rows becomes: everything that a schema says of the numbers."""
    import pandas as pd

    return schema.encode(pd.DataFrame({name: [] for name in schema.column_names}))


def read_schema(path: str | Path) -> Schema:
    """The schema file that silos share."""
    from equifed.data import Schema

    return Schema.from_json(_existing(path).read_text(encoding="utf-8"))


def _encoded(schema: Schema, path: Path, frame: pd.DataFrame | None = None) -> Encoded:
    """A file's rows as numbers; what does not fit the schema is refused with the file's name."""
    try:
        return schema.encode(read_table(path) if frame is None else frame)
    except DataError as error:
        raise DataError(f"{path.name}: {error}") from error


def _of_silos(
    encoded: Mapping[str, Encoded],
    server: Encoded | None,
    schema: Schema,
    test: float,
    validation: float,
    client_groups: Mapping[str, str] | None,
    seed: int,
) -> Federation:
    """One client per silo, each with a split of its own; `server`: validation rows that belong to nobody else."""
    tables = [*encoded.values(), *([] if server is None else [server])]
    x, y, s = (np.concatenate([getattr(each, part) for each in tables]) for part in ("x", "y", "s"))
    attributes = [each.attribute for each in tables if each.attribute is not None]
    rows = Rows(x, y, s, np.concatenate(attributes) if attributes else None)
    stops = np.cumsum([len(each.y) for each in tables])
    train, held, tests = [], [], []
    for silo, begin, stop in zip(encoded, [0, *stops[:-1]], stops, strict=False):
        order = begin + randomness.generator(seed, "split", randomness.key(silo)).permutation(stop - begin)
        a, b, c = _cut(len(order), (1 - validation - test, validation, test))
        train.append(np.sort(order[:a]))
        held.append(np.sort(order[a : a + b]))
        tests.append(np.sort(order[a + b : a + b + c]))
    if server is not None:
        held.append(np.arange(stops[-1] - len(server.y), stops[-1]))
    first = tables[0]
    return Federation(
        rows=rows,
        train=Sets.of(train),
        validation=np.concatenate(held),
        test=np.concatenate(tests),
        client_test=Sets.of(tests),
        ids=tuple(encoded),
        kind=schema.task,
        classes=first.class_names,
        groups=first.group_names,
        features=first.feature_names,
        client_groups=None if client_groups is None else _known_groups(client_groups, list(encoded)),
        seed=seed,
    )


def _known_groups(groups: Mapping[str, str], silos: Sequence[str]) -> np.ndarray:
    """Each silo's group as a code, in the order of the groups' names."""
    for silo in silos:
        if silo not in groups:
            raise ConfigError(f"client_groups has no group for the client {silo!r}: name one for every client.")
    for silo in groups:
        if silo not in silos:
            raise ConfigError(unknown_name("client in client_groups", silo, silos))
    known = sorted({str(group) for group in groups.values()})
    return np.array([known.index(str(groups[silo])) for silo in silos], dtype=np.int64)


def load_femnist(train: str | Path, test: str | Path) -> Federation:
    """FEMNIST as a federation with one client per writer, from LEAF's JSON files (or folders of them) or TensorFlow
    Federated's HDF5 files; every writer is tested on its own test rows. There is one group of rows, and no group of
    writers is known. A writer of the test file who has no training rows is left out.
    """
    from equifed.data.sets.femnist import read_femnist

    train_rows, test_rows = read_femnist(train), read_femnist(test)
    none = (np.zeros((0, 1, 28, 28), np.float32), np.zeros(0, np.int64))

    def with_group(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return x, y, np.zeros(len(y), np.int64)

    fed = Federation.from_arrays(
        [with_group(*rows) for rows in train_rows.values()],
        client_tests=[with_group(*test_rows.get(writer, none)) for writer in train_rows],
        ids=list(train_rows),
        name="femnist",
    )
    return dataclasses.replace(fed, groups=("all",))


# -- parts -------------------------------------------------------------------------------------------------------------


def _split_and_partition(
    encoded: Encoded,
    partition: parts.Partitioner,
    seeds: Sequence[int],
    split: Split,
    split_column: str | None,
    client_test: float,
) -> list[Federation]:
    """For each seed: split all rows, deal the training rows to clients, hold back each client's own test rows."""
    table = _for_partition(encoded)
    return [_dealt(encoded, table, partition, seed, split, split_column, client_test) for seed in seeds]


def _dealt(
    encoded: Encoded,
    table: parts.Rows,
    partition: parts.Partitioner,
    seed: int,
    split: Split,
    split_column: str | None,
    client_test: float,
) -> Federation:
    n = len(encoded.y)
    order = randomness.generator(seed, "split").permutation(n)
    if split_column is not None:
        given = encoded.columns[split_column][order] == "test"
        train, validation, test = order[~given], order[:0], order[given]
    else:
        a, b, c = _cut(n, split)
        train, validation, test = order[:a], order[a : a + b], order[a + b : a + b + c]
    train, validation, test = np.sort(train), np.sort(validation), np.sort(test)
    dealt = partition(_some(table, train), randomness.generator(seed, "partition"))
    held = [train[rows] for rows in dealt.rows]
    own: Sets | None = None
    if client_test:
        cells, _ = table.cells(("label", "group"))
        pairs = [
            _hold_back(
                rows, cells[rows], client_test, randomness.generator(seed, "client-test", randomness.key(client))
            )
            for client, rows in zip(dealt.ids, held, strict=True)
        ]
        held, own = [pair[0] for pair in pairs], Sets.of([pair[1] for pair in pairs])
    sets = Sets.of(held)
    return Federation(
        rows=Rows(encoded.x, encoded.y, encoded.s, encoded.attribute),
        train=sets,
        validation=validation,
        test=test,
        client_test=own,
        ids=dealt.ids,
        kind=encoded.task,
        classes=encoded.class_names,
        groups=encoded.group_names,
        features=encoded.feature_names,
        client_groups=dealt.client_groups,
        scaling=_scaling(encoded.x, sets.index, encoded.scale_columns),
        seed=seed,
    )


def _cut(n: int, split: Split) -> tuple[int, int, int]:
    """Numbers of rows from shares or numbers."""
    if min(split) < 0 or split[0] <= 0:
        raise ConfigError(f"A split needs shares (or numbers) of at least 0 and some training rows, got {split}.")
    if abs(sum(split) - 1) < 1e-9:
        validation, test = round(split[1] * n), round(split[2] * n)
        return n - validation - test, validation, test
    if all(float(part).is_integer() for part in split) and sum(split) <= n:
        return int(split[0]), int(split[1]), int(split[2])
    raise ConfigError(f"A split must add up to 1, or be numbers of rows within the {n} there are, got {split}.")


def _for_partition(encoded: Encoded) -> parts.Rows:
    """What a partitioner sees of all rows."""
    label = encoded.y
    if encoded.task == "regression":
        # below or above the median stands for the label
        label = (label > np.median(encoded.y)).astype(np.int64)
    columns = {name: np.asarray(values) for name, values in encoded.columns.items()}
    named = {"label": label, "group": encoded.s, **columns}
    levels = {name: sorted_values(name, values) for name, values in named.items()}
    return parts.Rows(label, encoded.s, columns, levels)


def _some(table: parts.Rows, rows: np.ndarray) -> parts.Rows:
    columns = {name: values[rows] for name, values in table.columns.items()}
    return parts.Rows(table.label[rows], table.group[rows], columns, table.levels)


def _hold_back(
    rows: np.ndarray, cells: np.ndarray, share: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """(kept, held back): the same share of every (label, group) cell, so that both have the client's make-up."""
    order = rng.permutation(len(rows))
    rank = np.empty(len(rows), dtype=np.int64)
    for cell in np.unique(cells):
        members = order[cells[order] == cell]
        rank[members] = np.arange(len(members)) < round(share * len(members))
    back = rank.astype(bool)
    return rows[~back], rows[back]


def _scaling(x: np.ndarray, train: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Standardisation fitted on the training rows, for the columns that want it."""
    if not columns.any():
        return None
    some = x[train][:, columns].astype(np.float64)
    return shift_and_factor(some.mean(0), some.std(0), columns)


def shift_and_factor(mean: np.ndarray, deviation: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What is subtracted from all inputs [d] and what they are multiplied by, from mean and deviation of the `columns`
    that are standardised; a constant one is only shifted."""
    shift, factor = np.zeros(len(columns), np.float32), np.ones(len(columns), np.float32)
    shift[columns], factor[columns] = mean, 1 / np.where(deviation > 0, deviation, 1)
    return shift, factor


def _rotated(encoded: Encoded, partition: parts.RotationGroups, seeds: Sequence[int], folder: Path) -> list[Federation]:
    """E2FL's FairMNISTRotate: each client's images turned by its group's angle; tested on the test images so turned.

    All seeds share one table: for every group the training images that some seed deals to it, then the test images,
    which are the same for every partition and so kept, turned, in `folder`.
    """
    from equifed.data import rotate_images
    from equifed.data.rotate import rotate_cached

    if encoded.x.ndim != 4 or "split" not in encoded.columns:
        raise ConfigError("Rotation groups need images with a given test set, such as mnist.")
    train = np.flatnonzero(encoded.columns["split"] == "train")
    test = np.flatnonzero(encoded.columns["split"] == "test")
    table = _some(_for_partition(encoded), train)
    deals = [partition(table, randomness.generator(seed, "partition")) for seed in seeds]
    count = len(partition.clients_per_group)
    angles = [360 / count * g for g in range(count)]
    client_groups = np.repeat(np.arange(count), partition.clients_per_group)  # the same for every seed
    needed = [
        np.unique(np.concatenate([train[:0], *(train[deal.rows[k]] for deal in deals for k in members)]))
        for members in (np.flatnonzero(client_groups == g) for g in range(count))
    ]
    blocks = [*needed, *[test] * count]
    stop = np.cumsum([len(block) for block in blocks])
    start = stop - [len(block) for block in blocks]
    images = np.empty((int(stop[-1]), *encoded.x.shape[1:]), np.float32)
    for b, rows in enumerate(blocks):
        own, angle = encoded.x[rows], angles[b % count]
        images[start[b] : stop[b]] = rotate_images(own, angle) if b < count else rotate_cached(own, angle, folder)
    shared = Rows(
        images,
        encoded.y[np.concatenate(blocks)],
        np.repeat(np.arange(2 * count) % count, [len(block) for block in blocks]),
    )
    held = np.arange(start[count], stop[-1])
    return [
        Federation(
            rows=shared,
            train=Sets.of(
                [
                    start[g] + np.searchsorted(needed[g], train[own])
                    for g, own in zip(client_groups, deal.rows, strict=True)
                ]
            ),
            validation=held[:0],
            test=held,
            client_test=Sets(held, client_groups * len(test), (client_groups + 1) * len(test)),
            ids=deal.ids,
            classes=encoded.class_names,
            groups=tuple(f"{angle:g} degrees" for angle in angles),
            features=encoded.feature_names,
            client_groups=client_groups,
            seed=seed,
        )
        for seed, deal in zip(seeds, deals, strict=True)
    ]


def _describe(partition: parts.Partitioner) -> dict[str, Any]:
    """A partitioner as its registry name and options."""
    names = {kind: name for name, kind in parts.REGISTRY.items()}
    kind = names.get(type(partition), getattr(partition, "__name__", type(partition).__name__))
    return {"kind": kind, **(dataclasses.asdict(partition) if dataclasses.is_dataclass(partition) else {})}


def _columns_used(partition: parts.Partitioner) -> list[str]:
    """The columns that a partitioner looks at, besides the label and the group."""
    by = getattr(partition, "partition_by", ())
    named = (*_natural_columns(partition), *((by,) if isinstance(by, str) else by))
    return [name for name in dict.fromkeys(named) if name not in ("label", "group")]


def _natural_columns(partition: parts.Partitioner) -> list[str]:
    """The columns that say whose row it is."""
    named = [getattr(partition, name, None) for name in ("column", "natural")]
    return [name for name in named if name is not None]


def _check_partition(partition: object) -> None:
    if not callable(partition) or isinstance(partition, type):
        raise ConfigError(
            f"partition must be one of equifed.partition with its options, such as equifed.partition.IID(10), "
            f"got {partition!r}."
        )


def _check_complete(frame: pd.DataFrame, columns: Sequence[str]) -> None:
    """Every row must say where it belongs, whichever rows a seed trains on."""
    from equifed.data.encoding import check_complete

    for column in columns:
        check_complete(frame, column)


def _check_seed(seed: Any) -> int:
    check_number("seed", seed, whole=True, low=0)
    return int(seed)


def _seed_list(seed: int, seeds: Iterable[int] | None) -> list[int]:
    if seeds is None:
        return [seed]
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        hint = f" For {seeds} of them write seeds=range({seeds})." if isinstance(seeds, int) else ""
        raise ConfigError(f"seeds must be a list of whole numbers, got {seeds!r}.{hint}")
    listed = list(seeds)
    if not listed:
        raise ConfigError("seeds has no seed. Give at least one, such as seeds=range(5).")
    return listed


def _name(option: str, value: object) -> str:
    """The name of a column; numbers are names too."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ConfigError(f"{option} must be the name of a column, got {value!r}.")
    return str(value)


def _sensitive(sensitive: Any) -> Any:
    """Names and rules with every name as text."""
    from equifed.data import Sensitive

    given = sensitive if isinstance(sensitive, list | tuple) else [sensitive]
    return [rule if isinstance(rule, Sensitive) else _name("sensitive", rule) for rule in given]


def _sensitive_columns(sensitive: Any) -> list[str]:
    return [rule if isinstance(rule, str) else rule.column for rule in sensitive]


def _with_text_names(frame: pd.DataFrame) -> pd.DataFrame:
    """The same table with the columns' names as text."""
    return frame.set_axis([str(column) for column in frame.columns], axis=1)


def _joined(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """All rows of all files; each row is labelled with its place and its file, for messages."""
    import pandas as pd

    filled = {file: frame for file, frame in frames.items() if len(frame)}
    if not filled:
        raise DataError(f"None of the files has a row: {', '.join(frames)}.")
    labelled = [frame.set_axis([f"{row} of {file}" for row in frame.index]) for file, frame in filled.items()]
    return pd.concat(labelled)


def _named_paths(files: Mapping[str, str | Path] | Sequence[str | Path]) -> dict[str, Path]:
    if isinstance(files, Mapping):
        named = {str(silo): Path(path) for silo, path in files.items()}
    else:
        named = {}
        for path in map(Path, files):
            if path.stem in named:
                raise ConfigError(f"Two silo files are called {path.stem!r}; give names: {{'silo-a': path, ...}}.")
            named[path.stem] = path
    if not named:
        raise DataError("No silo files were given.")
    return named


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if not path.is_file():
        raise DataError(f"There is no file {path}.")
    return path


def read_table(path: Path) -> pd.DataFrame:
    import pandas as pd

    _existing(path)
    try:
        if path.suffix == ".parquet":
            # what a table's rows are called is nobody's business: they may be called by people's names
            return _with_text_names(pd.read_parquet(path)).reset_index(drop=True)
        if path.name.endswith((".csv", ".csv.gz")):
            return pd.read_csv(path)
    except Exception as error:
        raise DataError(f"{path.name} cannot be read: {error}") from error
    raise DataError(f"{path.name}: silo files must be .csv, .csv.gz or .parquet.")
