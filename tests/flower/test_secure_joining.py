"""Joining with secure sums: silos show keys and nothing of their rows, and who vouches for the keys is checked."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import ConfigRecord, Message

from equifed.data.encode import MAX_STANDARDISED
from equifed.errors import RunError
from equifed.files import read_sealed
from equifed.flower.joining import _read, integers
from equifed.flower.link import NOT_COUNTED, Link, is_possible_sum, registered
from equifed.secure import sign
from equifed.store.folder import FEDERATION
from flower.inprocess import SIZES, be_the_server, federate, nodes, setting, write_files
from flower.secure import Traffic, claim, keyed_nodes, secure_setting, write_keys

FULL = pytest.mark.full


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    write_keys(tmp_path / "keys", SIZES)
    return tmp_path / "keys"


def test_totals_are_those_of_the_rows_and_nothing_else_is_told(silos: Path, tmp_path: Path) -> None:
    """The same standardisation as from single silos' sums, to the last bit."""
    made, plain, traffic = secure_setting(silos, run={"rounds": 1}), setting(silos, run={"rounds": 1}), Traffic()
    found = federate(made, keyed_nodes(made, None, tmp_path / "state", fault=traffic), tmp_path / "secure")
    expected = federate(plain, nodes(plain), tmp_path / "plain")
    for name in ("train", "test"):
        assert found.info["rows"][name] == expected.info["rows"][name]
    kept, told = (read_sealed(tmp_path / mode / "run" / FEDERATION) for mode in ("secure", "plain"))
    assert kept["scaling"] == told["scaling"]
    assert kept["totals"] == {"rows": expected.info["rows"]["train"], "test_rows": expected.info["rows"]["test"]}
    assert {name for silo in kept["silos"].values() for name in silo} == {
        *("key", "public", "signature", "roster", "min_count"),
    }
    for content in traffic.of("query.join", 0).values():
        assert set(content["about"]) == {"client", "public", "signature", "roster", "min-count"}
        assert set(content) == {"about"}
    assert found.info["federation"]["silos"] == {silo: {} for silo in SIZES}


def test_sums_for_standardising_are_exact() -> None:
    """Whatever their size, and in whatever order; sums that no rows have are refused."""
    rng = np.random.default_rng(3)
    rows = [rng.normal(size=(n, 3)) * [1e-9, 1, 1e7] + [0, 1e6, -1e9] for n in (5, 0, 40)]
    sums = [np.stack([x.sum(0), (x * x).sum(0)]) for x in rows]
    numbers = sum(integers(len(x), 2, each, 3) for x, each in zip(rows, sums, strict=True))
    found = _read(numbers, 3)
    assert found.totals == (45, 6)
    np.testing.assert_array_equal(found.sums, np.apply_along_axis(math.fsum, 0, sums))
    one = sums[0]
    for wrong in ((-1, 2, one), (5, -2, one), (5, 2, -one), (0, 2, one), (5, 2, one * [[1], [1e-3]])):
        with pytest.raises(RunError, match="The joining totals are impossible"):
            _read(integers(*wrong, 3), 3)


@pytest.mark.parametrize("rows", [10, 10**5, 10**6])
def test_columns_of_the_largest_numbers_have_sums(rows: int) -> None:
    """All of one value, whose sums round in 64 bits: of 10^5 rows the squares add up to more than 10^5 times one."""
    x = np.full((rows, 2), MAX_STANDARDISED) * [1, -1]
    total, squares = x.sum(0), (x * x).sum(0)
    assert is_possible_sum(rows, total, squares)
    assert not is_possible_sum(rows, total * 1.01, squares)
    assert not is_possible_sum(rows, total, squares * 1.01)


