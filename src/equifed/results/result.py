"""Results: tidy frames of what was measured, what was sent and what happened, whatever the engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equifed import metrics as M
from equifed import randomness, tree
from equifed.errors import ConfigError, DataError, check_number, unknown_name
from equifed.metrics.fronts import as_costs
from equifed.protocol import Data, Method, Task
from equifed.simulator.engine import Message, Rejection, State
from equifed.simulator.evaluate import Scored
from equifed.simulator.job import Job, Run
from equifed.simulator.loop import RoundLog, Step

if TYPE_CHECKING:
    import pandas as pd

HEADLINE = ("accuracy", "demographic_parity_difference", "equal_opportunity_difference", "equalized_odds_difference")
TOLERANCE = 1e-3
"""What a constraint may lie beyond its bound without a word."""
HEADLINE_REGRESSION = ("rmse", "ks_distance", "mean_difference")


@dataclass(frozen=True, eq=False)
class FinalState:
    """What a run ended with."""

    method: Method
    """With the run's own hyper-parameters."""
    task: Task
    server: Any
    """The server's state."""
    clients: Any
    """The clients' states, a leading axis over clients."""
    ids: tuple[str, ...]
    """The clients."""
    seed: int
    scaling: tuple[np.ndarray, np.ndarray] | None
    """What is subtracted from features, and what they are multiplied by."""
    shape: tuple[int, ...]
    """Of one row."""

    def features(self, x: Any) -> Tensor:
        """Rows as the model sees them."""
        rows = np.asarray(x, dtype=np.float32)
        if rows.shape[1:] != tuple(self.shape):
            wanted, got = list(self.shape), list(rows.shape)
            raise DataError(f"x must be rows of the federation's features, shape {wanted} each; got shape {got}.")
        scaled = rows if self.scaling is None else (rows - self.scaling[0]) * self.scaling[1]
        return torch.from_numpy(np.ascontiguousarray(scaled, dtype=np.float32))

    def adapt(self, x: np.ndarray, y: np.ndarray, steps: int) -> Any:
        """The state of a client with these rows that never trained."""
        inputs, classes = self.features(x), self.task.num_classes
        if classes and not (np.isin(y, np.arange(classes))).all():
            raise DataError(f"Labels must be class codes 0 to {classes - 1}, got {np.unique(y)[:6].tolist()}.")
        labels = torch.from_numpy(y.astype(np.int64 if classes else np.float32))
        data = Data(inputs, labels, torch.zeros(len(y), dtype=torch.int64), torch.ones(len(y)), self.task)
        with torch.no_grad():
            return self.method.adapt(self.task, self.server, data, steps)

    def predict(self, x: Any, s: Any, client: str | None, draw: int, groups: Sequence[str]) -> np.ndarray:
        method, task, features = self.method, self.task, self.features(x)
        if client is None and method.personal:
            raise ConfigError(f"With {method.name} clients have models of their own: name one of them as `client`.")
        if client is not None and client not in self.ids:
            raise ConfigError(unknown_name("client", client, self.ids))
        own = tree.take(self.clients, 0 if client is None else self.ids.index(client))
        with torch.no_grad():
            prediction = method.predict(task, self.server, own, features)
            if type(method).adjust is not Method.adjust:
                if s is None:
                    raise ConfigError(f"{method.name} decides by a row's group: give the groups of the rows as `s`.")
                codes = torch.from_numpy(_codes(s, groups, len(features)))
                u = torch.from_numpy(randomness.generator(self.seed, "predict", draw).random(len(features)))
                prediction = method.adjust(task, self.server, own, prediction, codes, u)
        return prediction.numpy()


