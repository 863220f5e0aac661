"""Federations: every way of making one, what they say of themselves, and what they refuse."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from own_data import federation_of

import equifed as ef
from equifed.config import parse_config
from equifed.data import Schema, Summary, agree, get_dataset, summarise
from equifed.errors import ConfigError, DataError, EquifedWarning
from equifed.federation import Federation


def part(n: int = 10, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)), np.arange(n) % 2, rng.integers(0, 2, n)


def table(n: int = 200, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n),
            "job": rng.choice(["clerk", "nurse", "pilot"], n),
            "sex": rng.choice(["f", "m"], n),
            "race": rng.choice(["a", "b"], n),
            "hospital": rng.choice(["north", "south", "west"], n),
        }
    )
    frame["ill"] = np.where(frame["age"] + rng.normal(0, 10, n) > 50, "yes", "no")
    return frame


# -- from arrays -------------------------------------------------------------------------------------------------------


def test_from_arrays_holds_what_it_was_given() -> None:
    clients = [part(5, 1), part(8, 2), (np.zeros((0, 3)), np.zeros(0), np.zeros(0))]
    fed = Federation.from_arrays(
        clients, validation=part(4, 3), test=part(6, 4), client_tests=[part(2, k) for k in range(3)], ids=list("abc")
    )
    for k, (x, y, s) in enumerate(clients):
        rows = fed.train[k]
        np.testing.assert_allclose(fed.rows.x[rows], x, rtol=1e-6)
        np.testing.assert_array_equal(fed.rows.y[rows], y)
        np.testing.assert_array_equal(fed.rows.s[rows], s)
    np.testing.assert_allclose(fed.rows.x[fed.test], part(6, 4)[0], rtol=1e-6)
    np.testing.assert_allclose(fed.rows.x[fed.validation], part(4, 3)[0], rtol=1e-6)
    assert fed.client_test is not None
    np.testing.assert_allclose(fed.rows.x[fed.client_test[2]], part(2, 2)[0], rtol=1e-6)
    assert fed.train.sizes.tolist() == [5, 8, 0]
    assert "3 clients with 0 to 8 rows" in repr(fed)


def test_torch_names_and_intersections() -> None:
    x, _, _ = part(4)
    groups = [["f", "old"], ["m", "old"], ["f", "young"], ["f", "old"]]
    fed = Federation.from_arrays([(torch.tensor(x), torch.tensor([1, 0, 1, 0]), np.array(groups))])
    assert fed.groups == ("f & old", "f & young", "m & old")
    assert fed.rows.s.tolist() == [0, 2, 1, 0]
    named = Federation.from_arrays([(x, ["no", "yes", "no", "yes"], ["f", "m", "f", "m"])])
    assert named.classes == ("no", "yes")
    assert named.groups == ("f", "m")
    assert named.rows.y.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "at least one client"),
        ([part()[:2]], "triple"),
        ([(np.zeros(3), np.zeros(3), np.zeros(3))], r"client '0': features must have shape \[rows, ...\], got \[3\]"),
        ([(np.zeros((3, 2)), np.zeros(2), np.zeros(3))], r"3 rows of features but labels of shape \[2\]"),
        ([(np.zeros((3, 2)), np.array([0, 1, np.nan]), np.zeros(3))], "labels have a missing value at row 2"),
        ([(np.zeros((3, 2)), np.array([0, 1, 1]), [None] * 3)], "No row has a known group"),
        ([(np.array([[0, 1], [np.inf, 1]]), [0, 1], [0, 1])], "client '0': feature 0 of row 1 is NaN or infinite"),
        ([(np.array([["a"], ["b"]]), [0, 1], [0, 1])], "features must be numbers"),
        ([(np.zeros((2, 2)), [1, 1], [0, 1])], "only one class"),
        ([part(), (np.zeros((2, 4)), [0, 1], [0, 1])], r"client '0' has rows of shape \[3\] and client '1' of \[4\]"),
        ([(np.array([[0.0], [1e39]]), [0, 1], [0, 1])], "feature 0 of row 1 is .* too large"),
        ([(np.zeros((2, 0)), [0, 1], [0, 1])], "no inputs"),
        ([(np.zeros((2, 1), complex), [0, 1], [0, 1])], "features must be numbers"),
        ([(np.zeros((3, 1)), [0.0, 0.5, 1.0], [0, 1, 1])], "label 0.5 of row 1 .* Did you mean task='regression'"),
        ([(np.zeros((2, 1)), np.array([0.5, 1], object), [0, 1])], "Did you mean task='regression'"),
        ([(np.zeros((2, 1)), [0, 1], np.array([["a", None], ["a", None]]))], "No row has a known group"),
        ([(np.zeros((2, 1)), [0, 1], [-1, 1])], "The groups are -1 and 1, but -1 stands for an unknown group"),
        ([(np.zeros((2, 1)), np.array([0, "a"], object), [0, 1])], "Mixed labels: numbers in client '0' and text"),
        ([part(), (np.zeros((2, 3)), ["0", "1"], [0, 1])], "numbers in client '0' and text in client '1'"),
        (
            [part(), (np.zeros((2, 3)), [0, 1], [[0, 1], [1, 0]])],
            "client '0' has one array of them and client '1' a tab",
        ),
        ([(np.zeros((2, 1)), [0, 1], [[0, 1], [1]])], "must be arrays"),
    ],
    ids=range(21),
)
def test_bad_arrays_are_refused(clients: list, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Federation.from_arrays(clients)


def test_other_bad_arguments() -> None:
    with pytest.raises(DataError, match="'x' occurs more than once"):
        Federation.from_arrays([part(), part()], ids=["x", "x"])
    with pytest.raises(DataError, match="client_tests has 1 entries for 2"):
        Federation.from_arrays([part(), part()], client_tests=[part()])
    with pytest.raises(DataError, match="client_groups has 3 entries"):
        Federation.from_arrays([part(), part()], client_groups=[0, 1, 2])
    for groups in ([1, None], [1, np.nan], ["a", pd.NA]):
        with pytest.raises(DataError, match="client_groups needs one group for each client, but client '1' has none"):
            Federation.from_arrays([part(), part()], client_groups=groups)
    with pytest.raises(DataError, match="Mixed client_groups"):
        Federation.from_arrays([part(), part()], client_groups=[1, "a"])
    with pytest.raises(ConfigError, match=r"Unknown task 'clasification'. Did you mean 'classification'"):
        Federation.from_arrays([part()], task="clasification")
    with pytest.raises(DataError, match="the one of row 1 is not"):
        Federation.from_arrays([(np.zeros((2, 1)), [0, 1e39], [0, 1])], task="regression")
    for features in ("abc", ["a", "b"], []):
        with pytest.raises(ConfigError, match="features must list the names of the 3 inputs"):
            Federation.from_arrays([part()], features=features)
    with pytest.raises(DataError, match="labels of a regression"):
        Federation.from_arrays([(np.zeros((2, 1)), ["a", "b"], [0, 1])], task="regression")
    x, y, s = part()
    with pytest.warns(EquifedWarning, match="Group '2' is in the test or validation rows"):
        Federation.from_arrays([(x, y, s)], test=(x, y, s + 1))


def test_description_counts_cells() -> None:
    x, y, s = part(30)
    fed = Federation.from_arrays([(x[:20], y[:20], s[:20]), (x[20:], y[20:], s[20:])], ids=["a", "b"])
    description = fed.describe()
    for client, rows in (("a", slice(0, 20)), ("b", slice(20, 30))):
        for g in (0, 1):
            for c in (0, 1):
                expected = ((s[rows] == g) & (y[rows] == c)).sum()
                assert description.table.loc[client, (str(g), str(c))] == expected
        assert description.table.loc[client, ("total", "")] == len(y[rows])
    figure = description.figure
    assert [bar.name for bar in figure.data] == ["0, 0", "0, 1", "1, 0", "1, 1"]
    assert figure.layout.barmode == "stack"
    assert sum(sum(bar.x) for bar in figure.data) == 30
    assert "client" in str(description)
    assert "<table" in description._repr_html_()


# -- from a frame ------------------------------------------------------------------------------------------------------


def test_from_frame_splits_and_scales_on_training_rows() -> None:
    frame = table()
    fed = Federation.from_tables(
        frame,
        ef.Columns(label="ill", sensitive="sex", positive="yes"),
        holdout=ef.Holdout(validation=0.2),
        partition=ef.partition.Dirichlet(4, 0.5),
        seed=3,
    )
    assert (len(fed.train.index), len(fed.validation), len(fed.test)) == (120, 40, 40)
    everyone = np.concatenate([fed.train.index, fed.validation, fed.test])
    assert sorted(everyone) == list(range(200))
    assert fed.classes == ("no", "yes")
    assert not any("sex" in name for name in fed.features)
    assert fed.scaling is not None
    shift, factor = fed.scaling
    age = fed.features.index("age")
    train = frame["age"].to_numpy()[fed.train.index]
    assert shift[age] == pytest.approx(train.mean())
    assert factor[age] == pytest.approx(1 / train.std())
    assert shift[fed.features.index("job=nurse")] == 0
    again = Federation.from_tables(
        frame,
        ef.Columns(label="ill", sensitive="sex", positive="yes"),
        holdout=ef.Holdout(validation=0.2),
        partition=ef.partition.Dirichlet(4, 0.5),
        seed=3,
    )
    np.testing.assert_array_equal(again.train.index, fed.train.index)


def test_natural_partition_intersections_and_client_tests() -> None:
    frame = table(400)
    fed = Federation.from_tables(
        frame,
        ef.Columns(label="ill", sensitive=["sex", "race"]),
        holdout=ef.Holdout(validation=0.0, test=0.0, client_test=0.25),
        partition=ef.partition.Natural("hospital"),
    )
    assert fed.ids == ("north", "south", "west")
    assert len(fed.groups) == 4
    assert not any("hospital" in name for name in fed.features)
    assert fed.client_test is not None
    for k, name in enumerate(fed.ids):
        own = np.concatenate([fed.train[k], fed.client_test[k]])
        assert set(frame["hospital"].iloc[own]) == {name}
        assert sorted(own) == np.flatnonzero(frame["hospital"] == name).tolist()
        # every (group, label) cell gives a quarter of its rows
        cell = fed.rows.s * 2 + fed.rows.y
        for c in np.unique(cell[own]):
            assert (cell[fed.client_test[k]] == c).sum() == round(0.25 * (cell[own] == c).sum())


def test_bad_frames_are_refused() -> None:
    make = {"label": "ill", "sensitive": "sex", "partition": ef.partition.IID(3)}
    frame = table()
    frame.loc[7, "ill"] = None
    with pytest.raises(DataError, match=r"Column 'ill', row 7: the value is missing"):
        federation_of(frame, **make)
    with pytest.raises(DataError, match="'age', row 9"):
        federation_of(table().astype({"age": float}).replace({"age": {}}).assign(
            age=lambda f: f["age"].where(f.index != 9)), missing="refuse", **make)  # fmt: skip
    with pytest.raises(DataError, match="Column 'gender': the column is missing"):
        federation_of(table(), **{**make, "sensitive": "gender"})
    with pytest.raises(DataError, match="only one class"):
        federation_of(table().assign(ill="no"), **make)
    with pytest.raises(ConfigError, match="split"):
        federation_of(table(), validation=0.6, test=0.6, **make)
    frame = table().set_index(np.arange(1000, 1200))
    frame.loc[1003, "hospital"] = None
    for partition in (ef.partition.Natural("hospital"), ef.partition.Dirichlet(2, 1.0, partition_by="hospital")):
        for seed in range(4):
            with pytest.raises(DataError, match="Column 'hospital', row 1003: the value is missing"):
                federation_of(frame, **{**make, "partition": partition}, seed=seed)
    with pytest.raises(DataError, match="Did you mean task='regression'"):
        federation_of(table().assign(ill=np.linspace(0, 1, 200)), **make)
    with pytest.raises(DataError, match="no input column"):
        federation_of(table()[["ill", "sex"]], **make)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"partition": None}, r"partition must be one of equifed.partition .* got None"),
        ({"partition": "dirichlet"}, r"partition must be .* got 'dirichlet'"),
        ({"partition": ef.partition.IID}, "partition must be"),
        ({"partition": ef.partition.Natural("hospitl")}, "'hospitl'. Did you mean 'hospital'"),
        ({"sensitive": None}, "Tables need a schema, or the names of the label and the sensitive columns"),
        ({"label": None}, "Tables need a schema, or the names of the label and the sensitive columns"),
        ({"label": 2.5}, "label must be the name of a column, got 2.5"),
        ({"sensitive": [None]}, "sensitive must be the name of a column, got None"),
        ({"encoding": "one-hot"}, "Did you mean 'onehot'"),
        ({"min_count": -1}, "min_count must be a whole number of at least 0"),
        ({"client_groups": {"a": "b"}}, "client_groups belongs to a table per client"),
        ({"validation_file": "rows.csv", "validation": 0}, "validation_file belongs to one file per client"),
        ({"test_file": "rows.csv"}, "test_file is only for mapped files"),
        ({"features": "age"}, "features must be a list of column names"),
        ({"features": []}, "features must be a list of column names with at least one"),
        ({"seed": -1}, "seed must be a whole number .*at least 0, got -1"),
        ({"task": "regresion"}, "Did you mean 'regression'"),
        ({"test": "0.2"}, "test must be a number"),
        ({"tables": 3}, "A table is needed: a data frame, a pyarrow.Table or a datasets.Dataset, got int"),
        ({"tables": [1, 2]}, "tables must be a table per client by its name, .* got list"),
    ],
)
def test_wrong_options_of_one_table_are_explained(change: dict, message: str) -> None:
    options = {"tables": table(), "label": "ill", "sensitive": "sex", "partition": ef.partition.IID(3)}
    with pytest.raises(ConfigError, match=message):
        federation_of(**options | change)


def test_numbered_columns_are_columns() -> None:
    frame = table()
    options = {"positive": "yes", "seed": 2, "features": ["age", "job"]}
    named = federation_of(frame, label="ill", sensitive="sex", partition=ef.partition.Natural("hospital"), **options)
    numbered = frame.set_axis(range(6), axis=1)
    fed = federation_of(
        numbered, label=5, sensitive=[2], partition=ef.partition.Natural(4), **options | {"features": [0, 1]}
    )
    assert fed.features == ("0", "1=clerk", "1=nurse", "1=pilot", "1=(other)")
    assert list(numbered.columns) == list(range(6))
    for a, b in zip(fed.rows, named.rows, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(fed.train.index, named.train.index)
    whole = Federation.from_tables(
        numbered, ef.Columns(label=5, sensitive=2), holdout=ef.Holdout(validation=0.2), partition=ef.partition.IID(2)
    )
    assert {name.split("=")[0] for name in whole.features} == {"0", "1", "3", "4"}


def test_columns_that_say_whose_row_it_is_are_no_inputs() -> None:
    for partition in (
        ef.partition.Natural("hospital"),
        ef.partition.DirichletPerClient(alpha=1.0, size=20, natural="hospital"),
    ):
        fed = Federation.from_tables(
            table(), ef.Columns(label="ill", sensitive="sex"), holdout=ef.Holdout(validation=0.2), partition=partition
        )
        assert {name.split("=")[0] for name in fed.features} == {"age", "job", "race"}


def test_every_seed_has_the_same_natural_clients() -> None:
    frame = table()
    frame.loc[[3, 4], "hospital"] = ["east", "island"]
    for partition in (
        ef.partition.Natural("hospital"),
        ef.partition.DirichletPerClient(alpha=1.0, size=20, natural="hospital"),
    ):
        feds = [
            Federation.from_tables(
                frame,
                ef.Columns(label="ill", sensitive="sex"),
                holdout=ef.Holdout(validation=0.2),
                partition=partition,
                seed=seed,
            )
            for seed in range(8)
        ]
        assert {fed.ids for fed in feds} == {("east", "island", "north", "south", "west")}
        assert min(fed.train.sizes.min() for fed in feds) == 0
    result = ef.simulate(ef.methods.FedAvg(), feds, model=ef.models.Logistic(), rounds=2, seeds=range(8))
    assert np.isfinite(result.final()["accuracy"].to_numpy()).all()


def test_a_function_may_deal_the_rows() -> None:
    def halves(rows: ef.partition.Table, rng: np.random.Generator) -> ef.partition.Partition:
        return ef.partition.Partition.from_owner(np.arange(len(rows.label)) % 2, ("a", "b"))

    fed = Federation.from_tables(
        table(), ef.Columns(label="ill", sensitive="sex"), holdout=ef.Holdout(validation=0.2), partition=halves
    )
    assert fed.provenance["partition"]["kind"] == "halves"
    assert fed.ids == ("a", "b")


@dataclasses.dataclass(frozen=True)
class ByRegion:
    """A partitioner of somebody else, with names of its own: one client per hospital, those of a job left out."""

    place: str
    leave_out: tuple[str, str]

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.leave_out[0],)

    @property
    def client_columns(self) -> tuple[str, ...]:
        return (self.place,)

    def __call__(self, table: ef.partition.Table, rng: np.random.Generator) -> ef.partition.Partition:
        names, owner = table.values(self.place)
        column, value = self.leave_out
        owner = np.where(table.by(column) == value, -1, owner)
        return ef.partition.Partition.from_owner(owner, tuple(map(str, names)))


def test_a_partitioner_from_outside_gets_the_columns_it_asks_for() -> None:
    frame = table()
    fed = Federation.from_tables(
        frame,
        ef.Columns(label="ill", sensitive="sex"),
        holdout=ef.Holdout(validation=0, test=0),
        partition=ByRegion("hospital", ("job", "nurse")),
    )
    kept = frame[frame["job"] != "nurse"]
    assert dict(zip(fed.ids, fed.train.sizes, strict=True)) == kept["hospital"].value_counts().to_dict()
    assert {name.split("=")[0] for name in fed.features} == {"age", "job", "race"}
    with pytest.raises(ConfigError, match=r"Unknown column to partition by 'ward'.*label"):
        Federation.from_tables(
            frame,
            ef.Columns(label="ill", sensitive="sex"),
            holdout=ef.Holdout(validation=0.2),
            partition=ByRegion("ward", ("job", "nurse")),
        )

    def nobody(table: ef.partition.Table, rng: np.random.Generator) -> ef.partition.Partition: ...

    nobody.columns = "job"
    with pytest.raises(ConfigError, match=r"columns of the partitioner .* must list names of columns, got 'job'"):
        Federation.from_tables(
            frame, ef.Columns(label="ill", sensitive="sex"), holdout=ef.Holdout(validation=0.2), partition=nobody
        )


def test_tables_cannot_be_turned() -> None:
    with pytest.raises(ConfigError, match="Only the images of a named data set"):
        Federation.from_tables(
            table(),
            ef.Columns(label="ill", sensitive="sex"),
            holdout=ef.Holdout(validation=0.2),
            partition=ef.partition.RotationGroups((1, 1), rows_per_client=9),
        )


def test_constructors_show_their_options() -> None:
    for make, names in (
        (Federation.from_tables, {"columns", "holdout", "partition", "client_groups"}),
        (ef.Columns, {"label", "sensitive", "features", "scaling"}),
        (ef.Holdout, {"test", "validation_file"}),
    ):
        shown = inspect.signature(make).parameters
        assert names <= set(shown)
        assert not any(option.kind is option.VAR_KEYWORD for option in shown.values())


# -- from files --------------------------------------------------------------------------------------------------------


def write_silos(folder: Path) -> tuple[list[Path], Path]:
    frame = table(300)
    schema = Schema.infer(
        frame, ef.Columns(label="ill", sensitive="sex", positive="yes", features=["age", "job"], min_count=0)
    )
    (folder / "schema.json").write_text(schema.to_json())
    paths = []
    for name, own in frame.groupby("hospital"):
        path = folder / (f"{name}.parquet" if name == "west" else f"{name}.csv")
        own.to_parquet(path) if name == "west" else own.to_csv(path, index=False)
        paths.append(path)
    return paths, folder / "schema.json"


def test_files_by_a_shared_schema(tmp_path: Path) -> None:
    paths, schema = write_silos(tmp_path)
    fed = Federation.from_tables(paths, schema, holdout=ef.Holdout(test=0.3, validation=0.1), seed=1)
    assert fed.ids == ("north", "south", "west")
    assert fed.features == ("age", "job=clerk", "job=nurse", "job=pilot")
    assert fed.client_test is not None
    sizes = fed.train.sizes + fed.client_test.sizes
    counts = table(300)["hospital"].value_counts().sort_index().to_numpy()
    np.testing.assert_allclose(sizes, 0.9 * counts, atol=1)
    assert len(fed.test) == fed.client_test.sizes.sum()
    result = ef.simulate(ef.methods.FedAvg(), fed, model=ef.models.Logistic(), rounds=3)
    assert result.final()["accuracy"].item() > 0.6
    inferred = Federation.from_tables(dict(zip("abc", paths, strict=True)), ef.Columns(label="ill", sensitive="sex"))
    assert inferred.ids == ("a", "b", "c")


def test_the_meaning_of_the_positive_class_reaches_the_result(tmp_path: Path) -> None:
    paths, schema = write_silos(tmp_path)
    said = "the patient falls ill within a year"
    read_off = Federation.from_tables(paths, ef.Columns(label="ill", sensitive="sex", positive="yes", meaning=said))
    written = Federation.from_tables(paths, Schema.from_json(read_off.schema.to_json()))
    frame = table(300)
    dealt = Federation.from_tables(
        frame,
        ef.Columns(label="ill", sensitive="sex", positive="yes", meaning=said),
        holdout=ef.Holdout(validation=0.2),
        partition=ef.partition.IID(2),
    )
    for fed in (read_off, written, dealt):
        info = ef.simulate(ef.methods.FedAvg(), fed, model=ef.models.Logistic(), rounds=1).info
        assert (info["positive"], info["meaning"]) == ("yes", said)
    unsaid = Federation.from_tables(paths, schema)
    info = ef.simulate(ef.methods.FedAvg(), unsaid, model=ef.models.Logistic(), rounds=1).info
    assert (info["positive"], info["meaning"]) == (unsaid.classes[1], "")


def test_a_silo_that_does_not_fit_is_named_with_column_and_row(tmp_path: Path) -> None:
    paths, schema = write_silos(tmp_path)
    broken = pd.read_csv(paths[0])
    broken.loc[2, "job"] = "astronaut"
    broken.to_csv(paths[0], index=False)
    with pytest.raises(DataError, match=r"north.csv: Column 'job', row 2: 'astronaut' is not a known category"):
        Federation.from_tables(paths, schema)
    broken.loc[2, ["job", "sex"]] = ["pilot", "x"]
    broken.to_csv(paths[0], index=False)
    with pytest.raises(DataError, match=r"north.csv: Column 'sex', row 2: 'x' is not a known group"):
        Federation.from_tables(paths, schema)
    with pytest.raises(DataError, match="There is no such file"):
        Federation.from_tables([tmp_path / "east.csv"], schema)
    (tmp_path / "east.txt").write_text("")
    with pytest.raises(DataError, match=r"must be \.csv, \.csv\.gz, \.parquet"):
        Federation.from_tables([tmp_path / "east.txt"], schema)
    with pytest.raises(ConfigError, match="Tables need a schema"):
        Federation.from_tables(paths, ef.Columns())
    (tmp_path / "west.parquet").write_bytes(b"not a parquet file")
    with pytest.raises(DataError, match=r"west.parquet: The file cannot be read"):
        Federation.from_tables([tmp_path / "west.parquet"], schema)


def test_an_empty_silo_is_a_client_without_rows(tmp_path: Path) -> None:
    paths, _ = write_silos(tmp_path)
    full = Federation.from_tables(paths, ef.Columns(label="ill", sensitive="sex"), seed=1)
    (tmp_path / "empty.csv").write_text(",".join(table(1).columns) + "\n")
    fed = Federation.from_tables([tmp_path / "empty.csv", *paths], ef.Columns(label="ill", sensitive="sex"), seed=1)
    assert fed.features == full.features
    assert fed.ids == ("empty", *full.ids)
    assert fed.train.sizes.tolist() == [0, *full.train.sizes]
    for a, b in zip(fed.rows, full.rows, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(DataError, match=r"None of the files has a row: empty\.csv"):
        Federation.from_tables([tmp_path / "empty.csv"], ef.Columns(label="ill", sensitive="sex"))


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("age", "oops", r"south\.csv: Column 'age', row 2: 'oops' is not a number, but \d+ of \d+ values are"),
        ("age", None, r"south\.csv: Column 'age', row 2: the value is missing"),
        ("ill", None, r"south\.csv: Column 'ill', row 2: the value is missing"),
    ],
)
def test_inference_over_files_names_the_file_and_its_row(
    tmp_path: Path, column: str, value: object, message: str
) -> None:
    paths, _ = write_silos(tmp_path)
    broken = pd.read_csv(paths[1]).astype({column: object})
    broken.loc[2, column] = value
    broken.to_csv(paths[1], index=False)
    with pytest.raises(DataError, match=message):
        Federation.from_tables(paths, ef.Columns(label="ill", sensitive="sex", missing="refuse"))


def test_files_that_lack_columns_are_blamed_and_no_others(tmp_path: Path) -> None:
    frames = {name: table(120).rename(columns={"age": "bp"}) for name in ("north", "south", "west")}

    def made(**changed: pd.DataFrame) -> Federation:
        for name, frame in (frames | changed).items():
            frame.to_csv(tmp_path / f"{name}.csv", index=False)
        return Federation.from_tables(
            [tmp_path / f"{name}.csv" for name in frames], ef.Columns(label="ill", sensitive="sex")
        )

    west = frames["west"]
    with pytest.raises(DataError, match="'blood_pressure' is there: is it 'bp'") as caught:
        made(west=west.rename(columns={"bp": "blood_pressure"}))
    assert (caught.value.file, caught.value.column) == ("west.csv", "bp")
    with pytest.raises(DataError, match="Column 'sex': the column is missing") as caught:
        made(west=west.rename(columns={"sex": "gender"}))
    assert (caught.value.file, caught.value.column) == ("west.csv", "sex")
    with pytest.raises(DataError, match="The columns 'bp', 'job' are missing") as caught:
        made(north=frames["north"].drop(columns=["bp", "job"]))
    assert caught.value.file == "north.csv"
    fed = made(west=west.assign(ward=np.resize(["a", "b"], len(west))))
    assert fed.schema.left_out[-1].model_dump() == {"column": "ward", "reason": "not in every table"}
    assert fed.features == made().features


def test_files_are_read_as_deployed_silos_would(tmp_path: Path) -> None:
    """The schema is that of summaries that went through JSON; rows are dropped and counted by the rule."""
    frame = table(300)
    frame.loc[::9, "age"] = None
    frame["patient_id"] = np.arange(300)
    paths = {}
    for number, name in enumerate(("north", "south")):
        paths[name] = tmp_path / f"{name}.csv"
        frame[number::2].to_csv(paths[name], index=False)
    told = [
        Summary.from_json(
            summarise(pd.read_csv(path), ef.Columns(label="ill", sensitive="sex"), name=path.name).to_json()
        )
        for path in paths.values()
    ]
    fed = Federation.from_tables(paths, ef.Columns(label="ill", sensitive="sex", missing="drop"))
    assert fed.schema == agree(told, ef.Columns(missing="drop"))
    assert fed.provenance["dropped_rows"] == frame["age"].isna().sum()
    result = ef.simulate(ef.methods.FedAvg(), fed, model=ef.models.Logistic(), rounds=1)
    notes = {note.kind: note.fields for note in result.notes}
    assert notes["rows-dropped"] == {"rows": int(frame["age"].isna().sum())}
    assert "identifier" in notes["columns-left-out"]["columns"]["patient_id"]
    with pytest.raises(ConfigError, match="missing is not for tables with a schema"):
        federation_of(paths, schema=fed.schema, missing="mean")


# -- named data --------------------------------------------------------------------------------------------------------


def test_load_by_preset_one_and_many_seeds(needs: Callable[[str], Path]) -> None:
    needs("compas")
    partition = ef.partition.Dirichlet(num_partitions=10, alpha=0.5)
    fed = ef.load("compas", preset="fair-fate", partition=partition, seed=4)
    assert (len(fed.train.index), len(fed.validation), len(fed.test)) == (3701, 1233, 1233)
    assert fed.num_clients == 10
    assert fed.provenance["preset"] == "fair-fate"
    assert fed.provenance["partition"]["alpha"] == 0.5
    assert re.fullmatch("[0-9a-f]{64}", next(iter(fed.provenance["files"].values())))
    feds = ef.load("compas", preset="fair-fate", partition=partition, seeds=[4, 5])
    assert feds[0].rows.x is feds[1].rows.x
    np.testing.assert_array_equal(feds[0].train.index, fed.train.index)
    assert not np.array_equal(feds[0].test, feds[1].test)
    assert [each.seed for each in feds] == [4, 5]


def test_load_defaults_and_papers_splits(needs: Callable[[str], Path]) -> None:
    needs("german")
    needs("adult")
    needs("communities")
    assert ef.load("german").num_clients == 5
    fedfair = ef.load("adult", preset="fedfair")
    assert (fedfair.train.sizes.tolist(), len(fedfair.test)) == ([800] * 50, 5222)
    regression = ef.load("communities", preset="kffl", partition=ef.partition.Dirichlet(4, 1.0))
    assert regression.task == "regression"
    assert regression.cells().shape == (4, 2, 1)
    with pytest.raises(ConfigError, match="Did you mean 'compas'"):
        ef.load("compass")
    with pytest.raises(ConfigError, match="Unknown preset of compas"):
        ef.load("compas", preset="fairfate2")


def test_sffl_partition_by_state_with_client_tests(needs: Callable[[str], Path]) -> None:
    needs("acs_income")
    partition = ef.partition.DirichletPerClient(alpha=1000.0, num_partitions=5, size=1000, natural="STATE")
    fed = ef.load("acs_income", preset="sffl", partition=partition)
    assert fed.client_test is not None
    np.testing.assert_allclose(fed.train.sizes, 600, atol=3)
    np.testing.assert_allclose(fed.client_test.sizes, 400, atol=3)
    # a large alpha means balanced cells
    np.testing.assert_allclose(fed.cells().reshape(5, -1), 150, atol=25)


def test_rotation_groups_turn_images_and_share_test_sets(needs: Callable[[str], Path]) -> None:
    needs("mnist")
    partition = ef.partition.RotationGroups(clients_per_group=(3, 1), rows_per_client=20)
    fed = ef.load("mnist", partition=partition)
    plain = ef.load("mnist", partition=ef.partition.IID(2))
    assert fed.client_groups is not None
    assert fed.client_groups.tolist() == [0, 0, 0, 1]
    assert fed.groups == ("0 degrees", "180 degrees")
    assert (len(fed.train.index), len(fed.test)) == (80, 20_000)
    assert fed.client_test is not None
    test = plain.rows.x[plain.test]
    own = fed.rows.x[fed.client_test[3]]
    np.testing.assert_allclose(own, test[:, :, ::-1, ::-1], atol=1e-4)  # half a turn
    np.testing.assert_array_equal(fed.rows.x[fed.client_test[0]], test)
    turned = {image.tobytes() for image in np.round(plain.rows.x[:, :, ::-1, ::-1], 3)}
    assert all(np.round(image, 3).tobytes() in turned for image in fed.rows.x[fed.train[3]])


def test_an_image_that_two_groups_hold_is_turned_for_each(needs: Callable[[str], Path]) -> None:
    needs("mnist")
    partition = ef.partition.RotationGroups((1, 1), rows_per_client=200, each_group_anew=True)
    fed = ef.load("mnist", partition=partition, rows=350, validation=0.05)
    upright, turned = (fed.rows.x[fed.train[k]] for k in (0, 1))
    assert fed.rows.s[fed.train[0]].max() == 0
    assert fed.rows.s[fed.train[1]].min() == 1
    there = {np.round(image, 3).tobytes() for image in upright}
    again = sum(np.round(image[:, ::-1, ::-1], 3).tobytes() in there for image in turned)
    assert 50 < again < len(turned)  # of some 300 images each has 200
    # what the server holds back nobody trains on, whichever way it is turned
    held = {np.round(image, 3).tobytes() for image in fed.rows.x[fed.validation]}
    both = np.concatenate([upright, turned[:, :, ::-1, ::-1]])
    assert not any(np.round(image, 3).tobytes() in held for image in both)


def test_rotation_groups_hold_their_rows_once_for_all_seeds(needs: Callable[[str], Path]) -> None:
    needs("mnist")
    partition = ef.partition.RotationGroups(clients_per_group=(3, 1), rows_per_client=20)
    feds = ef.load("mnist", partition=partition, seeds=[0, 1, 2])
    one = ef.load("mnist", partition=partition, seed=1)
    assert all(fed.rows.x is feds[0].rows.x for fed in feds)
    assert len(feds[0].rows.x) <= 20_000 + 3 * 80
    assert not np.array_equal(feds[0].train.index, feds[2].train.index)
    for part in ("x", "y", "s"):
        shared, own = getattr(feds[1].rows, part), getattr(one.rows, part)
        for k in range(4):
            np.testing.assert_array_equal(shared[feds[1].train[k]], own[one.train[k]])
        np.testing.assert_array_equal(shared[feds[1].client_test[3]], own[one.client_test[3]])
        np.testing.assert_array_equal(shared[feds[1].test], own[one.test])
    assert (one.rows.s[one.train[3]] == 1).all()


def test_named_data_is_partitioned_by_any_of_its_columns(needs: Callable[[str], Path]) -> None:
    needs("compas")
    fed = ef.load("compas", partition=ef.partition.Natural("sex"))
    assert fed.ids == ("Female", "Male")
    by = ef.load("compas", partition=ef.partition.Dirichlet(3, 1.0, partition_by=("age_cat", "label")), seeds=[0, 1])
    assert [each.num_clients for each in by] == [3, 3]
    own = ef.load("compas", partition=ef.partition.DirichletPerClient(alpha=1.0, size=50, natural="race"))
    assert "Hispanic" in own.ids
    outside = ef.load("compas", partition=ByRegion("age_cat", ("race", "Other")))
    assert outside.ids == ("25 - 45", "Greater than 45", "Less than 25")
    with pytest.raises(ConfigError, match=r"Unknown column of compas 'sexx'. Did you mean 'sex'"):
        ef.load("compas", partition=ef.partition.Natural("sexx"))


def test_python_and_configurations_use_one_default_partition(needs: Callable[[str], Path]) -> None:
    needs("german")
    for name, preset in (("compas", "fair-fate"), ("mnist", "e2fl"), ("acs_income", "default"), ("drug", "fedfair")):
        method = {"method": {"name": "fedavg"}}
        config = parse_config({"data": {"name": name, "preset": preset}, "run": {"rounds": 1}, **method})
        chosen = get_dataset(name).preset(preset)
        assert config.partition == chosen.default_partition()
        assert config.model == chosen.default_model()
    fed = ef.load("german")
    assert fed.provenance["partition"] == ef.partition.describe(get_dataset("german").preset(None).default_partition())


def test_a_data_set_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clinics_w5.py").write_text(
        "import pandas as pd\n"
        "from equifed.data import Dataset, Preset, Sensitive\n"
        "def read(contents):\n"
        "    n = range(200)\n"
        "    return pd.DataFrame({'age': [20 + 7 * i % 50 for i in n], 'sex': ['fm'[i % 3 == 0] for i in n],\n"
        "                         'ill': ['no yes'.split()[i % 5 < 2] for i in n]})\n"
        "sex = Sensitive(column='sex')\n"
        "preset = Preset('default', 'all rows', 200, 1, ('f', 'm'), 'ill', ('age',), (sex,), 'yes')\n"
        "CLINICS = Dataset('clinics', 'Clinics', (), read, {'default': preset}, 'made up', 'none', 'none')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    fed = ef.load("clinics_w5:CLINICS", partition=ef.partition.IID(2))
    assert (fed.num_clients, fed.groups, fed.classes) == (2, ("f", "m"), ("no", "yes"))
    assert fed.provenance["data"] == "clinics_w5:CLINICS"
    assert (fed.rows.s == 1).sum() == 67
    with pytest.raises(ConfigError, match=r"is not a data set: it must be an equifed.data.Dataset"):
        ef.load("clinics_w5:preset")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 3}, r"seeds must be a list .* got 3. For 3 of them write seeds=range\(3\)"),
        ({"seeds": "12"}, "seeds must be a list"),
        ({"seeds": []}, "seeds has no seed"),
        ({"seeds": [0, -1]}, "seed must be a whole number .*at least 0, got -1"),
        ({"seed": -1}, "seed must be a whole number .*at least 0, got -1"),
        ({"seed": 0.5}, "seed must be a whole number"),
        ({"partition": "dirichlet"}, "partition must be one of equifed.partition .* got 'dirichlet'"),
    ],
)
def test_wrong_options_of_load_are_explained(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ef.load("german", **options)
