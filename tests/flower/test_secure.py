"""Secure sums on Flower, in one process with the real apps and messages: the same integers as in the simulator, and
nothing else, whatever silos, server and disk do."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pytest
import torch
from contract.test_contract import METHODS, VARIANTS
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from store.faults import Death, Disk

import equifed as ef
from equifed import methods, tree
from equifed.config import job_of, load_federations
from equifed.errors import RunError
from equifed.fixed_point import PLACES
from equifed.flower import link
from equifed.flower.agreement import Setting
from equifed.flower.joining import JOINING
from equifed.flower.journal import Journal
from equifed.flower.memory import MOST_EXCHANGES, exchange_number
from equifed.flower.silo import SiloApp
from equifed.notes import Note
from equifed.protocol import STAGES, Data, Method, Phase, Record, ignore_replies
from equifed.secure import Masked, Silo
from equifed.simulation import Simulation
from equifed.simulator import Job
from equifed.store import RunFolder
from equifed.store.folder import FEDERATION
from flower.hostile import Attack, changed, of_record, of_words
from flower.inprocess import Fault, Nodes, answer, federate, memory_of, nodes, setting

ALWAYS = ("fedavg", "kffl", "fair-fate", "ifca", "local")
SUMMING = [
    pytest.param(method, marks=[] if method in METHODS and method.name in ALWAYS else pytest.mark.full)
    for method in (*METHODS, *VARIANTS)
    if not method.pooled and method.summed is not None
]
"""All of them in `make test-full`."""


def made(folder: Path, method: Method | None = None, **sections: Any) -> Setting:
    run = {"secure": True, "clients-per-round": 5, **sections.pop("run", {})}
    return setting(folder, method, run=run, **sections)


def simulate(
    setting: Setting,
    runs: Path,
    before: Mapping[int, set[str]] = MappingProxyType({}),
    after: Mapping[int, set[str]] = MappingProxyType({}),
    run: str = "run",
) -> ef.Result:
    """The reference engine on the same configuration, standardised as the federation's server did.

    before, after: by round, who is gone before masking, and between masking and unmasking.
    """
    scaling = RunFolder(runs / run).record(FEDERATION)["scaling"]
    shift_and_factor = None if scaling is None else tuple(np.array(scaling, dtype=np.float32))
    config = dataclasses.replace(setting.config, run=dataclasses.replace(setting.config.run, engine="reference"))
    federations = [dataclasses.replace(fed, scaling=shift_and_factor) for fed in load_federations(config)]

    def among(gone: Mapping[int, set[str]], round: int, cohorts: np.ndarray) -> np.ndarray:
        return np.isin(cohorts, [setting.silos.index(silo) for silo in gone.get(round, ())])

    with (
        mock.patch.object(Job, "present", lambda self, round, cohorts: ~among(before, round, cohorts)),
        mock.patch.object(Job, "late", lambda self, stage, round, step, cohorts: among(after, round, cohorts)),
    ):
        simulation = Simulation(job_of(config, federations))
        for _ in simulation.rounds():
            pass
    return simulation.result()


@pytest.mark.parametrize("method", SUMMING, ids=repr)
@pytest.mark.sample(2)
def test_a_secure_federation_equals_the_reference_engine_bit_for_bit(
    method: Method, silos: Path, tmp_path: Path
) -> None:
    secure = made(silos, method, run={"rounds": 2}, model={"bias": method.name not in ("frl", "e2fl")})
    grid = nodes(secure, state=str(tmp_path / "state"))
    found = federate(secure, grid, tmp_path / "runs")
    assert not len(found.rejections), found.rejections.to_string()
    assert found.log["applied"].all()
    expected = simulate(secure, tmp_path / "runs")
    assert_same_bits(found, expected)
    for k, silo in enumerate(secure.silos):
        there = tree.to_named(tree.take(expected.final_states[3].clients, k))
        for name, value in memory_of(grid, silo).items():
            assert torch.equal(value, there[name]), (silo, name)


def assert_same_bits(found: ef.Result, expected: ef.Result) -> None:
    (run,) = found.final_states
    states = [tree.to_named(result.final_states[run].server) for result in (found, expected)]
    assert states[0].keys() == states[1].keys()
    for name, value in states[1].items():
        assert states[0][name].numpy().tobytes() == value.numpy().tobytes(), name


def test_to_help_unmask_a_sum_needs_no_torch() -> None:
    """Flower starts a process for every message, in which torch would take most of the time."""
    code = "import sys; from equifed.flower import client_app, server_app; client_app('x'), server_app('x'); "
    code += "from equifed.flower.apps import unmask; import equifed.secure.silo; "
    code += "sys.exit(', '.join(sys.modules.keys() & {'torch', 'pandas', 'scipy'}) or 0)"
    subprocess.run([sys.executable, "-c", code], check=True)


# -- who is gone -------------------------------------------------------------------------------------------------------

PER_ROUND = len(STAGES) * MOST_EXCHANGES
TRAIN, UNMASK = "train.", "query.unmask"


def when(message: Message) -> tuple[int, int]:
    """Round and number of the exchange that a message belongs to; -1 where it belongs to none. Joining is number 0."""
    number = int(message.content.config_records["about"].get("exchange", -1))
    return (number - 1) // PER_ROUND, number


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "POLL", 0.005)


def everyone(folder: Path, method: Method | None = None, **sections: Any) -> Setting:
    """All six silos in every round: five must help."""
    run = {"clients-per-round": "all", "eval-every": 99, **sections.pop("run", {})}
    flower = {"deadline": 0.05, **sections.pop("flower", {})}
    return made(folder, method, run=run, flower=flower, **sections)


def missing(before: Mapping[int, set[str]], after: Mapping[int, set[str]]) -> Fault:
    """Silos that are gone before masking, or between masking and unmasking, by round."""

    def fault(silo: str, message: Message, reply: Message) -> Message | None:
        kind, (number, _) = message.metadata.message_type, when(message)
        gone = before if kind.startswith(TRAIN) else after if kind == UNMASK else {}
        return None if silo in gone.get(number, ()) else reply

    return fault


BEFORE = {2: {"a"}, 4: {"a"}, 5: {"c", "f"}}
AFTER = {3: {"b"}, 4: {"b"}, 6: {"c", "f"}}


@pytest.mark.parametrize(
    "method",
    [methods.FedAvg(), *(pytest.param(each, marks=pytest.mark.full) for each in (methods.KFFL(), methods.FairFed()))],
    ids=repr,
)
def test_whoever_is_gone_before_or_after_masking(method: Method, silos: Path, tmp_path: Path) -> None:
    """One before: the sum of the others. One after: the sum with it. Both at once, or two: no sum. Always the bits of
    the simulator."""
    secure = everyone(silos, method, run={"rounds": 7})
    state = str(tmp_path / "state")
    found = federate(secure, nodes(secure, missing(BEFORE, AFTER), state=state), tmp_path / "runs")
    expected = simulate(secure, tmp_path / "runs", BEFORE, AFTER)
    assert_same_bits(found, expected)
    columns = ["round", "applied", "replied"]
    assert found.log["applied"].tolist() == [True, True, True, False, False, False, True]
    applied = found.log["applied"]
    assert found.log[applied][columns].to_numpy().tolist() == expected.log[applied][columns].to_numpy().tolist()
    assert found.log["late"].fillna(0).tolist()[:3] == [0, 0, len(method.round)]
    assert obstacles(tmp_path / "runs") == [
        "4 of 5 clients helped to unmask the sum, 5 are needed when a client of the cohort has dropped out",
        "4 of 6 masked replies came, 5 are needed",
        "4 of 6 clients helped to unmask the sum, 5 are needed",
    ]


def obstacles(runs: Path) -> list[str]:
    """Why rounds were not applied."""
    lines = map(json.loads, (runs / "run" / "rounds.jsonl").read_text().splitlines())
    return [str(Note.from_json(log["obstacle"])) for line in lines for log in line["logs"] if log["obstacle"]]


def test_a_silo_that_refuses_its_own_reply_counts_as_gone(silos: Path, tmp_path: Path) -> None:
    """Out of bounds at the silo: it says why, and the others' sum is had."""
    secure = everyone(silos, run={"rounds": 2})
    strict = everyone(silos, run={"rounds": 2, "max-update": 1e-6})
    strict.__dict__["digest"] = secure.digest
    grid = nodes(secure, state=str(tmp_path / "state"))
    grid.apps = {"a": SiloApp(strict)}
    found = federate(secure, grid, tmp_path / "runs")
    assert found.rejections[["client", "answered"]].to_numpy().tolist() == [["a", True]] * 2
    assert set(found.rejections["reason"]) == {"its reply has update out of bounds (see the silo's log)"}
    assert_same_bits(found, simulate(secure, tmp_path / "runs", {1: {"a"}, 2: {"a"}}))


