"""The numbers of a report, taken from results once: the page, the verdict and the command line share them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from equifed.errors import ConfigError, check_number, unknown_name
from equifed.metrics import catalogue
from equifed.metrics.catalogue import describe
from equifed.metrics.evidence import Evidence, from_counts, tables_for
from equifed.metrics.fronts import dominated
from equifed.metrics.seeds import Moments, Paired, corrected, mean_interval, moments, paired
from equifed.report.groups import SMALL_GROUP, Gap, Pair, fewest_rows, gaps_by_attribute, marginals, worst_pair
from equifed.report.silos import Silos, as_disclosed
from equifed.results.answer import answer_if_asked
from equifed.results.candidates import data_of, having, is_pooled, needs_validation, settings_text, unique_labels
from equifed.results.counts import of_kind, setting_tables
from equifed.settings import MARGIN

if TYPE_CHECKING:
    from equifed.results.outcome import Answer, Confidence
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
    calibration: pd.DataFrame
    """Histograms of scores by group, last round: seed, group, bin, rows, positives, score_sum."""
    local_gaps: pd.DataFrame
    """Every client's own gap with its sign, last round: see `Result.local_gaps`."""
    observed: pd.DataFrame
    """What the method logs about itself: seed, round, metric (its name after `LOG`), value."""
    attributes: tuple[str, ...]
    """The sensitive columns, where they are known."""
    counts: Mapping[tuple[bool, ...], np.ndarray]
    """Rows [S, G, C, C] by seed, group, label and prediction, last round, of each kind that `evidence.tables_for` tells
    apart. Empty for a regression."""
    shared_rows: float
    """The share of its test rows that a seed has in common with another one."""
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
        return self.values("degenerate") > 0

    def values(self, metric: str) -> pd.Series:
        """By seed; nan where undefined or not measured."""
        return self.final.get(metric, pd.Series(np.nan, index=self.final.index))

    def over_seeds(self, metric: str) -> Moments:
        return moments(self.values(metric))

    @cached_property
    def _evidence(self) -> dict[tuple[bool, ...], Evidence]:
        """What its counts of each kind show."""
        return {kind: Evidence(counts, shared_rows=self.shared_rows) for kind, counts in self.counts.items()}

    def shows(self, metric: str) -> Evidence | None:
        """What its counts show about the metric; None where they do not give its value: it does not follow from counts,
        or is undefined in a seed."""
        evidence = self._evidence.get(_kind(metric)) if from_counts(metric) else None
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

    def costs(self, metric: str) -> pd.Series:
        """By seed, turned so that less is better; nan where undefined."""
        values = self.values(metric)
        return pd.Series(describe(metric).cost(values.to_numpy(np.float64)), index=values.index)

    def cost(self, metric: str) -> float:
        """Its mean turned so that less is better; nan where undefined."""
        return float(describe(metric).cost(self.over_seeds(metric).mean))

    def worst_pair(self, disparity: str) -> Pair | None:
        """The groups between which it is widest, by their mean rates over seeds."""
        return worst_pair(self.groups, disparity, self.models)

    def tables(self, metric: str) -> np.ndarray | None:
        """The counts [S, G, C, C] that the metric follows from; None for a regression."""
        return self.counts.get(_kind(metric))

    def gaps(self, disparity: str) -> list[Gap]:
        """The disparity by sensitive column, and between their intersections; empty for two groups, whose gap is the
        disparity itself."""
        if self.groups["name"].nunique() < 3:
            return []
        counts = self.tables(disparity)
        return gaps_by_attribute(self.groups, disparity, self.attributes, counts, self.shared_rows, self.models)

    @property
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


