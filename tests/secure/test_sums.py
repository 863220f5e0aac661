"""Masked sums are unmasked sums, bit for bit, for whoever may be gone; whenever more are gone there is none."""

from __future__ import annotations

import hashlib
import runpy
import secrets
import subprocess
import sys
import threading
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from store.faults import Fake

from equifed.files import read_sealed
from equifed.secure import (
    Masked,
    NotSummed,
    Refused,
    UnmaskReply,
    find_obstacle,
    masked_bytes,
    threshold,
    total,
    unmask_bytes,
)
from equifed.secure.exchange import lock_key, lock_seed
from secure.sums import LAYOUT, RUN, SENT, Federation, transcript
from secure.test_primitives import hkdf, key_stream


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are what is tested here; `test_silo.py` has the state folders."""
    monkeypatch.setattr("equifed.files.os", Fake(fsync=lambda handle: None))


# -- who may be gone ---------------------------------------------------------------------------------------------------


def allowed(count: int, gone: int, late: int) -> bool:
    """The table of the protocol, in its words."""
    needed = 2 * count // 3 + 1
    if gone == 0:
        return count - late >= needed  # the sum is over all; enough of them have told
    return count - gone >= needed and late == 0  # each of the others must have told


def check_pattern(federation: Federation, number: int, gone: list[str], late: list[str]) -> bool:
    """Whether there is a sum; it is right if there is, and nothing is told that could be one if there is not."""
    count, exchange = len(federation.names), federation.exchange(number)
    there = [name for name in federation.names if name not in gone]
    may = allowed(count, len(gone), len(late))
    assert (find_obstacle(count, len(there), len(there) - len(late)) is None) == may
    masked = federation.mask(exchange, gone)
    if may:
        result = total(exchange, transcript(exchange), masked, federation.tell(exchange, masked, late))
        np.testing.assert_array_equal(result.numbers, federation.plain(there))
        assert result.faulty == ()
        return True
    told: dict[str, UnmaskReply] = {}
    if len(there) < 2 * count // 3 + 1:
        for name in there:
            with pytest.raises(Refused, match="are required"):
                federation.ask(name, transcript(exchange), masked, there)
    else:
        told = federation.tell(exchange, masked, late)
    with pytest.raises(NotSummed):
        total(exchange, transcript(exchange), masked, told)
    return False


@pytest.mark.parametrize(("count", "possible"), [(3, 1), (4, 9), (5, 11)])
@pytest.mark.sample(2)
def test_every_pattern_of_who_is_gone_when(tmp_path: Path, count: int, possible: int) -> None:
    """Each silo masks and tells, only masks, or does nothing."""
    federation = Federation.of(tmp_path, count)
    summed = 0
    for number, pattern in enumerate(product(("there", "late", "gone"), repeat=count)):
        did = dict(zip(federation.names, pattern, strict=True))
        gone, late = ([name for name, when in did.items() if when == what] for what in ("gone", "late"))
        summed += check_pattern(federation, number, gone, late)
    assert summed == possible


@settings(max_examples=15)
@given(st.integers(3, 50), st.data())
def test_sums_of_up_to_50_silos(tmp_path_factory: pytest.TempPathFactory, count: int, data: st.DataObject) -> None:
    """Around the numbers where it is decided whether there is a sum."""
    spare = count - threshold(count)
    gone = data.draw(st.one_of(st.just(0), st.integers(0, spare), st.integers(0, spare + 2)))
    late = data.draw(st.one_of(st.just(0), st.integers(0, spare + 2)).map(lambda late: min(late, count - gone)))
    names = data.draw(st.permutations([f"silo-{index:02}" for index in range(count)]))
    federation = Federation.of(tmp_path_factory.mktemp("silos"), count)
    check_pattern(federation, 1, names[:gone], names[gone : gone + late])


def test_thresholds() -> None:
    expected = {3: 3, 4: 3, 5: 4, 6: 5, 8: 6, 10: 7, 50: 34, 500: 334}
    assert {n: threshold(n) for n in expected} == expected
    assert find_obstacle(2, 2, 2) is not None


def test_a_masked_reply_that_comes_late_is_of_no_use(tmp_path: Path) -> None:
    """Whoever is said to be gone has its pairwise masks told; its self-mask still hides it."""
    federation = Federation.of(tmp_path, 5)
    exchange = federation.exchange()
    masked = federation.mask(exchange)
    late = masked.pop("silo-04")
    told = federation.tell(exchange, masked)
    values = late.values.copy()
    for name, answer in told.items():
        assert "silo-04" not in answer.shares
        key = lock_key([told[other].openers[name] for other in told if other != name])
        seed = lock_seed(answer.seeds["silo-04"], key, "silo-04")
        values += np.frombuffer(key_stream(seed, values.nbytes), "<u8")  # all sort before silo-04
    own = federation.numbers("silo-04").astype(np.uint64)
    assert (values != own).all()
    with pytest.raises(NotSummed):
        total(exchange, transcript(exchange), masked | {"silo-04": late}, told)


# -- one exchange, recomputed ------------------------------------------------------------------------------------------


def framed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def test_one_exchange_recomputed_step_by_step(tmp_path: Path) -> None:
    """By other code: the primitives called by hand, HKDF and key streams as their standards say, Python's integers."""
    federation = Federation.of(tmp_path, 4)
    names = [name.encode() for name in federation.names]
    private = [bytes.fromhex(read_sealed(tmp_path / name / "secret")["key"]) for name in federation.names]
    keys = [X25519PrivateKey.from_private_bytes(key) for key in private]
    public = [key.public_key().public_bytes_raw() for key in keys]

    exchange = federation.exchange(number=12, attempt=3)
    about = hashlib.sha256(
        framed(
            *(b"equifed secure sum", RUN.encode(), (12).to_bytes(8, "big"), (3).to_bytes(8, "big")),
            *((4).to_bytes(8, "big"), framed(*names), framed(*public), LAYOUT, SENT),
        )
    ).digest()
    assert transcript(exchange) == about

    def derive(secret: bytes, *info: bytes) -> bytes:
        return hkdf(secret, b"", framed(b"equifed", *info), 32)

    def pair(one: int, other: int) -> bytes:
        agreed = keys[one].exchange(X25519PublicKey.from_public_bytes(public[other]))
        low, high = sorted((one, other))
        return derive(agreed, b"pair", RUN.encode(), framed(names[low], names[high]), framed(public[low], public[high]))

    def stream(seed: bytes) -> list[int]:
        content = key_stream(seed, 7 * 8)
        return [int.from_bytes(content[place : place + 8], "little") for place in range(0, 56, 8)]

    masked = federation.mask(exchange, gone=["silo-03"])
    told = federation.tell(exchange, masked)
    prime = 2**130 - 5
    for here, name in enumerate(federation.names[:3]):
        # the shares that travel sealed are those that are told
        shares = [told[name].shares[name]]
        for there, other in enumerate(federation.names):
            if other != name:
                way = framed(names[here], names[there], about)
                sealed = masked[name].shares[other]
                key = derive(pair(there, here), b"share", way)
                shares.insert(there, AESGCM(key).decrypt(sealed[:12], sealed[12:], way))
        assert [told[other].shares[name] for other in federation.names[:3]] == shares[:3]
        # 3 of 4 give the secret, by Lagrange's formula at 0 for the points 1, 2, 3: 3, -3, 1; or 2, 3, 4: 6, -8, 3
        a, b, c, d = (int.from_bytes(share, "big") for share in shares)
        secret = (3 * a - 3 * b + c) % prime
        assert secret == (6 * b - 8 * c + 3 * d) % prime
        own = secret.to_bytes(16, "big")
        assert masked[name].commitment == derive(own, b"commit", about)
        # the reply
        values = [
            sum(pair)
            for pair in zip(federation.numbers(name).tolist(), stream(derive(own, b"self", about)), strict=True)
        ]
        for there in range(4):
            if there != here:
                seed = derive(pair(here, there), b"mask", about)
                sign = 1 if there > here else -1
                values = [value + sign * mask for value, mask in zip(values, stream(seed), strict=True)]
        assert masked[name].values.tolist() == [value % 2**64 for value in values]
        # the seed, under what all other survivors must give away for the same survivors
        others = [there for there in range(3) if there != here]
        openers = {
            there: derive(pair(here, there), b"opener", names[here], names[there], about, framed(*names[:3]))
            for there in others
        }
        assert {there: told[federation.names[there]].openers[name] for there in others} == openers
        pad = derive(derive(b"".join(openers.values()), b"lock"), b"locked", names[3])
        seed = derive(pair(3, here), b"mask", about)
        assert told[name].seeds == {"silo-03": bytes(one ^ other for one, other in zip(seed, pad, strict=True))}
    np.testing.assert_array_equal(total(exchange, about, masked, told).numbers, federation.plain(federation.names[:3]))


