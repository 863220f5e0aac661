"""A silo's side of secure sums: it masks, and later helps to unmask, by rules that hold whatever the server asks.

All that a silo must not forget lies in one file of its state folder, written before an answer goes out. Without the
file it has another key, with which nobody masks: it can lose its memory only together with its part in the run. What it
cannot notice is an older copy of the file in its place.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from filelock import FileLock

from equifed.files import private_folder, read_sealed, write_sealed
from equifed.secure import shamir
from equifed.secure.exchange import Exchange, Masked, Refused, Told, commitment, lock, locked, self_seed
from equifed.secure.primitives import KEY, X25519PrivateKey, add_mask, agree, derive, packed, seal, unseal
from equifed.secure.rules import FEWEST, threshold
from equifed.words import quoted

FILE = "secret"
NEVER = -1
"""The number of the exchange before all others."""


class Silo:
    """One silo's secrets and memory of one run. Several processes may open the same folder."""

    def __init__(self, name: str, run: str, folder: Path) -> None:
        """Make the run's key, or find it in the folder, which is this silo's in this run alone."""
        self.name, self.run = name, run
        private_folder(folder)
        self._file = folder / FILE
        self._lock = FileLock(folder / f"{FILE}.lock", mode=0o600)
        with self._lock:
            if not self._file.exists():
                self._write(
                    {
                        "run": run,
                        "silo": name,
                        "key": secrets.token_hex(KEY),
                        "peers": {},  # the public keys of the others, as first seen
                        "vouched": None,  # whether a roster has vouched for them
                        "told": NEVER,  # the last exchange that it has helped to unmask
                        "unmasked": [],  # all of them
                        "attempts": {},  # of each exchange after that one, the last that it has masked, and with whom
                        "heard": {},  # what it was sent in each of them
                        "masked": None,  # the exchange masked last
                    }
                )
            self._key = self._read()["key"]
        self._private = X25519PrivateKey.from_private_bytes(bytes.fromhex(self._key))
        self.public: bytes = self._private.public_key().public_bytes_raw()
        self._pairs: dict[tuple[str, bytes], bytes] = {}

    @property
    def peers(self) -> frozenset[str]:
        """The silos that it has masked a reply together with: their keys never change."""
        with self._lock:
            return frozenset(self._read()["peers"])

    @property
    def vouched(self) -> bool | None:
        """Whether a roster has vouched for the others' keys; None where it knows none yet."""
        with self._lock:
            state = self._read()
            return state["vouched"] if state["peers"] else None

    def vouch(self, by_roster: bool) -> None:
        """Remember whether the keys that it is about to mask with, for the first time, have been checked."""
        with self._lock:
            self._write(self._read() | {"vouched": by_roster})

    def hear(self, number: int, sent: bytes) -> None:
        """Remember what was sent in an exchange, before any work is done on it, and refuse all else that is sent in it.
        Even whether a silo can answer at all says something of its rows: a server may ask that of one model per
        exchange, not of as many as it likes.

        sent: the SHA-256 of it. For exchanges whose replies are not masked, too.
        """
        with self._lock:
            state = self._read()
            if number <= state["told"]:
                _refuse("this silo has helped to unmask that exchange, or a later one, already")
            if state["heard"].setdefault(str(number), sent.hex()) != sent.hex():
                _refuse("something else was sent in that exchange before")
            self._write(state)

    def check_states(self, own: int, of_all: Iterable[int]) -> None:
        """Refuse to go on from the state after exchange `own` where another silo goes on from that after a later one,
        which this silo has helped to unmask, and so was in. A server could otherwise put all silos but one back to
        where their replies are zeros. of_all: what each silo goes on from, which all are told alike."""
        with self._lock:
            unmasked = {*self._read()["unmasked"]}
        if any(number > own and number in unmasked for number in of_all):
            _refuse("another silo goes on from an exchange that this one was in, too, and this one from an older one")

    def check(self, exchange: Exchange) -> None:
        """Refuse to take part, before any work is done; `mask` checks it again."""
        with self._lock:
            self._check(exchange, self._read())

    def mask(self, exchange: Exchange, layout: bytes, sent: bytes, numbers: np.ndarray) -> Masked:
        """The numbers [m], int64 or uint64, masked; see `Exchange.transcript` for layout and sent."""
        if numbers.ndim != 1 or numbers.dtype not in (np.int64, np.uint64):
            raise ValueError(f"only lists of 64-bit integers can be masked, not {numbers.dtype} {list(numbers.shape)}")
        secret = secrets.token_bytes(shamir.SECRET)
        with self._lock:
            state = self._read()
            self._check(exchange, state)
            transcript = exchange.transcript(layout, sent)
            shares = shamir.split(secret, exchange.threshold, len(exchange.names))
            dealt = dict(zip(exchange.names, shares, strict=True))
            state["peers"] |= {name: key.hex() for name, key in self._others(exchange)}
            state["attempts"][str(exchange.number)] = exchange.attempt, exchange.names
            state["masked"] = {
                "transcript": transcript.hex(),
                "number": exchange.number,
                "names": exchange.names,
                "planned": exchange.planned,
                "share": dealt[self.name].hex(),
                "survivors": None,  # whom it has helped to unmask
            }
            self._write(state)
        values = numbers.astype(np.uint64)
        add_mask(values, self_seed(secret, transcript), 1)
        sealed = {}
        for name, key in self._others(exchange):
            add_mask(values, self._seed(name, key, transcript), 1 if name > self.name else -1)
            about = packed(self.name, name, transcript)
            sealed[name] = seal(self._share_key(name, key, about), dealt[name], about)
        return Masked(values, commitment(secret, transcript), sealed)

    def tell(self, transcript: bytes, survivors: Sequence[str], sealed: Mapping[str, bytes]) -> Told:
        """What the server needs for the sum over the survivors, and for no other one. sealed: the shares that the other
        survivors have sealed for this silo; one that is missing or does not open is left out of the answer."""
        with self._lock:
            state = self._read()
            masked = state["masked"]
            if masked is None or masked["transcript"] != transcript.hex():
                _refuse("it has masked nothing for this transcript, or has masked anew since")
            names, planned, there = masked["names"], masked["planned"], sorted(survivors)
            if len(set(there)) < len(there) or not set(there) <= set(names):
                _refuse("those who are said to be there are not silos of the exchange, once each")
            if self.name not in there:
                _refuse("the sum is to be without this silo")
            needed = max(threshold(planned), FEWEST)
            if len(there) < needed:
                _refuse(f"the sum is to be over {len(there)} of {planned} silos; at least {needed} must be in it")
            if masked["survivors"] not in (None, there):
                _refuse("it has helped to unmask this exchange for other silos")
            if masked["survivors"] is None:
                masked["survivors"] = there
                state["told"] = masked["number"]
                state["unmasked"].append(masked["number"])
                for kept in ("attempts", "heard"):
                    state[kept] = {
                        number: last for number, last in state[kept].items() if int(number) > masked["number"]
                    }
                self._write(state)
        peers = {name: bytes.fromhex(key) for name, key in state["peers"].items()}
        shares = {self.name: bytes.fromhex(masked["share"])}
        for name in (name for name in there if name != self.name and name in sealed):
            about = packed(name, self.name, transcript)
            share = unseal(self._share_key(name, peers[name], about), sealed[name], about)
            if share is not None:
                shares[name] = share
        gone, others = sorted(set(names) - set(there)), [name for name in there if name != self.name]
        if not gone:
            return Told(shares, {}, {})

        def opener(of: str, by: str) -> bytes:
            pair = self._pair(other := of if by == self.name else by, peers[other])
            return derive(pair, "opener", of, by, transcript, there)

        key = lock([opener(self.name, name) for name in others])
        seeds = {name: locked(self._seed(name, peers[name], transcript), key, name) for name in gone}
        return Told(shares, seeds, {name: opener(name, self.name) for name in others})

    # -- rules ---------------------------------------------------------------------------------------------------------

    def _check(self, exchange: Exchange, state: dict[str, Any]) -> None:
        names, keys = exchange.names, exchange.keys
        if exchange.run != self.run:
            _refuse(f"the exchange is of another run, {quoted(exchange.run)}")
        if not all(isinstance(each, int) and 0 <= each < 2**63 for each in (exchange.number, exchange.attempt)):
            _refuse("the exchange or the attempt has no number")
        if len(names) < FEWEST:
            _refuse(f"the exchange has {len(names)} silos, and a sum over fewer than {FEWEST} hides nobody")
        if not exchange.threshold <= len(names) <= exchange.planned:
            _refuse(f"the cohort has {len(names)} silos of {exchange.planned}, and {exchange.threshold} must help")
        if list(names) != sorted(set(names)):
            _refuse("the silos of the exchange are not sorted, or one is there twice")
        if len(keys) != len(names) or len(set(keys)) < len(keys) or any(len(key) != KEY for key in keys):
            _refuse("the silos of the exchange do not have a key each")
        shown = dict(zip(names, keys, strict=True))
        if self.name not in shown:
            _refuse("the exchange is not for this silo")
        if shown[self.name] != self.public:
            _refuse("the server shows another key of this silo than its own: its state folder was lost, or it lies")
        known = state["peers"]
        owners = {key: name for name, key in known.items()}
        for name, key in self._others(exchange):
            if known.get(name, key.hex()) != key.hex() or owners.get(key.hex(), name) != name:
                _refuse(f"the server shows another key of {quoted(name)} than before")
        if exchange.number <= state["told"]:
            _refuse("this silo has helped to unmask that exchange, or a later one, already")
        last, cohort = state["attempts"].get(str(exchange.number), (NEVER, names))
        if exchange.attempt <= last:
            _refuse("this silo has masked that exchange already; it can be asked by a new attempt")
        if list(cohort) != list(names):
            _refuse("the exchange was of other silos before")
        for name, key in self._others(exchange):
            self._pair(name, key)

    def _others(self, exchange: Exchange) -> list[tuple[str, bytes]]:
        pairs = zip(exchange.names, exchange.keys, strict=True)
        return [(name, key) for name, key in pairs if name != self.name]

    # -- keys ----------------------------------------------------------------------------------------------------------

    def _pair(self, name: str, public: bytes) -> bytes:
        """The secret that this silo shares with another in this run. It never leaves the process."""
        if (name, public) not in self._pairs:
            try:
                agreed = agree(self._private, public)
            except ValueError:
                _refuse(f"the key of {quoted(name)} is one that hides nothing")
            ends = sorted([(self.name, self.public), (name, public)])
            self._pairs[name, public] = derive(
                agreed, "pair", self.run, [end[0] for end in ends], [end[1] for end in ends]
            )
        return self._pairs[name, public]

    def _seed(self, name: str, public: bytes, transcript: bytes) -> bytes:
        """Of the mask that this silo has with another for this transcript."""
        return derive(self._pair(name, public), "mask", transcript)

    def _share_key(self, name: str, public: bytes, about: bytes) -> bytes:
        """For the one share that goes this way for this transcript; about: from whom, to whom, transcript."""
        return derive(self._pair(name, public), "share", about)

    # -- memory --------------------------------------------------------------------------------------------------------

    def _read(self) -> dict[str, Any]:
        try:
            state = read_sealed(self._file)
        except (OSError, ValueError):
            _refuse(f"the file {FILE!r} of its state folder is damaged; the silo can take part in the next run")
        if (state["run"], state["silo"]) != (self.run, self.name) or state["key"] != getattr(
            self, "_key", state["key"]
        ):
            _refuse(f"the file {FILE!r} of its state folder is of another run or silo")
        return state

    def _write(self, state: dict[str, Any]) -> None:
        write_sealed(self._file, state, mode=0o600)


def _refuse(why: str) -> NoReturn:
    raise Refused(f"cannot be made: {why}")
