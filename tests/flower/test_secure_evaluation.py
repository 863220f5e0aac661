"""Evaluation as one sum: the federation's figures are those that single replies would give; no silo's are there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Message
from safetensors.numpy import load_file

import equifed as ef
from equifed import methods
from equifed.data import Schema
from equifed.fixed_point import LIMBS, OutOfRange
from equifed.flower.evaluation import combine, decode_total, integers, size
from equifed.flower.records import BadMessage
from equifed.metrics.calibration import BINS
from equifed.metrics.scored import Scored
from equifed.protocol import Method, Task
from equifed.settings import Local
from flower.inprocess import Nodes, federate, nodes, setting, table
from flower.secure import EVERYONE, keyed_nodes, secure_setting

RNG = np.random.default_rng(7)


def task_of(kind: str) -> Task:
    classes = {"binary": 2, "multiclass": 3, "regression": 0}[kind]
    what = "regression" if kind == "regression" else "classification"
    return Task(torch.nn.Linear(1, 1), what, classes, 2, 3, 1, Local(), binary=kind == "binary")


def scored(task: Task, rows: int) -> Scored:
    """What a silo with so many test rows of each group, and half as many of unknown group, might count."""
    groups, classes = task.num_groups + 1, max(task.num_classes, 1)
    sizes = np.array([rows] * task.num_groups + [rows // 2])
    counts = np.stack([RNG.multinomial(n, np.full(classes**2, 1 / classes**2)) for n in sizes])
    counts = counts.reshape(groups, classes, classes)
    if task.kind == "regression":
        loss, mean = RNG.random((groups, 1)) * sizes[:, None] * 1e9, RNG.normal(size=groups) * 1e4
        mean = np.where(sizes > 0, mean, np.nan)[:-1]
        histograms = np.zeros((groups, 0, 3))
        ks = RNG.random(1)
    else:
        loss, mean, ks = (
            RNG.random((groups, classes)) * counts.sum(-1),
            np.full(task.num_groups, np.nan),
            np.full(1, np.nan),
        )
        histograms = np.zeros((groups, BINS, 3))
        for g in range(groups):
            for label in range(classes):
                for decided in range(classes):
                    n = counts[g, label, decided]
                    # two classes: true is the label, and decisions are scores above one half; more: true is being right
                    true = label if classes == 2 else label == decided
                    at = RNG.integers(0, BINS // 2, n) + (BINS // 2) * (decided if classes == 2 else 1)
                    np.add.at(histograms[g, :, 0], at, 1)
                    np.add.at(histograms[g, :, 1], at, int(true))
                    np.add.at(histograms[g, :, 2], at, (at + RNG.random(n)) / BINS)
    known = counts[None, :-1], loss[None, :-1], ks, mean[None], counts[None, :-1].sum(2), histograms[None, :-1]
    return Scored(*known, counts[None, -1], loss[None, -1], histograms[None, -1])


KINDS = ("binary", "multiclass", "regression")


@pytest.mark.parametrize("kind", KINDS)
def test_the_sum_gives_what_single_replies_give(kind: str) -> None:
    """Counts exactly, all else to 1e-9: also of a silo without rows."""
    task = task_of(kind)
    clients = [scored(task, rows) for rows in (400, 0, 37, 1)]
    total = np.sum([integers(each, task, 4) for each in clients], axis=0)
    assert total.shape == (size(task),)
    found, expected = (combine(each, task)["test"] for each in ([decode_total(total, task, 3000, 0)], clients))
    for name, value in expected._asdict().items():
        other = getattr(found, name)
        if name in ("counts", "predicted", "unknown"):
            np.testing.assert_array_equal(other, value)
        else:
            np.testing.assert_allclose(other, value, rtol=1e-9, atol=1e-7, err_msg=name)
    assert np.isnan(found.ks).all()


def test_only_totals_are_looked_at_for_small_counts() -> None:
    """Silos of which each would withhold everything tell their sum; a sum that is small is withheld."""
    task = task_of("binary")
    clients = [scored(task, 24) for _ in range(5)]
    total = np.sum([integers(each, task, 5) for each in clients], axis=0)
    found = decode_total(total, task, 300, 10)
    np.testing.assert_array_equal(found.counts[0], np.sum([each.counts[0] for each in clients], axis=0))
    few = clients[0].counts[0].copy()
    few[1] = [[9, 40], [40, 40]]
    small = clients[0]._replace(counts=few[None], predicted=few.sum(1)[None], unknown=few[1:] * 10)
    small = small._replace(
        **{name: np.zeros_like(getattr(small, name)) for name in ("calibration", "unknown_calibration")}
    )
    withheld = decode_total(integers(small, task, 5), task, 3000, 10)
    assert np.isnan(withheld.counts[0, 1]).all()
    assert np.isnan(withheld.loss[0, 1]).all()
    assert withheld.predicted[0, 1].tolist() == [49, 80]


@pytest.mark.parametrize("kind", KINDS)
def test_totals_that_no_rows_have_are_refused(kind: str) -> None:
    task = task_of(kind)
    one = integers(scored(task, 50), task, 3)
    decode_total(one, task, 125, 0)
    with pytest.raises(BadMessage, match="counts 125 test rows where it has 124"):
        decode_total(one, task, 124, 0)
    lie = one.copy()
    lie[0] = -1
    with pytest.raises(BadMessage, match="negative counts"):
        decode_total(lie, task, 125, 0)
    classes, bins = max(task.num_classes, 1), 0 if kind == "regression" else BINS
    loss = 3 * classes**2 + 3 * bins * 2 + (LIMBS - 1 if kind == "regression" else 0)
    for wrong in (-(2**61), 2**61):
        lie = one.copy()
        lie[loss] = wrong
        with pytest.raises(BadMessage, match="impossible losses in its evaluation"):
            decode_total(lie, task, 125, 0)


def test_what_a_sum_does_not_hold_is_refused_at_the_silo() -> None:
    task = task_of("binary")
    huge = scored(task, 5)
    with pytest.raises(OutOfRange):
        integers(huge._replace(loss=huge.loss + 1e10), task, 5)
    endless = task_of("regression")
    with pytest.raises(OutOfRange):
        integers(scored(endless, 5)._replace(loss=np.full((1, 2, 1), np.inf)), endless, 5)


# -- in a federation ---------------------------------------------------------------------------------------------------

CLIENTS = re.compile(r"client_|group_equity|worst_clients_")


def both(folder: Path, runs: Path, method: Method | None = None, **sections: Any) -> tuple[ef.Result, ef.Result, Nodes]:
    """The results of the same federation with secure and with plain sums, and the nodes of the first."""
    made = secure_setting(folder, method, **sections)
    plain = setting(folder, method, **sections | {"run": EVERYONE | sections.get("run", {})})
    grid = keyed_nodes(made, None, runs / "state")
    return federate(made, grid, runs / "secure"), federate(plain, nodes(plain), runs / "plain"), grid


def assert_same_figures(secure: ef.Result, plain: ef.Result) -> None:
    """All figures of the federation in all rounds, and none of a single silo."""
    found, expected = (result.metrics.astype({"scope": str, "metric": str, "split": str}) for result in (secure, plain))
    assert not found["scope"].str.startswith("client:").any()
    assert not found["metric"].str.match(CLIENTS).any()
    expected = expected[~expected["scope"].str.startswith("client:") & ~expected["metric"].str.match(CLIENTS)]
    keys = ["round", "split", "scope", "metric"]
    found, expected = (frame.set_index(keys)["value"].sort_index() for frame in (found, expected))
    assert list(found.index) == list(expected.index)
    assert found.notna().sum() > 20
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    for kept, told in ((secure.counts, plain.counts), (secure.calibration, plain.calibration)):
        assert len(kept) == len(told)
    assert secure.counts["rows"].tolist() == plain.counts["rows"].tolist()
    assert secure.local_gaps.empty


@pytest.mark.parametrize("cohort", ["all", 4])
def test_figures_are_those_of_plain_sums(silos: Path, tmp_path: Path, cohort: int | str) -> None:
    """Where everyone is sampled, the evaluation rides along in the same vector; otherwise it is a sum of its own."""
    run = {"rounds": 2, "clients-per-round": cohort}
    secure, plain, grid = both(silos, tmp_path, methods.FedAvgGR(), run=run)
    assert_same_figures(secure, plain)
    sent = Counter(kind for _, kind in grid.sent)
    assert sent["evaluate.counts"] == (6 if cohort == "all" else 12)
    masked = sum(sent[kind] for kind in ("query.introduce", "train.setup_count", "train.train", "evaluate.counts"))
    assert sent["query.unmask"] == masked


def test_no_messages_for_rounds_that_are_not_evaluated(silos: Path, tmp_path: Path) -> None:
    made = secure_setting(silos, run={"rounds": 4, "clients-per-round": 4, "eval-every": 3})
    grid = keyed_nodes(made, None, tmp_path / "state")
    found = federate(made, grid, tmp_path / "runs")
    assert sorted(found.metrics["round"].unique()) == [3, 4]
    assert Counter(kind for _, kind in grid.sent)["evaluate.counts"] == 12


@pytest.mark.parametrize("label", ["multiclass", "regression"])
def test_figures_of_other_labels(tmp_path: Path, label: str) -> None:
    rng = np.random.default_rng(4)
    frames = {silo: table(rng, n) for silo, n in (("a", 60), ("b", 40), ("c", 50))}
    for silo, frame in frames.items():
        of = frame["w"] * 10 + frame["x"] if label == "regression" else rng.choice(list("uvw"), len(frame))
        frames[silo] = frame.drop(columns="bought").assign(of=of)
        frames[silo].to_parquet(tmp_path / f"{silo}.parquet")
    task = "regression" if label == "regression" else "classification"
    schema = Schema.infer(pd.concat(frames.values()), ef.Columns(label="of", sensitive="sex", task=task))
    (tmp_path / "schema.json").write_text(schema.to_json())
    data = {"files": {silo: f"{silo}.parquet" for silo in frames}, "validation-file": None, "client-groups": None}
    secure, plain, _ = both(tmp_path, tmp_path / "runs", data=data, local={"learning-rate": 1e-2})
    assert_same_figures(secure, plain)
    assert ("rmse" in set(secure.metrics["metric"])) == (label == "regression")


def test_small_totals_are_withheld_before_anything_is_stored(silos: Path, tmp_path: Path) -> None:
    """The highest min-count of a silo counts. What is withheld is in no file of the run's folder."""
    made = secure_setting(silos, flower={"min-count": 2})
    grid = keyed_nodes(made, None, tmp_path / "state")
    grid.contexts[103].node_config["min-count"] = 15
    found = federate(made, grid, tmp_path / "runs")
    federation = found.info["federation"]
    assert federation["min_count"] == 15
    assert federation["secure"]["counts"] == ["f", "m"]
    assert federation["disclosed"] == {"f": 0, "m": 0}
    assert found.counts.query("split == 'test'")["rows"].isna().all()
    notes = {note.kind for note in found.notes}
    assert {"withheld-totals", "disclosed"} <= notes
    for file in (tmp_path / "runs" / "run" / "scores").iterdir():
        scores = load_file(file)
        assert np.isnan(scores["run=0/test/counts"]).all()
        assert not any("clients" in name for name in scores)
    assert not (tmp_path / "runs" / "run" / "sums").exists()


