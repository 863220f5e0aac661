"""Which cells are missing: one rule for every format and for frames, stored in the schema."""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

import equifed as ef
from equifed.data import Schema, agree, summarise
from equifed.data.fit import misfits
from equifed.data.missing import check_na_values, with_missing
from equifed.federation.reading import read_table

BEFORE = (
    *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"),
    *("NULL", "NaN", "None", "n/a", "nan", "null"),
)
"""What pandas 3 takes for missing in a CSV file, in addition to an empty cell."""


def table(rows: int = 120) -> pd.DataFrame:
    """Texts with empty and blank cells, and with words that mean something: Namibia, no insurance."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.normal(50, 9, rows).round(1),
            "ward": rng.choice(["x", "z", "", "  "], rows),
            "country": rng.choice(["NA", "DE", ""], rows),
            "insurance": rng.choice(["None", "public"], rows),
            "sex": rng.choice(["f", "m"], rows),
        }
    )
    return frame.assign(outcome=np.where(rng.random(rows) + (frame["ward"] == "x") > 0.8, "yes", "no"))


def write_csv(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_csv(path.with_suffix(".csv"), index=False)
    return path.with_suffix(".csv")


def write_packed(frame: pd.DataFrame, path: Path) -> Path:
    with gzip.open(path.with_suffix(".csv.gz"), "wt") as file:
        frame.to_csv(file, index=False)
    return path.with_suffix(".csv.gz")


def write_parquet(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_parquet(path.with_suffix(".parquet"), index=False)
    return path.with_suffix(".parquet")


def write_arrow(frame: pd.DataFrame, path: Path) -> Path:
    made = pa.Table.from_pandas(frame)
    with pa.OSFile(str(path.with_suffix(".arrow")), "wb") as file, pa.ipc.new_file(file, made.schema) as writer:
        writer.write_table(made)
    return path.with_suffix(".arrow")


def write_categories(frame: pd.DataFrame, path: Path) -> Path:
    texts = {name: frame[name].astype("category") for name in frame if frame[name].dtype != float}
    return write_parquet(frame.assign(**texts), path)


WRITERS = [write_csv, write_packed, write_parquet, write_arrow, write_categories]
Write = Callable[[pd.DataFrame, Path], Path]


def infer(frame: pd.DataFrame, **options: Any) -> Schema:
    given: dict[str, Any] = {"label": "outcome", "sensitive": "sex", "positive": "yes", "na_values": []}
    return Schema.infer(frame, ef.Columns(**{**given, **options}))


def categories(schema: Schema) -> dict[str, tuple[str, ...]]:
    return {column.name: column.categories for column in schema.columns if column.kind == "categorical"}


@pytest.mark.parametrize("write", WRITERS)
def test_a_file_of_any_format_gives_the_schema_and_the_inputs_of_the_frame(write: Write, tmp_path: Path) -> None:
    frame = table()
    schema = infer(frame)
    assert categories(schema) == {
        "ward": ("(missing)", "x", "z", "(other)"),
        "country": ("(missing)", "DE", "NA", "(other)"),
        "insurance": ("None", "public", "(other)"),
    }
    read = read_table(write(frame, tmp_path / "silo"))
    assert infer(read) == schema
    x = schema.inputs(read)
    np.testing.assert_array_equal(x, schema.inputs(frame))
    # by hand: blank is the first category of ward, NA is the third one of country
    start = schema.input_names.index("ward=(missing)")
    np.testing.assert_array_equal(x[:, start], frame["ward"].str.strip() == "")
    np.testing.assert_array_equal(x[:, schema.input_names.index("country=NA")], frame["country"] == "NA")


@pytest.mark.parametrize("write", WRITERS)
def test_words_of_the_schema_are_missing_in_any_format(write: Write, tmp_path: Path) -> None:
    frame = table()
    frame.loc[:29, "ward"] = " NA "
    schema = infer(frame, na_values=["NA", "None"])
    assert schema.na_values == ("NA", "None")
    assert categories(schema)["country"] == ("(missing)", "DE", "(other)")
    assert Schema.from_json(schema.to_json()) == schema
    read = read_table(write(frame, tmp_path / "silo"), schema.na_values)
    np.testing.assert_array_equal(schema.inputs(read), schema.inputs(frame))
    gone = (frame["ward"].str.strip().isin(["", "NA"])).to_numpy()
    for rows in (read, frame):
        assert np.array_equal(schema.inputs(rows)[:, schema.input_names.index("ward=(missing)")], gone)
    assert read["insurance"].isna().tolist() == (frame["insurance"] == "None").tolist()


def test_a_word_that_is_a_number_is_missing_in_number_columns_of_any_format(tmp_path: Path) -> None:
    frame = table().assign(weight=np.arange(120) % 7 + 60.5)
    frame.loc[5:44, "weight"] = -9
    schema = infer(frame, na_values=[-9, "?"])
    (weight,) = (column for column in schema.columns if column.name == "weight")
    known = frame["weight"].drop(range(5, 45))
    assert weight.indicator
    assert weight.fill == pytest.approx(known.median(), abs=0.6)
    x = schema.inputs(frame)
    np.testing.assert_array_equal(np.flatnonzero(x[:, schema.input_names.index("weight (missing)")]), np.arange(5, 45))
    for write in WRITERS:
        np.testing.assert_array_equal(schema.inputs(read_table(write(frame, tmp_path / "a"), schema.na_values)), x)


@pytest.mark.parametrize(
    ("cells", "word", "missing"),
    [
        (["a", "-9.0", "-9", "b", " -9.00 "], -9, [1, 2, 4]),
        (["-9.0", "-9", "1", "2", "3"], -9, [0, 1]),
        (["007", "7", "8", "x", "70"], "7", [0, 1]),
        (["1_0", "10", "x", "1e1", "y"], "10", [1, 3]),
        ([True, False, True, False, True], "False", [1, 3]),
        ([True, False, True, False, True], "true", [0, 2, 4]),
        (["true", "TRUE", "no", "x", "True"], "True", [0, 1, 4]),
        ([True, False, True, False, True], "0", []),
        (["inf", "1", "2", "-inf", "3"], "inf", [0]),
    ],
)
def test_a_number_or_a_truth_value_means_the_same_however_it_is_written(
    cells: list[Any], word: str | int, missing: list[int], tmp_path: Path
) -> None:
    frame = pd.DataFrame({"cell": cells, "row": range(len(cells))})
    words = check_na_values([word])
    tables = {write.__name__: read_table(write(frame, tmp_path / "a"), words) for write in WRITERS}
    tables["frame"] = with_missing(frame, words)
    tables["objects"] = with_missing(frame.astype(object), words)
    for name, read in tables.items():
        assert np.flatnonzero(read["cell"].isna()).tolist() == missing, name


def test_a_number_column_of_a_csv_file_stays_one_whatever_blanks_and_words_are_in_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,n,t\n1.5,1,x\n  ,2,NA\n NA,,y\n4,?,\n")
    read = read_table(tmp_path / "a.csv", ["NA", "?"])
    assert read["age"].dtype == read["n"].dtype == np.float64
    np.testing.assert_array_equal(read["age"], [1.5, np.nan, np.nan, 4])
    np.testing.assert_array_equal(read["n"], [1, 2, np.nan, np.nan])
    assert read["t"].isna().tolist() == [False, True, False, True]


def test_a_code_is_the_same_text_in_every_part_of_a_long_file(tmp_path: Path) -> None:
    """A parser that reads pieces takes 007 for a number in those that have numbers only."""
    codes = ["007"] * 300_000 + ["x7"]
    (tmp_path / "a.csv").write_text("code,more\n" + "".join(f"{code},1\n" for code in codes))
    assert set(read_table(tmp_path / "a.csv")["code"]) == {"007", "x7"}


def test_columns_may_be_named_by_numbers() -> None:
    frame = pd.DataFrame([["x", -9], ["", 1]])
    assert with_missing(frame, ["-9"]).isna().to_numpy().tolist() == [[False, True], [True, False]]
    assert frame.to_numpy().tolist() == [["x", -9], ["", 1]]


# -- words that are not listed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.03, 0.4])
@pytest.mark.parametrize("column", ["age", "outcome", "sex"])
def test_a_word_among_numbers_is_asked_about_and_never_makes_categories_of_them(
    share: float, column: str, tmp_path: Path
) -> None:
    frame = table(200).assign(outcome=lambda made: (made["outcome"] == "yes").astype(int))
    frame["sex"] = (frame["sex"] == "f").astype(int)
    texts = frame[column].astype(str)
    frame[column] = texts.where(np.arange(200) >= 200 * share, "NA")
    read = read_table(write_csv(frame, tmp_path / "a"))
    count = int(200 * share)
    with pytest.raises(ef.DataError) as raised:
        infer(read, positive=1, na_values=None)
    assert f"{count} cells 'NA' stand among {200 - count} numbers" in str(raised.value)
    assert f"{column!r}, row 0" in str(raised.value)
    assert "na_values = ['NA']" in str(raised.value)
    assert "--na-values" in str(raised.value)


def test_a_word_among_dates_is_asked_about(tmp_path: Path) -> None:
    days = pd.Series([f"2024-{number % 12 + 1:02d}-01" for number in range(120)])
    frame = table().assign(admitted=days.where(np.arange(120) % 10 > 0, "None"))
    read = read_table(write_csv(frame, tmp_path / "a"))
    for options in ({"dates": {"admitted": ["month"]}}, {}):  # without, they would be 13 categories
        with pytest.raises(ef.DataError, match="'admitted', row 0: 12 cells 'None' stand among dates"):
            infer(read, **options)
    schema = infer(read, dates={"admitted": ["month"]}, na_values=["None"])
    assert [column.indicator for column in schema.columns if column.kind == "date"] == [True]


def test_words_that_count_as_values_are_said_once_and_an_empty_list_says_that_they_are() -> None:
    with pytest.warns(ef.EquifedWarning) as said:
        schema = infer(table(), na_values=None)
    (text,) = (str(each.message) for each in said)
    frame = table()
    assert f"'NA' in 'country' ({(frame['country'] == 'NA').sum()} rows)" in text
    assert f"'None' in 'insurance' ({(frame['insurance'] == 'None').sum()} rows)" in text
    assert "na_values = []" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert infer(table(), na_values=[]) == schema


def test_a_value_that_does_not_fit_says_that_it_may_be_a_missing_one() -> None:
    schema = infer(table(), min_count=0)
    with pytest.raises(ef.DataError, match=r"'NA' is not a number\. If that means that the value is missing"):
        schema.inputs(table().astype({"age": object}).assign(age="NA"))
    with pytest.raises(ef.DataError, match=r"'\?' is not a known category.*na_values = \['\?'\]"):
        schema.inputs(table().assign(insurance="?"))
    with pytest.raises(ef.DataError, match="'abc' is not a number") as raised:
        schema.inputs(table().astype({"age": object}).assign(age="abc"))
    assert "na_values" not in str(raised.value)


@pytest.mark.parametrize("given", ["NA", 7, [None], [True], [["NA"]]])
def test_na_values_are_a_list_of_texts_or_numbers(given: Any) -> None:
    with pytest.raises(ef.ConfigError, match="na_values must"):
        infer(table(), na_values=given)


# -- in schemas and summaries ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", " ", "NA"])
@pytest.mark.parametrize("place", ["category", "class", "group"])
def test_a_schema_cannot_list_a_missing_cell_as_a_value(value: str, place: str) -> None:
    made = json.loads(infer(table(), na_values=["NA", "?"]).to_json())
    if place == "category":
        made["columns"][-1]["categories"] += [value]
    elif place == "class":
        made["classes"] += [value]
    else:
        made["sensitive"][0]["groups"] |= {value: "none"}
    with pytest.raises(ef.ConfigError, match=r"Not a valid schema: .* make the schema again"):
        Schema.from_json(json.dumps(made))


def test_a_schema_from_before_keeps_the_words_that_its_csv_files_were_read_by(tmp_path: Path) -> None:
    frame = table().assign(country=lambda made: made["country"].replace("NA", "AT"), insurance="public")
    made = json.loads(infer(frame).to_json())
    assert made.pop("na_values") == []
    old = Schema.from_json(json.dumps(made))
    assert set(old.na_values) == set(BEFORE)
    assert Schema.from_json(old.to_json()) == old
    assert old.model_dump(exclude={"na_values"}) == infer(frame).model_dump(exclude={"na_values"})
    rows = frame.assign(ward=np.resize([*BEFORE, "x"], len(frame)))
    for write in WRITERS:
        x = old.inputs(read_table(write(rows, tmp_path / "a"), old.na_values))
        np.testing.assert_array_equal(x[:, old.input_names.index("ward=(missing)")], rows["ward"] != "x")


def test_a_schema_from_before_that_lists_such_a_word_keeps_it_as_a_value() -> None:
    """Its tables were Parquet files or frames, where NA was a category."""
    made = json.loads(infer(table()).to_json())
    del made["na_values"]
    old = Schema.from_json(json.dumps(made))
    assert set(BEFORE) - set(old.na_values) == {"NA", "None"}
    np.testing.assert_array_equal(old.inputs(table()), infer(table()).inputs(table()))


@pytest.mark.parametrize("blank", ["", " "])
def test_a_schema_from_before_with_a_category_of_empty_cells_codes_them_as_it_did(blank: str) -> None:
    frame = pd.DataFrame({"ward": np.resize(["x", "", "z"], 60), "sex": np.resize(["f", "m"], 60)})
    frame["outcome"] = np.resize(["yes", "no", "no"], 60)
    old = {
        "columns": [{"name": "ward", "kind": "categorical", "categories": ["a", blank, "x", "z"]}],
        "label": "outcome",
        "classes": ["no", "yes"],
        "sensitive": [{"column": "sex", "groups": {"f": "f", "m": "m"}}],
        "groups": ["f", "m"],
    }
    with pytest.warns(ef.EquifedWarning, match=r"a category of them in 'ward'.*null.* train again"):
        schema = Schema.from_json(json.dumps(old))
    expected = np.array([frame["ward"] == value for value in ("a", "", "x", "z")]).T  # as it was trained
    for rows in (frame.replace({"ward": {"": blank}}), frame.replace({"ward": {"": None}})):
        np.testing.assert_array_equal(schema.inputs(rows), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Schema.from_json(schema.to_json()) == schema


@pytest.mark.parametrize("place", ["two categories", "class", "group"])
def test_a_schema_from_before_whose_empty_cells_have_lost_their_meaning_says_to_train_again(place: str) -> None:
    made = json.loads(infer(table()).to_json())
    del made["na_values"]
    if place == "two categories":
        column = next(column for column in made["columns"] if "(missing)" in column.get("categories", []))
        column["categories"] += [""]
    elif place == "class":
        made["classes"] += [""]
    else:
        made["sensitive"][0]["groups"] |= {"": "none"}
    with pytest.raises(ef.ConfigError, match="train again, or open it with the version that wrote it"):
        Schema.from_json(json.dumps(made))


@pytest.mark.parametrize("part", ["columns", "classes", "sensitive", "na_values"])
@pytest.mark.parametrize("value", [5, None, "x", [3], [None], [{"categories": 5, "groups": 5, "name": 1}], {"a": 1}])
def test_a_schema_with_anything_in_it_is_refused_by_name(part: str, value: Any) -> None:
    made = json.loads(infer(table()).to_json())
    del made["na_values"]
    with pytest.raises(ef.ConfigError, match=rf"Not a valid schema: {part}"):
        Schema.from_json(json.dumps({**made, part: value}))


def test_silos_with_other_words_do_not_agree() -> None:
    asked: dict[str, Any] = {"label": "outcome", "sensitive": "sex"}
    one = summarise(table(), ef.Columns(na_values=["NA"], **asked), name="one")
    with pytest.raises(ef.ConfigError, match="made with other options than one: na_values"):
        agree([one, summarise(table(), ef.Columns(na_values=[], **asked), name="two")])
    before = json.loads(summarise(table(), ef.Columns(na_values=["NA"], **asked), name="old").to_json())
    del before["asked"]["na_values"]
    with pytest.raises(ef.ConfigError, match="na_values"):
        agree([one, type(one).from_json(json.dumps(before))])
    assert agree([one, summarise(table(), ef.Columns(na_values=["NA", " NA "], **asked), name="two")]).na_values == (
        "NA",
    )


def test_checking_a_table_counts_the_same_cells() -> None:
    frame = table()
    found = {each.column: each.text for each in misfits(infer(frame, na_values=["None"]), frame)}
    blank, none = int((frame["ward"].str.strip() == "").sum()), int((frame["insurance"] == "None").sum())
    assert found["ward"] == f"{blank} of 120 rows have no value (category)."
    assert found["insurance"] == f"{none} of 120 rows have no value (category)."


# -- files that are not text in UTF-8 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_is_not_utf_8_is_refused_with_its_line_and_how_to_convert_it(packed: bool, tmp_path: Path) -> None:
    content = "age,town\n1,Köln\n2,Bonn\n".encode("latin-1")
    path = tmp_path / ("a.csv.gz" if packed else "a.csv")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(ef.DataError) as raised:
        read_table(path)
    text = str(raised.value)
    assert "Line 2 is not UTF-8 (byte 0xf6): was the file saved as Latin-1" in text
    assert "iconv -f WINDOWS-1252 -t UTF-8" in text
    path.write_bytes(
        gzip.compress(b"a,b\n" + b"1,2\n" * 40_000 + b"1,\xfc\n") if packed else b"a,b\n1,2\n" * 3 + b"\xfc"
    )
    with pytest.raises(ef.DataError, match="Line 40,002 " if packed else "Line 7 "):
        read_table(path)
    wide = "age,town\n1,Bonn\n".encode("utf-16")
    path.write_bytes(gzip.compress(wide) if packed else wide)
    with pytest.raises(ef.DataError, match=r"UTF-16, not UTF-8\. .*iconv -f UTF-16"):
        read_table(path)


def test_a_parquet_file_with_texts_that_are_not_utf_8_is_refused_by_name(tmp_path: Path) -> None:
    content = [b"Bonn", "Köln".encode("latin-1")]
    offsets = pa.py_buffer(np.array([0, 4, 8], dtype=np.int32).tobytes())
    towns = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"".join(content)))
    parquet.write_table(pa.table({"town": towns, "n": [1, 2]}), tmp_path / "north.parquet")
    with pytest.raises(ef.DataError, match=r"north\.parquet: A column of texts has a value that is not UTF-8 .*0xf6"):
        read_table(tmp_path / "north.parquet")
