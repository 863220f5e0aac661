"""Somebody's own files on the command line: comparing on them, looking at them, agreeing on a schema."""

from __future__ import annotations

import json
import tomllib

import numpy as np
import pandas as pd
import pytest
from store.silos import write_config

from equifed import Columns
from equifed.data import Schema
from equifed.data.fit import misfits
from equifed.errors import DataError
from equifed.federation.reading import read_table

SMALL = ["--rounds", "2", "--seeds", "2"]
COLUMNS = ["--label", "ill", "--sensitive", "sex"]
SILOS = ("north", "south", "west")


def ward_rows(silo: int, rows: int = 120) -> pd.DataFrame:
    """Rows of a hospital, with all that makes them somebody's: names, ids, dates, gaps, a rare category."""
    rng = np.random.default_rng(silo)
    sex, age = rng.integers(0, 2, rows), rng.normal(55, 12, rows).round(1)
    ward = np.array(["A", "B", "C"])[rng.integers(0, 3, rows)].astype(object)
    ward[0] = f"Ward of silo {silo}"
    frame = pd.DataFrame(
        {
            "patient_id": np.arange(rows) + 1000 * silo,
            "name": [f"Person {rng.integers(10**9)}" for _ in range(rows)],
            "admitted": (pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 700, rows), "D")).astype(str),
            "age": age,
            "bp": rng.normal(130, 20, rows).round(),
            "ward": ward,
            "sex": np.where(sex, "f", "m"),
            "ill": np.where(age + 6 * sex + rng.normal(0, 6, rows) > 57, "yes", "no"),
        }
    )
    frame.loc[rng.random(rows) < 0.1, "bp"] = np.nan
    return frame


@pytest.fixture
def wards(place):
    (place / "wards").mkdir()
    for k, name in enumerate(SILOS):
        ward_rows(k).to_csv(place / "wards" / f"{name}.csv", index=False)
    return place


def found(outcome) -> dict:
    assert outcome.exit_code == 0, outcome.stderr
    return json.loads(outcome.stdout)


@pytest.mark.parametrize(
    "given",
    [
        ["--data", "wards/north.csv,wards/south.csv,wards/west.csv"],
        ["--data", "wards/north.csv", "--data", "wards/south.csv,west=wards/west.csv"],
        ["--data", "wards"],
    ],
    ids=["list", "repeated", "folder"],
)
@pytest.mark.sample(1)
def test_compare_on_own_files(wards, invoke, given):
    more = ["--positive", "yes", "--meaning", "is ill", "--methods", "fedavg,fedprox", "--json"]
    told = found(invoke("compare", *given, *COLUMNS, *more, *SMALL))
    assert told["data"] == "files"
    assert [each["method"] for each in told["methods"]] == ["fedavg", "fedprox"]
    (folder,) = (wards / "runs").glob("*-fedavg-*")
    data = tomllib.loads((folder / "config.toml").read_text())["data"]
    assert data["files"] == {name: f"../../wards/{name}.csv" for name in SILOS}
    assert (data["label"], data["positive"], data["meaning"]) == ("ill", "yes", "is ill")
    schema = Schema.from_json((folder / "model" / "schema.json").read_text())
    assert [column.name for column in schema.columns] == ["age", "bp", "ward"]
    again = found(invoke("run", str(folder / "config.toml"), "--json"))
    assert again["metrics"]["accuracy"] == told["methods"][0]["metrics"]["accuracy"]


def test_options_about_columns(wards, invoke):
    options = [
        "--drop",
        "ward",
        "--date",
        "admitted=year,month",
        "--missing",
        "drop",
        "--min-count",
        "5",
        "--test",
        "0.3",
    ]
    made = found(
        invoke(
            "sweep", "--data", "wards", *COLUMNS, *options, "--method", "fedprox", "--over", "mu=0,1", *SMALL, "--json"
        )
    )
    assert made["runs"] == 4
    (folder,) = (wards / "runs").glob("*-fedprox-*")
    data = tomllib.loads((folder / "config.toml").read_text())["data"]
    assert data["dates"] == {"admitted": ["year", "month"]}
    assert (data["drop"], data["missing"], data["min-count"], data["test"]) == (["ward"], "drop", 5, 0.3)
    schema = Schema.from_json((folder / "model" / "schema.json").read_text())
    assert schema.input_names == ("admitted (year)", "admitted (month)", "age", "bp")


