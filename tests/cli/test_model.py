"""`equifed predict` and `equifed export`."""

from __future__ import annotations

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
    scored, rows = pd.read_csv("scored.csv"), pd.read_csv("rows.csv")
    assert list(scored) == ["key", "a", "probability of 0", "probability of 1", "decision"]
    model = ef.load_model(run, seed=3)
    expected = model.predict_proba(rows)
    np.testing.assert_array_equal(scored[["probability of 0", "probability of 1"]].to_numpy(np.float32), expected)
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
