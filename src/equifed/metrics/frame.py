"""From the counts and sums of evaluations to the tidy frame of metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from equifed.errors import ConfigError
from equifed.metrics.catalogue import Evaluation, Metric, Population, measured
from equifed.metrics.scored import Scored

if TYPE_CHECKING:
    import pandas as pd


Scope = tuple[str, str, np.ndarray]
"""Whose it is (global | client:<id> | group:<name>), the metric, its values [T]."""


def metrics_frame(
    scores: Sequence[tuple[int, int, Mapping[str, Scored]]],
    population: Population,
    labels: Sequence[Mapping[str, Any]],
    outside: Sequence[Metric] = (),
) -> pd.DataFrame:
    """The tidy frame of evaluations (round, run, {split: scores}); `labels` are the first columns of each run.

    outside: metrics besides those of the catalogue.
    """
    import pandas as pd

    metrics = measured(population, outside)
    pieces: list[tuple[np.ndarray, np.ndarray, str, str, str, np.ndarray]] = []
    for name, (scopes, split) in SCOPES.items():
        entries = [(number, run, scored[name]) for number, run, scored in scores if name in scored]
        if entries:
            numbers, runs = (np.array(values) for values in list(zip(*entries, strict=True))[:2])
            stacked = _stacked([scored for _, _, scored in entries])
            pieces += [(numbers, runs, split, *piece) for piece in scopes(stacked, metrics, population)]
    return _tidy(labels, pieces, pd)


def overall(scores: Sequence[Mapping[str, Scored]], names: Iterable[str]) -> dict[str, np.ndarray]:
    """Metrics over all test rows of every run [R], by name; nothing where there are no test rows."""
    if not all("test" in scored for scored in scores):
        return {}
    evaluation = Evaluation(_first(_stacked([scored["test"] for scored in scores])), disclosed=True)
    return {name: evaluation[name] for name in names}


def _stacked(scores: Sequence[Scored]) -> Scored:
    return Scored(*(np.stack(parts) for parts in zip(*scores, strict=True)))


def _first(stacked: Scored) -> Scored:
    """Without the axis of sets, of which there is one."""
    return Scored(*(values[:, 0] for values in stacked))


def _of_all(stacked: Scored, metrics: Sequence[Metric], population: Population) -> Iterator[Scope]:
    evaluation = Evaluation(_first(stacked), disclosed=True)
    times = len(evaluation.counts)
    for metric in metrics:
        if metric.overall:
            yield "global", metric.name, _checked(metric, evaluation[metric.name], (times,))
    shape = times, len(population.groups)
    values = {
        metric.name: _checked(metric, metric.by_group(evaluation), shape) for metric in metrics if metric.by_group
    }
    for g, group in enumerate(population.groups):
        for name, value in values.items():
            yield f"group:{group}", name, value[:, g]


def _of_clients(stacked: Scored, metrics: Sequence[Metric], population: Population) -> Iterator[Scope]:
    evaluation = Evaluation(stacked, population.client_groups)
    times, clients = evaluation.counts.shape[:2]
    values = {
        metric.name: _checked(metric, evaluation[metric.name], (times, clients)) for metric in metrics if metric.clients
    }
    for k, client in enumerate(population.ids):
        for name, value in values.items():
            yield f"client:{client}", name, value[:, k]
    for metric in metrics:
        if metric.over_clients:
            found = _checked(metric, metric.over_clients(evaluation), (times,))
            # the worst client and the mean of all are unknown where a client's value is
            yield "global", metric.name, np.where(evaluation.withheld(metric.name).any(-1), np.nan, found)


SCOPES: dict[str, tuple[Callable[[Scored, Sequence[Metric], Population], Iterator[Scope]], str]] = {
    "test": (_of_all, "test"),
    "validation": (_of_all, "validation"),
    "clients": (_of_clients, "test"),
    "clients-validation": (_of_clients, "validation"),
}
"""What a set of scores is about, and its split."""


def _checked(metric: Metric, values: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(values)
    if array.shape != shape:
        raise ConfigError(
            f"The metric {metric.name} must have one value for each of the leading axes of the counts, an array of "
            f"shape {list(shape)} here, and has {list(array.shape)}."
        )
    return array


def _tidy(labels: Sequence[Mapping[str, Any]], pieces: Sequence[tuple[Any, ...]], pd: Any) -> pd.DataFrame:
    """pieces: round and run [T], split, scope, metric, values [T]."""
    number, run, split, scope, metric, value = zip(*pieces, strict=True) if pieces else ([],) * 6
    lengths = [len(values) for values in value]

    def column(names: Sequence[str]) -> Any:
        codes, categories = pd.factorize(np.array(names, dtype=object))  # in order of appearance
        return pd.Categorical.from_codes(np.repeat(codes, lengths), categories=categories)

    rounds, runs = (np.concatenate([np.empty(0, np.int64), *parts]) for parts in (number, run))
    columns: dict[str, Any] = {name: np.array([label[name] for label in labels])[runs] for name in labels[0]}
    columns["method"] = pd.Categorical.from_codes(np.zeros(len(runs), dtype=np.int8), categories=[labels[0]["method"]])
    columns |= {"round": rounds, "split": column(split), "scope": column(scope), "metric": column(metric)}
    columns["value"] = np.concatenate([np.empty(0), *value]).astype(np.float64, copy=False)
    return pd.DataFrame(columns)
