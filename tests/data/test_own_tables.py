"""Own tables: which columns become inputs, what is told of them, and what is done about missing values; against pandas
and NumPy by hand."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from equifed import Columns
from equifed.data import Schema, Sensitive, Summary, agree, summarise
from equifed.data.choose import look
from equifed.data.schema import MERGED, MISSING, OTHER
from equifed.errors import ConfigError, DataError, EquifedWarning

NAMES = [f"{first} {last}" for first in ("Ada", "Bo", "Cy", "Di", "Ed", "Fay", "Gus", "Hal", "Ida", "Jo", "Kim", "Lou")
         for last in ("Abel", "Boyle", "Curie", "Dirac", "Euler", "Fermi", "Gauss", "Hertz", "Ising", "Joule",
                      "Kelvin", "Laue", "Maxwell", "Noether", "Ohm", "Planck", "Qin", "Raman", "Salam", "Tesla",
                      "Urey", "Volta", "Weyl", "Yukawa", "Zeeman")]  # fmt: skip


def hospital(n: int = 600, seed: int = 0) -> pd.DataFrame:
    """What a hospital hands in: 300 names, ids, dates, notes, gaps, and three astronauts."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "patient_id": 7_000_000 + rng.permutation(10 * n)[:n],
            "name": rng.permutation(np.resize(NAMES, n)),
            "admitted": (pd.Timestamp("2019-03-01") + pd.to_timedelta(rng.integers(0, 900, n), "D")).strftime(
                "%Y-%m-%d"
            ),
            "age": rng.integers(18, 95, n),
            "bp": rng.normal(120, 15, n),
            "job": rng.choice(["nurse", "clerk", "farmer"], n),
            "note": [" ".join(rng.choice(["cough", "fever", "pain", "calm", "worse", "stable"], 9)) for _ in range(n)],
            "country": "NO",
            "sex": rng.choice(["f", "m"], n),
            "ill": rng.choice(["no", "yes"], n),
        }
    )
    frame.loc[[3, 4, 5], "job"] = "astronaut"
    frame.loc[7, "bp"], frame.loc[8, "bp"] = 987.654321, 3.14159265
    frame.loc[rng.random(n) < 0.1, "bp"] = np.nan
    frame.loc[rng.random(n) < 0.1, "job"] = None
    return frame


def left_out(schema: Schema) -> dict[str, str]:
    return {each.column: each.reason for each in schema.left_out}


# -- which columns -----------------------------------------------------------------------------------------------------


def test_what_is_no_input_is_left_out_with_its_reason() -> None:
    schema = Schema.infer(hospital(), Columns(label="ill", sensitive="sex"))
    assert [column.name for column in schema.columns] == ["age", "bp", "job"]
    reasons = left_out(schema)
    assert list(reasons) == ["patient_id", "name", "admitted", "note", "country"]
    assert "identifier" in reasons["patient_id"]
    assert "identifier" in reasons["name"]
    assert "dates" in reasons["admitted"]
    assert reasons["note"] == "free text"
    assert "same value" in reasons["country"]
    assert Schema.from_json(schema.to_json()) == schema


