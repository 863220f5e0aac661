"""The task: a model as a function of its parameters, the loss of a row, and the sizes that methods need; and the rows
that a client has of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from equifed.dropout import use_dropout
from equifed.modules import trained_parameters
from equifed.tree import Tree

if TYPE_CHECKING:
    from equifed.settings import Local

Record = dict[str, Tree]
"""Named tensors or trees: what travels in one message."""
TaskKind = Literal["classification", "regression"]
LabelKind = Literal["binary", "multiclass", "regression"]
LEAST_PROBABILITY = 1e-7
"""Smallest distance from 0 and 1 of a probability in a loss."""


def label_kind(task: TaskKind, num_classes: int) -> LabelKind:
    """Return the kind of a task's labels, one of `Method.label_kinds`."""
    if task == "regression":
        return "regression"
    return "binary" if num_classes == 2 else "multiclass"


@dataclass(frozen=True, eq=False)
class Task:
    """The learning task: model, labels, numbers of groups and clients, and training settings. Constant during a run."""

    module: nn.Module
    """The model's architecture and frozen values; its other parameters' values are not used."""
    kind: TaskKind
    """Classification or regression."""
    num_classes: int
    """Classes of the label (0 for regression)."""
    num_groups: int
    """Number of groups of the sensitive attribute."""
    num_clients: int
    """Number of clients in the federation, present or not."""
    rounds: int
    """Number of planned rounds (T)."""
    local: Local
    """Settings of local training."""
    sensitive_size: int = 1
    """Number of values that describe a row's sensitive attribute (`Data.sensitive`)."""
    num_client_groups: int = 0
    """Number of known groups of clients (0: unknown)."""
    binary: bool = False
    """True if the model has one output, the logit of class 1, instead of one per class."""
    dropout: Tensor | None = None
    """Key [2] of the model's dropout in a step of local training (`equifed.dropout`). None elsewhere: no dropout."""

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The parameters that are trained and sent, by name; their values are not used."""
        return trained_parameters(self.module)

    def in_step(self, dropout: Tensor) -> Task:
        """Return the task for a step of local training with this dropout key."""
        return replace(self, dropout=dropout)

    def rate(self, round: int) -> float:
        """Return the step size of local training in this round; before round 1, that of round 1."""
        return self.local.rate(max(round, 1), self.rounds)

    def forward(self, parameters: Tree, x: Tensor) -> Tensor:
        """Return the model's raw output: logits [n] (binary) or [n, classes]; predictions [n] for regression."""
        out: Tensor
        if self.dropout is None:
            out = functional_call(self.module, parameters, (x,))
        else:
            with use_dropout(self.dropout):
                out = functional_call(self.module, parameters, (x,))
        scalar = self.binary or self.kind == "regression"
        return out.squeeze(-1) if scalar and out.dim() == 2 else out

    def row_loss(self, parameters: Tree, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each row [n]: log loss, cross entropy, or squared error."""
        return self.loss_of(self.forward(parameters, x), y)

    def loss_of(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each row from the model's raw output."""
        if self.kind == "regression":
            return (output - y).square()
        if self.binary:
            # -log p(y) = log(1 + e^z) - y z
            return F.softplus(output) - y.to(output.dtype) * output
        picked = torch.gather(output, -1, y.unsqueeze(-1)).squeeze(-1)
        return torch.logsumexp(output, -1) - picked

    def predict(self, parameters: Tree, x: Tensor) -> Tensor:
        """Return the probability of class 1 [n] (binary), of each class [n, classes], or the prediction [n]."""
        out = self.forward(parameters, x)
        if self.kind == "regression":
            return out
        return torch.sigmoid(out) if self.binary else torch.softmax(out, -1)

    def loss_of_prediction(self, prediction: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each row from the result of `predict`; probabilities are clamped away from 0 and 1."""
        if self.kind == "regression":
            return (prediction - y).square()
        if prediction.dim() == 1:
            picked = torch.where(y == 1, prediction, 1 - prediction)
        else:
            picked = torch.gather(prediction, -1, y.unsqueeze(-1)).squeeze(-1)
        return -picked.clamp(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY).log()

    @staticmethod
    def decide(prediction: Tensor) -> Tensor:
        """Return the predicted class from `predict`'s probabilities: 1 if above one half, or the most probable one."""
        return (prediction > 0.5).long() if prediction.dim() == 1 else prediction.argmax(-1)


@dataclass(frozen=True, eq=False)
class Data:
    """The rows of one client, of the server's validation set or of one batch, with the values that belong to them."""

    x: Tensor
    """Features [n, ...]."""
    y: Tensor
    """Labels [n]: class codes, or values for regression."""
    s: Tensor
    """Group codes of the sensitive attribute [n]; -1 where the group is unknown. Such rows are trained on, but left
    out of group statistics: see `known`."""
    mask: Tensor
    """1.0 for a row, 0.0 for padding [n]."""
    task: Task
    """The model and the sizes."""
    per_row: Mapping[str, Tensor] = field(default_factory=dict)
    """Values that `prepare` computed for each row, [n, ...] each."""
    draws: Mapping[str, Tensor] = field(default_factory=dict)
    """The phase's random numbers by name."""
    client_group: Tensor | None = None
    """The client's known group, if the federation has client groups."""
    batches: tuple[Tensor, ...] = ()
    """Row positions of each step of local training, in order."""
    uniforms: tuple[Tensor, ...] = ()
    """Random numbers in [0, 1) for each row [n], for each epoch of local training that resamples."""
    dropout: tuple[Tensor, ...] = ()
    """The dropout key of each step of local training, if the model has dropout; see `Task.dropout`."""
    learning_rate: float | Tensor = 0.0
    """The step size of this round."""
    attribute: Tensor | None = None
    """The sensitive attribute as numbers [n, d], if it holds more than the group; see `sensitive`. None in a batch:
    pass the rows' numbers as `per_row`."""
    client: Tensor | None = None
    """The client's position in the federation, as in the server's `replies["client"]`. None in a batch."""
    initial: Tree = ()
    """The model's initial parameters, in phases that ask for them. Each client computes them from the shared seed, so
    they are not sent. Empty in a batch: pass them as context."""

    @classmethod
    def of(cls, validation: Tree, task: Task) -> Data:
        """Make `Data` from validation rows as they are sent: (x, y, s, mask)."""
        x, y, s, mask = validation
        return cls(x, y, s, mask, task)

    @property
    def sensitive(self) -> Tensor:
        """The sensitive attribute as numbers [n, d]: the federation's continuous attribute or several columns, if it
        has them; otherwise the group, as 0 or 1 for two groups and one-hot for more. Undefined for rows of unknown
        group: use `known`."""
        if self.attribute is not None:
            return self.attribute
        if self.task.num_groups <= 2:
            return self.s[:, None].to(self.mask.dtype)
        groups = torch.arange(self.task.num_groups, device=self.s.device)
        return (self.s[:, None] == groups).to(self.mask.dtype)

    @property
    def n(self) -> Tensor:
        """The number of rows, as a tensor."""
        return self.mask.sum()

    def masked(self, values: Tensor) -> Tensor:
        """Return the rows' values [n, ...] with zeros in the padding."""
        mask = self.mask.reshape(self.mask.shape + (1,) * (values.dim() - 1))
        return torch.where(mask > 0, values, torch.zeros_like(values))

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over the rows [n, ...] -> [...], without padding."""
        return self.masked(values).sum(0)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over the rows; 0 for a client without rows (its weight is 0, too)."""
        return self.sum(values) / self.n.clamp_min(1)

    def where(self, keep: Tensor) -> Data:
        """Return the data with rows outside `keep` treated as padding: `data.where((data.s == 1) & (data.y == 1))`."""
        return self.replace(mask=self.mask * keep.to(self.mask.dtype))

    @property
    def known(self) -> Data:
        """The data with rows of unknown group treated as padding. Group statistics are computed on it."""
        return self.where(self.s >= 0)

    def of_groups(self, values: Tensor, unknown: float) -> Tensor:
        """Return the value of each row's group, [G, ...] -> [n, ...]; `unknown` for rows of unknown group."""
        known = (self.s >= 0).reshape(-1, *(1,) * (values.dim() - 1))
        return torch.where(known, values[self.s.clamp_min(0)], unknown)

    def batch(self, rows: Tensor, per_row: Mapping[str, Tensor]) -> Data:
        """Return the rows at these positions, with their entries of `per_row`."""
        return self.replace(
            x=self.x[rows],
            y=self.y[rows],
            s=self.s[rows],
            mask=self.mask[rows],
            per_row={name: values[rows] for name, values in per_row.items()},
            attribute=None,
            client=None,
            initial=(),
        )

    def replace(self, **changes: Any) -> Data:
        """Return a copy with some fields changed."""
        names = (field.name for field in fields(Data))
        return Data(**{name: changes[name] if name in changes else getattr(self, name) for name in names})


def num_outputs(kind: TaskKind, num_classes: int) -> int:
    """Return the number of outputs of a model built for the task: one for two classes (a logit) and for regression."""
    return 1 if kind == "regression" or num_classes == 2 else num_classes
