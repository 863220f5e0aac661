"""What the columns of a table mean and which rows are held out: declared once, for Python, configurations, commands."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from dataclasses import FrozenInstanceError, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer.main

import equifed as ef
from equifed.cli.app import app
from equifed.config import DataSection, parse_config
from equifed.data import Schema, Sensitive, agree, summarise
from equifed.errors import ConfigError
from equifed.federation.prepare import Source
from equifed.options import options_of

DECLARED = (ef.Columns, ef.Holdout)


def visits() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.normal(50, 10, 200).round(2),
            "job": rng.choice(["a", "b", "?"], 200),
            "sex": rng.choice(["f", "m"], 200),
            "admitted": pd.date_range("2024-01-01", periods=200).strftime("%Y-%m-%d"),
            "ward": rng.choice(["x", "y", "z"], 200),
            "ill": rng.integers(0, 2, 200),
        }
    )


ASKED: dict[str, Any] = {
    "label": "ill",
    "sensitive": ["sex"],
    "drop": ["ward"],
    "dates": {"admitted": ["year", "month"]},
    "na_values": ["?"],
    "min_count": 5,
}


# -- one declaration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DECLARED)
def test_every_field_says_what_it_means(kind: type) -> None:
    for option in options_of(kind):
        assert option.description.endswith("."), option.name
    with pytest.raises(FrozenInstanceError):
        kind().test = 0.5  # type: ignore[attr-defined]


def shared() -> list[str]:
    """Fields that are keys of [data] and options of commands, too."""
    return [each.name for kind in DECLARED for each in fields(kind) if "metavar" in each.metadata]


def test_configurations_have_the_declared_keys_with_their_meaning() -> None:
    said = {option.name: option.description for kind in DECLARED for option in options_of(kind)}
    for name in shared():
        assert DataSection.model_fields[name].description == said[name]


@pytest.mark.parametrize(
    ("command", "has"),
    [
        ("compare", lambda facts: True),
        ("data describe", lambda facts: True),
        ("flower init", lambda facts: True),
        ("data summarise", lambda facts: "agreed" not in facts),
        ("data agree", lambda facts: "agreed" in facts),
    ],
)
def test_commands_have_the_declared_options_with_their_meaning(command: str, has: Any) -> None:
    found: Any = typer.main.get_command(app)
    for word in command.split():
        found = found.commands[word]
    options = {parameter.name: parameter for parameter in found.params}
    for option, declared in zip(options_of(ef.Columns), fields(ef.Columns), strict=True):
        if "metavar" in declared.metadata and has(declared.metadata):
            said, *_ = option.description.split("\n\n")
            assert " ".join(said.split()) in options[option.name].help, option.name
        else:
            assert option.name not in options


def test_what_the_silos_must_know_is_apart_from_what_is_agreed_later() -> None:
    columns = ef.Columns(**ASKED, missing="mean", positive=1, min_group=7)
    assert columns.given == {
        **ASKED,
        **{"drop": ("ward",), "na_values": ("?",), "missing": "mean", "positive": 1, "min_group": 7},
    }
    assert columns.agreed == ef.Columns(missing="mean", positive=1, min_group=7)
    assert ef.Columns(missing=None, min_group=0, drop=[]).given == {}
    with pytest.raises(ConfigError, match=r"drop is what the summaries say already \(drop, label\)") as error:
        agree([summarise(visits(), columns)], ef.Columns(label="ill", drop=["ward"]))
    assert error.value.key == "drop"


@pytest.mark.parametrize(
    ("given", "key", "message"),
    [
        ({"features": "age"}, "features", r"must be a list of column names, got 'age'. Write \['age'\]"),
        ({"drop": "age"}, "drop", "must be a list of column names"),
        ({"task": "regresion"}, "task", "Did you mean 'regression'"),
        ({"encoding": "hot"}, "encoding", "Did you mean 'onehot'"),
        ({"scaling": "min-max"}, "scaling", "Did you mean 'minmax'"),
        ({"missing": "medium"}, "missing", "Did you mean 'median'"),
        ({"missing": {"age": "medium"}}, "missing", "Did you mean 'median'"),
        ({"missing": {"age": None}}, "missing", "Unknown rule for missing values None"),
        ({"na_values": "NA"}, "na_values", "must be a list of cells"),
        ({"min_count": -1}, "min_count", "must be a whole number of at least 0"),
        ({"min_group": 1.5}, "min_group", "must be a whole number of at least 0"),
    ],
)
def test_columns_that_mean_nothing_are_refused_when_they_are_made(given: dict, key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        ef.Columns(**given)
    assert error.value.key == key


def test_the_commands_start_without_waiting_for_tables() -> None:
    code = "import sys, equifed.cli.app; print(sorted({'numpy', 'pandas', 'pydantic', 'torch'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    with pytest.raises(AttributeError, match="has no attribute 'fetch_nothing'"):
        ef.data.fetch_nothing()
    assert ef.data.fetch_adult == ef.data.get_dataset("adult").fetch


# -- held out ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "holdout", "split"),
    [
        ("one table", ef.Holdout(), (0.8, 0, 0.2)),
        ("table per client", ef.Holdout(validation=0.1), (0.7, 0.1, 0.2)),
        ("mapped files", ef.Holdout(), (0.99, 0, 0.01)),
        ("mapped files", ef.Holdout(test_file="rows.parquet", validation=0.25), (0.75, 0.25, 0)),
        ("mapped files", ef.Holdout(test=0.3), (0.7, 0, 0.3)),
    ],
)
def test_the_default_share_is_that_of_the_kind_of_tables(tables: Any, holdout: ef.Holdout, split: tuple) -> None:
    assert holdout.fill(tables).split == pytest.approx(split)


@pytest.mark.parametrize(
    ("tables", "given", "key"),
    [
        ("one table", {"test_file": "rows.csv"}, "test_file"),
        ("one table", {"validation_file": "rows.csv"}, "validation_file"),
        ("table per client", {"client_test": 0.1}, "client_test"),
        ("table per client", {"test_file": "rows.csv"}, "test_file"),
        ("mapped files", {"client_test": 0.1}, "client_test"),
        ("mapped files", {"test_file": "rows.csv", "test": 0.1}, "test_file"),
        ("mapped files", {"validation": 1.5}, "validation"),
    ],
)
def test_what_is_not_for_these_tables_is_refused_by_name(tables: Any, given: dict, key: str) -> None:
    with pytest.raises(ConfigError) as error:
        ef.Holdout(**given).fill(tables)
    assert error.value.key == key


# -- formats that others hold ------------------------------------------------------------------------------------------


def digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


def test_summaries_and_schemas_are_written_as_they_were_before_columns_were_a_value() -> None:
    """The digests are those of the version before."""
    told = summarise(visits(), ef.Columns(**ASKED), name="north")
    assert digest(told.to_json()) == "ca6a7329cd7c94e5"
    later = ef.Columns(missing="mean", positive=1, meaning="is ill", min_group=10)
    assert digest(agree([told], later).to_json()) == "93e79c72955ea0d5"
    exact = ef.Columns(**ASKED, missing="drop", scaling="minmax", encoding="ordinal")
    assert digest(Schema.infer(visits(), exact).to_json()) == "307582d1757697b9"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"label": "ill", "sensitive": "sex"}, "76ac76d3"),
        (
            {
                "label": "ill",
                "sensitive": ["sex"],
                "drop": ["admitted"],
                "na_values": ["?", -9],
                "missing": "mean",
                "positive": 1,
                "meaning": "is ill",
                "features": ["age"],
            },
            "acee53d0",
        ),
        (
            {
                "label": "ill",
                "sensitive": Sensitive(column="age", threshold=50, below="a", at_least="b"),
                "dates": {"admitted": ["year"]},
                "missing": "impute",
                "scaling": "none",
            },
            "86045ce5",
        ),
    ],
)
def test_prepared_folders_of_earlier_versions_are_found(given: dict, name: str, tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").touch()
    source = Source.of(ef.Mapped(tmp_path / "rows.parquet", "ward"), ef.Columns(**given))
    assert source.default_cache.name == f"rows.parquet.{name}.mapped"


RESOLVED = """
files = 'bbed1370c282e9130dac065011a2f890'
table = '22a775a7b8cf14f9a2b53173efd11b4f'
mapped = '64fc24f8668e3fcb7d7ef5c7aac60a45'
schema = '5cde564fcd9efede53e54fe3bec4022e'
named = '8f8bb0da70a17e7d7e5ad43116cf26be'
"""
"""Fingerprints of the configurations below, of the version before."""
SECTIONS: dict[str, dict[str, Any]] = {
    "files": {"files": {"a": "a.csv"}, "label": "ill", "sensitive": "sex"},
    "table": {
        "table": "rows.parquet",
        "label": "ill",
        "sensitive": ["sex"],
        "na-values": ["?", -9],
        "missing": "drop",
        "dates": {"admitted": ["year"]},
        "drop": ["ward"],
        "positive": 1,
        "min-count": 5,
        "min-group": 3,
        "validation": 0.1,
        "features": ["age"],
        "meaning": "is ill",
    },
    "mapped": {"mapped": "rows.parquet", "client": "ward", "label": "ill", "sensitive": "sex"},
    "schema": {"mapped": "rows.parquet", "client": "ward", "schema": "schema.json", "test-file": "t.parquet"},
    "named": {"name": "compas", "sensitive": ["sex"], "min-group": 3, "validation": 0.1},
}


@pytest.mark.parametrize("kind", SECTIONS)
def test_runs_of_earlier_versions_are_recognised(kind: str, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(Schema.infer(visits(), ef.Columns(**ASKED)).to_json())
    raw: dict[str, Any] = {"data": SECTIONS[kind], "method": {"name": "fedavg"}, "run": {"rounds": 2}}
    if kind == "table":
        raw["partition"] = {"kind": "iid", "num-partitions": 3}
    config = parse_config(raw, folder=tmp_path)
    assert config.fingerprint() == tomllib.loads(RESOLVED)[kind], json.dumps(config.resolved())