@dataclass(frozen=True, eq=False)
class Comparison:
    """What a report is about: results taken apart once, and what the reader asked for."""

    results: Sequence[Result]
    variants: list[Variant]
    measured: list[str]
    """Names of the global metrics, in order of appearance."""
    disparity: str | None
    """The one that the verdict is about."""
    baseline: Variant
    """What the others are tested against."""
    margin: float = MARGIN
    """How much of the quality may be given up for fairness: a share of its range, or of the best mean where it has
    none."""
    answer: Answer | None = None
    """To the target, where there is one."""

    @classmethod
    def of(
        cls,
        results: Sequence[Result],
        disparity: str | None = None,
        baseline: str | None = None,
        margin: float = MARGIN,
        target: Any = None,
        confidence: Confidence | None = None,
    ) -> Comparison:
        """disparity: by default the first that a target is about, or else the main one of those measured. baseline: a
        label or a method; by default FedAvg, or else the first. margin: see `verdict`. target, confidence: by default
        those that the results were made with."""
        check_margin(margin)
        variants = variants_of(results)
        measured = list(dict.fromkeys(str(name) for variant in variants for name in variant.final.columns))
        if disparity is not None and disparity not in measured:
            raise unknown_name("metric", disparity, measured)
        answer = answer_if_asked(results, target, confidence)
        wanted = [] if answer is None else [each.metric for each in answer.targets]
        gaps = [metric for metric in (*wanted, *_main(variants, measured)) if describe(metric).disparity]
        disparity = disparity or next(iter(gaps), None)
        named = [variant for variant in variants if baseline in (variant.label, variant.method)]
        if baseline is not None and not named:
            raise unknown_name("baseline", baseline, [variant.label for variant in variants])
        default = [variant for variant in variants if variant.method == "fedavg"] or variants
        return cls(results, variants, measured, disparity, (named or default)[0], margin, answer)

    @cached_property
    def quality(self) -> str:
        return catalogue.main_pair(self.measured)[0]

    @property
    def judged(self) -> list[str]:
        """What the verdict is about: the quality and, where there is one, the disparity."""
        return [self.quality, *([self.disparity] if self.disparity else [])]

    @cached_property
    def for_choosing(self) -> Comparison:
        """The same on validation rows, where settings of a sweep are to be chosen and all results have such rows that
        no method trains on; otherwise itself."""
        measured = [set(result.metrics["split"].astype(str)) for result in self.results]
        clean = not any(needs_validation(variant.method) for variant in self.variants)
        both = all({"test", "validation"} <= splits for splits in measured)
        if not (clean and both and any(result.swept for result in self.results)):
            return self
        variants = variants_of(self.results, "validation")
        return replace(self, variants=variants, baseline=variants[self.variants.index(self.baseline)])

    def dominated(self, disparity: str) -> list[bool]:
        """Whether another variant is at least as good in the means of quality and disparity and better in one; who is
        not eligible beats nobody."""
        costs = [[variant.cost(name) for name in (self.quality, disparity)] for variant in self.variants]
        return list(dominated(costs, by=[variant.eligible for variant in self.variants]).tolist())

    @cached_property
    def metrics(self) -> list[str]:
        """The columns of the comparison table that were measured: the main ones, and the chosen disparity."""
        names = _main(self.variants, self.measured)
        if self.disparity is not None and self.disparity not in names:
            names.insert(1, self.disparity)
        return names


def check_margin(margin: object) -> None:
    check_number("margin", margin, low=0)
    if margin >= 1:  # type: ignore[operator]
        text = f"must be a share below 1, got {margin!r}: 0.01 is one point of accuracy, or 1 % of an RMSE."
        raise ConfigError(text, key="margin", value=margin)


def _main(variants: list[Variant], measured: list[str]) -> list[str]:
    """The main metrics that were measured. What needs all predictions in one place cannot be known where every variant
    was a real federation."""
    federated = all(variant.silos is not None for variant in variants)
    known = [name for name in measured if not (federated and "scores" in describe(name).needs)]
    return catalogue.shown(known, "page")


def against(variants: Sequence[Variant], other: Variant, metric: str) -> list[Paired | None]:
    """Every variant minus `other` in one metric over the seeds they share, corrected together; None for itself, and
    where seeds are too few or the data differ."""
    comparable = [variant for variant in variants if variant is not other and variant.data == other.data]
    tests = {variant: paired(variant.values(metric) - other.values(metric)) for variant in comparable}
    return corrected([tests.get(variant) for variant in variants])


def more_of(variant: Variant, other: Variant, metric: str) -> pd.Series:
    """By seed, how much worse `variant` is than `other`, of the seeds that both have; none where their data differ."""
    if variant.data != other.data:
        return pd.Series(dtype=float)
    return (variant.costs(metric) - other.costs(metric)).dropna()


def summary_table(results: Sequence[Result], *, disparity: str | None = None) -> pd.DataFrame:
    """Method and setting x (column, mean | std | n): last round, over seeds; n counts the seeds where it is defined.

    After the metrics come `bytes_up` and `bytes_down` (per client and round) and `seconds` (per run), with a mean only,
    the number of `seeds`, and in how many of them the predictor is `degenerate`.
    """
    return summary_of(Comparison.of(results, disparity))


def summary_of(comparison: Comparison) -> pd.DataFrame:
    variants = comparison.variants
    rows = []
    for variant in variants:
        result = comparison.results[variant.result]
        runs = sum(other.seeds for other in variants if other.result == variant.result)
        row: dict[tuple[str, str], float] = {}
        for name in comparison.metrics:
            row[name, "mean"], row[name, "std"], row[name, "n"] = variant.over_seeds(name)
        each_round = result.messages[result.messages["stage"] == "round"]
        row["bytes_up", "mean"] = float(each_round["bytes_up"].sum())
        row["bytes_down", "mean"] = float(each_round["bytes_down"].sum())
        row["seconds", "mean"] = float(result.timings.get("seconds", np.nan)) / max(runs, 1)
        row["seeds", "n"] = variant.seeds
        row["degenerate", "n"] = int(variant.degenerate.sum())
        rows.append(row)
    frame = pd.DataFrame(rows, index=pd.Index([variant.label for variant in variants], name="method"))
    frame.columns = pd.MultiIndex.from_tuples([*rows[0]], names=["column", "over seeds"])
    return frame.astype({column: int for column in frame.columns if column[1] == "n"})


