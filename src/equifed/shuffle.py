"""Shuffling without state: a permutation of the rows as a function of a key.

An order of n rows is a function position -> row that can be computed for one position or for all, with NumPy here, in
compiled loops and GPU kernels of the simulator, or at a silo; nothing is drawn, stored or sent. It is a Feistel network
on a grid: n rows are laid out on a x b cells, as square as possible, and a cell (l, r) moves in alternating turns

    l <- l + f_i(r) mod a        r <- r + f_i(l) mod b

with f_i a hash of its argument and of the key's i-th part. Each turn is invertible, so the whole permutes the cells; a
row that ends on a cell beyond n moves again until it ends on a row. Pairs of rows differ from uniformly random pairs by
about 1/n after every two turns, so short lists take more turns.
"""

from __future__ import annotations

import functools
import math

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
"""Odd number nearest to 2^64 divided by the golden ratio: consecutive multiples are far apart."""
MASK = 0xFFFFFFFF


def grid(n: int) -> tuple[int, int]:
    """Return the sides a and b of the grid for n rows: a * b is at least n, by less than a."""
    a = math.isqrt(max(n, 1) - 1) + 1
    return a, -(-n // a)


def num_turns(n: int) -> int:
    """Return the number of turns: at least 6, and such that n^(turns/2) is at least 2^18."""
    return max(6, 2 * -(-18 // max(n.bit_length() - 1, 1)))


def mix(value: np.ndarray) -> np.ndarray:
    """Return a hash of 64 bits (the finaliser of splitmix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def fold(key: np.ndarray, part: int | np.ndarray) -> np.ndarray:
    """Return a key made from a key and another number, uint64; arrays give an array of keys."""
    number = part if isinstance(part, np.ndarray) else np.uint64(part % 2**64)
    return mix((key ^ number) + np.uint64(GOLDEN))


def key_of(*parts: int | np.ndarray) -> np.ndarray:
    """Return one key made from several numbers."""
    return functools.reduce(fold, parts, np.zeros(1, np.uint64))


def order(key: int, n: int) -> np.ndarray:
    """Return the rows in the order of this key [n]."""
    (a, b), count = grid(n), num_turns(n)
    keys = mix(np.uint64(key) + np.uint64(GOLDEN) * np.arange(1, count + 1, dtype=np.uint64)) & np.uint64(MASK)

    def move(cells: np.ndarray) -> np.ndarray:
        l, r = np.divmod(cells, np.uint64(b))
        for i, part in enumerate(keys):
            if i % 2 == 0:
                l = (l + _hash(r, part, a)) % np.uint64(a)
            else:
                r = (r + _hash(l, part, b)) % np.uint64(b)
        return l * np.uint64(b) + r

    cells = move(np.arange(n, dtype=np.uint64))
    while (beyond := cells >= n).any():
        cells[beyond] = move(cells[beyond])
    return cells.astype(np.int64)


def _hash(value: np.ndarray, key: np.ndarray, below: int) -> np.ndarray:
    """Return a hash below `below` for each 32-bit value."""
    h = value ^ key
    h = ((h ^ (h >> np.uint64(16))) * np.uint64(0x7FEB352D)) & np.uint64(MASK)
    h = ((h ^ (h >> np.uint64(15))) * np.uint64(0x846CA68B)) & np.uint64(MASK)
    return (h * np.uint64(below)) >> np.uint64(32)