def test_silos_that_were_told_different_things_cannot_be_unmasked(tmp_path: Path) -> None:
    """Another model, layout, cohort, attempt or exchange: another transcript, for which a silo has masked nothing."""
    federation = Federation.of(tmp_path, 4)
    exchange = federation.exchange()
    about = transcript(exchange)
    others = {
        exchange.transcript(LAYOUT, b"another model"),
        exchange.transcript(b"another layout", SENT),
        transcript(exchange._replace(number=2)),
        transcript(exchange._replace(attempt=2)),
        transcript(exchange._replace(run="another")),
        transcript(exchange._replace(names=("silo-0", *exchange.names[1:]))),
        transcript(exchange._replace(keys=(bytes(32), *exchange.keys[1:]))),
        transcript(federation.exchange(names=federation.names[:3])),
        exchange.transcript(LAYOUT + SENT, b""),
    }
    assert len(others | {about}) == 10
    masked = federation.mask(exchange, gone=["silo-03"])
    masked["silo-03"] = federation.silos["silo-03"].mask(
        exchange, LAYOUT, b"another model", federation.numbers("silo-03")
    )
    for name in federation.names[:3]:
        federation.ask(name, about, masked, federation.names)
    with pytest.raises(Refused, match="not masked a reply"):
        federation.ask("silo-03", about, masked, federation.names)
    told = {name: federation.ask(name, about, masked, federation.names) for name in federation.names[:3]}
    with pytest.raises(NotSummed, match="silo-03"):
        total(exchange, about, masked, told)


