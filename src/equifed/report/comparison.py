"""The numbers of a report, taken from results once: the page, the verdict and the command line share them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from equifed.errors import ConfigError, unknown_name
from equifed.metrics import catalogue
from equifed.metrics.catalogue import describe
from equifed.metrics.seeds import Moments, Paired, corrected, moments, paired
from equifed.report.groups import marginals
from equifed.report.silos import Silos, as_disclosed

if TYPE_CHECKING:
    from equifed.results.result import Result


@dataclass(frozen=True, eq=False)
class Variant:
    """One line of a comparison: a method with one setting, over its seeds."""

    label: str
    """Unique in the report."""
    method: str
    """Its name in the registry."""
    result: int
    """Which of the results it comes from."""
    hyper: dict[str, Any]
    """All hyper-parameters, with the swept ones at this variant's values."""
    split: str
    """Where it was measured: test, or validation when there was no test."""
    last: int
    """The last evaluated round."""
    final: pd.DataFrame
    """Global metrics of the last round, a row per seed."""
    rounds: pd.DataFrame
    """Global metrics of all rounds: seed, round, metric, value."""
    groups: pd.DataFrame
    """Per group, last round: seed, name, metric, value."""
    marginals: pd.DataFrame
    """The same for one value of one sensitive column, where groups are intersections of several."""
    clients: pd.DataFrame
    """Per client, last round: seed, name, metric, value."""
    observed: pd.DataFrame
    """What the method logs about itself: seed, round, name, value."""
    models: int
    """How many models each test row was given to: the clients' own, where they have such; counts of rows are as many
    times as large, though the rows are not more."""
    data: str
    """Equal for variants that saw the same data and partition; only those can be paired by seed."""
    silos: Silos | None
    """Of a real federation; None for a simulation."""

    @property
    def seeds(self) -> int:
        return len(self.final)

    @property
    def pooled(self) -> bool:
        """A reference that trains on all clients' rows in one place, which a federation cannot."""
        return is_pooled(self.method)

    @property
    def eligible(self) -> bool:
        """Whether it may be taken, be the best, or dominate others."""
        return not self.pooled and not self.degenerate.any()

    @property
    def degenerate(self) -> pd.Series:
        """By seed: whether some group gets one constant prediction."""
        if "degenerate" not in self.final:
            return pd.Series(False, index=self.final.index)
        return self.final["degenerate"] > 0

    def values(self, metric: str) -> pd.Series:
        """By seed; nan where undefined or not measured."""
        if metric not in self.final:
            return pd.Series(np.nan, index=self.final.index)
        return self.final[metric]

    def over_seeds(self, metric: str) -> Moments:
        return moments(self.values(metric))

    def cost(self, metric: str) -> float:
        """Its mean turned so that less is better; nan where undefined."""
        return float(describe(metric).cost(self.over_seeds(metric).mean))

    def absent(self, metric: str, **of: Any) -> str:
        """Why it has no such value: withheld, or undefined. Of certain groups, of a client, or of all: see `hides`."""
        return "withheld" if self.silos is not None and self.silos.hides(metric, **of) else "undefined"

    def withholds(self, metric: str) -> bool:
        """Whether its value is not there because silos withhold what it needs."""
        return not self.over_seeds(metric).n and self.absent(metric) == "withheld"


@dataclass(frozen=True, eq=False)
class Comparison:
    """What a report is about: results taken apart once, and what the reader asked for."""

    results: Sequence[Result]
    variants: list[Variant]
    task: str
    disparity: str | None
    """The one that the verdict is about."""
    baseline: Variant
    """What the others are tested against."""

    @classmethod
    def of(cls, results: Sequence[Result], disparity: str | None = None, baseline: str | None = None) -> Comparison:
        task = check_results(results)
        variants = variants_of(results)
        return cls(results, variants, task, chosen_disparity(variants, disparity), chosen_baseline(variants, baseline))

    @property
    def quality(self) -> str:
        return catalogue.main_pair(measured_metrics(self.variants))[0]

    @property
    def metrics(self) -> list[str]:
        """The columns of the comparison table that were measured: the main ones, and the chosen disparity."""
        names = _main(self.variants)
        if self.disparity is not None and self.disparity not in names:
            names.insert(1, self.disparity)
        return names


def is_pooled(method: str) -> bool:
    from equifed.methods import make

    try:
        return make(method).pooled
    except ConfigError:  # a result of somebody's own method
        return False


def check_results(results: Sequence[Result]) -> str:
    """The task that all results share."""
    if not results:
        raise ConfigError("A report needs at least one result, got none.")
    tasks = list(dict.fromkeys(str(result.info.get("task", "classification")) for result in results))
    if len(tasks) > 1:
        raise ConfigError(
            f"One report cannot compare {' and '.join(tasks)} results: they share no metric. Write one report for each."
        )
    return tasks[0]


