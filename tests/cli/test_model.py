"""`equifed predict` and `equifed export`."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from store.silos import write_config

import equifed as ef


@pytest.fixture
def run(place: Path, invoke: Any) -> Path:
    """The folder of a finished run."""
    assert invoke("run", str(write_config(place, run={"rounds": 2})), "--json").exit_code == 0
    (folder,) = (path for path in (place / "runs").iterdir() if path.is_dir())
    rows = pd.read_csv(place / "silo-1.csv").drop(columns=["label", "sex"]).iloc[:, ::-1]
    rows.assign(key=[f"k{i}" for i in range(len(rows))]).to_csv(place / "rows.csv", index=False)
    return folder


def test_rows_are_scored_as_python_scores_them(run: Path, place: Path, invoke: Any) -> None:
    done = invoke(
        "predict", "latest", "rows.csv", "--out", "scored.csv", "--id", "key", "--keep", "a,key", "--seed", "3"
    )
    assert done.exit_code == 0, done.stderr
    as_written = dict.fromkeys(("probability of 0", "probability of 1"), str)  # read exactly, below
    scored, rows = pd.read_csv("scored.csv", dtype=as_written), pd.read_csv("rows.csv")
    assert list(scored) == ["key", "a", "probability of 0", "probability of 1", "decision"]
    model = ef.load_model(run, seed=3)
    expected = model.predict_proba(rows)
    np.testing.assert_array_equal(scored[list(as_written)].astype(np.float64), expected)
    assert scored["decision"].tolist() == model.predict(rows).tolist()
    assert scored["key"].tolist() == rows["key"].tolist()
    assert f"{len(rows)} rows scored" in done.stderr
    shutil.copytree(run / "model", place / "elsewhere")
    printed = invoke("predict", "elsewhere", "rows.csv", "--seed", "3")
    assert printed.stdout.splitlines()[0] == "row,probability of 0,probability of 1,decision"
    assert printed.stdout.splitlines()[1].split(",")[0] == "0"
    told = invoke("predict", "elsewhere", "rows.csv", "--out", "scored.parquet", "--json")
    about = json.loads(told.stdout)
    assert about["rows"] == len(rows) == sum(about["decisions"].values())
    assert len(pd.read_parquet("scored.parquet")) == len(rows)


def test_mistakes_are_named(run: Path, place: Path, invoke: Any) -> None:
    def refused(*arguments: str) -> str:
        done = invoke(*arguments)
        assert done.exit_code in (2, 3), done.output
        assert not done.stdout
        return " ".join(done.stderr.split())

    pd.read_csv("rows.csv").drop(columns="b").to_csv("short.csv", index=False)
    assert "short.csv: Column 'b': the column is missing" in refused("predict", "latest", "short.csv")
    assert "Unknown column 'nobody'" in refused("predict", "latest", "rows.csv", "--id", "nobody")
    assert "both want stdout" in refused("predict", "latest", "rows.csv", "--json")
    assert "must end in .csv or .parquet" in refused("predict", "latest", "rows.csv", "--out", "x.txt")
    assert "Unknown seed 8. Known: 0, 3." in refused("predict", "latest", "rows.csv", "--seed", "8")
    assert "nothing was swept" in refused("predict", "latest", "rows.csv", "--setting", "mu=1")
    assert "not of the form NAME=VALUE" in refused("predict", "latest", "rows.csv", "--setting", "mu")
    assert "Unknown client 'x'" in refused("predict", "latest", "rows.csv", "--client", "x")
    assert "There is no such file" in refused("predict", "latest", "nowhere.csv")
    assert "Give --onnx FILE.onnx" in refused("export", "latest")
    assert "is a folder" in refused("export", "latest", "--onnx", str(place))
    assert "There is no model in" in refused("predict", str(place), "rows.csv")


def test_a_model_that_was_lost_or_damaged_is_made_again(run: Path, invoke: Any) -> None:
    scored = invoke("predict", "latest", "rows.csv").stdout
    for harm in (lambda: shutil.rmtree(run / "model"), (run / "model" / "model.safetensors").unlink):
        harm()
        done = invoke("predict", "latest", "rows.csv")
        assert done.exit_code == 4
        assert re.search(r"model\.(json|safetensors) is missing", done.stderr)
        assert f"equifed resume {run.relative_to(Path.cwd())}" in " ".join(done.stderr.split())
        assert invoke("resume", run.name).exit_code == 0
        assert invoke("predict", "latest", "rows.csv").stdout == scored


def test_a_run_that_has_not_finished_has_no_model(run: Path, invoke: Any) -> None:
    from equifed.store import RunFolder

    shutil.rmtree(run / "model")
    RunFolder(run).set_status("interrupted")
    done = invoke("predict", "latest", "rows.csv")
    assert done.exit_code == 4
    assert "has no result: it stopped after round 2" in " ".join(done.stderr.split())


@pytest.mark.full
def test_programs_are_written_and_say_the_same(run: Path, invoke: Any) -> None:
    done = invoke("export", "latest", "--onnx", "model.onnx", "--torch", "model.pt2", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["columns"] == ["a", "b", "c"]
    rows, model = pd.read_csv("rows.csv"), ef.load_model(run)
    feed = {name: rows[name].to_numpy(np.float64) for name in ("a", "b", "c")}
    label, probabilities = onnxruntime.InferenceSession("model.onnx").run(["label", "probabilities"], feed)
    np.testing.assert_allclose(probabilities, model.predict_proba(rows), atol=1e-6)
    assert label.tolist() == model.predict(rows).tolist()
    assert model.schema is not None
    program = torch.export.load("model.pt2").module()
    found = program(torch.from_numpy(model.schema.inputs(rows))).detach().numpy()
    np.testing.assert_allclose(found, model.predict_proba(rows), atol=1e-6)


def test_the_page_on_models_keeps_its_word(run: Path, invoke: Any) -> None:
    """Its commands and its Python run as they stand there, on this run."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    table = pd.read_csv("silo-2.csv")
    table.assign(patient=table.index).drop(columns="label").to_csv("rows.csv", index=False)
    for line in re.findall(r"^equifed (.*)$", page, re.MULTILINE):
        done = invoke(*shlex.split(line, comments=True))
        assert done.exit_code == 0, done.output
    assert "patient" in pd.read_csv("scored.csv")
    names: dict[str, Any] = {"labels": table["label"]}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
    assert names["model"].predict(names["rows"]).tolist() == pd.read_csv("scored.csv")["decision"].tolist()
    listed = re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in (run / "model").iterdir())


