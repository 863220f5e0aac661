"""Evaluation at the silos: what is counted, what is withheld, and how many messages it costs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import Array, Message, RecordDict

import equifed as ef
from equifed import methods
from equifed.data import Schema
from equifed.flower.evaluation import _disclose, combine, read, withheld
from equifed.flower.records import EVALUATION, BadMessage
from equifed.flower.silo import SiloApp
from equifed.metrics.calibration import BINS, EDGES, histograms
from equifed.metrics.frame import metrics_frame
from equifed.metrics.scored import Scored
from equifed.notes import Note
from equifed.protocol import Task
from equifed.settings import Local
from flower.inprocess import Nodes, federate, nodes, setting, simulate, table


def binary(groups: int = 2) -> Task:
    import torch

    return Task(torch.nn.Linear(1, 1), "classification", 2, groups, 3, 1, Local(), binary=True)


def scored(counts: list, unknown: list | None = None) -> Scored:
    array = np.array([counts])
    loss = array.sum(-1) * 0.5
    none = np.zeros((1, len(counts), BINS, 3))
    known = array, loss, np.full(1, np.nan), np.full((1, len(counts)), np.nan), array.sum(-2), none
    rest = np.zeros((1, 2, 2), dtype=int) if unknown is None else np.array([unknown])
    return Scored(*known, rest, rest.sum(-1) * 0.5, none[:, 0])


def test_a_small_cell_is_withheld_with_its_groups_table() -> None:
    """The limit itself is told; a cell below it is not, nor what it would follow from."""
    found = withheld(scored([[[10, 30], [9, 200]], [[12, 10], [50, 60]], [[5, 3], [2, 90]]]), 10)
    assert found["counts"].numpy().tolist() == [[[-1, -1], [-1, -1]], [[12, 10], [50, 60]], [[-1, -1], [-1, -1]]]
    assert found["loss"].numpy().tolist() == [[0.0, 0.0], [11.0, 55.0], [0.0, 0.0]]
    assert found["predicted"].numpy().tolist() == [[19, 230], [62, 70], [-1, -1]]


def test_what_is_withheld_cannot_be_had_from_two_rounds() -> None:
    """A label's number of rows is the same in every round. Known from one, and with all that is told in another, the
    small cell may still be any of many numbers."""
    one, two = (
        withheld(scored([[[a, 205 - a], [b, 80 - b]], [[40, 40], [40, 40]]]), 10) for a, b in ((15, 40), (5, 30))
    )
    labels = one["counts"].numpy()[0].sum(-1)  # [205, 80], known from here on
    negative, positive = two["predicted"].numpy()[0]
    assert (two["counts"].numpy()[0] == -1).all()
    possible = [a for a in range(206) if 0 <= negative - a <= labels[1] and positive - (labels[0] - a) >= 0]
    assert len(possible) == 36


def test_a_small_group_does_not_follow_from_the_number_of_all_rows() -> None:
    """Three women of 103 test rows: with the men's table and the total they would be known. Nobody is not somebody."""
    men, more = [[20, 30], [25, 25]], [[50, 60], [70, 80]]
    alone = withheld(scored([[[1, 0], [1, 1]], men, more]), 10)
    assert alone["predicted"].numpy().tolist() == [[-1, -1], [-1, -1], [120, 140]]
    assert (alone["counts"].numpy()[:2] == -1).all()
    two = withheld(scored([[[1, 0], [1, 1]], [[0, 2], [2, 2]], more]), 10)
    assert two["predicted"].numpy().tolist() == [[-1, -1], [-1, -1], [120, 140]]
    nobody = withheld(scored([[[0, 0], [0, 0]], men, more]), 10)
    assert nobody["predicted"].numpy().tolist() == [[-1, -1], [45, 55], [120, 140]]


