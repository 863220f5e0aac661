"""Every kind of thing that a verdict and an answer say, each in a situation that brings it about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
from report.cases import recorded, result_of

import equifed as ef
from verdict.made import GAP, RATIO, SWEEP, flagged, made, result, validated

ACCURACY, UNFAIR, FAIR = [0.80, 0.82, 0.81, 0.81], [0.20, 0.21, 0.19, 0.20], [0.05, 0.06, 0.05, 0.06]
NEAR, FAR = [0.799, 0.816, 0.805, 0.807], [0.70, 0.71, 0.72, 0.70]
OTHER, WORSE, MIDDLE = [0.799, 0.819, 0.8095], [0.79, 0.81, 0.80], [0.1, 0.11, 0.1]
CHOSEN = {1: (ACCURACY[:3], UNFAIR[:3]), 2: (OTHER, FAIR[:3]), 3: (OTHER, [0.09, 0.1, 0.08])}
"""Validation rows on which 2 is taken."""


@dataclass(frozen=True)
class Situation:
    results: Callable[[], list[ef.Result]]
    asked: dict[str, Any] = field(default_factory=dict)
    """Disparity, margin, target, confidence."""


def complete(given: ef.Result) -> ef.Result:
    """With all that a page and a card show of a result."""
    columns = {"method": ["x"], **{name: [0.0] for name in given.swept}, "seed": [0], "accuracy": [1.0]}
    empty = result_of(pd.DataFrame(columns))
    frames = ("calibration", "local_gaps", "messages", "log", "rejections")
    known = {name: own if len(own := getattr(given, name)) else getattr(empty, name) for name in frames}
    named = {**empty.info, **given.info}
    rows = {**empty.info["rows"], **given.info["rows"]}
    return replace(given, **known, info={**named, "groups": named["groups"] or ["a", "b"], "rows": rows})


def of(*results: ef.Result) -> Situation:
    return Situation(lambda: list(results))


def _degenerate(given: ef.Result, method: str = "", **where: Any) -> ef.Result:
    these = given.metrics["metric"] == "degenerate"
    for column, value in where.items():
        these &= given.metrics[column] == value
    return replace(given, metrics=given.metrics.assign(value=given.metrics["value"].mask(these, 1.0)))


def _regression() -> list[ef.Result]:
    def fit(method: str, rmse: list[float], gap: list[float]) -> ef.Result:
        columns: dict[str, Any] = {"method": method, "seed": range(3), "rmse": rmse, "mean_difference": gap}
        columns |= {"f:mean_prediction": [2.0, 2.0, 3.5], "m:mean_prediction": [3.0, 3.0, 3.0]}
        found = result_of(pd.DataFrame(columns))
        found.info |= {"positive": None, "meaning": "grades, 1 to 5", "classes": []}
        return found

    return [fit("fedavg", [40.0, 42.0, 41.0], [2.0, 2.1, 1.9]), fit("fedprox", [40.2, 42.2, 41.2], [0.5, 0.6, 0.5])]


def _elsewhere() -> list[ef.Result]:
    near = made("fedprox", [0.80, 0.819, 0.809], FAIR[:3])
    near.info = {**near.info, "data": "other"}
    return [made("fedavg", ACCURACY[:3], UNFAIR[:3]), near]


def _partly_undefined() -> list[ef.Result]:
    return [made("fedavg", ACCURACY, [0.2, float("nan"), 0.19, 0.2]), made("fedprox", NEAR, FAIR)]


def _own_splits() -> list[ef.Result]:
    swept = result(SWEEP)
    swept.info["shared_rows"] = {"test": 0.2, "validation": 0.2}
    return [swept]


def _undefined_in_a_seed() -> list[ef.Result]:
    alone = result({None: {"test": (0.02, 0.81)}})
    alone.metrics.loc[(alone.metrics["metric"] == GAP) & (alone.metrics["seed"] == 0), "value"] = float("nan")
    return [alone]


def _only_on_test_rows() -> list[ef.Result]:
    swept = result(SWEEP)
    tests = swept.metrics[(swept.metrics["split"] == "test") & (swept.metrics["metric"] == "accuracy")]
    return [replace(swept, metrics=pd.concat([swept.metrics, tests.assign(metric="client_accuracy.worst")]))]


def _pooled() -> list[ef.Result]:
    return [result({None: SWEEP[0.0]}, "fedavg"), result({None: SWEEP[3.0]}, "centralized-kernel")]


def _methods(**splits: Any) -> list[ef.Result]:
    """method = ((gap, accuracy) on validation rows, the same on test rows)"""
    return [result({None: {"validation": val, "test": test}}, name) for name, (val, test) in splits.items()]


def _left_out() -> list[ef.Result]:
    good = result({None: {"validation": (0.02, 0.84), "test": (0.02, 0.84)}}, "fedavg")
    bare = result({None: {"test": (0.02, 0.9)}}, "fedprox")
    flat = flagged(result({None: {"validation": (0.02, 0.84), "test": (0.02, 0.84)}}, "scaffold"), "validation")
    return [bare, good, flat, result({None: SWEEP[3.0]}, "fair-fate")]


def _few_rows() -> list[ef.Result]:
    return [result({value: {"validation": (*s["validation"], 300), "test": s["test"]} for value, s in SWEEP.items()})]


def _groups() -> list[ef.Result]:
    rates = {"a:selection_rate": [0.3, 0.2], "b:selection_rate": [0.5, 0.6], "old & c:selection_rate": [0.4, 0.45]}
    rates |= {"a:count": [40.0, 40.0], "b:count": [400.0, 400.0], "old & c:count": [90.0, 90.0]}
    return [made("fedavg", [0.8, 0.7], [0.2, 0.4], **rates)]


BY_MARGIN = {
    "clear-winner": of(made("fedavg", ACCURACY, FAIR), made("fedprox", FAR, UNFAIR)),
    "fairer-within-the-margin": Situation(
        lambda: [made("fedavg", ACCURACY, UNFAIR), made("fedprox", NEAR, FAIR)], {"margin": 0.02}
    ),
    "tie-not-shown": Situation(
        lambda: [made("fedavg", ACCURACY, UNFAIR), made("fedprox", NEAR, FAIR)], {"margin": 0.005}
    ),
    "best-for-now": Situation(
        lambda: [made("fedavg", ACCURACY, UNFAIR), made("fedprox", NEAR, FAIR)], {"margin": 0.003}
    ),
    "fairer-ones-lose-more": of(made("fedavg", ACCURACY, UNFAIR), made("fedprox", FAR, FAIR)),
    "dominated": of(made("fedavg", ACCURACY, FAIR), made("afl", NEAR, UNFAIR), made("kffl", FAR, [0.04] * 4)),
    "two-seeds": of(made("fedavg", ACCURACY[:2], UNFAIR[:2]), made("fedprox", NEAR[:2], FAIR[:2])),
    "one-seed": of(made("fedavg", ACCURACY[:1], UNFAIR[:1]), made("fedprox", NEAR[:1], FAIR[:1])),
    "one-seed-nobody-fairer": of(made("fedavg", [0.8], [0.1]), made("fedprox", [0.7], [0.2])),
    "all-degenerate": of(_degenerate(made("fedavg", ACCURACY, FAIR)), _degenerate(made("fedprox", NEAR, FAIR))),
    "one-degenerate": of(made("fedavg", ACCURACY, UNFAIR), _degenerate(made("fedprox", NEAR, FAIR), seed=1)),
    "pooled-reference": of(
        made("fedavg", ACCURACY, UNFAIR), made("fedprox", NEAR, FAIR), made("centralized-kernel", ACCURACY, [0.01] * 4)
    ),
    "alone": of(made("fedavg", ACCURACY, UNFAIR)),
    "alone-one-seed": of(made("fedavg", ACCURACY[:1], UNFAIR[:1])),
    "alone-with-groups": Situation(_groups),
    "alone-with-counts": Situation(lambda: [result({None: SWEEP[1.0]})]),
    "no-disparity": of(made("fedavg", [0.8, 0.81, 0.8]), made("fedprox", [0.7, 0.71, 0.7])),
    "undefined-in-a-seed": Situation(_partly_undefined),
    "other-data": Situation(_elsewhere),
    "regression": Situation(_regression),
    "regression-kept": Situation(_regression, {"margin": 0.0048}),
    "adult-sweep": Situation(lambda: recorded("adult-sweep")),
    "adult-methods": Situation(lambda: recorded("adult-methods")),
    "compas-methods": Situation(lambda: recorded("compas-methods")),
    "compas-odds": Situation(lambda: recorded("compas-methods"), {"disparity": "equalized_odds_difference"}),
    "chosen-on-validation": of(
        validated(
            {
                "test": {**CHOSEN, 2: ([0.79, 0.81, 0.78], [0.07, 0.08, 0.06])},
                "validation": CHOSEN,
            }
        )
    ),
    "contradicted-by-test": of(
        validated(
            {
                "test": {1: (ACCURACY[:3], MIDDLE), 2: (WORSE, UNFAIR[:3]), 3: (OTHER, UNFAIR[:3])},
                "validation": {**CHOSEN, 3: (WORSE, UNFAIR[:3])},
            }
        )
    ),
    "beaten-on-test": of(
        validated(
            {
                "test": {1: (ACCURACY[:3], UNFAIR[:3]), 2: (WORSE, MIDDLE), 3: (OTHER, FAIR[:3])},
                "validation": {**CHOSEN, 3: (WORSE, UNFAIR[:3])},
            }
        )
    ),
    "degenerate-on-validation": of(
        _degenerate(validated({"test": CHOSEN, "validation": CHOSEN}), split="validation", w=2)
    ),
    "degenerate-on-test": of(_degenerate(validated({"test": CHOSEN, "validation": CHOSEN}), split="test", w=2)),
    "chosen-on-test": of(validated({"test": CHOSEN})),
    "too-thin-on-validation": of(
        validated({"test": CHOSEN, "validation": {**CHOSEN, 2: ([0.79, 0.83, 0.80], FAIR[:3]), 3: (FAR[:3], FAIR[:3])}})
    ),
    "sweep-with-counts": Situation(lambda: [result(SWEEP)]),
    "methods-with-counts": Situation(
        lambda: _methods(
            fedavg=((0.2, 0.85), (0.21, 0.848)), kffl=((0.02, 0.81), (0.02, 0.81)), afl=((0.1, 0.8), (0.1, 0.8))
        )
    ),
}
"""Without a target."""


def _to(*targets: str, confidence: Any = None) -> dict[str, Any]:
    return {"target": list(targets), "confidence": confidence}


def _swept(**changes: Any) -> Callable[[], list[ef.Result]]:
    """changes: of the last setting."""
    return lambda: [result({**SWEEP, 3.0: {**SWEEP[3.0], **changes}})]


BY_TARGET = {
    "met": Situation(_swept(), _to(f"{GAP} <= 0.05")),
    "met-at-another-level": Situation(_swept(), _to(f"{GAP} <= 0.05", confidence=0.8)),
    "met-in-the-mean-as-asked": Situation(_swept(), _to(f"{GAP} <= 0.05", confidence="mean")),
    "met-in-the-mean": Situation(_swept(test=(0.045, 0.81)), _to(f"{GAP} <= 0.05")),
    "not-met": Situation(_swept(test=(0.08, 0.81)), _to(f"{GAP} <= 0.05")),
    "nearest": Situation(_swept(), _to(f"{GAP} <= 0.01", confidence="mean")),
    "not-shown": Situation(lambda: [result({None: {"test": (0.0504, 0.8)}}, spread=0.0)], _to(f"{GAP} <= 0.0502")),
    "cannot-be-shown": Situation(_few_rows, _to(f"{GAP} <= 0.03")),
    "never-shown": Situation(lambda: [result({None: {"test": (0.0, 0.8)}}, spread=0.0)], _to(f"{GAP} <= 0")),
    "several-targets": Situation(_swept(), _to(f"{GAP} <= 0.15", "accuracy >= 0.8")),
    "several-not-met": Situation(_swept(), _to(f"{GAP} <= 0.05", "accuracy >= 0.9")),
    "two-of-one-metric": Situation(_swept(), _to(f"{GAP} <= 0.05", f"{GAP} <= 0.3")),
    "ratio": Situation(_swept(), _to(f"{RATIO} >= 0.85")),
    "alone-met": Situation(lambda: [result({None: {"test": (0.02, 0.81)}})], _to(f"{GAP} <= 0.05")),
    "alone-not-met": Situation(lambda: [result({None: {"test": (0.1, 0.81)}})], _to(f"{GAP} <= 0.05")),
    "alone-unknown": Situation(_undefined_in_a_seed, _to(f"{GAP} <= 0.05")),
    "alone-degenerate": Situation(
        lambda: [flagged(result({None: {"test": (0.02, 0.81)}}), "test")], _to(f"{GAP} <= 0.05")
    ),
    "degenerate-choice": Situation(lambda: [flagged(result(SWEEP), "test")], _to(f"{GAP} <= 0.05")),
    "no-validation-rows": Situation(
        lambda: [result({value: {"test": splits["test"]} for value, splits in SWEEP.items()})], _to(f"{GAP} <= 0.05")
    ),
    "no-test-rows": Situation(
        lambda: [result({None: {"validation": (0.02, acc)}}, name) for name, acc in (("a", 0.8), ("b", 0.84))],
        _to(f"{GAP} <= 0.05"),
    ),
    "metric-of-test-rows-only": Situation(_only_on_test_rows, _to("client_accuracy.worst >= 0.5")),
    "met-on-test-rows-alone": Situation(
        lambda: [result({1.0: {"validation": (0.07, 0.8), "test": (0.02, 0.8)}, 2.0: SWEEP[0.0]})],
        _to(f"{GAP} <= 0.05"),
    ),
    "met-over-seeds": Situation(_swept(), _to("loss <= 0.3")),
    "too-few-seeds": Situation(lambda: [result(SWEEP, seeds=2)], _to("loss <= 0.2")),
    "one-seed": Situation(lambda: [result(SWEEP, seeds=1)], _to(f"{GAP} <= 0.05")),
    "own-splits": Situation(_own_splits, _to(f"{GAP} <= 0.045")),
    "left-out": Situation(_left_out, _to(f"{GAP} <= 0.05")),
    "pooled": Situation(_pooled, _to(f"{GAP} <= 0.05")),
    "ahead-on-test-rows": Situation(
        lambda: _methods(fedavg=((0.2, 0.83), (0.2, 0.835)), fedprox=((0.02, 0.84), (0.02, 0.819))),
        _to(f"{GAP} <= 0.05"),
    ),
    "cheaper-than-the-best": Situation(
        lambda: _methods(
            fedavg=((0.2, 0.85), (0.2, 0.75)), fedprox=((0.02, 0.84), (0.02, 0.8)), scaffold=((0.2, 0.83), (0.2, 0.83))
        ),
        _to(f"{GAP} <= 0.05"),
    ),
    "other-data": Situation(
        lambda: [result(SWEEP), replace(result(SWEEP), info={**result(SWEEP).info, "data": "other"})],
        _to(f"{GAP} <= 0.05"),
    ),
    "same-method-twice": Situation(
        lambda: [
            result({None: SWEEP[1.0]}, "fedprox"),
            replace(
                result({None: SWEEP[3.0]}, "fedprox"),
                info={**result({None: SWEEP[3.0]}, "fedprox").info, "hyper_parameters": {"mu": 3}},
            ),
        ],
        _to(f"{GAP} <= 0.05"),
    ),
    "asked-by-the-run": Situation(lambda: [result(SWEEP, target=f"{GAP} <= 0.15", confidence=0.8)]),
}
"""With one."""