def variants_of(results: Sequence[Result]) -> list[Variant]:
    """Every method and setting in the results, in their order."""
    check_results(results)
    variants: list[Variant] = []
    for i, result in enumerate(results):
        variants += _variants_of(i, result)
    labels = _labels(variants, results)
    return [replace(variant, label=label) for variant, label in zip(variants, labels, strict=True)]


def chosen_disparity(variants: list[Variant], name: str | None = None) -> str | None:
    """The disparity that the verdict is about: the one named, or the main one of those measured."""
    measured = measured_metrics(variants)
    if name is not None and name not in measured:
        raise unknown_name("metric", name, measured)
    return name or next((metric for metric in _main(variants) if describe(metric).disparity), None)


def chosen_baseline(variants: list[Variant], name: str | None = None) -> Variant:
    """What the others are tested against: the one named, by label or method; else FedAvg, else the first."""
    for variant in variants:
        if name in (variant.label, variant.method):
            return variant
    if name is not None:
        raise unknown_name("baseline", name, [variant.label for variant in variants])
    return next((variant for variant in variants if variant.method == "fedavg"), variants[0])


def measured_metrics(variants: list[Variant]) -> list[str]:
    """Names of the global metrics, in order of appearance."""
    return list(dict.fromkeys(str(name) for variant in variants for name in variant.final.columns))


def _main(variants: list[Variant]) -> list[str]:
    """The main metrics that were measured. What needs all predictions in one place cannot be known where every variant
    was a real federation."""
    federated = all(variant.silos is not None for variant in variants)
    measured = measured_metrics(variants)
    return catalogue.shown((name for name in measured if not (federated and "scores" in describe(name).needs)), "page")


def against(variants: Sequence[Variant], other: Variant, metric: str) -> list[Paired | None]:
    """Every variant minus `other` in one metric over the seeds they share, corrected together; None for itself, and
    where seeds are too few or the data differ."""

    def test(variant: Variant) -> Paired | None:
        if variant is other or variant.data != other.data:
            return None
        return paired(variant.values(metric) - other.values(metric))

    return corrected([test(variant) for variant in variants])


def summary_table(results: Sequence[Result], *, disparity: str | None = None) -> pd.DataFrame:
    """Method and setting x (column, mean | std | n): last round, over seeds; n counts the seeds where it is defined.

    After the metrics come `bytes_up` and `bytes_down` (per client and round) and `seconds` (per run), with a mean only,
    the number of `seeds`, and in how many of them the predictor is `degenerate`.
    """
    comparison = Comparison.of(results, disparity)
    return summary_of(comparison.variants, results, comparison.metrics)


def summary_of(variants: list[Variant], results: Sequence[Result], metrics: list[str]) -> pd.DataFrame:
    runs = [sum(variant.seeds for variant in variants if variant.result == i) for i in range(len(results))]
    rows = []
    for variant in variants:
        result = results[variant.result]
        row: dict[tuple[str, str], float] = {}
        for name in metrics:
            row[name, "mean"], row[name, "std"], row[name, "n"] = variant.over_seeds(name)
        each_round = result.messages[result.messages["stage"] == "round"]
        row["bytes_up", "mean"] = float(each_round["bytes_up"].sum())
        row["bytes_down", "mean"] = float(each_round["bytes_down"].sum())
        row["seconds", "mean"] = float(result.timings.get("seconds", np.nan)) / max(runs[variant.result], 1)
        row["seeds", "n"] = variant.seeds
        row["degenerate", "n"] = int(variant.degenerate.sum())
        rows.append(row)
    frame = pd.DataFrame(rows, index=pd.Index([variant.label for variant in variants], name="method"))
    frame.columns = pd.MultiIndex.from_tuples([*rows[0]], names=["column", "over seeds"])
    return frame.astype({column: int for column in frame.columns if column[1] == "n"})


# -- taking results apart ----------------------------------------------------------------------------------------------


