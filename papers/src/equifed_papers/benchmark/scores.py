"""From raw rows to scores: settings are chosen on validation rows, means over seeds, and scored on test rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from equifed.metrics.fronts import dominated, hypervolume
from equifed.metrics.seeds import mean_interval
from equifed_papers.benchmark.plan import KINDS, Kind

BOUND = 0.05
"""The gap that a setting is to keep."""
WIDEST = 0.25
"""The gap up to which a front's area is measured."""
DP, EO = "demographic_parity_difference", "equal_opportunity_difference"


@dataclass(frozen=True)
class Score:
    """One of the columns of the benchmark."""

    name: str
    title: str
    help: str
    higher: bool = True
    """Whether more is better."""
    rope: float = 0.01
    """A difference that does not matter in practice."""


SCORES = {
    score.name: score
    for score in (
        Score(
            "parity",
            "accuracy at a demographic parity gap ≤ .05",
            "Accuracy, less what the gap exceeds .05 by. Chosen: the most accurate setting within the bound on "
            "validation rows, else the one with the best such score there.",
        ),
        Score(
            "opportunity",
            "accuracy at an equal opportunity gap ≤ .05",
            "The same for the gap in true positive rates.",
        ),
        Score(
            "hypervolume",
            "hypervolume",
            "Of the settings on the validation rows' front: the area that they dominate on test rows, between the "
            "accuracy of the most frequent label and 1, and the demographic parity gaps 0 and .25; 1 is all of it.",
        ),
        Score("own", "clients' own rows", "Mean accuracy over clients, each on its own test rows."),
        Score("worst", "worst client", "Accuracy of the client served worst, on its own test rows."),
        Score("client-group", "worst group of clients", "Accuracy of the group of clients served worst."),
        Score(
            "local", "largest local gap", "Demographic parity gap of the client where it is largest, at the setting of "
            "the first score.", higher=False,
        ),
        Score("bytes", "bytes", "What one client sends and receives in all, at the setting of the first score.", False),
        Score("seconds", "seconds", "Wall time of one run among those computed with it, at that setting.", False),
    )
}  # fmt: skip


@dataclass(frozen=True)
class _Measures:
    """Columns of a kind of data: what stands for accuracy, for the gaps, for clients."""

    quality: str
    gaps: dict[str, str]
    own: str
    worst: str
    lower: bool = False
    """An error e in 0..1, which counts as 1 - e."""


_OF: dict[Kind, _Measures] = {
    "binary": _Measures("accuracy", {"parity": DP, "opportunity": EO}, "client_accuracy.mean", "client_accuracy.worst"),
    "regression": _Measures("rmse", {"parity": "ks_distance"}, "client_rmse.mean", "client_rmse.worst", lower=True),
    "images": _Measures("accuracy", {}, "client_accuracy.mean", "client_accuracy.worst"),
}
COLUMNS = ["tier", "data", "partition", "method", "family", "score", "value", "half", "gap", "met", "setting", "seeds"]


def scored(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each federation, method and score: its value on test rows, half of the 95 % interval over seeds, the
    gap beside an accuracy and whether it keeps the bound, and the setting that was chosen on validation rows."""
    ran = rows[rows["left_out"] == ""].replace([np.inf, -np.inf], np.nan)  # of models that have diverged
    found = [
        dict(zip(("tier", "data", "partition", "method"), key, strict=True)) | {"family": part["family"].iloc[0]} | each
        for key, part in ran.groupby(["tier", "data", "partition", "method"], sort=False)
        for each in _scores(part, KINDS.get(str(key[1]), "binary"))
    ]
    return pd.DataFrame(found, columns=COLUMNS)


def _scores(part: pd.DataFrame, kind: Kind) -> Iterator[dict[str, Any]]:
    """Of one method on one federation."""
    of = _OF[kind]
    numbers = part.select_dtypes("number").columns.difference(["seed"])
    by_setting = part.groupby("setting", sort=True)[list(numbers)]
    # of all seeds or none: a setting that has diverged with some seeds has no mean to be chosen by
    means = by_setting.mean().where(by_setting.count().eq(by_setting.size(), axis=0))

    def quality(table: Any, split: str, column: str) -> Any:
        values = table[f"{split}_{column}"]
        if not of.lower:
            return values
        # an error of 1 or more is worse than any guess: such a setting is not chosen, and scores nothing
        return (1 - values).where(values < 1) if split == "validation" else (1 - values).clip(lower=0)

    def at(setting: str, values: Any, **more: Any) -> dict[str, Any]:
        own = np.asarray(values[part["setting"] == setting], dtype=float)
        ends = mean_interval(own)
        half = np.nan if ends is None else (ends[1] - ends[0]) / 2
        return {"value": float(np.mean(own)), "half": half, "setting": setting, "seeds": len(own)} | more

    usual = None
    for name, gap in of.gaps.items():
        setting = within(quality(means, "validation", of.quality), means[f"validation_{gap}"])
        if setting is None:
            continue
        usual = setting if usual is None else usual
        wide = float(means[f"test_{gap}"].loc[setting])
        found = at(setting, quality(part, "test", of.quality), gap=wide, met=wide <= BOUND)
        yield {"score": name, **found, "value": float(charged(found["value"], wide))}
    for name, column in (("own", of.own), ("worst", of.worst), ("client-group", "group_equity.worst10")):
        best = quality(means, "validation", column) if f"validation_{column}" in means else pd.Series(dtype=float)
        if best.notna().any():
            yield {"score": name, **at(str(best.idxmax()), quality(part, "test", column))}
            usual = str(best.idxmax()) if usual is None else usual
    if kind == "binary":
        yield {"score": "hypervolume", "value": _front(means), "seeds": part["seed"].nunique(), "setting": ""}
        if usual is not None:
            yield {"score": "local", **at(usual, part[f"test_client_{DP}.worst"])}
    if usual is not None:
        yield {"score": "bytes", **at(usual, part["bytes"])}
        yield {"score": "seconds", **at(usual, part["seconds"])}


def within(quality: pd.Series[float], gap: pd.Series[float], bound: float = BOUND) -> str | None:
    """The best setting whose gap is within the bound, else the one that scores best; None where none has a model that
    predicts. (The smallest gap instead would be that of a model that has learnt nothing.)"""
    known = quality.notna() & gap.notna()
    quality, gap = quality[known], gap[known]
    if quality.empty:
        return None
    kept = quality[gap <= bound]
    return str(charged(quality, gap, bound).idxmax() if kept.empty else kept.idxmax())


def charged(quality: Any, gap: Any, bound: float = BOUND) -> Any:
    """The score: quality, less what the gap exceeds the bound by."""
    return quality - np.maximum(0.0, gap - bound)


def _front(means: pd.DataFrame) -> float:
    """The share of the rectangle that the settings on the validation rows' front dominate on test rows."""

    def costs(split: str) -> np.ndarray:
        return np.stack([-means[f"{split}_accuracy"], means[f"{split}_{DP}"]], axis=1)

    on_front = ~dominated(costs("validation"))
    majority = float(means["majority"].iloc[0])
    area = hypervolume(costs("test")[on_front], (-majority, WIDEST))
    return area / ((1 - majority) * WIDEST) if majority < 1 else np.nan


def left_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Which methods cannot run on which data, and why."""
    return rows.loc[rows["left_out"] != "", ["tier", "data", "partition", "method", "left_out"]]