# -- what a masked reply looks like ------------------------------------------------------------------------------------


def test_masked_values_look_uniform_and_two_attempts_share_nothing(tmp_path: Path) -> None:
    federation = Federation.of(tmp_path, 3)
    zeros = np.zeros(20_000, np.int64)
    replies = [
        federation.silos["silo-01"].mask(federation.exchange(1, attempt), LAYOUT, SENT, zeros).values
        for attempt in (1, 2)
    ]
    for values in (*replies, replies[0] - replies[1], replies[0] ^ replies[1]):
        for place in range(8):
            counts = np.bincount((values >> np.uint64(8 * place)).astype(np.uint8), minlength=256)
            assert stats.chisquare(counts).pvalue > 1e-6
        assert len(set(values.tolist())) == len(values)
    assert not set(replies[0].tolist()) & set(replies[1].tolist())
    assert abs(stats.spearmanr(replies[0], replies[1]).statistic) < 0.04


# -- lies and false answers --------------------------------------------------------------------------------------------


def changed(share: bytes) -> bytes:
    # at random: errors of 1 at two silos can cancel each other in what is rebuilt
    return (int.from_bytes(share, "big") ^ 1 + secrets.randbelow(2**64)).to_bytes(17, "big")


@pytest.mark.parametrize("count", [5, 10, 30])
def test_who_tells_false_shares_is_named_and_left_out(tmp_path: Path, count: int) -> None:
    federation = Federation.of(tmp_path, count)
    for number, liars in enumerate([{0}, {count - 1}, {1, 2}][: 2 if count < 10 else 3]):
        exchange = federation.exchange(number)
        masked = federation.mask(exchange)
        told = federation.tell(exchange, masked)
        names = {federation.names[liar] for liar in liars}
        for name in names:
            told[name] = UnmaskReply({other: changed(share) for other, share in told[name].shares.items()}, {}, {})
        result = total(exchange, transcript(exchange), masked, told)
        np.testing.assert_array_equal(result.numbers, federation.plain(federation.names))
        assert set(result.faulty) == names


