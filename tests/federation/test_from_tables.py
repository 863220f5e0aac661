"""One constructor for one table, a table or file per client, and files larger than memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import equifed as ef
from equifed.config import parse_config
from equifed.config.build import load_federations
from equifed.errors import ConfigError, DataError

COLUMNS = ef.Columns(label="ill", sensitive="sex", features=["age"])


def table(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.normal(50, 10, rows).round(2),
            "sex": rng.choice(["f", "m"], rows),
            "site": rng.choice(["a", "b", "c"], rows),
            "ill": rng.integers(0, 2, rows),
        }
    )


def same(one: ef.Federation, other: ef.Federation) -> None:
    assert (one.ids, one.groups, one.features, one.schema) == (other.ids, other.groups, other.features, other.schema)
    for part in ("x", "y", "s"):
        np.testing.assert_array_equal(getattr(one.rows, part), getattr(other.rows, part))
    for k in range(one.num_clients):
        np.testing.assert_array_equal(one.train[k], other.train[k])
    for held in ("validation", "test"):
        np.testing.assert_array_equal(getattr(one, held), getattr(other, held))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, name in enumerate(("north", "south")):
        table(seed=seed).to_csv(tmp_path / f"{name}.csv", index=False)
    return tmp_path


def test_tables_are_told_apart_by_what_they_are(folder: Path) -> None:
    files = {name: folder / f"{name}.csv" for name in ("north", "south")}
    made = ef.Federation.from_tables(files, COLUMNS)
    assert made.ids == ("north", "south")
    for tables in (list(files.values()), folder, str(folder), {name: str(file) for name, file in files.items()}):
        same(ef.Federation.from_tables(tables, COLUMNS), made)
    mixed = {"north": table(seed=0), "south": files["south"]}
    same(ef.Federation.from_tables(mixed, COLUMNS), made)
    assert ef.Federation.from_tables(mixed, COLUMNS).provenance["silos"] == {"south": "south.csv"}
    dealt = {"partition": ef.partition.IID(3), "seed": 4}
    one = ef.Federation.from_tables(files["north"], COLUMNS, **dealt)  # type: ignore[arg-type]
    same(one, ef.Federation.from_tables(table(), COLUMNS, **dealt))  # type: ignore[arg-type]


def test_a_share_of_the_rows_is_held_out_and_each_row_is_held_once() -> None:
    fed = ef.Federation.from_tables(
        table(100), COLUMNS, holdout=ef.Holdout(test=0.3, validation=0.1), partition=ef.partition.IID(3)
    )
    assert (len(fed.test), len(fed.validation)) == (30, 10)
    assert sorted([*fed.test, *fed.validation, *fed.train.index]) == list(range(100))
    usual = ef.Federation.from_tables(table(100), COLUMNS, partition=ef.partition.IID(3))
    assert (len(usual.test), len(usual.validation)) == (20, 0)
    own = ef.Federation.from_tables(
        table(100), COLUMNS, holdout=ef.Holdout(client_test=0.5), partition=ef.partition.Natural("site")
    )
    assert own.client_test is not None
    assert own.client_test.sizes.sum() == pytest.approx(40, abs=6)


def test_a_server_s_file_is_for_validation_beside_tables_in_memory(folder: Path) -> None:
    held = ef.Holdout(validation_file=folder / "south.csv")
    fed = ef.Federation.from_tables({"north": table(seed=0), "east": table(seed=2)}, COLUMNS, holdout=held)
    south = pd.read_csv(folder / "south.csv")
    np.testing.assert_array_equal(fed.rows.x[fed.validation, 0], south["age"].to_numpy(np.float32))
    assert (len(fed.test), fed.num_clients) == (24, 2)


def test_a_schema_in_place_of_columns_reads_the_same_numbers(folder: Path) -> None:
    first = ef.Federation.from_tables(folder, COLUMNS)
    assert first.schema is not None
    (folder / "schema.json").write_text(first.schema.to_json())
    for schema in (first.schema, folder / "schema.json", str(folder / "schema.json")):
        same(ef.Federation.from_tables(folder, schema), first)


def test_a_configuration_reads_the_tables_as_python_does(folder: Path) -> None:
    for name in ("north", "south"):
        gaps = table(seed=len(name)).assign(bp=np.where(np.arange(60) % 4, 120.0, np.nan))
        gaps.loc[::5, "age"] = np.nan
        gaps.to_csv(folder / f"{name}.csv", index=False)
    rules = {"age": "mean", "bp": "drop"}
    data = {"folder": ".", "label": "ill", "sensitive": "sex", "missing": rules, "test": 0.25, "min-count": 5}
    config = parse_config({"data": data, "method": {"name": "fedavg"}, "run": {"seeds": [3]}}, folder=folder)
    (made,) = load_federations(config)
    columns = ef.Columns(label="ill", sensitive="sex", missing=rules, min_count=5)  # type: ignore[arg-type]
    same(made, ef.Federation.from_tables(folder, columns, holdout=ef.Holdout(test=0.25), seed=3))
    assert made.schema is not None
    assert {column.name: column.missing for column in made.schema.columns} == rules | {"site": "category"}
    assert made.provenance["dropped_rows"] == 30
    assert config.resolved()["data"]["missing"] == rules


@pytest.mark.parametrize(
    ("tables", "options", "message"),
    [
        ([], {}, "No client's table was given"),
        ({}, {}, "No client's table was given"),
        (["here/a.csv", "there/a.csv"], {}, "Two silo files are called 'a'"),
        ("rows.csv", {}, "partition must be one of equifed.partition"),
        ({"a": "a.csv"}, {"partition": ef.partition.IID(2)}, r"partition is for one table, not for several \('a'\)"),
        (ef.Mapped("rows.parquet", "site"), {"partition": ef.partition.IID(2)}, "not for mapped files"),
        (ef.Mapped("rows.parquet", "site"), {"client_groups": {"a": "b"}}, "belongs to a table per client"),
        (ef.Mapped([], "site"), {}, "No file was given"),
        ({"a": "a.csv"}, {"holdout": ef.Holdout(client_test=0.1)}, "client_test is only for one table"),
        ({"a": "a.csv"}, {"holdout": ef.Holdout(test_file="t.csv")}, "test_file is only for mapped files"),
        ({"a": "a.csv"}, {"columns": {"label": "ill"}}, r"columns must be an equifed\.Columns, a schema .* got dict"),
        (ef.Mapped("rows.csv", "site"), {"columns": {"label": "ill"}}, r"columns must be an equifed\.Columns"),
        (ef.Mapped("rows.csv", "site"), {"columns": ef.Columns(label="ill")}, "Tables need a schema"),
        ({"a": "a.csv"}, {"columns": ef.Columns(label="ill")}, "Tables need a schema, or the names of the label and"),
    ],
)
def test_tables_that_do_not_fit_the_options_are_refused(tables: Any, options: dict, message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        ef.Federation.from_tables(tables, **{"columns": COLUMNS, **options})


@pytest.mark.parametrize("given", [{"min_group": 3}, {"min_count": 3}])
def test_mapped_files_have_no_rare_categories(given: dict, tmp_path: Path) -> None:
    table().to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(ConfigError, match=f"{next(iter(given))} is not for mapped files"):
        ef.Federation.from_tables(
            ef.Mapped(tmp_path / "rows.parquet", "site"), ef.Columns(label="ill", sensitive="sex", **given)
        )


# -- deprecated ones ---------------------------------------------------------------------------------------------------


def test_from_frame_is_from_tables_with_a_fifth_for_validation() -> None:
    options = {"partition": ef.partition.IID(3), "seed": 1, "name": "own"}
    with pytest.warns(DeprecationWarning, match=r"from_frame is deprecated: use Federation\.from_tables"):
        old = ef.Federation.from_frame(table(), label="ill", sensitive="sex", features=["age"], **options)
    new = ef.Federation.from_tables(table(), COLUMNS, holdout=ef.Holdout(validation=0.2), **options)  # type: ignore[arg-type]
    same(old, new)
    assert old.name == "own"
    assert len(old.validation) == 12


def test_from_files_is_from_tables(folder: Path) -> None:
    files = [folder / "north.csv", folder / "south.csv"]
    groups = {"north": "rural", "south": "town"}
    with pytest.warns(DeprecationWarning, match="from_files"):
        old = ef.Federation.from_files(
            files, label="ill", sensitive="sex", features=["age"], test=0.3, client_groups=groups
        )
    new = ef.Federation.from_tables(files, COLUMNS, holdout=ef.Holdout(test=0.3), client_groups=groups)
    same(old, new)
    np.testing.assert_array_equal(old.client_groups, new.client_groups)  # type: ignore[arg-type]
    with (
        pytest.warns(DeprecationWarning, match="from_files"),
        pytest.raises(TypeError, match="unexpected keyword argument 'labels'"),
    ):
        ef.Federation.from_files(files, labels="ill")
    with (
        pytest.warns(DeprecationWarning, match="from_files"),
        pytest.raises(ConfigError, match="drop is not for tables with a schema") as error,
    ):
        ef.Federation.from_files(files, schema=old.schema, drop=["age"])
    assert error.value.key == "drop"


def test_from_frames_is_from_tables() -> None:
    frames = {"north": table(seed=0), "south": table(seed=1)}
    with pytest.warns(DeprecationWarning, match="from_frames"):
        old = ef.Federation.from_frames(frames, label="ill", sensitive="sex", features=["age"], validation=0.1, seed=2)
    same(old, ef.Federation.from_tables(frames, COLUMNS, holdout=ef.Holdout(validation=0.1), seed=2))


def test_from_mapped_is_from_tables_of_mapped_files(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    table(300).to_parquet(file)
    with pytest.warns(DeprecationWarning, match="from_mapped"):
        old = ef.Federation.from_mapped(
            file, client="site", cache=tmp_path / "cache", label="ill", sensitive="sex", features=["age"]
        )
    new = ef.Federation.from_tables(ef.Mapped(file, "site", tmp_path / "cache"), COLUMNS)
    assert list(old.ids) == list(new.ids) == ["a", "b", "c"]
    assert len(old.test) == 3
    np.testing.assert_array_equal(old.rows.x, new.rows.x)
    np.testing.assert_array_equal(old.total_cells(), new.total_cells())
