"""Results: tidy frames of what was measured, what was sent and what happened, whatever the engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equifed import metrics as M
from equifed.errors import ConfigError, DataError, check_number, unknown_name
from equifed.results import tradeoff
from equifed.results.predict import Adapted, FinalState
from equifed.results.tradeoff import Hypervolume

if TYPE_CHECKING:
    import pandas as pd

    from equifed.simulator.evaluate import Scored
    from equifed.simulator.job import Job

HEADLINE = ("accuracy", "demographic_parity_difference", "equal_opportunity_difference", "equalized_odds_difference")
HEADLINE_REGRESSION = ("rmse", "ks_distance", "mean_difference")


@dataclass(eq=False)
class Result:
    """What `simulate` and `sweep` return, and what a run folder holds."""

    metrics: pd.DataFrame
    """method, (swept hyper-parameters), seed, round, split, scope (global | client:<id> | group:<name>), metric,
    value."""
    messages: pd.DataFrame
    """Per phase: fields down and up, how replies are gathered, bytes per client and round."""
    log: pd.DataFrame
    """Per round: clients sampled, replied, dropped, rejected, whether applied, and what the method observes."""
    rejections: pd.DataFrame
    """Replies that were refused or never came: seed, round, phase, client, reason, answered."""
    parameters: dict[Any, dict[str, np.ndarray]]
    """Final global model(s) by seed; by (swept values..., seed) after a sweep."""
    info: dict[str, Any]
    """What was run: method, hyper-parameters, data, settings."""
    timings: dict[str, Any]
    """Seconds in all and per round."""
    notes: list[str] = field(default_factory=list)
    """What a reader should know about how it ran."""
    final_states: dict[Any, FinalState] = field(default_factory=dict, repr=False)
    """What each run ended with, by the keys of `parameters`: what `predict` uses. In memory only: a run folder and a
    pickle hold the parameters but not these."""

    def predict(
        self, x: Any, *, s: Any = None, client: str | None = None, run: Any = None, draw: int = 0
    ) -> np.ndarray:
        """What the final model, post-processing included, says about new rows.

        Probabilities of class 1 [n] (one output), of every class [n, C], or values (regression). x: features as the
        federation has them, before any scaling of its own. s: the rows' groups, names or codes, for post-processed
        methods. client: whose model, where clients have models of their own. run: a key of `parameters`, needed where
        there are several. draw: another number draws other random decisions.
        """
        if not self.final_states:
            raise ConfigError(
                "This result cannot predict: it was loaded from a run folder or a pickle, which hold `parameters`, the "
                "models' weights, but not all that a method predicts with. Predict with the result that `simulate` "
                "returns."
            )
        known = list(self.final_states)
        if run is None and len(known) == 1:
            run = known[0]
        if run not in self.final_states:
            raise ConfigError(f"run must be one of the keys of `parameters`, got {run!r}. Known: {known}.")
        return self.final_states[run].predict(x, s, client, draw, self.info["groups"])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "final_states": {}}  # methods made by composing have no name to be pickled by

    @property
    def swept(self) -> list[str]:
        """Names of the swept hyper-parameters."""
        return list(self.info.get("swept", []))

    def final(self, split: str = "test") -> pd.DataFrame:
        """The last round's global metrics, a row per run and a column per metric."""
        frame = self.metrics
        known = [str(name) for name in frame["split"].unique()]
        if known and split not in known:
            raise ConfigError(unknown_name("split", split, known))
        frame = frame[(frame["scope"] == "global") & (frame["split"] == split)]
        frame = frame[frame["round"] == frame["round"].max()]
        wide = frame.pivot_table(
            index=["method", *self.swept, "seed"],
            columns="metric",
            values="value",
            observed=True,
            dropna=False,
            sort=False,
        )
        wide.columns.name = None
        return wide.reset_index()

    def summary(self, split: str = "test") -> pd.DataFrame:
        """Mean and sample standard deviation over seeds of the last round's global metrics.

        A method that trains under a constraint also has `constraint_met`, 1 for a seed that ended within it, else 0.
        """
        wide = self.final(split)
        if "feasible" in self.log and not wide.empty:
            ends = self.log.groupby([*self.swept, "seed"], sort=False).tail(1)[[*self.swept, "seed", "feasible"]]
            wide = wide.merge(ends.rename(columns={"feasible": "constraint_met"}), on=[*self.swept, "seed"])
        wide = wide.drop(columns="seed")
        if wide.empty:
            return wide.set_index(["method", *self.swept])
        grouped = wide.groupby(["method", *self.swept], observed=True, sort=False)
        return grouped.agg(["mean", "std"])

    def pareto(
        self, quality: str = "accuracy", disparity: str = "demographic_parity_difference", split: str = "test"
    ) -> pd.DataFrame:
        """The trade-off: mean of both metrics for each swept setting, and whether another setting is better in both
        (or one of the two is undefined).

        `..._low` and `..._high` bound the means, 95 % intervals of a bootstrap over the seeds (nan for one seed).
        `accuracy`-like metrics count as better when higher, `rmse` and `loss` when lower; disparities named
        `..._ratio` when closer to 1, all others when closer to 0.
        """
        return tradeoff.pareto(self.final(split), ["method", *self.swept], quality, disparity)

    def hypervolume(
        self,
        quality: str = "accuracy",
        disparity: str = "demographic_parity_difference",
        *,
        reference: tuple[float, float] | None = None,
        split: str = "test",
    ) -> Hypervolume:
        """How much of the plane of both metrics the settings' means dominate, up to the reference (quality, disparity).

        Give all methods that are compared the same reference, such as the accuracy of always predicting the majority
        and the disparity of FedAvg; None takes the worst of this sweep's own. The interval is of a bootstrap over the
        seeds, the same seeds for all settings.
        """
        return tradeoff.hypervolume(self.final(split), ["method", *self.swept], quality, disparity, reference)

    def adapt(self, rows: tuple[Any, Any], *, steps: int = 100) -> Adapted:
        """A client that took no part in training: from its rows (x, y) it gets a state of its own, such as mixture
        weights by E-steps alone; the models stay as they are, and nothing leaves the client.

        x as in the federation's own rows, before its scaling; y as class codes (named in `info["classes"]`) or values.
        """
        if not self.final_states:
            raise ConfigError(
                "This result was read from a folder, which holds the models but not how to apply them. Call adapt on "
                "what simulate returned."
            )
        check_number("steps", steps, whole=True, low=1)
        x, y = (np.asarray(part) for part in rows[:2])
        if len(x) != len(y) or not len(y):
            raise DataError(f"A new client needs rows, as many labels as rows; got {len(x)} and {len(y)}.")
        states = {key: each.adapt(x, y, steps) for key, each in self.final_states.items()}
        return Adapted(self.final_states, states)

    def to_html(
        self, path: str | Path, *, title: str | None = None, disparity: str | None = None, baseline: str | None = None
    ) -> Path:
        """Write the report, one self-contained HTML page; `equifed.report.write_report` takes several results."""
        from equifed.report import write_report

        return write_report([self], path, title=title, disparity=disparity, baseline=baseline)

    def _repr_html_(self) -> str | None:
        """How a notebook shows it; None, so that it falls back on the text, where nothing was measured."""
        from equifed.report.page import summary_html

        return None if self.metrics.empty else summary_html(self)

    def __repr__(self) -> str:
        seeds = self.metrics["seed"].nunique()
        return f"Result({self.info['method']}, {self.info['rounds']} rounds, {seeds} seeds)\n{self.summary().T}"


