"""A method with one setting, over its seeds: what was measured of it, and what that shows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from equifed.errors import ConfigError
from equifed.metrics.catalogue import describe
from equifed.metrics.evidence import Estimate, Evidence, from_counts, tables_for
from equifed.metrics.seeds import LEVEL, Moments, mean_interval, moments
from equifed.results.counts import Split, having, of_kind, setting_tables
from equifed.results.model import settings_text
from equifed.verdict.groups import SMALL_GROUP, Gap, Pair, fewest_rows, gaps_by_attribute, marginals, worst_pair
from equifed.verdict.silos import Silos, as_disclosed

if TYPE_CHECKING:
    from equifed.results.result import Result

DATA = {
    "data": "name",
    "clients": "clients",
    "groups": "groups",
    "classes": "classes",
    "cells": "which rows clients have",
    "rows": "numbers of rows",
}
"""Equal in results on the same data with the same partition; what each is called."""
LOG = "log:"
"""Begins the name of what a method logs about itself, which has nothing to do with a metric of the same name."""
_ROUND = ("method", "seed", "round", "sampled", "replied", "dropped", "rejected", "applied", "stopped")
"""Columns of every log; the others are what the method observes."""


class _Source:
    """What the settings of a result have in common on one set of rows."""

    def __init__(self, result: Result, split: Split, others: dict[Split, _Source] | None = None) -> None:
        self.result, self.split = result, split
        self._others: dict[Split, _Source] = {} if others is None else others
        self._others[split] = self

    def on(self, split: Split) -> _Source:
        """The same on other rows."""
        return self._others.get(split) or _Source(self.result, split, self._others)

    @cached_property
    def overall(self) -> pd.DataFrame:
        """Global metrics of all rounds; empty where nothing was measured on these rows."""
        frame = self.result.metrics
        return frame if frame.empty else frame[(frame["scope"] == "global") & (frame["split"] == self.split)]

    @cached_property
    def last(self) -> int:
        """The last evaluated round."""
        frame = self.result.metrics
        return int(frame.loc[frame["split"] == self.split, "round"].max())

    @cached_property
    def ended(self) -> pd.DataFrame:
        """All metrics of the last round, with the kind of scope and its name apart."""
        frame = self.result.metrics
        ended = frame[(frame["split"] == self.split) & (frame["round"] == self.last)].astype({"metric": str})
        scope = ended["scope"].astype(str).str.partition(":")
        return ended.assign(kind=scope[0], name=scope[2])

    @cached_property
    def silos(self) -> Silos | None:
        return Silos.of(self.result)


@dataclass(frozen=True, eq=False)
class Variant:
    """A method with one setting, over its seeds, as it was measured on one set of rows. Its numbers are taken from the
    result when they are first asked for, and kept."""

    label: str
    """Unique among those that are compared."""
    method: str
    """Its name in the registry."""
    setting: dict[str, float]
    """The swept hyperparameters at this variant's values."""
    hyper: dict[str, Any]
    """All hyperparameters."""
    source: _Source = field(repr=False)

    @property
    def result(self) -> Result:
        """The one that it is in."""
        return self.source.result

    @property
    def split(self) -> Split:
        """Where it was measured: test, or validation when there was no test."""
        return self.source.split

    def on(self, split: Split) -> Variant:
        """The same on other rows."""
        if split not in self._views:
            self._views[split] = other = replace(self, source=self.source.on(split))
            vars(other)["_views"] = self._views
        return self._views[split]

    @cached_property
    def _views(self) -> dict[Split, Variant]:
        """The same on each set of rows that was asked for."""
        return {self.split: self}

    @property
    def shown(self) -> Variant:
        """The same on the rows that are shown: test rows, or validation rows where there is no test."""
        test = self.on("test")
        return test if test.measured else self.on("validation")

    def named(self, label: str) -> Variant:
        """The same under another label."""
        return self if label == self.label else replace(self, label=label)

    # -- what was measured ---------------------------------------------------------------------------------------------

    @property
    def measured(self) -> bool:
        """Whether anything was, on these rows."""
        return not self.source.overall.empty

    @property
    def last(self) -> int:
        """The last evaluated round."""
        return self.source.last

    @cached_property
    def _ended(self) -> pd.DataFrame:
        return having(self.source.ended, self.setting)

    @cached_property
    def final(self) -> pd.DataFrame:
        """Global metrics of the last round, a row per seed."""
        if not self.measured:
            return pd.DataFrame()
        overall = self._ended[self._ended["kind"] == "global"]
        wide = overall.pivot_table(index="seed", columns="metric", values="value", dropna=False, sort=False)
        return wide.rename_axis(columns=None)

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """Global metrics of all rounds: seed, round, metric, value."""
        return having(self.source.overall, self.setting)[["seed", "round", "metric", "value"]].astype({"metric": str})

    def _scope(self, kind: str) -> pd.DataFrame:
        return self._ended.loc[self._ended["kind"] == kind, ["seed", "name", "metric", "value"]]

    @cached_property
    def groups(self) -> pd.DataFrame:
        """Per group, last round: seed, name, metric, value."""
        return as_disclosed(self._scope("group"), self.silos)

    @cached_property
    def marginals(self) -> pd.DataFrame:
        """The same for one value of one sensitive column, where groups are intersections of several."""
        return marginals(self.groups, list(dict.fromkeys(self.groups["name"])))

    @cached_property
    def clients(self) -> pd.DataFrame:
        """Per client, last round: seed, name, metric, value."""
        return self._scope("client")

    @cached_property
    def calibration(self) -> pd.DataFrame:
        """Histograms of scores by group, last round: seed, group, bin, rows, positives, score_sum."""
        kept = having(self.result.calibration, self.setting)
        return kept[kept["split"] == self.split]

    @cached_property
    def local_gaps(self) -> pd.DataFrame:
        """Every client's own gap with its sign, last round: see `Result.local_gaps`."""
        return having(self.result.local_gaps, self.setting)

    @cached_property
    def observed(self) -> pd.DataFrame:
        """What the method logs about itself: seed, round, metric (its name after `LOG`), value."""
        log = having(self.result.log, self.setting)
        names = [name for name in log.columns if name not in (*_ROUND, *self.result.swept)]
        long = log.melt(["seed", "round"], names, "metric", "value").astype({"metric": str, "value": float})
        return long.assign(metric=LOG + long["metric"])

    @property
    def attributes(self) -> tuple[str, ...]:
        """The sensitive columns, where they are known."""
        schema = self.result.schema
        return () if schema is None else tuple(rule.column for rule in schema.sensitive)

    @property
    def silos(self) -> Silos | None:
        """Of a real federation; None for a simulation."""
        return self.source.silos

    @cached_property
    def data(self) -> str:
        """Equal for variants that saw the same data and partition; only those can be paired by seed."""
        return json.dumps([self.result.info.get(name) for name in DATA], default=str)

    @property
    def shared_rows(self) -> float:
        """The share of these rows that a seed has in common with another one."""
        return float(self.result.info.get("shared_rows", {}).get(self.split, 1.0))

    @cached_property
    def models(self) -> int:
        """How many models each test row was given to: the clients' own, where they have such; counts of rows are as
        many times as large, though the rows are not more."""
        info = self.result.info
        rows = info.get("rows", {}).get("test", 0) - (info.get("unknown_groups", {}).get("test") or 0)
        counted = self.groups[self.groups["metric"] == "count"].groupby("seed")["value"].sum()
        return max(1, round(counted.mean() / rows)) if rows and len(counted) else 1

    # -- numbers over its seeds ----------------------------------------------------------------------------------------

    @property
    def seeds(self) -> int:
        return len(self.final)

    @property
    def pooled(self) -> bool:
        """A reference that trains on all clients' rows in one place, which a federation cannot."""
        return is_pooled(self.method)

    @property
    def needs_validation(self) -> bool:
        """Whether it trains with the server's validation rows."""
        return _known(self.method, "needs_validation")

    @property
    def eligible(self) -> bool:
        """Whether it may be taken, be the best, or dominate others."""
        return not self.pooled and not self.degenerate.any()

    @property
    def degenerate(self) -> pd.Series:
        """By seed: whether some group gets one constant prediction."""
        return self.values("degenerate") > 0

    def values(self, metric: str) -> pd.Series:
        """By seed; nan where undefined or not measured."""
        return self.final.get(metric, pd.Series(np.nan, index=self.final.index))

    def over_seeds(self, metric: str) -> Moments:
        return moments(self.values(metric))

    def costs(self, metric: str) -> pd.Series:
        """By seed, turned so that less is better; nan where undefined."""
        values = self.values(metric)
        return pd.Series(describe(metric).cost(values.to_numpy(np.float64)), index=values.index)

    def cost(self, metric: str) -> float:
        """Its mean turned so that less is better; nan where undefined."""
        return float(describe(metric).cost(self.over_seeds(metric).mean))

    # -- what its counts show ------------------------------------------------------------------------------------------

    @cached_property
    def _whole(self) -> np.ndarray | None:
        return setting_tables(self.result, self.setting, self.split)

    @cached_property
    def _tables(self) -> dict[tuple[bool, ...], np.ndarray]:
        return {}

    @cached_property
    def _evidence(self) -> dict[tuple[Any, ...], Evidence]:
        return {}

    def tables(self, metric: str) -> np.ndarray | None:
        """Rows [S, G, C, C] by seed, group, label and prediction, last round, that the metric follows from; None for a
        regression."""
        kind = (*tables_for(metric).values(),)
        if self._whole is not None and kind not in self._tables:
            self._tables[kind] = of_kind(self._whole, self.result.info, *kind)
        return self._tables.get(kind)

    def evidence(self, metric: str, level: float = 1 - LEVEL) -> Evidence | None:
        """What its counts show at this level; None where the metric does not follow from counts."""
        counts = self.tables(metric) if from_counts(metric) else None
        if counts is None:
            return None
        key = (*tables_for(metric).values(), level)
        if key not in self._evidence:
            self._evidence[key] = Evidence(counts, level, self.shared_rows)
        return self._evidence[key]

    def estimate(self, metric: str, level: float = 1 - LEVEL) -> Estimate:
        """Its mean with row and seed noise where the metric follows from counts, else with seed noise; nan where it is
        undefined in some seed, about which nothing is shown then."""
        values = self.values(metric).to_numpy(np.float64)
        if not len(values) or not np.isfinite(values).all():
            return Estimate(*[math.nan] * 5)
        shown = self.evidence(metric, level)
        return _over_seeds(values, level) if shown is None else shown.estimate(metric)

    def shows(self, metric: str) -> Evidence | None:
        """What its counts show about the metric; None where they do not give its value: it does not follow from counts,
        or is undefined in a seed."""
        evidence = self.evidence(metric)
        value = evidence.estimate(metric).mean if evidence else math.nan
        return evidence if math.isclose(value, self.over_seeds(metric).mean, abs_tol=1e-9) else None

    def interval(self, metric: str) -> tuple[float, float] | None:
        """Of its mean over seeds, 95 %, within what the metric can be: from rows and seeds where counts show it, else
        from seeds; None where those are too few."""
        shown = self.shows(metric)
        if shown is not None:
            found = shown.estimate(metric)
            return found.low, found.high
        bounds = mean_interval(self.values(metric))
        low, high = describe(metric).range
        if bounds is None or not low <= self.over_seeds(metric).mean <= high:  # a metric that does not know its range
            return bounds
        return max(bounds[0], low), min(bounds[1], high)

    def noise_floor(self, metric: str) -> float:
        """What a perfectly fair model might show on its rows; nan where there is no such thing."""
        shown = self.shows(metric)
        return shown.noise_floor(metric) if shown else math.nan

    def within_floor(self, metric: str) -> bool:
        """Whether its disparity cannot be told from none."""
        return bool(self.cost(metric) <= describe(metric).cost(self.noise_floor(metric)))

    # -- groups, clients, silos ----------------------------------------------------------------------------------------

    def worst_pair(self, disparity: str) -> Pair | None:
        """The groups between which it is widest, by their mean rates over seeds."""
        return worst_pair(self.groups, disparity, self.models)

    def gaps(self, disparity: str) -> list[Gap]:
        """The disparity by sensitive column, and between their intersections; empty for two groups, whose gap is the
        disparity itself."""
        if self.groups["name"].nunique() < 3:
            return []
        counts = self.tables(disparity)
        return gaps_by_attribute(self.groups, disparity, self.attributes, counts, self.shared_rows, self.models)

    @cached_property
    def noisy(self) -> set[str]:
        """Its metrics that rest on fewer than SMALL_GROUP test rows of a group: those between groups, and those of the
        best and the worst client where its rows are so few that a group of its must have fewer."""
        clients = self.clients.pivot_table(index=["seed", "name"], columns="metric", values="value", dropna=False)
        groups, found = self.groups["name"].nunique(), set()
        for name in map(str, self.final.columns):
            metric = describe(name)
            between = "groups" in metric.needs
            inner, _, which = name.removeprefix("client_").rpartition(".")
            if which in ("best", "worst") and inner in clients:
                known = clients.dropna(subset=[inner, "rows"])
                by_seed = known.groupby(level="seed")[inner]
                lowest = (metric.direction == "lower") == (which == "best")
                rows = known.loc[by_seed.idxmin() if lowest else by_seed.idxmax(), "rows"].min()
                fewest = rows / groups if between else rows
            elif between and "clients" not in metric.needs:
                fewest = fewest_rows(self.groups, metric.compares or ("accuracy",)) / self.models
            else:
                continue
            if fewest < SMALL_GROUP:
                found.add(name)
        return found

    def absent(self, metric: str, **of: Any) -> str:
        """Why it has no such value: withheld, or undefined. Of certain groups, of a client, or of all: see `hides`."""
        return "withheld" if self.silos is not None and self.silos.hides(metric, **of) else "undefined"

    def withholds(self, metric: str) -> bool:
        """Whether its value is not there because silos withhold what it needs."""
        return not self.over_seeds(metric).n and self.absent(metric) == "withheld"


