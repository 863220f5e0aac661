"""How evenly a federation serves its clients (equality) and its groups of clients (equity); from E2FL."""

from __future__ import annotations

from typing import Any

import numpy as np

from equifed.errors import DataError
from equifed.metrics import _inputs
from equifed.metrics.rates import divide, subtract


def _defined(values: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Values [..., K], which of them are defined, how many those are and their mean [...]."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim == 0:
        raise DataError("values must hold one number per client.")
    known = ~np.isnan(values)
    total = known.sum(-1)
    return values, known, total, divide(np.where(known, values, 0.0).sum(-1), total)


def client_equality(values: Any) -> dict[str, Any]:
    """Mean, worst 10 %, best 10 % and population variance over clients of `values` [..., K], each [...].

    `values` is one number per client (accuracy, say), in any unit; the papers take percent, which makes the
    variance 10,000 times larger. worst10 is the mean of the K // 10 lowest clients, at least one. Clients
    without a value (nan, e.g. no test rows) are left out; without any client all four are nan.
    """
    values, known, total, mean = _defined(values)
    tenth = np.maximum(total // 10, 1)
    place = np.arange(values.shape[-1])
    ranked = np.sort(values, axis=-1)  # nan last
    spread = np.where(known, subtract(values, mean[..., None]), 0.0)
    lowest = place < tenth[..., None]
    highest = (place >= (total - tenth)[..., None]) & (place < total[..., None])
    share = np.where(total > 0, tenth, 0)
    return {
        "mean": mean[()],
        "worst10": divide(np.where(lowest, ranked, 0.0).sum(-1), share)[()],
        "best10": divide(np.where(highest, ranked, 0.0).sum(-1), share)[()],
        "variance": divide((spread**2).sum(-1), total)[()],
    }


def client_range(values: Any, *, lower_is_better: bool = False) -> dict[str, Any]:
    """Mean, worst and best client of `values` [..., K], each [...]: accuracy, or a gap with `lower_is_better`.

    Clients without a value (nan: no test rows, or none of one group) are left out; without any client all are nan.
    """
    values, known, total, mean = _defined(values)
    low = np.where(total > 0, np.where(known, values, np.inf).min(-1), np.nan)
    high = np.where(total > 0, np.where(known, values, -np.inf).max(-1), np.nan)
    worst, best = (high, low) if lower_is_better else (low, high)
    return {"mean": mean[()], "worst": worst[()], "best": best[()]}


def group_equity(values: Any, groups: Any) -> dict[str, Any]:
    """`client_equality` over groups of clients, a group being the mean of its clients.

    `values` is [..., K], `groups` [K]; clients and groups without a value are left out.
    """
    values = np.asarray(values, dtype=np.float64)
    code, names = _inputs.groups(groups)
    if values.ndim == 0 or values.shape[-1] != len(code):
        raise DataError(f"values of shape {values.shape} and {len(code)} client groups do not belong together.")
    member = code[:, None] == np.arange(len(names))
    known = ~np.isnan(values)
    sums = np.where(known[..., None] & member, values[..., None], 0.0).sum(-2)  # a product would take 0 times infinity
    return client_equality(divide(sums, known.astype(np.float64) @ member))
