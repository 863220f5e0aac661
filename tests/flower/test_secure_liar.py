"""A server that lies, against the real apps of silos: whatever it asks, in whatever order, it gets the sums that the
configuration is about, or nothing. What silos do with the masks themselves is in tests/secure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from equifed import methods
from equifed.errors import RunError
from equifed.files import read_sealed
from equifed.flower.agreement import Setting
from equifed.flower.masks import pack_unmasking, read_answer, read_asking, read_masked
from equifed.flower.memory import evaluation_number, exchange_number
from equifed.flower.records import BadMessage
from equifed.flower.silo import SiloApp
from equifed.flower.silo.checks import check_step
from equifed.protocol import STAGES, Method, Stage
from equifed.secure import Exchange, NotSummed, total
from flower.inprocess import Nodes, answer, be_the_server, context, federate, nodes, setting


class Caught(Exception):
    pass


class Liar(Nodes):
    """The nodes of a run whose honest server is stopped before its first message of a kind leaves: from then on they
    are asked by hand."""

    def __init__(self, made: Setting, state: Path, kind: str) -> None:
        honest = nodes(made, state=str(state))
        super().__init__(honest.app, [own.node_config for own in honest.contexts.values()])
        self.made, self.kind = made, kind
        self.requests: dict[str, RecordDict] = {}
        """What the honest server would have sent."""
        be_the_server()
        with pytest.raises(Caught):
            federate(made, self, state / "runs")

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        if messages and messages[0].metadata.message_type == self.kind:
            self.requests = {self.silo(each.metadata.dst_node_id): each.content for each in messages}
            raise Caught
        return super().push_messages(messages)

    def restart(self) -> None:
        """All silos' processes end and are started again; Flower's own context is lost with them."""
        self.app = SiloApp(self.made)
        self.contexts = {node: context(node, own.node_config) for node, own in self.contexts.items()}

    def ask(self, silo: str, content: RecordDict, kind: str | None = None) -> RecordDict:
        node = next(node for node in self.contexts if self.silo(node) == silo)
        message = Message(content, node, kind or self.kind)
        message.metadata.__dict__["_message_id"] = "1"
        return answer(self.app, message, self.contexts[node]).content

    def asked(self, silo: str, about: Mapping[str, Any] | None = None, **secure: Any) -> RecordDict:
        """The honest request with changes in what it is about, or in who takes part."""
        request = self.requests[silo]
        changed = {**request}
        changed["about"] = ConfigRecord({**request["about"], **(about or {})})
        if "secure" in request:
            changed["secure"] = ConfigRecord({**request["secure"], **secure})
        return RecordDict(changed)

    def exchange(self, content: RecordDict) -> Exchange:
        planned = len(content["secure"]["cohort"])  # all have joined
        return read_asking(content, "run", int(content["about"]["exchange"]), planned)

    def unmask(self, silo: str, about: bytes, survivors: Iterable[str], sealed: Mapping[str, bytes]) -> RecordDict:
        said = ConfigRecord({"run": "run", "exchange": self.requests[silo]["about"]["exchange"]})
        content = RecordDict({"about": said, "secure": pack_unmasking(about, list(survivors), sealed)})
        return self.ask(silo, content, "query.unmask")


def refusal(reply: RecordDict) -> str:
    """Why a silo has not answered; it has sent nothing else."""
    assert list(reply) == ["about"], list(reply)
    assert set(reply["about"]) == {"client", "refused"}
    return str(reply["about"]["refused"])


def made(folder: Path, method: Method | None = None, **run: Any) -> Setting:
    return setting(folder, method, run={"secure": True, "clients-per-round": 5, "rounds": 2, **run})


@pytest.fixture
def liar(silos: Path, tmp_path: Path) -> Liar:
    return Liar(made(silos, methods.KFFL()), tmp_path / "state", "train.train")


def changed_fields(content: RecordDict, factor: float) -> RecordDict:
    """The request with another model."""
    plain = {name: array.numpy() for name, array in content["fields"].items()}
    arrays = {name: Array(np.asarray(values * factor, values.dtype)) for name, values in plain.items()}
    return RecordDict({**content, "fields": ArrayRecord(arrays)})


def test_a_run_needs_more_than_two_thirds_of_its_silos(silos: Path, tmp_path: Path) -> None:
    secure = setting(silos, run={"secure": True}, flower={"join-deadline": 0.1})
    grid = nodes(secure, state=str(tmp_path / "state"))
    grid.gone = {"a", "f"}
    with pytest.raises(RunError, match="Only 4 of 6 silos joined and at least 5 are needed"):
        federate(secure, grid, tmp_path / "runs")


@pytest.mark.parametrize("insists", ["key", "roster", "secure", "app"])
def test_a_node_for_secure_sums_tells_a_plain_run_nothing(silos: Path, tmp_path: Path, insists: str) -> None:
    """The configuration comes with the app that the server ships."""
    hidden, plain = made(silos), made(silos, secure=False)
    config = {"key": "key", "roster": "roster.json", "secure": True, "app": hidden.digest}
    grid = nodes(plain, state=str(tmp_path / "state"))
    own = next(iter(grid.contexts.values()))
    own.node_config[insists] = config[insists]
    about = {"run": "run", "app": plain.digest, "round": 1, "exchange": "4001", "from": 0, "keep": 0, "evaluate": 1}
    be_the_server()

    def reply(kind: str) -> RecordDict:
        message = Message(RecordDict({"about": ConfigRecord(about)}), own.node_id, kind)
        message.metadata.__dict__["_message_id"] = "1"
        return answer(grid.app, message, own).content

    why = "not the one that the silo has agreed to" if insists == "app" else "takes part in secure sums only"
    for kind in ("query.join", "query.introduce", "train.train", "evaluate.counts"):
        assert why in refusal(reply(kind)), kind
    del own.node_config[insists]
    assert "rows" in reply("query.join")["about"]


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"evaluate": 1}, "disclosed only as a sum"),
        ({"round": 2}, "has the number of another one"),
        ({"exchange": "1"}, "has the number of another one"),
        ({"from": 1}, "received a different starting exchange"),
    ],
)
def test_a_request_is_refused_before_any_work_is_done_on_it(
    liar: Liar, monkeypatch: pytest.MonkeyPatch, about: dict[str, Any], why: str
) -> None:
    for work in ("received", "evaluated", "work"):
        monkeypatch.delattr(f"equifed.flower.silo.rows.OpenSilo.{work}")
    assert why in refusal(liar.ask("a", liar.asked("a", about)))
    assert "its work failed with AttributeError" in refusal(liar.ask("a", liar.requests["a"]))


# -- masking -----------------------------------------------------------------------------------------------------------


def test_the_honest_question_is_answered_by_masked_integers_only(liar: Liar) -> None:
    for silo, request in liar.requests.items():
        reply = liar.ask(silo, request)
        assert set(reply) == {"about", "fields", "secure"}
        assert set(reply["about"]) == {"client", "exchange"}
        assert list(reply["fields"]) == ["masked"]
        assert reply["fields"]["masked"].numpy().dtype == np.uint64
        assert set(reply["secure"]) == {"commitment", "for", "shares"}


def test_the_same_question_again(liar: Liar) -> None:
    silo = next(iter(liar.requests))
    liar.ask(silo, liar.requests[silo])
    for _ in range(2):
        assert "already masked that exchange" in refusal(liar.ask(silo, liar.requests[silo]))
        liar.restart()
    assert "fields" in liar.ask(silo, liar.asked(silo, attempt=2))


def test_other_models_in_the_same_exchange(liar: Liar) -> None:
    """Also by new attempts, and also if the silo could not answer the first."""
    silo, other = list(liar.requests)[:2]
    liar.ask(silo, liar.requests[silo])
    refusal(liar.ask(other, changed_fields(liar.requests[other], np.nan)))
    for _ in range(2):
        again = changed_fields(liar.asked(silo, attempt=2), 1.5)
        assert "another message was sent in that exchange" in refusal(liar.ask(silo, again))
        assert "another message was sent in that exchange" in refusal(liar.ask(other, liar.requests[other]))
        liar.restart()


def test_cohorts_that_the_server_has_chosen(liar: Liar) -> None:
    """The configuration says who takes part in which round: three of five, two of them in its pay, would be a reply."""
    silo = next(iter(liar.requests))
    exchange = liar.exchange(liar.requests[silo])
    keys = dict(zip(exchange.names, exchange.keys, strict=True))
    outside = set(liar.made.silos) - set(exchange.names)
    assert outside
    stranger = {"stranger": os.urandom(32)}
    state = Path(str(next(iter(liar.contexts.values())).node_config["state"]))
    other = {min(outside): bytes.fromhex(read_sealed(state / "run" / silo / "secret")["peers"][min(outside)])}
    few = {name: keys[name] for name in sorted({silo, *sorted(set(keys) - {silo})[:2]})}
    for cohort in (few, keys | stranger, keys | other, few | stranger | {"z": os.urandom(32)}):
        names = sorted(cohort)
        content = liar.asked(silo, cohort=names, keys=[cohort[name] for name in names])
        assert re.search("cohort|was not present", refusal(liar.ask(silo, content))), refusal(liar.ask(silo, content))
    assert "fields" in liar.ask(silo, liar.requests[silo])


def test_a_cohort_without_one_is_not_summed_without_another(liar: Liar) -> None:
    """Four of the five that are sampled must help. One may never have joined, but then all others are needed."""
    exchange = liar.exchange(next(iter(liar.requests.values())))
    names, keys = list(exchange.names[:4]), list(exchange.keys[:4])
    for silo in names:
        assert "fields" in liar.ask(silo, liar.asked(silo, cohort=names, keys=keys))
    folder = Path(str(next(iter(liar.contexts.values())).node_config["state"])) / "run"
    (about,) = {read_sealed(folder / silo / "secret")["masked"]["transcript"] for silo in names}
    for silo in names[:3]:
        assert "over 3 of 5 silos; at least 4" in refusal(liar.unmask(silo, bytes.fromhex(about), names[:3], {}))
        assert not read_answer(liar.unmask(silo, bytes.fromhex(about), names, {})).seeds


def test_other_keys_than_before(liar: Liar) -> None:
    silo = next(iter(liar.requests))
    exchange = liar.exchange(liar.requests[silo])
    liar.ask(silo, liar.requests[silo])
    for place, name in enumerate(exchange.names):
        keys = [*exchange.keys[:place], os.urandom(32), *exchange.keys[place + 1 :]]
        assert "another key" in refusal(liar.ask(silo, liar.asked(silo, attempt=2, keys=keys))), name


def test_numbers_of_other_rounds_and_phases(liar: Liar) -> None:
    """One number for each phase of each round of the configuration, and no more rounds than it has."""
    silo = next(iter(liar.requests))
    honest = int(liar.requests[silo]["about"]["exchange"])
    for number, round in ((honest + 1, 1), (honest - 1, 1), (honest, 2), (honest + 3000, 1), (honest + 6000, 3)):
        content = liar.asked(silo, {"exchange": str(number), "round": round})
        assert re.search("number of another one|no such round", refusal(liar.ask(silo, content)))


def test_an_exchange_before_round_1_is_not_asked_in_a_round(silos: Path, tmp_path: Path) -> None:
    """Counts do not move: two sums of them, one without a silo, would be that silo's."""
    liar = Liar(made(silos, methods.FedMinMax()), tmp_path / "state", "train.setup_count")
    for silo in liar.requests:
        for round in (1, 2):
            number = str(exchange_number(round, "setup", 0))
            assert "no such exchange" in refusal(liar.ask(silo, liar.asked(silo, {"round": round, "exchange": number})))
        assert "fields" in liar.ask(silo, liar.requests[silo])


