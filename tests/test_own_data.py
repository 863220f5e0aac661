"""The whole way from silos' own files to a model in use, by the commands of docs/tutorials/own-data.md: what comes out
is right, and nothing that names a person left a silo."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flower.inprocess import Nodes, federate
from flwr.app import Message, RecordDict
from own_data import private_texts, tables, write
from typer.testing import CliRunner

import equifed as ef
from equifed.cli.app import app
from equifed.flower.agreement import Setting
from equifed.flower.silo import SiloApp

TUTORIAL = (Path(__file__).parents[1] / "docs" / "tutorials" / "own-data.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", TUTORIAL, flags=re.M | re.S)
COMMANDS = [shlex.split(line) for block in BLOCKS for line in block.splitlines()]
MONTHS = 4


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the tutorial begins with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EQUIFED_RUNS", raising=False)
    write(tmp_path)
    new_patients().to_csv("new.csv", index=False)
    decisions().to_csv("decisions.csv", index=False)
    (tmp_path / "counts").mkdir()
    return tmp_path


def new_patients() -> pd.DataFrame:
    """Of whom nobody knows the outcome, with a ward that is new."""
    new = tables(60, seed=1)["south"].drop(columns="outcome")
    new.loc[:4, "ward"] = "newborn"
    return new


def decisions() -> pd.DataFrame:
    made = tables(1200, seed=2)["north"]
    rng = np.random.default_rng(3)
    day = pd.Timestamp("2026-01-02") + pd.to_timedelta(rng.integers(0, 28, 1200), "D")
    later = [when + pd.DateOffset(months=int(k)) for when, k in zip(day, rng.integers(0, MONTHS, 1200), strict=True)]
    return made.assign(
        decided=[when.strftime("%Y-%m-%d") for when in later],
        decision=np.where(rng.random(1200) < 0.8, made["outcome"], "home"),
    )


def equifed(words: list[str]) -> str:
    done = CliRunner().invoke(app, words, env={"NO_COLOR": "1", "COLUMNS": "160"})
    assert done.exit_code == 0, f"{words}\n{done.output}"
    return done.output


def carry_out(train: Callable[[Path], None]) -> list[str]:
    """The tutorial's commands in order, and what each printed; `train` in place of the one that starts programs."""
    printed = []
    for program, *words in COMMANDS:
        if program == "cp":
            for name in words[:-1]:
                shutil.copy(name, words[-1])
        elif words[:2] == ["flower", "run"]:
            train(Path(words[2]))
        else:
            printed.append(equifed(words))
    return printed


class Wire:
    """Everything that silos send."""

    def __init__(self) -> None:
        self.sent = bytearray()

    def __call__(self, silo: str, asked: Message, reply: Message) -> Message:
        assert reply.has_content(), reply
        self.sent += self._bytes(reply.content)
        return reply

    @staticmethod
    def _bytes(content: RecordDict) -> bytes:
        parts: list[bytes] = []
        for name, record in content.items():
            for key, value in record.items():
                parts += [name.encode(), key.encode(), getattr(value, "data", None) or repr(value).encode()]
        return b"\n".join(parts)


def names_nobody(*places: Path) -> None:
    """No file there has a name, a record number, a date of admission or the rare ward in it."""
    private = private_texts(tables())
    for place in places:
        for file in [place] if place.is_file() else [each for each in place.rglob("*") if each.is_file()]:
            content = file.read_bytes()
            assert not [text for text in private if text in content], file


def by_hand(rows: pd.DataFrame, schema: dict[str, Any], model: ef.Model) -> np.ndarray:
    """The probability of the positive class, from the schema's text and the stored weights alone."""
    inputs = []
    for column in schema["columns"]:
        values = rows[column["name"]]
        if column["kind"] == "numeric":
            inputs += [values.fillna(column["fill"]), values.isna()]
        else:
            listed = values.fillna("(missing)").where(values.isna() | values.isin(column["categories"]), "(other)")
            inputs += [listed == category for category in column["categories"]]
    x = np.stack([np.asarray(each, dtype=np.float32) for each in inputs], axis=1)
    shift, factor = model.state.scaling or (0.0, 1.0)
    x = (x - shift) * factor
    (weight,), (bias,) = (
        [value for name, value in model.state.parameters.items() if name.endswith(part)] for part in ("weight", "bias")
    )
    logits = x.astype(np.float64) @ weight.T.astype(np.float64) + bias
    return 1 / (1 + np.exp(-logits[:, 0]))


