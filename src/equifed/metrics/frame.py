"""From an evaluation's counts and sums to the tidy frame of metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from equifed import metrics as M
from equifed.metrics.disparities import difference
from equifed.metrics.rates import divide

if TYPE_CHECKING:
    import pandas as pd


class Population(Protocol):
    """Whom an evaluation is about; a `Federation` is one."""

    @property
    def task(self) -> str:
        """classification or regression."""
        ...

    @property
    def groups(self) -> tuple[str, ...]: ...

    @property
    def ids(self) -> tuple[str, ...]:
        """The clients."""
        ...

    @property
    def client_groups(self) -> np.ndarray | None: ...


class Scored(NamedTuple):
    """One split of one run at one round. The leading axis S is 1 for a global set, or the clients."""

    counts: np.ndarray
    """Rows by group, label and prediction [S, G, C, C]; for regression [S, G, 1, 1]."""
    loss: np.ndarray
    """Summed loss by group and label [S, G, C] (squared error for regression: [S, G, 1])."""
    ks: np.ndarray
    """Largest KS distance between two groups' predictions [S] (regression; nan otherwise)."""
    mean: np.ndarray
    """Mean prediction by group [S, G] (regression; nan otherwise)."""
    predicted: np.ndarray
    """Rows by group and prediction [S, G, C]: the counts' sums over labels, told also by clients that withhold those
    (regression: rows by group [S, G, 1])."""


def metrics_frame(
    scores: Sequence[tuple[int, int, Mapping[str, Scored]]], population: Population, labels: Sequence[Mapping[str, Any]]
) -> pd.DataFrame:
    """The tidy frame of evaluations (round, run, {split: scores}); `labels` are the first columns of each run."""
    import pandas as pd

    pieces: list[tuple[np.ndarray, np.ndarray, str, str, str, np.ndarray]] = []
    for name in ("test", "validation", "clients"):
        entries = [(number, run, scored[name]) for number, run, scored in scores if name in scored]
        if not entries:
            continue
        number = np.array([entry[0] for entry in entries])
        run = np.array([entry[1] for entry in entries])
        stacked = Scored(*(np.stack([entry[2][i] for entry in entries]) for i in range(len(Scored._fields))))
        table = _regression if population.task == "regression" else _classification
        if name != "clients":
            whole = Scored(*(values[:, 0] for values in stacked))
            for scope, metric, values in table(whole, population.groups):
                pieces.append((number, run, name, scope, metric, values))
            continue
        per_client = {metric: values for scope, metric, values in table(stacked, ()) if scope == "global"}
        for k, client in enumerate(population.ids):
            for metric in _PER_CLIENT:
                if metric in per_client:
                    pieces.append((number, run, "test", f"client:{client}", metric, per_client[metric][:, k]))
        for metric in _CLIENT_RANGES:
            if metric in per_client:
                spread = M.client_range(per_client[metric], lower_is_better=metric != "accuracy")
                for part, value in spread.items():
                    pieces.append((number, run, "test", "global", f"client_{metric}.{part}", value))
        if "accuracy" not in per_client:
            continue
        summaries = {"client_equality": M.client_equality(per_client["accuracy"])}
        if population.client_groups is not None:
            summaries["group_equity"] = M.group_equity(per_client["accuracy"], population.client_groups)
        for what, summary in summaries.items():
            for part, value in summary.items():
                pieces.append((number, run, "test", "global", f"{what}.{part}", value))
    return _tidy(labels, pieces, pd)


_PER_CLIENT = (
    "rows",
    "accuracy",
    "rmse",
    "loss",
    "demographic_parity_difference",
    "equal_opportunity_difference",
    "equalized_odds_difference",
    "ks_distance",
)

_CLIENT_RANGES = (
    "accuracy",
    "rmse",
    "demographic_parity_difference",
    "equal_opportunity_difference",
    "equalized_odds_difference",
    "ks_distance",
)
"""What has a mean, worst and best client among the global metrics."""