def _codes(s: Any, groups: Sequence[str], n: int) -> np.ndarray:
    """Group codes from codes or names."""
    given = np.asarray(s)
    if given.shape != (n,):
        raise ConfigError(f"s must have a group for each of the {n} rows, got an array of shape {given.shape}.")
    if given.dtype.kind in "iub":
        wrong = [int(code) for code in np.unique(given) if not 0 <= code < len(groups)]
        if wrong:
            raise ConfigError(f"s holds the group code {wrong[0]}; the codes are 0 to {len(groups) - 1}.")
        return given.astype(np.int64)
    code = {name: i for i, name in enumerate(groups)}
    for name in dict.fromkeys(map(str, given)):
        if name not in code:
            raise ConfigError(unknown_name("group", name, groups))
    return np.array([code[str(name)] for name in given], dtype=np.int64)


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
        import pandas as pd

        keys, values = self._trade_offs(quality, disparity, split)
        points = pd.DataFrame(keys, columns=["method", *self.swept])
        means = _mean_over_seeds(values)
        low, high = np.quantile(_resampled_means(values), [0.025, 0.975], axis=0)
        for i, name in enumerate((quality, disparity)):
            points[name], points[f"{name}_low"], points[f"{name}_high"] = means[:, i], low[:, i], high[:, i]
        points["dominated"] = M.dominated(as_costs(quality, disparity, means)) | np.isnan(means).any(1)
        return points

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
        _, values = self._trade_offs(quality, disparity, split)
        means = _mean_over_seeds(values)
        if np.isnan(means).any(1).all():
            return Hypervolume(np.nan, np.nan, np.nan, reference or (np.nan, np.nan))
        if reference is None:
            worst = np.nanargmax(as_costs(quality, disparity, means), axis=0)
            reference = float(means[worst[0], 0]), float(means[worst[1], 1])
        corner = as_costs(quality, disparity, reference)

        def area(means: np.ndarray) -> float:
            return M.hypervolume(as_costs(quality, disparity, means), corner)

        resampled = _resampled_means(values)
        areas = [area(each) for each in resampled] if len(resampled) > 1 else [np.nan]
        low, high = np.quantile(areas, [0.025, 0.975])
        return Hypervolume(area(means), float(low), float(high), reference)

    def _trade_offs(self, quality: str, disparity: str, split: str) -> tuple[list[tuple[Any, ...]], np.ndarray]:
        """Every setting, and both metrics of its seeds [settings, seeds, 2]."""
        wide = self.final(split)
        for name in (quality, disparity):
            if name not in wide:
                raise ConfigError(unknown_name("metric", name, wide.columns))
        groups = [
            (key, part.sort_values("seed")[[quality, disparity]].to_numpy())
            for key, part in wide.groupby(["method", *self.swept], observed=True, sort=False)
        ]
        return [key for key, _ in groups], np.stack([part for _, part in groups])

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


@dataclass(frozen=True, eq=False)
class Adapted:
    """A new client in every run of a result."""

    runs: dict[Any, FinalState]
    states: dict[Any, Any]
    """Its state by seed, or by (swept values..., seed)."""

    @property
    def state(self) -> dict[Any, dict[str, np.ndarray]]:
        """The same as arrays: {seed: {"pi": ...}}."""
        return {
            key: {name: value.cpu().numpy() for name, value in tree.named(own).items()}
            for key, own in self.states.items()
        }

    def predict(self, x: Any) -> dict[Any, np.ndarray]:
        """Probabilities (or values) for the rows x, by seed."""
        predicted = {}
        with torch.no_grad():
            for key, each in self.runs.items():
                inputs = each.features(np.asarray(x))
                predicted[key] = each.method.predict(each.task, each.server, self.states[key], inputs).cpu().numpy()
        return predicted


class Hypervolume(NamedTuple):
    value: float
    """The area that the front of the means dominates."""
    low: float
    """Lower end of its 95 % interval (nan for one seed)."""
    high: float
    """Upper end."""
    reference: tuple[float, float]
    """The (quality, disparity) up to which it is measured."""


RESAMPLES = 1000


def _mean_over_seeds(values: np.ndarray) -> np.ndarray:
    """Means of the defined values [settings, seeds, 2] -> [settings, 2]; nan where none is."""
    defined = ~np.isnan(values)
    total = np.where(defined, values, 0).sum(-2)
    return np.where(defined.any(-2), total / np.maximum(defined.sum(-2), 1), np.nan)


def _resampled_means(values: np.ndarray) -> np.ndarray:
    """Means over seeds drawn with replacement, the same draw for all settings [RESAMPLES, settings, 2]."""
    seeds = values.shape[1]
    if seeds < 2:
        return np.full((1, len(values), 2), np.nan)
    drawn = np.random.default_rng(0).integers(seeds, size=(RESAMPLES, seeds))
    return np.stack([_mean_over_seeds(values[:, some]) for some in drawn])