def test_silos_that_are_gone_and_sums_that_fail(silos: Path, tmp_path: Path) -> None:
    """One of six may be gone: the figures are of the others. Without two nothing is known, and the run goes on."""
    made = secure_setting(silos, run={"clients-per-round": 4, "rounds": 3}, flower={"deadline": 0.05})
    lost: dict[int, set[str]] = {1: {"c"}, 2: {"c", "a"}}

    def fault(silo: str, message: Message, reply: Message) -> Message | None:
        about = message.content["about"]
        measured = message.metadata.message_type == "evaluate.counts"
        return None if measured and silo in lost.get(int(about["round"]), ()) else reply

    found = federate(made, keyed_nodes(made, None, tmp_path / "state", fault=fault), tmp_path / "runs")
    rows = found.metrics.query("split == 'test' and scope == 'global' and metric == 'rows'").set_index("round")["value"]
    accuracy = found.metrics.query("split == 'test' and scope == 'global' and metric == 'accuracy'").set_index("round")
    total = found.info["rows"]["test"]
    assert rows[3] == total
    assert rows[1] == total - 14  # a fifth of c's 70 rows
    assert np.isnan(accuracy["value"][2])
    assert found.log["applied"].all()
    notes = [note for note in found.notes if note.kind in ("not-evaluated", "did-not-evaluate")]
    assert {(note.kind, note.fields["round"]) for note in notes} == {
        ("did-not-evaluate", 1),
        ("did-not-evaluate", 2),
        ("not-evaluated", 2),
    }


