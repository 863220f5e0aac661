"""One model decides alike about equal rows, whatever format they come in and whatever format it was trained on."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import tomli_w
from own_data import federation_of
from typer.testing import CliRunner

import equifed as ef
from equifed.cli.app import app
from equifed.data import Schema
from equifed.flower.agreement import Setting
from equifed.results.onnx import to_onnx

QUICK: dict[str, Any] = {"rounds": 5, "seeds": [0], "local": ef.Local(batch_size=32, learning_rate=0.3)}
OPTIONS: dict[str, Any] = {"label": "outcome", "sensitive": "sex", "positive": "home"}


def rows(count: int, seed: int) -> pd.DataFrame:
    """With empty cells and words for missing values in a column that decides."""
    rng = np.random.default_rng(seed)
    ward = rng.choice(["", "x", "z", "NA", "None"], count)
    age = rng.normal(60, 12, count).round(1)
    risk = (age - 60) / 12 + 2.0 * np.isin(ward, ["", "NA"]) - (ward == "z") + rng.normal(size=count)
    frame = pd.DataFrame({"age": age, "ward": ward, "sex": rng.choice(["f", "m"], count)})
    return frame.assign(outcome=np.where(risk > 0.5, "home", "ward"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two silos and new rows, as CSV and as Parquet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EQUIFED_RUNS", raising=False)
    for number, name in enumerate(("north", "south", "new")):
        frame = rows(300 if name == "new" else 400, number)
        frame = frame.drop(columns="outcome") if name == "new" else frame
        frame.to_csv(f"{name}.csv", index=False)
        frame.to_parquet(f"{name}.parquet", index=False)
    return tmp_path


def invoke(*words: str) -> Any:
    done = CliRunner().invoke(app, list(words), env={"NO_COLOR": "1", "COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    return done


def run(first: str, second: str, na_values: list[str], **more: Any) -> None:
    data = {"files": {"north": first, "south": second}, "na-values": na_values, **OPTIONS, **more}
    local = {"learning-rate": 0.3, "batch-size": 32}
    sections = {"run": {"rounds": 5, "seeds": [0]}, "data": data, "local": local, "method": {"name": "fedavg"}}
    Path("experiment.toml").write_text(tomli_w.dumps(sections))
    invoke("run", "experiment.toml")


@pytest.mark.parametrize("na_values", [[], ["NA", "None"]])
@pytest.mark.parametrize(("first", "second"), [("csv", "csv"), ("csv", "parquet"), ("parquet", "parquet")])
@pytest.mark.sample(2)
def test_equal_rows_get_equal_decisions_from_every_format(
    first: str, second: str, na_values: list[str], place: Path
) -> None:
    run(f"north.{first}", f"south.{second}", na_values)
    for kind in ("csv", "parquet"):
        invoke("predict", "latest", f"new.{kind}", "--out", f"{kind}.csv")
    assert Path("csv.csv").read_bytes() == Path("parquet.csv").read_bytes()
    decided = pd.read_csv("csv.csv")["decision"].tolist()
    assert set(decided) == {"home", "ward"}

    model, frame = ef.load_model("latest"), rows(300, 2)
    assert model.schema is not None
    (ward,) = (column for column in model.schema.columns if column.name == "ward")
    listed = ("x", "z") if na_values else ("NA", "None", "x", "z")
    assert ward.categories == ("(missing)", *listed, "(other)")
    with open("new.csv", newline="") as file:
        records = [{**row, "age": float(row["age"])} for row in csv.DictReader(file)]
    given = {
        "a frame": frame,
        "a frame with null": frame.replace({"ward": {"": None}}),
        "a dictionary": {name: frame[name].tolist() for name in frame},
        "records": records,
        "an array": frame[["age", "ward"]].to_numpy(),
    }
    for name, each in given.items():
        assert model.predict(each).tolist() == decided, name

    session = onnxruntime.InferenceSession(to_onnx(model))
    feed = {"age": frame["age"].to_numpy(), "ward": frame["ward"].to_numpy(object)}  # as it is: "" and the words
    label, shares = session.run(["label", "probabilities"], feed)
    assert label.tolist() == decided
    np.testing.assert_allclose(shares, model.predict_proba(frame), atol=1e-6)


def test_the_schema_is_the_same_whichever_formats_the_silos_have(place: Path) -> None:
    options: dict[str, Any] = {**OPTIONS, "na_values": ["None"]}
    made = {
        (a, b): federation_of([f"north.{a}", f"south.{b}"], **options).schema
        for a in ("csv", "parquet")
        for b in ("csv", "parquet")
    }
    made["frames"] = federation_of({"north": rows(400, 0), "south": rows(400, 1)}, **options).schema  # type: ignore[index]
    first = next(iter(made.values()))
    assert first is not None
    assert first.na_values == ("None",)
    assert all(schema == first for schema in made.values())


def test_silos_of_a_federation_read_their_files_by_the_words_of_its_schema(place: Path) -> None:
    """By Flower: the schema and so the words are a part of what server and silos must agree on."""
    from equifed.federation.silo import from_one_place

    schema = federation_of(["north.csv", "south.parquet"], na_values=["NA"], **OPTIONS).schema
    assert schema is not None
    held = [
        from_one_place(["north"], schema, silo="north", file=f"north.{kind}", test=0.2) for kind in ("csv", "parquet")
    ]
    assert held[0].rows.x.tobytes() == held[1].rows.x.tobytes()
    start = schema.input_names.index("ward=(missing)")
    assert held[0].rows.x[:, start].sum() == rows(400, 0)["ward"].isin(["", "NA"]).sum()
    data = {"files": ["north.csv"], "schema": "schema.json"}
    digests = []
    for words in (("NA",), ()):
        Path("schema.json").write_text(schema.model_copy(update={"na_values": words}).to_json())
        Path("federation.toml").write_text(
            tomli_w.dumps({"run": {"seeds": [0]}, "data": data, "method": {"name": "fedavg"}})
        )
        digests.append(Setting.load(Path("federation.toml")).digest)
    assert digests[0] != digests[1]


def test_one_table_and_mapped_rows_are_read_by_the_same_rule(place: Path) -> None:
    frame = rows(400, 0).assign(site=np.where(np.arange(400) < 200, "a", "b"))
    frame.to_parquet("whole.parquet", index=False)
    frame.to_csv("whole.csv", index=False)
    expected = Schema.infer(frame, ef.Columns(**OPTIONS, na_values=["NA"], min_count=0, features=["age", "ward"]))
    (ward,) = (column for column in expected.columns if column.name == "ward")
    assert ward.categories == ("(missing)", "None", "x", "z")
    mapped = federation_of(
        "whole.parquet", client="site", features=["age", "ward"], na_values=["NA"], test=0.1, **OPTIONS
    )
    assert mapped.schema is not None
    assert mapped.schema.columns[1] == ward
    whole = mapped.in_memory()
    start = mapped.features.index("ward=(missing)")
    assert whole.rows.x[:, start].sum() == frame["ward"].isin(["", "NA"]).sum()
    data = {"table": "whole.csv", "na-values": ["NA"], **OPTIONS}
    partition = {"kind": "natural", "column": "site"}
    for source in ("whole.csv", "whole.parquet"):
        sections = {"data": data | {"table": source}, "method": {"name": "fedavg"}, "partition": partition}
        Path("table.toml").write_text(tomli_w.dumps(sections | {"run": {"rounds": 1, "seeds": [0]}}))
        invoke("run", "table.toml")
    first, second = (ef.load_model(ref) for ref in [str(path) for path in sorted(Path("runs").glob("2*"))])
    assert first.schema == second.schema


def test_a_row_without_its_client_is_refused_also_where_the_cell_is_an_empty_text(place: Path) -> None:
    frame = rows(60, 0).assign(site=np.where(np.arange(60) == 7, " ", "a"))
    frame.to_parquet("whole.parquet", index=False)
    with pytest.raises(ef.DataError, match="'site', row 7: the value is missing"):
        federation_of(frame, partition=ef.partition.Natural("site"), na_values=[], **OPTIONS)
    with pytest.raises(ef.DataError, match="'site', row 7: the value is missing"):
        federation_of("whole.parquet", client="site", na_values=[], **OPTIONS)


@pytest.mark.parametrize("kind", [object, str])
def test_an_empty_text_in_an_array_is_an_unknown_group_and_no_label(kind: type) -> None:
    """As in a table; None and "NA" are not the same there either."""
    frame = rows(200, 0).assign(race=lambda made: made["ward"].replace({"None": " "}))
    x, y, race = frame[["age"]].to_numpy(), (frame["outcome"] == "home").to_numpy(int), frame["race"].to_numpy(kind)
    fed = ef.Federation.from_xy(x, y, sensitive_features=race, partition=ef.partition.IID(2))
    assert fed.groups == ("NA", "x", "z")
    assert sum(fed.unknown_groups.values()) == frame["race"].str.strip().eq("").sum()
    crossed = ef.Federation.from_arrays([(x, y, np.stack([race, frame["sex"].to_numpy(kind)], 1))])
    assert sum(crossed.unknown_groups.values()) == frame["race"].str.strip().eq("").sum()
    labels = np.where(np.arange(200) == 3, "", frame["outcome"]).astype(kind)
    with pytest.raises(ef.DataError, match="labels have a missing value at row 3"):
        ef.Federation.from_arrays([(x, labels, y)])


def test_commands_about_files_count_the_same_cells_in_every_format(place: Path) -> None:
    said = {}
    for kind in ("csv", "parquet"):
        columns = ["--label", "outcome", "--sensitive", "sex", "--na-values", "NA,None"]
        described = invoke("data", "describe", f"north.{kind}", *columns, "--json").stdout
        summary = invoke("data", "summarise", f"north.{kind}", *columns, "--out", f"{kind}.json")
        invoke("data", "agree", f"{kind}.json", "--out", "schema.json")
        checked = invoke("data", "check", f"south.{kind}", "--schema", "schema.json").stdout
        shown = [described, Path(f"{kind}.json").read_text(), Path("schema.json").read_text(), checked, summary.stdout]
        said[kind] = [text.replace(f".{kind}", "") for text in shown]
    assert said["csv"] == said["parquet"]
    missing = int(rows(400, 0)["ward"].isin(["", "NA", "None"]).sum())
    assert f'"missing": {missing}' in said["csv"][0]


def test_a_schema_says_the_words_so_that_no_option_says_others(place: Path) -> None:
    schema = Schema.infer(rows(400, 0), ef.Columns(**OPTIONS, na_values=[]))
    Path("schema.json").write_text(schema.to_json())
    with pytest.raises(ef.ConfigError, match="na_values is not for tables with a schema"):
        federation_of(["north.csv"], schema=schema, na_values=["NA"])
    data = {"files": ["north.csv", "south.csv"], "schema": "schema.json", "na-values": ["NA"]}
    Path("bad.toml").write_text(tomli_w.dumps({"data": data, "method": {"name": "fedavg"}}))
    done = CliRunner().invoke(app, ["run", "bad.toml"], env={"NO_COLOR": "1", "COLUMNS": "160"})
    assert done.exit_code == 2
    assert "data.na-values" in done.stderr


@pytest.mark.parametrize("rule", ["impute", "refuse"])
def test_an_onnx_graph_knows_the_words_of_the_schema(rule: str, place: Path) -> None:
    frame = rows(400, 0).replace({"ward": {"": "x"}}) if rule == "refuse" else rows(400, 0)
    if rule == "impute":
        frame.loc[::9, "age"] = -9
    words = [-9, "NA"] if rule == "impute" else [-9]
    fed = federation_of(
        frame, **OPTIONS, partition=ef.partition.IID(2), features=["age", "ward"], na_values=words, missing=rule
    )
    model = ef.simulate(ef.methods.FedAvg(), fed, model=ef.models.Logistic(), **QUICK).model()
    session = onnxruntime.InferenceSession(to_onnx(model))
    new = rows(200, 5)
    new.loc[:49, "age"], new.loc[:9, "ward"] = -9, "unheard of"
    if rule == "impute":
        new.loc[10:29, "ward"] = "-9.0"
    feed = {"age": new["age"].to_numpy(), "ward": new["ward"].to_numpy(object)}
    label, shares = session.run(["label", "probabilities"], feed)
    if rule == "impute":
        assert label.tolist() == model.predict(new).tolist()
        np.testing.assert_allclose(shares, model.predict_proba(new), atol=1e-6)
        return
    refused = ((new["age"] == -9) | (new["ward"] == "")).to_numpy()
    assert 50 < refused.sum() < 150
    np.testing.assert_array_equal(np.isnan(shares).any(1), refused)
    assert label[~refused].tolist() == model.predict(new[~refused]).tolist()
    with pytest.raises(ef.DataError, match="the value is missing"):
        model.predict(new)


def test_a_federations_folder_has_the_words_in_its_schema(place: Path) -> None:
    options = ("--label", "outcome", "--sensitive", "sex", "--na-values", "NA,?", "--silos", "north,south")
    invoke("flower", "init", "hospitals", "--table", "north.csv", "--table", "south.parquet", *options)
    schema = Schema.from_json(Path("hospitals/app/schema.json").read_text())
    assert schema.na_values == ("?", "NA")
    done = CliRunner().invoke(app, ["flower", "init", "other", "--na-values", "NA"], env={"COLUMNS": "160"})
    assert done.exit_code == 2
    assert "--na-values" in done.stderr
