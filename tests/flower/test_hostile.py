"""Hundreds of malformed, hostile and huge replies: none ends a run, none is applied, and what they say stays short.

`make test` tries one in twenty, `make test-full` all; `benchmarks/reliability.py` records how many there were.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from equifed.flower.link import Link, registered
from equifed.words import MOST
from flower.hostile import WORDS, Attack, changed, of_evaluation, of_joining, of_record, of_words
from flower.inprocess import Nodes, answer, be_the_server, federate, nodes, setting

EVERY = [pytest.param(20, id="some"), pytest.param(1, id="all", marks=pytest.mark.full)]
QUICK = {"deadline": 0.05, "join-deadline": 0.05, "min-replies": 1, "min-count": 0}


def is_clean(text: str) -> bool:
    return len(text) <= MOST and text.isprintable()


def honest(folder: Path, runs: Path, kind: str, record: str) -> RecordDict:
    """What a silo answers to a message of this type."""
    seen: list[RecordDict] = []

    def look(silo: str, message: Message, reply: Message) -> Message:
        if silo == "a" and message.metadata.message_type == kind and record in reply.content:
            seen.append(reply.content)
        return reply

    made = setting(folder, run={"clients-per-round": "all", "rounds": 2}, flower=QUICK)
    federate(made, nodes(made, look), runs, "honest")
    return seen[0]


def one_a_round(attacks: Mapping[int, Attack], record: str):  # type: ignore[no-untyped-def]
    """A fault of silo a in the rounds that are named."""

    def fault(silo: str, message: Message, reply: Message) -> Message:
        number = int(message.content.config_records["about"].get("round", 0))
        hit = silo == "a" and number in attacks and record in reply.content
        return changed(reply, attacks[number]) if hit else reply

    return fault


@pytest.mark.parametrize("every", EVERY)
def test_replies_to_training(
    every: int, silos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], record_property: Callable[..., None]
) -> None:
    """An attack in every round from the second on: each refused by name, and the model as if nothing had come."""
    content = honest(silos, tmp_path, "train.train", "fields")
    attacks = dict(enumerate(islice([*of_record(content, "fields"), *of_words()], 0, None, every), start=2))
    capsys.readouterr()
    made = setting(
        silos, run={"clients-per-round": "all", "rounds": 1 + len(attacks), "eval-every": 9999}, flower=QUICK
    )
    fault = one_a_round({number: attack for number, (_, attack) in attacks.items()}, "fields")
    found = federate(made, nodes(made, fault), tmp_path)
    told = capsys.readouterr().out
    refused = found.rejections.set_index("round")["reason"].to_dict()
    missing = {number: name for number, (name, _) in attacks.items() if number not in refused}
    assert not missing
    assert set(found.rejections["client"]) == {"a"}
    assert all(map(is_clean, refused.values()))
    assert found.log["applied"].all()
    assert "Round 2 of 2" not in told.splitlines()
    assert "\x1b" not in told
    assert max(map(len, told.splitlines())) < 2 * MOST

    def silent(silo: str, message: Message, reply: Message) -> Message | None:
        number = int(message.content.config_records["about"].get("round", 0))
        return None if silo == "a" and number in attacks and "fields" in reply.content else reply

    made = setting(
        silos,
        run={"clients-per-round": "all", "rounds": 1 + len(attacks), "eval-every": 9999},
        flower=QUICK | {"deadline": 0.001},
    )
    alone = federate(made, nodes(made, silent), tmp_path, "silent")
    for name, value in alone.parameters[3].items():
        np.testing.assert_array_equal(found.parameters[3][name], value)
    stored = "".join(file.read_text(errors="replace") for file in (tmp_path / "run").rglob("*.json*"))
    assert "\x1b" not in stored
    assert len(stored) < 3000 * len(attacks) + 100_000
    record_property("tried", len(attacks))
    record_property("refused", len(refused))


@pytest.mark.parametrize("every", EVERY)
def test_evaluations(every: int, silos: Path, tmp_path: Path, record_property: Callable[..., None]) -> None:
    content = honest(silos, tmp_path, "train.train", "evaluation")
    attacks = dict(enumerate(islice(of_evaluation(content), 0, None, every), start=2))
    made = setting(silos, run={"clients-per-round": "all", "rounds": 1 + len(attacks)}, flower=QUICK)
    fault = one_a_round({number: attack for number, (_, attack) in attacks.items()}, "evaluation")
    found = federate(made, nodes(made, fault), tmp_path)
    refused = found.rejections.set_index("round")["reason"].to_dict()
    missing = {number: name for number, (name, _) in attacks.items() if number not in refused}
    # some fields mean nothing here, and a lie in them is as none: zeros below zero, and an array that is empty
    possible = {name for name in missing.values() if name.startswith(("ks: -0", "mean: -0"))}
    assert set(missing.values()) == possible
    assert set(found.rejections["client"]) == {"a"}
    assert set(found.rejections["phase"]) == {"evaluation"}
    assert all(map(is_clean, refused.values()))
    everyone = found.metrics.query("scope == 'global' and split == 'test'").pivot_table(
        index="round", columns="metric", values="value", observed=True
    )
    rows = {silo: len(nodes_test_rows(silos, silo)) for silo in "abcdef"}
    others = sum(rows.values()) - rows["a"]
    lied = [number - 1 for number in refused]
    assert set(everyone.loc[lied, "rows"]) == {others}
    assert everyone["accuracy"].between(0, 1).all()
    assert np.isfinite(everyone["loss"]).all()
    record_property("tried", len(attacks))
    record_property("refused", len(refused))


def nodes_test_rows(folder: Path, silo: str) -> np.ndarray:
    fed = setting(folder).view(silo=silo, file=folder / f"{silo}.parquet")
    assert fed.client_test is not None
    return fed.client_test["abcdef".index(silo)]


@pytest.mark.parametrize("every", EVERY)
def test_joining(every: int, silos: Path, tmp_path: Path, record_property: Callable[..., None]) -> None:
    content = honest(silos, tmp_path, "query.join", "fields")
    attacks = list(islice(of_joining(content), 0, None, every))
    made = setting(silos, flower=QUICK)
    # what leaves out the sums or says nothing of itself is a silo that keeps them back, or nobody
    shy = {"fields: no record"}
    be_the_server()
    refused = 0
    for name, attack in attacks:

        def fault(silo: str, message: Message, reply: Message, attack: Attack = attack) -> Message:
            return changed(reply, attack) if silo == "a" else reply

        link = Link(nodes(made, fault), made.silos, made.digest, "run", scaled=4)
        link.gather(0.0, 5)
        assert ("a" in link.here) == (name in shy), name
        if name not in shy:
            refused += 1
            assert "a" not in link.members
            assert is_clean(link.why_not("a")), name
    record_property("tried", len(attacks))
    record_property("refused", refused)


@pytest.mark.parametrize("words", WORDS)
def test_what_a_node_calls_itself(words: str, silos: Path) -> None:
    made = setting(silos, flower=QUICK)

    def fault(silo: str, message: Message, reply: Message) -> Message:
        if silo == "a":
            reply.content["about"] = ConfigRecord({**reply.content["about"], "client": WORDS[words]})
        return reply

    be_the_server()
    link = Link(nodes(made, fault), made.silos, made.digest, "run", scaled=4)
    link.gather(0.0, 5)
    (stranger,) = link.strangers
    assert is_clean(stranger)


def test_a_reply_that_flower_cannot_put_together(silos: Path, tmp_path: Path) -> None:
    """Flower's own error stays with the silo that it is about, and the replies of the others are read."""
    made = setting(silos, run={"clients-per-round": "all", "rounds": 2}, flower=QUICK)

    class Broken(Nodes):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            numbers = list(message_ids)
            if ("a", "train.train") in [self.sent[int(number)] for number in numbers]:
                raise ValueError("Invalid object\x1b[31m " + "x" * 1000)
            return super().pull_messages(numbers)

    grid = Broken(nodes(made).app, [context.node_config for context in nodes(made).contexts.values()])
    found = federate(made, grid, tmp_path)
    assert found.log["replied"].tolist() == [5, 5]
    assert set(found.rejections["client"]) == {"a"}
    assert found.rejections["reason"].str.startswith("Flower could not read its reply (ValueError: Invalid").all()
    assert all(map(is_clean, found.rejections["reason"]))


