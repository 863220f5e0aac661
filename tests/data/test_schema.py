"""Tables to numbers: by hand, against scikit-learn, and every way in which a table can be wrong."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, OrdinalEncoder

from equifed import Columns
from equifed.data import Column, Encoded, Schema, Sensitive
from equifed.errors import ConfigError, DataError, EquifedWarning

EXACT = {"min_count": 0, "missing": "category"}
"""How the named data sets are read: everything is listed, and numbers must be there. Own tables: test_own_tables.py."""


def infer(frame: pd.DataFrame, **options) -> Schema:
    return Schema.infer(frame, Columns(**{**EXACT, **options}))


def encode(frame: pd.DataFrame, *, columns=(), **options) -> Encoded:
    return infer(frame, **options).encode(frame, columns=columns)


@pytest.fixture
def table() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": [20, 30, 40, 60],
            "job": ["nurse", "clerk", "clerk", None],
            "sex": ["f", "m", "f", "m"],
            "region": ["east", "west", "west", "west"],
            "income": ["low", "high", "high", "low"],
        },
        index=[10, 11, 12, 13],
    )


def test_onehot_by_hand(table):
    encoded = encode(table, label="income", positive="high", sensitive="sex", columns=["region"])
    assert encoded.feature_names == (
        *("age", "job=(missing)", "job=clerk", "job=nurse"),
        *("region=east", "region=west"),
    )
    assert encoded.x.dtype == np.float32
    assert encoded.x.tolist() == [
        [20, 0, 0, 1, 1, 0],
        [30, 0, 1, 0, 0, 1],
        [40, 0, 1, 0, 0, 1],
        [60, 1, 0, 0, 0, 1],
    ]
    assert encoded.y.tolist() == [0, 1, 1, 0]
    assert encoded.s.tolist() == [0, 1, 0, 1]
    assert (encoded.y.dtype, encoded.s.dtype) == (np.int64, np.int64)
    assert (encoded.class_names, encoded.group_names) == (("low", "high"), ("f", "m"))
    assert encoded.scale_columns.tolist() == [True, False, False, False, False, False]
    assert encoded.columns["region"].tolist() == ["east", "west", "west", "west"]


def test_ordinal_minmax_by_hand(table):
    encoded = encode(
        table,
        label="income",
        positive="high",
        sensitive="sex",
        features=["age", "job", "sex"],
        encoding="ordinal",
        scaling="minmax",
    )
    expected = [[0, 1, 0], [0.25, 0.5, 1], [0.5, 0.5, 0], [1, 0, 1]]
    np.testing.assert_allclose(encoded.x, expected, rtol=1e-6)
    assert encoded.feature_names == ("age", "job", "sex")
    assert not encoded.scale_columns.any()


def test_a_constant_column_becomes_zero_under_minmax(table):
    encoded = encode(table.assign(age=7), label="income", features=["age"], scaling="minmax")
    assert encoded.x.tolist() == [[0], [0], [0], [0]]


def test_sensitive_columns_are_inputs_only_when_asked(table):
    names = encode(table, label="income", sensitive="sex", sensitive_as_input=True).feature_names
    assert "sex=f" in names
    assert "sex=f" not in encode(table, label="income", sensitive="sex").feature_names


def test_intersections_are_named_and_the_privileged_group_comes_last(table):
    encoded = encode(table, label="income", sensitive=["sex", "region"], privileged="f & west")
    assert encoded.group_names == ("f & east", "m & west", "f & west")
    assert encoded.s.tolist() == [0, 1, 2, 1]


def test_groups_by_threshold_and_by_one_against_the_rest(table):
    old = Sensitive(column="age", threshold=40, below="young", at_least="old")
    encoded = encode(table, label="income", sensitive=old)
    assert (encoded.group_names, encoded.s.tolist()) == (("young", "old"), [0, 0, 1, 1])
    east = Sensitive(column="region", groups={"east": "East"}, other="elsewhere")
    encoded = encode(table, label="income", sensitive=east, privileged="East")
    assert (encoded.group_names, encoded.s.tolist()) == (("elsewhere", "East"), [1, 0, 0, 0])


def test_no_sensitive_column_means_one_group(table):
    encoded = encode(table, label="income")
    assert (encoded.group_names, encoded.s.tolist()) == (("all",), [0, 0, 0, 0])


def test_several_classes_and_regression(table):
    encoded = encode(table, label="age", features=["job"])
    assert (encoded.class_names, encoded.y.tolist()) == (("20", "30", "40", "60"), [0, 1, 2, 3])
    encoded = encode(table, label="age", features=["job"], task="regression", label_range=(20, 60))
    assert (encoded.class_names, encoded.y.dtype) == ((), np.float32)
    assert encoded.y.tolist() == [0, 0.25, 0.5, 1]
    encoded = encode(table, label="income", features=["age"], task="regression", positive="high")
    assert (encoded.y.dtype, encoded.y.tolist()) == (np.float32, [0, 1, 1, 0])


@pytest.mark.parametrize("dtype", ["str", "object", "category", "string"])
def test_every_text_dtype_gives_the_same(table, dtype):
    changed = table.astype(dict.fromkeys(["job", "sex", "region", "income"], dtype))
    plain = encode(table, label="income", sensitive="sex")
    other = encode(changed, label="income", sensitive="sex")
    assert other.feature_names == plain.feature_names
    np.testing.assert_array_equal(other.x, plain.x)
    np.testing.assert_array_equal(other.s, plain.s)


def test_nullable_and_boolean_columns_are_numbers(table):
    frame = table.assign(age=table["age"].astype("Int64"), flag=[True, False, True, True])
    encoded = encode(frame, label="income", features=["age", "flag"])
    assert encoded.x.tolist() == [[20, 1], [30, 0], [40, 1], [60, 1]]


def test_codes_mean_the_same_whether_read_as_integers_floats_or_text():
    frame = pd.DataFrame({"code": [1, 2, 10], "y": [0, 1, 1]})
    schema = infer(frame, label="y", categorical=["code"])
    assert schema.columns[0].categories == ("1", "2", "10")
    for values in ([1.0, 2.0, 10.0], ["1", "2", "10"]):
        np.testing.assert_array_equal(schema.encode(frame.assign(code=values)).x, np.eye(3))


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("dabc"),
            st.sampled_from(["x", "Y", "z z"]),
            st.integers(-(10**8), 10**8).map(lambda n: n / 1000),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_encoders_agree_with_scikit_learn(rows):
    frame = pd.DataFrame(rows, columns=["a", "b", "n"])
    frame["y"] = ["no", "yes"][:1] * len(frame)
    frame = pd.concat([frame, frame.assign(y="yes")], ignore_index=True)
    features = ["a", "b", "n"]
    onehot = encode(frame, label="y", features=features)
    expected = OneHotEncoder(sparse_output=False).fit_transform(frame[["a", "b"]].to_numpy(dtype=object))
    np.testing.assert_array_equal(onehot.x[:, :-1], expected)
    offset = onehot.schema.columns[-1].offset
    np.testing.assert_array_equal(onehot.x[:, -1], (frame["n"].to_numpy() - offset).astype(np.float32))
    plain = encode(frame, label="y", features=features, encoding="ordinal", scaling="none")
    codes = OrdinalEncoder().fit_transform(frame[["a", "b"]].to_numpy(dtype=object))
    np.testing.assert_array_equal(plain.x[:, :2], codes)
    scaled = encode(frame, label="y", features=features, encoding="ordinal", scaling="minmax")
    together = np.column_stack([codes, frame["n"]])
    np.testing.assert_allclose(scaled.x, MinMaxScaler().fit_transform(together), atol=1e-6)


def test_a_schema_survives_json_and_encodes_another_silo(table):
    schema = infer(table, label="income", positive="high", sensitive="sex", encoding="ordinal", scaling="minmax")
    again = Schema.from_json(schema.to_json())
    assert again == schema
    silo = table.iloc[[2]].assign(age=80)
    encoded = again.encode(silo)
    assert encoded.x.tolist() == [[1.5, 0.5, 1.0]]
    assert (encoded.y.tolist(), encoded.s.tolist()) == ([1], [0])
    assert encoded.group_names == ("f", "m")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": [{"name": "a", "kind": "numeric"}] * 2}, "'a' is listed twice"),
        ({"columns": [{"name": "a", "kind": "words"}]}, "columns.0.kind"),
        ({"columns": [{"name": "a", "kind": "categorical"}]}, "lists no categories"),
        ({"columns": [{"name": "income", "kind": "numeric"}]}, "also an input"),
        ({"classes": ["low"]}, "at least two classes"),
        ({"groups": []}, "at least one group"),
        ({"scaling": "minmax", "columns": [{"name": "a", "kind": "numeric"}]}, "low and high"),
        ({"label_range": [1, 1]}, "low < high"),
        ({"sensitive": [{"column": "a", "threshold": 1}]}, "go together"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_an_invalid_schema_is_refused(table, change, message):
    good = json.loads(infer(table, label="income", sensitive="sex").to_json())
    with pytest.raises(ConfigError, match=message):
        Schema.from_json(json.dumps(good | change))


def test_broken_json_is_refused():
    with pytest.raises(ConfigError, match="Not a valid schema"):
        Schema.from_json("{")


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"income": ["low", None, "high", "low"]}, ["Column 'income'", "row 11", "missing"]),
        ({"income": ["low", "high", "huge", "low"]}, ["Column 'income'", "row 12", "'huge'", "low, high"]),
        ({"age": [20, 30, np.nan, 60]}, ["Column 'age'", "row 12", "impute"]),
        ({"age": [20, 30, 40, np.inf]}, ["Column 'age'", "row 13", "infinite"]),
        ({"age": [20, 30, 40, 1e300]}, ["Column 'age'", "row 13", "too large"]),
        ({"age": [20, "old", 40, 60]}, ["Column 'age'", "row 11", "'old' is not a number"]),
        ({"job": ["nurse", "clerk", "pilot", None]}, ["Column 'job'", "row 12", "'pilot'", "clerk, nurse"]),
        ({"region": ["east", None, "west", "west"]}, ["Column 'region'", "row 11", "missing"]),
        ({"sex": ["f", "m", "x", "m"]}, ["Column 'sex'", "row 12", "'x'", "f, m"]),
    ],
)
def test_what_does_not_fit_the_schema_names_column_row_and_value(table, change, parts):
    schema = infer(table, label="income", positive="high", sensitive="sex")
    with pytest.raises(DataError) as caught:
        schema.encode(table.assign(**change))
    for part in parts:
        assert part in str(caught.value)


def test_an_unseen_intersection_is_named(table):
    schema = infer(table, label="income", sensitive=["sex", "region"])
    with pytest.raises(DataError, match=r"'sex & region', row 11: group 'm & east'"):
        schema.encode(table.assign(region=["east", "east", "west", "west"]))


def test_a_missing_column_is_named(table):
    schema = infer(table, label="income", sensitive="sex")
    with pytest.raises(DataError, match=r"'job': the column is missing. The table has: age, sex"):
        schema.encode(table.drop(columns="job"))
    with pytest.raises(DataError, match="'colour': the column is missing"):
        encode(table, label="income", sensitive="colour")


def test_a_repeated_column_is_refused(table):
    with pytest.raises(DataError, match="'age': the column appears 2 times"):
        encode(pd.concat([table, table["age"]], axis=1), label="income", features=["age"])


def test_inference_refuses_what_cannot_be_learnt(table):
    with pytest.raises(DataError, match="only one class, 'low'"):
        encode(table.assign(income="low"), label="income")
    with pytest.raises(DataError, match="no value at all"):
        encode(table.assign(income=None), label="income")
    with pytest.raises(DataError, match=r"no value 'huge'.*high, low"):
        encode(table, label="income", positive="huge")
    with pytest.raises(DataError, match="has 4 values"):
        encode(table, label="age", positive=20)
    with pytest.raises(DataError, match=r"privileged group 'x'.*f, m"):
        encode(table, label="income", sensitive="sex", privileged="x")
    with pytest.raises(DataError, match="no rows"):
        encode(table.iloc[:0], label="income")
    with pytest.raises(DataError, match="30 different numbers"):
        encode(pd.DataFrame({"a": range(30), "y": [0, 1] * 15}), label="y", sensitive="a")
    with pytest.raises(ConfigError, match="also an input"):
        encode(table, label="income", features=["income"])


def test_a_column_is_a_plain_value():
    assert Column(name="a", kind="numeric") == Column(name="a", kind="numeric")


# -- what inference must not guess -------------------------------------------------------------------------------------


def numbers(n: int = 200) -> pd.DataFrame:
    return pd.DataFrame({"a": np.linspace(0, 1, n), "y": np.arange(n) % 2})


@pytest.mark.parametrize("dtype", ["object", "str", "string"])
def test_a_bad_cell_does_not_turn_numbers_into_categories(dtype):
    frame = numbers().astype({"a": object})
    frame.loc[17, "a"] = "oops"
    frame["a"] = frame["a"].astype(dtype)
    with pytest.raises(DataError, match=r"Column 'a', row 17: 'oops' is not a number, but 199 of 200 values are"):
        encode(frame, label="y")
    with pytest.raises(DataError, match=r"Column 'a', row 17: 'oops' is not a number"):
        encode(frame.assign(b=1.0), label="a", features=["b"])
    # said to be categories, they are; so are numbers among which a tenth is text
    kinds = [
        infer(frame.iloc[:40].astype({"a": "category"}), label="y", features=["a"]),
        infer(frame.iloc[:40], label="y", categorical=["a"]),
        infer(frame.iloc[10:20], label="y"),
    ]
    assert [schema.columns[0].kind for schema in kinds] == ["categorical"] * 3


def test_objects_that_are_numbers_are_numbers_and_text_is_text():
    frame = pd.DataFrame({"a": [1, 2.5, 3, 4], "y": [0, 1, 0, 1]})
    for values in ([1, 2.5, 3, 4], ["1", 2.5, 3, 4]):
        encoded = encode(frame.assign(a=np.array(values, dtype=object)), label="y")
        np.testing.assert_array_equal(encoded.x, [[1], [2.5], [3], [4]])
    codes = encode(frame.assign(a=["01", "02", "02", "01"]), label="y")
    assert codes.feature_names == ("a=01", "a=02")
    truths = encode(frame.assign(a=np.array([True, None, False, True], dtype=object)), label="y")
    assert len(truths.feature_names) == 3


@pytest.mark.filterwarnings("error")
def test_time_stamps_keep_their_digits():
    stamps = 1.7e9 + np.arange(200.0)
    frame = pd.DataFrame({"time": stamps, "y": np.arange(200) % 2})
    assert len(np.unique(stamps.astype(np.float32))) < 5
    schema = Schema.from_json(infer(frame, label="y").to_json())
    x = np.concatenate([schema.encode(silo).x for silo in (frame.iloc[:50], frame.iloc[50:])])[:, 0]
    np.testing.assert_allclose(x - x[0], stamps - stamps[0], rtol=1e-6)
    near = infer(frame.assign(time=np.arange(200.0)), label="y")
    assert near.columns[0].offset == 0


def test_a_schema_without_an_offset_warns_of_lost_digits():
    schema = Schema(columns=(Column(name="time", kind="numeric"),), label="y", classes=("0", "1"))
    frame = pd.DataFrame({"time": 1.7e9 + np.arange(200.0), "y": np.arange(200) % 2})
    with pytest.warns(EquifedWarning, match="Column 'time' has values around 1.7e.09.*Subtract a constant"):
        schema.encode(frame)


def test_fractions_are_no_classes():
    frame = numbers().assign(y=lambda f: f["a"] / 3)
    for values in (frame, frame.astype({"y": object})):
        with pytest.raises(DataError, match=r"Column 'y', row 1: 0.0016\d+ is not .* Did you mean task='regression'"):
            encode(values, label="y")
    assert encode(frame, label="y", task="regression").y.dtype == np.float32
    assert encode(numbers().astype({"y": float}), label="y").class_names == ("0", "1")


def test_options_that_are_misspelt(table):
    with pytest.raises(ConfigError, match=r"Unknown task 'clasification'. Did you mean 'classification'"):
        encode(table, label="income", task="clasification")
    with pytest.raises(ConfigError, match=r"features must be a list.*\['age'\]"):
        encode(table, label="income", features="age")


def test_values_that_scaling_makes_too_large(table):
    schema = infer(table.assign(age=[0, 1e-9, 0, 0]), label="income", features=["age"], scaling="minmax")
    with pytest.raises(DataError, match="Column 'age', row 11: the value is too large after scaling"):
        schema.encode(table.assign(age=[0, 1e35, 0, 0]))
