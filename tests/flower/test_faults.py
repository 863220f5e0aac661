"""What a server does when silos fail, lie or vanish, and what a run is after it was killed."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

import equifed as ef
from equifed import bounds, methods
from equifed.errors import ConfigError, RunError
from equifed.flower.agreement import Setting, reason_file
from equifed.flower.apps import server_app
from equifed.flower.memory import Memory
from equifed.flower.records import BadMessage
from equifed.flower.server import standardisation
from equifed.flower.silo import SiloApp
from equifed.store import RunFolder, Store
from equifed.verdict.silos import Silos
from flower.inprocess import (
    GROUPS,
    Nodes,
    answer,
    be_the_server,
    context,
    federate,
    nodes,
    setting,
    simulate,
    write_files,
)

QUICK = {"deadline": 0.05, "min-replies": 1, "min-count": 0}


def in_round(message: Message, number: int) -> bool:
    asked = message.content.config_records["about"]
    return asked.get("round") == number and message.metadata.message_type.startswith("train.")


def with_field(reply: Message, name: str, change: Callable[[np.ndarray], np.ndarray]) -> Message:
    fields = reply.content["fields"]
    fields[name] = Array(np.asarray(change(fields[name].numpy())))
    return reply


def rename(reply: Message) -> Message:
    fields = reply.content["fields"]
    reply.content["fields"] = ArrayRecord({f"x{name}": array for name, array in fields.items()})
    return reply


def claim(reply: Message, key: str, value: str) -> Message:
    reply.content["about"] = ConfigRecord({**reply.content["about"], key: value})
    return reply


def without_fields(reply: Message) -> Message:
    del reply.content["fields"]
    return reply


def nonsense(reply: Message) -> Message:
    reply.content["fields"]["rows"] = Array("float32", (), "numpy.ndarray", b"not an array")
    return reply


BIAS = "update.0.bias"
LIES: dict[str, tuple[Callable[[Message], Message], str]] = {
    "nan": (lambda reply: with_field(reply, BIAS, lambda v: v * np.nan), f"has NaN or Inf in {BIAS}"),
    "infinite": (lambda reply: with_field(reply, BIAS, lambda v: v + np.inf), f"has NaN or Inf in {BIAS}"),
    "broadcasting": (lambda reply: with_field(reply, BIAS, lambda v: v[:1]), "of shape [1]; expected [3]"),
    "scalar": (lambda reply: with_field(reply, BIAS, lambda v: v[0]), "of shape []; expected [3]"),
    "double": (lambda reply: with_field(reply, BIAS, lambda v: v.astype(float)), "type float64; expected float32"),
    "negative": (lambda reply: with_field(reply, "rows", lambda v: -v), "has rows outside 0 to 37"),
    "too many": (lambda reply: with_field(reply, "rows", lambda v: v * 100), "has rows outside 0 to 37"),
    "names": (rename, "has the fields xrows, xupdate.0.bias"),
    "empty": (without_fields, "has no record 'fields'"),
    "bytes": (nonsense, "has a field rows that cannot be read"),
    "impostor": (lambda reply: claim(reply, "client", "b"), "is signed by 'b'"),
    "late": (lambda reply: claim(reply, "exchange", "1001"), "belongs to another exchange"),
}


def test_an_update_longer_than_its_clip_is_refused(silos: Path, tmp_path: Path) -> None:
    """Whatever the silo's own program did: the server looks too, so nobody moves the model by more."""

    def fault(silo: str, message: Message, reply: Message) -> Message:
        return with_field(reply, BIAS, lambda v: 1e3 * v) if silo == "a" and in_round(message, 1) else reply

    made = setting(silos, run={"clients-per-round": "all", "rounds": 1, "clip": 0.05})
    result = federate(made, nodes(made, fault), tmp_path)
    (rejection,) = result.rejections.itertuples()
    assert rejection.client == "a"
    assert "has an update in update with a norm above 0.05" in rejection.reason
    assert result.log["clipped"].between(0.01, 1).all()