def test_one_false_share_among_true_ones_is_seen(tmp_path: Path) -> None:
    federation = Federation.of(tmp_path, 10)
    exchange = federation.exchange()
    masked = federation.mask(exchange)
    for liar in ("silo-00", "silo-09"):
        told = federation.tell(exchange, masked)
        told[liar].shares["silo-04"] = changed(told[liar].shares["silo-04"])
        result = total(exchange, transcript(exchange), masked, told)
        np.testing.assert_array_equal(result.numbers, federation.plain(federation.names))
        assert result.faulty == (liar,)


def test_a_silo_that_deals_false_shares_is_named_instead_of_those_who_pass_them_on(tmp_path: Path) -> None:
    federation = Federation.of(tmp_path, 10)
    exchange = federation.exchange()
    masked = federation.mask(exchange)
    told = federation.tell(exchange, masked)
    for name in ("silo-01", "silo-08"):
        told[name].shares["silo-04"] = changed(told[name].shares["silo-04"])
    result = total(exchange, transcript(exchange), masked, told)
    np.testing.assert_array_equal(result.numbers, federation.plain(federation.names))
    assert result.faulty == ("silo-04",)


def test_false_shares_beyond_what_can_be_spared(tmp_path: Path) -> None:
    federation = Federation.of(tmp_path, 5)
    exchange = federation.exchange()
    masked = federation.mask(exchange)
    told = federation.tell(exchange, masked)
    for liar in ("silo-01", "silo-03"):
        told[liar].shares["silo-04"] = changed(told[liar].shares["silo-04"])
    with pytest.raises(NotSummed, match="mask of silo-04 could not be rebuilt from the 5 shares"):
        total(exchange, transcript(exchange), masked, told)
    told = federation.tell(exchange, masked)
    told["silo-01"].shares["silo-04"] = changed(told["silo-01"].shares["silo-04"])
    with pytest.raises(NotSummed, match="mask of silo-04"):  # four of five came: none to spare
        total(exchange, transcript(exchange), masked, {name: told[name] for name in federation.names[:4]})


def test_a_false_commitment(tmp_path: Path) -> None:
    federation = Federation.of(tmp_path, 5)
    exchange = federation.exchange()
    masked = federation.mask(exchange)
    masked["silo-00"] = masked["silo-00"]._replace(commitment=bytes(32))
    with pytest.raises(NotSummed, match="mask of silo-00"):
        total(exchange, transcript(exchange), masked, federation.tell(exchange, masked))


def test_what_does_not_open_or_is_no_share_is_not_used(tmp_path: Path) -> None:
    federation = Federation.of(tmp_path, 5)
    exchange = federation.exchange()
    masked = federation.mask(exchange)
    masked["silo-03"].shares["silo-00"] = bytes(45)
    told = federation.tell(exchange, masked)
    assert "silo-03" not in told["silo-00"].shares
    for nothing in (b"", bytes(16), b"\xff" * 17):
        told["silo-01"].shares["silo-04"] = nothing
        result = total(exchange, transcript(exchange), masked, told)
        np.testing.assert_array_equal(result.numbers, federation.plain(federation.names))
        assert result.faulty == ()


@pytest.mark.parametrize(
    "values",
    [np.zeros(6, np.uint64), np.zeros(8, np.uint64), np.zeros(7, np.int64), np.zeros((7, 1), np.uint64), [0] * 7, 0],
    ids=["short", "long", "signed", "table", "list", "number"],
)
def test_values_that_do_not_fit(tmp_path: Path, values: object) -> None:
    federation = Federation.of(tmp_path, 4)
    exchange = federation.exchange()
    masked = federation.mask(exchange)
    told = federation.tell(exchange, masked)
    masked["silo-02"] = masked["silo-02"]._replace(values=values)
    with pytest.raises(NotSummed, match="the replies of silo-02 do not fit"):
        total(exchange, transcript(exchange), masked, told)


