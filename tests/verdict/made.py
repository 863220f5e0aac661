"""Results with numbers that are known beforehand, as runs would leave them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from report.cases import result_of

import equifed as ef
from equifed import methods
from equifed.methods.hyper import hyper
from equifed.protocol import Data, Knob, Phase, Record, ignore_replies, notions

GAP, RATIO = "demographic_parity_difference", "demographic_parity_ratio"
ROWS = 10_000


# -- with counts, on validation and test rows --------------------------------------------------------------------------


def table(gap: float, accuracy: float, rows: int = ROWS) -> np.ndarray:
    """Counts [2 groups, label, prediction]: both groups as large and half positive; selected by 0.5 -+ gap / 2."""
    n = rows // 2
    made = np.zeros((2, 2, 2))
    for g, selected in enumerate((0.5 - gap / 2, 0.5 + gap / 2)):
        # true positives and true negatives add up to the accuracy, true and false positives to those selected
        tp = n * (accuracy + selected - 0.5) / 2
        made[g] = [[n * accuracy - tp, n * selected - tp], [n / 2 - tp, tp]]
    made = made.round()
    assert (made >= 0).all()
    return made


def result(
    settings: dict[float | None, dict[str, Any]],
    method: str = "kffl",
    seeds: int = 4,
    spread: float = 0.004,
    target: Any = (),
    **more: Any,
) -> ef.Result:
    """As a run would leave it: {fairness weight (None: not swept): {split: (gap, accuracy)}}, gaps a little different
    in every seed."""
    counts, metrics = [], []
    for value, splits in settings.items():
        noise, better = np.random.default_rng(int(10 * (value or 0))).normal(size=(2, seeds)) * spread
        for split, (gap, accuracy, *size) in splits.items():
            for seed in range(seeds):
                key = {"method": method, **({} if value is None else {"fairness_weight": value}), "seed": seed}
                cells = table(gap + noise[seed], accuracy + better[seed] / 3, *size)
                counts += [
                    {**key, "split": split, "group": "ab"[g], "label": str(y), "predicted": str(p), "rows": rows}
                    for (g, y, p), rows in np.ndenumerate(cells)
                ]
                selected = cells[:, :, 1].sum(1) / cells.sum((1, 2))
                found = {
                    "rows": cells.sum(),
                    "accuracy": np.trace(cells, axis1=1, axis2=2).sum() / cells.sum(),
                    GAP: selected.max() - selected.min(),
                    RATIO: selected.min() / selected.max(),
                    "degenerate": float((selected > 0.99).any() or (selected < 0.01).any()),
                    "loss": 1 - accuracy + noise[seed],
                }
                metrics += [
                    {**key, "round": 3, "split": split, "scope": "global", "metric": name, "value": number}
                    for name, number in found.items()
                ]
    swept = [] if None in settings else ["fairness_weight"]
    sizes = {
        split: size[0] if size else ROWS for splits in settings.values() for split, (_, _, *size) in splits.items()
    }
    return ef.Result(
        metrics=pd.DataFrame(metrics),
        counts=pd.DataFrame(counts),
        **{name: pd.DataFrame() for name in ("calibration", "local_gaps", "messages", "log", "rejections")},
        parameters={},
        info={
            "method": method,
            "hyper_parameters": {},
            "swept": swept,
            "data": "made",
            "groups": ["a", "b"],
            "classes": ["0", "1"],
            "rows": sizes,
            "shared_rows": {"test": 1.0, "validation": 1.0},
        },
        settings=ef.RunSettings(seeds=seeds, target=target, **more),
        timings={},
    )


SWEEP: dict[float | None, dict[str, Any]] = {
    0.0: {"validation": (0.20, 0.850), "test": (0.21, 0.848)},
    1.0: {"validation": (0.09, 0.840), "test": (0.09, 0.841)},
    2.0: {"validation": (0.04, 0.830), "test": (0.05, 0.829)},
    3.0: {"validation": (0.02, 0.810), "test": (0.02, 0.812)},
}


def flagged(given: ef.Result, split: str) -> ef.Result:
    """Degenerate on these rows."""
    these = (given.metrics["metric"] == "degenerate") & (given.metrics["split"] == split)
    return replace(given, metrics=given.metrics.assign(value=given.metrics["value"].mask(these, 1.0)))


# -- with metrics alone ------------------------------------------------------------------------------------------------


def made(method: str, quality: list[float], gap: list[float] | None = None, **more: Any) -> ef.Result:
    """A result with these numbers by seed."""
    columns: dict[str, Any] = {"method": method, "seed": range(len(quality)), "accuracy": quality}
    columns |= {} if gap is None else {GAP: gap}
    return result_of(pd.DataFrame(columns | {"degenerate": 0.0} | more))


def validated(rows: dict[str, dict[int, tuple[list[float], list[float]]]], method: str = "kffl") -> ef.Result:
    """A sweep over w, with accuracies and gaps by seed: {split: {w: (accuracies, gaps)}}."""
    results = {}
    for split, settings in rows.items():
        tables = [
            pd.DataFrame({"method": method, "w": w, "seed": range(len(a)), "accuracy": a, GAP: g, "degenerate": 0.0})
            for w, (a, g) in settings.items()
        ]
        results[split] = result_of(pd.concat(tables))
        results[split].metrics["split"] = split
    return replace(results["test"], metrics=pd.concat([result.metrics for result in results.values()]))


# -- a method whose numbers have a closed form -------------------------------------------------------------------------

BIAS = 0.4
"""The gap of the labels, and of the model that follows them."""


@dataclass(frozen=True)
class Shift(methods.Method):
    """Selects the rows of group s whose score is above 1/2 - (s - 1/2) gap, with a gap that falls from BIAS to `floor`.

    Scores are spread evenly over 0..1 in both groups and the labels are those of gap = BIAS. So the gap between the
    groups is gap, and (BIAS - gap) / 2 of the rows are wrong.
    """

    name: ClassVar[str] = "shift"
    knob: ClassVar[Knob | None] = Knob("weight", 1.0, 1000.0, notions(demographic_parity={"on": True}), neutral=0.0)

    weight: float = hyper(1.0, low=0)
    """How much fairness counts."""
    floor: float = hyper(0.0, low=0)
    """The gap that no weight can close."""
    on: bool = False
    """Whether it does."""

    @property
    def round(self) -> tuple[Phase, ...]:
        def rows(down: Record, state: Any, data: Data) -> tuple[Record, Any]:
            return {"rows": data.n}, state

        return (Phase("count", (), ("rows",), rows, ignore_replies, gather="sum"),)

    def predict(self, task: Any, server: Any, client: Any, x: torch.Tensor) -> torch.Tensor:
        score, s = x[:, 0], x[:, 1]
        gap = self.floor + (BIAS - self.floor) / (1 + self.weight / 20) if self.on else BIAS
        return (score > 0.5 - (s - 0.5) * gap).to(x.dtype)


@dataclass(frozen=True)
class Half(Shift):
    """Closes half of the gap, whatever its weight."""

    name: ClassVar[str] = "half"
    weight: float = hyper(20.0, low=0)
    on: bool = True


@dataclass(frozen=True)
class Blind(Shift):
    """Closes all of it."""

    name: ClassVar[str] = "blind"
    weight: float = hyper(1e9, low=0)
    on: bool = True


def weight_at(gap: float) -> float:
    return 20 * (BIAS / gap - 1)


def evenly(rows: int = 2000) -> ef.Federation:
    """Scores spread evenly over 0..1 in both groups, the same rows for training, validation and test."""
    score = (np.arange(rows) + 0.5) / rows
    x = np.concatenate([np.stack([score, np.full(rows, s)], 1) for s in (0.0, 1.0)]).astype(np.float32)
    s = x[:, 1].astype(int)
    y = (x[:, 0] > 0.5 - (s - 0.5) * BIAS).astype(int)
    return ef.Federation.from_arrays([(x, y, s)], validation=(x, y, s), test=(x, y, s))