def test_one_table_and_a_partition(wards, invoke):
    whole = pd.concat([ward_rows(k).assign(hospital=name) for k, name in enumerate(SILOS)])
    whole.to_parquet(wards / "all.parquet")
    natural = ["--partition", "natural", "--by", "hospital"]
    told = invoke("compare", "--data", "all.parquet", *COLUMNS, *natural, "--methods", "fedavg", *SMALL)
    assert told.exit_code == 0, told.stderr
    assert "all: 3 clients, all per round" in told.stdout
    assert "partition natural" in told.stdout
    (folder,) = (wards / "runs").glob("*-fedavg-*")
    assert tomllib.loads((folder / "config.toml").read_text())["data"]["table"] == "../../all.parquet"
    assert list(json.loads((folder / "data.json").read_text())["files"]) == ["all"]


def test_a_target_is_sought_on_own_files_and_goes_on(wards, invoke):
    command = ["sweep", "--data", "wards", *COLUMNS, "--method", "fedprox+fair", "--target"]
    command = [*command, "demographic_parity_difference <= 0.9", "--steps", "1", "--at-once", "2", *SMALL, "--json"]
    first = found(invoke(*command))
    assert found(invoke(*command))["runs"] == first["runs"]


def test_run_takes_other_files_than_its_own(wards, invoke):
    path = write_config(wards, run={"rounds": 2, "seeds": [0, 3], "clients-per-round": "all"})
    outcome = invoke("run", str(path), "--data", "wards", *COLUMNS, "--json")
    assert found(outcome)["seeds"] == [0, 3]
    (folder,) = (wards / "runs").glob("*-fedavg-*")
    assert sorted(tomllib.loads((folder / "config.toml").read_text())["data"]["files"]) == sorted(SILOS)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "Which data? Name a data set of `equifed data list`, or give your own files: --data"),
        (["adult", "--data", "wards"], "The data set 'adult' and --data are both given"),
        (["wards/north.csv"], "'wards/north.csv' is no data set but a file or a folder. Give it as --data"),
        (["--data", "wards"], "--schema: Files need a schema, or a label and a sensitive column"),
        (["--data", "wards/north.csv", *COLUMNS], "--partition: One table needs a partition"),
        (["--data", "wards", *COLUMNS, "--partition", "iid"], "--partition: The files already say"),
        (["--data", "wards,wards/north.csv", *COLUMNS], "'wards' is a folder. Give one folder, or files"),
        (["--data", "a/x.csv,b/x.csv", *COLUMNS], "Two files are called 'x'. Name the clients: --data north=FILE"),
        (["--data", "runs", *COLUMNS], "--data: 'runs' has no file of a client"),
        (["--data", "wards", *COLUMNS, "--date", "admitted"], "--date 'admitted' is not of the form COLUMN=PARTS"),
        (
            ["--data", "wards", *COLUMNS, "--date", "admitted=yaer"],
            "Unknown part of a date 'yaer'. Did you mean 'year'?",
        ),
        (["--data", "wards", *COLUMNS, "--missing", "guess"], "--missing: Unknown rule for missing values 'guess'"),
        (["--data", "wards", *COLUMNS, "--drop", "wrd"], "--drop: Unknown column 'wrd'. Did you mean 'ward'?"),
        (["--data", "wards", *COLUMNS, "--test", "2"], "--test: must be below 1.0, got 2.0"),
        (["adult", "--label", "x"], "--label: The section has both a name and label; those belong to files"),
    ],
)
def test_mistakes_name_the_option(wards, invoke, args, said):
    (wards / "runs").mkdir()
    outcome = invoke("compare", *args, "--methods", "fedavg", *SMALL)
    assert outcome.exit_code == 2, outcome.stderr
    assert said in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_describe_counts_as_pandas_does(wards, invoke):
    whole = pd.concat([read_table(wards / "wards" / f"{name}.csv") for name in SILOS])
    told = found(invoke("data", "describe", "wards", *COLUMNS, "--json"))
    for each in told["columns"]:
        assert (each["rows"], each["missing"]) == (len(whole), int(whole[each["name"]].isna().sum()))
        assert each["distinct"] == whole[each["name"]].nunique()
    for file, name in zip(told["files"], SILOS, strict=True):
        own = read_table(wards / "wards" / f"{name}.csv")
        assert file["labels"] == own["ill"].value_counts().sort_index().to_dict()
        assert file["groups"] == {"sex": own["sex"].value_counts().sort_index().to_dict()}
    assert {each["name"]: each["use"] for each in told["columns"]} == {
        **dict.fromkeys(("patient_id", "name", "admitted"), "left out"),
        **dict.fromkeys(("age", "bp", "ward"), "input"),
        "sex": "sensitive",
        "ill": "label",
    }
    outcome = invoke("data", "describe", "wards")
    assert "left out: an identifier" in outcome.stdout
    assert "Person" not in outcome.stdout
    assert "Ward of silo" not in outcome.stdout
    assert "Give --label and --sensitive" in outcome.stderr


