"""Exchanges of a few silos in one process, for the tests of secure sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from equifed.secure import Exchange, Masked, Silo, Total, UnmaskReply, total

RUN = "20260101-000000-fedavg-0000"
LAYOUT, SENT = b"update: 7 numbers", b"what all got alike"


@dataclass
class Federation:
    """Silos with a folder each."""

    place: Path
    names: tuple[str, ...]
    silos: dict[str, Silo] = field(init=False)

    def __post_init__(self) -> None:
        self.silos = {name: self.start(name) for name in self.names}

    @classmethod
    def of(cls, place: Path, count: int) -> Federation:
        return cls(place, tuple(f"silo-{index:02}" for index in range(count)))

    def start(self, name: str) -> Silo:
        """The silo as a new process would have it."""
        return Silo(name, RUN, self.place / name)

    def restart(self) -> None:
        self.silos = {name: self.start(name) for name in self.names}

    def exchange(
        self, number: int = 1, attempt: int = 1, names: Sequence[str] | None = None, planned: int | None = None
    ) -> Exchange:
        """planned: where it is for more silos than these."""
        names = tuple(names or self.names)
        keys = tuple(self.silos[name].public for name in names)
        return Exchange(RUN, number, attempt, names, keys, planned or len(names))

    def numbers(self, name: str, length: int = 7) -> np.ndarray:
        """What a silo would send, of all sizes that 64 bits have."""
        rng = np.random.default_rng([*name.encode()])
        return rng.integers(-(2**63), 2**63, length) >> rng.integers(0, 64, length)

    def mask(self, exchange: Exchange, gone: Iterable[str] = ()) -> dict[str, Masked]:
        there = [name for name in exchange.names if name not in gone]
        return {name: self.silos[name].mask(exchange, LAYOUT, SENT, self.numbers(name)) for name in there}

    def tell(self, exchange: Exchange, masked: dict[str, Masked], late: Iterable[str] = ()) -> dict[str, UnmaskReply]:
        answering = [name for name in masked if name not in late]
        return {name: self.ask(name, transcript(exchange), masked, masked) for name in answering}

    def ask(self, name: str, about: bytes, masked: dict[str, Masked], survivors: Iterable[str]) -> UnmaskReply:
        """One silo's answer to `unmask`."""
        sealed = {other: masked[other].shares[name] for other in survivors if other != name and other in masked}
        return self.silos[name].unmask(about, tuple(survivors), sealed)

    def sum(self, exchange: Exchange, gone: Iterable[str] = (), late: Iterable[str] = ()) -> Total:
        masked = self.mask(exchange, gone)
        return total(exchange, transcript(exchange), masked, self.tell(exchange, masked, late))

    def plain(self, names: Iterable[str]) -> np.ndarray:
        """The sum of Python's integers, modulo 2^64."""
        columns = zip(*(self.numbers(name).tolist() for name in names), strict=True)
        return np.array([sum(column) % 2**64 for column in columns], np.uint64)


def transcript(exchange: Exchange) -> bytes:
    return exchange.transcript(LAYOUT, SENT)
