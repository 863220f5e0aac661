"""Records, and running what is missing: nothing twice, and what another has computed beside one's own."""

from __future__ import annotations

import json
import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import equifed as ef
from equifed.cli.app import app
from equifed.errors import DataError
from equifed.partition import Dirichlet, RotationGroups
from equifed.settings import Cluster
from equifed_papers.benchmark import plan, records, run
from equifed_papers.benchmark.page import publish, write_page
from equifed_papers.benchmark.plan import DATASETS, TIERS, Tier

TINY = Tier("quick", 3, 2, 2, 400, {"german": ("iid",)})


def asked(*methods: str, seeds: int = 2) -> run.Asked:
    return run.Asked(TINY, TINY.datasets, methods, seeds)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods of the runs that become rows."""
    seen: list[str] = []
    rows_of = records.rows_of

    def counting(trial: Any, *rest: Any) -> Any:
        seen.append(trial.method)
        return rows_of(trial, *rest)

    monkeypatch.setattr(records, "rows_of", counting)
    return seen


def test_rows_round_trip_with_their_schema(tmp_path: Path) -> None:
    rows = records.table_of([{"tier": "quick", "method": "fedavg", "seed": 3, "test_accuracy": 0.5, "left_out": ""}])
    path = tmp_path / "rows.parquet"
    records.write(path, rows)
    pd.testing.assert_frame_equal(records.read(path), rows)
    schema = pq.read_schema(path)
    assert schema.metadata[b"equifed.benchmark"] == b"1"
    assert schema.names == list(records.COLUMNS)
    assert all(field.metadata[b"meaning"] for field in schema)


@pytest.mark.full
def test_the_rows_of_a_benchmark_are_read_up_to_a_size(tmp_path: Path) -> None:
    path = tmp_path / records.ROWS
    chunk = records.table_of([{"tier": "quick", "data": "d", "method": "m", "seed": 0}] * 200_000)
    table = pa.Table.from_pandas(chunk, schema=records.SCHEMA, preserve_index=False)
    with pq.ParquetWriter(path, records.SCHEMA, compression="zstd") as writer:
        for _ in range(15):
            writer.write_table(table)
    assert path.stat().st_size < 2_000_000
    with pytest.raises(DataError, match=r"benchmark\.parquet: The table is too large"):
        records.read(path)
    records.write(path, chunk[:3].assign(seed=np.arange(3)))
    assert len(records.read(path)) == 3


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("no")
    with pytest.raises(DataError, match="Parquet"):
        records.read(tmp_path / "a.parquet")
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(DataError, match="schema"):
        records.read(tmp_path / "b.parquet")
    assert records.read(tmp_path / "none.parquet").empty


def test_nothing_is_run_twice(tmp_path: Path, counted: list[str], needs: Callable[[str], Path]) -> None:
    needs("german")
    rows, failed = run.carry_out(asked("fedavg", "fedprox"), tmp_path, Cluster())
    assert not failed
    assert counted == ["fedavg"] * 3 + ["fedprox"]
    assert len(rows) == 2 * (3 + 3)
    assert not rows.duplicated(records.KEY).any()
    assert rows["validation_accuracy"].between(0, 1).all()
    assert not any(path.is_dir() for path in tmp_path.iterdir())  # no run is left behind
    del counted[:]
    same, _ = run.carry_out(asked("fedavg", "fedprox"), tmp_path, Cluster())
    assert not counted
    assert len(same) == len(rows)
    # what is lost is run again, and no more: a setting of FedAvg, whose step size is a computation
    records.write(tmp_path / records.ROWS, rows[rows["setting"] != "learning-rate=0.1"])
    again, _ = run.carry_out(asked("fedavg", "fedprox"), tmp_path, Cluster())
    assert counted == ["fedavg"]
    values = [frame.sort_values(records.KEY)["test_accuracy"].to_numpy() for frame in (rows, again)]
    np.testing.assert_array_equal(*values)
    # further seeds alone are run
    more, _ = run.carry_out(asked("fedprox", seeds=3), tmp_path, Cluster())
    assert len(more) == len(rows) + 3


def test_an_interrupted_benchmark_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: list[str], needs: Callable[[str], Path]
) -> None:
    needs("german")
    rows_of = records.rows_of

    def interrupted(trial: Any, *rest: Any) -> Any:
        if len(counted) == 2:
            raise KeyboardInterrupt
        return rows_of(trial, *rest)

    monkeypatch.setattr(records, "rows_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.carry_out(asked("fedavg"), tmp_path, Cluster())
    assert len(records.read(tmp_path / records.ROWS)) == 4
    monkeypatch.setattr(records, "rows_of", rows_of)
    rows, _ = run.carry_out(asked("fedavg"), tmp_path, Cluster())
    assert len(counted) == 3
    assert len(rows) == 6


@pytest.mark.full
def test_rows_of_another_plan_give_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs: Callable[[str], Path]
) -> None:
    needs("german")
    run.carry_out(asked("fedavg", "fedprox"), tmp_path, Cluster())
    monkeypatch.setitem(plan.BUDGETS, "fedavg", plan.Budget(rates=(0.2, 0.4, 0.8)))
    rows, _ = run.carry_out(asked("fedavg"), tmp_path, Cluster())
    settings = rows.groupby("method")["setting"].unique()
    assert set(settings["fedavg"]) == {"learning-rate=0.2", "learning-rate=0.4", "learning-rate=0.8"}
    assert len(settings["fedprox"]) == 3  # which was not asked for, stays


def test_settings_that_the_plan_has_no_more_give_way(tmp_path: Path, needs: Callable[[str], Path]) -> None:
    needs("german")
    rows, _ = run.carry_out(asked("fedprox"), tmp_path, Cluster())
    more = rows.assign(setting="learning-rate=0.1, mu=77")
    records.write(tmp_path / records.ROWS, pd.concat([rows, more]))
    again, _ = run.carry_out(asked("fedprox"), tmp_path, Cluster())
    assert set(again["setting"]) == set(rows["setting"])


def test_a_method_of_ones_own_that_has_changed_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_for_a_test.py").write_text(
        "from equifed.methods import FedAvg\nclass Mine(FedAvg):\n    name = 'mine_for_a_test:Mine'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def plans() -> set[str]:
        plan.source_of.cache_clear()
        return {each.plan for each in plan.trials(TINY, TINY.datasets, ["mine_for_a_test:Mine"], 1)}

    before = plans()
    assert plans() == before
    with (tmp_path / "mine_for_a_test.py").open("a") as file:
        file.write("    change = 1\n")
    linecache.clearcache()
    assert not plans() & before
    assert plan.source_of("fedavg+fair") == {}


def test_rows_of_the_folder_stay_where_others_are_merged(tmp_path: Path, needs: Callable[[str], Path]) -> None:
    needs("german")
    rows, _ = run.carry_out(asked("fedprox"), tmp_path / "own", Cluster())
    (tmp_path / "other").mkdir()
    records.write(tmp_path / "other" / records.ROWS, rows.assign(test_accuracy=0.0))
    merged = run.merge([tmp_path / "other" / records.ROWS], tmp_path / "own")
    np.testing.assert_array_equal(merged["test_accuracy"], rows["test_accuracy"])


def test_where_the_label_is_a_number_steps_are_smaller() -> None:
    tier = Tier("quick", 3, 1, 1, 400)
    made = list(plan.trials(tier, {"german": ("iid",), "communities": ("iid",)}, ["fedavg", "kffl", "fedmgda+"], 1))
    rates = {(each.data, each.method): [] for each in made}
    for each in made:
        rates[each.data, each.method].append(each.config.run.local.learning_rate)
    for method in ("fedavg", "kffl", "fedmgda+"):  # as 0.005 is to 0.1, the defaults of training
        np.testing.assert_allclose(rates["communities", method], np.multiply(rates["german", method], 0.05))
    steps = {each.data: each.config.method.step_size for each in made if each.method == "kffl"}
    assert steps == {"german": 10.0, "communities": 0.1}


def test_ctrl_c_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs: Callable[[str], Path]
) -> None:
    needs("german")

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(TIERS, "quick", TINY)
    words = ["benchmark", "--output", str(tmp_path), "--methods", "fedavg"]
    with monkeypatch.context() as patch:
        patch.setattr(records, "rows_of", interrupted)
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 130
    assert "Interrupted. Give the same command again" in done.stderr
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0
    assert "Going on with 1 of 3 jobs, which were begun before." in done.stderr
    assert not any(path.is_dir() for path in tmp_path.iterdir())


def test_a_method_that_cannot_run_is_left_out_with_its_reason(tmp_path: Path, needs: Callable[[str], Path]) -> None:
    needs("communities")
    tier = Tier("quick", 3, 1, 1, 400, {"communities": ("iid",)})
    rows, failed = run.carry_out(run.Asked(tier, tier.datasets, ["fedval"], 1), tmp_path, Cluster())
    assert not failed
    assert list(rows["seed"]) == [-1]
    assert "regression" in rows["left_out"].iloc[0]


def test_the_command_adds_a_method_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: list[str], needs: Callable[[str], Path]
) -> None:
    needs("german")
    monkeypatch.setitem(TIERS, "quick", TINY)
    words = ["benchmark", "--output", str(tmp_path)]
    first = CliRunner().invoke(app, [*words, "--methods", "fedavg,fedprox"])
    assert first.exit_code == 0, first.output
    del counted[:]
    done = CliRunner().invoke(app, [*words, "--add", "benchmark.own:Mine", "--json"])
    assert done.exit_code == 0, done.output
    assert set(counted) == {"benchmark.own:Mine"}
    found = json.loads(done.stdout)
    assert found["rows"] == 2 * (3 + 3 + 3)
    by_method = {each["method"]: each["value"] for each in found["scores"] if each["score"] == "own"}
    assert by_method["benchmark.own:Mine"] == by_method["fedavg"]  # it is FedAvg by another name
    page = (tmp_path / "benchmark.html").read_text()
    assert "benchmark.own:Mine" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tier", "huge"], "quick"),
        (["--datasets", "adlt"], "data set"),
        (["--methods", "fedavgg"], "fedavg"),
        (["--partitions", "state", "--tier", "standard", "--datasets", "adult"], "partition"),
        (["--add", "fedavg", "--methods", "fedprox"], "--add"),
        (["--only-page"], "no rows"),
        (["--merge", "nowhere.parquet"], "nowhere.parquet"),
    ],
)
def test_wrong_usage_is_explained(tmp_path: Path, words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["benchmark", "--output", str(tmp_path), *words], env={"NO_COLOR": "1"})
    assert done.exit_code == 2
    assert said in done.output


def test_parts_are_merged_and_published(tmp_path: Path, needs: Callable[[str], Path]) -> None:
    needs("german")
    part, whole, docs = tmp_path / "part", tmp_path / "whole", tmp_path / "docs"
    run.carry_out(asked("fedavg"), part, Cluster())
    run.carry_out(asked("fedprox"), whole, Cluster())
    rows = run.merge([part / records.ROWS], whole)
    assert set(rows["method"]) == {"fedavg", "fedprox"}
    docs.mkdir()
    (docs / "benchmark.md").write_text("# B\n\n<!-- written by equifed benchmark --publish -->\n\nold\n<!-- end -->\n")
    assert {path.name for path in publish(rows, docs, "quick")} == {
        "benchmark.md",
        "benchmark.csv",
        "benchmark.parquet",
    }
    pd.testing.assert_frame_equal(records.read(docs / records.ROWS), rows.sort_values(records.KEY, ignore_index=True))
    text = (docs / "benchmark.md").read_text()
    assert "2 methods, 1 data sets" in text
    assert "old" not in text
    write_page(rows, tmp_path / "page.html", "quick")


def test_the_plan_has_every_data_set() -> None:
    assert set(DATASETS) <= {*ef.data.DATASETS}
    assert len(DATASETS) == 12


# -- rows to choose on, by client ----------------------------------------------------------------------------------


def test_rows_are_drawn_once_and_clients_have_tests_and_validation_rows_of_their_own(
    needs: Callable[[str], Path],
) -> None:
    needs("german")
    feds = ef.load("german", partition=Dirichlet(3, 1.0), seeds=range(2), rows=500, client_test=0.2, validation=0.15)
    for fed in feds:
        assert len(fed.rows.y) == 500
        assert fed.client_validation is not None and fed.client_test is not None  # noqa: PT018
        parts = [fed.train.index, fed.test, fed.validation, fed.client_test.index]
        assert sorted(np.concatenate(parts)) == list(range(500))
        assert sorted(fed.client_validation.index) == sorted(fed.validation)
        assert len(fed.validation) == 75
        assert len(fed.test) == 100
    np.testing.assert_array_equal(feds[0].rows.x, feds[1].rows.x)


@pytest.mark.full  # MNIST
def test_turned_images_have_validation_rows(needs: Callable[[str], Path]) -> None:
    needs("mnist")
    (fed,) = ef.load("mnist", partition=RotationGroups((2, 2), 50), seeds=[0], rows=2000, validation=0.03)
    assert len(fed.validation) == 60
    assert fed.client_validation is not None
    assert not set(fed.validation) & set(fed.train.index)
    assert len(fed.train.index) == 200 - 60
    owner, rows = fed.client_validation.flat()
    assert fed.client_groups is not None
    np.testing.assert_array_equal(fed.rows.s[rows], fed.client_groups[owner])  # turned as its client's images are


def test_validation_by_client_is_measured_on_the_clients_rows(needs: Callable[[str], Path]) -> None:
    needs("german")
    fed = ef.load("german", partition=Dirichlet(3, 1.0), client_test=0.2, validation=0.15)
    result = ef.simulate(ef.methods.make("local"), fed, model=ef.models.Logistic(), rounds=2)
    frame = result.metrics
    last = frame[(frame["split"] == "validation") & (frame["round"] == 2)]
    own = last[(last["metric"] == "accuracy") & last["scope"].str.startswith("client:")].set_index("scope")["value"]
    for k, client in enumerate(fed.ids):
        rows = fed.client_validation[k]
        said = result.predict(fed.rows.x[rows], client=client) > 0.5
        assert own[f"client:{client}"] == pytest.approx(np.mean(said == fed.rows.y[rows]))
    worst = last[(last["metric"] == "client_accuracy.worst") & (last["scope"] == "global")]["value"]
    assert float(worst.iloc[0]) == own.min()
