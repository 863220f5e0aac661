"""Fairness metrics: counts (group x label x prediction) -> rates -> disparities -> tables and intervals.

Functions of rows follow fairlearn, `(y_true, y_pred, *, sensitive_features)`: there is one, by its name, of every rate
and gap of the catalogue. `rates`, `disparities`, `degenerate` and `bootstrap_interval` take the counts themselves, with
any leading axes. Global disparities come from summed counts, never from averaged client disparities.
"""

from typing import TYPE_CHECKING

from equifed.metrics import functions
from equifed.metrics.calibration import expected_calibration_error
from equifed.metrics.catalogue import Evaluation, Metric
from equifed.metrics.clients import client_equality, client_range, group_equity
from equifed.metrics.disparities import (
    dgeo,
    fair_fate_ratios,
    harmonic_mean,
    ks_distance,
    mean_difference,
    rmse,
    rmse_by_group,
)
from equifed.metrics.fronts import dominated, hypervolume
from equifed.metrics.functions import disparities, rates
from equifed.metrics.rates import counts, degenerate
from equifed.metrics.tables import bootstrap_interval, table_by_group

globals().update({name: functions.of_rows(name) for name in functions.names()})

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    def __getattr__(name: str) -> Callable[..., Any]: ...
