"""The server's side of secure aggregation: the sum, and only the sum, from masked replies and replies to `unmask`."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Set

import numpy as np

from equifed.notes import Note
from equifed.secure import shamir
from equifed.secure.exchange import (
    Exchange,
    Masked,
    NotSummed,
    Total,
    UnmaskReply,
    commitment,
    lock_key,
    lock_seed,
    self_seed,
)
from equifed.secure.primitives import KEY, add_mask
from equifed.secure.rules import SHARE, find_obstacle
from equifed.secure.shamir import PRIME, Interpolation

TRIES = 300
"""Largest number of random sets of shares that are tried to rebuild the secret of a silo's commitment."""


def total(
    exchange: Exchange, transcript: bytes, masked: Mapping[str, Masked], told: Mapping[str, UnmaskReply]
) -> Total:
    """Return the sum over all silos in `masked`. told: the replies to `unmask`.

    False shares are detected. False seeds, openers and masked replies are not: the caller's check of the sum limits the
    influence of a malicious silo.
    """
    there = [name for name in exchange.names if name in masked]
    gone = [name for name in exchange.names if name not in masked]
    told = {name: told[name] for name in there if name in told}
    if note := find_obstacle(len(exchange.names), len(there), len(told), exchange.planned):
        raise NotSummed(note)
    ((length, _),) = Counter(np.size(masked[name].values) for name in there).most_common(1)
    unfit = masked.keys() - set(there)
    unfit |= {name for name in there if not _fits(masked[name].values, length)}
    if gone:
        unfit |= {name for name in told if any(len(told[name].seeds.get(other, b"")) != KEY for other in gone)}
        unfit |= {
            name for name in told if any(len(told[name].openers.get(other, b"")) != KEY for other in {*there} - {name})
        }
    if unfit:
        raise NotSummed(Note("sum-unfit", {"clients": sorted(unfit)}))

    opened = _Opening(exchange, transcript, told)
    found = {name: opened.secret(name, masked[name].commitment) for name in there}
    numbers = np.zeros(length, np.uint64)
    for name in there:
        numbers += masked[name].values
        add_mask(numbers, self_seed(found[name], transcript), -1)
        if gone:
            key = lock_key([told[other].openers[name] for other in there if other != name])
        for other in gone:
            add_mask(numbers, lock_seed(told[name].seeds[other], key, other), -1 if other > name else 1)
    return Total(numbers, opened.faulty())


def _fits(values: object, length: int) -> bool:
    return isinstance(values, np.ndarray) and values.dtype == np.uint64 and values.shape == (length,)


class _Opening:
    """The reconstruction of self-mask secrets from the received shares."""

    def __init__(self, exchange: Exchange, transcript: bytes, told: Mapping[str, UnmaskReply]) -> None:
        self._threshold, self._transcript, self._told = exchange.threshold, transcript, told
        self._points = {name: point for point, name in enumerate(exchange.names, start=1)}
        self._shares: dict[str, dict[str, int]] = {}
        """Received shares of each silo's secret, by sender."""
        self._opened: dict[tuple[str, ...], list[str]] = {}
        """Silos with secrets rebuilt from the shares of each set of silos."""
        self._known: dict[tuple[str, ...], Interpolation] = {}
        self._random = secrets.randbits(64)

    def secret(self, of: str, committed: bytes) -> bytes:
        """Return the secret of one silo, from the first set of shares that fits its commitment."""
        told = {name: shamir.read(told.shares.get(of, b"")) for name, told in self._told.items()}
        shares = self._shares[of] = {name: value for name, value in told.items() if value is not None}
        for chosen in self._choices(shares):
            value = self._through(chosen).value([shares[name] for name in chosen])
            secret = value.to_bytes(SHARE, "big")[-shamir.SECRET :]
            if value >> 8 * shamir.SECRET == 0 and commitment(secret, self._transcript) == committed:
                self._opened.setdefault(chosen, []).append(of)
                return secret
        raise NotSummed(Note("shares-unfit", {"client": of, "shares": len(shares), "needed": self._threshold}))

    def _choices(self, shares: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
        """Yield sets of the needed number of silos: those that worked before, then random ones. With a third of the
        replies to spare, one of 3^e sets has none of e malicious silos."""
        yield from (chosen for chosen in tuple(self._opened) if shares.keys() >= set(chosen))
        names, draw = sorted(shares), random.Random(self._random)
        if len(names) >= self._threshold:
            yield tuple(names[: self._threshold])
        if len(names) > self._threshold:
            for _ in range(TRIES):
                yield tuple(sorted(draw.sample(names, self._threshold)))

    def _through(self, names: tuple[str, ...]) -> Interpolation:
        if names not in self._known:
            self._known[names] = Interpolation([self._points[name] for name in names])
        return self._known[names]

    def faulty(self) -> tuple[str, ...]:
        """Return the silos that sent false shares. If several sent false shares of one silo's secret only, that silo
        dealt them."""
        false: list[tuple[str, str]] = []
        for chosen, group in self._opened.items():
            others = self._told.keys() - set(chosen)
            whole = {name for name in others if all(name in self._shares[of] for of in group)}
            suspects = self._off(chosen, group, whole) | (others - whole)
            for of in group if suspects else ():
                held = suspects & self._shares[of].keys()
                false += [(teller, of) for teller in self._off(chosen, [of], held)]
        by_teller, by_dealer = Counter(teller for teller, _ in false), Counter(of for _, of in false)
        return tuple(sorted({of if by_teller[teller] == 1 < by_dealer[of] else teller for teller, of in false}))

    def _off(self, chosen: tuple[str, ...], group: list[str], tellers: Set[str]) -> set[str]:
        """Return the tellers with a share that is not on the polynomial through the shares of the chosen: checked for
        the whole group at once, with a random sum of its polynomials."""
        factors = [(secrets.randbelow(PRIME), self._shares[of]) for of in group]

        def mix(name: str) -> int:
            return sum(factor * shares[name] for factor, shares in factors) % PRIME

        through, values = self._through(chosen), [mix(name) for name in chosen]
        return {name for name in tellers if through.value(values, self._points[name]) != mix(name)}