def _over_seeds(values: np.ndarray, confidence: float) -> Estimate:
    """t-intervals of the mean over seeds; without ends for too few of them."""
    unknown, error = (math.nan, math.nan), 1 - confidence
    # a one-sided end is that of a two-sided interval with twice the error
    low, high, lower_end, upper_end = (
        end for level in (error, 2 * error) for end in mean_interval(values, level) or unknown
    )
    return Estimate(float(values.mean()), low, high, lower_end, upper_end)


# -- taking results apart ----------------------------------------------------------------------------------------------


def variants_in(result: Result) -> list[Variant]:
    """Every setting of a result, in its order. `Result.variants` keeps them: they are taken once."""
    method, source = str(result.info["method"]), _Source(result, "test")
    if source.overall.empty:
        source = source.on("validation")
    swept = result.metrics[result.swept].drop_duplicates()
    columns = [swept[name].tolist() for name in result.swept]
    settings = [dict(zip(result.swept, values, strict=True)) for values in zip(*columns, strict=True)] or [{}]
    return [
        Variant(
            method + settings_text(setting),
            method,
            setting,
            {**result.info.get("hyper_parameters", {}), **setting},
            source,
        )
        for setting in settings
    ]


def variants_of(results: Sequence[Result]) -> list[Variant]:
    """Every method and setting in the results, in their order, each with a label of its own."""
    found = [variant for result in results for variant in result.variants]
    return [variant.named(label) for variant, label in zip(found, _unique_labels(found), strict=True)]


