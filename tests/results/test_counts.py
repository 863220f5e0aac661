"""What a result keeps of its last evaluation, against what its models say about the rows."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from own_data import federation_of

import equifed as ef
from equifed.federation import RowSets
from equifed.metrics import counts
from equifed.metrics.calibration import BINS, histograms
from equifed.store.results import load_result, save_result
from equifed.verdict.variants import variants_of

GROUPS = ["a", "b", "c"]
SETTINGS = {"model": ef.models.Logistic(), "rounds": 2, "local": ef.Local(batch_size=20, learning_rate=0.3)}


def rows(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = rng.normal(size=(n, 3)).astype(np.float32)
    s = rng.integers(0, 3, n)
    return x, (x[:, 0] + 0.4 * s + rng.normal(size=n) > 0).astype(int), np.array(GROUPS)[s]


TEST, VALIDATION = rows(np.random.default_rng(1), 90), rows(np.random.default_rng(2), 70)


@pytest.fixture(scope="module")
def fed() -> ef.Federation:
    rng = np.random.default_rng(0)
    return ef.Federation.from_arrays([rows(rng, 40) for _ in range(4)], test=TEST, validation=VALIDATION)


def counted(result: ef.Result, part: tuple[np.ndarray, ...], run: object, client: str | None = None) -> np.ndarray:
    x, y, s = part
    return counts(y, result.predict(x, run=run, client=client) > 0.5, sensitive_features=s, num_classes=2)


def test_counts_are_those_of_the_final_models(fed: ef.Federation) -> None:
    result = ef.simulate(ef.methods.FedProx(), fed, over={"mu": [0.0, 5.0]}, seeds=[3, 7], **SETTINGS)
    for split, part in {"test": TEST, "validation": VALIDATION}.items():
        tables = result.count_tables(split)
        assert list(tables) == list(result.parameters) == [(0.0, 3), (0.0, 7), (5.0, 3), (5.0, 7)]
        for key, table in tables.items():
            np.testing.assert_array_equal(table, counted(result, part, key))
            chosen = result.count_tables(split, labels=False)[key]
            np.testing.assert_array_equal(chosen[:, 0], table.sum(1))
            assert not chosen[:, 1:].any()
    assert list(result.counts) == ["method", "mu", "seed", "split", "group", "label", "predicted", "rows"]
    assert result.counts["label"].notna().all()
    assert result.count_tables("clients") == {}


def test_rows_are_counted_once_where_clients_have_their_own_models(fed: ef.Federation) -> None:
    result = ef.simulate(ef.methods.make("local"), fed, seeds=[0], **SETTINGS)
    of_each = [counted(result, TEST, 0, client) for client in fed.ids]
    np.testing.assert_allclose(result.count_tables()[0], np.mean(of_each, axis=0))


def test_clients_own_test_rows_are_counted_once() -> None:
    """One range of rows that all clients share, as in data sets with a common test set; and each with its own rows."""
    rng = np.random.default_rng(0)
    made = ef.Federation.from_arrays(
        [rows(rng, 40) for _ in range(3)], client_tests=[rows(rng, n) for n in (10, 20, 30)]
    )
    common = RowSets(made.client_test.index, np.zeros(3, np.int64), np.full(3, 60))
    for each in (made, replace(made, client_test=common)):
        result = ef.simulate(ef.methods.make("local"), each, seeds=[0], **SETTINGS)
        assert result.count_tables()[0].sum() == pytest.approx(60)


def test_stored_and_pickled(fed: ef.Federation, tmp_path: Path) -> None:
    result = ef.simulate(ef.methods.FedAvg(), fed, seeds=[0, 1], **SETTINGS)
    save_result(tmp_path / "r", result)
    for again in (load_result(tmp_path / "r"), pickle.loads(pickle.dumps(result))):
        pd.testing.assert_frame_equal(again.counts, result.counts)
        np.testing.assert_array_equal(again.count_tables()[1], result.count_tables()[1])
        assert again.info["shared_rows"] == {"test": 1.0, "validation": 1.0}


def test_no_tables_for_a_regression() -> None:
    rng = np.random.default_rng(0)
    part = rng.normal(size=(30, 2)).astype(np.float32), rng.normal(size=30).astype(np.float32), ["a", "b"] * 15
    made = ef.Federation.from_arrays([part], test=part, task="regression")
    result = ef.simulate(ef.methods.FedAvg(), made, seeds=[0], **SETTINGS | {"model": ef.models.Linear()})
    assert result.counts.empty
    assert result.count_tables() == {}


def test_how_many_rows_seeds_share() -> None:
    """One federation: all. A split for each seed: about its share of the data. The same rows in tables of their own."""
    rng = np.random.default_rng(0)
    x, y, s = rows(rng, 500)
    frame = pd.DataFrame({"x": x[:, 0], "z": x[:, 1], "y": y, "s": s})

    def shared(feds: list[ef.Federation]) -> dict[str, float]:
        result = ef.simulate(ef.methods.FedAvg(), feds, seeds=range(len(feds)), **SETTINGS)
        return result.info["shared_rows"]

    settings = {"label": "y", "sensitive": "s", "partition": ef.partition.IID(num_partitions=2), "test": 0.2}
    drawn = [federation_of(frame, **settings, validation=0.1, seed=seed) for seed in range(4)]
    sets = [set(map(tuple, fed.rows.x[fed.test].tolist())) for fed in drawn]
    pairs = [len(sets[i] & sets[j]) / 100 for i in range(4) for j in range(i)]
    found = shared(drawn)
    assert found["test"] == pytest.approx(np.mean(pairs))
    assert 0.1 < found["test"] < 0.3 > found["validation"]
    again = [ef.Federation.from_arrays([rows(rng, 40)], test=TEST, validation=rows(rng, 30)) for _ in range(2)]
    assert shared(again) == {"test": 1.0, "validation": 0.0}
    bare = [ef.Federation.from_arrays([rows(rng, 40)], test=TEST) for _ in range(2)]
    assert shared(bare)["test"] == 1.0


def test_histograms_and_local_gaps_are_kept_and_come_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    fed = ef.Federation.from_arrays(
        [rows(rng, 40) for _ in range(3)], test=TEST, client_tests=[rows(rng, 20) for _ in range(3)]
    )
    result = ef.simulate(ef.methods.FedProx(), fed, over={"mu": [0.0, 5.0]}, seeds=[3, 7], **SETTINGS)
    x, y, s = TEST
    for (mu, seed), block in result.calibration.groupby(["mu", "seed"]):
        expected = histograms(y, result.predict(x, run=(mu, seed)), sensitive_features=s)
        found = block[["rows", "positives", "score_sum"]].to_numpy().reshape(3, BINS, 3)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        assert list(dict.fromkeys(block["group"])) == GROUPS
    assert len(result.local_gaps) == 4 * 2 * 3
    save_result(tmp_path / "saved", result)
    loaded = load_result(tmp_path / "saved")
    pd.testing.assert_frame_equal(loaded.calibration, result.calibration)
    pd.testing.assert_frame_equal(loaded.local_gaps, result.local_gaps)


def test_rows_of_histograms_are_counted_once_where_clients_have_their_own_models(fed: ef.Federation) -> None:
    result = ef.simulate(ef.methods.make("local"), fed, seeds=[0], **SETTINGS)
    by_group = result.calibration.query("split == 'test'").groupby("group")["rows"].sum()
    assert by_group.to_dict() == pytest.approx({group: (TEST[2] == group).sum() for group in GROUPS})


def test_a_regression_has_neither(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    parts = [(x, x[:, 0], s) for x, _, s in (rows(rng, 30) for _ in range(4))]
    fed = ef.Federation.from_arrays(parts[:2], test=parts[2], client_tests=parts[2:], task="regression")
    result = ef.simulate(ef.methods.FedAvg(), fed, model=ef.models.Linear(), rounds=1, seeds=[0])
    save_result(tmp_path / "saved", result)
    for each in (result, load_result(tmp_path / "saved")):
        assert each.calibration.empty
        assert each.local_gaps.empty
        assert "value" in each.local_gaps


def test_rows_of_unknown_group_count_in_what_is_said_of_all_rows(tmp_path: Path) -> None:
    """Their labels are noise here, so that an accuracy without them would be far too high."""
    rng = np.random.default_rng(0)

    def part(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = rng.normal(size=(n, 2)).astype(np.float32)
        s = rng.integers(-1, 2, n)
        return x, np.where(s < 0, rng.integers(0, 2, n), x[:, 0] > 0).astype(int), s

    test = part(600)
    fed = ef.Federation.from_arrays([part(100) for _ in range(3)], test=test)
    result = ef.simulate(ef.methods.FedAvg(), fed, seeds=[0, 1, 2], **SETTINGS)
    save_result(tmp_path / "r", result)
    for each in (result, load_result(tmp_path / "r")):
        table, known = each.count_tables(unknown=True)[1], each.count_tables()[1]
        assert table.shape == (3, 2, 2)
        np.testing.assert_array_equal(table[:2], known)
        x, y, s = test
        np.testing.assert_array_equal(table[:2], counted(result, tuple(a[s >= 0] for a in test), 1))
        np.testing.assert_array_equal(table[2], counted(result, (x[s < 0], y[s < 0], s[s < 0] + 1), 1)[0])
        accuracy = each.final()["accuracy"].mean()
        of_groups = np.trace(known, axis1=1, axis2=2).sum() / known.sum()
        bound = (accuracy + of_groups) / 2
        found = each.answer(f"accuracy >= {bound}")
        assert of_groups > accuracy + 0.1
        assert found.status == "not met"
        estimate = found.findings[0].test
        assert estimate is not None
        assert estimate.mean == pytest.approx(accuracy)
        assert estimate.lower_end < accuracy < estimate.high < of_groups
        assert variants_of([each])[0].interval("accuracy") == pytest.approx((estimate.low, estimate.high))