N = 200
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("name", "values", "kind", "role"),
    [
        ("weight", RNG.normal(70, 9, N), "numeric", "input"),
        ("income", RNG.integers(10_000, 900_000, N), "numeric", "input"),
        ("order", np.arange(N), "numeric", "identifier"),
        ("row", RNG.permutation(N) + 1, "numeric", "identifier"),
        ("patientId", RNG.integers(0, 10**5, N), "numeric", "identifier"),
        ("visit nr", RNG.integers(0, 10**5, N), "numeric", "identifier"),
        ("ward_id", RNG.integers(0, 9, N), "numeric", "input"),
        ("paid", RNG.integers(0, 10**5, N), "numeric", "input"),
        ("who", RNG.permutation(10**6)[:N] + 10**8, "numeric", "identifier"),
        ("who", np.where(np.arange(N) % 9, RNG.permutation(10**6)[:N] + 10**8, np.nan), "numeric", "identifier"),
        ("stamp", 1.7e9 + np.arange(N) / 7, "numeric", "input"),
        ("flag", RNG.random(N) > 0.5, "numeric", "input"),
        ("who", [f"P-{i:05d}" for i in range(N)], "categorical", "identifier"),
        ("who", [f"P-{i // 3:05d}" for i in range(N)], "categorical", "input"),
        ("who", [f"P-{i % 120:05d}" for i in range(N)], "categorical", "many values"),
        ("email", [f"x{i % 4}@y.org" for i in range(N)], "categorical", "identifier"),
        ("job", RNG.choice(list("abc"), N), "categorical", "input"),
        ("zip", RNG.choice(["0150", "9012", "5003"], N), "categorical", "input"),
        ("when", pd.date_range("2020-01-01", periods=N), "date", "input"),
        ("when", RNG.choice(["2020-02-03", "2021-11-30T08:15:00Z"], N), "date", "input"),
        ("when", RNG.choice(["24.12.2020", "3.1.2021"], N), "date", "input"),
        ("when", RNG.choice(["12/24/2020", "1/3/2021"], N), "date", "input"),
        ("when", RNG.choice(["24 Dec 2020", "3 Jan 2021"], N), "date", "input"),
        ("when", RNG.choice([20201224, 20210103, 19990808], N), "date", "input"),
        ("when", RNG.choice(["08:15", "23:59:59"], N), "date", "input"),
        ("when", pd.date_range("2020-01-01", periods=N).date, "date", "input"),
        ("code", RNG.choice(["2020", "2021"], N), "categorical", "input"),
        ("same", [4.0] * N, "numeric", "constant"),
        ("none", [None] * N, "categorical", "empty"),
        ("said", ["the patient slept well and ate " + "a" * (i % 90) for i in range(N)], "categorical", "free text"),
    ],
)  # fmt: skip
def test_what_a_column_looks_like(name: str, values: object, kind: str, role: str) -> None:
    seen = look(pd.Series(values, name=name))
    assert (seen.kind, seen.role) == (kind, role)


def test_few_rows_say_nothing_of_identifiers() -> None:
    assert look(pd.Series(["a", "b", "c"], name="x")).role == "input"
    assert look(pd.Series([1, 2, 3], name="id")).role == "input"


def test_what_the_user_says_counts() -> None:
    frame = hospital()
    with pytest.warns(EquifedWarning, match="'patient_id' is an input because features names it"):
        schema = Schema.infer(frame, Columns(label="ill", features=["age", "patient_id"]))
    assert schema.input_names == ("age", "patient_id")
    schema = Schema.infer(frame, Columns(label="ill", sensitive="sex", drop=["bp", "note"]))
    assert [column.name for column in schema.columns] == ["age", "job"]
    assert left_out(schema)["bp"] == left_out(schema)["note"] == "left out by choice"
    with pytest.raises(ConfigError, match=r"Unknown column 'bpp'. Did you mean 'bp'"):
        Schema.infer(frame, Columns(label="ill", drop=["bpp"]))
    with pytest.raises(ConfigError, match=r"drop must be a list.*\['bp'\]"):
        Schema.infer(frame, Columns(label="ill", drop="bp"))


# -- dates -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", ["%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%Y/%m/%d", "%d %B %Y", "%Y%m%d", None])
def test_parts_of_dates_are_pandas(written: str | None) -> None:
    moments = pd.Series(pd.date_range("2019-11-05", periods=300, freq="31h"))
    values = moments if written is None else moments.dt.strftime(written)
    values = values.astype(int) if written == "%Y%m%d" else values
    frame = pd.DataFrame({"when": values, "y": np.arange(300) % 2})
    parts = ("year", "quarter", "month", "week", "day", "weekday", "yearday", "days")
    schema = Schema.from_json(Schema.infer(frame, Columns(label="y", dates={"when": parts}, scaling="none")).to_json())
    assert schema.input_names == tuple(f"when ({part})" for part in parts)
    at = moments.dt
    expected = [at.year, at.quarter, at.month, at.isocalendar().week, at.day, at.day_of_week, at.day_of_year]
    expected.append((moments.dt.normalize() - pd.Timestamp("1970-01-01")).dt.days)
    np.testing.assert_array_equal(schema.encode(frame).x, np.column_stack(expected).astype(np.float32))


def test_hours_are_those_of_the_place() -> None:
    frame = pd.DataFrame({"when": ["2020-01-01T23:30:00+05:00", "2020-01-02 07:05:00"] * 20, "y": [0, 1] * 20})
    schema = Schema.infer(frame, Columns(label="y", dates={"when": ["hour", "minute"]}, scaling="none"))
    assert schema.encode(frame).x[:2].tolist() == [[23, 30], [7, 5]]


