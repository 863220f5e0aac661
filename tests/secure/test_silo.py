"""What a silo refuses, also after it was killed and started again: it tells what one sum needs, once, and no more."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from store.faults import Death, Disk

from equifed.files import read_sealed, write_sealed
from equifed.secure import Exchange, NotSummed, Refused, Silo, UnmaskReply, find_obstacle, threshold, total
from secure.sums import LAYOUT, RUN, SENT, Federation, transcript


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation.of(tmp_path, 5)


def masking(federation: Federation, exchange: Exchange, name: str = "silo-02") -> Callable[[], object]:
    return lambda: federation.silos[name].mask(exchange, LAYOUT, SENT, federation.numbers(name))


def refused(exchange: Exchange, federation: Federation, words: str, name: str = "silo-02") -> None:
    """Before any work, and again when it is to be masked; nothing of it is remembered."""
    before = (federation.place / name / "secret").read_bytes()
    for ask in (lambda: federation.silos[name].check(exchange), masking(federation, exchange, name)):
        with pytest.raises(Refused, match=words):
            ask()
    assert (federation.place / name / "secret").read_bytes() == before


# -- masking -----------------------------------------------------------------------------------------------------------


def test_too_few_silos(federation: Federation) -> None:
    for count in (1, 2):
        refused(
            federation.exchange(names=federation.names[2 : 2 + count]), federation, "fewer than 3 hides no silo's reply"
        )
    refused(Exchange(RUN, 1, 1, (), (), 0), federation, "fewer than 3")
    federation.silos["silo-02"].check(federation.exchange(names=federation.names[:3]))


def test_its_own_key_is_not_shown(federation: Federation) -> None:
    good = federation.exchange()
    other = tuple(os.urandom(32) if name == "silo-02" else key for name, key in zip(good.names, good.keys, strict=True))
    refused(good._replace(keys=other), federation, "another key for this silo")


def test_its_own_name_is_not_there(federation: Federation) -> None:
    refused(federation.exchange(names=("silo-00", "silo-01", "silo-03")), federation, "does not include this silo")


def test_names_or_keys_that_are_there_twice_or_not_in_order(federation: Federation) -> None:
    good = federation.exchange()
    twice = (good.names[0], *good.names[:4])
    refused(good._replace(names=twice), federation, "sorted")
    refused(good._replace(names=good.names[::-1], keys=good.keys[::-1]), federation, "sorted")
    refused(good._replace(keys=(*good.keys[:4], good.keys[3])), federation, "one key each")
    refused(good._replace(keys=good.keys[:4]), federation, "one key each")
    refused(good._replace(keys=(*good.keys[:4], good.keys[4][:31])), federation, "one key each")


def test_numbers_that_are_none(federation: Federation) -> None:
    for number, attempt in ((-1, 1), (1, -1), (2**63, 1), (1, 2**63)):
        refused(federation.exchange(number, attempt), federation, "has no number")


def test_another_run(federation: Federation) -> None:
    refused(federation.exchange()._replace(run="another"), federation, "another run")


def test_a_key_that_hides_nothing(federation: Federation) -> None:
    good = federation.exchange()
    for low in (bytes(32), (1).to_bytes(32, "little")):
        refused(good._replace(keys=(low, *good.keys[1:])), federation, "is unsafe")


def test_a_key_never_changes_within_a_run(federation: Federation) -> None:
    first = federation.exchange(1, names=federation.names[:4])
    federation.silos["silo-02"].mask(first, LAYOUT, SENT, federation.numbers("silo-02"))
    changed = (os.urandom(32), *first.keys[1:])
    for _ in range(2):
        refused(first._replace(number=2, keys=changed), federation, "another key of 'silo-00' than before")
        renamed = federation.exchange(2, names=("silo-01", "silo-02", "silo-04"))
        renamed = renamed._replace(keys=(*renamed.keys[:2], first.keys[0]))  # silo-00's, under another's name
        refused(renamed, federation, "another key of 'silo-04' than before")
        federation.restart()
    federation.silos["silo-02"].check(federation.exchange(2))  # a silo may be new to the cohort


def test_an_attempt_is_masked_once(federation: Federation) -> None:
    silo = federation.silos["silo-02"]
    silo.mask(federation.exchange(7, attempt=3), LAYOUT, SENT, federation.numbers("silo-02"))
    silo.mask(federation.exchange(5, attempt=1), LAYOUT, SENT, federation.numbers("silo-02"))  # a server that resumes
    for _ in range(2):
        for attempt in (0, 1, 2, 3):
            refused(federation.exchange(7, attempt), federation, "already masked that exchange")
        refused(federation.exchange(5, 1), federation, "already masked that exchange")
        federation.restart()
        silo = federation.silos["silo-02"]
    silo.mask(federation.exchange(7, attempt=4), LAYOUT, SENT, federation.numbers("silo-02"))


def test_an_exchange_is_of_the_same_silos_in_every_attempt(federation: Federation) -> None:
    """Else two sums of one model, over different silos, could be had from tellers who have not met."""
    federation.silos["silo-02"].mask(federation.exchange(7), LAYOUT, SENT, federation.numbers("silo-02"))
    for _ in range(2):
        for names in (federation.names[1:], federation.names[:-1]):
            refused(federation.exchange(7, 2, names), federation, "had other silos before")
        federation.restart()
    federation.silos["silo-02"].check(federation.exchange(8, 1, federation.names[1:]))
    federation.silos["silo-02"].check(federation.exchange(7, 2))


def test_an_exchange_is_unmasked_once_and_none_before_it(federation: Federation) -> None:
    federation.mask(federation.exchange(9, 1))
    federation.sum(federation.exchange(7))
    for _ in range(2):
        for number, attempt in ((7, 2), (7, 99), (6, 1), (0, 1)):
            refused(federation.exchange(number, attempt), federation, "helped to unmask that exchange or a later one")
        refused(federation.exchange(9, 1), federation, "already masked that exchange")
        federation.restart()
    federation.sum(federation.exchange(8))
    federation.sum(federation.exchange(9, 2))


@pytest.mark.parametrize("numbers", [np.zeros(3), np.zeros((3, 1), np.int64), np.zeros(3, np.int32)])
def test_only_lists_of_integers_are_masked(federation: Federation, numbers: np.ndarray) -> None:
    with pytest.raises(ValueError, match="64-bit integers"):
        federation.silos["silo-02"].mask(federation.exchange(), LAYOUT, SENT, numbers)


def test_one_model_is_heard_in_an_exchange(federation: Federation) -> None:
    """Whatever came of it: a silo that refused to answer could be asked again and again, of ever other models."""
    for _ in range(2):
        silo = federation.silos["silo-02"]
        for number in (3, 4, 2):
            silo.record_message(number, b"model %d" % number)
            silo.record_message(number, b"model %d" % number)
            with pytest.raises(Refused, match="another message was sent"):
                silo.record_message(number, b"another")
        federation.restart()
    federation.sum(federation.exchange(3))
    for number in (2, 3):
        with pytest.raises(Refused, match="helped to unmask that exchange"):
            federation.silos["silo-02"].record_message(number, b"model %d" % number)
    with pytest.raises(Refused, match="another message was sent"):
        federation.silos["silo-02"].record_message(4, b"another")
    assert read_sealed(federation.place / "silo-02" / "secret")["heard"].keys() == {"4"}


def test_its_peers_are_those_that_it_has_masked_with(federation: Federation) -> None:
    silo = federation.silos["silo-02"]
    silo.check(federation.exchange(1))
    assert silo.peers == set()
    silo.mask(federation.exchange(1, names=federation.names[:3]), LAYOUT, SENT, federation.numbers("silo-02"))
    assert federation.start("silo-02").peers == {"silo-00", "silo-01"}


# -- unmasking ---------------------------------------------------------------------------------------------------------


def test_questions_that_are_not_answered(federation: Federation) -> None:
    exchange = federation.exchange()
    old = federation.mask(exchange)
    again = exchange._replace(attempt=2)
    masked = federation.mask(again, gone=["silo-04"])
    names = federation.names
    for _ in range(2):
        for about, survivors, words in (
            (transcript(exchange), names, "not masked a reply for this transcript"),  # not the latest attempt
            (transcript(exchange._replace(attempt=3)), names[:4], "not masked a reply for this transcript"),
            (again.transcript(LAYOUT, b"something else was sent"), names[:4], "not masked a reply for this transcript"),
            (b"", names, "not masked a reply for this transcript"),
            (transcript(again), (*names[:2], *names[3:]), "would not include this silo"),
            (transcript(again), (*names[:4], "silo-05"), "not distinct silos of the exchange"),
            (transcript(again), (*names[:4], "silo-03"), "not distinct silos"),
            (transcript(again), names[:3], "3 of 5 silos; at least 4"),
            (transcript(again), (), "would not include this silo"),
        ):
            with pytest.raises(Refused, match=words):
                federation.ask("silo-02", about, old | masked, survivors)
        federation.restart()
    assert federation.ask("silo-02", transcript(again), masked, names[:4]).seeds.keys() == {"silo-04"}


def test_it_answers_for_one_set_of_survivors_and_always_the_same(federation: Federation) -> None:
    exchange = federation.exchange()
    masked = federation.mask(exchange)
    first = federation.ask("silo-02", transcript(exchange), masked, federation.names[:4])
    for _ in range(2):
        for survivors in (federation.names, federation.names[1:], ("silo-00", *federation.names[2:])):
            with pytest.raises(Refused, match="for other survivors"):
                federation.ask("silo-02", transcript(exchange), masked, survivors)
        assert federation.ask("silo-02", transcript(exchange), masked, federation.names[3::-1]) == first
        federation.restart()


def test_a_share_or_a_seed_of_each_other_silo_and_never_both(federation: Federation) -> None:
    exchange = federation.exchange()
    masked = federation.mask(exchange)
    told = federation.ask("silo-02", transcript(exchange), masked, federation.names[:4])
    assert told.shares.keys() == set(federation.names[:4])
    assert told.seeds.keys() == {"silo-04"}
    everything = {name: masked[name].shares["silo-02"] for name in federation.names if name != "silo-02"}
    assert federation.silos["silo-02"].unmask(transcript(exchange), federation.names[:4], everything) == told


def test_shares_that_were_sealed_for_another_silo_direction_or_attempt_do_not_open(federation: Federation) -> None:
    old = federation.mask(federation.exchange())
    exchange = federation.exchange(attempt=2)
    masked = federation.mask(exchange)
    swapped = {
        "silo-00": masked["silo-00"].shares["silo-01"],  # for another
        "silo-01": masked["silo-02"].shares["silo-01"],  # its own, the other way
        "silo-03": old["silo-03"].shares["silo-02"],  # of the attempt before
        "silo-04": masked["silo-04"].shares["silo-02"],
    }
    told = federation.silos["silo-02"].unmask(transcript(exchange), federation.names, swapped)
    assert told.shares.keys() == {"silo-02", "silo-04"}


# -- memory ------------------------------------------------------------------------------------------------------------


def test_the_state_is_for_its_user_alone(federation: Federation) -> None:
    federation.sum(federation.exchange())
    folder = federation.place / "silo-02"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {
        **{"secret": 0o600, "secret.lock": 0o600}
    }


def test_a_key_for_each_run_found_again_in_its_folder(federation: Federation, tmp_path: Path) -> None:
    publics = {silo.public for silo in federation.silos.values()}
    federation.restart()
    assert {silo.public for silo in federation.silos.values()} == publics
    assert len(publics) == 5
    assert Silo("silo-00", "another run", tmp_path / "elsewhere").public not in publics


def test_a_damaged_state_is_refused_and_left_as_it_is(federation: Federation) -> None:
    path = federation.place / "silo-02" / "secret"
    federation.mask(federation.exchange())
    whole = path.read_bytes()
    for content in (b"", b"{}", whole[:-1], whole[: len(whole) // 2], whole.replace(b'"told": -1', b'"told": -2')):
        assert content != whole
        path.write_bytes(content)
        for ask in (
            lambda: federation.start("silo-02"),
            lambda: federation.silos["silo-02"].check(federation.exchange(2)),
            masking(federation, federation.exchange(2)),
            lambda: federation.silos["silo-02"].unmask(transcript(federation.exchange()), federation.names, {}),
        ):
            with pytest.raises(Refused, match="'secret' of its state folder is damaged"):
                ask()
        assert path.read_bytes() == content


@pytest.mark.parametrize("change", [{"run": "another"}, {"silo": "silo-03"}])
def test_the_state_of_another_run_or_silo_is_refused(federation: Federation, change: dict[str, str]) -> None:
    path = federation.place / "silo-02" / "secret"
    write_sealed(path, read_sealed(path) | change)
    with pytest.raises(Refused, match="another run or silo"):
        federation.start("silo-02")
    with pytest.raises(Refused, match="another run or silo"):
        federation.silos["silo-02"].check(federation.exchange())


def test_a_state_that_was_lost_is_a_silo_without_part_in_the_run(federation: Federation) -> None:
    """A server could have it mask anew otherwise, as if nothing had been told."""
    exchange = federation.exchange()
    federation.sum(exchange)
    running = federation.silos["silo-02"]
    shutil.rmtree(federation.place / "silo-02")
    federation.silos["silo-02"] = federation.start("silo-02")
    refused(exchange._replace(number=2), federation, "another key for this silo")
    with pytest.raises(Refused, match="another run or silo"):
        running.check(exchange._replace(number=2))  # a process that had the lost key


def test_two_processes_of_one_silo_have_one_memory(federation: Federation) -> None:
    one, other = federation.silos["silo-02"], federation.start("silo-02")
    exchange = federation.exchange()
    masked = federation.mask(exchange)
    with pytest.raises(Refused, match="already masked that exchange"):
        other.check(exchange)
    sealed = {name: masked[name].shares["silo-02"] for name in federation.names if name != "silo-02"}
    told = other.unmask(transcript(exchange), federation.names[:4], sealed)
    with pytest.raises(Refused, match="for other survivors"):
        one.unmask(transcript(exchange), federation.names, sealed)
    assert one.unmask(transcript(exchange), federation.names[:4], sealed) == told


def test_secrets_are_told_to_nobody(federation: Federation) -> None:
    """Neither the run's key, nor what silos agree on, nor a self-mask: in nothing that leaves, and no repr."""
    exchange = federation.exchange()
    drawn = []
    with mock.patch("secrets.token_bytes", side_effect=lambda size: drawn.append(os.urandom(size)) or drawn[-1]):
        masked = federation.mask(exchange, gone=["silo-04"])
    told = federation.tell(exchange, masked)
    selves = [secret for secret in drawn if len(secret) == 16]  # others name temporary files
    assert len(selves) == 4
    never = [*selves, *(bytes.fromhex(read_sealed(federation.place / name / "secret")["key"]) for name in told)]
    never += [pair for silo in federation.silos.values() for pair in silo._pairs.values()]
    left = [*(part for reply in masked.values() for part in (reply.values.tobytes(), reply.commitment))]
    left += [part for reply in masked.values() for part in reply.shares.values()]
    left += [part for answer in told.values() for kind in answer for part in kind.values()]
    assert len(never) == 4 + 4 + 5 * 4 - 4
    assert not [secret for secret in never for part in left if secret in part]
    assert "key" not in repr(federation.silos["silo-00"])