def test_a_masked_reply_that_comes_late_is_useless(silos: Path, tmp_path: Path) -> None:
    """Nobody ever tells a share of its mask."""
    told: list[tuple[str, ConfigRecord]] = []

    def fault(silo: str, message: Message, reply: Message) -> Message | None:
        if message.metadata.message_type == UNMASK and when(message)[1] == exchange_number(1, "round", 0):
            told.append((silo, reply.content.config_records["secure"]))
        return missing({1: {"a"}}, {})(silo, message, reply)

    secure = everyone(silos, run={"rounds": 1, "eval-every": 99})
    federate(secure, nodes(secure, fault, state=str(tmp_path / "state")), tmp_path / "runs")
    assert {silo for silo, _ in told} == set("bcdef")
    for _, said in told:
        assert said["seeds-of"] == ["a"]
        assert sorted(said["shares-of"]) == list("bcdef")


def forge(reply: Message, of: str) -> Message:
    said = dict(reply.content.config_records["secure"])
    shares = dict(zip(said["shares-of"], said["shares"], strict=True))
    shares[of] = bytes(len(shares[of]) - 1) + b"\x07"
    reply.content["secure"] = ConfigRecord(said | {"shares": list(shares.values())})
    return reply


def test_false_shares_are_left_out_and_their_sender_is_named(silos: Path, tmp_path: Path) -> None:
    """Where more answered than are needed. Where just enough did, there is no sum."""

    def fault(silo: str, message: Message, reply: Message) -> Message | None:
        if message.metadata.message_type == UNMASK and when(message)[0] in (1, 2) and silo == "a":
            return forge(reply, "c")
        return missing({}, {2: {"b"}})(silo, message, reply)

    secure = everyone(silos, run={"rounds": 3})
    found = federate(secure, nodes(secure, fault, state=str(tmp_path / "state")), tmp_path / "runs")
    assert found.log["applied"].tolist() == [True, False, True]
    (reason,) = obstacles(tmp_path / "runs")
    assert reason.startswith("the mask of c could not be rebuilt from the 5 shares that came")
    assert "a sent false mask shares, which were ignored, in round 1." in map(str, found.notes)
    assert_same_bits(found, simulate(secure, tmp_path / "runs", {}, {2: {"a", "b"}}))