ROUNDS = {("round 0", r) for r in range(1, 5)}


@pytest.mark.parametrize(
    ("method", "cohort", "others"),
    [
        ("fedminmax", "all", {("setup 0", 0), ("round 0 measured", 3), ("alone", 4)}),
        ("fedminmax", 5, {("setup 0", 0), ("alone", 2), ("alone", 4)}),
        ("fedavg+fair", "all", {("round 0 measured", 3), ("final 0", 4), ("alone", 4)}),
        # it may stop after any round
        (
            "lco+fair",
            "all",
            {("round 0 measured", 3)} | {(name, r) for name in ("final 0", "final 1", "alone") for r in range(1, 5)},
        ),
    ],
)
def test_which_exchanges_a_run_has(silos: Path, method: str, cohort: int | str, others: set[tuple[str, int]]) -> None:
    """Of all stages, rounds and ways to measure, here every second round: what an honest server may need."""
    run = {"rounds": 4, "eval-every": 2, "clients-per-round": cohort}
    agreed = made(silos, methods.make(method), **run)
    job, found = agreed.job(agreed.view(), None), set()
    for round in range(job.rounds + 2):
        asked: list[tuple[str, Stage, int | None, int, bool]] = []
        asked += [("alone", "final", None, evaluation_number(round), True)]
        for stage in STAGES:
            for position in range(len(job.phases(stage))):
                name, number = f"{stage} {position}", exchange_number(round, stage, position)
                asked += [(name, stage, position, number, False), (f"{name} measured", stage, position, number, True)]
        for name, stage, place, number, evaluate in asked:
            with suppress(BadMessage):
                check_step(job, stage, place, round, number, evaluate)
                found.add((name, round))
    assert found == ROUNDS | others


