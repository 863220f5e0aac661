"""The trade-off between quality and disparity over the settings of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from equifed import metrics as M
from equifed.errors import unknown_name
from equifed.metrics import seeds
from equifed.metrics.catalogue import costs

if TYPE_CHECKING:
    import pandas as pd


class Hypervolume(NamedTuple):
    value: float
    """The area that the front of the means dominates."""
    low: float
    """Lower end of its 95 % interval (nan for one seed)."""
    high: float
    """Upper end."""
    reference: tuple[float, float]
    """The (quality, disparity) up to which it is measured."""


def pareto(final: pd.DataFrame, setting: Sequence[str], quality: str, disparity: str) -> pd.DataFrame:
    """Means, their intervals, which settings are dominated, and in how many of their runs both metrics are defined;
    `final` has a row per run, `setting` names the columns that tell settings apart."""
    import pandas as pd

    keys, values = _by_setting(final, setting, quality, disparity)
    points = pd.DataFrame(keys, columns=list(setting))
    means = seeds.mean(values, -2)
    low, high = seeds.percentile_interval(seeds.resampled_means(values, -2))
    for i, name in enumerate((quality, disparity)):
        points[name], points[f"{name}_low"], points[f"{name}_high"] = means[:, i], low[:, i], high[:, i]
    points["dominated"] = M.dominated(costs((quality, disparity), means)) | np.isnan(means).any(1)
    points["defined"], points["runs"] = (~np.isnan(values)).all(-1).sum(1), values.shape[1]
    return points


def hypervolume(
    final: pd.DataFrame,
    setting: Sequence[str],
    quality: str,
    disparity: str,
    reference: tuple[float, float] | None,
) -> Hypervolume:
    """The area that the settings' means dominate, up to the reference."""
    _, values = _by_setting(final, setting, quality, disparity)
    means = seeds.mean(values, -2)
    if np.isnan(means).any(1).all():
        return Hypervolume(np.nan, np.nan, np.nan, reference or (np.nan, np.nan))
    if reference is None:
        worst = np.nanargmax(costs((quality, disparity), means), axis=0)
        reference = float(means[worst[0], 0]), float(means[worst[1], 1])
    corner = costs((quality, disparity), reference)

    def area(means: np.ndarray) -> float:
        return M.hypervolume(costs((quality, disparity), means), corner)

    resampled = seeds.resampled_means(values, -2)
    areas = [area(sample) for sample in resampled] if len(resampled) > 1 else [np.nan]
    low, high = seeds.percentile_interval(areas)
    return Hypervolume(area(means), float(low), float(high), reference)


def _by_setting(
    final: pd.DataFrame, setting: Sequence[str], quality: str, disparity: str
) -> tuple[list[tuple[Any, ...]], np.ndarray]:
    """Every setting, and both metrics of its seeds [settings, seeds, 2]."""
    for name in (quality, disparity):
        if name not in final:
            raise unknown_name("metric", name, final.columns)
    groups = [
        (key, part.sort_values("seed")[[quality, disparity]].to_numpy())
        for key, part in final.groupby(list(setting), observed=True, sort=False)
    ]
    return [key for key, _ in groups], np.stack([part for _, part in groups])