@dataclass
class Collector:
    """Gathers finished rounds; turned into a `Result` at any time."""

    job: Job
    scores: list[tuple[int, int, dict[str, Scored]]] = field(default_factory=list)
    """(round, run, scores)."""
    logs: list[RoundLog] = field(default_factory=list)
    rejections: list[tuple[int, Rejection]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, step: Step) -> None:
        self.logs += step.logs
        self.rejections += step.rejections
        self.seconds.append(step.seconds)
        for number, scores in step.scores.items():
            self.scores += [(number, run, scored) for run, scored in enumerate(scores)]

    def result(self, state: State, messages: Iterable[Message], notes: Sequence[str]) -> Result:
        job = self.job
        fed = job.runs[0].federation
        swept = list(job.runs[0].hyper)
        info = {
            "method": job.method.name,
            "hyper_parameters": dataclasses.asdict(job.method),
            "swept": swept,
            "data": fed.name,
            "provenance": dict(fed.provenance),
            "task": fed.kind,
            "classes": list(fed.classes),
            "groups": list(fed.groups),
            "clients": list(fed.ids),
            "cells": job.runs[0].given.cells().tolist() if fed.num_clients <= 1000 else None,
            "rows": {
                "train": int(fed.train.sizes.sum()),
                "validation": len(fed.validation),
                "test": len(fed.test),
            },
            "rounds": job.rounds,
            "clients_per_round": job.clients_per_round or fed.num_clients,
            "dropout": job.dropout,
            "local": dataclasses.asdict(job.task.local),
            "model": str(job.task.module),
            "seeds": list(dict.fromkeys(run.seed for run in job.runs)),
            "device": str(job.device),
        }
        kept = State(*(tree.map(lambda leaf: leaf.detach().to("cpu", copy=True), part) for part in state))
        return Result(
            metrics=metrics_frame(job, self.scores),
            messages=_messages(messages),
            log=_log(job, self.logs),
            rejections=_rejections(job, self.rejections),
            parameters=_parameters(job, kept),
            info=info,
            timings={"seconds": float(np.sum(self.seconds)), "seconds_per_round": float(np.mean(self.seconds))},
            notes=[*notes, *_remarks(job, self.logs, self.rejections)],
            final_states={_key(run): _final_state(job, kept, r) for r, run in enumerate(job.runs)},
        )


def _remarks(job: Job, logs: list[RoundLog], rejections: list[tuple[int, Rejection]]) -> list[str]:
    lost = [log for log in logs if not log.applied]
    rejected = sum(log.rejected for log in logs)
    remarks = []
    fed = job.runs[0].federation
    if not len(fed.test) and fed.client_test is None:
        remarks.append("The federation has no test rows, so nothing was measured.")
    if lost:
        remarks.append(
            f"{len(lost)} of {len(logs)} rounds had too few usable replies and left the model as it was "
            f"(first: seed {job.runs[lost[0].run].seed}, round {lost[0].round})."
        )
    if rejected:
        remarks.append(f"{rejected} replies were rejected; `rejections` names the clients, rounds and reasons.")
    return [*remarks, *_absences(rejections), *_ending(job, logs)]


def _absences(rejections: list[tuple[int, Rejection]]) -> list[str]:
    """Which clients did not answer, and when."""
    absent: dict[str, list[tuple[int, str]]] = {}
    for number, each in rejections:
        if not each.answered:
            absent.setdefault(each.client, []).append((number, each.reason))
    return [
        f"{client} did not answer {_times([number for number, _ in when])} "
        f"({'; '.join(dict.fromkeys(reason for _, reason in when))})."
        for client, when in absent.items()
    ]


def _times(numbers: list[int]) -> str:
    later = [number for number in numbers if number]
    parts = ["before round 1"] * (0 in numbers)
    parts += [f"in round{'s' * (len(later) > 1)} {ranges(later)}"] if later else []
    return " and ".join(parts)