def test_rows_of_unknown_group_are_withheld_like_a_group() -> None:
    """A small table of them, or one that would follow from the number of all rows; that there are none is told."""
    men, women, few = [[20, 30], [25, 25]], [[50, 60], [70, 80]], [[1, 0], [2, 1]]
    told = withheld(scored([men, women], [[10, 12], [13, 14]]), 10)
    assert told["unknown"].numpy().tolist() == [[10, 12], [13, 14]]
    assert told["unknown_loss"].numpy().tolist() == [11.0, 13.5]
    small = withheld(scored([men, women], few), 10)
    assert (small["unknown"].numpy() == -1).all()
    assert small["unknown_loss"].numpy().tolist() == [0.0, 0.0]
    # four of 364 rows would follow from the two groups
    assert small["predicted"].numpy().tolist() == [[-1, -1], [120, 140]]
    none = withheld(scored([men, women]), 10)
    assert none["unknown"].numpy().tolist() == [[0, 0], [0, 0]]
    assert none["predicted"].numpy().tolist() == [[45, 55], [120, 140]]
    # the server adds up what is shown
    clients = [
        read(RecordDict({EVALUATION: each}), binary(), rows) for each, rows in ((told, 409), (small, 364), (none, 360))
    ]
    scores = combine(clients, binary())
    assert scores["test"].unknown[0].tolist() == [[10, 12], [13, 14]]
    assert np.isnan(scores["clients"].unknown[1]).all()
    with pytest.raises(BadMessage, match="counts 409 test rows where it has 400"):
        read(RecordDict({EVALUATION: told}), binary(), 400)


def test_a_federation_with_unknown_groups_equals_the_simulator(silos: Path, tmp_path: Path) -> None:
    """One silo knows no group at all, another not all; the server is told how many test rows that is."""
    for silo, every in (("a", 1), ("c", 3)):
        frame = pd.read_parquet(silos / f"{silo}.parquet")
        frame.loc[frame.index % every == 0, "sex"] = None
        frame.to_parquet(tmp_path / f"{silo}.parquet")
    for file in silos.iterdir():
        if not (tmp_path / file.name).exists():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    made = setting(tmp_path, ef.methods.KFFL(fairness_weight=5.0), run={"rounds": 2})
    found, expected = federate(made, nodes(made), tmp_path / "runs"), simulate(made)
    for name, value in expected.parameters[3].items():
        np.testing.assert_allclose(found.parameters[3][name], value, rtol=2e-5, atol=2e-6)
    overall = (result.final().set_index("seed") for result in (found, expected))
    metrics = ["rows", "accuracy", "loss", "demographic_parity_difference", "worst_group_accuracy"]
    pd.testing.assert_frame_equal(*(frame[metrics] for frame in overall), rtol=1e-4)
    unknown = expected.info["unknown_groups"]["test"]
    assert found.info["unknown_groups"] == {"train": None, "validation": 0, "test": unknown}
    assert unknown > 0
    notes = {note.kind: note for note in found.notes}
    assert notes["unknown-groups"].fields["rows"] == {"test": unknown}


def test_the_servers_sums_are_of_what_is_shown() -> None:
    task = binary()
    sent = [scored([[[10, 30], [9, 200]], [[12, 11], [50, 60]]]), scored([[[20, 20], [20, 20]], [[1, 1], [30, 40]]])]
    contents = [RecordDict({EVALUATION: withheld(each, 10)}) for each in sent]
    clients = [*(read(content, task, rows) for content, rows in zip(contents, (382, 152), strict=True)), None]
    scores = combine(clients, task)
    assert scores["test"].counts[0].tolist() == [[[20, 20], [20, 20]], [[12, 11], [50, 60]]]
    assert scores["test"].predicted[0].tolist() == [[19 + 40, 230 + 40], [62 + 31, 71 + 41]]
    assert np.isnan(scores["clients"].counts[0, 0]).all()
    assert np.isnan(scores["clients"].counts[2]).all()


