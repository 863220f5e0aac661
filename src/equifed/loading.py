"""Federations from tables: a data frame, one file per silo, or a named data set, split and partitioned by a seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from equifed import partition as parts
from equifed.errors import ConfigError, DataError
from equifed.federation import Federation, Rows, Sets
from equifed.simulator import plan

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

    encoded, chosen, bunch = data.load_encoded(name, preset, home)
    if partition is None:
        partition = parts.Natural(chosen.natural) if chosen.natural else parts.IID(chosen.num_partitions)
    provenance = {
        "data": name,
        "preset": chosen.name,
        "files": dict(bunch.source_hashes),
        "partition": _describe(partition),
    }
    wanted = [seed] if seeds is None else list(seeds)
    if isinstance(partition, parts.RotationGroups):
        made = [_rotated(encoded, partition, each) for each in wanted]
    else:
        made = [
            _split_and_partition(encoded, partition, each, chosen.split, chosen.split_column, chosen.client_test)
            for each in wanted
        ]
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
    from equifed.data import Schema

    used = [column for column in _columns_used(partition) if column in frame.columns]
    if features is None:
        hidden = {label, *(used if isinstance(partition, parts.Natural) else ())}
        hidden |= set() if sensitive_as_input else set(_sensitive_columns(sensitive))
        features = [str(column) for column in frame.columns if column not in hidden]
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
    fed = _split_and_partition(encoded, partition, seed, (1 - validation - test, validation, test), None, client_test)
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
    seed: int = 0,
    name: str = "",
) -> Federation:
    """See `Federation.from_files`."""
    import pandas as pd

    from equifed.data import Schema

    paths = _named_paths(files)
    frames = {silo: _read(path) for silo, path in paths.items()}
    if schema is None:
        if label is None or sensitive is None:
            raise ConfigError("from_files needs a schema file, or the names of the label and sensitive columns.")
        schema = Schema.infer(
            pd.concat(list(frames.values()), ignore_index=True), label=label, sensitive=sensitive, positive=positive
        )
    elif not isinstance(schema, Schema):
        schema = Schema.from_json(_existing(schema).read_text(encoding="utf-8"))
    encoded = []
    for silo, frame in frames.items():
        try:
            encoded.append(schema.encode(frame))
        except DataError as error:
            raise DataError(f"{paths[silo].name}: {error}") from error
    rows = Rows(*(np.concatenate([getattr(each, part) for each in encoded]) for part in ("x", "y", "s")))
    stops = np.cumsum([len(each.y) for each in encoded])
    train, held, tests = [], [], []
    for silo, begin, stop in zip(paths, [0, *stops[:-1]], stops, strict=True):
        order = begin + plan.generator(seed, "split", plan.key(silo)).permutation(stop - begin)
        a, b, c = _cut(len(order), (1 - validation - test, validation, test))
        train.append(np.sort(order[:a]))
        held.append(np.sort(order[a : a + b]))
        tests.append(np.sort(order[a + b : a + b + c]))
    first = encoded[0]
    positions = Sets.of(train)
    return Federation(
        rows=rows,
        train=positions,
        validation=np.concatenate(held),
        test=np.concatenate(tests),
        client_test=Sets.of(tests),
        ids=tuple(paths),
        kind=schema.task,
        classes=first.class_names,
        groups=first.group_names,
        features=first.feature_names,
        scaling=_scaling(rows.x, positions.index, first.scale_columns),
        name=name,
        seed=seed,
        provenance={"silos": {silo: path.name for silo, path in paths.items()}},
    )._checked()


# -- parts -------------------------------------------------------------------------------------------------------------


def _split_and_partition(
    encoded: Encoded,
    partition: parts.Partitioner,
    seed: int,
    split: Split,
    split_column: str | None,
    client_test: float,
) -> Federation:
    """Split all rows, deal the training rows to clients, hold back each client's own test rows."""
    n = len(encoded.y)
    order = plan.generator(seed, "split").permutation(n)
    if split_column is not None:
        given = encoded.columns[split_column][order] == "test"
        train, validation, test = order[~given], order[:0], order[given]
    else:
        a, b, c = _cut(n, split)
        train, validation, test = order[:a], order[a : a + b], order[a + b : a + b + c]
    train, validation, test = np.sort(train), np.sort(validation), np.sort(test)
    dealt = partition(_for_partition(encoded, train), plan.generator(seed, "partition"))
    held = [train[rows] for rows in dealt.rows]
    own: Sets | None = None
    if client_test:
        cells, _ = _for_partition(encoded, np.arange(n)).cells(("label", "group"))
        pairs = [
            _hold_back(rows, cells[rows], client_test, plan.generator(seed, "client-test", plan.key(client)))
            for client, rows in zip(dealt.ids, held, strict=True)
        ]
        held, own = [pair[0] for pair in pairs], Sets.of([pair[1] for pair in pairs])
    sets = Sets.of(held)
    return Federation(
        rows=Rows(encoded.x, encoded.y, encoded.s),
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


def _for_partition(encoded: Encoded, rows: np.ndarray) -> parts.Rows:
    label = encoded.y[rows]
    if encoded.task == "regression":
        # below or above the median stands for the label
        label = (label > np.median(encoded.y)).astype(np.int64)
    columns = {name: np.asarray(values)[rows] for name, values in encoded.columns.items()}
    return parts.Rows(label, encoded.s[rows], columns)


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
    shift, factor = np.zeros(x.shape[1], np.float32), np.ones(x.shape[1], np.float32)
    deviation = some.std(0)
    shift[columns] = some.mean(0)
    factor[columns] = 1 / np.where(deviation > 0, deviation, 1)
    return shift, factor


def _rotated(encoded: Encoded, partition: parts.RotationGroups, seed: int) -> Federation:
    """E2FL's FairMNISTRotate: each client's images turned by its group's angle; tested on the test images so turned."""
    from equifed.data import rotate_images

    if encoded.x.ndim != 4 or "split" not in encoded.columns:
        raise ConfigError("Rotation groups need images with a given test set, such as mnist.")
    train = np.flatnonzero(encoded.columns["split"] == "train")
    test = np.flatnonzero(encoded.columns["split"] == "test")
    dealt = partition(_for_partition(encoded, train), plan.generator(seed, "partition"))
    groups = dealt.client_groups
    assert groups is not None
    count = len(partition.clients_per_group)
    angles = [360 / count * g for g in range(count)]
    images, labels, group, start = [], [], [], np.zeros(len(dealt.ids), dtype=np.int64)
    total = 0
    for g, angle in enumerate(angles):
        members = np.flatnonzero(groups == g)
        rows = np.concatenate([train[dealt.rows[k]] for k in members]) if len(members) else train[:0]
        sizes = np.array([len(dealt.rows[k]) for k in members], dtype=np.int64)
        start[members] = total + np.cumsum(sizes) - sizes
        total += len(rows)
        images.append(rotate_images(encoded.x[rows], angle))
        labels.append(encoded.y[rows])
        group.append(np.full(len(rows), g, dtype=np.int64))
    held = total
    for g, angle in enumerate(angles):
        images.append(rotate_images(encoded.x[test], angle))
        labels.append(encoded.y[test])
        group.append(np.full(len(test), g, dtype=np.int64))
    sizes = np.array([len(rows) for rows in dealt.rows], dtype=np.int64)
    everything = np.arange(held + count * len(test))
    return Federation(
        rows=Rows(np.concatenate(images), np.concatenate(labels), np.concatenate(group)),
        train=Sets(everything[:held], start, start + sizes),
        validation=everything[:0],
        test=everything[held:],
        client_test=Sets(everything[held:], groups * len(test), (groups + 1) * len(test)),
        ids=dealt.ids,
        classes=encoded.class_names,
        groups=tuple(f"{angle:g} degrees" for angle in angles),
        features=encoded.feature_names,
        client_groups=groups,
        seed=seed,
    )


def _describe(partition: parts.Partitioner) -> dict[str, Any]:
    """A partitioner as its registry name and options."""
    options = dataclasses.asdict(partition)  # type: ignore[call-overload]
    names = {kind: name for name, kind in parts.REGISTRY.items()}
    return {"kind": names.get(type(partition), type(partition).__name__), **options}


def _columns_used(partition: parts.Partitioner) -> list[str]:
    named = [getattr(partition, name, None) for name in ("column", "natural")]
    return [name for name in (*named, *getattr(partition, "partition_by", ())) if name not in (None, "label", "group")]


def _sensitive_columns(sensitive: Any) -> list[str]:
    given = sensitive if isinstance(sensitive, list | tuple) else [sensitive]
    return [rule if isinstance(rule, str) else rule.column for rule in given]


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


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    _existing(path)
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        if path.name.endswith((".csv", ".csv.gz")):
            return pd.read_csv(path)
    except Exception as error:
        raise DataError(f"{path.name} cannot be read: {error}") from error
    raise DataError(f"{path.name}: silo files must be .csv, .csv.gz or .parquet.")
