"""Decisions and hand-ins that the tests make up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from equifed.data import Schema
from equifed.monitor import HandIn
from equifed.monitor.handin import PeriodCounts

CLASSES = ("refused", "granted")
SCHEMA = Schema.model_validate(
    {
        "columns": [
            {"name": "age", "kind": "numeric", "low": 20, "high": 70},
            {"name": "job", "kind": "categorical", "categories": ["clerk", "farmer", "nurse"]},
            {"name": "income", "kind": "numeric"},
        ],
        "label": "outcome",
        "classes": CLASSES,
        "sensitive": [{"column": "sex", "groups": {"f": "women", "m": "men"}}],
        "groups": ["women", "men"],
    }
)


def decisions(rows: int = 3000, seed: int = 0, months: int = 6) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    label = rng.random(rows) < 0.5
    women = rng.random(rows) < 0.4
    day = rng.integers(0, 29 * months, rows)
    table = {
        "name": [f"Person Number{i:05}" for i in range(rows)],
        "when": (pd.Timestamp("2024-01-03") + pd.to_timedelta(day, "D")).strftime("%Y-%m-%d"),
        "sex": np.where(women, "f", "m"),
        "age": rng.normal(45, 10, rows).round(6),
        "job": rng.choice(["clerk", "farmer", "nurse"], rows, p=[0.5, 0.2, 0.3]),
        "decision": np.where(rng.random(rows) < 0.3 + 0.3 * label - 0.1 * women, *CLASSES[::-1]),
        "outcome": np.where(label, *CLASSES[::-1]),
    }
    return pd.DataFrame(table)


def months(number: int) -> list[str]:
    return [f"{2000 + i // 12}-{i % 12 + 1:02}" for i in range(number)]


def hand_in(silo: str, tables: np.ndarray, **more: Any) -> HandIn:
    """Of tables [period, group, label, decision]; a table with nan is withheld. more: other fields."""
    groups = ("women", "men", "others", "more")[: tables.shape[1]]
    periods = {}
    for name, table in zip(months(len(tables)), tables, strict=True):
        shown = {
            group: None if np.isnan(each).any() else each.astype(int).tolist()
            for group, each in zip(groups, table, strict=True)
        }
        hidden = None in shown.values()
        periods[name] = PeriodCounts(
            rows=int(np.nansum(table)) + (100 if hidden else 0),
            decisions={group: None if each is None else np.sum(each, 0).tolist() for group, each in shown.items()},
            labels=shown,
            unknown=[0, 0],
        )
    fields = {"silo": silo, "period": "month", "min_count": 10, "classes": CLASSES, "groups": groups, "bins": {}}
    return HandIn(**{**fields, "periods": periods, **more})


def stable(
    rng: np.random.Generator, periods: int, rows: int = 200, rates: tuple[float, ...] = (0.5, 0.55), moved: Any = None
) -> np.ndarray:
    """Tables [period, group, label, decision] of a silo where nothing changes; moved: (period, group, by how much)."""
    p = np.broadcast_to(np.array(rates)[None, :, None] + np.array([-0.15, 0.15]), (periods, len(rates), 2)).copy()
    if moved is not None:
        p[moved[0] :, moved[1]] += moved[2]
    label = rng.binomial(rows, 0.5, p.shape[:2])
    by_label = np.stack([rows - label, label], -1)
    granted = rng.binomial(by_label, p)
    return np.stack([by_label - granted, granted], -1).astype(float)