# -- a server that asks whatever it likes, silos that die whenever they like -------------------------------------------


class Liar:
    """A server that asks one silo whatever it likes, and keeps what it hears over the silo's deaths."""

    def __init__(self, federation: Federation, seed: int) -> None:
        self.federation, self.rng = federation, np.random.default_rng(seed)
        self.sealed: dict[bytes, dict[str, bytes]] = {}
        """Of each transcript, the shares for the silo."""
        self.exchanges: list[tuple[int, bytes, tuple[str, ...]]] = []
        """All that were asked for: number, transcript, cohort."""
        self.masked: list[tuple[int, int]] = []
        """Exchanges and attempts of which a masked reply came."""
        self.told: dict[bytes, list[tuple[frozenset[str], UnmaskReply]]] = {}
        self.deaths = 0

    def ask(self, question: Callable[[], object]) -> Any:
        """The answer, if any. With a chance, the silo dies at some step of its writing, or before its answer is out."""
        at = int(self.rng.integers(0, 8)) if self.rng.random() < 0.3 else None
        try:
            with mock.patch("equifed.files.os", Disk(at)):
                answer = question()
            if at is None:
                return answer
            raise Death
        except Refused:
            pass
        except Death:
            self.deaths += 1
            self.federation.silos["silo-02"] = self.federation.start("silo-02")
        return None

    def mask(self) -> None:
        """Any exchange near the latest, any attempt, cohort and model."""
        latest = max((number for number, *_ in self.exchanges), default=1)
        number, attempt = latest + int(self.rng.choice([-1, 0, 0, 1, 1, 1])), int(self.rng.integers(0, 6))
        cohort = tuple(sorted({"silo-02", *self.rng.permutation(self.federation.names)[:4].tolist()}))
        exchange = self.federation.exchange(number, attempt, cohort)
        sent = bytes(self.rng.integers(0, 2, 1))
        about = exchange.transcript(LAYOUT, sent)
        self.exchanges.append((number, about, cohort))
        shares = self.sealed.setdefault(about, {})
        for name in cohort:
            silo, values = self.federation.silos[name], self.federation.numbers(name)
            if name != "silo-02":
                with suppress(Refused):
                    shares[name] = silo.mask(exchange, LAYOUT, sent, values).shares["silo-02"]
        silo, values = self.federation.silos["silo-02"], self.federation.numbers("silo-02")
        if self.ask(lambda: silo.mask(exchange, LAYOUT, sent, values)):
            self.masked.append((number, attempt))

    def tell(self) -> None:
        """Any of the last transcripts, for any survivors."""
        _, about, cohort = self.exchanges[-1 - int(min(self.rng.geometric(0.6), len(self.exchanges)) - 1)]
        there = [name for name in cohort if self.rng.random() < 0.85]
        silo = self.federation.silos["silo-02"]
        if told := self.ask(lambda: silo.unmask(about, there, self.sealed[about])):
            self.told.setdefault(about, []).append((frozenset(there), told))