def test_dates_that_cannot_be_read_are_explained() -> None:
    frame = pd.DataFrame({"when": ["03/04/2020", "05/06/2021"] * 20, "y": [0, 1] * 20, "age": range(40)})
    with pytest.raises(DataError, match=r"which of day and month comes first is not clear. Write them as YYYY-MM-DD"):
        Schema.infer(frame, Columns(label="y", dates={"when": ["year"]}))
    with pytest.raises(ConfigError, match=r"Unknown part of a date 'yeer'. Did you mean 'year'"):
        Schema.infer(frame, Columns(label="y", dates={"when": ["yeer"]}))
    with pytest.raises(DataError, match="Column 'age', row 0: '0' and most others are no dates"):
        Schema.infer(frame, Columns(label="y", dates={"age": ["year"]}))
    good = frame.assign(when="2020-02-03")
    schema = Schema.infer(good, Columns(label="y", dates={"when": ["year"]}))
    with pytest.raises(DataError, match="Column 'when', row 3: 'soon' is not a date written as YYYY-MM-DD"):
        schema.inputs(good.assign(when=["2020-02-03"] * 3 + ["soon"] + ["2020-02-03"] * 36))


def test_a_missing_date_follows_the_rule() -> None:
    frame = pd.DataFrame({"when": pd.date_range("2019-01-01", periods=90), "y": np.arange(90) % 2})
    frame.loc[::6, "when"] = pd.NaT
    schema = Schema.infer(
        frame, Columns(label="y", dates={"when": ["yearday", "weekday"]}, scaling="none", min_count=0)
    )
    assert schema.input_names == ("when (yearday)", "when (missing)", "when (weekday)")
    x = schema.encode(frame).x
    gone = frame["when"].isna().to_numpy()
    assert (x[gone] == [frame["when"].dt.day_of_year.median(), 1, frame["when"].dt.day_of_week.median()]).all()
    assert (x[~gone, 1] == 0).all()


# -- categories --------------------------------------------------------------------------------------------------------


def test_only_frequent_categories_are_listed_and_the_others_are_one() -> None:
    frame = hospital()
    schema = Schema.infer(frame, Columns(label="ill", sensitive="sex", features=["job"]))
    assert schema.columns[0].categories == (MISSING, "clerk", "farmer", "nurse", OTHER)
    new = pd.DataFrame({"job": ["nurse", "astronaut", None, "never seen", 7]})
    expected = np.zeros((5, 5))
    expected[np.arange(5), [3, 4, 0, 4, 4]] = 1
    np.testing.assert_array_equal(schema.inputs(new), expected)
    exact = Schema.infer(frame, Columns(label="ill", features=["job"], min_count=0))
    assert exact.columns[0].categories == (MISSING, "astronaut", "clerk", "farmer", "nurse")
    with pytest.raises(DataError, match="row 3: 'never seen' is not a known category"):
        exact.inputs(new)


def test_a_column_of_rare_values_only_is_left_out() -> None:
    frame = hospital().assign(ward=lambda f: [f"w{i % 75}" for i in range(len(f))])  # 8 rows each
    schema = Schema.infer(frame, Columns(label="ill", sensitive="sex"))
    assert left_out(schema)["ward"] == "no value is frequent enough to be told"


def test_a_real_value_called_like_the_others_is_said() -> None:
    frame = pd.DataFrame({"a": ["x", OTHER] * 30, "y": [0, 1, 1, 0] * 15})
    with pytest.warns(EquifedWarning, match=r"Column 'a' has the value '\(other\)'"):
        schema = Schema.infer(frame, Columns(label="y"))
    assert schema.columns[0].categories == ("x", OTHER)
    plain = Schema.infer(frame.replace(OTHER, "other"), Columns(label="y"))
    assert plain.columns[0].categories == ("other", "x", OTHER)


def test_rare_groups_and_classes() -> None:
    frame = hospital()
    frame.loc[:3, "sex"] = "x"
    schema = Schema.infer(frame, Columns(label="ill", sensitive="sex"))
    assert schema.groups == ("f", "m")
    assert '"x"' not in schema.to_json()
    assert schema.encode(frame).s[:4].tolist() == [-1] * 4  # 4 rows are no group of their own
    frame.loc[:14, "sex"] = np.resize(["x", "z"], 15)
    schema = Schema.infer(frame, Columns(label="ill", sensitive="sex"))
    assert schema.groups == (MERGED, "f", "m")
    assert schema.encode(frame).s[:15].tolist() == [0] * 15
    with pytest.warns(EquifedWarning, match="40 of 40 rows have a group that the schema does not list"):
        Schema.infer(frame[20:], Columns(label="ill", sensitive="sex")).encode(frame[20:60].assign(sex="female"))
    frame.loc[:5, "ill"] = "perhaps"
    with pytest.raises(DataError, match=r"Column 'ill': The label has a value in fewer than 10 rows"):
        Schema.infer(frame, Columns(label="ill", sensitive="sex"))