def _variants_of(i: int, result: Result) -> list[Variant]:
    frame = result.metrics
    if frame.empty:
        raise ConfigError(
            f"The result of {result.info['method']} has no measurements, so there is nothing to report. "
            "Give the federation test rows."
        )
    splits = set(frame.loc[frame["scope"] == "global", "split"].unique())
    split = "test" if "test" in splits else "validation"
    frame = frame[frame["split"] == split]
    last = int(frame["round"].max())
    scope = frame["scope"].astype(str)
    whole = frame[scope == "global"]
    ended = frame["round"] == last
    parts = {kind: _named(frame[ended & scope.str.startswith(f"{kind}:")], kind) for kind in ("group", "client")}
    silos = Silos.of(result)
    swept = result.swept
    keys = ["method", *swept]
    info = result.info
    made = []
    for key, rows in whole.groupby(keys, observed=True, sort=False, dropna=False):
        values = dict(zip(keys, key, strict=True))
        mine = {kind: _matching(part, values) for kind, part in parts.items()}
        mine["group"] = as_disclosed(mine["group"], silos)
        final = _wide(rows[rows["round"] == last], "metric")
        method = str(values.pop("method"))
        made.append(
            Variant(
                label=method + _settings(values),
                method=method,
                result=i,
                hyper={**info.get("hyper_parameters", {}), **{k: _python(v) for k, v in values.items()}},
                split=split,
                last=last,
                final=final,
                rounds=rows[["seed", "round", "metric", "value"]],
                groups=mine["group"],
                marginals=marginals(mine["group"], list(dict.fromkeys(mine["group"]["name"]))),
                clients=mine["client"],
                observed=_observed(result, keys, key),
                models=_models(mine["group"], info),
                data=fingerprint(info),
                silos=silos,
            )
        )
    return made


_ROUND = ("method", "seed", "round", "sampled", "replied", "dropped", "rejected", "applied", "stopped")
"""Columns of every log; the others are what the method observes."""


def _models(groups: pd.DataFrame, info: dict[str, Any]) -> int:
    rows = info.get("rows", {}).get("test", 0)
    counted = groups[groups["metric"] == "count"].groupby("seed")["value"].sum()
    return max(1, round(counted.mean() / rows)) if rows and len(counted) else 1


def _observed(result: Result, keys: list[str], key: Any) -> pd.DataFrame:
    log = result.log
    names = [name for name in log.columns if name not in (*_ROUND, *result.swept)]
    if not names:
        return pd.DataFrame(columns=["seed", "round", "name", "value"])
    rows = _alike(log, dict(zip(keys, key, strict=True)))
    return log[rows].melt(["seed", "round"], names, "name", "value").astype({"value": float})


def fingerprint(info: dict[str, Any]) -> str:
    """Equal for results on the same data with the same partition."""
    return json.dumps([info.get(key) for key in ("data", "clients", "groups", "classes", "cells", "rows")], default=str)


def _named(frame: pd.DataFrame, kind: str) -> pd.DataFrame:
    return frame.assign(name=frame["scope"].astype(str).str.slice(len(kind) + 1))


def _wide(frame: pd.DataFrame, columns: str) -> pd.DataFrame:
    """A row per seed, a column per name, undefined ones included."""
    named = frame.assign(**{columns: frame[columns].astype(str)})
    return named.pivot_table(index="seed", columns=columns, values="value", dropna=False, sort=False).rename_axis(
        columns=None
    )


def _matching(frame: pd.DataFrame, values: dict[str, Any]) -> pd.DataFrame:
    return frame.loc[_alike(frame, values), ["seed", "name", "metric", "value"]]


def _alike(frame: pd.DataFrame, values: dict[str, Any]) -> np.ndarray:
    """Rows that have these values."""
    keep = np.ones(len(frame), dtype=bool)
    for name, value in values.items():
        column = frame[name]
        keep &= (column.isna() if pd.isna(value) else column == value).to_numpy(dtype=bool)
    return keep


def _python(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _settings(values: dict[str, Any]) -> str:
    if not values:
        return ""
    shown = (f"{k}={v:g}" if isinstance(v, float | np.floating) else f"{k}={v}" for k, v in values.items())
    return f" ({', '.join(shown)})"


def _labels(variants: list[Variant], results: Sequence[Result]) -> list[str]:
    """Unique labels: equal ones get what tells them apart (a hyper-parameter, the data, the rounds) or a number."""
    labels = [variant.label for variant in variants]
    for label in {label for label in labels if labels.count(label) > 1}:
        same = [i for i, other in enumerate(labels) if other == label]
        details = [_details(variants[i], results[variants[i].result]) for i in same]
        differing = [
            name
            for name in dict.fromkeys(name for each in details for name in each)
            if len({str(each.get(name)) for each in details}) > 1
        ]
        for i, each in zip(same, details, strict=True):
            labels[i] = label + _settings({name: each.get(name) for name in differing})
    seen: dict[str, int] = {}
    for i, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        if seen[label] > 1:
            labels[i] = f"{label} #{seen[label]}"
    return labels


def _details(variant: Variant, result: Result) -> dict[str, Any]:
    names = ("rounds", "clients_per_round", "dropout", "clip")
    return {**variant.hyper, "data": result.info["data"], **{name: getattr(result.settings, name) for name in names}}
