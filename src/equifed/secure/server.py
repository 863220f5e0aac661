"""The server's side of secure sums: from masked replies and answers to `unmask`, the sum and nothing else."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Set

import numpy as np

from equifed.notes import Note
from equifed.secure import shamir
from equifed.secure.exchange import Exchange, Masked, NotSummed, Told, Total, commitment, lock, locked, self_seed
from equifed.secure.primitives import KEY, add_mask
from equifed.secure.rules import SHARE, unsummed
from equifed.secure.shamir import PRIME, Interpolation

TRIES = 300
"""Sets of shares that are tried until one gives the secret that a silo has committed itself to."""


def total(exchange: Exchange, transcript: bytes, masked: Mapping[str, Masked], told: Mapping[str, Told]) -> Total:
    """The sum over all in `masked`. told: the answers to `unmask` that came.

    A false share is noticed. A false seed or opener is not, nor is a false masked reply: what a lying silo can do to a
    sum is bounded by what the caller accepts as one.
    """
    there = [name for name in exchange.names if name in masked]
    gone = [name for name in exchange.names if name not in masked]
    told = {name: told[name] for name in there if name in told}
    if note := unsummed(len(exchange.names), len(there), len(told), exchange.planned):
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
            key = lock([told[other].openers[name] for other in there if other != name])
        for other in gone:
            add_mask(numbers, locked(told[name].seeds[other], key, other), -1 if other > name else 1)
    return Total(numbers, opened.liars())


def _fits(values: object, length: int) -> bool:
    return isinstance(values, np.ndarray) and values.dtype == np.uint64 and values.shape == (length,)


class _Opening:
    """Rebuilding the secrets of self-masks from the shares that were told."""

    def __init__(self, exchange: Exchange, transcript: bytes, told: Mapping[str, Told]) -> None:
        self._threshold, self._transcript, self._told = exchange.threshold, transcript, told
        self._points = {name: point for point, name in enumerate(exchange.names, start=1)}
        self._shares: dict[str, dict[str, int]] = {}
        """Of each secret: what shares were told, by whom."""
        self._opened: dict[tuple[str, ...], list[str]] = {}
        """Whose secrets were rebuilt by the shares of these silos."""
        self._known: dict[tuple[str, ...], Interpolation] = {}
        self._random = secrets.randbits(64)

    def secret(self, of: str, committed: bytes) -> bytes:
        """The secret of one silo, from the first set of shares that gives what the silo has committed itself to."""
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
        """As many silos as are needed: those that served before, then at random. With a third of the answers to spare,
        a set without any of e liars comes up once in 3^e."""
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

    def liars(self) -> tuple[str, ...]:
        """Silos by whom false shares came. Where several told a false share of one silo's secret and of no other's, it
        is that one, which dealt them."""
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
        """Of the tellers, those with a share of one in the group that is not on the polynomial through those of the
        chosen: found for the whole group at once, in a random sum of its polynomials."""
        factors = [(secrets.randbelow(PRIME), self._shares[of]) for of in group]

        def mixed(name: str) -> int:
            return sum(factor * shares[name] for factor, shares in factors) % PRIME

        through, values = self._through(chosen), [mixed(name) for name in chosen]
        return {name for name in tellers if through.value(values, self._points[name]) != mixed(name)}