def is_pooled(method: str) -> bool:
    """Whether it trains on all clients' rows in one place, which a federation cannot."""
    return _known(method, "pooled")


def _known(method: str, attribute: str) -> bool:
    """Return what the method of this name is; False for the result of a method from outside."""
    from equifed.methods import make_recorded

    try:
        return bool(getattr(make_recorded(method), attribute))
    except ConfigError:
        return False


def _unique_labels(variants: Sequence[Variant]) -> list[str]:
    """Equal labels get what tells them apart (a hyperparameter, the data, the rounds) or a number."""
    labels = [each.label for each in variants]
    for label in {label for label in labels if labels.count(label) > 1}:
        same = [i for i, other in enumerate(labels) if other == label]
        details = [_details(variants[i]) for i in same]
        differing = differing_names(details)
        for i, each in zip(same, details, strict=True):
            labels[i] = label + settings_text({name: each.get(name) for name in differing})
    before = [labels[:i].count(label) for i, label in enumerate(labels)]
    return [f"{label} #{times + 1}" if times else label for label, times in zip(labels, before, strict=True)]


def differing_names(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """In which of them these facts are not all the same."""
    names = dict.fromkeys(name for known in facts for name in known)
    return [name for name in names if len({str(known.get(name)) for known in facts}) > 1]


def _details(variant: Variant) -> dict[str, Any]:
    names = ("rounds", "clients_per_round", "dropout", "clip", "robust", "liars")
    settings = {name: getattr(variant.result.settings, name) for name in names}
    return {**variant.hyper, "data": variant.result.info["data"], **settings}