def test_a_bad_reply_is_refused_by_name_and_reason(silos: Path, tmp_path: Path) -> None:
    """A round for each of the lies that one silo can tell, after an honest one."""
    lies = dict(enumerate(LIES.values(), start=2))
    made = setting(silos, run={"clients-per-round": "all", "rounds": 1 + len(lies), "eval-every": 99})

    def fault(silo: str, message: Message, reply: Message) -> Message:
        number = int(message.content.config_records["about"].get("round", 0))
        return lies[number][0](reply) if silo == "a" and number in lies and in_round(message, number) else reply

    result = federate(made, nodes(made, fault), tmp_path)
    refused = result.rejections.to_dict("records")
    assert [entry["round"] for entry in refused] == list(lies)
    for entry, (_, reason) in zip(refused, lies.values(), strict=True):
        assert (entry["client"], entry["phase"], entry["answered"]) == ("a", "train", True)
        assert reason in entry["reason"]
    counts = result.log[["replied", "dropped", "rejected"]].to_numpy().tolist()
    assert counts == [[6, 0, 0], *[[5, 0, 1]] * len(lies)]
    assert all(np.isfinite(value).all() for value in result.parameters[3].values())


def test_a_refused_reply_is_as_none(silos: Path, tmp_path: Path) -> None:
    made = setting(silos, run={"clients-per-round": "all", "rounds": 2}, flower=QUICK)

    def lying(silo: str, message: Message, reply: Message) -> Message:
        return LIES["nan"][0](reply) if silo == "a" and in_round(message, 2) else reply

    def silent(silo: str, message: Message, reply: Message) -> Message | None:
        return None if silo == "a" and in_round(message, 2) else reply

    refused, left_out = (federate(made, nodes(made, each), tmp_path, each.__name__) for each in (lying, silent))
    for name, value in left_out.parameters[3].items():
        np.testing.assert_array_equal(refused.parameters[3][name], value)


WRONG = {
    "too large a position": (
        methods.E2FL(),
        "ranking.0.weight",
        lambda v: v * 0 + 255,
        "cannot be read: A packed ranking",
    ),
    "no order": (methods.E2FL(), "ranking.0.weight", lambda v: v * 0, "cannot be read: A packed ranking"),
    "an unknown group": (methods.IFCA(), "group", lambda v: v * 0 + 99, "has group outside -1 to 1"),
    "too many rows": (methods.KFFLTD(), "gradient_rows", lambda v: v * 0 - 5, "has gradient_rows outside 0 to 37"),
    "a negative weight": (methods.FairFed(), "weight", lambda v: v * 0 - 1e6, "has weight outside 0 to 5"),
    "two holders": (methods.FedFair(), "holders", lambda v: v * 0 + 2, "has holders outside 0 to 1"),
    "a negative norm": (methods.QFFL(), "h", lambda v: v * 0 - 3, "has h outside 0 to inf: -3"),
}


@pytest.mark.parametrize("lie", WRONG)
@pytest.mark.sample(3)
def test_counts_weights_and_positions_have_their_limits(lie: str, silos: Path, tmp_path: Path) -> None:
    method, name, change, reason = WRONG[lie]
    made = setting(silos, method, run={"clients-per-round": "all", "rounds": 2}, model={"bias": method.name != "e2fl"})

    def fault(silo: str, message: Message, reply: Message) -> Message:
        wrong = silo == "a" and in_round(message, 2) and name in reply.content["fields"]
        return with_field(reply, name, change) if wrong else reply

    found = federate(made, nodes(made, fault), tmp_path)
    assert set(found.rejections["client"]) == {"a"}
    assert reason in found.rejections["reason"].iloc[0]
    assert found.log["applied"].all()