class Three:
    label_kind, groups, ids, client_groups, client_test = "binary", ("a", "b", "c"), ("north", "south"), None, True


@pytest.mark.parametrize("hidden", [True, False])
def test_nothing_is_said_of_groups_one_of_which_is_withheld(hidden: bool) -> None:
    """Not the gap of the others, nor the worst of them; nor the worst of the clients that show theirs. A group without
    rows, where nothing is withheld, is left out."""
    few = [[[4, 3], [2, 1]] if hidden else [[0, 0], [0, 0]]] * 2
    tables = [
        [[[40, 20], [10, 30]], few[0], [[50, 20], [20, 40]]],
        [[[30, 20], [20, 30]], few[1], [[40, 20], [20, 50]]],
    ]
    sent = [RecordDict({EVALUATION: withheld(scored(each), 10 if hidden else 0)}) for each in tables]
    rows = [int(np.sum(each)) for each in tables]
    scores = combine([read(*each) for each in zip(sent, [binary(3)] * 2, rows, strict=True)], binary(3))
    frame = metrics_frame([(1, 0, scores)], Three(), [{"method": "fedavg", "seed": 0}])
    values = frame[frame["scope"] == "global"].set_index("metric")["value"]
    between = ["worst_group_accuracy", "accuracy_difference", "equal_opportunity_difference", "discrimination_index"]
    between += ["demographic_parity_difference", "demographic_parity_ratio", "equalized_odds_difference"]
    between += ["client_accuracy.worst", "client_accuracy.mean", "client_demographic_parity_difference.worst"]
    between += ["client_equality.worst10"]
    assert values[between].isna().all() if hidden else values[between].notna().all()
    assert np.isnan(scores["test"].counts[0, 1]).all() == hidden
    known = np.array(tables).sum(0)[[0, 2]]
    assert values["accuracy"] == pytest.approx(np.trace(known.sum(0)) / known.sum())
    assert values["rows"] == known.sum()
    clients = frame[frame["scope"] == "client:north"].set_index("metric")["value"]
    assert np.isnan(clients["equal_opportunity_difference"]) == hidden
    if not hidden:
        accuracy = np.trace(known, axis1=1, axis2=2) / known.sum((1, 2))
        assert values["worst_group_accuracy"] == pytest.approx(accuracy.min())


@pytest.mark.parametrize(
    ("field", "change", "reason"),
    [
        ("counts", lambda counts: counts - 60, "negative counts"),
        ("counts", lambda counts: np.where(counts == 50, -1, counts), "negative counts"),
        ("counts", lambda counts: counts * 9, "test rows where it has 200"),
        ("predicted", lambda counts: counts * 9, "test rows where it has 200"),
        ("unknown", lambda counts: counts + 1, "counts 204 test rows where it has 200"),
        ("predicted", lambda counts: counts[:, ::-1].copy(), "contradicts itself"),
        ("predicted", lambda counts: counts * 0 - 1, "contradicts itself"),
        ("loss", lambda loss: -loss, "impossible losses in its evaluation"),
        ("loss", lambda loss: loss * np.nan, "NaN or Inf"),
    ],
)
def test_evaluations_that_cannot_be_are_refused(field: str, change, reason: str) -> None:
    sent = withheld(scored([[[50, 50], [25, 25]], [[10, 20], [10, 10]]]), 0)
    sent[field] = Array(change(sent[field].numpy()))
    with pytest.raises(BadMessage, match=reason):
        read(RecordDict({EVALUATION: sent}), binary(), 200)