@pytest.mark.parametrize(
    "silent", [pytest.param("", marks=pytest.mark.full), "a", pytest.param("ac", marks=pytest.mark.full)]
)
def test_a_run_that_died_after_its_last_round_knows_its_figures(
    silos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    """Nobody helps to unmask the same sum twice: what is needed of it is in the run's folder, also where some silos
    did not count, or so few did that nothing is known."""
    from equifed.store.folder import Recording

    made = secure_setting(silos, run={"rounds": 1}, flower={"min-count": 8, "deadline": 0.05})

    def fault(silo: str, message: Message, reply: Message) -> Message | None:
        return None if silo in silent and message.metadata.message_type == "evaluate.counts" else reply

    whole = federate(made, keyed_nodes(made, None, tmp_path / "one", fault=fault), tmp_path / "whole")
    grid = keyed_nodes(made, None, tmp_path / "two", fault=fault)

    def die(recording: Recording) -> ef.Result:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Recording, "finish", die)
        with pytest.raises(KeyboardInterrupt):
            federate(made, grid, tmp_path / "runs")
    asked = len(grid.sent)
    found = federate(made, grid, tmp_path / "runs")
    assert {kind for _, kind in grid.sent[asked:]} <= {"query.join"}
    assert found.info["federation"] == whole.info["federation"]
    assert set(found.info["federation"]["unmeasured"]) == set(silent)
    pd.testing.assert_frame_equal(found.metrics, whole.metrics)
    assert [str(note) for note in found.notes] == [str(note) for note in whole.notes]


def test_a_silo_has_its_own_figures_in_its_own_log(
    silos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = secure_setting(silos, run={"rounds": 1})
    plain = setting(silos, run=EVERYONE | {"rounds": 1})
    expected = federate(plain, nodes(plain), tmp_path / "plain").metrics
    caplog.clear()
    with caplog.at_level("INFO", "flwr"):
        federate(made, keyed_nodes(made, None, tmp_path / "state"), tmp_path / "runs")
    logged = [record.message for record in caplog.records if "own test rows" in record.message]
    own = expected.query("scope == 'client:c' and metric == 'accuracy'")["value"].iloc[0]
    assert sum(f"accuracy {own:.3f}" in line for line in logged) >= 1
    assert len(logged) == 6
