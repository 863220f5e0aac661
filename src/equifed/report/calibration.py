"""Calibration by group: reliability curves, and how far scores are from what comes true."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from equifed.metrics.calibration import BINS, calibration_error, error_by_chance
from equifed.metrics.rates import divide
from equifed.metrics.seeds import mean, moments, wilson
from equifed.verdict.groups import SMALL_GROUP
from equifed.verdict.variants import Variant

SUMS = ["rows", "positives", "score_sum"]


def calibration_data(variants: Sequence[Variant]) -> list[dict[str, Any]]:
    """Of every variant its groups: curve and errors. Empty for a regression."""
    if all(variant.calibration.empty for variant in variants):
        return []
    return [_of(variant) for variant in variants]


def _of(variant: Variant) -> dict[str, Any]:
    names = list(dict.fromkeys(map(str, variant.calibration["group"])))
    if not names:
        return {"label": variant.label, "decisions": False, "groups": []}
    sums = variant.calibration[SUMS].to_numpy(dtype=np.float64).reshape(-1, len(names), BINS, 3)
    groups = [_group(variant, name, sums[:, g]) for g, name in enumerate(names)]
    return {"label": variant.label, "decisions": _decides(sums), "groups": groups}


def _decides(sums: np.ndarray) -> bool:
    """Whether all scores are 0 or 1, as of decisions that were drawn."""
    rows, scores = sums[..., 0], sums[..., 2]
    middle, ends = rows[..., 1:-1], scores[..., [0, -1]] - rows[..., [0, -1]] * [0, 1]
    return bool(rows.any() and not middle.any() and not ends.any())


def _group(variant: Variant, name: str, sums: np.ndarray) -> dict[str, Any]:
    """sums: of every seed [seeds, BINS, 3]; nan where silos withhold them."""
    sums = np.nan_to_num(sums)
    error, rows = moments(calibration_error(sums)), float(sums[..., 0].sum(-1).mean())
    return {
        "name": name,
        "rows": rows,
        "small": rows < SMALL_GROUP,
        "error": None if not error.n else error.mean,
        "std": None if np.isnan(error.std) else error.std,
        "chance": None if not error.n else round(float(mean(error_by_chance(sums))), 6),
        "absent": variant.absent("expected_calibration_error", groups=[name]),
        "curve": _curve(sums),
    }


def _curve(sums: np.ndarray) -> list[dict[str, float]]:
    """The bins that have rows, over all seeds. Seeds share test rows, so an interval rests on the rows of one."""
    total = sums.sum(0)
    total = total[total[:, 0] > 0]
    rate, rows = divide(total[:, 1], total[:, 0]), total[:, 0] / len(sums)
    low, high = wilson(rate, rows)
    points = np.stack([divide(total[:, 2], total[:, 0]), rate, low, high, rows], -1)
    return [dict(zip(("score", "rate", "low", "high", "rows"), point, strict=True)) for point in points.tolist()]
