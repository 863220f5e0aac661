"""A server that names other survivors to each silo. Every silo answers once, and by the rules; yet put together, some
shares of a self-mask from these and the seeds from those would be the sum of a few."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from store.faults import Fake

from equifed.secure import Exchange, Masked, Silo, UnmaskReply, shamir
from equifed.secure.exchange import commitment, lock_key, lock_seed, self_seed
from equifed.secure.primitives import add_mask, derive, pack, unseal
from secure.sums import Federation, transcript


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equifed.files.os", Fake(fsync=lambda handle: None))


class Spy(Silo):
    """A silo in the server's pay, which tells it all it knows."""

    def share(self, of: str, sealed: Mapping[str, bytes], about: bytes, key: bytes) -> bytes:
        way = pack(of, self.name, about)
        return unseal(self._share_key(of, key, way), sealed[self.name], way) or b""

    def seed(self, other: str, about: bytes, key: bytes) -> bytes:
        return self._seed(other, key, about)

    def opener(self, of: str, about: bytes, survivors: Iterable[str], key: bytes) -> bytes:
        return derive(self._pair(of, key), "opener", of, self.name, about, list(survivors))


class Splitter:
    """A server that asks each honest silo to unmask for survivors of its own."""

    def __init__(self, federation: Federation, number: int, without: Mapping[str, Iterable[str]], spies: Iterable[str]):
        self.exchange: Exchange = federation.exchange(number)
        self.names, self.about = federation.names, transcript(self.exchange)
        self.keys = dict(zip(self.names, self.exchange.keys, strict=True))
        self.masked: dict[str, Masked] = federation.mask(self.exchange)
        self.spies = {name: Spy(name, federation.silos[name].run, federation.place / name) for name in spies}
        honest = [name for name in self.names if name not in self.spies]
        self.there = {name: [each for each in self.names if each not in without.get(name, ())] for name in honest}
        self.told: dict[str, UnmaskReply] = {
            name: federation.ask(name, self.about, self.masked, self.there[name]) for name in honest
        }

    def secret(self, of: str) -> bytes | None:
        """Of a self-mask, from all shares of it that anybody told."""
        found = {name: told.shares[of] for name, told in self.told.items() if of in told.shares}
        if of not in self.spies:
            found |= {
                name: spy.share(of, self.masked[of].shares, self.about, self.keys[of])
                for name, spy in self.spies.items()
            }
        chosen = sorted(found)[: self.exchange.threshold]
        if len(chosen) < self.exchange.threshold:
            return None
        points = [self.names.index(name) + 1 for name in chosen]
        value = shamir.Interpolation(points).value([int.from_bytes(found[name], "big") for name in chosen])
        secret = value.to_bytes(17, "big")[-16:]
        assert commitment(secret, self.about) == self.masked[of].commitment
        return secret

    def seeds(self, one: str, other: str) -> list[bytes]:
        """What the seed of the mask that two honest silos share may be, as far as either has told it."""
        found = []
        for teller, gone in ((one, other), (other, one)):
            if gone not in self.told[teller].seeds:
                continue
            there = self.there[teller]
            openers = [
                self.spies[name].opener(teller, self.about, there, self.keys[teller])
                if name in self.spies
                else self.told[name].openers.get(teller, b"")
                for name in there
                if name != teller
            ]
            found.append(lock_seed(self.told[teller].seeds[gone], lock_key(openers), gone))
        return found

    def sum_over(self, some: Iterable[str]) -> list[np.ndarray]:
        """What the sum over these honest silos may be; nothing where a mask is not known at all."""
        some = list(some)
        sums = [np.zeros(7, np.uint64)]
        for name in some:
            secret = self.secret(name)
            if secret is None:
                return []
            for values in sums:
                values += self.masked[name].values
                add_mask(values, self_seed(secret, self.about), -1)
            for other in (each for each in self.names if each not in some):
                spy = self.spies.get(other)
                seeds = [spy.seed(name, self.about, self.keys[name])] if spy else self.seeds(name, other)
                tried = []
                for values, seed in product(sums, seeds):
                    tried.append(values.copy())
                    add_mask(tried[-1], seed, -1 if other > name else 1)
                sums = tried
        return sums


def split(some: list[str], others: list[str]) -> dict[str, list[str]]:
    """Each of some and each of the others: one of the two is told that the other is gone, in turn."""
    without: dict[str, list[str]] = {name: [] for name in (*some, *others)}
    for (i, one), (j, other) in product(enumerate(some), enumerate(others)):
        teller, gone = (one, other) if (i + j) % 2 else (other, one)
        without[teller].append(gone)
    return without


@pytest.mark.parametrize(("count", "few"), [(4, 2), (10, 4)])
def test_silos_that_hear_of_other_survivors_open_no_sum_of_a_few(tmp_path: Path, count: int, few: int) -> None:
    """Everybody tells something, T shares of every self-mask of the few are told, and every mask that they share with
    the others: it must not be of use."""
    federation = Federation.of(tmp_path, count)
    some, others = list(federation.names[:few]), list(federation.names[few:])
    liar = Splitter(federation, 1, split(some, others), ())
    assert all(liar.secret(name) for name in some)
    assert all(liar.seeds(one, other) for one, other in product(some, others))
    for group in (some, others):
        found = liar.sum_over(group)
        assert found
        assert not any((values == federation.plain(group)).any() for values in found)


def test_whatever_survivors_three_honest_silos_hear_of_none_is_opened_alone(tmp_path: Path) -> None:
    """Of four, one is in the server's pay: all that the others can be made to tell, for every silo and every two."""
    federation = Federation.of(tmp_path, 4)
    *honest, spy = federation.names
    choices = [[None, *(other for other in federation.names if other != name)] for name in honest]
    tried = opened = 0
    for number, gone in enumerate(product(*choices)):
        without = {name: [other] for name, other in zip(honest, gone, strict=True) if other}
        liar = Splitter(federation, number, without, [spy])
        for group in [[name] for name in honest] + [[a, b] for a, b in product(honest, honest) if a < b]:
            tried += 1
            hidden = [name for name in honest if name not in group]
            same = all(liar.there[name] == [*group, spy] for name in group)
            found = any((values == federation.plain(group)).all() for values in liar.sum_over(group))
            opened += found
            # the sum over a threshold of survivors is what there is to be had, if all of them were told the same
            assert not found or (len(group) == 2 and same), (without, group, hidden)
        assert any((values == federation.plain(honest)).all() for values in liar.sum_over(honest)) or any(gone)
    assert tried == 64 * 6
    assert opened
