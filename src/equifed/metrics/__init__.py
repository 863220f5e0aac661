"""Fairness metrics: counts (group x label x prediction) -> rates -> disparities -> tables and intervals.

Functions of rows follow fairlearn, `(y_true, y_pred, *, sensitive_features)`; `rates`, `disparities`,
`degenerate` and `bootstrap_interval` take the counts themselves, with any leading axes. Global disparities
come from summed counts, never from averaged client disparities.
"""

from equifed.metrics.calibration import expected_calibration_error
from equifed.metrics.catalogue import Evaluation, Metric
from equifed.metrics.clients import client_equality, client_range, group_equity
from equifed.metrics.disparities import (
    accuracy_difference,
    average_odds_ratio,
    demographic_parity_difference,
    demographic_parity_ratio,
    dgeo,
    discrimination_index,
    disparities,
    equal_opportunity_difference,
    equal_opportunity_ratio,
    equalized_odds_difference,
    equalized_odds_ratio,
    fair_fate_ratios,
    harmonic_mean,
    ks_distance,
    mean_difference,
    rmse,
    rmse_by_group,
)
from equifed.metrics.fronts import dominated, hypervolume
from equifed.metrics.rates import (
    accuracy,
    counts,
    degenerate,
    f1,
    false_negative_rate,
    false_positive_rate,
    rates,
    selection_rate,
    true_negative_rate,
    true_positive_rate,
)
from equifed.metrics.tables import bootstrap_interval, table_by_group
