"""A silo's side of secure aggregation: it masks, and later helps to unmask, by rules that hold whatever the server
asks.

Everything that a silo must remember is in one file of its state folder, written before a reply is sent. Without the
file it has a new key, which the other silos refuse: if it loses its memory, it cannot continue in the run. It cannot
detect that the file was replaced by an older copy.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from filelock import FileLock

from equifed.files import make_private_folder, read_sealed, write_sealed
from equifed.secure import shamir
from equifed.secure.exchange import Exchange, Masked, Refused, UnmaskReply, commitment, lock_key, lock_seed, self_seed
from equifed.secure.primitives import KEY, X25519PrivateKey, add_mask, agree, derive, pack, seal, unseal
from equifed.secure.rules import FEWEST, threshold
from equifed.words import quoted

FILE = "secret"
NEVER = -1
"""Number of the exchange before all others."""


class Silo:
    """One silo's secrets and memory of one run. Several processes may open the same folder."""

    def __init__(self, name: str, run: str, folder: Path) -> None:
        """Create the run's key, or read it from the folder, which belongs to this silo and run only."""
        self.name, self.run = name, run
        make_private_folder(folder)
        self._file = folder / FILE
        self._lock = FileLock(folder / f"{FILE}.lock", mode=0o600)
        with self._lock:
            if not self._file.exists():
                self._write(
                    {
                        "run": run,
                        "silo": name,
                        "key": secrets.token_hex(KEY),
                        "peers": {},  # public keys of the other silos, as first seen
                        "vouched": None,  # true if a roster has verified them
                        "told": NEVER,  # last exchange that this silo has helped to unmask
                        "unmasked": [],  # all exchanges that it has helped to unmask
                        "attempts": {},  # last masked attempt of each later exchange, and its silos
                        "heard": {},  # digest of the message received in each of them
                        "masked": None,  # last masked exchange
                    }
                )
            self._key = self._read()["key"]
        self._private = X25519PrivateKey.from_private_bytes(bytes.fromhex(self._key))
        self.public: bytes = self._private.public_key().public_bytes_raw()
        self._pairs: dict[tuple[str, bytes], bytes] = {}

    @property
    def peers(self) -> frozenset[str]:
        """The silos with which it has masked a reply: their keys never change."""
        with self._lock:
            return frozenset(self._read()["peers"])

    @property
    def vouched(self) -> bool | None:
        """True if a roster has verified the other silos' keys; None while it has none."""
        with self._lock:
            state = self._read()
            return state["vouched"] if state["peers"] else None

    def record_vouched(self, by_roster: bool) -> None:
        """Store, before the first masking, if the other silos' keys have been verified by a roster."""
        with self._lock:
            self._write(self._read() | {"vouched": by_roster})

    def record_message(self, number: int, sent: bytes) -> None:
        """Store the digest of an exchange's message before any work, and refuse any other message in that exchange.
        Even a silo's ability to reply discloses something about its rows: a server may test it with one model per
        exchange, not with many.

        sent: the SHA-256 of the message. Also used for exchanges with unmasked replies.
        """
        with self._lock:
            state = self._read()
            if number <= state["told"]:
                _refuse("this silo has already helped to unmask that exchange or a later one")
            if state["heard"].setdefault(str(number), sent.hex()) != sent.hex():
                _refuse("another message was sent in that exchange before")
            self._write(state)

    def check_states(self, own: int, of_all: Iterable[int]) -> None:
        """Refuse to continue from the state after exchange `own` if another silo continues from that after a later one
        that this silo has helped to unmask. Otherwise a server could reset all silos but one to a state with zero
        replies. of_all: the exchange from which each silo continues, the same list for all silos."""
        with self._lock:
            unmasked = {*self._read()["unmasked"]}
        if any(number > own and number in unmasked for number in of_all):
            _refuse("another silo continues from an exchange that included this silo, and this silo from an older one")

    def check(self, exchange: Exchange) -> None:
        """Raise Refused, before any work, if the silo cannot take part; `mask` checks it again."""
        with self._lock:
            self._check(exchange, self._read())

    def mask(self, exchange: Exchange, layout: bytes, sent: bytes, numbers: np.ndarray) -> Masked:
        """Mask the numbers [m], int64 or uint64; see `Exchange.transcript` for layout and sent."""
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
                "survivors": None,  # silos of the sum that it has helped to unmask
            }
            self._write(state)
        values = numbers.astype(np.uint64)
        add_mask(values, self_seed(secret, transcript), 1)
        sealed = {}
        for name, key in self._others(exchange):
            add_mask(values, self._seed(name, key, transcript), 1 if name > self.name else -1)
            about = pack(self.name, name, transcript)
            sealed[name] = seal(self._share_key(name, key, about), dealt[name], about)
        return Masked(values, commitment(secret, transcript), sealed)

    def unmask(self, transcript: bytes, survivors: Sequence[str], sealed: Mapping[str, bytes]) -> UnmaskReply:
        """Return what the server needs for the sum over the survivors, and for no other sum. sealed: the other
        survivors' shares sealed for this silo; missing or invalid ones are left out of the reply."""
        # all checks precede the write, and the write precedes the reply: a silo never unmasks two sums of an exchange
        with self._lock:
            state = self._read()
            masked = state["masked"]
            if masked is None or masked["transcript"] != transcript.hex():
                _refuse("this silo has not masked a reply for this transcript, or has masked again since")
            names, planned, there = masked["names"], masked["planned"], sorted(survivors)
            if len(set(there)) < len(there) or not set(there) <= set(names):
                _refuse("the survivors are not distinct silos of the exchange")
            if self.name not in there:
                _refuse("the sum would not include this silo")
            needed = max(threshold(planned), FEWEST)
            if len(there) < needed:
                _refuse(f"the sum would be over {len(there)} of {planned} silos; at least {needed} are required")
            if masked["survivors"] not in (None, there):
                _refuse("this silo has helped to unmask this exchange for other survivors")
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
            about = pack(name, self.name, transcript)
            share = unseal(self._share_key(name, peers[name], about), sealed[name], about)
            if share is not None:
                shares[name] = share
        gone, others = sorted(set(names) - set(there)), [name for name in there if name != self.name]
        if not gone:
            return UnmaskReply(shares, {}, {})

        def opener(of: str, by: str) -> bytes:
            pair = self._pair(other := of if by == self.name else by, peers[other])
            return derive(pair, "opener", of, by, transcript, there)

        key = lock_key([opener(self.name, name) for name in others])
        seeds = {name: lock_seed(self._seed(name, peers[name], transcript), key, name) for name in gone}
        return UnmaskReply(shares, seeds, {name: opener(name, self.name) for name in others})

    # -- rules ---------------------------------------------------------------------------------------------------------

    def _check(self, exchange: Exchange, state: dict[str, Any]) -> None:
        names, keys = exchange.names, exchange.keys
        if exchange.run != self.run:
            _refuse(f"the exchange belongs to another run, {quoted(exchange.run)}")
        if not all(isinstance(each, int) and 0 <= each < 2**63 for each in (exchange.number, exchange.attempt)):
            _refuse("the exchange or the attempt has no number")
        if len(names) < FEWEST:
            _refuse(f"the exchange has {len(names)} silos, and a sum over fewer than {FEWEST} hides no silo's reply")
        if not exchange.threshold <= len(names) <= exchange.planned:
            _refuse(f"the cohort has {len(names)} silos of {exchange.planned}, and {exchange.threshold} must help")
        if list(names) != sorted(set(names)):
            _refuse("the silos of the exchange are not sorted, or are not distinct")
        if len(keys) != len(names) or len(set(keys)) < len(keys) or any(len(key) != KEY for key in keys):
            _refuse("the silos of the exchange do not have one key each")
        shown = dict(zip(names, keys, strict=True))
        if self.name not in shown:
            _refuse("the exchange does not include this silo")
        if shown[self.name] != self.public:
            _refuse("the server has another key for this silo: its state folder was lost, or the server is malicious")
        known = state["peers"]
        owners = {key: name for name, key in known.items()}
        for name, key in self._others(exchange):
            if known.get(name, key.hex()) != key.hex() or owners.get(key.hex(), name) != name:
                _refuse(f"the server sent another key of {quoted(name)} than before")
        if exchange.number <= state["told"]:
            _refuse("this silo has already helped to unmask that exchange or a later one")
        last, cohort = state["attempts"].get(str(exchange.number), (NEVER, names))
        if exchange.attempt <= last:
            _refuse("this silo has already masked that exchange; the server must use a new attempt")
        if list(cohort) != list(names):
            _refuse("the exchange had other silos before")
        for name, key in self._others(exchange):
            self._pair(name, key)

    def _others(self, exchange: Exchange) -> list[tuple[str, bytes]]:
        pairs = zip(exchange.names, exchange.keys, strict=True)
        return [(name, key) for name, key in pairs if name != self.name]

    # -- keys ----------------------------------------------------------------------------------------------------------

    def _pair(self, name: str, public: bytes) -> bytes:
        """Return the secret that this silo shares with another one in this run. It never leaves the process."""
        if (name, public) not in self._pairs:
            try:
                agreed = agree(self._private, public)
            except ValueError:
                _refuse(f"the key of {quoted(name)} is unsafe")
            ends = sorted([(self.name, self.public), (name, public)])
            self._pairs[name, public] = derive(
                agreed, "pair", self.run, [end[0] for end in ends], [end[1] for end in ends]
            )
        return self._pairs[name, public]

    def _seed(self, name: str, public: bytes, transcript: bytes) -> bytes:
        """Return the seed of this silo's mask with another one for this transcript."""
        return derive(self._pair(name, public), "mask", transcript)

    def _share_key(self, name: str, public: bytes, about: bytes) -> bytes:
        """Return the key for the share sent between two silos for this transcript; about: sender, receiver,
        transcript."""
        return derive(self._pair(name, public), "share", about)

    # -- memory --------------------------------------------------------------------------------------------------------

    def _read(self) -> dict[str, Any]:
        try:
            state = read_sealed(self._file)
        except (OSError, ValueError):
            _refuse(f"the file {FILE!r} of its state folder is damaged; the silo can join the next run")
        if (state["run"], state["silo"]) != (self.run, self.name) or state["key"] != getattr(
            self, "_key", state["key"]
        ):
            _refuse(f"the file {FILE!r} of its state folder belongs to another run or silo")
        return state

    def _write(self, state: dict[str, Any]) -> None:
        write_sealed(self._file, state, mode=0o600)


def _refuse(why: str) -> NoReturn:
    raise Refused(f"cannot be made: {why}")