def test_words_whose_letters_the_terminal_lacks(silos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are escaped there, and do not end the run."""
    made = setting(silos, run={"clients-per-round": "all", "rounds": 1}, flower=QUICK)

    def fault(silo: str, message: Message, reply: Message) -> Message:
        if silo == "a" and message.metadata.message_type == "train.train":
            reply.content["about"] = ConfigRecord({**reply.content["about"], "refused": "kaputt: Größe 女"})
        return reply

    seen = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(seen, encoding="ascii"))
    found = federate(made, nodes(made, fault), tmp_path)
    assert found.log["replied"].tolist() == [5]
    assert found.rejections["reason"].tolist() == ["kaputt: Größe 女"]
    assert rb"kaputt: Gr\xf6\xdfe \u5973" in seen.getvalue()


# -- names, keys and rows ----------------------------------------------------------------------------------------------


def test_a_name_belongs_to_the_key_that_joined_first(silos: Path, tmp_path: Path) -> None:
    """While a is away a registered node takes its name: it is sent away, and a comes back."""
    made = setting(silos, run={"clients-per-round": "all", "rounds": 5}, flower=QUICK)
    grid = nodes(made)
    (impostor,) = (node for node in nodes(made).contexts if grid.silo(node) == "a")
    own = grid.contexts[impostor]

    def fault(silo: str, message: Message, reply: Message) -> Message:
        if silo != "f" or message.metadata.message_type != "train.train":
            return reply
        number = int(message.content["about"]["round"])
        if number == 1:  # another node, with a's configuration and a key of its own
            del grid.contexts[impostor]
            grid.contexts[999] = nodes(made).contexts[impostor]
            grid.contexts[999].node_id, grid.keys[999] = 999, b"somebody else's key"
        if number == 3:
            del grid.contexts[999]
            grid.contexts[impostor] = own
        return reply

    grid.fault = fault
    found = federate(made, grid, tmp_path)
    assert found.log["replied"].tolist() == [6, 5, 5, 6, 6]
    assert grid.sent.count(("a", "train.train")) == 3  # the impostor was never asked to train
    roster = json.loads((tmp_path / "run" / "federation.json").read_text())
    assert len({declared["key"] for declared in roster["silos"].values()}) == 6


def test_a_name_belongs_to_the_key_that_was_registered_for_it(silos: Path, tmp_path: Path) -> None:
    """Also before the silo has ever joined."""
    from equifed.flower.deployment.credentials import write_key_pair

    write_key_pair(tmp_path, "a")
    keys = registered(lambda silo: tmp_path / f"{silo}.pub", "abcdef")
    assert set(keys) == {"a"}
    made = setting(silos, flower=QUICK)
    grid = nodes(made)
    be_the_server()
    link = Link(grid, made.silos, made.digest, "run", scaled=4, keys=keys)
    link.gather(0.0, 5)
    assert link.here == list("bcdef")
    assert link.strangers == ["a node that calls itself 'a' and does not have the key of a"]
    # as Flower's own command reads the file, and its nodes present themselves
    from flwr.cli.supernode.register import try_load_public_key

    (node,) = (each for each in grid.contexts if grid.silo(each) == "a")
    grid.keys[node] = try_load_public_key(tmp_path / "a.pub")
    link = Link(grid, made.silos, made.digest, "run", scaled=4, keys=keys)
    link.gather(0.0, 6)
    assert link.here == list("abcdef")


def test_a_silo_does_not_change_its_rows_within_a_run(silos: Path, tmp_path: Path) -> None:
    made = setting(silos, run={"clients-per-round": "all", "rounds": 4}, flower=QUICK)
    grid = nodes(made)
    joined = []

    def fault(silo: str, message: Message, reply: Message) -> Message:
        if silo == "a" and message.metadata.message_type == "query.join":
            joined.append(silo)
            if len(joined) > 1:
                reply.content["about"] = ConfigRecord({**reply.content["about"], "rows": 10**9})
        if silo == "f" and message.metadata.message_type == "train.train":
            grid.gone = {"a"} if int(message.content["about"]["round"]) == 1 else set()
        return reply

    grid.fault = fault
    found = federate(made, grid, tmp_path)
    assert len(joined) > 1
    assert found.log["replied"].tolist() == [6, 5, 5, 5]
    assert "has another number of rows than when it first joined" in found.rejections["reason"].iloc[-1]
    assert found.info["federation"]["silos"]["a"]["rows"] == 37


def test_inputs_of_another_size_are_refused_by_name(silos: Path, tmp_path: Path) -> None:
    """Sums that some rows could have, but not beside the others'."""
    made = setting(silos, run={"clients-per-round": "all", "rounds": 1}, flower=QUICK)

    def fault(silo: str, message: Message, reply: Message) -> Message:
        if silo == "a" and message.metadata.message_type == "query.join":
            fields = reply.content["fields"]
            for name, factor in (("sum", 1e6), ("squares", 1e12)):
                fields[name] = Array(fields[name].numpy() * factor)
        return reply

    found = federate(made, nodes(made, fault), tmp_path)
    (reason,) = found.rejections["reason"]
    assert "10,000 times as large as at the other silos" in reason
    honest = setting(silos, run={"clients-per-round": "all", "rounds": 1}, flower=QUICK)
    grid = nodes(honest)
    grid.gone = {"a"}
    federate(honest, grid, tmp_path, "without")
    scalings = [json.loads((tmp_path / run / "federation.json").read_text())["scaling"] for run in ("run", "without")]
    assert scalings[0] == scalings[1]


# -- the silo's side ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shift", "factor"),
    [
        (np.nan, 1), (0, np.nan), (np.inf, 1), (0, np.inf), (0, 0), (0, -1), (3e38, 3e38),
    ],
)  # fmt: skip
@pytest.mark.sample(3)
def test_a_silo_sends_no_nan(shift: float, factor: float, silos: Path, tmp_path: Path) -> None:
    """Whatever the server says that inputs are scaled by: it gets the reason why not."""
    made = setting(silos, run={"clients-per-round": "all", "rounds": 1}, flower=QUICK)
    asked: list[Message] = []

    def keep(silo: str, message: Message, reply: Message) -> Message:
        if silo == "a" and message.metadata.message_type != "query.join":
            asked.append(message)
        return reply

    grid = nodes(made, keep)
    federate(made, grid, tmp_path)
    (own,) = (context for context in grid.contexts.values() if context.node_config["client-id"] == "a")
    for message in asked:
        values = {"shift": np.full(4, shift, np.float32), "factor": np.full(4, factor, np.float32)}
        message.content["scaling"] = ArrayRecord({name: Array(value) for name, value in values.items()})
        reply = answer(grid.app, message, own)
        about = reply.content["about"]
        assert "the server's message" in about["refused"]
        assert is_clean(about["refused"])


