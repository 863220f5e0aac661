"""Partitioners: every row exactly once, reproducible, the papers' shares, impossible requests refused."""

from __future__ import annotations

import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equifed import partition as P
from equifed.errors import ConfigError, DataError


def make_rows(n: int, seed: int = 0, groups: int = 2, states: int = 5) -> P.Table:
    rng = np.random.default_rng(seed)
    state = rng.choice([f"S{i}" for i in range(states)], n, p=np.arange(1, states + 1) / (states * (states + 1) / 2))
    return P.Table(rng.integers(0, 2, n), rng.integers(0, groups, n), {"STATE": state})


def sizes(partition: P.Partition) -> np.ndarray:
    return np.array([len(rows) for rows in partition.rows])


def same(a: P.Partition, b: P.Partition) -> bool:
    return len(a.rows) == len(b.rows) and all(map(np.array_equal, a.rows, b.rows))


def assert_disjoint(partition: P.Partition, n: int, all_rows: bool) -> None:
    used = np.concatenate(partition.rows)
    assert len(np.unique(used)) == len(used)
    assert len(used) == n if all_rows else len(used) <= n
    assert all((np.diff(rows) > 0).all() for rows in partition.rows)
    assert len(set(partition.ids)) == len(partition.ids) == len(partition.rows)


USES_EVERY_ROW = [
    lambda k: P.IID(k),
    lambda k: P.Dirichlet(k, 0.3),
    lambda k: P.Dirichlet(k, 1.0, partition_by=("label",)),
    lambda k: P.Dirichlet(k, 50.0, partition_by=("STATE", "group")),
]
AT_MOST_ONCE = [
    lambda k: P.DirichletPerClient(num_partitions=k, alpha=0.3, size=7),
    lambda k: P.DirichletPerClient(num_partitions=k, alpha=3.0, size=40, natural="STATE"),
    lambda k: P.DirichletPerClient(num_partitions=k, alpha=1.0, size=9, natural="STATE", prior="population"),
    lambda k: P.RotationGroups((k, 0, 1), rows_per_client=3),
]