def test_ranges_tell_no_single_value() -> None:
    frame = hospital()
    schema = Schema.infer(frame, Columns(label="ill", features=["bp", "age"], scaling="minmax"))
    for column in schema.columns:
        values = np.sort(frame[column.name].dropna())
        step = 10.0 ** (np.floor(np.log10(values[-10] - values[9])) - 2)
        assert abs(column.low - values[9]) <= step
        assert abs(column.high - values[-10]) <= step
    x = schema.inputs(pd.DataFrame({"bp": [-1e6, 1e6, np.nan], "age": [18, 94, 50]}))
    assert x[:2, 0].tolist() == [0, 1]  # clipped
    assert 0 < x[2, 0] < 1
    assert schema.encode(frame).x.min() >= 0
    assert schema.encode(frame).x.max() <= 1


# -- missing values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["impute", "median", "mean"])
def test_numbers_are_filled_and_marked(rule: str) -> None:
    frame = hospital()
    schema = Schema.infer(frame, Columns(label="ill", features=["bp", "age", "job"], missing=rule))
    assert schema.input_names[:3] == ("bp", "bp (missing)", "age")
    known = frame["bp"].dropna()
    middle = known.clip(*np.sort(known)[[9, -10]]).mean() if rule == "mean" else known.median()
    assert schema.columns[0].fill == pytest.approx(middle, abs=0.05)
    x = schema.encode(frame).x
    gone = frame["bp"].isna().to_numpy()
    np.testing.assert_allclose(x[gone, 0], schema.columns[0].fill, rtol=1e-6)
    np.testing.assert_array_equal(x[:, 1], gone)
    np.testing.assert_allclose(x[~gone, 0], known, rtol=1e-6)
    assert schema.columns[2].categories[0] == MISSING
    # a column that was complete is filled too, where a new row lacks it
    new = pd.DataFrame({"bp": [100.0], "age": [None], "job": ["nurse"]})
    assert schema.inputs(new)[0, 2] == pytest.approx(
        frame["age"].median() if rule != "mean" else frame["age"].mean(), abs=1
    )


def test_exact_medians_and_means_with_nothing_withheld() -> None:
    frame = hospital()
    options = {"label": "ill", "features": ["bp"], "min_count": 0}
    assert Schema.infer(frame, Columns(missing="median", **options)).columns[0].fill == pytest.approx(
        frame["bp"].median()
    )
    assert Schema.infer(frame, Columns(missing="mean", **options)).columns[0].fill == pytest.approx(frame["bp"].mean())


def test_rows_are_dropped_and_counted() -> None:
    frame = hospital()
    schema = Schema.infer(frame, Columns(label="ill", sensitive="sex", missing="drop"))
    encoded = schema.encode(frame, columns=["country"])
    complete = frame.dropna(subset=["bp", "job"])
    assert encoded.dropped == len(frame) - len(complete) > 0
    np.testing.assert_allclose(encoded.x[:, 1], complete["bp"], rtol=1e-6)
    assert len(encoded.y) == len(encoded.s) == len(encoded.columns["country"]) == len(complete)
    row = int(np.argmax(frame["bp"].isna()))
    with pytest.raises(DataError, match=f"Column 'bp', row {row}: the value is missing"):
        schema.inputs(frame)


