"""Results that were recorded once: see recorded/README.md."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

import equifed as ef
from equifed.results.collect import MESSAGES, REJECTIONS
from equifed.results.counts import BINNED, COLUMNS, LOCAL
from equifed.settings import RunSettings

FOLDER = Path(__file__).parent / "recorded"
MEANING = {
    "adult": ("<=50K", ">50K", "the person earns more than 50,000 dollars a year"),
    "compas": ("recidivated", "did not recidivate", "the defendant was not charged with a new crime within two years"),
}


def recorded(name: str) -> list[ef.Result]:
    """The results of a recorded command, a result per method."""
    frame = pd.read_csv(FOLDER / f"{name}.csv")
    return [result_of(own, name.partition("-")[0]) for _, own in frame.groupby("method", sort=False)]


def result_of(table: pd.DataFrame, data: str = "toy") -> ef.Result:
    """A result from its last numbers: a row per run, a column per metric, GROUP:METRIC for those of groups."""
    swept = [name for name in table.columns[: table.columns.get_loc("seed")] if name != "method"]
    long = table.melt(["method", *swept, "seed"], var_name="column")
    parts = long.pop("column").str.rpartition(":")
    scope = ("group:" + parts[0]).where(parts[0] != "", "global")
    metrics = long.assign(round=1, split="test", scope=scope, metric=parts[2])
    negative, positive, meaning = MEANING.get(data, ("0", "1", ""))
    seeds = sorted(table["seed"].unique().tolist())
    info: dict[str, Any] = {
        "method": table["method"].iloc[0],
        "hyper_parameters": {},
        "swept": swept,
        "data": data,
        "task": "regression" if "rmse" in table else "classification",
        "classes": [negative, positive],
        "positive": positive,
        "meaning": meaning,
        "groups": list(dict.fromkeys(parts[0][parts[0] != ""])),
        "clients": ["0"],
        "cells": None,
        "rows": {"train": 1, "validation": 0, "test": 0},
    }
    columns = dict.fromkeys(["method", *swept, "seed", *COLUMNS, *BINNED, *LOCAL])
    frames = [field.name for field in fields(ef.Result) if "DataFrame" in str(field.type)]
    unknown = {name: pd.DataFrame(columns=[*columns]) for name in frames}
    known = {
        "metrics": metrics,
        "messages": pd.DataFrame(columns=MESSAGES),
        "log": pd.DataFrame(columns=["method", *swept, "seed", "round"]),
        "rejections": pd.DataFrame(columns=REJECTIONS),
        "parameters": {},
        "info": info,
        "settings": RunSettings(rounds=1, seeds=seeds),
        "timings": {"seconds": 1.0},
    }
    return ef.Result(**(unknown | known))
