"""Three hospitals' files as they are in life: names, ids, dates, gaps, a column that one of them alone has, and a ward
in which hardly anybody lies."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import equifed as ef
from equifed.federation.tables import beside_schema

SILOS = ("north", "south", "west")
RARE = "isolation-seven"
_SYLLABLES = ("ba", "do", "fi", "gu", "ke", "lo", "mi", "nu", "pa", "ro", "su", "ta", "vi", "xo", "zu")


def tables(rows: int = 300, seed: int = 0) -> dict[str, pd.DataFrame]:
    """A table by silo."""
    return {silo: _table(silo, rows, np.random.default_rng([seed, number])) for number, silo in enumerate(SILOS)}


def _table(silo: str, rows: int, rng: np.random.Generator) -> pd.DataFrame:
    age = rng.integers(20, 95, rows).astype(float)
    pressure = np.round(rng.normal(125, 18, rows), 1)
    sex = rng.choice(["female", "male"], rows)
    ward = rng.choice(["heart", "lungs", "general"], rows, p=[0.3, 0.3, 0.4]).astype(object)
    ward[:3] = RARE if silo == "north" else "heart"
    risk = 0.05 * (age - 57) + 0.04 * (pressure - 125) + 0.8 * (ward == "heart") + 0.7 * (sex == "male") - 0.6
    outcome = np.where(rng.random(rows) < 1 / (1 + np.exp(-risk)), "readmitted", "home")
    table = pd.DataFrame(
        {
            "patient": [_name(rng) for _ in range(rows)],
            "record": 482_913_000_000 + rng.permutation(90_000)[:rows],
            "admitted": (pd.Timestamp("2025-01-01") + pd.to_timedelta(rng.integers(0, 500, rows), "D")).strftime(
                "%Y-%m-%d"
            ),
            "age": np.where(rng.random(rows) < 0.05, np.nan, age),
            "pressure": np.where(rng.random(rows) < 0.1, np.nan, pressure),
            "ward": np.where(rng.random(rows) < 0.04, None, ward),
            "sex": sex,
            "outcome": outcome,
        }
    )
    if silo == "west":
        table["insurer"] = rng.choice(["public", "private"], rows)
    return table


def _name(rng: np.random.Generator) -> str:
    return " ".join("".join(rng.choice(_SYLLABLES, 4)).capitalize() for _ in range(2))


def write(folder: Path, rows: int = 300) -> dict[str, pd.DataFrame]:
    """The tables, and each as SILO.csv in the folder."""
    made = tables(rows)
    for silo, table in made.items():
        table.to_csv(folder / f"{silo}.csv", index=False)
    return made


def private_texts(made: dict[str, pd.DataFrame]) -> set[bytes]:
    """What names a person or is about few of them: full names, record numbers, dates of admission, the rare ward."""
    texts = {RARE}
    for table in made.values():
        texts |= {*table["patient"], *map(str, table["record"]), *table["admitted"]}
    return {text.encode() for text in texts}


def federation_of(
    tables: Any, *, schema: Any = None, client: str | None = None, cache: Any = None, **options: Any
) -> ef.Federation:
    """`Federation.from_tables` for tests that vary one option after another: the fields of its values as keywords.

    client: of mapped files. Of a table that a partition deals, a fifth is for validation unless it is said.
    """
    if "partition" in options:
        options = {"validation": 0.2} | options
    held, meant = (
        {each.name: options.pop(each.name) for each in fields(kind) if each.name in options}
        for kind in (ef.Holdout, ef.Columns)
    )
    columns = beside_schema(schema, ef.Columns(**meant))
    rows = tables if client is None else ef.Mapped(tables, client, cache)
    return ef.Federation.from_tables(rows, columns, holdout=ef.Holdout(**held), **options)