def test_missing_values_can_be_refused_and_rules_be_mixed() -> None:
    frame = hospital()
    for rule, column in (("refuse", "bp"), ("category", "bp"), ({"job": "refuse"}, "job")):
        schema = Schema.infer(frame, Columns(label="ill", features=["bp", "job"], missing=rule))
        with pytest.raises(DataError, match=f"Column '{column}', row .*: the value is missing"):
            schema.encode(frame)
    mixed = Schema.infer(frame, Columns(label="ill", features=["bp", "job"], missing={"bp": "mean", "job": "drop"}))
    assert mixed.encode(frame).dropped == frame["job"].isna().sum()
    with pytest.raises(ConfigError, match=r"Unknown rule for missing values 'medium'. Did you mean 'median'"):
        Schema.infer(frame, Columns(label="ill", missing="medium"))
    with pytest.raises(ConfigError, match="Unknown column 'bpp'"):
        Schema.infer(frame, Columns(label="ill", missing={"bpp": "mean"}))
    with pytest.raises(ConfigError, match="says 'category' for 'bp', which holds numbers"):
        Schema.infer(frame, Columns(label="ill", missing={"bp": "category"}))


def test_old_schemas_load_and_refuse() -> None:
    categories = {"name": "b", "kind": "categorical", "categories": ["x", "y"]}
    old = {"columns": [{"name": "a", "kind": "numeric"}, categories], "label": "ill", "classes": ["no", "yes"]}
    schema = Schema.from_json(json.dumps(old))
    assert schema.inputs(pd.DataFrame({"a": [1.5], "b": ["y"]})).tolist() == [[1.5, 0, 1]]
    for row in ({"a": [None], "b": ["x"]}, {"a": [1.0], "b": [None]}):
        with pytest.raises(DataError, match="the value is missing"):
            schema.inputs(pd.DataFrame(row))
    with pytest.raises(DataError, match="'z' is not a known category"):
        schema.inputs(pd.DataFrame({"a": [1.0], "b": ["z"]}))


# -- new rows ----------------------------------------------------------------------------------------------------------


def test_new_rows_without_a_label() -> None:
    frame = hospital()
    schema = Schema.infer(frame, Columns(label="ill", sensitive="sex", dates={"admitted": ["month"]}))
    x = schema.encode(frame).x
    new = frame.drop(columns=["ill", "sex", "name"])
    np.testing.assert_array_equal(schema.inputs(new), x)
    np.testing.assert_array_equal(schema.inputs(new[new.columns[::-1]].assign(more=1)), x)
    with pytest.raises(DataError, match="Column 'bp': the column is missing"):
        schema.inputs(new.drop(columns="bp"))
    renamed = new.rename(columns={"bp": "blood_pressure", "age": "Age"}).drop(columns="job")
    with pytest.raises(DataError, match="The columns 'age', 'bp', 'job' are missing") as caught:
        schema.inputs(renamed)
    assert "'blood_pressure' is there: is it 'bp'?" in str(caught.value)
    assert "'Age' is there: is it 'age'?" in str(caught.value)


# -- silos that agree --------------------------------------------------------------------------------------------------

ASKED = {"label": "ill", "sensitive": "sex"}


def test_one_summary_gives_the_schema_of_its_table() -> None:
    frame = hospital()
    told = Summary.from_json(summarise(frame, Columns(**ASKED)).to_json())
    assert agree([told], Columns(scaling="minmax")) == Schema.infer(frame, Columns(**ASKED, scaling="minmax"))


def test_silos_agree_on_counts_means_and_medians() -> None:
    frames = [hospital(n, seed) for n, seed in ((300, 1), (900, 2), (500, 3))]
    for number, frame in enumerate(frames):
        frame["bp"] += 20 * number
    schema = agree(
        [summarise(frame, Columns(**ASKED), name=str(i)) for i, frame in enumerate(frames)], Columns(scaling="minmax")
    )
    whole = pd.concat(frames)
    bp = next(column for column in schema.columns if column.name == "bp")
    assert bp.fill == pytest.approx(whole["bp"].median(), abs=0.05 * whole["bp"].std())
    assert bp.low == pytest.approx(min(np.sort(frame["bp"].dropna())[9] for frame in frames), abs=0.1)
    assert bp.high == pytest.approx(max(np.sort(frame["bp"].dropna())[-10] for frame in frames), abs=0.1)
    mean = agree(
        [summarise(frame, Columns(**ASKED), name=str(i)) for i, frame in enumerate(frames)], Columns(missing="mean")
    )
    known = [frame["bp"].dropna() for frame in frames]
    within = pd.concat([values.clip(*np.sort(values)[[9, -10]]) for values in known])
    assert mean.columns[1].fill == pytest.approx(within.mean(), abs=1e-3)
    assert schema.columns[2].categories == (MISSING, "clerk", "farmer", "nurse", OTHER)


