"""Groups: the rows that a rate rests on, its interval, and the marginals of groups that are intersections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from equifed.data.schema import MERGED
from equifed.metrics import evidence
from equifed.metrics.catalogue import describe
from equifed.metrics.disparities import class_rates
from equifed.metrics.seeds import wilson
from equifed.verdict.silos import DISCLOSED

SMALL_GROUP = 50
"""Test rows below which a group's rates are mostly noise."""
BETWEEN = " & "
"""What joins the values of several sensitive columns in the name of their intersection."""


def marginals(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The same columns (seed, name, metric, value) for all rows with one value of one sensitive column.

    Empty unless the groups are intersections, "female & white". Counts add up; rates are put together from the rows
    they rest on, so they equal what would be measured on the pooled rows.
    """
    pooled = [_pooled(frame[frame["name"].isin(members)]).assign(name=name) for name, members in parts(names).items()]
    return pd.concat([frame.iloc[:0], *pooled])[["seed", "name", "metric", "value"]] if pooled else frame.iloc[:0]


def parts(names: Sequence[str]) -> dict[str, list[str]]:
    """{marginal: the groups it pools}, for every value of every column that two groups or more share."""
    pooled: dict[str, list[str]] = {}
    for column, values in enumerate(by_column(names)):
        for value, members in values.items():
            if 1 < len(members) < len(names):
                # two columns may have the same value ("yes"): then the place tells them apart
                pooled[value if value not in pooled else f"{value} ({column + 1})"] = members
    return pooled


def by_column(names: Sequence[str]) -> list[dict[str, list[str]]]:
    """For every sensitive column {value: the groups that have it}; empty unless the groups are intersections. Groups
    that were merged have no value of any column."""
    split = {name: name.split(BETWEEN) for name in names if name != MERGED}
    columns = {len(values) for values in split.values()}
    if len(columns) != 1 or columns == {1}:
        return []
    found: list[dict[str, list[str]]] = []
    for column in range(columns.pop()):
        values: dict[str, list[str]] = {}
        for name, parts_of in split.items():
            values.setdefault(parts_of[column], []).append(name)
        found.append(values)
    return found


class Gap(NamedTuple):
    """A disparity between the groups of one sensitive column, or of all of them crossed."""

    attribute: str
    """The column, or all of them: "sex & race"."""
    mean: float
    """Over seeds."""
    low: float
    """[low, high]: its interval, by the rows and seeds it rests on; nan where it does not follow from counts."""
    high: float
    pair: Pair
    """The groups that are farthest apart."""

    def facts(self) -> dict[str, Any]:
        """For other programs."""
        return {**self._asdict(), "pair": self.pair._asdict()}


def gaps_by_attribute(
    groups: pd.DataFrame, disparity: str, columns: Sequence[str], counts: Any, shared_rows: float, models: int = 1
) -> list[Gap]:
    """The disparity within every sensitive column by itself and between the intersections of all; of one column alone
    where there is only one.

    groups: a variant's (seed, name, metric, value). columns: their names, where they are known. counts [S, G, C, C] of
    the groups in their order of appearance, or None.
    """
    names = list(dict.fromkeys(groups["name"]))
    within = by_column(names)
    columns = columns if len(columns) == max(len(within), 1) else [f"column {i + 1}" for i in range(len(within))]
    crossed = {name: [name] for name in names}
    sets = [*zip(columns, within, strict=False), (BETWEEN.join(columns) or "all groups", crossed)]
    gaps = []
    for attribute, members in sets:
        frames = [_pooled(groups[groups["name"].isin(held)]).assign(name=value) for value, held in members.items()]
        pair = worst_pair(pd.concat(frames), disparity, models)
        if pair is None:
            continue
        mean, low, high = pair.difference, np.nan, np.nan
        if counts is not None and evidence.from_counts(disparity):
            tables = np.stack([counts[:, [names.index(name) for name in held]].sum(1) for held in members.values()], 1)
            mean, low, high = evidence.estimate(disparity, tables, shared_rows=shared_rows)[:3]
        gaps.append(Gap(attribute, mean, low, high, pair))
    return gaps


def _wide(frame: pd.DataFrame) -> pd.DataFrame:
    """The metrics of groups as columns, with a row for each seed and name."""
    return frame.pivot_table(index=["seed", "name"], columns="metric", values="value", dropna=False, sort=False)


def _cells(wide: pd.DataFrame, labels: bool) -> dict[str, pd.Series]:
    """Rows of each seed and group by what `Share` calls them. Labels are known of the rows that are disclosed: all,
    unless silos withhold some. Without labels, as if all were negative: for what follows from predictions alone."""
    names = ("count", "positives", "selection_rate", "true_positive_rate", "false_positive_rate", "accuracy")
    count, positives, selected, tpr, fpr, accuracy = (
        wide.get(name, pd.Series(np.nan, index=wide.index)) for name in names
    )

    def hits(rate: pd.Series, rows: pd.Series) -> pd.Series:
        return (rate * rows).where(rows > 0, rows)  # a rate without rows is undefined, and counts none

    if not labels:
        fp, none = hits(selected, count), 0 * count
        return {"TP": none, "FN": none, "FP": fp, "TN": count - fp}
    disclosed = wide.get(DISCLOSED, count)
    negatives = disclosed - positives
    tp, fp, right = hits(tpr, positives), hits(fpr, negatives), hits(accuracy, disclosed)
    return {
        **{"TP": tp, "FN": positives - tp, "FP": fp, "TN": negatives - fp},
        **{"right": right, "wrong": disclosed - right},
    }


def _pooled(frame: pd.DataFrame) -> pd.DataFrame:
    wide = _wide(frame)
    count = wide["count"]
    weights = {"loss": wide.get(DISCLOSED, count), "mean_prediction": wide.get(DISCLOSED, count), "rmse": count}
    cells = {labels: _cells(wide, labels) for labels in (True, False)}

    def total(values: pd.Series) -> pd.Series:
        return values.groupby(level="seed").sum(min_count=1)

    def ratio(numerator: pd.Series, denominator: pd.Series) -> pd.Series:
        return total(numerator) / total(denominator).where(lambda n: n > 0)

    def mean(values: pd.Series, rows: pd.Series) -> pd.Series:
        return ratio((values * rows).where(rows > 0, 0.0), rows)

    pooled: dict[str, pd.Series] = {}
    for metric in map(str, wide):
        values, share = wide[metric], describe(metric).share
        if describe(metric).in_groups == "count":
            pooled[metric] = total(values)
        elif share is not None:
            pooled[metric] = ratio(*share.parts(cells[share.needs_labels]))
        elif metric == "rmse":
            pooled[metric] = np.sqrt(mean(values**2, weights[metric]))
        elif metric in weights:
            pooled[metric] = mean(values, weights[metric])
    return pd.DataFrame(pooled).reset_index().melt("seed", var_name="metric")


class Pair(NamedTuple):
    """The two groups between which a disparity is widest, by their mean rates over seeds."""

    rate: str
    """The rate in which they differ: a metric of groups."""
    low: str
    """The group where it is lowest."""
    high: str
    """The group where it is highest."""
    low_rate: float
    high_rate: float
    low_rows: float
    """Test rows that the rate rests on, mean over the seeds in which it is defined."""
    high_rows: float

    @property
    def difference(self) -> float:
        return self.high_rate - self.low_rate


def worst_pair(groups: pd.DataFrame, disparity: str, models: int = 1) -> Pair | None:
    """The pair of groups behind a disparity, from a variant's groups (seed, name, metric, value); None for a disparity
    that is no gap between the groups' rates, and where fewer than two groups have one.

    models: how many models each test row was given to, see `Variant.models`. Of several rates (equalised odds) it is
    the one in which two groups are farthest apart: for a ratio, the one with the smallest.
    """
    means = groups.groupby(["metric", "name"], sort=False)["value"].mean()
    rates = describe(disparity).between
    rows = rows_of(groups, rates) / models
    pairs = []
    for rate in rates:
        known = means.get(rate, pd.Series(dtype=float)).dropna()
        if len(known) < 2:
            continue
        low, high = str(known.idxmin()), str(known.idxmax())
        if low == high:  # all alike
            high = str(next(name for name in known.index if name != low))
        pairs.append(
            Pair(rate, low, high, *(float(values[name]) for values in (known, rows[rate]) for name in (low, high)))
        )
    if describe(disparity).better == "one":
        return min(pairs, key=lambda pair: pair.low_rate / pair.high_rate if pair.high_rate else 1.0, default=None)
    return max(pairs, key=lambda pair: pair.difference, default=None)


def widest_class(
    counts: np.ndarray, names: Sequence[str], disparity: str
) -> tuple[int | None, int, str, str, np.ndarray] | None:
    """Of more than two classes, where a difference is widest by mean rates over seeds: (label, predicted class, lowest
    group, highest group, their rates by seed [S, 2]), from counts [S, G, C, C]; a label of -1: the predicted class."""
    found = None
    for block in class_rates(describe(disparity).compares, counts):
        means = block.rates.mean(0)  # [C, G]
        for predicted in np.flatnonzero((~np.isnan(means)).sum(-1) > 1):
            low, high = int(np.nanargmin(means[predicted])), int(np.nanargmax(means[predicted]))
            gap = means[predicted, high] - means[predicted, low]
            if low != high and (found is None or gap > found[0]):
                pair = block.rates[:, predicted, [low, high]]
                found = gap, (block.label, int(predicted), names[low], names[high], pair)
    return found and found[1]


def rate_intervals(groups: pd.DataFrame, models: int = 1) -> pd.DataFrame:
    """Wilson's intervals [low, high] of the groups' mean rates by (name, metric), as one test set of its mean size
    supports them; nan for what is no share of rows.

    Seeds, and several models, share test rows. So their counts are not added up: that would promise more than the data
    hold.
    """
    means = groups.groupby(["name", "metric"], sort=False)["value"].mean()
    rates = [name for name in dict.fromkeys(groups["metric"]) if (share := describe(name).share) and share.is_of_rows]
    rows = rows_of(groups, rates) / models
    on = rows.stack().reindex(means.index) if rates else pd.Series(np.nan, index=means.index)
    return pd.DataFrame(dict(zip(("low", "high"), wilson(means, on), strict=True)), index=means.index)


def rows_of(groups: pd.DataFrame, rates: Sequence[str], *, defined: bool = True) -> pd.DataFrame:
    """The rows that these rates, or other metrics, of groups rest on: by name, a column each. Mean over the seeds in
    which the rate is defined, or over all."""
    wide = _wide(groups)
    cells = {labels: _cells(wide, labels) for labels in (True, False)}
    found = {}
    for name in rates:
        share = describe(name).share
        rows = cells[True]["right"] + cells[True]["wrong"] if share is None else share.rows(cells[share.needs_labels])
        found[name] = rows.where(rows > 0) if defined else rows
    return pd.DataFrame(found, index=wide.index).groupby(level="name", sort=False).mean()


def fewest_rows(groups: pd.DataFrame, rates: Sequence[str]) -> float:
    """How few rows one of these rates of a group rests on, of a variant's groups; mean over seeds, nan without any."""
    rows = rows_of(groups, rates, defined=False).to_numpy()
    return float(np.nanmin(rows)) if np.isfinite(rows).any() else np.nan