def test_from_files_to_a_model_in_use(place: Path) -> None:
    wire, trained = Wire(), []

    def train(folder: Path) -> None:
        made = Setting.load(folder / "app" / "federation.toml")
        configs = [{"client-id": silo, "data": str(folder / "data" / f"{silo}.csv")} for silo in made.silos]
        result = federate(made, Nodes(SiloApp(made), configs, wire), folder / "runs", "20260101-000000-fedavg-gr-0000")
        trained.append(result)

    carry_out(train)
    words = [command[1] for command in COMMANDS]
    assert words.index("predict") < 10, "ten commands from three files to a scored one"

    # nothing that names a person left a silo, by any way
    sent = bytes(wire.sent)
    assert len(sent) > 1000
    assert not [text for text in private_texts(tables()) if text in sent]
    shutil.rmtree("hospitals/data")
    names_nobody(place / "hospitals", place / "schema.json", *(place / f"{silo}.json" for silo in tables()))
    decided = private_texts({"north": decisions()}) | {text.encode() for text in decisions()["decided"]}
    assert not [text for text in decided if text in Path("counts/north.json").read_bytes()]

    # the scores are those of the live result, of the numbers in the package, and of the ONNX graph
    scored, new = pd.read_csv("scored.csv"), new_patients()
    model = ef.load_model("latest", runs="hospitals/runs")
    assert scored["record"].tolist() == new["record"].tolist()
    probability = scored["probability of readmitted"].to_numpy()
    expected = by_hand(new, json.loads(Path("hospitals/app/schema.json").read_text()), model)
    np.testing.assert_allclose(probability, expected, atol=1e-6)
    np.testing.assert_allclose(trained[0].predict(new), expected, atol=1e-6)
    np.testing.assert_allclose(in_onnx(new), expected, atol=1e-6)
    assert scored["decision"].tolist() == np.where(expected > 0.5, "readmitted", "home").tolist()
    assert model.predict(new[new.columns[::-1]]).tolist() == scored["decision"].tolist()
    with pytest.raises(ef.DataError, match="'pressure'"):
        model.predict(new.drop(columns="pressure"))
    assert "demographic parity" in Path("monitor.html").read_text().lower()


def in_onnx(rows: pd.DataFrame) -> np.ndarray:
    """What the exported graph says, of raw columns."""
    import onnxruntime

    session = onnxruntime.InferenceSession("model.onnx")
    columns = {}
    for given in session.get_inputs():
        values = rows[given.name]
        text = given.type == "tensor(string)"
        raw = values.fillna("").astype(str).to_numpy(dtype=object) if text else values.to_numpy(dtype=np.float64)
        columns[given.name] = raw if text else raw.astype({"tensor(float)": "f4", "tensor(double)": "f8"}[given.type])
    shapes = {given.name: len(given.shape) for given in session.get_inputs()}
    fed = {name: raw.reshape(-1, *(1,) * (shapes[name] - 1)) for name, raw in columns.items()}
    (found,) = session.run(["probabilities"], fed)
    return np.asarray(found)[:, 1]


@pytest.mark.full
def test_the_same_with_real_programs(place: Path) -> None:
    """Server and silos as processes of their own, over TLS: the scores are those of a simulation of the same folder."""
    carry_out(lambda folder: equifed(["flower", "run", str(folder), "--local"]) and None)
    equifed(["run", "hospitals/app/federation.toml", "--runs", "simulated"])
    new = new_patients()
    deployed, simulated = (ef.load_model("latest", runs=runs) for runs in ("hospitals/runs", "simulated"))
    np.testing.assert_allclose(deployed.predict_proba(new), simulated.predict_proba(new), atol=1e-6)
    shutil.rmtree("hospitals/data")
    names_nobody(place / "hospitals" / "app", place / "hospitals" / "runs")