def test_a_silo_repeats_no_long_words(silos: Path) -> None:
    made = setting(silos)
    grid = nodes(made)
    be_the_server()
    (own,) = (context for context in grid.contexts.values() if context.node_config["client-id"] == "a")
    for words in WORDS.values():
        content = RecordDict({"about": ConfigRecord({"app": made.digest, "run": words})})
        reply = answer(grid.app, Message(content, own.node_id, "query.join"), own)
        assert is_clean(str(reply.content["about"].get("refused", "")))


def test_keys_that_are_swapped_open_nothing(silos: Path, tmp_path: Path) -> None:
    """Two silos leave, and come back under one another's names: both are sent away until each has its own again."""
    made = setting(silos, run={"clients-per-round": "all", "rounds": 5}, flower=QUICK)
    grid = nodes(made)
    first, second = (node for node in grid.contexts if grid.silo(node) in "ab")

    def fault(silo: str, message: Message, reply: Message) -> Message:
        if silo == "f" and message.metadata.message_type == "train.train":
            number = int(message.content["about"]["round"])
            grid.gone = {"a", "b"} if number in (1, 3) else set()
            swapped = {first: b"key of b", second: b"key of a"}
            grid.keys = swapped if number == 2 else {} if number == 4 else grid.keys
        return reply

    grid.fault = fault
    found = federate(made, grid, tmp_path)
    assert found.log["replied"].tolist() == [6, 4, 4, 4, 6]


def test_a_second_node_of_a_name_is_never_asked(silos: Path, tmp_path: Path) -> None:
    """Also with the same key: who is there stays there, and its replies count once."""
    made = setting(silos, run={"clients-per-round": "all", "rounds": 2}, flower=QUICK)
    grid = nodes(made)
    (own,) = (node for node in grid.contexts if grid.silo(node) == "a")
    grid.contexts[999] = nodes(made).contexts[own]
    grid.contexts[999].node_id = 999
    found = federate(made, grid, tmp_path)
    assert found.log["replied"].tolist() == [6, 6]
    assert grid.sent.count(("a", "train.train")) == 2