def test_nobody_leaves_test_rows_out_without_saying_so() -> None:
    """Where no prediction is withheld, there are as many as the silo has declared."""
    tables = [[[50, 50], [25, 25]], [[10, 20], [10, 10]]]
    for told, shown in ((withheld(scored(tables), 0), 200), (withheld(scored(tables), 15), 200)):
        assert np.nansum(read(RecordDict({EVALUATION: told}), binary(), 200).predicted) == shown
        with pytest.raises(BadMessage, match="counts 200 test rows where it has 201"):
            read(RecordDict({EVALUATION: told}), binary(), 201)
    nothing = withheld(scored(np.zeros((2, 2, 2)).tolist()), 0)
    with pytest.raises(BadMessage, match="counts 0 test rows where it has 9"):
        read(RecordDict({EVALUATION: nothing}), binary(), 9)
    few = withheld(scored(tables), 60)  # of 50 women not even the predictions
    assert np.nansum(read(RecordDict({EVALUATION: few}), binary(), 201).predicted) < 200


ALL = {"counts": ["f", "m"], "predicted": ["f", "m"]}


def rows_of(result: ef.Result) -> pd.Series:
    return result.metrics.query("split == 'test' and metric == 'rows' and round == 2").set_index("scope")["value"]


def test_a_silo_can_ask_for_more(silos: Path, tmp_path: Path) -> None:
    made = setting(silos, run={"clients-per-round": "all", "rounds": 2})  # where nothing is withheld
    plain = federate(made, nodes(made), tmp_path, "plain")
    assert plain.info["federation"]["withheld"] == {}
    configs = [dict(each.node_config) for each in nodes(made).contexts.values()]
    configs[2]["min-count"] = 1000
    careful = federate(made, Nodes(SiloApp(made), configs), tmp_path, "careful")
    assert careful.info["federation"]["withheld"] == {"c": ALL}
    assert (
        "c withholds the confusion counts for f, m and the prediction counts for f, m: they are too small to be "
        "disclosed."
    ) in map(str, careful.notes)
    assert Note("disclosed", {"rows": 21, "of": 35}) in careful.notes
    assert np.isnan(rows_of(careful)["client:c"])
    assert rows_of(careful)["global"] == rows_of(plain)["global"] - rows_of(plain)["client:c"]
    assert careful.metrics.query("scope == 'client:c' and metric == 'accuracy'")["value"].isna().all()


def test_a_silo_cannot_go_below_what_the_federation_agreed_on(silos: Path, tmp_path: Path) -> None:
    made = setting(silos, run={"clients-per-round": "all", "rounds": 2}, flower={"min-count": 15})
    found = federate(made, nodes(made, **{"min-count": 0}), tmp_path)
    assert found.info["federation"]["withheld"] == dict.fromkeys(made.silos, ALL)
    assert rows_of(found)["global"] == 0


def test_evaluation_rides_along(silos: Path, tmp_path: Path) -> None:
    """One message per client and phase, one to everybody else where a round's model is measured, one at the end."""
    made = setting(silos, methods.KFFL(), run={"rounds": 5, "clients-per-round": 4, "eval-every": 2})
    grid = nodes(made)
    found = federate(made, grid, tmp_path)
    kinds = Counter(kind for _, kind in grid.sent)
    assert kinds == {
        "query.join": 6,
        "train.fair1": 20,
        "train.fair2": 20,
        "train.train": 20,
        "evaluate.counts": 2 * 2 + 6,  # rounds 2 and 4 by those who do not train in rounds 3 and 5; the last by all
    }
    assert sorted(found.metrics["round"].unique()) == [2, 4, 5]
    expected = simulate(made).metrics.query("scope == 'global' and split == 'test' and metric == 'accuracy'")
    there = found.metrics.query("scope == 'global' and split == 'test' and metric == 'accuracy'")
    np.testing.assert_allclose(there["value"], expected["value"])