@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_asked_and_whenever_it_dies(tmp_path: Path, seed: int) -> None:
    liar = Liar(Federation.of(tmp_path, 5), seed)
    for _ in range(50):
        liar.mask()
        for _ in range(4):
            liar.tell()
    assert liar.deaths > 10
    assert len(liar.told) > 10
    numbers = [number for number, about in {exchange[:2] for exchange in liar.exchanges} if about in liar.told]
    assert len(set(numbers)) == len(numbers), "an exchange was unmasked twice"
    assert len(set(liar.masked)) == len(liar.masked), "an attempt was masked twice"
    for answers in liar.told.values():
        assert len({there for there, _ in answers}) == 1, "two sets of survivors"
        assert not {k for _, told in answers for k in told.shares} & {k for _, told in answers for k in told.seeds}
        assert all(told == answers[0][1] for _, told in answers)
    assert any(len(answers) > 1 for answers in liar.told.values())
    assert any(told.seeds for answers in liar.told.values() for _, told in answers)


@pytest.mark.parametrize("manner", ["kill", "torn", "power"])
def test_death_at_every_step_of_telling(tmp_path: Path, manner: str) -> None:
    """After its restart, the silo has told either nothing or this; never does it tell two things."""
    federation = Federation.of(tmp_path, 5)
    outcomes = set()
    for number in range(1, 30):
        exchange = federation.exchange(number)
        masked = federation.mask(exchange)
        about, names = transcript(exchange), federation.names
        disk = Disk(number - 1, manner)
        with mock.patch("equifed.files.os", disk):
            try:
                federation.ask("silo-02", about, masked, names[:4])
                died = False
            except Death:
                died = True
        federation.restart()
        state = read_sealed(federation.place / "silo-02" / "secret")
        written = state["masked"]["survivors"] is not None
        outcomes.add((died, written))
        assert written or died, "an answer went out that was not written first"
        assert (state["told"] == number) == written
        if written:
            with pytest.raises(Refused, match="for other survivors"):
                federation.ask("silo-02", about, masked, names)
            with pytest.raises(Refused, match="helped to unmask that exchange"):
                federation.silos["silo-02"].check(federation.exchange(number, attempt=2))
        told = federation.ask("silo-02", about, masked, names[:4])
        assert told.seeds.keys() == {"silo-04"}
        if not died:
            break
    assert outcomes >= {(True, False), (False, True)}


