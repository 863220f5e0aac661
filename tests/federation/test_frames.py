"""Tables of other libraries, one per silo or one for all, and arrays as scikit-learn takes them."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from own_data import federation_of
from sklearn.preprocessing import StandardScaler

import equifed as ef
from equifed.data import Schema
from equifed.errors import ConfigError, DataError
from equifed.federation.frames import frame_of


def table(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, sex = rng.normal(50, 10, rows).round(2), rng.integers(0, 2, rows)
    ill = (age + 5 * sex + rng.normal(0, 5, rows) > 52).astype(int)
    return pd.DataFrame(
        {"age": age, "weight": rng.normal(70, 9, rows).round(1), "sex": np.where(sex, "f", "m"), "ill": ill}
    )


KINDS = {
    "pandas": lambda frame: frame,
    "pyarrow": lambda frame: pa.Table.from_pandas(frame.set_index(pd.Index([f"p{i}" for i in range(len(frame))]))),
    "hugging face": lambda frame: datasets.Dataset.from_pandas(frame, preserve_index=False),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_any_library_gives_the_same_federation(kind):
    frame, options = table(), {"label": "ill", "sensitive": "sex", "partition": ef.partition.IID(3)}
    expected = federation_of(frame, **options)
    made = federation_of(KINDS[kind](frame), **options)
    assert made.features == expected.features == ("age", "weight")
    for part in ("x", "y", "s"):
        np.testing.assert_array_equal(getattr(made.rows, part), getattr(expected.rows, part))
    np.testing.assert_array_equal(made.train.index, expected.train.index)


def test_the_names_of_hugging_face_classes_are_the_labels():
    frame = table()
    frame.loc[3, "ill"] = -1  # how an unlabelled row is written there
    named = datasets.Features(
        {
            "age": datasets.Value("float64"),
            "weight": datasets.Value("float64"),
            "sex": datasets.Value("string"),
            "ill": datasets.ClassLabel(names=["well", "ill"]),
        }
    )
    data = datasets.Dataset.from_pandas(frame, preserve_index=False, features=named)
    found = frame_of(data.select(range(1, 60)))
    assert found["ill"].isna().tolist() == [row == 2 for row in range(59)]
    assert found["ill"].dropna().tolist() == frame["ill"].iloc[1:].drop(3).map({0: "well", 1: "ill"}).tolist()
    known = data.filter(lambda row: row["ill"] >= 0)
    fed = ef.Federation.from_tables(
        known,
        ef.Columns(label="ill", sensitive="sex", positive="ill"),
        holdout=ef.Holdout(validation=0.2),
        partition=ef.partition.IID(2),
    )
    assert fed.classes == ("well", "ill")
    assert (fed.rows.y == 1).sum() == (frame["ill"] == 1).sum()


def test_one_table_per_silo_is_as_one_file_per_silo(tmp_path):
    frames = {name: table(50 + 10 * k, k) for k, name in enumerate(("north", "south", "west"))}
    files = {name: tmp_path / f"{name}.csv" for name in frames}
    for name, frame in frames.items():
        frame.to_csv(files[name], index=False)
    options = {"label": "ill", "sensitive": "sex", "positive": 1, "seed": 3, "validation": 0.1}
    expected = federation_of(files, **options)
    mixed = {name: kind(frame) for (name, frame), kind in zip(frames.items(), KINDS.values(), strict=True)}
    made = federation_of(mixed, **options)
    assert made.ids == ("north", "south", "west")
    np.testing.assert_array_equal(made.rows.x, expected.rows.x)
    for part in ("validation", "test"):
        np.testing.assert_array_equal(getattr(made, part), getattr(expected, part))
    with_schema = ef.Federation.from_tables(mixed, made.schema, holdout=ef.Holdout(validation=0.1), seed=3)
    np.testing.assert_array_equal(with_schema.rows.x, expected.rows.x)


def test_files_of_one_name_in_two_folders_are_both_read(tmp_path):
    files = {}
    for k, name in enumerate(("north", "south")):
        (tmp_path / name).mkdir()
        files[name] = tmp_path / name / "rows.csv"
        table(40, k).assign(ward=f"ward {k}").to_csv(files[name], index=False)
    fed = ef.Federation.from_tables(files, ef.Columns(label="ill", sensitive="sex", features=["age", "ward"]))
    assert fed.features[:3] == ("age", "ward=ward 0", "ward=ward 1")


def test_a_schema_says_all_of_one_table():
    frame, partition = table(), ef.partition.IID(3)
    first = ef.Federation.from_tables(
        frame,
        ef.Columns(label="ill", sensitive="sex", features=["age"]),
        holdout=ef.Holdout(validation=0.2),
        partition=partition,
    )
    again = ef.Federation.from_tables(frame, first.schema, holdout=ef.Holdout(validation=0.2), partition=partition)
    assert again.features == ("age",)
    np.testing.assert_array_equal(again.rows.x, first.rows.x)
    with pytest.raises(ConfigError, match="drop is not for tables with a schema"):
        federation_of(frame, schema=first.schema, drop=["age"], partition=partition)


def test_what_is_no_table_is_refused():
    splits = datasets.DatasetDict({"train": KINDS["hugging face"](table()), "test": KINDS["hugging face"](table())})
    options = {"label": "ill", "sensitive": "sex", "partition": ef.partition.IID(2)}
    with pytest.raises(
        ConfigError, match=r"partition is for one table, not for several \('train', 'test'\).*choose one"
    ):
        federation_of(splits, **options)
    with pytest.raises(ConfigError, match=r"a data frame, a pyarrow.Table or a datasets.Dataset, got list"):
        federation_of({"north": [1]}, label="ill", sensitive="sex")
    with pytest.raises(ConfigError, match=r"got DatasetDict with the entries 'train', 'test'\. Choose one"):
        federation_of({"north": splits}, label="ill", sensitive="sex")
    with pytest.raises(ConfigError, match="tables must be a table per client by its name"):
        ef.Federation.from_tables([table()], ef.Columns(label="ill", sensitive="sex"))
    with pytest.raises(DataError, match=r"south: .*'weight'"):
        ef.Federation.from_tables(
            {"north": table(), "south": table().drop(columns="weight")},
            ef.Columns(label="ill", sensitive="sex", features=["age", "weight"]),
        )


def test_arrays_of_all_rows():
    frame = table(200)
    x, y, s = frame[["age", "weight"]], frame["ill"], frame["sex"]
    fed = ef.Federation.from_xy(x, y, sensitive_features=s, partition=ef.partition.Dirichlet(4, alpha=1.0), seed=2)
    assert (fed.num_clients, fed.features, fed.groups, fed.classes) == (4, ("age", "weight"), ("f", "m"), ("0", "1"))
    held = np.concatenate([fed.train.flat()[1], fed.validation, fed.test])
    assert sorted(held.tolist()) == list(range(200))
    assert (len(fed.validation), len(fed.test)) == (40, 40)
    _, rows = fed.train.flat()
    shift, factor = fed.scaling
    ours = (fed.rows.x - shift) * factor
    theirs = StandardScaler().fit(x.to_numpy()[rows]).transform(x.to_numpy())
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    plain = ef.Federation.from_xy(
        x.to_numpy(), y.to_numpy(), sensitive_features=s, partition=ef.partition.IID(2), scaling="none"
    )
    assert plain.scaling is None
    assert plain.features == ("x0", "x1")
    both = ef.Federation.from_xy(
        x, y, sensitive_features=frame[["sex", "ill"]], partition=ef.partition.IID(2), features=["a", "b"]
    )
    assert both.groups == ("f & 0", "f & 1", "m & 0", "m & 1")


def test_wrong_arrays_are_refused():
    frame = table()
    options = {"sensitive_features": frame["sex"], "partition": ef.partition.IID(2)}
    with pytest.raises(DataError, match="features must be numbers"):
        ef.Federation.from_xy(frame[["sex"]], frame["ill"], **options)
    with pytest.raises(DataError, match=r"60 rows of features but labels of shape \[59\]"):
        ef.Federation.from_xy(frame[["age"]], frame["ill"][1:], **options)
    with pytest.raises(ConfigError, match="Unknown scaling 'minmax'"):
        ef.Federation.from_xy(frame[["age"]], frame["ill"], scaling="minmax", **options)


def test_what_contradicts_a_schema_is_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": [*range(20)] * 2, "sex": ["f", "m"] * 20, "ill": ["no", "no", "yes", "yes"] * 10})
    schema = Schema.infer(frame, ef.Columns(label="ill", sensitive="sex", positive="yes"))
    frame.to_csv(tmp_path / "north.csv", index=False)
    said = {"label": "age", "sensitive": ["sex", "age"], "positive": "no"}
    for key, value in said.items():
        with pytest.raises(ef.ConfigError, match="is not what the schema says") as error:
            federation_of([tmp_path / "north.csv"], schema=schema, **{key: value})
        assert error.value.key == key
    same = federation_of([tmp_path / "north.csv"], schema=schema, label="ill", sensitive="sex", positive="yes")
    assert same.schema == schema
