"""Results: tidy frames of what was measured, what was sent and what happened, whatever the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equifed.errors import ConfigError, DataError, check_number, unknown_name
from equifed.metrics import catalogue
from equifed.metrics.seeds import moments_wide
from equifed.notes import Note
from equifed.results import tradeoff
from equifed.results.counts import of_kind, whole_tables
from equifed.results.model import Model, choose_run
from equifed.results.predict import Adapted, FinalState, read_table_rows, table_of
from equifed.results.stored import StoredStates
from equifed.results.tradeoff import Hypervolume
from equifed.settings import MARGIN, RunSettings

if TYPE_CHECKING:
    import pandas as pd

    from equifed.data import Schema
    from equifed.target import Confidence
    from equifed.verdict import Answer, Comparison, Variant


def _no_frame() -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame()


@dataclass(eq=False)
class Result:
    """What `simulate` and `sweep` return, and what a run folder holds."""

    metrics: pd.DataFrame
    """method, (swept hyperparameters), seed, round, split, scope (global | client:<id> | group:<name>), metric,
    value."""
    counts: pd.DataFrame
    """Rows of the last evaluation by group, label and prediction, on the test and validation rows of all: method,
    (swept hyperparameters), seed, split, group, label, predicted, rows. Rows are nan where silos withhold all of a
    group's; the label is missing where they withhold only that, the group where it is unknown. Where
    clients have models of their own, and each row was given to all of them, rows are counted once: a count is the mean
    over the models."""
    calibration: pd.DataFrame
    """Of the same rows, by group and by the bin (0 to `metrics.calibration.BINS` - 1) that the score falls into: rows,
    positives (those where the score came true: label 1, or with more than two classes a right prediction), score_sum.
    """
    local_gaps: pd.DataFrame
    """Of the last evaluation, each client's own gap between the two groups (higher, lower) that are farthest apart over
    all clients' test rows, where the gap is `overall`: method, (swept hyperparameters), seed, client, metric, value,
    its 95 % interval by the client's rows (low, high), rate and rows of both groups; below 0 has the opposite sign.
    With more than two classes, `class` is the one in which they are farthest apart; otherwise it is empty."""
    messages: pd.DataFrame
    """Per phase: fields down and up, how replies are gathered, bytes per client and round."""
    log: pd.DataFrame
    """Per round: clients sampled, replied, dropped, rejected, whether applied, and what the method observes."""
    rejections: pd.DataFrame
    """Replies that were refused or never came: seed, round, phase, client, reason, answered."""
    parameters: dict[Any, dict[str, np.ndarray]]
    """Final global model(s) by seed; by (swept values..., seed) after a sweep."""
    info: dict[str, Any]
    """What was run: method, hyperparameters, data."""
    settings: RunSettings
    """How it was run, with the seeds, the clients per round and the device that were used."""
    timings: dict[str, Any]
    """Seconds in all and per round."""
    notes: list[Note] = field(default_factory=list)
    """What a reader should know about how it ran: values, whose words `str(note)` makes."""
    cuts: pd.DataFrame = field(default_factory=_no_frame)
    """What a robust rule did to each client: method, (swept hyperparameters), seed, client, updates (how many of its
    the rule looked at), cut (how much of them it cut on average, from 0 to 1: 1 for an update that was not taken or was
    shortened, else the share of its coordinates that are beyond the others), everyone (the same of all clients of these
    rounds). Empty without a rule."""
    plain_mean: pd.DataFrame = field(default_factory=_no_frame)
    """Rows of `metrics`, of the last round: the same runs with the plain mean in place of the robust rule. Empty
    without a rule, and on a real federation, which trains once."""
    final_states: Mapping[Any, FinalState] = field(default_factory=dict, repr=False)
    """What each run ended with, by the keys of `parameters`: what `predict` and `adapt` use."""
    schema: Schema | None = field(default=None, repr=False)
    """How a table becomes the features, where the data came from one."""

    @property
    def trained(self) -> bool:
        """Whether any round of any of its runs had an effect: else all models are those that training began with."""
        return bool((self.log["applied"] | self.log["stopped"]).any())

    def predict(
        self,
        x: Any,
        *,
        s: Any = None,
        client: str | None = None,
        run: Any = None,
        draw: int = 0,
        model: Any = None,
    ) -> np.ndarray:
        """What the final model, post-processing included, says about new rows.

        Probabilities of class 1 [n] (one output), of every class [n, C], or values as the model was trained on them
        (regression). x: a data frame with the columns of the schema, where the federation came from a table, or
        features as the federation has them, before any scaling of its own. s: the rows' groups, names or codes, for
        post-processed methods; a frame has them in its sensitive columns. client: whose model, where clients have
        models of their own. run: a key of `parameters`, needed where there are several. draw: another number draws
        other random decisions. model: the model that was trained, for a result that was loaded and whose model cannot
        be made again from what is stored.
        """
        states = self._states(model)
        known = list(states)
        if run is None and len(known) == 1:
            run = known[0]
        if run not in known:
            raise ConfigError(f"run must be one of the keys of `parameters`, got {run!r}. Known: {known}.")
        frame = None if self.schema is None else table_of(x)
        if frame is not None and self.schema is not None:
            x, s = read_table_rows(frame, self.schema, states[run].method, s)
        return states[run].predict(x, s, client, draw, self.info["groups"])

    def model(
        self,
        *,
        seed: int | None = None,
        setting: Mapping[str, float] | None = None,
        client: str | None = None,
        model: Any = None,
    ) -> Model:
        """One of the trained models, with scikit-learn's interface, as `equifed.load_model` gives it for a run.

        seed: left out, the first. setting: of a sweep, {hyperparameter: value}; left out, the one that meets the run's
        target on validation rows. client, model: as in `predict`.
        """
        states = self._states(model)
        chosen = self.chosen_setting() if self.swept and setting is None else None
        run = choose_run(list(states), self.swept, seed, setting, chosen)
        values = dict(zip(self.swept, run[:-1], strict=True)) if self.swept else None
        return Model(
            states[run],
            self.schema,
            labels=tuple(self.info["classes"]),
            groups=tuple(self.info["groups"]),
            meaning=str(self.info.get("meaning", "")),
            data=str(self.info["data"]),
            setting=values,
            client=client,
        )

    def chosen_setting(self) -> dict[str, float] | None:
        """Of a sweep, the setting that meets the run's target on validation rows; None where there is no target, or no
        setting that meets it."""
        if not self.swept or not self.settings.target:
            return None
        answer = self.answer()
        return answer.chosen.setting if answer.chosen is not None and answer.chosen_meets else None

    def _states(self, model: Any) -> Mapping[Any, FinalState]:
        if not self.final_states:
            raise ConfigError("This result cannot predict: it holds frames and parameters, but no final states.")
        if model is None:
            return self.final_states
        return StoredStates.pack(self.final_states).rebuilt(model)

    def __post_init__(self) -> None:
        catalogue.learn(self.info.get("metrics", ()))

    @cached_property
    def variants(self) -> list[Variant]:
        """Its settings, each over its seeds: taken from the frames once, which must not be changed in place then."""
        from equifed.verdict import variants_in

        return variants_in(self)

    @cached_property
    def compared(self) -> Comparison:
        """Its settings beside each other, by its own target: what its card, its page and its record say."""
        from equifed.verdict import Comparison

        return Comparison.of([self])

    def __setattr__(self, name: str, value: Any) -> None:
        for taken in ("variants", "compared"):
            self.__dict__.pop(taken, None)
        object.__setattr__(self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        # as values, not as objects: a method or a model may have no name to be pickled by
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**known, "final_states": StoredStates.pack(self.final_states)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    @property
    def swept(self) -> list[str]:
        """Names of the swept hyperparameters."""
        return list(self.info.get("swept", []))

    def final(self, split: str = "test") -> pd.DataFrame:
        """The last round's global metrics, a row per run and a column per metric."""
        frame = self.metrics
        known = [str(name) for name in frame["split"].unique()]
        if known and split not in known:
            raise unknown_name("split", split, known)
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
        keys = ["method", *self.swept]
        return wide.drop(columns="seed").set_index(keys) if wide.empty else moments_wide(wide, keys)

    def count_tables(self, split: str = "test", *, labels: bool = True, unknown: bool = False) -> dict[Any, np.ndarray]:
        """`counts` as arrays [group, label, prediction], by the keys of `parameters`; what `metrics.evidence` takes.

        labels=False: with all rows at label 0, for metrics that need no labels (demographic parity): also the rows
        whose labels silos withhold. unknown=True: the rows of unknown group, if there are any, as one more group after
        the last, for metrics that are about all rows (accuracy). `metrics.evidence.tables_for` says which of these a
        metric takes. Empty for a regression, and for a split that was not measured.
        """
        tables = whole_tables(self.counts, self.info, split)
        return {
            key if self.swept else key[0]: of_kind(table, self.info, labels, unknown) for key, table in tables.items()
        }

    def pareto(
        self, quality: str = "accuracy", disparity: str = "demographic_parity_difference", split: str = "test"
    ) -> pd.DataFrame:
        """The trade-off: mean of both metrics for each swept setting, and whether another setting is better in both
        (or one of the two is undefined).

        `..._low` and `..._high` bound the means, 95 % intervals of a bootstrap over the seeds (nan for one seed).
        Which way is better stands in the catalogue of metrics; a ratio counts by its distance from 1.
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
        and the disparity of FedAvg; None takes the worst of this sweep. The interval is of a bootstrap over the
        seeds, the same seeds for all settings.
        """
        return tradeoff.hypervolume(self.final(split), ["method", *self.swept], quality, disparity, reference)

    def answer(self, target: Any = None, confidence: Confidence | None = None) -> Answer:
        """Which setting meets the target, how sure that is and at what cost: chosen on validation rows, confirmed on
        test rows. `equifed.answer` chooses among several results.

        target: a text such as "demographic_parity_difference <= 0.05", or several; confidence: between 0.5 and 1, or
        "mean". Default: those of the run's settings.
        """
        from equifed.verdict import answer

        return answer([self], target, confidence)

    def adapt(self, rows: tuple[Any, Any], *, steps: int = 100, model: Any = None) -> Adapted:
        """A client that took no part in training: from its rows (x, y) it gets a state of its own, such as mixture
        weights by E-steps alone, or a model by gradient steps on all its rows at once; the common models stay as they
        are, and nothing leaves the client.

        steps: how many of either.

        x as in the federation's own rows, before its scaling; y as class codes (named in `info["classes"]`) or values.
        model: as in `predict`.
        """
        check_number("steps", steps, whole=True, low=1)
        x, y = (np.asarray(part) for part in rows[:2])
        if len(x) != len(y) or not len(y):
            raise DataError(f"A new client needs rows, as many labels as rows; got {len(x)} and {len(y)}.")
        runs = self._states(model)
        return Adapted(dict(runs), {key: run.adapt(x, y, steps) for key, run in runs.items()})

    def to_html(
        self,
        path: str | Path,
        *,
        title: str | None = None,
        disparity: str | None = None,
        baseline: str | None = None,
        margin: float = MARGIN,
        target: Any = None,
        confidence: Confidence | None = None,
    ) -> Path:
        """Write the report, one self-contained HTML page; `equifed.report.write_report` takes several results."""
        from equifed.report import write_report

        asked: dict[str, Any] = {"disparity": disparity, "margin": margin, "target": target, "confidence": confidence}
        return write_report([self], path, title=title, baseline=baseline, **asked)

    def to_latex(self, metrics: Sequence[str] | None = None) -> str:
        """The comparison of its settings as a LaTeX table with a caption; needs the package booktabs.
        `equifed.report.table` takes several results."""
        from equifed.report import table

        return table([self], "latex", metrics=metrics)

    def to_markdown(self, metrics: Sequence[str] | None = None) -> str:
        """The same as a Markdown table."""
        from equifed.report import table

        return table([self], "markdown", metrics=metrics)

    def _repr_html_(self) -> str | None:
        """How a notebook shows it; None, so that it falls back on the text, where nothing was measured."""
        return None if self.metrics.empty else self.compared._repr_html_()

    def __repr__(self) -> str:
        seeds = self.metrics["seed"].nunique()
        return f"Result({self.info['method']}, {self.settings.rounds} rounds, {seeds} seeds)\n{self.summary().T}"