@pytest.mark.parametrize("manner", ["kill", "torn", "power"])
def test_death_at_every_step_of_masking(tmp_path: Path, manner: str) -> None:
    """Either the attempt is known, and is never masked again, or nothing of it went out."""
    federation = Federation.of(tmp_path, 5)
    for number in range(1, 30):
        exchange = federation.exchange(number)
        with mock.patch("equifed.files.os", Disk(number - 1, manner)):
            try:
                masking(federation, exchange)()
                died = False
            except Death:
                died = True
        federation.restart()
        known = str(number) in read_sealed(federation.place / "silo-02" / "secret")["attempts"]
        assert known or died
        if known:
            refused(exchange, federation, "already masked that exchange")
        federation.sum(federation.exchange(number, attempt=2))
        if not died:
            break
    assert number > 4


def test_death_while_the_key_is_made(tmp_path: Path) -> None:
    for at in range(20):
        with mock.patch("equifed.files.os", Disk(at, "power")):
            try:
                first = Silo("silo", RUN, tmp_path / str(at))
            except Death:
                first = None
        again = Silo("silo", RUN, tmp_path / str(at))  # never a half of a key
        assert first is None or first.public == again.public
        if first:
            break
    assert at > 3


def test_thresholds_leave_no_room_for_two_sums() -> None:
    """With c < n/3 silos in its pay, a server needs T answers twice, of which each honest silo gives one."""
    for n in range(3, 600):
        c = (n - 1) // 3
        assert 2 * threshold(n) > n + c
        assert 3 <= threshold(n) <= n