def test_a_round_is_measured_once(silos: Path, tmp_path: Path) -> None:
    """By itself, as if the run had converged, or with the next round, but not both."""
    run = {"clients-per-round": "all", "rounds": 3}
    liar = Liar(made(silos, methods.LCO(), **run), tmp_path / "state", "train.gradients")
    for place, silo in enumerate(liar.requests):
        alone = liar.asked(silo, {"round": 1, "exchange": str(evaluation_number(1)), "evaluate": 1})
        along = liar.asked(silo, {"round": 2, "exchange": str(exchange_number(2, "round", 0)), "evaluate": 1})
        first, second = [(alone, "evaluate.counts"), (along, liar.kind)][:: 1 if place % 2 else -1]
        assert "fields" in liar.ask(silo, *first)
        assert "another message was sent" in refusal(liar.ask(silo, *second))


def test_single_counts_are_told_to_nobody(liar: Liar) -> None:
    """By the message that plain federations evaluate with, or by asking to evaluate beside training."""
    for silo in liar.requests:
        for kind in ("evaluate.counts", liar.kind):
            reply = liar.ask(silo, liar.asked(silo, {"evaluate": 1}), kind)
            assert "evaluation" not in reply
            refusal(reply)


def test_a_refusal_tells_no_number_of_a_silo(silos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """How far a reply is out of bounds is one silo's business; the silo finds it in its own log."""
    run = {"secure": True, "clients-per-round": 5, "max-update": 1e-3}
    liar = Liar(setting(silos, run=run), tmp_path / "state", "train.train")
    refused = []
    for silo in liar.requests:
        caplog.clear()
        reply = liar.ask(silo, liar.requests[silo])
        if "fields" not in reply:
            refused.append(silo)
            assert refusal(reply) == "its reply has update out of bounds (see the silo's log)"
            assert re.search(r"with a norm of [0-9.]+, above 0.001", caplog.text)
    assert len(refused) >= 3


def test_silos_are_not_put_back_to_where_their_replies_are_zeros(silos: Path, tmp_path: Path) -> None:
    """In FAIR-FATE's second phase silos send what they kept in the first: if all but one had kept nothing, their sum
    would be one silo's update."""
    method = methods.make("fair-fate", min_clients=3)
    liar = Liar(made(silos, method, **{"clients-per-round": "all"}), tmp_path / "state", "train.add")
    victim, *others = liar.requests
    for silo in others:
        put_back = {other: number if other == victim else 0 for other, number in liar.requests[silo]["states"].items()}
        alone = liar.asked(silo, {"from": 0})
        for states in (liar.requests[silo]["states"], put_back):
            content = RecordDict({**alone, "states": ConfigRecord({**states})})
            assert re.search(
                "a different starting exchange|continues from an exchange", refusal(liar.ask(silo, content))
            )
        del alone["states"]
        assert "the exchange from which" in refusal(liar.ask(silo, alone))
        liar.restart()
        assert "fields" in liar.ask(silo, liar.requests[silo])


def test_all_silos_hear_of_the_same_states(liar: Liar) -> None:
    """Who is told of others has masks that do not cancel."""
    silo, other = list(liar.requests)[:2]
    states = {**liar.requests[silo]["states"], "z": 1}
    liar.ask(silo, RecordDict({**liar.requests[silo], "states": ConfigRecord(states)}))
    liar.ask(other, liar.requests[other])
    folder = Path(str(next(iter(liar.contexts.values())).node_config["state"])) / "run"
    assert len({read_sealed(folder / each / "secret")["masked"]["transcript"] for each in (silo, other)}) == 2


# -- unmasking ---------------------------------------------------------------------------------------------------------


def masked(liar: Liar) -> tuple[Exchange, bytes, dict[str, Any]]:
    """All silos have masked: the exchange, its transcript, the replies."""
    replies = {silo: liar.ask(silo, request) for silo, request in liar.requests.items()}
    exchange = liar.exchange(next(iter(liar.requests.values())))
    sizes = {silo: reply["fields"]["masked"].numpy().size for silo, reply in replies.items()}
    found = {silo: read_masked(reply, silo, exchange, sizes[silo]) for silo, reply in replies.items()}
    # a server computes it from what it has sent; here it is read where silos keep it
    folder = Path(str(next(iter(liar.contexts.values())).node_config["state"])) / "run"
    (about,) = {read_sealed(folder / silo / "secret")["masked"]["transcript"] for silo in found}
    return exchange, bytes.fromhex(about), found


def test_a_silo_that_is_said_to_be_there_and_gone(liar: Liar) -> None:
    """Nobody tells a share and a seed of the same silo, before or after its restart."""
    exchange, about, replies = masked(liar)
    victim = exchange.names[-1]
    for silo in exchange.names[:-1]:
        sealed = {name: replies[name].shares[silo] for name in replies if name != silo}
        without = [name for name in exchange.names if name != victim]
        first, second = (without, exchange.names) if silo < "c" else (exchange.names, without)
        told = read_answer(liar.unmask(silo, about, first, sealed))
        assert (victim in told.shares) != (victim in told.seeds)
        liar.restart()
        assert "for other survivors" in refusal(liar.unmask(silo, about, second, sealed))
        assert read_answer(liar.unmask(silo, about, first, sealed)) == told
    with pytest.raises(NotSummed):
        total(exchange, about, {victim: replies[victim]}, {})


def test_sealed_shares_are_swapped(liar: Liar) -> None:
    exchange, about, replies = masked(liar)
    silo, other = exchange.names[:2]
    wrong = {name: replies[name].shares[other] for name in exchange.names if name not in (silo, other)}
    told = read_answer(liar.unmask(silo, about, exchange.names, wrong | {other: replies[silo].shares[other]}))
    assert told.shares.keys() == {silo}
    assert not told.seeds


def test_no_round_after_it_was_unmasked_is_asked_again(liar: Liar) -> None:
    exchange, about, replies = masked(liar)
    told = {}
    for silo in exchange.names:
        sealed = {name: replies[name].shares[silo] for name in replies if name != silo}
        told[silo] = read_answer(liar.unmask(silo, about, exchange.names, sealed))
    assert not total(exchange, about, replies, told).faulty
    for _ in range(2):
        for silo, request in liar.requests.items():
            for content in (request, liar.asked(silo, attempt=2), liar.asked(silo, attempt=1000)):
                assert "helped to unmask that exchange" in refusal(liar.ask(silo, content))
        liar.restart()
