"""E2FL's Tables 2 and 6 on a stand-in for FEMNIST: eight writers in the format of LEAF's files, made here.

The real files cannot be had for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equifed as ef
from equifed.simulator import Step
from equifed_papers.experiments import Request
from equifed_papers.experiments.base import unwatched
from equifed_papers.experiments.e2fl import femnist, show
from equifed_papers.experiments.e2fl import settings as e2fl
from experiments.command import noting, record

WRITERS, TRAIN_ROWS, TEST_ROWS = 8, 10, 5


def stand_in(home: Path) -> None:
    """Writers with all 62 labels among them, in two training files and one test file."""
    rng = np.random.default_rng(0)
    glyphs = rng.random((62, 784))
    labels = np.arange(WRITERS * (TRAIN_ROWS + TEST_ROWS)) % 62
    users = {}
    for k, own in enumerate(labels.reshape(WRITERS, -1)):
        x = np.clip(glyphs[own] + 0.2 * rng.normal(size=(len(own), 784)), 0, 1)
        users[f"f{k:04d}_{k:02d}"] = (x.round(3), own)
    names = list(users)
    train, test = slice(0, TRAIN_ROWS), slice(TRAIN_ROWS, None)
    parts = {
        "train/all_data_0": (names[:5], train),
        "train/all_data_1": (names[5:], train),
        "test/all_data_0": (names, test),
    }
    for file, (members, rows) in parts.items():
        data = {name: {"x": users[name][0][rows].tolist(), "y": users[name][1][rows].tolist()} for name in members}
        path = home / "femnist" / f"{file}_niid_0_keep_0.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        counts = [len(rows["y"]) for rows in data.values()]
        path.write_text(json.dumps({"users": members, "num_samples": counts, "user_data": data}))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    stand_in(tmp_path)
    monkeypatch.setenv("EQUIFED_DATA", str(tmp_path))
    return tmp_path


def spread(accuracies: list[float]) -> list[float]:
    """Mean, worst and best tenth, and variance, in percent."""
    ordered = sorted(100 * value for value in accuracies)
    tenth = max(len(ordered) // 10, 1)
    mean = sum(ordered) / len(ordered)
    variance = sum((value - mean) ** 2 for value in ordered) / len(ordered)
    return [mean, sum(ordered[:tenth]) / tenth, sum(ordered[-tenth:]) / tenth, variance]


def own_accuracies(result: Any, seed: int) -> dict[str, float]:
    """Every writer's accuracy on its own test rows, from predictions."""
    fed = ef.load_femnist()
    assert fed.client_test is not None
    made = {}
    for k, name in enumerate(fed.ids):
        rows = fed.client_test[k]
        decided = result.predict(fed.rows.x[rows], run=seed, client=name).argmax(1)
        made[name] = float(np.mean(decided == fed.rows.y[rows]))
    return made


def test_the_stand_in_is_read_as_writers(home: Path) -> None:
    feds = femnist.federations([0, 1])
    assert [fed.seed for fed in feds] == [0, 1]
    assert feds[0].num_clients == WRITERS
    assert set(feds[0].train.sizes) == {TRAIN_ROWS}
    assert len(feds[0].classes) == 62


@pytest.mark.full
def test_equality_of_writers_by_hand(home: Path) -> None:
    request = Request(methods=["E2FL (Lowest Loss)"], seeds=2, rounds=2)
    _, part, end = show.table2(request, unwatched)
    (result,) = part.results
    by_seed = [spread(list(own_accuracies(result, seed).values())) for seed in (0, 1)]
    assert [cell.mean for cell in part.rows] == pytest.approx(np.mean(by_seed, axis=0))
    assert np.isnan([cell.published_mean for cell in part.rows]).all()  # another network
    assert "8 writers" in end.shown[1]


@pytest.mark.full
def test_equity_of_the_clusters_by_hand(home: Path) -> None:
    """Groups' means, each the mean of its writers; the clusters are those that the server assigned."""
    steps: list[Step] = []
    found = list(show.table6(Request(seeds=1, rounds=1), noting(steps)))
    assert [part.rows[0].place for part in found[:4]] == ["2 clusters", "3 clusters", "4 clusters", "5 clusters"]
    for clusters, part, step in zip(femnist.CLUSTERS, found[:4], steps, strict=True):
        accuracy = own_accuracies(part.results[0], 0)
        groups: dict[int, list[float]] = {}
        for value, group in zip(accuracy.values(), step.state.clients.group[0].tolist(), strict=True):
            groups.setdefault(group, []).append(value)
        assert len(groups) <= clusters
        by_group = spread([sum(values) / len(values) for values in groups.values()])
        assert [cell.mean for cell in part.rows] == pytest.approx([*by_group, *spread(list(accuracy.values()))])