# -- taking results apart ----------------------------------------------------------------------------------------------


def variants_of(results: Sequence[Result], split: str | None = None) -> list[Variant]:
    """Every method and setting in the results, in their order. split: by default test, or validation without a test."""
    if not results:
        raise ConfigError("A report needs at least one result, got none.")
    tasks = list(dict.fromkeys(str(result.info.get("task", "classification")) for result in results))
    if len(tasks) > 1:
        raise ConfigError(
            f"One report cannot compare {' and '.join(tasks)} results: they share no metric. Write one report for each."
        )
    variants = [variant for i, result in enumerate(results) for variant in _variants_of(i, result, split)]
    labels = unique_labels(variants, results)
    return [replace(variant, label=label) for variant, label in zip(variants, labels, strict=True)]


def _variants_of(i: int, result: Result, split: str | None) -> Iterator[Variant]:
    frame, info = result.metrics, result.info
    if frame.empty:
        raise ConfigError(
            f"The result of {info['method']} has no measurements, so there is nothing to report. "
            "Give the federation test rows."
        )
    overall = frame[frame["scope"] == "global"]
    split = split or ("test" if (overall["split"] == "test").any() else "validation")
    overall, frame = overall[overall["split"] == split], frame[frame["split"] == split]
    last = int(frame["round"].max())
    ended = frame[frame["round"] == last].astype({"metric": str})
    scope = ended["scope"].astype(str).str.partition(":")
    ended = ended.assign(kind=scope[0], name=scope[2])
    silos = Silos.of(result)
    keys = ["method", *result.swept]
    for key, rows in overall.groupby(keys, observed=True, sort=False, dropna=False):
        values = dict(zip(keys, key, strict=True))
        mine = having(ended, values)
        groups, clients = (
            mine.loc[mine["kind"] == kind, ["seed", "name", "metric", "value"]] for kind in ("group", "client")
        )
        groups = as_disclosed(groups, silos)
        final = mine[mine["kind"] == "global"].pivot_table(
            index="seed", columns="metric", values="value", dropna=False, sort=False
        )
        observed = _observed(result, values)
        calibration, local_gaps = (having(kept, values) for kept in (result.calibration, result.local_gaps))
        method = str(values.pop("method"))
        yield Variant(
            label=method + settings_text(values),
            method=method,
            result=i,
            hyper={**info.get("hyper_parameters", {}), **values},
            split=split,
            last=last,
            final=final.rename_axis(columns=None),
            rounds=rows[["seed", "round", "metric", "value"]].astype({"metric": str}),
            groups=groups,
            marginals=marginals(groups, list(dict.fromkeys(groups["name"]))),
            clients=clients,
            calibration=calibration[calibration["split"] == split],
            local_gaps=local_gaps,
            observed=observed,
            attributes=() if result.schema is None else tuple(rule.column for rule in result.schema.sensitive),
            counts=_counts(result, values, split),
            shared_rows=float(info.get("shared_rows", {}).get(split, 1.0)),
            models=_models(groups, info),
            data=data_of(info),
            silos=silos,
        )


LOG = "log:"
"""Begins the name of what a method logs about itself, which has nothing to do with a metric of the same name."""
_ROUND = ("method", "seed", "round", "sampled", "replied", "dropped", "rejected", "applied", "stopped")
"""Columns of every log; the others are what the method observes."""


def _kind(metric: str) -> tuple[bool, ...]:
    return (*tables_for(metric).values(),)


def _counts(result: Result, setting: dict[str, Any], split: str) -> dict[tuple[bool, ...], np.ndarray]:
    tables = setting_tables(result, setting, split)
    if tables is None:
        return {}
    return {kind: of_kind(tables, result.info, *kind) for kind in product((True, False), repeat=2)}


def _models(groups: pd.DataFrame, info: dict[str, Any]) -> int:
    rows = info.get("rows", {}).get("test", 0) - (info.get("unknown_groups", {}).get("test") or 0)
    counted = groups[groups["metric"] == "count"].groupby("seed")["value"].sum()
    return max(1, round(counted.mean() / rows)) if rows and len(counted) else 1


def _observed(result: Result, values: dict[str, Any]) -> pd.DataFrame:
    log = having(result.log, values)
    names = [name for name in log.columns if name not in (*_ROUND, *result.swept)]
    long = log.melt(["seed", "round"], names, "metric", "value").astype({"metric": str, "value": float})
    return long.assign(metric=LOG + long["metric"])