# -- frames ------------------------------------------------------------------------------------------------------------


def metrics_frame(job: Job, scores: list[tuple[int, int, dict[str, Scored]]]) -> pd.DataFrame:
    """The tidy frame of all evaluations."""
    import pandas as pd

    from equifed.simulator.evaluate import Scored

    pieces: list[tuple[np.ndarray, np.ndarray, str, str, str, np.ndarray]] = []
    fed = job.runs[0].federation
    for name in ("test", "validation", "clients"):
        entries = [(number, run, scored[name]) for number, run, scored in scores if name in scored]
        if not entries:
            continue
        number = np.array([entry[0] for entry in entries])
        run = np.array([entry[1] for entry in entries])
        stacked = Scored(*(np.stack([entry[2][i] for entry in entries]) for i in range(len(Scored._fields))))
        table = _regression if fed.kind == "regression" else _classification
        if name != "clients":
            whole = Scored(*(values[:, 0] for values in stacked))
            for scope, metric, values in table(whole, fed.groups):
                pieces.append((number, run, name, scope, metric, values))
            continue
        per_client = {metric: values for scope, metric, values in table(stacked, ()) if scope == "global"}
        for k, client in enumerate(fed.ids):
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
        if fed.client_groups is not None:
            summaries["group_equity"] = M.group_equity(per_client["accuracy"], fed.client_groups)
        for what, summary in summaries.items():
            for part, value in summary.items():
                pieces.append((number, run, "test", "global", f"{what}.{part}", value))
    return _tidy(job, pieces, pd)


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


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b > 0, a / np.maximum(b, 1), np.nan)