@pytest.mark.full
def test_bytes_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ranking has ceil(log2 n) bits per edge, a mask 1; weights have 4 bytes. It takes no files."""
    monkeypatch.setenv("EQUIFED_DATA", str(tmp_path))
    cells = next(show.table2(Request(), unwatched)).rows
    edges = {288: 9, 18_432: 15, 1_605_632: 21, 7_936: 13}
    ranking, mask = sum(n * bits // 8 for n, bits in edges.items()), sum(edges) // 8
    weights = 4 * sum(edges)
    expected = {
        "Local training": (0, 0),
        "FedAvg": (weights + 4, weights),
        "q-FFL": (weights + 4, weights),
        "E2FL (OneShot)": (ranking + 2, ranking + 2 * mask),
        "E2FL (Rank Clustering)": (ranking + 2, ranking),
        "E2FL (Lowest Loss)": (ranking + 2, ranking + 2 * mask),
    }
    sent = [value / 2**20 for pair in expected.values() for value in pair]
    assert [cell.mean for cell in cells] == pytest.approx(sent, rel=1e-9)
    published = [0, 0, 6.23, 6.23, 6.23, 6.23, 4.06, 6.01, 4.06, 4.06, 4.06, 6.01]
    assert [cell.published_mean for cell in cells] == published
    # 4.065 MiB, which the paper cuts; and two masks, where it counts ten
    assert [cell.within for cell in cells] == [True] * 6 + [False] * 6
    assert f"{ranking / 2**20:.4f} {(ranking + 10 * mask) / 2**20:.2f}" == "4.0651 6.01"


@pytest.mark.full
def test_table2_on_the_command_line(home: Path, tmp_path: Path) -> None:
    cells = record("e2fl/table2", folder=tmp_path / "runs")["cells"]
    labels = [arm.label for arm in femnist.ARMS]
    assert [cell["method"] for cell in cells] == [label for each in (2, 4) for label in labels for _ in range(each)]


@pytest.mark.full
def test_the_paper_s_network_stands_beside_the_published_numbers(home: Path) -> None:
    _, part, _ = show.table2(Request(datasets=["full"], methods=["fedavg"], seeds=1, rounds=1), unwatched)
    assert [cell.published_mean for cell in part.rows] == [85.50, 63.51, 99.39, 108.24]


def test_files_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIFED_DATA", str(tmp_path))
    for table in (show.table2, show.table6):
        with pytest.raises(ef.DataError, match=r"preprocess\.sh.* as train and test, .*EQUIFED_DATA") as error:
            list(table(Request(methods=["FedAvg"]), unwatched))
        assert str(tmp_path / "femnist") in str(error.value)
    with pytest.raises(ef.ConfigError, match="both"):
        ef.load_femnist(tmp_path / "train.json")


def test_the_published_numbers_agree_among_themselves() -> None:
    """As many as in the paper's tables; of two groups, the mean lies between both and the variance follows; table 6's
    five clusters are table 2's."""
    count = {1: 50, 2: 36, 3: 8, 5: 10}
    for table, numbers in count.items():
        assert len(e2fl.published_figures(table)) == numbers
    assert sum(len(e2fl.published_figures(4, f"alpha {alpha}")) for alpha in ("1", "5000")) == 18
    by_clusters = {q: {f: v for (_, f), v in e2fl.published_figures(6, f"{q} clusters").items()} for q in range(2, 6)}
    assert {len(figures) for figures in by_clusters.values()} == {8}
    low, high = (by_clusters[2][f"group_equity.{end}10"] for end in ("worst", "best"))
    assert by_clusters[2]["group_equity.mean"] == pytest.approx((low + high) / 2, abs=0.01)
    assert by_clusters[2]["group_equity.variance"] == pytest.approx(((high - low) / 2) ** 2, abs=0.05)
    row = {figure: value for (label, figure), value in e2fl.published_figures(2).items() if "Rank" in label}
    assert all(row[name] == by_clusters[5][name] for name in e2fl.CLIENTS)
    shares = e2fl.published_figures(3)
    assert shares["train data", "Pr[A = 1]"] + shares["train data", "Pr[A = 0]"] == 100