def _classification(scored: Scored, groups: tuple[str, ...]) -> Iterable[tuple[str, str, np.ndarray]]:
    """(scope, metric, values) from counts [..., G, C, C]; group scopes only when names are given."""
    counts = scored.counts
    chosen = np.zeros(counts.shape)  # whatever the label: for what predictions alone tell
    chosen[..., 0, :] = scored.predicted
    rows = counts.sum((-3, -2, -1))
    yield "global", "rows", scored.predicted.sum((-2, -1))
    yield "global", "accuracy", divide(np.trace(counts, axis1=-2, axis2=-1).sum(-1), rows)
    yield "global", "loss", divide(scored.loss.sum((-2, -1)), rows)
    parity = {name: gap for name, gap in M.disparities(chosen).items() if name.startswith("demographic_parity")}
    for metric, values in (M.disparities(counts) | parity).items():
        yield "global", metric, values
    if counts.shape[-1] == 2:
        pooled = M.rates(chosen.sum(-3, keepdims=True))
        yield "global", "selection_rate", pooled["selection_rate"][..., 0]
        # loss gap between groups on the positive class
        yield "global", "dgeo", difference(divide(scored.loss[..., 1], counts[..., 1, :].sum(-1)))
    known = M.rates(chosen)
    rates = M.rates(counts) | {name: known[name] for name in ("count", "selection_rate") if name in known}
    constant = M.degenerate(chosen)
    yield "global", "worst_group_accuracy", np.fmin.reduce(rates["accuracy"], axis=-1)
    yield "global", "degenerate", constant.any(-1).astype(float)
    for g, group in enumerate(groups):
        for metric, values in rates.items():
            yield f"group:{group}", metric, values[..., g]
        yield f"group:{group}", "loss", divide(scored.loss[..., g, :].sum(-1), counts[..., g, :, :].sum((-2, -1)))
        yield f"group:{group}", "degenerate", constant[..., g].astype(float)


def _regression(scored: Scored, groups: tuple[str, ...]) -> Iterable[tuple[str, str, np.ndarray]]:
    number = scored.counts.sum((-2, -1))
    rows = number.sum(-1)
    squared = scored.loss.sum(-1)
    by_group = np.sqrt(divide(squared, number))
    yield "global", "rows", rows
    yield "global", "rmse", np.sqrt(divide(squared.sum(-1), rows))
    yield "global", "loss", divide(squared.sum(-1), rows)
    yield "global", "ks_distance", scored.ks
    yield "global", "mean_difference", difference(scored.mean)
    yield "global", "rmse_difference", difference(by_group)
    yield "global", "worst_group_rmse", np.fmax.reduce(by_group, axis=-1)
    for g, group in enumerate(groups):
        yield f"group:{group}", "count", number[..., g]
        yield f"group:{group}", "rmse", by_group[..., g]
        yield f"group:{group}", "mean_prediction", scored.mean[..., g]


def _tidy(labels: Sequence[Mapping[str, Any]], pieces: list[Any], pd: Any) -> pd.DataFrame:
    lengths = np.array([len(piece[0]) for piece in pieces], dtype=np.int64)

    def column(values: list[str]) -> Any:
        names = list(dict.fromkeys(values))
        code = {name: i for i, name in enumerate(names)}
        codes = np.repeat(np.array([code[value] for value in values], dtype=np.int64), lengths)
        return pd.Categorical.from_codes(codes, categories=names)

    number, run, values = (
        np.concatenate([np.empty(0, kind), *(np.asarray(piece[i], dtype=kind) for piece in pieces)])
        for i, kind in ((0, np.int64), (1, np.int64), (5, np.float64))
    )
    columns = {name: np.array([label[name] for label in labels])[run] for name in labels[0]}
    columns["method"] = pd.Categorical.from_codes(np.zeros(len(run), dtype=np.int8), categories=[labels[0]["method"]])
    columns["round"] = number
    columns["split"] = column([piece[2] for piece in pieces])
    columns["scope"] = column([piece[3] for piece in pieces])
    columns["metric"] = column([piece[4] for piece in pieces])
    columns["value"] = values
    return pd.DataFrame(columns)