def test_seeds_and_replies_that_do_not_fit(tmp_path: Path) -> None:
    federation = Federation.of(tmp_path, 4)
    exchange = federation.exchange()
    masked = federation.mask(exchange, gone=["silo-03"])
    told = federation.tell(exchange, masked)
    about = transcript(exchange)
    for seeds in ({}, {"silo-03": bytes(31)}, {"silo-00": bytes(32)}):
        with pytest.raises(NotSummed, match="the replies of silo-01 do not fit"):
            total(exchange, about, masked, told | {"silo-01": told["silo-01"]._replace(seeds=seeds)})
    for openers in ({}, {"silo-00": bytes(32)}, {"silo-00": bytes(32), "silo-02": bytes(33)}):
        with pytest.raises(NotSummed, match="the replies of silo-01 do not fit"):
            total(exchange, about, masked, told | {"silo-01": told["silo-01"]._replace(openers=openers)})
    with pytest.raises(NotSummed, match="stranger"):
        total(exchange, about, masked | {"stranger": masked["silo-00"]}, told)
    some = {name: told[name] for name in ("silo-00", "silo-01")}
    with pytest.raises(NotSummed, match="2 of 3 clients helped"):  # one who is not in the sum does not count
        total(exchange, about, masked, some | {"silo-03": UnmaskReply({}, {}, {})})
    result = total(exchange, about, masked, told | {"silo-03": UnmaskReply({}, {}, {})})
    np.testing.assert_array_equal(result.numbers, federation.plain(federation.names[:3]))


def test_nothing_that_came_is_changed(tmp_path: Path) -> None:
    """A server may compute the sum again, from what it has kept."""
    federation = Federation.of(tmp_path, 4)
    exchange = federation.exchange()
    numbers = federation.numbers("silo-00")
    masked = federation.mask(exchange)
    for reply in masked.values():
        reply.values.flags.writeable = False
    told = federation.tell(exchange, masked)
    first, again = (total(exchange, transcript(exchange), masked, told).numbers for _ in range(2))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(numbers, federation.numbers("silo-00"))


# -- sizes, threads, and without the package ---------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "gone"), [(3, 0), (5, 1), (10, 3)])
def test_bytes_are_those_that_are_sent(tmp_path: Path, count: int, gone: int) -> None:
    federation = Federation.of(tmp_path, count)
    exchange = federation.exchange()
    masked = federation.mask(exchange, federation.names[:gone])
    told = federation.tell(exchange, masked)

    def size(reply: Masked) -> int:
        return reply.values.nbytes + len(reply.commitment) + sum(map(len, reply.shares.values()))

    assert {size(reply) for reply in masked.values()} == {masked_bytes(7, count)}
    question = {
        len(transcript(exchange)) + sum(len(masked[other].shares[name]) for other in masked if other != name)
        for name in masked
    }
    answer = {sum(len(value) for part in each for value in part.values()) for each in told.values()}
    assert [question, answer] == [{size} for size in unmask_bytes(count, gone)]


def test_a_sum_of_10_000_values_of_five_takes_a_tenth_of_a_second_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of computing, by all silos and the server together; larger ones are measured by the same benchmark."""
    monkeypatch.setattr("gc.collect", lambda: 0)  # with all that a test process has loaded it takes longer than a sum
    bench = runpy.run_path(str(Path(__file__).resolve().parents[2] / "benchmarks" / "secure.py"))
    costs = [bench["measure"](5, 10_000, 1, tmp_path / str(time)) for time in range(5)]
    assert min(cost.exchange(5) for cost in costs) <= 0.1


def test_one_of_several_threads_masks_an_attempt(tmp_path: Path) -> None:
    federation = Federation.of(tmp_path, 3)
    exchange, silo = federation.exchange(), federation.silos["silo-01"]
    came: list[object] = []

    def work() -> None:
        try:
            came.append(silo.mask(exchange, LAYOUT, SENT, federation.numbers("silo-01")))
        except Refused as error:
            came.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(each).__name__ for each in came) == ["Masked", *["Refused"] * 7]


WITHOUT = """import sys
sys.modules["cryptography"] = None
from equifed.secure import masked_bytes, threshold, unmask_bytes, find_obstacle
assert threshold(5) == 4 and find_obstacle(5, 5, 4) is None
try:
    from equifed.secure import Silo
except Exception as error:
    print(type(error).__name__, error)
"""


def test_the_rules_need_no_cryptography_and_the_rest_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ConfigError Secure sums need the package cryptography, which is not installed: pip")
