"""Groups that people ask for: other columns of named data, their intersections, small ones merged."""

from __future__ import annotations

import re
from pathlib import Path

import fairlearn.metrics as fl
import numpy as np
import pandas as pd
import pytest
from own_data import federation_of

import equifed as ef
from equifed.config import load_federations, parse_config
from equifed.data import Schema, Sensitive, get_dataset
from equifed.errors import ConfigError, DataError

MERGED = "other (merged)"
ONE = ef.partition.IID(3)


def table(n: int = 400, seed: int = 0) -> pd.DataFrame:
    """Two sensitive columns whose intersections differ in size, from many rows to a few."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "x": rng.normal(size=n),
            "sex": rng.choice(["f", "m"], n, p=[0.4, 0.6]),
            "race": rng.choice(["a", "b", "c"], n, p=[0.9, 0.07, 0.03]),
        }
    )
    frame["y"] = np.where(frame["x"] + (frame["sex"] == "m") + rng.normal(size=n) > 0.5, "yes", "no")
    return frame


def of_table(frame: pd.DataFrame, **options: object) -> ef.Federation:
    options = {"label": "y", "sensitive": ["sex", "race"], "partition": ONE, "min_count": 0, **options}
    return federation_of(frame, **options)


def pair_sizes(frame: pd.DataFrame) -> dict[str, int]:
    return {f"{a} & {b}": int(n) for (a, b), n in frame.groupby(["sex", "race"]).size().items()}


# -- named data --------------------------------------------------------------------------------------------------------


def test_columns_of_named_data_are_crossed(needs):
    """Against a group-by of the data set's own table; rows, inputs and split stay the preset's."""
    needs("german")
    fed = ef.load("german", sensitive=["sex", "foreign_worker"], partition=ONE)
    frame, _ = get_dataset("german").table(get_dataset("german").preset(None))
    sizes = frame.groupby(["sex", "foreign_worker"]).size()
    assert fed.groups == tuple(f"{a} & {b}" for a, b in sizes.index)
    assert np.bincount(fed.rows.s).tolist() == sizes.tolist()
    own = ef.load("german", partition=ONE)
    np.testing.assert_array_equal(fed.rows.x, own.rows.x)
    np.testing.assert_array_equal(fed.test, own.test)
    assert fed.features == own.features
    assert fed.provenance["sensitive"] == ["sex", "foreign_worker"]
    # dependence is measured on both columns, not on the codes of their intersections
    assert fed.sensitive_size == 2


def test_a_column_of_the_preset_keeps_the_presets_groups(needs):
    needs("compas")
    fed = ef.load("compas", sensitive=["sex", "race"], partition=ONE)
    assert set(fed.groups) == {f"{sex} & {race}" for sex in ("Female", "Male") for race in ("Caucasian", "Other")}
    # the preset's own column is the preset itself, the privileged group last
    own, named = ef.load("compas", partition=ONE), ef.load("compas", sensitive="race", partition=ONE)
    assert named.groups == own.groups == ("Other", "Caucasian")
    np.testing.assert_array_equal(named.rows.s, own.rows.s)
    # a rule of one's own takes its place
    every = ef.load("compas", sensitive=Sensitive(column="race"), partition=ONE)
    assert len(every.groups) == 6
    young = Sensitive(column="age", threshold=25, below="young", at_least="older")
    assert ef.load("compas", sensitive=["sex", young], partition=ONE).groups[0] == "Female & young"


def test_wrong_columns_of_named_data(needs):
    needs("german")
    with pytest.raises(ConfigError, match=r"Unknown sensitive column of german 'sexx'. Did you mean 'sex'\?.*housing"):
        ef.load("german", sensitive=["sexx"])
    with pytest.raises(ConfigError, match="Unknown sensitive column of german 'credit_risk'"):
        ef.load("german", sensitive="credit_risk")  # the label
    with pytest.raises(ConfigError, match="names the column 'sex' twice"):
        ef.load("german", sensitive=["sex", "sex"])
    with pytest.raises(DataError, match="different numbers are too many for groups"):
        ef.load("german", sensitive=["sex", "age"])
    with pytest.raises(DataError, match="no group has 2000 rows, the largest 690"):
        ef.load("german", min_group=2000)


def test_the_configuration_names_columns_of_named_data(needs):
    needs("german")
    raw = {
        "run": {"seeds": 2, "rounds": 1},
        "data": {"name": "german", "sensitive": ["sex", "foreign_worker"], "min-group": 20},
        "partition": {"kind": "iid", "num-partitions": 3},
        "method": {"name": "fedavg"},
    }
    config = parse_config(raw)
    assert config.resolved()["data"]["sensitive"] == ["sex", "foreign_worker"]
    assert config.resolved()["data"]["min-group"] == 20
    feds = load_federations(config)
    expected = ef.load("german", sensitive=["sex", "foreign_worker"], min_group=20, partition=ONE)
    assert [fed.groups for fed in feds] == [expected.groups] * 2
    np.testing.assert_array_equal(feds[0].rows.s, expected.rows.s)
    # what is not said is not written, so that the fingerprints of older runs hold
    plain = parse_config(raw | {"data": {"name": "german"}})
    assert set(plain.resolved()["data"]) == {"name", "preset"}
    assert plain.fingerprint() != config.fingerprint()


def test_gaps_of_crossed_groups_are_fairlearns(needs):
    """Every group's rates against fairlearn's MetricFrame, which crosses the columns by itself."""
    needs("german")
    fed = ef.load("german", sensitive=["sex", "housing"], partition=ONE)
    local = ef.Local(batch_size=50, learning_rate=0.1)
    result = ef.simulate(ef.methods.FedAvg(), fed, model=ef.models.Logistic(), rounds=3, local=local)
    frame, _ = get_dataset("german").table(get_dataset("german").preset(None))
    test = frame.iloc[fed.test]
    label = (test["credit_risk"] == "good").to_numpy().astype(int)
    decided = (np.asarray(result.predict(fed.rows.x[fed.test])) > 0.5).astype(int)
    by = fl.MetricFrame(
        metrics={"selection_rate": fl.selection_rate, "true_positive_rate": fl.true_positive_rate, "count": fl.count},
        y_true=label,
        y_pred=decided,
        sensitive_features=test[["sex", "housing"]],
    ).by_group
    last = result.metrics[result.metrics["round"] == 3].set_index(["split", "scope", "metric"])["value"]
    for (sex, housing), rates in by.iterrows():
        for metric, value in rates.items():
            assert last["test", f"group:{sex} & {housing}", metric] == pytest.approx(value)
    gap = fl.demographic_parity_difference(label, decided, sensitive_features=test[["sex", "housing"]])
    assert last["test", "global", "demographic_parity_difference"] == pytest.approx(gap)


# -- small groups ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("least", [0, 8, 20, 100])
def test_small_groups_are_merged_by_the_rows_of_the_table(least):
    frame = table()
    sizes = pair_sizes(frame)
    small = {name: rows for name, rows in sizes.items() if rows < least}
    fed = of_table(frame, min_group=least)
    if len(small) < 2:
        assert fed.groups == tuple(sizes)
        assert "merged_groups" not in fed.provenance
        return
    assert fed.groups == (MERGED, *(name for name in sizes if name not in small))
    assert fed.provenance["merged_groups"] == small
    counts = np.bincount(fed.rows.s)
    assert counts.tolist() == [sum(small.values()), *(rows for name, rows in sizes.items() if name not in small)]
    names = (frame["sex"] + " & " + frame["race"]).where(lambda pair: ~pair.isin(list(small)), MERGED)
    assert [fed.groups[code] for code in fed.rows.s] == list(names)


def test_one_small_group_keeps_its_name():
    frame = table(seed=3)
    smallest, second = sorted(pair_sizes(frame).values())[:2]
    assert smallest < second
    assert MERGED not in of_table(frame, min_group=second).groups


def test_a_result_says_what_was_merged():
    frame = table()
    settings = {"rounds": 1, "local": ef.Local(batch_size=50, learning_rate=0.1)}
    result = ef.simulate(ef.methods.FedAvg(), of_table(frame, min_group=20), model=ef.models.Logistic(), **settings)
    (note,) = [note for note in result.notes if note.kind == "groups-merged"]
    small = {name: rows for name, rows in pair_sizes(frame).items() if rows < 20}
    assert note.fields == {"group": MERGED, "min_group": 20, "rows": small}
    assert "Groups with fewer than 20 of all rows were merged into one group, 'other (merged)': " in str(note)
    assert all(f"{name} ({rows} rows)" in str(note) for name, rows in small.items())
    # whatever the seed tests on: merging is by all rows
    other = ef.simulate(ef.methods.FedAvg(), of_table(frame), model=ef.models.Logistic(), **settings)
    assert not [note for note in other.notes if note.kind == "groups-merged"]


def test_silos_merge_by_their_rows_together(tmp_path: Path):
    """A group that is small at every silo but not together stays; the schema makes silos agree without counts."""
    frame = table(600)
    parts = {"north": frame[:200], "south": frame[200:350], "west": frame[350:]}
    for name, part in parts.items():
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    files = {name: tmp_path / f"{name}.csv" for name in parts}
    sizes = pair_sizes(frame)
    at_most = {name: max(pair_sizes(part).get(name, 0) for part in parts.values()) for name in sizes}
    assert any(at_most[name] < 20 <= rows for name, rows in sizes.items())
    fed = ef.Federation.from_tables(files, ef.Columns(label="y", sensitive=["sex", "race"], min_group=20, min_count=0))
    small = {name: rows for name, rows in sizes.items() if rows < 20}
    assert fed.provenance["merged_groups"] == small
    schema = Schema.infer(frame, ef.Columns(label="y", sensitive=["sex", "race"], min_group=20, min_count=0))
    text = schema.to_json()
    assert Schema.from_json(text) == schema
    assert not any(re.search(rf"\b{rows}\b", text) for rows in small.values())
    again = ef.Federation.from_tables(files, schema)
    np.testing.assert_array_equal(again.rows.s, fed.rows.s)
    # an intersection that nobody had when the schema was made is small too
    alone = schema.encode(frame[:3].assign(race=["c", "c", "c"], sex=["f", "m", "f"]))
    assert [schema.groups[code] for code in alone.s] == [MERGED] * 3
    with pytest.raises(ConfigError, match="it says what becomes of every column and group"):
        federation_of(files, schema=schema, min_group=3)


# -- unknown groups ----------------------------------------------------------------------------------------------------


def rows(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=(n, 3)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(int)


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        ([0, 1, -1, 1, -1, 0], ("0", "1")),
        ([0.0, 1.0, np.nan, 1.0, -1.0, 0.0], ("0", "1")),
        ([0, 1, None, 1, None, 0], ("0", "1")),
        (["a", "b", None, "b", float("nan"), "a"], ("a", "b")),
        ([["a", "x"], ["b", "x"], ["b", None], ["b", "x"], [None, "x"], ["a", "x"]], ("a & x", "b & x")),
        ([[0, 2], [1, 2], [1, -1], [1, 2], [-1, 2], [0, 2]], ("0 & 2", "1 & 2")),
    ],
    ids=["codes", "numbers", "None among numbers", "names", "columns of names", "columns of codes"],
)
def test_unknown_groups_in_arrays(groups, names):
    s = np.array(groups, dtype=object if any(g is None for g in np.ravel(np.array(groups, object))) else None)
    x, y = rows(np.random.default_rng(0), 6)
    y[:2] = 0, 1
    fed = ef.Federation.from_arrays([(x, y, s), (x, y, s[[2, 2, 4, 4, 2, 2]])], test=(x, y, s))
    assert fed.groups == names
    assert fed.rows.s.tolist() == [0, 1, -1, 1, -1, 0, *[-1] * 6, 0, 1, -1, 1, -1, 0]
    assert fed.unknown_groups == {"train": 8, "validation": 0, "test": 2}
    assert fed.cells().sum((1, 2)).tolist() == [4, 0]
    assert fed.unknown_cells().sum(1).tolist() == [2, 6]
    assert "unknown in 10 rows" in repr(fed)
    described = fed.describe().table
    assert described["unknown"].sum(axis=1).tolist() == [2, 6]
    assert described["total"].to_numpy().ravel().tolist() == [6, 6]
    if fed.rows.attribute is not None:
        assert np.isfinite(fed.rows.attribute).all()


def test_an_attribute_may_be_missing_where_the_group_is():
    x, y = rows(np.random.default_rng(1), 8)
    s, a = np.array([0, 1, -1, 1, 0, 0, 1, -1]), np.array([0.5, 1, np.nan, 2, 0, 1, 1, np.nan])
    fed = ef.Federation.from_arrays([(x, y, s, a)])
    assert fed.rows.attribute is not None
    np.testing.assert_array_equal(fed.rows.attribute[:, 0], np.nan_to_num(a).astype(np.float32))
    with pytest.raises(DataError, match="missing or infinite value where the group is known"):
        ef.Federation.from_arrays([(x, y, s, np.where(s == 1, np.nan, 0.0))])


def test_an_empty_sensitive_column_is_an_unknown_group():
    frame = table()
    rng = np.random.default_rng(4)
    frame.loc[rng.choice(400, 60, replace=False), "sex"] = None
    frame.loc[rng.choice(400, 40, replace=False), "race"] = None
    fed = of_table(frame, validation=0.1)
    known = frame["sex"].notna() & frame["race"].notna()
    np.testing.assert_array_equal(fed.rows.s >= 0, known)
    sizes = frame[known].groupby(["sex", "race"]).size()
    assert np.bincount(fed.rows.s[known]).tolist() == sizes.tolist()
    parts = {"train": fed.train.index, "validation": fed.validation, "test": fed.test}
    assert fed.unknown_groups == {name: int((~known.to_numpy()[rows]).sum()) for name, rows in parts.items()}
    # partitions see them as one more group
    spread = ef.partition.Dirichlet(4, 0.5)
    assert (
        sum(
            ef.Federation.from_tables(
                frame, ef.Columns(label="y", sensitive="sex"), holdout=ef.Holdout(validation=0.2), partition=spread
            ).train.sizes
        )
        == 240
    )
    skewed = ef.Federation.from_tables(
        frame,
        ef.Columns(label="y", sensitive="sex"),
        holdout=ef.Holdout(validation=0.0, test=0.0),
        partition=ef.partition.Skewed(4, 0.8),
    )
    of_client = [skewed.rows.s[skewed.train[k]] for k in range(4)]
    assert [int((s == -1).sum()) for s in of_client] == [15] * 4
    assert [round((s[s >= 0] == k // 2).mean(), 1) for k, s in enumerate(of_client)] == [0.8] * 4
    with pytest.raises(DataError, match="Column 'sex': the column has no value at all"):
        of_table(frame.assign(sex=None))
    apart = frame.assign(sex=["f", None] * 200, race=[None, "a"] * 200)
    with pytest.raises(DataError, match="No row has a value in all sensitive columns"):
        of_table(apart)


def test_thresholds_and_continuous_columns_with_unknown_groups():
    frame = table().assign(age=np.random.default_rng(0).integers(18, 80, 400).astype(float))
    frame.loc[::7, "age"] = np.nan
    age = Sensitive(column="age", threshold=40, below="young", at_least="older", continuous=True)
    encoded = Schema.infer(frame, ef.Columns(label="y", sensitive=age, features=["x"], min_count=0)).encode(frame)
    known = frame["age"].notna().to_numpy()
    assert encoded.s.tolist() == np.where(known, frame["age"] >= 40, -1).astype(int).tolist()
    assert encoded.attribute is not None
    values = frame["age"].to_numpy()[known]
    np.testing.assert_allclose(encoded.attribute[known, 0], (values - values.mean()) / values.std(), rtol=1e-5)
    assert (encoded.attribute[~known] == 0).all()


def test_a_silo_that_knows_no_group(tmp_path: Path):
    """Its column is there and empty; the schema is read off the others."""
    frame = table(300)
    parts = {"north": frame[:100], "south": frame[100:200].assign(sex=None), "west": frame[200:]}
    for name, part in parts.items():
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    files = {name: tmp_path / f"{name}.csv" for name in parts}
    fed = ef.Federation.from_tables(files, ef.Columns(label="y", sensitive="sex"))
    assert fed.groups == ("f", "m")
    assert fed.unknown_cells().sum(1).tolist() == [0, 80, 0]
    settings = {"rounds": 2, "local": ef.Local(batch_size=20, learning_rate=0.1)}
    result = ef.simulate(ef.methods.KFFL(), fed, model=ef.models.Logistic(), **settings)
    (note,) = [note for note in result.notes if note.kind == "unknown-groups"]
    assert note.fields == {"rows": {"train": 80, "test": 20}, "of": {"train": 240, "test": 60}}
    assert "The group of 80 of 240 training rows, 20 of 60 test rows is unknown" in str(note)
    assert result.info["unknown_groups"] == {"train": 80, "validation": 0, "test": 20}
    assert result.info["unknown_cells"] == fed.unknown_cells().tolist()
    # an absent column is no unknown group, but a mistake
    parts["south"].drop(columns="sex").to_csv(tmp_path / "south.csv", index=False)
    with pytest.raises(DataError, match="'sex': the column is missing"):
        ef.Federation.from_tables(files, ef.Columns(label="y", sensitive="sex"))


def test_unknown_groups_of_named_data(needs):
    """Adult's work class is missing in some rows."""
    needs("adult")
    fed = ef.load("adult", sensitive=["sex", "workclass"], partition=ONE)
    frame, _ = get_dataset("adult").table(get_dataset("adult").preset(None))
    known = frame["workclass"].notna().to_numpy()
    np.testing.assert_array_equal(fed.rows.s >= 0, known)
    assert 0 < fed.unknown_groups["test"] < fed.row_counts["test"]


def test_a_report_counts_unknown_groups(tmp_path: Path):
    from equifed.verdict.variants import variants_of

    frame = table().assign(sex=lambda f: f["sex"].where(f.index % 3 > 0))
    fed = of_table(frame, sensitive="sex")
    settings = {"rounds": 2, "local": ef.Local(batch_size=50, learning_rate=0.1)}
    one, own = (
        ef.simulate(method, fed, model=ef.models.Logistic(), **settings)
        for method in (ef.methods.FedAvg(), ef.methods.LocalOnly())
    )
    page = one.to_html(tmp_path / "page.html").read_text()
    assert "test rows is unknown: they are used for training" in page
    # rows of unknown group do not hide how many models the rows were given to
    assert [variant.models for variant in variants_of([one, own])] == [1, 3]
    (counts,) = own.count_tables("test").values()
    assert counts.sum() == pytest.approx(80 - fed.unknown_groups["test"])
