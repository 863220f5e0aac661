"""Which rows train, validate and test: drawn by a seed, dealt to clients by a partitioner."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from equifed import partition as parts
from equifed import randomness
from equifed.errors import ConfigError, UnknownName, blaming
from equifed.partition.base import sorted_values

if TYPE_CHECKING:
    from equifed.data import Encoded

AnyPartitioner = parts.Partitioner | parts.PartitionFunction
Split = tuple[float, float, float]
"""Train, validation, test: shares that add up to 1, or numbers of rows."""


class Holdings(NamedTuple):
    """The positions of the rows that each client, the server and the test hold."""

    ids: tuple[str, ...]
    """Client names."""
    train: Sequence[np.ndarray]
    """Training rows of each client."""
    validation: np.ndarray
    test: np.ndarray
    client_test: Sequence[np.ndarray] | None = None
    """Test rows of each client, if any."""
    client_groups: np.ndarray | None = None
    """Known group of each client, if any."""
    angles: tuple[float, ...] | None = None
    """Degrees by which the images of each group of clients are to be turned, if at all."""
    client_validation: Sequence[np.ndarray] | None = None
    """Of the validation rows, those that the server took from each client, if it did."""


def deal(
    encoded: Encoded,
    partition: AnyPartitioner,
    seeds: Sequence[int],
    split: Split,
    split_column: str | None = None,
    client_test: float = 0.0,
    validation: float | None = None,
) -> list[Holdings]:
    """For each seed: split all rows, deal the training rows to clients, hold back each client's own test rows.

    validation: a share of all rows that the server takes from the clients' training rows, in place of the split's
    validation rows. All test rows, and the clients, are the same as without it.
    """
    table = _partition_table(encoded)
    every: list[Holdings] = []
    for seed in seeds:
        order = randomness.generator(seed, "split").permutation(len(encoded.y))
        if split_column is not None:
            is_test = encoded.columns[split_column][order] == "test"
            train, at_server, test = np.sort(order[~is_test]), order[:0], np.sort(order[is_test])
        else:
            train, at_server, test = _cut(order, split)
        if validation is not None:
            train, at_server = np.sort(np.concatenate([train, at_server])), order[:0]
        columns = {name: values[train] for name, values in table.columns.items()}
        seen = parts.Table(table.label[train], table.group[train], columns, table.levels)
        with blaming_partition(partition), blaming(section="partition"):
            dealt = partition(seen, randomness.generator(seed, "partition"))
        held = [train[rows] for rows in dealt.rows]
        client_tests = None
        if client_test:
            cells, _ = table.cells(("label", "group"))
            rngs = (randomness.generator(seed, "client-test", randomness.key(client)) for client in dealt.ids)
            pairs = [_hold_back(rows, cells[rows], client_test, rng) for rows, rng in zip(held, rngs, strict=True)]
            held, client_tests = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        taken = None
        if validation:
            rng, before = randomness.generator(seed, "validation"), held
            held, at_server = _for_server(held, round(validation * len(order)), rng)
            taken = [own[np.isin(own, at_server)] for own in before]
        every.append(Holdings(dealt.ids, held, at_server, test, client_tests, dealt.client_groups, dealt.angles, taken))
    return every


def split_silos(
    silos: Mapping[str, Encoded],
    server: Encoded,
    client_groups: np.ndarray | None,
    *,
    seed: int,
    split: Split,
) -> tuple[Encoded, Holdings]:
    """All rows, one silo's after another and the server's last, and who holds them: every silo has its own split."""
    splits: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    start = 0
    for silo, table in silos.items():
        order = start + randomness.generator(seed, "split", randomness.key(silo)).permutation(len(table.y))
        splits.append(_cut(order, split))
        start += len(table.y)
    train, held, tests = zip(*splits, strict=True)
    at_server = np.concatenate([*held, np.arange(start, start + len(server.y))])
    whole = _join([*silos.values(), server])
    return whole, Holdings(tuple(silos), train, at_server, np.concatenate(tests), tests, client_groups)


def _join(tables: Sequence[Encoded]) -> Encoded:
    """The rows of several tables of one schema, one table after the other."""
    x, y, s = (np.concatenate([getattr(table, part) for table in tables]) for part in ("x", "y", "s"))
    attributes = [table.attribute for table in tables if table.attribute is not None]
    attribute = np.concatenate(attributes) if attributes else None
    merged: Counter[str] = sum((Counter(table.merged) for table in tables), Counter())
    dropped = sum(table.dropped for table in tables)
    return dataclasses.replace(tables[0], x=x, y=y, s=s, attribute=attribute, merged=dict(merged), dropped=dropped)


def _cut(order: np.ndarray, split: Split) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training, validation and test rows from rows in random order; each in ascending order."""
    n = len(order)
    if min(split) < 0 or split[0] <= 0:
        raise ConfigError(
            f"A split needs shares (or numbers) of at least 0 and some training rows, got {split}.", key="test"
        )
    if abs(sum(split) - 1) < 1e-9:
        validation, test = round(split[1] * n), round(split[2] * n)
        train = n - validation - test
    elif all(float(part).is_integer() for part in split) and sum(split) <= n:
        train, validation, test = (int(part) for part in split)
    else:
        text = f"A split must add up to 1, or be numbers of rows within the {n} there are, got {split}."
        raise ConfigError(text, key="test")
    stop = train + validation
    return np.sort(order[:train]), np.sort(order[train:stop]), np.sort(order[stop : stop + test])


