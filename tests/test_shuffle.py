"""Orders of rows by a keyed permutation: they permute, look drawn at random, and are the same wherever computed."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import chi2, kstest

from equifed import randomness, shuffle
from equifed.settings import Local
from equifed.simulator.fused.cpu import fill_orders

SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 31, 64, 100, 257, 1000)


def orders(keys: np.ndarray, n: int, epoch: int = 0) -> np.ndarray:
    """Many orders at once, by the compiled loop; that it equals `shuffle.order` is the first test."""
    out = np.zeros((len(keys), n), np.int32)
    fill_orders(keys, epoch, np.full(len(keys), n), out)
    return out


def client_keys(count: int) -> np.ndarray:
    clients = np.array([randomness.key(f"client{k}") for k in range(count)], np.uint64)
    return randomness.batch_keys(3, 1, clients, "train")


@pytest.mark.parametrize("n", SIZES)
def test_it_permutes_and_the_compiled_loop_is_the_definition(n: int) -> None:
    keys = client_keys(20)
    for epoch in (0, 5):
        made = orders(keys, n, epoch)
        assert (np.sort(made, 1) == np.arange(n)).all()
        for key, order in zip(keys, made, strict=True):
            assert order.tolist() == shuffle.order(int(shuffle.fold(key[None], epoch)[0]), n).tolist()


def test_known_orders() -> None:
    """Pinned: a change would change every run, on every machine and at every silo."""
    assert shuffle.key_of(1, 2, 3).tolist() == [15020427595393229491]
    assert shuffle.order(12345, 10).tolist() == [7, 2, 6, 3, 4, 8, 1, 5, 9, 0]


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 8, 11, 17, 40, 64, 90])
def test_every_row_is_as_likely_at_every_position_and_pairs_are_too(n: int) -> None:
    many = 60_000
    made = orders(client_keys(many), n)
    counts = np.stack([np.bincount(made[:, p], minlength=n) for p in range(n)])
    assert chi2.sf(((counts - many / n) ** 2 / (many / n)).sum(), (n - 1) ** 2) > 1e-4
    pairs = list(itertools.combinations(range(n), 2))
    step = max(1, len(pairs) // 6)
    expected = many / (n * (n - 1))
    for a, b in pairs[::step]:
        table = np.bincount(made[:, a] * n + made[:, b], minlength=n * n).reshape(n, n)
        assert not table.diagonal().any()
        off = table[~np.eye(n, dtype=bool)]
        assert chi2.sf(((off - expected) ** 2 / expected).sum(), n * (n - 1) - 1) > 1e-4


@pytest.mark.parametrize("n", [3, 4, 5])
def test_all_orders_of_a_short_list_are_as_likely(n: int) -> None:
    many = 120_000
    codes = orders(client_keys(many), n) @ n ** np.arange(n)
    counts = np.unique(codes, return_counts=True)[1]
    assert len(counts) == math.factorial(n)
    expected = many / len(counts)
    assert chi2.sf(((counts - expected) ** 2 / expected).sum(), len(counts) - 1) > 1e-4


def test_a_test_that_can_fail() -> None:
    """Two turns are too few, and the test of pairs sees it."""
    n, many = 8, 20_000
    a, b = shuffle.grid(n)
    l, r = np.divmod(np.arange(n), b)
    rng = np.random.default_rng(0)
    made = np.empty((many, n), int)
    for line in made:
        left = (l + rng.integers(0, a, b)[r]) % a
        line[:] = left * b + (r + rng.integers(0, b, a)[left]) % b
    made = made[(made < n).all(1)]
    table = np.bincount(made[:, 0] * n + made[:, 1], minlength=n * n).reshape(n, n)
    off, expected = table[~np.eye(n, dtype=bool)], len(made) / (n * (n - 1))
    assert chi2.sf(((off - expected) ** 2 / expected).sum(), n * (n - 1) - 1) < 1e-6


def test_rounds_clients_phases_epochs_and_seeds_are_independent() -> None:
    """Rank correlations of orders whose keys differ in one part are those of independent ones: normal, 1/sqrt(n-1)."""
    n, many = 50, 4000
    clients = np.array([randomness.key(f"hospital-{k}") for k in range(many + 1)], np.uint64)
    base = orders(randomness.batch_keys(0, 1, clients, "train"), n)
    others = {
        "client": np.roll(base, 1, 0),
        "round": orders(randomness.batch_keys(0, 2, clients, "train"), n),
        "seed": orders(randomness.batch_keys(1, 1, clients, "train"), n),
        "phase": orders(randomness.batch_keys(0, 1, clients, "statistics"), n),
        "epoch": orders(randomness.batch_keys(0, 1, clients, "train"), n, 1),
    }
    centred = base - (n - 1) / 2
    for what, other in others.items():
        rho = (centred * (other - (n - 1) / 2)).sum(1) / (n * (n * n - 1) / 12)
        assert kstest(rho * math.sqrt(n - 1), "norm").pvalue > 1e-3, what


def test_batches_are_the_orders_cut_and_full_batches_lie_as_they_are() -> None:
    batches = randomness.Batches(7, 2, randomness.key("a"), "train", 10, Local(batch_size=4))
    key = int(shuffle.fold(randomness.batch_keys(7, 2, randomness.key("a"), "train"), 1)[0])
    assert np.concatenate(batches.of_epoch(1)).tolist() == shuffle.order(key, 10).tolist()
    assert [len(rows) for rows in batches.of_epoch(1)] == [4, 4, 2]
    whole = randomness.Batches(7, 2, randomness.key("a"), "train", 10, Local(batch_size=None))
    assert [rows.tolist() for rows in whole.of_epoch(3)] == [list(range(10))]
