"""Configurations that nobody writes on purpose: an error of a few lines, and never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from equifed.config import load_config, parse_config
from equifed.errors import ConfigError, DataError


def written(folder: Path, text: str) -> Path:
    (folder / "x.toml").write_text(text)
    return folder / "x.toml"


@pytest.mark.parametrize(
    "text",
    [
        f"x = {'[' * 5000}",
        f"x = {'9' * 10_000}",
        f"{'a.' * 3000}b = 1\n[data]\nname = 'compas'",
        f"[{'section' * 2000}]",
        f"[method]\nname = '{'m' * 10_000}'\n[data]\nname = 'compas'",
        f"[data]\nname = '{'d' * 10_000}'\n[method]\nname = 'fedavg'",
        f"[data]\nname = 'compas'\n{'k' * 10_000} = 1\n[method]\nname = 'fedavg'",
        f"[data]\nname = 'compas'\npreset = {'[' * 50}1{']' * 50}\n[method]\nname = 'fedavg'",
        f"not toml {'x' * 10_000}",
        "[local]\nlearning-rate = 1e308\n[data]\nname = 'compas'\n[method]\nname = 'fedavg'",
        "[method]\nname = 'fedprox'\nmu = 1e308\n[data]\nname = 'compas'",
        "[method]\nname = 'fed\\u001b[31mavg'\n[data]\nname = 'compas'",
    ],
    ids=lambda text: text[:24],
)
def test_errors_are_short_and_clean(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(written(tmp_path, text))
    said = str(error.value)
    assert len(said) < 1500
    assert "\x1b" not in said


def test_a_configuration_is_an_ordinary_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Not an ordinary file"):
        load_config("/dev/zero")
    with open(tmp_path / "large.toml", "wb") as file:
        file.truncate(2**24 + 1)
    with pytest.raises(ConfigError, match="Larger than 16 MiB"):
        load_config(tmp_path / "large.toml")


def test_a_schema_that_never_ends(tmp_path: Path) -> None:
    from equifed.config import load_federations

    (tmp_path / "a.csv").write_text("age,sex,ill\n1,f,0\n")
    raw = {"data": {"files": {"a": "a.csv"}, "schema": "/dev/zero"}, "method": {"name": "fedavg"}}
    config = parse_config(raw, folder=tmp_path)
    with pytest.raises(DataError, match="no ordinary file"):
        load_federations(config)


def test_overrides_are_cut(tmp_path: Path) -> None:
    for override in ("x" * 10_000, f"run.rounds={'[' * 3000}", f"run.rounds={'9' * 9000}"):
        with pytest.raises(ConfigError) as error:
            parse_config({"data": {"name": "compas"}, "method": {"name": "fedavg"}}, [override])
        assert len(str(error.value)) < 1000