def _partition_table(encoded: Encoded) -> parts.Table:
    """What a partitioner sees of all rows."""
    label = encoded.y
    if encoded.task == "regression":
        # below or above the median stands for the label
        label = (label > np.median(encoded.y)).astype(np.int64)
    columns = {name: np.asarray(values) for name, values in encoded.columns.items()}
    named = {"label": label, "group": encoded.s, **columns}
    levels = {name: sorted_values(name, values) for name, values in named.items()}
    return parts.Table(label, encoded.s, columns, levels)


def _hold_back(
    rows: np.ndarray, cells: np.ndarray, share: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """(kept, held back): the same share of every (label, group) cell, so that both have the client's make-up."""
    order = rng.permutation(len(rows))
    back = np.zeros(len(rows), dtype=bool)
    for cell in np.unique(cells):
        members = order[cells[order] == cell]
        back[members] = np.arange(len(members)) < round(share * len(members))
    return rows[~back], rows[back]


def _for_server(
    held: Sequence[np.ndarray], count: int, rng: np.random.Generator
) -> tuple[list[np.ndarray], np.ndarray]:
    """The clients' training rows without `count` of them, and those."""
    rows = np.concatenate([*held])
    if count >= len(rows):
        raise ConfigError(
            f"would take {count:,} rows from the clients, who have {len(rows):,} to train on. Give a smaller share.",
            key="validation",
        )
    taken = np.sort(rng.choice(rows, count, replace=False))
    return [own[~np.isin(own, taken)] for own in held], taken


def fit_scaling(x: np.ndarray, train: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Standardisation of the `columns` [d] that want it, fitted on the training rows."""
    if not columns.any():
        return None
    values = x[train][:, columns].astype(np.float64)
    return shift_and_factor(values.mean(0), values.std(0), columns)


def shift_and_factor(mean: np.ndarray, deviation: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What is subtracted from all inputs [d] and what they are multiplied by, from mean and deviation of the `columns`
    that are standardised; a constant one is only shifted."""
    shift, factor = np.zeros(len(columns), np.float32), np.ones(len(columns), np.float32)
    shift[columns], factor[columns] = mean, 1 / np.where(deviation > 0, deviation, 1)
    return shift, factor


def check_partition(partition: object) -> None:
    if not callable(partition) or isinstance(partition, type):
        raise ConfigError(
            f"must be one of equifed.partition with its options, such as equifed.partition.IID(10), got {partition!r}.",
            key="partition",
        )


@contextmanager
def blaming_partition(partition: AnyPartitioner | None) -> Iterator[None]:
    """An unknown column is the fault of the partitioner's option that names it."""
    try:
        yield
    except UnknownName as error:
        options: Mapping[str, Any] = vars(partition) if dataclasses.is_dataclass(partition) else {}
        for option, value in options.items():
            if error.value in (value if isinstance(value, tuple) else (value,)):
                error.section, error.key = "partition", option
        raise
