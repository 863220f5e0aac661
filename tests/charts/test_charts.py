"""Charts as specifications: names in them are only names, and the copy of Vega is the one that figures are drawn by."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
from importlib import resources
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from report.runs import HOSTILE

from equifed.charts import draw, partition_chart
from equifed.charts.spec import around, distinct, short

ROOT = Path(__file__).resolve().parents[2]


def tool() -> ModuleType:
    found = importlib.util.spec_from_file_location("vega", ROOT / "tools" / "vega.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_pages_carry_the_vega_that_draws_figures() -> None:
    """If not: `.venv/bin/python tools/vega.py`."""
    ours = resources.files("equifed.charts").joinpath("vega.js.gz").read_bytes()
    assert gzip.decompress(ours).decode() == tool().bundle()
    assert len(ours) < 320_000
    first = gzip.decompress(ours).decode().splitlines()[0]
    assert re.search(r"Vega 6\.\d+\.\d+, Vega-Lite 6\.\d+, Vega-Embed 7\.\d+\.\d+", first)
    assert "BSD-3-Clause" in first


def test_a_name_is_one_short_line() -> None:
    assert short("a\x07b\tc\nd\u2028e") == "a b c d e"
    assert short("fedprox (mu=0.001, learning-rate=0.1, seed=7)", 24) == "fedprox (mu=0.0… seed=7)"
    assert short("x" * 3000) == "x" * 31 + "…" + "x" * 8
    assert short("שלום") == "\u2068שלום\u2069"
    assert short("\x00\x1b") == "–"
    assert short("constructor") == "constructor\u200b"
    assert all(short(text).strip("\u200b\u2068\u2069").isprintable() for text in HOSTILE)


def test_names_that_are_cut_alike_are_told_apart() -> None:
    names = ["x" * 50 + "1" * 8, "x" * 60 + "1" * 8, "y", "y", "y #2"]
    shown = distinct(names)
    assert len(set(shown)) == 5
    assert shown[2:] == ["y", "y #2", "y #2 #2"]
    assert distinct(HOSTILE + HOSTILE)[: len(HOSTILE)] == [short(text) for text in HOSTILE]
    assert len(set(distinct(HOSTILE * 3))) == 3 * len(HOSTILE)


def test_a_partition_has_every_cell() -> None:
    rng = np.random.default_rng(0)
    for clients in (5, 80):  # lying bars with names, upright ones without
        cells = rng.integers(0, 4, (clients, 2, 3))
        names = [f"silo {k}" for k in range(clients)]
        spec = partition_chart(names, ["f", "m"], ["no", "may be", "yes"], cells)
        found = np.zeros_like(cells)
        for row in spec["data"]["values"]:
            place = row["client"] if clients == 5 else f"silo {row['client']}"
            group, label = row["cell"].split(", ")
            found[names.index(place), ["f", "m"].index(group), ["no", "may be", "yes"].index(label)] = row["rows"]
            assert row["about"] == f"client {place}\n{row['cell']}: {row['rows']} rows"
        assert (found == cells).all()
        (layer,) = spec["layer"]
        assert ("x" if clients == 5 else "y") == next(c for c in "xy" if layer["encoding"][c]["field"] == "rows")
        svg = draw(spec, "svg").decode()
        assert svg.count("<linearGradient") == 5  # of six fills the first is plain
        assert ("silo 0" in svg) == (clients == 5)


def test_one_value_has_room_around_it() -> None:
    assert around([0.7, None, 0.7]) == {"domain": [pytest.approx(0.63), pytest.approx(0.77)]}
    assert around([0.0]) == {"domain": [-1.0, 1.0]}
    assert around([]) == around([1.0, 2.0]) == {}


def expressions(part: object) -> list[str]:
    """Every expression of a specification: what could be carried out."""
    if isinstance(part, dict):
        own = [
            str(part[key])
            for key in ("expr", "calculate", "filter", "test", "labelExpr")
            if isinstance(part.get(key), str)
        ]
        return own + [each for value in part.values() for each in expressions(value)]
    if isinstance(part, list):
        return [each for value in part for each in expressions(value)]
    return []


@pytest.mark.parametrize("text", ["constructor", "toString", *HOSTILE[1::4]])
def test_no_name_is_part_of_an_expression(text: str) -> None:
    spec = partition_chart([text, "1"], [text, "a"], [text, "b"], np.ones((2, 2, 2), dtype=int))
    plain = partition_chart(["one", "1"], ["one", "a"], ["one", "b"], np.ones((2, 2, 2), dtype=int))

    def shape(of: object) -> list[str]:
        return [re.sub(r"\d+", "0", each) for each in expressions(of)]  # room for a name: its length

    assert shape(spec) == shape(plain)
    svg = draw(spec, "svg").decode()
    assert not re.search(r"<(script|image|a|iframe|foreignObject|img|base|meta)\b", svg)
    json.dumps(spec, allow_nan=False)