def _classification(scored: Scored, groups: tuple[str, ...]) -> Iterable[tuple[str, str, np.ndarray]]:
    """(scope, metric, values) from counts [..., G, C, C]; group scopes only when names are given."""
    counts = scored.counts
    chosen = np.zeros(counts.shape)  # whatever the label: for what predictions alone tell
    chosen[..., 0, :] = scored.predicted
    rows = counts.sum((-3, -2, -1))
    yield "global", "rows", scored.predicted.sum((-2, -1))
    yield "global", "accuracy", _divide(np.trace(counts, axis1=-2, axis2=-1).sum(-1), rows)
    yield "global", "loss", _divide(scored.loss.sum((-2, -1)), rows)
    parity = {name: gap for name, gap in M.disparities(chosen).items() if name.startswith("demographic_parity")}
    for metric, values in (M.disparities(counts) | parity).items():
        yield "global", metric, values
    if counts.shape[-1] == 2:
        pooled = M.rates(chosen.sum(-3, keepdims=True))
        yield "global", "selection_rate", pooled["selection_rate"][..., 0]
        # loss gap between groups on the positive class
        yield "global", "dgeo", _gap(_divide(scored.loss[..., 1], counts[..., 1, :].sum(-1)))
    known = M.rates(chosen)
    rates = M.rates(counts) | {name: known[name] for name in ("count", "selection_rate") if name in known}
    constant = M.degenerate(chosen)
    yield "global", "worst_group_accuracy", _nan_min(rates["accuracy"])
    yield "global", "degenerate", constant.any(-1).astype(float)
    for g, group in enumerate(groups):
        for metric, values in rates.items():
            yield f"group:{group}", metric, values[..., g]
        yield f"group:{group}", "loss", _divide(scored.loss[..., g, :].sum(-1), counts[..., g, :, :].sum((-2, -1)))
        yield f"group:{group}", "degenerate", constant[..., g].astype(float)


def _regression(scored: Scored, groups: tuple[str, ...]) -> Iterable[tuple[str, str, np.ndarray]]:
    number = scored.counts.sum((-2, -1))
    rows = number.sum(-1)
    squared = scored.loss.sum(-1)
    by_group = np.sqrt(_divide(squared, number))
    yield "global", "rows", rows
    yield "global", "rmse", np.sqrt(_divide(squared.sum(-1), rows))
    yield "global", "loss", _divide(squared.sum(-1), rows)
    yield "global", "ks_distance", scored.ks
    yield "global", "mean_difference", _gap(scored.mean)
    yield "global", "rmse_difference", _gap(by_group)
    yield "global", "worst_group_rmse", -_nan_min(-by_group)
    for g, group in enumerate(groups):
        yield f"group:{group}", "count", number[..., g]
        yield f"group:{group}", "rmse", by_group[..., g]
        yield f"group:{group}", "mean_prediction", scored.mean[..., g]


def _nan_min(values: np.ndarray) -> np.ndarray:
    low = np.where(np.isnan(values), np.inf, values).min(-1)
    return np.where(np.isnan(values).all(-1), np.nan, low)


def _gap(values: np.ndarray) -> np.ndarray:
    """Largest minus smallest defined value over the last axis; nan with fewer than two."""
    defined = (~np.isnan(values)).sum(-1)
    return np.where(defined >= 2, -_nan_min(-values) - _nan_min(values), np.nan)


def _tidy(job: Job, pieces: list[Any], pd: Any) -> pd.DataFrame:
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
    columns: dict[str, Any] = {
        "method": pd.Categorical.from_codes(np.zeros(len(run), dtype=np.int8), categories=[job.method.name])
    }
    for name in job.runs[0].hyper:
        columns[name] = np.array([each.hyper[name] for each in job.runs])[run]
    columns["seed"] = np.array([each.seed for each in job.runs])[run]
    columns["round"] = number
    columns["split"] = column([piece[2] for piece in pieces])
    columns["scope"] = column([piece[3] for piece in pieces])
    columns["metric"] = column([piece[4] for piece in pieces])
    columns["value"] = values
    return pd.DataFrame(columns)