def ranges(numbers: Iterable[int]) -> str:
    """3, 5 to 9."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts)


def _ending(job: Job, logs: list[RoundLog]) -> list[str]:
    """Which runs stopped before the last round, and which ended without meeting their constraint."""
    final = {log.run: log for log in logs}
    many = len(job.runs)
    stopped = [log.round for log in final.values() if log.stopped and log.round < job.rounds]
    missed = [run for run, log in final.items() if log.observed.get("feasible") == 0]
    near = [run for run, log in final.items() if log.observed.get("feasible") == 1 and _excess(log) > TOLERANCE]
    remarks = []
    if stopped:
        rounds = f"round {stopped[0]}" if len(set(stopped)) == 1 else f"rounds {min(stopped)} to {max(stopped)}"
        who = "The run" if many == 1 else f"{len(stopped)} of {many} runs"
        remarks.append(f"{who} converged and stopped at {rounds} of {job.rounds}; `log` says when each.")
    decay = " A smaller dual_decay brings it closer." if hasattr(job.method, "dual_decay") else ""
    if missed:
        by = f", by {_excess(final[missed[0]]):.3g} there" if "excess" in final[missed[0]].observed else ""
        advice = decay if all(final[run].stopped for run in missed) else " More rounds may help."
        remarks.append(f"The constraint is not met at the end of {_who(job, missed)}{by}; see `log`.{advice}")
    if near:
        who, beyond = _who(job, near), _excess(final[near[0]])
        remarks.append(
            f"{who[0].upper()}{who[1:]} ended with the constraint met only up to what the decay of its multipliers "
            f"allows, {beyond:.3g} above the bound; `log` has it as `excess`.{decay}"
        )
    return remarks


def _excess(log: RoundLog) -> float:
    """How far beyond its bound the constraint is, where the method says."""
    return log.observed.get("excess", 0.0)


def _who(job: Job, runs: list[int]) -> str:
    if len(job.runs) == 1:
        return "the run"
    where = ", ".join(f"{name} {value:g}" for name, value in job.runs[runs[0]].hyper.items())
    first = f"seed {job.runs[runs[0]].seed}{f', {where}' if where else ''}"
    return f"{len(runs)} of {len(job.runs)} runs (first: {first})"


# -- frames ------------------------------------------------------------------------------------------------------------


def metrics_frame(job: Job, scores: list[tuple[int, int, dict[str, Scored]]]) -> pd.DataFrame:
    """The tidy frame of all evaluations."""
    import pandas as pd

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


def _messages(messages: Iterable[Message]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(
        [{**message._asdict(), "down": ", ".join(message.down), "up": ", ".join(message.up)} for message in messages],
        columns=list(Message._fields),
    )


def _log(job: Job, logs: list[RoundLog]) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for log in logs:
        run = job.runs[log.run]
        entry: dict[str, Any] = {"method": job.method.name, **run.hyper, "seed": run.seed}
        entry |= {key: value for key, value in log._asdict().items() if key not in ("run", "observed", "stopped")}
        entry["stopped"] = log.stopped
        rows.append(entry | log.observed)
    return pd.DataFrame(rows)


def _rejections(job: Job, rejections: list[tuple[int, Rejection]]) -> pd.DataFrame:
    import pandas as pd

    names = ["phase", "client", "reason", "answered"]
    rows = [
        [*job.runs[each.run].hyper.values(), job.runs[each.run].seed, number, *(getattr(each, name) for name in names)]
        for number, each in rejections
    ]
    return pd.DataFrame(rows, columns=[*job.runs[0].hyper, "seed", "round", *names])


def _key(run: Run) -> Any:
    """The seed; (swept values..., seed) after a sweep."""
    return (*run.hyper.values(), run.seed) if run.hyper else run.seed


def _final_state(job: Job, state: State, r: int) -> FinalState:
    fed, seed = job.runs[r].federation, job.runs[r].seed
    server, clients = tree.take(state.server, r), tree.take(state.clients, r)
    return FinalState(job.method_of(r), job.task, server, clients, tuple(fed.ids), seed, fed.scaling, tuple(fed.shape))


def _parameters(job: Job, state: State) -> dict[Any, dict[str, np.ndarray]]:
    """The final model(s) of each run: the server's `theta`, or the clients' own with a leading axis."""
    result: dict[Any, dict[str, np.ndarray]] = {}
    for r, run in enumerate(job.runs):
        server: Any = tree.take(state.server, r)
        own: Any = tree.take(state.clients, r)
        # what wraps a method keeps that one's states under `inner`
        server, own = getattr(server, "inner", server), getattr(own, "inner", own)
        theta = server.theta if hasattr(server, "theta") else getattr(own, "theta", {})
        result[_key(run)] = {name: value.numpy() for name, value in tree.named(theta).items()}
    return result
