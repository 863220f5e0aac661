"""A trained model as one uses it: rows of a table go in, decisions and probabilities come out.

It has the interface of scikit-learn's classifiers (`predict`, `predict_proba`, `classes_`, `score`), so that its tools
and those of fairlearn take it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from equifed.errors import ConfigError, DataError, RunError, unknown_name
from equifed.partition.base import as_text, is_missing
from equifed.results.predict import FinalState, read_table_rows, table_of
from equifed.task import Task
from equifed.words import listed

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from equifed.data import Schema

Setting = Mapping[str, float]


def settings_text(values: Mapping[str, Any]) -> str:
    """` (mu=0.1, beta=2)`; nothing without settings."""
    if not values:
        return ""
    shown = (f"{k}={v:g}" if isinstance(v, float | np.floating) else f"{k}={v}" for k, v in values.items())
    return f" ({', '.join(shown)})"


@dataclass(frozen=True, eq=False)
class Model:
    """One trained model: of one seed and one setting, and where clients have models of their own, of one client."""

    state: FinalState
    schema: Schema | None
    """How a table becomes the model's inputs; None where it was trained on arrays, and takes arrays."""
    labels: tuple[str, ...]
    """The label's values in code order, as text; empty for a regression."""
    groups: tuple[str, ...]
    meaning: str = ""
    """What the positive class says of a row, or what the number is."""
    data: str = ""
    """What it was trained on."""
    setting: Setting | None = None
    """The swept hyperparameters at this model's values; None where nothing was swept."""
    client: str | None = None
    """Whose model it is, where clients have models of their own."""

    def __post_init__(self) -> None:
        if self.client is not None and self.client not in self.state.ids:
            raise unknown_name("client", self.client, self.state.ids)

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def method(self) -> str:
        return self.state.method.name

    @property
    def seed(self) -> int:
        return self.state.seed

    @property
    def clients(self) -> Sequence[str]:
        """Whom it was trained with."""
        return self.state.ids

    @property
    def is_classifier(self) -> bool:
        return self.state.task.kind == "classification"

    @property
    def personal(self) -> bool:
        """Whether clients have models of their own, so that one must be named."""
        return self.state.method.personal

    @property
    def needs_groups(self) -> bool:
        """Whether a row's decision depends on its group, which a table must then tell."""
        return self.state.method.adjusts

    @property
    def draws(self) -> bool:
        """Whether decisions are drawn by chance, as post-processing does where no threshold is exactly fair."""
        state = self.state
        return self.needs_groups and state.method.draws(state.task, state.server, state.client_state(self.client))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a table of rows must have; in any order, and others are ignored. Empty for arrays."""
        if self.schema is None:
            return ()
        groups = [rule.column for rule in self.schema.sensitive] if self.needs_groups else []
        return tuple(dict.fromkeys([*(column.name for column in self.schema.columns), *groups]))

    @property
    def classes_(self) -> NDArray[Any]:
        """The label's values in the order of `predict_proba`, as a table's reader gives them: whole numbers and truth
        values where all of them are such, else text."""
        if not self.is_classifier:
            raise AttributeError("a regression has no classes_")
        return _values(self.labels)

    @property
    def n_features_in_(self) -> int:
        """Columns of a table, or of an array in its place; without a schema, numbers of a row."""
        return math.prod(self.state.shape) if self.schema is None else len(self.columns)

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        if self.schema is None:
            raise AttributeError("a model that takes arrays has no feature_names_in_")
        return np.array(self.columns, dtype=object)

    def for_client(self, client: str) -> Model:
        """The model of another client, where clients have models of their own."""
        return replace(self, client=client)

    # -- using it ------------------------------------------------------------------------------------------------------

    def scores(self, rows: Any, *, groups: Any = None, draw: int = 0) -> np.ndarray:
        """As `Result.predict`: probabilities of class 1 [n] or of every class [n, C], or values as the model was
        trained on them."""
        x, s = rows, groups
        if self.schema is not None:
            x, s = read_table_rows(self._table(rows, groups), self.schema, self.state.method, groups)
        return self.scores_of_inputs(x, groups=s, draw=draw)

    def scores_of_inputs(self, x: Any, *, groups: Any = None, draw: int = 0) -> np.ndarray:
        """The same of rows that are encoded already, as `schema.inputs` makes them of a table [n, d]."""
        return _finite(self.state.predict(x, groups, self.client, draw, self.groups))

    def _table(self, rows: Any, groups: Any) -> pd.DataFrame:
        """Return the rows as a table; an array is read as the named columns in their order."""
        import pandas as pd

        assert self.schema is not None
        frame = table_of(rows)
        if frame is not None:
            return frame
        try:
            cells = np.asarray(rows) if hasattr(rows, "dtype") else np.asarray(rows, dtype=object)
        except ValueError:
            cells = np.empty(0, object)  # of unequal length
        inputs = tuple(dict.fromkeys(column.name for column in self.schema.columns))
        named = [self.columns] if groups is None else [self.columns, inputs]
        fitting = [names for names in named if cells.ndim == 2 and cells.shape[1] == len(names)]
        if not fitting:
            raise DataError(
                f"An array must have the {len(self.columns)} columns {listed(self.columns)}, in this order, got shape "
                f"{list(cells.shape)}. Give such an array, or a data frame with these columns; rows that are encoded "
                "already go to scores_of_inputs."
            )
        return pd.DataFrame(cells, columns=list(fitting[0])).infer_objects()

    def predict(self, rows: Any, *, groups: Any = None, draw: int = 0) -> NDArray[Any]:
        """The decision about each row, a value of `classes_`; of a regression the number, in the label's own unit.

        rows: a data frame with `columns` (no label), {column: values}, records or an array of these columns in their
        order; an array [n, ...] where the model was trained on arrays. groups: names or codes of the rows' groups, for
        a model of arrays that decides by them, or in place of a frame's own columns.
        draw: where decisions are drawn, the i-th row of a call gets the i-th random number of the model's seed and this
        number; so the same call gives the same decisions.
        """
        found = self.scores(rows, groups=groups, draw=draw)
        return self.classes_[self.codes(found)] if self.is_classifier else self.in_label_unit(found)

    def in_label_unit(self, values: np.ndarray) -> np.ndarray:
        """What a regression says, in the unit of the table's label where it was scaled for training."""
        if self.schema is None or self.schema.label_range is None:
            return values
        low, high = self.schema.label_range
        return low + values.astype(np.float64) * (high - low)

    def predict_proba(self, rows: Any, *, groups: Any = None, draw: int = 0) -> NDArray[np.float64]:
        """The probability of every class [n, C], in the order of `classes_`, after post-processing."""
        if not self.is_classifier:
            raise AttributeError("a regression has no predict_proba")
        return probabilities(self.scores(rows, groups=groups, draw=draw))

    @staticmethod
    def codes(scores: np.ndarray) -> NDArray[np.int64]:
        """The decided class of each row, as its place in `classes_`: above one half, or the largest. Scores that are
        NaN or infinite are refused."""
        _finite(scores)
        return Task.decide(torch.from_numpy(scores)).numpy()

    # -- scikit-learn --------------------------------------------------------------------------------------------------

    def fit(self, rows: Any, y: Any) -> Model:
        """Refused: scikit-learn asks for the name, but training is `equifed.simulate` or a run."""
        raise ConfigError("This model is trained already. Train another with equifed.simulate, or `equifed run`.")

    def score(self, rows: Any, y: Any, sample_weight: Any = None, *, groups: Any = None) -> float:
        """The accuracy of a classifier, R² of a regression, on rows with these labels."""
        labels = np.asarray(y)
        found = self.scores(rows, groups=groups)
        if labels.shape != found.shape[:1] or not len(labels):
            raise DataError(f"y must have a label for each of the {len(found)} rows, got shape {list(labels.shape)}.")
        if is_missing(labels).any():
            raise DataError(f"y has no label for row {int(is_missing(labels).argmax())}. Leave such rows out.")
        if self.is_classifier:
            given = np.array([as_text(label) for label in labels])
            return float(np.average(np.array(self.labels)[self.codes(found)] == given, weights=sample_weight))
        values = labels.astype(np.float64)
        mean = np.average(values, weights=sample_weight)
        error = np.average((values - self.in_label_unit(found)) ** 2, weights=sample_weight)
        spread = np.average((values - mean) ** 2, weights=sample_weight)
        return float(1 - error / spread) if spread else float(error == 0)  # as scikit-learn has it

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """None: nothing of a trained model can be set."""
        return {}

    def set_params(self, **parameters: Any) -> Model:
        """Refused, but for none."""
        if parameters:
            raise ConfigError(f"A trained model has no parameter {next(iter(parameters))!r}, nor any other, to set.")
        return self

    def __sklearn_clone__(self) -> Model:
        """Itself: a model without its training would be none."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, RegressorTags, Tags, TargetTags

        classifies = self.is_classifier
        return Tags(
            estimator_type="classifier" if classifies else "regressor",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags() if classifies else None,
            regressor_tags=None if classifies else RegressorTags(),
        )

    def __repr__(self) -> str:
        whose = f", client {self.client}" if self.client is not None else ""
        named = f"{self.method}{settings_text(self.setting or {})}"
        on = self.data or ("arrays" if self.schema is None else "a table")
        return f"Model({named} on {on}, seed {self.seed}{whose})"


def probabilities(scores: np.ndarray) -> NDArray[np.float64]:
    """Of every class [n, C], from those of class 1 alone where there are two. They add up to 1 in 64 bits."""
    wide = scores.astype(np.float64)
    return np.stack([1 - wide, wide], 1) if wide.ndim == 1 else wide / wide.sum(1, keepdims=True)


def _finite(scores: np.ndarray) -> np.ndarray:
    """Return the scores, or refuse them where one is NaN or infinite."""
    bad = ~np.isfinite(scores)
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise RunError(
            f"The model says {scores[bad][0]} of row {row}, so nothing can be decided: its training diverged. Train "
            "again with a smaller learning rate."
        )
    return scores


def choose_run(
    runs: Sequence[Any], swept: Sequence[str], seed: int | None, setting: Setting | None, chosen: Setting | None
) -> Any:
    """The key of one run: of this seed, or the first; of this setting, or of the one chosen on validation rows."""
    settings: dict[tuple[Any, ...], list[Any]] = {}
    for run in runs:
        settings.setdefault(tuple(run[:-1]) if swept else (), []).append(run)
    wanted: tuple[Any, ...] = ()
    if swept:
        given = chosen if setting is None else setting
        known = [dict(zip(swept, values, strict=True)) for values in settings]
        fits = [each for each in known if given is not None and given.keys() <= each.keys() and _same(each, given)]
        if len(fits) != 1:
            listed = "; ".join(settings_text(each)[2:-1] for each in known)
            if given is None:
                text = f"Which setting? The run has {len(known)}, and no target by which one was chosen: {listed}."
            else:
                found = "Several settings have" if fits else "No setting has"
                text = f"{found}{settings_text(given)}. There are: {listed}."
            raise ConfigError(text, key="setting", value=given)
        wanted = tuple(fits[0].values())
    elif setting:
        raise ConfigError("The run has one setting: nothing was swept.", key="setting", value=setting)
    keys = settings[wanted]
    seeds = [run[-1] if swept else run for run in keys]
    if seed is not None and seed not in seeds:
        raise unknown_name("seed", seed, map(str, seeds), key="seed")
    return keys[0 if seed is None else seeds.index(seed)]


def _same(setting: Setting, given: Setting) -> bool:
    return all(math.isclose(setting[name], value, rel_tol=1e-9) for name, value in given.items())


def _values(labels: Sequence[str]) -> NDArray[Any]:
    if set(labels) == {"False", "True"}:
        return np.array([label == "True" for label in labels])
    try:
        whole = [int(label) for label in labels]
    except ValueError:
        return np.array(labels)
    return np.array(whole if [str(number) for number in whole] == list(labels) else labels)