def test_two_sums_share_more_than_a_third_of_the_plan_whoever_is_left_out() -> None:
    """Of all cohorts that a server may choose of N silos: no silo helps with two sums of one exchange, so a third of
    them in its pay is not enough."""
    for n in range(3, 51):
        fewest = min(
            told
            for cohort in range(1, n + 1)
            for masked in range(1, cohort + 1)
            for told in range(1, masked + 1)
            if find_obstacle(cohort, masked, told, planned=n) is None
        )
        assert 2 * fewest - n > n / 3  # what two sets of so many have in common at least


def test_a_cohort_that_was_made_small(tmp_path: Path) -> None:
    """Of nine silos, seven must help. Seven of nine may be the cohort, but five of those seven are no sum."""
    federation = Federation.of(tmp_path, 9)
    few = federation.exchange(names=federation.names[:6], planned=9)
    refused(few, federation, "the cohort has 6 silos of 9, and 7 must help")
    refused(federation.exchange(planned=8), federation, "the cohort has 9 silos of 8")
    seven = federation.exchange(names=federation.names[:7], planned=9)
    masked = federation.mask(seven)
    for gone in (1, 2):
        there = dict(list(masked.items())[gone:])
        for name in there:
            with pytest.raises(Refused, match=f"over {7 - gone} of 9 silos; at least 7 are required"):
                federation.ask(name, transcript(seven), there, there)
    told = federation.tell(seven, masked)
    assert (total(seven, transcript(seven), masked, told).numbers == federation.plain(seven.names)).all()
    with pytest.raises(NotSummed, match="6 of 7"):
        total(seven, transcript(seven), masked, dict(list(told.items())[1:]))


def test_a_silo_that_plans_for_more_is_in_no_sum_with_the_others(tmp_path: Path) -> None:
    """The number is bound into the masks."""
    federation = Federation.of(tmp_path, 4)
    assert transcript(federation.exchange()) != transcript(federation.exchange(planned=5))