# -- what goes into the file -------------------------------------------------------------------------------------------


FORMULAS = (
    '=HYPERLINK("http://evil.example";"x")',
    "=cmd|' /C calc'!A0",
    "+1+cmd",
    "-2+3",
    "@SUM(1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "\t5x",
)
PLAIN = ("-", "-1.5", "+2", "-1e9", "plain", "a=b", "'quoted", "a\r=1+1", "a\r\n=1+1")


@pytest.mark.parametrize("to_file", [True, False])
def test_no_cell_of_the_scored_rows_is_a_formula(run: Path, place: Path, invoke: Any, to_file: bool) -> None:
    cells = [*FORMULAS, *PLAIN]
    rows = pd.read_csv("rows.csv").iloc[: len(cells)].assign(key=cells, **{"=1+1": cells, "low": -1.5})
    rows.to_parquet("rows.parquet")
    options = ("--id", "key", "--keep", "=1+1,low")
    done = invoke("predict", "latest", "rows.parquet", *options, *(("--out", "scored.csv") if to_file else ()))
    assert done.exit_code == 0, done.stderr
    text = Path("scored.csv").read_text() if to_file else done.stdout
    header, *found = csv.reader(io.StringIO(text, newline=""))
    assert header[:3] == ["key", "'=1+1", "low"]
    expected = [re.sub("\r\n?", "\n", cell) for cell in (*(f"'{cell}" for cell in FORMULAS), *PLAIN)]
    assert [row[0] for row in found] == [row[1] for row in found] == expected
    assert {row[2] for row in found} == {"-1.5"}
    invoke("predict", "latest", "rows.parquet", *options, "--out", "scored.parquet")
    assert pd.read_parquet("scored.parquet")["key"].tolist() == cells  # which no spreadsheet carries out