def test_a_model_that_would_not_be_finite_is_not_taken(
    silos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replies, each finite, add up to infinity, where an update may be of any size."""
    monkeypatch.setattr(bounds, "TIMES", np.inf)
    made = setting(silos, run={"clients-per-round": "all", "rounds": 2, "max-update": np.inf})

    def fault(silo: str, message: Message, reply: Message) -> Message:
        huge = silo in "ac" and in_round(message, 2)
        return with_field(reply, BIAS, lambda v: v * 0 + np.float32(3e38)) if huge else reply

    found = federate(made, nodes(made, fault), tmp_path)
    assert found.log["applied"].tolist() == [True, False]
    (note,) = found.notes
    assert str(note).startswith("1 of 2 rounds left the model as it was: after train the model would have NaN or Inf")
    (said,) = Silos.of(found).lost_rounds()  # and not: too few replies
    assert said == "1 of 2 rounds was not applied (round 2): after train the model would have NaN or Inf."
    assert all(np.isfinite(value).all() for value in found.parameters[3].values())


def test_a_reply_of_an_earlier_round_is_never_used(silos: Path, tmp_path: Path) -> None:
    """A node answers round 2 with its whole reply of round 1."""
    made, old = setting(silos, run={"clients-per-round": "all", "rounds": 2}), {}

    def fault(silo: str, message: Message, reply: Message) -> Message:
        if silo == "c" and in_round(message, 1):
            old["reply"] = reply.content
        if silo == "c" and in_round(message, 2):
            return Message(old["reply"], reply_to=message)
        return reply

    found = federate(made, nodes(made, fault), tmp_path)
    assert found.rejections["reason"].tolist() == ["belongs to another exchange"]


def test_who_is_missing_when(silos: Path, tmp_path: Path) -> None:
    made = setting(silos, run={"clients-per-round": "all", "rounds": 4}, flower=QUICK)
    grid = nodes(made)

    def fault(silo: str, message: Message, reply: Message) -> Message | None:
        if in_round(message, 1):
            grid.gone = {"c"}
        elif in_round(message, 3):
            grid.gone = set()
        return None if silo == "f" and in_round(message, 3) else reply

    grid.fault = fault
    found = federate(made, grid, tmp_path)
    absent = found.rejections[~found.rejections["answered"]]
    assert [tuple(row) for row in absent[["client", "round"]].to_numpy().tolist()] == [("c", 2), ("c", 3), ("f", 3)]
    assert found.log["replied"].tolist() == [6, 5, 4, 6]
    assert found.log["dropped"].tolist() == [0, 1, 2, 0]
    assert found.log["applied"].all()
    assert "c did not answer in rounds 2 to 3 (not connected)." in map(str, found.notes)
    assert "f did not answer in round 3 (no reply within 0 s)." in map(str, found.notes)


@pytest.mark.parametrize("method", [methods.KFFL(), methods.SFFL()], ids=lambda method: method.name)
@pytest.mark.sample(1)
def test_a_round_with_too_few_replies_leaves_no_trace(method: methods.KFFL, silos: Path, tmp_path: Path) -> None:
    """All silos worked in round 2 and two replies to its last phase were lost: the same as never having asked."""
    made = setting(
        silos, method, run={"clients-per-round": "all"}, flower={"min-replies": 5, "min-count": 0, "deadline": 0.05}
    )
    last = f"train.{method.round[-1].name}"

    def lost(silo: str, message: Message, reply: Message) -> Message | None:
        return None if silo in "ab" and in_round(message, 2) and message.metadata.message_type == last else reply

    found = federate(made, nodes(made, lost), tmp_path)
    assert found.log["applied"].tolist() == [True, False, True]
    assert found.log["replied"].tolist() == [6, 4, 6]
    assert any("1 of 3 rounds left the model as it was: too few usable replies" in str(note) for note in found.notes)

    class Deaf(Nodes):
        """Messages of round 2 get lost on the way."""

        def push_messages(self, messages):  # type: ignore[no-untyped-def]
            ids = []
            for message in messages:
                if in_round(message, 2):
                    ids.append(None)
                else:
                    ids += super().push_messages([message])
            return ids

    unasked = federate(
        made, Deaf(SiloApp(made), [c.node_config for c in nodes(made).contexts.values()]), tmp_path, "un"
    )
    assert unasked.log["applied"].tolist() == [True, False, True]
    for name, value in unasked.parameters[3].items():
        np.testing.assert_array_equal(found.parameters[3][name], value)
    assert found.metrics.query("round == 3 and scope == 'global'").equals(
        unasked.metrics.query("round == 3 and scope == 'global'")
    )


def test_too_few_replies_in_setup_or_at_the_end_are_an_error(silos: Path, tmp_path: Path) -> None:
    """Without the counts of setup, or the fit at the end, the result would not be the method's."""
    lost = {"train.setup_count", "train.final_measure"}

    def fault(silo: str, message: Message, reply: Message) -> Message | None:
        return None if message.metadata.message_type in lost and silo != "a" else reply

    quick = QUICK | {"min-replies": 2}
    for method in (methods.FedAvgGR(), methods.FedFair()):
        made = setting(silos, method, flower=quick)
        with pytest.raises(RunError, match=r"could not be finished.*too few usable replies came \(1 of 6 clients\)"):
            federate(made, nodes(made, fault), tmp_path, method.name)
        status = RunFolder(tmp_path / method.name).status()
        assert status["status"] == "failed"
        assert "no reply within" in status["reason"]


def test_a_silo_that_missed_setup_stays_out_and_is_counted_right(silos: Path, tmp_path: Path) -> None:
    made = setting(silos, methods.FedAvgGR(), run={"clients-per-round": "all", "rounds": 3}, flower=QUICK)
    grid = nodes(made)

    def fault(silo: str, message: Message, reply: Message) -> Message | None:
        if message.metadata.message_type == "train.setup_count":
            return None if silo == "c" else reply
        return reply

    grid.fault = fault
    found = federate(made, grid, tmp_path)
    assert found.log[["replied", "dropped", "rejected"]].to_numpy().tolist() == [[5, 1, 0]] * 3
    (note,) = (str(note) for note in found.notes if note.kind == "did-not-answer")
    assert note.startswith("c did not answer before round 1 and in rounds 1 to 3 (")
    assert "missed the exchanges before round 1, which the method needs" in note
    assert ("c", "train.train") not in grid.sent


# -- a run that was killed ---------------------------------------------------------------------------------------------


class Killed(BaseException):
    """What SIGKILL is to a process."""


@pytest.mark.parametrize(
    ("method", "moment"),
    [
        pytest.param(methods.FedAvg(), "in the last phase of round 3", marks=pytest.mark.full),
        pytest.param(methods.KFFL(), "in the last phase of round 3", marks=pytest.mark.full),
        pytest.param(methods.SFFL(), "in the last phase of round 3", marks=pytest.mark.full),
        pytest.param(methods.FairFate(lambda0=0.4), "in the last phase of round 3", marks=pytest.mark.full),
        (methods.KFFLTD(), "in the last phase of round 3"),
        (methods.SFFL(), "in the first phase of round 1"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.sample(1)
def test_a_killed_run_goes_on_with_the_same_result(
    method: methods.FedAvg, moment: str, silos: Path, tmp_path: Path
) -> None:
    made = setting(silos, method, run={"rounds": 4})
    number, phase = (3, method.round[-1]) if "last" in moment else (1, method.round[0])
    asked = []

    def kill(silo: str, message: Message, reply: Message) -> Message:
        if in_round(message, number) and message.metadata.message_type == f"train.{phase.name}":
            asked.append(silo)
            if len(asked) == 3:  # some silos have worked and moved on
                raise Killed
        return reply

    state = {"state": str(tmp_path / "silo-state")}
    with pytest.raises(Killed):
        federate(made, nodes(made, kill, **state), tmp_path / "runs")
    RunFolder(tmp_path / "runs" / "run").set_status("running")  # a killed process says nothing
    # new nodes with empty contexts: all they have is the folder of their state
    resumed = federate(made, nodes(made, **state), tmp_path / "runs")
    whole = federate(made, nodes(made), tmp_path / "runs", "whole")
    for name, value in whole.parameters[3].items():
        np.testing.assert_array_equal(resumed.parameters[3][name], value)
    keys = ["round", "split", "scope", "metric"]
    left, right = (
        each.metrics.astype({"split": str, "scope": str, "metric": str}).sort_values(keys).reset_index(drop=True)
        for each in (resumed, whole)
    )
    pd.testing.assert_frame_equal(left, right)
    assert resumed.log["round"].tolist() == [1, 2, 3, 4]


def test_killed_after_the_last_round_the_report_is_the_same(
    silos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = setting(silos, run={"rounds": 2, "clients-per-round": "all"}, flower={"min-count": 6})
    whole = federate(made, nodes(made), tmp_path, "whole")
    assert whole.info["federation"]["withheld"]
    with monkeypatch.context() as patch:
        patch.setattr("equifed.store.folder.write_result", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            federate(made, nodes(made), tmp_path)
    resumed = federate(made, nodes(made), tmp_path)
    assert resumed.info["federation"] == whole.info["federation"]
    assert resumed.notes == whole.notes


def test_killed_before_anything_was_written_down_it_begins(
    silos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = setting(silos, run={"rounds": 2})
    with monkeypatch.context() as patch:
        patch.setattr("equifed.flower.server._write_roster", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            federate(made, nodes(made), tmp_path)
    assert federate(made, nodes(made), tmp_path).log["round"].tolist() == [1, 2]


def test_the_plain_resume_names_the_right_command(silos: Path, tmp_path: Path) -> None:
    made = setting(silos, run={"rounds": 2})

    def kill(silo: str, message: Message, reply: Message) -> Message:
        if in_round(message, 2):
            raise Killed
        return reply

    with pytest.raises(Killed):
        federate(made, nodes(made, kill), tmp_path / "fed" / "runs")
    with pytest.raises(RunError, match=f"Use: equifed flower resume {tmp_path / 'fed'} run"):
        Store(tmp_path / "fed" / "runs").resume("run")


@pytest.mark.parametrize("run", ["..", ".", "a/b", "/etc", "a b", ""])
def test_a_runs_name_is_no_path(run: str, silos: Path, tmp_path: Path) -> None:
    """Neither the server nor a silo writes outside its folder, whoever asks."""
    made = setting(silos)
    if run:
        with pytest.raises(ConfigError, match="not a safe folder name"):
            federate(made, nodes(made), tmp_path / "runs", run)
    be_the_server()
    grid = nodes(made, state=str(tmp_path / "state" / "deep"))
    node = next(iter(grid.contexts))
    asked = RecordDict({"about": ConfigRecord({"app": made.digest, "run": run})})
    reply = answer(grid.app, Message(asked, node, "query.join"), grid.contexts[node])
    assert "which is not a safe folder name" in str(reply.content["about"]["refused"])
    assert not (tmp_path / "state").exists()


def test_memory_that_is_gone_is_said(silos: Path, tmp_path: Path) -> None:
    made = setting(silos, methods.SFFL(), run={"rounds": 3, "clients-per-round": "all"}, flower=QUICK)

    def kill(silo: str, message: Message, reply: Message) -> Message:
        if in_round(message, 3):
            raise Killed
        return reply

    with pytest.raises(Killed):
        federate(made, nodes(made, kill), tmp_path)
    resumed = federate(made, nodes(made), tmp_path)  # nodes without a state folder
    assert resumed.log["replied"].tolist() == [6, 6, 0]
    assert "state that this method keeps at the silo is missing" in resumed.rejections["reason"].iloc[0]


def test_a_memory_of_one_tensor_twice(tmp_path: Path) -> None:
    theta = torch.arange(5.0)
    Memory(context(1, {}), tmp_path).keep(7, {"v": theta, "theta": theta, "part": theta[:2]}, set())
    blank = {"v": torch.zeros(5), "theta": torch.zeros(5), "part": torch.zeros(2)}
    found = Memory(context(1, {}), tmp_path).recall(7, blank)
    assert [found[name].tolist() for name in blank] == [theta.tolist(), theta.tolist(), [0.0, 1.0]]


def test_a_damaged_memory_is_not_used(tmp_path: Path) -> None:
    state, blank = {"a": torch.arange(5.0)}, {"a": torch.zeros(5)}
    Memory(context(1, {}), tmp_path).keep(7, state, set())
    again = Memory(context(1, {}), tmp_path)  # a new process has only the folder
    assert torch.equal(again.recall(7, blank)["a"], state["a"])
    content = (tmp_path / "after-7").read_bytes()
    for harmed in (content[:-1] + b"\1", content[:-1], b"", b"\xff" + content[1:]):
        (tmp_path / "after-7").write_bytes(harmed)
        with pytest.raises(BadMessage, match="is damaged"):
            again.recall(7, blank)


def test_what_server_and_silos_keep_is_for_their_user_alone(silos: Path, tmp_path: Path) -> None:
    made = setting(silos, methods.SFFL(components=2), run={"rounds": 1})
    before = os.umask(0o022)
    try:
        federate(made, nodes(made, state=str(tmp_path / "state" / "here")), tmp_path / "server" / "runs")
    finally:
        assert os.umask(before) == 0o022  # as it was
    kept = [*tmp_path.rglob("*")]
    assert {path.name for path in kept} >= {"state", "here", "rows", "runs", "scores", "federation.json", "index.lock"}
    for path in kept:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("harm", ["flip", "delete"])
def test_a_damaged_roster_ends_the_resuming_not_the_federation(silos: Path, tmp_path: Path, harm: str) -> None:
    made = setting(silos)

    def stop(silo: str, message: Message, reply: Message) -> Message:
        if in_round(message, 2):
            raise Killed
        return reply

    with pytest.raises(Killed):
        federate(made, nodes(made, stop), tmp_path)
    file = tmp_path / "run" / "federation.json"
    content = file.read_text()
    file.unlink() if harm == "delete" else file.write_text(content.replace('"rows": 37', '"rows": 36', 1))
    assert harm == "delete" or file.read_text() != content
    with pytest.raises(RunError, match=r"federation\.json is (missing|damaged).*Put back a copy"):
        federate(made, nodes(made), tmp_path)
    file.write_text(content)
    assert federate(made, nodes(made), tmp_path).log["round"].tolist() == [1, 2, 3]


def test_a_run_goes_on_only_with_its_own_data_and_configuration(tmp_path: Path) -> None:
    (tmp_path / "silos").mkdir()
    write_files(tmp_path / "silos")
    made = setting(tmp_path / "silos", run={"rounds": 3}, flower=QUICK)

    def kill(silo: str, message: Message, reply: Message) -> Message:
        if in_round(message, 2):
            raise Killed
        return reply

    state = {"state": str(tmp_path / "state")}
    with pytest.raises(Killed):
        federate(made, nodes(made, kill, **state), tmp_path / "runs")
    other = setting(tmp_path / "silos", run={"rounds": 3}, local={"learning-rate": 0.2}, flower=QUICK)
    with pytest.raises(RunError, match="another configuration"):
        federate(other, nodes(other), tmp_path / "runs")
    frame = pd.read_parquet(tmp_path / "silos" / "c.parquet")
    frame.iloc[1:].to_parquet(tmp_path / "silos" / "c.parquet")
    resumed = federate(made, nodes(made, **state), tmp_path / "runs")
    assert any(
        "c did not answer in rounds 2" in str(note) and "its file has other rows than when the run began" in str(note)
        for note in resumed.notes
    )


# -- joining -----------------------------------------------------------------------------------------------------------


def refused_to_join(made: Setting, grid: Nodes, runs: Path) -> str:
    with pytest.raises(RunError) as error:
        federate(made, grid, runs)
    return str(error.value)


def test_a_row_that_does_not_fit_is_named_without_its_value(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_files(tmp_path)
    frame = pd.read_parquet(tmp_path / "b.parquet")
    frame.loc[7, "bought"] = "secret"
    frame.to_parquet(tmp_path / "b.parquet")
    made = setting(tmp_path, flower={"min-replies": 4, "join-deadline": 0.2})
    said = federate(made, nodes(made), tmp_path / "runs")
    assert set(said.rejections["client"]) <= {"b"}
    made = setting(tmp_path, run={"clients-per-round": 6}, flower={"min-replies": 6, "join-deadline": 0.2})
    said = refused_to_join(made, nodes(made), tmp_path / "more")
    assert "Only 5 of 6 silos joined and at least 6 are needed." in said
    assert "b: its file does not fit the schema: Column 'bought', row 7 (see the silo's log)." in said
    assert "secret" not in said
    assert "'secret' is not a known class" in caplog.text  # the silo's own log


def test_rows_are_numbered_not_named(tmp_path: Path) -> None:
    """A table's rows may be called by people's names, which are nobody's business."""
    write_files(tmp_path)
    frame = pd.read_parquet(tmp_path / "b.parquet")
    frame.index = pd.Index([f"Jane Doe {i}" for i in range(len(frame))])
    frame.iloc[7, list(frame.columns).index("bought")] = "secret"
    frame.to_parquet(tmp_path / "b.parquet")
    made = setting(tmp_path, run={"clients-per-round": 6}, flower={"min-replies": 6, "join-deadline": 0.2})
    said = refused_to_join(made, nodes(made), tmp_path / "runs")
    assert "b: its file does not fit the schema: Column 'bought', row 7 (" in said
    assert "Jane" not in said


JOINS = {
    "another shape": lambda sums: sums[:2],
    "too large": lambda sums: sums * 0 + 1e300,
    "against Cauchy": lambda sums: sums * 0,
    "negative": lambda sums: -sums,
    "not a number": lambda sums: sums * np.nan,
}


@pytest.mark.parametrize("lie", JOINS)
@pytest.mark.sample(2)
def test_sums_that_no_rows_have_are_refused(lie: str, silos: Path, tmp_path: Path) -> None:
    made = setting(silos, run={"clients-per-round": "all"}, flower=QUICK | {"join-deadline": 0.2})

    def fault(silo: str, message: Message, reply: Message) -> Message:
        wrong = silo == "a" and message.metadata.message_type == "query.join"
        return with_field(reply, "squares", JOINS[lie]) if wrong else reply

    found = federate(made, nodes(made, fault), tmp_path)
    assert found.log["replied"].tolist() == [5, 5, 5]  # the others train without it
    assert set(found.rejections["client"]) == {"a"}


def test_one_silo_is_no_federation(silos: Path, tmp_path: Path) -> None:
    """Its means and deviations must not be everybody's; nor the sums of a few rows be told."""
    made = setting(silos, flower=QUICK | {"join-deadline": 0.2})
    grid = nodes(made)
    grid.gone = set("abdef")
    assert "Only 1 of 6 silos joined and at least 2 are needed" in refused_to_join(made, grid, tmp_path)
    made = setting(silos, flower=QUICK | {"min-count": 50})
    assert "but 1 disclosed theirs" in refused_to_join(made, nodes(made), tmp_path)
    made = setting(silos, flower=QUICK | {"min-count": 20})
    shy = federate(made, nodes(made), tmp_path, "shy")
    roster = json.loads((tmp_path / "shy" / "federation.json").read_text())
    fed = ef.Federation.from_tables({silo: silos / f"{silo}.parquet" for silo in "acf"}, silos / "schema.json", seed=3)
    np.testing.assert_allclose(roster["scaling"][0], fed.rows.x[fed.train.index].mean(0), rtol=1e-5)
    assert shy.log["applied"].all()


def test_who_cannot_join(silos: Path, tmp_path: Path) -> None:
    made = setting(silos, flower={"min-replies": 4, "join-deadline": 0.2})
    everyone = setting(silos, run={"clients-per-round": 6}, flower={"min-replies": 6, "join-deadline": 0.2})
    configs = [context.node_config for context in nodes(made).contexts.values()]
    other = SiloApp(setting(silos, local={"learning-rate": 0.5}))
    assert "another configuration, schema, version of equifed or frozen part" in refused_to_join(
        made, Nodes(other, configs), tmp_path
    )
    stranger = [*configs[:5], {"client-id": "z"}]
    said = refused_to_join(everyone, Nodes(SiloApp(everyone), stranger), tmp_path)
    assert "f: not connected. Also connected: a node that calls itself 'z'." in said
    twice = [*configs[:5], configs[0]]
    said = refused_to_join(everyone, Nodes(SiloApp(everyone), twice), tmp_path)
    assert "f: not connected. Also connected: a node that calls itself 'a'." in said
    nameless = [*configs[:5], {"data": configs[5]["data"]}]
    assert "f: not connected" in refused_to_join(everyone, Nodes(SiloApp(everyone), nameless), tmp_path)
    lost = [*configs[:5], {"client-id": "f", "data": str(tmp_path / "nothing.parquet")}]
    said = refused_to_join(everyone, Nodes(SiloApp(everyone), lost), tmp_path)
    assert "f: its file cannot be used (see the silo's log)." in said


def test_a_silo_may_come_back_as_another_node(silos: Path, tmp_path: Path) -> None:
    """Its node was started anew: another node id, an empty context, the same state folder."""
    made = setting(silos, methods.SFFL(), run={"rounds": 3, "clients-per-round": "all"})
    state = {"state": str(tmp_path / "state")}
    grid = nodes(made, **state)

    def restart(silo: str, message: Message, reply: Message) -> Message:
        if silo == "f" and in_round(message, 1):
            node = next(each for each in grid.contexts if grid.silo(each) == "a")
            fresh = nodes(made, **state).contexts[node]
            fresh.node_id = 999
            del grid.contexts[node]
            grid.contexts[999] = fresh
        return reply

    grid.fault = restart
    found = federate(made, grid, tmp_path)
    assert not len(found.rejections)
    for name, value in simulate(made).parameters[3].items():
        np.testing.assert_allclose(found.parameters[3][name], value, rtol=1e-5, atol=1e-5)


def test_standardisation_is_that_of_all_training_rows(silos: Path) -> None:
    made = setting(silos)
    grid = nodes(made)
    be_the_server()
    from equifed.flower.link import Link

    link = Link(grid, made.silos, made.digest, "run", scaled=4)
    link.gather(1.0, 6)
    scaling = standardisation(made, link.members)
    assert scaling is not None
    fed = ef.Federation.from_tables({silo: silos / f"{silo}.parquet" for silo in GROUPS}, silos / "schema.json", seed=3)
    rows = fed.rows.x[fed.train.index].astype(float)
    np.testing.assert_allclose(scaling[0], rows.mean(0), rtol=1e-6)
    np.testing.assert_allclose(scaling[1], 1 / rows.std(0), rtol=1e-6)


# -- configurations that no federation can carry out -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "where", "reason"),
    [
        ({"run": {"seeds": [0, 1]}}, "run.seeds", "a single run"),
        ({"sweep": {"mu": [0.1, 1]}, "method": {"name": "fedprox"}}, "sweep", "a single run"),
        ({"data": {"validation": 0.2, "validation-file": None}}, "data.validation", "does not hold the silos' rows"),
        (
            {"data": {"schema": None, "label": "bought", "sensitive": "sex"}},
            "data.schema",
            "a silo does not see the other silos' columns",
        ),
        ({"method": {"name": "centralized-kernel"}}, "method.name", "in one place"),
        ({"run": {"dropout": 0.2}}, "run.dropout", "drop out by themselves"),
        ({"run": {"dropout-late": 0.2, "secure": True}}, "run.dropout_late", "drop out by themselves"),
        (
            {"run": {"secure": True}, "data": {"files": {"a": "a.parquet", "b": "b.parquet"}, "client-groups": None}},
            "run.secure",
            "needs at least 3 silos, got 2",
        ),
        ({"flower": {"min-replies": 5}}, "flower.min-replies", "5 replies are impossible with 4 clients"),
    ],
)
def test_what_no_federation_can_do(sections: dict, where: str, reason: str, silos: Path, tmp_path: Path) -> None:
    """The error names the key; a server that meets it leaves it for the command that started the run."""
    import tomli_w

    raw = setting(silos).config.resolved(tmp_path)
    for name, values in sections.items():
        raw[name] = {key: value for key, value in (raw.get(name, {}) | values).items() if value is not None}
    if "method" in sections:
        raw["method"] = sections["method"]
    path = tmp_path / "federation.toml"
    path.write_text(tomli_w.dumps(raw))
    own = context(1, {})
    own.run_config.update({"runs": str(tmp_path / "runs"), "run": "one"})
    with pytest.raises(ConfigError, match=reason) as caught:
        server_app(path)(nodes(setting(silos)), own)
    assert (caught.value.source, caught.value.where) == (str(path), where)
    assert reason_file(tmp_path / "runs", "one").read_text() == str(caught.value)


def test_a_method_that_needs_validation_rows_wants_the_servers_file(silos: Path, tmp_path: Path) -> None:
    made = setting(silos, methods.FairFate())
    data = made.config.data.model_copy(update={"validation_file": None})
    made = dataclasses.replace(made, config=dataclasses.replace(made.config, data=data))
    with pytest.raises(ConfigError, match="measures fairness on rows that the server holds"):
        federate(made, nodes(made), tmp_path)


@dataclasses.dataclass(frozen=True)
class Breaking(methods.FedMinMax):
    """In round 2 its adversary, which travels with the model, is no number any more; the model itself is."""

    def step(self, server, replies, validation):  # type: ignore[no-untyped-def]
        moved = super().step(server, replies, validation)
        late = (server.mu != server.rho).any()
        return moved._replace(mu=torch.where(late, torch.nan, moved.mu))


def test_nothing_that_is_no_number_travels(silos: Path, tmp_path: Path) -> None:
    made = setting(silos, Breaking(), run={"clients-per-round": "all", "rounds": 3})
    result = federate(made, nodes(made), tmp_path)
    assert result.log["applied"].tolist() == [True, False, False]
    assert not len(result.rejections)  # no silo was asked with NaN
