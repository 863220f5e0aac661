"""Named data sets as federations, split and partitioned by a seed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np

from equifed import partition as parts
from equifed import randomness
from equifed.data import Preset, Sensitive, get_dataset
from equifed.data.encode import check_complete
from equifed.errors import ConfigError, check_number
from equifed.federation.federation import Federation, check_seed
from equifed.federation.images import turned
from equifed.federation.split import AnyPartitioner, blaming_partition, check_partition, deal
from equifed.files import cache_home
from equifed.partition.base import columns_of


@overload
def load(
    name: str,
    *,
    preset: str | Preset | None = ...,
    sensitive: str | Sensitive | Sequence[str | Sensitive] | None = ...,
    min_group: int = ...,
    partition: AnyPartitioner | None = ...,
    validation: float | None = ...,
    client_test: float | None = ...,
    rows: int | None = ...,
    seed: int = ...,
    home: str | os.PathLike[str] | None = ...,
) -> Federation: ...
@overload
def load(
    name: str,
    *,
    preset: str | Preset | None = ...,
    sensitive: str | Sensitive | Sequence[str | Sensitive] | None = ...,
    min_group: int = ...,
    partition: AnyPartitioner | None = ...,
    validation: float | None = ...,
    client_test: float | None = ...,
    rows: int | None = ...,
    seeds: Iterable[int],
    home: str | os.PathLike[str] | None = ...,
) -> list[Federation]: ...
def load(
    name: str,
    *,
    preset: str | Preset | None = None,
    sensitive: str | Sensitive | Sequence[str | Sensitive] | None = None,
    min_group: int = 0,
    partition: AnyPartitioner | None = None,
    validation: float | None = None,
    client_test: float | None = None,
    rows: int | None = None,
    seed: int = 0,
    seeds: Iterable[int] | None = None,
    home: str | os.PathLike[str] | None = None,
) -> Federation | list[Federation]:
    """A named data set as a federation; with `seeds`, one federation each, with a split and a partition of its own.

    `name` is one of `equifed data list`, or "module:NAME" for an `equifed.data.Dataset` in a module of your own.
    sensitive: columns of the data set whose values, or their intersections, are the groups, in place of the preset's;
    the inputs stay the preset's. A column that the preset has groups of means those. min_group: groups with fewer rows
    than this, of all rows, become one, "other (merged)".
    Without a partition, the preset's own is used. validation: a share of the rows that the server takes from the
    clients' training rows, to choose settings on; the test rows stay the same. Default: the preset's own validation
    rows, if it has any. client_test: the share of each client's rows that is kept for a test of its own, in place of
    the preset's. rows: take only so many rows, drawn at random once, the same for every seed. The rows are held once
    however many seeds there are.
    """
    seed_list = [check_seed(value) for value in _seed_list(seed, seeds)]
    if validation is not None:
        check_number("validation", validation, low=0, high=1)
    if client_test is not None:
        check_number("client_test", client_test, low=0, high=1)
    if rows is not None:
        check_number("rows", rows, whole=True, low=1)
    if partition is not None:
        check_partition(partition)
    columns = [] if partition is None else columns_of(partition)
    dataset = get_dataset(name)
    with blaming_partition(partition):
        encoded, chosen, frame, hashes = dataset.encode(preset, home, columns, sensitive, min_group)
    if partition is None:
        partition = chosen.default_partition()
    provenance: dict[str, Any] = {
        "data": name,
        "preset": chosen.name,
        "files": hashes,
        "partition": parts.describe(partition),
        **({} if validation is None else {"validation": validation}),
        **({} if client_test is None else {"client_test": client_test}),
    }
    if sensitive is not None:
        provenance["sensitive"] = [rule.column for rule in chosen.sensitive]
    check_complete(frame, columns_of(partition))
    if rows is not None and rows < len(encoded.y):
        encoded = encoded.taken(np.sort(randomness.generator(0, "rows").choice(len(encoded.y), rows, replace=False)))
        provenance["rows"] = rows
    own_tests = chosen.client_test if client_test is None else client_test
    dealt = deal(encoded, partition, seed_list, chosen.split, chosen.split_column, own_tests, validation)
    if dealt[0].angles is not None:
        if sensitive is not None or min_group:
            raise ConfigError("has no meaning here: the partition's angles are the groups.", key="sensitive")
        made = turned(encoded, dealt, seed_list, cache_home() / "turned")
    else:
        made = [Federation.of(encoded, holdings, seed=s) for s, holdings in zip(seed_list, dealt, strict=True)]
    sampled = chosen.sampled
    made = [
        dataclasses.replace(
            fed, name=name, provenance=provenance | dict(fed.provenance), clients_per_round=sampled
        ).checked()
        for fed in made
    ]
    return made if seeds is not None else made[0]


def _seed_list(seed: int, seeds: Iterable[int] | None) -> list[int]:
    if seeds is None:
        return [seed]
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        hint = f" For {seeds} of them write seeds=range({seeds})." if isinstance(seeds, int) else ""
        raise ConfigError(f"must be a list of whole numbers, got {seeds!r}.{hint}", key="seeds", value=seeds)
    listed = list(seeds)
    if not listed:
        raise ConfigError("has no seed. Give at least one, such as seeds=range(5).", key="seeds")
    return listed