def test_a_sum_that_nobody_honest_can_have_is_not_applied(
    silos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of six lies after its own checks. It cannot be named; the round has no effect, and the next one has."""
    honest = Silo.mask

    def lying(self: Silo, exchange: Any, layout: bytes, sent: bytes, numbers: np.ndarray) -> Masked:
        lies = self.name == "a" and (exchange.number - 1) // PER_ROUND == 2
        return honest(self, exchange, layout, sent, numbers + (10**8 << PLACES) if lies else numbers)

    monkeypatch.setattr(Silo, "mask", lying)
    secure = everyone(silos, run={"rounds": 3})
    found = federate(secure, nodes(secure, state=str(tmp_path / "state")), tmp_path / "runs")
    assert found.log["applied"].tolist() == [True, False, True]
    assert obstacles(tmp_path / "runs") == [
        "at least one client sent impossible values: honest replies cannot add up to the rows of train"
    ]
    assert not len(found.rejections)
    monkeypatch.setattr(Silo, "mask", honest)
    assert_same_bits(found, simulate(secure, tmp_path / "runs", {2: set("abcdef")}))


def test_without_a_state_folder_a_silo_cannot_join(silos: Path, tmp_path: Path) -> None:
    secure = everyone(silos)
    with pytest.raises(RunError, match="a: the node has no state folder, which secure sums need"):
        federate(secure, nodes(secure), tmp_path)


@pytest.mark.parametrize("method", [methods.FairFed(), pytest.param(methods.FedEM(), marks=pytest.mark.full)], ids=repr)
def test_silos_go_on_from_their_state_folder(method: Method, silos: Path, tmp_path: Path) -> None:
    """Every message is answered by a new process: nothing but the folder is left of the one before."""

    class Restarting(Nodes):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            for own in self.contexts.values():
                own.state = RecordDict()
            self.app = SiloApp(secure)
            return super().push_messages(messages)

    secure = everyone(silos, method, run={"rounds": 2})
    configs = [node.node_config for node in nodes(secure, state=str(tmp_path / "state")).contexts.values()]
    found = federate(secure, Restarting(SiloApp(secure), configs), tmp_path / "runs")
    assert not len(found.rejections)
    assert_same_bits(found, simulate(secure, tmp_path / "runs"))
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state").rglob("*") if path.is_file()}
    assert modes == {0o600}


# -- what a server cannot have -----------------------------------------------------------------------------------------


class Trying(Nodes):
    """Before silo a is asked to train, it is asked for what it must not answer."""

    refused: dict[str, str]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        for message in messages:
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            if self.silo(node) == "a" and kind.startswith(TRAIN):
                self.refused = {
                    what: self._answer(message, node, change) for what, change in self._changes(message.content).items()
                }
        return super().push_messages(messages)

    def _answer(self, message: Message, node: int, change: RecordDict) -> str:
        message.metadata.__dict__["_message_id"] = "tried"
        whole, message.content = message.content, change
        content = answer(self.app, message, self.contexts[node]).content
        message.content = whole
        assert set(content) == {"about"}
        return str(content["about"]["refused"])

    @staticmethod
    def _changes(content: RecordDict) -> dict[str, RecordDict]:
        asked, secure = dict(content["about"]), dict(content["secure"])

        def but(record: str, **entries: Any) -> RecordDict:
            return RecordDict({**content, record: ConfigRecord(dict(content[record]) | entries)})

        return {
            "plainly": RecordDict({name: record for name, record in content.items() if name != "secure"}),
            "as another exchange": but("about", exchange=str(int(asked["exchange"]) + 1)),
            "as another round": but("about", round=7),
            "with one other": but("secure", cohort=["a", "b"], keys=secure["keys"][:2]),
            "with another key": but("secure", keys=[*secure["keys"][1:], secure["keys"][0]]),
        }


def test_a_silo_never_answers_plainly(silos: Path, tmp_path: Path) -> None:
    """Whether replies are masked follows from the configuration, never from the message."""
    secure = everyone(silos, run={"rounds": 1})
    configs = [node.node_config for node in nodes(secure, state=str(tmp_path / "state")).contexts.values()]
    grid = Trying(SiloApp(secure), configs)
    found = federate(secure, grid, tmp_path / "runs")
    assert found.log["replied"].tolist() == [6]  # as nothing has been given away, the right question is answered
    reasons = {what: reason.removeprefix("its reply cannot be made: ") for what, reason in grid.refused.items()}
    assert reasons == {
        "plainly": "its reply has no record 'secure'",
        "as another exchange": "the exchange has the number of another one",
        "as another round": "the run has no such round",
        "with one other": "the exchange has 2 silos, and a sum over fewer than 3 hides no silo's reply",
        "with another key": "the server has another key for this silo: "
        "its state folder was lost, or the server is malicious",
    }


def test_recorded_traffic_has_no_number_of_a_plain_reply(silos: Path, tmp_path: Path) -> None:
    """Captured at the server: arrays are called `masked`, and none of their integers is one that a silo masked."""
    masked: list[np.ndarray] = []
    plain: list[np.ndarray] = []

    def look(silo: str, message: Message, reply: Message) -> Message:
        if message.metadata.message_type.startswith(TRAIN):
            (name,) = reply.content["fields"]
            assert name == "masked"
            assert set(reply.content) == {"about", "fields", "secure"}
            masked.append(reply.content["fields"]["masked"].numpy())
        elif message.metadata.message_type == UNMASK:
            assert set(reply.content) == {"about", "secure"}
        return reply

    def remember(self: Silo, exchange: Any, layout: bytes, sent: bytes, numbers: np.ndarray) -> Masked:
        plain.append(numbers)
        return honest(self, exchange, layout, sent, numbers)

    secure = everyone(silos, methods.KFFL(), run={"rounds": 2})
    honest = Silo.mask
    with mock.patch.object(Silo, "mask", remember):
        federate(secure, nodes(secure, look, state=str(tmp_path / "state")), tmp_path / "runs")
    assert len(masked) == 2 * 6 * len(methods.KFFL().round)
    hidden = np.unique(np.concatenate(plain)).view(np.uint64)
    sent = np.concatenate(masked)
    assert not np.isin(sent, hidden).any()
    # a small integer would have its upper bits all alike; those of a mask are those of a fair coin
    ones = np.unpackbits((sent >> np.uint64(56)).astype(np.uint8)).mean()
    assert abs(ones - 0.5) < 4 * 0.5 / np.sqrt(8 * len(sent))


# -- hostile replies ---------------------------------------------------------------------------------------------------


def of_secure(said: Mapping[str, Any]) -> Iterator[tuple[str, Attack]]:
    """Attacks on the record `secure` of a reply."""

    def put(content: RecordDict, record: Any) -> None:
        if record is None:
            del content["secure"]
        else:
            content["secure"] = record

    yield "no record", lambda content: put(content, None)
    yield "numbers", lambda content: put(content, MetricRecord({"a": 1.0}))
    yield "arrays", lambda content: put(content, ArrayRecord({}))
    wrong: list[Any] = [None, 1, "x", b"", b"\xff" * 5_000_000, [], ["x"] * 5, [b""] * 5, [b"\xff" * 2000] * 5, [1.5]]
    for name, right in said.items():
        lists = [right[:-1], right[::-1] + right] if isinstance(right, list) else []
        for value in (*wrong, *lists):
            if value == right:
                continue
            kept = {key: each for key, each in said.items() if key != name} | ({} if value is None else {name: value})
            yield f"{name}: {str(value)[:20]}", lambda content, kept=kept: put(content, ConfigRecord(kept))


def unopenable(content: RecordDict) -> None:
    """Sealed shares that nobody can open, or shares that are all the same."""
    said = dict(content["secure"])
    content["secure"] = ConfigRecord(said | {"shares": said["shares"][:1] * len(said["shares"])})


EVERY = [pytest.param(25, id="some"), pytest.param(1, id="all", marks=pytest.mark.full)]


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("kind", ["masked", "unmask"])
@pytest.mark.sample(1)
def test_hostile_replies_end_nothing(kind: str, every: int, silos: Path, tmp_path: Path) -> None:
    """An attack a round: on a masked reply, the sum is the others'; on an answer to `unmask`, it has the attacker in
    it. Only a mask that nobody can take off is noticed too late: that round has no sum. The run goes on."""
    asked = TRAIN if kind == "masked" else UNMASK
    seen: list[RecordDict] = []

    def look(silo: str, message: Message, reply: Message) -> Message:
        seen.extend([reply.content] if silo == "a" and message.metadata.message_type.startswith(asked) else [])
        return reply

    once = everyone(silos, run={"rounds": 1})
    federate(once, nodes(once, look, state=str(tmp_path / "once")), tmp_path / "first")
    tried = [*of_secure(seen[0]["secure"]), *of_words()]
    tried += of_record(seen[0], "fields") if kind == "masked" else []
    attacks = dict(enumerate([*tried[::every], ("unopenable", unopenable)], start=2))
    assert len(attacks) > 4

    def fault(silo: str, message: Message, reply: Message) -> Message:
        number = when(message)[0]
        hit = silo == "a" and message.metadata.message_type.startswith(asked) and number in attacks
        return changed(reply, attacks[number][1]) if hit else reply

    secure = everyone(silos, run={"rounds": 1 + len(attacks), "eval-every": 9999})
    found = federate(secure, nodes(secure, fault, state=str(tmp_path / "state")), tmp_path / "runs")
    last = len(attacks) + 1
    lost = found.log["round"][~found.log["applied"]].tolist()
    assert lost == ([last] if kind == "masked" else []), [attacks[number] for number in lost]
    gone = {number: {"a"} for number in attacks} | {last: set("abcdef")} if kind == "masked" else {}
    assert_same_bits(found, simulate(secure, tmp_path / "runs", gone))
    assert found.rejections["round"].tolist() == list(attacks)[: -1 if kind == "masked" else 0]
    assert set(found.rejections["client"]) <= {"a"}
    assert all(reason.startswith("the mask of a could not be rebuilt") for reason in obstacles(tmp_path / "runs"))


# -- deaths of the server ----------------------------------------------------------------------------------------------


class Mortal(Nodes):
    """Nodes that outlive the server, whose sending is a step of its life."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.disk = Disk()
        self.asked: dict[int, list[tuple[str, Any]]] = {}
        """By number of the exchange: the types of all messages, with transcript and survivors of `unmask`."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.disk.step("send")
        messages = list(messages)
        for message in messages:
            kind, number = message.metadata.message_type, when(message)[1]
            said = message.content.config_records.get("secure", {}) if kind == UNMASK else {}
            what = (said["transcript"], tuple(said["survivors"])) if said else None
            if number >= 0:
                self.asked.setdefault(number, []).append((kind, what))
        with mock.patch("equifed.files.os", os):  # the silos' own disks
            return super().push_messages(messages)


class ServerDisk(Disk):
    def step(self, name: str) -> None:
        if self.at is not None and len(self.steps) >= self.at:
            self._die(name)
        self.steps.append(name)


@dataclasses.dataclass(frozen=True)
class Silent(methods.FedAvg):
    """FedAvg, and before it a phase in which nothing is sent but that a silo took part."""

    name: ClassVar[str] = "flower.test_secure:Silent"  # as a configuration has it

    @property
    def round(self) -> tuple[Phase, ...]:
        def look(down: Record, state: Any, data: Data) -> tuple[Record, Any]:
            return {}, state

        return (Phase("look", (), (), look, ignore_replies), *super().round)


def live(secure: Setting, grid: Mortal, runs: Path, at: int | None, manner: str = "kill") -> ef.Result | None:
    """Start the run or go on with it; None if the server died."""
    grid.disk = ServerDisk(at, manner)
    try:
        with mock.patch("equifed.files.os", grid.disk), mock.patch("equifed.flower.journal.os", grid.disk):
            return federate(secure, grid, runs)
    except Death:
        gc.collect()
        return None


SAMPLED = {"clients-per-round": 5, "eval-every": 1}
"""Evaluations are exchanges of their own, between a checkpoint and the round that follows."""
PLANS: dict[str, dict[str, Any]] = {
    "all": {"checkpoint-every": 2},
    "all, measured": {"eval-every": 1, "checkpoint-every": 2},
    "sampled": SAMPLED,
}


@pytest.mark.parametrize(
    ("method", "share", "plan"),
    [
        (Silent(), 0.01, "all"),
        pytest.param(Silent(), 0.3, "all", marks=pytest.mark.full),
        pytest.param(methods.KFFL(), 0.3, "all", marks=pytest.mark.full),
        pytest.param(methods.FairFed(), 0.1, "all", marks=pytest.mark.full),
        pytest.param(methods.FedAvg(), 0.3, "sampled", marks=pytest.mark.full),
        pytest.param(methods.FedAvg(), 0.3, "all, measured", marks=pytest.mark.full),
    ],
    ids=repr,
)
@pytest.mark.full
def test_a_server_that_dies_anywhere_has_each_sum_once(
    method: Method, share: float, plan: str, silos: Path, tmp_path: Path
) -> None:
    """At every step of the disk and before every message; and once more while going on. Another silo is missing after
    each death, which changes no sum that was had, and the bits are those of a run that never died."""
    secure = everyone(silos, method, run={"rounds": 3, **PLANS[plan]})
    fault = missing({2: {"a"}}, {3: {"b"}})

    def grid(name: str) -> Mortal:
        configs = [node.node_config for node in nodes(secure, state=str(tmp_path / name / "state")).contexts.values()]
        return Mortal(SiloApp(secure), configs, fault)

    whole = grid("whole")
    expected = live(secure, whole, tmp_path / "whole" / "runs", None)
    assert expected is not None
    steps = len(whole.disk.steps)
    rng = np.random.default_rng(int(share * 100))
    for at in np.flatnonzero(rng.random(steps) < share):
        manner = str(rng.choice(["kill", "torn", "power"]))
        faulty, runs = grid(f"at-{at}"), tmp_path / f"at-{at}" / "runs"
        assert live(secure, faulty, runs, int(at), manner) is None
        if (runs / "run" / "status.json").is_file() and RunFolder(runs / "run").status()["status"] == "finished":
            found = ef.load_result(runs / "run")  # it died when all was done
            assert found.parameters[3].keys() == expected.parameters[3].keys()
            for name, value in expected.parameters[3].items():
                assert found.parameters[3][name].tobytes() == value.tobytes()
        else:
            again = live(secure, faulty, runs, int(rng.integers(0, 60)), manner)
            found = again or live(secure, faulty, runs, None)
            assert found is not None
            assert_same_bits(found, expected)
        assert found.log.drop(columns="seconds", errors="ignore").equals(
            expected.log.drop(columns="seconds", errors="ignore")
        )
        assert found.rejections.equals(expected.rejections)
        assert found.metrics.equals(expected.metrics)
        assert not (runs / "run" / "sums").exists()
        for number, asked in faulty.asked.items():
            unmasked = {what for kind, what in asked if kind == UNMASK}
            assert len(unmasked) <= 1, number
            kinds = [kind for kind, _ in asked]
            if UNMASK in kinds:  # nothing but the same question follows
                assert set(kinds[kinds.index(UNMASK) :]) == {UNMASK}
        shutil.rmtree(tmp_path / f"at-{at}")


@pytest.mark.full
def test_a_server_that_dies_after_an_evaluation_has_its_scores(silos: Path, tmp_path: Path) -> None:
    """The model of round 1 is measured after its checkpoint, when round 2 begins: silos do not help a second time."""
    secure = everyone(silos, run={"rounds": 3, **SAMPLED})
    expected = federate(secure, nodes(secure, state=str(tmp_path / "whole")), tmp_path / "runs", "whole")
    grid = nodes(secure, state=str(tmp_path / "state"))

    def fault(silo: str, message: Message, reply: Message) -> Message:
        if message.metadata.message_type.startswith(TRAIN) and when(message)[0] == 2:
            raise KeyboardInterrupt
        return reply

    grid.fault = fault
    with pytest.raises(KeyboardInterrupt):
        federate(secure, grid, tmp_path / "runs")
    grid.fault = None
    found = federate(secure, grid, tmp_path / "runs")
    assert found.metrics["round"].unique().tolist() == [1, 2, 3]
    assert found.metrics.equals(expected.metrics)
    assert list(map(str, found.notes)) == list(map(str, expected.notes))
    assert_same_bits(found, expected)


@pytest.mark.full
def test_a_server_that_dies_while_silos_join_goes_on_with_those_it_had(silos: Path, tmp_path: Path) -> None:
    """Whoever has come since was not there when the rows were summed."""
    secure = everyone(silos, run={"rounds": 1}, flower={"join-deadline": 0.05})
    configs = [node.node_config for node in nodes(secure, state=str(tmp_path / "state")).contexts.values()]
    grid, file = Mortal(SiloApp(secure), configs), tmp_path / "runs" / "run" / "sums" / "0000000000.sum"
    grid.gone = {"f"}
    stages = []
    for at in range(1, 40):
        assert live(secure, grid, tmp_path / "runs", at) is None
        entry = Journal(file.parent).read(0)
        stages.append(entry and entry.stage)
        if stages[-1] == "masked":
            break
    assert stages[-2:] == ["asked", "masked"]
    grid.gone = set()
    found = live(secure, grid, tmp_path / "runs", None)
    assert found is not None
    assert list(found.info["federation"]["silos"]) == list("abcde")
    assert found.log["replied"].tolist() == [5]


@pytest.mark.full
@pytest.mark.parametrize("stage", ["masked", "done"])
def test_who_was_summed_takes_part_though_the_server_died_then(stage: str, silos: Path, tmp_path: Path) -> None:
    """c masks its rows, the server dies, and c is not back when the run goes on: its rows are in the totals."""
    secure = everyone(silos, run={"rounds": 2}, flower={"join-deadline": 0.05})
    configs = [node.node_config for node in nodes(secure, state=str(tmp_path / "state")).contexts.values()]
    grid, runs = Mortal(SiloApp(secure), configs), tmp_path / "runs"
    for at in range(1, 60):
        assert live(secure, grid, runs, at) is None
        entry = Journal(runs / "run" / "sums").read(0)
        if entry is not None and entry.stage == stage:
            break
    else:
        pytest.fail(f"the joining was never {stage}")
    grid.gone = {"c"}

    def fault(silo: str, message: Message, reply: Message) -> Message:
        if message.metadata.message_type.startswith(TRAIN):
            grid.gone = set()
        return reply

    grid.fault = fault
    found = live(secure, grid, runs, None)
    assert found is not None
    assert list(found.info["federation"]["silos"]) == list("abcdef")
    assert found.info["rows"]["train"] == 142
    assert found.log["replied"].tolist() == [5, 6]
    assert found.rejections[["round", "client", "reason"]].to_numpy().tolist() == [[1, "c", "not connected"]]


def test_a_damaged_journal_is_named(silos: Path, tmp_path: Path) -> None:
    secure = everyone(silos, run={"rounds": 2, "checkpoint-every": 2})
    configs = [node.node_config for node in nodes(secure, state=str(tmp_path / "state")).contexts.values()]
    grid, sums = Mortal(SiloApp(secure), configs), tmp_path / "runs" / "run" / "sums"
    for at in range(40, 400, 5):
        assert live(secure, grid, tmp_path / "runs", at) is None
        files = [file for file in sums.glob("*.sum") if int(file.stem) != JOINING]  # which is not needed again
        if files:
            break
    file = files[0]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    content = file.read_bytes()
    file.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    with pytest.raises(RunError, match=re.escape(f"{file} is damaged (it does not fit its checksum)")):
        live(secure, grid, tmp_path / "runs", None)
    file.write_bytes(content)
    found = live(secure, grid, tmp_path / "runs", None)
    assert found is not None
    assert found.log["applied"].all()


@pytest.mark.full
def test_a_setup_without_its_sum_can_be_tried_again(silos: Path, tmp_path: Path) -> None:
    """It ends the run. Once the silos are back, the resumed run has the sum, whether they had masked it or not."""
    for kind in ("before", "after"):
        secure = everyone(silos, methods.FairFed(), run={"rounds": 1})
        gone = {0: {"a", "b"}}
        state = str(tmp_path / kind)
        grid = nodes(secure, missing(gone, {}) if kind == "before" else missing({}, gone), state=state)
        with pytest.raises(RunError, match="The setup phases could not be finished"):
            federate(secure, grid, tmp_path / "runs", kind)
        grid.fault = None
        found = federate(secure, grid, tmp_path / "runs", kind)
        assert_same_bits(found, simulate(secure, tmp_path / "runs", run=kind))