def test_a_decision_that_is_called_like_a_formula_is_none_in_the_file(place: Path, invoke: Any) -> None:
    for k in range(4):
        silo = pd.read_csv(f"silo-{k}.csv")
        silo.assign(label=np.where(silo["label"] == 1, "=1+1", "-no")).to_csv(f"silo-{k}.csv", index=False)
    assert invoke("run", str(write_config(place, run={"rounds": 1})), "--json").exit_code == 0
    done = invoke("predict", "latest", "silo-1.csv")
    header, *found = csv.reader(io.StringIO(done.stdout))
    assert {row[header.index("decision")] for row in found} <= {"'=1+1", "'-no"}
    assert {"=1+1", "-no"} & set(ef.load_model("latest").predict(pd.read_csv("silo-1.csv")))


def test_every_writer_of_csv_files_takes_the_same_guard() -> None:
    """A new one has to, too, whether it writes by pandas or by Python's module."""
    source = Path(ef.__file__).parent
    writers = {
        path.relative_to(source).as_posix(): text
        for path in source.rglob("*.py")
        if re.search(r"\.to_csv\(|csv\.writer\(|csv\.DictWriter\(", text := path.read_text(encoding="utf-8"))
    }
    assert set(writers) == {"words.py"}
    assert all("csv_cell(" in text for text in writers.values())


# -- categories that the schema does not list --------------------------------------------------------------------------


def test_unknown_categories_are_counted_by_column(place: Path, invoke: Any) -> None:
    towns = {}
    for k in range(4):
        silo = pd.read_csv(f"silo-{k}.csv")
        silo["town"] = np.resize(["Bonn", "Ulm"], len(silo))
        silo["ward"] = np.resize(["x", "z", "x"], len(silo))
        silo.to_csv(f"silo-{k}.csv", index=False)
        towns[k] = silo
    assert invoke("run", str(write_config(place, run={"rounds": 1})), "--json").exit_code == 0
    new = towns[1].assign(town="Atlantis", key="k")
    new.loc[:3, "ward"], new.loc[4:5, "ward"] = "q", None
    new.to_csv("new.csv", index=False)
    done = invoke("predict", "latest", "new.csv", "--out", "scored.csv")
    assert done.exit_code == 0
    last = " ".join(done.stderr.splitlines()[-1].split())
    n = len(new)
    assert last == f"Categories that the model does not know: town in {n} of {n} rows, ward in 4 of {n} rows."
    facts = json.loads(invoke("predict", "latest", "new.csv", "--out", "scored.csv", "--json").stdout)
    assert facts["unknown_categories"] == {"town": n, "ward": 4}
    known = invoke("predict", "latest", "silo-1.csv", "--out", "scored.csv")
    assert "does not know" not in known.stderr
    facts = json.loads(invoke("predict", "latest", "silo-1.csv", "--out", "scored.csv", "--json").stdout)
    assert facts["unknown_categories"] == {}


def test_a_file_in_another_encoding_says_its_line(run: Path, place: Path, invoke: Any) -> None:
    lines = Path("rows.csv").read_text().splitlines()
    lines[6] = lines[6].replace("k5", "Kö5")
    Path("latin.csv").write_bytes("\n".join(lines).encode("latin-1"))
    done = invoke("predict", "latest", "latin.csv")
    assert done.exit_code == 3
    said = " ".join(done.stderr.split())
    assert "latin.csv: Line 7 is not UTF-8 (byte 0xf6): was the file saved as Latin-1 (Windows-1252)?" in said
    assert "iconv -f WINDOWS-1252 -t UTF-8" in said