def test_silos_agree_on_a_schema_and_check_their_files(wards, invoke):
    for name in SILOS[:2]:
        outcome = invoke("data", "summarise", f"wards/{name}.csv", *COLUMNS, "--out", f"{name}.json")
        assert outcome.exit_code == 0, outcome.stderr
        shipped = (wards / f"{name}.json").read_text()
        assert "Person" not in shipped
        assert "Ward of silo" not in shipped
        assert "2024-" not in shipped
    outcome = invoke("data", "agree", "north.json", "south.json", "--positive", "yes", "--out", "schema.json")
    assert outcome.exit_code == 0, outcome.stderr
    assert "patient_id is left out: an identifier" in outcome.stderr
    assert Schema.from_json((wards / "schema.json").read_text()).classes == ("no", "yes")
    fine = found(invoke("data", "check", "wards", "--schema", "schema.json", "--json"))
    assert [each["fits"] for each in fine["files"]] == [True, True, True]
    odd = ward_rows(5).rename(columns={"bp": "b_p"}).astype({"age": object})
    odd.loc[2, "age"], odd.loc[:3, "ill"], odd.loc[7, "ill"] = "old", "maybe", None
    odd.to_csv(wards / "odd.csv", index=False)
    outcome = invoke("data", "check", "wards/north.csv", "odd.csv", "no.csv", "--schema", "schema.json")
    assert outcome.exit_code == 3
    for said in (
        "north.csv (120 rows): fits",
        "odd.csv (120 rows): does not fit",
        "- bp: the column is missing. Is it 'b_p'?",
        "- age: 1 of 120 rows hold no number: 'old' in row 2",
        "- ill: 1 of 120 rows have no label.",
        "- ill: 1 labels, of 4 rows, are not in the schema. Known: no, yes.",
        "no.csv: does not fit",
    ):
        assert said in outcome.stdout
    assert "2 of 3 files cannot be used with schema.json: odd.csv, no.csv" in outcome.stderr
    compared = invoke("compare", "--data", "wards", "--schema", "schema.json", "--methods", "fedavg", *SMALL)
    assert compared.exit_code == 0, compared.stderr


def _mutations(rng: np.random.Generator):
    """Tables that are wrong, or only odd, in one way or two."""
    base = ward_rows(9, 60)
    changes = [
        lambda frame, column: frame.drop(columns=column),
        lambda frame, column: frame.assign(**{column: None}),
        lambda frame, column: frame.astype({column: object}).assign(**{column: "???"}),
        lambda frame, column: frame.assign(**{column: frame[column].where(rng.random(len(frame)) < 0.8)}),
        lambda frame, column: frame.rename(columns={column: column.upper()}),
        lambda frame, column: frame.assign(**{column: frame[column].sample(frac=1, random_state=1).to_numpy()}),
        lambda frame, column: frame.assign(**{column: np.inf}),
        lambda frame, column: frame.iloc[:0],
    ]
    for _ in range(60):
        frame = base
        for column in rng.choice(base.columns, rng.integers(1, 3), replace=False):
            frame = changes[rng.integers(len(changes))](frame, column) if column in frame.columns else frame
        yield frame


@pytest.mark.filterwarnings("ignore::equifed.errors.EquifedWarning")
@pytest.mark.parametrize("options", [{}, {"min_count": 0, "missing": "refuse"}, {"missing": "drop"}], ids=str)
def test_a_table_fits_exactly_if_it_can_be_encoded(options):
    whole = ward_rows(0).dropna() if options.get("missing") == "refuse" else ward_rows(0)
    schema = Schema.infer(whole, Columns(label="ill", sensitive="sex", dates={"admitted": ["year"]}, **options))
    for frame in _mutations(np.random.default_rng(1)):
        try:
            schema.encode(frame)
            fits = True
        except DataError:
            fits = False
        problems = misfits(schema, frame)
        assert fits == (not any(each.refused for each in problems)), problems