def test_min_count_is_about_the_totals(silos: Path, tmp_path: Path) -> None:
    """In plain mode a silo with few rows keeps its sums back; here all are in the total, which must be enough."""
    made = secure_setting(silos, run={"rounds": 1}, flower={"min-count": 100})
    found = federate(made, keyed_nodes(made, None, tmp_path / "state"), tmp_path / "runs")
    assert found.info["rows"]["train"] == 142
    more = keyed_nodes(made, None, tmp_path / "more")
    more.contexts[102].node_config["min-count"] = 143
    with pytest.raises(RunError, match=r"are 142 and should be at least 143 \(min-count\)"):
        federate(made, more, tmp_path / "runs", "more")


# -- who takes part ----------------------------------------------------------------------------------------------------


def test_who_comes_late_takes_no_part(silos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named, round after round, and nothing ends."""
    made = secure_setting(silos, run={"rounds": 3}, flower={"join-deadline": 0.05})
    grid = keyed_nodes(made, None, tmp_path / "state")
    grid.gone = {"b"}

    def fault(silo: str, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train.train":
            grid.gone = set()
        return reply

    grid.fault = fault
    found = federate(made, grid, tmp_path / "runs")
    assert found.log["applied"].all()
    assert list(found.log["replied"]) == [5, 5, 5]
    assert found.rejections.query("round == 3")[["client", "reason"]].values.tolist() == [["b", NOT_COUNTED]]
    assert "b" not in found.info["federation"]["silos"]
    assert "b takes no part: not connected" in capsys.readouterr().out


def test_a_silo_that_is_gone_at_the_sum_takes_no_part(silos: Path, tmp_path: Path) -> None:
    """One may be; without two of six nothing begins."""
    made, lost = secure_setting(silos, run={"rounds": 1}, flower={"deadline": 0.05}), {"d"}

    def fault(silo: str, message: Message, reply: Message) -> Message | None:
        return None if silo in lost and message.metadata.message_type == "query.introduce" else reply

    found = federate(made, keyed_nodes(made, None, tmp_path / "state", fault=fault), tmp_path / "runs")
    assert found.log["applied"].all()
    assert set(found.info["federation"]["silos"]) == set("abcef")
    assert found.info["rows"]["train"] == 142 - 1  # d has one row
    lost.add("e")
    grid = keyed_nodes(made, None, tmp_path / "other", fault=fault)
    with pytest.raises(RunError, match=r"could not be computed, so the run cannot begin: .* d: no reply within"):
        federate(made, grid, tmp_path / "runs", "few")


def test_a_failed_joining_is_tried_again_with_the_same_silos(silos: Path, tmp_path: Path) -> None:
    """Four of six have masked their rows with those five others, and do so with nobody else, whoever comes and goes."""
    made = secure_setting(silos, run={"rounds": 1}, flower={"deadline": 0.05, "join-deadline": 0.1})

    def fault(silo: str, message: Message, reply: Message) -> Message | None:
        return None if silo in "ab" and message.metadata.message_type == "query.introduce" else reply

    grid = keyed_nodes(made, None, tmp_path / "state", fault=fault)
    with pytest.raises(RunError, match=r"b: no reply within 0 s\. Nothing has been trained yet: start a new run\."):
        federate(made, grid, tmp_path / "runs")
    grid.fault, grid.gone = None, {"f"}
    found = federate(made, grid, tmp_path / "runs")
    assert list(found.info["federation"]["silos"]) == list("abcde")
    grid.fault, grid.gone = fault, {"f"}
    with pytest.raises(RunError, match="could not be computed"):
        federate(made, grid, tmp_path / "runs", "later")
    grid.fault, grid.gone = None, set()  # f comes when it is settled who takes part
    found = federate(made, grid, tmp_path / "runs", "later")
    assert list(found.info["federation"]["silos"]) == list("abcde")
    assert found.rejections[["client", "reason"]].to_numpy().tolist() == [["f", NOT_COUNTED]]
    assert found.info["rows"]["train"] == 142 - 30


def test_without_a_state_folder_nobody_joins(silos: Path, tmp_path: Path) -> None:
    made = secure_setting(silos, flower={"join-deadline": 0.05})
    with pytest.raises(RunError, match="a: the node has no state folder, which secure sums need"):
        federate(made, nodes(made), tmp_path / "runs")


def test_a_row_that_does_not_fit_is_not_numbered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A row's number says that the silo has so many."""
    write_files(tmp_path)
    frame = pd.read_parquet(tmp_path / "b.parquet")
    frame.loc[7, "bought"] = "secret"
    frame.to_parquet(tmp_path / "b.parquet")
    made = secure_setting(tmp_path)
    link = joined(made, keyed_nodes(made, None, tmp_path / "state"))
    assert link.refused["b"] == "its file does not fit the schema: Column 'bought' (see the silo's log)"
    assert "Column 'bought', row 7: 'secret' is not a known class" in caplog.text  # the silo's own log


# -- keys --------------------------------------------------------------------------------------------------------------


def joined(made, grid, keys=None, **more) -> Link:
    be_the_server()
    link = Link(grid, made.silos, made.digest, "run", 4, keys or {}, secure=True, **more)
    link.gather(0.0, 1)
    return link


def public_keys(keys: Path) -> dict[str, bytes]:
    return registered(lambda silo: keys / f"{silo}.pub", list(SIZES))


def known_to_flower(grid, keys: Path) -> None:
    from flwr.cli.supernode.register import try_load_public_key

    grid.keys.update({node: try_load_public_key(keys / f"{grid.silo(node)}.pub") for node in grid.contexts})


BAD = {
    "no key": ({"public": None}, "without a valid key for this run"),
    "text": ({"public": "x" * 32}, "without a valid key for this run"),
    "short": ({"public": b"x" * 31}, "without a valid key for this run"),
    "long": ({"public": b"x" * 1_000_000}, "without a valid key for this run"),
    "all zeros": ({"public": b"\0" * 32}, "without a valid key for this run"),
    "of low order": ({"public": b"\1" + b"\0" * 31}, "without a valid key for this run"),
    "no signature": ({"signature": None}, "an invalid signature"),
    "number": ({"signature": 7}, "an invalid signature"),
    "oversized": ({"signature": b"x" * 5_000_000}, "an invalid signature"),
    "empty signature": ({"signature": b""}, "that its node has not signed"),
    "random signature": ({"signature": b"x" * 103}, "that its node has not signed"),
    "own key, other signature": ({"public": bytes(range(32))}, "that its node has not signed"),
    "min-count": ({"min-count": -1}, "expected a whole number"),
    "words": ({"refused": "\x1b[31mno\n" * 100_000}, "no"),
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.sample(5)
def test_bad_introductions_are_refused_by_name(silos: Path, tmp_path: Path, keys: Path, what: str) -> None:
    made, (changes, says) = secure_setting(silos), BAD[what]

    def fault(silo: str, message: Message, reply: Message) -> Message:
        if silo == "c":
            claim(reply.content, **changes)
        return reply

    grid = keyed_nodes(made, keys, tmp_path / "state", fault=fault)
    known_to_flower(grid, keys)
    link = joined(made, grid, public_keys(keys))
    assert link.here == list("abdef")
    assert says in link.refused["c"]
    assert "\x1b" not in link.refused["c"]


def test_another_silos_key_or_signature_is_refused(silos: Path, tmp_path: Path, keys: Path) -> None:
    """Also one that another has signed, or that is signed for another run."""
    made, shown = secure_setting(silos), {}

    def fault(silo: str, message: Message, reply: Message) -> Message:
        said = shown.setdefault(silo, dict(reply.content["about"]))
        if silo == "b":  # a's
            claim(reply.content, public=shown["a"]["public"], signature=shown["a"]["signature"])
        if silo == "c":
            claim(reply.content, signature=sign(keys / "a", "run", made.digest, said["public"]))
        if silo == "d":
            claim(reply.content, signature=sign(keys / "d", "another", made.digest, said["public"]))
        if silo == "e":
            claim(reply.content, signature=sign(keys / "e", "run", "other app", said["public"]))
        return reply

    grid = keyed_nodes(made, keys, tmp_path / "state", fault=fault)
    known_to_flower(grid, keys)
    link = joined(made, grid, public_keys(keys))
    assert link.here == ["a", "f"]
    assert link.refused["b"] == "joined with the key of a"
    for silo in "cde":
        assert link.refused[silo] == "joined with a key for this run that its node has not signed"


def test_a_key_does_not_change_within_a_run(silos: Path, tmp_path: Path) -> None:
    """A silo whose state folder is lost has another; so has somebody who pretends to be it."""
    made = secure_setting(silos, run={"rounds": 3})
    grid = keyed_nodes(made, None, tmp_path / "state")

    def fault(silo: str, message: Message, reply: Message) -> Message:
        number = message.content["about"].get("round")
        if (silo, message.metadata.message_type, number) == ("f", "train.train", 1):
            grid.gone = {"b"}
            (tmp_path / "state" / "run" / "b" / "secret").unlink()
        if (silo, message.metadata.message_type, number) == ("f", "train.train", 2):
            grid.gone = set()
        return reply

    grid.fault = fault
    found = federate(made, grid, tmp_path / "runs")
    assert found.log["applied"].all()
    reasons = found.rejections[found.rejections["client"] == "b"]["reason"].tolist()
    assert reasons[0] == "not connected"
    assert reasons[-1].startswith("has another key than when it first joined this run")


# -- rosters -----------------------------------------------------------------------------------------------------------


def test_who_vouches_is_told(silos: Path, tmp_path: Path, keys: Path) -> None:
    made = secure_setting(silos, run={"rounds": 1})
    grid = keyed_nodes(made, keys, tmp_path / "state", roster="ac")
    found = federate(made, grid, tmp_path / "runs")
    assert found.info["federation"]["secure"]["roster"] == ["a", "c"]
    assert found.log["applied"].all()


def test_a_roster_that_comes_later_has_vouched_for_nobody(silos: Path, tmp_path: Path, keys: Path) -> None:
    """a has one from the beginning and loses it, b gets one when the keys are long agreed."""
    made = secure_setting(silos)
    grid = keyed_nodes(made, keys, tmp_path / "state", roster="a")

    def fault(silo: str, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train.train" and int(message.content["about"]["round"]) == 2:
            raise KeyboardInterrupt
        return reply

    grid.fault = fault
    with pytest.raises(KeyboardInterrupt):
        federate(made, grid, tmp_path / "runs")
    grid.fault = None
    first, second, *_ = grid.contexts.values()
    second.node_config["roster"] = first.node_config.pop("roster")
    found = federate(made, grid, tmp_path / "runs")
    assert found.info["federation"]["secure"]["roster"] == ["a"]


@pytest.mark.parametrize(
    "lie", ["both", *(pytest.param(lie, marks=FULL) for lie in ("key", "signature", "nothing signed"))]
)
def test_a_server_in_the_middle_is_found_by_the_roster(silos: Path, tmp_path: Path, keys: Path, lie: str) -> None:
    """It shows a key of its own in the place of c's. Who has a roster masks nothing; who has none cannot know."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    made = secure_setting(silos, run={"rounds": 1})
    own = X25519PrivateKey.generate().public_key().public_bytes_raw()
    grid = keyed_nodes(made, keys, tmp_path / "state", roster="ab")
    write_keys(tmp_path / "server", ["c"])
    honest, refusals = grid.push_messages, {}

    def push(messages):
        messages = list(messages)
        for message in messages:
            content = message.content
            if message.metadata.message_type == "query.introduce" and grid.silo(message.metadata.dst_node_id) != "c":
                asked, signed = dict(content["secure"]), dict(content["signatures"])
                if lie in ("key", "both"):
                    asked["keys"] = [
                        own if name == "c" else key for name, key in zip(asked["cohort"], asked["keys"], strict=True)
                    ]
                if lie in ("signature", "both"):
                    signed["c"] = sign(tmp_path / "server" / "c", "run", made.digest, own)
                if lie == "nothing signed":
                    signed = {}
                content["secure"], content["signatures"] = ConfigRecord(asked), ConfigRecord(signed)
        return honest(messages)

    def fault(silo: str, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "query.introduce":
            refusals[silo] = reply.content["about"].get("refused", "")
        return reply

    grid.push_messages, grid.fault = push, fault
    with pytest.raises(RunError, match="could not be computed"):  # two of six refuse: below the threshold of five
        federate(made, grid, tmp_path / "runs")
    for silo in "ab":
        assert "is not signed by the node that the roster has for it" in refusals[silo]
    for silo in "cdef":
        assert not refusals[silo]


def test_a_roster_without_a_silo_takes_part_with_nobody_unknown(silos: Path, tmp_path: Path, keys: Path) -> None:
    listed = json.loads((keys / "roster.json").read_text())
    del listed["d"]
    (keys / "roster.json").write_text(json.dumps(listed))
    made = secure_setting(silos, run={"rounds": 1})
    grid = keyed_nodes(made, keys, tmp_path / "state", roster="a")
    found = federate(made, grid, tmp_path / "runs")
    assert set(found.info["federation"]["silos"]) == set("bcdef")
    assert "'d' is not in this silo's roster" in found.rejections.query("client == 'a'")["reason"].iloc[0]


def test_nobody_is_slipped_in_after_the_joining(silos: Path, tmp_path: Path, keys: Path) -> None:
    """A server that adds a silo of its own to a later cohort, with a key that no roster has signed, gets nothing."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    made = secure_setting(silos, run={"rounds": 1})
    own = X25519PrivateKey.generate().public_key().public_bytes_raw()
    grid = keyed_nodes(made, keys, tmp_path / "state", roster="abcdef")
    honest, refusals = grid.push_messages, {}

    def push(messages):
        messages = list(messages)
        for message in messages:
            if message.metadata.message_type == "train.train":
                asked = dict(message.content["secure"])
                asked["cohort"], asked["keys"] = [*asked["cohort"], "z"], [*asked["keys"], own]
                message.content["secure"] = ConfigRecord(asked)
        return honest(messages)

    def fault(silo: str, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train.train":
            refusals[silo] = reply.content["about"].get("refused", "")
        return reply

    grid.push_messages, grid.fault = push, fault
    found = federate(made, grid, tmp_path / "runs")
    assert not found.log["applied"].any()
    assert {*refusals.values()} == {"its reply cannot be made: 'z' was not present when the silos' rows were summed"}


def test_a_resumed_run_has_keys_and_totals_from_its_folder(silos: Path, tmp_path: Path, keys: Path) -> None:
    made = secure_setting(silos)
    whole = federate(made, keyed_nodes(made, keys, tmp_path / "one", roster="a"), tmp_path / "whole")
    grid = keyed_nodes(made, keys, tmp_path / "two", roster="a")

    def fault(silo: str, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train.train" and int(message.content["about"]["round"]) == 2:
            raise KeyboardInterrupt
        return reply

    grid.fault = fault
    with pytest.raises(KeyboardInterrupt):
        federate(made, grid, tmp_path / "runs")
    before = len(grid.sent)
    grid.fault = None
    found = federate(made, grid, tmp_path / "runs")
    asked = {kind for _, kind in grid.sent[before:]}
    assert "query.introduce" not in asked
    for name, value in whole.parameters[3].items():
        assert found.parameters[3][name].tobytes() == value.tobytes()
    assert found.info["rows"] == whole.info["rows"]
    assert found.info["federation"]["secure"]["roster"] == ["a"]
