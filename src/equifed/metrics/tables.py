"""Tables by group and bootstrap intervals, all from counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from equifed.errors import ConfigError, unknown_name
from equifed.metrics import _inputs
from equifed.metrics.functions import disparities, rates
from equifed.metrics.rates import check_counts, counts

if TYPE_CHECKING:
    import pandas as pd


def bootstrap_interval(
    counts: np.ndarray,
    statistic: str | Callable[[np.ndarray], np.ndarray],
    *,
    n: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile interval (low, high) of a statistic of `counts` [..., G, C, C].

    `statistic` is the name of a rate or disparity, or a function of counts with leading axes. Rows are drawn
    with replacement from all rows, so group sizes vary too. Draws without a defined value are left out.
    """
    draws = _resample(check_counts(counts), n, seed)
    if isinstance(statistic, str):
        known = rates(draws) | disparities(draws)
        if statistic not in known:
            raise unknown_name("statistic", statistic, known)
        return _percentiles(known[statistic], confidence)
    return _percentiles(statistic(draws), confidence)


def _resample(counts: np.ndarray, n: int, seed: int) -> np.ndarray:
    """`n` draws of as many rows as there are, [n, ..., G, C, C]; drawing rows is multinomial over cells."""
    if n < 1:
        raise ConfigError(f"A bootstrap needs at least one draw, not {n}.")
    cells = counts.reshape(*counts.shape[:-3], -1)
    total = cells.sum(-1)
    share = cells / np.maximum(total, 1)[..., None]
    rng = np.random.Generator(np.random.Philox(seed))
    drawn = rng.multinomial(total, share, size=(n, *total.shape))
    return drawn.reshape(n, *counts.shape)


def _percentiles(values: np.ndarray, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper percentile over the first axis, nan where no draw is defined."""
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence must lie between 0 and 1, not {confidence}.")
    values = np.asarray(values, dtype=np.float64)
    flat = values.reshape(len(values), -1)
    defined = ~np.isnan(flat).all(0)
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    bounds = np.full((2, flat.shape[1]), np.nan)
    if defined.any():
        bounds[:, defined] = np.nanquantile(flat[:, defined], tails, axis=0)
    low, high = bounds.reshape(2, *values.shape[1:])
    return low[()], high[()]


def table_by_group(
    y_true: Any,
    y_pred: Any,
    *,
    sensitive_features: Any,
    pos_label: Any = None,
    bootstrap: int = 0,
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per group and one "overall", with counts and every rate.

    With `bootstrap` draws each rate gets its interval, <rate>_low and <rate>_high. Labels with more than two
    values (and no `pos_label`) give count and accuracy only.
    """
    import pandas as pd

    group, names = _inputs.groups(sensitive_features)
    true, pred, classes = _inputs.class_codes(y_true, y_pred, pos_label)
    by_group = counts(true, pred, sensitive_features=group, num_groups=len(names), num_classes=classes)
    columns: dict[str, np.ndarray] = {}
    draws = rates(_with_overall(_resample(by_group, bootstrap, seed))) if bootstrap else {}
    for name, value in rates(_with_overall(by_group)).items():
        columns[name] = value
        if name in draws and name not in ("count", "positives"):
            columns[f"{name}_low"], columns[f"{name}_high"] = _percentiles(draws[name], confidence)
    index = pd.Index([*names, "overall"], name="group", dtype=object, tupleize_cols=False)
    return pd.DataFrame(columns, index=index)


def _with_overall(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([counts, counts.sum(-3, keepdims=True)], axis=-3)
