"""Predicting with what a run ended with, and adapting it to a client that took no part in training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from equifed import randomness, tree
from equifed.errors import ConfigError, DataError, unknown_name
from equifed.federation.arrays import check_finite
from equifed.partition.base import UNKNOWN, is_missing
from equifed.protocol import Data, Method, Task, adjust_predictions
from equifed.tree import Tree
from equifed.words import clean, listed, shortened

if TYPE_CHECKING:
    import pandas as pd

    from equifed.data import Schema


@dataclass(frozen=True, eq=False)
class FinalState:
    """What a run ended with."""

    method: Method
    """With the run's own hyperparameters."""
    task: Task
    server: Any
    """The server's state."""
    clients: Any
    """The clients' states, a leading axis over clients; None where they stay with the silos of a real federation."""
    ids: Sequence[str]
    """The clients; none where they are too many to be stored and need not be told apart."""
    seed: int
    scaling: tuple[np.ndarray, np.ndarray] | None
    """What is subtracted from features, and what they are multiplied by."""
    shape: tuple[int, ...]
    """Of one row."""
    model: Any
    """The model as it was given."""

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """The final model(s) by name: the server's, or the clients' own with a leading axis."""
        theta = self.method.model_of(self.server, self.clients)
        return {name: value.numpy() for name, value in tree.to_named(theta).items()}

    def features(self, x: Any) -> Tensor:
        """Rows as the model sees them."""
        try:
            with np.errstate(over="ignore"):  # what is too large is refused below
                rows = np.asarray(x, dtype=np.float32)
        except (TypeError, ValueError):
            raise DataError("x must be rows of numbers, and holds something else or rows of unequal length.") from None
        if rows.shape[1:] != tuple(self.shape):
            expected, got = list(self.shape), list(rows.shape)
            raise DataError(f"x must be rows of the federation's features, shape {expected} each; got shape {got}.")
        check_finite(rows)
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

    def client_state(self, client: str | None) -> Any:
        """What the client keeps; where clients have models of their own, one must be named."""
        method = self.method
        if self.clients is None and method.personal:
            raise ConfigError(
                f"With {method.name} the silos have models of their own, which stay with them: the server's result "
                "cannot predict for them."
            )
        if client is None and method.personal:
            raise ConfigError(
                f"With {method.name} clients have models of their own: name one of them as `client`. They are: "
                f"{shortened(self.ids)}."
            )
        if client is not None and client not in self.ids:
            raise unknown_name("client", client, self.ids)
        if self.clients is None:
            return blank_states(method, self.task)[1]  # the same for all: no prediction depends on it
        return tree.take(self.clients, 0 if client is None else self.ids.index(client))

    def predict(self, x: Any, s: Any, client: str | None, draw: int, groups: Sequence[str]) -> np.ndarray:
        method, task, features = self.method, self.task, self.features(x)
        state = self.client_state(client)
        with torch.no_grad():
            prediction = method.predict(task, self.server, state, features)
            if method.adjusts:
                if s is None:
                    raise ConfigError(f"{method.name} decides by a row's group: give the groups of the rows as `s`.")
                codes = torch.from_numpy(_codes(s, groups, len(features)))
                u = torch.from_numpy(randomness.generator(self.seed, "predict", draw).random(len(features)))
                prediction = adjust_predictions(method, task, self.server, state, prediction, codes, u)
        return prediction.numpy()


def table_of(rows: Any) -> pd.DataFrame | None:
    """Return a data frame of what names its columns: a table, {column: values} or records [{column: value}, ...]; None
    for an array."""
    import pandas as pd

    from equifed.federation.frames import frame_of

    records = isinstance(rows, list | tuple) and len(rows) > 0 and all(isinstance(row, Mapping) for row in rows)
    if records or isinstance(rows, Mapping):
        try:
            return frame_of(pd.DataFrame(list(rows) if records else dict(rows)))
        except ValueError as error:
            raise DataError(f"The rows cannot be read as a table: {clean(error)}") from None
    return frame_of(rows) if hasattr(rows, "columns") or hasattr(rows, "to_pandas") else None


def read_table_rows(frame: pd.DataFrame, schema: Schema, method: Method, s: Any) -> tuple[Any, Any]:
    """Return the model's inputs of a table, and the rows' groups where the method needs them."""
    inputs = schema.inputs(frame)
    if method.adjusts and s is None:
        absent = [rule.column for rule in schema.sensitive if rule.column not in frame.columns]
        if absent:
            raise DataError(
                f"{method.name} decides by a row's group, and the rows have no column {listed(absent)} that tells it. "
                "Add it; a row whose group is unknown has no value there."
            )
        s = schema.group_codes(frame)
    return inputs, s


def blank_states(method: Method, task: Task) -> tuple[Any, Tree]:
    """States of the server and of a client with the method's structure and shapes, and no values that mean anything."""
    count = () if method.num_models is None else (method.num_models,)
    parameters = {}
    for name, value in task.parameters.items():
        shape = (*count, *value.shape)  # all different, as initial values are
        parameters[name] = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    with torch.no_grad():
        return method.init(task, parameters), method.init_client(task, parameters)


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
            key: {name: value.cpu().numpy() for name, value in tree.to_named(state).items()}
            for key, state in self.states.items()
        }

    def predict(self, x: Any) -> dict[Any, np.ndarray]:
        """Probabilities (or values) for the rows x, by seed."""
        with torch.no_grad():
            return {
                key: run.method.predict(run.task, run.server, self.states[key], run.features(x)).cpu().numpy()
                for key, run in self.runs.items()
            }


def _codes(s: Any, groups: Sequence[str], n: int) -> np.ndarray:
    """Group codes from codes or names; -1 for -1 and what is missing (None, nan): the group is unknown."""
    given = np.asarray(s)
    if given.shape != (n,):
        raise ConfigError(f"s must have a group for each of the {n} rows, got an array of shape {given.shape}.")
    missing = is_missing(given)
    if missing.any():
        known = np.array(given[~missing].tolist())
        if known.dtype.kind == "f" and (known % 1 == 0).all():
            known = known.astype(np.int64)
        codes = np.full(n, UNKNOWN)
        codes[~missing] = _codes(known, groups, len(known))
        return codes
    if given.dtype.kind in "iub":
        wrong = [int(code) for code in np.unique(given) if not UNKNOWN <= code < len(groups)]
        if wrong:
            raise ConfigError(f"s holds the group code {wrong[0]}; the codes are 0 to {len(groups) - 1}.")
        return given.astype(np.int64)
    code = {name: i for i, name in enumerate(groups)}
    for name in dict.fromkeys(map(str, given)):
        if name not in code:
            raise unknown_name("group", name, groups)
    return np.array([code[str(name)] for name in given], dtype=np.int64)