@settings(max_examples=40)
@given(n=st.integers(200, 500), clients=st.integers(1, 20), seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("make", USES_EVERY_ROW + AT_MOST_ONCE)
def test_rows_are_used_once_by_the_right_number_of_clients(make, n, clients, seed):
    rows = make_rows(n, seed)
    partitioner = make(clients)
    result = partitioner(rows, np.random.default_rng(seed))
    assert_disjoint(result, n, all_rows=make in USES_EVERY_ROW)
    assert len(result.rows) == clients + isinstance(partitioner, P.RotationGroups)
    assert same(result, partitioner(rows, np.random.default_rng(seed)))


@pytest.mark.parametrize("make", USES_EVERY_ROW + AT_MOST_ONCE + [lambda k: P.Skewed(k)])
def test_other_seeds_give_other_partitions(make):
    rows = make_rows(500)
    assert not same(make(6)(rows, np.random.default_rng(1)), make(6)(rows, np.random.default_rng(2)))


def test_iid_chunks_are_equal():
    assert sorted(sizes(P.IID(7)(make_rows(100), np.random.default_rng(0)))) == [14] * 5 + [15] * 2


def test_dirichlet_follows_the_papers_rounding():
    rows = make_rows(1000)
    result = P.Dirichlet(6, 0.4)(rows, np.random.default_rng(3))
    shares = np.random.default_rng(3).dirichlet(np.full(6, 0.4), size=4)
    for cell, share in zip([(0, 0), (0, 1), (1, 0), (1, 1)], shares, strict=True):
        members = (rows.label == cell[0]) & (rows.group == cell[1])
        expected, left = [], int(members.sum())
        for p in share[:-1]:
            expected.append(min(round(int(members.sum()) * p), left))
            left -= expected[-1]
        assert [int(members[r].sum()) for r in result.rows] == [*expected, left]


def test_dirichlet_rounding_overflow_takes_from_the_last():
    # 6 rows in equal shares of 0.6: each rounds up to 1, and the last four clients find nothing
    rows = P.Table(np.zeros(10, dtype=int), np.zeros(10, dtype=int), {"cell": np.repeat([0, 1], [6, 4])})
    result = P.Dirichlet(10, 1e9, partition_by=("cell",))(rows, np.random.default_rng(0))
    assert_disjoint(result, 10, all_rows=True)
    first = [int((r < 6).sum()) for r in result.rows]
    assert first == [1] * 6 + [0] * 4
    # 4 rows in shares of 0.4: all round down, the last client gets them
    assert [int((r >= 6).sum()) for r in result.rows] == [0] * 9 + [4]


@pytest.mark.parametrize("alpha", [1e-3, 1e-8])
def test_dirichlet_limits(alpha):
    rows = make_rows(4000)
    cells = rows.label * 2 + rows.group
    concentrated = P.Dirichlet(8, alpha)(rows, np.random.default_rng(0))
    owner_of_cell = np.array([np.bincount(cells[r], minlength=4) for r in concentrated.rows])
    assert (owner_of_cell.max(0) > 0.98 * np.bincount(cells)).all()
    spread = sizes(P.Dirichlet(8, 1e7)(rows, np.random.default_rng(0)))
    assert spread.max() - spread.min() < 10


def test_dirichlet_min_rows():
    rows = make_rows(1000)
    assert sizes(P.Dirichlet(10, 0.5, min_rows=20)(rows, np.random.default_rng(0))).min() >= 20
    with pytest.raises(ConfigError, match=r"need 2000 rows; there are 1000"):
        P.Dirichlet(10, 0.5, min_rows=200)(rows, np.random.default_rng(0))
    with pytest.raises(ConfigError, match=r"100 draws with alpha=0\.01 never gave all 10 clients 90 rows"):
        P.Dirichlet(10, 0.01, min_rows=90)(rows, np.random.default_rng(0))


def test_per_client_takes_its_mix_from_its_state():
    rows = make_rows(60_000)
    result = P.DirichletPerClient(alpha=1.0, size=500, natural="STATE")(rows, np.random.default_rng(4))
    assert result.ids == ("S0", "S1", "S2", "S3", "S4")
    mix = np.random.default_rng(4).dirichlet(np.ones(4), size=5)
    cells = rows.label * 2 + rows.group
    for name, members, r in zip(result.ids, result.rows, mix, strict=True):
        assert set(rows.columns["STATE"][members]) == {name}
        # the smallest state has 1,000 rows of each cell: nobody runs short
        np.testing.assert_array_equal(np.bincount(cells[members], minlength=4), np.rint(500 * r))


def test_per_client_takes_what_there_is():
    rows = P.Table(np.array([0] * 95 + [1] * 5), np.zeros(100, dtype=int), {"STATE": np.zeros(100)})
    result = P.DirichletPerClient(alpha=1e8, size=60, natural="STATE")(rows, np.random.default_rng(0))
    assert np.bincount(rows.label[result.rows[0]]).tolist() == [30, 5]
    shared = P.DirichletPerClient(alpha=1e8, size=20, num_partitions=4)(rows, np.random.default_rng(0))
    assert [np.bincount(rows.label[r], minlength=2).tolist() for r in shared.rows] == [[10, 1]] * 4


def test_per_client_prior():
    rng = np.random.default_rng(0)
    rows = P.Table((rng.random(40_000) < 0.1).astype(int), np.zeros(40_000, dtype=int))
    for prior, share in [("uniform", 0.5), ("population", rows.label.mean())]:
        result = P.DirichletPerClient(num_partitions=4, alpha=1e6, size=1000, prior=prior)(rows, rng)
        assert [rows.label[r].mean() for r in result.rows] == pytest.approx([share] * 4, abs=0.01)


def test_per_client_splits_large_states_and_keeps_the_largest():
    rows = make_rows(30_000)  # S4 has five times the rows of S0
    more = P.DirichletPerClient(num_partitions=8, alpha=1.0, size=50, natural="STATE")(rows, np.random.default_rng(0))
    assert more.ids == ("S0", "S1", "S2", "S3-0", "S3-1", "S4-0", "S4-1", "S4-2")
    fewer = P.DirichletPerClient(num_partitions=2, alpha=1.0, size=50, natural="STATE")(rows, np.random.default_rng(0))
    assert fewer.ids == ("S3", "S4")
    for name, members in zip(more.ids, more.rows, strict=True):
        assert set(rows.columns["STATE"][members]) == {name[:2]}


@settings(max_examples=60)
@given(
    n0=st.integers(300, 3000),
    n1=st.integers(300, 3000),
    half=st.integers(1, 5),
    majority=st.sampled_from([0.6, 0.75, 0.9, 1.0]),
)
def test_skewed_shares(n0, n1, half, majority):
    rows = P.Table(np.zeros(n0 + n1, dtype=int), np.repeat([3, 7], [n0, n1]))
    share = min(n0, n1) / (n0 + n1)
    if share < 1 - majority + 0.05:
        return
    result = P.Skewed(2 * half, majority)(rows, np.random.default_rng(0))
    assert_disjoint(result, n0 + n1, all_rows=True)
    for k, members in enumerate(result.rows):
        own = 3 if k < half else 7
        # each group's rows in a client are right to one row, plus half a row for the rounded cut
        assert abs((rows.group[members] == own).sum() - majority * len(members)) <= 2.5
    for part in (sizes(result)[:half], sizes(result)[half:]):
        assert part.max() - part.min() <= 2


def test_skewed_by_group_works_for_groups_of_any_size():
    rows = P.Table(np.zeros(1000, dtype=int), np.repeat([0, 1], [970, 30]))
    result = P.Skewed(4, 0.9, of="group")(rows, np.random.default_rng(0))
    assert_disjoint(result, 1000, all_rows=True)
    held = np.array([[(rows.group[members] == g).sum() for g in (0, 1)] for members in result.rows])
    assert held[:2].sum(0).tolist() == [873, 3]  # 90 % of group 0, 10 % of group 1
    assert held[2:].sum(0).tolist() == [97, 27]
    assert (np.abs(np.diff(held[[0, 2]] - held[[1, 3]])) <= 2).all()
    with pytest.raises(ConfigError, match="of must be 'client' or 'group'"):
        P.Skewed(4, of="rows")


def test_skewed_refuses_with_numbers():
    rows = P.Table(np.zeros(1000, dtype=int), np.repeat([0, 1], [950, 50]))
    with pytest.raises(ConfigError, match=r"950 and 50 rows in the groups"):
        P.Skewed(4)(rows, np.random.default_rng(0))
    with pytest.raises(ConfigError, match=r"exactly two groups; the rows have 3 groups \(codes 0, 1, 2\)"):
        P.Skewed(4)(make_rows(100, groups=3), np.random.default_rng(0))
    with pytest.raises(ConfigError, match="num_partitions must be even"):
        P.Skewed(5)
    with pytest.raises(ConfigError, match=r"above 0\.5"):
        P.Skewed(4, majority=0.5)


def test_natural():
    rows = make_rows(300)
    result = P.Natural("STATE")(rows, np.random.default_rng(0))
    assert_disjoint(result, 300, all_rows=True)
    for name, members in zip(result.ids, result.rows, strict=True):
        np.testing.assert_array_equal(members, np.flatnonzero(rows.columns["STATE"] == name))
    with pytest.raises(ConfigError, match=r"1 of 5 values of 'STATE' have fewer than min_rows=30 rows: S0 \("):
        P.Natural("STATE", min_rows=30)(rows, np.random.default_rng(0))


def test_rotation_groups_of_the_paper():
    rows = P.Table(np.zeros(60_000, dtype=int), np.zeros(60_000, dtype=int))
    result = P.RotationGroups()(rows, np.random.default_rng(0))
    assert_disjoint(result, 60_000, all_rows=True)
    assert (sizes(result) == 60).all()
    assert np.bincount(result.client_groups).tolist() == [8, 14, 62, 152, 256, 257, 160, 68, 19, 4]
    with pytest.raises(ConfigError, match="1000 clients with 61 rows each need 61000 rows; there are 60000"):
        P.RotationGroups(rows_per_client=61)(rows, np.random.default_rng(0))
    for groups in ((3, -1), (3, 2.5), ("3",), (0, 0), (), 5):
        with pytest.raises(ConfigError, match="clients_per_group"):
            P.RotationGroups(groups)


def test_rotation_groups_that_are_each_dealt_all_images():
    """Nobody shares an image with a client of the own group; the largest group, 257 clients, shares nearly all."""
    rows = P.Table(np.zeros(60_000, dtype=int), np.zeros(60_000, dtype=int))
    partitioner = P.RotationGroups(rows_per_client=233, each_group_anew=True)
    result = partitioner(rows, np.random.default_rng(0))
    assert (sizes(result) == 233).all()
    assert len(result.ids) == len(set(result.ids)) == 1000
    for g, count in enumerate(partitioner.clients_per_group):
        held = np.concatenate([result.rows[k] for k in np.flatnonzero(result.client_groups == g)])
        assert len(held) == len(np.unique(held)) == 233 * count
    assert len(np.unique(np.concatenate(result.rows))) > 59_990
    with pytest.raises(ConfigError, match="257 clients with 234 rows each need 60138 rows; there are 60000"):
        P.RotationGroups(rows_per_client=234, each_group_anew=True)(rows, np.random.default_rng(0))


@pytest.mark.parametrize(
    "partitioner",
    [P.IID(11), P.Dirichlet(11, 1.0), P.Skewed(12), P.DirichletPerClient(num_partitions=11, alpha=1.0)],
)
def test_more_clients_than_rows(partitioner):
    with pytest.raises(ConfigError, match=r"clients need at least 1\d rows; there are 10"):
        partitioner(make_rows(10), np.random.default_rng(0))


def test_bad_options():
    for make in (
        lambda: P.IID(0),
        lambda: P.IID(2.5),
        lambda: P.IID("3"),
        lambda: P.IID(True),
        lambda: P.Dirichlet(3, 0.0),
        lambda: P.Dirichlet(3, "0.5"),
        lambda: P.Dirichlet(3, float("nan")),
        lambda: P.Dirichlet(None, 0.5),
        lambda: P.DirichletPerClient(alpha=-1, num_partitions=2),
        lambda: P.DirichletPerClient(alpha=1, num_partitions=2, size=2.5),
        lambda: P.Skewed("4"),
        lambda: P.RotationGroups((3,), rows_per_client=1.5),
    ):
        with pytest.raises(ConfigError, match=r"must be a (whole )?number above 0, got"):
            make()
    for make in (lambda: P.Natural(None), lambda: P.DirichletPerClient(alpha=1.0, natural=("STATE",))):
        with pytest.raises(ConfigError, match="must be the name of a column"):
            make()
    for value in (None, (), ("label", None)):
        with pytest.raises(ConfigError, match="partition_by must name the columns"):
            P.Dirichlet(3, 1.0, partition_by=value)
    with pytest.raises(ConfigError, match="min_rows must be a whole number"):
        P.Natural("STATE", min_rows="3")
    with pytest.raises(ConfigError, match="majority must be a number"):
        P.Skewed(4, majority="0.9")
    with pytest.raises(ConfigError, match="needs the number of clients"):
        P.DirichletPerClient(alpha=1.0)
    with pytest.raises(ConfigError, match="prior must be"):
        P.DirichletPerClient(alpha=1.0, num_partitions=2, prior="flat")
    with pytest.raises(ConfigError, match="3 clients of 40 rows need 120 rows; there are 100"):
        P.DirichletPerClient(alpha=1.0, num_partitions=3, size=40)(make_rows(100), np.random.default_rng(0))


def test_bad_columns():
    rows = make_rows(50)
    with pytest.raises(ConfigError, match=r"'STTE'. Did you mean 'STATE'\?"):
        P.Natural("STTE")(rows, np.random.default_rng(0))
    with pytest.raises(ConfigError, match="Unknown column"):
        P.Dirichlet(2, 1.0, partition_by=("label", "sex"))(rows, np.random.default_rng(0))
    with pytest.raises(DataError, match="'group' has 3 rows, the label has 2"):
        P.IID(1)(P.Table(np.zeros(2), np.zeros(3)), np.random.default_rng(0))
    for column in (np.array([1.0, np.nan]), *(np.array(["a", none], dtype=object) for none in (None, pd.NA))):
        with pytest.raises(DataError, match="'STATE' has 1 missing values, the first in row 1"):
            P.Natural("STATE")(P.Table(np.zeros(2), np.zeros(2), {"STATE": column}), np.random.default_rng(0))
    mixed = P.Table(np.zeros(2), np.zeros(2), {"STATE": np.array(["a", 1], dtype=object)})
    for partitioner in (P.Natural("STATE"), P.Dirichlet(1, 1.0, partition_by="STATE")):
        with pytest.raises(DataError, match="'STATE' mixes values"):
            partitioner(mixed, np.random.default_rng(0))


def test_one_name_is_as_good_as_a_list_of_one():
    for make in (P.Dirichlet, lambda *a, **k: P.DirichletPerClient(num_partitions=a[0], alpha=a[1], size=5, **k)):
        one, many, listed = (make(3, 0.5, partition_by=by) for by in ("label", ("label",), ["label"]))
        assert one == many == listed
        assert one.partition_by == ("label",)
        assert hash(listed) == hash(one)
        assert same(one(make_rows(90), np.random.default_rng(0)), many(make_rows(90), np.random.default_rng(0)))


@pytest.mark.parametrize(
    "make", [lambda: P.Natural("STATE"), lambda: P.DirichletPerClient(alpha=1.0, natural="STATE", size=9)]
)
def test_a_value_without_rows_is_a_client_without_rows(make):
    rows = make_rows(300)
    levels = {"STATE": np.array(["A", "S0", "S1", "S2", "S2b", "S3", "S4", "Z"], dtype=object)}
    some, all_of_them = (make()(each, np.random.default_rng(0)) for each in (rows, rows._replace(levels=levels)))
    assert all_of_them.ids == tuple(levels["STATE"])
    found = dict(zip(all_of_them.ids, all_of_them.rows, strict=True))
    for name, members in found.items():
        assert set(rows.columns["STATE"][members]) <= {name}
        assert bool(len(members)) == (name in some.ids)


def test_the_registry():
    """Every partitioner is known by its class's name, and part of the package's API."""
    assert {"iid", "dirichlet", "dirichlet-per-client", "skewed", "natural", "rotation-groups"} <= set(P.REGISTRY)
    for name, kind in P.REGISTRY.items():
        assert kind.__name__.lower() == name.replace("-", "")
        assert getattr(P, kind.__name__) is kind, f"import {kind.__name__} in partition/__init__.py"


@pytest.mark.parametrize(
    "partitioner",
    [
        P.IID(10_000),
        P.Dirichlet(10_000, 0.5),
        P.Skewed(10_000),
        P.DirichletPerClient(num_partitions=10_000, alpha=0.5, size=20),
        P.DirichletPerClient(num_partitions=10_000, alpha=0.5, size=20, natural="STATE"),
        P.RotationGroups((5000, 5000), rows_per_client=20),
    ],
)
def test_ten_thousand_clients_are_quick(partitioner):
    rows = make_rows(200_000)
    start = time.thread_time()  # CPU time: others use this machine too
    assert len(partitioner(rows, np.random.default_rng(0)).rows) == 10_000
    assert time.thread_time() - start < 4