def test_a_median_of_few_different_values() -> None:
    frames = [pd.DataFrame({"v": np.repeat(values, 40), "ill": np.arange(40 * len(values)) % 2})
              for values in ([0, 1, 1], [1, 2, 5], [5, 5, 9])]  # fmt: skip
    schema = agree([summarise(frame, Columns(label="ill"), name=str(i)) for i, frame in enumerate(frames)])
    assert schema.columns[0].fill == pytest.approx(pd.concat(frames)["v"].median(), abs=0.5)


def test_a_category_is_listed_where_it_is_frequent() -> None:
    north, south = hospital(seed=1), hospital(seed=2)
    south.loc[20:60, "job"] = "astronaut"
    south.loc[70:75, "job"] = "diver"
    schema = agree([summarise(north, Columns(**ASKED), name="north"), summarise(south, Columns(**ASKED), name="south")])
    job = next(column for column in schema.columns if column.name == "job")
    assert job.categories == (MISSING, "astronaut", "clerk", "farmer", "nurse", OTHER)
    assert schema.encode(north).feature_names == schema.encode(south).feature_names


def test_silos_that_disagree_are_named() -> None:
    north, south, west = hospital(seed=1), hospital(seed=2), hospital(seed=3)
    told = [summarise(frame, Columns(**ASKED), name=name) for name, frame in (("north", north), ("south", south))]

    def with_west(frame: pd.DataFrame) -> Schema:
        return agree([*told, summarise(frame, Columns(**ASKED), name="west")])

    with pytest.raises(
        DataError, match="Column 'bp': the column holds numbers in 'north', 'south', but text in 'west'"
    ):
        with_west(west.assign(bp=np.resize(["high", "low"], len(west))))
    with pytest.raises(
        DataError, match=r"west: Column 'bp': the column is missing. 'blood_pressure' is there: is it 'bp'"
    ):
        with_west(west.rename(columns={"bp": "blood_pressure"}))
    with pytest.raises(DataError, match="west: The columns 'age', 'bp' are missing"):
        with_west(west.drop(columns=["bp", "age"]))
    extra = with_west(west.assign(ward=np.resize(["a", "b"], len(west))))
    assert left_out(extra)["ward"] == "not in every table"
    assert with_west(west.drop(columns=["note", "name"])).columns == with_west(west).columns  # no inputs anyway
    with pytest.raises(ConfigError, match="west: Was made with other options than north: drop"):
        agree([*told, summarise(west, Columns(drop=["bp"], **ASKED), name="west")])
    # constant here and there, but not the same
    values = [
        summarise(frame.assign(country=c), Columns(**ASKED), name=c) for frame, c in ((north, "NO"), (south, "SE"))
    ]
    assert [c.categories for c in agree(values).columns if c.name == "country"] == [("NO", "SE", OTHER)]


@pytest.mark.parametrize("dates", [None, {"admitted": ["month"]}])
def test_nothing_that_few_rows_share_is_told(dates: dict | None) -> None:
    """No name, id, date, note, rare category or extreme value is in any byte that leaves a silo."""
    frame = hospital(900)
    frame["insurance"] = ["private"] * 6 + ["public"] * 894
    frame.loc[[3, 4], "sex"] = "intersex"
    told = summarise(frame, Columns(dates=dates, **ASKED), name="north")
    age = Sensitive(column="age", threshold=40, below="young", at_least="older", continuous=True)
    texts = [told.to_json(), agree([told], Columns(scaling="minmax")).to_json(),
             summarise(frame, Columns(label="ill", sensitive=[age, "sex"])).to_json()]  # fmt: skip
    single = [*NAMES, *(word for name in NAMES for word in name.split() if len(word) > 3)]
    single += frame["patient_id"].astype(str).tolist() + frame["admitted"].tolist() + frame["note"].tolist()
    single += ["astronaut", "private", "intersex"]
    single += [repr(float(value)) for value in frame["bp"].dropna()] + ["987.", "3.14"]
    for text in texts:
        assert not [value for value in single if value in text]


@pytest.mark.parametrize(
    "change", [{"rows": -1}, {"classes": {"no": -3}}, {"columns": [{"name": "a"}]}, {"mood": 1}, {"asked": {}}]
)  # fmt: skip
def test_a_summary_that_cannot_be_is_refused(change: dict) -> None:
    good = json.loads(summarise(hospital(), Columns(**ASKED)).to_json())
    with pytest.raises(ConfigError, match="Not a valid summary"):
        Summary.from_json(json.dumps(good | change))