def test_messages_are_listed_with_what_joining_and_evaluating_cost(silos: Path, tmp_path: Path) -> None:
    made = setting(silos, methods.E2FL(groups="known"), model={"bias": False})
    grid = nodes(made)
    sizes: list[int] = []

    def weigh(silo: str, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train.train":
            ranking = [array for name, array in reply.content["fields"].items() if name.startswith("ranking")]
            sizes.append(sum(array.numpy().nbytes for array in ranking))
        return reply

    grid.fault = weigh
    found = federate(made, grid, tmp_path)
    table = found.messages.set_index(["stage", "phase"])
    assert table.loc[("join", "join"), "up"] == "rows, test-rows, sum, squares"
    assert table.loc[("evaluate", "counts"), "up"] == ", ".join(Scored._fields)
    assert set(sizes) == {table.loc[("round", "train"), "sizes_up"]["ranking"]}  # in as few bits as counted


def test_regression(tmp_path: Path) -> None:
    """Means and squared errors add up; the KS distance of all silos together cannot be known."""
    rng = np.random.default_rng(0)
    frames = {silo: table(rng, n).assign(price=lambda f: f["w"] * 2 + f["x"]) for silo, n in {"a": 60, "b": 90}.items()}
    for silo, frame in frames.items():
        frame.drop(columns="bought").to_parquet(tmp_path / f"{silo}.parquet")
    together = pd.concat(frames.values()).drop(columns="bought")
    schema = Schema.infer(
        together, ef.Columns(label="price", sensitive="sex", task="regression", features=["w", "x", "y", "z"])
    )
    (tmp_path / "schema.json").write_text(schema.to_json())
    sections = {
        "run": {"clients-per-round": "all"},
        "data": {"files": {silo: f"{silo}.parquet" for silo in frames}, "validation-file": None, "client-groups": None},
        "model": {"kind": "linear", "hidden": None, "activation": None},
    }
    made = setting(tmp_path, **sections)
    found, expected = federate(made, nodes(made), tmp_path / "runs"), simulate(made)
    keys = ["round", "split", "scope", "metric"]
    there, simulated = (
        each.metrics.astype(dict.fromkeys(keys[1:], str)).set_index(keys)["value"].sort_index()
        for each in (found, expected)
    )
    assert there.index.equals(simulated.index)
    unknown = there.index.get_level_values("metric").str.startswith("ks_distance") & (
        there.index.get_level_values("scope") == "global"
    )
    assert there[unknown].isna().all()
    np.testing.assert_allclose(there[~unknown], simulated[~unknown], rtol=1e-5, atol=1e-6)
    shy = setting(tmp_path, **sections, flower={"min-count": 8})
    some = federate(shy, nodes(shy), tmp_path / "runs", "shy")
    counts = expected.metrics.query("scope == 'client:a' and metric == 'rows'")["value"]
    assert (counts == 12).all()  # so that one of its two groups has less than 8
    assert some.info["federation"]["withheld"].keys() == {"a"}
    assert some.metrics.query("scope == 'client:a' and metric == 'rmse'")["value"].isna().all()


def with_scores(y: np.ndarray, score: np.ndarray) -> Scored:
    """Of one group; another has rows enough in every bin."""
    plenty = np.repeat((np.arange(BINS) + 0.5) / BINS, 200)
    label, scores = np.append(y, np.arange(len(plenty)) % 2), np.append(score, plenty)
    group = np.append(np.zeros(len(y), int), np.ones(len(plenty), int))
    counts = np.zeros((1, 2, 2, 2), int)
    np.add.at(counts[0], (group, label, (scores > 0.5).astype(int)), 1)
    bins = histograms(label, scores, sensitive_features=group)[None]
    return scored(counts[0].tolist())._replace(calibration=bins)


def ranges(bins: np.ndarray) -> np.ndarray:
    """What is told of a group, where there is anything [ranges, 3]."""
    return bins[bins[:, 0] > 0]


def test_histograms_tell_no_small_count_and_add_up_to_the_table() -> None:
    rng = np.random.default_rng(0)
    finer = 0
    for _ in range(200):
        n = int(rng.integers(60, 3000))
        score = rng.beta(*rng.uniform(0.3, 3, 2), n)
        sent = withheld(with_scores((rng.random(n) < score).astype(int), score), 10)
        bins, counts = sent["calibration"].numpy()[0], sent["counts"].numpy()[0]
        told = ranges(bins)
        if (counts == -1).all():
            assert not len(told)
            continue
        finer += len(told) > 2
        assert (told[:, 1] >= 10).all()
        assert (told[:, 0] - told[:, 1] >= 10).all()
        # with the table, nothing but sums of ranges: each lies on one side of one half, and they are all there is
        halves = bins.reshape(2, -1, 3).sum(1)
        assert np.array_equal(halves[:, 1], counts[1])
        assert np.array_equal(halves[:, 0], counts.sum(0))
        read(RecordDict({EVALUATION: sent}), binary(), n + 200 * BINS, fewer=True)
    assert finer > 50


def test_ranges_of_two_rounds_are_nested() -> None:
    """A model that hardly changes tells its ranges again and again: where the borders of two rounds lay across each
    other, their difference would be a small count. Scores are told apart here by giving every row its own power of two:
    the sum of a range then says which rows are in it."""
    rng = np.random.default_rng(1)
    n = 40
    score = np.sort(rng.random(n))
    found: set[frozenset[int]] = set()
    for _ in range(300):  # the same scores, labels of other rounds: the ranges differ, the rows do not
        y = (rng.random(n) < 0.5).astype(int)
        bins = histograms(y, score, sensitive_features=np.zeros(n))[0]
        marked = np.zeros(BINS)
        np.add.at(marked, np.searchsorted(EDGES, score), 2.0 ** np.arange(n))
        told = np.zeros((BINS, 3))
        _disclose(np.stack([bins[:, 0], bins[:, 1], marked], -1), 3, told)
        found |= {frozenset(i for i in range(n) if int(total) >> i & 1) for total in told[told[:, 0] > 0, 2]}
    assert len(found) > 4
    assert all(one <= other or other <= one or not one & other for one in found for other in found)


def test_histograms_are_exact_where_nothing_is_withheld() -> None:
    rng = np.random.default_rng(2)
    made = with_scores(rng.integers(0, 2, 30), rng.random(30))
    sent = withheld(made, 0)
    assert np.array_equal(sent["calibration"].numpy(), made.calibration[0])
    [one] = read(RecordDict({EVALUATION: sent}), binary(), 10_000, fewer=True).calibration
    assert np.array_equal(one, made.calibration[0])


@pytest.mark.parametrize(
    "change",
    [
        lambda bins: bins * 2,
        lambda bins: bins + np.array([0, 0.5, 0]),
        lambda bins: bins * [1, 1, 9],
        lambda bins: np.roll(bins, 1, axis=1),
        lambda bins: bins[:, ::-1].copy(),
        lambda bins: -bins,
    ],
)
def test_histograms_that_cannot_be_are_refused(change) -> None:
    rng = np.random.default_rng(3)
    score = rng.random(400)
    sent = withheld(with_scores((rng.random(400) < score).astype(int), score), 10)
    sent["calibration"] = Array(change(sent["calibration"].numpy()))
    with pytest.raises(BadMessage, match="histograms"):
        read(RecordDict({EVALUATION: sent}), binary(), 100_000, fewer=True)


def test_calibration_is_that_of_the_simulator(silos: Path, tmp_path: Path) -> None:
    made = setting(silos, run={"clients-per-round": "all", "rounds": 2}, flower={"min-count": 0})
    found, expected = federate(made, nodes(made), tmp_path), simulate(made)
    wanted = "metric in ('expected_calibration_error', 'calibration_difference', 'calibration_gap') and split == 'test'"
    there, simulated = (each.metrics.query(wanted)["value"].to_numpy() for each in (found, expected))
    assert len(there) == 2 * (3 + 2)
    assert np.isfinite(there).all()
    np.testing.assert_allclose(there, simulated, rtol=1e-5)
